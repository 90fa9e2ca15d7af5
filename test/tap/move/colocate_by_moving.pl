# A table with rows joins the group of another table that is spread over several shards (shard_table, colocate_with): it is placed by moving, live.
# Afterwards its rows lie where the group's are, joins on the key go whole to the shards, and nobody goes by the group that it had on its way: routers
# that were stale all the time, prepared statements, COPY, transactions with a snapshot. Who may, and what is refused before anything is changed.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('colocate', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });
$c->create(shards => 3, routers => 2);

sub owners
{
	my ($table) = @_;
	return $c->query('s1', "SELECT string_agg(format('%s-%s %s', min, max, shard), ', ' ORDER BY major, minor, min::text) FROM tessera.chunks " .
		"WHERE table_name = '$table'::regclass");
}

sub groups
{
	return $c->query('s1', 'SELECT count(*) FROM tessera.table_group');
}

sub consistent
{
	my ($what) = @_;
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(true)'), '', "$what: consistent");
	return;
}

# A range key of text, and a hashed one of two columns; both groups spread over three shards.
$c->everywhere($_) foreach (
	'CREATE TABLE orders (cust text COLLATE "C" NOT NULL, id int NOT NULL, v int, PRIMARY KEY (cust, id))',
	'CREATE TABLE items (cust text COLLATE "C" NOT NULL, id int NOT NULL, pos int NOT NULL, n int, PRIMARY KEY (cust, id, pos))',
	'CREATE TABLE acc (a int NOT NULL, b uuid NOT NULL, v int, PRIMARY KEY (a, b))',
	'CREATE TABLE hist (a int NOT NULL, b uuid NOT NULL, n int NOT NULL, prev int, PRIMARY KEY (a, b, n), FOREIGN KEY (a, b, prev) REFERENCES hist)',
	q{INSERT INTO orders SELECT 'c' || lpad((g % 100)::text, 3, '0'), g, g FROM generate_series(1, 400) g},
	q{INSERT INTO items SELECT 'c' || lpad((g % 100)::text, 3, '0'), g % 400 + 1, g, 1 FROM generate_series(1, 1200) g},
	q{INSERT INTO acc SELECT g, md5(g::text)::uuid, g FROM generate_series(1, 300) g},
	q{INSERT INTO hist SELECT g, md5(g::text)::uuid, n, nullif(n - 1, 0) FROM generate_series(1, 300) g, generate_series(1, 3) n ORDER BY n});
$c->query('s2', "SELECT tessera.shard_table('orders', 'cust')");
$c->query('s1', "SELECT tessera.split_chunk('orders', 'c025'), tessera.split_chunk('orders', 'c050'), tessera.split_chunk('orders', 'c075')");
$c->query('s1', "SELECT tessera.move_range('orders', 'c025', 'c050', 's2')");
$c->query('s1', "SELECT tessera.move_range('orders', 'c050', tessera.maxkey(), 's3')");
$c->query('s3', "SELECT tessera.shard_table('acc', 'a, b', 'hash', chunks => 6)");
$c->query('s3', "SELECT tessera.move_range('acc', min, max, 's' || 1 + (row_number - 1) % 3) FROM " .
	"(SELECT min, max, row_number() OVER (ORDER BY minor) FROM tessera.chunks WHERE table_name = 'acc'::regclass) AS c");

# A router that knows nothing of what follows, with all kinds of plans at hand, and with the version of the group told for its other table.
my $stale = $c->session('r1');
$stale->query_safe($_) foreach (
	'PREPARE point AS SELECT count(*) FROM items WHERE cust = $1',
	'PREPARE whole AS SELECT count(*), sum(n) FROM items',
	'PREPARE joined AS SELECT count(*) FROM orders o JOIN items i USING (cust, id)',
	q{PREPARE write AS INSERT INTO items VALUES ($1, 0, $2, 0)},
	q{EXECUTE point('c030')}, 'EXECUTE whole', 'EXECUTE joined', q{EXECUTE write('c030', 1)}, 'SELECT count(*) FROM orders');
$c->plain_query(q{INSERT INTO items VALUES ('c030', 0, 1, 0)});

# In a transaction that has written it is refused, and without rows done at once, as ever.
like($c->error('s1', q{BEGIN; INSERT INTO orders VALUES ('x', 1, 1); SELECT tessera.shard_table('items', 'cust', colocate_with => 'orders')}),
	qr/25001: .*other nodes/, 'not in a transaction that has written');
like($c->error('s1', q{BEGIN; SELECT FROM items; SELECT tessera.shard_table('items', 'cust', colocate_with => 'orders')}), qr/25001: .*has used/,
	'nor in one that has used the table');
like($c->error('s2', q{BEGIN; CREATE TABLE fresh (cust text COLLATE "C" NOT NULL PRIMARY KEY); INSERT INTO fresh VALUES ('x'); SELECT } .
	q{tessera.shard_table('fresh', 'cust', colocate_with => 'orders')}), qr/25001: table public.fresh has rows/, 'nor with rows of its own');
is($c->query('s2', q{BEGIN; CREATE TABLE fresh (cust text COLLATE "C" NOT NULL PRIMARY KEY); SELECT tessera.shard_table('fresh', 'cust', } .
	q{colocate_with => 'orders'); COMMIT; SELECT count(*) FROM tessera.tables WHERE table_name = 'fresh'::regclass}), 
	"\n1", 'a table without rows joins in its own transaction');

# What is refused is refused before anything is changed.
my $before = groups();
$c->query('s1', $_) foreach ('CREATE TABLE keyless (cust text COLLATE "C" NOT NULL, id int PRIMARY KEY)', q{INSERT INTO keyless VALUES ('c1', 1)},
	'CREATE TABLE unindexed (cust text COLLATE "C" NOT NULL, id int)', q{INSERT INTO unindexed VALUES ('c1', 1)},
	'ALTER TABLE unindexed REPLICA IDENTITY FULL');
like($c->error('s1', "SELECT tessera.shard_table('keyless', 'cust', colocate_with => 'orders')"), qr/42P16: /, 'a constraint without the key');
like($c->error('s1', "SELECT tessera.shard_table('unindexed', 'cust', colocate_with => 'orders', create_index => true)"),
	qr/42P16: .*rows that have to be moved.*CREATE INDEX ON public.unindexed \(cust\)/s, 'no index on the key');
like($c->error('s1', "SELECT tessera.shard_table('items', 'cust', 'hash', colocate_with => 'orders')"), qr/42P16: /, 'another strategy');
like($c->error('s1', "SELECT tessera.shard_table('items', 'id', colocate_with => 'orders')"), qr/42P16: /, 'another key');
is(groups(), $before, 'nothing was changed');
like($c->query('s1', "SELECT severity, problem, statement IS NULL FROM tessera.check_table('items', 'cust', colocate_with => 'orders')"),
	qr/^warning\|chunks of table "orders" lie on other shards than table "items"\. If that has rows, shard_table moves them.*\|t$/,
	'check_table tells what will be done');

# Live: writers through all nodes, none of whom may see an error or lose a row.
$c->query('s1', 'CREATE TABLE log (n bigint PRIMARY KEY, cust text)');
my $load = $c->pgbench_start(nodes => [ $c->names ], clients => 1, seconds => 600, rate => 20, script => <<'END')->begun;
\set k random(0, 99)
\set id random(1, 2000000000)
INSERT INTO items VALUES ('c' || lpad((:k)::text, 3, '0'), -1, :id, 7) ON CONFLICT DO NOTHING;
UPDATE items SET n = n + 1 WHERE cust = 'c' || lpad((:k)::text, 3, '0') AND id = -1 AND pos = :id;
SELECT count(*) FROM items WHERE cust = 'c' || lpad((:k)::text, 3, '0');
DELETE FROM items WHERE cust = 'c' || lpad((:k)::text, 3, '0') AND id = -1 AND pos = :id AND n = 8 AND :id % 2 = 0;
END
$c->wait_for('s1', 'SELECT count(*) > 20 FROM items WHERE id = -1', 't');
my ($status, undef, $notices) = $c->psql('r2', "SELECT tessera.shard_table('items', 'cust', colocate_with => 'orders')");
is($status, 0, 'shard_table places it by moving') or diag $notices;
like($notices, qr/NOTICE:.*is sharded; its ranges are moved.*NOTICE:.*moved.* from shard "s1" to "s2".*NOTICE:.*moved.* from shard "s1" to "s3"/s,
	'tells of each part') or diag $notices;
is(owners('items'), owners('orders'), 'one group');
my $result = $load->end;
is($result->{failed}, 0, 'no transaction failed');
ok($result->{processed} > 0, "there were many ($result->{processed})");

is($c->query('s1', "SELECT count(*) FROM items WHERE id = -1 AND n <> 8"), '0', 'each row that was inserted was updated once')
	or diag $c->query('s1', "SELECT n, pos % 2 AS odd, count(*), min(cust), max(cust) FROM items WHERE id = -1 GROUP BY 1, 2 ORDER BY 1, 2");
is($c->query('s1', "SELECT count(*) FROM items WHERE id = -1 AND pos % 2 = 0"), '0', 'and deleted, where it was');
$c->query('s1', 'DELETE FROM items WHERE id = -1');
my ($same, $detail) = $c->same_everywhere('SELECT * FROM items');
ok($same, 'no row is lost or doubled') or diag $detail;
consistent('range');
is(groups(), $before, 'its own group is gone');
like($c->query('r2', "EXPLAIN (COSTS OFF) SELECT count(*) FROM orders o JOIN items i USING (cust, id) WHERE cust = 'c030'"), qr/Tessera/,
	'a join on the key');

is($stale->query_safe(q{EXECUTE point('c030')}), '13', 'the stale router: a point');
is($stale->query_safe('EXECUTE whole'), $c->plain_query('SELECT count(*), sum(n) FROM items'), 'the whole table');
is($stale->query_safe('EXECUTE joined'), $c->plain_query('SELECT count(*) FROM orders o JOIN items i USING (cust, id)'), 'a join');
$stale->query_safe(q{EXECUTE write('c080', 5)});
is($stale->query_safe(q{SELECT count(*) FROM items WHERE cust = 'c080' AND id = 0}), '1', 'a row that it writes');
$stale->quit;

like($c->error('s1', "SELECT tessera.shard_table('items', 'cust', colocate_with => 'orders')"), qr/42P16: .*already sharded/,
	'again: it is sharded already');

# By hash, by an owner who is no superuser, through a shard.
$c->query('s1', $_) foreach ('CREATE ROLE owner', 'CREATE ROLE other', 'ALTER TABLE acc OWNER TO owner', 'ALTER TABLE hist OWNER TO owner');
like($c->error('s3', "SET ROLE other; SELECT tessera.shard_table('hist', 'a, b', 'hash', colocate_with => 'acc')"), qr/42501/,
	'who owns neither may not');
$c->query('s1', 'ALTER TABLE acc OWNER TO other');
like($c->error('s3', "SET ROLE owner; SELECT tessera.shard_table('hist', 'a, b', 'hash', colocate_with => 'acc')"), qr/42501/,
	'nor who owns one of them');
$c->query('s1', 'ALTER TABLE acc OWNER TO owner');
$c->query('s3', "SET ROLE owner; SELECT tessera.shard_table('hist', 'a, b', 'hash', colocate_with => 'acc')");
is(owners('hist'), owners('acc'), 'hashed: one group');
($same, $detail) = $c->same_everywhere('SELECT * FROM hist');
ok($same, 'all rows are there') or diag $detail;
consistent('hash');
$c->query('r1', q{INSERT INTO hist SELECT 7, md5('7')::uuid, 4, 3});
like($c->error('r1', q{INSERT INTO hist SELECT 7, md5('7')::uuid, 9, 8}), qr/23503/, 'its foreign key holds');

# Two tables sharded alike, by themselves, come together by the same call; the second one is moved by hand meanwhile.
$c->query('s1', $_) foreach ('CREATE TABLE p (k int PRIMARY KEY, v int)', 'CREATE TABLE q (k int PRIMARY KEY, v int)',
	'CREATE TABLE r (k int PRIMARY KEY)',
	'INSERT INTO p SELECT g, g FROM generate_series(1, 100) g', 'INSERT INTO q SELECT g, g FROM generate_series(1, 100) g',
	'INSERT INTO r SELECT g FROM generate_series(1, 100) g',
	"SELECT tessera.shard_table('p', 'k')", "SELECT tessera.shard_table('q', 'k')", "SELECT tessera.shard_table('r', 'k')",
	"SELECT tessera.move_range('p', 50, tessera.maxkey(), 's2')", "SELECT tessera.move_range('q', tessera.minkey(), 70, 's3')",
	"SELECT tessera.move_range('r', tessera.minkey(), 70, 's2')");
like($c->query('s1', "SELECT severity, problem FROM tessera.check_table('q', 'k', colocate_with => 'p')"),
	qr/^warning\|table "q" is sharded, but not colocated with table "p"/, 'check_table');
$c->query('s2', 'SELECT count(*) FROM q');
$c->query('s2', "SELECT tessera.shard_table('q', 'k', colocate_with => 'p')");
is(owners('q'), owners('p'), 'two sharded tables');
like($c->error('s2', "SELECT tessera.shard_table('p', 'k', colocate_with => 'r')"), qr/42P16: .*already sharded|42P16: .*colocated/,
	'not one that has company');
is($c->query('s3', 'SELECT count(*), sum(q.v) FROM p JOIN q USING (k)'), '100|5050', 'a join');
$c->query('r2', 'ALTER TABLE q ADD FOREIGN KEY (k) REFERENCES p ON DELETE CASCADE');
$c->query('r1', 'DELETE FROM p WHERE k IN (1, 99)');
is($c->query('s3', 'SELECT count(*) FROM q'), '98', 'and a foreign key');
$c->query('r1', 'INSERT INTO p VALUES (1, 1), (99, 99)');
$c->query('r1', 'INSERT INTO q VALUES (1, 1), (99, 99)');

# A transaction with one snapshot, from before, does not see rows twice or not at all.
my $snapshot = $c->session('r1', on_error_stop => 0);
$snapshot->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($snapshot->query_safe('SELECT count(*) FROM p'), '100', 'a snapshot');
$c->query('s3', "SELECT tessera.shard_table('r', 'k', colocate_with => 'p')");
$snapshot->query('SELECT count(*) FROM r');
like($snapshot->{stderr}, qr/could not serialize/, 'sees neither half of what has joined since');
$snapshot->quit;
is($c->query('r1', 'SELECT count(*) FROM r JOIN p USING (k) JOIN q USING (k)'), '100', 'a join of three');

consistent('end');
$c->is_settled('end');

done_testing();
