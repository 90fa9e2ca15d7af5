# Two nodes that lose their newest commits at once: what the others know repairs it, or it is refused with a message that says what is lost; the only
# copy of a row is never deleted. And an outcome of a term that is over is not carried out (invariant 8).

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('lost_commits',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '2s',
	'tessera.connect_timeout' => '2s' });
# s1 is the config node; s2 gives ranges to s3; s4 has no part in it.
$c->create(shards => 4);
$c->make_table([ 501, 901, 's2' ], [ 901, 'tessera.maxkey()', 's4' ]);
my $move = "SELECT tessera.move_range('t', 501, 601, 's3')";
my $back = "SELECT tessera.move_range('t', 501, 601, 's2')";

# Nodes lose all that is committed in between, all at once.
sub lose
{
	my ($nodes, $code) = @_;
	# the addresses of all standbys are known on all of them
	$c->add_standby($_) foreach @$nodes;
	ok($c->wait_for('s2', "SELECT count(*) FROM tessera.node AS n WHERE tessera.node_conninfo(n.name) LIKE '%,%'", qr/^[1-9]/),
		'addresses are known');
	$c->catch_up($_) foreach @$nodes;
	$c->cut_standby($_) foreach @$nodes;
	$code->();
	$c->stop($_, 'immediate') foreach @$nodes;
	$c->promote($_, lossy => 1, stop => undef) foreach @$nodes;
	return;
}

# The server that a node had before is started in the place of the promoted one.
sub bring_back
{
	my ($name) = @_;
	my ($old) = reverse $c->replaced($name);
	$c->stop($name, 'immediate');
	$old->start;
	$c->{nodes}{$name} = $old;
	return $old;
}

# Rows of the range that lie on a server, whoever owns them.
sub lying
{
	my ($name) = @_;
	return $c->query($name, "SELECT sum(rows) FROM tessera_internal.count_unowned('t')");
}

sub moved
{
	$c->query('s1', $move);
	$c->query('s1', "UPDATE t SET v = 'moved' WHERE k BETWEEN 501 AND 600");
	ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'the move is over, and the donor has deleted its rows');
	return;
}

# Config node and donor: the recipient knows.
lose([ 's1', 's2' ], \&moved);
$c->is_sound('config node and donor', 1000, 's3');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'config node and donor: the rows are the newest');
$c->query('s1', $back);

# Donor and recipient: the recipient has lost the rows, the donor has an old copy, which is now the only one: it stays. The recipient's old primary
# has the newest one.
lose([ 's2', 's3' ], \&moved);
like($c->error('s3', 'SELECT tessera.recover_node()'), qr/rows of the range from 501 to 601 were moved to this shard, and are lost/,
	'donor and recipient: refused');
ok($c->wait_for('s2', 'SELECT placements_known FROM tessera.promotion_status()'), 'donor and recipient: the donor serves what it owns');
is($c->query('s2', 'SELECT count(*) FROM t WHERE k BETWEEN 601 AND 900'), '300', 'donor and recipient: other ranges are served');
like($c->error('s1', 'SELECT count(*) FROM t WHERE k = 550'), qr/what it owns of table "t" is not known/,
	'donor and recipient: an old copy is not taken for the rows');
$c->query('s2', 'SELECT pg_sleep(2)');
is($c->query('s2', "SELECT count(*) FROM tessera.range_deletions"), '1', 'donor and recipient: the donor does not delete its copy');
is($c->query('s2', 'SELECT pg_relation_size($$t$$) > 0 AND tessera_internal.owns_range(group_id, 501, 601) FROM tessera.placement'), 'f',
	'although it does not own the range');
my $old = bring_back('s3');
is($c->error_of($old, 'SELECT tessera.recover_node(force => true)'), '', 'donor and recipient: the recipient\'s old primary is the node again');
$c->is_sound('donor and recipient', 1000, 's3');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'donor and recipient: the rows are the newest');
$c->query('s1', $back);

# Config node and recipient: nobody owns the range, by what is left. Shards go on as they were; the old primary of either repairs it.
$c->query('s2', 'ALTER SYSTEM SET tessera.orphan_cleanup_delay = 3600000');
$c->query('s2', 'SELECT pg_reload_conf()');
lose([ 's1', 's3' ], sub {
	$c->query('s1', $move);
	is($c->query('s4', 'SELECT count(*) FROM t WHERE k BETWEEN 501 AND 700'), '200', 's4 knows of the move');
});
like($c->error('s1', 'SELECT tessera.recover_node()'), qr/no shard owns the range from 501 to 601/, 'config node and recipient: refused');
like($c->error('s2', "SELECT tessera.split_chunk('t', 700)"), qr/has not compared its catalog/, 'config node and recipient: no metadata is changed');
is($c->query('s2', "SELECT count(*) FROM t WHERE k BETWEEN 601 AND 900"), '300', 'config node and recipient: a shard goes on by itself');
is($c->query('s4', "UPDATE t SET v = 'meanwhile' WHERE k IN (700, 950) RETURNING v"), "meanwhile\nmeanwhile", 'and the others with it');
is($c->query('s2', 'SELECT count(*) FROM tessera.range_deletions'), '1', 'config node and recipient: the donor still has its copy');

# Giving up what is lost: the config node goes by its catalog, which gives the range to the donor; that takes it over with the rows that it still has.
is($c->query('s1', 'SELECT tessera.recover_node(force => true)'), '', 'config node and recipient: the config node is told to go on');
$c->psql('s2', 'SELECT tessera.recover_node(force => true)');
$c->query('s2', 'SELECT tessera.recover_node(force => true)');
$c->query('s2', 'ALTER SYSTEM RESET tessera.orphan_cleanup_delay');
$c->query('s2', 'SELECT pg_reload_conf()');
$c->is_sound('config node and recipient', 1000, 's2');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'config node and recipient: the rows that were there before the move');

# A shard that cannot be reached: the config node goes on without it only if it is told to.
$c->add_standby('s1');
$c->stop('s4');
$c->promote('s1');
like($c->error('s1', 'SELECT tessera.recover_node()'), qr/could not connect to node "s4"/, 'a shard is missing');
is($c->query('s1', 'SELECT tessera.recover_node(force => true)'), '', 'without it, by force');
$c->query('s1', $move);
is($c->query('s1', 'SELECT count(*) FROM t WHERE k <= 900'), '900', 'the others go on, and moves do');
$c->start('s4');
$c->is_sound('a shard that was left out', 1000, 's3');
$c->query('s1', $back);

# A donor that has been told that its move is committed, and has told nobody, while a config node takes over that never heard of it.
$c->add_standby('s1');
$c->query('s2', "SELECT tessera_test.injection_set('donor_steady', 'pause')");
$c->query('s2', "SELECT tessera_test.injection_set('donor_carrying_out', 'pause')");
$c->query('s3', "SELECT tessera_test.injection_set('recipient_asking', 'pause')");
my $session = $c->session('s4', on_error_stop => 0);
$session->query_until(qr/begun/, "\\echo begun\n$move;\n");
ok($c->wait_for('s2', "SELECT sum(paused) FROM tessera_test.injection_list() WHERE name = 'donor_steady'", '1'), 'the move is under way');
$c->catch_up('s1');
$c->cut_standby('s1');
$c->query('s2', "SELECT tessera_test.injection_clear('donor_steady')");
ok($c->wait_for('s2', "SELECT sum(paused) FROM tessera_test.injection_list() WHERE name = 'donor_carrying_out'", '1'),
	'the donor knows that it is committed');
$c->promote('s1', lossy => 1);
ok($c->wait_for('s1', 'SELECT metadata_known FROM tessera.promotion_status()', 't', 30), 'the promoted config node decides otherwise');
is($c->query('s1', 'SELECT state FROM tessera.migration ORDER BY started DESC LIMIT 1'), 'aborted', 'aborted');
$c->query($_, 'SELECT tessera_test.injection_clear()') foreach ('s2', 's3');
$session->query('SELECT 1');
$session->quit;
$c->is_sound('older term', 1000, 's2');
foreach my $n ('s2', 's3')
{
	like(slurp_file($c->node($n)->logfile), qr/outcome of migration [-0-9a-f]+ is of term \d+, an older one than \d+/,
		"$n has refused the outcome of the older term");
}

# The config node loses that it has registered a promoted shard. The shard itself and the others know: its old primary is not taken for it.
$c->add_standby($_) foreach ('s2', 's1');
ok($c->wait_for('s2', "SELECT tessera.node_conninfo('s1') LIKE '%,%'"), 'addresses are known');
$c->catch_up('s1');
$c->cut_standby('s1');
$c->promote('s2');
ok($c->wait_for('s2', 'SELECT placements_known FROM tessera.promotion_status()'), 'a shard is promoted');
my $number = $c->query('s2', 'SELECT incarnation FROM tessera.promotion_status()');
$c->promote('s1', lossy => 1);
$c->is_sound('lost registration', 1000, 's2');
is($c->query('s1', "SELECT incarnation FROM tessera.node WHERE name = 's2'"), $number, 'lost registration: the config node knows it again');
my ($before) = reverse $c->replaced('s2');
$before->start;
ok($before->poll_query_until('postgres', 'SELECT replaced FROM tessera.promotion_status()'),
	'lost registration: the old primary of the shard is refused');
$c->query('s1', $move);
$c->query('s1', $back);
$c->is_sound('moves go on', 1000, 's2');

done_testing();
