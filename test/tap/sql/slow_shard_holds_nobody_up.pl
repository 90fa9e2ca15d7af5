# Rows of several shards: a scan that only reads hands out what has come, whichever shard it is from, so that a slow shard holds up no other and an
# error is heard at once. Where rows are read for writes or are locked they come shard by shard, so that statements of one kind meet in the same
# order.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('order');
$c->create(shards => 3);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v text NOT NULL)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k', 'range')");
$c->query('s1', "SELECT tessera.move_range('t', 2001, 4001, 's2')");
$c->query('s1', "SELECT tessera.move_range('t', 4001, tessera.maxkey(), 's3')");
$c->query('s1', "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 6000) g");

# The functions are sent along with the scan; on s2, or on s3, they stop in the middle of the table until the file is there. They are immutable only
# so that they are sent.
my $go = PostgreSQL::Test::Utils::tempdir . '/go';
$c->query('s1', <<"SQL");
CREATE FUNCTION waits(k int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS \$\$
BEGIN
	WHILE k = 3000 AND (pg_stat_file('$go', true)).size IS NULL LOOP PERFORM pg_sleep(0.01); END LOOP;
	RETURN true;
END \$\$;
CREATE FUNCTION waits_on_s3(k int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT waits(k - 2000)';
CREATE FUNCTION fails(k int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS \$\$
BEGIN
	IF k = 5000 THEN RAISE 'row five thousand'; END IF;
	RETURN true;
END \$\$;
SQL
my $parts = 'SELECT count(*), count(DISTINCT k), count(DISTINCT (k - 1) / 2000)';

foreach my $name ($c->names)
{
	unlink $go;
	my $session = $c->session($name);
	$session->query_safe('SET statement_timeout = \'30s\'');
	# not the node's own part: nothing else is read while that waits
	my ($waits, $first) = $name eq 's2' ? ('waits_on_s3', 2001) : ('waits', 4001);
	$session->query_safe("BEGIN; DECLARE c CURSOR FOR SELECT k FROM t WHERE $waits(k)");
	my @keys = split /\n/, $session->query_safe('FETCH 4000 FROM c');
	is(scalar(@keys), 4000, "$name: the rows of two shards come while the third waits");
	ok((grep { $_ <= 2000 } @keys) && (grep { $_ >= $first && $_ < $first + 2000 } @keys), "$name: of both");
	append_to_file($go, 'go');
	is($session->query_safe('SELECT count(*) FROM t'), '6000', "$name: another scan over the same connections");
	push @keys, split /\n/, $session->query_safe('FETCH ALL FROM c');
	is(join(',', sort { $a <=> $b } @keys), join(',', 1 .. 6000), "$name: each row once");
	$session->query_safe('COMMIT');
	$session->quit;
}

unlink $go;
foreach my $where ('true', 'k > 2000')    # with a part of this node, and without
{
	my $error = $c->error('s1', "SET statement_timeout = '30s'; SELECT max(v) FROM t WHERE waits(k) AND fails(k) AND $where");
	like($error, qr/row five thousand/, "an error of one shard is raised while another waits: $where");
	$error = $c->error('s1', "SET statement_timeout = '1s'; SELECT max(v) FROM t WHERE waits(k) AND $where");
	like($error, qr/statement timeout/, "a statement that waits for a shard can be cancelled: $where");
}
append_to_file($go, 'go');

# joins read two scans over the same connections; a nested loop's inner side is read anew
is($c->query('s1', "$parts FROM t JOIN (SELECT k AS other FROM t WHERE waits(k)) x ON t.k = 6001 - other"), '6000|6000|3', 'a join of two scans');
is($c->query('s1', 'SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;
	SELECT count(*), count(DISTINCT t.k) FROM (VALUES (1), (2), (3)) x (i), t WHERE t.k % 2000 < i'), '18|9', 'a scan that is read anew');
is($c->query('s1', 'SELECT count(*) FROM (SELECT k FROM t LIMIT 5000) x'), '5000', 'some of the rows');
is( $c->query('s1', "SELECT sum(length(a.v)) FROM t a JOIN t b ON length(a.v) = length(b.v) AND a.k < 20"),
	19 * 6000 * 200, 'more rows than one reading brings');

# Runs of one shard's rows among what was written or locked.
my $runs = 'SELECT count(*) FROM (SELECT part, lag(part) OVER (ORDER BY n) AS before FROM (SELECT n, (k - 1) / 2000 AS part FROM %s) x) y
	WHERE part IS DISTINCT FROM before';
$c->query('s1', 'CREATE TABLE log (n serial PRIMARY KEY, k int)');
$c->query('s1', 'CREATE UNLOGGED TABLE log2 (n serial PRIMARY KEY, k int)');
$c->query('s1', 'INSERT INTO log (k) SELECT k FROM t');
is($c->query('s1', sprintf $runs, 'log'), '3', 'what an INSERT reads comes shard by shard');
$c->query('s1', 'WITH moved AS (INSERT INTO log2 (k) SELECT k FROM t RETURNING n) SELECT count(*) FROM moved');
is($c->query('s1', sprintf $runs, 'log2'), '3', 'and what a part of a statement reads');
my @locked = split /\n/, $c->query('s1', 'SELECT (k - 1) / 2000 FROM t FOR UPDATE');
is(scalar(grep { $_ == 0 || $locked[$_] != $locked[ $_ - 1 ] } 0 .. $#locked), 3, 'and locked rows');

# Every kind of statement goes through one loop: routed by a node that has not heard of a move, it is found stale, routed again and done once.
$c->query('s1', 'CREATE TABLE u (k int PRIMARY KEY, n int NOT NULL DEFAULT 0)');
$c->query('s1', "SELECT tessera.shard_table('u', 'k', 'range')");
$c->query('s1', "SELECT tessera.move_range('u', 5001, tessera.maxkey(), 's3')");
$c->query('s3', 'INSERT INTO u SELECT g FROM generate_series(1, 100) g');
my ($from, $to) = ('s1', 's2');
foreach my $case (
	[ 'a statement of one shard', 'SELECT n FROM u WHERE k = 5', '0' ],
	[ 'UPDATE of one row', 'UPDATE u SET n = n + 1 WHERE k = 5 RETURNING n', '1' ],
	[ 'UPDATE of all rows', 'UPDATE u SET n = n + 1 WHERE n >= 0; SELECT sum(n) FROM u', '101' ],
	[ 'a scan of all shards', 'SELECT count(*) FROM u a JOIN u b ON a.n = b.n AND a.k = 5', '1' ],
	[ 'rows of one shard', 'INSERT INTO u SELECT g FROM generate_series(101, 300) g; SELECT count(*) FROM u', '300' ],
	[ 'rows that the other shard owns', 'INSERT INTO u SELECT g FROM generate_series(301, 400) g; SELECT count(*) FROM u', '400' ],
	[ 'rows that two shards own',
		'WITH i AS (INSERT INTO u SELECT g FROM generate_series(401, 600) g RETURNING k) SELECT count(*), sum(k) FROM i', '200|100100' ],
	[ 'UPDATE of the key', 'UPDATE u SET k = k + 5000 WHERE k IN (6, 599) RETURNING k', "5006\n5599" ],
	[ 'parts', 'WITH d AS (DELETE FROM u WHERE k IN (7, 598) RETURNING k) INSERT INTO u SELECT k + 5000 FROM d RETURNING k', "5007\n5598" ],
	[ 'COPY', "COPY u (k) FROM PROGRAM 'seq 601 700'; SELECT count(*) FROM u", '700' ],
	[ 'a cursor', 'BEGIN; DECLARE c CURSOR FOR SELECT count(*) FROM u; FETCH c; COMMIT', '700' ])
{
	my ($what, $sql, $expected) = @$case;
	my $before = $c->query('s3', 'SELECT stale_retries FROM tessera.stat_routing');
	$c->query('s1', "SELECT tessera.move_range('u', tessera.minkey(), 501, '$to')");
	($from, $to) = ($to, $from);
	is(join("\n", sort split /\n/, $c->query('s3', $sql)), $expected, "$what after a move to $from");
	cmp_ok($c->query('s3', 'SELECT stale_retries FROM tessera.stat_routing'), '>', $before, "$what: was routed again");
}
is($c->query('s1', 'SELECT count(*), count(DISTINCT k), sum(n) FROM u'), '700|700|100', 'each was done once');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)'), '0', 'each row is on the shard that owns it');

done_testing();
