# The donor, the recipient, the config node, or donor and recipient together lose power at a named point of a migration, under load (invariants 1 to 8; S57,
# S62, S63, S66-S69): afterwards every acknowledged row is there once, sums are conserved, ownership is single, and within a bounded time nothing is left of the
# migration: no row of it, no gate, no slot, no prepared transaction. A scan that runs all the while counts every row once, or fails.
#
# Then: a commit that comes late (D5), a migration that is noted again after its end, a recipient that was stopped and wakes when its migration is long over (C5),
# cancellation at each step, two migrations at a time.
#
# TESSERA_CRASH_ALL=1 goes through every point with every set of nodes; without it, each point has one set. TESSERA_CRASH_POINT=regex selects points.
use strict;
use warnings;

use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

my $ROWS = 1000;
my $RANGE_MIN = 200;
my $RANGE_MAX = 800;
my $CLEAN_SECONDS = 60;

# s1 is the config node and keeps the keys outside the range; s2 and s3 are donor and recipient in turn, or the two named by TESSERA_CRASH_PAIR ("s1 s2").
my @pair = split / /, $ENV{TESSERA_CRASH_PAIR} // 's2 s3';
my $c = TesseraCluster->new(
	'crash',
	settings => {
		'tessera.injection_points' => 'on',
		'tessera.orphan_cleanup_delay' => 50,
		'tessera.migration_batch_size' => 4,
		restart_after_crash => 'on',
		fsync => 'on'
	});
$c->create(shards => 3);
my @nodes = $c->names;

$c->query('s1', $_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
	"INSERT INTO acc SELECT g, 0, repeat('x', g % 100) FROM generate_series(1, $ROWS) g",
	'CREATE TABLE entry (k int NOT NULL, id bigint NOT NULL, PRIMARY KEY (k, id))',
	"SELECT tessera.shard_table('acc', 'k')",
	"SELECT tessera.shard_table('entry', 'k', colocate_with => 'acc')",
	"SELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$pair[1]')");

my $directory = PostgreSQL::Test::Utils::tempdir();
my $next_id = 1;
my %acknowledged;
my $parent = $$;

# Load: children that run psql with a few transactions at a time until the file "stop" is there. What they were told is committed they write to a file.
sub transactions
{
	my ($ids) = @_;
	my $sql = '';
	foreach my $id (@$ids)
	{
		my ($a, $b, $k) = map { 1 + int(rand($ROWS)) } 1 .. 3;
		my $d = 1 + int(rand(100));
		$sql .= "BEGIN;\nUPDATE acc SET bal = bal - $d WHERE k = $a;\nUPDATE acc SET bal = bal + $d WHERE k = $b;\nCOMMIT;\n";
		$sql .= "INSERT INTO entry VALUES ($k, $id) RETURNING 'ack ' || id;\n";
	}
	return $sql;
}

sub psql_command
{
	my ($node) = @_;
	my $server = $c->node($node);
	return ('psql', '-XAtq', '-v', 'ON_ERROR_STOP=0', '-h', $server->host, '-p', $server->port, 'postgres');
}

sub start_load
{
	my ($name) = @_;
	my @children;
	my $number = 0;
	foreach my $node (@nodes)
	{
		my $first = $next_id;
		$next_id += 1_000_000;
		my $output = "$directory/load_${name}_$node";
		my $pid = fork // die "fork: $!";
		if ($pid == 0)
		{
			$ENV{PGOPTIONS} = '-c statement_timeout=30s';
			$ENV{PGCONNECT_TIMEOUT} = 5;
			srand($$);
			$SIG{TERM} = $SIG{INT} = 'DEFAULT';
			until (-e "$directory/stop" || getppid != $parent)
			{
				my @ids = $first .. $first + 4;
				$first += 5;
				my ($stdout, $stderr) = ('', '');
				eval { IPC::Run::run([ psql_command($node) ], '<', \transactions(\@ids), '>', \$stdout, '2>', \$stderr) };
				append_to_file($output, join('', map { "$_\n" } $stdout =~ /^ack (\d+)$/mg));
				append_to_file("$output.errors", $stderr) if $stderr ne '';
				sleep 0.1 if $stderr =~ /connection|server closed/;
			}
			POSIX::_exit(0);
		}
		push @children, { pid => $pid, output => $output };
	}
	# The reader: on the node that is neither donor nor recipient.
	my $output = "$directory/reads_$name";
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		$ENV{PGOPTIONS} = '-c statement_timeout=30s';
		$ENV{PGCONNECT_TIMEOUT} = 5;
		$SIG{TERM} = $SIG{INT} = 'DEFAULT';
		until (-e "$directory/stop" || getppid != $parent)
		{
			my $node = $nodes[ $number++ % @nodes ];
			my ($stdout, $stderr) = ('', '');
			my $sql = "SELECT 'read ' || count(*) || ' ' || count(DISTINCT k) FROM acc;\n" x 3;
			eval { IPC::Run::run([ psql_command($node) ], '<', \$sql, '>', \$stdout, '2>', \$stderr) };
			append_to_file($output, "$node $_\n") foreach $stdout =~ /^(read .*)$/mg;
			sleep 0.05;
		}
		POSIX::_exit(0);
	}
	push @children, { pid => $pid, reads => $output };
	return \@children;
}

sub stop_load
{
	my ($children) = @_;
	my @wrong_reads;
	append_to_file("$directory/stop", 'stop');
	foreach my $child (@$children)
	{
		waitpid($child->{pid}, 0);
		if ($child->{reads})
		{
			my $reads = -e $child->{reads} ? slurp_file($child->{reads}) : '';
			push @wrong_reads, grep { !/ read $ROWS $ROWS$/ } split /\n/, $reads;
		}
		elsif (-e $child->{output})
		{
			$acknowledged{$_} = 1 foreach split /\n/, slurp_file($child->{output});
		}
	}
	unlink "$directory/stop";
	return @wrong_reads;
}

sub owner
{
	return $c->query('s1', "SELECT tessera.range_owner('acc', 500)");
}

# What must be gone on each node.
my $LEFT = <<'END';
SELECT concat_ws(', ',
	(SELECT 'coordinator ' || phase || ' ' || coalesce(decision, '-') FROM tessera.migration_coordinator LIMIT 1),
	(SELECT 'recipient row ' || state FROM tessera.migration_recipient LIMIT 1),
	(SELECT 'placement ' || gate FROM tessera.placement WHERE gate <> 'open' OR migration_id IS NOT NULL OR confirmed LIMIT 1),
	(SELECT 'slot ' || slot_name FROM pg_replication_slots LIMIT 1),
	(SELECT 'prepared ' || gid FROM pg_prepared_xacts LIMIT 1),
	(SELECT 'deletion' FROM tessera.range_deletions LIMIT 1),
	(SELECT 'process ' || phase FROM tessera.stat_progress_migration LIMIT 1))
END

sub check_clean
{
	my ($name) = @_;
	my @findings;
	my $begun = time;
	foreach my $node (@nodes)
	{
		$c->wait_for($node, $LEFT, '', $CLEAN_SECONDS) or push @findings, "$node is not clean";
	}
	$c->wait_for('s1', "SELECT (SELECT count(*) FROM tessera.migration WHERE state = 'running') || ' ' || (SELECT count(*) FROM tessera.migration_outcome)",
		'0 0', $CLEAN_SECONDS) or push @findings, 'a migration or an outcome is left on the config node';
	my $took = time - $begun;
	push @findings, sprintf('clean only after %.1f s', $took) if $took > $CLEAN_SECONDS;
	my $consistency = $c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)');
	push @findings, $consistency if $consistency ne '';
	return @findings;
}

sub check_rows
{
	my @findings;
	foreach my $node (@nodes)
	{
		my ($status, $stdout, $stderr) = $c->psql($node, 'SELECT count(*), count(DISTINCT k), sum(bal) FROM acc');
		push @findings, "$node: accounts: $stdout$stderr" if $stdout ne "$ROWS|$ROWS|0";
		($status, $stdout, $stderr) = $c->psql($node, 'SELECT id FROM entry');
		my %seen;
		$seen{$_}++ foreach split /\n/, $stdout;
		my @lost = grep { !$seen{$_} } sort { $a <=> $b } keys %acknowledged;
		my @doubled = grep { $seen{$_} > 1 } keys %seen;
		push @findings, "$node: lost entries: " . scalar(@lost) . " (@lost[0 .. ($#lost < 5 ? $#lost : 5)])" if @lost;
		push @findings, "$node: doubled entries: @doubled" if @doubled;
		push @findings, "$node: $stderr" if $status != 0;
	}
	return @findings;
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

	my $load = start_load("${point}_" . join('_', @$set));
	$c->query($donor, "SELECT tessera.injection_set('donor_cloned', 'error')") if $point eq 'donor_restored';
	$c->query($paused, "SELECT tessera.injection_set('$point', 'pause')");
	my ($stdout, $stderr) = ('', '');
	my $move = IPC::Run::start([ psql_command($caller), '-c', "SELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$recipient')" ],
		'<', \undef, '>', \$stdout, '2>', \$stderr);
	if (!$c->wait_for($paused, "SELECT max(paused) FROM tessera.injection_list() WHERE name = '$point'", '1', 30))
	{
		push @findings, "the point was not reached: $stderr";
	}
	sleep 0.1;
	$c->kill9($_) foreach @down;
	if (!grep { $_ eq $paused } @down)
	{
		$c->query($paused, 'SELECT tessera.injection_clear()');
		sleep($params{down} // 0.3);
	}
	$c->start($_) foreach @down;
	$c->query($_, 'SELECT tessera.injection_clear()') foreach $donor, $recipient;

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
	my @wrong_reads = stop_load($load);
	push @findings, "wrong reads: @wrong_reads[0 .. ($#wrong_reads < 5 ? $#wrong_reads : 5)]" if @wrong_reads;
	push @findings, check_clean($name), check_rows();

	my $now = owner();
	push @findings, "the owner is $now, not $role{$params{owner}}" if $params{owner} && $now ne $role{ $params{owner} };
	push @findings, "the caller was told of success, but the owner is $now" if $stdout =~ /^[0-9a-f-]{36}$/m && $now ne $recipient;
	push @findings, "the caller was told of failure ($stderr), but the owner is $now"
		if $stderr =~ /ERROR/ && $stderr !~ /outcome|reach|connection|lost|closed/ && $now eq $recipient;
	is(join("\n", @findings), '', sprintf('%s (owner %s, clean %.1f s after)', $name, $now eq $recipient ? 'recipient' : 'donor', time - $begun))
		or diag "caller: $stdout$stderr";
	return;
}

# The point, who reaches it, and who must own the range if the donor or the recipient is down there: undef: either.
my @points = (
	[ 'donor_registered', 'donor', 'donor' ],
	[ 'donor_flag_up', 'donor', 'donor' ],
	[ 'donor_slot', 'donor', 'donor' ],
	[ 'recipient_registered', 'recipient', undef ],
	[ 'recipient_batch', 'recipient', 'donor' ],
	[ 'recipient_cloned', 'recipient', 'donor' ],
	[ 'donor_cloned', 'donor', 'donor' ],
	[ 'donor_steady', 'donor', 'donor' ],
	[ 'donor_write_gate', 'donor', 'donor' ],
	[ 'recipient_confirming', 'recipient', 'donor' ],
	[ 'recipient_confirmed', 'recipient', 'donor' ],
	[ 'donor_read_gate', 'donor', undef ],
	[ 'config_commit', 'donor', undef ],
	[ 'config_committed', 'donor', 'recipient' ],
	[ 'donor_released', 'donor', 'recipient' ],
	[ 'recipient_released', 'recipient', 'recipient' ],
	[ 'donor_cleaning', 'donor', 'recipient' ],
	[ 'donor_acknowledged', 'donor', 'recipient' ],
	[ 'donor_restored', 'donor', 'donor' ],
	[ 'range_deleter_batch', 'donor', 'recipient' ]);
my @sets = ([ 'donor' ], [ 'recipient' ], [ 'config' ], [ 'donor', 'recipient' ]);
my $only = $ENV{TESSERA_CRASH_POINT};

my $i = 0;
foreach my $point (@points)
{
	my ($name, $side, $owner) = @$point;
	my $turn = $i++;
	foreach my $n (0 .. $#sets)
	{
		next unless $ENV{TESSERA_CRASH_ALL} || $n == $turn % 4;
		next if $only && $name !~ /^$only$/;
		my $certain = grep({ $_ eq 'donor' } @{ $sets[$n] }) && $side eq 'donor' || grep({ $_ eq 'recipient' } @{ $sets[$n] }) && $side eq 'recipient';
		$certain = 1 if $owner && $owner eq 'recipient';
		crash_at($name, $side, $sets[$n], owner => $certain ? $owner : undef);
	}
}

# Nothing of a migration is left, and the rows are right.
sub sound
{
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
}

cmp_ok(scalar(keys %acknowledged), '>', 0, scalar(keys %acknowledged) . ' rows were acknowledged');
done_testing();
