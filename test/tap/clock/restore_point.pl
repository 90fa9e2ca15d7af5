# tessera.create_restore_point: commits are held on all nodes while it is made, and never for longer than max_pause, whatever becomes of who makes it;
# a name is used once; a node that is down is named (doc/design.md#restore-points).
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('restore_point', settings => { 'tessera.injection_points' => 'on', 'tessera.connect_timeout' => '2s' });
$c->create(shards => 2, routers => 1);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);

my $waiting = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event_type = 'Extension' AND backend_type = 'client backend'"
  . ' AND pid <> pg_backend_pid()';

# Every node has it in its WAL, at one time, later than what was committed before and earlier than what is committed after.
my $before = $c->query('s1', "UPDATE t SET v = 'before' WHERE k = 1; SELECT tessera.cluster_time()");
my @points = split /\n/, $c->query('r1', "SELECT node, cluster_time, lsn, wal_file FROM tessera.create_restore_point('first') ORDER BY node");
is(scalar @points, 3, 'a row for each node');
my %times = map { (split /\|/)[1] => 1 } @points;
is(scalar keys %times, 1, 'at one cluster time');
my ($time) = keys %times;
is($c->query('s1', "SELECT $time >= $before"), 't', 'not earlier than what was committed before');
foreach (@points)
{
	my ($node, undef, $lsn, $file) = split /\|/;
	is($c->query($node, "SELECT pg_walfile_name('$lsn'), pg_current_wal_flush_lsn() >= '$lsn'"), "$file|t", "$node: the file is named, and on disk");
	like(slurp_file($c->node($node)->logfile), qr/restore point "first" created at/, "$node: the point is in the WAL");
}
is($c->query('s2', "UPDATE t SET v = 'after' WHERE k = 600; SELECT tessera.cluster_time() > $time"), 't', 'what comes after has a later time');
is($c->query('s1', "SELECT name, cluster_time = $time, complete, by FROM tessera.restore_points"), 'first|t|t|postgres', 'the config node knows it');

# Names.
like($c->error('r1', "SELECT tessera.create_restore_point('first')"), qr/42710.*restore point "first" was made, or begun, before/s,
	'a name is used once');
like($c->error('s1', "SELECT tessera.create_restore_point('')"), qr/22023.*between 1 and 63 bytes/s, 'a name is not empty');
like($c->error('s1', "SELECT tessera.create_restore_point(repeat('x', 64))"), qr/22023.*between 1 and 63 bytes/s, 'nor too long for the WAL');
like($c->error('s1', "SELECT tessera.create_restore_point('long', '61 s')"), qr/22023.*max_pause must be between 1 ms and 60 s/s,
	'max_pause is limited');

# Rights.
$c->query('s1', 'CREATE ROLE keeper IN ROLE tessera_admin; CREATE ROLE stranger');
like($c->error('s2', "SET ROLE stranger; SELECT tessera.create_restore_point('no')"), qr/42501/, 'not for everybody');
like($c->error('s2', "SET ROLE stranger; SELECT tessera_internal.hold_commits(1, 1000, '{1}')"), qr/42501/, 'nor is what it is made of');
is($c->query('s2', "SET ROLE keeper; SELECT count(*) FROM tessera.create_restore_point('by keeper')"), '3', 'an administrator may');
like($c->error('s1', "BEGIN READ ONLY; SELECT tessera.create_restore_point('no')"), qr/25006/, 'not in a read-only transaction');

# While it is made, commits wait: local ones, those of one other shard, of two shards, and of a router; reads go on. PREPARE does not wait, and COMMIT
# PREPARED of what was decided before goes through.
is($c->query('r1', 'SELECT count(*) FROM t'), '1000', 'the router knows the routes');
$c->pause_at('s2', 'commit_decided');
my $decided = $c->begin('s2', "BEGIN; UPDATE t SET v = 'decided' WHERE k IN (3, 700); COMMIT");
$c->is_paused_at('s2', 'commit_decided');
$c->pause_at('s1', 'restore_point_written');
my $maker = $c->begin('s1', "SELECT count(*) FROM tessera.create_restore_point('held', '1 min')");
$c->is_paused_at('s1', 'restore_point_written');
$c->go_on('s2', 'commit_decided');
$c->finish($decided);
is($c->query('s2', "SELECT count(*) FROM t WHERE v = 'decided'"), '2', 'what was decided before is carried out');
my @writers = map { $c->background(@$_) } ([ 's2', "UPDATE t SET v = 'held' WHERE k = 800" ], [ 'r1', "UPDATE t SET v = 'held' WHERE k = 10" ],
	[ 's1', "UPDATE t SET v = 'held' WHERE k IN (11, 801)" ]);
ok($c->wait_for('s1', "SELECT ($waiting) >= 2", 't', 30), 'commits wait on the node that has its point');
ok($c->wait_for('s2', $waiting, '1', 30), 'and on the one that has not');
is($c->query('r1', "SELECT count(*) FROM t WHERE v = 'held'"), '0', 'none is committed; reads go on');
# another point waits for its turn: its name is noted by a commit
push @writers, $c->background('r1', "SELECT count(*) FROM tessera.create_restore_point('second')");
like($c->error('s2', "SELECT tessera_internal.hold_commits(1, 1000, '{1}')"), qr/55006.*another restore point is being made/s, 'one holds at a time');
# a held commit can be cancelled
my $cancelled = $c->background('s2', "UPDATE t SET v = 'cancelled' WHERE k = 810");
ok($c->wait_for('s2', $waiting, '2', 30), 'one more waits');
$c->query('s2', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%k = 810%' AND pid <> pg_backend_pid()");
like($c->ended($cancelled), qr/57014/, 'a commit that is held can be cancelled');
$c->go_on('s1');
is($c->finish($maker), '', 'the point is made');
is($c->ended($_), '', 'a commit that was held goes on') foreach @writers;
is($c->query('r1', "SELECT count(*) FROM t WHERE v = 'held'"), '4', 'all are committed');
is($c->query('r1', "SELECT count(*) FROM t WHERE v = 'cancelled'"), '0', 'but the one that was cancelled');

# Who makes it stands still: commits wait as long as they were told to, and no longer.
foreach my $case ([ 'restore_point_written', qr/57014.*not all nodes have written restore point "still1" in time/s ],
	[ 'restore_points_written', qr/55000.*commits on node "s1" were not held until all nodes had written restore point "still2"/s ])
{
	my ($point, $error) = @$case;
	my $name = $error =~ /(still\d)/ ? $1 : die;
	$c->pause_at('s1', $point);
	my $still = $c->begin('s1', "SELECT count(*) FROM tessera.create_restore_point('$name', '500 ms')");
	$c->is_paused_at('s1', $point);
	is($c->query('s2', "UPDATE t SET v = '$name' WHERE k IN (4, 900); SELECT count(*) FROM t WHERE v = '$name'"), '2',
		"$point: commits go on by themselves");
	$c->go_on('s1');
	like($c->finish($still), $error, "$point: the point is none");
	is($c->query('s1', "SELECT complete FROM tessera.restore_points WHERE name = '$name'"), 'f', "$point: the config node knows");
}

# Who makes it is ended: commits go on at once.
foreach my $how ('pg_cancel_backend', 'pg_terminate_backend')
{
	my $began = time;
	$c->pause_at('s1', 'restore_point_written');
	my $killed = $c->begin('s1', "SELECT count(*) FROM tessera.create_restore_point('$how', '1 min')");
	$c->is_paused_at('s1', 'restore_point_written');
	my $writer = $c->background('s2', "UPDATE t SET v = '$how' WHERE k IN (5, 901)");
	ok($c->wait_for('s2', $waiting, '1', 30), "$how: a commit waits");
	$c->query('s1', "SELECT $how(pid) FROM pg_stat_activity WHERE query LIKE '%create_restore_point%' AND pid <> pg_backend_pid()");
	is($c->ended($writer), '', "$how: it goes on");
	cmp_ok(time - $began, '<', 60, "$how: before the pause would have been over by itself");	# clock: that minute is what the point was given
	$c->go_on('s1');
	eval { $killed->quit };
}
is($c->query('r1', "SELECT count(*) FROM tessera.create_restore_point('afterwards')"), '3', 'the next one is made');

# A commit that does not end: its process is named, and commits go on.
$c->query('s2', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$c->query('s2', 'SELECT pg_reload_conf()');
ok($c->wait_for('s2', 'SHOW synchronous_standby_names', 'nobody'), 's2 has a synchronous standby that is not there');
my $stuck = $c->background('s2', "UPDATE t SET v = 'stuck' WHERE k = 902");
ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%stuck%'", 't', 30),
	'a commit waits for it');
like($c->error('s1', "SELECT tessera.create_restore_point('stuck', '1 s')"), qr/08006|55006/, 'a commit that does not end ends the attempt');
is($c->query('s1', "UPDATE t SET v = 'goes on' WHERE k = 6; SELECT v FROM t WHERE k = 6"), 'goes on', 'others go on');
$c->psql('s2', 'ALTER SYSTEM RESET synchronous_standby_names');
$c->psql('s2', 'SELECT pg_reload_conf()');
is($c->ended($stuck), '', 'it ends with its wait');

# A node is joining.
my $joining = $c->session('s1');
$joining->query_safe('BEGIN; LOCK TABLE tessera.node IN EXCLUSIVE MODE');
like($c->error('s2', "SELECT tessera.create_restore_point('joining')"), qr/55006.*a node is joining or leaving the cluster/s,
	'not while a node joins');
$joining->quit;

# A node that is down is named, before anything is held; the name is still good.
$c->stop('s2');
like($c->error('s1', "SELECT tessera.create_restore_point('down')"), qr/08006.*"s2"/s, 'a node that is down is named');
is($c->query('s1', "SELECT count(*) FROM tessera.restore_points WHERE name = 'down'"), '0', 'the name is still good');
$c->start('s2');
is($c->query('r1', "SELECT count(*) FROM tessera.create_restore_point('down')"), '3', 'when it is back the point is made');

done_testing();
