# SELECT ... LIMIT n FOR UPDATE locks n rows, wherever they lie: the other workers of a queue find the rest.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('limited');
$c->create(shards => 3, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE TABLE job (id int PRIMARY KEY, state text NOT NULL, prio int NOT NULL, v varchar(20))',
	"SELECT tessera.shard_table('job', 'id', strategy => 'range')",
	"INSERT INTO job SELECT g, 'new', 100 - g, 'v' || g FROM generate_series(1, 90) g",
	'CREATE TABLE place (id int PRIMARY KEY, state text NOT NULL)',
	"INSERT INTO place SELECT g, 'new' FROM generate_series(1, 9) g",
	"SELECT tessera.move_range('job', 31, 61, 's2')", "SELECT tessera.move_range('job', 61, tessera.maxkey(), 's3')",
	'CREATE TABLE part (k int, id text, state text, PRIMARY KEY (k, id)) PARTITION BY LIST (k)',
	map({ "CREATE TABLE part$_ PARTITION OF part FOR VALUES IN ($_)" } 1 .. 3),
	"SELECT tessera.shard_table('part', 'k', strategy => 'range')",
	"INSERT INTO part SELECT g % 3 + 1, 'p' || g, 'new' FROM generate_series(10, 39) g",
	"SELECT tessera.move_range('part', 2, tessera.maxkey(), 's3')",
	"SELECT tessera.move_schema('public', 's2')",
	q{CREATE FUNCTION take(n int) RETURNS SETOF int LANGUAGE sql AS $$ UPDATE job SET state = 'taken'
		WHERE id IN (SELECT id FROM job WHERE state = 'new' ORDER BY id LIMIT n FOR UPDATE SKIP LOCKED) RETURNING id $$});

my @queue = map { $c->session_of($_, 'BEGIN') } qw(r1 s2 s3 r1 s1);
my $next = "SELECT id FROM job WHERE state = 'new' ORDER BY";

# ---- workers of a queue ----

is(join(' ', map { $c->answer($_, "$next id LIMIT 1 FOR UPDATE SKIP LOCKED") } @queue), '1 2 3 4 5', 'each worker gets the next job');
is(join(' ', map { $c->answer($_, "$next prio, id DESC LIMIT 2 FOR NO KEY UPDATE SKIP LOCKED") =~ s/\n/,/r } @queue), '90,89 88,87 86,85 84,83 82,81',
	'in any order, on other shards');
is($c->answer($queue[0], "$next id LIMIT 1 FOR UPDATE NOWAIT"), '1', 'what one has oneself is no one else\'s');
is($c->answer($queue[1], 'SAVEPOINT s') . $c->answer($queue[1], "$next id OFFSET 2 LIMIT 1 FOR SHARE NOWAIT"), '55P03', 'NOWAIT meets another\'s');
$c->answer($queue[1], 'ROLLBACK TO s');
is($c->answer($queue[2], 'SELECT id, v FROM (' . "SELECT id, v FROM job WHERE state = 'new' ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED" . ') j'),
	"3|v3\n6|v6", 'in a subquery, with other columns than those it goes by');
is($c->answer($queue[2], "SELECT id FROM (SELECT id FROM job WHERE id <= 50 ORDER BY prio LIMIT 1 OFFSET 1) j FOR UPDATE"), '49',
	'with the clause outside of it');
is($c->answer($queue[3], q{UPDATE job SET state = 'mine' WHERE id = (SELECT id FROM job WHERE state = 'new' ORDER BY id LIMIT 1 OFFSET 1
	FOR UPDATE SKIP LOCKED) RETURNING id}), '7', 'for a write; what OFFSET passes over is locked as well');
is($c->answer($queue[4], "WITH j AS (SELECT id FROM job WHERE state = 'new' ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED) " .
	q{UPDATE job SET state = 'mine' FROM j WHERE job.id = j.id RETURNING job.id}), "5\n8", 'with a WITH');
is($c->answer($queue[0], 'SELECT take(2)'), "1\n9", 'in a function, with a limit that is a parameter');
is($c->query('r1', "$next id FOR UPDATE SKIP LOCKED LIMIT 3"), "10\n11\n12", 'all others are free');

# ---- who waits sees what the row is by then ----

my $waits = $c->session('r1');
$waits->query_until(qr/waits/, "\\echo waits\nSELECT 'got ' || id FROM job WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE;\n\\echo ended\n");
ok($c->wait_for('s1', q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted}), 'without SKIP LOCKED it waits');
$c->answer($_, 'COMMIT') foreach @queue;
$waits->{stdout} = '';
$waits->query_until(qr/ended/, '');
$waits->quit;
is($c->query('r1', "SELECT string_agg(id::text, ' ' ORDER BY id) FROM job WHERE state <> 'new'"), '1 5 7 8 9', 'what was taken');

# ---- all that is asked for at first is somebody else's ----

$c->query('r1', "INSERT INTO job SELECT g, 'more', 0, 'v' FROM generate_series(101, 600) g");
$c->answer($_, 'BEGIN') foreach @queue;
my $more = "SELECT id FROM job WHERE state = 'more' ORDER BY prio LIMIT";
is($c->answer($queue[0], "SELECT count(*), max(id) FROM ($more 240 FOR UPDATE SKIP LOCKED) j"), '240|340', 'equal ones come by the key');
is($c->answer($queue[1], "$more 1 FOR UPDATE SKIP LOCKED"), '341', 'what comes after the first candidates');
is($c->answer($queue[2], "SELECT count(*), min(id), max(id) FROM ($more ALL FOR UPDATE SKIP LOCKED) j"), '259|342|600', 'and all the rest, once');
is($c->answer($queue[3], "$more 1 FOR UPDATE SKIP LOCKED"), '', 'none is left');
$c->answer($_, 'ROLLBACK') foreach @queue;

# ---- other tables ----

$c->answer($_, 'BEGIN') foreach @queue;
is(join(' ', map { $c->answer($_, "SELECT k, id FROM part WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED") } @queue),
	'2|p10 3|p11 1|p12 2|p13 3|p14', 'a partitioned table, by a key of two columns');
is(join(' ', map { $c->answer($_, "SELECT id FROM place WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED") } @queue), '1 2 3 4 5',
	'a table on one shard');
is($c->answer($queue[0], "SELECT j.id FROM (SELECT id FROM place ORDER BY id DESC LIMIT 1 FOR UPDATE) p
	JOIN LATERAL (SELECT id FROM job WHERE job.id > p.id ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) j ON true"), '10',
	'by what an outer query says');
$c->answer($_, 'COMMIT') foreach @queue;

# ---- what is not written in two is right as well ----

$c->query('s1', $_) foreach 'CREATE ROLE w', 'GRANT SELECT (v, state), UPDATE (state) ON job TO w', 'CREATE TABLE heir () INHERITS (place)',
	q{INSERT INTO heir VALUES (1, 'new')}, 'CREATE TABLE guarded (id int PRIMARY KEY, who text)', "SELECT tessera.shard_table('guarded', 'id')",
	"INSERT INTO guarded SELECT g, CASE WHEN g % 2 = 0 THEN 'w' END FROM generate_series(1, 20) g", 'GRANT ALL ON guarded TO w',
	"SELECT tessera.move_range('guarded', 11, tessera.maxkey(), 's3')",
	'ALTER TABLE guarded ENABLE ROW LEVEL SECURITY', 'CREATE POLICY p ON guarded USING (who = current_user)';
is($c->query('r1', "SET ROLE w; SELECT v FROM job WHERE v = 'v3' LIMIT 1 FOR UPDATE"), 'v3', 'a key that one may not read');
is($c->query('r1', 'SET ROLE w; SELECT id FROM guarded ORDER BY id LIMIT 7 FOR UPDATE'), join("\n", map { 2 * $_ } 1 .. 7), 'policies');
is($c->query('r1', 'CREATE TEMP TABLE x (id int); INSERT INTO x SELECT id FROM place ORDER BY id LIMIT 4 FOR UPDATE; TABLE x'), "1\n1\n2\n3",
	'a key that is not unique among heirs');
like($c->query('r1', 'SELECT ctid, id FROM job ORDER BY id LIMIT 1 FOR UPDATE'), qr/^\(.*\)\|1$/, 'system columns');
is($c->query('r1', 'SELECT id FROM job WHERE id = (SELECT id FROM place ORDER BY id DESC LIMIT 1 FOR UPDATE) LIMIT 1 FOR UPDATE'), '9',
	'subqueries that lock');
is($c->query('r1', 'SELECT count(*) FROM (SELECT id FROM job LIMIT ALL FOR UPDATE) j'), '590', 'no limit at all');

# ---- cursors, prepared statements, and rows that move meanwhile ----

my ($first, $second) = @queue;
$c->answer($_, 'PREPARE next (int) AS ' . "$next id LIMIT \$1 FOR UPDATE SKIP LOCKED") foreach $first, $second;
foreach my $round (1 .. 7)
{
	$c->answer($_, 'BEGIN') foreach $first, $second;
	$c->query('s1', "SELECT tessera.move_range('job', 1, 11, 's3')") if $round == 6;
	is($c->answer($first, 'EXECUTE next (2)') . ' ' . $c->answer($second, 'EXECUTE next (1)'), "2\n3 4", "prepared, round $round");
	$c->answer($_, 'COMMIT') foreach $first, $second;
}
$c->answer($first, 'BEGIN');
$c->answer($first, 'DECLARE c CURSOR FOR ' . "$next id LIMIT 5 FOR UPDATE SKIP LOCKED");
is($c->answer($first, 'FETCH 2 FROM c'), "2\n3", 'a cursor');
$c->answer($first, 'COMMIT');
$_->quit foreach @queue;

done_testing();
