# Moves that the balancer has begun make way: for their share of tessera.balancer_max_rate, for standbys that do not follow, for clients whose
# transactions take longer; an operator's own moves do not. What is left and how long it may take is shown.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('yielding', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'restart_after_crash' => 'on', 'tessera.auto_split' => 'off', 'tessera.split_interval' => 600000, 'tessera.balancer_interval' => 3600,
	'tessera.migration_batch_size' => '64kB', 'tessera.balancer_max_slowdown' => 0, 'wal_receiver_status_interval' => 1,
	'tessera.balancer_merge' => 'off', 'tessera.registry_refresh_interval' => 1 });
$c->create(shards => 3);
$c->query('s1', 'CREATE TABLE acc (k int PRIMARY KEY, v int NOT NULL DEFAULT 0, filler text)');
$c->query('s1', 'INSERT INTO acc SELECT g, 0, repeat($$x$$, 1000) FROM generate_series(0, 7999) g');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.split_chunk('acc', $_ * 1000)") foreach 1 .. 7;

sub place
{
	my (%owners) = @_;
	foreach my $min (sort keys %owners)
	{
		my ($shard, $max) = @{ $owners{$min} };
		$c->query('s1', "SELECT tessera.move_range('acc', $min, $max, '$shard')");
	}
	$c->is_settled('the rows are placed');
	$c->query('s1', "BEGIN; LOCK TABLE tessera.chunk_estimate IN EXCLUSIVE MODE; DELETE FROM tessera.chunk_estimate;
		INSERT INTO tessera.chunk_estimate (group_id, min, node_id, bytes, statements, load) SELECT group_id, min, node_id, 1000000, 0, 0
		FROM tessera.chunk; COMMIT");
	return;
}
sub all_to { return place('tessera.minkey()' => [ $_[0], 'tessera.maxkey()' ]); }
sub round { return $c->query('s1', 'SELECT tessera.balancer_round()'); }
my $open = "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')";
my $running = "FROM tessera.migrations WHERE state = 'running'";
sub quiet { return $c->query('s1', 'SELECT tessera.stop_balancer()'); }

my $begun;

# What has begun comes to its end, and nothing else begins.
sub ended
{
	my ($what) = @_;
	quiet();
	ok($c->wait_for('s1', $open, 0, 120), "$what: it ends when the cause does") or diag $c->query('s1', "SELECT * FROM tessera.migrations");
	is($c->query('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state = 'failed' AND finished > '$begun'"), 0,
		"$what: nothing has failed");
	is($c->query('s1', 'SELECT count(*), sum(k) FROM acc'), '8000|31996000', "$what: all rows");
	return;
}
sub begin_moves
{
	$begun = $c->query('s1', 'SELECT clock_timestamp()');
	$c->query('s1', 'SELECT tessera.start_balancer()');
	return round();
}

# One rate for all.
quiet();
all_to('s2');
$c->query('s2', 'ANALYZE acc');
my $rate = 128 * 1024;
$c->set('s1', 'tessera.balancer_max_rate' => "'128kB'");
begin_moves();
ok($c->wait_for('s1', "SELECT count(*) $running AND waiting_for = 'its share of tessera.balancer_max_rate'", 2), 'two moves wait for their share');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migration WHERE state = 'running' AND rate > 0", 2), 'both say what they send');
is($c->query('s1', "SELECT count(*) $running AND bytes_total >= 1000000 AND rows_total BETWEEN 900 AND 6000 AND bytes < bytes_total"), 2,
	'what they are about to move is shown beside what they have moved') or diag $c->query('s1', 'SELECT * FROM tessera.migration');
ok($c->wait_for('s1', "SELECT sum(bytes) > 2 * $rate $running", 't'), 'they go on');
# The first of them had the whole rate for a moment.
is($c->query('s1', "SELECT sum(bytes) < $rate * (3 + extract(epoch FROM clock_timestamp() - min(started))) $running"), 't', 'at that rate');
like($c->query('s1', "SELECT tessera.remove_shard('s2')"), qr/^draining: /, 'the shard is to be removed meanwhile');
like($c->query('s1', 'SELECT shard, chunks, bytes_left > 0, moves, bytes_per_second > 0, remaining > $$0 s$$, in_the_way
	FROM tessera.draining_shards'),
	qr/^s2\|8\|t\|2\|t\|t\|acc from .*: its share of tessera.balancer_max_rate/, 'draining_shards shows how far that is');
$c->query('s1', "SELECT tessera.cancel_remove_shard('s2')");
is($c->query('s1', 'SELECT count(*) FROM tessera.draining_shards'), 0, 'no shard is being removed');
$c->set('s1', 'tessera.balancer_max_rate' => 0);
ended('rate');

# A donor that is down does not keep its share.
place('tessera.minkey()' => [ 's2', 4000 ], 4000 => [ 's3', 'tessera.maxkey()' ]);
$c->set('s1', 'tessera.balancer_max_rate' => "'128kB'");
begin_moves();
my $shares = "SELECT count(*) FROM tessera.migration WHERE state = 'running' AND rate BETWEEN 0.3 * $rate AND 0.7 * $rate";
ok($c->wait_for('s1', $shares, 2), 'two donors have half of it each') or diag $c->query('s1', 'SELECT * FROM tessera.migration');
$c->node('s3')->stop('immediate');
# It reports no more: 15 s later what it said does not count. They are over at once here.
$c->query('s1', "UPDATE tessera.migration AS m SET rate_reported = rate_reported - interval '15 seconds' FROM tessera.node AS n
	WHERE n.node_id = m.donor AND n.name = 's3' AND m.state = 'running'");
ok($c->wait_for('s1', "SELECT rate > 0.8 * $rate FROM tessera.migration AS m JOIN tessera.node AS n ON n.node_id = m.donor
	WHERE m.state = 'running' AND n.name = 's2'", 't', 60), 'the other one has all of it when one is down')
  or diag $c->query('s1', 'SELECT * FROM tessera.migration');
quiet();
$c->node('s3')->start;
$c->set('s1', 'tessera.balancer_max_rate' => 0);
ok($c->wait_for('s1', "SELECT count(*) $running", 0, 120), 'both end');
$c->is_settled('a donor was down');

# An operator's own move makes no way.
$c->set('s1', 'tessera.balancer_max_rate' => "'1kB'");
all_to('s2');
is($c->query('s1', 'SELECT rate IS NULL AND NOT yields FROM tessera.migration ORDER BY started DESC LIMIT 1'), 't',
	q{an operator's move makes no way});
$c->set('s1', 'tessera.balancer_max_rate' => 0);

# A standby that does not replay. WAL of the recipient that it has not replayed is more than allowed.
my $standby = $c->add_standby('s3');
sub lag
{
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()') if $standby->safe_psql('postgres', 'SELECT pg_is_wal_replay_paused()') eq 'f';
	$c->query('s3', "SELECT pg_logical_emit_message(true, 'lag', repeat('x', 3000000))");
	ok($c->wait_for('s3', 'SELECT flush_lsn >= pg_current_wal_flush_lsn() - 100000 FROM pg_stat_replication', 't'), 'a standby falls behind');
	return;
}
my $behind = qr/^recipient: replay of the standby of process \d+, \d+ kB behind$/;
$c->set('s3', 'tessera.balancer_max_lag' => "'1MB'");
# Only the pair of s2 and s3.
$c->query('s1', "SELECT tessera.add_zone('two', '$_')") foreach 's2', 's3';
$c->query('s1', "SELECT tessera.set_zone_range('acc', 'two', tessera.minkey(), tessera.maxkey())");
lag();
begin_moves();
ok($c->wait_for('s1', "SELECT DISTINCT waiting_for $running", $behind), q{a move rests while the recipient's standby is behind})
  or diag $c->query('s1', 'SELECT * FROM tessera.migrations');
is($c->query('s1', "SELECT max(bytes) < 1000000 AND min(state) = 'running' $running"), 't', 'it hands nothing out');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
ended('standby');
all_to('s2');
lag();
begin_moves();
ok($c->wait_for('s1', "SELECT DISTINCT waiting_for $running", $behind), 'again');
$standby->stop('immediate');
ended('a standby that is detached');

# With half of the backlog that would end it, it makes way no more.
$standby->start;
all_to('s2');
$c->set('s2', 'tessera.migration_max_backlog' => "'8MB'");
lag();
begin_moves();
ok($c->wait_for('s1', "SELECT DISTINCT waiting_for $running", $behind), 'once more');
$c->query('s2', "SELECT pg_logical_emit_message(true, 'backlog', repeat('x', 6000000))");
quiet();
ok($c->wait_for('s1', $open, 0, 120), 'it goes on before its backlog ends it');
is($c->query('s1', "SELECT count(*) FROM tessera.migrations WHERE state = 'aborted' AND error LIKE '53400%'"), 0, 'which it does not');
like($c->query('s3', 'SELECT pg_wal_lsn_diff(flush_lsn, replay_lsn) FROM pg_stat_replication'), qr/^\d{7,}$/, 'the standby is still behind');
$c->reset_settings('s2');

# The range deleter waits for it as well, but not for ever. s2 was the donor.
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$c->is_settled('standbys');

# Clients. First what they usually take, without a move; a session adds what it has measured each 50 ms.
all_to('s2');
my $usual = $c->pgbench_start(clients => 2, transactions => 4000, nodes => ['s2'],
	script => "\\set k random(0, 7999)\nSELECT v FROM acc WHERE k = :k;\n");
is($usual->wait->{failed} // 0, 0, 'what clients usually do');
$c->set('s2', 'tessera.balancer_max_slowdown' => 3);
$c->pause_at('s2', 'donor_slot');
begin_moves();
$c->is_paused_at('s2', 'donor_slot');
my $slow = $c->pgbench_start(clients => 4, seconds => 600, nodes => ['s2'],
	script => "\\set k random(0, 7999)\nSELECT v, pg_sleep(0.05) FROM acc WHERE k = :k;\n");
my $commits = 'SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()';
my $seen = $c->query('s2', $commits);
ok($c->wait_for('s2', "SELECT ($commits) > $seen + 60", 't'), 'clients are slower now');
$c->go_on('s2');
ok($c->wait_for('s1', "SELECT DISTINCT waiting_for $running",
	qr/^donor: clients, whose transactions take \d+\.\d times as long as before$/), q{a move rests while clients' transactions take longer})
  or diag $c->query('s1', 'SELECT * FROM tessera.migrations');
my $resting = $c->query('s1', "SELECT id $running");
$c->query('s1', "SELECT tessera.move_range('acc', 0, 100, 's3')");
is($c->query('s1', "SELECT state FROM tessera.migrations WHERE id = '$resting'"), 'running', 'an operator does not wait for them');
$slow->stop;
ended('clients');
$c->is_settled('in the end');
done_testing();
