# Whose code runs as whom, where it takes effect at another time or by another road than the statement's own (doc/architecture.md): triggers, also
# deferred ones, fired by a definer function or a REFRESH; settings for superusers that a user sets before their module is loaded; defaults, checks,
# generated columns, index expressions, policies; rights on sequences, types, functions, schemas, by default and by grant. Each story runs in a
# session of its own on a plain server, through a node that owns nothing and through one that owns a part; each answers rows or an SQLSTATE, and none
# may differ.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use PsqlPool;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('whose_code');

my $roles = <<'SQL';
CREATE ROLE anna LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE mal LOGIN; CREATE ROLE eve LOGIN; CREATE ROLE root LOGIN SUPERUSER; CREATE ROLE staff;
GRANT staff TO bob;
SQL

# shard_table of the plain server
my $stub = <<'SQL';
CREATE SCHEMA tessera; GRANT USAGE ON SCHEMA tessera TO PUBLIC;
CREATE FUNCTION tessera.shard_table(t regclass, key text, strategy text DEFAULT 'hash', chunks int DEFAULT 4,
  colocate_with regclass DEFAULT NULL) RETURNS void LANGUAGE sql AS '';
SQL

# What every story starts from, and what it leaves behind is dropped.
my $before = <<'SQL';
SET client_min_messages = error;
CREATE SCHEMA d AUTHORIZATION anna; CREATE SCHEMA h AUTHORIZATION anna; CREATE SCHEMA m AUTHORIZATION mal;
GRANT USAGE ON SCHEMA d, m TO PUBLIC;
SQL
my $after = "RESET SESSION AUTHORIZATION; SET client_min_messages = error; DROP SCHEMA IF EXISTS d, h, m CASCADE;";

my @stories;    # [name, user of the session (undef: superuser), setup, sql]

sub story
{
	my ($name, $user, $setup, $sql) = @_;
	push @stories, { name => $name, user => $user, setup => $setup, sql => $sql };
	return;
}

sub sharded
{
	my ($table, $columns, $more) = @_;
	$columns .= ', PRIMARY KEY (k)' unless $columns =~ /PRIMARY KEY/;
	return "CREATE TABLE $table (k int NOT NULL, $columns); SELECT tessera.shard_table('$table', 'k', 'hash', chunks => 4);" .
		($more // '');
}

my $raise = 'CREATE FUNCTION %s RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION \'%s as %%\', current_user; END $$;';
sub raise { my ($function, $what) = @_; return sprintf $raise, $function, $what; }

# ---- deferred triggers ----

my $deferred = "SET SESSION AUTHORIZATION mal;" . sharded('m.dt', 'v int, PRIMARY KEY (k)') . raise('m.fire()', 'fired')
  . "CREATE CONSTRAINT TRIGGER c AFTER INSERT OR UPDATE ON m.dt DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION m.fire(); GRANT ALL " .
  "ON m.dt TO PUBLIC;"
  . 'CREATE FUNCTION m.ins(x int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO m.dt VALUES (x, x); RETURN x; END $$;'
  . 'CREATE MATERIALIZED VIEW m.mv AS SELECT m.ins(g) AS x FROM generate_series(1, 3) g WITH NO DATA;'
  . 'CREATE MATERIALIZED VIEW m.mv1 AS SELECT m.ins(1) AS x WITH NO DATA;'
  . 'RESET SESSION AUTHORIZATION; SET ROLE root;'
  . 'CREATE FUNCTION d.touch(x int) RETURNS void SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN INSERT INTO m.dt VALUES (x, x); END $$;'
  . 'CREATE FUNCTION d.touch_all() RETURNS void SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN INSERT INTO m.dt SELECT g, g FROM ' .
  'generate_series(1, 12) g; END $$;';
foreach my $call ('SELECT d.touch(1)', 'SELECT d.touch(2)', 'SELECT d.touch(3); SELECT d.touch(4)', 'SELECT d.touch_all()',
	'SAVEPOINT a; SELECT d.touch(5); RELEASE a', 'SAVEPOINT a; SELECT d.touch(6); ROLLBACK TO a; SELECT d.touch(7)',
	'SELECT d.touch(8); SAVEPOINT a; SELECT d.touch(9); ROLLBACK TO a', 'INSERT INTO m.dt VALUES (10, 1); SELECT d.touch(11)',
	'SELECT d.touch(12); SELECT count(*) FROM m.dt')
{
	story("deferred trigger after a definer function: $call", 'mal', $deferred, "BEGIN; $call; COMMIT; SELECT count(*) FROM m.dt");
}
story('deferred trigger when it is prepared', 'mal', $deferred, "BEGIN; SELECT d.touch_all(); PREPARE TRANSACTION 'whose'");
story('deferred trigger when it is prepared, one row', 'mal', $deferred, "BEGIN; SELECT d.touch($_); PREPARE TRANSACTION 'whose'") foreach 1, 2;
story('deferred trigger by SET CONSTRAINTS', 'mal', $deferred, "BEGIN; SELECT d.touch($_); SET CONSTRAINTS ALL IMMEDIATE; COMMIT") foreach 1, 2;
story('deferred trigger, alone', 'mal', $deferred, 'SELECT d.touch(1)');
story("deferred trigger after REFRESH of $_->[0] by $_->[1]", $_->[1], $deferred,
	"BEGIN; REFRESH MATERIALIZED VIEW $_->[0]; SELECT 1; COMMIT; SELECT count(*) FROM m.dt")
  foreach [ 'm.mv', 'root' ], [ 'm.mv', 'mal' ], [ 'm.mv1', 'root' ], [ 'm.mv', 'bob' ];

# ---- restricted operations ----

foreach my $what ('CREATE TEMP TABLE x (k int)', 'SET ROLE mal', 'RESET ROLE', 'SET SESSION AUTHORIZATION mal', 'PREPARE p AS SELECT 1', 'LISTEN x',
	'DECLARE c CURSOR WITH HOLD FOR SELECT 1', 'ALTER ROLE mal SUPERUSER',
	'CREATE TABLE m.new (k int)')
{
	my $quoted = $what =~ s/'/''/gr;
	my $setup = "SET SESSION AUTHORIZATION mal;" . sharded('m.t', 'v int')
	  . "CREATE FUNCTION m.tg() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN EXECUTE '$quoted'; RETURN NEW; END \$\$; CREATE TRIGGER tg BEFORE " .
	  "INSERT ON m.t FOR EACH ROW EXECUTE FUNCTION m.tg();"
	  . 'CREATE FUNCTION m.ins(x int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO m.t VALUES (x, x); RETURN x; END $$;'
	  . 'CREATE MATERIALIZED VIEW m.mv AS SELECT m.ins(g) AS x FROM generate_series(1, 1) g WITH NO DATA;';
	next if $what =~ /LISTEN|PREPARE|TABLE m/;
	story("in a restricted operation: $what", 'root', $setup, 'REFRESH MATERIALIZED VIEW m.mv');
}

# ---- settings for superusers ----

my $ambiguous = 'SET SESSION AUTHORIZATION anna;' . sharded('d.t', 'v int')
  . 'CREATE FUNCTION d.tg() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE relname text := NULL; n int; BEGIN SELECT count(*) INTO n FROM ' .
  'pg_class WHERE relname IS NULL AND oid = 1259; NEW.v := n; RETURN NEW; END $$;'
  . 'CREATE TRIGGER tg BEFORE INSERT ON d.t FOR EACH ROW EXECUTE FUNCTION d.tg(); GRANT ALL ON d.t TO PUBLIC; RESET SESSION AUTHORIZATION; SET ' .
  'ROLE root;'
  . 'CREATE FUNCTION d.put(x int) RETURNS void LANGUAGE sql AS $$ INSERT INTO d.t VALUES (x, 0) $$ ;'
  . 'CREATE FUNCTION d.put_definer(x int) RETURNS void SECURITY DEFINER LANGUAGE sql SET plpgsql.variable_conflict = use_variable AS $$ INSERT ' .
  'INTO d.t VALUES (x, 0) $$ ;';
my $put = 'INSERT INTO d.t VALUES (1, 0); INSERT INTO d.t VALUES (2, 0); INSERT INTO d.t VALUES (3, 0); INSERT INTO d.t SELECT g, 0 FROM ' .
	'generate_series(4, 9) g; SELECT k, v FROM d.t';
foreach my $user (qw(mal root))
{
	story("$_->[0], by $user", $user, $ambiguous, "$_->[1]; $put")
	  foreach [ 'no setting', 'SELECT 1' ], [ 'a setting of a module that is not loaded', "SET plpgsql.variable_conflict = 'use_variable'" ],
	  [ 'set_config', "SELECT set_config('plpgsql.variable_conflict', 'use_variable', false)" ],
	  [ 'with another value', "SET plpgsql.variable_conflict = 'use_column'" ], [ 'with a value that it does not have',
	  "SET plpgsql.variable_conflict = 'nonsense'" ], [ 'a setting that does not exist', "SET plpgsql.nonsense = 'x'" ],
	  [ 'set and reset', "SET plpgsql.variable_conflict = 'use_variable'; RESET plpgsql.variable_conflict" ],
	  [ 'session_replication_role', "SET session_replication_role = replica" ];
}
story('by a role that had the right', undef, $ambiguous, "SET plpgsql.variable_conflict = 'use_variable'; SET SESSION AUTHORIZATION mal; $put");
story('by a role that had not', undef, $ambiguous, "SET ROLE mal; SET plpgsql.variable_conflict = 'use_variable'; RESET ROLE; $put");
story('the same value by both', undef, $ambiguous,
	"SET plpgsql.variable_conflict = 'use_variable'; SET ROLE mal; SET plpgsql.variable_conflict = 'use_variable'; $put");
story('a function with a setting', 'mal', $ambiguous, "SELECT d.put_definer(1); SELECT d.put_definer(2); SELECT d.put(3); SELECT count(*) FROM d.t");
story('a setting of the role', 'mal', $ambiguous . "ALTER ROLE mal SET plpgsql.variable_conflict = 'use_variable';", $put);
story('no setting of the role', 'mal', $ambiguous . "ALTER ROLE mal RESET plpgsql.variable_conflict;", $put);
story('a setting that a user may set', 'mal', $ambiguous . 'SET ROLE anna; CREATE TABLE d.s (k int PRIMARY KEY, v text DEFAULT ' .
	'current_setting($$app.x$$, true)); SELECT tessera.shard_table($$d.s$$, $$k$$, $$hash$$, chunks => 4); ' .
	'GRANT ALL ON d.s TO PUBLIC;',
	"SET app.x = 'mine'; INSERT INTO d.s (k) VALUES (1); INSERT INTO d.s (k) VALUES (2); INSERT INTO d.s (k) VALUES (3); SET app.x = 'other'; " .
	"INSERT INTO d.s (k) VALUES (4), (5), (6); SELECT * FROM d.s");

# ---- triggers: who they see ----

my $seen = 'SET SESSION AUTHORIZATION anna;' . sharded('d.t', 'v int, who text, PRIMARY KEY (k)')
  . 'CREATE FUNCTION d.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.who := concat_ws(\',\', NEW.who, current_user, session_user, user, ' .
  'current_role, current_setting(\'search_path\')); RETURN NEW; END $$;'
  . 'CREATE FUNCTION d.see_definer() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN NEW.who := concat_ws(\',\', NEW.who, ' .
  '\'definer\', current_user, session_user); RETURN NEW; END $$;'
  . 'CREATE TRIGGER a BEFORE INSERT OR UPDATE ON d.t FOR EACH ROW EXECUTE FUNCTION d.see(); CREATE TRIGGER b BEFORE INSERT OR UPDATE ON d.t FOR ' .
  'EACH ROW EXECUTE FUNCTION d.see_definer();'
  . 'CREATE VIEW d.v AS SELECT * FROM d.t; CREATE VIEW d.vi WITH (security_invoker) AS SELECT * FROM d.t; GRANT ALL ON d.t, d.v, d.vi TO bob, root;'
  . 'CREATE FUNCTION d.add(x int) RETURNS void SECURITY DEFINER LANGUAGE sql AS $$ INSERT INTO d.t VALUES (x, 0) $$; CREATE FUNCTION ' .
  'd.add_invoker(x int) RETURNS void LANGUAGE sql AS $$ INSERT INTO d.t VALUES (x, 0) $$;';
foreach my $user ('bob', 'root', undef)
{
	story('who a trigger sees, by ' . ($user // 'superuser'), $user, $seen,
		join('; ', map { sprintf $_, 1 } ('INSERT INTO d.t VALUES (1, 0), (2, 0), (3, 0)', 'INSERT INTO d.t VALUES (4, 0)',
		'INSERT INTO d.v VALUES (5, 0)', 'INSERT INTO d.v VALUES (6, 0), (7, 0)', 'INSERT INTO d.vi VALUES (8, 0)', 'SELECT d.add(9)',
			'SELECT d.add(10)', 'SELECT d.add_invoker(11)', 'UPDATE d.v SET v = 1 WHERE k < 4', 'SELECT k, v, who FROM d.t')));
}
story('who a trigger sees after SET ROLE', undef, $seen, 'SET ROLE bob; INSERT INTO d.t VALUES (1, 0), (2, 0), (3, 0); SET SESSION AUTHORIZATION ' .
	'eve; RESET SESSION AUTHORIZATION; SET ROLE root; INSERT INTO d.t VALUES (4, 0), (5, 0), (6, 0); RESET ROLE; SELECT * FROM d.t');
foreach my $event ('BEFORE INSERT', 'AFTER INSERT', 'BEFORE UPDATE', 'AFTER UPDATE', 'BEFORE DELETE', 'AFTER DELETE')
{
	foreach my $level ('ROW', 'STATEMENT')
	{
		my $setup = 'SET SESSION AUTHORIZATION anna;' . sharded('d.t', 'v int, PRIMARY KEY (k)') . 'INSERT INTO d.t SELECT g, g FROM ' .
			'generate_series(1, 12) g; CREATE VIEW d.v AS SELECT * FROM d.t; GRANT ALL ON d.t, d.v TO bob;' . raise('d.fire()', 'fired')
		  . "CREATE TRIGGER tg $event ON d.t FOR EACH $level EXECUTE FUNCTION d.fire();";
		next if $level eq 'STATEMENT';
		story("$event $level", 'bob', $setup, 'INSERT INTO d.t VALUES (20, 1); INSERT INTO d.v VALUES (21, 1), (22, 2), (23, 1); UPDATE d.t SET v ' .
			'= 0 WHERE k = 2; UPDATE d.v SET v = 1; DELETE FROM d.t WHERE k = 3; DELETE FROM d.v; SELECT count(*) FROM d.t');
	}
}

# ---- expressions of the table ----

my $told = 'CREATE FUNCTION d.told(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN IF x > 100 THEN RAISE EXCEPTION \'told as %\', ' .
	'current_user; END IF; RETURN x; END $$;';
foreach my $columns ('v int DEFAULT 200, w int DEFAULT d.told(200)', 'v int, w int GENERATED ALWAYS AS (d.told(v)) STORED',
	'v int CHECK (d.told(v) > 0)', 'v d.dom')
{
	my $setup = "SET SESSION AUTHORIZATION anna; $told CREATE DOMAIN d.dom AS int CHECK (d.told(VALUE) > 0);" .
		sharded('d.t', "$columns, PRIMARY KEY (k)")
	  . ($columns =~ /^v int DEFAULT/ ? 'CREATE INDEX ON d.t (d.told(v));' : '') .
	  'CREATE VIEW d.v AS SELECT k, v FROM d.t; GRANT ALL ON d.t, d.v TO bob;';
	story("an expression of the table: $columns", 'bob', $setup,
		'INSERT INTO d.t (k, v) VALUES (1, 1); INSERT INTO d.t (k, v) VALUES (2, 200); INSERT INTO d.v VALUES (3, 200); INSERT INTO d.t (k, v) ' .
		'VALUES (4, 1), (5, 200), (6, 1); UPDATE d.v SET v = 300; UPDATE d.t SET v = 300 WHERE k = 1; INSERT INTO d.t VALUES (7); SELECT count(*) ' .
		'FROM d.t');
	story("without the right to run it: $columns", 'bob', $setup . 'REVOKE EXECUTE ON FUNCTION d.told FROM PUBLIC;', 'INSERT INTO d.t (k, v) ' .
		'VALUES (1, 1); INSERT INTO d.v VALUES (3, 1); INSERT INTO d.t (k, v) VALUES (4, 1), (5, 1), (6, 1); SELECT count(*) FROM d.t');
}
story('a policy', 'bob', 'SET SESSION AUTHORIZATION anna; CREATE FUNCTION d.pf(x int) RETURNS bool LANGUAGE plpgsql STABLE AS $$ BEGIN IF x > 5 ' .
	'THEN RAISE EXCEPTION \'asked as %\', current_user; END IF; RETURN true; END $$;' . sharded('d.t', 'v int, PRIMARY KEY (k)')
	  . 'INSERT INTO d.t SELECT g, g FROM generate_series(1, 12) g; ALTER TABLE d.t ENABLE ROW LEVEL SECURITY; ALTER TABLE d.t FORCE ROW LEVEL ' .
	  'SECURITY; CREATE POLICY p ON d.t USING (d.pf(v)); CREATE VIEW d.v AS SELECT * FROM d.t; GRANT ALL ON d.t, d.v TO bob;',
	'SELECT count(*) FROM d.t; SELECT count(*) FROM d.v; SELECT v FROM d.v WHERE k = 2; SELECT v FROM d.v WHERE k = 9; UPDATE d.v SET v = 1 WHERE ' .
	'k = 3; UPDATE d.v SET v = 1; INSERT INTO d.v VALUES (20, 30)');

# (refused: what the cluster refuses with 42501 where one server does not; doc/differences.md)
# ---- names that the reader may not use ----

my $hidden = 'SET SESSION AUTHORIZATION anna; CREATE TYPE h.mood AS ENUM (\'sad\', \'ok\'); CREATE TYPE h.pair AS (a int, b text); CREATE DOMAIN ' .
	'h.pos AS int CHECK (VALUE > 0); CREATE FUNCTION h.f(x int) RETURNS int IMMUTABLE LANGUAGE sql AS $$ SELECT x + 1 $$;'
  . 'CREATE FUNCTION h.p(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN x; END $$; CREATE OPERATOR h.### (LEFTARG = int, ' .
  'RIGHTARG = int, FUNCTION = int4pl);' . sharded('h.t', 'm h.mood, p h.pair, n h.pos, PRIMARY KEY (k)')
  . 'INSERT INTO h.t SELECT g, CASE WHEN g % 2 = 0 THEN \'sad\' ELSE \'ok\' END::h.mood, ROW(g, \'x\')::h.pair, g FROM generate_series(1, 12) g;'
  . 'CREATE VIEW d.v AS SELECT k, m, p, n, h.p(k) AS f FROM h.t WHERE h.p(k) > 0 AND k OPERATOR(h.###) 1 > 0 AND m <> \'nosuch\'::text::h.mood IS ' .
  'NOT NULL;'
  =~ s/ AND m <> .*? IS NOT NULL//r . 'CREATE VIEW d.w AS SELECT k, m, n FROM h.t WHERE m = \'sad\' AND (p).a > 0 AND n <> 77 AND h.f(k) > 0 AND ' .
  'p <> ROW(1, \'q\')::h.pair; GRANT ALL ON d.v, d.w TO bob, mal;'
  . sharded('d.t', 'm h.mood, n h.pos, PRIMARY KEY (k)') . 'GRANT ALL ON d.t TO bob; INSERT INTO d.t SELECT k, m, n FROM h.t;';
foreach my $sql ('SELECT count(*) FROM d.v', 'SELECT k, m, p, n FROM d.v', 'SELECT k FROM d.v WHERE k = 2', "SELECT k FROM d.v WHERE m = 'sad'",
	'SELECT k, m FROM d.w', 'SELECT k FROM d.w WHERE k = 4', 'SELECT k FROM d.w FOR UPDATE', "SELECT k FROM d.w WHERE m = 'ok' OR k = 2",
	'UPDATE d.w SET n = 5', 'UPDATE d.w SET n = -1 WHERE k = 2', "UPDATE d.w SET m = 'ok' WHERE k = 2", "INSERT INTO d.w (k, m, n) VALUES " .
	"(50, 'sad', 3)", "INSERT INTO d.w (k, m, n) VALUES (51, 'sad', 3), (52, 'ok', 3)", 'DELETE FROM d.w WHERE k = 2', 'DELETE FROM d.w',
	'SELECT * FROM h.t',
	"SELECT k FROM d.t WHERE m = 'sad'", "SELECT k FROM d.t WHERE m = 'sad' AND k = 2", "SELECT k FROM d.t WHERE m > 'sad' AND n > 2",
	'SELECT n FROM d.t WHERE k IN (1, 2)', "INSERT INTO d.t VALUES (60, 'sad', 1)", "INSERT INTO d.t VALUES (61, 'ok', 1), (62, 'ok', 2)",
	"UPDATE d.t SET m = 'ok'",
	"UPDATE d.t SET m = 'ok' WHERE k = 3", "DELETE FROM d.t WHERE m = 'ok'", "PREPARE p AS SELECT k FROM d.t WHERE m = \$1 AND k = \$2; EXECUTE p " .
	"('sad', 2); EXECUTE p ('ok', 1)", 'COPY d.t TO STDOUT', "COPY d.t FROM STDIN;\n70\tsad\t1\n71\tok\t2\n72\tok\t3\n\\.\n", "SELECT 'sad'::h.mood")
{
	push @stories, { name => "names in a hidden schema: $sql", user => 'bob', sql => "BEGIN; $sql" . ($sql =~ /\n\z/ ? 'ROLLBACK;' : '; ROLLBACK'),
		same => 'hidden' };
	$stories[-1]{refused} = 1 if $sql =~ /^(UPDATE d.w SET m|INSERT|UPDATE d.t|DELETE FROM d.t|PREPARE|SELECT k FROM d.t WHERE m)/;
}

# ---- grants ----

# What stories name, and what makes it.
my @granted = (
	'd.q' => 'CREATE SEQUENCE d.q;',
	'd.place' => 'CREATE TABLE d.place (id int PRIMARY KEY, v int);',
	'd.ser' => 'CREATE TABLE d.ser (k serial PRIMARY KEY, v int); GRANT INSERT, SELECT ON d.ser TO bob;',
	'd.idt' => 'CREATE TABLE d.idt (k int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v int); GRANT INSERT, SELECT ON d.idt TO bob;',
	'd.t' => sharded('d.t', 'v int, PRIMARY KEY (k)', 'INSERT INTO d.t SELECT g, g FROM generate_series(1, 12) g;'),
	'd.f' => 'CREATE FUNCTION d.f(x int) RETURNS int LANGUAGE sql AS $$ SELECT x $$; REVOKE EXECUTE ON FUNCTION d.f FROM PUBLIC;',
	'd.mv' => 'CREATE MATERIALIZED VIEW d.mv AS SELECT k FROM d.t;',
	'd.total' => 'CREATE FUNCTION d.total() RETURNS bigint SECURITY DEFINER LANGUAGE sql AS $$ SELECT sum(v) FROM d.t $$;',
	'd.total_invoker' => 'CREATE FUNCTION d.total_invoker() RETURNS bigint LANGUAGE sql AS $$ SELECT sum(v) FROM d.t $$;',
	'd.proc' => 'CREATE PROCEDURE d.proc() SECURITY DEFINER LANGUAGE sql AS $$ UPDATE d.t SET v = v + 1 $$;',
	'd.proc_invoker' => 'CREATE PROCEDURE d.proc_invoker() LANGUAGE sql AS $$ UPDATE d.t SET v = v + 1 $$;');

# Makes what a story names, and d.t for what is made of it.
sub granted
{
	my ($sql) = @_;
	my $setup = '';
	for (my $i = 0; $i < @granted; $i += 2)
	{
		my $wanted = $granted[$i] eq 'd.t' ? qr/d\.(?:t|mv|total|proc)/ : qr/\Q$granted[$i]\E(?:_k_seq)?\b/;
		$setup .= $granted[ $i + 1 ] if $sql =~ $wanted || $sql =~ /ALL TABLES/;
	}
	return "SET SESSION AUTHORIZATION anna; $setup RESET SESSION AUTHORIZATION;";
}

my @grants = (
	"SET ROLE bob; SELECT nextval('d.q')", "GRANT USAGE ON d.q TO bob; SET ROLE bob; SELECT nextval('d.q'); SELECT currval('d.q'); SELECT " .
	"setval('d.q', 100); SELECT last_value FROM d.q", "GRANT SELECT ON d.q TO bob; SET ROLE bob; SELECT nextval('d.q')",
	"GRANT UPDATE ON SEQUENCE d.q TO bob; SET ROLE bob; SELECT setval('d.q', 100) IS NOT NULL, nextval('d.q') > 0",
	'SET ROLE bob; INSERT INTO d.ser (v) VALUES (1)', 'GRANT USAGE ON SEQUENCE d.ser_k_seq TO bob; SET ROLE bob; INSERT INTO d.ser (v) VALUES ' .
	'(1); SELECT count(*) FROM d.ser', 'SET ROLE bob; INSERT INTO d.idt (v) VALUES (1); SELECT count(*) FROM d.idt',
	'SET ROLE bob; INSERT INTO d.ser VALUES (99, 1); SELECT k FROM d.ser',
	'GRANT SELECT ON d.t TO bob; SET ROLE bob; SELECT count(*) FROM d.t; GRANT SELECT ON d.t TO eve; RESET ROLE; SET ROLE eve; SELECT count(*) ' .
	'FROM d.t',
	'GRANT SELECT ON d.t TO bob WITH GRANT OPTION; SET ROLE bob; GRANT SELECT ON d.t TO eve; SET ROLE eve; SELECT 1; RESET ROLE; SET ROLE eve; ' .
	'SELECT count(*) FROM d.t; RESET ROLE; REVOKE SELECT ON d.t FROM bob; REVOKE SELECT ON d.t FROM bob CASCADE; SET ROLE eve; SELECT count(*) ' .
	'FROM d.t',
	'GRANT SELECT (k) ON d.t TO bob WITH GRANT OPTION; SET ROLE bob; GRANT SELECT (k) ON d.t TO eve; GRANT SELECT (v) ON d.t TO eve; RESET ROLE; ' .
	'SET ROLE eve; SELECT max(k) FROM d.t; SELECT max(v) FROM d.t',
	'GRANT SELECT ON d.t TO staff; SET ROLE bob; SELECT count(*) FROM d.t; RESET ROLE; ALTER ROLE bob NOINHERIT; SET ROLE bob; SELECT count(*) ' .
	'FROM d.t; SET ROLE staff; SELECT count(*) FROM d.t; RESET ROLE; ALTER ROLE bob INHERIT',
	'GRANT SELECT ON d.t TO staff; SET ROLE bob; SELECT count(*) FROM d.t; RESET ROLE; REVOKE staff FROM bob; SET ROLE bob; SELECT count(*) FROM ' .
	'd.t; RESET ROLE; GRANT staff TO bob',
	'GRANT SELECT ON d.t TO PUBLIC; SET ROLE eve; SELECT count(*) FROM d.t; RESET ROLE; REVOKE USAGE ON SCHEMA d FROM PUBLIC; SET ROLE eve; ' .
	'SELECT count(*) FROM d.t; SELECT v FROM d.t WHERE k = 1',
	'ALTER DEFAULT PRIVILEGES FOR ROLE anna IN SCHEMA d GRANT SELECT ON TABLES TO bob; SET ROLE anna; CREATE TABLE d.new (k int); INSERT INTO ' .
	'd.new VALUES (1); SET ROLE bob; RESET ROLE; SET ROLE bob; SELECT * FROM d.new; INSERT INTO d.new VALUES (2); RESET ROLE; SET ROLE eve; ' .
	'SELECT * FROM d.new',
	'GRANT SELECT ON ALL TABLES IN SCHEMA d TO bob; SET ROLE bob; SELECT count(*) FROM d.t; SELECT count(*) FROM d.place; SELECT count(*) FROM d.mv',
	'SET ROLE bob; SELECT count(*) FROM d.mv', 'GRANT ALL ON d.mv TO bob; SET ROLE bob; SELECT count(*) FROM d.mv; REFRESH MATERIALIZED VIEW d.mv',
	'SET ROLE anna; DELETE FROM d.t WHERE k > 6; REFRESH MATERIALIZED VIEW d.mv; SELECT count(*) FROM d.mv', 'SET ROLE bob; SELECT d.f(1)',
	'GRANT SELECT ON d.t TO bob; SET ROLE bob; SELECT count(d.f(v)) FROM d.t; SELECT count(*) FROM d.t WHERE d.f(v) > 0; SELECT d.f(v) FROM d.t ' .
	'WHERE k = 1',
	'GRANT SELECT ON d.t TO bob; GRANT EXECUTE ON FUNCTION d.f TO bob; SET ROLE bob; SELECT count(d.f(v)) FROM d.t; SELECT count(*) FROM d.t ' .
	'WHERE d.f(v) > 0; SELECT d.f(v) FROM d.t WHERE k = 1', 'SET ROLE bob; SELECT d.total()', 'SET ROLE bob; SELECT d.total_invoker()',
	'SET ROLE bob; CALL d.proc(); SELECT d.total()', 'SET ROLE bob; CALL d.proc_invoker()',
	'GRANT TRUNCATE ON d.t TO bob; SET ROLE bob; TRUNCATE d.t; SELECT 1; DELETE FROM d.t', 'GRANT INSERT ON d.t TO bob; SET ROLE bob; INSERT INTO ' .
	'd.t VALUES (50, 1), (51, 1), (52, 1); INSERT INTO d.t VALUES (53, 1) RETURNING k; INSERT INTO d.t SELECT 54, 1; SELECT count(*) FROM d.t',
	'GRANT UPDATE ON d.t TO bob; SET ROLE bob; UPDATE d.t SET v = 1; UPDATE d.t SET v = v + 1; UPDATE d.t SET v = 1 WHERE k = 1; LOCK d.t IN ' .
	'EXCLUSIVE MODE; BEGIN; LOCK d.t IN EXCLUSIVE MODE; COMMIT',
	'GRANT DELETE ON d.t TO bob; SET ROLE bob; DELETE FROM d.t WHERE k = 1; DELETE FROM d.t; SELECT 1',
	'GRANT UPDATE, SELECT ON d.t TO bob; SET ROLE bob; UPDATE d.t SET k = k + 100 WHERE k = 3; UPDATE d.t SET k = 200 WHERE k = 4 RETURNING v',
	'GRANT UPDATE (k), SELECT ON d.t TO bob; SET ROLE bob; UPDATE d.t SET k = 300 WHERE k = 5; UPDATE d.t SET v = 5 WHERE k = 6',
	'ALTER TABLE d.t OWNER TO bob', 'SET ROLE bob; ALTER TABLE d.t OWNER TO bob', 'SET ROLE anna; ALTER TABLE d.t OWNER TO bob',
	'GRANT CREATE ON SCHEMA d TO bob; ALTER TABLE d.t OWNER TO bob; SET ROLE bob; SELECT count(*) FROM d.t; RESET ROLE; SET ROLE anna; SELECT ' .
	'count(*) FROM d.t; REFRESH MATERIALIZED VIEW d.mv',
	'SET ROLE mal; CREATE TABLE m.c (k int PRIMARY KEY REFERENCES d.place)', 'GRANT REFERENCES ON d.place TO mal; SET ROLE mal; CREATE TABLE m.c ' .
	'(k int PRIMARY KEY REFERENCES d.place); INSERT INTO m.c VALUES (1)', 'GRANT USAGE ON SCHEMA h TO nosuch', 'GRANT SELECT ON d.nosuch TO bob',
	'BEGIN; GRANT SELECT ON d.t TO bob; SET LOCAL ROLE bob; SELECT count(*) FROM d.t; ROLLBACK; SET ROLE bob; SELECT count(*) FROM d.t',
	'BEGIN; SET LOCAL ROLE bob; SAVEPOINT a; SELECT count(*) FROM d.t; ROLLBACK TO a; RESET ROLE; SELECT count(*) FROM d.t; COMMIT',
	'PREPARE p AS SELECT count(*) FROM d.t; EXECUTE p; SET ROLE bob; EXECUTE p; RESET ROLE; EXECUTE p', 'GRANT SELECT ON d.t TO bob; SET ROLE ' .
	'bob; PREPARE p AS SELECT v FROM d.t WHERE k = 1; EXECUTE p; RESET ROLE; REVOKE SELECT ON d.t FROM bob; SET ROLE bob; EXECUTE p',
	"SET ROLE bob; SELECT has_table_privilege('d.t', 'SELECT'), has_schema_privilege('h', 'USAGE'), pg_has_role('staff', 'MEMBER'), " .
	"has_sequence_privilege('d.q', 'USAGE'), has_function_privilege('d.f(int)', 'EXECUTE')",
	"GRANT SELECT ON d.t TO bob; SET ROLE bob; SELECT count(*) FROM d.t WHERE has_table_privilege('d.t', 'SELECT') AND current_user = 'bob'; " .
	"SELECT count(*) FROM d.t WHERE k = 1 AND current_user = 'bob' AND session_user <> 'bob' AND pg_has_role('staff', 'MEMBER')",
	'GRANT SELECT ON d.t TO bob; SET ROLE bob; BEGIN; DECLARE c CURSOR FOR SELECT k FROM d.t ORDER BY k; SET ROLE eve; FETCH 3 FROM c; COMMIT',
	'GRANT SELECT, UPDATE ON d.t TO bob; SET ROLE bob; BEGIN; DECLARE c CURSOR FOR SELECT k FROM d.t ORDER BY k FOR UPDATE; RESET ROLE; SET ROLE ' .
	'eve; FETCH 3 FROM c; COMMIT',
	'GRANT SELECT ON d.t TO bob; SET ROLE bob; BEGIN; DECLARE c CURSOR FOR SELECT v FROM d.t WHERE k = 1; RESET ROLE; SET ROLE eve; FETCH 3 FROM ' .
	'c; COMMIT');
foreach my $sql (@grants)
{
	push @stories, { name => "grants: $sql", user => undef, sql => $sql, setup => granted($sql) };
	$stories[-1]{refused} = 1 if $sql =~ /UPDATE d.t SET k|DECLARE c CURSOR FOR SELECT v FROM d.t WHERE k = 1/;
}

# ---- what nodes say to each other, said by users ----

my $mark = '/*tessera as 10 root*/ SELECT ';
my $forging = 'SET SESSION AUTHORIZATION anna;' . sharded('d.t', 'v text, PRIMARY KEY (k)') .
	"INSERT INTO d.t SELECT g, 'secret' FROM generate_series(1, 12) g; SET SESSION AUTHORIZATION mal;" . sharded('m.t', 'v text, PRIMARY KEY (k)')
  . "CREATE FUNCTION m.tg() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN EXECUTE \$q\$${mark}'SELECT v FROM d.t WHERE k = 1'\$q\$ INTO NEW.v; " .
  "RETURN NEW; END \$\$; CREATE TRIGGER tg BEFORE INSERT ON m.t FOR EACH ROW EXECUTE FUNCTION m.tg();"
  . "CREATE FUNCTION m.inlined() RETURNS SETOF text STABLE LANGUAGE sql AS \$\$${mark}'SELECT v FROM d.t WHERE k = 1'::text\$\$; CREATE FUNCTION " .
  "m.scalar(x int) RETURNS text IMMUTABLE LANGUAGE sql AS \$\$${mark}'SELECT v FROM d.t WHERE k = 1'::text\$\$;"
  . "CREATE FUNCTION m.folded() RETURNS text IMMUTABLE LANGUAGE plpgsql AS \$\$ DECLARE r text; BEGIN EXECUTE \$q\$${mark}'SELECT v FROM d.t " .
  "WHERE k = 1'\$q\$ INTO r; RETURN r; END \$\$;";
foreach my $sql ("${mark}'SELECT v FROM d.t'", "${mark}'SELECT v FROM d.t' FROM m.t", 'INSERT INTO m.t VALUES (1), (2), (3), (4); SELECT * FROM m.t',
	'SELECT * FROM m.inlined()', 'SELECT m.scalar(1)', 'INSERT INTO m.t VALUES (5), (6); SELECT m.scalar(k) FROM m.t',
	'SELECT count(*) FROM m.t WHERE m.folded() <> v',
	"PREPARE p AS ${mark}'SELECT v FROM d.t'; EXECUTE p", "COPY (${mark}'SELECT v FROM d.t') TO STDOUT", "/*tessera as 10 root*/ CREATE TABLE m.x " .
	"AS SELECT v FROM d.t", "/*tessera as 10 root*/ CREATE TABLE m.x AS SELECT 'SELECT v FROM d.t' AS v; SELECT v FROM m.x",
	"/*tessera as 10 root*/ EXPLAIN (COSTS OFF) SELECT 'SELECT v FROM d.t'", "BEGIN; DECLARE c CURSOR FOR ${mark}'SELECT v FROM d.t'; FETCH 1 " .
	"FROM c; COMMIT", "CREATE VIEW m.x AS ${mark}'SELECT v FROM d.t'::text AS v; SELECT * FROM m.x", "/*tessera as 10 root*/ SELECT v FROM d.t")
{
	story("forged: $sql", 'mal', $forging, $sql);
}

# ---- foreign keys ----

my $references = 'SET SESSION AUTHORIZATION anna; CREATE TABLE d.p (k int PRIMARY KEY, v int); CREATE TABLE d.c (k int, n int, PRIMARY KEY (k, n));'
  . "SELECT tessera.shard_table('d.p', 'k', 'hash', chunks => 4); SELECT " .
  "tessera.shard_table('d.c', 'k', 'hash', colocate_with => 'd.p');" . 'ALTER TABLE d.c ADD FOREIGN KEY (k) REFERENCES d.p ON ' .
  'DELETE CASCADE; INSERT INTO d.p SELECT g, g FROM generate_series(1, 12) g; INSERT INTO d.c SELECT g, g FROM generate_series(1, 12) g; GRANT ' .
  'DELETE, SELECT ON d.p TO bob; GRANT INSERT, SELECT ON d.c TO mal;';
foreach my $more ('', 'ALTER TABLE d.p ENABLE ROW LEVEL SECURITY; ALTER TABLE d.p FORCE ROW LEVEL SECURITY; ALTER TABLE d.c ENABLE ROW LEVEL ' .
	'SECURITY; ALTER TABLE d.c FORCE ROW LEVEL SECURITY; CREATE POLICY x ON d.c TO mal USING (true);')
{
	story("foreign keys: $_->[1] $more", undef, $references . $more,
		"SET SESSION AUTHORIZATION $_->[0]; $_->[1]; RESET SESSION AUTHORIZATION; SELECT count(*) FROM d.c")
	  foreach [ 'bob', 'DELETE FROM d.p WHERE k = 1' ], [ 'bob', 'DELETE FROM d.p' ], [ 'bob', 'DELETE FROM d.c' ], [ 'mal',
	  'INSERT INTO d.c VALUES (1, 2)' ], [ 'mal', 'INSERT INTO d.c VALUES (1, 3), (2, 3), (3, 3)' ], [ 'mal', 'INSERT INTO d.c VALUES (99, 3)' ];
}

# Stories that leave nothing behind share what they start from: the next one begins where this one began. Some clean up behind themselves.
my $same_parents = 'DELETE FROM d.p; INSERT INTO d.p SELECT g, g FROM generate_series(1, 12) g; INSERT INTO d.c SELECT g, g FROM ' .
	'generate_series(1, 12) g';
foreach my $story (@stories)
{
	my $clean = $story->{sql} =~ /\Q$put\E$/ || $story->{name} =~ /^(who a trigger sees|a function with a setting)/ ? 'DELETE FROM d.t'
	  : $story->{name} =~ /^forged: INSERT/ ? 'DELETE FROM m.t' : $story->{name} =~ /^foreign keys/ ? $same_parents : undef;
	$story->{same} = 1 if $clean || $story->{name} =~ /^(deferred trigger|in a restricted|forged)/ && $story->{sql} !~ /INSERT|CREATE/;
	$story->{sql} .= "; $clean" if $clean;
}

# ---- running them ----

sub psql
{
	my ($server, $user, $sql) = @_;
	my $conninfo = $server . (defined $user ? " user=$user" : '');
	my ($status, $out, $err) = PsqlPool::run($conninfo, $sql, options => [ '-v', 'VERBOSITY=verbose' ],
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	die "psql does not end: $sql" unless defined $status;
	return ($out, $err);
}

sub answer
{
	my ($server, $story) = @_;
	my ($out, $err) = psql($server, $story->{user}, "SET client_min_messages = error;\n$story->{sql}" . ($story->{sql} =~ /\n\z/ ? '' : ";\n"));
	my @errors;
	foreach my $line (split /\n/, $err)
	{
		push @errors, $1 . ($1 eq 'P0001' ? ": $2" : '') if $line =~ /(?:ERROR|FATAL):  (\w{5}): (.*)/;
	}
	my $user = TesseraCluster::user();
	return { answer => join("\n", (sort split /\n/, $out), @errors), text => $err };
}

sub run_stories
{
	my ($server) = @_;
	my @answers;
	my $prepared = '';
	foreach my $story (@stories)
	{
		my $setup = $story->{setup} // $hidden;
		my ($out, $err) = $prepared eq $setup ? ('', '') : psql($server, undef, "BEGIN; $after $before $setup COMMIT");
		$prepared = $story->{same} ? $setup : '';
		push @answers, answer($server, $story);
		$answers[-1]{text} .= "(setup: $err)";
		$answers[-1]{answer} .= 'setup failed' if $err =~ /ERROR/;
	}
	psql($server, undef, $after);
	return @answers;
}

$c->plain->append_conf('postgresql.conf', 'max_prepared_transactions = 10');
$c->plain->restart;
$c->plain_query($_) foreach $roles, $stub;
$c->create(shards => 2, routers => 1);
$c->query('s1', $roles);

my @expected = run_stories($c->plain->connstr('postgres'));
is(scalar(grep { $_->{answer} =~ /setup failed/ } @expected), 0, 'the stories can be told on a plain server')
	or diag map { $_->{text} } grep { $_->{answer} =~ /setup failed/ } @expected;
foreach my $name (qw(r1 s1))
{
	my @got = run_stories($c->node($name)->connstr('postgres'));
	my $differ = 0;
	for my $i (0 .. $#stories)
	{
		next if $got[$i]{answer} eq $expected[$i]{answer};
		next if $stories[$i]{refused} && $got[$i]{answer} =~ /42501/ && $got[$i]{text} =~ /permission denied for (schema h|table t)/ &&
		  $got[$i]{answer} !~ /setup/;
		$differ++;
		diag "from $name: $stories[$i]{name} ($stories[$i]{sql})\n--- plain\n$expected[$i]{answer}\n$expected[$i]{text}\n--- " .
			"cluster\n$got[$i]{answer}\n$got[$i]{text}\n" if $differ <= ($ENV{SHOW} // 12);
	}
	is($differ, 0, "through $name: " . scalar(@stories) . ' stories end as on a plain server');
}
is(join(' ', $c->query_all("SELECT rolsuper FROM pg_roles WHERE rolname = 'mal'")), 'f f f', 'nobody has become superuser');

# A key is read by whoever routes: no check of a domain inside it.
$c->query('s1', 'CREATE DOMAIN public.dom AS int CHECK (VALUE > 0); CREATE TYPE public.comp AS (a int, b public.dom); CREATE TABLE ka (k ' .
	'public.dom[] PRIMARY KEY); CREATE TABLE kc (k public.comp PRIMARY KEY); CREATE TABLE kd (k public.dom PRIMARY KEY)');
like($c->error('s1', "SELECT tessera.shard_table('$_', 'k')"), qr/42P16.*cannot be part of a shard key/, "no key of $_") foreach qw(ka kc);
$c->query('s1', "SELECT tessera.shard_table('kd', 'k')");
$c->query('s1', $_) foreach 'CREATE TYPE public.inner_row AS (b int)', 'CREATE TYPE public.outer_row AS (a int, r public.inner_row[])',
	'CREATE TABLE ki (k public.outer_row PRIMARY KEY)', "SELECT tessera.shard_table('ki', 'k')";
my $attribute = qr/0A000.*which is part of the shard key, is made of it/;
like($c->error($_->[0], "ALTER TYPE public.$_->[1]"), $attribute, "nor does it get there later: $_->[1]") foreach
	['s1', 'inner_row ADD ATTRIBUTE d public.dom'], ['s2', 'outer_row ADD ATTRIBUTE d public.dom'], ['s2', 'inner_row DROP ATTRIBUTE b'];
$c->query('s1', $_) foreach 'CREATE SCHEMA gone', 'CREATE TYPE gone.o AS (a int)', 'CREATE TABLE gone.k (k gone.o PRIMARY KEY)',
	'CREATE TYPE gone.i AS (b int)', 'ALTER TYPE gone.o ADD ATTRIBUTE r gone.i', "SELECT tessera.shard_table('gone.k', 'k')",
	'DROP SCHEMA gone CASCADE';
is(join(' ', $c->query_all("SELECT to_regnamespace('gone') IS NULL")), 't t t', 'all of it goes together');
$c->query('s1', 'ALTER TYPE public.comp ADD ATTRIBUTE c int');
is(join(' ', $c->query_all(q{SELECT '(1,2,3)'::public.comp})), '(1,2,3) (1,2,3) (1,2,3)', 'a type of no key changes');

# What a user has written does not run by the rights of who adds a node.
$c->start_node('s3', extension => 1);
$c->query('s1', 'CREATE SCHEMA m AUTHORIZATION mal');
$c->query('s1', 'SET ROLE mal; CREATE FUNCTION m.grab(x int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN IF current_user <> \'mal\' THEN EXECUTE ' .
	'\'ALTER ROLE mal SUPERUSER\'; END IF; RETURN true; END $$;'
	  . " CREATE DOMAIN m.dom AS int CHECK (m.grab(VALUE)); CREATE VIEW m.v AS SELECT '{1}'::m.dom[] AS a");
$c->query($_, 'CREATE ROLE anna; CREATE ROLE bob; CREATE ROLE mal; CREATE ROLE eve; CREATE ROLE root; CREATE ROLE staff') foreach 's3';
like($c->error('s1', sprintf("SELECT tessera.add_shard('s3', %s)", TesseraCluster::quote($c->conninfo('s3')))), qr/42501.*m\.grab\(integer\)/,
	'a schema script does not run what others have written');
is($c->query('s3', "SELECT rolsuper FROM pg_roles WHERE rolname = 'mal'"), 'f', 'nor did it');
$c->query('s1', 'DROP VIEW m.v');
my $read = 'EXECUTE ON FUNCTION pg_catalog.pg_read_file(text)';
$c->query('s1', "GRANT $read TO mal");
$c->query('s1', "SET ROLE mal; CREATE DOMAIN m.file AS int CHECK (pg_catalog.pg_read_file('postgresql.conf') IS NOT NULL);
	CREATE DOMAIN m.told AS int CHECK (CASE WHEN current_user <> 'mal'
		THEN query_to_xml('SELECT pg_notify(''mal'', rolpassword) FROM pg_authid', false, false, '') IS NOT NULL ELSE true END)");
foreach (['file', qr/42501.*pg_read_file\(text\)/], ['told', qr/42501.*function \w+\(.*\) is not run by a schema script/])
{
	my ($domain, $refused) = @$_;
	$c->query('s1', "SET ROLE mal; CREATE VIEW m.v AS SELECT '{1}'::m.$domain\[] AS a");
	like($c->error('s1', sprintf("SELECT tessera.add_shard('s3', %s)", TesseraCluster::quote($c->conninfo('s3')))), $refused,
		"nor what does more than compute: $domain");
	$c->query('s1', 'DROP VIEW m.v');
}
$c->query('s1', "REVOKE $read FROM mal");
$c->query('s1', "SET ROLE mal; CREATE DOMAIN m.word AS text CHECK (lower(VALUE) = VALUE); CREATE VIEW m.v AS SELECT '{a}'::m.word[] AS a");
$c->add_shard('s3');

done_testing();
