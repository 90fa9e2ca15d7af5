# The session reaper: a session that is used, by reads alone and on whatever node, is kept; one that is not used ends with its records; one that
# somebody has taken does not. What is done under a number of a session that has ended is not done.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('session_reaper',
	settings => { 'tessera.injection_points' => 'on', 'tessera.session_timeout' => '3s', 'tessera.session_refresh_interval' => '200ms' });
$c->create(shards => 2, routers => 1);
$c->query('r1', 'SELECT tessera.enable_sessions()');
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (id bigint PRIMARY KEY, n int NOT NULL)',
	"SELECT tessera.shard_table('acc', 'id', 'hash', chunks => 8)",
	'INSERT INTO acc SELECT g, 0 FROM generate_series(1, 100) g');
ok($c->wait_for($_, "SELECT count(*) FROM tessera_session.session", '0'), "$_ has the tables") foreach $c->names;

sub there
{
	my ($session) = @_;
	return "SELECT count(*) > 0 FROM tessera_session.session WHERE id = '$session'";
}

sub start
{
	my ($node) = @_;
	return $c->query($node, 'SELECT tessera.start_session()');
}

# One that only reads, through the router, and in each connection once; one that its connection keeps in a transaction, without a number; one that
# is taken, on a shard; one that nobody uses.
my $reads = start('s1');
my $open = start('s2');
my $taken = start('r1');
my $idle = start('s1');
my $in_transaction = $c->begin('r1', "SET tessera.session = '$open'; BEGIN; SELECT count(*) FROM acc");
my $takes = $c->begin('s2', "SET tessera.session = '$taken'; SET tessera.txn_number = 1; BEGIN; UPDATE acc SET n = n + 1 WHERE id = 1");
$c->query('s1', "SET tessera.session = '$idle'; SET tessera.txn_number = 1; UPDATE acc SET n = n + 1 WHERE id = 2");
is($c->query('s2', "SELECT count(*) FROM tessera_session.record WHERE session = '$idle'"), '1', 'there is a record');

# Each look is a use of the session by reads.
my $reading = "SET tessera.session = '$reads'; ";
ok($c->wait_for('r1', $reading . there($idle), "f"), 'the session that nobody uses ends');
is($c->query('s2', "SELECT count(*) FROM tessera_session.record WHERE session = '$idle'"), '0', 'and its records with it');
my $next = start('s1');
ok($c->wait_for('r1', $reading . there($next), 'f'), 'the next one, too');
is($c->query('s1', there($_->[1])), 't', "still there: the session that $_->[0]")
	foreach ['only reads', $reads], ['has a transaction', $open], ['is taken', $taken];

# What is not in use any more ends: also that of a transaction which was rolled back.
like($c->error('r1', "SET tessera.session = '$idle'; SET tessera.txn_number = 2; UPDATE acc SET n = n + 10"), qr/TS006/, 'a number that comes late');
is($c->query('s1', 'SELECT sum(n) FROM acc'), '1', 'runs nothing');
$takes->query('COMMIT');
is($c->query('s1', 'SELECT sum(n) FROM acc'), '2', 'what had taken its session commits');
is($c->query('s1', there($taken)), 't', 'whose last use is then');
$c->finish($takes);
$in_transaction->query('ROLLBACK');
ok($c->wait_for('s1', there($_->[1]), 'f'), "$_->[0] is used no longer, and ends")
	foreach ['the session of a connection that has gone', $taken], ['that of one that is idle', $open], ['what only read', $reads];
$c->finish($in_transaction);
is($c->query('s1', 'SELECT count(*) FROM tessera_session.record'), '0', 'no records are left');

# Records without a session, as a promotion can leave them, go as well.
$c->query('s1', "INSERT INTO tessera_session.record (session, number, statement, at, identity, count, digits)
	SELECT gen_random_uuid(), 1, 0, now(), '', 0, '' FROM generate_series(1, 20)");
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera_session.record', '0'), 'records without a session go');

# Another role's use is none.
$c->query('s1', 'CREATE ROLE bob LOGIN');
$c->query('s1', 'GRANT SELECT ON acc TO bob');
my $mine = start('r1');
ok($c->wait_for('s2', "SET ROLE bob; SET tessera.session = '$mine'; SELECT 1 FROM acc LIMIT 0; RESET tessera.session; RESET ROLE; " . there($mine),
		'f'), 'another role does not keep a session by saying its name');

# An error in the worker leaves it to the next step.
my $last = start('s1');
ok($c->wait_for('s1', 'SELECT refreshed IS NOT NULL FROM tessera.session_reaper_status()'), 'it says when it was at work');
$c->query('s1', "SELECT tessera_test.injection_set('sessions_reap_before_commit', 'error', 2)");
ok($c->wait_for('s2', there($last), 'f'), 'an error does not keep a session for ever');
cmp_ok($c->query('s1', 'SELECT ended FROM tessera.session_reaper_status()'), '>=', 7, 'it counts the sessions that it has ended');
cmp_ok($c->query('r1', 'SELECT written FROM tessera.session_reaper_status()'), '>', 0, 'and the last uses that it has written');

done_testing();
