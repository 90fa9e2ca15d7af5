# The routing tables of a node come from the config node (S3, S9, S11, S32), live in memory on every server of it (S2), standbys included, and
# survive restart, crash and promotion (doc/design.md#lost-commits); a config node of an older term is refused (doc/design.md#refresh); the workers
# are there when they should be and in nobody's way.
use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('routing', settings => { 'tessera.injection_points' => 'on', 'tessera.registry_refresh_interval' => 3600 });
$c->create(shards => 1, routers => 1);
my $group = '10000000-0000-0000-0000-000000000001';
my $refresher = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'tessera refresher'";
my $owners = "SELECT string_agg(min || ':' || node_id, ' ') FROM tessera.routing_chunks('t')";

ok($c->wait_for('r1', $refresher, '1'), 'a member that is not the config node has a refresher');
is($c->query('s1', $refresher), '0', 'the config node has none');

# A table group by hand: what is under test is the way from the catalog of one node to the memory of another.
$c->query($_, 'SET tessera.replicate_ddl = off; CREATE TABLE t (k int8 NOT NULL)') foreach $c->names;
$c->query('s1', "INSERT INTO tessera.table_group (group_id, epoch, ts, group_major, group_minor, strategy, key_types, key_collations)
	VALUES ('$group', gen_random_uuid(), now(), 1, 1, 'range', '{bigint}', '{\"\"}');
	INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, group_id, key_columns) VALUES (gen_random_uuid(), 'public', 't', '$group',
	'{k}');
	INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor) VALUES ('$group', 'MINKEY', 0, 1, 1, 0), ('$group', 0, 'MAXKEY', 1, 1, 1)");
is($c->query('r1', 'SELECT tessera.reload_routing()'), 't', 'reload');
is($c->query('r1', $owners), 'MINKEY:1 0:1', 'a new group comes whole');

sub change
{
	my ($version, $sql) = @_;
	$c->query('s1', "SET search_path = public, tessera; BEGIN; $sql; UPDATE tessera.table_group SET (group_major, group_minor) = ($version); COMMIT");
}

# An image that is older than its tables, because it was not told of a commit, is noticed.
my $newer = "UPDATE tessera.chunk SET minor = 2 WHERE min OPERATOR(tessera.=) 'MINKEY'; UPDATE tessera.table_group SET group_minor = 2";
$c->query('s1', "BEGIN; $newer; COMMIT");
$c->query('r1', "SET session_replication_role = replica; BEGIN; $newer; COMMIT");
my $minors = "SELECT string_agg(minor::text, ' ' ORDER BY minor) FROM tessera.routing_chunks('t')";
is($c->query('r1', $minors), '0 1', 'not told');
$c->query('r1', 'SELECT FROM tessera.check_consistency()');
is($c->query('r1', $minors), '1 2', 'noticed by a fetch');
is($c->query('r1', 'SELECT last_error FROM tessera.refresh_status()'), '', 'which went well');

# Only what changed: an old chunk that no newer one touches keeps a mark that only this node has.
$c->query('r1', "UPDATE tessera.chunk SET moved = '2001-01-01' WHERE min OPERATOR(tessera.=) 'MINKEY'");
change('1, 4', "UPDATE tessera.chunk SET max = 100, minor = 3 WHERE min = '0';
	INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor) VALUES ('$group', 100, 'MAXKEY', 1, 1, 4)");
$c->query('r1', 'SELECT tessera.reload_routing()');
is($c->query('r1', $owners), 'MINKEY:1 0:1 100:1', 'S21: a split');
is($c->query('r1', "SELECT moved = '2001-01-01' FROM tessera.chunk WHERE min OPERATOR(tessera.=) 'MINKEY'"), 't',
	'S9: an unchanged chunk was not fetched');
change('1, 5', "DELETE FROM tessera.chunk WHERE min = '100'; UPDATE tessera.chunk SET max = 'MAXKEY', minor = 5 WHERE min = '0'");
$c->query('r1', 'SELECT tessera.reload_routing()');
is($c->query('r1', $owners), 'MINKEY:1 0:1', 'S22: a merge, which deletes a row there and here');
change('1, 5', "UPDATE tessera.table_group SET epoch = gen_random_uuid()");
$c->query('r1', 'SELECT tessera.reload_routing()');
is($c->query('r1', "SELECT count(*) FROM tessera.chunk WHERE moved = '2001-01-01'"), '0', 'S10: another epoch: everything was fetched');
$c->query('r1', "DELETE FROM tessera.chunk WHERE min OPERATOR(tessera.=) '0'; UPDATE tessera.table_group SET group_major = 0");
like($c->error('r1', "SELECT tessera.routing_owner('t', 5)"), qr/XX001.*do not cover/s, 'a damaged copy is refused');
$c->query('r1', 'SELECT tessera.reload_routing()');
is($c->query('r1', "SELECT tessera.routing_owner('t', 5)"), '1', 'and fetched whole');

# Others who change the same rows here are faster, more often than an error is forgiven: it is tried until it is done.
change('1, 6', "UPDATE tessera.chunk SET minor = 6 WHERE min = '0'");
$c->query('r1', "SELECT tessera_test.injection_set('refresh_unchanged', 'skip', 5)");
is($c->query('r1', 'SELECT tessera.reload_routing()'), 't', 'a fetch that migrations which settle undo five times');
is($c->query('r1', "SELECT hits FROM tessera_test.injection_list() WHERE name = 'refresh_unchanged'"), '5', 'as they did');
is($c->query('r1', $minors), '2 6', 'it has brought the change');

# S32: the job
$c->query('r1', 'ALTER SYSTEM SET tessera.registry_refresh_interval = 1');
$c->query('r1', 'SELECT pg_reload_conf()');
$c->query('r1', 'SELECT tessera.reload_routing()');
change('2, 1', "UPDATE tessera.chunk SET node_id = 2, major = 2, minor = 0 WHERE min = '0'");
ok($c->wait_for('r1', $owners, 'MINKEY:1 0:2', 20), 'S32: the job fetches what nobody asked for');

# the worker comes back, without a statement that needs it
$c->query('r1', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'tessera refresher'");
ok($c->wait_for('r1', $refresher, '1', 30), 'a new refresher after the end of one');
$c->restart('r1');
ok($c->wait_for('r1', $refresher, '1', 30), 'after a restart');
$c->kill9('r1');
$c->start('r1');
ok($c->wait_for('r1', $refresher, '1', 30), 'after a crash');
is($c->query('r1', $owners), 'MINKEY:1 0:2', 'the routing tables are there');

# S11: the config node is down
$c->stop('s1');
is($c->query('r1', 'SELECT tessera.reload_routing()'), 'f', 'S11: reload says that the config node is down');
like($c->query('r1', 'SELECT last_error FROM tessera.refresh_status()'), qr/could not connect/, 'and why');
is($c->query('r1', $owners), 'MINKEY:1 0:2', 'S11: routing goes on');
$c->start('s1');
ok($c->wait_for('r1', 'SELECT tessera.reload_routing()', 't', 30), 'until it is back');

# Terms
$c->query('r1', 'UPDATE tessera.identity SET term = term + 5');
is($c->query('r1', 'SELECT tessera.reload_routing()'), 'f', 'a config node of an older term is refused');
like($c->query('r1', 'SELECT last_error FROM tessera.refresh_status()'), qr/older one than/, 'and why');
$c->query('s1', 'UPDATE tessera.identity SET term = term + 7');
is($c->query('r1', 'SELECT tessera.reload_routing()'), 't', 'one of a newer term is not');
is($c->query('r1', 'SELECT term FROM tessera.routing_image()'), $c->query('s1', 'SELECT term FROM tessera.identity'), 'and its term is taken over');

# a standby: reads what its primary has persisted (S3), and takes over
$c->node('r1')->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('routing_standby');
$standby->init_from_backup($c->node('r1'), 'b', has_streaming => 1);
$standby->start;
my $session = $standby->background_psql('postgres');
is($session->query_safe($owners), 'MINKEY:1 0:2', 'S3: a standby routes by its own copy');
change('3, 1', "UPDATE tessera.chunk SET node_id = 1, major = 3, minor = 0 WHERE min = '0'");
$c->query('r1', 'SELECT tessera.reload_routing()');
# its commit is flushed a little later
$c->node('r1')->wait_for_catchup($standby, 'replay', $c->query('r1', 'SELECT pg_current_wal_insert_lsn()'));
is($session->query_safe($owners), 'MINKEY:1 0:1', 'S3: and sees what its primary fetches, in a session that is already there');
is($standby->safe_psql('postgres', 'SELECT tessera.reload_routing()'), 'f', 'S3: it asks nobody');
is($standby->safe_psql('postgres', $refresher), '0', 'and has no refresher');
$session->quit;
ok($standby->poll_query_until('template1', "SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres'", '0'), 'nobody is connected');
change('4, 0', "UPDATE tessera.chunk SET node_id = 2, major = 4, minor = 0 WHERE min = '0'");
$c->query('r1', 'SELECT tessera.reload_routing()');
$c->node('r1')->wait_for_catchup($standby, 'replay', $c->query('r1', 'SELECT pg_current_wal_insert_lsn()'));
$session = $standby->background_psql('postgres');
is($session->query_safe($owners), 'MINKEY:1 0:2', 'S3: and what was replayed while nobody was connected');
$c->stop('r1');
$standby->promote;
is($session->query_safe($owners), 'MINKEY:1 0:2', 'the first statement after the promotion');
ok($standby->poll_query_until('postgres', "$refresher", '1'), 'workers start after the promotion');
is($standby->safe_psql('postgres', 'SELECT tessera.reload_routing()'), 't', 'and refresh');
$session->quit;

# DROP DATABASE is not held up by a worker; DROP EXTENSION ends it
$standby->safe_psql('postgres', 'CREATE DATABASE other');
$standby->safe_psql('other',
	"CREATE EXTENSION tessera; INSERT INTO tessera.identity SELECT true, gen_random_uuid(), 'o', 9, 'n9', false, 'host=127.0.0.1 port=1', 1");
my $other = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'tessera refresher' AND datname = 'other'";
ok($standby->poll_query_until('postgres', $other, '1'), 'a database that becomes a node gets its refresher');
$standby->safe_psql('other', 'DROP EXTENSION tessera CASCADE');
ok($standby->poll_query_until('postgres', $other, '0'), 'DROP EXTENSION ends it');
$standby->safe_psql('other',
	"CREATE EXTENSION tessera; INSERT INTO tessera.identity SELECT true, gen_random_uuid(), 'o', 9, 'n9', false, 'host=127.0.0.1 port=1', 1");
ok($standby->poll_query_until('postgres', $other, '1'), 'and it comes again');
isnt($standby->psql('postgres', 'DROP DATABASE other'), 0, 'a node is not dropped');
$standby->safe_psql('other', 'DELETE FROM tessera.identity');
is($standby->psql('postgres', 'DROP DATABASE other'), 0, 'the worker does not stand in the way of DROP DATABASE');
$standby->stop;

done_testing();
