# Who may do what, and whose code runs as whom (doc/architecture.md "Whose code runs as whom"): roles, membership, column rights, views of every kind,
# row security, definer functions, materialized views, triggers, sequences, schemas, grants. Some hundreds of cases, made of tables of data, run on a
# plain server, through a node that owns a part and through one that owns nothing; each answers rows or an SQLSTATE, and none may differ. Attempts to
# run one's own code as somebody else are among them:
# a function that finds itself run by another role raises, and says so.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('permissions');

# anna owns the data, bob uses them, carl is of group staff and inherits, dora is and does not, mal attacks, eve has nothing, bypass passes row
# security, owner2 owns views over anna's views, root is a superuser (not the bootstrap one).
my $roles = <<'SQL';
CREATE ROLE staff; CREATE ROLE anna LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE carl LOGIN IN ROLE staff;
CREATE ROLE dora LOGIN NOINHERIT IN ROLE staff;
CREATE ROLE mal LOGIN; CREATE ROLE eve LOGIN; CREATE ROLE bypass LOGIN BYPASSRLS; CREATE ROLE owner2 LOGIN; CREATE ROLE root LOGIN SUPERUSER;
SQL

my $schema = <<'SQL';
CREATE SCHEMA d AUTHORIZATION anna;
CREATE SCHEMA hidden AUTHORIZATION anna;
CREATE SCHEMA m AUTHORIZATION mal;
GRANT USAGE ON SCHEMA d TO PUBLIC;
GRANT USAGE ON SCHEMA m TO PUBLIC;
GRANT CREATE ON SCHEMA d TO owner2, root;
SET ROLE anna;
CREATE TABLE d.t (k int PRIMARY KEY, who text, v int, secret text);
CREATE TABLE d.u (k int PRIMARY KEY, note text);
CREATE TABLE d.cols (k int PRIMARY KEY, a int, b int, c int);
CREATE TABLE d.r (k int PRIMARY KEY, who text, v int);
CREATE TABLE d.f (k int PRIMARY KEY, who text, v int);
CREATE TABLE d.place (id int PRIMARY KEY, name text);
CREATE TABLE d.log (k int, who text);
CREATE TABLE hidden.h (k int PRIMARY KEY, v int);
SQL

my @sharded = qw(d.t d.u d.cols d.r d.f hidden.h);

my $rights = <<'SQL';
SET ROLE anna;
INSERT INTO d.t SELECT g, CASE WHEN g % 3 = 0 THEN 'mal' WHEN g % 3 = 1 THEN 'bob' ELSE 'anna' END, g * 10, 's' || g FROM generate_series(1, 12) g;
INSERT INTO d.u SELECT g, 'n' || g FROM generate_series(1, 12) g;
INSERT INTO d.cols SELECT g, g, g, g FROM generate_series(1, 12) g;
INSERT INTO d.r SELECT g, CASE WHEN g % 3 = 0 THEN 'mal' WHEN g % 3 = 1 THEN 'bob' ELSE 'anna' END, g FROM generate_series(1, 12) g;
INSERT INTO d.f SELECT g, CASE WHEN g % 3 = 0 THEN 'mal' WHEN g % 3 = 1 THEN 'bob' ELSE 'anna' END, g FROM generate_series(1, 12) g;
INSERT INTO d.place VALUES (1, 'one'), (2, 'two');
INSERT INTO hidden.h SELECT g, g FROM generate_series(1, 12) g;
GRANT SELECT, INSERT ON d.t TO bob;
GRANT ALL ON d.t TO staff;
GRANT SELECT ON d.u TO mal, bob; GRANT UPDATE ON d.u TO bob;
GRANT SELECT (k, a), UPDATE (b), INSERT (k, a) ON d.cols TO bob;
GRANT SELECT (k, b), UPDATE (a, b) ON d.cols TO carl; GRANT DELETE ON d.cols TO carl; GRANT REFERENCES (k) ON d.cols TO dora;
GRANT SELECT ON d.cols TO bypass; GRANT UPDATE (c) ON d.cols TO bypass;
GRANT SELECT ON d.place TO bob, mal; GRANT SELECT (id), UPDATE (name) ON d.place TO carl;
GRANT ALL ON d.log TO PUBLIC;
GRANT ALL ON hidden.h TO bob;
GRANT ALL ON d.r TO bob, mal, bypass, staff, owner2; GRANT ALL ON d.f TO bob, mal, bypass, staff;
ALTER TABLE d.r ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON d.r USING (who = current_user);
CREATE POLICY more ON d.r FOR SELECT TO staff USING (v > 6);
CREATE POLICY add ON d.r FOR INSERT TO staff WITH CHECK (v > 100);
CREATE POLICY cap ON d.r AS RESTRICTIVE FOR UPDATE TO staff USING (v < 12) WITH CHECK (v < 50);
CREATE POLICY two ON d.r FOR SELECT TO owner2 USING (v < 5);
ALTER TABLE d.f ENABLE ROW LEVEL SECURITY; ALTER TABLE d.f FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON d.f USING (who = current_user) WITH CHECK (who = current_user AND v < 1000);
CREATE POLICY del ON d.f FOR DELETE TO anna USING (v = 2);
CREATE VIEW d.v_plain AS SELECT k, who, v FROM d.t;
CREATE VIEW d.v_where AS SELECT k, who, v FROM d.t WHERE who = current_user;
CREATE VIEW d.v_barrier WITH (security_barrier) AS SELECT k, who, v FROM d.t WHERE who = current_user;
CREATE VIEW d.v_invoker WITH (security_invoker) AS SELECT k, who, v FROM d.t;
CREATE VIEW d.v_agg AS SELECT who, count(*) AS n, min(k) AS k, sum(v) AS v FROM d.t GROUP BY who;
CREATE VIEW d.v_self AS SELECT a.k, a.who, b.v FROM d.t a JOIN d.t b ON a.v = b.v;
CREATE VIEW d.v_join AS SELECT t.k, t.who, t.v, u.note FROM d.t JOIN d.u ON u.note = 'n' || t.k;
CREATE VIEW d.v_place AS SELECT t.k, p.name AS who, t.v FROM d.t JOIN d.place p ON p.id = t.k;
CREATE VIEW d.v_r AS SELECT * FROM d.r;
CREATE VIEW d.v_f AS SELECT * FROM d.f;
CREATE VIEW d.v_r_invoker WITH (security_invoker) AS SELECT * FROM d.r;
CREATE VIEW d.v_hidden AS SELECT k, 'h' AS who, v FROM hidden.h;
CREATE VIEW d.v_union AS SELECT k, who, v FROM d.t UNION ALL SELECT k, note, 0 FROM d.u;
CREATE VIEW d.v_check WITH (security_barrier) AS SELECT k, who, v FROM d.t WHERE v < 100 WITH CHECK OPTION;
CREATE VIEW d.v_none AS SELECT k, who, v FROM d.t;
GRANT ALL ON d.v_plain, d.v_where, d.v_barrier, d.v_invoker, d.v_agg, d.v_self, d.v_join, d.v_place, d.v_r, d.v_f, d.v_r_invoker, d.v_hidden,
  d.v_union, d.v_check
  TO mal, bob, owner2;
GRANT SELECT ON d.v_plain, d.v_r, d.v_barrier TO staff;
SET ROLE owner2;
CREATE VIEW d.w_nested AS SELECT k, who, v FROM d.v_plain;
CREATE VIEW d.w_barrier WITH (security_barrier) AS SELECT k, who, v FROM d.v_barrier WHERE v > 30;
CREATE VIEW d.w_invoker WITH (security_invoker) AS SELECT k, who, v FROM d.v_plain;
CREATE VIEW d.w_of_invoker AS SELECT k, who, v FROM d.v_invoker;
CREATE VIEW d.w_r AS SELECT k, who, v FROM d.r;
CREATE VIEW d.w_v_r AS SELECT k, who, v FROM d.v_r;
CREATE VIEW d.w_r_invoker AS SELECT k, who, v FROM d.v_r_invoker;
CREATE VIEW d.w_mixed AS SELECT a.k, a.who, b.v FROM d.v_plain a JOIN d.r b ON b.v = a.k;
GRANT ALL ON d.w_nested, d.w_barrier, d.w_invoker, d.w_of_invoker, d.w_r, d.w_v_r, d.w_r_invoker, d.w_mixed TO mal, bob, carl;
SET ROLE root;
CREATE VIEW d.x_root AS SELECT k, who, v FROM d.t;
CREATE VIEW d.x_hidden AS SELECT k, 'x'::text AS who, v FROM hidden.h;
CREATE VIEW d.x_r AS SELECT k, who, v FROM d.r;
CREATE VIEW d.x_agg AS SELECT who, min(k) AS k, sum(v) AS v FROM d.t GROUP BY who;
CREATE VIEW d.x_self AS SELECT a.k, a.who, b.v FROM d.t a JOIN d.t b ON a.v = b.v;
CREATE VIEW d.x_barrier WITH (security_barrier) AS SELECT k, who, v FROM d.t WHERE who = current_user;
GRANT ALL ON d.x_root, d.x_hidden, d.x_r, d.x_agg, d.x_self, d.x_barrier TO mal, bob;
RESET ROLE;
SQL

# The attacker's tools. grab() tries to take what its caller may do; spy() raises if it runs as anybody but mal or who asked for it in m.expected.
my $attacks = <<'SQL';
SET ROLE mal;
CREATE TABLE m.own (k int PRIMARY KEY, v int);
INSERT INTO m.own SELECT g, g FROM generate_series(1, 12) g;
GRANT ALL ON m.own TO PUBLIC;
CREATE FUNCTION m.grab() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE mal SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END $$;
CREATE FUNCTION m.back() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'RESET ROLE'; EXCEPTION WHEN OTHERS THEN NULL; END $$;
CREATE FUNCTION m.spy(x int) RETURNS bool IMMUTABLE COST 0.0001 LANGUAGE plpgsql AS $$ BEGIN
  PERFORM m.grab(); PERFORM m.back();
  IF current_user <> 'mal' THEN RAISE EXCEPTION 'ran as %', current_user; END IF; RETURN true; END $$;
CREATE FUNCTION m.spy_text(x text) RETURNS text IMMUTABLE COST 0.0001 LANGUAGE plpgsql AS $$ BEGIN PERFORM m.spy(1); RETURN x; END $$;
CREATE FUNCTION m.spy_sql(x int) RETURNS bool IMMUTABLE LANGUAGE sql AS $$ SELECT m.spy(x) AND x > 0 $$;
CREATE FUNCTION m.spy_stable(x int) RETURNS bool STABLE COST 0.0001 LANGUAGE plpgsql AS $$ BEGIN PERFORM m.spy(x); RETURN true; END $$;
CREATE FUNCTION m.spy_definer(x int) RETURNS bool IMMUTABLE COST 0.0001 SECURITY DEFINER LANGUAGE plpgsql
  AS $$ BEGIN PERFORM m.spy(x); RETURN true; END $$;
CREATE FUNCTION m.spy_two(x int, y int) RETURNS bool IMMUTABLE COST 0.0001 LANGUAGE plpgsql AS $$ BEGIN PERFORM m.spy(x); RETURN x >= y; END $$;
CREATE FUNCTION m.spy_add(x int, y int) RETURNS int IMMUTABLE LANGUAGE plpgsql
  AS $$ BEGIN PERFORM m.spy(x); RETURN coalesce(x, 0) + coalesce(y, 0); END $$;
CREATE FUNCTION m.spy_see(x text, y text) RETURNS bool IMMUTABLE COST 0.0001 LANGUAGE plpgsql
  AS $$ BEGIN IF x <> y THEN RAISE EXCEPTION 'saw another row'; END IF; RETURN true; END $$;
CREATE OPERATOR m.=>= (LEFTARG = int, RIGHTARG = int, FUNCTION = m.spy_two);
CREATE DOMAIN m.dom AS int CHECK (m.spy(VALUE));
CREATE TYPE m.pair AS (x int, y int);
CREATE FUNCTION m.to_pair(x int) RETURNS m.pair IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM m.spy(x); RETURN ROW(x, x)::m.pair; END $$;
CREATE AGGREGATE m.total (int) (SFUNC = m.spy_add, STYPE = int, INITCOND = '0');
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA m TO PUBLIC;
RESET ROLE;
SQL

my @cases;    # [name, role, sql]

sub add
{
	my ($name, $role, $sql) = @_;
	push @cases, [ $name, $role, $sql ];
	return;
}

# ---- rights: every object by every verb and every role ----

my %verbs = (
	read => 'SELECT k, who FROM %s',
	count => 'SELECT count(*) FROM %s',
	point => 'SELECT who FROM %s WHERE k = 3',
	filter => 'SELECT k FROM %s WHERE v > 50 AND who IS NOT NULL',
	lock => 'SELECT k FROM %s ORDER BY k FOR UPDATE',
	lock_point => 'SELECT k FROM %s WHERE k = 4 FOR SHARE',
	insert => "INSERT INTO %s (k, who, v) VALUES (101, 'bob', 1), (102, 'bob', 2)",
	insert_one => "INSERT INTO %s (k, who, v) VALUES (103, 'mal', 7) RETURNING k",
	upsert => "INSERT INTO %s (k, who, v) VALUES (3, 'bob', 1) ON CONFLICT (k) DO UPDATE SET v = 5",
	update => 'UPDATE %s SET v = v + 1',
	update_point => 'UPDATE %s SET v = 3 WHERE k = 1 RETURNING v',
	delete => 'DELETE FROM %s WHERE v > 50',
	delete_point => 'DELETE FROM %s WHERE k = 2',
	explain => 'EXPLAIN (COSTS OFF) SELECT k FROM %s',
	locktable => 'LOCK TABLE %s IN SHARE MODE');
my @tables = qw(d.t d.r d.f d.v_plain d.v_where d.v_barrier d.v_invoker d.v_agg d.v_self d.v_join d.v_place d.v_r d.v_f d.v_r_invoker d.v_hidden
  d.v_union d.v_check
  d.v_none d.w_nested d.w_barrier d.w_invoker d.w_of_invoker d.w_r d.w_v_r d.w_r_invoker d.w_mixed d.x_root d.x_hidden d.x_r);
my %not_modifiable = map { $_ => 1 } qw(d.v_agg d.v_self d.v_join d.v_place d.v_union d.w_mixed d.v_hidden d.x_hidden);

foreach my $table (@tables)
{
	foreach my $verb (sort keys %verbs)
	{
		next if $not_modifiable{$table} && $verb =~ /insert|upsert|update|delete/;
		next if $table =~ /agg|union/ && $verb =~ /^lock/;
		my @who = $table =~ /^d\.[trf]$/ ? qw(anna bob carl dora mal eve bypass root) : $verb =~ /read|filter|lock|update_point/ ?
			qw(bob mal carl eve) : qw(bob mal);
		add("$verb $table", $_, sprintf $verbs{$verb}, $table) foreach @who;
	}
}

# ---- rights on columns ----

my @column_statements = (
	'SELECT * FROM d.cols', 'SELECT k FROM d.cols', 'SELECT a FROM d.cols WHERE k = 1', 'SELECT count(*) FROM d.cols', 'SELECT c FROM d.cols',
	'SELECT k FROM d.cols WHERE c = 1',
	'SELECT k FROM d.cols ORDER BY b', 'SELECT d.cols FROM d.cols', 'SELECT a FROM d.cols FOR UPDATE', 'SELECT a FROM d.cols WHERE k = 1 FOR UPDATE',
	'SELECT k FROM d.cols FOR UPDATE',
	'SELECT k FROM d.cols WHERE k = 1 FOR UPDATE', 'SELECT 1 FROM d.cols', 'SELECT 1 FROM d.cols FOR SHARE',
	'SELECT x.k FROM d.cols x JOIN d.cols y ON x.k = y.k + 1 FOR UPDATE OF x',
	'UPDATE d.cols SET b = 5', 'UPDATE d.cols SET b = 5 WHERE k = 1', 'UPDATE d.cols SET b = b + 1 WHERE k = 1',
	'UPDATE d.cols SET a = b WHERE k = 1', 'UPDATE d.cols SET c = 5 WHERE k = 1',
	'UPDATE d.cols SET b = 5 RETURNING k', 'UPDATE d.cols SET b = 5 RETURNING c', 'UPDATE d.cols SET a = 1, b = 2',
	'UPDATE d.cols SET k = 77 WHERE k = 1',
	'INSERT INTO d.cols (k, a) VALUES (50, 1)', 'INSERT INTO d.cols (k, a) VALUES (50, 1), (51, 1), (52, 2)',
	'INSERT INTO d.cols (k, a, b) VALUES (50, 1, 1)', 'INSERT INTO d.cols VALUES (50)',
	'INSERT INTO d.cols (k, a) VALUES (50, 1) RETURNING k', 'INSERT INTO d.cols (k, a) VALUES (50, 1) RETURNING c',
	'INSERT INTO d.cols (k, a) VALUES (1, 1) ON CONFLICT DO NOTHING',
	'INSERT INTO d.cols (k, a) VALUES (1, 1) ON CONFLICT (k) DO UPDATE SET b = 1',
	'INSERT INTO d.cols (k, a) VALUES (1, 1) ON CONFLICT (k) DO UPDATE SET c = 1',
	'INSERT INTO d.cols (k, a) SELECT g, g FROM generate_series(60, 63) g', 'DELETE FROM d.cols', 'DELETE FROM d.cols WHERE k = 1',
	'DELETE FROM d.cols WHERE c = 1', 'DELETE FROM d.cols WHERE k = 1 RETURNING c',
	'TRUNCATE d.cols', 'COPY d.cols (k, a) TO STDOUT', 'COPY d.cols TO STDOUT', 'COPY (SELECT k, a FROM d.cols) TO STDOUT',
	"COPY d.cols (k, a) FROM STDIN;\n70\t1\n71\t2\n\\.\n",
	"COPY d.cols FROM STDIN;\n70\t1\t1\t1\n\\.\n", 'SELECT t.k FROM d.cols t JOIN d.place p ON p.id = t.k',
	'CREATE TEMP TABLE x AS SELECT k FROM d.cols',
	'CREATE TEMP TABLE x (k int); INSERT INTO x SELECT a FROM d.cols; UPDATE x SET k = 1 FROM d.cols c WHERE c.k = x.k',
	'CREATE TEMP TABLE x (k int); INSERT INTO x VALUES (1), (2); DELETE FROM x USING d.cols c WHERE c.k = x.k RETURNING x.k',
	'SELECT xmin IS NULL FROM d.cols WHERE k = 1', 'SELECT k FROM d.cols TABLESAMPLE BERNOULLI (100) WHERE k = 1',
	"SELECT has_column_privilege('d.cols', 'a', 'SELECT'), has_table_privilege('d.cols', 'SELECT'), has_any_column_privilege('d.cols', 'UPDATE')");
foreach my $sql (@column_statements)
{
	add('columns', $_, $sql) foreach qw(bob carl dora bypass);
}

# ---- other objects and statements ----

my @others = (
	'TRUNCATE d.t', 'TRUNCATE d.u', 'LOCK d.t', 'LOCK d.u IN ACCESS SHARE MODE', 'LOCK d.t IN ROW EXCLUSIVE MODE', 'COPY d.t TO STDOUT',
	'COPY d.r TO STDOUT', 'COPY d.f TO STDOUT',
	"COPY d.u FROM STDIN;\n70\tx\n\\.\n", "COPY d.t FROM STDIN;\n70\tx\t1\t1\n71\tx\t1\t1\n\\.\n", "COPY d.r FROM STDIN;\n70\tbob\t1\n\\.\n",
	'COPY (SELECT k FROM d.v_plain) TO STDOUT', 'COPY (SELECT k FROM d.v_r) TO STDOUT', "COPY d.t TO '/tmp/tessera_never'", 'SELECT * FROM hidden.h',
	'SELECT k FROM hidden.h WHERE k = 1',
	'CREATE TABLE d.no (k int)', 'CREATE TABLE hidden.no (k int)', 'CREATE VIEW d.no AS SELECT 1', 'CREATE INDEX ON d.t (v)',
	'ALTER TABLE d.t ADD COLUMN x int', 'DROP TABLE d.t', 'DROP VIEW d.v_plain',
	'ALTER TABLE d.t OWNER TO bob', 'ALTER TABLE d.t DISABLE ROW LEVEL SECURITY', 'CREATE POLICY p ON d.t USING (true)', 'DROP POLICY own ON d.r',
	'COMMENT ON TABLE d.t IS $$x$$',
	'CREATE TRIGGER tg BEFORE INSERT ON d.t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()', 'ALTER TABLE d.t RENAME TO tt',
	'ALTER TABLE d.t SET SCHEMA hidden',
	'GRANT SELECT ON d.t TO eve', 'REVOKE SELECT ON d.t FROM bob', 'GRANT SELECT (k) ON d.cols TO eve', 'ANALYZE d.t', 'VACUUM d.t',
	'REINDEX TABLE d.t', 'CLUSTER d.t', 'CREATE ROLE nobody', 'ALTER ROLE bob SUPERUSER',
	'ALTER ROLE CURRENT_USER SUPERUSER', 'SET ROLE staff; SELECT count(*) FROM d.t', 'SET ROLE anna', 'SET ROLE root',
	'SET SESSION AUTHORIZATION root', 'DROP ROLE eve', 'GRANT anna TO bob', 'CREATE SCHEMA mine', 'DROP SCHEMA d CASCADE',
	'CREATE STATISTICS d.st ON who, v FROM d.t', 'SELECT current_user, session_user', 'SET row_security = off; SELECT count(*) FROM d.r',
	'SET row_security = off; SELECT k FROM d.r WHERE k = 1', 'SET row_security = off; SELECT count(*) FROM d.f',
	'SET row_security = off; SELECT count(*) FROM d.v_r', 'SET row_security = off; UPDATE d.r SET v = 1',
	'SELECT row_security_active($$d.r$$), row_security_active($$d.t$$)',
	'SELECT k FROM ONLY d.r', 'UPDATE d.r SET who = $$eve$$ WHERE k = 3', 'UPDATE d.r SET v = 60', 'UPDATE d.f SET v = 2000 WHERE k = 3',
	'INSERT INTO d.r VALUES (80, current_user, 200)', 'INSERT INTO d.r VALUES (80, $$other$$, 200)',
	'INSERT INTO d.r VALUES (80, $$other$$, 50), (81, current_user, 1)', 'INSERT INTO d.f VALUES (80, current_user, 999)',
	'INSERT INTO d.f VALUES (80, current_user, 1000)', 'INSERT INTO d.r VALUES (1, current_user, 1) ON CONFLICT (k) DO UPDATE SET v = 2 RETURNING *',
	'INSERT INTO d.r SELECT k + 100, current_user, k FROM d.t', 'DELETE FROM d.r', 'DELETE FROM d.f RETURNING k',
	'MERGE INTO d.r USING (VALUES (3)) x(k) ON d.r.k = x.k AND d.r.k = 3 WHEN MATCHED THEN UPDATE SET v = 1',
	'MERGE INTO d.u USING (VALUES (3)) x(k) ON d.u.k = x.k AND d.u.k = 3 WHEN MATCHED THEN UPDATE SET note = 1',
	'MERGE INTO d.u USING (VALUES (3)) x(k) ON d.u.k = x.k AND d.u.k = 3 WHEN MATCHED THEN DELETE',
	'WITH x AS (UPDATE d.u SET note = 1 RETURNING k) SELECT count(*) FROM x', 'WITH x AS (DELETE FROM d.r RETURNING k) SELECT count(*) FROM x',
	'WITH x AS (INSERT INTO d.t VALUES (90, $$x$$) RETURNING k) SELECT k FROM x',
	'SELECT r.k FROM d.r JOIN d.t ON t.v = r.v * 10', 'SELECT count(*) FROM d.r JOIN d.f USING (k)',
	'UPDATE d.u SET note = r.who FROM d.r WHERE r.k = u.k AND u.k = 3', 'SELECT (SELECT max(v) FROM d.r), (SELECT count(*) FROM d.v_r)',
	'SELECT k FROM d.r WHERE v = ANY (SELECT k FROM d.t) ORDER BY 1 LIMIT 3', 'SELECT k FROM d.v_r WHERE k IN (1, 2, 3, 6)',
	'PREPARE p AS SELECT count(*) FROM d.r; EXECUTE p; SET ROLE staff; EXECUTE p; RESET ROLE; EXECUTE p',
	'PREPARE p AS SELECT k FROM d.v_r WHERE k = $1; EXECUTE p(3); EXECUTE p(3); EXECUTE p(4); EXECUTE p(5); EXECUTE p(6); EXECUTE p(7); EXECUTE p(8)',
	'PREPARE p AS SELECT count(*) FROM d.r; EXECUTE p; SET row_security = off; EXECUTE p',
	'BEGIN; DECLARE x CURSOR FOR SELECT k FROM d.v_r ORDER BY k; FETCH 2 FROM x; SET ROLE staff; FETCH 2 FROM x', 'BEGIN; DECLARE x CURSOR FOR ' .
	'SELECT k FROM d.v_plain ORDER BY k FOR UPDATE; FETCH 2 FROM x', 'DISCARD ALL', 'REASSIGN OWNED BY anna TO bob', 'DROP OWNED BY anna',
	'ALTER DEFAULT PRIVILEGES FOR ROLE anna GRANT SELECT ON TABLES TO bob', 'SELECT count(*) FROM tessera.tables',
	'SELECT tessera.add_shard($$x$$, $$y$$)', 'REFRESH MATERIALIZED VIEW d.mv', 'SELECT * FROM d.mv ORDER BY 1');
foreach my $sql (@others)
{
	next if $sql =~ /tessera\.|VACUUM|CLUSTER|REINDEX|DISCARD ALL/;
	add('others', $_, $sql) foreach ($sql =~ /^(ANALYZE|GRANT|REVOKE|DROP|CREATE|ALTER|COMMENT|REASSIGN)/ ? qw(bob) : qw(bob carl mal eve));
}

# ---- attacks: the caller's own code beside what another owns ----

my @views = qw(d.v_plain d.v_where d.v_barrier d.v_agg d.v_self d.v_join d.v_place d.v_r d.v_f d.v_hidden d.v_union d.v_check d.w_nested d.w_barrier
  d.w_invoker d.w_of_invoker d.w_r d.w_v_r
  d.w_r_invoker d.w_mixed d.x_root d.x_hidden d.x_r d.x_agg d.x_self d.x_barrier);
my @attack_statements = (
	'SELECT count(*) FROM %s WHERE m.spy(k)', 'SELECT count(*) FROM %s WHERE m.spy_sql(k)', 'SELECT count(*) FROM %s WHERE m.spy_stable(k)',
	'SELECT count(*) FROM %s WHERE m.spy_definer(k)',
	'SELECT count(*) FROM %s WHERE m.spy_definer(3) AND k > 0', 'SELECT count(*) FROM %s WHERE k OPERATOR(m.=>=) 1', 'SELECT count(k::m.dom) FROM %s',
	'SELECT count(*) FROM %s WHERE k::m.dom > 0', 'SELECT m.total(k) FROM %s',
	'SELECT k FROM %s ORDER BY m.spy_text(who), k', 'SELECT m.spy_text(who), count(*) FROM %s GROUP BY 1',
	'SELECT count(*) FROM %s WHERE (m.to_pair(k)).x > 0', 'SELECT count(*) FROM %s WHERE CASE WHEN m.spy(k) THEN k > 0 END',
	'SELECT m.spy(k) FROM %s WHERE k = 3 AND m.spy(k)', 'SELECT count(*) FROM %s a WHERE EXISTS (SELECT FROM m.own o WHERE o.k = a.k AND m.spy(a.k))',
	'SELECT count(*) FROM %s a JOIN m.own o ON o.v = a.k AND m.spy_two(a.k, o.v)',
	'SELECT count(*) FROM %s a, LATERAL (SELECT m.spy(a.k) AS s) x WHERE x.s', 'SELECT count(*) FILTER (WHERE m.spy(k)) FROM %s',
	'SELECT count(*) FROM %s WHERE k IN (SELECT k FROM m.own WHERE m.spy(k))',
	"SELECT count(*) FROM %s WHERE m.spy_see(who, current_user)",
	'PREPARE p AS SELECT count(*) FROM %s WHERE m.spy(k); EXECUTE p; EXECUTE p; EXECUTE p; EXECUTE p; EXECUTE p; EXECUTE p; EXECUTE p');
my @attack_modifications = ('SELECT k FROM %s WHERE m.spy(k) ORDER BY k FOR UPDATE', 'UPDATE %s SET v = v + 1 WHERE m.spy(k)',
	'UPDATE %s SET v = m.spy_add(v, 1)', 'UPDATE %s SET v = 1 WHERE k = 3 AND m.spy(k) RETURNING m.spy(k)',
	'DELETE FROM %s WHERE m.spy(k)', "INSERT INTO %s (k, who, v) VALUES (m.spy_add(90, 1), m.spy_text('x'), 1) RETURNING m.spy(k)",
	"UPDATE %s SET v = 4 WHERE m.spy_see(who, current_user)");
foreach my $view (@views)
{
	foreach my $sql (@attack_statements)
	{
		next if $sql =~ /spy_see/ && $view !~ /barrier|_[rf]$|check/;
		next if $view !~ /v_plain|v_barrier|v_agg|v_self|v_r$|w_nested|w_r$|x_root/ &&
		  $sql !~ /WHERE m.spy(_definer)?\(k\)$|OPERATOR|LATERAL|m.dom > 0|spy_see/;
		add("attack $view", 'mal', sprintf $sql, $view);
	}
	next if $not_modifiable{$view} || $view =~ /agg|self|union|join|mixed|place|hidden/;
	foreach my $sql (@attack_modifications)
	{
		next if $sql =~ /spy_see/ && $view !~ /barrier|_[rf]$|check/;
		add("attack $view", 'mal', sprintf $sql, $view);
	}
}
add("attack $_", 'mal', "SELECT count(*) FROM $_ WHERE m.spy_see(who, current_user)") foreach qw(d.r d.f);

# ---- one script for each server ----

my $reset = "ROLLBACK;\nRESET SESSION AUTHORIZATION;\nDEALLOCATE ALL;\nSET client_min_messages = error;\nSET timezone = 'UTC';\n";

sub script
{
	my $script = $reset;
	for my $i (0 .. $#cases)
	{
		my ($name, $role, $sql) = @{ $cases[$i] };
		my $begin = $sql =~ /^BEGIN/ ? '' : "BEGIN;\n";
		$script .= "\\echo \@\@ $i\n\\warn \@\@ $i\nSET SESSION AUTHORIZATION $role;\n$begin$sql" . ($sql =~ m{\n\z} ? "" : ";\n") . $reset;
	}
	return $script;
}

# Rows and SQLSTATEs by case. What raises by itself (P0001) says what.
sub answers
{
	my ($conninfo) = @_;
	my ($out, $err) = ('', '');
	my $script = script();
	my $started = time;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/cases.sql';
	open(my $handle, '>', $file) or die $!;
	print $handle $script;
	close $handle;
	IPC::Run::run([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-f', $file, '-d', $conninfo ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(300));
	note "took " . (time - $started) . " s";
	my @answers = map { { out => [], err => [] } } @cases;
	foreach my $pair ([ out => $out ], [ err => $err ])
	{
		my ($kind, $text) = @$pair;
		my $i;
		foreach my $line (split /\n/, $text)
		{
			if ($line =~ /^\@\@ (\d+)$/) { $i = $1; next; }
			next unless defined $i;
			if ($kind eq 'out') { push @{ $answers[$i]{out} }, $line; next; }
			push @{ $answers[$i]{err} }, $1 . ($1 eq 'P0001' ? ": $2" : '') if $line =~ /(?:ERROR|FATAL):  (\w{5}): (.*)/;
			push @{ $answers[$i]{text} }, $line if $line =~ /ERROR|FATAL/;
		}
	}
	return map { { answer => join("\n", (sort @{ $_->{out} }), @{ $_->{err} }), text => join("\n", @{ $_->{text} // [] }) } } @answers;
}

$c->plain_query($_) foreach $roles, $schema, $rights, $attacks;
$c->create(shards => 2, routers => 1);
$c->query('s2', $_) foreach $roles, $schema;
foreach my $table (@sharded)
{
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k', 'hash', chunks => 4)");
}
$c->query('r1', $rights);
$c->query('s1', $attacks);
$c->query('s1', "SELECT tessera.shard_table('m.own', 'k', 'hash', chunks => 4)");
$c->query($_, 'SELECT count(*) FROM m.own') foreach qw(s1 s2 r1);

my @expected = answers($c->plain->connstr('postgres'));
foreach my $name (qw(r1 s1))
{
	my @got = answers($c->conninfo($name));
	my $differ = 0;
	for my $i (0 .. $#cases)
	{
		my ($kind, $role, $sql) = @{ $cases[$i] };
		if ($sql =~ /EXPLAIN/ && $got[$i]{answer} !~ /^\w{5}$/) { $_->{answer} = 'a plan' foreach $got[$i], $expected[$i]; }
		next if $got[$i]{answer} eq $expected[$i]{answer};
		$differ++;
		diag "from $name, as $role ($kind): $sql\n--- plain\n$expected[$i]{answer} $expected[$i]{text}\n--- cluster\n$got[$i]{answer} " .
			"$got[$i]{text}\n" if $differ <= 12;
	}
	is($differ, 0, "through $name: " . scalar(@cases) . ' cases answer as on a plain server');
}
is(join(' ', $c->query_all("SELECT rolsuper FROM pg_roles WHERE rolname = 'mal'")), 'f f f', 'nobody has become superuser');

done_testing();
