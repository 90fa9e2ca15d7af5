# A view of the schema tessera gives the same answer on every node, or is about the node that is asked, or names the config node, which alone has the
# answer: none is empty elsewhere without a word. What reads them on every node, tessera.health and monitoring, goes on. The views are taken from the
# server's catalog, so that a later one must be put into one of the lists.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my @on_config_node = qw(balancer_status changelog chunk_distribution draining_shards hot_chunks migrations restore_points zone_ranges zones);
my @same = qw(advisory_locks ddl_operations prepared_transactions schemas tables);
# of this node; clocks: now; shards, chunks: what is measured is known on the config node; shards, routers: whom this node cannot reach; the rest is
# compared below; cluster_activity: the session that asks is another one on each node
my @of_this_node = qw(distributed_transactions health internal_sessions node_connections range_deletions stat_notifications stat_progress_migration
	stat_routing);
my @in_part = qw(chunks clocks cluster_activity lock_waits routers sessions shards);

my $c = TesseraCluster->new('views');
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach ('SELECT tessera.stop_balancer()', 'CREATE ROLE reader', 'CREATE TABLE t (k int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT g, g FROM generate_series(1, 100) g', "SELECT tessera.shard_table('t', 'k')",
	"SELECT tessera.move_range('t', 50, 70, 's2')",
	"SELECT tessera.add_zone('z', 's2'), tessera.set_zone_range('t', 'z', 50, 60)", "SELECT tessera.set_shard_weight('s2', 2)",
	"SELECT tessera.create_restore_point('point')");
$c->query($_, 'SELECT tessera.reload_routing()') foreach $c->names;

is($c->query('s1', "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'tessera'::regnamespace AND relkind = 'v'"),
	join(' ', sort @on_config_node, @same, @of_this_node, @in_part), 'all views are known here');

cmp_ok($c->query('s1', "SELECT count(*) FROM tessera.$_"), '>', 0, "$_ has rows on the config node")
	foreach qw(changelog chunk_distribution migrations restore_points zone_ranges zones);
foreach my $view (@on_config_node)
{
	$c->query('s1', "TABLE tessera.$view");
	like($c->error($_, "TABLE tessera.$view"), qr/55000: view tessera\.$view can be read on the config node only\n.*Connect to node "s1"/s,
		"$view names the config node on $_") foreach 's2', 'r1';
}
like($c->error('r1', "SET ROLE reader; SELECT count(*) FROM tessera.$_"), qr/55000/, "$_: to everybody") foreach qw(migrations changelog zones);
like($c->error('r1', 'SET ROLE reader; SELECT count(*) FROM tessera.hot_chunks'), qr/42501/, 'but no more than before');
like($c->error('r1', 'SELECT n.name FROM tessera.node n JOIN tessera.migrations m ON m.donor = n.name'), qr/55000/, 'also in a join');

my $parts = { map { $_ => '*' } @same };
$parts->{shards} = 'name, node_id, is_config, draining, database, timeline';
$parts->{chunks} = 'table_name::text, min, max, shard, major, minor, jumbo';
$parts->{routers} = 'name, node_id, is_config, database, timeline';
$parts->{clocks} = 'node';
$parts->{cluster_activity} = 'bool_or(pid = pg_backend_pid()) AS me, max(trouble) AS trouble';
$parts->{lock_waits} = '*';
$parts->{sessions} = 'id, role, number, started';
foreach my $view (sort keys %$parts)
{
	my $sql = "SELECT x::text FROM (SELECT $parts->{$view} FROM tessera.$view) AS x ORDER BY 1";
	my $there = $c->query('s1', $sql);
	is($c->query($_, $sql), $there, "$view is the same on $_") foreach 's2', 'r1';
}
is($c->query('s1', "SELECT string_agg(weight::text, ' ' ORDER BY name) FROM tessera.shards"), '1 2', 'weights');
is($c->query($_, 'SELECT count(weight), count(bytes), count(load) FROM tessera.shards'), '0|0|0', "are not made up on $_") foreach 's2', 'r1';

foreach my $view (@of_this_node)
{
	$c->query($_, "SELECT count(*) FROM tessera.$view") foreach $c->names;
}
is($c->query($_, "SELECT string_agg(problem, ' ') FROM tessera.health WHERE severity <> 'notice' AND subject !~ '^node'"), '', "health goes on on $_")
	foreach $c->names;
is($c->query($_, 'SET ROLE reader; SELECT count(*) > 0 FROM tessera_internal.migrations'), $_ eq 's1' ? 't' : 'f', "what monitoring reads on $_")
	foreach $c->names;
done_testing();
