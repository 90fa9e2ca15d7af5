# Materialized views over tables of the cluster (doc/design.md#matviews): every node has them, the shard of their schema has the rows, and REFRESH
# from any node computes them from all shards. The same script runs on a plain server and from two nodes, and answers and SQLSTATEs are compared.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('matviews');

my $schema = <<'SQL';
CREATE TABLE t1 (k int NOT NULL, id int NOT NULL, v text, n numeric(10,2), PRIMARY KEY (k,id));
CREATE TABLE pl (id int PRIMARY KEY, name varchar(20) COLLATE "C");
SQL

my @script = (
	q{INSERT INTO t1 SELECT k, i, 'v' || k || '-' || i, k * 10 + i FROM generate_series(1, 15) k, generate_series(1, 4) i},
	q{INSERT INTO pl SELECT g, 'p' || g FROM generate_series(1, 8) g},
	q{CREATE MATERIALIZED VIEW m1 AS SELECT k, count(*) AS c, sum(n) AS s FROM t1 GROUP BY k},
	q{CREATE MATERIALIZED VIEW m2 (a, b, name) AS SELECT t1.k, t1.n, pl.name FROM t1 JOIN pl ON pl.id = t1.k WITH NO DATA},
	q{SELECT * FROM m1},
	q{SELECT * FROM m1 WHERE k = 3},
	q{SELECT * FROM m2},
	q{SELECT count(*) FROM m2 JOIN t1 ON t1.k = m2.a},
	q{REFRESH MATERIALIZED VIEW m2},
	q{SELECT * FROM m2},
	q{SELECT t1.k, t1.id, m2.name FROM t1 JOIN m2 ON m2.a = t1.k WHERE t1.id = 1},
	q{DELETE FROM t1 WHERE k = 3},
	q{SELECT s FROM m1 WHERE k = 3},
	q{REFRESH MATERIALIZED VIEW m1},
	q{SELECT s FROM m1 WHERE k = 3},
	q{CREATE UNIQUE INDEX m1_k ON m1 (k)},
	q{SELECT c FROM m1 WHERE k = 4},
	q{BEGIN; INSERT INTO t1 VALUES (99, 1, 'x', 1); REFRESH MATERIALIZED VIEW m1; SELECT * FROM m1 WHERE k = 99; ROLLBACK; SELECT * FROM m1 WHERE } .
	q{k = 99},
	q{BEGIN; INSERT INTO t1 VALUES (98, 1, 'x', 1); REFRESH MATERIALIZED VIEW m1; COMMIT; SELECT * FROM m1 WHERE k = 98},
	q{INSERT INTO m1 VALUES (1, 1, 1)},
	q{UPDATE m1 SET c = 1},
	q{DELETE FROM m1 WHERE k = 1},
	q{CREATE MATERIALIZED VIEW m3 AS SELECT m1.k, pl.name FROM m1 LEFT JOIN pl ON pl.id = m1.k},
	q{SELECT * FROM m3},
	q{CREATE MATERIALIZED VIEW m3 AS SELECT 1 FROM t1},
	q{CREATE MATERIALIZED VIEW IF NOT EXISTS m3 AS SELECT 1 FROM t1},
	q{CREATE VIEW vm AS SELECT * FROM m3 WHERE k < 5},
	q{SELECT * FROM vm},
	q{ALTER MATERIALIZED VIEW m3 RENAME TO m4},
	q{REFRESH MATERIALIZED VIEW m4},
	q{SELECT count(*) FROM m4},
	q{REFRESH MATERIALIZED VIEW m4 WITH NO DATA},
	q{SELECT count(*) FROM m4},
	q{SELECT count(*) FROM m4 JOIN t1 USING (k)},
	q{DROP MATERIALIZED VIEW m4},
	q{DROP MATERIALIZED VIEW m4 CASCADE},
	q{SELECT count(*) FROM m4},
	q{DROP MATERIALIZED VIEW m1, m2},
	q{SELECT count(*) FROM pg_class WHERE relname LIKE 'tessera_refresh%' OR relname LIKE 'm_'},
);

$c->start_nodes('s1');
$c->query('s1', $schema);
$c->create(shards => 3);
$c->query('s2', "SELECT tessera.shard_table('t1', 'k', 'hash', chunks => 6)");
$c->plain_query($schema);

foreach my $name ('s1', 's2')
{
	is($c->script_differs($name, \@script), 0, "from $name: " . scalar(@script) . ' statements do as on a plain server');
	foreach my $table (qw(t1 pl))
	{
		$c->query($name, "DELETE FROM $table");
		$c->plain_query("DELETE FROM $table");
	}
}

# A REFRESH that core refuses leaves nothing behind for the session's next statement; statements of an event trigger are themselves.
$c->query('s1', 'CREATE MATERIALIZED VIEW held AS SELECT count(*) AS n FROM t1');
my $session = $c->session('s1', on_error_stop => 0);
$session->query('BEGIN; DECLARE c CURSOR FOR SELECT * FROM held');
$session->query('REFRESH MATERIALIZED VIEW held');
$session->query('ROLLBACK');
is(scalar($session->query('SELECT 17')), '17', 'the next statement after a failed REFRESH is itself');
$session->quit;
$c->query('s1', "CREATE FUNCTION counts() RETURNS event_trigger LANGUAGE plpgsql AS \$\$ DECLARE n int; BEGIN SELECT 17 INTO n; IF n <> 17 THEN " .
	"RAISE EXCEPTION 'not 17 but %', n; END IF; END \$\$");
$c->query('s1', 'CREATE EVENT TRIGGER counts ON ddl_command_start EXECUTE FUNCTION counts(); INSERT INTO t1 VALUES (1, 1), (2, 1); REFRESH ' .
	'MATERIALIZED VIEW held; DROP EVENT TRIGGER counts');
is($c->query('s2', 'SELECT n FROM held'), '2', 'and REFRESH finds its rows behind an event trigger that has statements of its own');
$c->query('s1', 'DROP MATERIALIZED VIEW held; DROP FUNCTION counts; DELETE FROM t1');

# Rights are the owner's, who alone may refresh; what has to be refused is.
$c->query('s1', 'CREATE ROLE bob');
$c->query('s2', 'CREATE MATERIALIZED VIEW mine AS SELECT k FROM t1; GRANT SELECT ON mine TO bob');
like($c->error('s3', 'SET ROLE bob; REFRESH MATERIALIZED VIEW mine'), qr/42501/, 'only the owner may refresh');
is($c->query('s3', 'SET ROLE bob; SELECT count(*) FROM mine'), '0', 'others may read');
$c->query('s2', 'GRANT CREATE ON SCHEMA public TO bob; ALTER MATERIALIZED VIEW mine OWNER TO bob');
like($c->error('s3', 'REFRESH MATERIALIZED VIEW mine'), qr/42501.*t1/, 'its query runs with the rights of its owner');
$c->query('s2', 'GRANT SELECT ON t1 TO bob');
$c->query('s1', 'INSERT INTO t1 SELECT g, 1 FROM generate_series(1, 20) g');
$c->query('s3', 'REFRESH MATERIALIZED VIEW mine');
is(join(',', map { $c->query($_, 'SET ROLE bob; SELECT count(*), max(k) FROM mine') } $c->names), '20|20,20|20,20|20',
	'then it is there for all nodes');
like($c->error('s3', 'REFRESH MATERIALIZED VIEW CONCURRENTLY mine'), qr/0A000/, 'CONCURRENTLY is refused');
like($c->error('s3', "SELECT tessera.shard_table('mine', 'k')"), qr/ERROR/, 'it cannot be sharded');

# A node that joins later knows it, too.
$c->start_nodes('s4');
$c->query('s4', 'CREATE ROLE bob');
$c->add_shard('s4');
is($c->query('s4', 'SELECT count(*) FROM mine'), '20', 'a new node reads it');
is($c->query('s4', 'SELECT count(*) FROM mine JOIN t1 USING (k)'), '20', 'and joins it');
$c->query('s4', 'DELETE FROM t1 WHERE k > 5; REFRESH MATERIALIZED VIEW mine');
is($c->query('s2', 'SELECT count(*) FROM mine'), '5', 'and refreshes it');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency()'), '', 'the catalog is consistent');

done_testing();
