# A cluster of three nodes is restored to a restore point that was made under load, from a base backup and the archive of each node: transfers over
# shards are whole, there is no effect without its cause, moves and DDL are whole, and the cluster goes on (doc/operations.md "Backup and restore").
use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('point_in_time',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.connect_timeout' => '2s' });
foreach my $name ('s1', 's2', 's3')
{
	my $server = $c->start_node($name, start => 0);
	$server->enable_archiving;
	$server->start;
}
$c->create(shards => 3);
$c->query('s1', $_) foreach (
	'CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)',
	"SELECT tessera.shard_table('account', 'id')",
	'INSERT INTO account SELECT g, 1000 FROM generate_series(0, 299) g',
	"SELECT tessera.move_range('account', 100, 200, 's2')",
	"SELECT tessera.move_range('account', 200, tessera.maxkey(), 's3')",
	# what is below a million is a cause, what is a million above it its effect, and so on
	'CREATE TABLE chain (k int PRIMARY KEY)',
	"SELECT tessera.shard_table('chain', 'k')",
	"SELECT tessera.move_range('chain', 1000000, 2000000, 's2')",
	"SELECT tessera.move_range('chain', 2000000, tessera.maxkey(), 's3')");
$c->node($_)->backup('base', backup_options => ['--checkpoint=fast']) foreach $c->names;

# ---- load, and restore points meanwhile

my @loads = (
	$c->pgbench_start(
		seconds => 600, clients => 2, rate => 40, max_tries => 100,
		script => "\\set a random(0, 299)\n\\set b random(0, 299)\nBEGIN;\nUPDATE account SET balance = balance - 1 WHERE id = :a;\n"
		  . "UPDATE account SET balance = balance + 1 WHERE id = :b;\nEND;\n"),
	map { $c->pgbench_start(
			nodes => [ $_->[0] ], seconds => 600, clients => 2, rate => 40, variables => { base => $_->[1], n => 0 },
			script => "\\set n :n + 1\n\\set k :base + :client_id * 100000 + :n\nINSERT INTO chain VALUES (:k);\n"
			  . "INSERT INTO chain VALUES (:k + 1000000);\nINSERT INTO chain VALUES (:k + 2000000);\n") }
	([ 's1', 0 ], [ 's2', 300000 ], [ 's3', 600000 ]));
my @there_and_back = map { "SELECT tessera.move_range('account', 50, 150, '$_')" } 's3', 's1';
my $moves = $c->begin('s2', join ";\n", (@there_and_back) x 50);
my $ddl = $c->begin('s3', join ";\n", map { ("CREATE TABLE made_$_ (a int)", "ALTER TABLE made_$_ ADD COLUMN b text") } 1 .. 200);

sub more
{
	my $count = $c->query('s1', 'SELECT count(*) FROM chain');
	ok($c->wait_for('s1', "SELECT count(*) > $count + 100 FROM chain", 't'), 'the load goes on');
	$_->running foreach @loads;
	return;
}
my %files;
sub point
{
	my ($name) = @_;
	more();
	my $answer = $c->query('s2', "SELECT node, wal_file FROM tessera.create_restore_point('$name')");
	$files{$name} = { map { split /\|/ } split /\n/, $answer };
	is(scalar keys %{ $files{$name} }, 3, "$name is made");
	return;
}
point("p$_") foreach 1 .. 4;

# One that is made slowly: what begins when the first node has its point, and the others have not, is not in it.
more();
$c->pause_at('s1', 'restore_point_written');
my $maker = $c->begin('s1', "SELECT tessera.create_restore_point('slow', '1 min')");
$c->is_paused_at('s1', 'restore_point_written');
my $late = $c->session('s2', on_error_stop => 0);
my $pid = $late->query_safe('SELECT pg_backend_pid()');
$late->query_until(qr/begun/, "\\echo begun\n\\set VERBOSITY verbose\nINSERT INTO chain VALUES (900000);\nINSERT INTO chain VALUES (1900000);\n");
ok($c->wait_for('s1', "SELECT EXISTS (SELECT FROM chain WHERE k = 1900000) OR EXISTS (SELECT FROM tessera.internal_sessions "
			. "JOIN pg_stat_activity a USING (pid) WHERE node = 's2' AND client_pid = $pid AND a.backend_xid IS NOT NULL "
			. "AND a.wait_event = 'Extension')",
		't', 30),
	'a cause is held, or its effect is there');
$c->go_on('s1');
is($c->finish($maker), '', 'slow is made');
is($c->finish($late), '', 'the held cause and its effect are committed');
is($c->query('s1', 'SELECT count(*) FROM chain WHERE k IN (900000, 1900000)'), '2', 'both are there now');
$files{slow} = $files{p4};
point("p$_") foreach 5 .. 6;
$c->stop($_, 'immediate') foreach $c->names;
$_->stop foreach @loads;
# what they run has lost its server
eval { $_->quit } foreach $moves, $ddl;

# ---- restoring

sub restore
{
	my ($point) = @_;
	foreach my $name ($c->names)
	{
		my $server = $c->node($name);
		rmtree($server->data_dir);
		PostgreSQL::Test::RecursiveCopy::copypath($server->backup_dir . '/base', $server->data_dir);
		chmod 0700, $server->data_dir or die;
		my $timeline = '0x' . substr($files{$point}{$name}, 0, 8);
		my $archive = $server->archive_dir;
		$server->append_conf('postgresql.conf',
			"restore_command = 'cp $archive/%f %p'\nrecovery_target_name = '$point'\nrecovery_target_timeline = '$timeline'\n"
			  . "recovery_target_action = promote\n");
		$server->append_conf('recovery.signal', '');
	}
	$c->start($_) foreach $c->names;
	foreach my $name ($c->names)
	{
		ok($c->wait_for($name, 'SELECT NOT pg_is_in_recovery()', 't', 60), "$point: $name is restored");
	}
	foreach my $name ($c->names)
	{
		ok($c->wait_for($name,
				'SELECT placements_known AND coalesce(metadata_known, true) AND NOT replaced FROM tessera.promotion_status()', 't', 90),
			"$point: $name knows what it owns") or diag($c->query($name, 'SELECT * FROM tessera.promotion_status()'));
		is(($c->psql($name, 'SELECT tessera.recover_node()'))[2], '', "$point: $name: nothing to complain of");
	}
	return;
}

sub check
{
	my ($point) = @_;
	foreach my $name ($c->names)
	{
		ok($c->wait_for($name, 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), "$point: $name: nothing is prepared");
	}
	is($c->left_behind, '', "$point: nothing is left of moves, all is consistent");
	foreach my $name ($c->names)
	{
		is($c->query($name, 'SELECT count(*), count(DISTINCT id), sum(balance) FROM account'), '300|300|300000', "$point: $name: the sum is right");
	}
	my %there = map { $_ => 1 } split /\n/, $c->query('s2', 'SELECT k FROM chain');
	my @torn = grep { $_ >= 1000000 && !$there{ $_ - 1000000 } } sort { $a <=> $b } keys %there;
	is("@torn[0 .. ($#torn > 9 ? 9 : $#torn)]", '', "$point: no effect without its cause, of " . scalar keys %there);
	cmp_ok(scalar keys %there, '>', 100, "$point: there are some");
	ok(!$there{900000} && !$there{1900000}, "$point: what was held is not in it");
	my $tables = "SELECT count(*), count(DISTINCT c.oid) FROM pg_class c WHERE c.relname LIKE 'made%'";
	is($c->query($_, $tables), $c->query('s1', $tables), "$point: $_ has the tables that s1 has") foreach ('s2', 's3');
	is($c->query('s1', "SELECT count(*) FROM tessera.restore_points WHERE name = '$point'"), '1', "$point: the point is known");
	# it goes on
	my $load = $c->pgbench(
		transactions => 20, clients => 2, max_tries => 100,
		script => "\\set a random(0, 299)\n\\set b random(0, 299)\nBEGIN;\nUPDATE account SET balance = balance - 1 WHERE id = :a;\n"
		  . "UPDATE account SET balance = balance + 1 WHERE id = :b;\nEND;\n");
	is($load->{processed}, 120, "$point: the cluster serves writes");
	$c->query('s2', $_) foreach ("SELECT tessera.move_range('account', 250, 300, 's1')", "SELECT tessera.move_range('account', 250, 300, 's3')",
		'CREATE TABLE afterwards (a int)');
	is($c->query('s3', "SELECT count(*) FROM tessera.create_restore_point('after $point')"), '3', "$point: another point is made");
	is($c->left_behind, '', "$point: all is consistent");
	is($c->query('s3', 'SELECT sum(balance) FROM account'), '300000', "$point: the sum is still right");
	return;
}

foreach my $point ('slow', 'p3')
{
	restore($point);
	check($point);
	$c->stop($_, 'immediate') foreach $c->names;
}

done_testing();
