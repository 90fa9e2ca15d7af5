# The config node's standby is promoted while a shard is being removed: what was under way and what was still to do goes on there, by itself.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('balancer_promotion', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.balancer_interval' => 1, 'tessera.split_interval' => 600000, 'tessera.connect_timeout' => '2s' });
$c->create(shards => 4);
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->make_table([ 'tessera.minkey()', 'tessera.maxkey()', 's2' ]);
$c->query('s1', "SELECT tessera.split_chunk('t', $_ * 100)") foreach 1 .. 9;
# s1 has no rows
$c->query('s1', "SELECT tessera.add_zone('data', '$_')") foreach 's2', 's3', 's4';
$c->query('s1', "SELECT tessera.set_zone_range('t', 'data', tessera.minkey(), tessera.maxkey())");
$c->add_standby('s1');

foreach my $way ('whole', 'lossy')
{
	my ($from, $left) = $way eq 'whole' ? ('s2', 3) : ('s3', 2);
	$c->query('s3', "SELECT tessera.pause_balancer('1 hour')");
	my $id = $c->query('s4', "SELECT tessera.move_range('t', tessera.minkey(), 50, 's4', wait => false)");
	$c->catch_up('s1');
	$c->cut_standby('s1') if $way eq 'lossy';
	# the removal is not known to the standby that was cut off: it is asked for again
	$c->pause_at($from, 'donor_cloned');
	like($c->query('s4', "SELECT tessera.remove_shard('$from')"), qr/^draining:/, "$way: $from is to be removed");
	$c->query('s4', 'SELECT tessera.resume_balancer()');
	$c->is_paused_at($from, 'donor_cloned');
	my $writer = $c->pgbench_start(clients => 2, seconds => 600, rate => 50, max_tries => 50, nodes => ['s4'], script => <<'SCRIPT')->begun;
\set a random(1, 1000)
UPDATE t SET v = 'new' WHERE k = :a;
SCRIPT
	$c->promote('s1', lossy => $way eq 'lossy');
	ok($c->wait_for('s1', 'SELECT metadata_known FROM tessera.promotion_status()', 't', 30), "$way: the promoted config node knows the catalog");
	is($c->query('s1', 'SELECT count(*) > 0 FROM tessera.explain_balancer() WHERE made IS NOT NULL'), 't', "$way: it knows the last round");
	$c->go_on($from, 'donor_cloned');
	$c->query('s4', 'SELECT tessera.resume_balancer()');
	my $now = $c->query('s1', 'SELECT clock_timestamp()');
	ok($c->wait_for('s1', "SELECT min(made) > '$now' FROM tessera.explain_balancer()", 't', 30), "$way: and makes new ones");
	like($c->query('s4', "SELECT tessera.remove_shard('$from')"), qr/^(?:draining: .*|removed)$/, "$way: it is asked for again") if $way eq 'lossy';
	ok($c->wait_for('s1', "SELECT state FROM tessera.balancer_status WHERE id = '$id'", 'done', 60), "$way: what was asked for is done")
	  or diag $c->query('s1', 'SELECT * FROM tessera.balancer_status');
	ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.shards', $left, 60), "$way: $from leaves by itself")
	  or diag $c->query('s1', 'SELECT * FROM tessera.balancer_status'), $c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)');
	is($writer->end->{failed} // 0, 0, "$way: no transaction failed");
	is($c->query('s4', 'SELECT count(*), count(DISTINCT k) FROM t'), '1000|1000', "$way: all rows once");
	is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), 0, "$way: all is consistent");
	last if $way eq 'lossy';
	$c->add_standby('s1');
}
done_testing();
