# A node whose server is started without the library: other nodes refuse it, and its own clients are not let in, so that nobody takes the rows that
# lie there for all there are.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('no_library');
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY)',
	"SELECT tessera.shard_table('t', 'k')",
	'INSERT INTO t SELECT generate_series(1, 10)',
	"SELECT tessera.move_range('t', 6, tessera.maxkey(), 's2')");
my $settings = "SELECT coalesce(string_agg(array_to_string(setconfig, ';'), ';'), '') FROM pg_db_role_setting WHERE setrole = 0
	AND setdatabase = (SELECT oid FROM pg_database WHERE datname = 'postgres')";
is(join(' ', $c->query_all($settings)), join(' ', ('session_preload_libraries=tessera') x 3), 'a node\'s database wants the library');

sub start_with
{
	my ($libraries) = @_;
	$c->node('s2')->append_conf('postgresql.conf', "shared_preload_libraries = '$libraries'\n");
	$c->restart('s2');
	return;
}

start_with('');
my $refused = qr/must be loaded at server start/;
like(($c->psql('s2', 'SELECT count(*) FROM t'))[2], $refused, 'without it no client gets in');
like($c->error('s1', 'SELECT count(*) FROM t'), qr/08006: .*node "s2".*$refused/s, 'nor another node');
is($c->query('r1', 'SELECT count(*) FROM t WHERE k <= 5'), '5', 'who does not need the node goes on');
is($c->query('s2', 'SELECT 1', dbname => 'template1'), '1', 'another database is of no interest');
{
	local $ENV{PGOPTIONS} = '-c session_preload_libraries=';
	is($c->query('s2', 'SELECT count(*) FROM t'), '5', 'a superuser gets in who says so');
	like($c->error('s2', 'SELECT tessera_internal.catalog_token()'), $refused, 'without any function of the extension');
}

start_with('tessera');
is($c->query('s2', 'SELECT count(*) FROM t'), '10', 'with the library all is well');
$c->query('s1', "SELECT tessera.remove_router('r1')");
ok($c->wait_for('r1', $settings, ''), 'a database that is no node any more does not want it');
$c->query('s2', 'DROP EXTENSION tessera CASCADE');
is($c->query('s2', $settings), '', 'nor one without the extension');
start_with('');
is($c->query('s2', 'SELECT count(*) FROM t'), '5', 'which then is a plain database');

done_testing();
