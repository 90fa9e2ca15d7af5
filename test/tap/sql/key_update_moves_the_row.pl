# UPDATE of the shard key (doc/design.md#statements): the row moves. The same statements on a plain server and from each node; concurrent updates and
# deletes of the same row; moves of the range that a row leaves or goes to; transactions and savepoints; random updates by clients of three nodes.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('key_update', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.gate_timeout' => 60000 });

my $schema = <<'SQL';
CREATE TABLE t1 (k int NOT NULL, id int NOT NULL, v text, n numeric(10,2), PRIMARY KEY (k, id));
CREATE TABLE t2 (k int PRIMARY KEY, "Odd name" varchar(5), at timestamptz);
CREATE TABLE t3 (gone int, a int NOT NULL, b text NOT NULL, i int GENERATED ALWAYS AS IDENTITY, g int GENERATED ALWAYS AS (a * 2) STORED,
  d text DEFAULT 'dflt', CHECK (a < 1000));
ALTER TABLE t3 DROP COLUMN gone;
CREATE TABLE t4 (k int8 NOT NULL, a int[], x int);
ALTER TABLE t3 REPLICA IDENTITY FULL;
ALTER TABLE t4 REPLICA IDENTITY FULL;
CREATE TABLE t5 (k int NOT NULL, id int NOT NULL, PRIMARY KEY (k, id));
CREATE TABLE child (k int NOT NULL, id int NOT NULL, PRIMARY KEY (k, id));
CREATE TABLE tg (k int PRIMARY KEY, v int);
CREATE FUNCTION tg_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER tg BEFORE UPDATE ON tg FOR EACH ROW EXECUTE FUNCTION tg_f();
CREATE TABLE rls (k int PRIMARY KEY, v int);
ALTER TABLE rls ENABLE ROW LEVEL SECURITY;
CREATE DOMAIN code AS varchar(4) CHECK (value <> 'bad');
CREATE TABLE t6 (k numeric(6,1) NOT NULL, c code, b char(3), vs varchar(3)[], r int4, PRIMARY KEY (k));
CREATE TABLE t7 (k varchar(4) PRIMARY KEY, v int);
CREATE VIEW v1 AS SELECT k, id, v FROM t1;
CREATE TABLE pl (id int PRIMARY KEY, name text);
CREATE FUNCTION move_it(old int, new int) RETURNS int LANGUAGE plpgsql
  AS $$ DECLARE c int; BEGIN UPDATE t2 SET k = new WHERE k = old; GET DIAGNOSTICS c = ROW_COUNT; RETURN c; END $$;
CREATE ROLE only_update;
GRANT SELECT, UPDATE ON t1 TO only_update;
SQL

my @refused;
sub refused { push @refused, $_[0]; return $_[0]; }

my $prepared = 'PREPARE p (int, int) AS UPDATE t1 SET k = $2 WHERE k = $1 AND id = 1 RETURNING k, id;' .
	join('', map { 'EXECUTE p(' . ($_ + 100) . ", $_);" } 1 .. 9);
my @script = (
	q{INSERT INTO t1 SELECT k, i, 'v' || k || '-' || i, k * 10 + i FROM generate_series(1, 15) k, generate_series(1, 4) i},
	q{INSERT INTO t2 SELECT g, 'x' || g, '2026-01-01'::timestamptz + g * interval '1 h' FROM generate_series(1, 40) g},
	q{INSERT INTO t3 (a, b) SELECT g, 'b' || g FROM generate_series(1, 30) g},
	q{INSERT INTO t4 SELECT g, ARRAY[g, g + 1], 0 FROM generate_series(1, 20) g},
	q{UPDATE t1 SET k = 3 WHERE k = 2 AND id = 2},
	q{UPDATE t1 SET k = 77 WHERE k = 2 AND id = 1 RETURNING *},
	q{UPDATE t1 SET k = 78, v = v || '!', n = n + 0.005 WHERE k = 77 RETURNING k, v, n, k + id AS sum, upper(v)},
	q{UPDATE t1 x SET k = x.k + 1000 WHERE x.id = 4 RETURNING x},
	q{UPDATE t1 SET k = k + 100 WHERE id = 1},
	q{UPDATE t1 SET k = -k WHERE id = 3 AND k IN (4, 5, 6) RETURNING k},
	q{UPDATE t1 SET k = 1 WHERE false},
	q{UPDATE t1 SET k = 5 WHERE k = 99999 RETURNING *},
	q{UPDATE t1 SET k = NULL WHERE k = 9 AND id = 2},
	q{UPDATE t1 SET k = 10 WHERE k = 9 AND id = 2},
	q{UPDATE t1 SET k = id, id = k WHERE id = 2 RETURNING k, id},
	q{UPDATE t1 SET (k, v) = (v::int, 'x') WHERE k = 7},
	q{UPDATE t1 SET k = 1 / (k - k) WHERE k = 12},
	q{UPDATE t2 SET k = 100, "Odd name" = 'abcdef' WHERE k = 1},
	q{UPDATE t2 SET k = 100, "Odd name" = 'abcde' WHERE k = 1 RETURNING "Odd name", at},
	q{UPDATE t2 SET k = 2 WHERE k = 3},
	q{UPDATE t2 SET k = 2 WHERE k = 2 RETURNING k},
	q{UPDATE t2 SET k = 300 + k WHERE at > '2026-01-02' AND k < 35 RETURNING k},
	q{UPDATE t2 SET k = DEFAULT WHERE k = 5},
	q{UPDATE t2 SET k = coalesce(nullif("Odd name", 'x6'), '606')::int WHERE k = 6 RETURNING *},
	q{UPDATE t2 SET k = extract(day FROM at)::int + 400 WHERE k = 7 RETURNING k},
	q{UPDATE t2 SET k = 500, at = now() WHERE k = 8 RETURNING k, at = now()},
	q{UPDATE t3 SET a = a + 100 WHERE a < 10 RETURNING *},
	q{UPDATE t3 SET b = b || '/' RETURNING a, b, i, g, d},
	q{UPDATE t3 SET a = 5000 WHERE b = 'b12/'},
	q{UPDATE t3 SET a = 55, b = 'c', d = DEFAULT WHERE a = 13 AND b = 'b13/' RETURNING a, b, i, g, d},
	q{UPDATE t3 SET b = NULL WHERE a = 14},
	q{UPDATE t4 SET k = 100, a = a || 7 WHERE k = 1 RETURNING a},
	q{UPDATE t4 SET k = k + 5000000000 WHERE x = 0 AND k > 10 RETURNING k},
	q{BEGIN; UPDATE t1 SET k = 600 WHERE k = 10 AND id = 3 RETURNING k; UPDATE t1 SET k = 601 WHERE k = 600 RETURNING k; SELECT k FROM t1 WHERE k } .
	q{BETWEEN 600 AND 601; ROLLBACK; SELECT count(*) FROM t1 WHERE k BETWEEN 600 AND 601},
	q{BEGIN; INSERT INTO t1 VALUES (700, 1); UPDATE t1 SET k = 701 WHERE k = 700; UPDATE t1 SET v = 'later' WHERE k = 701; SAVEPOINT s; UPDATE t1 } .
	q{SET k = 702 WHERE k = 701; ROLLBACK TO s; UPDATE t1 SET k = 703 WHERE k = 701 RETURNING v; COMMIT; SELECT k, v FROM t1 WHERE k >= 700 AND k } .
	q{< 710 ORDER BY k},
	q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t1; UPDATE t1 SET k = k + 1 WHERE k = 703; UPDATE t1 SET k = k + 1 WHERE k = } .
	q{704 RETURNING k; COMMIT},
	q{SELECT move_it(9, 800); SELECT move_it(9, 801); SELECT k FROM t2 WHERE k >= 800 ORDER BY k},
	$prepared,
	q{INSERT INTO t6 SELECT g + 0.5, 'c' || g, 'b' || g, ARRAY['a', 'b'], g FROM generate_series(1, 20) g},
	q{INSERT INTO t7 SELECT 'k' || g, g FROM generate_series(1, 20) g},
	q{UPDATE t6 SET k = k + 0.06 WHERE k < 5 RETURNING *},
	q{UPDATE t6 SET k = k * 1000000 WHERE k > 6},
	q{UPDATE t6 SET k = 7.77 WHERE k = 6.5 RETURNING k},
	q{UPDATE t6 SET k = 700.04, c = c || 'xx' WHERE k > 15},
	q{UPDATE t6 SET k = 701.04, c = 'bad' WHERE k = 8.5},
	q{UPDATE t6 SET k = 702.04, c = 'good', b = 'x', vs = ARRAY['abc', 'd'], r = 5::int8 + 1 WHERE k = 8.5 RETURNING *},
	q{UPDATE t6 SET k = 703.04, b = 'too long' WHERE k = 9.5},
	q{UPDATE t6 SET k = 704.04, vs = ARRAY['abcd', 'd'] WHERE k = 9.5},
	q{UPDATE t6 SET k = 705.04, r = 3000000000 + r WHERE k = 9.5},
	q{UPDATE t7 SET k = 'k' || v || 'z' || v WHERE k = 'k7' RETURNING k},
	q{UPDATE t7 SET k = k || 'zz' WHERE v > 5},
	q{UPDATE t7 SET k = upper(k) || '  ' WHERE v = 9 RETURNING k},
	q{UPDATE t7 SET k = 'x   ' || repeat(' ', v) WHERE v = 4 RETURNING k},
	q{PREPARE p (text) AS UPDATE t7 SET k = $1 WHERE v = 1 RETURNING k; EXECUTE p('a'); EXECUTE p('b'); EXECUTE p('c'); EXECUTE p('d'); EXECUTE } .
	q{p('e'); EXECUTE p('f'); EXECUTE p('g'); EXECUTE p('hhhhhh')},
	q{SELECT * FROM t6 ORDER BY k},
	q{SELECT * FROM t7 ORDER BY v},
	q{PREPARE q (int) AS UPDATE t2 SET k = k + $1 WHERE k >= 20; EXECUTE q(1000); EXECUTE q(1000); EXECUTE q(1000); EXECUTE q(1000); EXECUTE } .
	q{q(1000); EXECUTE q(1000); EXECUTE q(-6000); SELECT count(*), sum(k) FROM t2},
	refused(q{UPDATE t1 SET k = 1 FROM pl WHERE pl.id = t1.k}),
	refused(q{UPDATE t1 SET k = (SELECT max(id) FROM pl) WHERE k = 1}),
	refused(q{UPDATE t1 SET k = 1 WHERE id IN (SELECT id FROM pl)}),
	q{UPDATE t2 SET k = (random() * 0)::int + 900 WHERE k = 2 RETURNING k},
	refused(q{UPDATE v1 SET k = 5 WHERE k = 6}),
	refused(q{UPDATE t5 SET k = 5 WHERE k = 6}),
	refused(q{UPDATE tg SET k = 5 WHERE k = 6}),
	refused(q{UPDATE rls SET k = 5 WHERE k = 6}),
	refused(q{UPDATE t4 SET k = 5, a[1] = 6 WHERE k = 6}),
	refused(q{WITH u AS (UPDATE t1 SET k = 5 WHERE id = 3 RETURNING k) SELECT count(*) FROM u}),
	refused(q{WITH u AS (UPDATE t1 SET k = 5 WHERE k = 6 RETURNING k) SELECT count(*) FROM u}),
	refused(q{WITH w AS (SELECT 1 AS a) UPDATE t1 SET k = a FROM w}),
	refused(q{INSERT INTO t2 (k) VALUES (2) ON CONFLICT (k) DO UPDATE SET k = 5}),
	refused(q{BEGIN; DECLARE cu CURSOR FOR SELECT * FROM t2 FOR UPDATE; FETCH cu; UPDATE t2 SET k = 1 WHERE CURRENT OF cu}),
	q{SELECT * FROM t1 ORDER BY k, id},
	q{SELECT * FROM t2 WHERE k <> 500 ORDER BY k},
	q{SELECT a, b, i, g, d FROM t3 ORDER BY a, b},
	q{SELECT * FROM t4 ORDER BY k},
);

$c->create(shards => 3);
$c->query('s1', $schema);
$c->plain_query($schema);
$c->query('s2', $_) foreach (
	"SELECT tessera.shard_table('t1', 'k')", "SELECT tessera.split_chunk('t1', 4), tessera.split_chunk('t1', 9)",
	"SELECT tessera.shard_table('t2', 'k', 'hash', chunks => 6)",
	"SELECT tessera.shard_table('t3', 'a, b', create_index => true)",
	"SELECT tessera.shard_table('t4', 'k', 'hash', chunks => 6, create_index => true)",
	"SELECT tessera.shard_table('t5', 'k', 'hash', chunks => 3)", "SELECT tessera.shard_table('child', 'k', 'hash', colocate_with => 't5')",
	'ALTER TABLE child ADD FOREIGN KEY (k, id) REFERENCES t5',
	"SELECT tessera.shard_table('t6', 'k', 'hash', chunks => 9)", "SELECT tessera.shard_table('t7', 'k', 'hash', chunks => 9)",
	"SELECT tessera.shard_table('tg', 'k')", "SELECT tessera.shard_table('rls', 'k')");
$c->query('s1', $_) foreach (
	"SELECT tessera.move_range('t1', tessera.minkey(), 4, 's1')", "SELECT tessera.move_range('t1', 4, 9, 's2')",
	"SELECT tessera.move_range('t1', 9, tessera.maxkey(), 's3')",
	"SELECT tessera.move_range('t3', ROW(10, 'b'), ROW(120, 'b'), 's2')");

foreach my $name (TesseraCluster::some_of(1, 's1', 's2', 's3'))
{
	is($c->script_differs($name, \@script, \@refused), 0, "from $name: " . scalar(@script) . ' statements do as on a plain server, or are refused');
	foreach my $table (qw(t1 t2 t3 t4 t6 t7))
	{
		$c->query($name, "DELETE FROM $table");
		$c->plain_query("DELETE FROM $table");
	}
	$c->everywhere('ALTER TABLE t3 ALTER i RESTART 1');
}

# What EXPLAIN shows; rights.
my $writes = qr/Remote SQL: DELETE FROM public.t1.*Tier: routed rows.*Remote SQL:\s+INSERT INTO/s;
like($c->query('s1', 'EXPLAIN (VERBOSE, COSTS OFF) UPDATE t1 SET k = k + 1 WHERE k = 5 RETURNING k'),
	qr/Tessera Key Update.*Tier: moved rows.*Tier: T1.*Shards: .*FOR UPDATE.*$writes/s,
	'EXPLAIN shows the steps');
like($c->query('s2', 'EXPLAIN (ANALYZE, COSTS OFF) UPDATE t1 SET k = k + 1'), qr/Tier: moved rows.*Tier: whole statement/s,
	'EXPLAIN ANALYZE runs it');
like($c->error('s2', 'SET ROLE only_update; UPDATE t1 SET k = k + 1 WHERE false OR k < 0; UPDATE t1 SET k = 5 WHERE k = 6'), qr/42501/,
	'who may only UPDATE cannot')
  if $c->query('s1', 'INSERT INTO t1 VALUES (6, 900)') eq '';
$c->query('s1', 'DELETE FROM t1');

# ---- two at once ----

my $ROWS = 2000;
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (k int NOT NULL, id int NOT NULL, v int NOT NULL DEFAULT 0, PRIMARY KEY (k, id))', 'CREATE INDEX ON acc (id)',
	"INSERT INTO acc SELECT g, g FROM generate_series(1, $ROWS) g", "SELECT tessera.shard_table('acc', 'k')",
	"SET client_min_messages = warning; SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's1')",
	"SELECT tessera.move_range('acc', 501, 1501, 's2')", "SELECT tessera.move_range('acc', 1501, tessera.maxkey(), 's3')");
my @nodes = $c->names;

sub ended
{
	my ($run) = @_;
	my $errors = $c->ended($run);
	return $run->{out} . $errors;
}

sub row_of { return $c->query('s3', "SELECT k, v FROM acc WHERE id = $_[0]"); }

# [name, first, end of the first, second, its answer, the row then]; ID is the row's id and key, on s1 or s2.
my @pairs = (
	[ 'after an UPDATE: the newest version moves', 'UPDATE acc SET v = 7 WHERE k = ID', 'COMMIT', 'UPDATE acc SET k = 5000, v = v + 1 WHERE k = ID',
	qr/^UPDATE 1$/, '5000|8' ],
	[ 'after an UPDATE: it matches no longer', 'UPDATE acc SET v = 7 WHERE k = ID', 'COMMIT', 'UPDATE acc SET k = 5000 WHERE k = ID AND v = 0',
	qr/^UPDATE 0$/, 'ID|7' ],
	[ 'after a key update: it is gone', 'UPDATE acc SET k = 5000 WHERE k = ID', 'COMMIT', 'UPDATE acc SET k = 1000 WHERE k = ID', qr/^UPDATE 0$/,
	'5000|0' ],
	[ 'after a key update on the same shard', 'UPDATE acc SET k = ID + 100000 WHERE k = ID', 'COMMIT', 'UPDATE acc SET k = 1000 WHERE k = ID',
	qr/^UPDATE 0$/, '100ID|0' ],
	[ 'after a key update that is rolled back', 'UPDATE acc SET k = 5000 WHERE k = ID', 'ROLLBACK', 'UPDATE acc SET k = 1000 WHERE k = ID',
	qr/^UPDATE 1$/, '1000|0' ],
	[ 'a DELETE after a key update', 'UPDATE acc SET k = 5000 WHERE k = ID', 'COMMIT', 'DELETE FROM acc WHERE k = ID', qr/^DELETE 0$/, '5000|0' ],
	[ 'after a DELETE', 'DELETE FROM acc WHERE k = ID', 'COMMIT', 'UPDATE acc SET k = 5000 WHERE k = ID', qr/^UPDATE 0$/, '' ],
	[ 'REPEATABLE READ, after an UPDATE', 'UPDATE acc SET v = 7 WHERE k = ID', 'COMMIT',
	'BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE acc SET k = 5000 WHERE k = ID; COMMIT', qr/40001/, 'ID|7' ]);
my $id = 100;
foreach my $n (0 .. $#pairs)
{
	my ($name, $first, $end, $second, $answer, $row) = @{ $pairs[$n] };
	foreach my $turn (TesseraCluster::some_of($n, [ 's1', 's2' ], [ 's3', 's1' ]))
	{
		my ($one, $other) = @$turn;
		s/ID/$id/g foreach (my ($a, $b, $r) = ($first, $second, $row));
		my $session = $c->session($one, on_error_stop => 0);
		$session->query('BEGIN');
		$session->query($a);
		my $waiting = $c->background($other, $b);
		ok($c->wait_for('s1', "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'", '1', 30),
			"$name: $other waits for $one");
		$session->query($end);
		is($session->{stderr}, '', "$name: the first ends");
		$session->quit;
		like(ended($waiting), $answer, "$name: the second, from $other");
		is(row_of($id), $r, "$name: the row, once");
		$id++;
	}
}

# Between the lock and the deletion the rows stay locked, also on another shard and outside of a transaction block.
foreach my $router ('s1', 's2')
{
	$c->pause_at($router, 'key_update_locked');
	my $first = $c->background($router, "UPDATE acc SET k = 5000 WHERE k = $id");
	ok($c->paused_at($router, 'key_update_locked', 30), "a key update from $router has locked");
	my $second = $c->background('s3', "UPDATE acc SET v = 9 WHERE k = $id");
	ok($c->wait_for('s1', "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'", '1', 30), 'another waits for it');
	$c->go_on($router, 'key_update_locked');
	is(ended($first) . ended($second), "UPDATE 1\nUPDATE 0\n", 'the first moves the row');
	is(row_of($id++), '5000|0', 'which is there once');
}

# ---- while the range moves ----

sub all_rows { return $c->query($_[0], 'SELECT count(*), count(DISTINCT id), sum(v) FROM acc'); }
$c->query('s1', 'DELETE FROM acc; ');
$c->query('s1', "INSERT INTO acc SELECT g, g FROM generate_series(1, $ROWS) g");
my $moved = 0;
my @waiting;
my ($move, $held);
my $phases = 0;
$c->pause_at('s2', 'range_deleter_batch');
foreach my $phase ([ 's3', 'recipient_registered' ], [ 's3', 'recipient_cloned' ], [ 's2', 'donor_steady' ], [ 's2', 'donor_write_gate', 1 ],
	[ 's2', 'donor_read_gate', 1 ],
	[ 's2', 'config_committed', 1 ], [ 's2', 'donor_released' ], [ 's2', 'range_deleter_batch' ])
{
	my ($node, $point, $gated) = @$phase;
	$c->pause_at($node, $point);
	$move //= $c->background('s1', "SELECT tessera.move_range('acc', 501, 1501, 's3')");
	$c->go_on($held->[0], $held->[1]) if $held;
	$c->paused_at($node, $point, 60) or die "$point is not reached";
	$held = $phase;
	foreach my $n (TesseraCluster::some_of($phases++, 0 .. 2))
	{
		my $i = $moved + 1;
		# out of the range, into it, within it, and past it
		my %updates = (out => 'UPDATE acc SET k = k + 5000, v = v + 1 WHERE k = ' . (600 + $i),
			in => 'UPDATE acc SET k = k + 450, v = v + 1 WHERE k = ' . (200 + $i),
			within => 'UPDATE acc SET k = k + 1, v = v + 1 WHERE id = ' . (1000 + $i),
			past => 'UPDATE acc SET k = k + 2000, v = v + 1 WHERE k = ' . $i);
		push @waiting, [ "$_ at $point, from $nodes[$n]", $c->background($nodes[$n], $updates{$_}) ] foreach sort keys %updates;
		$moved++;
	}
	next if $gated;
	like(ended($_->[1]), qr/^UPDATE 1$/, $_->[0]) foreach splice @waiting;
	is(all_rows($_), "$ROWS|$ROWS|" . 4 * $moved, "$point: $_ sees each row once") foreach @nodes;
}
$c->go_on($held->[0], $held->[1]);
like(ended($move), qr/^[-0-9a-f]+$/, 'the range has moved');
$c->wait_for($_, 'SELECT count(*) FROM tessera.range_deletions', '0', 60) foreach @nodes;
is(all_rows($_), "$ROWS|$ROWS|" . 4 * $moved, "$_ sees each row once") foreach @nodes;

# ---- many at once ----

my $script = '\set id random(1, 40)' . "\n" . '\set k random(1, 3000)' . "\nUPDATE acc SET k = :k, v = v + 1 WHERE id = :id;\n";
my $many = TesseraCluster::long() ? 35 : 15;
foreach my $protocol ('simple', 'prepared')
{
	my $result = $c->pgbench(script => $script, clients => 1, transactions => $many, protocol => $protocol);
	is("$result->{processed} $result->{failed} $result->{ok}", 3 * $many . ' 0 1', "$protocol: updates of random rows to random keys")
		or diag $result->{errors};
}
is($c->query($_, 'SELECT count(*), count(DISTINCT id), sum(id) FROM acc'), "$ROWS|$ROWS|" . $ROWS * ($ROWS + 1) / 2, "$_ sees each row once")
	foreach @nodes;
is($c->query('s2', 'SELECT sum(v) BETWEEN ' . (4 * $moved + 3 * $many) . ' AND ' . (4 * $moved + 6 * $many) . ' FROM acc'), 't',
	'and about as many updates as there were');
# More rows than one deletion takes, and than memory holds.
$c->query('s2', 'INSERT INTO acc SELECT g, g + 100000, 1 FROM generate_series(1, 4000) g');
my @answer = split /\n/, $c->query('s2', 'SET work_mem = 64; UPDATE acc SET k = k + 1, v = 2 WHERE id > 100000 RETURNING k');
is(@answer, 4000, 'many rows at once');
is($c->query('s3', 'SELECT count(*), sum(k), sum(v), min(k), max(k) FROM acc WHERE id > 100000'), '4000|8006000|8000|2|4001', 'each is there once');
is($c->query('s1', 'SELECT count(*) FROM acc a WHERE NOT EXISTS (SELECT 1 FROM acc b WHERE b.k = a.k AND b.id = a.id)'), '0',
	'rows are where their keys belong');
done_testing();
