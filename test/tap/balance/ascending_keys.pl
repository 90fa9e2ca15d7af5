# Keys that ascend, or descend: the end of the key space that they will reach soon is split off ahead of them and moved while it is empty, so that
# the newest rows go to one shard after the other, however fast they come.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('ascending', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.balancer_interval' => 1,
	'tessera.split_interval' => 500, 'tessera.balancer_merge_after' => 0 });
$c->create(shards => 3);
# A row says where it came in: a trigger runs on its shard, and not where it moves to.
$c->query('s1', 'CREATE TABLE up (at timestamptz, id bigint, landed text, what text, PRIMARY KEY (at, id))');
$c->query('s1', 'CREATE TABLE down (k bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), landed text, what text)');
$c->query('s1', 'CREATE TABLE mixed (k int PRIMARY KEY, landed text, what text)');
$c->query('s1', "CREATE FUNCTION land() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.landed := current_setting(''port''); RETURN NEW; END'");
foreach my $table ([ 'up', 'at, id' ], [ 'down', 'k' ], [ 'mixed', 'k' ])
{
	$c->query('s1', "CREATE TRIGGER land BEFORE INSERT ON $table->[0] FOR EACH ROW EXECUTE FUNCTION land()");
	$c->query('s1', "SELECT tessera.shard_table('$table->[0]', '$table->[1]', max_chunk_size => 262144)");
}
$c->query('s1', 'CREATE SEQUENCE tick CACHE 50');
$c->query('s1', 'CREATE SEQUENCE fall AS bigint INCREMENT -1 MINVALUE -1000000000 MAXVALUE 1000000 START 1000000 CACHE 50');

my %load = (clients => 8, transactions => 250, rate => 900, max_tries => 50, protocol => 'prepared', nodes => [ 's1' ], scripts => {
	"INSERT INTO up VALUES (clock_timestamp(), nextval('tick'), NULL, repeat('x', 400));" => 4,
	"INSERT INTO down (k, what) VALUES (nextval('fall'), repeat('x', 400));" => 4,
	"\\set k random(1, 1000000000)\nINSERT INTO mixed VALUES (:k, NULL, repeat('x', 400)) ON CONFLICT DO NOTHING;" => 1 });
# Until both ends have been on each shard, and a little longer.
my ($failed, $processed, $more) = (0, 0, 3);
my $ends = "SELECT count(DISTINCT recipient) FROM tessera.balancer_status WHERE reason = 'top' AND state = 'done' AND table_name = '%s'::regclass";
foreach (1 .. 60)
{
	my $sums = $c->pgbench(%load);
	$failed += $sums->{failed};
	$processed += $sums->{processed};
	last unless $more;
	$more-- unless grep { $c->query('s1', sprintf($ends, $_)) < 3 } 'up', 'down';
}
foreach my $table ('up', 'down')
{
	ok($c->wait_for('s1', sprintf($ends, $table), 3, 60), "$table: the end of the key space goes from shard to shard")
		or diag $c->query('s1', q{SELECT * FROM tessera.balancer_status WHERE reason = 'top'});
}
# a move may end a statement that reads the whole table
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->wait_for('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')", 0);
is($failed, 0, 'no transaction failed');
my $rows = 0;
$rows += $c->query('s2', "SELECT count(*) FROM $_") foreach 'up', 'down', 'mixed';
is($rows, $processed, 'no row is lost');

# Where rows came in: over all, and in the second half alone, as at first there is one chunk and nobody knows yet what comes. The second half is
# shown only: a machine that is busy with other things may not get as far.
my $shares = <<'SQL';
SELECT round(100.0 * max(n) / sum(n)), string_agg(round(100.0 * n / total, 0)::text, ' / ' ORDER BY landed), count(*) FROM (
	SELECT landed, count(*) AS n, sum(count(*)) OVER () AS total FROM %s WHERE at > (SELECT min(at) + (max(at) - min(at)) * %s FROM %1$s)
	GROUP BY landed) AS s
SQL
foreach my $table ('up', 'down')
{
	diag "$table, the second half: ", (split /\|/, $c->query('s3', sprintf($shares, $table, 0.5)))[1], ' %';
	my ($most, $all, $shards) = split /\|/, $c->query('s3', sprintf($shares, $table, -1));
	is($shards, 3, "$table: rows came in on all shards");
	cmp_ok($most, '<=', 90, "$table: shares of the rows that came in: $all %");
}
# A move begins after rows have come to the end only until it is known how fast they come.
my $moved = "SELECT count(*) FILTER (WHERE rows <= 64), count(*), sum(rows) FROM tessera.balancer_status AS b
	JOIN tessera.migrations AS m ON m.id = b.migration_id WHERE b.reason = 'top' AND b.state = 'done' AND b.table_name = '%s'::regclass";
foreach my $table ('up', 'down')
{
	my ($empty, $all, $rows) = split /\|/, $c->query('s1', sprintf($moved, $table));
	diag "$table: $empty of $all, $rows rows";
	cmp_ok($empty, '>', 0, "$table: $empty of $all moves for its end were of what was (nearly) empty");
}
# a chunk that is split when it is full may look so by chance, once in a thousand times
cmp_ok($c->query('s1', "SELECT count(*) FROM tessera.balancer_status WHERE reason = 'top' AND table_name = 'mixed'::regclass"), '<', 4,
	'keys in random order have no such end');
# A table that is not to be balanced keeps its end where it is.
my $asked = "SELECT tessera_internal.request_move(t.table_id, tessera.minkey(), tessera.maxkey(), NULL, 'top', 'a test', true, i.term) IS NULL
	FROM tessera.cluster_table t, tessera.identity i WHERE t.table_name = 'mixed'";
$c->query('s1', "SELECT tessera.configure_table('mixed', balancing => false)");
is($c->query('s1', $asked), 't', 'what is not balanced is not asked for');
$c->is_settled('in the end');
done_testing();
