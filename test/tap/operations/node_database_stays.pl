# The database of a node is not dropped from under the cluster, by a session in another database of its server (S180): whatever is known of it there,
# right after a restart, too. That of a node that was removed, or has forgotten its cluster, is dropped, and so is any other, as on one server.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('stays');
$c->create(shards => 2);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', 'INSERT INTO t SELECT generate_series(1, 10)');
$c->query('s1', "SELECT tessera.move_range('t', 6, tessera.maxkey(), 's2')");

sub elsewhere
{
	my ($sql) = @_;
	return ($c->psql('s2', $sql, dbname => 'template1'))[2];
}

my $refused = qr/2BP01: cannot drop database "postgres": it is a node of a cluster.*HINT:.*tessera\.remove_shard.*DROP EXTENSION tessera CASCADE/s;
like(elsewhere('DROP DATABASE postgres'), $refused, 'a node is not dropped');
like(elsewhere('DROP DATABASE IF EXISTS postgres WITH (FORCE)'), $refused, 'nor by force');
$c->restart('s2');
like(elsewhere('DROP DATABASE postgres WITH (FORCE)'), $refused, 'nor by the first statement after a restart');
elsewhere('ALTER DATABASE postgres RESET ALL');
like(elsewhere('DROP DATABASE postgres WITH (FORCE)'), $refused, 'nor one whose settings somebody has taken away');
elsewhere("ALTER DATABASE postgres SET session_preload_libraries = 'tessera'");
elsewhere('ALTER DATABASE postgres ALLOW_CONNECTIONS false');
like(elsewhere('DROP DATABASE postgres WITH (FORCE)'), $refused, 'nor one that lets nobody in');
elsewhere('ALTER DATABASE postgres ALLOW_CONNECTIONS true');
elsewhere('CREATE ROLE nobody');
like(elsewhere('SET ROLE nobody; DROP DATABASE postgres'), qr/42501/, 'who may not drop it hears that');
like(elsewhere('BEGIN; DROP DATABASE postgres'), qr/25001/, 'nor is it dropped in a transaction block');
is($c->query($_, 'SELECT count(*) FROM t'), '10', "the cluster is whole on $_") foreach $c->names;

# A dump of a node has the setting that a node's database has; what is made of it is no node.
my $server = $c->node('s2');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/shop.dump';
elsewhere($_) foreach 'CREATE DATABASE shop', "ALTER DATABASE shop SET session_preload_libraries = 'tessera'";
$c->query('s2', $_, dbname => 'shop') foreach 'CREATE EXTENSION tessera', 'CREATE TABLE t (k int)', 'INSERT INTO t VALUES (1)';
$server->command_ok([ 'pg_dump', '-Fc', '-C', '-f', $dump, $server->connstr('shop') ], 'a database that is no node is dumped');
$server->command_ok([ 'pg_restore', '--clean', '--create', '-d', $server->connstr('template1'), $dump ], "and restored in its own place, $_")
  foreach 'once', 'twice';
is($c->query('s2', 'SELECT count(*) FROM t', dbname => 'shop'), '1', 'its rows are there');
$server->command_ok([ 'dropdb', '--force', 'shop' ], 'it is dropped');
is(elsewhere('CREATE DATABASE plain') . elsewhere('DROP DATABASE plain'), '', 'as any database is');

# Where the probe cannot look: it waits for no lock for long, and a drop that was interrupted can be gone on with.
elsewhere($_) foreach 'CREATE DATABASE locked', "ALTER DATABASE locked SET session_preload_libraries = 'tessera'";
$c->query('s2', 'CREATE EXTENSION tessera', dbname => 'locked');
my $holder = $c->session('s2', dbname => 'locked');
$holder->query_safe('BEGIN; LOCK TABLE tessera.identity IN ACCESS EXCLUSIVE MODE');
like(elsewhere('DROP DATABASE locked WITH (FORCE)'),
	qr/55000: cannot drop database "locked": it may be a node.*HINT:.*ALTER DATABASE locked RESET session_preload_libraries/s,
	'what cannot be looked into is not dropped');
elsewhere('ALTER DATABASE locked RESET session_preload_libraries');
is(elsewhere('DROP DATABASE locked WITH (FORCE)'), '', 'unless a superuser has said that it is none');
eval { $holder->quit };
elsewhere($_) foreach 'CREATE DATABASE half', "ALTER DATABASE half SET session_preload_libraries = 'tessera'",
  "UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'half'";
is(elsewhere('DROP DATABASE half'), '', 'a database of which a part is gone is dropped');

# One that has left its cluster is its owner's to drop.
$c->query('s1', "SELECT tessera.move_range('t', tessera.minkey(), tessera.maxkey(), 's1')");
ok($c->wait_for('s1', "SELECT tessera.remove_shard('s2') = 'removed'"), 'the shard leaves');
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.identity', '0'), 'and hears of it');
is(elsewhere('DROP DATABASE postgres WITH (FORCE)'), '', 'then it is dropped');
like(($c->psql('s1', 'DROP DATABASE postgres WITH (FORCE)', dbname => 'template1'))[2], $refused, 'the last node is one as well');
$c->query('s1', 'DROP EXTENSION tessera CASCADE');
is(($c->psql('s1', 'DROP DATABASE postgres WITH (FORCE)', dbname => 'template1'))[2], '', 'until it has forgotten its cluster');

done_testing();
