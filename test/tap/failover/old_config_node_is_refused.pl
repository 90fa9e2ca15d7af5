# The old primary of the config node that lives on beside its promoted standby: nobody takes metadata from it, and it changes none. Two standbys of a
# node that are both promoted have timelines of the same number: only one of them is the node.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('old_config',
	settings => { 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '2s', 'tessera.connect_timeout' => '2s',
	'tessera.registry_refresh_interval' => '1h' });
# s1 is the config node and a shard.
$c->create(shards => 2, routers => 1);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);
my $replaced = qr/TS003: .*another server was promoted in the place of this one/;

sub sound
{
	my ($what) = @_;
	ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)', '0', 30), "$what: consistent")
	  or diag $c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)');
	is($c->query($_, 'SELECT count(*), count(DISTINCT k) FROM t'), '1000|1000', "$what: $_ shows each row once") foreach $c->names;
	return;
}

sub becomes_node
{
	my ($name, $what) = @_;
	ok($c->wait_for($name, 'SELECT placements_known AND coalesce(metadata_known, true) AND NOT replaced FROM tessera.promotion_status()', 't', 30),
		$what)
	  or diag $c->query($name, 'SELECT * FROM tessera.promotion_status()');
	return;
}

# The config node. A router holds connections to the old one.
my $router = $c->session('r1', on_error_stop => 0);
$router->query("UPDATE t SET v = 'first' WHERE k = 1");
$c->add_standby('s1', register => 0);
my $old = $c->node('s1');
$c->promote('s1', stop => undef);
$c->query('s2', sprintf("SELECT tessera.update_node('s1', %s, force => true)", TesseraCluster::quote($c->conninfo('s1'))));
becomes_node('s1', 'the promoted config node compares its catalog with the shards');
is($old->safe_psql('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 't', 'the old one knows');
like($c->error_of($old, "BEGIN READ WRITE; UPDATE t SET v = 'wrong' WHERE k = 1"), $replaced, 'it refuses statements');
like($c->error_of($old, "SELECT tessera.split_chunk('t', 100)"), $replaced, 'changes of metadata');
like($c->error_of($old, "SELECT tessera_internal.catalog_token()"), $replaced, 'and to give any out');
like($c->error_of($old, "SELECT tessera.recover_node()"), qr/another server was promoted/, 'it does not become the node again by itself');
is($router->query("UPDATE t SET v = 'second' WHERE k = 1 RETURNING v"), 'second', 'a connection of before is not used again');
is($c->query('s1', 'SELECT v FROM t WHERE k = 1'), 'second', 'the write went to the new one');
$c->query('r1', "SELECT tessera.move_range('t', 401, 501, 's2')");
$c->query('r1', "SELECT tessera.move_range('t', 401, 501, 's1')");
sound('config node');
$old->stop('immediate');

# Two standbys of one shard, promoted at the same place: both are on timeline 2. The first is registered.
my $primary = $c->node('s2');
$c->add_standby('s2', register => 0);
my $twin = PostgreSQL::Test::Cluster->new('old_config_twin');
$primary->backup('twin', backup_options => [ '--checkpoint=fast', '--no-sync' ]);
$twin->init_from_backup($primary, 'twin', has_streaming => 1);
$twin->start;
$primary->wait_for_catchup($twin, 'replay', $c->query('s2', 'SELECT pg_current_wal_flush_lsn()'));
$c->promote('s2', tell => 's1');
becomes_node('s2', 'one of two standbys takes the node over');
$twin->promote;
$twin->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is($twin->safe_psql('postgres', 'SELECT timeline FROM tessera.promotion_status()'),
	$c->query('s2', 'SELECT timeline FROM tessera.promotion_status()'),
	'the other one is on a timeline of the same number');
like($c->error_of($twin, 'SELECT tessera.recover_node()'), qr/leads to another server than the promoted one/, 'it does not take the node over');
like($c->error_of($twin, "UPDATE t SET v = 'wrong' WHERE k = 900"), qr/57P03: .*what it owns of table "t" is not known yet/, 'and refuses');
sound('twins');

# The other one instead: the first one is out of it, although the numbers of their timelines are equal.
my $first = $c->node('s2');
$c->{nodes}{s2} = $twin;
my $update = sprintf("SELECT tessera.update_node('s2', %s", TesseraCluster::quote($c->conninfo('s2')));
like($c->error('s1', "$update)"), qr/55000: .*reaches a promoted standby/, 'not without being sure');
$c->query('s1', "$update, force => true)");
becomes_node('s2', 'then it does');
is($first->safe_psql('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 't', 'the first one knows that it was replaced');
like($c->error_of($first, "SELECT count(*) FROM t WHERE k = 900"), $replaced, 'and refuses');
is($c->query('r1', "UPDATE t SET v = 'twin' WHERE k = 900 RETURNING v"), 'twin', 'the cluster goes on');
is($c->query('s2', 'SELECT v FROM t WHERE k = 900'), 'twin', 'with the other one');
sound('twins changed');

done_testing();
