# What is made on all nodes is what one server would make, and says what one server would say: tables made of a query with names of their own,
# collations that cannot be derived, functions whose bodies name temporary tables; each message once.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('created_everywhere');
$c->create(shards => 2, routers => 1);
$c->query('r1', 'CREATE TABLE t (id int PRIMARY KEY, a text COLLATE "C", b text COLLATE "POSIX", n int); CREATE TABLE placed (id int, v text)');
$c->query('r1', "SELECT tessera.shard_table('t', 'id')");
$c->query('r1', "SELECT tessera.move_range('t', 50, tessera.maxkey(), 's2')");
$c->query('r1', "INSERT INTO t SELECT g, 'a' || g, 'b' || g, g % 7 FROM generate_series(1, 100) g; INSERT INTO placed SELECT id, a FROM t");

# ALTER TABLE waits for rows that moved away, by attempts that say each time what is there already.
$c->is_settled('the rows are placed');

# ---- CREATE TABLE AS

foreach my $source ('SELECT id, a FROM t', 'SELECT id, v FROM placed', 'SELECT id, a FROM t WHERE id = 7', 'SELECT n, count(*) FROM t GROUP BY n',
	'SELECT t.id, v FROM t JOIN placed USING (id)', 'SELECT id + 1, upper(a) FROM t', 'VALUES (1, 2)')
{
	$c->query('r1', "CREATE TABLE made (one, two) AS $source; CREATE TABLE half (one) AS $source");
	is($c->query('s2', 'SELECT * FROM (SELECT one, two FROM made) m ORDER BY 1, 2'), $c->query('s1', "SELECT * FROM ($source) m ORDER BY 1, 2"),
		"columns with names of their own: $source");
	is($c->query('s2', 'SELECT count(one) FROM half'), $c->query('s1', "SELECT count(*) FROM ($source) m"), 'fewer names than columns');
	$c->query('r1', 'DROP TABLE made, half');
}
like($c->error('r1', 'CREATE TABLE made AS SELECT id, a || b AS ab FROM t'), qr/42P22/, 'a column whose collation cannot be derived');
like($c->error('r1', 'CREATE TABLE made AS SELECT a FROM t UNION ALL SELECT b FROM t'), qr/42P22/, 'of a union');
is($c->query('r1', "SELECT to_regclass('made') IS NULL"), 't', 'nothing is made');

# ---- functions

is($c->query('r1', q{CREATE TEMP TABLE mine (v int); INSERT INTO mine VALUES (3);
	CREATE FUNCTION sum_of_mine() RETURNS bigint LANGUAGE sql AS 'SELECT sum(v) FROM mine'; SELECT sum_of_mine()}), '3',
	'a function reads a temporary table');
is($c->query($_, "SELECT count(*) FROM pg_proc WHERE proname = 'sum_of_mine'"), '1', "$_ has it") foreach $c->names;
like($c->error('r1', q{CREATE FUNCTION wrong() RETURNS bigint LANGUAGE sql AS 'SELECT sum(v) FROM nowhere'}), qr/42P01/,
	'a body is checked where it is made');

# ---- messages

sub messages
{
	my ($sql) = @_;
	my ($status, $out, $err) = $c->node('r1')->psql('postgres', $sql);
	return scalar(() = $err =~ /(NOTICE|WARNING|INFO): /g);
}
is(messages("CREATE VIEW shown AS SELECT 1 AS " . 'x' x 70), 1, 'a name that is cut is told of once');
is(messages("CREATE ROLE empty; ALTER ROLE empty PASSWORD ''; DROP ROLE empty"), 1, 'and what a role gets');
is(messages('ALTER TABLE t ADD COLUMN IF NOT EXISTS n int'), 1, 'and what is there already');

is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');
done_testing();
