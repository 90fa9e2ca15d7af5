# CREATE INDEX CONCURRENTLY of tables of the cluster: one distributed transaction makes the index on every node, not valid; each node builds its own
# while clients write and ranges move; what fails is taken back everywhere. After a crash at each step it is carried on (more of that in
# ddl/operations_survive); no node joins meanwhile. DROP INDEX CONCURRENTLY is one distributed transaction.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('concurrently', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });
$c->create(shards => 3, routers => 1);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v int, few int, filler text); CREATE SCHEMA far; CREATE TABLE far.placed (k int, v text)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "SELECT tessera.move_range('t', 1000, 2000, 's2')");
$c->query('s1', "SELECT tessera.move_range('t', 2000, tessera.maxkey(), 's3')");
$c->query('r1', 'INSERT INTO t SELECT g, g, g % 3, repeat(\'x\', 50) FROM generate_series(1, 2999) g');
$c->query('r1', "INSERT INTO far.placed SELECT g, 'v' || g FROM generate_series(1, 100) g");

# What each node says of an index, by node: v valid, i not valid, - not there; what REINDEX may have left counts as a '+'.
sub states
{
	my ($index, $table) = @_;
	return join('', map { $c->query($_, "SELECT coalesce((SELECT CASE WHEN indisvalid AND indisready THEN 'v' ELSE 'i' END FROM pg_index " .
		"WHERE indexrelid = to_regclass('$index')), '-') || (SELECT repeat('+', count(*)::int) FROM pg_index WHERE indrelid = '" . ($table // 't') .
		"'::regclass AND NOT indisvalid AND indexrelid IS DISTINCT FROM to_regclass('$index'))") } $c->names);
}

sub consistent
{
	my ($what) = @_;
	return is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$what: all is consistent");
}

# ---- as on one server

$c->query('r1', 'CREATE INDEX CONCURRENTLY ON t (v)');
is(states('t_v_idx'), 'vvvv', 'an index without a name has the same one everywhere, and is valid');
$c->query('s2', q{CREATE INDEX CONCURRENTLY odd ON t (lower(filler) text_pattern_ops DESC, (v + 1)) INCLUDE (few) WITH (fillfactor = 70)
	WHERE few > 0 AND filler <> E'a\\\\b'});
is(states('odd'), 'vvvv', 'expressions, options, a predicate');
$c->query('r1', 'CREATE UNIQUE INDEX CONCURRENTLY whole ON t (few, k); CREATE INDEX CONCURRENTLY IF NOT EXISTS whole ON t (v)');
is(states('whole'), 'vvvv', 'a unique one with the shard key; IF NOT EXISTS');
$c->query('s1', 'CREATE INDEX CONCURRENTLY ON far.placed USING hash (v); ' .
	q{CREATE INDEX CONCURRENTLY words ON far.placed USING gin (to_tsvector('simple', v))});
is(states('far.placed_v_idx', 'far.placed') . states('far.words', 'far.placed'), 'vvvvvvvv', 'of a placed table, other access methods');
$c->query('s1', 'CREATE TABLE far.parts (k int, v int) PARTITION BY RANGE (k); ' .
	'CREATE TABLE far.low PARTITION OF far.parts FOR VALUES FROM (0) TO (10)');
like($c->error('r1', 'CREATE INDEX CONCURRENTLY ON far.parts (v)'), qr/0A000/, 'not of a partitioned table');
$c->query('r1', 'CREATE INDEX CONCURRENTLY "Of ""one""" ON far.low (v)');
is(states('far."Of ""one"""', 'far.low'), 'vvvv', 'of a partition; a quoted name');
consistent('made');
$c->query('r1', "DROP INDEX CONCURRENTLY $_") foreach 'odd', 'whole';
is(states('odd') . states('whole'), '--------', 'DROP INDEX CONCURRENTLY');
$c->query('r1', 'DROP INDEX CONCURRENTLY IF EXISTS odd');
like($c->error('r1', "BEGIN; $_; COMMIT"), qr/25001/, "in a transaction block: $_")
  foreach 'CREATE INDEX CONCURRENTLY ON t (few)', 'DROP INDEX CONCURRENTLY t_v_idx';
like($c->error('r1', 'DROP INDEX CONCURRENTLY t_v_idx CASCADE'), qr/0A000/, 'CASCADE');
like($c->error('r1', 'CREATE INDEX CONCURRENTLY t_v_idx ON t (few)'), qr/42P07/, 'a name that is there');
like($c->error('r1', 'CREATE UNIQUE INDEX CONCURRENTLY ON t (v)'), qr/42P16/, 'a unique one without the shard key');
like($c->error('r1', 'CREATE INDEX CONCURRENTLY ON t (nosuch)'), qr/42703/, 'a column that is not there');
$c->query('s1', 'CREATE ROLE stranger LOGIN; CREATE ROLE owner LOGIN; CREATE SCHEMA own AUTHORIZATION owner');
like($c->error('r1', "SET ROLE stranger; $_"), qr/42501/, "another's: $_")
  foreach 'CREATE INDEX CONCURRENTLY ON t (few)', 'DROP INDEX CONCURRENTLY t_v_idx';

# Code of the owner's runs as the owner, on each node, whoever asks.
$c->query('s1', q{SET ROLE owner; CREATE TABLE own.t (k int PRIMARY KEY, v int);
	CREATE FUNCTION own.who(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
	'BEGIN IF current_user <> ''owner'' THEN RAISE ''this is %'', current_user; END IF; RETURN $1; END'});
$c->query('s1', "SELECT tessera.shard_table('own.t', 'k')");
$c->query('s1', "SELECT tessera.move_range('own.t', 50, tessera.maxkey(), 's2')");
$c->query('r1', 'INSERT INTO own.t SELECT g, g FROM generate_series(1, 99) g');
$c->query('r1', 'CREATE INDEX CONCURRENTLY theirs ON own.t (own.who(v))');
is(states('own.theirs', 'own.t'), 'vvvv', 'an expression runs as the owner of the table');
$c->query('r1', 'SET ROLE owner; DROP INDEX CONCURRENTLY own.theirs; CREATE INDEX CONCURRENTLY theirs ON own.t (own.who(v))');
is(states('own.theirs', 'own.t'), 'vvvv', 'and for the owner');

# ---- what fails is taken back

$c->query('s1', 'CREATE TABLE dup (k int, v int); INSERT INTO dup SELECT g, g FROM generate_series(1, 200) g');
$c->query('s1', "CREATE INDEX dup_k ON dup (k); ALTER TABLE dup ALTER k SET NOT NULL, REPLICA IDENTITY FULL; SELECT tessera.shard_table('dup', 'k')");
$c->query('s1', "SELECT tessera.move_range('dup', 100, tessera.maxkey(), 's3')");
$c->query('r1', 'INSERT INTO dup VALUES (150, 1)');
my $error = $c->error('r1', 'CREATE UNIQUE INDEX CONCURRENTLY only_once ON dup (k)');
like($error, qr/23505.*only_once/s, 'rows that are there twice on one shard');
like($error, qr/node "s3"/, 'the error names it');
is(states('only_once', 'dup'), '----', 'nothing is left');
$c->query('r1', 'DELETE FROM dup WHERE v = 1 AND k = 150; CREATE UNIQUE INDEX CONCURRENTLY only_once ON dup (k)');
is(states('only_once', 'dup'), 'vvvv', 'again, when it can be');
consistent('taken back');

# A session whose transaction is in the way of the build on that node: it has written.
sub in_the_way
{
	my ($node, $k) = @_;
	my $session = $c->session($node, on_error_stop => 0);
	$session->query_safe("BEGIN; UPDATE t SET few = few WHERE k = $k");
	return $session;
}

# Cancelled while one node waits.
$c->pause_at('r1', 'index_build');
my $run = $c->background('r1', 'CREATE INDEX CONCURRENTLY slow ON t (few)');
$c->is_paused_at('r1', 'index_build');
is(states('slow'), 'iiii', 'made on every node, valid on none');
my $writer = in_the_way('s2', 1500);
$c->go_on('r1');
my $waits = q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'REINDEX INDEX CONCURRENTLY%'};
ok($c->wait_for('s2', $waits), 's2 waits for a transaction that has written');
ok($c->wait_for('s1', "SELECT indisvalid FROM pg_index WHERE indexrelid = 'slow'::regclass"), 's1 does not wait for it');
$c->query('r1', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY slow%'});
$writer->query_safe('COMMIT');
like($c->ended($run), qr/57014/, 'cancelled');
is(states('slow'), '----', 'and taken back');

# ---- a move waits for no build, which may wait for the snapshot of the move's caller

my $reader = $c->session('s1');
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$run = $c->background('r1', 'CREATE INDEX CONCURRENTLY meanwhile ON t (few)');
ok($c->wait_for('s1', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'virtualxid' AND query LIKE 'REINDEX INDEX CONCURRENTLY%'"),
	'the build on s1 waits for an older snapshot');
$c->query('s1', "SELECT tessera.move_range('t', 500, 600, 's2')");
is(states('meanwhile'), 'i+vvv', 'a range has moved meanwhile');
$reader->query_safe('COMMIT');
is($c->ended($run), '', 'then the build ends');
is(states('meanwhile'), 'vvvv', 'on all nodes');
$c->query('s1', "SELECT tessera.move_range('t', 500, 600, 's1')");

# ---- while clients write and a range moves

my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 2, seconds => 600, rate => 40, script => <<'EOS')->begun;
\set k random(1, 2999)
BEGIN;
UPDATE t SET v = v + 1 WHERE k = :k;
INSERT INTO far.placed VALUES (:k, 'w');
COMMIT;
EOS
my $before = $c->query('r1', 'SELECT sum(v) FROM t');
$run = $c->background('r1', 'CREATE INDEX CONCURRENTLY busy ON t (few, v)');
$c->query('s1', "SELECT tessera.move_range('t', 500, 1200, 's3')") if $c->wait_for('s1', "SELECT to_regclass('busy') IS NOT NULL");
is($c->ended($run), '', 'while clients write and a range moves');
my $sums = $load->end;
is($sums->{failed} // 0, 0, "no transaction failed of $sums->{processed}");
is(states('busy'), 'vvvv', 'valid everywhere');
foreach my $shard ('s1', 's2', 's3')
{
	my $count = sub { $c->query($shard, "SET enable_seqscan = $_[0]; SET enable_indexscan = $_[1]; SET enable_bitmapscan = $_[1]; " .
		'SELECT count(*), sum(v) FROM t WHERE few >= 0') };
	is($count->('off', 'on'), $count->('on', 'off'), "$shard reads the same by the index");
}
consistent('under load');

# ---- crashes

# The client's node, the config node and a shard, before anything is built, and when all is.
foreach my $case ([ 'r1', 'index_build' ], [ 's1', 'index_build' ], [ 's3', 'index_build' ], [ 'r1', 'index_built' ], [ 's2', 'index_built' ])
{
	my ($node, $point) = @$case;
	my $client = $node eq 's1' ? 's1' : 'r1';
	$c->pause_at($client, $point);
	$run = $c->background($client, 'CREATE INDEX CONCURRENTLY crashed ON t (v, few)');
	$c->is_paused_at($client, $point);
	$c->kill9($node);
	$c->go_on($client) if $client ne $node;
	my $said = $c->ended($run);
	$c->start($node);
	ok($c->wait_for($node, "SELECT count(*) FROM t WHERE k IN (1, 1500, 2500)", '3'), "$node is back");
	ok($c->wait_for($_, "SELECT count(*) FROM pg_prepared_xacts", '0'), "$_ has nothing prepared") foreach $c->names;
	my $now = states('crashed');
	is($now =~ tr/-//, 0, "$node crashes at $point: the index is there");
	like($said, qr/goes on by itself: see tessera\.ddl_operations/, 'the error says that it goes on') if $client ne $node && $point eq 'index_build';
	ok($c->wait_for('s1', "SELECT state || ' ' || nodes_done FROM tessera.ddl_operations ORDER BY started DESC LIMIT 1", 'done 4'),
		'it is carried on to its end');
	is(states('crashed'), 'vvvv', 'valid everywhere, and nothing else is left');
	is($c->query($_, "SELECT * FROM tessera.health WHERE subject ~ 'crashed'"), '', "$_ finds nothing") foreach $c->names;
	consistent("$node at $point");
	$c->query('r1', 'DROP INDEX CONCURRENTLY crashed');
	is(states('crashed'), '----', 'dropped');
}

# A node that joins meanwhile would not get it.
$c->pause_at('r1', 'index_build');
$run = $c->background('r1', 'CREATE INDEX CONCURRENTLY four ON far.low (v, k)');
$c->is_paused_at('r1', 'index_build');
$c->start_nodes('s4');
$c->query('s4', 'CREATE ROLE stranger; CREATE ROLE owner');
like($c->error('s1', sprintf("SELECT tessera.add_shard('s4', %s)", TesseraCluster::quote($c->conninfo('s4')))), qr/55006.*index far\.four/s,
	'no node joins while an index is not valid on the config node');
$c->go_on('r1');
is($c->ended($run), '', 'built');
$c->add_shard('s4');
is(states('far.four', 'far.low') . states('busy'), 'vvvvvvvvvv', 'a node that joins has it');
$c->query('r1', 'CREATE INDEX CONCURRENTLY five ON t (v, few)');
is(states('five'), 'vvvvv', 'and takes part');

# A node that is down: nothing is made.
$c->stop('s3', 'immediate');
like($c->error('r1', 'CREATE INDEX CONCURRENTLY late ON t (v)'), qr/08006.*"s3"/, 'a node that is down: an error that names it');
$c->start('s3');
ok($c->wait_for('r1', "SELECT count(*) FROM t WHERE k IN (1, 1500, 2500)", '3'), 'it is back');
is(states('late'), '-----', 'nothing was made');
done_testing();
