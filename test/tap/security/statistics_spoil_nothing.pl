# What users share, and none may spoil for the others: statistics of a table that are too large to keep are left out, so ANALYZE goes through, and
# those of other tables are collected.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('shared_statistics', settings => { autovacuum => 'off', 'tessera.statistics_interval' => '1s' });
$c->create(shards => 2);
$c->query('s1', 'CREATE ROLE mal LOGIN; CREATE SCHEMA m AUTHORIZATION mal; GRANT USAGE ON SCHEMA m TO PUBLIC');

my $columns = join(', ', map { "c$_ bytea" } 1 .. 15);
my $values = join(', ', map { "decode(lpad(to_hex(g), 8, '0'), 'hex') || decode(repeat('00', 1000), 'hex')" } 1 .. 15);
$c->query('s1', "SET ROLE mal; CREATE TABLE m.wide (k int, $columns); INSERT INTO m.wide SELECT g, $values FROM generate_series(1, 10100) g");
# of this node alone: the worker is the first to look at what it leaves
$c->query($_, 'SET tessera.vacuum_everywhere = off; SET default_statistics_target = 10000; VACUUM ANALYZE m.wide') foreach 's1', 's2';
# as many tables as make it unlikely that the wide one is the last that is looked at
$c->query('s1', "CREATE TABLE m.later$_ (k int PRIMARY KEY); INSERT INTO m.later$_ SELECT generate_series(1, 1000)") foreach 1 .. 9;
$c->query($_, 'SET tessera.vacuum_everywhere = off; VACUUM ANALYZE ' . join(', ', map { "m.later$_" } 1 .. 9)) foreach 's1', 's2';
my $known = q{SELECT count(*) FROM tessera.table_statistics s JOIN tessera.cluster_table t USING (table_id) WHERE t.relid::regclass::text LIKE } .
	q{'m.later%' AND s.tuples = 1000};
ok($c->wait_for($_, $known, '9'), "statistics of other tables are known on $_") foreach 's1', 's2';
my ($status, undef, $stderr) = $c->psql('s1', 'SET ROLE mal; SET default_statistics_target = 10000; ANALYZE m.wide');
is($status, 0, 'ANALYZE of a table with large statistics') or diag $stderr;
done_testing();
