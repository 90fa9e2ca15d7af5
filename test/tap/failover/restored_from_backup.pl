# A node that is restored from a base backup, on the timeline that it had: donor, recipient and config node of a move that the backup does not have.
# It knows nothing before the config node has confirmed it, from its first statement on; and a copy that is started beside its node changes nothing
# (invariant 8).

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('restored',
	settings => { 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '2s', 'tessera.connect_timeout' => '2s',
		'tessera.registry_refresh_interval' => 1 });
# s1 is the config node; s2 gives ranges to s3.
$c->create(shards => 3);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);
my $move = "SELECT tessera.move_range('t', 501, 601, 's3')";
my $back = "SELECT tessera.move_range('t', 501, 601, 's2')";
# what is refused waits no longer for what does not come
my $soon = 'SET tessera.gate_timeout = 100';
my $unknown = qr/was promoted, and what it owns of table "t" is not known yet/;

my $number = 0;

sub backup
{
	my ($name) = @_;
	$number++;
	$c->node($name)->backup("restored$number", backup_options => [ '--checkpoint=fast', '--no-sync' ]);
	my $copy = PostgreSQL::Test::Cluster->new("restored_copy$number");
	$copy->init_from_backup($c->node($name), "restored$number");
	return $copy;
}

# From now on the name means the copy: by its new address, which another node hands on.
sub take_over
{
	my ($name, $server, $via) = @_;
	my $old = $c->node($name);
	$c->{nodes}{$name} = $server;
	$c->query($via, sprintf("SELECT tessera.update_node('%s', %s, force => true)", $name, TesseraCluster::quote($c->conninfo($name))));
	return $old;
}

# The donor.
my $beside = backup('s2');
my $copy = backup('s2');
$c->query('s1', $move);
$c->query('s1', "UPDATE t SET v = 'moved' WHERE k BETWEEN 501 AND 600");
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'the donor has deleted its rows');
$beside->start;
is($beside->safe_psql('postgres', 'SELECT timeline FROM tessera.promotion_status()'), '1', 'a restored server is on the same timeline');
like($c->error_of($beside, "$soon; UPDATE t SET v = 'wrong' WHERE k = 700"), $unknown, 'beside its node it refuses');
like($c->error_of($beside, 'SELECT tessera.recover_node()'), qr/leads to another server than the promoted one/, 'and does not take the node over');
is($c->query('s1', 'SELECT count(*), max(v) FROM t WHERE k BETWEEN 501 AND 600'), '100|moved', 'the cluster does not notice it');
$beside->stop;
$c->stop('s2', 'immediate');
$c->stop('s1');
$copy->start;
foreach my $statement ('SELECT v FROM t WHERE k = 550', "UPDATE t SET v = 'wrong' WHERE k = 550", 'SELECT count(*) FROM t WHERE k > 900')
{
	like($c->error_of($copy, "$soon; $statement"), $unknown, "without the config node: refused: $statement");
}
$c->start('s1');
my $first = take_over('s2', $copy, 's1');
$c->is_sound('donor', 1000, 's3');
is($c->query('s2', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'donor: the new owner\'s rows');
$c->restart('s2');
is($c->query('s2', 'SELECT count(*) FROM t'), '1000', 'donor: after a restart it needs nobody\'s word');

# The primary that the copy has replaced.
$first->start;
ok($first->poll_query_until('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 'the server that was replaced by a copy learns of it');
like($c->error_of($first, "SELECT count(*) FROM t WHERE k = 700"), qr/TS003/, 'and refuses');
$first->stop('immediate');

# A cold copy of the data directory carries no label: it takes itself for its node at first, and finds out that its placements are older than its
# chunks.
$c->query('s1', $back);
$c->stop('s2');
$c->node('s2')->backup_fs_cold('cold');
$c->start('s2');
my $cold = PostgreSQL::Test::Cluster->new('restored_cold');
$cold->init_from_backup($c->node('s2'), 'cold');
$c->query('s1', $move);
$c->query('s1', "UPDATE t SET v = 'after' WHERE k BETWEEN 501 AND 600");
my $number_before = $c->query('s2', 'SELECT incarnation FROM tessera.promotion_status()');
$c->stop('s2', 'immediate');
$cold->start;
$first = take_over('s2', $cold, 's1');
ok($cold->poll_query_until('postgres', "SELECT incarnation > $number_before AND placements_known FROM tessera.promotion_status()"),
	'cold copy: it is registered anew by itself');
$c->is_sound('cold copy', 1000, 's3');
like(slurp_file($cold->logfile), qr/placements of this node are older than its chunks/, 'cold copy: it says so');
is($c->query('s2', "SELECT count(*) FROM t WHERE v = 'after'"), '100', 'cold copy: the new owner\'s rows');

# The recipient: its rows are gone with the server that had them, and the donor has deleted its own.
$c->query('s1', $back);
$copy = backup('s3');
$c->query('s1', $move);
$c->query('s1', "UPDATE t SET v = 'here' WHERE k BETWEEN 501 AND 600");
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'the donor has deleted its rows again');
$c->stop('s3', 'immediate');
$copy->start;
$first = take_over('s3', $copy, 's1');
like($c->error('s3', 'SELECT tessera.recover_node()'), qr/rows of the range from 501 to 601 were moved to this shard, and are lost/,
	'recipient: it says what it lacks');
like($c->error('s1', "$soon; SELECT count(*) FROM t WHERE k = 550"), $unknown, 'recipient: lost rows are not taken for no rows');
$copy->stop('immediate');
$first->start;
take_over_again('s3', $first);
$c->is_sound('recipient', 1000, 's3');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'here'"), '100', 'recipient: the server that has the rows is the node again');

# Back to a server that was replaced: it is told to be the node, finds that its address leads elsewhere, and then that it does not.
sub take_over_again
{
	my ($name, $server) = @_;
	like($c->error_of($server, 'SELECT tessera.recover_node(force => true)'), qr/could not connect|leads to another server/,
		'the old server is to be the node, but its address says otherwise');
	take_over($name, $server, 's1');
	return;
}

# The config node.
$copy = backup('s1');
$c->query('s1', $back);
$c->query('s1', "UPDATE t SET v = 'again' WHERE k BETWEEN 501 AND 600");
ok($c->wait_for('s3', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'the donor has deleted its rows once more');
$c->stop('s1', 'immediate');
$copy->start;
$first = take_over('s1', $copy, 's2');
$c->is_sound('config node', 1000, 's2');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'again'"), '100', 'config node: the rows are there');
$c->query('s1', $move);
$c->is_sound('moves go on', 1000, 's3');

# A cold copy of the config node: a node that knows a newer version tells it.
$c->query('s1', $back);
$c->stop('s1');
$c->node('s1')->backup_fs_cold('cold_config');
$c->start('s1');
$cold = PostgreSQL::Test::Cluster->new('restored_cold_config');
$cold->init_from_backup($c->node('s1'), 'cold_config');
$c->query('s2', $move);
$c->query('s3', "UPDATE t SET v = 'newest' WHERE k BETWEEN 501 AND 600");
my $term = $c->query('s2', 'SELECT term FROM tessera.identity');
$c->stop('s1', 'immediate');
$cold->start;
$first = take_over('s1', $cold, 's2');
ok($c->wait_for('s2', "SELECT term > $term FROM tessera.identity", 't', 60), 'cold config node: it has compared its catalog with the shards');
$c->is_sound('cold config node', 1000, 's3');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'newest'"), '100', 'cold config node: the rows are there');

# A config node that lacks a table: refused, and repaired by the server that has it.
$copy = backup('s1');
$c->query('s1', $_) foreach ('CREATE TABLE u (k int PRIMARY KEY)', "SELECT tessera.shard_table('u', 'k')",
	'INSERT INTO u SELECT generate_series(1, 10)',
	"SELECT tessera.move_range('u', 5, tessera.maxkey(), 's2')");
# s2 has heard of the move
is($c->query('s2', 'SELECT count(*) FROM u WHERE k >= 5'), '6', 'the rows have moved');
$c->stop('s1', 'immediate');
$copy->start;
$first = take_over('s1', $copy, 's2');
like($c->error('s1', 'SELECT tessera.recover_node()'), qr/shard "s2" owns ranges of table group [-0-9a-f]+, which is not known here/,
	'a lost table is named');
like($c->error('s2', "SELECT tessera.split_chunk('t', 700)"), qr/57P03|was promoted and has not compared/, 'nothing is changed meanwhile');
is($c->query('s2', 'SELECT count(*) FROM u WHERE k >= 5'), '6', 'the shards go on');
$copy->stop('immediate');
$first->start;
is($c->error_of($first, 'SELECT tessera.recover_node(force => true)'), '',
	'the old config node is to be it again: by its own catalog its address leads to it');
take_over('s1', $first, 's2');
$c->is_sound('config node again', 1000, 's3');
is($c->query('s1', 'SELECT count(*) FROM u'), '10', 'the table is there');

done_testing();
