# The donor, the recipient, the config node, or donor and recipient together lose power at a named point of a migration, under load (invariants 1 to
# 8; S57, S62, S63, S66-S69): afterwards every acknowledged row is there once, sums are conserved, ownership is single, and within a bounded time
# nothing is left of the migration: no row of it, no gate, no slot, no prepared transaction. A scan that runs all the while counts every row once, or
# fails. The points are those of doc/migration.md, one for each durable step of either side and of the config node; their order in time is
# move/dangerous_orders.pl's.
#
# make test-long goes through every point with every set of nodes; make test has one set for each point, without those at which
# move/crash_at_durable_steps has a server crash and that are far from the decision. TESSERA_CRASH_POINT=regex selects points.
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
	[ 'donor_cloned', 'donor', 'donor' ],
	[ 'donor_steady', 'donor', 'donor' ],
	[ 'donor_write_gate', 'donor', 'donor' ],
	[ 'donor_reopened', 'donor', 'donor' ],
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

# Left to move/crash_at_durable_steps by make test.
my %left_out = map { $_ => 1 } qw(donor_registered donor_flag_up donor_slot recipient_registered recipient_batch recipient_cloned donor_cloned
  recipient_confirming config_commit recipient_released donor_released donor_cleaning donor_restored);

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

# The donor is paused at its closed write gate: the recipient's process is stopped, so that the donor gives up waiting, and goes on. Returns that
# process.
sub stop_recipient
{
	my ($donor, $recipient) = @_;
	$c->paused_at($donor, 'donor_write_gate', 30);
	my $pid = $c->query($recipient, "SELECT pid FROM tessera.stat_progress_migration WHERE side = 'recipient'");
	kill 'STOP', $pid;
	$c->go_on($donor, 'donor_write_gate');
	return $pid;
}

# One crash: the process that reaches the point pauses there; then the nodes lose power; if the paused process is not among them, it goes on a moment
# later, while they are down.
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
	$c->query($donor, "SELECT tessera_test.injection_set('donor_cloned', 'error')") if $on_the_way_back{$point};
	$c->pause_at($donor, 'donor_write_gate') if $point eq 'donor_reopened';
	$c->pause_at($paused, $point);
	my ($stdout, $stderr) = ('', '');
	my $move = IPC::Run::start([ psql_command($caller), '-c', "SELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$recipient')" ],
		'<', \undef, '>', \$stdout, '2>', \$stderr);
	my $stopped = $point eq 'donor_reopened' ? stop_recipient($donor, $recipient) : undef;
	if (!$c->paused_at($paused, $point, 30))
	{
		push @findings, "the point was not reached: $stderr";
	}
	sleep 0.1;	# clock: other moments of a crash; nothing depends on it
	kill 'CONT', $stopped if $stopped;
	$c->kill9($_) foreach @down;
	if (!grep { $_ eq $paused } @down)
	{
		$c->go_on($paused);
		sleep($params{down} // 0.3);	# clock: so long is the node down
	}
	$c->start($_) foreach @down;
	$c->go_on($_) foreach @nodes;
	# A migration that its donor never heard of is fenced when it is old enough.
	$c->query('s1', "UPDATE tessera.migration SET started = started - interval '1 minute' WHERE state = 'running'")
		if $point =~ /^(config_registered|donor_noted)$/;

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
	next if $only ? $name !~ /^$only$/ : $left_out{$name} && !TesseraCluster::long();
	foreach my $set (TesseraCluster::long() ? @sets : $sets[ $n % @sets ])
	{
		my $certain = $owner && ($owner eq 'recipient' || grep { $_ eq $side } @$set);
		push @crashes, [ $name, $side, $set, owner => $certain ? $owner : undef ];
	}
}
my $together = TesseraCluster::long() ? 1 : 4;
foreach my $n (0 .. $#crashes)
{
	crash_at(@{ $crashes[$n] }, last => $n == $#crashes || ($n + 1) % $together == 0);
}

cmp_ok(scalar(keys %acknowledged), '>', 0, scalar(keys %acknowledged) . ' rows were acknowledged');
done_testing();
