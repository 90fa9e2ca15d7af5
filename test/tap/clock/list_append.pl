# Transactions append to lists on three shards and read them, from every node and at every isolation level: no reader sees half of a transaction, or
# the effect without its cause, or another order than others do; also while ranges move. First the checker is checked: a history with one thing
# wrong is found by the check of that name (test/perl/ListHistory.pm, doc/design.md#cluster-time).
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../../chaos/lib";

use ListHistory;
use PostgreSQL::Test::Utils;
use Test::More;

use Chaos::Run;

# ---- the checker ----

my $RR = 'REPEATABLE READ';
my $RC = 'READ COMMITTED';
sub did { my ($level, @operations) = @_; return { level => $level, outcome => 'ok', operations => \@operations } }
sub add { return [ 'append', @_ ] }
sub look { my ($k, $ids, @more) = @_; return [ 'read', $k, $ids, @more ] }

sub found_is
{
	my ($what, $wanted, $lists, @records) = @_;
	my $history = ListHistory->new(records => \@records, lists => $lists);
	is(join(', ', $history->checks), $wanted, "checker: $what") or diag map { my $c = $_; map { "$c: $_\n" } $history->found($c) } $history->checks;
	return $history;
}

found_is('a right history', '', { 1 => [ 10, 12 ], 2 => [11] }, did($RR, add(1, 10), add(2, 11)), did($RR, look(1, [10]), look(2, [11]), add(1, 12)));
found_is('G0', 'G0', { 1 => [ 10, 11 ], 2 => [ 21, 20 ] }, did($_, add(1, 10), add(2, 20)), did($_, add(1, 11), add(2, 21))) foreach $RC, $RR;
found_is('G1a, read', 'G1a, order', { 1 => [] }, { %{ did($RC, add(1, 10)) }, outcome => 'failed', state => '40001' }, did($RC, look(1, [10])));
found_is('G1a, there', 'G1a', { 1 => [10] }, { %{ did($RC, add(1, 10)) }, outcome => 'failed', state => '40001' });
found_is('G1b', 'G-single, G1b, fractured', { 1 => [ 10, 11 ] }, did($RC, add(1, 10), add(1, 11)), did($RC, look(1, [10])));
found_is('G1c', 'G1c', { 1 => [10], 2 => [20] }, did($_, add(1, 10), look(2, [20])), did($_, look(1, [10]), add(2, 20))) foreach $RC, $RR;
found_is('lost', 'lost', { 1 => [] }, did($RC, add(1, 10)));
found_is('doubled', 'doubled', { 1 => [ 10, 10 ] }, did($RC, add(1, 10)));
found_is('half', 'half', { 1 => [10], 2 => [] }, { %{ did($RC, add(1, 10), add(2, 20)) }, outcome => 'unknown' });
found_is('order', 'order', { 1 => [ 10, 11 ] }, did($RC, add(1, 10)), did($RC, add(1, 11)), did($RC, look(1, [11])));
found_is('own', 'own', { 1 => [10] }, did($RC, add(1, 10), look(1, [])));

# half of a transaction: in one statement at READ COMMITTED, in one transaction at REPEATABLE READ
my @both = did($RC, add(1, 10), add(2, 20));
my $after = { 1 => [10], 2 => [20] };
found_is('fractured, one statement', 'G-single, fractured', $after, @both, did($RC, look(1, [10], 1), look(2, [], 1)));
found_is('two statements at READ COMMITTED', '', $after, @both, did($RC, look(1, [], 1), look(2, [20], 2)));
found_is('fractured, one transaction', 'G-single, fractured', $after, @both, did($RR, look(1, [], 1), look(2, [20], 2)));

# the effect without its cause
my @cause = (did($RC, add(1, 10)), did($RC, look(1, [10]), add(2, 20)));
found_is('G-single, a transaction', 'G-single', $after, @cause, did($RR, look(2, [20]), look(1, [])));
found_is('G-single, a statement', 'G-single', $after, @cause, did($RC, look(2, [20], 1), look(1, [], 1)));
found_is('what READ COMMITTED allows', '', $after, @cause, did($RC, look(1, [], 1), look(2, [20], 2)));
found_is('a lost update', 'G-single', { 1 => [ 10, 11 ] }, did($RR, look(1, []), add(1, 10)), did($RR, look(1, []), add(1, 11)));
found_is('a read that changed', 'G-single, fractured', { 1 => [10] }, did($RC, add(1, 10)), did($RR, look(1, []), look(1, [10])));

# two readers see two writers in different orders
my @two = (did($RC, add(1, 10)), did($RC, add(2, 20)));
found_is('long fork', 'long fork', $after, @two, did($_, look(1, [10], 1), look(2, [], 1)), did($_, look(1, [], 1), look(2, [20], 1)))
	foreach $RC, $RR;
found_is('long fork over others', 'long fork', { %$after, 3 => [30] }, @two, did($RR, look(1, [10]), look(2, []), add(3, 30)),
	did($RR, look(3, [30]), look(2, [])), did($RR, look(1, []), look(2, [20])));

# write skew
my $skew = found_is('write skew', '', $after, did($RR, look(1, []), add(2, 20)), did($RR, look(2, []), add(1, 10)));
is($skew->skews, 2, 'checker: and is counted');

my @timed = ({ %{ did($RC, add(1, 10)) }, begun => 1, ended => 2 });
found_is('stale', 'stale', { 1 => [10] }, @timed, { %{ did($RR, look(1, [], 1, 2.5)) }, begun => 2.1, ended => 3 });
found_is('stale, a statement', 'stale', { 1 => [10] }, @timed, { %{ did($RC, look(1, [], 1, 2.5)) }, begun => 1.5, ended => 3 });
found_is('not stale: the transaction began before', '', { 1 => [10] }, @timed, { %{ did($RR, look(1, [], 1, 2.5)) }, begun => 1.5, ended => 3 });

# ---- the cluster ----

my $SECONDS = $ENV{LIST_SECONDS} // 8;

foreach my $movers (0, 1)
{
	my $run = Chaos::Run->new(seed => 512, name => "list$movers", seconds => $SECONDS, clients => 8, movers => $movers, faults => [], balancer => 0,
		pause => 0, weights => { list => 1 }, directory => PostgreSQL::Test::Utils::tempdir(), say => sub { note($_[0]) });
	my $what = $movers ? 'while ranges move' : 'on three shards';
	$run->start;
	# A third of the lists on each shard; each list has so many keys, of which a round uses one.
	$run->cluster->query('s1', $_) foreach "SELECT tessera.move_range('list', 350, 650, 's2')",
		"SELECT tessera.move_range('list', 650, tessera.maxkey(), 's3')";
	# as many rounds as it takes until so much is done: on a busy machine one may end before
	my (@findings, @moves, @done, %at);
	foreach my $round (1 .. 25)
	{
		push @findings, $run->round($round);
		@moves = grep { $_->{change}{kind} eq 'move' && $_->{outcome} eq 'ok' } @{ $run->{changes} };
		@done = grep { $_->{outcome} eq 'ok' } @{ $run->{records} };
		foreach my $level ($RC, $RR) { $at{$level} = grep { $_->{level} eq $level } @done; }
		last if $at{$RC} >= 100 && $at{$RR} >= 100 && (!$movers || @moves);
	}
	is(join("\n", map { "$_->[0]: $_->[1]" } @findings), '', "$what: nothing that a snapshot forbids");
	cmp_ok($at{$RC}, '>=', 100, "$what: transactions at READ COMMITTED");
	cmp_ok($at{$RR}, '>=', 100, "$what: transactions at REPEATABLE READ");
	cmp_ok(scalar(@moves), '>', 0, "$what: moves") if $movers;
	note("$what: " . @{ $run->{records} } . ' transactions, ' . @done . ' committed');
	note($_) foreach $run->report;
	$run->quit;
}
done_testing();
