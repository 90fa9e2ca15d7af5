# A copy of a node's database holds the node's identity, but it is no node: what is written there stays there, and it asks nobody. A renamed database
# still is the node it was.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('copied');
$c->create(shards => 2);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v text)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', 'INSERT INTO t SELECT g FROM generate_series(1, 10) g');
$c->query('s1', "SELECT tessera.move_range('t', 6, tessera.maxkey(), 's2')");

# What needs the database for itself: the node's workers step aside. Other nodes may have sessions there, which an operator ends as those of any
# client.
sub alone
{
	my ($sql, $what) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my $others = "FROM pg_stat_activity WHERE datname = 'postgres'";
	my ($status, undef, $error) = $c->psql('s2', $sql, dbname => 'template1');
	while ($status != 0 && $error =~ /55006/ && time < $deadline)
	{
		note $c->query('s2', "SELECT pid, backend_type, application_name, state, query $others", dbname => 'template1');
		$c->query('s2', "SELECT pg_terminate_backend(pid) $others AND backend_type = 'client backend'", dbname => 'template1');
		($status, undef, $error) = $c->psql('s2', $sql, dbname => 'template1');
	}
	is($status, 0, $what) or diag $error;
	return;
}
alone('CREATE DATABASE copy TEMPLATE postgres', 'the database of a node is copied');

is($c->query('s2', 'SELECT count(*) FROM t', dbname => 'copy'), '5', 'the copy shows the rows that lie in it');
$c->query('s2', "INSERT INTO t VALUES (0, 'copy'), (100, 'copy')", dbname => 'copy');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'copy'"), '0', 'what is written there stays there');
is($c->query('s2', 'SELECT node_id IS NULL FROM tessera.routing_image()', dbname => 'copy'), 't', 'the copy is no node');
$c->query('s2', 'DROP EXTENSION tessera', dbname => 'copy');
is($c->query($_, 'SELECT count(*) FROM t'), '10', "the cluster is whole on $_") foreach $c->names;

like($c->error('s1', sprintf('SELECT tessera.update_node(%s, %s)', map { TesseraCluster::quote($_) } 's2', $c->conninfo('s2', 'template1'))),
	qr/22023/, 'another database is not the node');

# A node's database may be renamed; the registry learns of it as of any new address.
alone('ALTER DATABASE postgres RENAME TO renamed', 'the database of a node is renamed');
my $renamed = TesseraCluster::quote($c->conninfo('s2', 'renamed'));
$c->query('s1', "SELECT tessera.update_node('s2', $renamed)");
is($c->query('s1', 'SELECT count(*) FROM t'), '10', 'a renamed database is the same node');
is($c->query('s2', 'SELECT count(*) FROM t', dbname => 'renamed'), '10', 'also for itself');
is($c->query('s1', "SELECT database FROM tessera.shards WHERE name = 's2'"), 'renamed', 'and the registry has its name');

# A node that forgets its cluster needs no workers any more, and none of them complains.
my $workers = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres' AND backend_type LIKE 'tessera%'";
ok($c->wait_for('s1', "SELECT ($workers) >= 8"), 'the config node has its workers');
$c->query('s1', "ALTER SYSTEM SET tessera.migration_max_rate = '8kB'");
$c->query('s1', "ALTER SYSTEM SET tessera.migration_batch_size = '8kB'");
$c->query('s1', 'SELECT pg_reload_conf()');
$c->query('s1', "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(-100, 0) g");
my $move = $c->session('s1', on_error_stop => 0);
$move->query_until(qr/moving/, "\\echo moving\nSELECT tessera.move_range('t', tessera.minkey(), 1, 's2');\n");
ok($c->wait_for('s1', "SELECT rows > 0 FROM tessera.migrations WHERE state = 'running'"), 'a migration runs');
foreach (['s1', 'postgres'], ['s2', 'renamed'])
{
	my ($node, $dbname) = @$_;
	like($c->error($node, 'DROP EXTENSION tessera CASCADE', dbname => $dbname), qr/55006/, "$node cannot forget it during a migration");
}
$c->query('s1', "SELECT tessera.cancel_migration(id) FROM tessera.migrations WHERE state = 'running'");
$move->quit;
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.migration_coordinator', '0'), 'the migration has ended');
my $log = -s $c->node('s1')->logfile;
# Who reads the catalog's tables, in whatever order, is waited for: no deadlock ends either.
my @tables = split /\n/, $c->query('s1', "SELECT objid::regclass FROM pg_depend JOIN pg_class ON pg_class.oid = objid
	WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'tessera') AND deptype = 'e' AND relkind IN ('r', 'v')");
my $reader = $c->session_of('s1', 'BEGIN', 'SELECT count(*) FROM tessera.chunk');
my $drop = $c->session('s1');
$drop->query_until(qr/dropping/, "\\echo dropping\nDROP EXTENSION tessera CASCADE;\n\\echo dropped\n");
ok($c->wait_for('s1', "SELECT wait_event_type FROM pg_stat_activity WHERE query LIKE 'DROP EXTENSION%'", 'Lock'),
	'a node forgets when its readers have ended');
is($c->answer($reader, "SELECT FROM $_ LIMIT 0"), '', "which may still read the catalog: $_") foreach @tables;
$c->answer($reader, 'COMMIT');
$drop->query_until(qr/dropped/, '');
$drop->quit;
$reader->quit;
ok($c->wait_for('s1', $workers, '0'), 'they end with the extension');
# The other node may be told that there is no cluster any more.
unlike(slurp_file($c->node('s1')->logfile, $log), qr/\] ERROR/, 'without errors');

done_testing();
