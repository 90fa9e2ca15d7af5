# The config node is promoted without its newest commits (doc/design.md#lost-commits; invariant 8): before it changes or gives out metadata it
# compares its catalog with the shards. What a shard has acted on stays true; what nobody acted on is undone; a new term makes every node refresh.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('lossy_config',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '2s',
		'tessera.connect_timeout' => '2s' });
# s1 is the config node and a shard.
$c->create(shards => 3);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);
my $term = 1;

sub sound
{
	my ($what, $owner) = @_;
	ok($c->wait_for('s1', 'SELECT placements_known AND metadata_known FROM tessera.promotion_status()', 't', 30), "$what: the config node knows")
	  or diag $c->query('s1', 'SELECT * FROM tessera.promotion_status()');
	$c->is_settled($what);
	foreach my $n ($c->names)
	{
		is($c->query($n, 'SELECT count(*), count(DISTINCT k) FROM t'), '1000|1000', "$what: $n shows each row once");
		ok($c->wait_for($n, 'SELECT term FROM tessera.identity', $term), "$what: $n has the new term");
		is($c->query($n, 'SELECT count(*) FROM tessera.placement WHERE term <> (SELECT term FROM tessera.identity)'), '0',
			"$what: so have its placements");
	}
	is($c->query('s1', "SELECT tessera.range_owner('t', 550)"), $owner, "$what: owner");
	return;
}

# A move is begun and paused; then the config node loses all that was committed since `cut`.
sub lose_config_at
{
	my ($donor, $recipient, $point, %params) = @_;
	$c->add_standby('s1');
	$c->cut_standby('s1') if $params{registration};
	$c->pause_at($donor, 'donor_steady') unless $params{registration};
	$c->pause_at($donor, $point);
	# nobody acts on what is committed: the recipient does not ask for it either, however long this takes
	$c->pause_at($recipient, 'recipient_asking') if $point eq 'config_committed';
	# the caller is not the node that goes
	my $session = $c->session('s3', on_error_stop => 0);
	$session->query_until(qr/begun/, "\\echo begun\nSELECT tessera.move_range('t', 501, 601, '$recipient');\n");
	if (!$params{registration})
	{
		ok($c->paused_at($donor, 'donor_steady'), "$point: registered");
		$c->catch_up('s1');
		$c->cut_standby('s1');
		$c->go_on($donor, 'donor_steady');
	}
	ok($c->paused_at($donor, $point), "paused at $point");
	$c->promote('s1', lossy => 1);
	$term++;
	ok($c->wait_for('s1', 'SELECT metadata_known FROM tessera.promotion_status()', 't', 30), "$point: the config node has compared its catalog")
	  or diag $c->query('s1', 'SELECT * FROM tessera.promotion_status()');
	$c->go_on($donor) unless $donor eq 's1';
	$c->go_on($recipient) if $point eq 'config_committed';
	$session->query('SELECT 1');
	$session->quit;
	return;
}

# Without loss.
$c->add_standby('s1');
$c->promote('s1');
$term++;
sound('without loss', 's2');
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's3')");
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");

# A move that is over is lost in the catalog. A shard that cannot be reached has to be waited for: until then nothing is changed, and nothing given
# out.
$c->add_standby('s1');
$c->cut_standby('s1');
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's3')");
$c->query('s2', "UPDATE t SET v = 'moved' WHERE k BETWEEN 501 AND 600");
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.migration_coordinator', '0'), 'the move is over');
$c->stop('s3');
$c->promote('s1', lossy => 1);
$term++;
like($c->error('s1', 'SELECT tessera.recover_node()'), qr/55000: .*could not connect to node "s3"/s, 'a shard is missing');
like($c->error('s2', "SELECT tessera.split_chunk('t', 700)"), qr/was promoted and has not compared its catalog/, 'no metadata is changed meanwhile');
like($c->error('s2', 'CREATE TABLE u (a int)'), qr/was promoted and has not compared its catalog|could not connect/, 'nor by DDL');
is($c->query('s2', 'SELECT count(*) FROM t WHERE k > 700'), '300', 'routing goes on as it was');
$c->start('s3');
sound('after a move', 's3');
is($c->query('s1', "SELECT count(*) FROM t WHERE v = 'moved'"), '100', 'after a move: rows');
is($c->query('s1', "SELECT state, error FROM tessera.migration ORDER BY started DESC LIMIT 1"), 'committed|', 'the migration itself is forgotten');
$c->query('s2', "SELECT tessera.move_range('t', 501, 601, 's2')");

# The commit is lost, and nobody was told of it: undone.
lose_config_at('s2', 's3', 'config_committed', registration => 0);
sound('committed, nobody told', 's2');

# The same, and the registration with it.
lose_config_at('s2', 's3', 'config_committed', registration => 1);
sound('registered and committed, nobody told', 's2');

# Both sides have acted on it: carried out.
lose_config_at('s2', 's3', 'donor_cleaning', registration => 1);
sound('carried out', 's3');
$c->query('s2', "SELECT tessera.move_range('t', 501, 601, 's2')");

# The donor has forgotten it, too: nobody would acknowledge the outcome again, and by it a range could be returned whose rows are gone.
lose_config_at('s2', 's3', 'donor_forgotten', registration => 0);
sound('acknowledged', 's3');
$c->query('s2', "SELECT tessera.move_range('t', 501, 601, 's2')");

# The config node is the recipient, too, and loses what it has received: the donor takes the range back.
lose_config_at('s2', 's1', 'donor_cleaning', registration => 1);
sound('received by the config node', 's2');

# The config node is the donor, too: it loses that it gave the range away.
$c->query('s2', "SELECT tessera.move_range('t', 501, 601, 's1')");
lose_config_at('s1', 's3', 'donor_cleaning', registration => 1);
sound('given by the config node', 's3');
$c->query('s1', "UPDATE t SET v = 'end' WHERE k BETWEEN 501 AND 600");
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");
is($c->query('s3', "SELECT count(*) FROM t WHERE v = 'end'"), '100', 'moves go on');

done_testing();
