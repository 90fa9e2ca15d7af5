# EXPLAIN of statements over nodes: ANALYZE shows each shard's rows and time for every node of tessera, VERBOSE the shard's own plan
# (with its actual figures under ANALYZE), in all formats, and nothing runs twice.
use strict;
use warnings FATAL => 'all';

use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('explain', settings => { 'tessera.statistics_interval' => 0 });
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach 'CREATE TABLE t (k int PRIMARY KEY, v int)', 'CREATE TABLE log (n serial PRIMARY KEY, k int)',
	'CREATE TABLE placed (k int PRIMARY KEY)',
  "SELECT tessera.shard_table('t', 'k')", "SELECT tessera.split_chunk('t', 100)", "SELECT tessera.move_chunk('t', 100, 's2')", "ANALYZE t";
$c->query('r1', 'INSERT INTO t SELECT g, g % 10 FROM generate_series(0, 199) g; INSERT INTO placed SELECT generate_series(1, 5)');

# Text of a plan; every other format must be well formed.
sub plan_of
{
	my ($node, $options, $statement) = @_;
	return $c->query($node, "EXPLAIN ($options) $statement");
}

my $t3 = 'SELECT a.v, count(*) FROM t a JOIN t b ON a.v = b.k GROUP BY 1';
my %statements = (
	'T3' => $t3,
	'T1' => 'SELECT * FROM t WHERE k = 150',
	'T1 of this node' => 'SELECT * FROM t WHERE k = 50',
	'placed' => 'SELECT * FROM placed',
	'whole update' => 'UPDATE t SET v = v + 1 WHERE v < 100000',
	'routed insert' => 'INSERT INTO t SELECT g, 1 FROM generate_series(1000, 1009) g ON CONFLICT DO NOTHING',
	'returning' => 'INSERT INTO t VALUES (300, 1), (301, 2) ON CONFLICT DO NOTHING RETURNING v',
	'moved rows' => 'UPDATE t SET k = k + 5000 WHERE k BETWEEN 90 AND 110',
	'parts' => 'WITH d AS (DELETE FROM t WHERE v = 3 RETURNING k) SELECT count(*) FROM d, placed',
	'subquery' => 'SELECT (SELECT count(*) FROM t) + count(*) FROM placed p LEFT JOIN t ON t.v = p.k',
	'locks' => 'SELECT * FROM t FOR UPDATE',
	'nested loop' => 'SELECT * FROM placed p, LATERAL (SELECT * FROM t WHERE t.v = p.k OFFSET 0) x',
	'limit' => 'SELECT * FROM t LIMIT 3');

foreach my $name (sort keys %statements)
{
	foreach my $node ('s1', 'r1')
	{
		foreach my $options ($node eq 's1' ? 'ANALYZE, VERBOSE' : ('VERBOSE', 'ANALYZE, VERBOSE, BUFFERS, COSTS OFF, TIMING OFF'))
		{
			my ($status, $out, $error) = $c->psql($node, "BEGIN; EXPLAIN ($options, FORMAT json) $statements{$name}; ROLLBACK");
			my $json = eval { decode_json($out) };
			ok($status == 0 && ref $json eq 'ARRAY', "$name on $node, $options: JSON") or diag "$error\n$out";
			($status, $out, $error) = $c->psql($node, "BEGIN; EXPLAIN ($options, FORMAT xml) $statements{$name}; ROLLBACK");
			is($status, 0, "XML") or diag $error;
			my $quoted = TesseraCluster::quote($out);
			is($c->plain_query("SELECT CAST($quoted AS xml) IS DOCUMENT"), 't', "$name on $node, $options: XML is well formed") or diag $out;
		}
		my ($status, $out, $error) = $c->psql($node, "BEGIN; EXPLAIN (ANALYZE, VERBOSE, FORMAT yaml) $statements{$name}; ROLLBACK");
		is($status, 0, "$name on $node: YAML");
		($status, $out, $error) = $c->psql($node, "BEGIN; EXPLAIN (ANALYZE, VERBOSE) $statements{$name}; ROLLBACK");
		like($out, qr/Shard s\d: rows=\d+ time=[\d.]+ ms/, "$name on $node: a shard's rows and time") or diag $error;
		like($out, qr/Shard s\d: rows=.*\n\s+\S.*\(actual time=/, "$name on $node: a shard's plan with its figures") unless $name eq 'limit';
	}
}

# The figures are right.
my $plan = plan_of('r1', 'ANALYZE, COSTS OFF', 'SELECT count(v + random()) FROM t');
like($plan, qr/Shard s1: rows=100 time=\d+\.\d+ ms/, 'rows of one shard');
like($plan, qr/Shard s2: rows=100 time=\d+\.\d+ ms/, 'rows of the other');
$plan = plan_of('s1', 'ANALYZE, COSTS OFF, TIMING OFF', 'SELECT count(v + random()) FROM t');
like($plan, qr/Shard s2: rows=100\n.*Shard s1: rows=100$/m, "with this node's own part; no times");
unlike(plan_of('s1', 'ANALYZE, COSTS OFF', 'SELECT * FROM t'), qr/Seq Scan/, "no plans of shards without VERBOSE");
$plan = plan_of('r1', 'ANALYZE, VERBOSE, COSTS OFF', 'SELECT * FROM t WHERE k = 150');
like($plan, qr/Shard s2: rows=1 .*\n\s+Index Scan using t_pkey on public\.t \(actual time=[\d.]+ rows=1 loops=1\)/,
	'the plan of the shard, without costs');
like(plan_of('r1', 'VERBOSE', 'SELECT * FROM t WHERE k = 150'), qr/Shard s2:\n\s+\S.* on public\.t  \(cost=.*\n\s+Output: /,
	'and without running it');
unlike(plan_of('r1', 'VERBOSE', 'SELECT * FROM t'), qr/actual/, 'VERBOSE alone runs nothing');
like(plan_of('r1', 'ANALYZE, VERBOSE, BUFFERS', 'SELECT * FROM t WHERE k = 150'), qr/Shard s2:.*Buffers: shared/s, 'buffers of the shard');
$plan = plan_of('r1', 'ANALYZE, COSTS OFF', 'SELECT * FROM placed p, LATERAL (SELECT * FROM t WHERE t.v = p.k + (random() * 0)::int OFFSET 0) x');
like($plan, qr/Shard s1: .*/, 'repeated scans are summed');

# Nothing runs twice: rows, sequences, triggers.
is($c->query('r1', 'SELECT count(*), sum(v) FROM t'), '200|900', 'what was rolled back is as before');
$c->query('r1', 'EXPLAIN (ANALYZE, VERBOSE) UPDATE t SET v = v + 1');
is($c->query('r1', 'SELECT sum(v) FROM t'), 1100, 'an UPDATE was run once');
$c->query('r1', 'EXPLAIN (ANALYZE, VERBOSE, FORMAT json) INSERT INTO log (k) SELECT generate_series(1, 7)');
is($c->query('r1', "SELECT count(*), count(DISTINCT n) FROM log"), '7|7', 'an INSERT was run once');
$c->query('r1', 'EXPLAIN VERBOSE UPDATE t SET v = v + 1; EXPLAIN VERBOSE DELETE FROM t; EXPLAIN VERBOSE INSERT INTO log (k) VALUES (1)');
is($c->query('r1', 'SELECT sum(v), (SELECT count(*) FROM log) FROM t'), '1100|7', 'EXPLAIN runs nothing');

# As the user, in a prepared statement, on a connection where others follow.
$c->query('s1', 'CREATE ROLE reader LOGIN; GRANT SELECT ON t TO reader');
like($c->query('r1', 'SET ROLE reader; EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM t'), qr/Shard s2: rows=100/, 'as another user');
like($c->error('r1', 'SET ROLE reader; EXPLAIN (ANALYZE, VERBOSE) UPDATE t SET v = 1'), qr/42501/, 'who has no more rights by it');
like($c->query('r1', 'PREPARE p(int) AS SELECT * FROM t WHERE k = $1; EXPLAIN (ANALYZE, VERBOSE) EXECUTE p(150); EXECUTE p(151)'),
	qr/Shard s2: rows=1 .*151\|2/s, 'a prepared statement');
like($c->query('r1', 'SET plan_cache_mode = force_generic_plan; PREPARE p(int) AS SELECT * FROM t WHERE k = $1; EXPLAIN (VERBOSE) EXECUTE p(150)'),
	qr/Shard s2:\n/, 'a generic plan');
like($c->query('r1', 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM t; SELECT count(*) FROM t; COMMIT'),
	qr/Shard s1: rows=100.*\n200/s, 'in a transaction');

done_testing();
