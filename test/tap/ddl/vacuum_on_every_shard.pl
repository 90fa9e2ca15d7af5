# VACUUM of named tables of the cluster runs on every shard that has a part of them, CLUSTER and REINDEX on every node, all at once, outside a
# transaction block, each node by itself: rights and options as on one server, an error names its node and undoes nothing elsewhere, a cancellation
# ends all parts, and their locks are waited for as those of transactions of their own.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use TesseraCluster;

my $c = TesseraCluster->new('vacuum', settings => { autovacuum => 'off', 'tessera.deadlock_timeout' => '100ms' });
$c->create(shards => 3, routers => 1);
my @shards = ('s1', 's2', 's3');

$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v int, few int); CREATE INDEX t_v ON t (v); ' .
	'CREATE SCHEMA far; CREATE TABLE far.placed (k int PRIMARY KEY)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "SELECT tessera.move_range('t', 1000, 2000, 's2')");
$c->query('s1', "SELECT tessera.move_range('t', 2000, tessera.maxkey(), 's3')");
$c->query('r1', 'INSERT INTO t SELECT g, g, g % 3 FROM generate_series(1, 2999) g');
my $home = $c->query('s1', "SELECT primary_shard FROM tessera.tables WHERE table_name = 'far.placed'::regclass");
ok((grep { $_ eq $home } @shards), "the placed table is on $home");

sub vacuums
{
	my ($table, @nodes) = @_;
	return join(' ', map { $c->query($_, "SELECT vacuum_count FROM pg_stat_user_tables WHERE relid = '$table'::regclass") } @nodes);
}

# Numbers of the files, by node: they change when a relation is written anew.
sub files
{
	my ($relation) = @_;
	return map { $_ => $c->query($_, "SELECT pg_relation_filenode('$relation')") } @shards;
}

sub changed
{
	my ($relation, %before) = @_;
	my %now = files($relation);
	return join(' ', grep { $now{$_} ne $before{$_} } @shards);
}

# ---- which nodes

is(vacuums('t', @shards), '0 0 0', 'never vacuumed');
$c->query('r1', 'DELETE FROM t WHERE few = 0');
my ($status, undef, $messages) = $c->psql('r1', 'VACUUM (VERBOSE) t');
is($status, 0, 'VACUUM through a router');
is(vacuums('t', @shards, 'r1'), '1 1 1 1', 'it has run on every shard and here');
is(scalar(() = $messages =~ /finished vacuuming/g), 4, 'VERBOSE tells of all nodes');
is($c->query($_, 'SELECT pg_stat_get_dead_tuples(\'t\'::regclass)'), '0', "no dead rows are left on $_") foreach @shards;
$c->query('s2', 'VACUUM t');
is(vacuums('t', @shards), '2 2 2', 'VACUUM through a shard');
$c->query('s2', 'SET tessera.vacuum_everywhere = off; VACUUM t');
is(vacuums('t', @shards), '2 3 2', 'tessera.vacuum_everywhere off: this node only');
$c->query('s2', 'SET tessera.replicate_ddl = off; VACUUM t');
is(vacuums('t', @shards), '2 4 2', 'tessera.replicate_ddl off: this node only');
$c->query('s2', 'VACUUM');
is(vacuums('t', @shards), '2 5 2', 'VACUUM without a name: this node only');
$c->query('r1', 'CREATE TEMP TABLE own (a int); ' .
	'VACUUM (PARALLEL 2, INDEX_CLEANUP AUTO, TRUNCATE off, PROCESS_TOAST, SKIP_LOCKED) own, far.placed, t');
is(vacuums('t', @shards), '3 6 3', 'options, several tables, a temporary one among them');
# the VACUUM without a name was on s2
is(vacuums('far.placed', @shards), join(' ', map { ($_ eq $home) + ($_ eq 's2') } @shards), 'a placed table: on its shard');

# ---- what is done

my %before = files('t');
$c->query('r1', 'VACUUM FULL t');
is(changed('t', %before), 's1 s2 s3', 'VACUUM FULL');
%before = files('t');
$c->query('r1', 'CLUSTER t USING t_v');
is(changed('t', %before), 's1 s2 s3', 'CLUSTER');
is($c->query($_, "SELECT indisclustered FROM pg_index WHERE indexrelid = 't_v'::regclass"), 't', "$_ knows by which index") foreach $c->names;
%before = files('t');
$c->query('s3', 'CLUSTER (VERBOSE) t');
is(changed('t', %before), 's1 s2 s3', 'CLUSTER by the same index');
%before = files('t_v');
$c->query('r1', 'REINDEX TABLE t');
is(changed('t_v', %before), 's1 s2 s3', 'REINDEX TABLE');
%before = files('t_v');
my %key = files('t_pkey');
$c->query('s1', 'REINDEX (VERBOSE) INDEX CONCURRENTLY t_v');
is(changed('t_v', %before), 's1 s2 s3', 'REINDEX INDEX CONCURRENTLY');
is(changed('t_pkey', %key), '', 'of that index only');
$c->query('r1', 'REINDEX TABLE CONCURRENTLY t');
is(changed('t_pkey', %key), 's1 s2 s3', 'REINDEX TABLE CONCURRENTLY');
is($c->query($_, "SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass AND NOT (indisvalid AND indisready AND indislive)"), '0',
	"all indexes are valid on $_") foreach $c->names;
$c->query('r1', 'VACUUM (ANALYZE, VERBOSE off) t (few, k), far.placed');
is($c->query($_, "SELECT string_agg(attname, ' ' ORDER BY attname) FROM pg_stats WHERE tablename = 't'"), 'few k', "ANALYZE of the columns on $_")
  foreach @shards;
like($c->query('r1', 'EXPLAIN SELECT * FROM t'), qr/Tessera Scan.*rows=2000 /, 'this node plans by what was found');
is($c->query('r1', 'SELECT sum(v) FROM t'), $c->query('r1', 'SELECT sum(g) FROM generate_series(1, 2999) g WHERE g % 3 <> 0'), 'the rows are there');
is(join(' ', map { $c->query($_, 'SELECT count(*) FROM t') } $c->names), '2000 2000 2000 2000', 'on every node');

# ---- where it cannot run

like($c->error('r1', "BEGIN; $_ t; COMMIT"), qr/25001/, "$_ in a transaction block") foreach 'VACUUM', 'CLUSTER', 'REINDEX TABLE';
like($c->error('r1', q{DO 'BEGIN VACUUM t; END'}), qr/25001/, 'in a function');
like($c->error('r1', 'VACUUM t, nosuch'), qr/42P01/, 'a table that is not there');
like($c->error('r1', 'VACUUM (nosuch) t'), qr/42601/, 'an option that is not there');
my $vacuumed = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relid = 't'::regclass";
my $count = $c->query('s2', $vacuumed);
like($c->error('r1', 'VACUUM t (k)'), qr/0A000/, 'columns without ANALYZE');
is($c->query('s2', 'SELECT pg_stat_clear_snapshot(); ' . $vacuumed), "\n$count", 'and no other node has begun');
$c->query('r1', 'VACUUM (ANALYZE, PARALLEL 2, VERBOSE false) t (k, v), far.placed (k)');
like($c->error('r1', 'CLUSTER t USING nosuch'), qr/42704/, 'an index that is not there');
$c->query('r1', 'SET default_transaction_isolation = serializable; VACUUM t');

# ---- whose

$c->query('s1', 'CREATE ROLE stranger LOGIN; CREATE ROLE owner LOGIN; CREATE SCHEMA own AUTHORIZATION owner; ' .
	'SET ROLE owner; CREATE TABLE own.t (k int PRIMARY KEY)');
$c->query('s1', "SELECT tessera.shard_table('own.t', 'k')");
my $counts = vacuums('t', @shards);
($status, undef, $messages) = $c->psql('r1', 'SET ROLE stranger; VACUUM (ANALYZE) t');
is($status, 0, "another's table is skipped");
is(scalar(() = $messages =~ /skipping/g), 1, 'with one WARNING') or diag $messages;
is(vacuums('t', @shards), $counts, 'on all nodes');
%before = files('t');
like($c->error('r1', "SET ROLE stranger; $_"), qr/42501/, "$_ of another's table")
  foreach 'CLUSTER t USING t_v', 'REINDEX TABLE t', 'REINDEX INDEX t_v';
is(changed('t', %before), '', 'nothing is done');
$c->query('r1', 'SET ROLE owner; VACUUM FULL own.t; REINDEX TABLE own.t; CLUSTER own.t USING t_pkey; VACUUM (ANALYZE) own.t');
is(vacuums('own.t', @shards), '1 1 1', "the owner's own table");

# ---- errors, cancellation, locks

# A session that holds the table on that node alone.
sub holding
{
	my ($node) = @_;
	my $session = $c->session($node, on_error_stop => 0);
	$session->query_safe('BEGIN; LOCK TABLE t IN ACCESS SHARE MODE');
	return $session;
}

my $waits = "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND NOT granted";
my $holder = holding('s2');
%before = files('t');
my $error = $c->error('r1', "SET lock_timeout = '300ms'; VACUUM FULL t");
like($error, qr/55P03/, 'the lock is not had on one node');
like($error, qr/CONTEXT:.*node "s2"/, 'the error names it');
is(changed('t', %before), 's1 s3', 'the others have done it');
my $run = $c->background('r1', 'VACUUM FULL t');
ok($c->wait_for('s2', $waits, '1'), 'it waits there');
ok($c->wait_for('r1', q{SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE query = 'VACUUM FULL t' AND pid <> pg_backend_pid()}, 't'),
	'and keeps no snapshot here meanwhile');
$c->query('r1', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query = 'VACUUM FULL t' AND pid <> pg_backend_pid()});
like($c->ended($run), qr/57014/, 'cancelled');
ok($c->wait_for('s2', $waits, '0'), 'there as well');

# Who waits behind its part on one node, and is waited for by its part on another one: no deadlock, as the parts do not wait for each other.
my $other = holding('s3');
$run = $c->background('r1', 'VACUUM FULL t');
ok($c->wait_for($_, $waits, '1'), "it waits on $_") foreach 's2', 's3';
$holder->query_until(qr/asked/, "\\echo asked\nSELECT count(*) FROM t WHERE k = 2500;\n");
ok($c->wait_for('s3', $waits, '2'), 'and a transaction that it waits for behind it');
$c->runs_for('r1', 'VACUUM FULL t', '2 s');	# several searches for deadlocks
$other->query_safe('COMMIT');
like($holder->query_safe('COMMIT; SELECT 42'), qr/42/, 'the transaction ends well');
is($c->ended($run), '', 'and so does VACUUM FULL');
$_->quit foreach $holder, $other;

# ---- a shard that is down

# ---- functions that maintain one index

# One heap page for each range of keys, and more rows than the index knows of.
$c->query('s1', 'CREATE TABLE docs (k int PRIMARY KEY, w int[])');
$c->query('s1', "SELECT tessera.shard_table('docs', 'k')");
$c->query('s1', "SELECT tessera.move_range('docs', 1000, 2000, 's2')");
$c->query('s1', "SELECT tessera.move_range('docs', 2000, tessera.maxkey(), 's3')");
$c->query('s1', 'CREATE INDEX docs_w ON docs USING gin (w); CREATE INDEX docs_k ON docs USING brin (k) WITH (pages_per_range = 1)');
$c->query('r1', 'INSERT INTO docs SELECT g * 10, ARRAY[g] FROM generate_series(1, 299) g');
$c->query('r1', "SELECT brin_desummarize_range('docs_k', 0)");
is($c->query('r1', "SELECT brin_summarize_new_values('docs_k')"), '3', 'brin_summarize_new_values: a page on each shard');
is($c->query('s2', "SELECT brin_summarize_new_values('docs_k')"), '0', 'they are summarised');
$c->query('s2', "SELECT brin_desummarize_range('docs_k', 0)");
is($c->query('s3', "SELECT brin_summarize_range('docs_k', 0)"), '3', 'brin_desummarize_range and brin_summarize_range');
cmp_ok($c->query('r1', "SELECT gin_clean_pending_list('docs_w')"), '>=', 3, 'gin_clean_pending_list: on each shard');
is($c->query('s1', "SELECT gin_clean_pending_list('docs_w')"), '0', 'nothing is left to clean');
is($c->query('r1', "CREATE TABLE far.more (k int PRIMARY KEY); INSERT INTO far.more VALUES (1); CREATE INDEX far_b ON far.more USING brin (k); " .
	"SELECT brin_desummarize_range('far.far_b', 0); SELECT brin_summarize_new_values('far.far_b')"), "\n1", 'of a placed table, from elsewhere');
$c->query('r1', 'CREATE ROLE nobody_else');
like($c->error('r1', "SET ROLE nobody_else; SELECT brin_summarize_new_values('docs_k')"), qr/42501.*must be owner of index docs_k/, 'its owner may');
$c->query('r1', 'REVOKE EXECUTE ON FUNCTION gin_clean_pending_list(regclass) FROM PUBLIC');
like($c->error('r1', "SET ROLE nobody_else; SELECT gin_clean_pending_list('docs_w')"), qr/42501.*permission denied for function/,
	'who may execute it');
$c->query('s1', 'CREATE TABLE by_day (k int, d int, PRIMARY KEY (k, d)) PARTITION BY RANGE (d); CREATE TABLE day_1 PARTITION OF by_day DEFAULT');
$c->query('s1', "SELECT tessera.shard_table('by_day', 'k', colocate_with => 'docs')");
$c->query('r1', 'CREATE INDEX day_k ON by_day USING brin (k); INSERT INTO by_day SELECT g * 10, 1 FROM generate_series(1, 299) g');
is($c->query('r1', "SELECT brin_desummarize_range('day_1_k_idx', 0); SELECT brin_summarize_new_values('day_1_k_idx')"), "\n3", 'of a partition');
like($c->error('r1', "SELECT brin_summarize_new_values('day_k')"), qr/42809/, 'of none of the parent');
like($c->error('r1', "SELECT brin_summarize_new_values('t_v')"), qr/42809.*not a BRIN index/, 'core says what is none');

$counts = vacuums('t', 's1', 's2');
$c->stop('s3', 'immediate');
$error = $c->error('r1', 'VACUUM t');
like($error, qr/08006.*"s3"/, 'a shard that is down: an error that names it');
is(vacuums('t', 's1', 's2'), $counts, 'nothing is done elsewhere');
$c->query('r1', 'SET tessera.vacuum_everywhere = off; VACUUM t');
$c->start('s3');
$c->query('r1', 'VACUUM t');
is(vacuums('t', 's3'), '1', 'it is back');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)'), '0', 'all is consistent');
done_testing();
