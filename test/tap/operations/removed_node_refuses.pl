# A node that was removed keeps its tables, and refuses statements on them, in new sessions and old ones, and after a restart: what is written there
# would be lost to the cluster. It may have been down when it was removed. It is taken back, or is a plain database after DROP EXTENSION.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('removed');
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v text)',
	"SELECT tessera.shard_table('t', 'k')",
	'CREATE TABLE placed (k int)',
	'CREATE TABLE every (k int PRIMARY KEY)',
	"SELECT tessera.replicate_table('every')",
	'CREATE VIEW seen AS SELECT * FROM t',
	"INSERT INTO t VALUES (1, 'a'), (2, 'b')",
	'INSERT INTO every VALUES (1)');
my $refused = qr/TS003: this node was removed from its cluster.*HINT:.*DROP EXTENSION tessera CASCADE/s;

sub is_refused
{
	my ($node, $what) = @_;
	like($c->error($node, $_), $refused, "$what: $_")
	  foreach ("INSERT INTO t VALUES (3, 'lost')", 'SELECT count(*) FROM t', 'SELECT count(*) FROM seen', "UPDATE t SET v = 'lost'", 'DELETE FROM t',
		'INSERT INTO placed VALUES (1)', 'SELECT * FROM every', 'COPY t FROM stdin', 'COPY t TO stdout', 'COPY (SELECT * FROM t) TO stdout',
		'TRUNCATE placed', 'CREATE TEMP TABLE x AS SELECT * FROM t', 'DO $$ BEGIN DELETE FROM every; END $$');
	return;
}

sub is_shown
{
	my ($node, $what, $way_out) = @_;
	like($c->query($node, "SELECT what_to_do FROM tessera.health WHERE subject = 'this database'"), $way_out, "$what: health says what to do");
	return;
}

# It is told.
my $session = $c->session('r1', on_error_stop => 0);
$session->query_safe("PREPARE write AS INSERT INTO t VALUES (4, 'lost')");
is($c->query('s1', "SELECT tessera.remove_router('r1')"), 'removed', 'a router is removed');
ok($c->wait_for('r1', 'SELECT count(*) FROM tessera.identity', '0'), 'and hears of it');
is_refused('r1', 'told');
is($c->query('r1', 'CREATE TEMP TABLE own (a int); INSERT INTO own SELECT 1; SELECT count(*) FROM own; DROP TABLE own'), '1',
	'tables of a session are its own');
$session->query('EXECUTE write');
like($session->{stderr}, qr/this node was removed from its cluster/, 'a session that was there before is refused');
$session->quit;
$c->restart('r1');
is_refused('r1', 'restarted');
is_shown('r1', 'restarted', qr/tessera\.add_router/);
$c->query('s1', sprintf("SELECT tessera.add_router('r1', %s)", TesseraCluster::quote($c->conninfo('r1'))));
is($c->query('r1', "INSERT INTO t VALUES (3, 'c'); SELECT count(*) FROM t"), '3', 'it is taken back, and works');
is_shown($_, 'taken back', qr/^$/) foreach $c->names;
$c->query('s1', "SELECT tessera.remove_router('r1')");
ok($c->wait_for('r1', 'SELECT count(*) FROM tessera.identity', '0'), 'it leaves once more');
$c->query('r1', 'DROP EXTENSION tessera CASCADE');
is($c->query('r1', "INSERT INTO t VALUES (5, 'own'); SELECT count(*) FROM t"), '1', 'without the extension it is a plain database');
is($c->query('s1', 'SELECT count(*) FROM t'), '3', 'of its own');

# It was down, and finds out by its registry.
$c->stop('s2');
is($c->query('s1', "SELECT tessera.remove_shard('s2', force => true)"), 'removed', 'a shard that is down is removed');
$c->start('s2');
ok($c->wait_for('s2', "SELECT count(*) FROM tessera.node WHERE name = 's2'", '0'), 'it fetches the registry when it is back');
is_refused('s2', 'back');
is_shown('s2', 'back', qr/^run DROP EXTENSION tessera CASCADE here/);
like($c->error('s2', 'CREATE TABLE late (a int)'), $refused, 'DDL is refused as well');
like($c->error('s2', "SELECT tessera.move_range('t', 1, 2, 's2')"), qr/TS003/, 'and moves');
is($c->query('s1', 'SELECT string_agg(k::text, v ORDER BY k) FROM t; SELECT count(*) FROM tessera.check_consistency(deep => true)'), "1b2c3\n0",
	'the cluster has what is its own');
is(($c->psql('s2', 'DROP DATABASE postgres WITH (FORCE)', dbname => 'template1'))[2], '', 'its database can be dropped');

done_testing();
