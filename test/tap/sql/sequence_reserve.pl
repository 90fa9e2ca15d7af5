
# A node keeps a reserve of values of sequences whose home is another node: inserts go on while the home is down. The reserve follows the rate, is
# filled in the background, is dropped by setval and RESTART, and does not take a small sequence's values from the others.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('reserve');
$c->create(shards => 3, routers => 1);
$c->query('s1', 'CREATE SCHEMA a; CREATE SCHEMA b; CREATE SCHEMA c');
my %schema = map { my ($schema, $shard) = split /\|/; $shard => $schema } split /\n/,
	$c->query('s1', q{SELECT schema, shard FROM tessera.schemas WHERE schema IN ('a', 'b', 'c')});
my $app = $schema{s2} // die 'no schema on s2';

$c->query('r1', "CREATE TABLE $app.t (k int, n serial, v bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (k, n))");
$c->query('r1', "CREATE SEQUENCE $app.small MAXVALUE 200; CREATE SEQUENCE $app.ring MAXVALUE 50 CYCLE");
$c->query('s1', "SELECT tessera.shard_table('$app.t', 'k')");
$c->query('s1', "SELECT tessera.move_range('$app.t', 0, 1000, 's3')");

sub held
{
	my ($node, $sequence) = @_;
	return $c->query($node, "SELECT coalesce(sum(values_left), 0) FROM tessera.sequence_pools() WHERE sequence = '$app.$sequence'::regclass");
}

# ---- the reserve follows the rate ----

my $load = $c->pgbench_start(nodes => ['r1'], clients => 2, seconds => 4, rate => 50,
	script => "\\set k random(0, 999)\nINSERT INTO $app.t (k) VALUES (:k)");
my $result = $load->wait(60);
is($result->{failed}, 0, 'inserts through the router');
ok($c->node('r1')->poll_query_until('postgres',
		"SELECT bool_and(values_left >= least(per_second * 60, 32768) - 1) AND count(*) = 2 FROM tessera.sequence_pools() WHERE sequence IN " .
		"('$app.t_n_seq', '$app.t_v_seq')"),
	'the node holds what it gives out in a minute') or diag $c->query('r1', 'SELECT * FROM tessera.sequence_pools()');
cmp_ok(held('r1', 't_n_seq'), '>', 500, 'that is a lot');

# ---- the home is down ----

$c->query('r1', "SELECT nextval('$app.small')");
$c->node('s2')->stop('immediate');
is($c->query('r1', "WITH i AS (INSERT INTO $app.t (k) SELECT g % 1000 FROM generate_series(1, 400) g RETURNING n) SELECT count(DISTINCT n) FROM i",
	timeout => 60),
	'400', 'inserts go on without the home');
like($c->error('r1', "SELECT nextval('$app.small') FROM generate_series(1, 200)"), qr/08006/, 'until the reserve is used up');
$c->node('s2')->start;
$c->node('r1')->poll_query_until('postgres', "SELECT true FROM $app.t LIMIT 1");
is($c->query('r1', "SELECT count(*), count(DISTINCT n), count(DISTINCT v) FROM $app.t") =~ /^(\d+)\|\1\|\1$/ ? 1 : 0, 1, 'no value twice');

# ---- exact where it must be ----

$c->query('r1', "SELECT setval('$app.t_n_seq', 1000000)");
is($c->query('r1', "SELECT nextval('$app.t_n_seq')"), '1000001', 'setval on the node that holds the reserve');
$c->query('s3', "SELECT setval('$app.t_n_seq', 2000000)");
is($c->query('r1', "SELECT nextval('$app.t_n_seq')"), '2000001', 'setval on another node');
$c->query('s1', "ALTER SEQUENCE $app.t_n_seq RESTART WITH 3000000");
is($c->query('r1', "SELECT nextval('$app.t_n_seq')"), '3000000', 'RESTART on another node');

# All 200 values can be drawn, by whoever asks.
$c->query('s1', "ALTER SEQUENCE $app.small RESTART");
$c->query('r1', 'CREATE TABLE drawn (n bigint)');
foreach my $i (1 .. 60)
{
	foreach my $node ('s1', 's2', 's3', 'r1')
	{
		$c->psql($node, "INSERT INTO drawn SELECT nextval('$app.small')");
	}
}
my ($count, $distinct, $max) = split /\|/, $c->query('r1', 'SELECT count(*), count(DISTINCT n), max(n) FROM drawn');
is($count, $distinct, 'a small sequence: no value twice');
cmp_ok($count, '>=', 120, "and most of them are drawn ($count), though each node holds some");
$c->query('r1', "SELECT nextval('$app.ring') FROM generate_series(1, 300)");
cmp_ok($c->query('r1', "SELECT max(n) FROM (SELECT nextval('$app.ring') AS n FROM generate_series(1, 200)) x"), '<=', 50, 'CYCLE stays in its ring');

# ---- nothing is held when it is not wanted ----

$c->node('r1')->append_conf('postgresql.conf', 'tessera.sequence_reserve = 0');
$c->node('r1')->restart;
$c->query('r1', "INSERT INTO $app.t (k) SELECT g FROM generate_series(1, 20) g");
cmp_ok(held('r1', 't_n_seq'), '<=', 32, 'sequence_reserve = 0');

done_testing();
