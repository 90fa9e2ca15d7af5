# A table with rows is placed by moving (shard_table, colocate_with) while servers crash: the node that was asked, the config node, the donor, a
# recipient, in each of the steps: while the table gets a group of its own, while ranges move, while it joins the other group. It is usable at once
# when they are back, no row is lost or doubled, and the same call ends well.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;
use Time::HiRes qw(sleep);

my $c = TesseraCluster->new('colocate_crash', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	restart_after_crash => 'on' });
# s1 is the config node, s2 the donor, s3 the recipient; r1 is asked.
$c->create(shards => 3, routers => 1);

# A schema whose tables lie on s2.
my $schema;
foreach my $name (map { "app$_" } 1 .. 9)
{
	$c->query('r1', "CREATE SCHEMA $name");
	$schema = $name;
	last if $c->query('s1',
		"SELECT n.name FROM tessera.schema_placement AS p JOIN tessera.node AS n USING (node_id) WHERE p.schema_name = '$name'") eq 's2';
}
$c->query('r1', 'CREATE TABLE other (k int PRIMARY KEY, v int)');
$c->query('r1', 'INSERT INTO other SELECT g, g FROM generate_series(1, 60) g');
$c->query('r1', "SELECT tessera.shard_table('other', 'k')");
$c->query('r1', "SELECT tessera.move_range('other', tessera.minkey(), 20, 's2')");
$c->query('r1', "SELECT tessera.move_range('other', 20, tessera.maxkey(), 's3')");

sub call { my ($table) = @_; return "SELECT tessera.shard_table('$schema.$table', 'k', colocate_with => 'other')"; }

# Again, until it has ended well: servers may be on their way back.
sub goes_on
{
	my ($table) = @_;
	my $stderr;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while (time < $deadline)
	{
		(my $status, undef, $stderr) = $c->psql('r1', call($table));
		return '' if $status == 0 || $stderr =~ /already sharded/;
		sleep 0.05;
	}
	return $stderr;
}

sub sum { my ($node, $table) = @_; return $c->wait_for($node, "SELECT count(*), count(DISTINCT k), sum(v) FROM $schema.$table", '60|60|1830'); }

my $number = 0;
foreach my $point (
	[ 'r1', 'apart_applied' ],    # nothing is committed
	[ 'r1', 'commit_decided' ],    # step a is decided, and prepared on the others
	[ 'r1', 'colocate_apart' ],
	[ 's1', 'config_registered' ],    # the config node, as the move begins
	[ 's2', 'donor_cloned' ],
	[ 's3', 'recipient_confirmed' ],
	[ 'r1', 'colocate_moved' ],
	[ 'r1', 'join_applied' ],    # step c is done everywhere, and not decided
	[ 's1', 'config_merged' ],
	[ 's2', 'placement_merged' ],
	[ 's3', 'placement_merged' ],
	[ 'r1', 'commit_decided', 'colocate_placed' ])
{
	my ($node, $name, $when) = @$point;
	my $table = 't' . ++$number;
	my $title = ($when ? "$when, " : '') . "$name on $node";
	$c->query('r1', "CREATE TABLE $schema.$table (k int PRIMARY KEY, v int)");
	$c->query('r1', "INSERT INTO $schema.$table SELECT g, g FROM generate_series(1, 60) g");
	my $started = $c->query($node, 'SELECT pg_postmaster_start_time()');
	my $run;
	if ($when)
	{
		$c->pause_at('r1', $when);
		$run = $c->background('r1', call($table));
		$c->is_paused_at('r1', $when);
		$c->query($node, "SELECT tessera_test.injection_set('$name', 'crash')");
		$c->go_on('r1', $when);
	}
	else
	{
		$c->query($node, "SELECT tessera_test.injection_set('$name', 'crash')");
		$run = $c->background('r1', call($table));
	}
	my $errors = $c->ended($run);
	like($errors, qr/57P0|08006|connection|terminat|55\d\d\d|TS00|08\d\d\d/, "$title: the call fails") if $node eq 'r1';
	ok($c->wait_for($node, "SELECT count(*) FROM tessera_test.injection_list()", '0'), "$title: the server has crashed, and is back");
	# what is prepared waits ten seconds and more for a resolver that nobody wakes
	$c->query($_, "SELECT tessera.resolve_transactions('0')") foreach TesseraCluster::long() || $name ne 'commit_decided' ? () : $c->names;
	ok(sum($_, $table), "$title: the table is whole, seen from $_") foreach 'r1', 's3';
	is(goes_on($table), '', "$title: the same call goes on");
	# A statement over whole tables that meets the change of the group's version gets 40001.
	ok($c->wait_for('r1', "SELECT count(*) FROM $schema.$table JOIN other USING (k, v)", '60'), "$title: all rows are there");
}
is($c->query('s1', 'SELECT count(*) FROM tessera.table_group'), '1', 'all tables are of one group');
is($c->query($_, "SELECT count(*) FROM tessera.placement"), $_ eq 'r1' ? '0' :
	$c->query($_, "SELECT count(*) FROM tessera.placement WHERE group_id IN (SELECT group_id FROM tessera.table_group)"),
	"$_ has no placement of a group that is gone") foreach $c->names;
$c->is_settled('end');

done_testing();
