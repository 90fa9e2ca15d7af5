# A router that takes a table for placed while it has joined a group (colocate_with, done on another node) must not write through the version of that
# group which it told for another table: rows would land on a shard that does not own them (S16, S17).
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('joined', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 3);
$c->query('s2', 'CREATE TABLE oo (k int PRIMARY KEY, v text)');
$c->query('s2', 'CREATE TABLE rr (k int, n int, PRIMARY KEY (k, n))');
$c->query('s2', "SELECT tessera.shard_table('oo', 'k', 'hash', chunks => 6)");

my $session = $c->session('s2');
$session->query_safe('SELECT count(*) FROM rr');
$session->query_safe('INSERT INTO oo SELECT g FROM generate_series(1, 60) g');    # tells every shard the group's version
$c->query('s3', "SELECT tessera.shard_table('rr', 'k', 'hash', colocate_with => 'oo')");
$session->query_safe("INSERT INTO rr VALUES ($_, 1)") foreach 1 .. 30;
$session->query_safe('INSERT INTO rr SELECT g, 2 FROM generate_series(1, 30) g');
is($session->query_safe('SELECT count(*), count(DISTINCT k) FROM rr'), '60|30', 'all rows are there');
is($c->query($_, 'SELECT count(*) FROM rr'), '60', "seen from $_") foreach $c->names;
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), '0', 'each on the shard that owns it');
$session->quit;

# A shard that has not heard of the group yet is told of it with the table that joins; its refresher brings the group at the same moment.
$c->query('s3', 'CREATE TABLE uu (k int PRIMARY KEY)');
$c->query('s3', 'DELETE FROM tessera.cluster_table; DELETE FROM tessera.chunk; DELETE FROM tessera.table_group');
$c->pause_at('s3', 'group_looked_for');
my $joins = $c->background('s2', "SELECT tessera.shard_table('uu', 'k', 'hash', colocate_with => 'oo')");
$c->is_paused_at('s3', 'group_looked_for');
is($c->query('s3', 'SELECT tessera.reload_routing()'), 't', 'the refresher is there first');
$c->go_on('s3', 'group_looked_for');
is($c->ended($joins), '', 'the table joins');
$c->query($_, "INSERT INTO uu VALUES ('" . substr($_, 1) . "')") foreach $c->names;
is($c->query($_, 'SELECT count(*) FROM uu'), '3', "seen from $_") foreach $c->names;
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), '0', 'and all nodes agree');

done_testing();
