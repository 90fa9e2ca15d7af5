# A copy of a node's database holds the node's identity, but it is no node: what is written there stays there, and it asks nobody.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('copied');
$c->create(shards => 2);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v text)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', 'INSERT INTO t SELECT g FROM generate_series(1, 10) g');
$c->query('s1', "SELECT tessera.move_range('t', 6, tessera.maxkey(), 's2')");

# A database with connections cannot be copied: the workers have to go for a moment.
$c->query('s2', 'ALTER DATABASE postgres ALLOW_CONNECTIONS false', dbname => 'template1');
$c->query('s2', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'", dbname => 'template1');
ok($c->node('s2')->poll_query_until('template1', "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'postgres'"), 'nobody is connected');
$c->query('s2', 'CREATE DATABASE copy TEMPLATE postgres', dbname => 'template1');
$c->query('s2', 'ALTER DATABASE postgres ALLOW_CONNECTIONS true', dbname => 'template1');

is($c->query('s2', 'SELECT count(*) FROM t', dbname => 'copy'), '5', 'the copy shows the rows that lie in it');
$c->query('s2', "INSERT INTO t VALUES (0, 'copy'), (100, 'copy')", dbname => 'copy');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'copy'"), '0', 'what is written there stays there');
is($c->query('s2', 'SELECT node_id IS NULL FROM tessera.routing_image()', dbname => 'copy'), 't', 'the copy is no node');
$c->query('s2', 'DROP EXTENSION tessera', dbname => 'copy');
is($c->query($_, 'SELECT count(*) FROM t'), '10', "the cluster is whole on $_") foreach $c->names;

# A node that forgets its cluster needs no workers any more, and none of them complains.
my $workers = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres' AND backend_type LIKE 'tessera%'";
ok($c->wait_for('s1', $workers, '3'), 'the config node has its workers');
my $log = -s $c->node('s1')->logfile;
$c->query('s1', 'DROP EXTENSION tessera CASCADE');
ok($c->wait_for('s1', $workers, '0'), 'they end with the extension');
unlike(slurp_file($c->node('s1')->logfile, $log), qr/ERROR/, 'without errors');

done_testing();
