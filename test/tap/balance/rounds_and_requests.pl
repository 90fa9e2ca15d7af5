# The balancer: requests, rounds, draining, zones, weights, switches, what a failure leaves. Sizes are written into tessera.chunk_estimate here, as
# the shards' reports would; the splitter, which makes them, has tests of its own.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('balancer', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	restart_after_crash => 'on', 'tessera.balancer_interval' => 3600, 'tessera.auto_split' => 'off', 'tessera.split_interval' => 600000 });
$c->create(shards => 3);
# The first shard has the schemas: s1 is the config node, and takes part with its chunks.
$c->query('s1', 'CREATE TABLE acc (k int PRIMARY KEY, v int NOT NULL DEFAULT 0)');
$c->query('s1', 'INSERT INTO acc SELECT g FROM generate_series(1, 1000) g');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.split_chunk('acc', $_ * 100)") foreach 1 .. 9;

# Each chunk has so many bytes, as its shard says.
sub estimate
{
	my ($bytes) = @_;
	$c->query('s1', "BEGIN; LOCK TABLE tessera.chunk_estimate IN EXCLUSIVE MODE; DELETE FROM tessera.chunk_estimate;
		INSERT INTO tessera.chunk_estimate (group_id, min, node_id, bytes, statements, load) SELECT group_id, min, node_id, $bytes, 0, 0
		FROM tessera.chunk; COMMIT");
	return;
}

sub spread { return $c->query('s1', "SELECT string_agg(shard || ' ' || n, ', ' ORDER BY shard) FROM (SELECT shard, count(*) AS n FROM tessera.chunks
	WHERE table_name = 'acc'::regclass GROUP BY 1) AS s"); }
sub round { return $c->query('s1', 'SELECT tessera.balancer_round()'); }
my $open = "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')";

# Rounds until nothing is under way and nothing is left to do, what has failed and waits for a while included.
my $failed = "SELECT count(*) FROM tessera.balancer_status WHERE state = 'failed' AND not_before > clock_timestamp()";
sub balanced
{
	my ($what) = @_;
	my $deadline = time + 2 * $PostgreSQL::Test::Utils::timeout_default;
	my $left = 'much';
	while ($left ne '0' && time < $deadline)
	{
		round();
		$c->wait_for('s1', $open, 0);
		next if $c->query('s1', $failed) ne '0' && $c->wait_for('s1', $failed, 0);
		$left = $c->query('s1', "SELECT count(*) FROM tessera.explain_balancer(now => true) WHERE due IN ('now', 'later') AND kind = 'move'");
	}
	is($left, 0, "$what: nothing is left to do");
	# a shard deletes what it has given up when it has heard who owns it now: by itself within tessera.registry_refresh_interval
	$c->fetch_routing;
	$c->is_settled($what);
	is($c->query('s3', 'SELECT count(*), sum(k) FROM acc'), '1000|500500', "$what: all rows");
	return;
}

# Waits as wait_for does, and has what waits for its next attempt tried at once.
sub hurried
{
	my ($sql, $expected) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while ((my $answer = $c->query('s1', $sql)) ne $expected)
	{
		diag("$sql\nlast answer: $answer"), return 0 if time >= $deadline;
		$c->query('s1', "UPDATE tessera.balancer_action SET not_before = clock_timestamp()
			WHERE state = 'queued' AND not_before > clock_timestamp()");
		round();
		$c->wait_for('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state = 'running'", 0);
	}
	return 1;
}

# A request. Nothing else moves meanwhile.
$c->query('s1', 'SELECT tessera.stop_balancer()');
my $id = $c->query('s2', "SELECT tessera.move_range('acc', 900, tessera.maxkey(), 's3', wait => false)");
like($id, qr/^[0-9a-f-]{36}$/, 'move_range(wait => false) returns at once');
ok($c->wait_for('s1', "SELECT state, reason, donor, recipient FROM tessera.balancer_status WHERE id = '$id'", 'done|requested|s1|s3'), 'and is done');
is($c->query('s1', "SELECT tessera.range_owner('acc', 950)"), 's3', 'the range has moved');
$c->query('s1', "SELECT tessera.pause_balancer('1 hour')");
$id = $c->query('s2', "SELECT tessera.move_range('acc', 800, 900, 's3', wait => false)");
is($c->query('s2', "SELECT tessera.move_range('acc', 800, 900, 's3', wait => false)"), $id, 'the same again is the same');
round();
is($c->query('s1', "SELECT state FROM tessera.balancer_status WHERE id = '$id'"), 'queued', 'nothing begins while it is paused');
like($c->query('s1', "SELECT detail FROM tessera.explain_balancer(now => true) WHERE kind = 'balance'"), qr/^paused until/, 'which it says');
is($c->query('s2', "SELECT tessera.cancel_migration('$id')"), 't', 'it is not wanted any more');
is($c->query('s1', "SELECT state FROM tessera.balancer_status WHERE id = '$id'"), 'dropped', 'and says so');
$id = $c->query('s2', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's2', wait => false)");
$c->query('s2', 'SELECT tessera.resume_balancer()');
ok($c->wait_for('s1', "SELECT state FROM tessera.balancer_status WHERE id = '$id'", 'done'), 'a request for a range of several shards is done');
is(spread(), 's2 10', 'all of it is there');
is($c->query('s1', 'SELECT count(*) FROM tessera.balancer_status WHERE state = $$failed$$'), 0, 'nothing has failed');
like($c->error('s2', "SELECT tessera.move_range('acc', 5, 1, 's2', wait => false)"), qr/22023: min 5 is not below max 1/, 'errors come at once');
like($c->error('s2', "SELECT tessera.move_range('acc', 1, 5, 'nobody', wait => false)"), qr/42704: shard "nobody" does not exist/, 'all of them');

# Rounds: by bytes. The balancer begins nothing while it is paused, and is asked what it would do.
estimate(1000000);
$c->query('s1', "SELECT tessera.pause_balancer('1 hour')");
$c->query('s2', 'SELECT tessera.start_balancer()');
$c->query('s1', "DELETE FROM tessera.setting WHERE name = 'balancer_paused_until'");
is($c->query('s1', "SELECT count(*) > 0 FROM tessera.explain_balancer(now => true) WHERE due = 'now' AND reason = 'group' AND donor = 's2'"), 't',
	'explain_balancer shows what it would do');
$c->query('s1', 'SELECT tessera.stop_balancer()');
round();
is(spread(), 's2 10', 'a balancer that is stopped does nothing');

# What the last round has decided is kept: also over a restart, and whatever one would decide now.
my $last = "SELECT coalesce(due, '-'), kind, coalesce(detail, '-') FROM tessera.explain_balancer()";
my $moves_due = q{SELECT count(*) > 0 FROM tessera.explain_balancer(%s) WHERE due = 'now' AND kind = 'move' AND reason = 'group' AND donor = 's2'
	AND table_name = 'acc'::regclass AND bytes > 0 AND detail ~ '^of the table group' AND made > now() - interval '1 minute'};
like($c->query('s1', "$last WHERE due IS NOT NULL"), qr/^never\|balance\|stopped: tessera.start_balancer\(\) starts it$/, 'that is its last round');
is($c->query('s1', "$last WHERE kind = 'shard'") =~ tr/\n//, 2, 'and how much each shard has') or diag $c->query('s1', $last);
my $whole = 'SELECT e::text FROM tessera.explain_balancer() AS e ORDER BY step';
my $kept = $c->query('s1', $whole);
$c->restart('s1');
is($c->query('s1', $whole), $kept, 'the last round is known after a restart');
$c->query('s1', 'DELETE FROM tessera.balancer_plan');
is($c->query('s1', $last), '-|round|no round has been made yet: tessera.explain_balancer(now => true) shows what one would do', 'before the first');
$c->query('s1', "SELECT tessera.pause_balancer('1 hour')");
$c->query('s2', 'SELECT tessera.start_balancer()');
round();
like($c->query('s1', $last), qr/^never\|balance\|paused until [^\n]*$/, 'a round of a balancer that is paused decides nothing');
is($c->query('s1', "SELECT string_agg(DISTINCT kind, ' ' ORDER BY kind) FROM tessera.explain_balancer(now => true) WHERE made >= now()"),
	'balance shard spread', 'the plan of now is another matter');
$c->query('s1', "SELECT tessera_test.injection_set('balancer_begun', 'pause')");
$c->query('s1', 'SELECT tessera.resume_balancer()');
$c->is_paused_at('s1', 'balancer_begun');
is($c->query('s1', sprintf($moves_due, '')), 't', 'what it has decided is shown while that is done') or diag $c->query('s1', $whole);
$c->go_on('s1', 'balancer_begun');
balanced('by bytes');
$c->query('s1', 'SELECT tessera.balancer_round()');
is($c->query('s1', "$last WHERE due IS NOT NULL"), '', 'its last round found nothing to do');
like(spread(), qr/^s1 [34], s2 [34], s3 [34]$/, 'chunks of one size are spread');
my $moves = $c->query('s1', 'SELECT count(*) FROM tessera.balancer_action');
round() foreach 1 .. 3;
is($c->query('s1', 'SELECT count(*) FROM tessera.balancer_action'), $moves, 'and stay');
$c->query('s1', "SELECT tessera.configure_table('acc', balancing => false)");
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's2')");
round();
is(spread(), 's2 10', 'a table that is not to be balanced is left alone');
$c->query('s1', "SELECT tessera.configure_table('acc', balancing => true)");

# Weights.
$c->query('s2', "SELECT tessera.set_shard_weight('s3', 8)");
estimate(1000000);
balanced('by weight');
like(spread(), qr/^s1 1, s2 1, s3 8$/, 'a shard of eight times the weight has eight times the bytes');
$c->query('s1', "SELECT tessera.set_shard_weight('s3', 1)");
like($c->error('s1', "SELECT tessera.set_shard_weight('s3', 0)"), qr/22023: the weight of a shard must be above 0.*remove_shard/s, 'no weight of 0');
estimate(1000000);
balanced('by the same weight');

# Zones.
like($c->error('s1', "SELECT tessera.set_zone_range('acc', 'north', 1, 150)"), qr/42704: zone "north" does not exist.*add_zone/s,
	'a zone needs a shard');
$c->query('s2', "SELECT tessera.add_zone('north', 's2')");
$c->query('s3', "SELECT tessera.add_zone('south', 's3')");
$c->query('s3', "SELECT tessera.set_zone_range('acc', 'north', tessera.minkey(), 250)");
like($c->error('s1', "SELECT tessera.set_zone_range('acc', 'south', 200, 300)"), qr/22023: the range overlaps one of zone "north"/,
	'no two zones for a key');
$c->query('s3', "SELECT tessera.set_zone_range('acc', 'south', 850, tessera.maxkey())");
balanced('zones');
is($c->query('s1', "SELECT string_agg(DISTINCT tessera.range_owner('acc', k), ' ') FROM unnest(ARRAY[-5, 1, 200, 249]) AS k"), 's2', 'north');
is($c->query('s1', "SELECT string_agg(DISTINCT tessera.range_owner('acc', k), ' ') FROM unnest(ARRAY[850, 900, 5000]) AS k"), 's3', 'south');
is($c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE min::text IN ('250', '850')"), 2, 'chunks are split at the borders');
is($c->query('s1', 'SELECT count(*) FROM tessera.zones'), 2, 'zones are shown');
is($c->query('s1', "SELECT string_agg(zone || ' ' || min || ' ' || max, ', ' ORDER BY zone) FROM tessera.zone_ranges"),
	'north MINKEY 250, south 850 MAXKEY', 'and their ranges');
like($c->error('s1', "SELECT tessera.remove_zone('north')"), qr/55006: zone "north" would be left without a shard, but has ranges/,
	'a zone with ranges stays');

# Draining.
$c->query('s1', "SELECT tessera.move_range('acc', 250, 850, 's2')");
estimate(1000000);
$c->pause_at('s2', 'donor_cloned');
$c->query('s1', "SELECT tessera.pause_balancer('1 hour')");
$id = $c->query('s1', "SELECT tessera.move_range('acc', 850, tessera.maxkey(), 's2', wait => false)");
like($c->query('s1', "SELECT tessera.remove_shard('s2')"), qr/^draining: \d+ chunks \(.*\) are left, 0 moves run$/, 'a shard is to be removed');
$c->query('s1', 'SELECT tessera.resume_balancer()');
ok($c->wait_for('s1', "SELECT state FROM tessera.balancer_status WHERE id = '$id'", 'failed'), 'a request to go there ends');
like($c->query('s1', "SELECT waiting_for FROM tessera.balancer_status WHERE id = '$id'"), qr/22023: shard "s2" is being removed/, 'and says why');
is($c->query('s1', "SELECT draining FROM tessera.shards WHERE name = 's2'"), 't', 'tessera.shards says so');
round();
$c->is_paused_at('s2', 'donor_cloned');
like($c->query('s3', "SELECT tessera.remove_shard('s2')"), qr/^draining: .* [12] moves run$/, 'called again it says how far that is');
like($c->error('s1', "SELECT tessera.move_range('acc', 850, 900, 's2')"), qr/22023: shard "s2" is being removed/, 'nothing goes there');
is($c->query('s1', "SELECT donor, reason, detail FROM tessera.explain_balancer(now => true) WHERE due = 'never'"),
	's2|draining|no other shard may have it: add a shard, or change its zone', 'its zone is in the way, which is said');
$c->go_on('s2', 'donor_cloned');
$c->query('s1', "SELECT tessera.cancel_remove_shard('s2')");
ok($c->wait_for('s1', $open, 0), 'what runs comes to its end');
is($c->query('s1', "SELECT draining FROM tessera.shards WHERE name = 's2'"), 'f', 'it is called off');
like($c->error('s1', "SELECT tessera.cancel_remove_shard('s2')"), qr/55000: shard "s2" is not being removed/, 'once');
$c->query('s1', "SELECT tessera.set_zone_range('acc', NULL, tessera.minkey(), 250)");
like($c->error('s1', "SELECT tessera.set_zone_range('acc', NULL, 1, 250)"), qr/42704: no zone has the range/, 'a range is given up once');

# Under load, with a config node that is killed in the middle: s1 has no rows.
$c->query('s1', "SELECT tessera.set_zone_range('acc', NULL, 850, tessera.maxkey())");
$c->query('s1', "SELECT tessera.add_zone('data', '$_')") foreach 's2', 's3';
$c->query('s1', "SELECT tessera.set_zone_range('acc', 'data', tessera.minkey(), tessera.maxkey())");
estimate(1000000);
balanced('two of three shards');
like(spread(), qr/^s2 \d+, s3 \d+$/, 's1 has none');
my $load = $c->pgbench_start(clients => 2, transactions => 150, rate => 50, max_tries => 50, nodes => [ 's3' ], script => <<'SCRIPT');
\set a random(1, 1000)
UPDATE acc SET v = v + 1 WHERE k = :a;
SCRIPT
my $sum = 'SELECT sum(v) FROM acc';
$c->query('s1', "SELECT tessera_test.injection_set('balancer_begun', 'pause')");
$c->query('s1', "SELECT tessera.remove_shard('s2')");
$c->background('s1', 'SELECT tessera.balancer_round()');
$c->is_paused_at('s1', 'balancer_begun');
$c->kill9('s1');
$c->start('s1');
my $deadline = time + 2 * $PostgreSQL::Test::Utils::timeout_default;
while (time < $deadline)
{
	last if $c->query('s1', "SELECT count(*) FROM tessera.shards WHERE name = 's2'") eq '0';
	round();
	$c->wait_for('s1', $open, 0);
}
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.shards WHERE name = 's2'", 0), 'it leaves by itself when it is empty');
is($c->query('s2', 'SELECT count(*) FROM tessera.identity'), 0, 'it is no node any more');
like($c->error('s2', 'SELECT count(*) FROM acc'), qr/TS003/, 'and refuses what is done with its tables');
my $sums = $load->wait;
is($sums->{failed} // 0, 0, 'no transaction failed');
cmp_ok($sums->{processed}, '>', 0, "$sums->{processed} transactions");
is($c->query('s3', $sum), $sums->{processed}, 'each change once');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), 0, 'all is consistent');


# It comes back, without anything that had to be made anew, and is filled without a word.
$c->query('s2', 'CREATE TABLE late AS SELECT 1 AS a');
like($c->error('s1', sprintf("SELECT tessera.add_shard('s2', %s)", TesseraCluster::quote($c->conninfo('s2')))),
	qr/55000: this database cannot come back to the cluster: table public.late has rows/, 'no row is lost by that');
$c->query('s2', 'DROP TABLE late');
$c->query('s1', 'CREATE TABLE more (k int PRIMARY KEY); INSERT INTO more VALUES (1), (2)');
$c->query('s1', "SELECT tessera.pause_balancer('1 hour')");
$c->query('s1', sprintf("SELECT tessera.add_shard('s2', %s)", TesseraCluster::quote($c->conninfo('s2'))));
$c->query('s1', "SELECT tessera.set_zone_range('acc', NULL, tessera.minkey(), tessera.maxkey())");
$c->query('s1', "SELECT tessera.add_zone('spare', 's2')");
$c->query('s1', "SELECT tessera.set_zone_range('acc', 'spare', 900, tessera.maxkey())");
like($c->error('s1', "SELECT tessera.remove_shard('s2')"), qr/55006: .*Zone "spare" has ranges, and would be left without a shard.*add_zone/s,
	'a zone with ranges keeps a shard, even one that has nothing yet');
$c->query('s1', "SELECT tessera.set_zone_range('acc', NULL, 900, tessera.maxkey())");
estimate(1000000);
# the balancer's process dies in the middle of a round: the next one goes on from what it finds
$c->query('s1', "SELECT tessera_test.injection_set('balancer_begun', 'pause')");
$c->query('s1', 'SELECT tessera.resume_balancer()');
$c->is_paused_at('s1', 'balancer_begun');
my $killed = $c->query('s1', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'tessera balancer'");
$c->kill_backend('s1', $killed);
# a moment long the server has not noticed, and shows the killed one
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'tessera balancer' AND pid <> $killed", 1),
	'a killed balancer is started again');
balanced('it is taken back');
like(spread(), qr/^s1 \d+, s2 \d+, s3 \d+$/, 'and gets its share');
is($c->query('s2', 'SELECT count(*) FROM more'), 2, 'it has the schema of now');

# Merging: neighbours on one shard that are small and cold; not those that have moved a while ago.
$c->set('s1', 'tessera.balancer_policy' => 'count');
estimate(10);
balanced('by count');
my $chunks = $c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE table_name = 'acc'::regclass");
is($c->query('s1', "SELECT count(*) FROM tessera.balancer_status WHERE kind = 'merge'"), 0, 'chunks that have moved just now are not merged');
$c->set('s1', 'tessera.balancer_policy' => 'bytes', 'tessera.balancer_merge_after' => 0);
round() foreach 1 .. 5;
cmp_ok($c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE table_name = 'acc'::regclass"), '<', $chunks, 'then small ones are merged');
is($c->query('s1', "SELECT count(*) FROM (SELECT shard, lag(shard) OVER (ORDER BY min) AS before FROM tessera.chunks
	WHERE table_name = 'acc'::regclass) AS n WHERE shard = before"), 0, 'all neighbours of one shard');
is($c->query('s3', 'SELECT count(*), sum(k) FROM acc'), '1000|500500', 'all rows');

# What fails is tried again, later each time, and shown.
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's3')");
$c->query('s3', "SELECT tessera_test.injection_set('donor_cloned', 'error', 100)");
$id = $c->query('s1', "SELECT tessera.move_range('acc', 1, 5, 's2', wait => false)");
ok($c->wait_for('s1', "SELECT attempts > 1, waiting_for LIKE '_____: %donor_cloned%', not_before > now() FROM tessera.balancer_status
	WHERE id = '$id'", 't|t|t'),
	'a request that fails is tried again and stays, with the error and the time of the next attempt');
ok(hurried("SELECT count(*) FROM tessera.health WHERE problem LIKE 'it has failed%'", 1), 'health shows it when it has failed often');
$c->query('s3', 'SELECT tessera_test.injection_clear()');
ok(hurried("SELECT state FROM tessera.balancer_status WHERE id = '$id'", 'done'), 'it is done when the cause is mended');
is($c->query('s1', "SELECT subject, what_to_do FROM tessera.health WHERE subject !~ '^node '"), 'balancer|tessera.start_balancer()',
	'a balancer that is stopped is worth a notice');
# it reads from one place after the other: with a balancer that merges meanwhile it would find what is none
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(true)'), '', 'all is consistent');
$c->query('s1', 'SELECT tessera.start_balancer()');
is($c->query('s1', "SELECT count(*) FROM tessera.health WHERE subject !~ '^node '"), 0, 'nothing needs an operator');

# Who may.
$c->query('s1', 'CREATE ROLE nobody_special LOGIN');
foreach my $call ('stop_balancer()', 'balancer_round()', q{pause_balancer('1 s')}, q{add_zone('z', 's1')}, q{set_shard_weight('s1', 2)},
	q{set_zone_range('acc', 'z', 1, 2)}, q{cancel_remove_shard('s1')}, q{remove_shard('s3')}, 'explain_balancer()')
{
	like($c->error('s2', "SET ROLE nobody_special; SELECT tessera.$call"), qr/42501/, "$call is for administrators");
}
is($c->query('s1', 'SET ROLE nobody_special; SELECT count(*) > 0 FROM tessera.balancer_status'), 't', 'everybody may look');

done_testing();
