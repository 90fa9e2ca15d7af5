# Code that users leave behind does not run with another's rights, and nothing that it writes is taken for what a router has sent: triggers on rows
# that cascades of replicated tables change, also at the end of the transaction; checks of domains while parameters are bound. Rows of the extension's
# catalog are nobody's to write, not even for pg_write_all_data. What the code meets it says by warnings, which the servers' logs have.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('code_of_users');
$c->create(shards => 3, routers => 1);
$c->query('s1', $_) foreach 'CREATE ROLE mallory LOGIN', 'CREATE ROLE alice LOGIN', 'CREATE SCHEMA mallory AUTHORIZATION mallory';

# Statements of mallory through a node; the errors.
sub mallory
{
	my ($node, $sql) = @_;
	my ($status, $out, $err) = PsqlPool::run($c->node($node)->connstr('postgres') . ' user=mallory', "SET search_path = mallory;\n$sql",
		options => [ '-v', 'VERBOSITY=verbose' ], timeout => $PostgreSQL::Test::Utils::timeout_default);
	return $err;
}

# What the code has said on the shards; the router passes it on.
sub said
{
	my ($pattern) = @_;
	return map { slurp_file($c->node($_)->logfile) =~ /WARNING: +($pattern[^\n]*)/g } qw(s1 s2 s3);
}

# Errors among what a session was told.
sub errors
{
	my ($told) = @_;
	return join "\n", $told =~ /^(?:\S+ )?(?:ERROR|FATAL|PANIC):.*/mg;
}

sub nobody_rose
{
	my ($how) = @_;
	return is(join(' ', $c->query_all(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'})), 'f f f f', "$how: nobody becomes superuser");
}

# ---- triggers of rows that cascades change ----

my $boom = <<'SQL';
CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE WARNING '% of % as %, session %, path %', TG_OP, TG_TABLE_NAME, current_user, session_user, current_setting('search_path');
  IF current_user <> 'mallory' THEN UPDATE pg_catalog.pg_authid SET rolsuper = true WHERE rolname = 'mallory'; END IF;
  RETURN NULL;
END $$;
CREATE TABLE r (id int PRIMARY KEY);
SELECT tessera.replicate_table('r');
CREATE TABLE r2 (id int PRIMARY KEY, r int REFERENCES r ON DELETE CASCADE);
SELECT tessera.replicate_table('r2');
CREATE TABLE c (k int PRIMARY KEY, r int REFERENCES r ON DELETE CASCADE ON UPDATE CASCADE);
SELECT tessera.shard_table('c', 'k', 'hash', chunks => 9);
CREATE TABLE d (k int PRIMARY KEY, r int REFERENCES r ON DELETE SET NULL);
SELECT tessera.shard_table('d', 'k', 'hash', colocate_with => 'c');
CREATE TRIGGER boom AFTER UPDATE OR DELETE ON c FOR EACH ROW EXECUTE FUNCTION boom();
CREATE TRIGGER boom AFTER UPDATE OR DELETE ON r2 FOR EACH ROW EXECUTE FUNCTION boom();
CREATE CONSTRAINT TRIGGER boom AFTER UPDATE OR DELETE ON d DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION boom();
INSERT INTO r SELECT generate_series(1, 5);
INSERT INTO r2 SELECT g, g FROM generate_series(1, 4) g;
INSERT INTO c SELECT g, 1 + g % 4 FROM generate_series(1, 40) g;
INSERT INTO c VALUES (100, 5);
INSERT INTO d SELECT g, 1 + g % 4 FROM generate_series(1, 40) g;
SQL
is(errors(mallory('r1', $boom)), '', 'a replicated table, what refers to it, and triggers there');
# rows of every shard
foreach my $shard (2, 3)
{
	$c->query('s1', qq{SELECT tessera.move_range('mallory.c', min, max, 's$shard') FROM (SELECT min, max, row_number() OVER (ORDER BY min) AS n
		FROM tessera.chunks WHERE table_name = 'mallory.c'::regclass) x WHERE n IN ($shard, $shard + 3)});
}
is($c->query('s1', q{SELECT count(DISTINCT shard) FROM tessera.chunks WHERE table_name = 'mallory.c'::regclass}), '3', 'they have rows everywhere');
is(errors(mallory('r1', 'UPDATE r SET id = 15 WHERE id = 5')), '', 'a cascade of an UPDATE');
is(errors(mallory('r1', 'DELETE FROM r WHERE id <= 2')), '', 'a cascade of a DELETE');
is(errors(mallory('r1', 'BEGIN; DELETE FROM r WHERE id = 3; SET CONSTRAINTS ALL IMMEDIATE; COMMIT; BEGIN; DELETE FROM r WHERE id = 4; ' .
	'INSERT INTO r VALUES (7); COMMIT')), '', 'one whose deferred triggers fire before and at the end');
nobody_rose('cascades');
my @cascades = said('(?:UPDATE|DELETE) of \w+ as');
is(scalar(grep { !/ as mallory, session mallory, path mallory$/ } @cascades), 0, 'triggers run as who deletes, under the settings of that session')
	or diag explain \@cascades;
is(scalar(grep { / of c / } @cascades), 41, 'once for each row of a sharded table');
is(scalar(grep { / of d / } @cascades), 40, 'deferred ones as well');
is(scalar(grep { / of r2 / } @cascades), 4, 'once for each row of a replicated table, on one node');
is($c->query('r1', 'SELECT (SELECT count(*) FROM mallory.c), (SELECT count(*) FROM mallory.r2), (SELECT count(r) FROM mallory.d), ' .
	'(SELECT count(*) FROM mallory.r)'), '1|0|0|2', 'what the cascades leave');
is(scalar(grep { slurp_file($c->node($_)->logfile) =~ /reference leak/ } $c->names), 0, 'no table is left open');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)'), '0', 'the copies are alike');

# ---- texts that users write, while parameters are bound ----

my $evil = <<'SQL';
CREATE FUNCTION evil(v text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
  BEGIN
    EXECUTE '/*tessera rows*/ UPDATE pg_catalog.pg_authid SET rolsuper = true WHERE rolname = ''mallory''';
    GET DIAGNOSTICS n = ROW_COUNT;
    RAISE WARNING 'evil: % rows as %', n, current_user;
  EXCEPTION WHEN OTHERS THEN RAISE WARNING 'evil: %', SQLERRM;
  END;
  BEGIN
    EXECUTE '/*tessera as 10*/ SELECT ''SELECT count(*) FROM pg_catalog.pg_authid''' INTO n;
    RAISE WARNING 'evil: % roles', n;
  EXCEPTION WHEN OTHERS THEN RAISE WARNING 'evil: %', SQLERRM;
  END;
  BEGIN
    EXECUTE 'CREATE TABLE mallory.only_there (i int)';
    EXECUTE 'DROP TABLE mallory.only_there';
  EXCEPTION WHEN OTHERS THEN RAISE WARNING 'evil: %', SQLERRM;
  END;
  BEGIN
    EXECUTE 'SELECT count(*) FROM mallory.d' INTO n;
    RAISE WARNING 'counted: %', n;
  EXCEPTION WHEN feature_not_supported THEN RAISE WARNING 'counted: not on a shard';
  END;
  RETURN true;
END $$;
CREATE DOMAIN dom AS text CHECK (evil(VALUE));
CREATE FUNCTION folded(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  PERFORM evil('folded');
  RETURN v;
END $$;
CREATE TABLE t (k int PRIMARY KEY, v dom);
SELECT tessera.shard_table('t', 'k', 'hash', colocate_with => 'c');
SQL
is(errors(mallory('r1', $evil)), '', 'a domain whose check does what it may not');
mallory('r1', q{INSERT INTO t VALUES (1, 'a'); INSERT INTO t SELECT g, 'x' FROM generate_series(2, 20) g; PREPARE p (mallory.dom) AS } .
	q{UPDATE t SET v = $1 WHERE k = 3; EXECUTE p ('z'); UPDATE t SET v = 'q' WHERE k = 5; SELECT count(*) FROM t WHERE v = 'x'::mallory.dom; } .
	q{UPDATE t SET v = 'folded' WHERE k = folded(4); DELETE FROM t WHERE k = folded(6)});
nobody_rose('texts that look like a router\'s');
is(join(' ', $c->query_all(q{SELECT to_regclass('mallory.only_there') IS NULL})), 't t t t', 'no table is made on one node alone');
my @evil = said('evil:');
cmp_ok(scalar(grep { /permission denied for table pg_authid/ } @evil), '>', 10, 'they are refused');
is(scalar(grep { /\d+ r(?:ows|oles)/ } @evil), 0, 'all of them') or diag explain \@evil;
my @counted = said('counted:');
is(scalar(grep { !/: (?:40|not on a shard)$/ } @counted), 0, 'rows of one shard are not all rows') or diag explain \@counted;

# ---- what functions of a DDL statement do ----

$c->query('s1', $_) foreach (
	'CREATE SCHEMA alice AUTHORIZATION alice', 'GRANT USAGE ON SCHEMA alice TO mallory',
	'SET ROLE alice; CREATE TABLE alice.p (id int PRIMARY KEY)', 'SET ROLE alice; CREATE TABLE alice.audit (id int REFERENCES alice.p, who text)',
	q{SET ROLE alice; CREATE FUNCTION alice.guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'guarded'; END $$},
	'SET ROLE alice; CREATE TRIGGER guard BEFORE INSERT ON alice.audit FOR EACH ROW WHEN (NEW.id > 0) EXECUTE FUNCTION alice.guard()',
	'GRANT INSERT ON alice.audit TO mallory',
	q{SET ROLE alice; CREATE FUNCTION alice.fn() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE relname text := 'the variable'; r text;
BEGIN SELECT relname INTO r FROM pg_class WHERE oid = 1259; RETURN r; EXCEPTION WHEN ambiguous_column THEN RETURN 'ambiguous'; END $$});
is(errors(mallory('r1', <<'SQL')), '', 'a statement whose function writes to what has triggers and foreign keys');
CREATE FUNCTION writes(id int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO alice.audit VALUES (id);
  RETURN 'written';
EXCEPTION WHEN OTHERS THEN RETURN 'not written: ' || SQLERRM;
END $$;
CREATE FUNCTION f(v int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RAISE WARNING 'audit: %, %', writes(1), writes(-1);
  RETURN v::text;
END $$;
CREATE TABLE a (k int PRIMARY KEY, v int);
SELECT tessera.shard_table('a', 'k', 'hash', colocate_with => 'c');
INSERT INTO a SELECT g, g FROM generate_series(1, 20) g;
ALTER TABLE a ALTER v TYPE text USING f(v);
SQL
my @audit = grep { !/another shard/ } said('audit:');
cmp_ok(scalar(@audit), '>', 0, 'it tries where that table is');
is(scalar(grep { !/^audit: not written: guarded, not written: .*violates foreign key constraint.*$/ } @audit), 0,
	'triggers and foreign keys of others hold') or diag explain \@audit;
is($c->query('s1', 'SELECT count(*) FROM alice.audit'), '0', 'nothing is written');

my $port = $c->node('s1')->port;
is(errors(mallory('s1', <<"SQL")), '', 'a statement whose function changes a setting');
CREATE TABLE b (k int PRIMARY KEY, v text);
SELECT tessera.shard_table('b', 'k', 'hash', colocate_with => 'c');
INSERT INTO b SELECT g, g::text FROM generate_series(1, 50) g;
CREATE FUNCTION sets(v text) RETURNS text VOLATILE LANGUAGE sql AS
  \$\$ SELECT CASE WHEN current_setting('port') = '$port' THEN set_config('plpgsql.variable_conflict', 'use_column', false) ELSE alice.fn() END \$\$;
SQL
is(errors(mallory('s1', q{SET plpgsql.variable_conflict = 'use_variable'; ALTER TABLE b ALTER v TYPE text USING sets(v)})), '', 'it runs');
is($c->query('s1', 'SELECT DISTINCT v FROM mallory.b ORDER BY 1'), "ambiguous\nuse_column", 'what a user has set stays a user\'s setting');

# ---- constant calls in an index ----

# The server runs them when it looks at the index's expressions, before any row: whoever writes the rows that a move brings must be the table's owner
# by then. So must who fills copies, and who asks what code a table has.
mallory('s1', <<'SQL');
CREATE FUNCTION one(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'folded as %', current_user; RETURN 1; END $$;
CREATE TABLE folded (k int PRIMARY KEY, v int);
CREATE INDEX ON folded ((v + one(1))) WHERE v < 100 + one(2);
SELECT tessera.shard_table('folded', 'k');
INSERT INTO folded SELECT g, g FROM generate_series(1, 20) g;
CREATE TABLE folded_copies (k int PRIMARY KEY, v int);
CREATE INDEX ON folded_copies ((v + one(1))) WHERE v < 100 + one(2);
SELECT tessera.replicate_table('folded_copies');
INSERT INTO folded_copies SELECT g, g FROM generate_series(1, 20) g;
SQL
$c->query('r1', "SELECT tessera.move_range('mallory.folded', tessera.minkey(), tessera.maxkey(), '$_', verify => true)") foreach qw(s1 s2 s3);
$c->query('r1', q{SELECT tessera.check_table('mallory.folded', 'k')});
my %folded = map { $_ => 1 } said('folded as');
is(join(', ', sort keys %folded), 'folded as mallory', 'constant calls in an index run as the owner of the table');
nobody_rose('constant calls in an index');

# ---- the catalog's rows ----

$c->query('r1', 'GRANT pg_write_all_data, pg_read_all_data TO mallory');
my @writable = split /\n/, $c->query('s1', q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'tessera'::regnamespace AND relkind = 'r'});
foreach my $table (@writable)
{
	my ($column) = split /\n/, $c->query('s1', qq{SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = '$table'::regclass AND attnum > 0
		AND attidentity = '' AND NOT attisdropped ORDER BY attnum LIMIT 1});
	my $told = mallory('s1', "WITH w AS (UPDATE $table SET $column = $column RETURNING 1) SELECT count(*) FROM w \\gset\n" .
		"\\warn updated :count\nWITH w AS (DELETE FROM $table RETURNING 1) SELECT count(*) FROM w \\gset\n\\warn deleted :count");
	is($told, "updated 0\ndeleted 0", "pg_write_all_data changes no row of $table");
	like(mallory('s1', "INSERT INTO $table OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(NULL::$table, '{}')).*"), qr/ERROR:  42501/,
		'nor adds one');
}
my $work = q{INSERT INTO tessera.ddl_operation (operation_id, kind, table_id, schema_name, object_name, statement, search_path, command, asked_by,
	runner) VALUES (gen_random_uuid(), 'reindex table', gen_random_uuid(), 'x', 'x', 'x', 'x', 'ALTER ROLE mallory SUPERUSER', 'postgres', 1)};
like(mallory('s1', $work), qr/ERROR:  42501/, 'work for others is not made up');
like(mallory('s1', 'SELECT count(conninfo) FROM tessera.node \gset' . "\n\\warn read :count"), qr/^read 0$/,
	'pg_read_all_data does not read addresses');
is($c->query('s1', 'SET ROLE alice; SELECT count(name) FROM tessera.node'), '4', 'names are everybody\'s');
nobody_rose('rows of the catalog');

done_testing();
