# Load: a hot chunk is split where its load is, its pieces are spread over the shards, and are not merged back; a hot key is named.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('load', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.balancer_interval' => 1,
	'tessera.balancer_policy' => 'load', 'tessera.split_interval' => 500, 'tessera.balancer_merge_after' => 0 });
$c->create(shards => 3);
$c->query('s1', 'SELECT tessera.pause_balancer($$1 hour$$)');
$c->query('s1', 'CREATE TABLE acc (k int PRIMARY KEY, v int NOT NULL DEFAULT 0)');
$c->query('s1', 'INSERT INTO acc SELECT g FROM generate_series(1, 10000) g');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's2')");
$c->query('s1', "SELECT tessera.split_chunk('acc', $_)") foreach 4000, 5000;
my $shards = q{SELECT count(DISTINCT shard) FROM tessera.chunks WHERE table_name = 'acc'::regclass AND min::text BETWEEN '4000' AND '4999'};

# Keys from 4000 to 4999 are what everybody wants.
my $load = $c->pgbench_start(clients => 4, seconds => 600, max_tries => 50, protocol => 'prepared', nodes => ['s1'], script => <<'SCRIPT');
\set a random(4000, 4999)
SELECT v, (SELECT count(*) FROM generate_series(1, 20000) AS g WHERE g <> acc.v) FROM acc WHERE k = :a;
UPDATE acc SET v = v + 1 WHERE k = :a;
SCRIPT
ok($c->wait_for('s1', q{SELECT count(*) > 1 FROM tessera.chunks WHERE table_name = 'acc'::regclass AND min::text BETWEEN '4000' AND '4999'}, 't', 60),
	'a hot chunk is split, though it is small');
ok($c->wait_for('s1', q{SELECT min::text BETWEEN '4000' AND '4999' FROM tessera.hot_chunks LIMIT 1}, 't'), 'hot_chunks shows where the load is');
$c->query('s1', 'SELECT tessera.resume_balancer()');
ok($c->wait_for('s1', $shards, 3, 60), 'its pieces are spread over the shards')
	or diag $c->query('s1', 'SELECT * FROM tessera.hot_chunks'), $c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)');
my $enough = TesseraCluster::long() ? 5000 : 1000;
ok($c->wait_for('s1', "SELECT sum(v) >= $enough FROM acc"), "the load goes on, to $enough changes");
my $sums = $load->end;
is($sums->{failed} // 0, 0, 'no transaction failed');
is($c->query('s3', 'SELECT sum(v) FROM acc'), $sums->{processed}, 'each change once');

# One key.
my $one = $c->pgbench_start(clients => 4, seconds => 600, max_tries => 50, protocol => 'prepared', nodes => ['s1'], script => <<'SCRIPT');
SELECT v, (SELECT count(*) FROM generate_series(1, 20000) AS g WHERE g <> acc.v) FROM acc WHERE k = 4242;
SCRIPT
my $hottest = q{SELECT hot_key::text = '4242' AND hot_share > 0.5 AND advice LIKE 'one key%' FROM tessera.hot_chunks LIMIT 1};
ok($c->wait_for('s1', $hottest, 't', 30), 'a hot key is named, and that no split can help') or diag $c->query('s1',
	'SELECT * FROM tessera.hot_chunks');
$one->end;

# Literals of another type than the key's, in the text of each statement, as client libraries write them.
$c->query('s1', $_) foreach 'CREATE TABLE wide (k bigint PRIMARY KEY, v int NOT NULL DEFAULT 0)', "SELECT tessera.shard_table('wide', 'k')",
	'INSERT INTO wide SELECT generate_series(1, 1000)';
my $literals = $c->pgbench_start(clients => 2, seconds => 600, max_tries => 50, protocol => 'simple', nodes => ['s1'], script => <<'SCRIPT');
SELECT v, (SELECT count(*) FROM generate_series(1, 20000) AS g WHERE g <> wide.v) FROM wide WHERE k = 42;
UPDATE wide SET v = v + 1 WHERE k IN (42, 43);
SCRIPT
ok($c->wait_for('s1', q{SELECT hot_key::text = '42' FROM tessera.hot_chunks WHERE table_name = 'wide'::regclass ORDER BY load DESC LIMIT 1}, 't', 30),
	'so is one that literals name');
$literals->end;
$c->query('s1', 'CREATE ROLE somebody LOGIN');
like($c->error('s1', 'SET ROLE somebody; SELECT * FROM tessera.hot_chunks'), qr/42501/, 'keys of rows are not for everybody');
like($c->error('s1', 'SET ROLE somebody; SELECT hot_key FROM tessera.chunk_estimate'), qr/42501/, 'nor in the table');
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->wait_for('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')", 0);
$c->is_settled('in the end');
done_testing();
