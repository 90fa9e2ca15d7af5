# A cluster that keeps itself balanced, with nothing written by hand: a table that comes in through one shard is split, new shards are filled without
# a word while clients write, keys that ascend do not all go to one shard, the config node's standby goes on where it was promoted.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('balanced', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.balancer_interval' => 1,
	'tessera.max_moves_per_shard' => 2, 'tessera.split_interval' => 500 });
$c->start_nodes('s2', 's3');
$c->create(shards => 1);
$c->query('s1', 'CREATE TABLE acc (k int PRIMARY KEY, v int NOT NULL DEFAULT 0, filler text)');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k', max_chunk_size => 1048576)");
my $rows = 100_000;
$c->query('s1', "INSERT INTO acc SELECT g, 0, repeat(md5(g::text), 4) FROM generate_series(1, $rows) g");
my $mine = q{table_name = 'acc'::regclass};
ok($c->wait_for('s1', "SELECT count(*) BETWEEN 15 AND 80 FROM tessera.chunks WHERE $mine", 't', 120), 'the table is split by itself');
is($c->query('s1', "SELECT count(DISTINCT shard) FROM tessera.chunks WHERE $mine"), 1, 'there is one shard');
ok($c->wait_for('s1', 'SELECT bytes BETWEEN 12000000 AND 25000000 FROM tessera.shards', 't'), 'whose size is known');

# Two more, while clients write. The first shard keeps the schemas, which are small.
my $load = $c->pgbench_start(clients => 2, seconds => 600, rate => 100, max_tries => 50, protocol => 'prepared', nodes => [ 's1' ],
	script => <<"SCRIPT")->begun;
\\set a random(1, $rows)
UPDATE acc SET v = v + 1 WHERE k = :a;
SCRIPT
$c->add_shard($_) foreach 's2', 's3';
# Within a quarter of each other, by the rows that are there: the balancer rests when no chunk, of half a megabyte here or somewhat more, would make
# two shards of six megabytes more alike.
my $even = <<'SQL';
SELECT count(*) = 3 AND max(n) - min(n) < 0.25 * avg(n) FROM (SELECT tessera.range_owner('acc', k), count(*) AS n FROM acc GROUP BY 1) AS s
SQL
my $balanced = $c->wait_for('s1', $even, 't', 120);
ok($balanced, 'new shards are filled until all have the same')
	or diag $c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)'), $c->query('s1', 'SELECT * FROM tessera.shards'),
	$c->query('s1', 'SELECT * FROM tessera.balancer_status LIMIT 20');
is($c->query('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state = 'failed'"), 0, 'nothing has failed');
my $sums = $load->end;
is($sums->{failed} // 0, 0, 'no transaction failed');
cmp_ok($sums->{processed}, '>', 0, "$sums->{processed} transactions");
is($c->query('s3', 'SELECT count(*) FROM acc'), $rows, 'all rows');
is($c->query('s3', 'SELECT sum(v) FROM acc'), $sums->{processed}, 'each change once');

# Keys that ascend.
$c->query('s1', 'CREATE TABLE log (at bigint PRIMARY KEY, what text)');
$c->query('s1', 'CREATE SEQUENCE tick CACHE 100');
$c->query('s1', "SELECT tessera.shard_table('log', 'at', max_chunk_size => 262144)");
my $writers = $c->pgbench_start(clients => 8, seconds => 600, rate => 400, max_tries => 50, protocol => 'prepared', nodes => [ 's1' ],
	script => <<'SCRIPT');
INSERT INTO log SELECT nextval('tick'), repeat('x', 500);
SCRIPT
ok($c->wait_for('s1', q{SELECT count(DISTINCT recipient) > 1 FROM tessera.balancer_status WHERE reason = 'top' AND state = 'done'}, 't', 60),
	'the end of the key space goes from shard to shard')
	or diag $c->query('s1', q{SELECT * FROM tessera.balancer_status WHERE reason = 'top'});
is($writers->end->{failed} // 0, 0, 'no transaction failed');
diag $c->query('s1', q{SELECT shard, chunks, bytes FROM tessera.chunk_distribution WHERE table_name = 'log'::regclass});

$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->wait_for('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')", 0);
$c->is_settled('in the end');
done_testing();
