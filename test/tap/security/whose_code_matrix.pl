# Whose code runs as whom, by a generated matrix (doc/architecture.md, "Whose code runs as whom"): every kind of code that a user can leave behind
# writes down who it runs as (current and session user, superuser or not, in a restricted operation or not, session_replication_role), and it is
# reached in every way, on sharded, replicated, placed and partitioned tables, through several nodes, by several roles. Who says so on one plain
# server, given the same statements, is who must say so in the cluster, as a set for each cell: nobody else, and nobody less. What has no counterpart
# there (moves, range deletion, splits) may run code as the table's owner in a restricted operation and as nobody else. Nobody here is a superuser, so
# no code may run as one. The exceptions stand in @differences and @besides, each with its reason. What is said is read in the servers' logs.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

# ---- kinds of code ----

# {T} is the table (without schema w), {X} the kind's name, {K} the tag of both, a literal: 'TABLE:KIND'. A kind has columns of the table, SQL after
# the table was made (after), what stands in front (before) or is made by the author of functions (author), the type of v, a view that is named
# instead of the table (view => 1), or an expression of v (expr). Partitioned tables cannot have all of them (partitions => 0).
my @kinds;

sub kind
{
	my ($name, %kind) = @_;
	push @kinds, { name => $name, %kind };
	return;
}

kind('default', columns => ', c_{X} int DEFAULT w.value({K})');
kind('generated', columns => ', c_{X} int GENERATED ALWAYS AS (w.told({K}, v)) STORED');
kind('domain', before => 'CREATE DOMAIN w.{T}_d AS int CHECK (w.told({K}, VALUE) IS NOT NULL)', type => 'w.{T}_d');
kind('check', columns => ', CHECK (w.told({K}, v) IS NOT NULL)');
kind('index', after => 'CREATE INDEX {T}_{X} ON w.{T} (w.told({K}, v))');
kind('predicate', after => 'CREATE INDEX {T}_{X} ON w.{T} (v) WHERE w.told({K}, v) > 0');
kind('unique', after => 'CREATE UNIQUE INDEX {T}_{X} ON w.{T} (k, w.told({K}, v))', partitions => 0);
kind('exclusion', columns => ', EXCLUDE USING btree (k WITH =, w.told({K}, v) WITH =)', partitions => 0);
kind('statistics', after => 'CREATE STATISTICS w.{T}_{X} ON (w.told({K}, v)), k FROM w.{T}');
kind('policy', after => 'ALTER TABLE w.{T} ENABLE ROW LEVEL SECURITY; ALTER TABLE w.{T} FORCE ROW LEVEL SECURITY; ' .
	'CREATE POLICY p ON w.{T} USING (w.told({K}, v) IS NOT NULL) WITH CHECK (w.told({K}, v) IS NOT NULL)');

sub trigger
{
	my ($name, $when, $level, $function) = @_;
	$function //= 'w.fire({K})';
	kind($name, after => "CREATE TRIGGER {X} $when ON w.{T} FOR EACH $level EXECUTE FUNCTION $function");
	return;
}

my $events = 'INSERT OR UPDATE OR DELETE';
trigger('before_row', "BEFORE $events", 'ROW');
trigger('after_row', "AFTER $events", 'ROW');
trigger('before_statement', "BEFORE $events OR TRUNCATE", 'STATEMENT');
trigger('after_statement', "AFTER $events OR TRUNCATE", 'STATEMENT');
trigger('definer_trigger', "BEFORE $events", 'ROW', 'w.fire_definer({K})');
trigger('set_trigger', "AFTER $events", 'ROW', 'w.fire_set({K})');
trigger('shard_trigger', "BEFORE $events", 'ROW', 'w.fire_on_shard({K})');
trigger('column_trigger', 'AFTER UPDATE OF v', 'ROW');
trigger('trigger_when', 'AFTER INSERT OR UPDATE', 'ROW WHEN (w.told({K}, NEW.v) IS NULL)');
kind('always_trigger', after => "CREATE TRIGGER {X} AFTER $events ON w.{T} FOR EACH ROW EXECUTE FUNCTION w.fire({K}); " .
	'ALTER TABLE w.{T} ENABLE ALWAYS TRIGGER {X}');
kind('constraint_trigger', after => "CREATE CONSTRAINT TRIGGER {X} AFTER $events ON w.{T} FOR EACH ROW EXECUTE FUNCTION w.fire({K})");
kind('deferred_trigger', after => "CREATE CONSTRAINT TRIGGER {X} AFTER $events ON w.{T} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW " .
	'EXECUTE FUNCTION w.fire({K})');
kind('deferred_definer', after => "CREATE CONSTRAINT TRIGGER {X} AFTER $events ON w.{T} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW " .
	'EXECUTE FUNCTION w.fire_definer({K})');
kind('transition', after => join('; ', map { "CREATE TRIGGER {X}_$_->[0] AFTER $_->[0] ON w.{T} REFERENCING $_->[1] TABLE AS changed FOR EACH " .
	'STATEMENT EXECUTE FUNCTION w.fire({K})' } [ 'INSERT', 'NEW' ], [ 'UPDATE', 'NEW' ], [ 'DELETE', 'OLD' ]));
# All of these at once, without and with the policy: a table's kinds decide together where triggers fire and how statements are sent.
my @together = grep { !$_->{type} && $_->{name} ne 'policy' } @kinds;
my ($policy) = grep { $_->{name} eq 'policy' } @kinds;
# without what keeps ON CONFLICT and triggers on the shard
my @triggers = grep { $_->{name} !~ /^(index|predicate|unique|exclusion|.*deferred.*|constraint_trigger)$/ } @together;
foreach my $view ([ 'view', '' ], [ 'view_invoker', 'WITH (security_invoker)' ], [ 'view_barrier', 'WITH (security_barrier)' ],
	[ 'view_check', '', 'WITH CHECK OPTION' ])
{
	my ($name, $with, $check) = @$view;
	kind($name, view => 1, after => "CREATE VIEW w.{T}_v $with AS SELECT k, v, p FROM w.{T} WHERE w.told({K}, v) IS NOT NULL " . ($check // ''));
}
kind('instead_trigger', view => 1, after => 'CREATE VIEW w.{T}_v AS SELECT k, v, p FROM w.{T}; ' .
	'CREATE TRIGGER {X} INSTEAD OF INSERT OR UPDATE OR DELETE ON w.{T}_v FOR EACH ROW EXECUTE FUNCTION w.instead({K}, {T})');
kind('rule', view => 1, after => 'CREATE VIEW w.{T}_v AS SELECT k, v, p FROM w.{T}; ' .
	'CREATE RULE i AS ON INSERT TO w.{T}_v DO INSTEAD INSERT INTO w.{T} (k, v) VALUES (NEW.k, w.told({K}, NEW.v)); ' .
	'CREATE RULE u AS ON UPDATE TO w.{T}_v DO INSTEAD UPDATE w.{T} SET v = w.told({K}, NEW.v) WHERE k = OLD.k; ' .
	'CREATE RULE d AS ON DELETE TO w.{T}_v DO INSTEAD DELETE FROM w.{T} WHERE k = OLD.k AND w.told({K}, v) IS NOT NULL');
my %functions = (
	sql => [ '', 'sql', 'SELECT w.told({K}, x) + 0' ],
	strict => [ 'STRICT', 'plpgsql', 'BEGIN RETURN w.told({K}, x); END' ],
	definer => [ 'SECURITY DEFINER', 'plpgsql', 'BEGIN RETURN w.told({K}, x); END' ],
	definer_sql => [ 'SECURITY DEFINER', 'sql', 'SELECT w.told({K}, x)' ],
	set => [ 'SET work_mem = $$1MB$$', 'plpgsql', 'BEGIN RETURN w.told({K}, x); END' ],
	volatile => [ 'VOLATILE', 'plpgsql', 'BEGIN RETURN w.told({K}, x); END' ]);
foreach my $name (sort keys %functions)
{
	my ($how, $language, $body) = @{ $functions{$name} };
	$how = "IMMUTABLE $how" unless $how eq 'VOLATILE';
	kind("function_$name", author => "CREATE FUNCTION w.{T}_f(x int) RETURNS int $how LANGUAGE $language AS \$b\$ $body \$b\$", expr => 'w.{T}_f(v)');
}
my $function = 'CREATE FUNCTION w.{T}_f(%s) RETURNS %s IMMUTABLE LANGUAGE plpgsql AS $b$ BEGIN RETURN %s; END $b$; ';
kind('cast', author => 'CREATE TYPE w.{T}_t AS (a int); ' . sprintf($function, 'x w.{T}_t', 'int', 'w.told({K}, (x).a)') .
	'CREATE CAST (w.{T}_t AS int) WITH FUNCTION w.{T}_f(w.{T}_t)', expr => 'ROW(v)::w.{T}_t::int');
kind('operator', author => sprintf($function, 'x int, y int', 'int', 'w.told({K}, x) + y') . 'CREATE OPERATOR w.+ (LEFTARG = int, RIGHTARG = int, ' .
	'FUNCTION = w.{T}_f)', expr => 'v OPERATOR(w.+) 0');
kind('aggregate', author => sprintf($function, 'x int, y int', 'int', 'w.told({K}, y)') . 'CREATE AGGREGATE w.{T}_a(int) (SFUNC = w.{T}_f, ' .
	'STYPE = int, INITCOND = 0)', expr => 'w.{T}_a(v)');
kind('matview', after => 'CREATE MATERIALIZED VIEW w.{T}_m AS SELECT k, w.told({K}, v) AS v FROM w.{T} WITH NO DATA');

# ---- ways to reach it ----

my $rows = PostgreSQL::Test::Utils::tempdir() . '/rows';
append_to_file($rows, "11\t1\n12\t1\n22\t1\n");

# Tables with a foreign key to a replicated one.
my $referring = qr/^(s_all|s_all_policy|s_triggers|p_all|r_all)$/;

# {R} is what is named, the table or its view; {E} an expression of v; {P} a partition, or the table. A way may be of some tables only (of), or not
# for functions (top). Every UPDATE changes an indexed column: else whether expressions of indexes run would depend on the room in the page.
my @ways;

sub way
{
	my ($name, $sql, %way) = @_;
	push @ways, { name => $name, sql => $sql, %way };
	return;
}

way('select by key', 'SELECT k, {E} FROM w.{R} WHERE k = 15');
way('select by another key', 'SELECT k, {E} FROM w.{R} WHERE k = 5');
way('select all', 'SELECT {E} FROM w.{R}');
way('select where', 'SELECT 1 FROM w.{R} WHERE {E} > 0');
way('select grouped', 'SELECT {E}, count(*) FROM w.{R} GROUP BY 1 ORDER BY 1');
way('select aggregated', 'SELECT max({E}) FROM w.{R}');
way('select joined', 'SELECT {E}, o FROM w.{R} JOIN w.other USING (k)');
way('select joined elsewhere', 'SELECT {E}, o FROM w.{R} r JOIN w.other ON other.o = r.k');
way('select in a subquery', 'SELECT o, (SELECT sum({E}) FROM w.{R} r WHERE r.k = o) FROM w.other');
way('select for update', 'SELECT {E} FROM w.{R} WHERE k = 15 FOR UPDATE');
way('explain analyze', 'EXPLAIN ANALYZE SELECT {E} FROM w.{R}');
way('copy to', 'COPY (SELECT {E} FROM w.{R}) TO STDOUT', top => 1);
way('copy table to', 'COPY w.{R} TO STDOUT', top => 1);
way('insert', 'INSERT INTO w.{R} (k, v) VALUES (16, 1)');
way('insert here', 'INSERT INTO w.{R} (k, v) VALUES (6, 1)');
way('insert rows', 'INSERT INTO w.{R} (k, v) VALUES (7, 1), (17, 1), (27, 1)');
way('insert select', 'INSERT INTO w.{R} (k, v) SELECT k + 3, {E} FROM w.{R} WHERE k % 5 = 0');
way('insert from a series', 'INSERT INTO w.{R} (k, v) SELECT g * 10 + 4, 1 FROM generate_series(0, 2) g');
way('insert returning', 'INSERT INTO w.{R} (k, v) VALUES (19, 1) RETURNING {E}');
way('insert rows returning', 'INSERT INTO w.{R} (k, v) VALUES (9, 1), (29, 1) RETURNING {E}');
way('insert into a partition', 'INSERT INTO w.{P} (k, v) VALUES (14, 1) ON CONFLICT DO NOTHING');
way('on conflict', 'INSERT INTO w.{R} AS r (k, v) VALUES (15, 1) ON CONFLICT (k) DO UPDATE SET v = r.v + EXCLUDED.v');
way('on conflict, rows', 'INSERT INTO w.{R} AS r (k, v) VALUES (5, 1), (15, 1), (25, 1) ON CONFLICT (k) DO UPDATE SET v = r.v + 1 ' .
	'RETURNING {E}');
way('copy from', "\\copy w.{R} (k, v) FROM '$rows'\n", top => 1);
way('update by key', 'UPDATE w.{R} SET v = {E} + 1 WHERE k = 15');
way('update all', 'UPDATE w.{R} SET v = {E} + 1');
way('update returning', 'UPDATE w.{R} SET v = v + 1 WHERE {E} > 0 RETURNING {E}');
way('update from', 'UPDATE w.{R} r SET v = v + o FROM w.other WHERE other.k = r.k');
way('update from elsewhere', 'UPDATE w.{R} r SET v = v + other.k FROM w.other WHERE other.o = r.k');
way('update in with', 'WITH u AS (UPDATE w.{R} SET v = v + 1 WHERE k IN (5, 15) RETURNING {E} AS e) SELECT * FROM u');
way('merge', 'MERGE INTO w.{R} r USING w.other o ON r.k = o.k WHEN MATCHED THEN UPDATE SET v = {E} + 1 ' .
	'WHEN NOT MATCHED THEN INSERT (k, v) VALUES (o.k, 1)');
way('prepared select', 'SET plan_cache_mode = force_generic_plan; PREPARE q(int) AS SELECT {E} FROM w.{R} WHERE k = $1; ' .
	'EXECUTE q(15); EXECUTE q(5); DEALLOCATE q; RESET plan_cache_mode', top => 1);
way('prepared writes', 'SET plan_cache_mode = force_generic_plan; PREPARE q(int) AS UPDATE w.{R} SET v = {E} + 1 WHERE k = $1; ' .
	'EXECUTE q(15); EXECUTE q(5); DEALLOCATE q; RESET plan_cache_mode', top => 1);
way('cursor', 'BEGIN; DECLARE q CURSOR FOR SELECT {E} FROM w.{R}; FETCH 2 FROM q; FETCH ALL FROM q; COMMIT', top => 1);
way('cursor with hold', 'BEGIN; DECLARE q CURSOR WITH HOLD FOR SELECT {E} FROM w.{R}; COMMIT; FETCH ALL FROM q; CLOSE q', top => 1);
way('current of', 'BEGIN; DECLARE q CURSOR FOR SELECT k FROM w.{R} WHERE k = 15 FOR UPDATE; FETCH q; ' .
	'UPDATE w.{R} SET v = v + 1 WHERE CURRENT OF q; COMMIT',
	top => 1, of => qr/^[so]/);
way('transaction', 'BEGIN; UPDATE w.{R} SET v = v + 1 WHERE k = 5; UPDATE w.{R} SET v = v + 1 WHERE k = 15; SAVEPOINT a; ' .
	'UPDATE w.{R} SET v = v + 1 WHERE k = 25; ROLLBACK TO a; SET CONSTRAINTS ALL IMMEDIATE; COMMIT', top => 1);
way('prepared transaction', "BEGIN; UPDATE w.{R} SET v = v + 1 WHERE k IN (5, 15, 25); PREPARE TRANSACTION '{T}'; COMMIT PREPARED '{T}'", top => 1);
way('loop of a block', 'DO $d$ DECLARE e int; BEGIN FOR e IN SELECT {E} FROM w.{R} LOOP UPDATE w.{R} SET v = v + e WHERE k = 15; END LOOP; END $d$');
way('temporary table as', 'CREATE TEMP TABLE q AS SELECT {E} AS e FROM w.{R}; DROP TABLE q', top => 1);
way('truncate', 'BEGIN; TRUNCATE w.{T}; ROLLBACK', top => 1);
way('cascade of an update', 'UPDATE w.{T}_parent SET id = id + 2', of => $referring);
way('cascade of a delete', 'BEGIN; DELETE FROM w.{T}_parent; COMMIT; INSERT INTO w.{T}_parent VALUES (1, 1), (2, 2); UPDATE w.{T} SET p = 1',
	of => $referring, top => 1);
way('delete by key', 'DELETE FROM w.{R} WHERE k = 16');
way('delete returning', 'DELETE FROM w.{R} WHERE k IN (7, 17, 27) RETURNING {E}');
way('delete using', 'DELETE FROM w.{R} r USING w.other WHERE other.k + 3 = r.k');
way('delete some', 'DELETE FROM w.{R} WHERE k % 5 <> 0 AND v IS NOT NULL');

# Ways of the owner alone.
my $tables_of_all = qr/^[spro]_(all|all_policy|matview|cast)$/;
my @owners_ways;

sub owners_way
{
	my ($name, $sql, %way) = @_;
	push @owners_ways, { name => $name, sql => $sql, top => 1, of => $tables_of_all, %way };
	return;
}

owners_way('analyze', 'ANALYZE w.{T}', of => qr/./);
owners_way('refresh', 'REFRESH MATERIALIZED VIEW w.{T}_m', of => qr/_matview$/);
owners_way('refresh concurrently', 'CREATE UNIQUE INDEX ON w.{T}_m (k); REFRESH MATERIALIZED VIEW CONCURRENTLY w.{T}_m', of => qr/_matview$/);
owners_way('create index', 'CREATE INDEX {T}_n ON w.{T} (w.told({K}, v)); DROP INDEX w.{T}_n');
owners_way('create index concurrently', 'CREATE INDEX CONCURRENTLY {T}_n ON w.{T} (w.told({K}, v)) WHERE w.told({K}, k) > 0; DROP INDEX w.{T}_n',
	of => qr/^[sro]_(all|all_policy)$/);
owners_way('alter type using', 'ALTER TABLE w.{T} ALTER p TYPE bigint USING w.told({K}, p::int); ' .
	'ALTER TABLE w.{T} ALTER p TYPE int USING w.told({K}, 1)',
	of => qr/^[spro]_(matview|cast|default|check|index)$/);
owners_way('add a check', 'ALTER TABLE w.{T} ADD CONSTRAINT {T}_c CHECK (w.told({K}, v) IS NOT NULL); ALTER TABLE w.{T} DROP CONSTRAINT {T}_c');
owners_way('validate a check', 'ALTER TABLE w.{T} ADD CONSTRAINT {T}_c CHECK (w.told({K}, v) IS NOT NULL) NOT VALID; ALTER TABLE w.{T} VALIDATE ' .
	'CONSTRAINT {T}_c; ALTER TABLE w.{T} DROP CONSTRAINT {T}_c');
owners_way('add a column', 'ALTER TABLE w.{T} ADD n int DEFAULT w.value({K}); ALTER TABLE w.{T} DROP n');
owners_way('add a generated column', 'ALTER TABLE w.{T} ADD n int GENERATED ALWAYS AS (w.told({K}, v)) STORED; ALTER TABLE w.{T} DROP n');
owners_way('table as', 'CREATE TABLE w.{T}_new AS SELECT w.told({K}, v) AS v FROM w.{T}; DROP TABLE w.{T}_new');
owners_way('vacuum full', 'VACUUM FULL w.{T}');
owners_way('cluster', 'CLUSTER w.{T} USING {T}_pkey', of => qr/^[sro]_(all|all_policy)$/);
owners_way('reindex', 'REINDEX TABLE w.{T}');
owners_way('reindex concurrently', 'REINDEX TABLE CONCURRENTLY w.{T}', of => qr/^[sro]_all$/);

# ---- what differs, and why ----

# Besides who says so on a plain server, tags by themselves may say so: [tag, way, what the identity is like, reason].
my @besides = (
	[ qr/^r_.*:(index|predicate|unique|exclusion)$/, qr/./, qr/^user=owner session=\S+ super=f restricted=yes /,
		"rows of a replicated table are put into its copies as the table's owner, in a restricted operation" ],
	[ qr/^s_domain:domain$/, qr/^insert select$/, qr/^user=(RUNS) session=\S+ super=f restricted=no /,
		'a value of a domain goes to its shard as text, which the domain checks again, as the current user' ]);

# [name of the table, way, SQLSTATE that the cluster answers instead ('' for none), reason]: identities may be missing there, never too many.
my @differences = (
	[ qr/^[spr]/, qr/^add a column$/, '0A000', 'refused: a column with a volatile default' ],
	[ qr/_rule$/, qr/^(insert|update|delete|merge|prepared|current|transaction|loop)/, '0A000',
		'refused: a rule on a view writes (doc/differences.md)' ]);

# ---- the tables ----

my @tables;    # {name, how, kinds => [...], with => what of the kinds stands in statements}

sub table
{
	my ($how, $name, @of) = @_;
	my %table = (name => "${how}_$name", how => $how, kinds => \@of);
	foreach my $kind (@of)
	{
		$table{$_} = $kind->{$_} foreach grep { defined $kind->{$_} } qw(type expr view);
	}
	push @tables, \%table;
	return;
}

# s: sharded, p: sharded and partitioned, r: replicated, o: placed, on one shard
# What is not a table of its own is in those of many kinds.
my $many = qr/^(predicate|statistics|after_statement|set_trigger|column_trigger|trigger_when|always_trigger|constraint_trigger)$/;
table('s', $_->{name}, $_) foreach grep { $_->{name} !~ $many } @kinds;
table('r', $_->{name}, $_) foreach grep { $_->{name} =~ /^(domain|policy|matview)$/ } @kinds;
table('p', $_->{name}, $_) foreach grep { $_->{name} =~ /^(default|policy|before_row)$/ } @kinds;
foreach my $how (qw(s p r o))
{
	my @of = grep { $how ne 'p' || ($_->{partitions} // 1) } @together;
	table($how, 'all', @of) unless $how eq 'o';
	table($how, 'all_policy', @of, $policy);
	table($how, 'triggers', @triggers) if $how eq 's';
}

# Statements with the table's names put in, for one of its kinds where they are the kind's.
sub fill
{
	my ($table, $sql, $kind) = @_;
	my $name = $kind ? $kind->{name} : 'way';
	my %of = (T => $table->{name}, X => $name, K => "'$table->{name}:$name'", R => $table->{view} ? "$table->{name}_v" : $table->{name},
		E => $table->{expr} // 'v', P => $table->{how} eq 'p' ? "$table->{name}_1" : $table->{name});
	1 while $sql =~ s/\{([TXKREP])\}/$of{$1}/g;
	return $sql;
}

my $say = <<'SQL';
CREATE FUNCTION w.say(tag text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE restricted text := 'no'; super bool;
BEGIN
	BEGIN
		EXECUTE 'DEALLOCATE nosuch';
	EXCEPTION WHEN insufficient_privilege THEN restricted := 'yes'; WHEN invalid_sql_statement_name THEN restricted := 'no';
	END;
	SELECT rolsuper INTO super FROM pg_catalog.pg_roles WHERE rolname = current_user;
	RAISE WARNING 'who tag=% user=% session=% super=% restricted=% replication=%', tag, current_user, session_user, super, restricted,
		pg_catalog.current_setting('session_replication_role');
END $$;
CREATE FUNCTION w.told(tag text, x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM w.say(tag); RETURN x; END $$;
CREATE FUNCTION w.value(tag text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM w.say(tag); RETURN 1; END $$;
CREATE FUNCTION w.fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM w.say(TG_ARGV[0]); RETURN coalesce(NEW, OLD); END $$;
CREATE FUNCTION w.fire_definer() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS
$$ BEGIN PERFORM w.say(TG_ARGV[0]); RETURN coalesce(NEW, OLD); END $$;
CREATE FUNCTION w.fire_set() RETURNS trigger SET work_mem = '1MB' LANGUAGE plpgsql AS
$$ BEGIN PERFORM w.say(TG_ARGV[0]); RETURN coalesce(NEW, OLD); END $$;
CREATE FUNCTION w.fire_on_shard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM w.say(TG_ARGV[0]); RETURN coalesce(NEW, OLD); END $$;
CREATE FUNCTION w.instead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM w.say(TG_ARGV[0]);
	CASE TG_OP
		WHEN 'INSERT' THEN EXECUTE format('INSERT INTO w.%I (k, v) VALUES ($1, $2)', TG_ARGV[1]) USING NEW.k, NEW.v;
		WHEN 'UPDATE' THEN EXECUTE format('UPDATE w.%I SET v = $2 WHERE k = $1', TG_ARGV[1]) USING NEW.k, NEW.v;
		ELSE EXECUTE format('DELETE FROM w.%I WHERE k = $1', TG_ARGV[1]) USING OLD.k;
	END CASE;
	RETURN coalesce(NEW, OLD);
END $$;
CREATE FUNCTION w.run(sql text) RETURNS void SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN EXECUTE sql; END $$;
SQL

sub setup
{
	my ($cluster) = @_;
	my $sql = "SET client_min_messages = error; BEGIN; CREATE ROLE owner LOGIN; CREATE ROLE writer LOGIN; CREATE ROLE author LOGIN; " .
	  "COMMIT; CREATE SCHEMA w AUTHORIZATION owner; GRANT ALL ON SCHEMA w TO PUBLIC;\nSET SESSION AUTHORIZATION author; BEGIN; $say";
	$sql .= "ALTER FUNCTION w.fire_on_shard SET tessera.trigger_place = 'shard';\n" if $cluster;
	foreach my $table (@tables)
	{
		$sql .= fill($table, "$_->{author};\n", $_) foreach grep { $_->{author} } @{ $table->{kinds} };
	}
	$sql .= "COMMIT; SET SESSION AUTHORIZATION owner; BEGIN; CREATE TABLE w.base (k int PRIMARY KEY);\n";
	$sql .= "CREATE TABLE w.other (k int PRIMARY KEY, o int);\n";
	$sql .= "SELECT tessera.shard_table('w.base', 'k'); SELECT tessera.shard_table('w.other', 'k', colocate_with => 'w.base');\n" if $cluster;
	$sql .= "INSERT INTO w.other SELECT g * 5, 35 - g * 5 FROM generate_series(1, 6) g;\n";
	foreach my $table (@tables)
	{
		my @of = @{ $table->{kinds} };
		my $type = $table->{type} // 'int';
		$sql .= fill($table, "$_->{before};\n", $_) foreach grep { $_->{before} } @of;
		my $refers = $table->{name} =~ $referring;
		$sql .= fill($table, "CREATE TABLE w.{T}_parent (id int PRIMARY KEY, n int); " .
			"INSERT INTO w.{T}_parent VALUES (1, 1), (2, 2);\n") if $refers;
		$sql .= fill($table, "SELECT tessera.replicate_table('w.{T}_parent');\n") if $refers && $cluster;
		my $columns = $refers ? fill($table, ' REFERENCES w.{T}_parent ON UPDATE CASCADE ON DELETE SET NULL') : '';
		$columns .= join '', map { fill($table, $_->{columns} // '', $_) } @of;
		$sql .= fill($table, "CREATE TABLE w.{T} (k int PRIMARY KEY, v $type DEFAULT 1, p int$columns)") .
			($table->{how} eq 'p' ? ' PARTITION BY RANGE (k)' : '') . ";\n";
		$sql .= fill($table, "CREATE TABLE w.{T}_1 PARTITION OF w.{T} FOR VALUES FROM (13) TO (23); " .
			"CREATE TABLE w.{T}_2 PARTITION OF w.{T} DEFAULT;\n")
		  if $table->{how} eq 'p';
		# A partition has a default of its own.
		$sql .= fill($table, "ALTER TABLE w.{T}_1 ALTER c_{X} SET DEFAULT w.value({K});\n", $_)
		  foreach grep { $table->{how} eq 'p' && $_->{name} eq 'default' } @of;
		$sql .= fill($table, "CREATE INDEX ON w.{T} (p);\n") if $refers;
		$sql .= fill($table, "$_->{after};\n", $_) foreach grep { $_->{after} } @of;
		$sql .= "SELECT tessera.shard_table('w.$table->{name}', 'k', colocate_with => 'w.base');\n" if $cluster && $table->{how} =~ /[sp]/;
		$sql .= "SELECT tessera.replicate_table('w.$table->{name}');\n" if $cluster && $table->{how} eq 'r';
		$sql .= "INSERT INTO w.$table->{name} (k, v, p) SELECT g * 5, 1, 1 FROM generate_series(1, 6) g;\n";
	}
	return $sql . 'GRANT ALL ON ALL TABLES IN SCHEMA w TO writer, author; COMMIT; RESET SESSION AUTHORIZATION';
}

# ---- running them ----

my $c = TesseraCluster->new('whose_code_matrix', settings => {
	'tessera.orphan_cleanup_delay' => 0, autovacuum => 'off', 'tessera.injection_points' => 'on', log_error_verbosity => 'terse' });

my %read;    # how far each log was read

# What the logs have got since the last call: {table => {identity => 1}}.
sub heard
{
	my %heard;
	foreach my $server (@_)
	{
		my $log = $server->logfile;
		open(my $file, '<', $log) or die "$log: $!";
		seek($file, $read{$log} // 0, 0);
		local $/;
		my $text = <$file> // '';
		$read{$log} = tell $file;
		$heard{$1}{$2} = 1 while $text =~ /WARNING:  who tag=(\S+) (user=.*)$/mg;
	}
	return \%heard;
}

my %sessions;

sub session_of
{
	my ($server, $role) = @_;
	return $sessions{ $server->name . " $role" } //= do {
		my $session = $server->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', $role ]);
		$session->set_query_timer_restart;
		$session->query("\\set VERBOSITY verbose\n\\o /dev/null\nSET client_min_messages = error; SET statement_timeout = '60s'");
		$session;
	};
}

sub tables_of
{
	my ($way, $of) = @_;
	return grep { $_->{name} =~ $of && (!$way->{of} || $_->{name} =~ $way->{of}) } @tables;
}

# Runs a way on all tables: what was heard, and the errors: ({table => {identity => 1}}, {table => error}).
sub reach
{
	my ($server, $servers, $role, $way, $of) = @_;
	my $definer = $role eq 'definer';
	my $session = session_of($server, $definer ? 'writer' : $role);
	heard(@$servers);
	my $sql = '';
	foreach my $table (tables_of($way, $of))
	{
		my $text = fill($table, $way->{sql});
		$text = "SELECT w.run(\$way\$$text\$way\$)" if $definer;
		$sql .= "\\warn == $table->{name}\n" . $text . ($text =~ /\n\z/ ? '' : ";\n");
	}
	$session->{stderr} = '';
	{
		no warnings 'redefine';
		local *PostgreSQL::Test::BackgroundPsql::note = sub { };
		$session->query($sql);
	}
	my ($table, %errors);
	foreach my $line (split /\n/, $session->{stderr})
	{
		$table = $1 if $line =~ /^== (.*)/;
		$errors{$table} //= $1 if $line =~ /(?:ERROR|FATAL):  (\w{5}: .*)/;
	}
	return (heard(@$servers), \%errors);
}

# Role, node, and tables: through one node all, through the others those of many kinds and some more.
my $most = qr/^._(all|all_policy|policy|view_invoker|function_definer|deferred_definer|matview)$/;
my @runs = ([ 'writer', 's1', qr/./ ], [ 'owner', 's2', $most ], [ 'definer', 's3', $most ]);

$c->plain->append_conf('postgresql.conf', "max_prepared_transactions = 10\nautovacuum = off\nlog_error_verbosity = terse");
$c->plain->restart;
$c->plain_query(setup(0));
$c->create(shards => 3);
$c->query('s1', setup(1));
my @nodes = map { $c->node($_) } $c->names;

# What has no counterpart on one server: what was heard since the last call is said by the tables' owner, in a restricted operation or, in statements
# of the owner's own, by the owner.
sub only_owner
{
	my ($what, %how) = @_;
	my $like = $how{own} ? qr/^user=owner session=(?:owner super=f |\S+ super=f restricted=yes )/
	  : qr/^user=owner session=\S+ super=f restricted=yes /;
	my $heard = heard(@nodes);
	my @others;
	foreach my $tag (sort keys %$heard)
	{
		push @others, "$tag: $_" foreach grep { !/$like/ } sort keys %{ $heard->{$tag} };
	}
	is(join("\n", @others), '', "$what: code runs as the table's owner, or not at all");
	note("$what: code of " . scalar(keys %$heard) . ' kinds and tables has run');
	cmp_ok(scalar(keys %$heard), '>', 0, "$what: code has run") if $how{some};
	return;
}

sub no_rows_to_delete
{
	ok($c->wait_for($_, 'SELECT count(*) FROM tessera.range_deletions', '0'), "$_ has no rows left to delete") foreach $c->names;
	return;
}

heard(@nodes);
$c->query('s1', "SELECT tessera.move_range('w.base', $_, verify => true)")
  foreach "tessera.minkey(), 11, 's1'", "11, 21, 's2'", "21, tessera.maxkey(), 's3'";
is($c->query('s1', "SELECT string_agg(tessera.range_owner('w.base', k), ' ' ORDER BY k) FROM unnest('{5, 15, 25}'::int[]) k"), 's1 s2 s3',
	'rows are on each shard');
only_owner('move_range', some => 1);
no_rows_to_delete();
only_owner('range deletion');

# Whether an identity may be there besides those of a plain server.
sub is_besides
{
	my ($besides, $tag, $way, $identity, $role) = @_;
	my $current = $role eq 'definer' ? 'author' : $role;
	my $like = "$besides->[2]" =~ s/RUNS/$current/r;
	return $tag =~ $besides->[0] && $way->{name} =~ $besides->[1] && $identity =~ $like;
}

# The tags of a table that were heard.
sub tags_of
{
	my ($table, @heard) = @_;
	my %tags = map { $_ => 1 } grep { /^\Q$table->{name}\E:/ } map { keys %$_ } @heard;
	return sort keys %tags;
}

my %expected;
my $cells = 0;
my @bad;
my (%used, %excepted, %reached);
foreach my $run (@runs)
{
	my ($role, $node, $of) = @$run;
	my $plain = !$expected{$role};
	foreach my $way ($role eq 'definer' ? grep { !$_->{top} } @ways : $role eq 'owner' ? (@ways, @owners_ways) : @ways)
	{
		$expected{$role}{ $way->{name} } = [ reach($c->plain, [ $c->plain ], $role, $way, $of) ] if $plain;
		my $began = time();
		my ($heard, $errors) = reach($c->node($node), \@nodes, $role, $way, $of);
		my ($wanted, $wanted_errors) = @{ $expected{$role}{ $way->{name} } };
		foreach my $table (tables_of($way, $of))
		{
			my $name = $table->{name};
			my ($error, $wanted_error) = map { substr($_->{$name} // '', 0, 5) } $errors, $wanted_errors;
			my ($differ, @more, @less) = ('');
			foreach my $tag (tags_of($table, $heard, $wanted))
			{
				my ($got, $want) = ($heard->{$tag} // {}, $wanted->{$tag} // {});
				$cells++;
				$reached{ $way->{name} } = $reached{ $tag =~ s/.*://r } = 1 if %$want;
				foreach my $identity (grep { !$want->{$_} || !/ super=f / } sort keys %$got)
				{
					my @why = grep { is_besides($_, $tag, $way, $identity, $role) } @besides;
					$used{ $why[0][3] } = $excepted{ $why[0][3] }{$tag}{"$way->{name} ($role)"} = 1 if @why;
					push @more, "$tag $identity" unless @why;
				}
				push @less, map { "$tag $_" } grep { !$got->{$_} } sort keys %$want;
			}
			next unless @more || @less || $error ne $wanted_error;
			my @why = @more ? () : grep { $name =~ $_->[0] && $way->{name} =~ $_->[1] && $error eq $_->[2] } @differences;
			if (@why)
			{
				$used{ $why[0][3] } = $excepted{ $why[0][3] }{$name}{"$way->{name} ($role)"} = 1;
				next;
			}
			push @bad, "$name, $way->{name}, by $role through $node: " . fill($table, $way->{sql}) . "\n" .
			  join('', map { "    too much: $_\n" } @more) . join('', map { "    missing:  $_\n" } @less) .
			  "    error: " . ($errors->{$name} // 'none') . ', expected ' . ($wanted_errors->{$name} // 'none') . "\n";
		}
	}
}
is(join(' ', grep { !$reached{$_} } (map { $_->{name} } @kinds, @ways, @owners_ways)), '',
	'each kind of code and each way is heard on a plain server');
is(scalar(@bad), 0, 'code runs as on a plain server') or diag @bad;
is(join("\n", grep { !$used{$_} } map { $_->[3] } @differences, @besides), '', 'each reason for a difference is needed');

# ---- what one server does not do ----

heard(@nodes);
my $move = "SET client_min_messages = error; SELECT tessera.move_range('w.base', 1, 8, 's2', verify => true)";
is($c->while_paused('s2', 'recipient_cloned', $move, sub {
	my @written = grep { $_->{how} =~ /[sp]/ && $_->{name} !~ /_rule$/ } @tables;
	my $sql = join('', map { fill($_, "UPDATE w.{T} SET v = v + 1 WHERE k = 5; INSERT INTO w.{T} (k, v) VALUES (6, 1); ") } @written);
	is($c->answer(session_of($c->node('s3'), 'writer'), $sql), '', 'rows are written while they move');
	heard(@nodes);
	$c->go_on('s2');
}), '', 'rows move while they are written');
only_owner('changes that a move brings', some => 1);
$c->query('s1', "SELECT tessera.split_chunk('w.base', 15)");
only_owner('split_chunk');
$c->query('s1', "SELECT tessera.move_range('w.base', tessera.minkey(), tessera.maxkey(), 's1', verify => true)");
only_owner('all move back', some => 1);
no_rows_to_delete();
only_owner('the rest is deleted');
my $owner = session_of($c->node('s2'), 'owner');
foreach my $sql ("SELECT tessera.replicate_table('w.o_all_policy')", "SELECT tessera.unreplicate_table('w.o_all_policy')",
	"SELECT tessera.shard_table('w.o_all_policy', 'k')", "CREATE TABLE w.late (k int PRIMARY KEY, v int, g int GENERATED ALWAYS AS " .
	"(w.told('late:generated', v)) STORED); CREATE INDEX ON w.late (w.told('late:index', v)); " .
	"INSERT INTO w.late SELECT g, g FROM generate_series(1, 20) g",
	"SELECT tessera.shard_table('w.late', 'k', colocate_with => 'w.o_all_policy')")
{
	my ($name) = $sql =~ /^([^;(]*\([^;(]*)/;
	if ($sql =~ /colocate_with/)
	{
		$c->query('s1', "SELECT tessera.move_range('w.o_all_policy', $_)") foreach "10, 15, 's1'", "15, 20, 's3'";
		only_owner('a move of what was placed');
	}
	unlike($c->answer($owner, $sql), qr/^\w{5}$/, $name);
	only_owner($name, own => 1);
}
is($c->left_behind, '', 'nothing is left behind, all is consistent');

note("$cells cells; where they are other than on a plain server:");
foreach my $reason (sort keys %excepted)
{
	note("$reason:");
	note("    $_: " . join(', ', sort keys %{ $excepted{$reason}{$_} })) foreach sort keys %{ $excepted{$reason} };
}
done_testing();
