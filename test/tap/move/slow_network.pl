# A network that is slow, but not broken, between the nodes of a move: its round trips count when the pause is predicted. Where they alone do not fit
# the budget of the critical section no gate is closed, the move says so, and fails with the reason after so many attempts; with a budget that fits
# the move gets there.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../../chaos/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Chaos::Run;

my $run = Chaos::Run->new(seed => 1, name => 'latency', faults => [], weights => { counter => 1 }, directory => PostgreSQL::Test::Utils::tempdir(),
	balancer => 0, settings => { 'tessera.migration_timeout' => '6h' });
$run->start;
my $c = $run->cluster;
my $network = $c->network;

# The config node s1 owns nothing; s2 gives to s3.
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, n int NOT NULL)',
	"SELECT tessera.shard_table('t', 'k')",
	'INSERT INTO t SELECT g, 0 FROM generate_series(1, 1000) g',
	"SELECT tessera.move_range('t', tessera.minkey(), tessera.maxkey(), 's2')");
my $DONOR = "FROM tessera.stat_progress_migration WHERE side = 'donor'";
my $move = "SELECT tessera.move_range('t', tessera.minkey(), tessera.maxkey(), 's3')";

sub set
{
	my (%settings) = @_;
	$c->query('s2', "ALTER SYSTEM SET $_ = '$settings{$_}'") foreach sort keys %settings;
	$c->query('s2', 'SELECT pg_reload_conf()');
	return;
}

# To the config node, and to the recipient: each alone is too far.
set('tessera.critical_section_attempts' => 3);
foreach my $node ('s1', 's3')
{
	$network->link('s2', $node, 'slow 60');
	my $session = $c->begin('s1', $move);
	ok($c->wait_for('s2', "SELECT waiting_for $DONOR", qr/^a nearer network: the pause would take \d{3,} ms, above tessera.critical_section_budget$/,
		60),
		"$node is far: the move says so");
	is($c->query('s2', "SELECT gate_attempts $DONOR"), '0', "$node is far: no gate is closed");
	$c->query('s3', 'UPDATE t SET n = n + 1 WHERE k = 1');
	my $error = $c->finish($session);
	like($error, qr/53400: *the network alone would take longer than tessera.critical_section_budget, in 3 attempts/,
		"$node is far: the move fails with the reason");
	like($error, qr/HINT: *Raise tessera.critical_section_budget/, "$node is far: and with what helps");
	like($error, qr/DETAIL: *A round trip takes [\d.]+ ms to the config node, [\d.]+ ms to the recipient/, "$node is far: and how far it is")
		or diag $error;
	is($c->query('s1', 'SELECT pause_ms IS NULL FROM tessera.migrations ORDER BY started DESC LIMIT 1'), 't', "$node is far: no client has waited");
	$network->heal;
}

# With a budget that fits, the pause is within it.
set('tessera.critical_section_attempts' => 50, 'tessera.critical_section_budget' => '1s');
$network->link('s2', $_, 'slow 60') foreach ('s1', 's3');
is($c->finish($c->begin('s1', $move)), '', 'with a budget that fits the move gets there');
my $pause = $c->query('s1', 'SELECT pause_ms FROM tessera.migrations ORDER BY started DESC LIMIT 1');
cmp_ok($pause, '>', 200, "its pause has the round trips in it ($pause ms)");
note "the budget is 1000 ms";
$network->heal;
is($c->query('s1', 'SELECT sum(n), count(*) FROM t'), '2|1000', 'all rows are there');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');
$run->quit;

done_testing();
