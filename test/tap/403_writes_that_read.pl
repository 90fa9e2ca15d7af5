# UPDATE, DELETE and MERGE of sharded tables that read other rows: joins, subqueries and WITH. Each statement does on the cluster what it does on a plain
# server: the same rows returned, counted and left, the same errors; through a node that owns nothing and one that owns a part, before and after moves.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('reading');
$c->create(shards => 3, routers => 1);
my $plain = $c->plain;

my $schema = <<'SQL';
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (x int, y text);
CREATE TABLE t (k int NOT NULL, id int NOT NULL, v text, n int, a int[], p pair, m mood, PRIMARY KEY (k, id));
CREATE TABLE u (k int NOT NULL, id int NOT NULL, w text, n int, a int[], p pair, m mood, PRIMARY KEY (k, id));
CREATE TABLE b (k bigint PRIMARY KEY, s text);
CREATE TABLE h (k int PRIMARY KEY, x int, s text);
CREATE TABLE c2 (a int, b text, v int, PRIMARY KEY (a, b));
CREATE TABLE d2 (a int, b text, i int, v int, PRIMARY KEY (a, b, i));
CREATE TABLE pl (id int PRIMARY KEY, s text, n int);
CREATE VIEW vt AS SELECT k, id, v, n FROM t WHERE id < 4;
CREATE VIEW vu AS SELECT k, id, upper(w) AS w FROM u WHERE n IS NOT NULL;
CREATE VIEW vg AS SELECT k, count(*) AS c, max(w) AS w FROM u GROUP BY k;
SQL
my $rows = <<'SQL';
INSERT INTO t SELECT k, i, 't' || k || '-' || i, CASE WHEN (k + i) % 5 > 0 THEN (k * i) % 17 END, ARRAY[k, i], ROW(k, 'x' || i)::pair,
  (ARRAY['sad', 'ok', 'happy'])[1 + (k + i) % 3]::mood FROM generate_series(1, 40) k, generate_series(1, 4) i WHERE (k + i) % 7 > 0;
INSERT INTO u SELECT k, i, 'u' || k || '-' || i, CASE WHEN (k + i) % 4 > 0 THEN (k + i) % 13 END, ARRAY[i, NULL, k], ROW(i, NULL)::pair,
  (ARRAY['sad', 'ok', 'happy'])[1 + k % 3]::mood FROM generate_series(3, 45) k, generate_series(2, 5) i WHERE k % 6 > 0;
INSERT INTO b SELECT g, 'b' || g FROM generate_series(5, 50) g;
INSERT INTO h SELECT g, CASE WHEN g % 8 > 0 THEN g % 9 END, 'h' || g FROM generate_series(1, 30) g;
INSERT INTO c2 SELECT g, x, g FROM generate_series(1, 20) g, unnest(ARRAY['p', 'q', 'r']) x;
INSERT INTO d2 SELECT g, x, i, g * i FROM generate_series(5, 25) g, unnest(ARRAY['q', 'r', 's']) x, generate_series(1, 2) i;
INSERT INTO pl SELECT g, 'pl' || g, g % 5 FROM generate_series(1, 12) g;
SQL
$c->query('s1', $schema);
$plain->safe_psql('postgres', $schema);
$c->query('s1', q{SELECT tessera.shard_table('t', 'k')});
$c->query('s1', qq{SELECT tessera.shard_table('$_', 'k', colocate_with => 't')}) foreach qw(u);
$c->query('s1', q{SELECT tessera.shard_table('b', 'k')});
$c->query('s1', q{SELECT tessera.shard_table('h', 'k', 'hash', chunks => 6)});
$c->query('s1', q{SELECT tessera.shard_table('c2', 'a, b')});
$c->query('s1', q{SELECT tessera.shard_table('d2', 'a, b', colocate_with => 'c2')});
$c->query('s1', $rows);
$plain->safe_psql('postgres', $rows);
$c->query('s1', q{SELECT tessera.move_range('t', 10, 20, 's2'), tessera.move_range('t', 20, tessera.maxkey(), 's3')});
$c->query('s1', q{SELECT tessera.move_range('c2', (5, 'q'), (12, 'r'), 's2')});

# What each table that a statement may change is like behind it; how many rows the statement names.
sub whole
{
	return map { join ";\n", "$_\n\\g\n\\echo :ROW_COUNT\nSELECT * FROM t", 'SELECT * FROM u', 'SELECT * FROM h', 'SELECT * FROM c2', 'SELECT * FROM pl' } @_;
}

# Each key by itself is what each shard does by itself.
my @closed = (
	q{UPDATE t SET v = u.w FROM u WHERE u.k = t.k AND u.id = t.id RETURNING t.k, t.id, v, w},
	q{UPDATE t SET v = x.w FROM u x JOIN u y ON y.k = x.k WHERE t.k = x.k AND x.id = t.id AND y.id = x.id + 1},
	q{UPDATE t SET v = w FROM u LEFT JOIN t o ON o.k = u.k AND o.id = u.id + 1 WHERE u.k = t.k AND u.id = t.id AND o.k IS NULL RETURNING *},
	q{UPDATE t SET n = s.c FROM (SELECT k, count(*) AS c FROM u GROUP BY k) s WHERE s.k = t.k RETURNING t.k, c},
	q{UPDATE t SET n = c, v = w FROM vg WHERE vg.k = t.k},
	q{UPDATE t SET n = (SELECT count(*) FROM u WHERE u.k = t.k AND u.id > t.id)},
	q{UPDATE t SET (n, v) = (SELECT max(n), min(w) FROM u WHERE u.k = t.k) WHERE id = 2 RETURNING k, n, v},
	q{UPDATE t SET v = (SELECT w FROM u WHERE u.k = t.k ORDER BY id DESC LIMIT 1) WHERE n > 3},
	q{UPDATE t SET v = (SELECT w FROM u WHERE u.k = t.k)},
	q{UPDATE t SET v = s.v FROM t s WHERE s.k = t.k AND s.id = t.id + 1 RETURNING t.*, s.id},
	q{UPDATE t SET v = 'none' WHERE NOT EXISTS (SELECT FROM u WHERE u.k = t.k AND u.id = t.id)},
	q{UPDATE t SET v = 'some' WHERE k IN (SELECT k FROM u WHERE n = 3) RETURNING k, id},
	q{UPDATE t SET v = 'some' WHERE (id, k) IN (SELECT id, k FROM vu)},
	q{UPDATE t SET v = 'same' FROM u WHERE u.k = t.k AND EXISTS (SELECT FROM t o WHERE o.k = u.k AND o.n = u.n)},
	q{UPDATE t SET v = r.c FROM (VALUES (1, 'one'), (2, 'two')) r(i, c) WHERE r.i = t.id AND k IN (SELECT k FROM u)},
	q{UPDATE t SET a = u.a, p = u.p, m = u.m FROM u WHERE u.k = t.k AND u.id = t.id RETURNING u.*, t.a},
	q{UPDATE t SET v = x FROM u, LATERAL (SELECT max(w) AS x FROM u z WHERE z.k = u.k) l WHERE u.k = t.k AND u.id = t.id},
	q{UPDATE vt SET v = w FROM u WHERE u.k = vt.k AND u.id = vt.id RETURNING vt.*},
	q{DELETE FROM vt USING vu WHERE vu.k = vt.k AND vu.id = vt.id RETURNING vu.w},
	q{DELETE FROM t USING u WHERE u.k = t.k AND u.id = t.id AND u.n > 5 RETURNING t.*, u.w},
	q{DELETE FROM t USING t o WHERE o.k = t.k AND o.m = t.m AND o.ctid < t.ctid},
	q{DELETE FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k AND u.n < t.n) RETURNING (SELECT count(*) FROM u WHERE u.k = t.k)},
	q{DELETE FROM t WHERE n = (SELECT min(o.n) FROM t o WHERE o.k = t.k)},
	q{WITH s AS (SELECT k, max(n) AS n FROM u GROUP BY k) UPDATE t SET n = s.n FROM s WHERE s.k = t.k RETURNING t.k, t.id, t.n},
	q{WITH s AS (SELECT k, id FROM u WHERE n > 5) DELETE FROM t USING s WHERE s.k = t.k AND s.id = t.id RETURNING t.v},
	q{UPDATE c2 SET v = d2.v FROM d2 WHERE d2.a = c2.a AND d2.b = c2.b AND i = 2 RETURNING *},
	q{UPDATE c2 SET v = (SELECT sum(v) FROM d2 WHERE d2.a = c2.a AND d2.b = c2.b) WHERE b > 'p'},
	q{UPDATE c2 SET v = d2.v FROM d2 WHERE c2.a = 7 AND d2.a = 7 AND d2.b = c2.b AND i = 2 RETURNING *},
	q{DELETE FROM c2 WHERE (b, a) IN (SELECT b, a FROM d2 WHERE i = 1)},
	q{MERGE INTO t USING u ON t.k = u.k AND t.id = u.id WHEN MATCHED AND u.n > 6 THEN DELETE WHEN MATCHED THEN UPDATE SET v = w
	  WHEN NOT MATCHED THEN INSERT (k, id, v) VALUES (u.k, u.id, u.w)},
	q{MERGE INTO t USING (SELECT k, max(id) AS id, sum(n) AS n FROM u GROUP BY k) s ON s.k = t.k AND s.id = t.id + 2
	  WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED AND s.n > 9 THEN INSERT VALUES (s.k, s.id + 100, 'new')},
	q{MERGE INTO t USING vu ON t.k = vu.k AND t.id = vu.id WHEN NOT MATCHED THEN INSERT (id, k, v) VALUES (vu.id, vu.k, (SELECT s FROM
	  (SELECT max(w) AS s FROM u WHERE u.k = vu.k) z))},
	q{MERGE INTO t USING u ON t.k = u.k WHEN MATCHED THEN UPDATE SET v = w},
	q{MERGE INTO c2 USING d2 ON d2.a = c2.a AND d2.b = c2.b AND i = 1 WHEN MATCHED THEN UPDATE SET v = d2.v
	  WHEN NOT MATCHED AND i = 2 AND d2.a > 20 THEN INSERT VALUES (d2.a, d2.b, -1)},
);

my @refused = (
	q{MERGE INTO t USING u ON t.k = u.k AND t.id = u.id WHEN NOT MATCHED THEN INSERT (k, id) VALUES (u.k + 1, u.id)},
	q{MERGE INTO t USING u ON t.k = u.k AND t.id = u.id WHEN MATCHED THEN UPDATE SET k = u.n},
	q{MERGE INTO t USING u ON t.id = u.id WHEN NOT MATCHED THEN INSERT (k, id) VALUES (u.k, u.id)},
	q{MERGE INTO t USING (VALUES (1, 1), (30, 9)) s(k, id) ON t.k = s.k AND t.id = s.id WHEN NOT MATCHED THEN INSERT (k, id) VALUES (s.k, s.id)},
	q{MERGE INTO t USING (SELECT u.k, o.id FROM t o LEFT JOIN u ON u.k = o.k) s ON t.k = s.k AND t.id = s.id WHEN NOT MATCHED THEN DO NOTHING
	  WHEN MATCHED THEN DELETE},
	q{MERGE INTO t USING pl ON t.id = pl.id WHEN MATCHED THEN UPDATE SET v = s},
	q{UPDATE t SET k = u.n FROM u WHERE u.k = t.k AND u.id = t.id},
	q{DELETE FROM t USING u WHERE u.k = t.k AND t.ctid = '(0,1)'},
);

sub same
{
	my ($when, @nodes) = @_;

	is($c->table_differs($_, [ whole(@closed) ]), 0, "$when: closed over the key, from $_") foreach @nodes;
	is($c->table_differs($_, [], \@refused), 0, "$when: refused, from $_") foreach @nodes;
}

same('at rest', qw(r1 s2));

# The shards do it: the plan is one statement.
foreach my $statement (@closed)
{
	my $plan = $c->query('r1', "EXPLAIN (COSTS off) $statement");

	like($plan, qr/Tier: whole statement/, "whole: $statement") or diag $plan;
}

$c->query('r1', q{SELECT tessera.move_range('t', 5, 15, 's3'), tessera.move_range('t', 30, 35, 's1'), tessera.move_range('c2', (7, 'p'), (9, 'r'), 's3')});
same('after moves', 'r1');

done_testing();
