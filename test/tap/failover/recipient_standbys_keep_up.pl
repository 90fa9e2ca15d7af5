# Standbys of the recipient: the clone does not run ahead of them (S42, tessera.secondary_throttle), and the range is not given up before they have it
# (doc/design.md#moves-and-standbys): so the donor's range deleter never deletes rows that a promoted standby would lack.
use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('standbys', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.standby_flush_timeout' => '60s' });
$c->create(shards => 2);
$c->everywhere($_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
	"INSERT INTO acc SELECT g, g, repeat('x', 500) FROM generate_series(1, 4000) g");
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->node('s2')->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standbys_s2_standby');
$standby->init_from_backup($c->node('s2'), 'b', has_streaming => 1);
$standby->start;
$c->node('s2')->wait_for_catchup($standby, 'replay');

my $move = "SELECT tessera.move_range('acc', 1001, 4001, 's2')";
my $back = "SELECT tessera.move_range('acc', 1001, 4001, 's1')";
my $waiting = "SELECT phase || ': ' || waiting_for FROM tessera.stat_progress_migration";

sub same
{
	my ($name) = @_;
	my ($same, $detail) = $c->same_everywhere('SELECT * FROM acc');
	ok($same, $name) or diag $detail;
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$name: consistent");
	return;
}

sub receiver
{
	return $standby->safe_psql('postgres', 'SELECT pid FROM pg_stat_wal_receiver');
}

# Replay: the standby stops replaying, the clone waits after its first commit; bounded, and by name.
$c->set('s2', 'tessera.migration_commit_size' => 64);
$c->set('s2', 'tessera.migration_batch_size' => 64);
$c->set('s2', 'tessera.secondary_throttle' => 'replay');
$c->set('s2', 'tessera.secondary_throttle_timeout' => 120000);
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
ok($standby->poll_query_until('postgres', 'SELECT pg_get_wal_replay_pause_state()', 'paused'), 'a standby pauses');
my $session = $c->begin('s1', $move);
ok($c->wait_for('s2', $waiting, qr/^receiving: replay of the standby of process \d+$/), 'the recipient waits for its replay');
ok($c->wait_for('s1', $waiting, qr/^cloning: recipient: replay of the standby of process \d+$/), 'and the donor says so');
cmp_ok($c->query('s2', 'SELECT rows_done FROM tessera.stat_progress_migration'), '<', 3000, 'the clone does not run ahead');
$c->query('s1', 'UPDATE acc SET bal = bal WHERE k = 2000');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
is($c->finish($session), '', 'when it replays the move goes on');
same('throttled by replay');
$c->query('s1', $back);

# Not for ever: past the time limit of each wait the clone goes on.
$c->set('s2', 'tessera.secondary_throttle_timeout' => 1);
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
ok($standby->poll_query_until('postgres', 'SELECT pg_get_wal_replay_pause_state()', 'paused'), 'a standby pauses again');
is($c->finish($c->begin('s1', $move)), '', 'a standby that does not follow in time does not stop the move');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$c->query('s1', $back);

# Flush: what a standby has received counts, be it replayed or not.
$c->set('s2', 'tessera.secondary_throttle' => 'flush');
$c->set('s2', 'tessera.secondary_throttle_timeout' => 120000);
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
ok($standby->poll_query_until('postgres', 'SELECT pg_get_wal_replay_pause_state()', 'paused'), 'a standby pauses once more');
is($c->finish($c->begin('s1', $move)), '', 'by flush a standby that receives and does not replay is no obstacle');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
same('throttled by flush');
$c->query('s1', $back);

# The confirmation: a standby that is attached and does not flush holds back the hand-over, but no statement.
$c->set('s2', 'tessera.secondary_throttle' => 'off');
$c->pause_at('s2', 'recipient_last');
$session = $c->begin('s1', $move);
ok($c->paused_at('s2', 'recipient_last'), 'the recipient is about to confirm');
my $receiver = receiver();
kill 'STOP', $receiver;
$c->go_on('s2');
ok($c->wait_for('s1', 'SELECT gate_attempts >= 2 FROM tessera.stat_progress_migration', 't', 30),
	'the confirmation waits for the standby: the gate opens, and is tried again');
is($c->query('s1', "SET tessera.gate_timeout = 5000; UPDATE acc SET bal = bal + 1 WHERE k = 3000 RETURNING bal"), '3001', 'the range is served');
$c->plain_query('UPDATE acc SET bal = bal + 1 WHERE k = 3000');
is($c->query('s1', "SELECT tessera.range_owner('acc', 3000)"), 's1', 'it is not given up');
is($c->query('s1', 'SELECT count(*) FROM tessera.range_deletions'), '0', 'nothing is to be deleted');
kill 'CONT', $receiver;
is($c->finish($session), '', 'when the standby has flushed it is handed over');
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'and then deleted');
same('confirmed by the standby');
$c->node('s2')->wait_for_catchup($standby, 'replay');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM pg_catalog.pg_class WHERE relname = $$acc$$'), '1', 'the standby lives');

$standby->stop;
done_testing();
