# Shards know the sizes and the load of their chunks, and split what is too large (S82 to S92). Whatever way rows come by, the estimate follows;
# before a split the true size is looked at, so rows that have gone again split nothing; rows of one key are jumbo; the piece at an end that grows is
# to move.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $MB = 1024 * 1024;
my $c = TesseraCluster->new('splitter',
	settings => { 'tessera.split_interval' => '100ms', 'tessera.auto_split' => 'off', 'tessera.statistics_interval' => 0, autovacuum => 'off' });
$c->create(shards => 2, routers => 1);

sub table
{
	my ($name, $columns, $key, $size, $options) = @_;
	$c->query('s1', "CREATE TABLE $name ($columns)");
	$c->query('s1', sprintf("SELECT tessera.shard_table('%s', '%s', max_chunk_size => %d %s)", $name, $key, $size, $options // ''));
	return;
}

my $of = "FROM tessera.chunk_estimate AS e JOIN tessera.cluster_table AS t USING (group_id) WHERE t.relid = '%s'::regclass";

# Waits until the estimate of all chunks is within so much of what is expected.
sub estimated
{
	my ($what, $table, $bytes, $part) = @_;
	my $sql = sprintf "SELECT coalesce(sum(e.bytes), 0) $of", $table;
	$part //= 0.25;
	ok($c->wait_for('s1', sprintf('SELECT abs((%s) - %d) < %d', $sql, $bytes, $bytes * $part + 20_000), 't', 30), "$what: about $bytes bytes")
	  or diag($c->query('s1', sprintf("SELECT e.*, clock_timestamp() $of", $table)));
	return;
}

sub chunks
{
	my ($table) = @_;
	return $c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE table_name = '$table'::regclass");
}

# True bytes of each chunk's rows, by the bounds of the routing table, in their order.
sub sizes
{
	my ($table, $key) = @_;
	my $mins = $c->query('s1',
		"SELECT string_agg(min::text, ',' ORDER BY min) FROM tessera.chunks WHERE table_name = '$table'::regclass AND min::text <> 'MINKEY'");
	return split /\n/, $c->query('r1', "SELECT count(*) * 440 FROM $table GROUP BY width_bucket($key, ARRAY[$mins]) ORDER BY min($key)");
}

# Rows of 400 characters: 440 bytes each in the table, with a key of type int.
my $row = 440;
my $v = "repeat('x', 400)";

# ---- the estimate follows, whatever way the rows come by
table('small', 'k int PRIMARY KEY', 'k', 256 * 1024);    # so that samples are 4 kB apart
table('t', 'k int PRIMARY KEY, v text', 'k', 64 * $MB);
ok($c->wait_for('s1', sprintf("SELECT count(*) $of", 't'), '1', 30), 'an empty table is reported');
estimated('empty', 't', 0);
$c->pgbench(nodes => ['r1'], script => "\\set k random(1, 1000000000)\nINSERT INTO t VALUES (:k, $v) ON CONFLICT DO NOTHING;",
	transactions => 500, clients => 4);
estimated('single rows', 't', 2000 * $row);
$c->pgbench(nodes => ['s1'], script => "\\set k random(1, 1000000000)\nINSERT INTO t VALUES (:k, $v) ON CONFLICT DO NOTHING;",
	transactions => 500, clients => 4);
estimated('single rows, from the shard itself', 't', 4000 * $row);
$c->query('r1', 'TRUNCATE t');
estimated('TRUNCATE', 't', 0);
$c->query('r1', "INSERT INTO t SELECT g, $v FROM generate_series(1, 9000) g");
estimated('rows of a SELECT', 't', 9000 * $row);
my $copy = sprintf "COPY t FROM PROGRAM 'seq %%d %%d | sed \"s/\$/,%s/\"' (FORMAT csv)", 'y' x 400;
$c->query('r1', sprintf $copy, 10001, 13000);
estimated('COPY', 't', 12000 * $row);
$c->query('s1', sprintf $copy, 13001, 16000);
estimated('COPY on the shard itself', 't', 15000 * $row);
$c->query('r1', 'UPDATE t SET v = v || v WHERE k <= 9000');
estimated('UPDATE that grows', 't', 15000 * $row + 9000 * 400);
$c->query('r1', 'UPDATE t SET v = left(v, 400)');
estimated('UPDATE that shrinks', 't', 15000 * $row);
$c->query('r1', 'DELETE FROM t WHERE k > 10000');
estimated('DELETE', 't', 9000 * $row);
$c->pgbench(nodes => ['r1'], clients => 2, transactions => 500, script => "\\set k random(20000, 1000000000)\n"
	. "MERGE INTO t USING (VALUES (:k, $v)) s (k, v) ON t.k = :k WHEN MATCHED THEN UPDATE SET v = t.v || s.v"
	. ' WHEN NOT MATCHED THEN INSERT VALUES (:k, s.v);');
estimated('MERGE that inserts', 't', 10000 * $row);
$c->query('r1', join ';',
	map { "MERGE INTO t USING (VALUES ($_, $v)) s (k, v) ON t.k = $_ WHEN MATCHED THEN UPDATE SET v = repeat(s.v, 5)" } 1 .. 1000);
estimated('MERGE that updates', 't', 10000 * $row + 1000 * 1600);
$c->query('s1', "SELECT tessera.move_range('t', 1, 5001, 's2')");
my $on = "SELECT coalesce(sum(e.bytes), 0) $of AND e.node_id = (SELECT node_id FROM tessera.node WHERE name = '%s')";
ok($c->wait_for('s1', sprintf("SELECT abs(($on) - %d) < 600000", 't', 's2', 5000 * $row + 1600 * 1000), 't', 30), 'a move brings the estimate along');
ok($c->wait_for('s1', sprintf("SELECT abs(($on) - %d) < 600000", 't', 's1', 5000 * $row), 't', 10), 'and takes it away');
is(chunks('t'), 3, 'nothing was split');

# ---- a restart: measured again
$c->query('s1', 'UPDATE tessera.chunk_estimate SET bytes = 1');
my $of_before = "FROM tessera.chunk_estimate WHERE bytes = 77";
$c->query('s1', "INSERT INTO tessera.chunk_estimate (group_id, node_id, min, bytes, statements, load)"
	. " SELECT t.group_id, n.node_id, e.min, 77, 0, 0 FROM tessera.cluster_table AS t, tessera.node AS n, tessera.chunk_estimate AS e"
	. " WHERE t.relid = 'small'::regclass AND n.name = 's2' AND e.min::text = '5001'");
is($c->query('s1', "SELECT count(*) $of_before"), 1, 's2 had a chunk of a table of which it has none now');
$c->restart($_) foreach 's2', 's1';
estimated('after a restart', 't', 10000 * $row + 1000 * 1600);
ok($c->wait_for('s1', "SELECT count(*) $of_before", 0, 30), 'what is no more is forgotten');

# ---- what is done with too large chunks. All is loaded first: so each split is one.
table('a', 'k int PRIMARY KEY, v text', 'k', 256 * 1024);
table('o', 'k int, n int, v text, PRIMARY KEY (k, n)', 'k', 256 * 1024);
table('h', 'k int PRIMARY KEY, v text', 'k', 256 * 1024, ", strategy => 'hash', chunks => 2");
table('x', 'a text COLLATE "C", b int, v text, PRIMARY KEY (a, b)', 'a, b', 256 * 1024);
table('m', 'k int PRIMARY KEY, v text', 'k', 256 * 1024);
table('gone', 'k int PRIMARY KEY, v text', 'k', 256 * 1024);
$c->query('s1', "SELECT tessera.split_chunk('m', $_)") foreach 1001, 2001, 3001;
$c->query('s1', "SELECT tessera.move_range('m', 2001, 3001, 's2')");
$c->query('r1', $_) foreach "INSERT INTO a SELECT g, $v FROM generate_series(1, 2000) g ORDER BY hashint4(g)",
  "INSERT INTO o SELECT 7, g, $v FROM generate_series(1, 2000) g",
  "INSERT INTO h SELECT g, $v FROM generate_series(1, 2000) g",
  "INSERT INTO x SELECT 'k' || g % 40, g, $v FROM generate_series(1, 2000) g",
  "INSERT INTO m SELECT g, $v FROM generate_series(1, 4000) g",
  "BEGIN; INSERT INTO gone SELECT g, $v FROM generate_series(1, 2000) g; ROLLBACK";
estimated('loaded', $_, 2000 * $row) foreach 'a', 'o', 'h', 'x';
estimated('loaded', 'm', 4000 * $row);
is(chunks('a') . chunks('o') . chunks('h') . chunks('x') . chunks('m') . chunks('gone'), '112141', 'nothing is split while auto_split is off');
$c->set(undef, 'tessera.auto_split' => 'on');

my $largest = "SELECT max(e.bytes) <= 256 * 1024 * 1.05 $of";
foreach my $table ('a', 'h', 'x', 'm')
{
	ok($c->wait_for('s1', sprintf("$largest HAVING count(*) > %d", $table, $table eq 'm' ? 8 : 5), 't', 30), "$table is split")
	  or diag($c->query('s1', sprintf("SELECT e.min, e.bytes $of ORDER BY 1", $table)));
}
is($c->query('s1', "SELECT abs(sum(bytes) - 2000 * $row) < 50000 FROM tessera.chunks WHERE table_name = 'a'::regclass"), 't',
	'the view of the chunks shows it');
my @sizes = sizes('a', 'k');
cmp_ok(scalar @sizes, '>=', 6, 'pieces of a: ' . join(' ', @sizes));
is(scalar(grep { $_ < 0.3 * 256 * 1024 || $_ > 0.8 * 256 * 1024 } @sizes), 0, 'each about half of max_chunk_size');
is($c->query('s1', "SELECT count(*) FROM tessera.changelog WHERE what = 'split' AND object = 'public.a' AND by = 'tessera'"), 1, 'by one commit');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.chunks WHERE table_name = 'o'::regclass AND jumbo", '1', 30), 'one key: jumbo');
is(chunks('o') . chunks('gone'), '11', 'and not split; nor is what has gone again');
estimated('corrected', 'gone', 0);
ok($c->wait_for('s2', "SELECT tessera.reload_routing() AND (SELECT bool_and(jumbo) FROM tessera.routing_chunks('o'))", 't', 30),
	'the other nodes know that it is jumbo');

# Rows that took the place of others make the estimate too high. Too little is written for a measurement: the look before a split tells.
table('same', 'k int PRIMARY KEY, v text', 'k', 256 * 1024);
$c->query('r1', "INSERT INTO same SELECT g, $v FROM generate_series(1, 480) g");
estimated('almost too large', 'same', 480 * $row, 0.1);
$c->query('r1', "INSERT INTO same SELECT g, $v FROM generate_series(1, 200) g ON CONFLICT (k) DO UPDATE SET v = excluded.v");


# ---- jumbo no more: looked at again, and again
my $marks = "SELECT count(*) FROM tessera.changelog WHERE what = 'mark_jumbo' AND object = 'public.o'";
is($c->query('s1', $marks), 1, 'marked once');
is($c->query('r1', "SELECT tessera.clear_jumbo('o', 7)"), 't', 'cleared');
ok($c->wait_for('s1', $marks, 2, 40), 'marked again');
$c->query('r1', "INSERT INTO o SELECT g, 1, $v FROM generate_series(1000, 2000) g");
is(chunks('o'), 1, 'a jumbo chunk is left alone');
$c->query('r1', "SELECT tessera.clear_jumbo('o', 7)");
ok($c->wait_for('s1', "SELECT count(*) > 2 FROM tessera.chunks WHERE table_name = 'o'::regclass", 't', 40), 'other keys are split off');

is(chunks('same'), 1, 'S88: what only seemed too large is not split');

# ---- keys that ascend, or descend: the piece at the end is to go to another shard
is($c->query('s1', "SELECT count(*) FROM tessera.balancer_action AS b JOIN tessera.cluster_table AS t USING (table_id)"
	. " WHERE b.reason = 'top' AND t.relid IN ('a'::regclass, 'x'::regclass, 'h'::regclass)"), 0,
	'rows that came in any order: nothing is to be moved for that');
foreach my $table ('up', 'down')
{
	table($table, 'k int PRIMARY KEY, v text', 'k', 256 * 1024);
	for my $i (1 .. 14)
	{
		my $sign = $table eq 'up' ? 1 : -1;
		$c->query('r1', "INSERT INTO $table SELECT g * $sign, $v FROM generate_series($i * 100, $i * 100 + 99) g");
	}
	my $end = $table eq 'up' ? "max::text = 'MAXKEY'" : "min::text = 'MINKEY'";
	ok($c->wait_for('s1', "SELECT count(*) > 0 FROM tessera.balancer_action WHERE reason = 'top' AND kind = 'move' AND by = 'tessera'"
			. " AND $end AND table_id = (SELECT table_id FROM tessera.cluster_table WHERE relid = '$table'::regclass)", 't', 30),
		"keys of $table: a move is asked for");
}

# ---- load
$c->query('r1', 'SELECT count(*) FROM a');
my $load = $c->pgbench_start(nodes => ['r1'], clients => 2, seconds => 600, rate => 200, scripts => {
	"\\set k random(1, 2000)\nSELECT v FROM a WHERE k = :k;" => 1, 'SELECT v FROM a WHERE k = 42;' => 4 });
my $shown = "SELECT count(*) $of AND e.statements > 20 AND e.load > 0 AND e.hot_key::text = '42' AND e.hot_share BETWEEN 0.5 AND 1";
ok($c->wait_for('s1', sprintf($shown, 'a'), '1', 30), 'load, and the hot key');
$load->stop;

# ---- too much load: split by it; one key that has it gets a chunk of its own
table('busy', 'k int PRIMARY KEY, v text', 'k', 64 * $MB);
table('hot', 'k int PRIMARY KEY, v text', 'k', 64 * $MB);
$c->query('r1', "INSERT INTO $_ SELECT g, 'x' FROM generate_series(1, 2000) g") foreach 'busy', 'hot';
$c->set(undef, 'tessera.split_load' => 0.001);
$load = $c->pgbench_start(nodes => ['r1'], clients => 2, seconds => 600, rate => 200, scripts => {
	"\\set k random(1, 2000)\nSELECT v FROM busy WHERE k = :k;" => 1, 'SELECT v FROM hot WHERE k = 42;' => 1 });
ok($c->wait_for('s1', "SELECT count(*) > 1 FROM tessera.chunks WHERE table_name = 'busy'::regclass", 't', 30), 'a busy chunk is split');
ok($c->wait_for('s1', sprintf("SELECT count(*) $of AND e.statements > 20 AND e.hot_share > 0.9 AND e.hot_key::text = '42'", 'hot'), '1', 30),
	'another one is as busy');
ok($c->wait_for('s1', "SELECT string_agg(min || ' ' || max, ', ' ORDER BY min) FROM tessera.chunks WHERE table_name = 'hot'::regclass",
	# what is beside it may be split once more by what was counted before
	qr/^MINKEY.* 42, 42 43, 43 .*MAXKEY$/, 30), 'by one key, which gets a chunk of its own');
$load->stop;

is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');
done_testing();
