# A range moves from s2 to s3, and on to s1, before s2 has deleted its rows: nobody tells s2 who owns them now, no statement runs there, and its next
# look at the config node is an hour away. The range deleter asks s3, which says no, and fetches the chunks.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('moved_on', settings => { 'tessera.registry_refresh_interval' => '1h', 'tessera.auto_split' => 'off' });
$c->create(shards => 3);
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY)');
$c->query('s1', 'INSERT INTO t SELECT generate_series(1, 100)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "SELECT tessera.move_range('t', 1, 51, 's2')");
$c->is_settled('the range is on s2');

$c->set('s2', 'tessera.orphan_cleanup_delay' => 3600000);
$c->query('s1', "SELECT tessera.move_range('t', 1, 51, 's3')");
$c->wait_for('s3', 'SELECT count(*) FROM tessera.migration_recipient', 0);
$c->query('s1', "SELECT tessera.move_range('t', 1, 51, 's1')");
$c->set('s2', 'tessera.orphan_cleanup_delay' => 0);
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0'), 's2 deletes what it has given up')
  or diag $c->query('s2', 'SELECT * FROM tessera.range_deletions');
is($c->query('s1', 'SELECT count(*) FROM t'), '100', 'all rows are there');
$c->is_settled('in the end');

done_testing();
