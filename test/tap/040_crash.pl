# The donor, the recipient, the config node, or donor and recipient together lose power at a named point of a migration, under load (invariants 1 to 8; S57,
# S62, S63, S66-S69): afterwards every acknowledged row is there once, sums are conserved, ownership is single, and within a bounded time nothing is left of the
# migration: no row of it, no gate, no slot, no prepared transaction. A scan that runs all the while counts every row once, or fails. The points are those of
# doc/migration.md, one for each durable step of either side and of the config node; their order in time is 042_crash_order.pl's.
#
# TESSERA_CRASH_ALL=1 goes through every point with every set of nodes; without it, each point has one set. TESSERA_CRASH_POINT=regex selects points.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;
use CrashCluster;

# Donor and recipient in turn, or the two named by TESSERA_CRASH_PAIR ("s1 s2").
crash_cluster('crash', split / /, $ENV{TESSERA_CRASH_PAIR} // 's2 s3');

# The point, who reaches it, and who must own the range if the node that reaches it is down there: undef: either.
my @points = (
	[ 'config_registered', 'config', 'donor' ],
	[ 'donor_noted', 'donor', 'donor' ],
	[ 'donor_registered', 'donor', 'donor' ],
	[ 'recipient_noted', 'recipient', 'donor' ],
	[ 'donor_flag_up', 'donor', 'donor' ],
	[ 'donor_slot', 'donor', 'donor' ],
	[ 'recipient_registered', 'recipient', undef ],
	[ 'recipient_batch', 'recipient', 'donor' ],
	[ 'recipient_cloned', 'recipient', 'donor' ],
	[ 'recipient_verify_round', 'recipient', 'donor' ],
	[ 'donor_cloned', 'donor', 'donor' ],
	[ 'donor_steady', 'donor', 'donor' ],
	[ 'donor_write_gate', 'donor', 'donor' ],
	[ 'donor_reopened', 'donor', 'donor' ],
	[ 'recipient_verify_rest', 'recipient', 'donor' ],
	[ 'donor_readers_wait', 'donor', 'donor' ],
	[ 'recipient_confirming', 'recipient', 'donor' ],
	[ 'recipient_confirmed', 'recipient', 'donor' ],
	[ 'donor_read_gate', 'donor', undef ],
	[ 'config_commit', 'donor', undef ],
	[ 'config_deciding', 'config', 'donor' ],
	[ 'config_committed', 'donor', 'recipient' ],
	[ 'recipient_releasing', 'recipient', 'recipient' ],
	[ 'donor_released', 'donor', 'recipient' ],
	[ 'recipient_released', 'recipient', 'recipient' ],
	[ 'donor_cleaning', 'donor', 'recipient' ],
	[ 'donor_slot_dropped', 'donor', 'recipient' ],
	[ 'donor_acknowledged', 'donor', 'recipient' ],
	[ 'donor_forgotten', 'donor', 'recipient' ],
	[ 'donor_restored', 'donor', 'donor' ],
	[ 'config_fencing', 'config', 'donor' ],
	[ 'donor_fenced', 'donor', 'donor' ],
	[ 'recipient_discarding', 'recipient', 'donor' ],
	[ 'range_deleter_batch', 'donor', 'recipient' ]);

# These are on the way back of a migration that fails.
my %on_the_way_back = map { $_ => 1 } qw(donor_restored config_fencing donor_fenced recipient_discarding);

my @sets = ([ 'donor' ], [ 'recipient' ], [ 'config' ], [ 'donor', 'recipient' ]);
my $only = $ENV{TESSERA_CRASH_POINT};

# The load goes on over several crashes.
my $load;
my $load_number = 1;

# Without load: everything.
sub check_all
{
	my @wrong_reads = stop_load($load);
	$load = undef;
	return (@wrong_reads ? "wrong reads: @wrong_reads[0 .. ($#wrong_reads < 5 ? $#wrong_reads : 5)]" : (), check_clean(), check_rows());
}

# The donor is paused at its closed write gate: the recipient's process is stopped, so that the donor gives up waiting, and goes on. Returns that process.
sub stop_recipient
{
	my ($donor, $recipient) = @_;
	$c->wait_for($donor, "SELECT max(paused) FROM tessera.injection_list() WHERE name = 'donor_write_gate'", '1', 30);
	my $pid = $c->query($recipient, "SELECT pid FROM tessera.stat_progress_migration WHERE side = 'recipient'");
	kill 'STOP', $pid;
	$c->query($donor, "SELECT tessera.injection_clear('donor_write_gate')");
	return $pid;
}

# One crash: the process that reaches the point pauses there; then the nodes lose power; if the paused process is not among them, it goes on a moment later,
# while they are down.
sub crash_at
{
	my ($point, $side, $set, %params) = @_;
	my $donor = owner();
	my $recipient = $donor eq $pair[0] ? $pair[1] : $pair[0];
	my %role = (donor => $donor, recipient => $recipient, config => 's1');
	my %down = map { $role{$_} => 1 } @$set;
	my @down = sort keys %down;
	my $paused = $role{$side};
	my ($caller) = grep { my $n = $_; !grep { $_ eq $n } @down } ('s1', 's3', 's2');
	my $name = sprintf('%s, %s down', $point, join(' and ', @$set));
	my @findings;

	$load //= start_load($load_number++);
	$c->query($donor, "SELECT tessera.injection_set('donor_cloned', 'error')") if $on_the_way_back{$point};
	$c->query($donor, "SELECT tessera.injection_set('donor_write_gate', 'pause')") if $point eq 'donor_reopened';
	$c->query($paused, "SELECT tessera.injection_set('$point', 'pause')");
	my ($stdout, $stderr) = ('', '');
	my $move = IPC::Run::start([ psql_command($caller), '-c', "SELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$recipient')" ],
		'<', \undef, '>', \$stdout, '2>', \$stderr);
	my $stopped = $point eq 'donor_reopened' ? stop_recipient($donor, $recipient) : undef;
	if (!$c->wait_for($paused, "SELECT max(paused) FROM tessera.injection_list() WHERE name = '$point'", '1', 30))
	{
		push @findings, "the point was not reached: $stderr";
	}
	sleep 0.1;
	kill 'CONT', $stopped if $stopped;
	$c->kill9($_) foreach @down;
	if (!grep { $_ eq $paused } @down)
	{
		$c->query($paused, 'SELECT tessera.injection_clear()');
		sleep($params{down} // 0.3);
	}
	$c->start($_) foreach @down;
	$c->query($_, 'SELECT tessera.injection_clear()') foreach @nodes;
	# A migration that its donor never heard of is fenced when it is old enough.
	$c->query('s1', "UPDATE tessera.migration SET started = started - interval '1 minute' WHERE state = 'running'") if $point =~ /^(config_registered|donor_noted)$/;

	# The caller hears about it in a bounded time.
	my $deadline = time + 90;
	while ($move->pumpable && time < $deadline)
	{
		$move->pump_nb;
		sleep 0.02;
	}
	if ($move->pumpable)
	{
		push @findings, 'the caller still waits';
		$move->kill_kill;
	}
	else
	{
		$move->finish;
	}
	my $begun = time;
	push @findings, $params{last} ? check_all() : check_settled();

	my $now = owner();
	push @findings, "the owner is $now, not $role{$params{owner}}" if $params{owner} && $now ne $role{ $params{owner} };
	push @findings, "the caller was told of success, but the owner is $now" if $stdout =~ /^[0-9a-f-]{36}$/m && $now ne $recipient;
	push @findings, "the caller was told of failure ($stderr), but the owner is $now"
		if $stderr =~ /ERROR/ && $stderr !~ /outcome|reach|connection|lost|closed/ && $now eq $recipient;
	is(join("\n", @findings), '', sprintf('%s (owner %s, clean %.1f s after)', $name, $now eq $recipient ? 'recipient' : 'donor', time - $begun))
		or diag "caller: $stdout$stderr";
	return;
}

# Which of them: all, or one set for each point.
my @crashes;
foreach my $n (0 .. $#points)
{
	my ($name, $side, $owner) = @{ $points[$n] };
	next if $only && $name !~ /^$only$/;
	foreach my $set ($ENV{TESSERA_CRASH_ALL} ? @sets : $sets[ $n % @sets ])
	{
		my $certain = $owner && ($owner eq 'recipient' || grep { $_ eq $side } @$set);
		push @crashes, [ $name, $side, $set, owner => $certain ? $owner : undef ];
	}
}
my $together = $ENV{TESSERA_CRASH_ALL} ? 1 : 4;
foreach my $n (0 .. $#crashes)
{
<<<<<<< HEAD
	crash_at(@{ $crashes[$n] }, last => $n == $#crashes || ($n + 1) % $together == 0);
=======
	my ($name, $owner) = @_;
	my @findings = (check_clean($name), check_rows());
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
	$c->query($paused, "SELECT tessera.injection_set('$point', 'pause')") if $point;
	$move->{handle} = IPC::Run::start([ psql_command($caller // 's1'), '-v', 'VERBOSITY=verbose', '-c',
			"SELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$recipient')" ], '<', \undef, '>', \$move->{stdout}, '2>', \$move->{stderr});
	$c->wait_for($paused, "SELECT max(paused) FROM tessera.injection_list() WHERE name = '$point'", '1', 30) or fail "$point is reached" if $point;
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

if (!$only && !$ENV{TESSERA_CRASH_PAIR})
{
	my ($move, $id, $donor, $recipient, $paused, $session);

	# The commit is on its way, held up on the config node; the donor crashes, comes back, and has the migration fenced: the commit must not land (D5).
	($move, $id, $donor, $recipient) = move_paused('config_commit', 's1');
	$session = $c->session('s1', on_error_stop => 0);
	$session->query('BEGIN');
	$session->query('SELECT FROM tessera.table_group FOR UPDATE');
	$c->query($donor, 'SELECT tessera.injection_clear()');
	ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%internal_commit_move%' AND wait_event_type = 'Lock'", '1', 20),
		'the commit waits on the config node');
	$c->kill9($donor);
	$c->start($donor);
	ok($c->wait_for('s1', "SELECT coalesce(o.outcome, m.state) FROM tessera.migration m LEFT JOIN tessera.migration_outcome o USING (migration_id) WHERE migration_id = '$id'",
			'aborted', 30), 'the migration is fenced');
	$session->query('COMMIT');
	$session->quit;
	ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%internal_commit_move%' AND state = 'active' AND pid <> pg_backend_pid()", '0', 20),
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
			"SELECT jsonb_build_object('migration_id', migration_id, 'group_id', group_id, 'table_id', table_id, 'min', tessera.bound_out(min)::text,
			'max', tessera.bound_out(max)::text, 'donor', donor, 'recipient', recipient, 'epoch', epoch, 'term', term, 'donor_timeline', donor_timeline,
			'recipient_timeline', recipient_timeline)::text || ' ' || n.name FROM tessera.migration m JOIN tessera.node n ON n.node_id = m.donor
			WHERE m.state = '$end' ORDER BY m.started DESC LIMIT 1");
		my ($json, $node) = $request =~ /^(.*) (\w+)$/;
		my ($again) = $json =~ /"migration_id": "([^"]+)"/;
		my $before = owner();
		$c->query($node, "SELECT tessera.internal_donate('$again', " . TesseraCluster::quote($json) . ')');
		$c->query($node, "SELECT tessera.internal_start_donor('$again')");
		sound("a migration noted again when it was $end", $before);
	}

	# The recipient's process is stopped, inside a batch and outside; its migration is cancelled, another one moves the range; then it wakes.
	foreach my $point ('recipient_cloned', 'recipient_batch')
	{
		($move, $id, $donor, $recipient) = move_paused($point, 's1');
		my $pid = process_of($recipient, $id, 'recipient');
		kill 'STOP', $pid;
		$c->query($recipient, 'SELECT tessera.injection_clear()');
		$c->query('s1', "SELECT tessera.cancel_migration('$id')");
		ok($c->wait_for('s1', "SELECT state FROM tessera.migration WHERE migration_id = '$id'", 'aborted', 30), "$point, stopped: the migration is aborted");
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
	foreach my $point (qw(donor_registered donor_flag_up donor_slot recipient_registered recipient_batch recipient_cloned donor_cloned donor_steady donor_write_gate
		recipient_confirming config_commit donor_cleaning))
	{
		next if !$ENV{TESSERA_CRASH_ALL} && $point =~ /donor_(registered|flag_up|cloned|steady|cleaning)|recipient_registered/;
		my $late = $point eq 'config_commit' || $point eq 'donor_cleaning';
		($move, $id, $donor, $recipient, $paused) = move_paused($point, 's1');
		# The function waits for the end, which the pause holds back once the config node is asked.
		if ($turn++ % 2 && $point ne 'config_commit')
		{
			$c->query('s1', "SELECT tessera.cancel_migration('$id')");
		}
		else
		{
			$c->query('s1', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%move_range%' AND pid <> pg_backend_pid() AND state = 'active'");
		}
		$c->wait_for($donor, "SELECT count(*) FROM tessera.stat_progress_migration WHERE phase <> 'aborting'", '0', 10) unless $late;
		$c->query($paused, 'SELECT tessera.injection_clear()');
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
		my $other = $c->query('s1', "SELECT tessera.range_owner('other', 1)");
		my $to = $other eq 's3' ? 's2' : 's3';
		my ($first) = move_paused('', 's2');
		my ($status, $stdout, $stderr) = $c->psql('s3', "SELECT tessera.move_range('other', 1, 1001, '$to')");
		answered($first);
		is($status, 0, "two migrations at a time, $turn") or diag $stderr;
		like($first->{stdout}, qr/^[0-9a-f-]{36}$/m, 'both succeed') or diag $first->{stderr};
	}
	is(join("\n", stop_load($load)), '', 'reads beside two migrations');
	is($c->query('s2', 'SELECT count(*), sum(v) FROM other'), '1000|500500', 'all rows of the other table');
	sound('two migrations');
>>>>>>> manners
}

cmp_ok(scalar(keys %acknowledged), '>', 0, scalar(keys %acknowledged) . ' rows were acknowledged');
done_testing();
