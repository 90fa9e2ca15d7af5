# The view tessera.sessions, and tessera.kill_session: who uses a session on whatever node, for its own role and for administrators.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('session_kill');
$c->create(shards => 2, routers => 1);
is($c->query('s1', 'SELECT count(*) FROM tessera.sessions'), '0', 'no sessions where there are none yet');
$c->query('r1', 'SELECT tessera.enable_sessions()');
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (id bigint PRIMARY KEY, n int NOT NULL)',
	"SELECT tessera.shard_table('acc', 'id', 'hash', chunks => 8)",
	'INSERT INTO acc SELECT g, 0 FROM generate_series(1, 100) g',
	'CREATE ROLE alice LOGIN', 'CREATE ROLE bob LOGIN', 'CREATE ROLE chief LOGIN', 'GRANT tessera_admin TO chief',
	'GRANT ALL ON acc TO alice, bob');
ok($c->wait_for($_, 'SELECT count(*) FROM tessera_session.session', '0'), "$_ has the tables") foreach $c->names;

my $alices = $c->query('s1', 'SET ROLE alice; SELECT tessera.start_session()');
my $bobs = $c->query('s2', 'SET ROLE bob; SELECT tessera.start_session()');
my $seen = 'SELECT id FROM tessera.sessions ORDER BY started';
is($c->query($_, "SET ROLE alice; $seen"), $alices, "alice sees her own on $_") foreach $c->names;
is($c->query('r1', "SET ROLE chief; $seen"), "$alices\n$bobs", 'an administrator sees all');
like($c->error('r1', 'SET ROLE bob; SELECT * FROM tessera_session.session'), qr/42501/, 'and nobody the table');

# As who has logged in: whose process may be ended goes by that.
sub takes
{
	my ($node, $role, $session, $number) = @_;
	return $c->begin($node, "SET SESSION AUTHORIZATION $role; SET tessera.session = '$session'; SET tessera.txn_number = $number; BEGIN; " .
			'UPDATE acc SET n = n + 1 WHERE id = 1');
}

my $first = takes('r1', 'alice', $alices, 1);
my $state = "SELECT node, state, number FROM tessera.sessions WHERE id = '$alices' ORDER BY node";
is($c->query('s2', $state), 'r1|taken|0', 'who has taken it, and where');
my $second = $c->background('s1',
	"SET ROLE alice; SET tessera.session = '$alices'; SET tessera.txn_number = 1; UPDATE acc SET n = n + 1 WHERE id = 1");
ok($c->wait_for('s2', $state, "r1|taken|0\ns1|waiting|0"), 'and who waits for it');

is($c->query('s2', "SET ROLE bob; SELECT tessera.kill_session('$alices')"), 'f', 'it is none for another role');
like($c->error('s2', "SET ROLE chief; SELECT tessera.kill_session('$alices')"), qr/42501: must be a member of the role/,
	'an administrator does not end a superuser\'s process');
is($c->query('s2', $state), "r1|taken|0\ns1|waiting|0", 'nothing has happened');
is($c->query('s2', "SELECT tessera.kill_session('$alices')"), 't', 'killed from another node');
like($c->ended($second), qr/57P01/, 'its processes end');
ok($c->wait_for('r1', 'SELECT count(*) FROM pg_stat_activity WHERE state = \'idle in transaction\'', '0'), 'on all nodes');
is($c->query('s1', 'SELECT sum(n) FROM acc'), '0', 'nothing of them was committed');
is($c->query('s2', "SELECT tessera.kill_session('$alices')"), 'f', 'there is nothing to kill any more');
like($c->error('r1', "SET ROLE alice; SET tessera.session = '$alices'; SET tessera.txn_number = 2; UPDATE acc SET n = 1"), qr/TS006/,
	'the session has ended');

# A node that is down does not make the view fail.
$c->stop('r1');
is($c->query('s1', 'SELECT id, node IS NULL, state IS NULL FROM tessera.sessions'), "$bobs|t|t", 'what a node that is down does is not known');
$c->start('r1');
is($c->query('s1', "SET ROLE bob; SELECT tessera.kill_session('$bobs')"), 't', 'one kills sessions of one\'s own');

done_testing();
