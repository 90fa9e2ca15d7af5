# A client that no one here wrote (node-postgres from npm) works through a node that owns nothing: parameterised and named statements, transactions, a
# cursor, COPY. Skipped where node, npm or the registry are not there.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $here = dirname(abs_path(__FILE__));
plan skip_all => 'node and npm are not installed' if system('command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1') != 0;

my $modules = PostgreSQL::Test::Utils::tempdir();
local $ENV{HOME} = $modules;
my ($out, $installed) = ('', 0);
$installed = eval {
	IPC::Run::run([ 'npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', $modules, 'pg@8', 'pg-cursor@2', 'pg-copy-streams@6' ],
		'<', \undef, '>&', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
};
plan skip_all => "node-postgres could not be installed: $out" unless $installed;

my $c = TesseraCluster->new('node');
$c->create(shards => 2, routers => 1);
$c->query('s1', 'CREATE TABLE people (id int PRIMARY KEY, name text, born date, tags text[], extra jsonb)');
$c->query('s1', "SELECT tessera.shard_table('people', 'id', 'hash', chunks => 4)");

local $ENV{NODE_PATH} = "$modules/node_modules";
my ($port, $other) = map { $c->node($_)->port } 'r1', 's2';
ok($c->wait_for($_, 'SELECT bool_and(listening) FROM tessera.stat_notifications', 't'), "$_ passes notifications on") foreach 's2';
my $ok = IPC::Run::run([ 'node', "$here/../../client/node_postgres.js", 'postgres://' . $c->user . "\@127.0.0.1:$port/postgres",
	'postgres://' . $c->user . "\@127.0.0.1:$other/postgres" ], '<', \undef, '>&', \$out,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
like($_, qr/^ok/, $_) foreach split /\n/, $out;
ok($ok, 'the client ended well') or diag $out;

done_testing();
