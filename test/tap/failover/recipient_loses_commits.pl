# The recipient of a move is promoted without its newest commits (doc/design.md#moves-and-standbys; invariant 8): what it has confirmed is on its
# standbys; what is not there is not confirmed. Rows that are lost all the same are never taken for no rows: the range goes back to the donor, if that
# still has them, or the shard refuses.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('lossy_recipient',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '2s',
		'tessera.standby_flush_timeout' => '1s' });
# s1 is the config node, s2 gives, s3 gets and loses.
$c->create(shards => 3);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);
my $move = "SELECT tessera.move_range('t', 501, 601, 's3')";

# The walreceiver of a standby stands still: it is attached, and does not flush. The move is aborted.
my $standby = $c->add_standby('s3');
my $receiver = $standby->safe_psql('postgres', 'SELECT pid FROM pg_stat_wal_receiver');
kill 'STOP', $receiver;
like($c->error('s1', $move), qr/a standby does not follow/, 'a standby that does not flush holds up the confirmation, and the move is aborted');
kill 'CONT', $receiver;
$c->is_sound('standby stood still', 1000, 's2');

# What is confirmed survives the loss of the primary, without any other wait for the standby.
$c->while_paused('s2', 'config_committed', $move, sub {
	$c->promote('s3', stop => 'kill9', lossy => 1);
	$c->go_on('s2');
});
$c->is_sound('confirmed', 1000, 's3');
is($c->query('s3', 'SELECT count(*) FROM ONLY t WHERE k BETWEEN 501 AND 600'), '100', 'confirmed: the rows are there');
$c->query('s1', "UPDATE t SET v = 'moved' WHERE k BETWEEN 501 AND 600");
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");

# The standby was cut off, so nobody could wait for it. The move is committed, but the donor still has the rows: it takes the range back.
$c->add_standby('s3');
$c->cut_standby('s3');
$c->while_paused('s2', 'config_committed', $move, sub {
	$c->promote('s3', lossy => 1);
	ok($c->wait_for('s3', 'SELECT placements_known FROM tessera.promotion_status()'), 'the promoted server knows what it owns');
	$c->go_on('s2');
});
$c->is_sound('returned before the release', 1000, 's2');
is($c->query('s3', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'the rows are the newest');

# The same when the donor has carried the outcome out already, but not acknowledged it.
$c->add_standby('s3');
$c->cut_standby('s3');
$c->while_paused('s2', 'donor_cleaning', $move, sub {
	$c->query('s1', "UPDATE t SET v = 'lost' WHERE k = 550");
	$c->promote('s3', lossy => 1);
	ok($c->wait_for('s3', 'SELECT placements_known FROM tessera.promotion_status()'), 'the promoted server knows what it owns');
	$c->go_on('s2');
});
$c->is_sound('returned after the release', 1000, 's2');
is($c->query('s3', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'the rows are as they were moved');

# In the middle of the clone: aborted.
$c->add_standby('s3');
$c->cut_standby('s3');
$c->while_paused('s3', 'recipient_cloned', $move, sub {
	$c->promote('s3', lossy => 1);
});
$c->is_sound('cloned', 1000, 's2');

# The donor has deleted the rows, and the standby never had them: refused until somebody gives them up.
$c->add_standby('s3');
$c->cut_standby('s3');
$c->query('s1', $move);
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0'), 'the donor has deleted its copy');
$c->promote('s3', lossy => 1);
like($c->error('s1', 'SELECT count(*) FROM t WHERE k = 550'), qr/was promoted, and what it owns of table "t" is not known yet/,
	'lost rows are not taken for no rows');
like($c->error('s3', 'SELECT tessera.recover_node()'), qr/rows of the range from 501 to 601 were moved to this shard, and are lost/,
	'the reason is told');
like($c->query('s1', 'SELECT * FROM tessera.check_consistency()'), qr/^8\|node s3\|was promoted, and does not know what it owns: rows of the range/m,
	'check_consistency tells of it');
$c->query('s3', 'SELECT tessera.recover_node(force => true)');
$c->is_sound('given up', 900, 's3');
$c->query('s1', "INSERT INTO t SELECT g, 'again' FROM generate_series(501, 600) g");
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");
$c->is_sound('moves go on', 1000, 's2');

done_testing();
