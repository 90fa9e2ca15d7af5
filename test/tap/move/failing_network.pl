# The exchange of a migration's rows goes through a network that fails while the nodes still hear each other's commands: held, closed, slow, narrow,
# from the first batch to the recipient's confirmation. The move waits and goes on, or it aborts and says why; the range is served meanwhile, no row
# is lost, doubled or stale. Beside it: the settings by which the exchange is found (ports, advertised address), and a conninfo of several hosts.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../../chaos/lib";

use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Test::More;

use Chaos::Run;

my $run = Chaos::Run->new(seed => 1, name => 'lanes', faults => [], weights => { counter => 1 }, balancer => 0,
	directory => PostgreSQL::Test::Utils::tempdir(),
	settings => { 'tessera.migration_timeout' => '6h' });
$run->start;
my $c = $run->cluster;
my $network = $c->network;

# The config node s1 owns nothing of the table; s2 gives to s3 and gets it back. Batches are small, many of them.
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, n int NOT NULL, filler text)',
	"SELECT tessera.shard_table('t', 'k')",
	"INSERT INTO t SELECT g, 0, repeat('x', 400) FROM generate_series(1, 1000) g",
	"SELECT tessera.move_range('t', tessera.minkey(), tessera.maxkey(), 's2')");
my $RECIPIENT = "SELECT waiting_for FROM tessera.stat_progress_migration WHERE side = 'recipient'";
my $DONOR = "SELECT waiting_for FROM tessera.stat_progress_migration WHERE side = 'donor'";
my $increments = 0;

sub move_sql
{
	my ($to) = @_;
	return "SELECT tessera.move_range('t', tessera.minkey(), tessera.maxkey(), '$to')";
}

# Settings of a node, until the next call: (name => value, ...).
sub set
{
	my ($node, %settings) = @_;
	$c->query($node, 'ALTER SYSTEM RESET ' . $_) foreach qw(tessera.migration_timeout tessera.critical_section_budget);
	$c->query($node, "ALTER SYSTEM SET $_ = '$settings{$_}'") foreach sort keys %settings;
	$c->query($node, 'SELECT pg_reload_conf()');
	return;
}

# The move from s2 to s3 in the background, paused at a point of a node; the lane gets its fault there, and the move goes on.
sub begin
{
	my ($node, $point, $fault) = @_;
	$c->query($node, "SELECT tessera_test.injection_set('$point', 'pause')");
	my $session = $c->begin('s1', move_sql('s3'));
	ok($c->wait_for($node, "SELECT max(paused) FROM tessera_test.injection_list() WHERE name = '$point'", '1'), "a move is at $point");
	$network->link('s3', 's2', $fault);
	$c->query($node, "SELECT tessera_test.injection_clear('$point')");
	return $session;
}

# Every node but the recipient, whose way to the donor is cut, can write into the range.
sub served
{
	my ($name) = @_;
	foreach my $node ('s1', 's2')
	{
		my ($status, undef, $stderr) = $c->psql($node, 'UPDATE t SET n = n + 1 WHERE k = 500');
		is($status, 0, "$name: $node writes into the range") or diag $stderr;
		$increments++ if $status == 0;
	}
	return;
}

# Nothing is left over, each row is there once with all its increments, and s2 has the range again.
sub settled
{
	my ($name) = @_;
	$network->heal;
	$c->query('s1', move_sql('s2'));
	my @findings = (Chaos::Quiet::wait_quiet($c, 's1', seconds => 90, hurry => 1), Chaos::Quiet::consistency($c));
	is(join("\n", map { "$_->[0]: $_->[1]" } @findings), '', "$name: nothing is left");
	is(join(' ', $c->query_all('SELECT count(*), count(DISTINCT k), sum(n) FROM t')), join(' ', ("1000|1000|$increments") x 3),
		"$name: every row once, with its increments");
	return;
}

# Held in the clone: the move waits for the donor's next batch, and gets there when the link is back.
my $session = begin('s3', 'recipient_batch', 'hold');
ok($c->wait_for('s3', $RECIPIENT, 'next batch of the donor'), 'held in the clone: the recipient says what it waits for');
ok($c->wait_for('s2', $DONOR, 'recipient: next batch of the donor'), 'and so does the donor');
served('held in the clone');
$network->heal;
is($c->finish($session), '', 'held in the clone: the move gets there');
settled('held in the clone');

# Held for longer than a migration may take: it ends, with the reason.
set($_, 'tessera.migration_timeout' => '4s') foreach 's2', 's3';
$session = begin('s3', 'recipient_batch', 'hold');
like($c->finish($session), qr/57014.*migration took longer than tessera\.migration_timeout/s, 'held for too long: the reason');
served('held for too long');
set($_) foreach 's2', 's3';
settled('held for too long');

# Closed in the clone.
$session = begin('s3', 'recipient_batch', 'drop');
like($c->finish($session), qr/08006.*connection of the exchange to the donor is lost/s, 'closed in the clone: the reason');
served('closed in the clone');
settled('closed in the clone');

# The donor cannot be reached at all.
$session = begin('s2', 'donor_slot', 'drop');
like($c->finish($session), qr/08006.*connection of the exchange to the donor is lost/s, 'never reached: the reason');
settled('never reached');

# Held behind the gate: it opens again, the range is served, and the move gets there in a later attempt.
$session = begin('s2', 'donor_write_gate', 'hold');
served('held behind the gate');
ok($c->wait_for('s2', "SELECT gate_attempts > 0 AND phase NOT IN ('write_gate', 'read_gate') FROM tessera.stat_progress_migration WHERE side = " .
	"'donor'"),
	'held behind the gate: it is open again');
$network->heal;
is($c->finish($session), '', 'held behind the gate: the move gets there');
settled('held behind the gate');

# The recipient has confirmed, and nobody hears it: the donor opens its gate again, and the recipient takes the confirmation back when it hears of
# that.
$session = begin('s3', 'recipient_confirmed', 'hold');
served('confirmed, but not heard');
$network->heal;
is($c->finish($session), '', 'confirmed, but not heard: the move gets there');
settled('confirmed, but not heard');

# The same, but the connection breaks: the move aborts, and with it the confirmation.
$session = begin('s3', 'recipient_confirmed', 'drop');
like($c->finish($session), qr/ERROR/, 'confirmed, then closed: the move fails');
served('confirmed, then closed');
settled('confirmed, then closed');

# Slow and narrow links: with a budget that fits them, the move gets there.
set('s2', 'tessera.critical_section_budget' => '1s');
foreach my $fault ('slow 60', 'throttle 200000')
{
	$session = begin('s2', 'donor_slot', $fault);
	served($fault);
	is($c->finish($session), '', "$fault: the move gets there");
	settled($fault);
}
set('s2');

my ($lanes, $unknown) = $network->lanes;
cmp_ok($lanes, '>', 10, "the exchange goes through the proxy ($lanes connections)");
is($unknown, '0', 'which knows who connects');

# Ports: the first that is free, and if none is the move says so.
my ($first, $last) = $c->query('s2', 'SHOW tessera.exchange_ports') =~ /^(\d+)-(\d+)$/;
like($c->error('s2', "ALTER SYSTEM SET tessera.exchange_ports = '$_'"), qr/22023/, "exchange_ports = '$_' is refused") foreach 'x', '7-', '9-7', '0',
	'70000', '7-8-9';
my @taken = map { IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $_, Listen => 1,
	ReuseAddr => 1) // die "port $_: $!" } $first .. $last;
like($c->error('s1', move_sql('s3')), qr/53000.*no port is free.*tessera\.exchange_ports/s, 'no port is free');
close pop @taken;
$c->query('s1', move_sql('s3'));
pass('one is free');
@taken = ();
settled('ports');

# Without an advertised address the conninfo's host is told: of several the one that is this machine, which need not be the first.
$c->query('s2', "ALTER SYSTEM SET $_ = ''") foreach 'tessera.exchange_advertised_address', 'tessera.exchange_address';
$c->query('s2', 'SELECT pg_reload_conf()');
my $port = $c->node('s2')->port;
$c->query('s1', sprintf("SELECT tessera.update_node('s2', 'host=nowhere.invalid,127.0.0.1 port=%d,%d dbname=postgres user=%s')", $port, $port,
	TesseraCluster::user()));
settled('several hosts');
($lanes) = $network->lanes;
$c->query('s1', move_sql('s3'));
is(($network->lanes)[0], $lanes, 'a conninfo of several hosts: the exchange of the one that is this machine was found');
$run->quit;
done_testing();
