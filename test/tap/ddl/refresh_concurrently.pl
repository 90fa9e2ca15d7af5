# REFRESH MATERIALIZED VIEW CONCURRENTLY of views over tables of the cluster: as on one server, readers go on meanwhile, and only rows that differ are
# changed. DETACH PARTITION CONCURRENTLY: one distributed transaction, with locks in short attempts.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('refresh_concurrently', settings => { 'tessera.ddl_lock_timeout' => 1500 });
my $schema = <<'SQL';
CREATE TABLE t (k int PRIMARY KEY, v text, n int);
SQL

my @script = (
	q{INSERT INTO t SELECT g, 'v' || g % 5, g FROM generate_series(1, 60) g},
	q{CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS c, sum(n) AS s, max(v) AS "odd ""name""" FROM t GROUP BY v},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY m},
	q{CREATE UNIQUE INDEX ON m (c, v)},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY m},
	q{SELECT * FROM m ORDER BY v},
	q{UPDATE t SET n = n + 1 WHERE v = 'v2'; DELETE FROM t WHERE v = 'v3'; INSERT INTO t VALUES (100, 'v9', 1), (101, NULL, 2)},
	q{SELECT * FROM m ORDER BY v},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY m},
	q{SELECT * FROM m ORDER BY v},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY m},
	q{SELECT * FROM m ORDER BY v},
	q{BEGIN; INSERT INTO t VALUES (102, 'v1', 5); REFRESH MATERIALIZED VIEW CONCURRENTLY m; SELECT * FROM m ORDER BY v; ROLLBACK},
	q{SELECT * FROM m ORDER BY v},
	q{BEGIN; INSERT INTO t VALUES (103, 'v4', 6); REFRESH MATERIALIZED VIEW CONCURRENTLY m; COMMIT},
	q{SELECT * FROM m ORDER BY v},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY m WITH NO DATA},
	q{REFRESH MATERIALIZED VIEW m WITH NO DATA},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY m},
	q{SELECT * FROM m ORDER BY v},
	q{REFRESH MATERIALIZED VIEW m},
	q{SELECT * FROM m ORDER BY v},
	q{CREATE MATERIALIZED VIEW "Twice ""x""" AS SELECT n % 50 AS n, v FROM t; CREATE UNIQUE INDEX ON "Twice ""x""" (n, v)},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY "Twice ""x"""},
	q{INSERT INTO t VALUES (200, 'v1', 1), (201, 'v1', 1)},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY "Twice ""x"""},
	q{SELECT * FROM "Twice ""x""" ORDER BY n, v},
	q{DROP MATERIALIZED VIEW m, "Twice ""x"""},
	q{SELECT count(*) FROM pg_class WHERE relname ~ 'tessera_refresh|pg_temp_'},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY nosuch},
	q{REFRESH MATERIALIZED VIEW CONCURRENTLY t},
);

$c->start_nodes('s1');
$c->query('s1', $schema);
$c->create(shards => 3, routers => 1);
$c->query('s2', "SELECT tessera.shard_table('t', 'k', 'hash', chunks => 6)");
$c->plain_query($schema);
is($c->script_differs('s1', \@script), 0, 'from s1, which has the rows: ' . scalar(@script) . ' statements do as on a plain server');
$c->query('s1', 'DELETE FROM t');

# A view on each shard, from each node; the text as the owner's.
$c->query('s1', 'CREATE ROLE keeper; CREATE ROLE stranger; GRANT SELECT ON t TO keeper; GRANT ALL ON SCHEMA public TO keeper');
$c->query('r1', "INSERT INTO t SELECT g, 'v', g FROM generate_series(1, 30) g");
my %home;
foreach my $number (1 .. 3)
{
	$c->query('s1', "CREATE SCHEMA a$number AUTHORIZATION keeper");
	$c->query('r1', "SET ROLE keeper; CREATE MATERIALIZED VIEW a$number.m AS SELECT k, n, current_user AS who FROM t; " .
		"CREATE UNIQUE INDEX ON a$number.m (k)");
	$home{$number} = $c->query('s1', "SELECT shard FROM tessera.schemas WHERE schema = 'a$number'");
}
is(scalar(keys %{ { map { $_ => 1 } values %home } }), 3, 'the views are on three shards');
foreach my $number (1 .. 3)
{
	my $home = $home{$number};
	my $before = $c->query($home, "SELECT xmin FROM a$number.m WHERE k = 1");
	$c->query('r1', 'UPDATE t SET n = n + 1 WHERE k > 20');
	like($c->error($_, "REFRESH MATERIALIZED VIEW CONCURRENTLY a$number.m"), qr/0A000.*Run it on node "$home"/s, "view on $home, not from $_")
	  foreach grep { $_ ne $home } $c->names;
	my @readers = map { $c->session($_) } $c->names;
	$_->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT sum(n) FROM a$number.m") foreach @readers;
	my $seen = $readers[3]->query_safe("SELECT sum(n) FROM a$number.m");
	like($c->error($home, "REFRESH MATERIALIZED VIEW a$number.m"), qr/55P03/, 'REFRESH waits for readers');
	$c->query($home, "REFRESH MATERIALIZED VIEW CONCURRENTLY a$number.m");
	is($readers[3]->query_safe("SELECT sum(n) FROM a$number.m"), $seen, 'CONCURRENTLY does not, and they see what they saw');
	$_->query_safe('COMMIT') foreach @readers;
	is($c->query($_, "SELECT sum(n), count(*), min(who), max(who) FROM a$number.m"),
		$c->query('r1', "SELECT sum(n), count(*), 'keeper', 'keeper' FROM t"), "the new rows, from $_") foreach $c->names;
	is($c->query($home, "SELECT xmin FROM a$number.m WHERE k = 1"), $before, 'a row that is the same was not written');
}
like($c->error('r1', 'SET ROLE stranger; REFRESH MATERIALIZED VIEW CONCURRENTLY a2.m'), qr/42501/, 'not somebody else\'s');
ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xacts', '0'), "$_ has nothing prepared") foreach $c->names;
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');

# ---- DETACH PARTITION CONCURRENTLY

$c->query('s1', $_) foreach (
	'CREATE TABLE a2.parts (k int, v int) PARTITION BY RANGE (k)',
	map({ "CREATE TABLE a2.p$_ PARTITION OF a2.parts FOR VALUES FROM (${_}0) TO (${_}9)" } 1 .. 4),
	'INSERT INTO a2.parts SELECT g, g FROM generate_series(10, 48) g WHERE g % 10 < 9');
like($c->error('r1', 'BEGIN; ALTER TABLE a2.parts DETACH PARTITION a2.p1 CONCURRENTLY; COMMIT'), qr/25001/, 'not in a transaction block');
$c->query('r1', 'ALTER TABLE a2.parts DETACH PARTITION a2.p1 CONCURRENTLY');
is(join(' ', map { $c->query($_, 'SELECT (SELECT count(*) FROM a2.parts), (SELECT count(*) FROM a2.p1)') } $c->names), '27|9 27|9 27|9 27|9',
	'detached on all nodes');
my $reader = $c->session('s3');
$reader->query_safe('BEGIN; SELECT count(*) FROM a2.parts');
like($c->error('s2', 'ALTER TABLE a2.parts DETACH PARTITION a2.p2 CONCURRENTLY'), qr/55P03/, 'a transaction that has read it is waited for');
is($c->query('r1', 'SET statement_timeout = 3000; SELECT count(*) FROM a2.parts'), '27', 'others read meanwhile');
$reader->query_safe('COMMIT');
$c->query('s2', 'ALTER TABLE a2.parts DETACH PARTITION a2.p2 CONCURRENTLY');
is($c->query('r1', 'SELECT count(*) FROM a2.parts'), '18', 'then it is detached');
$c->query('s1', 'CREATE TABLE a2.rest PARTITION OF a2.parts DEFAULT');
like($c->error('r1', 'ALTER TABLE a2.parts DETACH PARTITION a2.p3 CONCURRENTLY'), qr/55000/, 'not beside a default partition');
like($c->error('r1', 'ALTER TABLE a2.parts DETACH PARTITION a2.p3 FINALIZE'), qr/55000/, 'nothing is left to finalize');
like($c->error('r1', 'SET ROLE stranger; ALTER TABLE a2.parts DETACH PARTITION a2.p3 CONCURRENTLY'), qr/42501|55000/, 'not somebody else\'s');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');
done_testing();
