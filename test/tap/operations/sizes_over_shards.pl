# Sizes of tables over all their shards: tessera.table_size, indexes_size and total_relation_size are the sums of what the server's
# functions say on the nodes, through any node and for anybody; bytes of tessera.chunks and chunk_distribution is an estimate from the collected
# statistics.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

# The shards' own measurements, which the config node prefers, are balance/splitter's.
my $c = TesseraCluster->new('sizes', settings => { 'tessera.split_interval' => '600s', 'tessera.statistics_interval' => 86400 });
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach 'CREATE SCHEMA "Big One"', 'CREATE TABLE t (k int PRIMARY KEY, v text)',
	q{CREATE TABLE "Big One"."T" (k int PRIMARY KEY, v text)},
  'CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k)', 'CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10000)',
  'CREATE ROLE nobody LOGIN';
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "SELECT tessera.split_chunk('t', 500)");
$c->query('s1', "SELECT tessera.move_chunk('t', 700, 's2')");
$c->query('r1', "INSERT INTO $_ SELECT g, repeat(md5(g::text), 10) FROM generate_series(1, 2000) g") foreach 't', '"Big One"."T"', 'p';

my $home = $c->query('s1', q{SELECT shard FROM tessera.schemas WHERE schema = 'Big One'});
my %functions = (table_size => 'pg_table_size', indexes_size => 'pg_indexes_size', total_relation_size => 'pg_total_relation_size');
foreach my $table ('t', '"Big One"."T"', 'p', 'p1')
{
	foreach my $function (sort keys %functions)
	{
		my $sum = 0;
		$sum += $c->query($_, "SELECT $functions{$function}('$table')") foreach $table eq 't' ? ('s1', 's2') : $table =~ /Big/ ? $home : 's1';
		is($c->query($_, "SELECT tessera.$function('$table')"), $sum, "$function of $table on $_") foreach 's1', 's2', 'r1';
	}
}
cmp_ok($c->query('r1', "SELECT tessera.table_size('t')"), '>', 500_000, 'a router without rows knows the size');

# Anybody, as the server's own; what is not the cluster's is this node's.
is($c->query('r1', "SET ROLE nobody; SELECT tessera.table_size('t') > 0"), 't', 'anybody may ask');
is($c->query('r1', "SELECT tessera.table_size('pg_class') = pg_table_size('pg_class')"), 't', "a table of this node's own");
is($c->query('r1', "SELECT tessera.table_size(1::oid::regclass) IS NULL"), 't', 'null for what does not exist');
is($c->query('r1', "BEGIN; CREATE TABLE young (k int); INSERT INTO young VALUES (1); SELECT tessera.table_size('young') > 0; ROLLBACK"), 't',
	'a table of the same transaction');
is($c->query('r1', "BEGIN; LOCK TABLE t; SELECT tessera.table_size('t') > 0; COMMIT"), 't', 'a table that the transaction has locked');

# bytes of chunks: an estimate, without asking anybody; NULL as long as nothing is known.
$c->query('s1', 'CREATE TABLE h (k int PRIMARY KEY, v text); CREATE TABLE unknown (k int PRIMARY KEY)');
$c->query('s1', "SELECT tessera.shard_table('h', 'k', 'hash', chunks => 4)");
$c->query('s1', "SELECT tessera.shard_table('unknown', 'k')");
is($c->query('s1', "SELECT bytes IS NULL, collected IS NULL FROM tessera.chunks WHERE table_name = 'unknown'::regclass"), 't|t', 'nothing is known');
$c->query('r1', 'INSERT INTO h SELECT g, repeat(md5(g::text), 10) FROM generate_series(1, 2000) g');
$c->query('s1', "SELECT tessera.split_chunk('t', 100), tessera.split_chunk('t', 1700)");
$c->query('r1', 'SELECT tessera.reload_routing(); ANALYZE t; ANALYZE h');
my $size = $c->query('r1', "SELECT tessera.table_size('t')");
my @bytes = split /\n/, $c->query('r1', "SELECT bytes FROM tessera.chunks WHERE table_name = 't'::regclass ORDER BY min");
is(scalar @bytes, 4, 'four chunks');
my @share = (0.05, 0.2, 0.6, 0.15);
cmp_ok(abs($bytes[$_] - $share[$_] * $size), '<', 0.06 * $size, "chunk $_ has about its share: $bytes[$_] of $size") foreach 0 .. 3;
my $sum = $c->query('r1', "SELECT sum(bytes) FROM tessera_internal.chunk_distribution WHERE table_name = 't'::regclass");
cmp_ok(abs($sum - $size), '<', 0.05 * $size, "in all about the table's size: $sum of $size");
is($c->query('r1', "SELECT string_agg(shard || ' ' || (bar ~ CASE shard WHEN 's1' THEN '^#{5,15}\$' ELSE '^#{30}\$' END), ' ' ORDER BY shard)
	FROM tessera_internal.chunk_distribution WHERE table_name = 't'::regclass"), 's1 true s2 true', 'bars as long as the shards are full');
is($c->query('r1', "SELECT count(*) FROM tessera.chunks WHERE table_name = 'h'::regclass AND bytes > 100000 AND collected > " .
	"now() - interval '1 hour'"), 4, 'hashed chunks');
is($c->query('r1', "SET ROLE nobody; SELECT count(bytes) FROM tessera.chunks WHERE table_name = 't'::regclass"), 4, 'for everybody');

# A node that is down is named.
$c->stop('s2', 'immediate');
my ($status, undef, $error) = $c->psql('r1', "SELECT tessera.table_size('t')");
is($status, 3, 'a node is down: an error');
like($error, qr/08006.*s2/s, 'which names it');
is($c->query('r1', "SELECT tessera.table_size('p1') > 0"), 't', 'of no matter for a table that lies elsewhere');
$c->start('s2');

done_testing();
