# CrashCluster: three servers with accounts and entries, a load on them, and the checks that nothing of a migration is left and no row is lost or
# doubled: what tap/failover/power_loss_in_a_move and tap/move/dangerous_orders share. s1 is the config node and keeps the keys outside of the
# range; the range is on the second of the pair.
package CrashCluster;

use strict;
use warnings;

use Exporter 'import';
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

our @EXPORT = qw($c @nodes @pair $ROWS $RANGE_MIN $RANGE_MAX %acknowledged crash_cluster psql_command start_load stop_load owner
  check_settled check_clean check_rows);

our $ROWS = 1000;
our $RANGE_MIN = 200;
our $RANGE_MAX = 800;
our ($c, @nodes, @pair, %acknowledged);

my $CLEAN_SECONDS = 60;
my $directory = PostgreSQL::Test::Utils::tempdir();
my $next_id = 1;
my $parent = $$;

sub crash_cluster
{
	my ($name, @donor_and_recipient) = @_;
	@pair = @donor_and_recipient;
	$c = TesseraCluster->new(
		$name,
		settings => {
			'tessera.injection_points' => 'on',
			'tessera.orphan_cleanup_delay' => 50,
			'tessera.migration_batch_size' => 4,
			restart_after_crash => 'on'
		});
	$c->create(shards => 3);
	@nodes = $c->names;
	$c->query('s1', $_) foreach (
		'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
		"INSERT INTO acc SELECT g, 0, repeat('x', g % 100) FROM generate_series(1, $ROWS) g",
		'CREATE TABLE entry (k int NOT NULL, id bigint NOT NULL, PRIMARY KEY (k, id))',
		"SELECT tessera.shard_table('acc', 'k')",
		"SELECT tessera.shard_table('entry', 'k', colocate_with => 'acc')",
		"SELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$pair[1]')");
	return;
}

# Load: children that run psql with a few transactions at a time until the file "stop" is there. What they were told is committed they write to a
# file.
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
				sleep 0.2;    # clock: a load, and not all that the machine can do
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
			sleep 0.1;    # clock: the same
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
	(SELECT 'placement ' || gates::text FROM tessera.placement WHERE gates <> '{}' LIMIT 1),
	(SELECT 'slot ' || slot_name FROM pg_replication_slots LIMIT 1),
	(SELECT 'prepared ' || gid FROM pg_prepared_xact() LIMIT 1),
	(SELECT 'deletion' FROM tessera.range_deletions LIMIT 1),
	(SELECT 'process ' || phase FROM tessera.stat_progress_migration LIMIT 1))
END

# Findings: a migration that does not come to its end, or leaves something behind. Also under load.
sub check_settled
{
	my @findings;
	foreach my $node (@nodes)
	{
		$c->wait_for($node, $LEFT, '', $CLEAN_SECONDS) or push @findings, "$node is not clean";
	}
	$c->wait_for('s1', "SELECT (SELECT count(*) FROM tessera.migration WHERE state = 'running') || ' ' || " .
		"(SELECT count(*) FROM tessera.migration_outcome)",
		'0 0', $CLEAN_SECONDS) or push @findings, 'a migration or an outcome is left on the config node';
	return @findings;
}

# The same, and what the cluster finds itself.
sub check_clean
{
	my @findings = check_settled();
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

1;
