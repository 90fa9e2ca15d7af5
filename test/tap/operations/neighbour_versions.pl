# Nodes of two neighbouring versions of the extension work together while a cluster is upgraded node by node: a second build of this tree, of a
# higher version and protocol, whose table of calls between nodes has one call more and one argument more. It is installed beside the first, and nodes
# are restarted with it one after the other.
use strict;
use warnings;

use File::Copy qw(copy);
use File::Path qw(make_path);
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $tree = "$FindBin::Bin/../../..";
my $work = PostgreSQL::Test::Utils::tempdir();

sub run_or_die { system(@_) == 0 or die "@_: $?"; return; }
sub output_of { my $out = `$_[0]`; chomp $out; return $out; }

sub edit
{
	my ($file, $from, $to) = @_;
	my $text = slurp_file($file);
	$text =~ s/$from/ref $to ? $to->() : $to/e or die "$file: no $from";
	open(my $out, '>', $file) or die "$file: $!";
	print $out $text;
	close $out;
	return;
}

#
# the second build: wake_statistics has a new argument, and there is a call that the first does not know
#
my ($protocol) = slurp_file("$tree/src/common/protocol.h") =~ /define\s+TESSERA_PROTOCOL\s+(\d+)/;
my $next = $protocol + 1;
my $raised = "$work/raised";
make_path($raised);
run_or_die('tar', '-C', $tree, '--exclude=./test', '--exclude=./.git', '-cf', "$work/tree.tar", '.');
run_or_die('tar', '-C', $raised, '-xf', "$work/tree.tar");
edit("$raised/src/control/calls.def", qr/call wake_statistics\n(?:  .*\n)+/, <<"DEF");
call wake_statistics
  says      statistics of a table have changed; this node looks at once
  to        any
  repeat    yes
  caller    user
  arg       reason text since $next

call newest
  says      a call that the older version does not have
  to        any
  since     $next
DEF
edit("$raised/src/statistics/statistics_worker.c", qr/tessera_call_wake_statistics\(([^;]*)\);/,
	sub { "tessera_call_wake_statistics($1, \"new\");" });
edit("$raised/src/statistics/statistics_worker.c", qr/void\ntessera_serve_wake_statistics\(void\)/,
	"void\ntessera_serve_newest(void)\n{\n}\n\nvoid\ntessera_serve_wake_statistics(const TesseraWakeStatisticsArgs *args)");
my $version = '0.2.0';
run_or_die("make -s -C $raised -j2 with_llvm=no COPT=-O0 PROTOCOL=$next TESSERA_VERSION=$version all >$work/make.log 2>&1");
ok(-f "$raised/tessera.so", "a build of version $version, protocol $next");

# what an upgrade script of that version does
my $sql = slurp_file("$raised/extension/tessera--$version.sql");
my $script = "ALTER EXTENSION tessera DROP FUNCTION tessera_internal.wake_statistics();\nDROP FUNCTION tessera_internal.wake_statistics();\n";
foreach my $name ('wake_statistics', 'newest')
{
	my ($create) = $sql =~ /(CREATE FUNCTION tessera_internal\.$name\(.*?;\n)/s or die "no function $name";
	$script .= $create;
}
$script .= "GRANT EXECUTE ON FUNCTION tessera_internal.newest(), tessera_internal.wake_statistics(text) TO tessera_internal;\n";

# an installation of PostgreSQL beside the first, whose files are links but for the programs: they find the rest by their own place
my ($bindir, $pkglibdir, $sharedir) = map { output_of("pg_config --$_") } 'bindir', 'pkglibdir', 'sharedir';
my ($lib, $share) = ("$work/pg/usr/lib/postgresql/15", "$work/pg/usr/share/postgresql/15");
make_path("$lib/lib", "$share/extension");
run_or_die("cp -a $bindir $lib/bin && ln -s $pkglibdir/* $lib/lib");
run_or_die("ln -s $sharedir/* $share; rm -f $share/extension/extension; ln -s $sharedir/extension/* $share/extension");
unlink glob("$share/extension/tessera*"), "$lib/lib/tessera.so";
run_or_die("cp $raised/tessera.so $lib/lib && cp $raised/extension/tessera.control $raised/extension/tessera--$version.sql $share/extension");
edit("$share/extension/tessera.control", qr/default_version = '[^']*'/, "default_version = '$version'");
my ($old) = slurp_file("$tree/extension/tessera.control") =~ /default_version = '([^']*)'/;
append_to_file("$share/extension/tessera--$old--$version.sql", $script);

#
# a cluster of the old version
#
my $c = TesseraCluster->new('neighbours', settings => { 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3, routers => 1);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v int NOT NULL)');
$c->query('s1', 'INSERT INTO t SELECT k, 0 FROM generate_series(1, 600) k');
$c->query('s1', "SELECT tessera.shard_table('t', 'k', chunks => 6)");
$c->query('s1', "SELECT tessera.move_range('t', '100', '200', 's2')");
$c->query('s1', "SELECT tessera.move_range('t', '200', '300', 's3')");

my $done = 0;

# What two versions have to do with each other: statements, transactions over all shards, DDL, moves both ways, statistics.
sub works
{
	my ($when) = @_;
	$done++;
	foreach my $node ('s1', 's2', 'r1')
	{
		$c->query($node, "BEGIN; UPDATE t SET v = v + 1; COMMIT");
		is($c->query($node, 'SELECT count(*), count(DISTINCT v) FROM t'), '600|1', "$when: a transaction over all shards from $node");
	}
	foreach my $from ('s1', 's2', 's3')
	{
		my $to = { s1 => 's2', s2 => 's3', s3 => 's1' }->{$from};
		my $key = $c->query('s1', "SELECT min(k) FROM t WHERE tessera.range_owner('t', k) = '$from'");
		$c->query('r1', "SELECT tessera.move_range('t', '$key', '@{[ $key + 1 ]}', '$to')");
		ok($c->wait_for('s3', "SELECT tessera.range_owner('t', $key)", $to), "$when: a move from $from to $to");
	}
	$c->query('s2', "CREATE TABLE made_$done (k int PRIMARY KEY)");
	# a statement that reads heaps does not wait for ever for rows that have moved away
	ok($c->wait_for($_, 'SELECT count(*) FROM tessera.range_deletions', '0'), "$when: nothing is left to delete on $_") foreach 's1', 's2', 's3';
	$c->query('r1', "ALTER TABLE t ADD COLUMN c$done int DEFAULT $done");
	is($c->query('s3', "SELECT sum(c$done) FROM t"), 600 * $done, "$when: DDL");
	$c->query('s1', 'SELECT pg_advisory_lock(1), pg_advisory_unlock(1)');
	$c->query($_, 'ANALYZE t') foreach 's1', 's2';
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$when: nothing is inconsistent");
	return;
}

sub restart_with_next
{
	my ($name) = @_;
	$c->stop($name);
	$c->node($name)->{_install_path} = $lib;
	$c->start($name);
	return;
}

sub versions { return $c->query($_[0], "SELECT extversion FROM pg_extension WHERE extname = 'tessera'") }

works('one version');

# a shard with the new library, its SQL of the old version, then of the new one
restart_with_next('s2');
is(versions('s2'), $old, 'the library is new, the SQL is not');
works('new library on a shard');
$c->query('s2', 'ALTER EXTENSION tessera UPDATE');
is(versions('s2'), $version, 'the SQL is new, too');
works('new shard');

# the config node
restart_with_next('s1');
$c->query('s1', 'ALTER EXTENSION tessera UPDATE');
works('new config node and shard, old shard and router');

# the rest
restart_with_next($_) foreach 's3', 'r1';
$c->query($_, 'ALTER EXTENSION tessera UPDATE') foreach 's3', 'r1';
works('new version everywhere');
done_testing();
