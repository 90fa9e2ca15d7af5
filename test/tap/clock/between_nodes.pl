# Cluster time between nodes: answers and requests carry it, without a trip of its own; clocks that are apart, one that is far off; nodes that join;
# the topology time leads to a refresh; a node of an older protocol (doc/design.md#cluster-time)
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

# so that routers hear of changes by the topology time alone
my $c = TesseraCluster->new('gossip', settings => { 'tessera.registry_refresh_interval' => '1h', 'tessera.injection_points' => 'on' });
$c->create(shards => 3, routers => 1);
$c->make_table([ 401, 801, 's2' ], [ 801, 'tessera.maxkey()', 's3' ]);

sub now_on { return $c->query($_[0], 'SELECT tessera.cluster_time()'); }

sub is_not_earlier
{
	my ($late, $early, $name) = @_;
	is($c->query('s1', "SELECT ${late}::numeric >= ${early}::numeric"), 't', $name) or diag("$late, not before $early");
	return;
}

sub shift_clock
{
	my ($node, $ms) = @_;
	$c->node($node)->append_conf('postgresql.conf', "tessera.clock_shift = $ms");
	$c->node($node)->reload;
	ok($c->wait_for($node, "SELECT setting FROM pg_settings WHERE name = 'tessera.clock_shift'", $ms, 30),
		"the wall clock of $node is off by $ms ms");
	return;
}

# s2 is 5 seconds ahead, s3 5 behind
shift_clock('s2', 5000);
shift_clock('s3', -5000);

# written here, read there: the router's session has seen it, and what it writes then, on whichever shard, is later
my $r1 = $c->session('r1');
foreach my $way ('UPDATE', 'SELECT', 'error', 'block', 'COPY')
{
	# on s2 itself, so that only the answer can tell the router
	$c->query('s2', "UPDATE t SET v = '$way' WHERE k = 500");
	my $seen = now_on('s2');
	if ($way eq 'UPDATE') { $r1->query_safe("UPDATE t SET v = 'r' WHERE k = 501"); }
	elsif ($way eq 'SELECT') { is($r1->query_safe('SELECT v FROM t WHERE k = 500'), $way, 'the router reads it'); }
	elsif ($way eq 'COPY') { $r1->query_safe('COPY t TO STDOUT'); }
	elsif ($way eq 'error')
	{
		is($c->query('r1', "DO \$\$ BEGIN INSERT INTO t VALUES (500, 'twice'); EXCEPTION WHEN unique_violation THEN NULL; END \$\$; SELECT 1"), '1',
			'the router has a unique violation from there');
	}
	else
	{
		$r1->query_safe('BEGIN');
		$r1->query_safe('SELECT v FROM t WHERE k = 500');
	}
	is_not_earlier($r1->query_safe('SELECT tessera.cluster_time()'), $seen, "$way: the router knows the time of s2");
	is_not_earlier($r1->query_safe('SHOW tessera.operation_time'), $seen, 'and so does its session') if $way ne 'error';
	$r1->query_safe("UPDATE t SET v = '$way' WHERE k = 900");
	$r1->query_safe('COMMIT') if $way eq 'block';
	is_not_earlier(now_on('s3'), $seen, "$way: what is written on s3 then is later");
	is_not_earlier($r1->query_safe('SHOW tessera.operation_time'), $seen + 1, 'and the session knows when') if $way eq 'UPDATE';
}

# a transaction over both: the router's COMMIT states what it has heard in the meantime
$c->query('s2', "UPDATE t SET v = 'later' WHERE k = 500");
$r1->query_safe('BEGIN');
$r1->query_safe("UPDATE t SET v = 'b' WHERE k = 901");
$c->query('s2', "UPDATE t SET v = 'later still' WHERE k = 500");
my $seen = now_on('s2');
$r1->query_safe('SELECT v FROM t WHERE k = 500');
$r1->query_safe('COMMIT');
is_not_earlier(now_on('s3'), $seen, 'a commit is later than all that its transaction has read elsewhere');

# left out, the order is lost: what the router has read on s2 is later than what it writes on s3
$c->query($_, "SELECT tessera_test.injection_set('gossip', 'skip', NULL)") foreach ('s1', 's2', 's3', 'r1');
$c->query('s2', "UPDATE t SET v = 'alone' WHERE k = 500");
$seen = now_on('s2');
$r1->query_safe('SELECT v FROM t WHERE k = 500');
$r1->query_safe("UPDATE t SET v = 'alone' WHERE k = 900");
is($c->query('s1', "SELECT ${seen}::numeric > " . now_on('s3') . '::numeric'), 't', 'without gossip a commit is earlier than what it has seen');
$c->query($_, "SELECT tessera_test.injection_clear('gossip')") foreach ('s1', 's2', 's3', 'r1');

# this node's own commits
$c->query('s2', "UPDATE t SET v = 'again' WHERE k = 500");
$seen = now_on('s2');
$c->query('s1', "SELECT v FROM t WHERE k = 500; UPDATE t SET v = 'own' WHERE k = 1");
is_not_earlier(now_on('s1'), $seen, 'what a shard writes itself after it has read elsewhere is later');

# calls between nodes carry it
$c->query('s2', "UPDATE t SET v = 'call' WHERE k = 500");
$seen = now_on('s2');
is($c->query('s2', 'SELECT count(*) FROM tessera.check_consistency()'), '0', 'clocks 5 s apart are consistent');
is_not_earlier(now_on($_), $seen, "a call tells $_") foreach ('s1', 's3', 'r1');

# a router does not go back either
my $before = now_on('r1');
$r1->quit;
$c->kill9('r1');
$c->start('r1');
is_not_earlier(now_on('r1'), $before, 'a router that crashes goes on from what it has given out');

# a node that joins
$before = now_on('s2');
$c->start_node('s4');
$c->query('s4', 'CREATE EXTENSION tessera');
$c->add_shard('s4');
$c->query('s2', "UPDATE t SET v = 'moved' WHERE k = 500");
$before = now_on('s2');
$c->query('s1', "SELECT tessera.move_range('t', 401, 601, 's4')");
is_not_earlier(now_on('s4'), $before, 'a shard that has joined and received rows is as late as their donor');

# S133: who hears a newer topology time fetches the registry
my $topology = $c->query('s1', "SELECT topology_time FROM tessera.clocks WHERE node = 's1'");
$c->query('r1', 'SELECT count(*) FROM t');
ok($c->wait_for('r1', "SELECT count(*) FROM tessera.node WHERE name = 's4'", '1', 60), 'the router has heard of the new node');
$c->start_node('r2');
$c->query('r2', 'CREATE EXTENSION tessera');
$c->query('s1', "UPDATE t SET v = 'tick' WHERE k = 1");
$c->add_router('r2');
is_not_earlier($c->query('s1', "SELECT topology_time FROM tessera.clocks WHERE node = 's1'"), "(${topology}::numeric + 1)",
	'the topology time has ticked');
$c->query('r1', 'SELECT count(*) FROM t WHERE k = 1');
ok($c->wait_for('r1', "SELECT count(*) FROM tessera.node WHERE name = 'r2'", '1', 60), 'one statement on the config node, and the router fetches');
ok($c->wait_for('r1', "SELECT count(DISTINCT topology_time) FROM tessera.clocks WHERE node IN ('r1', 's1')", '1', 60),
	'then it has the topology time, too');

# S132
my $config = $c->query('s1', "SELECT config_time FROM tessera.clocks WHERE node = 's1'");
$c->query('s1', "SELECT tessera.split_chunk('t', at => 100)");
my $newer = $c->query('s1', "SELECT config_time FROM tessera.clocks WHERE node = 's1'");
is_not_earlier($newer, "(${config}::numeric + 1)", 'the config time ticks with a commit of metadata');
$c->query('r1', 'SELECT count(*) FROM t WHERE k = 1');
ok($c->wait_for('r1', "SELECT config_time >= $newer FROM tessera.clocks WHERE node = 'r1'", 't', 60), 'and is heard');
is($c->query($_, 'SELECT bool_and(cluster_time >= config_time AND config_time >= topology_time) FROM tessera.clocks'), 't', "in order, by $_")
  foreach ('s1', 'r1');
$before = $c->query('r1', "SELECT config_time FROM tessera.clocks WHERE node = 'r1'");
$c->kill9('r1');
$c->start('r1');
is_not_earlier($c->query('r1', "SELECT config_time FROM tessera.clocks WHERE node = 'r1'"), $before, 'the config time does not go back by a crash');

# a node of the protocol before: it states no time, and none is said to it
my $hello = $c->query('s1', "SELECT format('SELECT tessera_internal.hello(%L, %L, %L, 5, %s, 0, 0, 1)', cluster_id, 'r1', '0.1.0', n.node_id) "
	  . "FROM tessera.identity, tessera.node n WHERE n.name = 'r1'");
like($c->query('s2', "$hello; SELECT tessera_internal.envelope(1); SELECT tessera_internal.tell('{}', '{}', '{}', '{}')"), qr/^\{\d+,5\}/,
	'calls of a node of the protocol before are served');

# a clock that is far off: its time goes nowhere, and the error says whose it is
foreach my $node ('s1', 's3', 's4', 'r1')
{
	$c->node($node)->append_conf('postgresql.conf', 'tessera.max_clock_drift = 60s');
	$c->node($node)->reload;
	ok($c->wait_for($node, 'SHOW tessera.max_clock_drift', '1min', 30), "$node has a limit");
}
shift_clock('s2', 7200000);
$c->query('s2', "UPDATE t SET v = 'far' WHERE k = 700");
$r1 = $c->session('r1', on_error_stop => 0);
$r1->query('SELECT v FROM t WHERE k = 700');
$r1->query("\\set VERBOSITY verbose\nSELECT v FROM t WHERE k = 700");
like($r1->{stderr}, qr/55000: .*the clock of node "s2" is 7\d\d\d s ahead of this node's/, 'a router refuses a shard whose clock is far ahead');
is($c->query('r1', 'SELECT tessera.cluster_time_to_timestamp(tessera.cluster_time()) < clock_timestamp() + interval \'1 minute\''), 't',
	'its own clock is unmoved');
$r1->quit;
like($c->error('s2', "UPDATE t SET v = 'far' WHERE k = 900"),
	qr/55000: .*node "s2" states a cluster time that is 7\d\d\d s ahead of this node's clock/,
	'a shard refuses a router whose clock is far ahead');
is($c->query('s3', 'SELECT tessera.cluster_time_to_timestamp(tessera.cluster_time()) < clock_timestamp() + interval \'1 minute\''), 't',
	'and keeps its clock');
is($c->query('s1', "SELECT ahead > interval '1 hour' FROM tessera.clocks WHERE node = 's2'"), 't', 'tessera.clocks shows which');
done_testing();
