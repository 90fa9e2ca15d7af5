
=head1 NAME

ListHistory - judges histories of transactions that read lists and append to them, for TAP tests

=head1 SYNOPSIS

  my $history = ListHistory->new(records => \@records, lists => { 1 => [ 10, 12 ], 2 => [11] });
  foreach my $check ($history->checks) { diag "$check: $_" foreach $history->found($check) }

=head1 DESCRIPTION

A record is a transaction: {outcome => ok, failed or unknown, state => SQLSTATE, level => isolation level, begun, ended (seconds), operations}. An
operation is [ 'append', list, id ], with an id that is given once in the whole history, or [ 'read', list, [ids], statement ], where reads of one
statement bear the same number. An operation may end with the time at which its statement was sent. C<lists> are the lists when all was over.

A final list tells in which order transactions wrote; a read tells how far it was then. From both follow dependencies: ww (wrote the next element), wr
(read what the other wrote), rw (did not see what the other wrote). A transaction at REPEATABLE READ or SERIALIZABLE is one reader; at READ
COMMITTED each statement is one. Then these are forbidden:

  lost          an acknowledged append is not there
  doubled       an append is there twice
  G1a           an append of a failed transaction is there, or was read
  half          of a transaction's appends some are there in the end and some are not
  G1b           a read stopped between two appends of one transaction to a list
  order         a read is no beginning of the final list: lost or reordered updates
  own           a transaction did not see its own append
  fractured     a reader saw an append of a transaction in one list, and not its append to another that it has read, too
  stale         a reader did not see what had been acknowledged before it began
  G0            a cycle of ww
  G1c           a cycle of ww and wr
  G-single      a cycle of ww and wr with one rw: a reader saw the effect and not the cause, or a writer overwrote what it had not seen
  long fork     a cycle with several rw of which no two follow each other: readers saw transactions in different orders

Allowed, and counted: G2-item, a cycle with two rw that follow each other (write skew); at SERIALIZABLE a single node would forbid it.

=cut

package ListHistory;

use strict;
use warnings FATAL => 'all';

=pod

=head1 METHODS

=head2 new(records => [...], lists => {...}, stale => 1)

Judges at once. Without C<stale> nobody has to see at once what was acknowledged.

=head2 checks(), found(check)

Names of the checks that have found something, in order; what one has found, as texts.

=head2 skews()

Transactions on cycles that are allowed.

=cut

sub new
{
	my ($class, %params) = @_;
	my $self = bless {
		records => $params{records},
		lists => $params{lists},
		look_for_stale => $params{stale} // 1,
		writer => {},      # id => number of the transaction
		found => {},       # check => texts
		there => {},       # number of a transaction => it has had an effect
		position => {},    # id => its place in its list
		readers => {},     # a reader, "number" or "number.statement" => {number, begun, reads => {list => how far}, repeated}
		edges => { ww => {}, wr => {}, rw => {} } }, $class;
	$self->_check_appends;
	$self->_check_reads($_) foreach 0 .. $#{ $self->{records} };
	$self->_write_edges;
	$self->_read_edges($_) foreach sort keys %{ $self->{readers} };
	$self->_check_cycles;
	return $self;
}

sub checks
{
	my ($self) = @_;
	return sort keys %{ $self->{found} };
}

sub found
{
	my ($self, $check) = @_;
	return @{ $self->{found}{$check} // [] };
}

sub skews
{
	my ($self) = @_;
	return $self->{skews};
}

sub _found
{
	my ($self, $check, $text) = @_;
	push @{ $self->{found}{$check} }, $text;
	return;
}

sub _snapshot
{
	my ($record) = @_;
	return ($record->{level} // '') =~ /REPEATABLE READ|SERIALIZABLE/;
}

# ---- appends, against the final lists ----

sub _check_appends
{
	my ($self) = @_;
	foreach my $k (sort { $a <=> $b } keys %{ $self->{lists} })
	{
		my $place = 0;
		foreach my $id (@{ $self->{lists}{$k} })
		{
			$self->_found('doubled', "$id in list $k") if exists $self->{position}{$id};
			$self->{position}{$id} //= $place++;
		}
	}
	foreach my $number (0 .. $#{ $self->{records} })
	{
		my $record = $self->{records}[$number];
		my @ids = map { $_->[2] } grep { $_->[0] eq 'append' } @{ $record->{operations} };
		my @there = grep { exists $self->{position}{$_} } @ids;
		$self->{writer}{$_} = $number foreach @ids;
		$self->{there}{$number} = $record->{outcome} eq 'ok' || @there > 0;
		if ($record->{outcome} eq 'ok')
		{
			$self->_found('lost', "append of $_") foreach grep { !exists $self->{position}{$_} } @ids;
		}
		elsif ($record->{outcome} eq 'failed')
		{
			$self->_found('G1a', "append of $_ ($record->{state})") foreach @there;
		}
		elsif (@there && @there < @ids)
		{
			$self->_found('half', "of the appends @ids there are @there");
		}
	}
	return;
}

# ---- reads, each against the final list ----

sub _check_reads
{
	my ($self, $number) = @_;
	my $record = $self->{records}[$number];
	my %own;    # list => appends of this transaction up to here
	my $statement = 0;
	foreach my $operation (@{ $record->{operations} })
	{
		my ($kind, $k, $what, @more) = @$operation;
		$statement++;
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
			$self->_found('own', "read @$what of list $k after appending @own");
			next;
		}
		$self->_check_read($number, $k, \@read) or next;
		my $reader = _snapshot($record) ? $number : sprintf('%d.%s', $number, $more[0] // "alone$statement");
		my $seen = $self->{readers}{$reader} //= { number => $number, begun => _snapshot($record) ? $record->{begun} : $more[1], reads => {} };
		push @{ $seen->{reads}{$k} }, scalar @read;
	}
	return;
}

# A read, without what the reader itself had appended; false if it is no beginning of the list.
sub _check_read
{
	my ($self, $number, $k, $read) = @_;
	my $list = $self->{lists}{$k} // [];
	my $n = @$read;
	foreach my $id (@$read)
	{
		my $writer = $self->{writer}{$id};
		$self->_found('G1a', "$id was read, and is of a failed transaction")
			if defined $writer && $writer != $number && $self->{records}[$writer]{outcome} eq 'failed';
	}
	if ($n > @$list || join(' ', @$read) ne join(' ', @$list[ 0 .. $n - 1 ]))
	{
		$self->_found('order', "read @$read of list $k, which is @$list");
		return 0;
	}
	my ($last, $next) = $self->_around($k, $n);
	$self->_found('G1b', "read list $k up to $list->[$n - 1], but not $list->[$n] of the same transaction")
		if defined $last && defined $next && $last == $next && $last != $number;
	return 1;
}

# Who wrote the last element that was read, and the next one.
sub _around
{
	my ($self, $k, $n) = @_;
	my $list = $self->{lists}{$k} // [];
	return ($n > 0 ? $self->{writer}{ $list->[ $n - 1 ] } : undef, $n < @$list ? $self->{writer}{ $list->[$n] } : undef);
}

# ---- dependencies ----

sub _write_edges
{
	my ($self) = @_;
	foreach my $k (keys %{ $self->{lists} })
	{
		my @writers = map { $self->{writer}{$_} } @{ $self->{lists}{$k} };
		foreach my $i (1 .. $#writers)
		{
			next unless defined $writers[ $i - 1 ] && defined $writers[$i] && $writers[ $i - 1 ] != $writers[$i];
			$self->{edges}{ww}{ $writers[ $i - 1 ] }{ $writers[$i] } = "wrote list $k behind $self->{lists}{$k}[$i - 1]";
		}
	}
	return;
}

# What a reader has seen and has not. A statement at READ COMMITTED is a node of its own for what it has not seen; what it has seen its transaction
# has seen, too.
sub _read_edges
{
	my ($self, $reader) = @_;
	my $seen = $self->{readers}{$reader};
	my $number = $seen->{number};
	return unless $self->{there}{$number} || $self->{records}[$number]{outcome} ne 'failed';
	foreach my $k (sort { $a <=> $b } keys %{ $seen->{reads} })
	{
		foreach my $n (@{ $seen->{reads}{$k} })
		{
			my $list = $self->{lists}{$k} // [];
			my ($last, $next) = $self->_around($k, $n);
			if (defined $last && $last != $number)
			{
				$self->{edges}{wr}{$last}{$_} = "read $list->[$n - 1] of list $k" foreach $reader, $number;
			}
			next unless defined $next && $next != $number;
			$self->{edges}{rw}{$reader}{$next} = "did not read $list->[$n] of list $k";
			$self->_check_stale($seen, $k, $list->[$n], $next);
		}
	}
	$self->_check_fractured($reader, $seen);
	return;
}

sub _check_stale
{
	my ($self, $seen, $k, $id, $writer) = @_;
	my $ended = $self->{records}[$writer]{ended};
	return unless $self->{look_for_stale} && $self->{records}[$writer]{outcome} eq 'ok' && defined $ended && defined $seen->{begun};
	$self->_found('stale', sprintf('%s of list %s was acknowledged %.3f s before transaction %d looked',
		$id, $k, $seen->{begun} - $ended, $seen->{number}))
		if $ended < $seen->{begun};
	return;
}

# Transactions of which the reader has seen one list and not another.
sub _check_fractured
{
	my ($self, $reader, $seen) = @_;
	my (%saw, %missed);
	foreach my $k (keys %{ $seen->{reads} })
	{
		my $list = $self->{lists}{$k} // [];
		foreach my $n (@{ $seen->{reads}{$k} })
		{
			foreach my $place (0 .. $#$list)
			{
				my $writer = $self->{writer}{ $list->[$place] };
				next unless defined $writer && $writer != $seen->{number};
				($place < $n ? \%saw : \%missed)->{$writer} //= "$list->[$place] of list $k";
			}
		}
	}
	foreach my $writer (sort { $a <=> $b } grep { $missed{$_} } keys %saw)
	{
		$self->_found('fractured', "reader $reader saw $saw{$writer} and not $missed{$writer}, of transaction $writer");
	}
	return;
}

# ---- cycles ----

sub _check_cycles
{
	my ($self) = @_;
	my $causes = $self->_graph('ww', 'wr');
	my $steps = $self->_steps($causes);
	my $cycle;
	if ($cycle = _cycle($self->_graph('ww'))) { $self->_found('G0', $self->_describe(@$cycle)); }
	elsif ($cycle = _cycle($causes)) { $self->_found('G1c', $self->_describe(@$cycle)); }
	elsif (!%{ _core($steps) }) { $self->{skews} = keys %{ _core($self->_graph('ww', 'wr', 'rw')) }; }
	elsif ($cycle = $self->_single($causes)) { $self->_found('G-single', $self->_describe(@$cycle)); }
	else { $self->_found('long fork', $self->_describe($self->_with_readers($causes, @{ _cycle($steps) }))); }
	return;
}

sub _graph
{
	my ($self, @kinds) = @_;
	my %graph;
	foreach my $edges (map { $self->{edges}{$_} } @kinds)
	{
		foreach my $from (keys %$edges)
		{
			$graph{$from}{$_} = 1 foreach keys %{ $edges->{$from} };
		}
	}
	return \%graph;
}

# A cycle with one rw: [nodes], or undef. From where an rw leads, its beginning is reached by what it caused.
sub _single
{
	my ($self, $causes) = @_;
	my $rw = $self->{edges}{rw};
	my $core = _core($self->_graph('ww', 'wr', 'rw'));
	my %within = map { my $from = $_; $from => { map { $_ => 1 } grep { $core->{$_} } keys %{ $causes->{$from} // {} } } } keys %$core;
	foreach my $from (sort grep { $core->{$_} } keys %$rw)
	{
		foreach my $to (sort grep { $core->{$_} } keys %{ $rw->{$from} })
		{
			my $path = _path(\%within, $to, $from);
			return [ $from, @$path[ 0 .. $#$path - 1 ] ] if $path;
		}
	}
	return undef;
}

# What caused something, or caused a reader that did not see it: a cycle of these is one in which no two rw follow each other.
sub _steps
{
	my ($self, $causes) = @_;
	my %steps = map { $_ => { %{ $causes->{$_} } } } keys %$causes;
	foreach my $from (keys %$causes)
	{
		foreach my $reader (keys %{ $causes->{$from} })
		{
			$steps{$from}{$_} = 1 foreach keys %{ $self->{edges}{rw}{$reader} // {} };
		}
	}
	return \%steps;
}

# A cycle of such steps with the readers that they went over.
sub _with_readers
{
	my ($self, $causes, @cycle) = @_;
	my @nodes;
	foreach my $i (0 .. $#cycle)
	{
		my ($from, $to) = ($cycle[$i], $cycle[ ($i + 1) % @cycle ]);
		push @nodes, $from;
		next if $causes->{$from}{$to};
		my ($reader) = grep { $self->{edges}{rw}{$_}{$to} } sort keys %{ $causes->{$from} };
		push @nodes, $reader;
	}
	return @nodes;
}

# The shortest path of a graph, from and to included, or undef.
sub _path
{
	my ($graph, $from, $to) = @_;
	my %before = ($from => undef);
	my @todo = ($from);
	while (defined(my $node = shift @todo))
	{
		if ($node eq $to)
		{
			my @path = ($node);
			unshift @path, $before{ $path[0] } while defined $before{ $path[0] };
			return \@path;
		}
		foreach my $next (grep { !exists $before{$_} } sort keys %{ $graph->{$node} // {} })
		{
			$before{$next} = $node;
			push @todo, $next;
		}
	}
	return undef;
}

# A cycle of a graph: [nodes], or undef.
sub _cycle
{
	my ($graph) = @_;
	my $core = _core($graph);
	foreach my $start (sort keys %$core)
	{
		foreach my $next (sort keys %{ $core->{$start} })
		{
			my $path = _path($core, $next, $start);
			return [ $start, @$path[ 0 .. $#$path - 1 ] ] if $path;
		}
	}
	return undef;
}

# What is left when nodes to which nothing leads, and then those from which nothing leads, are taken away again and again.
sub _core
{
	my ($graph) = @_;
	my $left = { map { $_ => { %{ $graph->{$_} } } } keys %$graph };
	$left = _reverse(_peel($left)) foreach 1, 2;
	return $left;
}

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

sub _describe
{
	my ($self, @nodes) = @_;
	my @parts;
	foreach my $i (0 .. $#nodes)
	{
		my ($from, $to) = ($nodes[$i], $nodes[ ($i + 1) % @nodes ]);
		my ($kind) = grep { $self->{edges}{$_}{$from}{$to} } 'ww', 'wr', 'rw';
		my $text = $self->{edges}{$kind}{$from}{$to};
		push @parts, $kind eq 'rw' ? "$from $text by $to (rw)" : "$to $text by $from ($kind)";
	}
	return join('; ', @parts);
}

1;
