package Chaos::Workload::List;

# Transactions that read lists and append unique ids to them, over several keys; their history is checked as a whole.
#
# A final list tells in which order transactions wrote a key; a read tells how far it was then. From both follow dependencies: ww (wrote the next
# element), wr (read what the other wrote), rw (did not see what the other wrote). Every wr and ww says that one transaction had begun to commit
# before an operation of the other that itself came before the other's commit; row locks are held until the commit. So these are forbidden, over all
# shards:
#
#   list: lost          an acknowledged append is not there
#   list: doubled       an append is there twice
#   list: aborted       an append of a failed transaction is there, or was read (G1a)
#   list: half          of a transaction's appends some are there and some are not
#   list: intermediate  a read stopped between two appends of one transaction (G1b)
#   list: order         a read is no beginning of the final list (lost or reordered updates)
#   list: own           a transaction did not see its own append
#   list: G0            a cycle of ww
#   list: G1c           a cycle of ww and wr
#   list: row           a statement did not find the list that it names
#
# Conceded: cycles that need an rw. The isolation level is READ COMMITTED, each statement has its own snapshot, and each shard its own: a reader may
# see one part of a transaction and not the other (fractured reads). They are counted as a note.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

use Chaos::Connection;

sub defaults
{
	return (lists => 10, spread => 100);
}

sub name
{
	return 'list';
}

sub tables
{
	my ($self) = @_;
	return { list => { kind => 'int', min => 0, max => $self->{lists} * $self->{spread} } };
}

sub setup
{
	return ('CREATE TABLE list (k int PRIMARY KEY, v bigint[] NOT NULL)', "SELECT tessera.shard_table('list', 'k')");
}

# Each round has lists of its own, so that they stay short.
sub keys_of
{
	my ($self, $round) = @_;
	return map { $_ * $self->{spread} + $round } 0 .. $self->{lists} - 1;
}

sub round
{
	my ($self, $round) = @_;
	return 'INSERT INTO list VALUES ' . join(', ', map { "($_, '{}')" } $self->keys_of($round));
}

sub elements
{
	my ($text) = @_;
	return $text =~ /(\d+)/g;
}

sub step
{
	my ($self, $connection, $random, $next_id, $round) = @_;
	my @keys = $random->sample(3, $self->keys_of($round));
	my @plan = map { [ $random->chance(0.55) ? 'append' : 'read', $random->pick(@keys) ] } 1 .. 2 + $random->below(3);
	my (@operations, @missing);
	my $answer = $connection->transaction(
		sub {
			my ($query) = @_;
			foreach my $operation (@plan)
			{
				my ($kind, $k) = @$operation;
				my $id = $kind eq 'append' ? $next_id->() : undef;
				# Noted before it is sent: a failed transaction's appends must be known.
				push @operations, [ 'append', $k, $id ] if defined $id;
				my $got = $query->(defined $id ? "UPDATE list SET v = v || ${id}::bigint WHERE k = $k" : "SELECT v FROM list WHERE k = $k");
				push @missing, $k if Chaos::Connection::count($got) != 1;
				push @operations, [ 'read', $k, [ elements($got->{rows}[0][0]) ] ] if !defined $id && @{ $got->{rows} };
			}
		});
	return { kind => 'transaction', operations => \@operations, missing => \@missing, Chaos::Workload::outcome($answer) };
}

sub final
{
	return { list => 'SELECT k, v FROM list' };
}

sub check
{
	my ($self, $records, $final) = @_;
	my @findings = Chaos::Workload::findings('list: row', map { my $r = $_; map { "on $r->{node}: list $_" } @{ $r->{missing} // [] } } @$records);
	my ($first, @others) = sort keys %$final;
	return @findings unless $first;
	my %texts;
	foreach my $node ($first, @others)
	{
		$texts{$node} = join("\n", sort map { "$_->[0] $_->[1]" } @{ $final->{$node}{list} });
		push @findings, [ 'list: order', "$node and $first show different lists" ] if $texts{$node} ne $texts{$first};
	}
	my %lists = map { $_->[0] => [ elements($_->[1]) ] } @{ $final->{$first}{list} };
	return (@findings, $self->check_history($records, \%lists));
}

# The checker proper: records of transactions {outcome, operations}, and the final lists.
sub check_history
{
	my ($self, $records, $lists) = @_;
	my $history = {
		records => $records,
		lists => $lists,
		writer => {},      # id => number of the transaction
		found => {},       # of a check => texts
		there => {},       # number of the transaction => it has had an effect
		position => {},    # id => its place in its list
		edges => { ww => {}, wr => {}, rw => {} }
	};
	_check_appends($history);
	_check_reads($history, $_) foreach 0 .. $#$records;
	_write_edges($history);
	_check_cycles($history, 'list: G0', 'ww') or _check_cycles($history, 'list: G1c', 'ww', 'wr');
	$self->{fractured} = _cyclic($history, 'ww', 'wr', 'rw') unless $history->{found}{'list: G0'} || $history->{found}{'list: G1c'};
	return map { Chaos::Workload::findings($_, @{ $history->{found}{$_} }) } sort keys %{ $history->{found} };
}

sub _found
{
	my ($history, $check, $text) = @_;
	push @{ $history->{found}{$check} }, $text;
	return;
}

sub _appends
{
	my ($record) = @_;
	return grep { $_->[0] eq 'append' } @{ $record->{operations} };
}

sub _check_appends
{
	my ($history) = @_;
	foreach my $k (sort { $a <=> $b } keys %{ $history->{lists} })
	{
		my $place = 0;
		foreach my $id (@{ $history->{lists}{$k} })
		{
			_found($history, 'list: doubled', "$id in list $k") if exists $history->{position}{$id};
			$history->{position}{$id} //= $place++;
		}
	}
	foreach my $number (0 .. $#{ $history->{records} })
	{
		my $record = $history->{records}[$number];
		my @ids = map { $_->[2] } _appends($record);
		my @there = grep { exists $history->{position}{$_} } @ids;
		$history->{writer}{$_} = $number foreach @ids;
		$history->{there}{$number} = $record->{outcome} eq 'ok' || @there > 0;
		if ($record->{outcome} eq 'ok')
		{
			_found($history, 'list: lost', "append of $_") foreach grep { !exists $history->{position}{$_} } @ids;
		}
		elsif ($record->{outcome} eq 'failed')
		{
			_found($history, 'list: aborted', "append of $_ ($record->{state})") foreach @there;
		}
		elsif (@there && @there < @ids)
		{
			_found($history, 'list: half', "of the appends @ids there are @there");
		}
	}
	return;
}

sub _check_reads
{
	my ($history, $number) = @_;
	my $record = $history->{records}[$number];
	my %own;    # list => appends of this transaction up to here
	foreach my $operation (@{ $record->{operations} })
	{
		my ($kind, $k, $what) = @$operation;
		if ($kind eq 'append')
		{
			push @{ $own{$k} }, $what;
			next;
		}
		my @read = @$what;
		my @own = @{ $own{$k} // [] };
		my @tail = @own ? splice(@read, @read > @own ? -@own : 0) : ();
		if ("@tail" ne "@own")
		{
			_found($history, 'list: own', "read @$what of list $k after appending @own");
			next;
		}
		_check_read($history, $number, $k, \@read);
	}
	return;
}

# A read, without what the reader itself had appended.
sub _check_read
{
	my ($history, $number, $k, $read) = @_;
	my $list = $history->{lists}{$k} // [];
	my $n = @$read;
	foreach my $id (@$read)
	{
		my $writer = $history->{writer}{$id};
		_found($history, 'list: aborted', "$id was read, and is of a failed transaction")
			if defined $writer && $writer != $number && $history->{records}[$writer]{outcome} eq 'failed';
	}
	if ($n > @$list || join(' ', @$read) ne join(' ', @$list[ 0 .. $n - 1 ]))
	{
		_found($history, 'list: order', "read @$read of list $k, which is @$list");
		return;
	}
	return unless $history->{there}{$number};
	my $last = $n > 0 ? $history->{writer}{ $list->[ $n - 1 ] } : undef;
	my $next = $n < @$list ? $history->{writer}{ $list->[$n] } : undef;
	_found($history, 'list: intermediate', "read list $k up to $list->[$n - 1], but not $list->[$n] of the same transaction")
		if defined $last && defined $next && $last == $next && $last != $number;
	$history->{edges}{wr}{$last}{$number} = "read $list->[$n - 1] of list $k" if defined $last && $last != $number;
	$history->{edges}{rw}{$number}{$next} = "did not read $list->[$n] of list $k" if defined $next && $next != $number;
	return;
}

sub _write_edges
{
	my ($history) = @_;
	foreach my $k (keys %{ $history->{lists} })
	{
		my @writers = map { $history->{writer}{$_} } @{ $history->{lists}{$k} };
		foreach my $i (1 .. $#writers)
		{
			next unless defined $writers[ $i - 1 ] && defined $writers[$i] && $writers[ $i - 1 ] != $writers[$i];
			$history->{edges}{ww}{ $writers[ $i - 1 ] }{ $writers[$i] } = "wrote list $k behind $history->{lists}{$k}[$i - 1]";
		}
	}
	return;
}

# Transactions that lie on a cycle of these edges: those left when all without a predecessor, and all without a successor, are taken away again and
# again.
sub _cyclic
{
	my ($history, @kinds) = @_;
	my (%successors, %degree);
	foreach my $kind (@kinds)
	{
		my $edges = $history->{edges}{$kind};
		foreach my $from (keys %$edges)
		{
			$successors{$from}{$_} = 1 foreach keys %{ $edges->{$from} };
		}
	}
	my $left = \%successors;
	foreach my $direction (1, 2)
	{
		$left = _reverse(_peel($left));
	}
	return scalar keys %$left;
}

# Without the nodes that no cycle leads to.
sub _peel
{
	my ($graph) = @_;
	my %degree;
	foreach my $from (keys %$graph)
	{
		$degree{$_}++ foreach keys %{ $graph->{$from} };
	}
	my @free = grep { !$degree{$_} } keys %$graph;
	while (defined(my $node = shift @free))
	{
		foreach my $to (keys %{ $graph->{$node} // {} })
		{
			push @free, $to if --$degree{$to} == 0;
		}
		delete $graph->{$node};
	}
	return $graph;
}

sub _reverse
{
	my ($graph) = @_;
	my %reversed;
	foreach my $from (keys %$graph)
	{
		$reversed{$_}{$from} = 1 foreach keys %{ $graph->{$from} };
	}
	return \%reversed;
}

# True, with a finding that shows one cycle, if there is one.
sub _check_cycles
{
	my ($history, $check, @kinds) = @_;
	return 0 unless _cyclic($history, @kinds);
	my %state;    # 1: on the path, 2: done
	foreach my $start (0 .. $#{ $history->{records} })
	{
		my @path = ($start);
		my @todo = ([ _successors($history, $start, @kinds) ]);
		next if $state{$start};
		$state{$start} = 1;
		while (@path)
		{
			my $next = shift @{ $todo[-1] };
			if (!defined $next)
			{
				$state{ pop @path } = 2;
				pop @todo;
			}
			elsif (($state{$next} // 0) == 1)
			{
				shift @path while $path[0] != $next;
				_found($history, $check, _describe($history, \@path, @kinds));
				return 1;
			}
			elsif (!$state{$next})
			{
				$state{$next} = 1;
				push @path, $next;
				push @todo, [ _successors($history, $next, @kinds) ];
			}
		}
	}
	return 1;
}

sub _successors
{
	my ($history, $node, @kinds) = @_;
	my %next = map { map { $_ => 1 } keys %{ $history->{edges}{$_}{$node} // {} } } @kinds;
	return sort { $a <=> $b } keys %next;
}

sub _describe
{
	my ($history, $path, @kinds) = @_;
	my @parts;
	foreach my $i (0 .. $#$path)
	{
		my ($from, $to) = ($path->[$i], $path->[ ($i + 1) % @$path ]);
		my ($kind) = grep { $history->{edges}{$_}{$from}{$to} } @kinds;
		push @parts, "transaction $to $history->{edges}{$kind}{$from}{$to} after transaction $from ($kind)";
	}
	return join('; ', @parts);
}

sub notes
{
	my ($self) = @_;
	return defined $self->{fractured} ? "list: $self->{fractured} transactions on cycles with rw (conceded)" : ();
}

1;
