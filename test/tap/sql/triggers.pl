# Triggers of users fire as on one server (doc/design.md#triggers): the same scripts on a plain server and through each node after ranges have moved;
# rows, messages and their order are compared. Triggers of all kinds, that read temporary tables, notify, set settings, write other tables of the
# cluster, raise, suppress rows, recurse.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('triggers', settings => { 'tessera.injection_points' => 'on' });

my $schema = <<'SQL';
CREATE TABLE item (k int PRIMARY KEY, v int, note text, g int GENERATED ALWAYS AS (v * 2) STORED, at text DEFAULT 'dflt');
CREATE TABLE gap (k int NOT NULL, gone int, id int GENERATED ALWAYS AS IDENTITY, name varchar(10), n numeric(8,2), a int[], PRIMARY KEY (k, id));
ALTER TABLE gap DROP COLUMN gone;
CREATE TABLE journal (n serial PRIMARY KEY, what text);
CREATE TABLE audit (k int, what text, PRIMARY KEY (k, what));
CREATE TABLE rate (code text PRIMARY KEY, factor int);
CREATE TABLE child (k int NOT NULL, id int NOT NULL, PRIMARY KEY (k, id));
CREATE TABLE tree (k int PRIMARY KEY, parent int, depth int DEFAULT 0);
CREATE TABLE by_role (k int PRIMARY KEY, who text);
CREATE FUNCTION say(what text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%', what; END $$;
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_LEVEL = 'STATEMENT' THEN
    RAISE NOTICE '% % % %', TG_NAME, TG_WHEN, TG_OP, TG_TABLE_NAME;
    PERFORM 1;
    RETURN NULL;
  END IF;
  RAISE NOTICE '% % % % [%] [%] % %', TG_NAME, TG_WHEN, TG_OP, TG_ARGV[0], CASE WHEN TG_OP <> 'INSERT' THEN OLD::text END,
    CASE WHEN TG_OP <> 'DELETE' THEN NEW::text END, pg_trigger_depth(), current_user;
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  RETURN NEW;
END $$;
SQL

# Runs a script in one session and returns everything that psql shows, in its order.
sub answer
{
	my ($conninfo, $script) = @_;
	my $out = '';
	IPC::Run::run([ 'stdbuf', '-oL', 'psql', '-XAt', '-v', 'SHOW_CONTEXT=never', '-P', 'null=NULL', '-d', $conninfo ],
		'<', \"SET timezone = 'UTC';\n$script", '&>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$out =~ s/^psql:.*?: //mg;
	$out =~ s/server process with PID \d+/server process/g;
	return $out;
}

# The first lines that differ.
sub show
{
	my ($expected, $got) = map { [ split /\n/, $_ ] } @_;
	my $i = 0;
	$i++ while $i < @$expected && $i < @$got && $expected->[$i] eq $got->[$i];
	diag(join "\n", "line $i, plain:", (map { $_ // () } @$expected[ $i .. $i + 4 ]), 'cluster:', map { $_ // () } @$got[ $i .. $i + 4 ]);
}

# Both in a transaction that is rolled back, so that each node meets the same rows.
sub same
{
	my ($name, $script, @nodes) = @_;
	my $expected = answer($c->plain->connstr('postgres'), "BEGIN;\n$script;\nROLLBACK;\n");
	foreach my $node (@nodes ? @nodes : ('r1', 's1', 's3'))
	{
		my $got = answer($c->conninfo($node), "BEGIN;\n$script;\nROLLBACK;\n");
		ok($got eq $expected, "$name, from $node") or show($expected, $got);
	}
}

$c->create(shards => 3, routers => 1);
foreach my $run (sub { $c->query('s1', $_[0]) }, sub { $c->plain_query($_[0]) })
{
	$run->($schema);
	$run->("INSERT INTO item (k, v, note) SELECT g, g * 10, 'n' || g FROM generate_series(1, 12) g");
	$run->("INSERT INTO gap (k, name, n, a) SELECT g, 'name' || g, g + 0.5, ARRAY[g, g + 1] FROM generate_series(1, 8) g");
	$run->("INSERT INTO rate VALUES ('x', 3), ('y', 5)");
	$run->('INSERT INTO child SELECT g, 1 FROM generate_series(1, 12) g');
	$run->('INSERT INTO tree SELECT g, g / 2 FROM generate_series(1, 15) g');
	$run->('INSERT INTO by_role SELECT g FROM generate_series(1, 4) g');
}
$c->query('s1', $_) foreach (
	"SELECT tessera.shard_table('item', 'k'), tessera.shard_table('child', 'k', colocate_with => 'item')",
	"SELECT tessera.shard_table('gap', 'k', 'hash', chunks => 6)", "SELECT tessera.shard_table('audit', 'k', 'hash', chunks => 6)",
	"SELECT tessera.shard_table('tree', 'k')", "SELECT tessera.shard_table('by_role', 'k')",
	"SELECT tessera.replicate_table('rate')",
	"SET client_min_messages = warning; SELECT tessera.move_range('item', tessera.minkey(), 5, 's2'), " .
	  "tessera.move_range('tree', tessera.minkey(), 8, 's3'), tessera.move_range('by_role', 1, 3, 's2')",
	"SELECT tessera.move_range('item', 5, 9, 's3')");

sub define
{
	my ($sql) = @_;
	$c->query('s2', $sql);
	$c->plain_query($sql);
}

define('ALTER TABLE child ADD FOREIGN KEY (k) REFERENCES item ON DELETE CASCADE');

# ---- all kinds, in their order ----

define(join '', map {
	my ($name, $when, $what) = @$_;
	"CREATE TRIGGER $name $when ON item $what EXECUTE FUNCTION tell('$name');" } (
	[ 'b_first', 'BEFORE INSERT OR UPDATE OR DELETE', 'FOR EACH ROW' ], [ 'b_second', 'BEFORE INSERT OR UPDATE OR DELETE', 'FOR EACH ROW' ],
	[ 'a_first', 'AFTER INSERT OR UPDATE OR DELETE', 'FOR EACH ROW' ], [ 'a_second', 'AFTER INSERT OR UPDATE OR DELETE', 'FOR EACH ROW' ],
	[ 's_before', 'BEFORE INSERT OR UPDATE OR DELETE', 'FOR EACH STATEMENT' ],
	[ 's_after', 'AFTER INSERT OR UPDATE OR DELETE', 'FOR EACH STATEMENT' ],
	[ 'of_note', 'AFTER UPDATE OF note', 'FOR EACH ROW' ],
	[ 'when_big', 'BEFORE UPDATE', 'FOR EACH ROW WHEN (NEW.v > 100 AND OLD.v IS DISTINCT FROM NEW.v)' ],
	[ 'when_top', 'AFTER INSERT', 'FOR EACH ROW WHEN (pg_trigger_depth() = 0)' ]));

same('one row', <<'SQL');
INSERT INTO item (k, v, note) VALUES (100, 7, 'new') RETURNING *;
UPDATE item SET v = v + 1 WHERE k = 3 RETURNING *;
UPDATE item SET note = note || '!', v = 1000 WHERE k = 7 RETURNING item, tableoid::regclass;
DELETE FROM item WHERE k = 12 RETURNING k, g, upper(note);
SELECT * FROM item ORDER BY k
SQL
same('no row', "UPDATE item SET v = 1 WHERE k = 5000; DELETE FROM item WHERE false; INSERT INTO item SELECT 1 WHERE false RETURNING k");
same('several rows', <<'SQL');
INSERT INTO item (k, v) VALUES (50, 1), (2000, 2), (7000, NULL);
INSERT INTO item (k, note) SELECT 300 + g, 'i' || g FROM (VALUES (2), (1)) x (g) ORDER BY g RETURNING k, at;
INSERT INTO item SELECT 400;
UPDATE item SET v = 0 WHERE k = ANY ('{50}') OR k = 2000 AND v > 1;
SELECT k, v, g FROM item WHERE k > 20 ORDER BY k
SQL
same('conflicts', <<'SQL');
INSERT INTO item (k, v) VALUES (1, 1), (500, 1), (6, 1) ON CONFLICT DO NOTHING RETURNING k;
INSERT INTO item (k, v) VALUES (6, 1) ON CONFLICT (k) DO NOTHING
SQL
same('conflicts that update', <<'SQL');
INSERT INTO item (k, v, note) VALUES (1, 5, 'x') ON CONFLICT (k) DO UPDATE SET v = item.v + excluded.v, note = excluded.note RETURNING *;
INSERT INTO item AS i (k, v) VALUES (600, 1), (3, 1), (11, 2), (3, 4) ON CONFLICT (k) DO UPDATE SET v = excluded.v * 10 WHERE i.k > 5 RETURNING k, v;
INSERT INTO item (k, v) VALUES (6, 1) ON CONFLICT ON CONSTRAINT item_pkey DO UPDATE SET at = DEFAULT;
PREPARE p (int, text) AS INSERT INTO item (k, note) VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET note = $2 || excluded.note || item.note;
EXECUTE p(7, 'p'); EXECUTE p(700, 'q'); DEALLOCATE p;
SAVEPOINT s; INSERT INTO item (k) VALUES (701), (701) ON CONFLICT (k) DO UPDATE SET v = 1; ROLLBACK TO s;
SELECT * FROM item ORDER BY k
SQL
same('a duplicate', "INSERT INTO item (k) VALUES (5)");
same('a missing value', "INSERT INTO item (k) VALUES (NULL)");
same('FROM and USING', <<'SQL');
UPDATE item SET note = x.n, v = item.v + length(x.n) FROM (VALUES (2, 'two'), (6, 'six'), (77, 'none')) x (k, n) WHERE x.k = item.k AND x.k < 4
  RETURNING item.k, x.n, v;
UPDATE item i SET v = (SELECT max(factor) FROM rate) WHERE k = 5 RETURNING *;
DELETE FROM item USING tree WHERE tree.k = item.k AND tree.parent = 5 AND tree.k = 10 RETURNING item.k, tree.parent;
UPDATE item SET v = 5 FROM generate_series(1, 3) g WHERE k = 9;
SQL
same('WITH', <<'SQL');
WITH d AS (DELETE FROM item WHERE k = 11 RETURNING k, v) SELECT * FROM d;
SET LOCAL client_min_messages = warning;
WITH d AS (DELETE FROM item WHERE k IN (4, 10) RETURNING k), i AS (INSERT INTO item (k) VALUES (1000), (-1), (4000) RETURNING k)
  SELECT (SELECT count(*) FROM item), (SELECT count(*) FROM d), (SELECT count(*) FROM i);
SET LOCAL client_min_messages = notice;
WITH x AS (SELECT 4 AS k) UPDATE item SET v = 1 FROM x WHERE item.k = x.k RETURNING item.k
SQL
same('prepared, and in functions', <<'SQL');
PREPARE p (int, int) AS UPDATE item SET v = $2 WHERE k = $1 RETURNING v;
EXECUTE p(1, 1); EXECUTE p(5, 2); EXECUTE p(9, 3); EXECUTE p(1, 4); EXECUTE p(6, 5); EXECUTE p(1, 6); EXECUTE p(77, 7);
DO $$ DECLARE n int; BEGIN UPDATE item SET v = 9 WHERE k = 2; GET DIAGNOSTICS n = ROW_COUNT; RAISE NOTICE 'rows %', n; END $$;
DEALLOCATE p
SQL
same('savepoints', <<'SQL');
SAVEPOINT a; UPDATE item SET v = 1 WHERE k = 2; ROLLBACK TO a; UPDATE item SET v = v + 1 WHERE k = 2 RETURNING v; RELEASE a;
SELECT v FROM item WHERE k = 2
SQL
same('COPY', <<'SQL');
COPY item (k, note) FROM STDIN;
70	from
3001	copy
\.
COPY item (note, k, v) FROM STDIN (FORMAT csv) WHERE k > 10;
low,9,1
high,71,2
\.
SQL
like(answer($c->conninfo('r1'), "COPY item (k) FROM STDIN;\n72\nnot a number\n\\.\n"), qr/invalid input syntax for type integer: "not a number"/,
	'an error in the input of COPY');
same('replica role', "SET session_replication_role = replica; UPDATE item SET v = 3 WHERE k = 2 RETURNING v", 'r1');

# ---- what only the client's session has ----

define(<<'SQL');
DROP TRIGGER b_first ON item; DROP TRIGGER b_second ON item; DROP TRIGGER a_first ON item; DROP TRIGGER a_second ON item;
DROP TRIGGER s_before ON item;
DROP TRIGGER s_after ON item; DROP TRIGGER of_note ON item; DROP TRIGGER when_big ON item; DROP TRIGGER when_top ON item;
CREATE FUNCTION work() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE f int;
BEGIN
  SELECT factor INTO f FROM scratch JOIN rate USING (code);
  NEW.v := NEW.v * coalesce(f, 1);
  INSERT INTO journal (what) VALUES (TG_OP || ' ' || NEW.k);
  INSERT INTO audit VALUES (NEW.k, 'seen') ON CONFLICT DO NOTHING;
  UPDATE rate SET factor = factor + 1 WHERE code = 'y';
  PERFORM set_config('test.last', NEW.k::text, false);
  SELECT count(*) INTO f FROM item;
  NEW.note := 'of ' || f;
  INSERT INTO seen VALUES (NEW.k);
  RETURN NEW;
END $$;
CREATE TRIGGER work BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION work();
SQL
same('temporary tables, settings, tables of all kinds', <<'SQL');
CREATE TEMP TABLE scratch (code text); CREATE TEMP TABLE seen (k int); INSERT INTO scratch VALUES ('x');
INSERT INTO item (k, v) VALUES (200, 1), (3000, 2), (-5, 3) RETURNING k, v, note;
UPDATE item SET v = 1 WHERE k BETWEEN 3 AND 6;
SELECT current_setting('test.last') IN ('3', '4', '5', '6'); SELECT * FROM seen ORDER BY k; SELECT k, v, note LIKE 'of %' FROM item ORDER BY k;
SELECT what FROM journal ORDER BY what; SELECT * FROM audit ORDER BY k; SELECT * FROM rate ORDER BY code
SQL
same('an error in it', "UPDATE item SET v = 1 WHERE k = 3");

# ---- rows suppressed and changed; what a trigger does to the statement's own rows ----

define(<<'SQL');
DROP TRIGGER work ON item;
CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM rate;
  IF TG_OP = 'DELETE' THEN
    IF OLD.k % 2 = 1 THEN RETURN NULL; END IF;
    RETURN OLD;
  END IF;
  IF NEW.k % 2 = 1 THEN RETURN NULL; END IF;
  NEW.note := 'changed';
  NEW.k := NEW.k + 0;
  RETURN NEW;
END $$;
CREATE TRIGGER odd BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION odd();
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH STATEMENT EXECUTE FUNCTION tell('s');
CREATE FUNCTION clash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE tree SET depth = depth + 1 WHERE k = NEW.k; RETURN NEW; END $$;
CREATE FUNCTION walk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF pg_trigger_depth() < 20 THEN UPDATE tree SET depth = NEW.depth + 1 WHERE parent = NEW.k AND k <> parent; END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER walk AFTER UPDATE ON tree FOR EACH ROW EXECUTE FUNCTION walk();
SQL
same('rows suppressed and changed', <<'SQL');
INSERT INTO item (k) VALUES (201), (202) RETURNING *;
UPDATE item SET v = -1 WHERE k < 8;
DELETE FROM item WHERE k > 9;
SELECT * FROM item ORDER BY k
SQL
same('recursion', 'UPDATE tree SET depth = 1 WHERE k = 1; SELECT * FROM tree ORDER BY k');
define('CREATE TRIGGER clash BEFORE UPDATE ON tree FOR EACH ROW WHEN (NEW.depth < 0) EXECUTE FUNCTION clash()');
same('a BEFORE trigger that changes the row itself', 'UPDATE tree SET depth = -10 WHERE k = 3');

# ---- transition tables ----

define(<<'SQL');
DROP TRIGGER odd ON item; DROP TRIGGER tell ON item;
CREATE FUNCTION sums() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
  IF TG_OP <> 'INSERT' THEN SELECT count(*), sum(v), min(k), max(k) INTO r FROM old_rows; RAISE NOTICE 'old %', r; END IF;
  IF TG_OP <> 'DELETE' THEN SELECT count(*), sum(v), sum(g), min(k), max(k) INTO r FROM new_rows; RAISE NOTICE 'new %', r; END IF;
  IF TG_OP = 'UPDATE' THEN
    INSERT INTO audit SELECT n.k, o.v || ' to ' || n.v FROM old_rows o JOIN new_rows n USING (k);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER i_sums AFTER INSERT ON item REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sums();
CREATE TRIGGER u_sums AFTER UPDATE ON item REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sums();
CREATE TRIGGER d_sums AFTER DELETE ON item REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION sums();
SQL
same('transition tables over all shards', <<'SQL');
COPY item (k, v) FROM STDIN;
150	1
5000	2
\.
INSERT INTO item (k, v) SELECT g * 100, g FROM generate_series(1, 20) g;
UPDATE item SET v = v + 1;
INSERT INTO item (k, v) SELECT g, g FROM generate_series(7, 14) g ON CONFLICT (k) DO UPDATE SET v = item.v - excluded.v;
SAVEPOINT s; INSERT INTO item (k) VALUES (9001), (9001) ON CONFLICT (k) DO UPDATE SET v = 1; ROLLBACK TO s;
DELETE FROM item WHERE k % 3 = 0;
SELECT * FROM audit ORDER BY k, what;
SELECT count(*) FROM child
SQL

# ---- columns of other kinds ----

define(<<'SQL');
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON gap FOR EACH ROW EXECUTE FUNCTION tell('gap');
CREATE TRIGGER tell_before BEFORE INSERT OR UPDATE ON gap FOR EACH ROW EXECUTE FUNCTION tell('gap');
SQL
same('dropped and generated columns, arrays, lengths', <<'SQL');
INSERT INTO gap (k, id, name, n) OVERRIDING SYSTEM VALUE VALUES (20, 1, 'x', 1.005) RETURNING k, name, n, gap;
UPDATE gap SET name = name || '+', n = n / 3, a[2] = 77 WHERE k = 3 RETURNING *;
SAVEPOINT s;
UPDATE gap SET name = 'much too long a name' WHERE k = 3;
ROLLBACK TO s;
UPDATE gap SET a = DEFAULT, name = DEFAULT WHERE k = 4 RETURNING k, a, name;
DELETE FROM gap WHERE k = 5 RETURNING gap.*
SQL

define(<<'SQL');
CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN short AS varchar(4) CHECK (VALUE <> 'bad'); CREATE TYPE pair AS (a int, b text);
CREATE TABLE kinds (k int PRIMARY KEY, m mood, s short, p pair, ms mood[], j jsonb, b bytea, t timestamptz, r regclass, c "char", x xml);
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON kinds FOR EACH ROW EXECUTE FUNCTION tell('kinds');
CREATE TRIGGER tell_before BEFORE INSERT OR UPDATE OR DELETE ON kinds FOR EACH ROW EXECUTE FUNCTION tell('kinds');
SQL
$c->query('s1', "SELECT tessera.shard_table('kinds', 'k', 'hash', chunks => 6)");
same('types', <<'SQL');
INSERT INTO kinds SELECT g, 'ok', 'abc', ROW(g, 'x"y'), '{sad,ok}', '{"a": 1}', '\x00ff', '2026-01-01 10:00+02', 'rate', 'q', '<a/>'
  FROM generate_series(1, 4) g;
INSERT INTO kinds (k) VALUES (5) RETURNING kinds;
UPDATE kinds SET m = 'sad', p.b = 'changed', ms[1] = 'ok', j = j || '{"b": null}', s = 'it''s' WHERE k IN (2, 5) RETURNING *;
SAVEPOINT s; UPDATE kinds SET s = 'bad' WHERE k = 1; ROLLBACK TO s;
DELETE FROM kinds WHERE k = 3 RETURNING p, (p).b, m
SQL

# ---- cascades, and who runs a statement in parts ----

define(<<'SQL');
DROP TRIGGER i_sums ON item; DROP TRIGGER u_sums ON item; DROP TRIGGER d_sums ON item;
CREATE TRIGGER tell AFTER DELETE ON item FOR EACH ROW EXECUTE FUNCTION tell('item');
CREATE FUNCTION few() RETURNS int LANGUAGE plpgsql AS $$
DECLARE r record; n int := 0;
BEGIN
  FOR r IN UPDATE gap SET n = n + 1 WHERE k < 4 RETURNING k LOOP n := n + r.k; EXIT; END LOOP;
  WITH x AS (DELETE FROM gap WHERE k = 4 RETURNING k) UPDATE gap SET n = 0 FROM x WHERE gap.k = x.k + 1 RETURNING gap.k INTO n;
  RETURN n;
END $$;
SQL
same('in functions', 'SELECT few(); SELECT k, n FROM gap ORDER BY k');
define(<<'SQL');
CREATE FUNCTION log_child() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit VALUES (OLD.k, 'child'); RETURN NULL; END $$;
CREATE TRIGGER log_child AFTER DELETE ON child FOR EACH ROW WHEN (OLD.k < 0) EXECUTE FUNCTION log_child();
SQL
same('cascades', 'DELETE FROM item WHERE k = 2; DELETE FROM item WHERE k = 6; DELETE FROM item WHERE k > 11; SELECT * FROM child ORDER BY k; ' .
  'SELECT count(*) FROM audit');

# ---- whose rights ----

define(<<'SQL');
CREATE ROLE only_writes; CREATE ROLE definer;
GRANT INSERT, UPDATE (who) ON by_role TO only_writes; GRANT SELECT (k) ON by_role TO only_writes; GRANT INSERT, SELECT ON audit TO definer;
CREATE FUNCTION definer_f() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN INSERT INTO audit VALUES (NEW.k, 'by ' || current_user) ON CONFLICT DO NOTHING; RETURN NULL; END $$;
CREATE FUNCTION invoker_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM say(current_user); RETURN NEW; END $$;
ALTER FUNCTION definer_f() OWNER TO definer;
CREATE TRIGGER a BEFORE INSERT OR UPDATE ON by_role FOR EACH ROW EXECUTE FUNCTION invoker_f();
CREATE TRIGGER b AFTER INSERT OR UPDATE ON by_role FOR EACH ROW EXECUTE FUNCTION definer_f();
SQL
same('rights', <<'SQL');
SET ROLE only_writes;
INSERT INTO by_role VALUES (100, 'x');
UPDATE by_role SET who = 'y' WHERE k = 2;
UPDATE by_role SET who = 'z';
INSERT INTO by_role VALUES (3, 'q'), (300, 'r') ON CONFLICT (k) DO UPDATE SET who = 'was ' || excluded.who;
SAVEPOINT s;
INSERT INTO by_role VALUES (101, 'x') RETURNING who;
ROLLBACK TO s; UPDATE by_role SET who = 'a' WHERE who = 'y';
ROLLBACK TO s; DELETE FROM by_role;
ROLLBACK TO s; RESET ROLE; SELECT * FROM audit ORDER BY k; SELECT * FROM by_role ORDER BY k
SQL

# What is looked up of a function once, its owner and its settings, serves all rows of the statement.
define(<<'SQL');
CREATE FUNCTION owner_writes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET work_mem = '1MB' AS $$
BEGIN INSERT INTO audit VALUES (NEW.k, current_user || current_setting('work_mem')); NEW.who := NEW.who || '!'; RETURN NEW; END $$;
ALTER FUNCTION owner_writes() OWNER TO definer;
ALTER TABLE by_role DISABLE TRIGGER b;
CREATE TRIGGER c BEFORE INSERT OR UPDATE ON by_role FOR EACH ROW WHEN (NEW.k > 0) EXECUTE FUNCTION owner_writes();
SQL
same('an owner for many rows', <<'SQL');
DELETE FROM audit; SET ROLE only_writes;
UPDATE by_role SET who = 'all';
INSERT INTO by_role SELECT g, 'new' FROM generate_series(400, 430) g;
RESET ROLE; SELECT * FROM audit ORDER BY k; SELECT * FROM by_role ORDER BY k; SHOW work_mem
SQL

# ---- where they fire ----

like($c->query('r1', 'EXPLAIN (COSTS OFF) DELETE FROM item WHERE k = 1'), qr/Tier: triggers on the router/, 'EXPLAIN shows it');
like($c->query('r1', 'BEGIN; EXPLAIN (ANALYZE, VERBOSE, COSTS OFF) DELETE FROM item WHERE k = 1 RETURNING k; ROLLBACK'), qr/Trigger tell: .*calls=1/,
	'EXPLAIN ANALYZE counts calls');
define(<<'SQL');
CREATE TABLE plain_trigger (k int PRIMARY KEY, v int, note text);
CREATE FUNCTION only_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF NEW.v < 0 THEN RAISE EXCEPTION 'negative'; END IF; NEW.note := upper(NEW.note) || lpad(NEW.k::text, 3); RETURN NEW; END $$;
CREATE TRIGGER only_new BEFORE INSERT OR UPDATE ON plain_trigger FOR EACH ROW EXECUTE FUNCTION only_new();
SQL
$c->query('s1', "SELECT tessera.shard_table('plain_trigger', 'k', 'hash', chunks => 6)");
my $update = 'EXPLAIN (COSTS OFF) UPDATE plain_trigger SET v = 1';
unlike($c->query('r1', $update), qr/on the router/, 'what touches NEW alone stays on the shard');
same('on the shard', "INSERT INTO plain_trigger VALUES (1, 1, 'a'); UPDATE plain_trigger SET v = 2 RETURNING *; UPDATE plain_trigger SET v = -1");
$c->query('s2', "ALTER FUNCTION only_new() SET tessera.trigger_place = 'router'");
like($c->query('r1', $update), qr/on the router/, 'a function may ask for the router');
$c->query('s2', "ALTER FUNCTION only_new() SET tessera.trigger_place = 'shard'");
unlike($c->query('r1', $update), qr/on the router/, 'or for the shard');
$c->query('s2', 'ALTER FUNCTION only_new() RESET tessera.trigger_place');
my $session = $c->session('r1');
$session->query('PREPARE p AS UPDATE plain_trigger SET v = 1');
unlike($session->query('EXPLAIN EXECUTE p'), qr/on the router/, 'a prepared statement');
$c->query('s2', "CREATE OR REPLACE FUNCTION only_new() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN PERFORM say('x'); RETURN NEW; END \$\$");
like($session->query('EXPLAIN EXECUTE p'), qr/on the router/, 'is planned again when the function changes');
$session->quit;

done_testing();
