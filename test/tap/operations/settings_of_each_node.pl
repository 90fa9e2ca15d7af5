# Each node has another dozen of settings that change texts, values, plans, timeouts and the meaning of names: what a cluster is for goes on, from
# each node, as if there were none. What is a client's own business (its timeouts, reading only) counts on the node that it is connected to.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('hostile', settings => { allow_in_place_tablespaces => 'on' });
$c->create(shards => 2, routers => 1);

my %settings = (
	s1 => {
		quote_all_identifiers => 'on', IntervalStyle => 'sql_standard', DateStyle => "'SQL, DMY'", TimeZone => "'Asia/Kolkata'",
		bytea_output => 'escape', extra_float_digits => -10, row_security => 'off', array_nulls => 'off',
		plan_cache_mode => 'force_generic_plan', client_min_messages => 'debug1', jit => 'on', jit_above_cost => 1000,
		enable_indexscan => 'off', enable_hashjoin => 'off', statement_timeout => "'1ms'", escape_string_warning => 'off' },
	s2 => {
		search_path => 'evil, public', default_transaction_isolation => 'serializable', default_transaction_read_only => 'on',
		default_transaction_deferrable => 'on', statement_timeout => "'1ms'", idle_in_transaction_session_timeout => "'1ms'", xmlbinary => 'hex',
		standard_conforming_strings => 'off', backslash_quote => 'on', transform_null_equals => 'on', lc_monetary => "'C.UTF-8'",
		default_tablespace => 'here', temp_tablespaces => 'here', enable_seqscan => 'off', enable_nestloop => 'off', check_function_bodies => 'off',
		session_preload_libraries => "'auto_explain'", 'auto_explain.log_min_duration' => 0, 'auto_explain.log_verbose' => 'on',
		'auto_explain.log_analyze' => 'on', force_parallel_mode => 'on', idle_session_timeout => "'1h'" },
	r1 => {
		IntervalStyle => 'iso_8601', DateStyle => "'German'", TimeZone => "'America/New_York'",
		extra_float_digits => 0, xmloption => 'document', lock_timeout => "'30s'", plan_cache_mode => 'force_custom_plan', enable_sort => 'off',
		enable_hashagg => 'off',
		default_table_access_method => 'heap', default_toast_compression => 'lz4', search_path => 'public, pg_catalog',
		row_security => 'off', client_min_messages => 'error', force_parallel_mode => 'regress' });

# A role that takes for itself what a client needs, as it would on one server.
$c->query('s1', join('; ', 'CREATE ROLE client SUPERUSER LOGIN', map { "ALTER ROLE client SET $_" } 'statement_timeout = 0',
	'idle_in_transaction_session_timeout = 0', 'default_transaction_read_only = off', 'search_path = public'));

# Names that hide the server's own, where they come first.
my $evil = q{CREATE SCHEMA evil; CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS 'SELECT ''evil''::text';
	CREATE FUNCTION evil.to_regclass(text) RETURNS regclass LANGUAGE sql AS 'SELECT NULL::regclass';
	CREATE FUNCTION evil.same(int, int) RETURNS bool LANGUAGE sql AS 'SELECT false';
	CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same); CREATE TABLE evil.node (node_id int)};
$c->set('s1', quote_all_identifiers => 'on', lock_timeout => "'20s'", row_security => 'off');
$c->set('s2', default_transaction_read_only => 'on', extra_float_digits => -5);
foreach my $node ($c->names)
{
	my $here = 'SET default_transaction_read_only = off; SET tessera.replicate_ddl = off';
	$c->query($node, "SET default_transaction_read_only = off; CREATE TABLESPACE here LOCATION ''");
	$c->query($node, "$here; $evil") if $node eq 's2';
	$c->query($node, join('; ', $here, map { "ALTER DATABASE postgres SET $_ = $settings{$node}{$_}" } sort keys %{ $settings{$node} }));
}
$c->restart($_) foreach $c->names;

sub ask { my ($node, $sql) = @_; return $c->query($node, "\\connect - client\n$sql"); }

# ---- from each node ----

my $n = 0;
foreach my $node ('r1', 's1', 's2')
{
	my $to = $node eq 's2' ? 's1' : 's2';
	my $schema = "Other schema $node";
	my $t = qq{"Table $node"};
	$n++;
	ask($node, qq{CREATE TYPE "Mood $n" AS ENUM ('sad', 'ok'); CREATE TABLE $t ("Key" int PRIMARY KEY, "select" text DEFAULT 'a''b', d date,
		i interval, f float8, b bytea, m "Mood $n", a int[], x xml, ts timestamptz) });
	ask($node, qq{CREATE TABLE parts_$n (k int, "n" varchar(20), at date, PRIMARY KEY (k, at)) PARTITION BY RANGE (at)});
	ask($node, qq{CREATE TABLE "Part $n" PARTITION OF parts_$n FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')});
	ask($node, qq{SELECT tessera.shard_table('$t', '"Key"'); SELECT tessera.shard_table('parts_$n', 'k', colocate_with => '$t')});
	ask($node, qq{INSERT INTO $t SELECT g, 'v' || g, '2024-03-02', '-1 day -2:03', pi(), decode('00ff', 'hex'), 'ok', ARRAY[g, NULL], '<a/>',
		'2024-03-02 12:00:00.5+00' FROM generate_series(1, 200) g});
	ask($node, qq{INSERT INTO parts_$n SELECT g, 'n' || g, '2024-05-06' FROM generate_series(1, 200) g});
	ask($node, qq{SELECT tessera.move_range('$t', 101, tessera.maxkey(), '$to')});
	ask($node, qq{CREATE INDEX ON $t ("select"); ANALYZE $t, parts_$n});
	ask($node, qq{ALTER TABLE $t ADD COLUMN "More" numeric(10,2) DEFAULT 1.5 CHECK ("More" > 0); ALTER TABLE parts_$n ALTER "n" TYPE text});
	ask($node, qq{CREATE VIEW "View $n" AS SELECT * FROM $t JOIN parts_$n p ON p.k = "Key"});
	is(ask($node, qq{BEGIN; UPDATE $t SET f = f - 1 WHERE "Key" = 3; UPDATE $t SET f = f + 1 WHERE "Key" = 150; COMMIT; SELECT 'done'}), 'done',
		"$node: a transfer between shards");
	is(ask($node, qq{SELECT count(*), count(DISTINCT "More"), max("n") FROM "View $n" WHERE at = DATE '2024-05-06'}), '200|1|n99', "$node: a join");
	is(ask($node, qq{UPDATE $t SET "Key" = 500 - "Key" WHERE "Key" = 20 RETURNING "Key", "select"}), '480|v20', "$node: the key of a row");
	ask($node, qq{INSERT INTO $t VALUES (601, E'it''s \\\\ one', '2024-03-02') ON CONFLICT ("Key") DO NOTHING});
	is(ask('r1', qq{SELECT "select" FROM $t WHERE "Key" = 601}), "it's \\ one", "$node: a constant");
	ask($node, qq{CREATE INDEX CONCURRENTLY "Index $n" ON $t ("More"); CREATE TABLE copied_$n (k int PRIMARY KEY, t timestamptz, r regclass, p money);
		INSERT INTO copied_$n VALUES (1, '2024-03-02 12:00+00', '$t', 12::money)});
	ask($node, "SELECT tessera.replicate_table('copied_$n')");
	ask($node, "INSERT INTO copied_$n VALUES (2, '1880-01-01 12:00+00', '$t', 3::money)");
	ask($node, qq{CREATE SCHEMA "$schema"; CREATE TABLE "$schema"."T" (k int PRIMARY KEY, v interval);
		INSERT INTO "$schema"."T" VALUES (1, '-1 day -2:03')});
	my $home = ask($node, qq{SELECT n.name FROM tessera.schema_placement p JOIN tessera.node n USING (node_id) WHERE schema_name = '$schema'});
	ask($node, sprintf(q{SELECT tessera.move_schema('%s', '%s')}, $schema, $home eq 's1' ? 's2' : 's1'));
	is(ask($node, qq{SELECT v = '-1 day -2:03'::interval FROM "$schema"."T"}), 't', "$node: a schema moved");
	ask($node, qq{SELECT tessera.move_range('$t', tessera.minkey(), 50, '$to')});
	is(ask($_, qq{SELECT count(*), sum("Key"), count(*) FILTER (WHERE i = '-1 day -2:03' AND b = decode('00ff', 'hex')
		AND a[2] IS NULL AND d = DATE '2024-03-02') FROM $t}), '201|21161|200', "$node: rows are what they were, on $_") foreach $c->names;
}
is(ask('r1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all nodes agree');

# ---- a client's own ----

like($c->error('s2', "\\connect - client\nSET default_transaction_read_only = on; UPDATE \"Table r1\" SET f = 1"),
	qr/25006/, 'a client that only reads');
like($c->error('s1', 'SELECT pg_sleep(10)'), qr/57014/, 'its timeout');
is($c->query('r1', 'UPDATE "Table r1" SET f = 1 WHERE "Key" = 150 RETURNING f'), '1', 'but not for those who write on another node');

# What goes on in the background fails nowhere, either.
foreach my $node ($c->names)
{
	my @errors = grep { /(?:ERROR|WARNING|PANIC): / && !/settings_of_each_node.pl/ } split /\n/,
	  PostgreSQL::Test::Utils::slurp_file($c->node($node)->logfile);
	is(join("\n", @errors), '', "no errors in the log of $node");
}

done_testing();
