# A statement of several scans, of which a later one finds that its node has not heard of a move that was over before: rows of the earlier ones are
# in use, and it is asked again by itself instead of ending the statement with 40001 (doc/design.md#stale-answers). If a shard that the statement
# has used gives a range away before its other scan, no answer would be right: 40001.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('late', settings => { 'tessera.advisory_locks' => 'node' });
$c->create(shards => 3);
$c->query('s1', $_) foreach (
	'CREATE TABLE a (k int PRIMARY KEY, n int NOT NULL)',
	'CREATE TABLE b (k int PRIMARY KEY, n int NOT NULL)',
	'CREATE TABLE log (k int, n int)',
	"SELECT tessera.shard_table('a', 'k', 'range')",
	"SELECT tessera.shard_table('b', 'k', 'range')",
	'INSERT INTO a SELECT g, g % 50 FROM generate_series(1, 200) g',
	'INSERT INTO b SELECT g, g % 20 FROM generate_series(1, 200) g',
	"SELECT tessera.move_range('a', 5001, tessera.maxkey(), 's3')",
	"SELECT tessera.move_range('b', 5001, tessera.maxkey(), 's3')");

# Each with its answer. s3 does not hear of moves between s1 and s2 by itself.
my %at = (a => 's1', b => 's1');
my $join = 'SELECT count(*), sum(a.n + b.n) FROM a JOIN b ON a.n = b.n';
my $answer = '800|15200';
my @cases = (
	[ 'hash join', $join, $answer ],
	[ 'nested loop', "SET enable_hashjoin = off; SET enable_mergejoin = off; $join", $answer ],
	[ 'merge join', "SET enable_hashjoin = off; SET enable_nestloop = off; $join", $answer ],
	[ 'UNION ALL', 'SELECT count(*), sum(n) FROM (SELECT n FROM a UNION ALL SELECT n FROM b) u', '400|6800' ],
	[ 'subquery', 'SELECT (SELECT sum(n) FROM b WHERE b.k <> a.n), a.k FROM a WHERE a.k = 200', '1900|200' ],
	[ 'WITH that writes', "WITH d AS (INSERT INTO log SELECT k, n FROM a WHERE k <= 3 RETURNING n) SELECT count(*), sum(b.n) FROM b JOIN d USING (n)",
		'30|60' ],
	[ 'UPDATE that reads', 'UPDATE a SET n = a.n FROM b WHERE a.n = b.n AND b.k = 7 RETURNING a.k % 50', "7\n7\n7\n7" ],
	[ 'INSERT ... SELECT', "INSERT INTO log SELECT a.k, b.n FROM a JOIN b ON a.n = b.n WHERE a.k <= 2; SELECT count(*) FROM log", undef ],
	[ 'at REPEATABLE READ', "BEGIN ISOLATION LEVEL REPEATABLE READ; $join; COMMIT", $answer ],
	[ 'in a function', 'SELECT both_tables()', $answer ]);
$c->query('s1', "CREATE FUNCTION both_tables() RETURNS text LANGUAGE plpgsql AS \$\$ BEGIN RETURN (SELECT count(*) || '|' || sum(a.n + b.n) " .
	'FROM a JOIN b ON a.n = b.n); END $$');

my $stale = "SELECT stale_retries FROM tessera.stat_routing";
foreach my $case (@cases)
{
	my ($what, $sql, $expected) = @$case;
	foreach my $moved ('a', 'b')
	{
		my $to = $at{$moved} eq 's1' ? 's2' : 's1';
		$c->query('s3', $join);    # has heard of everything
		my $before = $c->query('s3', $stale);
		$c->query('s1', "SELECT tessera.move_range('$moved', tessera.minkey(), 5001, '$to')");
		$at{$moved} = $to;
		my $got = eval { $c->query('s3', $sql) } // $@;
		defined $expected ? is($got, $expected, "$what after a move of $moved to $to") : like($got, qr/^\d+$/, "$what after a move of $moved to $to");
		cmp_ok($c->query('s3', $stale), '>', $before, "$what: was found stale");
	}
}
is($c->query('s3', 'SELECT count(*), count(DISTINCT k) FROM a'), '200|200', 'all rows are there once');

# The range moves between the scans: rows of it were read on the shard that has given it away since.
my $to = $at{a} eq 's1' ? 's2' : 's1';
$c->query('s1', 'CREATE FUNCTION waits(k int) RETURNS boolean LANGUAGE plpgsql AS ' .
	'$$ BEGIN PERFORM pg_advisory_xact_lock_shared(57); RETURN true; END $$');
my $holder = $c->session('s3');
$holder->query_safe('SELECT pg_advisory_lock(57)');
my $run = $c->background('s3', 'SET enable_hashjoin = off; SET enable_mergejoin = off; ' .
	'SELECT count(*), max(j.n) FROM (SELECT waits(k) AS w, n FROM a OFFSET 0) i, LATERAL (SELECT a.n FROM a WHERE a.n = i.n AND i.w) j');
ok($c->wait_for('s3', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", '1'), 'the first scan has rows');
$c->query('s1', "SELECT tessera.move_range('a', tessera.minkey(), 5001, '$to')");
$holder->query_safe('SELECT pg_advisory_unlock(57)');
my $error = $c->ended($run);
$error eq '' ? like($run->{out}, qr/^800\|49$/m, 'a move between scans: the right answer') : like($error, qr/40001/, 'a move between scans: 40001');
$holder->quit;

done_testing();
