# What the parser has resolved once means the same wherever it runs: operators of a view, or of a function in SQL-standard form, are those of the
# search path under which it was made, also where SQL has no place for their schema (IS DISTINCT FROM, NULLIF, CASE x WHEN, JOIN ... USING, rows).
# Each statement is run under several other paths, on the cluster and on a plain server.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('operators');
$c->create(shards => 3, routers => 1);

my $schema = <<'SQL';
CREATE SCHEMA ext; CREATE SCHEMA m; CREATE SCHEMA decoy;
CREATE EXTENSION citext SCHEMA public; CREATE EXTENSION hstore SCHEMA public; CREATE EXTENSION ltree SCHEMA ext;
-- a type without an operator class, and an = of two types
CREATE TYPE ext.odd AS (x int);
CREATE FUNCTION ext.same(ext.odd, ext.odd) RETURNS bool IMMUTABLE STRICT LANGUAGE plpgsql AS 'BEGIN RETURN abs($1.x) = abs($2.x); END';
CREATE OPERATOR ext.= (FUNCTION = ext.same, LEFTARG = ext.odd, RIGHTARG = ext.odd, COMMUTATOR = OPERATOR(ext.=));
-- found first by who has this schema in front of the system's
CREATE FUNCTION decoy.never(int, int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN false; END';
CREATE OPERATOR decoy.= (FUNCTION = decoy.never, LEFTARG = int, RIGHTARG = int);
CREATE OPERATOR decoy.> (FUNCTION = decoy.never, LEFTARG = int, RIGHTARG = int);
SET search_path = m, public, ext;
CREATE TABLE t (id int PRIMARY KEY, name citext, h hstore, p ltree, o odd, n int, s text COLLATE "C",
  g bool GENERATED ALWAYS AS (name IS DISTINCT FROM 'ROOT') STORED, CHECK (nullif(name, 'ANNE') IS DISTINCT FROM name OR n > -5));
CREATE TABLE u (id int PRIMARY KEY, name citext, n int, p ltree);
CREATE TABLE r (id int PRIMARY KEY, name citext, n int);
SQL
my $rows = <<'SQL';
SET search_path = m, public, ext;
INSERT INTO t (id, name, h, p, o, n, s) SELECT g, (ARRAY['root', 'Ann', 'NONE', 'none', 'Bob', NULL, 'ZOE', 'ROOT', NULL])[g],
  hstore('k', (g % 3)::text),
  ('a.' || g % 4)::ltree, ROW(g % 3 - 1)::odd, nullif(g % 4, 0), 'S' || g % 3 FROM generate_series(1, 9) g;
INSERT INTO u SELECT g, (ARRAY['Root', 'ann', NULL, 'nothing', 'BOB', NULL, 'zoe', 'x', 'y'])[g], g % 3, ('a.' || g % 3)::ltree
  FROM generate_series(1, 9) g;
INSERT INTO r VALUES (1, 'ROOT', 1), (2, 'bob', 2), (3, NULL, 3), (4, 'zoe', NULL);
SQL

# Conditions on a row of t. Each is the WHERE of a view, and of SELECT, UPDATE and DELETE in functions.
my @conditions = (
	q{name IS DISTINCT FROM 'ROOT'},
	q{name IS NOT DISTINCT FROM 'NONE'},
	q{name IS DISTINCT FROM s},
	q{n IS DISTINCT FROM id % 3},
	q{h IS DISTINCT FROM 'k=>1'::hstore},
	q{o IS NOT DISTINCT FROM ROW(1)::odd},
	q{NOT (name, n) IS DISTINCT FROM ('root', 1)},
	q{nullif(name, 'None') IS NOT NULL},
	q{nullif(nullif(nullif(name, 'None'), 'ROOT'), 'x') > 'BNN'},
	q{nullif(o, ROW(1)::odd) IS NULL},
	q{CASE name WHEN 'ROOT' THEN 1 WHEN 'bob' THEN 2 WHEN NULL THEN 3 ELSE 0 END > 0},
	q{CASE lower(name) WHEN 'ROOT' THEN true WHEN 'none' THEN n = 3 END},
	q{CASE n WHEN 2 THEN true WHEN 3 THEN name = 'none' END},
	q{CASE nullif(name, 'NONE') WHEN CASE name WHEN 'BOB' THEN 'bOb'::citext ELSE 'Ann' END THEN true ELSE false END},
	q{CASE o WHEN ROW(1)::odd THEN true END},
	q{(name, id) > ('BNN', 5)},
	q{(name, id) <= ('ROOT', 1)},
	q{(id % 2, name, n) >= (1, 'ROOT', 2)},
	q{(n, id) > (2, 3)},
	q{(n, name, p) < (2, 'bnn', 'a.2')},
	q{(name, 10 / (id - 6)) > ('BNN', 5)},
	q{(name, 10 / (id - 6)) >= (SELECT name, n FROM u WHERE u.id = t.id)},
	q{name IN ('ann', 'ZOE')},
	q{name = ANY ('{ANN,root}')},
	q{name LIKE 'r%' OR name BETWEEN SYMMETRIC 'C' AND 'A'},
	q{name IN (SELECT name FROM u WHERE u.id = t.id)},
	q{name NOT IN (SELECT name FROM u WHERE u.id = t.id AND u.name IS NOT NULL)},
	q{EXISTS (SELECT FROM u WHERE u.id = t.id AND u.name IS NOT DISTINCT FROM t.name)},
	q{(SELECT name FROM u WHERE u.id = t.id) IS DISTINCT FROM 'ROOT'},
	q{nullif((SELECT name FROM u WHERE u.id = t.id), 'root') IS NOT NULL},
	q{CASE (SELECT name FROM u WHERE u.id = t.id) WHEN 'ROOT' THEN true WHEN NULL THEN true WHEN 'ANN' THEN n = 2 END},
	q{(name, n) IN (SELECT name, n FROM u WHERE u.id = t.id)},
	q{(name, n) NOT IN (SELECT name, n FROM u WHERE u.id = t.id)},
	q{(name, n) <> ALL (SELECT name, n % 2 FROM u WHERE u.id = t.id)},
	q{(n, name) = ANY (SELECT x.n, name FROM u x WHERE x.id = t.id ORDER BY x.p LIMIT 1)},
	q{(name, n) >= (SELECT name, n FROM u WHERE u.id = t.id)},
	q{((name, n) < (SELECT name, n FROM u WHERE u.id = t.id AND u.n > 0)) IS NULL},
	q{(name, n) IN (SELECT name, n FROM r)},
	q{(name, n) IN (SELECT name, n FROM u WHERE u.id = t.id AND u.name IS NOT DISTINCT FROM t.name)},
	q{(name, n) IN (SELECT nullif(u.name, t.s), n FROM u WHERE u.id = t.id)},
	q{EXISTS (SELECT FROM u WHERE u.id = t.id AND (name, n) IN } .
		q{(SELECT x.name, x.n FROM u x WHERE x.id = u.id AND t.name IS NOT DISTINCT FROM u.name))},
	q{id IN (SELECT u.id FROM u JOIN t x USING (id, name))},
	q{EXISTS (SELECT FROM u LEFT JOIN t x USING (id, name) WHERE u.id = t.id AND x.id IS NULL)},
	q{id IN (SELECT id FROM u NATURAL JOIN t x WHERE name IS DISTINCT FROM 'ANN')},
	q{name IN (SELECT name FROM r WHERE nullif(name, 'BOB') IS NOT NULL)},
	q{EXISTS (SELECT FROM r WHERE r.name IS NOT DISTINCT FROM t.name)},
);

# Other statements; :id is that of one row, where the shard gets the whole statement.
my %queries = (
	merged => q{SELECT id, name, t.name AS tn, u.name AS un FROM t JOIN u USING (name, id)},
	left_merged => q{SELECT id, name, count(*) FROM t LEFT JOIN u USING (name, id) GROUP BY id, name},
	full_merged => q{SELECT lower(name) AS low, count(*), min(coalesce(t.id, u.id)) FROM t FULL JOIN u USING (name, id) GROUP BY name},
	three => q{SELECT id, x.name, x.n FROM t JOIN u USING (id) JOIN t x USING (id) WHERE u.name IS NOT DISTINCT FROM x.name},
	three_by_name => q{SELECT id, name, (SELECT min(y.name) FROM u y WHERE y.id = id AND y.name = x.name) } .
		q{FROM t JOIN u USING (name, id) LEFT JOIN t x USING (name, id)},
	one_merged => q{SELECT id, name FROM t JOIN u USING (name, id) WHERE id = 1},
	one_full => q{SELECT id, name, (SELECT name) AS same FROM (SELECT * FROM t WHERE id = 5) t } .
		q{FULL JOIN (SELECT * FROM u WHERE id = 5) u USING (name, id)},
	alias => q{SELECT j.id, j.name FROM (t JOIN u USING (name, id)) AS j WHERE j.id = 2},
	using_alias => q{SELECT j.id, j.name, t.n FROM t JOIN u USING (name, id) AS j WHERE j.id = 2},
	groups => q{SELECT lower(nullif(name, 'NONE')) AS x, count(*) FROM t GROUP BY nullif(name, 'NONE')},
	cases => q{SELECT CASE name WHEN 'ROOT' THEN 'r' WHEN 'none' THEN 'n' ELSE s END AS x, sum(n) FROM t GROUP BY 1 } .
		q{HAVING max(name) IS DISTINCT FROM 'x'},
	filter => q{SELECT count(*) FILTER (WHERE name IS DISTINCT FROM 'ROOT') AS c, count(DISTINCT nullif(name, 'NONE')) AS d FROM t},
	within => q{SELECT n, percentile_disc(0.5) WITHIN GROUP (ORDER BY nullif(name, 'BOB')) AS p FROM t GROUP BY n},
	windows => q{SELECT id, rank() OVER (PARTITION BY id ORDER BY nullif(name, 'ROOT')) AS k FROM t},
	distinct_on => q{SELECT DISTINCT ON (id) id, name FROM t ORDER BY id, name USING OPERATOR(public.>)},
	first => q{SELECT id, name FROM t WHERE name IS DISTINCT FROM 'BOB' ORDER BY name USING OPERATOR(public.<), id LIMIT 4},
	joined => q{SELECT t.id, u.id AS other FROM t JOIN u ON t.id = u.id AND t.name IS NOT DISTINCT FROM u.name},
	outer => q{SELECT t.id, u.id AS other FROM t LEFT JOIN u ON t.id = u.id AND (t.name, t.n) >= (u.name, u.n)},
	collated => q{SELECT id FROM t WHERE nullif(s, 'S1' COLLATE "C") < 'S2' COLLATE "C"},
	elsewhere => q{SELECT t.id, r.id AS other FROM t JOIN r ON t.name IS NOT DISTINCT FROM r.name},
	one_grouped => q{SELECT lower(name) AS low, (lower(name)::citext, n % 2) IN (SELECT name, n FROM u WHERE u.id = 1) AS f, count(*) } .
		q{FROM t WHERE id = 1 GROUP BY lower(name), n % 2},
	one_having => q{SELECT lower(name) AS low FROM t WHERE id = 1 GROUP BY lower(name), n } .
		q{HAVING (lower(name)::citext, n) IN (SELECT name, n FROM u WHERE u.id = 1)},
	one_filter => q{SELECT id, count(*) FROM t WHERE id = 1 AND (lower(name)::citext, n % 2) IN (SELECT name, n FROM u WHERE u.id = 1) } .
		q{GROUP BY id, lower(name)},
	one_merged_grouped => q{SELECT name, (name, 1) IN (SELECT x.name, x.n FROM u x WHERE x.id = 5) AS f, count(*) FROM } .
		q{(SELECT * FROM t WHERE id = 5) t FULL JOIN (SELECT * FROM u WHERE id = 5) u USING (name, id) GROUP BY name},
	rows_of_both => q{SELECT id FROM t WHERE (name, n) IN (SELECT name, n FROM u)},
	rows_of_one => q{SELECT id FROM t WHERE (name, n) NOT IN (SELECT name, n FROM u WHERE u.id = t.id)},
	sets_removed => q{SELECT id, nullif(name, (regexp_split_to_table('BOB ANN', ' '))::citext) AS c FROM t WHERE id = 5},
	row_of_one => q{SELECT id FROM t WHERE (name, n) >= (SELECT name, n FROM u WHERE u.id = t.id)},
);
my %writes = (
	upsert => q{INSERT INTO t AS o (id, name, n) SELECT id, name, 40 FROM u ON CONFLICT (id) DO UPDATE } .
		q{SET n = CASE o.name WHEN excluded.name THEN 1 ELSE 2 END, s = nullif(o.name, 'BOB') WHERE o.name IS DISTINCT FROM 'ANN' RETURNING id, n},
	upsert_one => q{INSERT INTO t AS o (id, name) VALUES (5, 'BOB') ON CONFLICT (id) DO UPDATE } .
		q{SET n = CASE o.name WHEN excluded.name THEN 11 ELSE 12 END RETURNING n},
	set => q{UPDATE t SET n = CASE name WHEN 'ROOT' THEN 100 WHEN 'ANN' THEN 200 END, name = nullif(name, 'BOB') RETURNING id, n, name},
	set_one => q{UPDATE t SET n = CASE name WHEN 'BOB' THEN 100 ELSE 300 END WHERE id = 5 RETURNING id, n},
	set_volatile => q{UPDATE t SET n = CASE substr(name || random(), 1, 3)::citext WHEN 'ROO' THEN 1 WHEN 'BOB' THEN 2 ELSE 3 END RETURNING id, n},
	joined_update => q{UPDATE t SET n = x.n + 10 FROM u JOIN t x USING (id, name) WHERE x.id = t.id RETURNING t.id, t.n},
	joined_delete => q{DELETE FROM t USING u LEFT JOIN t x USING (id, name) WHERE u.id = t.id AND x.id IS NULL RETURNING t.id},
	key => q{UPDATE t SET id = id + 100 WHERE name IS NOT DISTINCT FROM 'ROOT' RETURNING id},
	merge => q{MERGE INTO t USING u ON t.id = u.id WHEN MATCHED AND t.name IS NOT DISTINCT FROM u.name THEN DELETE } .
		q{WHEN MATCHED AND CASE t.name WHEN 'NONE' THEN true END THEN UPDATE SET n = 1000},
	placed => q{UPDATE r SET n = CASE name WHEN 'ROOT' THEN 5 WHEN 'ZOE' THEN 6 END WHERE name IS DISTINCT FROM 'BOB' RETURNING id, n},
	copies => q{INSERT INTO u SELECT id + 100, nullif(name, 'NONE'), n, p FROM t WHERE name IS DISTINCT FROM 'ROOT' RETURNING id, name},
	through_view => q{UPDATE c0 SET n = 7 WHERE CASE name WHEN 'ANN' THEN true WHEN 'ZOE' THEN n IS NOT NULL END RETURNING id},
	delete_through => q{DELETE FROM c7 WHERE name IS NOT DISTINCT FROM 'ZOE' OR id = 5 RETURNING id},
	with => q{WITH w AS (DELETE FROM t WHERE name IS DISTINCT FROM 'ROOT' RETURNING id) SELECT id FROM w},
);

# There is no other form, and no other way.
my %refused = (
	alias_of_join => q{DELETE FROM t USING (u JOIN t x USING (id, name)) AS j WHERE j.id = t.id},
	repeated => q{UPDATE t SET n = CASE (SELECT o FROM t x WHERE x.id = t.id) WHEN ROW(1)::odd THEN 1 WHEN ROW(2)::odd THEN 2 END},
);

my $made = "SET search_path = m, public, ext;\n";
my @reads;
my @changes;
foreach my $i (0 .. $#conditions)
{
	my $condition = $conditions[$i];

	$made .= "CREATE VIEW c$i AS SELECT id, name, n FROM t WHERE $condition;\n";
	$made .= "CREATE FUNCTION count$i() RETURNS bigint LANGUAGE sql STABLE BEGIN ATOMIC SELECT count(*) FROM t WHERE $condition; END;\n";
	$made .= "CREATE FUNCTION one$i(int) RETURNS SETOF int LANGUAGE sql STABLE BEGIN ATOMIC SELECT id FROM t WHERE id = \$1 AND ($condition); END;\n";
	$made .= "CREATE FUNCTION update$i() RETURNS SETOF int LANGUAGE sql BEGIN ATOMIC UPDATE t SET n = n + 1 WHERE $condition RETURNING id; END;\n";
	$made .= "CREATE FUNCTION delete$i() RETURNS SETOF int LANGUAGE sql BEGIN ATOMIC DELETE FROM t WHERE $condition RETURNING id; END;\n";
	push @reads, "SELECT id FROM m.c$i", "SELECT count(*) FROM m.c$i", "SELECT g, m.one$i(g) FROM generate_series(1, 9) g", "SELECT m.count$i()",
	  "SELECT a.id FROM m.c$i a WHERE EXISTS (SELECT FROM m.c0 b WHERE b.id = a.id + 1)", "SELECT n, count(*) FROM m.c$i GROUP BY n";
	push @changes, "SELECT m.update$i()", "SELECT m.delete$i()";
}
foreach my $name (sort keys %queries)
{
	$made .= "CREATE VIEW q_$name AS $queries{$name};\n";
	$made .= "CREATE FUNCTION f_$name() RETURNS SETOF record LANGUAGE sql STABLE BEGIN ATOMIC $queries{$name}; END;\n";
	push @reads, "SELECT * FROM m.q_$name", "SELECT count(*) FROM m.q_$name", "SELECT count(*) FROM (SELECT m.f_$name()) s";
}
foreach my $name (sort keys %writes)
{
	$made .= "CREATE PROCEDURE w_$name() LANGUAGE sql BEGIN ATOMIC $writes{$name}; END;\n";
	push @changes, "CALL m.w_$name()";
}
# Inside of the alias the path finds all operators, above it not.
$made .= "CREATE FUNCTION alias_below() RETURNS SETOF int LANGUAGE sql BEGIN ATOMIC DELETE FROM t WHERE id IN (SELECT id FROM "
  . "(u JOIN t y USING (id)) AS j(id, name, n, p, name2) JOIN t x USING (id, name)) RETURNING id; END;\n";
$made .= "CREATE PROCEDURE r_$_() LANGUAGE sql BEGIN ATOMIC $refused{$_}; END;\n" foreach sort keys %refused;

$c->everywhere($schema);
$c->query('s1', q{SELECT tessera.shard_table('m.t', 'id', 'hash', chunks => 6)});
$c->query('s1', q{SELECT tessera.shard_table('m.u', 'id', 'hash', colocate_with => 'm.t')});
$c->everywhere($rows);
$c->everywhere($made);

my @left = ('SELECT id, name, n, s, g FROM m.t', 'SELECT id, name, n FROM m.u', 'SELECT id, name, n FROM m.r');
my @script = (@reads, map { join ";\n", $_, @left } @changes);
foreach my $path ('m', q{''}, 'm, public, ext', 'decoy, pg_catalog, m', 'decoy, pg_catalog, public, ext')
{
	is($c->table_differs($path eq 'm' ? 's2' : 'r1', [ map { "SET LOCAL search_path = $path;\n$_" } @script ]), 0, "search_path = $path");
}
# Prepared under one path and run under others; a temporary view, which no shard has.
my @sessions = map { "SET LOCAL search_path = m, public, ext; $_" } (
	"PREPARE p(citext) AS SELECT count(*) FROM t WHERE name IS DISTINCT FROM \$1; "
	  . join(' ', map { "SET LOCAL search_path = $_; EXECUTE p('ROOT');" } 'm, ext, public', 'm, public', 'public, m'),
	"CREATE TEMP VIEW v AS SELECT id, n FROM t WHERE name IS DISTINCT FROM 'ROOT'; SET LOCAL search_path = m; SELECT count(*) FROM v; "
	  . 'SELECT g, (SELECT n FROM v WHERE id = g) FROM generate_series(1, 3) g; SELECT n FROM v WHERE id = 1; SELECT n FROM v WHERE id = 5; '
	  . "UPDATE v SET n = 9 WHERE id = 5; DELETE FROM v WHERE id <> 5; $left[0]",
	"SET LOCAL search_path = m; SELECT alias_below()");
is($c->table_differs('r1', \@sessions), 0, 'prepared statements, temporary views, an alias');
is($c->table_differs('r1', [], [ map { "SET LOCAL search_path = m;\nCALL m.r_$_()" } sort keys %refused ]), 0, 'refused');
is($c->table_differs('r1', [ map { "SET LOCAL search_path = m, public, ext;\nCALL m.r_$_()" } sort keys %refused ]), 0, 'not under the path');

# Rows that are compared with those of a subquery are joined with them, as they are where the path finds the operators.
my @plans = map { $c->query('r1', "SET search_path = m, public, ext; CREATE TEMP VIEW v AS $queries{one_filter}; SET search_path = $_; "
		. 'EXPLAIN (VERBOSE, COSTS off) SELECT * FROM v') } 'm', 'm, public, ext';
unlike($plans[$_], qr/SubPlan/, "joined, $_") foreach 0, 1;
like($plans[0], qr/EXISTS.*Nested Loop/s, 'in another form');

# "$user" is another schema for another role: texts that were made for one are not the other's.
$c->query('s1', $_) foreach 'CREATE ROLE ann', 'CREATE SCHEMA ann AUTHORIZATION ann', 'GRANT USAGE ON SCHEMA public TO ann',
	'CREATE TABLE ann.whose (k int PRIMARY KEY, v text)', 'CREATE TABLE public.whose (k int PRIMARY KEY, v text)',
	map { ("GRANT ALL ON $_.whose TO ann", "SELECT tessera.shard_table('$_.whose', 'k', 'hash', chunks => 6)",
		"INSERT INTO $_.whose SELECT g, '$_' FROM generate_series(1, 20) g") } 'ann', 'public';
my $whose = sub { my ($role, @tables) = @_;
	return "SET ROLE $role; " . join('', map { my $k = $_; map { "SELECT v FROM $_ WHERE k = $k; " } @tables } 1 .. 6); };
my ($of_ann, $of_all) = ($whose->('ann', 'whose', 'public.whose'), $whose->('none', 'whose', 'ann.whose'));
is($c->query('r1', $of_ann . $of_all), join("\n", (qw(ann public)) x 6, (qw(public ann)) x 6), "by one's own path, behind those of ann");
is($c->query('r1', $of_all . $of_ann), join("\n", (qw(public ann)) x 6, (qw(ann public)) x 6), 'by the path of ann, behind the others');

done_testing();
