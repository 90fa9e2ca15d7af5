# Nodes on servers of their own join and leave (S30, S33, S180): what only several servers can show. A server that lacks a setting, a standby, a
# server without a role or an extension is refused by name and nothing is left of the attempt; a node that moves or fails over is found again, the
# server it replaced is not.
use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('cluster');
my $quote = \&TesseraCluster::quote;

sub add
{
	my ($kind, $name, $conninfo) = @_;
	return sprintf('SELECT tessera.add_%s(%s, %s)', $kind, $quote->($name), $quote->($conninfo // $c->conninfo($name)));
}

# what the team has before there is a cluster
$c->start_node('s1');
$c->query('s1', "CREATE ROLE app_owner; CREATE ROLE reader; CREATE SCHEMA app AUTHORIZATION app_owner;
	CREATE TABLE app.t (k int PRIMARY KEY, v text); ALTER TABLE app.t OWNER TO app_owner; GRANT SELECT ON app.t TO reader;
	CREATE TABLE app.p (k int, at date) PARTITION BY LIST (k); CREATE TABLE app.p1 PARTITION OF app.p FOR VALUES IN (1);
	CREATE TYPE app.mood AS ENUM ('sad', 'happy'); CREATE FUNCTION app.one() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END");
$c->create;
is($c->query('s1', "SELECT string_agg(setting, ' ') FROM tessera.check_node() WHERE NOT ok"), '', 'check_node finds nothing to complain of');

# a server that lacks a setting
$c->start_node('low', settings => { wal_level => 'replica', max_prepared_transactions => 0 }, extension => 1);
is($c->query('low', "SELECT string_agg(setting, ' ' ORDER BY setting) FROM tessera.check_node() WHERE NOT ok"),
	'max_prepared_transactions wal_level', 'check_node names the settings a server lacks');
like($c->error('low', sprintf("SELECT tessera.create_cluster('x', %s)", $quote->($c->conninfo('low')))),
	qr/55000.*setting "(wal_level|max_prepared_transactions)".*HINT:.*postgresql\.conf/s, 'and create_cluster refuses it');
like($c->error('s1', add('shard', 'low')), qr/55000.*node "low".*setting "(wal_level|max_prepared_transactions)".*HINT:.*postgresql\.conf/s,
	'as add_shard does');

# a server without the roles, then without the library
$c->start_node('s2');
like($c->error('s1', add('shard', 's2')), qr/42704.*role "app_owner" does not exist there.*HINT/s, 'a missing role is named');
$c->query('s2', 'CREATE ROLE app_owner; CREATE ROLE reader');
$c->start_node('bare', settings => { shared_preload_libraries => '' });
$c->query('bare', 'CREATE ROLE app_owner; CREATE ROLE reader');
like($c->error('s1', add('shard', 'bare')), qr/55000.*setting "shared_preload_libraries"/s, 'the library must be preloaded');
is($c->query('bare', "SELECT count(*) FROM pg_namespace WHERE nspname IN ('tessera', 'app')"), '0', 'nothing is left there');

# a standby of the config node, as another node and as the config node itself
$c->node('s1')->backup('b1');
my $standby = PostgreSQL::Test::Cluster->new('cluster_standby');
$standby->init_from_backup($c->node('s1'), 'b1', has_streaming => 1);
$standby->start;
my $by_socket = $c->conninfo('s1') =~ s/host=\S+ port=\d+/'host=' . $standby->host . ' port=' . $standby->port/er;
like($c->error('s1', add('shard', 's2', $by_socket)), qr/55000.*reaches a standby.*HINT:.*target_session_attrs/s, 'a standby cannot join');
like($c->error('s1', sprintf("SELECT tessera.update_node('s1', %s)", $quote->($by_socket))), qr/22023.*reaches a standby/s,
	'nor be the address of its node');
$standby->stop;

# unreachable
my $nowhere = $c->conninfo('s2') =~ s/port=\d+/port=1/r;
like($c->error('s1', add('shard', 's9', $nowhere)), qr/08006.*"s9"/s, 'an unreachable node is named');
is($c->query('s1', 'SELECT count(*) FROM tessera.node'), '1', 'nothing of all that is registered');

# it joins; the extension is made on the way
is($c->query('s1', add('shard', 's2') . ' > 1'), 't', 'a server without the extension joins');
$c->start_node('r1');
$c->query('r1', 'CREATE ROLE app_owner; CREATE ROLE reader');
is($c->query('s2', add('router', 'r1') . ' > 1'), 't', 'a router joins through another node');
foreach my $node ('s1', 's2', 'r1')
{
	ok($c->wait_for($node, "SELECT string_agg(name, ' ' ORDER BY node_id) FROM tessera.node", 's1 s2 r1', 10), "$node knows all nodes");
	is($c->query($node, "SELECT string_agg(table_name::text || '=' || primary_shard, ' ') FROM tessera.tables"), 'app.p=s1 app.t=s1',
		"$node knows all tables");
}
is($c->query('r1', "SELECT has_table_privilege('reader', 'app.t', 'SELECT'), app.one(), pg_get_userbyid(relowner) FROM pg_class WHERE oid = " .
	"'app.t'::regclass"),
	't|2|app_owner', 'with owners, privileges and functions');
like($c->error('s1', add('shard', 's9', $c->conninfo('s2'))), qr/42710.*reaches node "s2"/s, 'one node has one name');

# a node fails over to its standby
$c->node('s2')->backup('b2');
my $next = PostgreSQL::Test::Cluster->new('cluster_next');
$next->init_from_backup($c->node('s2'), 'b2', has_streaming => 1);
$next->start;
$c->node('s2')->wait_for_catchup($next);
my $old = $c->conninfo('s2');
my $new = $old =~ s/host=\S+ port=\d+/'host=' . $next->host . ' port=' . $next->port/er;
$next->promote;
$next->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
my $update = sprintf("SELECT tessera.update_node('s2', %s", $quote->($new));
like($c->error('s1', "$update)"), qr/55000.*promoted standby.*HINT:.*force/s, 'a promoted standby is not taken without being sure');
$c->query('s1', "$update, force => true)");
is($c->query('s1', "SELECT timeline, tessera.node_conninfo(name) = " . $quote->($new) . " FROM tessera.node WHERE name = 's2'"), '2|t',
	'then its address and timeline are');
like($c->error('s1', sprintf("SELECT tessera.update_node('s2', %s, true)", $quote->($old))), qr/TS003.*replaced/s,
	'the old primary is never taken back');
ok($c->wait_for('r1', "SELECT timeline FROM tessera.node WHERE name = 's2'", '2', 10), 'the others hear of it');

# a node leaves; one that is gone leaves by force
$c->query('s1', "SELECT tessera.remove_shard('s2')");
ok($next->poll_query_until('postgres', 'SELECT count(*) FROM tessera.identity', '0'), 'a removed node is told');
is($next->safe_psql('postgres', "SELECT to_regclass('app.t')"), 'app.t', 'and keeps its tables');
$c->stop('r1');
like($c->error('s1', "SELECT tessera.remove_router('r1')"), qr/08006/, 'a node that cannot be asked stays');
is($c->query('s1', "SELECT tessera.remove_router('r1', force => true)"), 'removed', 'unless forced');
is($c->query('s1', "SELECT string_agg(name, ' ') FROM tessera.node"), 's1', 'the config node is left');

done_testing();
