# Promotion of standbys: what a node is right after it, and what a failover that lost the newest commits leaves.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('promotion');
$c->create(shards => 2);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v text)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "INSERT INTO t SELECT g, 'old' FROM generate_series(1, 1000) g");
$c->query('s1', "SELECT tessera.move_range('t', 501, tessera.maxkey(), 's2')");

# A failover without loss: a session that was connected to the standby before writes at once.
my $standby = $c->add_standby('s2');
my $early = $standby->background_psql('postgres', on_error_stop => 0);
is($early->query_safe('SELECT count(*) FROM t WHERE k = 600'), '1', 'the standby answers');
$c->promote('s2', tell => 's1');
is($early->query_safe("UPDATE t SET v = 'new' WHERE k = 600 RETURNING v"), 'new', 'a session of before the promotion writes right after it');
$early->quit;
is($c->query('s1', 'SELECT count(*), max(v) FROM t WHERE k = 600'), '1|new', 'other nodes find the promoted server');
is($c->query('s1', "SELECT * FROM tessera.check_consistency(deep => true)"), '', 'consistent after a failover without loss');

done_testing();
