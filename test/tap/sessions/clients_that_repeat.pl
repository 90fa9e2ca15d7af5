# The clients of doc/sessions.md, taken from there: their node dies in the middle of a commit, before and after that is decided, and they repeat;
# each transfer is done once.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $text = slurp_file(dirname(abs_path(__FILE__)) . '/../../../doc/sessions.md');
my %clients;
my @setup;
while ($text =~ /^```(\w+)\n(.*?)^```/msg)
{
	my ($language, $block) = ($1, $2);
	$language eq 'sql' ? push(@setup, $block) : ($clients{$language} = $block);
}
is(join(' ', sort keys %clients), 'bash javascript python', 'the document has three clients');

my $directory = PostgreSQL::Test::Utils::tempdir();
my $c = TesseraCluster->new('repeating_clients', settings => { 'tessera.injection_points' => 'on', restart_after_crash => 'on' });
$c->create(shards => 3);
$c->query('s2', $_) foreach map { split /;\n/ } @setup;
ok($c->wait_for($_, "SELECT count(*) FROM tessera.tables WHERE kind = 'sharded'", '3'), "$_ knows the tables") foreach $c->names;

sub installed
{
	my ($language) = @_;
	return 1 if $language eq 'bash';
	return system("/usr/bin/python3 -c 'import psycopg' >/dev/null 2>&1") == 0 if $language eq 'python';
	return 0 if system('command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1') != 0;
	my $out = '';
	local $ENV{HOME} = $directory;
	return eval {
		IPC::Run::run([ 'npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', $directory, 'pg@8' ], '<', \undef, '>&', \$out,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	};
}

my %command = (bash => ['bash'], python => ['/usr/bin/python3'], javascript => ['node']);

foreach my $language ('bash', 'python', 'javascript')
{
	SKIP:
	{
		skip "what the client in $language needs is not installed", 1 unless installed($language);
		my $file = "$directory/transfers_$language";
		append_to_file($file, $clients{$language});
		my @nodes = map { $c->conninfo($_) } $c->names;
		@nodes = map { sprintf 'postgres://%s@127.0.0.1:%d/postgres', $c->user, $c->node($_)->port } $c->names if $language eq 'javascript';
		foreach my $point ('commit_prepared', 'commit_decided')
		{
			my ($out, $err) = ('', '');
			my $checkpointer = $c->query('s1', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
			$c->query('s1', 'UPDATE account SET balance = 0');
			$c->query('s1', "SELECT tessera_test.injection_set('$point', 'crash')");
			local $ENV{NODE_PATH} = "$directory/node_modules";
			my $ended = IPC::Run::run([ @{ $command{$language} }, $file, @nodes ], '<', \undef, '>', \$out, '2>', \$err,
				IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default));
			ok($ended, "$language, $point: the client comes to its end") or diag $err;
			is($out, "done\n", "$language, $point: and has done all");
			ok($c->wait_for('s1', "SELECT pid <> $checkpointer FROM pg_stat_activity WHERE backend_type = 'checkpointer'"),
				"$language, $point: its node has died meanwhile");
			is($c->query('s2', q{SELECT string_agg(id || ':' || balance, ' ' ORDER BY id) FROM account WHERE balance <> 0}),
				join(' ', (map { "$_:-1" } 1 .. 10), (map { "$_:1" } 51 .. 60)), "$language, $point: each transfer once");
		}
	}
}
is($c->query('s3', 'SELECT count(*) FROM tessera_session.session'), 0, 'all have ended their sessions');
done_testing();
