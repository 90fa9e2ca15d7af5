# A router that takes a table for placed while it has joined a group (colocate_with, done on another node) must not write through the version of that
# group which it told for another table: rows would land on a shard that does not own them (S16, S17).
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('joined');
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

done_testing();
