# Connections to other nodes: one that the other end has closed while it was idle is replaced without an error where nothing was lost, and an error
# where the transaction was there; idle ones are closed, also when the session sits idle.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('connections');
$c->create(shards => 3);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v int NOT NULL)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', 'INSERT INTO t SELECT g, 0 FROM generate_series(1, 300) g');
$c->query('s1', "SELECT tessera.move_range('t', 101, 201, 's2')");
$c->query('s1', "SELECT tessera.move_range('t', 201, tessera.maxkey(), 's3')");

# Sessions of s1's clients, which bear their names; not those of workers.
my $of_s1 = "pid <> pg_backend_pid() AND application_name NOT LIKE 'tessera%' AND pid IN (SELECT pid FROM tessera.internal_sessions)";

# Ends the sessions of s1's clients on a shard, and waits until they are gone.
sub end_sessions
{
	my ($shard) = @_;
	$c->query($shard, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE $of_s1");
	return $c->wait_for($shard, "SELECT count(*) FROM pg_stat_activity WHERE $of_s1", '0');
}

sub errors
{
	my ($session) = @_;
	my $errors = $session->{stderr};
	$session->{stderr} = '';
	return $errors;
}

my $session = $c->session('s1', on_error_stop => 0);
$session->query_safe('\set VERBOSITY verbose');

#
# a session ended by the administrator of a shard
#
is($session->query_safe('SELECT v FROM t WHERE k = 150'), '0', 'a read of s2');
foreach my $round (1 .. 3)
{
	ok(end_sessions('s2'), 'its session there is ended');
	is($session->query_safe('SELECT v FROM t WHERE k = 150'), '0', 'the next read has a new one');
	ok(end_sessions('s2'), 'again');
	is($session->query_safe('UPDATE t SET v = v + 1 WHERE k = 151 RETURNING v'), $round, 'so has a write');
	ok(end_sessions('s2'), 'again');
	is($session->query_safe('SELECT count(*) FROM t'), '300', 'and a statement over all shards');
}
is($session->query_safe('BEGIN; UPDATE t SET v = 10 WHERE k = 250; SELECT v FROM t WHERE k = 250'), '10', 'a transaction that has written on s3');
ok(end_sessions('s2'), "its session on s2, of another transaction, is ended");
is($session->query_safe('UPDATE t SET v = 10 WHERE k = 150 RETURNING v'), '10', 'the first use of s2 has a new one');
$session->query_safe('COMMIT');
is($c->query('s3', 'SELECT sum(v) FROM t WHERE k IN (150, 250)'), '20', 'both writes are there');

#
# where something is lost it is an error
#
$session->query_safe('BEGIN; UPDATE t SET v = 11 WHERE k = 150');
ok(end_sessions('s2'), 'the session that has written is ended');
$session->query('SELECT v FROM t WHERE k = 150');
like(errors($session), qr/ERROR:  08006/, 'the next statement there fails');
$session->query('COMMIT');
errors($session);
is($session->query_safe('SELECT v FROM t WHERE k = 150'), '10', 'and nothing was written');
$session->query_safe('BEGIN; UPDATE t SET v = 11 WHERE k = 150; UPDATE t SET v = 11 WHERE k = 250');
ok(end_sessions('s2'), 'again');
$session->query('COMMIT');
like(errors($session), qr/ERROR:  08006/, 'so does the commit');
is($session->query_safe('SELECT sum(v) FROM t WHERE k IN (150, 250)'), '20', 'and nothing was written anywhere');
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT v FROM t WHERE k = 150');
ok(end_sessions('s2'), 'a transaction has its snapshot there');
$session->query('SELECT v FROM t WHERE k = 150');
like(errors($session), qr/ERROR:  08006/, 'which is lost');
$session->query_safe('ROLLBACK');
errors($session);

#
# a shard that is started anew
#
is($session->query_safe('SELECT count(*) FROM t'), '300', 'connections to both shards');
$c->restart('s2');
is($session->query_safe('SELECT v FROM t WHERE k = 150'), '10', 's2 was restarted between two statements');
$c->restart('s2');
is($session->query_safe('SELECT count(*) FROM t'), '300', 'a statement over all shards');
$session->query_safe('BEGIN; UPDATE t SET v = 12 WHERE k = 250');
$c->restart('s2');
$session->query_safe('UPDATE t SET v = 12 WHERE k = 150; COMMIT');
is($session->query_safe('SELECT sum(v) FROM t WHERE k IN (150, 250)'), '24', 'a transaction that had not used it yet');

#
# idle connections
#
sub connections
{
	return $c->query('s1', 'SELECT node, open, in_use, waiting FROM tessera.node_connections ORDER BY node');
}
is($session->query_safe('SELECT count(*) FROM t'), '300', 'connections to both shards');
is(connections(), "s2|1|0|0\ns3|1|0|0", 'are shown');
$session->query_safe('BEGIN; SELECT v FROM t WHERE k = 150');
is(connections(), "s2|1|1|0\ns3|1|0|0", 'and which are in use');
$session->query_safe('COMMIT');
is(connections(), "s2|1|0|0\ns3|1|0|0", 'idle again');
{
	my $other = $c->session('s1');
	$other->query_safe('SELECT count(*) FROM t');
	is(connections(), "s2|2|0|0\ns3|2|0|0", 'another session has its own');
	$other->quit;
	ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '2'), 'which end with it');
}
$c->set('s1', 'tessera.idle_connection_timeout' => "'300ms'");
# the setting comes to the session with its first statement after the signal
{
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my $setting = q{SELECT current_setting('tessera.idle_connection_timeout') FROM pg_sleep(0.02)};
	1 while $session->query_safe($setting) ne '300ms' && time < $deadline;
	is($session->query_safe($setting), '300ms', 'the session has the setting');
}
is($session->query_safe('SELECT count(*) FROM t'), '300', 'used again');
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'),
	'they are closed after tessera.idle_connection_timeout, in an idle session');
ok($c->wait_for($_, "SELECT count(*) FROM pg_stat_activity WHERE $of_s1", '0'), "at $_, too") foreach 's2', 's3';
is($session->query_safe('SELECT count(*) FROM t'), '300', 'and opened anew');
$session->query_safe('BEGIN; UPDATE t SET v = 13 WHERE k = 150');
$session->query_safe('SELECT pg_sleep(0.5)');
is($c->query('s1', "SELECT in_use FROM tessera.node_connections WHERE node = 's2'"), '1', 'not what a transaction uses');
$session->query_safe('COMMIT');
is($c->query('s3', 'SELECT v FROM t WHERE k = 150'), '13', 'it is committed');
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'), 'after it they are closed');
$session->query_safe("SET tessera.advisory_locks = 'cluster'; SELECT pg_advisory_lock(k) FROM generate_series(1, 60) k");
$session->query_safe('SELECT count(*) FROM t');
$c->query('s1', 'SELECT pg_sleep(1)');
is($c->query('s1', 'SELECT sum(open) FROM tessera.node_connections'), '2', 'not while they keep session-level advisory locks');
$session->query_safe('SELECT pg_advisory_unlock_all()');
ok($c->wait_for('s1', 'SELECT sum(open) FROM tessera.node_connections', '0'), 'they go with these');
$session->quit;

done_testing();
