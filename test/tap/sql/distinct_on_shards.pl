# DISTINCT is made on the shards: what rows of a shard have in common comes here but once, and what several shards have is made one here. The same
# answers as a plain server, while ranges move, by collations that call different texts equal, and of types whose numbers differ from node to node.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('distinct');
$c->create(shards => 3, routers => 1);

my $schema = <<'SQL';
CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE m (k int PRIMARY KEY, g int, n numeric, t text, f text COLLATE folded, mo mood, a int[], x xid, o regclass);
CREATE TABLE o (k int, i int, s text, PRIMARY KEY (k, i));
CREATE TABLE small (id int PRIMARY KEY, name text);
CREATE TABLE empty (k int PRIMARY KEY, g int);
CREATE FUNCTION counted(x int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$BEGIN RETURN x % 2; END$$;
SQL
my $rows = <<'SQL';
INSERT INTO m SELECT g, nullif(g % 11, 3), (g % 4)::numeric(10, 2), 'text ' || g % 5, (ARRAY['a', 'A', 'b'])[1 + g % 3],
  (ARRAY['sad', 'ok', 'happy'])[1 + g % 3]::mood, ARRAY[g % 2, NULL], (g % 3)::text::xid, (ARRAY['m', 'o'])[1 + g % 2]::regclass
  FROM generate_series(1, 3000) g;
INSERT INTO m (k, g, n) SELECT g, 77, 1.0 FROM generate_series(3001, 3010) g;
INSERT INTO o SELECT g, i, 's' || g % 3 FROM generate_series(500, 3500) g, generate_series(1, 2) i;
INSERT INTO small SELECT g, 'name ' || g % 4 FROM generate_series(1, 9) g;
SQL
$c->query('s1', $schema);
$c->plain_query($schema);
$c->query('s1', q{SELECT tessera.shard_table('m', 'k')});
$c->query('s1', qq{SELECT tessera.shard_table('$_', 'k', colocate_with => 'm')}) foreach qw(o empty);
$c->query('s1', q{SELECT tessera.replicate_table('small')});
$c->query('s1', $rows);
$c->plain_query($rows);
$c->query('s1', q{SELECT tessera.move_range('m', 1000, 2000, 's2'), tessera.move_range('m', 2000, tessera.maxkey(), 's3')});

my @pushed = (
	'SELECT DISTINCT g FROM m ORDER BY g',
	'SELECT DISTINCT n FROM m ORDER BY n',
	'SELECT DISTINCT mo FROM m ORDER BY mo',
	'SELECT DISTINCT a FROM m ORDER BY a',
	'SELECT DISTINCT g + 1 AS g, upper(t) FROM m ORDER BY 1, 2',
	'SELECT DISTINCT g FROM empty',
	'SELECT s.g, small.name FROM (SELECT DISTINCT g FROM m) s JOIN small ON small.id = s.g ORDER BY 1',
	'SELECT g FROM generate_series(1, 20) g WHERE g NOT IN (SELECT DISTINCT m.g FROM m WHERE m.g IS NOT NULL) ORDER BY 1',
	'SELECT count(*) FROM (SELECT DISTINCT k, g FROM m) s',
	'SELECT g FROM m WHERE k < 5 UNION SELECT DISTINCT g FROM m ORDER BY 1');
# Not sent, or sent if many rows are thought to be equal.
my @other = (
	'SELECT DISTINCT g, t FROM m ORDER BY g, t',
	'SELECT DISTINCT g FROM m WHERE t > \'text 2\' ORDER BY g DESC LIMIT 3',
	'SELECT DISTINCT g FROM m WHERE g = 5',
	'SELECT DISTINCT o.s, small.name FROM m JOIN o ON o.k = m.k JOIN small ON small.id = m.g ORDER BY 1, 2',
	'SELECT DISTINCT m.g, o.s FROM m LEFT JOIN o ON o.k = m.k AND o.i = 2 ORDER BY 1, 2',
	'SELECT count(*) FROM (SELECT DISTINCT g, n FROM m) s',
	'SELECT DISTINCT lower(f COLLATE "C") FROM m ORDER BY 1',
	'SELECT count(*) FROM (SELECT DISTINCT f FROM m) s',
	'SELECT o::text FROM (SELECT DISTINCT o FROM m) s ORDER BY 1',
	'SELECT DISTINCT x::text FROM m ORDER BY 1',
	'SELECT DISTINCT counted(k) FROM m ORDER BY 1',
	'SELECT DISTINCT 1, g FROM m ORDER BY g',
	'SELECT DISTINCT 1 FROM m',
	'SELECT DISTINCT m.* FROM m WHERE k < 5 ORDER BY k',
	'SELECT count(*) FROM (SELECT DISTINCT m FROM m WHERE k < 50) s',
	'SELECT DISTINCT ROW(g, n) FROM m ORDER BY 1',
	'SELECT DISTINCT ON (g) g, k FROM m ORDER BY g, k',
	'SELECT DISTINCT g, count(*) OVER (PARTITION BY g) FROM m ORDER BY 1',
	'SELECT DISTINCT g, count(*) FROM m GROUP BY g, t ORDER BY 1, 2',
	'SELECT DISTINCT generate_series(1, g) FROM m ORDER BY 1',
	'SELECT DISTINCT g, (SELECT min(id) FROM small WHERE id > m.g) FROM m ORDER BY 1');

sub compare
{
	my ($when, @nodes) = @_;

	$c->same_answers($when, [ @pushed, @other ], \@nodes);
	$c->same_answers("$when, sorted", [ 'SET enable_hashagg = off', @pushed, @other ], \@nodes);
	return;
}

compare('at rest', qw(r1 s2));
my @shown = grep { !/UNION/ } @pushed;
my @plans = $c->answers('r1', map { "EXPLAIN (VERBOSE, COSTS off) $_" } @shown);
like($plans[$_], qr/SELECT DISTINCT/, "on the shards: $shown[$_]") foreach 0 .. $#shown;
like($c->query('r1', 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT count(*) FROM (SELECT DISTINCT t FROM m WHERE t IS NOT NULL) s'),
	qr/Tessera Scan\) \(actual rows=15 /, 'each shard sends each text once');

foreach my $node (qw(r1 s1))
{
	my $session = $c->session($node);

	$session->query_safe('PREPARE p(int) AS SELECT DISTINCT g % $1 FROM m WHERE k > $1 ORDER BY 1');
	is($session->query_safe('EXECUTE p(3)'), $c->plain_query('SELECT DISTINCT g % 3 FROM m WHERE k > 3 ORDER BY 1'),
		"prepared on $node, run $_") foreach 1 .. 7;
	$session->query_safe('BEGIN; UPDATE m SET g = 1000 WHERE k = 1500');
	is($session->query_safe('SELECT count(*), max(g) FROM (SELECT DISTINCT g FROM m) s'), '13|1000', "own writes are seen on $node");
	$session->query_safe('ROLLBACK');
	$session->quit;
}

my $script = <<'SQL';
SELECT 1 / (count(*) = 3010)::int FROM (SELECT DISTINCT k, g FROM m) s;
SELECT 1 / (count(*) = 12)::int FROM (SELECT DISTINCT g FROM m) s;
SQL
my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 2, seconds => 600, script => $script)->begun;
$c->query('r1', "SELECT tessera.move_range('m', 500, 1500, '$_')") foreach qw(s3 s1);
my $result = $load->end;
is("$result->{failed}|$result->{aborted}", '0|0', 'no statement failed or saw a row twice while ranges moved') or diag explain $result;
cmp_ok($result->{processed}, '>', 0, 'statements ran');
compare('after moves', 'r1');

done_testing();
