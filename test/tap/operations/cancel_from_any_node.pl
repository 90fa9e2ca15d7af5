# tessera.cancel and tessera.terminate: from any node, by what tessera.cluster_activity shows, and by the rights of who calls them, as core asks for
# them.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('cancel_anywhere');
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach ('SELECT tessera.stop_balancer()', 'CREATE ROLE alice LOGIN', 'CREATE ROLE bob LOGIN',
	'CREATE ROLE guard LOGIN IN ROLE pg_signal_backend', 'CREATE ROLE friend LOGIN IN ROLE alice',
	'CREATE TABLE acc (id int PRIMARY KEY, n int)', 'GRANT ALL ON acc TO alice', "SELECT tessera.shard_table('acc', 'id')",
	'INSERT INTO acc SELECT g, 0 FROM generate_series(1, 100) g', "SELECT tessera.move_range('acc', 50, 100, 's2')");

my $holder = $c->session_of('s1', 'BEGIN', 'UPDATE acc SET n = 1 WHERE id = 60');
my $update = 'UPDATE acc SET n = 2 WHERE id = 60';

# alice's statement on r1, which waits on s2; its process and that of its part
sub begin_waiting
{
	local $ENV{PGUSER} = 'alice';
	my $run = $c->background('r1', $update);
	ok($c->wait_for('s1', "SELECT pid || ':' || parts FROM tessera.cluster_activity WHERE query = '$update' AND node = 'r1' AND parts IS NOT NULL AND
		EXISTS (SELECT FROM tessera.lock_waits w WHERE w.query = '$update')", qr/^\d+:s2:\d+$/), 'a statement waits');
	my ($pid, $part) = $c->query('s1', "SELECT pid || ':' || parts FROM tessera.cluster_activity WHERE query = '$update' AND node = 'r1'")
		=~ /^(\d+):s2:(\d+)$/;
	return ($run, $pid, $part);
}

my ($run, $pid, $part) = begin_waiting();
foreach my $function ('cancel', 'terminate')
{
	like($c->error($_, "SET ROLE bob; SELECT tessera.$function('r1', $pid)"), qr/42501: must be a member of the role/, "bob may not, on $_")
		foreach $c->names;
	like($c->error($_, "SET ROLE alice; SELECT tessera.$function('s2', $part)"),
		qr/55000: process $part works for a session of node "r1".*HINT:.*tessera\.$function\('r1', $pid\)/s, "a part has a session, on $_")
		foreach $c->names;
}
is($c->query('s1', "SELECT count(*) FROM tessera.lock_waits WHERE node = 'r1' AND pid = $pid"), '1', 'nothing has happened');
is($c->query('s2', "SET ROLE alice; SELECT tessera.cancel('r1', $pid)"), 't', 'alice cancels it from s2');
like($c->ended($run), qr/57014: canceling statement due to user request/, 'it is cancelled');

foreach my $who ([ 'friend', 's1' ], [ 'guard', 's2' ], [ $c->user, 'r1' ])
{
	my ($role, $node) = @$who;
	($run, $pid) = begin_waiting();
	is($c->query($node, "SET ROLE $role; SELECT tessera.terminate('r1', $pid)"), 't', "$role ends the session, from $node");
	like($c->ended($run), qr/57P01: terminating connection due to administrator command/, 'it has ended');
}
is($c->query('s2', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%SET n = 2%' AND state = 'active' AND pid <> pg_backend_pid()"), '0',
	'and its part');

# A superuser's session.
my $super = $holder->query('SELECT pg_backend_pid()');
foreach my $node ('s1', 's2')
{
	like($c->error($node, "SET ROLE guard; SELECT tessera.terminate('s1', $super)"), qr/42501: must be a superuser/, "not for others, on $node");
}
is($c->query('s2', "SELECT by_pid FROM tessera.lock_waits"), '', 'it is in nobody\'s way now');
($run, $pid) = begin_waiting();
is($c->query('r1', "SELECT tessera.terminate(by_node, by_pid) FROM tessera.lock_waits WHERE node = 'r1' AND pid = $pid"), 't',
	'a superuser ends what is in the way');
is($c->ended($run), '', 'who has waited goes on');

# What there is not.
foreach my $node ('s1', 's2')
{
	my ($status, $answer, $warnings) = $c->psql($node, "SELECT tessera.cancel('s1', $super)");
	is($answer, 'f', "a session that has ended, on $node");
	like($warnings, qr/WARNING:.*PID $super is not a process of node "s1"/, 'and a warning says so');
}
like($c->error('s1', "SELECT tessera.cancel('s3', 1)"), qr/42704: node "s3" does not exist/, 'no such node');
$c->stop('r1');
like($c->error('s1', "SELECT tessera.cancel('r1', 1)"), qr/08006/, 'a node that is down');
done_testing();
