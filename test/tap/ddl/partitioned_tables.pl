# Partitioned tables sharded by key: in place with rows in all partitions, of several levels, with a default partition and columns in another order.
# Statements of all kinds answer as on a plain server, from a shard and from a router that owns nothing, before and after ranges have moved: by the
# parent, by a partition, joined with a plain table of the group. What cannot be sharded is refused with the way to mend it.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('partitions', settings => { 'tessera.orphan_cleanup_delay' => 1000 });
$c->create(shards => 3, routers => 1);

my @schema = (
	'CREATE TABLE acct (tenant int PRIMARY KEY, name text)',
	'CREATE TABLE ev (junk int, tenant int NOT NULL, at int NOT NULL, kind text NOT NULL, id int NOT NULL, v int, s text DEFAULT \'d\', ' .
		'PRIMARY KEY (tenant, at, kind, id)) PARTITION BY RANGE (at)',
	'ALTER TABLE ev DROP COLUMN junk',
	'CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (0) TO (100)',
	'CREATE TABLE ev_2 (s text, v int, id int NOT NULL, kind text NOT NULL, gone int, at int NOT NULL, tenant int NOT NULL)',
	'ALTER TABLE ev_2 DROP COLUMN gone',
	'ALTER TABLE ev ATTACH PARTITION ev_2 FOR VALUES FROM (100) TO (200)',
	'CREATE TABLE ev_3 PARTITION OF ev FOR VALUES FROM (200) TO (300) PARTITION BY LIST (kind)',
	q{CREATE TABLE ev_3a PARTITION OF ev_3 FOR VALUES IN ('a', 'b')},
	'CREATE TABLE ev_3d PARTITION OF ev_3 DEFAULT',
	'CREATE TABLE ev_d PARTITION OF ev DEFAULT',
	'ALTER TABLE ev ADD CONSTRAINT ev_acct FOREIGN KEY (tenant) REFERENCES acct ON DELETE CASCADE',
	'CREATE TABLE memo (tenant int NOT NULL, at int NOT NULL, kind text NOT NULL, id int NOT NULL, note text, PRIMARY KEY (tenant, at, kind, id), ' .
		'FOREIGN KEY (tenant, at, kind, id) REFERENCES ev)',
	'CREATE VIEW young AS SELECT tenant, at, kind, id, v FROM ev WHERE at < 150 WITH CHECK OPTION',
	q{INSERT INTO acct SELECT g, 'name ' || g FROM generate_series(1, 60) g},
	q{INSERT INTO ev SELECT g % 60 + 1, (g * 37) % 400, chr(97 + g % 4), g, g % 17, 's' || g % 5 FROM generate_series(1, 1200) g},
	q{INSERT INTO memo SELECT tenant, at, kind, id, 'note ' || id FROM ev WHERE id % 9 = 0});
$c->everywhere($_) foreach @schema;

# ---- what is in the way ----

like($c->error('s1', "SELECT tessera.shard_table('ev_1', 'tenant')"), qr/42P16: table "ev_1" cannot be sharded: it is a partition.*Shard table "ev"/s,
	'a partition is sharded with its parent');
like($c->error('s1', "SELECT tessera.shard_table('ev_3', 'tenant')"), qr/42P16.*Shard table "ev"/s, 'of any level');
$c->query('s1', $_) foreach (
	'CREATE TABLE odd (k int NOT NULL, at int NOT NULL, v int) PARTITION BY RANGE (at)', 'CREATE INDEX ON odd (k)',
	'CREATE TABLE odd_1 PARTITION OF odd FOR VALUES FROM (0) TO (10)', 'ALTER TABLE odd_1 ADD UNIQUE (v)');
is($c->query('s1', "SELECT table_name, statement FROM tessera.check_table('odd', 'k') WHERE severity = 'error'"),
	"odd|ALTER TABLE public.odd REPLICA IDENTITY FULL\n" .
	"odd_1|ALTER TABLE public.odd_1 DROP CONSTRAINT odd_1_v_key, ADD CONSTRAINT odd_1_v_key UNIQUE (k, v)\n" .
	'odd_1|ALTER TABLE public.odd_1 REPLICA IDENTITY FULL', 'check_table looks into the partitions');
$c->query('s1', $_) foreach split /\n/, $c->query('s1', "SELECT statement FROM tessera.check_table('odd', 'k') WHERE severity = 'error'");
$c->query('s1', "SELECT tessera.shard_table('odd', 'k')");
is($c->query('s1', "SELECT kind, key, chunks FROM tessera.tables WHERE table_name = 'odd'::regclass"), 'sharded|k|1', 'what it says helps');
$c->query('s1', 'CREATE EXTENSION IF NOT EXISTS postgres_fdw; CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw; ' .
	'CREATE TABLE far (k int NOT NULL, at int NOT NULL) PARTITION BY RANGE (at); ALTER TABLE far REPLICA IDENTITY FULL; ' .
	'CREATE FOREIGN TABLE far_1 PARTITION OF far FOR VALUES FROM (0) TO (10) SERVER other');
like($c->error('s1', "SELECT tessera.shard_table('far', 'k', create_index => true)"),
	qr/0A000: table "far_1" cannot be sharded: it is a foreign table/,
	'no foreign partitions');
$c->query('s1', 'CREATE TABLE parent (k int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)');
like($c->error('s1', "SELECT tessera.shard_table('parent', 'k')"), qr/0A000.*inheritance/, 'nor inheritance');

# ---- in place ----

my $rows = 'SELECT count(*), sum(v), count(DISTINCT id) FROM ev';
like($c->error('s1', "SELECT tessera.shard_table('ev', 'tenant')"), qr/42P16: foreign key "ev_acct" between "ev" and "acct"/,
	'foreign keys as of any table');
$c->query('s1', 'ALTER TABLE ev DROP CONSTRAINT ev_acct; ALTER TABLE memo DROP CONSTRAINT memo_tenant_at_kind_id_fkey');
$c->query('s1', "SELECT tessera.shard_table('acct', 'tenant'), tessera.shard_table('ev', 'tenant', colocate_with => 'acct'), " .
	"tessera.shard_table('memo', 'tenant', colocate_with => 'ev_1')");
$c->query('r1', 'ALTER TABLE ev ADD CONSTRAINT ev_acct FOREIGN KEY (tenant) REFERENCES acct ON DELETE CASCADE');
$c->query('r1', 'ALTER TABLE memo ADD FOREIGN KEY (tenant, at, kind, id) REFERENCES ev');
is($c->query('r1', 'SELECT table_name FROM tessera.tables WHERE group_id IS NOT NULL ORDER BY 1'), "acct\nev\nmemo\nodd",
	'the views show the parent once, and no partition');

# ---- statements ----

my @reads = (
	$rows, 'SELECT * FROM ev WHERE tenant = 7', 'SELECT * FROM ev WHERE tenant = 7 AND at < 100', 'SELECT * FROM ev WHERE at BETWEEN 90 AND 130',
	'SELECT * FROM ev WHERE tenant IN (3, 33, 59) ORDER BY at DESC, id LIMIT 7', 'SELECT count(*) FROM ONLY ev', 'SELECT count(*), sum(v) FROM ev_2',
	'SELECT * FROM ev_2 WHERE tenant = 12', 'SELECT kind, count(*) FROM ev_3 GROUP BY kind', 'SELECT * FROM ev_3d WHERE v > 12',
	'SELECT tableoid::regclass, count(*) FROM ev GROUP BY 1', 'SELECT tableoid::regclass, tenant, id FROM ev WHERE tenant = 21',
	'SELECT tenant, count(*), max(at) FROM ev GROUP BY tenant', 'SELECT at / 100, sum(v), avg(v) FROM ev GROUP BY 1',
	'SELECT name, sum(v) FROM acct JOIN ev USING (tenant) GROUP BY name', 'SELECT a.tenant, e.id FROM acct a LEFT JOIN ev_1 e USING (tenant) ' .
		'WHERE e.v = 3',
	'SELECT e.id, m.note FROM ev e JOIN memo m USING (tenant, at, kind, id) WHERE e.at > 150',
	'SELECT x.id, y.id FROM ev_1 x JOIN ev_2 y ON x.tenant = y.tenant AND x.v = y.v', 'SELECT * FROM young WHERE tenant > 40',
	'SELECT tenant, id, rank() OVER (PARTITION BY tenant ORDER BY at, id) FROM ev WHERE at < 210',
	'SELECT DISTINCT kind FROM ev', 'SELECT tenant FROM acct a WHERE NOT EXISTS (SELECT FROM ev e WHERE e.tenant = a.tenant AND e.v = 3)',
	'SELECT id FROM ev WHERE (tenant, id) IN (SELECT tenant, max(id) FROM ev GROUP BY tenant)',
	'PREPARE p (int, int) AS SELECT id FROM ev WHERE tenant = $1 AND at >= $2; EXECUTE p(4, 100); EXECUTE p(44, 250)',
	'SET plan_cache_mode = force_generic_plan; PREPARE g (int, int) AS SELECT id FROM ev WHERE tenant = $1 AND at < $2; EXECUTE g(4, 100); ' .
		'EXECUTE g(44, 300); RESET plan_cache_mode',
	'DECLARE r CURSOR FOR SELECT id FROM ev WHERE at < 50 ORDER BY id; FETCH 5 FROM r; UPDATE ev SET v = 0; FETCH ALL FROM r',
	'COPY (SELECT * FROM ev WHERE tenant < 9) TO STDOUT', 'COPY ev_2 (tenant, id) TO STDOUT', 'COPY ev TO STDOUT',
	'SELECT * FROM ev WHERE tenant = 9 FOR UPDATE', 'SELECT id FROM ev WHERE v = 16 ORDER BY id FOR NO KEY UPDATE SKIP LOCKED');
my $after = 'SELECT x.t, count(*), md5(string_agg(x.r, chr(10) ORDER BY x.r)) FROM (SELECT tableoid::regclass::text AS t, ev::text AS r FROM ' .
	'ev) x GROUP BY x.t';
my @writes = (
	(map { "$_; $after" } (
		q{INSERT INTO ev VALUES (5, 5, 'a', 9001, 1), (55, 155, 'b', 9002, 2), (30, 255, 'c', 9003, 3), (31, 999, 'd', 9004, 4)},
		q{INSERT INTO ev (tenant, at, kind, id) SELECT tenant, at + 100, kind, id + 10000 FROM ev WHERE v = 2 RETURNING tableoid::regclass, *},
		q{INSERT INTO ev_2 SELECT 'x', 1, 9100 + g, 'a', 100 + g, g FROM generate_series(1, 60) g},
		q{INSERT INTO ev_2 (tenant, at, kind, id) VALUES (1, 300, 'a', 1)},
		q{INSERT INTO ev (tenant, at, kind, id, v) SELECT tenant, at, kind, id, 100 FROM ev WHERE id % 50 = 0 ON CONFLICT (tenant, at, kind, id) } .
			q{DO UPDATE SET v = excluded.v + ev.v RETURNING id, v},
		q{INSERT INTO ev SELECT * FROM ev ON CONFLICT DO NOTHING}, q{INSERT INTO ev VALUES (5000, 5, 'a', 1)},
		q{INSERT INTO ev SELECT tenant, at, kind, id FROM ev WHERE id = 7}, q{INSERT INTO young VALUES (3, 20, 'a', 9005, 1) RETURNING *},
		q{INSERT INTO young VALUES (3, 160, 'a', 9005, 1)},
		'UPDATE ev SET v = v + 1 WHERE tenant = 8 RETURNING *', 'UPDATE ev SET s = upper(s) WHERE at >= 190 AND at < 210',
		'UPDATE ev SET at = at + 100 WHERE id % 9 > 0', 'UPDATE ev SET at = at + 40 WHERE tenant = 17 AND id % 9 > 0 RETURNING ' .
			'tableoid::regclass, id, at',
		q{UPDATE ev SET kind = 'z' WHERE at BETWEEN 200 AND 299 AND id % 9 > 0}, 'UPDATE ev_1 SET at = at + 100 WHERE id % 9 > 0',
		'UPDATE ev SET v = a.tenant FROM acct a WHERE a.tenant = ev.tenant AND ev.at < 60', 'UPDATE ONLY ev SET v = 1',
		'UPDATE ev_3 SET v = (SELECT count(*) FROM ev_1 o WHERE o.tenant = ev_3.tenant)', 'UPDATE young SET v = v * 2 WHERE tenant = 6',
		'UPDATE ev SET tenant = tenant WHERE tenant = 5 AND at = 5', 'DELETE FROM ev WHERE v = 5 AND id % 9 > 0 RETURNING tableoid::regclass, id',
		'DELETE FROM ev_2 WHERE tenant < 30 AND id % 9 > 0', 'DELETE FROM ev USING memo m WHERE m.tenant = ev.tenant AND m.at = ev.at AND m.id ' .
			'= ev.id + 1',
		'DELETE FROM ev WHERE id = 9', 'DELETE FROM memo; DELETE FROM acct WHERE tenant IN (4, 40); SELECT count(*) FROM acct',
		'MERGE INTO ev USING (SELECT tenant, at, kind, id FROM ev WHERE v IN (1, 2)) x ON ev.tenant = x.tenant AND ev.at = x.at AND ev.kind = ' .
			'x.kind ' .
			'AND ev.id = x.id WHEN MATCHED AND ev.v = 1 THEN UPDATE SET v = -1 WHEN MATCHED AND ev.id % 9 > 0 THEN DELETE',
		q{MERGE INTO ev USING (SELECT 150 AS a) x ON ev.tenant = 3 AND ev.id = 20000 WHEN MATCHED THEN UPDATE SET v = 9 } .
			q{WHEN NOT MATCHED THEN INSERT (tenant, at, kind, id) VALUES (3, a, 'a', 20000)},
		'WITH d AS (DELETE FROM ev WHERE tenant = 14 AND id % 9 > 0 RETURNING *) INSERT INTO ev SELECT tenant, at + 1, kind, id, v, s FROM d ' .
			'RETURNING id',
		'SAVEPOINT a; DELETE FROM memo; DELETE FROM ev WHERE at > 100; ROLLBACK TO a; UPDATE ev SET v = 77 WHERE id = 77',
		'TRUNCATE ev CASCADE', 'TRUNCATE memo; TRUNCATE ev_2', 'DELETE FROM memo; TRUNCATE ONLY ev_1')));

# The shard key changes: rows of several partitions, many of which have the same ctid.
my @keys = map { "DELETE FROM memo; $_; $after" } (
	'UPDATE ev SET tenant = 61 - tenant', 'UPDATE ev SET tenant = tenant % 60 + 1, at = at + 60 WHERE at < 250 RETURNING tableoid::regclass, ' .
		'tenant, id',
	'UPDATE ev_2 SET tenant = 61 - tenant WHERE v > 3', 'UPDATE ev SET tenant = 1 WHERE tenant = 60 AND at > 150');

sub compare
{
	my ($what) = @_;
	foreach my $node ('r1', 's2')
	{
		is($c->table_differs($node, \@reads), 0, "$what, $node: reads");
		is($c->table_differs($node, \@writes), 0, "$what, $node: writes");
		# what references the table keeps its key from changing
		is($c->table_differs($node, [ map { "ALTER TABLE memo DROP CONSTRAINT memo_tenant_at_kind_id_fkey; $_" } @keys ]), 0,
			"$what, $node: shard keys");
	}
	# COPY to the parent and to a partition; rows that belong to none of it
	foreach my $copy ([ ev => "1\t50\ta\t30001\t1\n2\t150\tb\t30002\t2\n51\t250\tc\t30003\t3\n52\t350\td\t30004\t\\N\n" ],
		[ ev_2 => "1\t150\ta\t30005\t1\n50\t199\tb\t30006\t2\n" ])
	{
		$c->everywhere("COPY $copy->[0] (tenant, at, kind, id, v) FROM STDIN;\n$copy->[1]\\.\n", via => 'r1');
	}
	like($c->error('r1', "COPY ev_2 (tenant, at, kind, id) FROM STDIN;\n1\t500\ta\t30001\n\\.\n"), qr/23514/,
		"$what: COPY of rows of another partition");
	like($c->error('r1', "BEGIN; TRUNCATE ev CASCADE; COPY ev (tenant, at, kind, id) FROM STDIN (FREEZE);\n\\.\n"), qr/0A000.*partitioned/,
		"$what: FREEZE is not for the parent");
	like($c->error('r1', "COPY ev_2 (tenant, at, kind, id) FROM STDIN (FREEZE);\n\\.\n"), qr/55000/, "$what: nor for what others may see");
	$c->query('r1', "BEGIN; TRUNCATE ev_2 CASCADE; COPY ev_2 (tenant, at, kind, id) FROM STDIN (FREEZE);\n\\.\nROLLBACK");
	my ($same, $difference) = $c->same_everywhere($after);
	ok($same, "$what: COPY") or diag $difference;
	$c->everywhere('DELETE FROM ev WHERE id > 30000', via => 's3');
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$what: consistent");
	return;
}
compare('in place');
like($c->query('r1', 'EXPLAIN (VERBOSE, COSTS off) SELECT * FROM ev WHERE tenant = 3 AND at < 50'), qr/Shards: 1 of 3.*FROM ev/s, 'EXPLAIN');

$c->query('s1', "SELECT tessera.move_range('ev', 20, 40, 's2')");
$c->query('s1', "SELECT tessera.move_range('ev_2', 40, tessera.maxkey(), 's3')");
is($c->query('s1', "SELECT table_name, min, shard FROM tessera.chunks WHERE table_name = 'ev'::regclass ORDER BY shard"),
	"ev|MINKEY|s1\nev|20|s2\nev|40|s3", 'moved by the name of the table or of a partition');
compare('moved');
# Rows still to be deleted are hidden: right after a move, whatever names them.
$c->set('s1', 'tessera.orphan_cleanup_delay' => 3600000) if $c->can('set');
$c->query('s1', "SELECT tessera.move_range('ev', tessera.minkey(), 10, 's3')");
cmp_ok($c->query('s1', 'SELECT count(*) FROM tessera.range_deletions'), '>', 0, 'rows are still there');
compare('hidden');

# ---- a router prunes by key, a shard by partition ----

like($c->query('r1', 'EXPLAIN (ANALYZE, VERBOSE, COSTS off, TIMING off, SUMMARY off) SELECT * FROM ev WHERE tenant = 30 AND at = 120'),
	qr/Shards: 1 of 3/, 'one shard of three');
is($c->query('s2', 'SELECT count(*) FROM ev WHERE tenant = 30 AND at = 120'), $c->plain_query('SELECT count(*) FROM ev WHERE tenant = 30 AND ' .
	'at = 120'),
	'the same on the shard');

# ---- a partition to which rows refer ----

like($c->error('s2', 'ALTER TABLE ev DETACH PARTITION ev_1'), qr/23503: removing partition "ev_1" violates foreign key/,
	'rows on whichever shard refer to it');
$c->query('r1', 'DELETE FROM memo WHERE at < 100');
$c->set('s1', 'tessera.orphan_cleanup_delay' => 0);
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0'), 'rows that moved away are deleted: they could refer, too');
$c->query('s2', 'ALTER TABLE ev DETACH PARTITION ev_1');
is($c->query('r1', 'SELECT count(*) FROM ev_1'), $c->plain_query('SELECT count(*) FROM ev_1'), 'it can go when none does');

# ---- chunks by the keys of all partitions ----

$c->query('s1', $_) foreach (
	'CREATE TABLE cut (at int NOT NULL, k int NOT NULL, PRIMARY KEY (k, at)) PARTITION BY LIST (at)',
		'CREATE TABLE cut_1 PARTITION OF cut FOR VALUES IN (1)',
	'CREATE TABLE cut_2 (k int NOT NULL, at int NOT NULL); ALTER TABLE cut ATTACH PARTITION cut_2 DEFAULT',
	'INSERT INTO cut SELECT 1 + g % 2, CASE g % 2 WHEN 0 THEN g ELSE 10000 + g END FROM generate_series(1, 4000) g',
	"SELECT tessera.shard_table('cut', 'k', chunks => 2)");
is($c->query('s1', "SELECT min::text = 'MINKEY' OR min::text::int BETWEEN 3900 AND 10100 FROM tessera.chunks WHERE table_name = 'cut'::regclass"),
	"t\nt",
	'the middle of all keys, not of one partition');
$c->query('s1', "SELECT tessera.split_find('cut_2', 11000)");
is($c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE table_name = 'cut'::regclass"), '3', 'split by the name of a partition');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');

done_testing();
