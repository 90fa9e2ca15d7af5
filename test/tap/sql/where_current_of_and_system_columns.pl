# Cursors whose rows are changed by WHERE CURRENT OF or read backwards, and system columns of tables whose rows lie on several shards, as on one
# server. A ctid tells rows of one shard apart and no others: what goes by it over several shards is refused, never answered with a row of another
# shard.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('cursors');

my $schema = <<'SQL';
CREATE ROLE reader;
CREATE TABLE u (k int PRIMARY KEY, a int, b int, c text);
CREATE TABLE pl (k int PRIMARY KEY, a int, b int, c text);
CREATE TABLE part (k int NOT NULL, a int) PARTITION BY LIST (a);
CREATE TABLE part1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF part FOR VALUES IN (2);
CREATE TABLE secret (k int PRIMARY KEY, owner text, a int);
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON secret USING (owner = current_user);
GRANT ALL ON secret, pl TO reader;
GRANT SELECT ON u TO reader;
INSERT INTO u SELECT k, k, k, 'c' || k FROM generate_series(1,20) k;
INSERT INTO pl SELECT k, k, k, 'c' || k FROM generate_series(1,20) k;
INSERT INTO part SELECT k, 1 + k % 2 FROM generate_series(1,20) k;
INSERT INTO secret SELECT k, CASE WHEN k % 2 = 0 THEN 'reader' ELSE 'other' END, k FROM generate_series(1,20) k;
SQL

my @script = split /^--\n/m, <<'SQL';
SELECT count(xmin), count(xmax), count(cmin), count(cmax), count(tableoid), count(ctid) FROM u
--
SELECT k, xmin::text::int > 0, xmax::text::bigint >= 0, cmin::text::int >= 0, cmax::text::int >= 0, ctid IS NULL FROM u
--
SELECT u, xmin IS NULL, k FROM u
--
SELECT u.*, u.cmax IS NULL, u.tableoid::regclass FROM u WHERE a > 3 AND xmin IS NOT NULL
--
SELECT tableoid::regclass, count(*), count(xmin), count(ctid) FROM part GROUP BY 1
--
SELECT tableoid::regclass, k, a, xmin IS NULL FROM part WHERE k IN (1, 2, 14, 15)
--
SELECT u.xmin IS NULL, pl.xmin IS NULL, u.ctid IS NULL, pl.ctid IS NULL, u.tableoid::regclass, pl.tableoid::regclass, u.k FROM u LEFT JOIN pl
  ON u.k = pl.k AND pl.k < 3
--
SELECT max(xmin::text::bigint) > 0 FROM u
--
SELECT count(*) FROM u WHERE xmin IS NOT NULL AND ctid IS NOT NULL
--
SELECT count(*) FROM (SELECT xmin, k FROM u OFFSET 0) x WHERE xmin IS NOT NULL
--
WITH x AS (SELECT k, cmin FROM u WHERE xmin IS NOT NULL) SELECT count(cmin) FROM x
--
SELECT k, xmin IS NULL, ctid IS NULL FROM u FOR UPDATE
--
SELECT k FROM pl WHERE ctid = (SELECT ctid FROM pl WHERE k = 3)
--
SELECT count(*) FROM pl a JOIN pl b ON a.ctid = b.ctid
--
UPDATE u SET a = 7 WHERE k = 14 AND ctid = (SELECT ctid FROM u WHERE k = 14) RETURNING k
--
UPDATE u SET a = 7 WHERE k = 14 AND xmin = (SELECT xmin FROM u WHERE k = 14) RETURNING k
--
UPDATE u SET a = 7 RETURNING k, xmax = 0, tableoid::regclass, ctid IS NULL
--
SELECT count(*) FROM u WHERE tableoid = 'u'::regclass
--
DECLARE c CURSOR FOR SELECT * FROM u WHERE k = 14; FETCH c; UPDATE u SET a = 99 WHERE CURRENT OF c; SELECT * FROM u WHERE k = 14;
UPDATE u SET a = a + 1 WHERE CURRENT OF c RETURNING *; DELETE FROM u WHERE CURRENT OF c; UPDATE u SET a = 5 WHERE CURRENT OF c; SELECT count(*) FROM u
--
DECLARE c CURSOR FOR SELECT * FROM u ORDER BY k; FETCH 3 FROM c; UPDATE u SET a = 99 WHERE CURRENT OF c; SELECT * FROM u WHERE a = 99; FETCH 10
  FROM c; DELETE FROM u WHERE CURRENT OF c; SELECT count(*) FROM u WHERE k = 13; DELETE FROM u WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR FOR SELECT * FROM u WHERE k > 12 ORDER BY k FOR UPDATE; FETCH c; DELETE FROM u WHERE CURRENT OF c RETURNING k; SELECT count(*) FROM u
--
DECLARE c CURSOR FOR SELECT * FROM u WHERE k > 9 ORDER BY k FOR UPDATE; FETCH 2 FROM c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k; FETCH 2
  FROM c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR FOR SELECT * FROM pl WHERE k > 12; FETCH c; DELETE FROM pl WHERE CURRENT OF c; SELECT count(*) FROM pl; FETCH c;
UPDATE pl SET a = 100 WHERE CURRENT OF c; SELECT k FROM pl WHERE a = 100
--
DECLARE c CURSOR FOR SELECT u.k, pl.a FROM u JOIN pl USING (k) WHERE k = 14 FOR UPDATE; FETCH c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k;
UPDATE pl SET a = 0 WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR FOR SELECT u.k, pl.a FROM u JOIN pl USING (k) WHERE k = 14 FOR UPDATE OF u; FETCH c; UPDATE u SET a = 0
  WHERE CURRENT OF c RETURNING k; UPDATE pl SET a = 0 WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR FOR SELECT a.k FROM u a JOIN u b USING (k) WHERE k = 14 FOR UPDATE; FETCH c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR FOR SELECT count(*) FROM u; FETCH c; UPDATE u SET a = 0 WHERE CURRENT OF c
--
DECLARE c CURSOR FOR SELECT 1 FROM u LIMIT 3; FETCH c; UPDATE u SET a = 1000 WHERE CURRENT OF c; SELECT count(*) FROM u WHERE a = 1000
--
DECLARE c CURSOR FOR SELECT * FROM u; UPDATE u SET a = 0 WHERE CURRENT OF c
--
UPDATE u SET a = 0 WHERE CURRENT OF nosuch
--
DECLARE c CURSOR FOR SELECT * FROM u WHERE k = 14; FETCH 2 FROM c; UPDATE u SET a = 0 WHERE CURRENT OF c
--
DECLARE c CURSOR FOR SELECT * FROM pl WHERE k = 14; FETCH c; UPDATE u SET a = 0 WHERE CURRENT OF c
--
DO $$ DECLARE c CURSOR FOR SELECT * FROM u WHERE a > 8 ORDER BY k DESC; r record; BEGIN FOR r IN c LOOP UPDATE u SET a = a + 100 WHERE CURRENT OF c;
END LOOP; END $$; SELECT k, a FROM u ORDER BY k
--
DO $$ DECLARE c refcursor; r record; BEGIN OPEN c FOR SELECT * FROM u FOR UPDATE; LOOP FETCH c INTO r; EXIT WHEN NOT FOUND; IF r.k % 3 = 0 THEN DELETE
  FROM u WHERE CURRENT OF c; END IF; END LOOP; END $$; SELECT k FROM u ORDER BY k
--
DECLARE c CURSOR FOR SELECT k, tableoid::regclass FROM u WHERE tableoid = 'u'::regclass AND k > 10 ORDER BY k; FETCH 3 FROM c; UPDATE u SET a = 0
  WHERE CURRENT OF c RETURNING k
--
DECLARE c SCROLL CURSOR FOR SELECT * FROM u ORDER BY k; FETCH 12 FROM c; FETCH PRIOR FROM c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k;
FETCH ABSOLUTE 2 FROM c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k; MOVE 9 FROM c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR FOR SELECT * FROM u ORDER BY k; FETCH 12 FROM c; SAVEPOINT s; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k; ROLLBACK TO s;
FETCH c; UPDATE u SET a = -1 WHERE CURRENT OF c RETURNING k
--
PREPARE p AS UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k; DECLARE c CURSOR FOR SELECT * FROM u ORDER BY k; MOVE 9 FROM c; FETCH c; EXECUTE p;
FETCH c; EXECUTE p; FETCH c; EXECUTE p
--
SET ROLE reader; DECLARE c CURSOR FOR SELECT * FROM secret ORDER BY k; FETCH 6 FROM c; UPDATE secret SET a = 0 WHERE CURRENT OF c RETURNING k; FETCH 2
  FROM c; DELETE FROM secret WHERE CURRENT OF c RETURNING k
--
SET ROLE reader; DECLARE c CURSOR FOR SELECT * FROM u ORDER BY k; FETCH 6 FROM c; UPDATE u SET a = 0 WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR WITH HOLD FOR SELECT * FROM pl; FETCH c; UPDATE pl SET a = 1 WHERE CURRENT OF c RETURNING k
--
DECLARE c CURSOR FOR SELECT k FROM u ORDER BY k; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c; FETCH PRIOR FROM c; FETCH FIRST FROM c; FETCH LAST FROM c;
FETCH ABSOLUTE 4 FROM c; MOVE BACKWARD ALL FROM c; FETCH c
--
DECLARE c CURSOR FOR SELECT k FROM u WHERE k = 14; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c; FETCH BACKWARD FROM c; FETCH c
--
DECLARE c CURSOR FOR SELECT a % 1 FROM u; MOVE 3 FROM c; FETCH 0 FROM c; FETCH PRIOR FROM c; FETCH LAST FROM c; FETCH PRIOR FROM c
--
DECLARE c NO SCROLL CURSOR FOR SELECT k FROM u WHERE k = 14; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c
--
DECLARE c CURSOR FOR SELECT 1 FROM u FOR UPDATE; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c
--
DECLARE c CURSOR FOR SELECT 1 FROM u WHERE k = 14 FOR UPDATE; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c
--
DECLARE c CURSOR FOR SELECT u.k FROM u JOIN pl USING (k) ORDER BY u.a; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c
--
DECLARE c CURSOR FOR SELECT k FROM pl WHERE k > 3; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c; FETCH LAST FROM c
--
DECLARE c CURSOR WITH HOLD FOR SELECT k FROM u ORDER BY 1; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c
SQL

my @refused = split /^--\n/m, <<'SQL';
SELECT * FROM u WHERE ctid = '(0,1)'
--
SELECT count(DISTINCT ctid) FROM u
--
SELECT ctid, count(*) FROM u GROUP BY ctid
--
SELECT DISTINCT ctid FROM u
--
SELECT count(*) FROM u a JOIN u b ON a.ctid = b.ctid
--
SELECT * FROM (SELECT ctid AS c, k FROM u OFFSET 0) s WHERE c = '(0,1)'
--
SELECT * FROM (SELECT ctid AS c, k FROM u) s WHERE c = '(0,1)'
--
WITH s AS (SELECT ctid AS c, k FROM u) SELECT * FROM s WHERE c = '(0,1)'
--
SELECT * FROM (SELECT ctid AS c FROM u UNION ALL SELECT ctid FROM pl) s WHERE c = '(0,1)'
--
SELECT ctid FROM u UNION SELECT ctid FROM pl
--
SELECT row_number() OVER (PARTITION BY ctid) FROM u
--
SELECT k FROM u WHERE k IN (1, 14) AND ctid > '(0,0)'
--
SELECT max(ctid) FROM u
--
DELETE FROM u WHERE ctid = '(0,1)'
--
DELETE FROM u WHERE ctid = ANY (ARRAY['(0,1)'::tid])
--
UPDATE u SET a = 1 WHERE ctid = '(0,1)' RETURNING k
--
UPDATE u SET a = 1 WHERE ctid IN (SELECT ctid FROM u LIMIT 1)
--
DELETE FROM u a USING u b WHERE a.ctid < b.ctid AND a.c = b.c
--
DELETE FROM u WHERE k IN (1, 14) AND ctid = '(0,1)'
--
SELECT (SELECT count(*) FROM pl WHERE pl.ctid = u.ctid) FROM u
--
DECLARE c CURSOR FOR SELECT * FROM u; FETCH c; UPDATE u SET k = 100 WHERE CURRENT OF c
--
DECLARE c CURSOR FOR SELECT * FROM part; FETCH c; UPDATE part SET k = 100 WHERE CURRENT OF c
SQL

chomp(@script, @refused);
$c->create(shards => 2, routers => 1);
$c->query('s1', $schema);
foreach my $table (qw(u secret))
{
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.move_range('$table', 11, tessera.maxkey(), 's2')");
}
$c->plain_query($schema);
is($c->table_differs($_, \@script, \@refused), 0, "from $_: " . scalar(@script) . ' statements as on a plain server') foreach $c->names;

# The row under a cursor is changed by someone else, or moved away.
foreach my $name ('s1', 's2', 'r1')
{
	my $session = $c->session($name);
	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM u ORDER BY k; MOVE 15 FROM c');
	$c->query('r1', 'UPDATE u SET a = 1000 WHERE k = 15');
	is($session->query_safe('UPDATE u SET a = a + 1 WHERE CURRENT OF c RETURNING k, a'), '15|1001',
		"$name: the newest version of the row is changed");
	$session->query_safe('ROLLBACK');

	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM u ORDER BY k; MOVE 15 FROM c');
	$c->query('r1', 'DELETE FROM u WHERE k = 15');
	is($session->query_safe('UPDATE u SET a = a + 1 WHERE CURRENT OF c RETURNING k, a'), '', "$name: a row that is gone is not found");
	$session->query_safe('ROLLBACK');
	$c->query('r1', "INSERT INTO u VALUES (15, 15, 15, 'c15')");
	$session->quit;
}

# A cursor that is open when its row moves: the statement fails to be repeated, or finds the row; another one is never changed.
foreach my $name ('s1', 's2', 'r1')
{
	my $session = $c->session($name, on_error_stop => 0);
	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM u ORDER BY k; MOVE 15 FROM c');
	$c->query('s1', "SELECT tessera.move_range('u', 13, 18, 's1')");
	my $rows = $session->query("UPDATE u SET a = -1 WHERE CURRENT OF c RETURNING k; SELECT 'end'");
	like($rows, qr/^(15\n.*end|)$/s, "$name: moved under the cursor");
	$session->query('ROLLBACK');
	$session->quit;
	is($c->query('r1', 'SELECT count(*) FROM u WHERE a = -1'), '0', 'nothing is left');
	$c->query('s1', "SELECT tessera.move_range('u', 13, 18, 's2')");
}

foreach my $name ($c->names)
{
	unlike(slurp_file($c->node($name)->logfile), qr/TRAP|PANIC|terminated by signal/, "$name: no crash");
}

done_testing();
