# Joins on the key of all kinds, and with replicated tables, run on the shards: the same answers as a plain server, from a node that owns nothing and
# from one that owns a part, alone and below groups, orders and other joins; while ranges move; by the rights of the caller.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('joins');
$c->create(shards => 3, routers => 1);

my $schema = <<'SQL';
CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE a (k int PRIMARY KEY, v int, t text, f text COLLATE folded);
CREATE TABLE b (k int, i int, v int, gone int, t text, PRIMARY KEY (k, i));
CREATE TABLE c (k int PRIMARY KEY, v int, w numeric);
CREATE TABLE none (k int PRIMARY KEY, v int);
CREATE TABLE two (x int, y text, v int, PRIMARY KEY (x, y));
CREATE TABLE two_more (x int, y text, i int, PRIMARY KEY (x, y, i));
CREATE TABLE far (k int PRIMARY KEY, v int);
CREATE TABLE small (id int PRIMARY KEY, name text, f text COLLATE folded);
CREATE TABLE tiny (no int PRIMARY KEY, id int, name text);
CREATE SCHEMA pl; CREATE TABLE pl.placed (k int PRIMARY KEY, v int);
ALTER TABLE b DROP COLUMN gone;
CREATE VIEW joined AS SELECT a.k, a.v, b.i, small.name FROM a LEFT JOIN b ON b.k = a.k AND b.i = 1 LEFT JOIN small ON small.id = a.v;
CREATE VIEW barrier WITH (security_barrier) AS SELECT k, v FROM a WHERE v > 2;
CREATE FUNCTION counted(x int) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$BEGIN RETURN x > 3; END$$;
SQL
my $rows = <<'SQL';
INSERT INTO a SELECT g, nullif(g % 11, 0), 'text ' || g % 5, (ARRAY['a', 'A', 'b', 'B'])[1 + g % 4] FROM generate_series(1, 3000) g;
INSERT INTO b SELECT g, i, g % 7, 'text ' || i FROM generate_series(500, 3200) g, generate_series(1, 3) i WHERE (g + i) % 4 <> 0;
INSERT INTO c SELECT g, nullif(g % 13, 1), g / 8.0 FROM generate_series(-100, 2500) g WHERE g % 3 <> 0;
INSERT INTO two SELECT g % 40, 'y' || g % 9, g FROM generate_series(1, 360) g;
INSERT INTO two_more SELECT g % 40, 'y' || g % 9, g / 100 FROM generate_series(1, 500) g WHERE g % 5 <> 0 ON CONFLICT DO NOTHING;
INSERT INTO far SELECT g, g % 6 FROM generate_series(1, 400) g;
INSERT INTO small SELECT g, 'name ' || g % 4, (ARRAY['a', 'b'])[1 + g % 2] FROM generate_series(1, 9) g;
INSERT INTO tiny VALUES (1, 1, 'one'), (2, 1, 'uno'), (3, 2, 'two'), (4, NULL, 'none'), (5, 77, NULL);
INSERT INTO pl.placed SELECT g, g % 4 FROM generate_series(1, 50) g;
SQL
$c->query('s1', $schema);
$c->plain_query($schema);
$c->query('s1', q{SELECT tessera.shard_table('a', 'k')});
$c->query('s1', qq{SELECT tessera.shard_table('$_', 'k', colocate_with => 'a')}) foreach qw(b c none);
$c->query('s1', q{SELECT tessera.shard_table('two', 'x, y', 'hash', chunks => 6)});
$c->query('s1', q{SELECT tessera.shard_table('two_more', 'x, y', 'hash', colocate_with => 'two')});
$c->query('s1', q{SELECT tessera.shard_table('far', 'k', 'hash', chunks => 6)});
$c->query('s1', qq{SELECT tessera.replicate_table('$_')}) foreach qw(small tiny);
$c->query('s1', q{SELECT tessera.move_schema('pl', 's2')});
$c->query('s1', $rows);
$c->plain_query($rows);
$c->query('s1', q{SELECT tessera.move_range('a', 1000, 2000, 's2'), tessera.move_range('a', 2000, tessera.maxkey(), 's3')});

# The count of rows, and the sum of their hashes, of any query: with what the shards make of its joins below an aggregate, and as rows.
sub digest
{
	my ($query) = @_;

	return "SELECT count(*), sum(hashtext(x::text)) FROM ($query) x";
}

my @pushed = (
	'SELECT count(*), sum(b.v) FROM a LEFT JOIN b ON b.k = a.k',
	'SELECT count(*), count(b.k) FROM a LEFT JOIN b ON b.k = a.k AND b.v = 3',
	'SELECT count(*) FROM a LEFT JOIN b ON b.k = a.k WHERE b.v = 3 OR b.k IS NULL',
	'SELECT count(*), sum(a.k) FROM b RIGHT JOIN a ON b.k = a.k AND a.v > b.v WHERE a.t > \'text 1\'',
	'SELECT count(*), count(a.k), count(c.k) FROM a FULL JOIN c ON c.k = a.k',
	'SELECT count(*), count(a.k), count(c.k) FROM a FULL JOIN c ON c.k = a.k WHERE a.v IS NULL OR c.v IS NULL',
	'SELECT count(*), sum(c.v) FROM a LEFT JOIN b ON b.k = a.k LEFT JOIN c ON c.k = b.k',
	'SELECT count(*), sum(c.v) FROM a LEFT JOIN (b JOIN c ON c.k = b.k AND c.v > 2) ON b.k = a.k',
	'SELECT count(*), count(none.k) FROM a LEFT JOIN none ON none.k = a.k',
	'SELECT count(*) FROM none LEFT JOIN a ON none.k = a.k',
	'SELECT count(*), sum(a.v) FROM a WHERE EXISTS (SELECT FROM b WHERE b.k = a.k AND b.v > 3)',
	'SELECT count(*), sum(a.v) FROM a WHERE NOT EXISTS (SELECT FROM b WHERE b.k = a.k AND b.v > a.v)',
	'SELECT count(*), sum(a.v) FROM a WHERE k IN (SELECT k FROM c WHERE c.v > 3)',
	'SELECT count(*), sum(a.v) FROM a WHERE EXISTS (SELECT FROM b JOIN c ON c.k = b.k WHERE b.k = a.k AND c.w > b.v)',
	'SELECT count(*) FROM a LEFT JOIN c ON c.k = a.k WHERE EXISTS (SELECT FROM b WHERE b.k = a.k)
	   AND NOT EXISTS (SELECT FROM none n WHERE n.k = a.k)',
	'SELECT a.v, count(*), avg(c.w) FROM a LEFT JOIN c ON c.k = a.k GROUP BY a.v ORDER BY a.v',
	'SELECT c.v, count(*), avg(c.w) FROM a LEFT JOIN c ON c.k = a.k GROUP BY c.v ORDER BY c.v',
	'SELECT small.name, count(*), sum(a.k) FROM a JOIN small ON small.id = a.v GROUP BY small.name ORDER BY small.name',
	'SELECT count(*), count(small.id) FROM a LEFT JOIN small ON small.id = a.v AND small.name > \'name 1\'',
	'SELECT count(*) FROM a JOIN tiny ON tiny.id = a.v',
	'SELECT count(*) FROM a JOIN small ON small.id = a.v JOIN tiny ON tiny.id = small.id',
	'SELECT tiny.name, count(*) FROM a JOIN b ON b.k = a.k LEFT JOIN tiny ON tiny.id = b.v GROUP BY tiny.name ORDER BY tiny.name',
	'SELECT count(*) FROM a WHERE v IN (SELECT id FROM tiny)',
	'SELECT count(*) FROM a WHERE NOT EXISTS (SELECT FROM tiny WHERE tiny.id = a.v)',
	'SELECT count(*) FROM two LEFT JOIN two_more USING (x, y)',
	'SELECT count(*) FROM two WHERE EXISTS (SELECT FROM two_more m WHERE m.x = two.x AND m.y = two.y AND m.i > 1)',
	'SELECT count(*) FROM pl.placed JOIN small ON small.id = placed.v',
	'SELECT count(*), max(name) FROM joined WHERE k > 700');

# What must not be: by another column, or not all of the key; rows of a copy extended on each shard; what goes by another's rules.
my @other = (
	'SELECT count(*) FROM two LEFT JOIN two_more ON two_more.x = two.x',
	'SELECT count(*) FROM a LEFT JOIN b ON b.v = a.k',
	'SELECT count(*) FROM a LEFT JOIN far ON far.k = a.k',
	'SELECT count(*), count(a.k) FROM small LEFT JOIN a ON small.id = a.v AND a.k < 5',
	'SELECT count(*), count(a.k), count(small.id) FROM a FULL JOIN small ON small.id = a.v',
	'SELECT count(*) FROM small WHERE EXISTS (SELECT FROM a WHERE a.v = small.id)',
	'SELECT count(*) FROM small WHERE NOT EXISTS (SELECT FROM a WHERE a.v = small.id)',
	'SELECT count(*), count(a.k), count(c.k) FROM (SELECT * FROM a WHERE v > 3) a FULL JOIN (SELECT * FROM c WHERE v < 9) c ON c.k = a.k',
	'SELECT count(*) FROM small s1 JOIN small s2 ON s1.id = s2.id',
	'SELECT count(*) FROM a JOIN b ON b.k = a.k AND counted(a.k)');

my @more = (
	'SELECT c.k, count(*) FROM a LEFT JOIN c ON c.k = a.k GROUP BY c.k HAVING count(*) > 1',
	'SELECT a.k, count(*), count(b.k) FROM a LEFT JOIN b ON b.k = a.k GROUP BY a.k',
	'SELECT c.k, count(*) FROM a FULL JOIN c ON c.k = a.k GROUP BY c.k',
	'SELECT DISTINCT c.k FROM a LEFT JOIN c ON c.k = a.k',
	'SELECT * FROM a LEFT JOIN b ON b.k = a.k LEFT JOIN small ON small.id = b.v LEFT JOIN tiny ON tiny.id = small.id',
	'SELECT a.k, c.v FROM a LEFT JOIN c ON c.k = a.k ORDER BY c.v DESC NULLS LAST, a.k LIMIT 30',
	'SELECT a.k, s.name FROM a JOIN small s ON s.id = a.v ORDER BY s.name, a.k LIMIT 30 OFFSET 7',
	'SELECT a.k, coalesce(c.v, -1), c.v + 1 FROM a LEFT JOIN c ON c.k = a.k',
	'SELECT a.k, x.v FROM a LEFT JOIN (SELECT k, coalesce(v, 5) AS v FROM c) x ON x.k = a.k WHERE a.k < 200',
	'SELECT far.k, x.n FROM far LEFT JOIN (SELECT a.v, count(*) AS n FROM a LEFT JOIN c ON c.k = a.k GROUP BY a.v) x ON x.v = far.k',
	'SELECT far.k, a.k FROM far JOIN a ON a.v = far.k LEFT JOIN b ON b.k = a.k WHERE far.v = 2 AND a.k < 900',
	'SELECT f.k FROM far f WHERE EXISTS (SELECT FROM a LEFT JOIN c ON c.k = a.k WHERE a.v = f.k AND c.v > 3)',
	'SELECT a.k FROM a, LATERAL (SELECT count(*) AS n FROM b JOIN c ON c.k = b.k WHERE b.v = a.v) s WHERE a.k < 20 AND s.n > 3',
	'SELECT a.k, b FROM a LEFT JOIN b ON b.k = a.k WHERE a.k BETWEEN 490 AND 510',
	'SELECT a.f, s.f FROM a JOIN small s ON s.f = a.f WHERE a.k < 100',
	'SELECT a.f, count(*) FROM a LEFT JOIN small s ON s.f = a.f AND s.id < 4 WHERE a.k < 300 GROUP BY a.f COLLATE "C", a.f',
	'SELECT a.k FROM a LEFT JOIN b ON b.k = a.k AND b.i = 1 WHERE b.k = 1500',
	'SELECT a.k, b.i FROM a LEFT JOIN b ON b.k = a.k AND b.k = 700 WHERE a.k BETWEEN 699 AND 2500 AND a.k % 100 = 0',
	'SELECT a.k, b.i FROM b RIGHT JOIN a ON b.k = a.k AND b.k = 700 WHERE a.k IN (5, 700, 1700, 2700)',
	'SELECT k FROM a WHERE k NOT IN (SELECT k FROM b WHERE b.v > 2)',
	'SELECT a.k, (SELECT sum(b.v) FROM b LEFT JOIN c ON c.k = b.k WHERE b.k = a.k) FROM a WHERE a.k % 97 = 0',
	'SELECT x.k, y.k, z.k FROM a x LEFT JOIN a y ON y.k = x.k AND y.v = 3 LEFT JOIN a z ON z.k = y.k WHERE x.v < 5',
	'SELECT br.k, c.v FROM barrier br LEFT JOIN c ON c.k = br.k WHERE br.k > 2300',
	'SELECT sum(CASE WHEN c.k IS NULL THEN 1 ELSE c.v END) FROM a LEFT JOIN c ON c.k = a.k WHERE a.v < (SELECT max(id) FROM small)',
	'SELECT count(*) FROM a LEFT JOIN b ON b.k = a.k AND a.v > (SELECT min(id) FROM tiny)',
	'SELECT p.k, s.name FROM pl.placed p LEFT JOIN small s ON s.id = p.v',
	'SELECT p.k, s.name, a.v FROM pl.placed p LEFT JOIN small s ON s.id = p.v JOIN a ON a.k = p.k',
	'SELECT a.k, now() - now(), current_user FROM a LEFT JOIN b ON b.k = a.k AND b.t <> current_user WHERE a.k < 600');

sub compare
{
	my ($when, @nodes) = @_;

	$c->same_answers($when, [ @pushed, @other, map { digest($_) } @pushed, @other, @more ], \@nodes);
	return;
}

compare('at rest', qw(r1 s2));

# The plan above the first scan of the shards.
sub above
{
	my ($plan) = @_;

	return $plan =~ /\A(.*?)Custom Scan/s ? $1 : 'Join';
}

my %plan;
@plan{ @pushed, @other } = $c->answers('r1', map { "EXPLAIN (COSTS off) $_" } @pushed, @other);
unlike(above($plan{$_}), qr/Join|Loop/, "joined on the shards: $_") foreach @pushed;
like(above($plan{$_}), qr/Join|Loop/, "joined on the router: $_") foreach @other;

# By the rights of the caller, who sees of each table what its policies let him.
$c->query('s1', <<'SQL');
CREATE ROLE reader LOGIN; GRANT SELECT (k, v) ON a TO reader; GRANT SELECT ON b, small, joined TO reader;
ALTER TABLE b ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON b USING (i = 1);
ALTER TABLE small ENABLE ROW LEVEL SECURITY; CREATE POLICY named ON small USING (name <> 'name 1');
SQL
is($c->query('r1', 'SET ROLE reader; SELECT count(*), count(b.k) FROM a LEFT JOIN b ON b.k = a.k'),
	$c->plain_query('SELECT count(*), count(b.k) FROM a LEFT JOIN b ON b.k = a.k AND b.i = 1'), 'policies hold below an outer join');
is($c->query('r1', q{SET ROLE reader; SELECT count(*), count(s.id), min(s.name) FROM a LEFT JOIN small s ON s.id = a.v}),
	$c->plain_query(q{SELECT count(*), count(s.id), min(s.name) FROM a LEFT JOIN small s ON s.id = a.v AND s.name <> 'name 1'}),
	'and of a replicated table');
is($c->query('r1', 'SET ROLE reader; SELECT count(*), count(i), count(name) FROM joined'),
	$c->plain_query('SELECT count(*), count(i), count(name) FROM joined'), 'a view reads as its owner');
like($c->error('r1', 'SET ROLE reader; SELECT count(*) FROM a LEFT JOIN c ON c.k = a.k'), qr/42501/, 'a table that may not be read');
like($c->error('r1', 'SET ROLE reader; SELECT count(*) FROM a LEFT JOIN b ON b.k = a.k AND a.t = b.t'), qr/42501/, 'a column that may not');
$c->query('s1', 'ALTER TABLE b DISABLE ROW LEVEL SECURITY; ALTER TABLE small DISABLE ROW LEVEL SECURITY');

# Own writes, also to the copies; prepared, with parameters.
foreach my $node (qw(r1 s1))
{
	my $session = $c->session($node);
	my $query = 'SELECT s.name, count(*) FROM a LEFT JOIN small s ON s.id = a.v AND s.id > 2 WHERE a.k > 1200 GROUP BY s.name ORDER BY s.name';

	$session->query_safe("PREPARE p(int, int) AS " . $query =~ s/> 2/> \$1/r =~ s/> 1200/> \$2/r);
	is($session->query_safe('EXECUTE p(2, 1200)'), $c->plain_query($query), "prepared on $node, run $_") foreach 1 .. 7;
	$session->query_safe('BEGIN');
	$session->query_safe(q{UPDATE small SET name = 'changed' WHERE id = 4});
	$session->query_safe('DELETE FROM b WHERE k = 1500');
	is($session->query_safe(q{SELECT count(*) FROM a JOIN small s ON s.id = a.v AND s.name = 'changed'}),
		$c->plain_query('SELECT count(*) FROM a WHERE v = 4'), "own writes of a copy are seen on $node");
	is($session->query_safe('SELECT count(*), count(b.k) FROM a LEFT JOIN b ON b.k = a.k WHERE a.k = 1500 OR a.k > 2998'),
		$c->plain_query('SELECT count(*), count(b.k) FROM a LEFT JOIN b ON b.k = a.k AND b.k <> 1500 WHERE a.k = 1500 OR a.k > 2998'),
		"and those of a shard on $node");
	$session->query_safe('ROLLBACK');
	$session->quit;
}

# A plan that is older than what became of a table.
my $old = $c->session('r1');
$old->query_safe('SET plan_cache_mode = force_generic_plan; PREPARE o AS SELECT count(*) FROM a JOIN tiny ON tiny.id = a.v');
my $expected = $c->plain_query('SELECT count(*) FROM a JOIN tiny ON tiny.id = a.v');
is($old->query_safe('EXECUTE o'), $expected, 'a plan of a replicated table');
$c->query('s1', q{SELECT tessera.unreplicate_table('tiny')});
is($old->query_safe('EXECUTE o'), $expected, 'replicated no more');
$c->query('s1', q{SELECT tessera.replicate_table('tiny')});
is($old->query_safe('EXECUTE o'), $expected, 'and again');
$old->quit;

# While ranges move, each answer is that of one moment.
my $outer = $c->plain_query('SELECT count(*), sum(a.k) FROM a LEFT JOIN b ON b.k = a.k') =~ s/\|/ AND sum(a.k) = /r;
my $left = $c->plain_query('SELECT count(*) FROM a WHERE NOT EXISTS (SELECT FROM b WHERE b.k = a.k)');
my $named = $c->plain_query('SELECT count(*) FROM a JOIN small s ON s.id = a.v');
my $script = <<"SQL";
SELECT 1 / (count(*) = $outer)::int FROM a LEFT JOIN b ON b.k = a.k;
SELECT 1 / (count(*) = $left)::int FROM a WHERE NOT EXISTS (SELECT FROM b WHERE b.k = a.k);
SELECT 1 / (count(*) = $named)::int FROM a JOIN small s ON s.id = a.v;
SQL
my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 2, seconds => 600, script => $script)->begun;
$c->query('r1', "SELECT tessera.move_range('a', 500, 1500, '$_')") foreach qw(s3 s1 s2);
my $result = $load->end;
is("$result->{failed}|$result->{aborted}", '0|0', 'no statement failed or saw a row twice while ranges moved') or diag explain $result;
cmp_ok($result->{processed}, '>', 0, 'statements ran');

# All rows on one shard, and then shards without any.
$c->query('r1', q{SELECT tessera.move_range('a', tessera.minkey(), tessera.maxkey(), 's2')});
compare('all on one shard', 'r1');

done_testing();
