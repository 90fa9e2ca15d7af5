# The scripts of test/oracle/cases through a node that owns nothing: what psql prints is what it prints on a plain server, line by line, but for the
# differences that are listed there with their reasons.
use strict;
use warnings;

use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $folder = dirname(__FILE__) . '/../../oracle';
my $c = TesseraCluster->new('same_answers');
$c->create(shards => 3, routers => 1);

my ($out, $err) = ('', '');
IPC::Run::run(
	[ 'python3', "$folder/scripts.py", '--limit', $PostgreSQL::Test::Utils::timeout_default, '--sessions', 2, '--cluster',
		$c->conninfo('r1'), '--plain', $c->plain->connstr('postgres'), '--answers', PostgreSQL::Test::Utils::tempdir(), "$folder/cases" ],
	'<', \undef, '>', \$out, '2>', \$err);
is($? >> 8, 0, 'all that differs is listed') or diag($err);
while ($out =~ /^(not )?ok - (.*\n(?:#.*\n)*)/mg)
{
	my ($differs, $what) = ($1, $2);
	ok(!$differs, (split /\n/, $what)[0]) or diag($what);
}
my @scripts = glob "$folder/cases/*.sql";
like($out, qr/^same: (\d+); differ: 0: \nknown: (\d+): /m, 'none differs');
is($out =~ /^same: (\d+); differ: (\d+).*\nknown: (\d+)/m ? $1 + $2 + $3 : 0, scalar @scripts, 'all of them ran');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'and all is consistent');

done_testing();
