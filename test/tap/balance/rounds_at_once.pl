# The balancer does not wait for its interval, which is an hour here: a shard that comes or is to go, a zone, a weight, a table's switch begin a round
# when they are committed, and so does a shorter interval. A table group that cannot be read is left out and named, the others are balanced.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('at_once', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.auto_split' => 'off',
	'tessera.split_interval' => 600000, 'tessera.balancer_interval' => 3600, 'tessera.balancer_merge' => 'off' });
$c->start_nodes('s3');
$c->create(shards => 2);
foreach my $table ('acc', 'other')
{
	$c->query('s1', "CREATE TABLE $table (k int PRIMARY KEY, v int NOT NULL DEFAULT 0)");
	$c->query('s1', "INSERT INTO $table SELECT g FROM generate_series(1, 1000) g");
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.split_chunk('$table', $_ * 100)") foreach 1 .. 9;
}
# each chunk has a megabyte, as its shard would say
$c->query('s1', "INSERT INTO tessera.chunk_estimate (group_id, min, node_id, bytes, statements, load)
	SELECT group_id, min, node_id, 1000000, 0, 0 FROM tessera.chunk ON CONFLICT (group_id, min) DO UPDATE SET bytes = excluded.bytes");

sub on { return "SELECT count(*) $_[1] FROM tessera.chunks WHERE shard = '$_[0]' AND table_name = '" . ($_[2] // 'acc') . "'::regclass"; }
my $open = "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')";
# A round under way may still begin moves, which go on to their end: another round comes behind it.
sub stop_balancer
{
	$c->query('s1', 'SELECT tessera.stop_balancer()');
	$c->query('s1', 'SELECT tessera.balancer_round()');
	return $c->wait_for('s1', $open, 0);
}

sub looks
{
	return $c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)'), $c->query('s1', 'SELECT * FROM tessera.balancer_status LIMIT 20');
}

# A shard comes, on a busy cluster.
$c->add_shard('s3');
ok($c->wait_for('s1', on('s3', '>= 3'), 't'), 'a new shard is filled at once') or diag looks();
ok($c->wait_for('s1', on('s2', '>= 3'), 't'), 'and so is the other one, which had nothing') or diag looks();
$c->wait_for('s1', $open, 0);

# Zones and weights.
$c->query('s2', "SELECT tessera.add_zone('north', 's2')");
$c->query('s2', "SELECT tessera.set_zone_range('acc', 'north', tessera.minkey(), 350)");
ok($c->wait_for('s1', "SELECT tessera.range_owner('acc', -5) || tessera.range_owner('acc', 349)", 's2s2'), 'a zone is seen to at once')
	or diag looks();
$c->query('s2', "SELECT tessera.set_zone_range('acc', NULL, tessera.minkey(), 350)");
$c->wait_for('s1', $open, 0);
$c->query('s1', "SELECT tessera.configure_table('$_', balancing => false)") foreach 'acc', 'other';
$c->query('s3', "SELECT tessera.set_shard_weight('s3', 8)");
is($c->query('s1', 'SELECT tessera.balancer_round() IS NOT NULL'), 't', 'a round');
is($c->query('s1', on('s3', '>= 7', 'other')), 'f', 'a table that is not to be balanced stays as it is');
$c->query('s3', "SELECT tessera.configure_table('other', balancing => true)");
ok($c->wait_for('s1', on('s3', '>= 7', 'other'), 't'), 'that it is to be balanced counts at once') or diag looks();
$c->query('s3', "SELECT tessera.set_shard_weight('s3', 1)");
ok($c->wait_for('s1', on('s3', '<= 4', 'other'), 't'), 'and so does a weight') or diag looks();
$c->wait_for('s1', $open, 0);

# A shard goes: its sequences' fences, too.
$c->query('s1', 'CREATE SCHEMA side; CREATE TABLE side.t (k serial PRIMARY KEY, v int)');
$c->query('s1', "SELECT tessera.move_schema('side', 's3')");
$c->query('s3', 'INSERT INTO side.t (v) VALUES (1)');
# They follow their schema in the balancer's own time; a schema that moves on before they have come is followed to its next place at once.
ok($c->wait_for('s1', "SELECT sequence_home IS NULL FROM tessera.schema_placement WHERE schema_name = 'side'"), 'its sequences have followed it');
$c->query('s1', "SELECT tessera.move_schema('side', 's2')");
ok($c->wait_for('s3', "SELECT count(*) FROM tessera.sequence_fence WHERE schema_name = 'side'", 1), 's3 has handed sequences over');
like($c->query('s2', "SELECT tessera.remove_shard('s3')"), qr/^draining: /, 'a shard is to go');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.shards WHERE name = 's3'", 0), 'it is drained at once, and leaves') or diag looks(),
	$c->query('s1', 'SELECT * FROM tessera.draining_shards');
ok($c->wait_for('s3', "SELECT string_agg(n, ' ' ORDER BY n) FROM (SELECT 'sequence_fence' FROM tessera.sequence_fence UNION SELECT 'chunk'
	FROM tessera.chunk UNION SELECT 'placement' FROM tessera.placement UNION SELECT 'node' FROM tessera.node UNION SELECT 'setting'
	FROM tessera.setting UNION SELECT 'cluster_table' FROM tessera.cluster_table UNION SELECT 'schema_placement' FROM tessera.schema_placement
	UNION SELECT 'table_group' FROM tessera.table_group UNION SELECT 'advisory_home' FROM tessera.advisory_home UNION SELECT 'table_statistics'
	FROM tessera.table_statistics) AS s (n)", ''), 'it has forgotten the cluster, fences of sequences among it');
$c->query('s3', 'SELECT tessera.check_node()');
$c->query('s1', sprintf("SELECT tessera.add_shard('s3', %s)", TesseraCluster::quote($c->conninfo('s3'))));
ok($c->wait_for('s1', on('s3', '>= 2', 'other'), 't'), 'it is taken back, and filled at once') or diag looks();
$c->wait_for('s1', $open, 0);
is($c->query('s2', "INSERT INTO side.t (v) VALUES (2), (3); SELECT count(DISTINCT k) FROM side.t"), 3, 'sequences go on');

# A table group that cannot be read. Nothing else wakes the balancer: the switch does.
my $group = "(SELECT group_id FROM tessera.cluster_table WHERE table_name = 'acc')";
stop_balancer();
$c->query('s1', "SELECT tessera.configure_table('acc', balancing => true)");
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's2')");
$c->query('s1', "SELECT tessera.move_range('other', tessera.minkey(), tessera.maxkey(), 's1')");
$c->query('s1', "INSERT INTO tessera.chunk_estimate (group_id, min, node_id, bytes, statements, load) VALUES ($group, 'no number', 1, 5, 0, 0)");
$c->query('s1', "SELECT tessera.add_zone('all', shard) FROM unnest(ARRAY['s1', 's2', 's3']) AS shard");
$c->query('s1', "SELECT tessera.set_zone_range('acc', 'all', 550, tessera.maxkey())");
$c->query('s1', 'SELECT tessera.start_balancer()');
ok($c->wait_for('s1', on('s3', '>= 3', 'other'), 't'), 'the other group is balanced') or diag looks();
is($c->query('s1', on('s2', '>= 10')), 't', 'the one that cannot be read stays where it is');
my $shown = "SELECT state, table_name, reason, waiting_for ~ 'no number' FROM tessera.balancer_status WHERE kind = 'read'";
is($c->query('s1', $shown), 'failed|acc|unreadable|t', 'balancer_status names it, with the reason');
is($c->query('s1', "SELECT subject, problem ~ 'no number' FROM tessera.health WHERE severity = 'error'"), 'table group of acc|t', 'health, too');
is($c->query('s1', "SELECT due, table_name, detail ~ 'no number' FROM tessera.explain_balancer(now => true) WHERE kind = 'read'"), 'never|acc|t',
	'and explain_balancer');
my $id = $c->query('s2', "SELECT tessera.move_range('acc', 1, 50, 's1', wait => false)");
like($c->query('s1', "SELECT tessera.remove_shard('s2')"), qr/^draining: /, 'a shard with such a group is to go');
ok($c->wait_for('s1', "SELECT in_the_way ~ 'acc cannot be read: .*no number' FROM tessera.draining_shards", 't'), 'what is in the way is said');
$c->query('s1', "SELECT tessera.cancel_remove_shard('s2')");
is($c->query('s1', "SELECT state FROM tessera.balancer_status WHERE id = '$id'"), 'queued', 'a request waits');
$c->query('s1', "DELETE FROM tessera.chunk_estimate WHERE min::text = 'no number'");
$c->query('s1', 'SELECT tessera.balancer_round()');
ok($c->wait_for('s1', "SELECT state FROM tessera.balancer_status WHERE id = '$id'", 'done'), 'it is done when the group can be read again');
ok($c->wait_for('s1', on('s3', '>= 3'), 't'), 'and the group is balanced') or diag looks();
is($c->query('s1', $shown), 'done|acc|unreadable|', 'the row is closed');
is($c->query('s1', "SELECT count(*) FROM tessera.health WHERE subject !~ '^node '"), 0, 'nothing needs an operator');
$c->wait_for('s1', $open, 0);

# Chunks that do not cover the keys. They are all read anew after a restart.
stop_balancer();
$c->query('s1', "CREATE TABLE kept AS SELECT * FROM tessera.chunk WHERE group_id = $group AND min::text = '500'");
$c->query('s1', "SELECT tessera.move_range('other', tessera.minkey(), tessera.maxkey(), 's1')");
$c->query('s1', "DELETE FROM tessera.chunk WHERE group_id = $group AND min::text = '500'");
$c->restart('s1');
$c->query('s1', 'SELECT tessera.start_balancer()');
ok($c->wait_for('s1', on('s2', '>= 3', 'other'), 't'), 'a group with a hole does not stop the others') or diag looks();
like($c->query('s1', "SELECT waiting_for FROM tessera.balancer_status WHERE kind = 'read' AND state = 'failed'"),
	qr/^XX001: the chunks of a table group/, 'it is named');
stop_balancer();
$c->query('s1', 'INSERT INTO tessera.chunk SELECT * FROM kept');
$c->query('s1', 'DROP TABLE kept');
$c->wait_for('s1', $open, 0);

# An interval that is made shorter counts at once, though the next round was an hour away. Nothing else begins one.
$c->query('s1', 'SELECT tessera.start_balancer()');
$c->query('s1', 'SELECT tessera.balancer_round()');
$c->wait_for('s1', $open, 0);
$c->query('s1', 'SELECT tessera.balancer_round()');
$c->query('s1', "INSERT INTO tessera.setting VALUES ('balancer', 'off') ON CONFLICT (name) DO UPDATE SET value = 'off'");
$c->query('s1', "SELECT tessera.move_range('other', tessera.minkey(), tessera.maxkey(), 's1')");
ok($c->wait_for('s1', $open, 0), 'nothing is under way');
$c->query('s1', "UPDATE tessera.setting SET value = 'on' WHERE name = 'balancer'");
$c->set('s1', 'tessera.balancer_interval' => 1);
ok($c->wait_for('s1', on('s2', '>= 3', 'other'), 't'), 'a shorter interval counts at once') or diag looks();
stop_balancer();
is($c->query('s3', 'SELECT count(*), sum(k) FROM acc'), '1000|500500', 'all rows');
is($c->query('s3', 'SELECT count(*), sum(k) FROM other'), '1000|500500', 'of both tables');
$c->is_settled('in the end');
# Times of the day, in the time zone of the log: outside of them nothing is evened out. One that ends before it begins goes over midnight.
sub window
{
	my ($from, $to) = @_;
	my $clock = "clock_timestamp() AT TIME ZONE current_setting('log_timezone')";
	return $c->query('s1', "SELECT quote_literal(to_char($clock + '$from', 'HH24:MI') || '-' || to_char($clock + '$to', 'HH24:MI'))");
}
my $why = "SELECT count(*) FROM tessera.explain_balancer(now => true) WHERE detail ~ 'outside of tessera.balancer_window'";
$c->query('s1', "SELECT tessera.move_range('other', tessera.minkey(), tessera.maxkey(), 's1')");
foreach my $closed ([ '2 hours', '3 hours' ], [ '2 hours', '-1 hour' ])
{
	$c->set('s1', 'tessera.balancer_window' => window(@$closed));
	$c->query('s1', 'SELECT tessera.start_balancer()');
	ok($c->wait_for('s1', $why, 1), "outside of the window from @$closed from now") or diag looks();
	is($c->query('s1', on('s1', '>= 10', 'other')), 't', 'nothing moves');
	stop_balancer();
}
foreach my $open_now ([ '-1 hour', '2 hours' ], [ '-1 hour', '-2 hours' ])
{
	$c->set('s1', 'tessera.balancer_window' => window(@$open_now));
	$c->query('s1', 'SELECT tessera.start_balancer()');
	ok($c->wait_for('s1', on('s2', '>= 3', 'other'), 't'), "inside of the window from @$open_now from now") or diag looks();
	stop_balancer();
	$c->query('s1', "SELECT tessera.move_range('other', tessera.minkey(), tessera.maxkey(), 's1')");
}

done_testing();
