# DDL of sharded partitioned tables, from every node, while their rows are spread: partitions are made, attached, detached, dropped, renamed; what
# cannot be attached is refused with the way; rows still to be deleted; a node that joins.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('partddl', settings => { 'tessera.orphan_cleanup_delay' => 100, 'tessera.ddl_lock_timeout' => 3000 });
$c->create(shards => 3, routers => 1);

# The same on a plain server.
sub everywhere { $c->everywhere($_[1], via => $_[0]); return; }

sub same
{
	my ($what, @queries) = @_;
	foreach my $query (@queries)
	{
		my ($same, $difference) = $c->same_everywhere($query);
		ok($same, "$what: $query") or diag $difference;
	}
	return;
}

sub sound
{
	my ($what) = @_;
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$what: consistent");
	return;
}

# The tables that move together, as each node says, are the same.
sub members
{
	my ($what) = @_;
	my @members = $c->query_all("SELECT string_agg(format('%s %s', table_id, table_name), ', ' ORDER BY table_id) FROM " .
		"tessera_internal.moving_table");
	is(scalar(grep { $_ ne $members[0] } @members), 0, "$what: the same members on all nodes") or diag join "\n", @members;
	return $members[0];
}

everywhere('s1', $_) foreach (
	'CREATE TABLE acct (k int PRIMARY KEY, name text)', 'CREATE TABLE kinds (kind text PRIMARY KEY)', q{INSERT INTO kinds VALUES ('a'), ('b'), ('c')},
	'CREATE TABLE ev (k int NOT NULL, at int NOT NULL, kind text, v int) PARTITION BY RANGE (at)', 'CREATE INDEX ON ev (k)',
		'ALTER TABLE ev REPLICA IDENTITY FULL',
	'CREATE TABLE ev_0 PARTITION OF ev FOR VALUES FROM (0) TO (100)',
	'INSERT INTO acct SELECT g FROM generate_series(1, 60) g', q{INSERT INTO ev SELECT g % 60 + 1, g % 100, 'a', g FROM generate_series(1, 600) g});
is($c->query('s1', "SELECT relreplident FROM pg_class WHERE relname = 'ev_0'"), 'f', 'a partition takes the replica identity that its parent ' .
	'was given');
$c->query('s1', "SELECT tessera.shard_table('acct', 'k')");
$c->query('s1', "SELECT tessera.move_range('acct', 20, 40, 's2')");
$c->query('s1', "SELECT tessera.move_range('acct', 40, tessera.maxkey(), 's3')");
$c->query('s1', "SELECT tessera.replicate_table('kinds')");
$c->query('s1', "SELECT tessera.shard_table('ev', 'k', colocate_with => 'acct')");
is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.tables WHERE kind = 'sharded'"), '1',
	'a partitioned table with rows joins a group that is spread');
same('joined', 'SELECT * FROM ev');
sound('joined');
everywhere('r1', 'ALTER TABLE ev ADD FOREIGN KEY (k) REFERENCES acct; ALTER TABLE ev ADD FOREIGN KEY (kind) REFERENCES kinds');

# ---- new partitions ----

everywhere('r1', 'CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (100) TO (200)');
everywhere('s3', 'CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (200) TO (300) PARTITION BY LIST (kind)');
everywhere('s2', q{CREATE TABLE ev_2a PARTITION OF ev_2 FOR VALUES IN ('a'); CREATE TABLE ev_2d PARTITION OF ev_2 DEFAULT});
everywhere('r1', 'CREATE SCHEMA other; CREATE TABLE other.ev_d PARTITION OF ev DEFAULT');
members('made');
everywhere('s2', q{INSERT INTO ev SELECT g % 60 + 1, g % 500, chr(97 + g % 3), g FROM generate_series(1, 1500) g});
same('made', 'SELECT tableoid::regclass, * FROM ev', 'SELECT * FROM ev_2d', 'SELECT count(*) FROM other.ev_d',
	'SELECT k, sum(v) FROM ev JOIN acct USING (k) GROUP BY k');
everywhere('r1', q{BEGIN; CREATE TABLE ev_9 PARTITION OF ev FOR VALUES FROM (900) TO (1000); INSERT INTO ev SELECT g, 950, 'a', g FROM } .
	q{generate_series(1, 60) g; } .
	'UPDATE ev_9 SET v = v + 1; COMMIT');
same('in the transaction that made it', 'SELECT * FROM ev_9', 'SELECT count(*), sum(v) FROM ev');
is($c->query('s2', 'BEGIN; CREATE TABLE gone PARTITION OF ev FOR VALUES FROM (1000) TO (1001); INSERT INTO ev VALUES (1, 1000); ROLLBACK; ' .
	'SELECT count(*) FROM ev'),
	$c->plain_query('SELECT count(*) FROM ev'), 'or not');
like($c->error('r1', 'CREATE TABLE ev_3 PARTITION OF ev FOR VALUES FROM (300) TO (400)'), qr/23514/,
	'rows of the default partition are in the way, on whichever shard');
like($c->error('s1', 'CREATE UNLOGGED TABLE ev_5 PARTITION OF ev FOR VALUES FROM (500) TO (600)'), qr/42P16.*unlogged/, 'no unlogged partition');
like($c->error('s1', 'CREATE EXTENSION postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw; ' .
	'CREATE FOREIGN TABLE ev_5 PARTITION OF ev FOR VALUES FROM (500) TO (600) SERVER far'), qr/0A000.*foreign tables/, 'no foreign partition');
like($c->error('r1', 'CREATE TABLE ev_5 PARTITION OF ev (UNIQUE (v)) FOR VALUES FROM (500) TO (600)'), qr/42P16.*must contain the shard key/,
	'nor one with a unique constraint of its own without the shard key');

# ---- the parent's definition ----

everywhere('s2', 'ALTER TABLE ev ADD COLUMN w int DEFAULT 7');
everywhere('r1', 'CREATE INDEX ON ev (v, k); ALTER TABLE ev ADD CHECK (v >= 0)');
like($c->error('r1', 'ALTER TABLE ev ADD UNIQUE (at)'), qr/42P16.*must contain the shard key/, 'unique constraints contain the shard key');
like($c->error('r1', 'ALTER TABLE ev_1 ADD UNIQUE (at)'), qr/42P16.*must contain the shard key/, 'of a partition, too');
like($c->error('r1', 'ALTER TABLE ev DROP COLUMN k'), qr/42P16.*part of the shard key/, 'the key stays');
everywhere('s3', 'ALTER TABLE ev RENAME COLUMN k TO tenant');
same('key renamed', 'SELECT * FROM ev WHERE tenant = 33', 'SELECT * FROM ev_1 WHERE tenant = 33', 'SELECT tenant, count(*) FROM ev GROUP BY 1');
is($c->query('r1', "SELECT key FROM tessera.tables WHERE table_name = 'ev'::regclass"), 'tenant', 'the catalog knows the new name');
everywhere('r1', 'ALTER TABLE ev RENAME COLUMN tenant TO k');
everywhere('s1', 'ALTER TABLE ev_1 RENAME TO ev_one; ALTER TABLE ev_2a SET SCHEMA other');
same('partitions renamed', 'SELECT * FROM ev_one WHERE k = 50', 'SELECT count(*) FROM other.ev_2a');
members('renamed');
$c->query('s1', "SELECT tessera.move_range('ev', 10, 20, 's3'), tessera.move_range('ev', 20, 30, 's1')");
same('moved', 'SELECT tableoid::regclass, * FROM ev');
$c->query('r1', 'ANALYZE ev; VACUUM ev');
cmp_ok($c->query('r1', "SELECT tessera.table_size('ev_one')"), '>', $c->query('s1', "SELECT pg_table_size('ev_one')"),
	'sizes of partitions on all shards');
sound('altered');

# ---- detach ----

$c->query('s1', "SELECT tessera.move_range('ev', 40, 50, 's1')");
everywhere('r1', 'ALTER TABLE ev DETACH PARTITION ev_one');
is($c->query('r1', "SELECT kind, key FROM tessera.tables WHERE table_name = 'ev_one'::regclass"), 'sharded|k', 'what is detached stays sharded');
members('detached');
same('detached', 'SELECT * FROM ev_one', 'SELECT count(*) FROM ev', 'SELECT ev_one.v, acct.k FROM acct JOIN ev_one USING (k)');
everywhere('s2', q{INSERT INTO ev_one SELECT g, 150, 'b', g FROM generate_series(1, 60) g; UPDATE ev_one SET v = v + 1 WHERE k > 30});
$c->query('s1', "SELECT tessera.move_range('ev_one', 50, tessera.maxkey(), 's2')");
same('detached and moved', 'SELECT * FROM ev_one', 'SELECT * FROM ev');
ok($c->wait_for($_, 'SELECT count(*) FROM tessera.range_deletions', '0'), "$_ has deleted what it gave away") foreach ('s1' .. 's3');
sound('detached');
everywhere('r1', 'ALTER TABLE ev DETACH PARTITION ev_2');
same('a tree is detached', 'SELECT * FROM ev_2', 'SELECT * FROM other.ev_2a', 'SELECT * FROM ev');
like($c->error('r1', 'ALTER TABLE ev DETACH PARTITION ev_9 CONCURRENTLY'), qr/55000.*default partition exists/, 'not concurrently');

# ---- attach ----

everywhere('s3', 'ALTER TABLE ev ATTACH PARTITION ev_one FOR VALUES FROM (100) TO (200); ALTER TABLE ev ATTACH PARTITION ev_2 FOR VALUES FROM ' .
	'(200) TO (300)');
same('attached again', 'SELECT tableoid::regclass, * FROM ev');
is($c->query('r1', "SELECT string_agg(table_name::text, ' ' ORDER BY table_name::text) FROM tessera.tables WHERE kind = 'sharded'"), 'acct ev',
	'as a part of it');
everywhere('r1', 'CREATE TABLE empty (w int, v int CONSTRAINT ev_v_check CHECK (v >= 0), kind text, at int NOT NULL, k int NOT NULL); ALTER ' .
	'TABLE empty REPLICA IDENTITY FULL');
everywhere('s2', 'ALTER TABLE ev ATTACH PARTITION empty FOR VALUES FROM (600) TO (700)');
everywhere('s3', q{INSERT INTO ev SELECT g, 650, 'c', g FROM generate_series(1, 60) g});
same('a placed table without rows', 'SELECT * FROM empty', 'SELECT count(*) FROM ev');
everywhere('r1', 'CREATE TABLE full_one (LIKE ev INCLUDING CONSTRAINTS); ALTER TABLE full_one REPLICA IDENTITY FULL');
everywhere('r1', q{INSERT INTO full_one SELECT g, 750, 'c', g FROM generate_series(1, 60) g});
my $refused = $c->error('s2', 'ALTER TABLE ev ATTACH PARTITION full_one FOR VALUES FROM (700) TO (800)');
like($refused, qr/0A000: cannot attach table "full_one" to sharded table "ev": it has rows/, 'one with rows is refused');
my ($way) = $refused =~ /HINT:  First (SELECT .*)\.$/m;
$c->query('s1', 'CREATE INDEX ON full_one (k)');
$c->query('s1', $way);
everywhere('s2', 'ALTER TABLE ev ATTACH PARTITION full_one FOR VALUES FROM (700) TO (800)');
same('after what the hint says', 'SELECT * FROM full_one', 'SELECT * FROM ev');
$c->query('r1', 'CREATE TABLE alone (LIKE ev INCLUDING CONSTRAINTS INCLUDING INDEXES); ALTER TABLE alone REPLICA IDENTITY FULL');
$c->query('r1', "SELECT tessera.shard_table('alone', 'k')");
like($c->error('r1', 'ALTER TABLE ev ATTACH PARTITION alone FOR VALUES FROM (800) TO (900)'),
	qr/42P16.*not sharded alike.*First SELECT tessera\.shard_table/s,
	'nor one of another group');
$c->query('r1', 'DROP TABLE alone; CREATE TABLE alone (LIKE ev INCLUDING CONSTRAINTS); ALTER TABLE alone ALTER v SET NOT NULL, ALTER k SET NOT ' .
	'NULL, ' .
	'REPLICA IDENTITY FULL; CREATE INDEX ON alone (v)');
$c->query('s1', "SELECT tessera.shard_table('alone', 'v', colocate_with => 'acct')");
like($c->error('r1', 'ALTER TABLE ev ATTACH PARTITION alone FOR VALUES FROM (800) TO (900)'), qr/42P16.*not sharded alike.*another shard key/s,
	'nor by another key');
$c->query('r1', 'DROP TABLE alone; CREATE TABLE alone (LIKE ev INCLUDING CONSTRAINTS); ALTER TABLE alone ADD UNIQUE (at), REPLICA IDENTITY FULL');
like($c->error('r1', 'ALTER TABLE ev ATTACH PARTITION alone FOR VALUES FROM (800) TO (900)'), qr/42P16.*does not contain the shard key/,
	'nor with other constraints');
$c->query('r1', 'DROP TABLE alone');
sound('attached');

# ---- rows that are still to be deleted ----

$c->set(undef, 'tessera.orphan_cleanup_delay' => 3600000);
$c->query('s1', "SELECT tessera.move_range('ev', tessera.minkey(), 5, 's2')");
cmp_ok($c->query('s1', 'SELECT count(*) FROM tessera.range_deletions'), '>', 0, 'rows are left on s1');
like($c->error('r1', 'CREATE TABLE ev_8 PARTITION OF ev FOR VALUES FROM (800) TO (900)'), qr/have not been deleted yet/,
	'making a partition reads the default one');
everywhere('r1', 'ALTER TABLE ev DETACH PARTITION ev_9');
same('hidden', 'SELECT * FROM ev_9', 'SELECT tableoid::regclass, * FROM ev');
$c->set(undef, 'tessera.orphan_cleanup_delay' => 100);
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0'), 'they are deleted, those of the detached one, too');
sound('deleted');
everywhere('r1', 'CREATE TABLE ev_8 PARTITION OF ev FOR VALUES FROM (800) TO (900)');

# ---- a node that joins ----

$c->start_nodes('s4');
$c->query('s4', 'CREATE EXTENSION tessera');
$c->add_shard('s4');
$c->query('s1', "SELECT tessera.move_range('ev', 10, 30, 's4')");
members('joined');
same('a shard joins', 'SELECT tableoid::regclass, * FROM ev', 'SELECT * FROM ev_9');
everywhere('s4', 'ALTER TABLE ev DETACH PARTITION full_one; DROP TABLE full_one');
is(scalar(grep { $_ ne 'f' } $c->query_all("SELECT DISTINCT relreplident FROM pg_class WHERE relname ~ '^(ev_|empty|full)' AND relkind = 'r'")), 0,
	'the replica identities are the same everywhere');

# ---- drop and truncate ----

everywhere('r1', 'TRUNCATE ev_0');
same('truncated', 'SELECT * FROM ev');
everywhere('s2', 'DROP TABLE ev_2; DROP TABLE ev_one');
same('dropped', 'SELECT * FROM ev');
everywhere('s3', 'TRUNCATE ev');
same('all truncated', 'SELECT * FROM ev', 'SELECT count(*) FROM ev_9');
sound('dropped');
$c->query('r1', 'DROP TABLE ev, ev_9, acct');
is($c->query('s1', 'SELECT count(*) FROM tessera.table_group'), '0', 'the group goes with its last table');
is(join(' ', $c->query_all('SELECT count(*) FROM tessera_internal.moving_table')), '0 0 0 0 0', 'nothing is left');

done_testing();
