package Chaos::Workload::List;

# Transactions that read lists, one or several in a statement, and append unique ids to them, over several keys and at several isolation levels; their
# history is judged as a whole by ListHistory (test/perl), which says what is forbidden. Each of its checks is one here:
#
#   list: lost, doubled, half, order, own    appends
#   list: G1a, G1b, G0, G1c                  at any level
#   list: fractured, stale, G-single, long fork    a statement at READ COMMITTED, a transaction at REPEATABLE READ: one moment of all shards
#   list: row           a statement did not find the list that it names
#
# Allowed: write skew, which is counted as a note.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

use Chaos::Connection;
use ListHistory;
use Time::HiRes qw(time);

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

# A plan: appends, and reads of one list or of several in one statement.
sub _plan
{
	my ($random, @keys) = @_;
	my @plan;
	foreach (1 .. 2 + $random->below(3))
	{
		my $kind = $random->weighted(append => 5, read => 3, several => 2);
		push @plan, [ $kind, $kind eq 'several' ? sort { $a <=> $b } @keys : $random->pick(@keys) ];
	}
	return @plan;
}

sub step
{
	my ($self, $connection, $random, $next_id, $round) = @_;
	my @plan = _plan($random, $random->sample(2 + $random->below(3), $self->keys_of($round)));
	my $level = $random->weighted('READ COMMITTED' => 4, 'REPEATABLE READ' => 5, 'SERIALIZABLE' => 1);
	my $statement = 0;
	my ($begun, @operations, @missing);
	my $answer = $connection->transaction(
		sub {
			my ($query) = @_;
			$begun = time;
			foreach my $operation (@plan)
			{
				my ($kind, @keys) = @$operation;
				$statement++;
				my $sent = time;
				if ($kind eq 'append')
				{
					# Noted before it is sent: a failed transaction's appends must be known.
					my $id = $next_id->();
					push @operations, [ 'append', $keys[0], $id ];
					push @missing, $keys[0] if Chaos::Connection::count($query->("UPDATE list SET v = v || ${id}::bigint WHERE k = $keys[0]")) != 1;
					next;
				}
				my $got = $query->('SELECT k, v FROM list WHERE k IN (' . join(', ', @keys) . ')');
				push @missing, join(' or ', @keys) if Chaos::Connection::count($got) != @keys;
				push @operations, [ 'read', $_->[0], [ elements($_->[1]) ], $statement, $sent ] foreach @{ $got->{rows} };
			}
		},
		$level);
	return { kind => 'transaction', level => $level, looked => $begun, operations => \@operations, missing => \@missing,
		Chaos::Workload::outcome($answer) };
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

# The checker proper: records of transactions {outcome, operations, ...}, and the final lists. A transaction has begun to look
# with its first statement.
sub check_history
{
	my ($self, $records, $lists) = @_;
	my $history = ListHistory->new(records => [ map { { %$_, begun => $_->{looked} } } @$records ], lists => $lists);
	$self->{skews} = $history->skews;
	return map { Chaos::Workload::findings("list: $_", $history->found($_)) } $history->checks;
}

sub notes
{
	my ($self) = @_;
	return defined $self->{skews} ? "list: $self->{skews} transactions on cycles of write skew (allowed)" : ();
}

1;
