# What crashes, stopped processes, late calls and cancellations at each step do to a migration, each in an order that is known to be dangerous: a
# commit that comes late (doc/design.md#commit-and-fence), a gate that outlives the donor, a migration that is noted again after its end, a recipient
# that was stopped and wakes when its migration is long over (doc/design.md#late-batches), cancellation at each step, two migrations at a time.
# make test-long: cancellation at every step.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;
use CrashCluster;

crash_cluster('order', 's2', 's3');

# Nothing of a migration is left, and the rows are right.
sub sound
{
	my ($name, $owner) = @_;
	my @findings = (check_clean(), check_rows());
	my $now = owner();
	push @findings, "the owner is $now" if $owner && $now ne $owner;
	is(join("\n", @findings), '', $name);
	return;
}

# A move in the background, paused at a point: (its handle, the id of the migration, the donor, the recipient, the node where it is paused).
sub move_paused
{
	my ($point, $caller) = @_;
	my $donor = owner();
	my $recipient = $donor eq $pair[0] ? $pair[1] : $pair[0];
	my $paused = $point =~ /^recipient/ ? $recipient : $donor;
	my $move = { stdout => '', stderr => '' };
	$c->pause_at($paused, $point) if $point;
	$move->{handle} = IPC::Run::start([ psql_command($caller // 's1'), '-v', 'VERBOSITY=verbose', '-c',
			"SELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$recipient')" ], '<', \undef, '>', \$move->{stdout}, '2>', \$move->{stderr});
	$c->paused_at($paused, $point, 30) or fail "$point is reached" if $point;
	my $id = $c->query('s1', "SELECT migration_id FROM tessera.migration ORDER BY started DESC LIMIT 1");
	return ($move, $id, $donor, $recipient, $paused);
}

# Waits until the caller has its answer.
sub answered
{
	my ($move, $seconds) = @_;
	my $deadline = time + ($seconds // 60);
	while ($move->{handle}->pumpable && time < $deadline)
	{
		$move->{handle}->pump_nb;
		sleep 0.02;
	}
	return $move->{handle}->finish || 1 unless $move->{handle}->pumpable;
	$move->{handle}->kill_kill;
	return 0;
}

sub process_of
{
	my ($node, $id, $side) = @_;
	return $c->query($node, "SELECT pid FROM tessera.stat_progress_migration WHERE migration_id = '$id' AND side = '$side'");
}

my ($move, $id, $donor, $recipient, $paused, $session);

# The commit is on its way, held up on the config node; the donor crashes, comes back, and has the migration fenced: the commit must not land.
($move, $id, $donor, $recipient) = move_paused('config_commit', 's1');
$session = $c->session('s1', on_error_stop => 0);
$session->query('BEGIN');
$session->query('SELECT FROM tessera.table_group FOR UPDATE');
$c->go_on($donor);
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%internal_commit_move%' AND wait_event_type = 'Lock'", '1', 20),
	'the commit waits on the config node');
$c->kill9($donor);
$c->start($donor);
ok($c->wait_for('s1', "SELECT coalesce(o.outcome, m.state) FROM tessera.migration m LEFT JOIN tessera.migration_outcome o USING (migration_id) " .
	"WHERE migration_id = '$id'",
		'aborted', 30), 'the migration is fenced');
$session->query('COMMIT');
$session->quit;
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%internal_commit_move%' AND state = 'active' AND pid <> " .
	"pg_backend_pid()", '0', 20),
	'the late commit has ended');
answered($move);
sound('a late commit', $donor);

# A gate that was closed at the crash is closed for the first statement, and opens when the outcome is known.
($move, $id, $donor, $recipient) = move_paused('config_commit', 's1');
$c->kill9($_) foreach $donor, 's1';
$c->start($donor);
foreach my $sql ('SELECT bal FROM acc WHERE k = 500', 'UPDATE acc SET bal = bal WHERE k = 500')
{
	my ($status, $stdout, $stderr) = $c->psql($donor, "SET tessera.gate_timeout = 500; $sql");
	like($stderr, qr/ERROR:  55P03/, "closed after the crash: $sql") or diag $stdout;
}
$c->start('s1');
ok($c->wait_for($donor, 'SELECT count(*) FROM acc WHERE k = 500', '1', 30), 'and open again when the outcome is known');
answered($move);
sound('a gate that outlives the donor');

# A caller joined the migration, and had it noted on the donor again when it was over.
foreach my $end ('committed', 'aborted')
{
	my $request = $c->query('s1',
		"SELECT tessera_internal.migration_request(migration_id)::text || ' ' || n.name
		FROM tessera.migration m JOIN tessera.node n ON n.node_id = m.donor
		WHERE m.state = '$end' ORDER BY m.started DESC LIMIT 1");
	my ($json, $node) = $request =~ /^(.*) (\w+)$/;
	my ($again) = $json =~ /"migration_id": "([^"]+)"/;
	my $before = owner();
	$c->query($node, "SELECT tessera_internal.donate('$again', " . TesseraCluster::quote($json) . ')');
	$c->query($node, "SELECT tessera_internal.start_donor('$again')");
	sound("a migration noted again when it was $end", $before);
}

# The recipient's process is stopped, inside a batch and outside; its migration is cancelled, another one moves the range; then it wakes.
foreach my $point ('recipient_cloned', 'recipient_batch')
{
	($move, $id, $donor, $recipient) = move_paused($point, 's1');
	my $pid = process_of($recipient, $id, 'recipient');
	kill 'STOP', $pid;
	$c->go_on($recipient);
	$c->query('s1', "SELECT tessera.cancel_migration('$id')");
	ok($c->wait_for('s1', "SELECT state FROM tessera.migration WHERE migration_id = '$id'", 'aborted', 30),
		"$point, stopped: the migration is aborted");
	my ($second) = move_paused('', 's1');
	if ($point eq 'recipient_cloned')
	{
		answered($second);
		like($second->{stdout}, qr/^[0-9a-f-]{36}$/m, 'the range moves while the other process is stopped') or diag $second->{stderr};
	}
	$c->query('s1', 'UPDATE acc SET bal = bal + 1 WHERE k = 300');
	kill 'CONT', $pid;
	answered($_) foreach $move, $second;
	$c->query('s1', 'UPDATE acc SET bal = bal - 1 WHERE k = 300');
	sound("$point, stopped, and woken later", $second->{stdout} =~ /^[0-9a-f-]{36}$/m ? $recipient : $donor);
}

# Cancellation: before the range is given up it ends the migration, later it does nothing; by the function or by the statement's.
my $turn = 0;
foreach my $point (qw(donor_registered donor_flag_up donor_slot recipient_registered recipient_batch recipient_cloned donor_cloned donor_steady
  donor_write_gate
	recipient_confirming config_commit donor_cleaning))
{
	next if !TesseraCluster::long() && $point =~ /donor_(registered|flag_up|cloned|steady|cleaning)|recipient_registered/;
	my $late = $point eq 'config_commit' || $point eq 'donor_cleaning';
	($move, $id, $donor, $recipient, $paused) = move_paused($point, 's1');
	# The function waits for the end, which the pause holds back once the config node is asked.
	if ($turn++ % 2 && $point ne 'config_commit')
	{
		$c->query('s1', "SELECT tessera.cancel_migration('$id')");
	}
	else
	{
		$c->query('s1', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%move_range%' AND pid <> pg_backend_pid() AND " .
			"state = 'active'");
	}
	$c->wait_for($donor, "SELECT count(*) FROM tessera.stat_progress_migration WHERE phase <> 'aborting'", '0', 10) unless $late;
	$c->go_on($paused);
	ok(answered($move), "cancelled at $point: the caller is answered");
	like($move->{stderr}, qr/57014/, "cancelled at $point: he is told so") unless $late;
	sound("cancelled at $point", $late ? $recipient : $donor);
}

# Two migrations of different groups, against each other, under load.
$c->query('s1', $_) foreach ('CREATE TABLE other (k int PRIMARY KEY, v int)', 'INSERT INTO other SELECT g, g FROM generate_series(1, 1000) g',
	"SELECT tessera.shard_table('other', 'k')", "SELECT tessera.move_range('other', 1, 1001, '" . (owner() eq 's3' ? 's2' : 's3') . "')");
my $load = start_load('two');
foreach my $turn (1 .. 2)
{
	my $to = owner();	# against each other: each of the two shards is the donor of one and the recipient of the other
	my $other = $c->query('s1', "SELECT tessera.range_owner('other', 1)");
	$c->query('s1', "SELECT tessera.move_range('other', 1, 1001, '" . ($to eq 's2' ? 's3' : 's2') . "')") if $other eq $to;
	my ($first) = move_paused('', 's2');
	my ($status, $stdout, $stderr) = $c->psql('s3', "SELECT tessera.move_range('other', 1, 1001, '$to')");
	answered($first);
	is($status, 0, "two migrations at a time, $turn") or diag $stderr;
	like($first->{stdout}, qr/^[0-9a-f-]{36}$/m, 'both succeed') or diag $first->{stderr};
}
is(join("\n", stop_load($load)), '', 'reads beside two migrations');
is($c->query('s2', 'SELECT count(*), sum(v) FROM other'), '1000|500500', 'all rows of the other table');
sound('two migrations');

done_testing();
