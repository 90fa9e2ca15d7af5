# Several migrations at a time on a shard: disjoint ranges of one group and ranges of several groups, with gates of their own; outcomes that are
# carried out in another order than they were decided; the limit; a crash in the middle of two; under load.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('parallel_moves', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	restart_after_crash => 'on' });
# s1 is the config node, s2 the donor of most moves.
$c->create(shards => 3);
foreach my $table ('acc', 'other')
{
	$c->query('s1', "CREATE TABLE $table (k int PRIMARY KEY, v int NOT NULL DEFAULT 0)");
	$c->query('s1', "INSERT INTO $table SELECT g FROM generate_series(1, 1000) g");
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
}

sub owners
{
	my ($table, @keys) = @_;
	return join(' ', map { $c->query('s1', "SELECT tessera.range_owner('$table', $_)") } @keys);
}

# The whole table to a shard.
sub gather
{
	my ($shard, @tables) = @_;
	foreach my $table (@tables)
	{
		$c->query('s1', "SELECT tessera.move_range('$table', tessera.minkey(), tessera.maxkey(), '$shard')");
	}
	return;
}

sub move { my ($table, $min, $max, $to) = @_; return "SELECT tessera.move_range('$table', $min, $max, '$to')"; }
my $committed = "SELECT count(*) FROM tessera.migrations WHERE state = 'committed' AND min::text =";
sub decided { my ($min, $n) = @_; return $c->wait_for('s1', "$committed '$min'", $n); }

# All rows, from each node; a write to each of the keys.
sub usable
{
	my ($what, @keys) = @_;
	foreach my $node ($c->names)
	{
		my ($status, undef, $stderr) = $c->psql($node, join(';', 'SET tessera.gate_timeout = 5000',
			map { "UPDATE acc SET v = v + 1 WHERE k = $_" } @keys));
		is($status, 0, "$what: $node writes") or diag $stderr;
	}
	return;
}

sub all_rows
{
	my ($what) = @_;
	foreach my $node ($c->names)
	{
		ok($c->wait_for($node, 'SELECT (SELECT count(*) FROM acc), (SELECT count(*) FROM other)', '1000|1000'), "$what: all rows from $node");
	}
	return;
}

# Two ranges of one group, one donor, two recipients. The limit counts both sides.
gather('s2', 'acc', 'other');
$c->query('s2', "SELECT tessera_test.injection_set('donor_cloned', 'pause', 3)");
my @runs = ($c->background('s1', move('acc', 100, 200, 's1')), $c->background('s3', move('acc', 300, 400, 's3')));
ok($c->wait_for('s2', "SELECT max(paused) FROM tessera_test.injection_list() WHERE name = 'donor_cloned'", 2), 'two migrations of one table');
is($c->query('s2', 'SELECT cardinality(gates) FROM tessera.placement ORDER BY 1 DESC LIMIT 1'), 2, 'each has its gate');
usable('while both run', 50, 150, 250, 350);
like($c->error('s3', move('acc', 500, 600, 's3')),
	qr/55006: shard "s2" takes part in 2 migrations already.*max_moves_per_shard of the config node allows 2/s,
	'a third one is too many');
like($c->error('s3', move('other', 500, 600, 's3')), qr/55006: shard "s2" takes part in 2 migrations already/, 'of another group, too');
like($c->error('s3', move('acc', 350, 450, 's1')), qr/55006: a part of the range is being moved already.*moves 300 to 400.*cancel_migration/s,
	'ranges that overlap');
$c->set('s1', 'tessera.max_moves_per_shard' => 3);
push @runs, $c->background('s1', move('other', 1, 500, 's3'));
ok($c->wait_for('s2', "SELECT max(paused) FROM tessera_test.injection_list() WHERE name = 'donor_cloned'", 3), 'a third one, of another group');
$c->go_on('s2');
is($c->ended($_), '', 'it ends well') foreach @runs;
is(owners('acc', 50, 150, 250, 350), 's2 s1 s2 s3', 'both ranges have moved');
is(owners('other', 50, 700), 's3 s2', 'and that of the other group');
$c->is_settled('three at a time');
all_rows('three at a time');
$c->set('s1', 'tessera.max_moves_per_shard' => 2);

# A writer that waits at a closed gate holds no gate lock, or it would pass for one that was inside before: it goes on waiting whatever else changes
# the placement, here the beginning of another migration (registered before: the commit of the first one, which is under way, has the group locked).
gather('s2', 'acc', 'other');
my $gate_locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND classid = 4294967280";
$c->pause_at('s2', 'donor_registered');
@runs = ($c->background('s1', move('acc', 300, 400, 's3')));
$c->is_paused_at('s2', 'donor_registered');
$c->pause_at('s2', 'donor_write_gate');
push @runs, $c->background('s1', move('acc', 100, 200, 's1'));
$c->is_paused_at('s2', 'donor_write_gate');
my $writer = $c->background('s2', 'SET tessera.gate_timeout = 60000; UPDATE acc SET v = -1 WHERE k = 150');
my $waits = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%SET v = -1%' AND state = 'active' AND wait_event_type = 'Extension'";
ok($c->wait_for('s2', $waits, 1), 'a writer waits at the gate');
is($c->query('s2', $gate_locks), 0, 'and holds no gate lock');
$c->pause_at('s2', 'donor_cloned');
$c->go_on('s2', 'donor_registered');
$c->is_paused_at('s2', 'donor_cloned');
is($c->query('s2', $gate_locks), 0, 'nor when another migration has begun');
is($c->query('s3', 'SELECT v = -1 FROM acc WHERE k = 150'), 'f', 'and has not written');
$c->go_on('s2');
is($c->ended($_), '', 'it ends well') foreach @runs, $writer;
is($c->query('s3', 'SELECT v FROM acc WHERE k = 150'), '-1', 'what it has written has moved with the range');
is(owners('acc', 50, 150, 250, 350), 's2 s1 s2 s3', 'as both ranges have');
$c->is_settled('a writer at the gate');

# Two into one recipient, which confirm at the same time: the gates of both are closed there.
gather('s2', 'acc', 'other');
$c->pause_at('s3', 'recipient_confirmed');
@runs = map { $c->background('s1', $_) } move('acc', 100, 200, 's3'), move('acc', 200, 300, 's3');
$c->is_paused_at('s3', 'recipient_confirmed');
usable('one recipient', 50, 350);
$c->go_on('s3');
is($c->ended($_), '', 'one recipient of both: it ends well') foreach @runs;
is(owners('acc', 50, 150, 250, 350), 's2 s3 s3 s2', 'both ranges have moved');
$c->is_settled('one recipient');
all_rows('one recipient');

# A migration is decided, and its donor's worker is held up before it carries that out: another one of the same group overtakes it.
sub overtaken
{
	my ($what, $first, $then, $after) = @_;
	my $before = $c->query('s1', "$committed '$first->[1]'");
	$c->pause_at('s2', 'donor_carrying_out');
	my $run = $c->background('s1', move(@$first));
	$c->is_paused_at('s2', 'donor_carrying_out');
	ok(decided($first->[1], $before + 1), "$what: the first one is decided");
	$then->();
	$c->go_on('s2', 'donor_carrying_out');
	is($c->ended($run), '', "$what: the first one ends well");
	$c->is_settled($what);
	all_rows($what);
	is(owners('acc', 50, 150, 250, 350), $after, "$what: who owns what");
	usable($what, 50, 150, 250, 350);
	return;
}

gather('s2', 'acc');
overtaken('another range leaves', [ 'acc', 100, 200, 's1' ], sub {
	is($c->query('s1', move('acc', 300, 400, 's3')) ne '', 1, 'the second one does not wait for the first');
	usable('overtaken', 50, 250, 350);
}, 's2 s1 s2 s3');

gather('s2', 'acc');
$c->query('s1', move('acc', 'tessera.minkey()', 200, 's1'));
overtaken('nothing stays', [ 'acc', 200, 300, 's1' ], sub {
	is($c->query('s1', move('acc', 300, 'tessera.maxkey()', 's3')) ne '', 1, 'the donor is left with nothing');
	usable('left with nothing', 50, 150, 350);
}, 's1 s1 s1 s3');
is($c->query('s2', 'SELECT bool_and(major = 0) FROM tessera.placement WHERE owned = $${}$$'), 't', 'an owner of nothing has version 0');

gather('s2', 'acc');
$c->query('s1', move('acc', 'tessera.minkey()', 200, 's1'));
overtaken('the last range leaves, another one comes', [ 'acc', 200, 'tessera.maxkey()', 's3' ], sub {
	is($c->query('s1', move('acc', 50, 60, 's2')) ne '', 1, 'a range comes');
	usable('a range comes', 50, 150);
}, 's2 s1 s3 s3');

gather('s2', 'acc');
overtaken('another one is called off', [ 'acc', 100, 200, 's1' ], sub {
	$c->pause_at('s2', 'donor_cloned');
	my $run = $c->background('s1', move('acc', 300, 400, 's3'));
	$c->is_paused_at('s2', 'donor_cloned');
	$c->query('s1', "SELECT tessera.cancel_migration(id) FROM tessera.migrations WHERE min::text = '300' AND state = 'running'");
	$c->go_on('s2', 'donor_cloned');
	like($c->ended($run), qr/57014/, 'the second one is called off');
	usable('called off', 50, 250, 350);
}, 's2 s1 s2 s2');

gather('s2', 'acc');
overtaken('a split meanwhile', [ 'acc', 100, 200, 's1' ], sub {
	$c->query('s3', "SELECT tessera.split_chunk('acc', 320)");
	is($c->query('s1', move('acc', 320, 400, 's3')) ne '', 1, 'a part of it moves');
	usable('split', 50, 250, 310, 350);
}, 's2 s1 s2 s3');

# The donor, the recipient, the config node crash while two are in their critical sections.
foreach my $crash ([ 's2', 'donor_read_gate' ], [ 's2', 'donor_carrying_out' ], [ 's3', 'recipient_confirmed' ], [ 's2', 'config_committed' ],
	[ 's1', 'config_deciding' ])
{
	my ($node, $point) = @$crash;
	gather('s2', 'acc');
	$c->is_settled("before the crash at $point");
	$c->query($node, "SELECT tessera_test.injection_set('$point', 'crash')");
	@runs = map { $c->background('s2', $_) } move('acc', 100, 200, 's3'), move('acc', 300, 400, 's3');
	$c->ended($_) foreach @runs;
	# a server that has crashed has forgotten what was armed
	ok($c->wait_for($node, 'SELECT count(*) FROM tessera_test.injection_list()', 0), "$point: the server has crashed, and is back");
	$c->is_settled("crash at $point");
	all_rows("crash at $point");
	usable("crash at $point", 50, 150, 250, 350);
}

# Writers from each node while pairs of ranges move, round and round.
gather('s2', 'acc', 'other');
my $sum = 'SELECT (SELECT sum(v) FROM acc) + (SELECT sum(v) FROM other)';
my $total = $c->query('s1', $sum);
my $load = $c->pgbench_start(clients => 2, max_tries => 20, protocol => 'prepared',
	(TesseraCluster::long() ? (transactions => 20_000) : (seconds => 600, rate => 80)), script => <<'SCRIPT')->begun;
\set a random(1, 1000)
\set b random(1, 1000)
UPDATE acc SET v = v + 1 WHERE k = :a;
UPDATE other SET v = v + 1 WHERE k = :b;
SCRIPT
my $rounds = 0;
while ($rounds < 3 || (TesseraCluster::long() && $load->running))
{
	my $to = ('s3', 's1', 's2')[ $rounds++ % 3 ];
	@runs = map { $c->background('s1', $_) } move('acc', 1, 300, $to), move('acc', 300, 600, $to);
	is($c->ended($_), '', "under load to $to: acc") foreach @runs;
	@runs = map { $c->background('s1', $_) } move('acc', 600, 1000, $to), move('other', 1, 700, $to);
	is($c->ended($_), '', "under load to $to: acc and other") foreach @runs;
}
$load->end unless TesseraCluster::long();
$c->is_counted($load, 'under load', $total, $sum, 2);

done_testing();
