# How a migration behaves towards others: bounded in memory and rate, gates only when the pause will be short, reads go on behind the write gate, the
# donor's questions grow rare; and the range deleter: batches with pauses, taken up again after a crash, out of the way of a range that comes back.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use TesseraCluster;

my $c = TesseraCluster->new('manners', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 2);
$c->everywhere($_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL)',
	'INSERT INTO acc SELECT g, g FROM generate_series(1, 3000) g',
	'CREATE TABLE big (k int PRIMARY KEY, n int NOT NULL, filler text)',
	"INSERT INTO big SELECT g, 0, (SELECT string_agg(md5((g * 40 + i)::text), '') FROM generate_series(1, 30) i) FROM generate_series(1, 20000) g");
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.shard_table('big', 'k')");

my $progress = 'FROM tessera.stat_progress_migration';

sub same
{
	my ($name, $table) = @_;
	my ($same, $detail) = $c->same_everywhere("SELECT * FROM $table");
	ok($same, $name) or diag $detail;
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$name: consistent");
	return;
}

# Memory: a range of 20 MB, and a transaction of 20 MB while it moves, with bounds far below; several batches are under way at a time.
$c->set(undef, 'tessera.migration_batch_size' => 64, 'tessera.migration_commit_size' => 256, 'tessera.migration_memory' => 1024);
$c->pause_at('s2', 'recipient_batch');
$c->pause_at('s2', 'recipient_cloned');
my $session = $c->begin('s1', "SELECT tessera.move_range('big', tessera.minkey(), tessera.maxkey(), 's2')");
$c->is_paused_at('s2', 'recipient_batch');
ok($c->wait_for('s1', "SELECT bytes_done >= 4 * 64 * 1024 + " . $c->query('s2', "SELECT bytes_done $progress") . " $progress", 't', 10),
	'several batches are on their way');
$c->go_on('s2', 'recipient_batch');
$c->is_paused_at('s2', 'recipient_cloned');
$c->everywhere('UPDATE big SET n = 1');
$c->pause_at('s1', 'donor_cleaning');
$c->pause_at('s2', 'recipient_released');
$c->go_on('s2', 'recipient_cloned');
$c->is_paused_at($_->[0], $_->[1]) foreach ([ 's1', 'donor_cleaning' ], [ 's2', 'recipient_released' ]);
# What the server itself takes, too, and the keys that verification keeps.
my $limit = 16 * 1024 * 1024;
foreach my $node ($c->names)
{
	my ($memory, $peak) = split /\|/, $c->query($node, "SELECT memory_bytes, memory_peak_bytes $progress");
	cmp_ok($memory, '>', 100000, "$node shows its memory");
	cmp_ok($peak, '>=', $memory, "$node: and the most it had");
	cmp_ok($peak, '<', $limit, "$node: $peak bytes, however large the range");
	cmp_ok($c->query($node, "SELECT bytes_done $progress"), '>', 30 * 1024 * 1024, "$node: more than 30 MB went through");
}
$c->go_on('s1', 'donor_cleaning');
$c->go_on('s2', 'recipient_released');
is($c->finish($session), '', 'the move ends well');
same('much data', 'big');

# Rate: 1 MB a second.
$c->set(undef, 'tessera.migration_max_rate' => 1024);
$c->query('s1', "SELECT tessera.move_range('big', 1, 3001, 's1')");
my $seconds = $c->query('s1', "SELECT extract(epoch FROM finished - started) FROM tessera.migrations ORDER BY started DESC LIMIT 1");
cmp_ok($seconds, '>', 2, "3 MB at 1 MB a second take their time ($seconds s)");
$c->reset_settings;
$c->query('s1', "SELECT tessera.move_range('big', 1, 3001, 's2')");

# The donor's answers to requests for more of the clone than there is are not taken for news: at a low rate they came while the outcome was waited
# for.
$c->query('s1', $_) foreach ('CREATE TABLE slow (k int PRIMARY KEY)', "SELECT tessera.shard_table('slow', 'k')",
	'INSERT INTO slow SELECT generate_series(1, 10)');
$c->set(undef, 'tessera.migration_max_rate' => 1, 'tessera.critical_section_budget' => 10000);
$c->pause_at('s2', 'recipient_confirming');
my $slow = $c->begin('s1', "SELECT tessera.move_range('slow', 1, 101, 's2')");
$c->is_paused_at('s2', 'recipient_confirming');
ok($c->wait_for('s1', "SELECT clock_timestamp() > xact_start + interval '1 second' FROM pg_stat_activity WHERE query LIKE 'SELECT " .
	"tessera.move_range(%'", 't', 10),
	'the rate would let them go now');
$c->go_on('s2', 'recipient_confirming');
is($c->finish($slow), '', 'the move ends well');
is($c->query('s1', 'SET tessera.gate_timeout = 1000; SELECT count(*) FROM slow'), '10', 'and nobody waits for its end');
$c->reset_settings;

# S50: the donor asks at once, then less and less often, at most every second or so.
$c->set(undef, 'log_statement' => "'all'");
my $offset = -s $c->node('s2')->logfile;
$c->pause_at('s2', 'recipient_cloned');
$session = $c->begin('s1', "SELECT tessera.move_range('acc', 1001, 2001, 's2')");
$c->is_paused_at('s2', 'recipient_cloned');
my @asked;
my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
while (@asked < 14 && time < $deadline)
{
	my $log = slurp_file($c->node('s2')->logfile, $offset);
	@asked = map { $_->[0] * 3600 + $_->[1] * 60 + $_->[2] } map { [ split /:/ ] } $log =~ /^\S+ (\S+) .*execute.*internal\.recipient_status/mg;
	Time::HiRes::sleep(0.05);
}
my @gaps = map { $asked[$_] - $asked[ $_ - 1 ] } 1 .. $#asked;
cmp_ok(scalar @asked, '>=', 14, 'S50: the donor asks how the recipient fares') or diag "@gaps";
my $longest = (sort { $b <=> $a } @gaps)[0];
cmp_ok($longest, '>', 0.9, 'S50: about every second in the end') or diag "@gaps";
cmp_ok((sort { $a <=> $b } @gaps[ 0 .. 4 ])[0], '<', $longest / 4, 'S50: often in the beginning') or diag "@gaps";
$c->reset_settings;

# S51: no critical section while the recipient is behind.
$c->pause_at('s2', 'recipient_batch');
$c->everywhere('UPDATE acc SET bal = bal + 1 WHERE k BETWEEN 1001 AND 1100');
$c->go_on('s2', 'recipient_cloned');
$c->is_paused_at('s2', 'recipient_batch');
ok($c->wait_for('s1', "SELECT lag_ms > 1000 $progress", 't', 20), 'S51: the recipient is behind');
is($c->query('s1', "SELECT phase, gate_attempts $progress"), 'catching_up|0', 'S51: no gate is closed');

# S56: behind the write gate reads go on, and writes outside of the range.
$c->pause_at('s1', 'donor_write_gate');
$c->go_on('s2', 'recipient_batch');
$c->is_paused_at('s1', 'donor_write_gate');
foreach my $node ($c->names)
{
	is($c->query($node, 'SET tessera.gate_timeout = 1000; SELECT bal FROM acc WHERE k = 1500'), '1500', "S56: $node reads inside of the range");
	is($c->query($node, 'SET tessera.gate_timeout = 1000; SELECT count(*) FROM acc'), '3000', "S56: $node reads everything");
	$c->query($node, 'SET tessera.gate_timeout = 1000; UPDATE acc SET bal = bal WHERE k = 500');
	like($c->error($node, 'SET tessera.gate_timeout = 300; UPDATE acc SET bal = bal WHERE k = 1500'), qr/55P03.*gate|40001/s,
		"S56: $node does not write inside");
}
# Who waits at a gate is counted and logged.
$c->set(undef, 'tessera.log_min_gate_wait' => 0);
$c->query('s1', 'SELECT tessera.stat_routing_reset()');
my $held = $c->begin('s1', 'UPDATE acc SET bal = bal WHERE k = 1500');
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'UPDATE acc SET bal = bal WHERE k = 1500%' AND wait_event_type = " .
	"'Extension'", '1'), 'a statement waits at the gate');
my $before = -s $c->node('s1')->logfile;
$c->go_on('s1', 'donor_write_gate');
is($c->finish($session), '', 'and the move ends well');
is($c->finish($held), '', 'so does who waited');
is($c->query('s1', 'SELECT gate_waits > 0 AND gate_wait_time > 0 FROM tessera.stat_routing'), 't', 'its wait is counted');
like(slurp_file($c->node('s1')->logfile, $before), qr/waited \d+\.\d{3} ms at the gate of a migration of table "acc"/, 'and logged');
same('after the gate', 'acc');
$c->reset_settings;

# What the config node would refuse it refuses before a gate is closed.
$c->pause_at('s2', 'recipient_cloned');
$session = $c->begin('s1', "SELECT tessera.move_range('acc', 2001, 2500, 's2')");
$c->is_paused_at('s2', 'recipient_cloned');
$c->query('s1', 'UPDATE tessera.table_group SET allow_migrations = false');
$c->go_on('s2', 'recipient_cloned');
like($c->finish($session), qr/55006.*not allowed at present/s, 'a commit that would be refused ends the move');
is($c->query('s1', 'SELECT pause_ms IS NULL FROM tessera.migrations ORDER BY started DESC LIMIT 1'), 't', 'and no gate was closed');
$c->query('s1', 'UPDATE tessera.table_group SET allow_migrations = true');

# The range deleter (S71, S74): batches, pauses, how far it is; a range that comes back does not wait for its pauses (S65).
my $deleter = "SELECT query FROM pg_stat_activity WHERE backend_type = 'tessera range deleter'";
$c->query('s1', "SELECT tessera.move_range('acc', 1001, 2001, 's1')");
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'nothing is to be deleted');
$c->set(undef, 'tessera.range_deleter_batch_size' => 100, 'tessera.range_deleter_batch_delay' => 600000);
$c->query('s1', "SELECT tessera.move_range('acc', 1001, 3001, 's2')");
ok($c->wait_for('s1', $deleter, qr/^deleting .*: 100 rows so far$/, 30), 'S74: the range deleter rests after a batch, and shows how far it is');
is($c->query('s1', 'SELECT count(*) FROM tessera.range_deletions'), '1', 'S75: the range is still to be deleted');
same('orphans are hidden', 'acc');
# (a pause is longer than the test waits for a statement)
is(($c->psql('s1', "SELECT tessera.move_range('acc', 1001, 2001, 's1')"))[0], 0, 'S65: a range that comes back does not wait for these pauses');
same('it came back', 'acc');

# After a crash it goes on (S71).
$c->kill9('s1');
$c->start('s1');
ok($c->wait_for('s1', $deleter, qr/^deleting .*: \d00 rows so far$/, 30), 'after a crash it goes on with what is left');
is($c->query('s1', 'SELECT count(*) FROM tessera.range_deletions'), '1', 'which is not all');
$c->set(undef, 'tessera.range_deleter_batch_delay' => 0);
$c->query('s1', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'tessera range deleter'");
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0', 60), 'S75: in the end the range is off the list');
same('all is deleted', 'acc');
# Many ranges at once: the delay of each is its own, and comes to its end.
$c->reset_settings;
$c->set(undef, 'tessera.orphan_cleanup_delay' => 300);
$c->query('s1', $_) foreach ('CREATE TABLE many (k int PRIMARY KEY)', 'INSERT INTO many SELECT generate_series(1, 1000)',
	"SELECT tessera.shard_table('many', 'k')", "SELECT tessera.move_range('many', 1, 2, 's2')", "SELECT tessera.move_range('many', 1, 2, 's1')");
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'a range that was moved away again is deleted');
$c->query('s2', "UPDATE tessera.placement p SET deletions = ARRAY(SELECT ROW(g * 10, g * 10 + 1)::tessera.bound_range FROM generate_series(1, 60) g)
	FROM tessera.cluster_table t WHERE t.group_id = p.group_id AND t.table_name = 'many'");
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'so are sixty of them');

# Invariant 5: what is owned stays, whatever the list says.
$c->query('s1', "UPDATE tessera.placement p SET deletions = '{\"(100,200)\",\"(900,910)\"}' FROM tessera.cluster_table t WHERE t.group_id = " .
	"p.group_id AND t.table_name = 'many'");
$c->query('s1', "SELECT tessera.move_range('many', 900, 910, 's2')");
ok($c->wait_for('s1', "SELECT deletions FROM tessera.placement JOIN tessera.cluster_table USING (group_id) WHERE table_name = 'many'",
	'{"(100,200)"}', 30),
	'what is not owned is deleted and off the list');
is($c->query('s1', 'SELECT count(*) FROM many'), '1000', 'what is owned is not');
# (it passes over groups of migrations that still run, as the last one may)
ok($c->wait_for('s1', 'SELECT * FROM tessera.check_consistency()',
	qr/^5\|public\.many\|shard s1 has to delete the range from 100 to 200, but owns that from MINKEY to 900$/m, 30),
	'and the error in the list is noticed');
$c->query('s1', "UPDATE tessera.placement SET deletions = '{}'");

# And what it said when the deleter looked: it sleeps between two batches, the range comes back meanwhile.
$c->set('s1', 'tessera.range_deleter_batch_size' => 10, 'tessera.range_deleter_batch_delay' => 600000);
$c->query('s1', "SELECT tessera.move_range('many', 1, 501, 's2')");
ok($c->wait_for('s1', $deleter, qr/^deleting .*: 10 rows so far$/, 30), 'the deleter sleeps after a batch');
$c->query('s1', "SELECT tessera.move_range('many', 1, 501, 's1')");
$c->set('s1', 'tessera.range_deleter_batch_delay' => 0);
$c->query('s1', "SELECT tessera.move_range('many', 501, 502, 's2')");
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'it wakes, and goes on with another range');
is($c->query('s1', 'SELECT count(*) FROM many'), '1000', 'the one that came back it lets alone');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');

done_testing();
