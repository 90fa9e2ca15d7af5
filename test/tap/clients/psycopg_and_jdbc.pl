# Clients that no one here wrote, through a node that owns nothing: psycopg2, psycopg 3, and JDBC with XA, whose recovery goes through another node
# when the first has crashed. Each is skipped where its Debian package is not installed.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $client = dirname(abs_path(__FILE__)) . '/../../client';
my $python = '/usr/bin/python3';    # the one that Debian's packages are for
my ($jar) = grep { -e } '/usr/share/java/postgresql.jar', '/usr/share/java/postgresql-jdbc4.jar';
my %there = map { $_ => system("$python -c 'import $_' >/dev/null 2>&1") == 0 } qw(psycopg2 psycopg);
$there{jdbc} = $jar && system('command -v javac >/dev/null 2>&1') == 0;
plan skip_all => 'neither psycopg2, psycopg nor JDBC is installed' unless grep { $_ } values %there;

my $c = TesseraCluster->new('clients');
$c->create(shards => 2, routers => 1);
foreach my $table (qw(people people3 people_x))
{
	$c->query('s1', "CREATE TABLE $table (id int PRIMARY KEY, name text, born date, tags text[])");
	$c->query('s1', "SELECT tessera.shard_table('$table', 'id', 'hash', chunks => 4)");
}
ok($c->wait_for('r1', "SELECT count(*) FROM tessera.tables WHERE kind = 'sharded'", '3'), 'the router knows the tables');

sub run_client
{
	my (@command) = @_;
	my $out = '';
	my $ok = IPC::Run::run(\@command, '<', \undef, '>&', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	like($_, qr/^ok/, $_) foreach grep { /^(not )?ok/ } split /\n/, $out;
	ok($ok, "$command[-1]: the client ended well") or diag $out;
	return;
}

local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
foreach ([ 'psycopg2', 'psycopg2_client.py' ], [ 'psycopg', 'psycopg3_client.py' ])
{
	my ($module, $file) = @$_;
	SKIP:
	{
		skip "$module is not installed", 1 unless $there{$module};
		run_client($python, "$client/$file", $c->conninfo('r1'), $c->conninfo('s2'));
	}
}
SKIP:
{
	skip 'JDBC is not installed', 1 unless $there{jdbc};
	my @java = ('java', '-Xshare:auto', '-XX:TieredStopAtLevel=1', '-cp', $jar, "$client/JdbcXa.java");
	run_client(@java, 'prepare', '127.0.0.1', $c->node('r1')->port, $c->user);
	$c->kill9('r1');
	run_client(@java, 'finish', '127.0.0.1', $c->node('s2')->port, $c->user);
	$c->start('r1');
	ok($c->wait_for('r1', 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), 'the node that crashed has finished its part');
	is($c->query('r1', 'SELECT count(*) FROM people_x WHERE id BETWEEN 100 AND 499'), '40', 'and shows what was committed');
}
done_testing();
