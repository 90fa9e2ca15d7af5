# Promotion of a shard's standby: nothing is answered before it is known what the shard owns (doc/design.md#lost-commits); the donor of a move that
# loses its newest commits, after the move and in the middle of it (invariants 3 to 5 and 8).

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('promotion',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '2s' });
# s1 is the config node; s2 gives ranges to s3 and loses them.
$c->create(shards => 3);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);

# A standby that is promoted for a look, beside its primary, is not taken for the node, and knows nothing.
my $look = $c->add_standby('s2');
$look->promote;
$look->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
my ($status, $stdout, $stderr) = $look->psql('postgres', 'SELECT tessera.recover_node()');
like($stderr, qr/the address of node "s2" leads to another server than the promoted one/,
	'a standby promoted beside its primary does not take the node over');
is($c->query('s1', "SELECT timeline FROM tessera.node WHERE name = 's2'"), '1', 'its timeline is not registered');
is($c->query('s1', "UPDATE t SET v = 'mid' WHERE k = 600 RETURNING v"), 'mid', 'the primary goes on');
# It leaves the cluster while it tries.
$look->safe_psql('postgres', "SELECT tessera_test.injection_set('promotion_begun', 'pause')");
my $asker = $look->background_psql('postgres', on_error_stop => 0);
$asker->query_until(qr/asked/, "\\echo asked\nSELECT tessera.recover_node();\n");
ok($look->poll_query_until('postgres', "SELECT max(paused) > 0 FROM tessera_test.injection_list() WHERE name = 'promotion_begun'"), 'it tries');
$look->safe_psql('postgres', 'DELETE FROM tessera.identity');
$look->safe_psql('postgres', 'SELECT tessera_test.injection_clear()');
ok($look->poll_query_until('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'tessera migration recovery'", '0'),
	'what is no node any more does not go on trying, and its server stays up');
$asker->quit;
$look->stop('immediate');
delete $c->{standbys}{s2};

# Without loss. A session that was connected to the standby before writes at once: it waits until the config node has confirmed what the shard owns.
my $standby = $c->add_standby('s2');
my $early = $standby->background_psql('postgres', on_error_stop => 0);
is($early->query_safe('SELECT count(*) FROM t WHERE k = 600'), '1', 'the standby answers');
$c->promote('s2');
is($early->query_safe("UPDATE t SET v = 'new' WHERE k = 600 RETURNING v"), 'new', 'a session of before the promotion writes right after it');
$early->quit;
is($c->query('s1', 'SELECT count(*), max(v) FROM t WHERE k = 600'), '1|new', 'other nodes find the promoted server');
is($c->query('s1', "SELECT timeline FROM tessera.node WHERE name = 's2'"), '2', 'it has registered its timeline');
is($c->query('s2', 'SELECT timeline, placements_known, metadata_known, last_error FROM tessera.promotion_status()'), '2|t||',
	'and knows what it owns');
$c->is_sound('without loss', 1000);

# The donor loses a move that is over. Without the config node it refuses to answer, although by all it knows the range is still its own.
$c->add_standby('s2');
$c->cut_standby('s2');
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's3')");
$c->query('s1', "UPDATE t SET v = 'moved' WHERE k BETWEEN 501 AND 600");
$c->query('s1', "INSERT INTO t VALUES (2001, 'lost')");
$c->stop('s1');
$c->promote('s2', lossy => 1);
is($c->query('s2', "SELECT major FROM tessera.routing_placement('t'::regclass)"),
	$c->query('s2', 'SELECT major FROM tessera.placement'), 'the promoted server has its placement of before');
foreach my $statement ('SELECT v FROM t WHERE k = 550', "UPDATE t SET v = 'wrong' WHERE k = 550", 'SELECT FROM t WHERE k = 550 FOR UPDATE',
	"DELETE FROM t WHERE k IN (550, 560)")
{
	like($c->error('s2', $statement), qr/57P03: .*was promoted, and what it owns of table "t" is not known yet/, "refused: $statement");
}
like($c->error('s2', 'SELECT tessera.recover_node()'), qr/55000: .*cannot find out what it owns/, 'recover_node says what is in the way');
my $old_snapshot = $c->session('s2', on_error_stop => 0);
$old_snapshot->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old_snapshot->query('SELECT count(*) FROM pg_class');
$c->start('s1');
is($c->query('s1', 'SELECT count(*), max(v) FROM t WHERE k BETWEEN 501 AND 600'), '100|moved', 'the rows are the new owner\'s');
$c->query('s2', 'SELECT tessera.recover_node()');
$old_snapshot->query("\\set VERBOSITY verbose\nSELECT v FROM t WHERE k = 950");
like($old_snapshot->{stderr}, qr/40001/, 'a snapshot of before it was known is good for nothing');
$old_snapshot->quit;
is($c->query('s2', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'and seen from the promoted server, too');
$c->is_sound('after the move', 1000);
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");
$c->is_sound('moved back', 1000);

# A slot that no migration has: a replaced primary that has become a standby, and then the primary again, comes with it.
$c->query('s2', "SELECT pg_create_logical_replication_slot('tessera_' || md5('gone'), 'pgoutput')");
ok($c->wait_for('s2', 'SELECT count(*) FROM pg_replication_slots', '0', 30), 'a leftover slot is dropped');

# In the middle of a move: the standby lacks everything of it, or all but its beginning. Committed or not is the config node's word.
foreach my $case (
	[ 'donor_registered', 'donor_cloned', 0 ],
	[ 'donor_registered', 'donor_read_gate', 0 ],
	[ 'donor_registered', 'config_committed', 1 ],
	[ 'donor_write_gate', 'config_committed', 1 ])
{
	my ($cut, $point, $committed) = @$case;
	my $what = "cut at $cut, lost at $point";
	my $errors;
	$c->add_standby('s2');
	$c->pause_at('s2', $point);
	$errors = $c->while_paused('s2', $cut, "SELECT tessera.move_range('t', 501, 601, 's3')", sub {
		$c->catch_up('s2');
		$c->cut_standby('s2');
		$c->go_on('s2', $cut);
		ok($c->paused_at('s2', $point), "$what: there");
		$c->promote('s2', lossy => 1);
	});
	is($c->query('s1', 'SELECT count(*) FROM t WHERE k BETWEEN 501 AND 600'), '100', "$what: rows");
	$c->is_sound($what, 1000);
	is($c->query('s1', "SELECT tessera.range_owner('t', 550)"), $committed ? 's3' : 's2', "$what: owner");
	$c->query('s1', "UPDATE t SET v = '$what' WHERE k BETWEEN 501 AND 600");
	$c->query('s1', "SELECT tessera.move_range('t', 501, 601, '" . ($committed ? 's2' : 's3') . "')");
	$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')") unless $committed;
	is($c->query('s3', "SELECT count(*) FROM t WHERE v = '$what'"), '100', "$what: moves go on");
}

done_testing();
