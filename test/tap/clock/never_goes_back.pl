# Cluster time on one node and over restarts: it ticks with commits that write, never goes back, not by the wall clock, a restart, a crash or a
# promotion (doc/design.md#cluster-time).
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('clock');
$c->create(shards => 2, routers => 1);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);

sub now_on { return $c->query($_[0], 'SELECT tessera.cluster_time()'); }

# Perl's numbers have 53 bits: the server compares.
sub is_later
{
	my ($late, $early, $name) = @_;
	is($c->query('s1', "SELECT ${late}::numeric > ${early}::numeric"), 't', $name);
	return;
}

sub is_not_earlier
{
	my ($late, $early, $name) = @_;
	is($c->query('s1', "SELECT ${late}::numeric >= ${early}::numeric"), 't', $name);
	return;
}

sub shift_is
{
	my ($ms, $name) = @_;
	ok($c->wait_for('s1', "SELECT setting FROM pg_settings WHERE name = 'tessera.clock_shift'", $ms, 30), $name);
	return;
}

# what ticks
my $before = now_on('s1');
is($c->query('s1', "SELECT abs(extract(epoch FROM tessera.cluster_time_to_timestamp($before) - clock_timestamp())) < 120"), 't',
	'it is near the wall clock');
is($c->query('s1', "SELECT floor($before / 4294967296) = floor(extract(epoch FROM tessera.cluster_time_to_timestamp($before)))"), 't',
	'seconds since 1970 are above');
# the node's own workers tick it, too, now and then: so one of several times at least is the same before and after
sub leaves_it
{
	my ($statement, $name) = @_;
	my $same = 0;
	for (my $try = 0; $try < 50 && !$same; $try++)
	{
		my ($first, $second) = split /\n/, $c->query('s1', "SELECT tessera.cluster_time(); $statement; SELECT tessera.cluster_time()");
		$same = $first eq $second;
	}
	ok($same, $name);
	return;
}
leaves_it('DO $$ BEGIN PERFORM count(*) FROM t WHERE k < 10; END $$', 'a statement that reads ticks nothing');
leaves_it('BEGIN; UPDATE t SET v = v WHERE k = 1; ROLLBACK', 'nor does one that is rolled back');
$c->query('s1', "UPDATE t SET v = 'x' WHERE k = 1");
my $after = now_on('s1');
is_later($after, $before, 'a commit that writes ticks');
$c->query('s1', "UPDATE t SET v = 'y' WHERE k = 1");
is_later(now_on('s1'), $after, 'so does the next');
is($c->query('s1', 'BEGIN; UPDATE t SET v = v WHERE k = 1; SET TRANSACTION READ ONLY; COMMIT; SELECT 1'), '1',
	'a transaction that is made read-only after it has written');

# the wall clock is set back, and set forth
$before = now_on('s1');
$c->node('s1')->append_conf('postgresql.conf', "tessera.clock_shift = -3600000");
$c->node('s1')->reload;
shift_is('-3600000', 'the wall clock of s1 is set back an hour');
foreach (1 .. 3)
{
	$c->query('s1', "UPDATE t SET v = 'back' WHERE k = 1");
	$after = now_on('s1');
	is_later($after, $before, 'it goes on');
	$before = $after;
}
is($c->query('s1', "SELECT abs(extract(epoch FROM tessera.cluster_time_to_timestamp($before) - clock_timestamp())) < 60"), 't', 'from where it was');

# restarts and crashes
foreach my $how ('restart', 'kill9')
{
	foreach my $node ('s1', 's2')
	{
		$c->query($node, "UPDATE t SET v = '$how' WHERE k IN (1, 502)");
		$before = now_on($node);
		if ($how eq 'restart') { $c->restart($node); }
		else { $c->kill9($node); $c->start($node); }
		is_not_earlier(now_on($node), $before, "$node does not go back by $how");
		$c->query($node, "UPDATE t SET v = 'again' WHERE k IN (1, 502)");
		is_later(now_on($node), $before, 'and ticks on');
	}
}

# many writers at the moment at which a reservation is needed: each has another time, none goes beyond what is durable
# (a worker of the node may come first)
my $reserved = $c->query('s1', 'SELECT last_value FROM tessera.clock_reservation');
$c->node('s1')->append_conf('postgresql.conf', "tessera.clock_shift = 3600000");
$c->node('s1')->reload;
shift_is('3600000', 'the wall clock of s1 is set forth two hours');
my $sums = $c->pgbench(nodes => ['s1'], clients => 8, transactions => 50,
	script => "\\set k random(1, 400)\nUPDATE t SET v = 'many' WHERE k = :k;\n");
ok($sums->{processed} > 0, "$sums->{processed} updates by eight clients");
my $given_out = $c->query('s1', 'SELECT tessera.cluster_time()');
is($c->query('s1', "SELECT last_value > $reserved + 3500 AND last_value * 4294967296::numeric >= $given_out FROM tessera.clock_reservation"), 't',
	'the reservation is ahead of the clock');
$before = now_on('s1');
$c->node('s1')->append_conf('postgresql.conf', "tessera.clock_shift = 0");
$c->kill9('s1');
$c->start('s1');
is_not_earlier(now_on('s1'), $before, 'a crash, with the wall clock set back by then');

# promotion: the standby's wall clock is behind, and it lacks the newest commits
my $standby = $c->add_standby('s2');
$standby->append_conf('postgresql.conf', "tessera.clock_shift = -7200000");
$standby->reload;
$c->query('s2', "UPDATE t SET v = 'promoted' WHERE k = 502");
$before = now_on('s2');
like(($standby->psql('postgres', 'SELECT tessera.cluster_time()'))[2], qr/this server is a standby, which keeps no clock/,
	'a standby keeps no clock');
my $other = now_on('s1');
$c->promote('s2');
$c->query('s2', "UPDATE t SET v = 'after' WHERE k = 502");
is_later(now_on('s2'), $before, 'a promoted standby goes on from its primary\'s reservation');
is_later(now_on('s2'), $other, 'and above every node that it has reached');

is($c->query('s1', 'SELECT count(*), bool_and(cluster_time >= config_time AND config_time >= topology_time) FROM tessera.clocks'), '3|t',
	'cluster, config and topology time are in order');
done_testing();
