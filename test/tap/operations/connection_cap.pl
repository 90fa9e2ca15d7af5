# tessera.max_connections_per_shard: sessions wait for connections with a deadline, and never for each other for ever: neither for connections of
# several shards, nor for a connection and a lock. A slot comes back whatever becomes of its session. Moves and two-phase commits go on.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $stopped;
END { local $?; kill 'CONT', $stopped if $stopped }

my $c = TesseraCluster->new('connection_cap', settings => { 'tessera.max_connections_per_shard' => 2, 'tessera.deadlock_timeout' => '100ms',
	'tessera.injection_points' => 'on' });
$c->create(shards => 3);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v int NOT NULL)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', 'INSERT INTO t SELECT g, 0 FROM generate_series(1, 300) g');
$c->query('s1', "SELECT tessera.move_range('t', 101, 201, 's2')");
$c->query('s1', "SELECT tessera.move_range('t', 201, tessera.maxkey(), 's3')");

sub errors
{
	my ($session) = @_;
	my $errors = $session->{stderr};
	$session->{stderr} = '';
	return $errors;
}

sub session
{
	my $session = $c->session('s1', on_error_stop => 0);
	$session->query_safe('\set VERBOSITY verbose');
	return $session;
}

# Begins a statement that may have to wait.
sub begin
{
	my ($session, $sql) = @_;
	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	return;
}

sub waiting
{
	my ($node, $n) = @_;
	return $c->wait_for('s1', "SELECT waiting FROM tessera.node_connections WHERE node = '$node'", $n);
}

# Begins a statement that has to wait, but not for long, as others may wait for it in turn: that it did is counted.
sub begin_waiting
{
	my ($session, $sql, $node) = @_;
	my $before = counter($node, 'waits');
	begin($session, $sql);
	return $c->wait_for('s1', "SELECT waits > $before FROM tessera.node_connections WHERE node = '$node'", 't');
}

sub counter
{
	my ($node, $column) = @_;
	return $c->query('s1', "SELECT $column FROM tessera.node_connections WHERE node = '$node'");
}

#
# idle connections go to who needs them
#
my @sessions = map { session() } 1 .. 6;
foreach my $round (1 .. 3)
{
	foreach my $session (@sessions)
	{
		is($session->query_safe('SELECT count(*) FROM t'), '300', 'a statement over all shards');
	}
	cmp_ok(counter($_, 'open'), '<=', 2, "no more than two connections to $_") foreach 's2', 's3';
}
is(counter($_, 'exceeded'), '0', "never more to $_") foreach 's2', 's3';
cmp_ok($c->query($_, "SELECT count(*) FROM pg_stat_activity WHERE application_name NOT LIKE 'tessera%' AND
	pid IN (SELECT pid FROM tessera.internal_sessions)"), '<=', 2, "$_ sees no more") foreach 's2', 's3';

#
# a wait ends with the transaction that has what is waited for
#
my ($a, $b, $d) = @sessions;
$a->query_safe('BEGIN; UPDATE t SET v = v + 1 WHERE k = 150');
$b->query_safe('BEGIN; UPDATE t SET v = v + 1 WHERE k = 151');
begin($d, 'SELECT v FROM t WHERE k = 152');
ok(waiting('s2', 1), 'a third session waits');
$a->query_safe('COMMIT');
is($d->query_safe('SELECT 1'), "0\n1", 'until one of them has ended');
ok(waiting('s2', 0), 'nobody waits');

#
# or with an error, in time
#
$a->query_safe('BEGIN; UPDATE t SET v = v + 1 WHERE k = 150');
errors($d);
$d->query_safe("SET tessera.connection_wait_timeout = '300ms'");
$d->query('SELECT v FROM t WHERE k = 152');
my $error = errors($d);
like($error, qr/ERROR:  53300: no connection to node "s2" became free in time/, 'too late');
like($error, qr/HINT:  .*tessera\.max_connections_per_shard/, 'the hint names the setting');
is(counter('s2', 'refused'), '1', 'it is counted');
$d->query_safe('RESET tessera.connection_wait_timeout');

# cancelled, or the session is ended
begin($d, 'SELECT v FROM t WHERE k = 152');
ok(waiting('s2', 1), 'it waits');
$c->query('s1', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT v FROM t WHERE k = 152%'");
$d->query('SELECT 1');
like(errors($d), qr/ERROR:  57014/, 'a wait can be cancelled');
ok(waiting('s2', 0), 'nobody waits');
my $ended = session();
begin($ended, 'SELECT v FROM t WHERE k = 153');
ok(waiting('s2', 1), 'it waits');
$c->query('s1', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT v FROM t WHERE k = 153%'");
ok(waiting('s2', 0), 'so can a session that waits be ended');
eval { $ended->quit };

# what a session that is ended held comes back
begin($d, 'SELECT v FROM t WHERE k = 152');
ok(waiting('s2', 1), 'it waits');
$c->query('s1', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%k = 150%' AND state = 'idle in transaction'");
is($d->query_safe('SELECT 1'), "0\n1", 'a session in a transaction was ended: its connection is free');
eval { $a->quit };
$b->query_safe('ROLLBACK');
$_->quit foreach $b, $d, @sessions[3 .. 5];
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'), 'all have come back');

# ended with a connection that it was granted, and has not taken
($a, $b) = (session(), session());
$a->query_safe('BEGIN; UPDATE t SET v = v + 1 WHERE k = 150');
$b->query_safe('BEGIN; UPDATE t SET v = v + 1 WHERE k = 151');
$c->pause_at('s1', 'slot_awaited');
$ended = session();
begin($ended, 'SELECT v FROM t WHERE k = 154');
ok($c->paused_at('s1', 'slot_awaited'), 'a session waits');
$a->quit;
ok(waiting('s2', 0), 'it is granted a connection');
$c->query('s1', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT v FROM t WHERE k = 154%'");
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT v FROM t WHERE k = 154%'", '0'), 'and ended');
$c->go_on('s1');
eval { $ended->quit };
is(counter('s2', 'open'), '1', 'the connection is free');
$b->quit;
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'), 'all have come back');

# ended while it connects
$ended = session();
$stopped = $c->node('s2')->{_pid};
kill 'STOP', $stopped;
begin($ended, 'SELECT v FROM t WHERE k = 155');
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT v FROM t WHERE k = 155%' AND wait_event = 'Extension'", '1'),
	'a session connects to a node that does not answer');
is(counter('s2', 'open'), '1', 'which counts');
$c->query('s1', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT v FROM t WHERE k = 155%'");
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT v FROM t WHERE k = 155%'", '0'), 'it is ended');
kill 'CONT', $stopped;
$stopped = undef;
eval { $ended->quit };
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'), 'all have come back');

#
# two transactions that have a connection each and want the other one's
#
$c->set('s1', 'tessera.max_connections_per_shard' => 1);
($a, $b) = (session(), session());
$a->query_safe('BEGIN; UPDATE t SET v = 100 WHERE k = 150');
$b->query_safe('BEGIN; UPDATE t SET v = 100 WHERE k = 250');
ok(begin_waiting($a, 'UPDATE t SET v = 100 WHERE k = 251', 's3'), 'one waits');
begin($b, 'UPDATE t SET v = 100 WHERE k = 151');
$a->query_safe('COMMIT');
$b->query_safe('COMMIT');
is($a->query_safe('SELECT count(*) FROM t WHERE v = 100'), '4', 'both commit');
cmp_ok(counter('s2', 'exceeded') + counter('s3', 'exceeded'), '>=', 1, 'by one connection more');

# a connection, and a row of this node. Who has exceeded the cap may still have two.
$_->quit foreach $a, $b;
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'), 'all have come back');
($a, $b) = (session(), session());
$a->query_safe('BEGIN; UPDATE t SET v = 101 WHERE k = 150');
$b->query_safe('BEGIN; UPDATE t SET v = 101 WHERE k = 50');
ok(begin_waiting($b, 'UPDATE t SET v = 101 WHERE k = 151', 's2'), 'who has locked a row waits for a connection');
begin($a, 'UPDATE t SET v = 101 WHERE k = 50');
$b->query_safe('COMMIT');
$a->query_safe('COMMIT');
is($a->query_safe('SELECT count(*) FROM t WHERE v = 101'), '3', 'who has the connection waits for the row: both commit');

# a connection, and rows of other shards: a waits for a row that a session of s2 has, that for one of b, and b for the connection of a
$_->quit foreach $a, $b;
($a, $b) = (session(), session());
my $other = $c->session('s2');
$other->query_safe('BEGIN; UPDATE t SET v = 102 WHERE k = 151');
$a->query_safe('BEGIN; UPDATE t SET v = 102 WHERE k = 150');
$b->query_safe('BEGIN; UPDATE t SET v = 102 WHERE k = 250');
begin($other, 'UPDATE t SET v = 102 WHERE k = 250');
begin($a, 'UPDATE t SET v = 102 WHERE k = 151');
begin($b, 'UPDATE t SET v = 102 WHERE k = 152');
$_->query_safe('COMMIT') foreach $b, $other, $a;
is($a->query_safe('SELECT count(*) FROM t WHERE v = 102'), '4', 'a cycle through locks of other shards: all commit');
$_->quit foreach $a, $b, $other;

#
# many readers, now of one shard, now of the other: who waits for one connection gives up the other one
#
$c->set('s1', 'tessera.max_connections_per_shard' => 2, 'tessera.connection_wait_timeout' => "'20s'");
my $readers = $c->pgbench_start(nodes => ['s1'], clients => 12, transactions => 40, protocol => 'prepared', script => <<'SCRIPT');
\set k random(101, 300)
SELECT v FROM t WHERE k = :k;
SCRIPT
my $read = $readers->wait;
is($read->{failed} // 0, 0, 'no reader fails');
is($read->{processed}, 12 * 40, 'all have read');

#
# many writers on two shards each, a move meanwhile
#
$c->query('s1', 'UPDATE t SET v = 0');
$c->set('s1', 'tessera.max_connections_per_shard' => 2);
my $load = $c->pgbench_start(nodes => ['s1'], clients => 20, seconds => 600, script => <<'SCRIPT')->begun;
\set a random(101, 200)
\set b random(201, 300)
BEGIN;
UPDATE t SET v = v + 1 WHERE k = :a;
UPDATE t SET v = v + 1 WHERE k = :b;
COMMIT;
SELECT v FROM t WHERE k = :a;
SCRIPT
ok($c->wait_for('s1', 'SELECT coalesce(sum(waits), 0) > 100 FROM tessera.node_connections', 't'), 'sessions wait');
$c->query('s1', "SELECT tessera.move_range('t', 101, 151, 's3')");
$c->query('s1', "SELECT tessera.move_range('t', 101, 151, 's2')");
$load->end;
$c->is_counted($load, 'twenty writers, two connections', 0, 'SELECT sum(v) FROM t', 2);
cmp_ok($c->query('s1', 'SELECT sum(waiting) FROM tessera.node_connections'), '==', 0, 'nobody waits');
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'), 'all connections have come back');

done_testing();
