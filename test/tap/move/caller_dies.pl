# The caller of a move dies, or fails, before the donor is at work: the shards are free for another move at once, and nothing of the first one is
# left. The config node's fence decides: a donor that is told after it gives up.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('callers',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.connect_timeout' => 2000 });
# s1 is the config node; moves are asked for on r1; s2 gives to s3.
$c->create(shards => 3, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY)',
	"SELECT tessera.shard_table('t', 'k')",
	'INSERT INTO t SELECT generate_series(1, 1000)',
	"SELECT tessera.move_range('t', 501, tessera.maxkey(), 's2')");
my $move = "SELECT tessera.move_range('t', 501, 601, 's3')";
my $pid;

# A move that is paused at a point of a node.
sub paused
{
	my ($node, $point) = @_;
	$c->query($node, "SELECT tessera_test.injection_set('$point', 'pause')");
	my $session = $c->session('r1', on_error_stop => 0);
	$pid = $session->query('SELECT pg_backend_pid()');
	$session->query_until(qr/begun/, "\\echo begun\n$move;\n");
	ok($c->wait_for($node, "SELECT sum(paused) FROM tessera_test.injection_list() WHERE name = '$point'", '1'), "paused at $point");
	return $session;
}

# The next move of the two shards begins when the caller has gone, not when the fence is due.
sub next_move
{
	my ($what, $sql) = @_;
	ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migration WHERE state = 'running'", '0'), "$what: the shards are free");
	is($c->query('s1', "SELECT finished - started < '30 s' FROM tessera.migrations ORDER BY started DESC LIMIT 1"), 't',
		"$what: not because its caller was not heard of for so long");
	$c->query('s1', $sql // $move);
	$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')") unless $sql;
	foreach my $n ($c->names)
	{
		ok($c->wait_for($n, "SELECT (SELECT count(*) FROM tessera.migration_coordinator) + (SELECT count(*) FROM tessera.migration_recipient)
			+ (SELECT count(*) FROM tessera.migration_outcome) + (SELECT count(*) FROM tessera.range_deletions)", '0', 20), "$what: $n is clean");
	}
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$what: consistent");
	is($c->query('r1', 'SELECT count(*) FROM t'), '1000', "$what: all rows");
	return;
}

# Killed before the donor is told; and when it has been told, but its process was not started.
foreach my $point ('caller_registered', 'caller_donated')
{
	my $session = paused('r1', $point);
	$c->query('r1', "SELECT pg_terminate_backend($pid, 5000)");
	next_move("killed at $point");
	eval { $session->quit; };
	$c->query('r1', 'SELECT tessera_test.injection_clear()');
}

# Killed while the donor writes its row: it does so all the same, with nobody to start it.
my $session = paused('s2', 'donor_noted');
$c->query('r1', "SELECT pg_terminate_backend($pid, 5000)");
$c->query('s2', 'SELECT tessera_test.injection_clear()');
next_move('killed while the donor is told');
eval { $session->quit; };

# It is told that the fence has come first.
$session = paused('r1', 'caller_registered');
my $id = $c->query('s1', "SELECT migration_id FROM tessera.migration WHERE state = 'running'");
$c->query('s1', "SELECT tessera_internal.fence_migration('$id', '57P01: for the test', 0)");
$c->query('r1', 'SELECT tessera_test.injection_clear()');
$session->query('SELECT 1');
like($session->{stderr}, qr/is not running according to the config node/, 'a donor that is told after the fence gives up');
$session->quit;
next_move('fenced first');

# Cancelled, and failing, in the same place.
$session = paused('r1', 'caller_registered');
$c->query('r1', "SELECT pg_cancel_backend($pid)");
$session->query('SELECT 1');
$session->quit;
$c->query('r1', 'SELECT tessera_test.injection_clear()');
next_move('cancelled');
$c->query('s2', "SELECT tessera_test.injection_set('donor_noted', 'error', 1)");
like($c->error('r1', $move), qr/donor_noted/, 'the donor cannot write its row');
next_move('donor failed');

# The donor is gone: the recipient is free for others, and the donor hears of it when it is back.
$session = paused('r1', 'caller_registered');
$c->stop('s2', 'immediate');
$c->query('r1', 'SELECT tessera_test.injection_clear()');
$session->query('SELECT 1');
like($session->{stderr}, qr/s2/, 'the caller is told that the donor cannot be reached');
$session->quit;
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migration WHERE state = 'running'", '0', 20), 'the recipient is free');
$c->query('s1', "SELECT tessera.move_range('t', 1, 101, 's3')");
is($c->query('s1', 'SELECT count(*) FROM tessera.migration_outcome'), '1', 'the outcome is kept for the donor');
$c->start('s2');
next_move('donor gone', "SELECT tessera.move_range('t', 1, 101, 's1')");

done_testing();
