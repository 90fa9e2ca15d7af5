# Statements whose one shard is this node: the local plan runs in the place of the routed one. What could go wrong with that: the plan goes out of the
# cache while it runs, functions that call themselves, errors in the middle, subtransactions and cursors around it, another role or search_path, DDL
# between two executions, what EXPLAIN and the statistics say. Rows and SQLSTATEs are those of a plain server, from the node that has the rows and
# from the other one.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('local', settings => { shared_preload_libraries => 'tessera,pg_stat_statements', compute_query_id => 'on' });

my $roles = 'CREATE ROLE reader; CREATE ROLE writer';
my $schema = <<'SQL';
CREATE SCHEMA other;
CREATE TABLE t (k int NOT NULL, id int NOT NULL, v text, n int NOT NULL DEFAULT 0, PRIMARY KEY (k, id));
CREATE TABLE other.t (k int NOT NULL, id int NOT NULL, v text, PRIMARY KEY (k, id));
CREATE TABLE d (k int NOT NULL, v text, PRIMARY KEY (k));
CREATE TABLE rls (k int NOT NULL, id int NOT NULL, owner text, PRIMARY KEY (k, id));
CREATE TABLE changes (k int NOT NULL, id serial, what text, PRIMARY KEY (k, id));
ALTER TABLE rls ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON rls USING (owner = current_user);
GRANT USAGE ON SCHEMA other TO reader, writer;
GRANT SELECT ON t, rls TO reader;
GRANT ALL ON t, rls TO writer;
CREATE VIEW low AS SELECT k, id, v FROM t WHERE id < 3;
GRANT SELECT ON low TO reader, writer;
CREATE VIEW others AS SELECT k, id, v FROM other.t;
GRANT SELECT ON others TO reader;
CREATE FUNCTION loops(depth int, key int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE r record; s bigint := 0;
BEGIN
	FOR r IN SELECT id FROM t WHERE k = key LOOP
		s := s + r.id;
		IF depth > 0 AND r.id = 2 THEN s := s + loops(depth - 1, key + 1); END IF;
	END LOOP;
	RETURN s;
END $$;
CREATE FUNCTION many_texts(key int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE s bigint := 0; x int;
BEGIN
	FOR i IN 1 .. 600 LOOP
		EXECUTE format('SELECT id + %s FROM t WHERE k = %s AND id = 1', i, key) INTO x;
		s := s + x;
	END LOOP;
	RETURN s;
END $$;
CREATE FUNCTION fails(key int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint := 0; x int;
BEGIN
	FOR i IN 1 .. 100 LOOP
		BEGIN
			SELECT sum(1 / (id - 3)) INTO x FROM t WHERE k = key;
		EXCEPTION WHEN division_by_zero THEN n := n + 1;
		END;
		SELECT id INTO x FROM t WHERE k = key AND id = 2;
		n := n + x;
	END LOOP;
	RETURN n;
END $$;
CREATE FUNCTION counts(key int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE a bigint; b bigint; c text; f boolean;
BEGIN
	UPDATE t SET n = n + 1 WHERE k = key; GET DIAGNOSTICS a = ROW_COUNT;
	DELETE FROM t WHERE k = key AND id = -1; GET DIAGNOSTICS b = ROW_COUNT; f := FOUND;
	UPDATE t SET n = n + 1 WHERE k = key AND id = 1 RETURNING v || n INTO c;
	RETURN a || ' ' || b || ' ' || f || ' ' || c;
END $$;
CREATE FUNCTION two(int) RETURNS int LANGUAGE sql AS 'UPDATE t SET n = n + 1 WHERE k = $1; SELECT max(n) FROM t WHERE k = $1';
CREATE PROCEDURE commits(key int) LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
	FOR r IN SELECT id FROM t WHERE k = key ORDER BY id LOOP
		UPDATE t SET n = 10 * r.id WHERE k = key AND id = r.id;
		IF r.id = 4 THEN ROLLBACK; ELSE COMMIT; END IF;
	END LOOP;
END $$;
CREATE FUNCTION rows_of(int) RETURNS SETOF t LANGUAGE sql AS 'SELECT * FROM t WHERE k = $1';
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO changes (k, what) SELECT new.k, count(*) || ' ' || new.v FROM d WHERE k = new.k;
	IF new.v = 'bad' THEN RAISE EXCEPTION 'bad'; END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON d FOR EACH ROW EXECUTE FUNCTION note();
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO reader, writer;
INSERT INTO t SELECT k, id, 'v' || k || '-' || id FROM generate_series(1, 20) k, generate_series(1, 5) id;
INSERT INTO other.t SELECT k, id, 'other' FROM generate_series(1, 20) k, generate_series(1, 2) id;
INSERT INTO rls SELECT k, id, CASE WHEN id % 2 = 0 THEN 'reader' ELSE 'writer' END FROM generate_series(1, 20) k, generate_series(1, 5) id;
SQL

# Keys below 11 are on s1, the others on s2: each with %s standing for a key on either.
my @with_key = (
	# the plan leaves the cache while it runs
	q{BEGIN; DECLARE c CURSOR FOR SELECT id, v FROM t WHERE k = %s ORDER BY id; FETCH 1 FROM c; DISCARD PLANS; FETCH 1 FROM c; SELECT } .
		q{many_texts(%s); FETCH 1 FROM c; CREATE TEMP TABLE x (a int); FETCH ALL FROM c; COMMIT},
	q{PREPARE p (int) AS SELECT id FROM t WHERE k = $1 ORDER BY id; EXECUTE p(%s); SELECT many_texts(%s); EXECUTE p(%s); } .
	q{DISCARD PLANS; EXECUTE p(%s)},
	# functions
	q{SELECT loops(6, %s)},
	q{SELECT fails(%s); SELECT count(*) FROM t WHERE k = %s},
	q{SELECT counts(%s)},
	q{SELECT two(%s), two(%s)},
	q{CALL commits(%s); SELECT id, n FROM t WHERE k = %s ORDER BY id},
	q{SELECT id, v FROM rows_of(%s) WHERE id > 2},
	q{DO $x$ DECLARE c refcursor; r record; n int := 0; BEGIN OPEN c FOR SELECT id FROM t WHERE k = %s ORDER BY id; FETCH c INTO r; BEGIN PERFORM } .
	q{1 / (id - 3) FROM t WHERE k = %s; EXCEPTION WHEN division_by_zero THEN n := 1; END; FETCH c INTO r; RAISE EXCEPTION USING errcode = 'Z00' } .
	q{|| n || r.id; END $x$},
	q{DO $x$ DECLARE key text := '%s'; m int; BEGIN SELECT max(id) INTO m FROM t WHERE k = key::int AND v = 'v' || key || '-4'; RAISE EXCEPTION } .
	q{USING errcode = 'Z000' || m; END $x$},
	# subtransactions and cursors
	q{BEGIN; DECLARE c CURSOR FOR SELECT id FROM t WHERE k = %s ORDER BY id; FETCH 1 FROM c; SAVEPOINT s; FETCH 1 FROM c; SELECT 1 / (id - 3) } .
		q{FROM t WHERE k = %s; ROLLBACK TO s; FETCH ALL FROM c; COMMIT},
	q{BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR SELECT id FROM t WHERE k = %s ORDER BY id; FETCH 1 FROM c; RELEASE s; FETCH ALL FROM c; COMMIT},
	q{BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR SELECT id FROM t WHERE k = %s ORDER BY id; FETCH 1 FROM c; ROLLBACK TO s; FETCH 1 FROM c; } .
	q{ROLLBACK; SELECT count(*) FROM t WHERE k = %s},
	q{BEGIN; DECLARE c CURSOR FOR SELECT 1 / (id - 3) FROM t WHERE k = %s ORDER BY id; SAVEPOINT s; FETCH ALL FROM c; ROLLBACK TO s; FETCH 1 FROM } .
	q{c; ROLLBACK; SELECT count(*) FROM t WHERE k = %s},
	q{BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT id, v FROM t WHERE k = %s ORDER BY id; FETCH 1 FROM c; UPDATE t SET v = v || '!' WHERE k = %s; } .
	q{COMMIT; FETCH ALL FROM c; UPDATE t SET v = rtrim(v, '!') WHERE k = %s},
	q{BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id FROM t WHERE k = %s ORDER BY id; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c; FETCH LAST FROM c; } .
	q{COMMIT},
	q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t WHERE k = %s; UPDATE t SET n = 0 WHERE k = %s; SELECT sum(n) FROM t WHERE k = } .
	q{%s; COMMIT},
	q{BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM t WHERE k = %s; UPDATE t SET n = 1 WHERE k = %s; COMMIT; SELECT sum(n) FROM t } .
	q{WHERE k = %s},
	q{BEGIN READ ONLY; UPDATE t SET n = 0 WHERE k = %s; ROLLBACK},
	q{BEGIN; UPDATE t SET n = 50 WHERE k = %s; SAVEPOINT s; UPDATE t SET n = 60 WHERE k = %s; ROLLBACK TO s; SELECT id, n FROM t WHERE k = %s } .
	q{ORDER BY id; ROLLBACK},
	q{BEGIN; DECLARE c CURSOR FOR SELECT id, n FROM t WHERE k = %s ORDER BY id; UPDATE t SET n = n + 100 WHERE k = %s; FETCH ALL FROM c; ROLLBACK},
	q{BEGIN; DECLARE c CURSOR FOR SELECT id FROM t WHERE k = %s ORDER BY id; FETCH 1 FROM c; ALTER TABLE t ADD COLUMN z int; ROLLBACK},
	# triggers, conflicts
	q{INSERT INTO d VALUES (%s, 'new') RETURNING v; UPDATE d SET v = 'bad' WHERE k = %s; UPDATE d SET v = 'good' WHERE k = %s RETURNING v; SELECT } .
		q{what FROM changes WHERE k = %s ORDER BY what; DELETE FROM d WHERE k = %s; DELETE FROM changes WHERE k = %s},
	q{INSERT INTO t (k, id) VALUES (%s, 1); INSERT INTO t (k, id) VALUES (%s, 1) ON CONFLICT DO NOTHING; INSERT INTO t (k, id) VALUES (%s, 1) ON } .
	q{CONFLICT (k, id) DO UPDATE SET n = t.n RETURNING id, v},
	# values
	q{PREPARE p (int8) AS SELECT count(*) FROM t WHERE k = $1; EXECUTE p(%s); EXECUTE p(NULL); EXECUTE p(99999999999); EXECUTE p(-1)},
	q{PREPARE p (int, text) AS SELECT id, $2 || v FROM t WHERE k = $1 AND v > $2 ORDER BY id; EXECUTE p(%s, 'a'); EXECUTE p(%s, repeat('b', 3)); } .
	q{EXECUTE p(%s, NULL)},
	q{PREPARE p (int) AS UPDATE t SET n = $1 WHERE k = %s AND id = 2 RETURNING n; EXECUTE p(1); EXECUTE p(2); EXECUTE p(3); EXECUTE p(4); EXECUTE } .
	q{p(5); EXECUTE p(6); EXECUTE p(NULL)},
	# names and types of what comes back
	"\\t off\n" . q{SELECT id AS "Id", v::varchar(3) AS c, 'x', NULL, n + 1, upper(v) FROM t WHERE k = %s AND id = 1},
	q{SELECT id AS "Id", v::varchar(3) AS c, 'x', NULL, n + 1, upper(v), n::numeric(8,2), ROW(id, v) IS NULL FROM t WHERE k = %s \gdesc},
	q{CREATE TEMP TABLE x AS SELECT id AS "Id", v::varchar(3) AS c, 1 AS one FROM t WHERE k = %s; SELECT attname, atttypid::regtype, atttypmod } .
	q{FROM pg_attribute WHERE attrelid = 'x'::regclass AND attnum > 0 ORDER BY attnum},
	# roles and paths
	q{PREPARE p AS SELECT count(*) FROM t WHERE k = %s; EXECUTE p; SET search_path = other; EXECUTE p; SET search_path = public; EXECUTE p},
	q{PREPARE p AS SELECT count(*) FROM other.t WHERE k = %s; EXECUTE p; SET ROLE reader; EXECUTE p; SELECT count(*) FROM others WHERE k = %s; } .
	q{RESET ROLE; EXECUTE p},
	q{PREPARE p AS SELECT id FROM rls WHERE k = %s ORDER BY id; EXECUTE p; SET ROLE reader; EXECUTE p; SET ROLE writer; EXECUTE p; SELECT } .
	q{count(*) FROM low WHERE k = %s},
	q{SET ROLE reader; UPDATE t SET n = 1 WHERE k = %s; SELECT count(*) FROM t WHERE k = %s FOR UPDATE; SELECT count(*) FROM low WHERE k = %s},
	# DDL between two executions
	q{INSERT INTO d VALUES (%s, 'ddl'); PREPARE p AS SELECT * FROM d WHERE k = %s; PREPARE q AS SELECT v FROM d WHERE k = %s; EXECUTE p; EXECUTE } .
		q{q; ALTER TABLE d ADD COLUMN x int DEFAULT 7; EXECUTE p; EXECUTE q; ALTER TABLE d RENAME COLUMN v TO w; EXECUTE q; SELECT w, x FROM d } .
		q{WHERE k = %s; ALTER TABLE d RENAME COLUMN w TO v; EXECUTE q; ALTER TABLE d DROP COLUMN x; EXECUTE p; DELETE FROM d WHERE k = %s; DELETE } .
		q{FROM changes WHERE k = %s},
);
my @script = map { my $sql = $_; ($sql =~ s/%s/4/gr, $sql =~ s/%s/14/gr) } @with_key;
push @script, q{SELECT loops(12, 5)}, q{SELECT sum(loops(1, g)) FROM generate_series(1, 20) g}, q{SELECT count(*) FROM t WHERE k = 4 OR k = 14};

$c->start_nodes('s1', 's2');
$c->query($_, "$roles; CREATE EXTENSION pg_stat_statements") foreach 's1', 's2';
$c->create(shards => 2);
$c->query('s1', $schema);
foreach my $table (qw(t other.t d rls changes))
{
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.move_range('$table', 11, tessera.maxkey(), 's2')");
}
$c->plain_query("$roles; $schema");

is($c->script_differs($_, \@script), 0, "from $_: as on a plain server") foreach $c->names;

# EXPLAIN shows how the statement is routed, also when it runs it.
like($c->query('s1', "EXPLAIN ($_ COSTS OFF, VERBOSE) SELECT v FROM t WHERE k = 4"), qr/Tier: T1.*Shards?.*s1/s, "EXPLAIN $_") foreach '',
	'ANALYZE, TIMING OFF, SUMMARY OFF,';

# The statistics know a statement by its own text, wherever it ran.
$c->query('s1', 'SELECT pg_stat_statements_reset()');
$c->query('s1', "SELECT v FROM t WHERE k = $_ AND id = 1") foreach 3, 4, 13, 14;
is($c->query('s1', "SELECT calls FROM pg_stat_statements WHERE query = 'SELECT v FROM t WHERE k = \$1 AND id = \$2'"), '4',
	'statistics of the statement');

# A statement that was answered here goes to the other shard when its range does, and comes back with it.
my $session = $c->session('s1');
$session->query('PREPARE p (int) AS SELECT count(*) FROM t WHERE k = $1; PREPARE u (int) AS UPDATE t SET n = 77 WHERE k = $1 AND id = 1');
$session->query('EXECUTE p(4); EXECUTE u(4)') foreach 1 .. 7;
foreach my $to ('s2', 's1')
{
	$c->query('s1', "SELECT tessera.move_range('t', 1, 11, '$to')");
	$c->query($to, 'UPDATE t SET n = 0 WHERE k = 4');
	is($session->query('EXECUTE p(4)'), '5', "read after the move to $to");
	$session->query('EXECUTE u(4)');
	is($c->query($to, 'SELECT n FROM t WHERE k = 4 AND id = 1'), '77', "written after the move to $to");
}
$session->quit;

foreach my $name ($c->names)
{
	unlike(slurp_file($c->node($name)->logfile), qr/leak|TRAP|PANIC/, "$name: nothing leaks");
}

done_testing();
