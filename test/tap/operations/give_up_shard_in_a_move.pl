# A shard is lost for good while a range moves to it or away from it, and is given up (src/config/give_up_shard.c). What the other shard has of the
# range is not lost: a move that its donor still has the rows of is returned, one that the recipient has been given stands. Nothing is left behind.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('lost_in_move',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '5s',
		'tessera.connect_timeout' => '2s', 'tessera.registry_refresh_interval' => 1 });
# s1 is the config node, s2 gives, s3 gets.
$c->create(shards => 3);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);
my $move = "SELECT tessera.move_range('t', 501, 601, 's3')";
my $number = 0;

# Returns what was said to be lost of t.
sub lose
{
	my ($name) = @_;
	my $place = 'new' . ++$number;
	$c->start_node($place);
	$c->stop($name, 'immediate');
	my $word = $c->query('s1', "SELECT DISTINCT confirm_with FROM tessera.give_up_shard('$name')");
	my $at = TesseraCluster::quote($c->conninfo($place));
	my $lost = $c->query('s1', "SELECT min, max FROM tessera.give_up_shard('$name', '$word', $at) WHERE object = 'public.t'");
	$c->{nodes}{$name} = delete $c->{nodes}{$place};
	$c->{order} = [ grep { $_ ne $place } @{ $c->{order} } ];
	return $lost;
}

# A range that stays on the recipient, and is lost with it.
$c->query('s1', "SELECT tessera.move_range('t', 901, tessera.maxkey(), 's3')");

# Committed, but the donor has not acknowledged it.
$c->while_paused('s2', 'donor_cleaning', $move, sub {
	is(lose('s3'), '901|MAXKEY', 'the range that the donor still has is not lost');
	$c->go_on('s2');
});
$c->is_sound('returned', 900, 's2');
$c->query('s2', "INSERT INTO t SELECT g, 'new' FROM generate_series(901, 1000) AS g");

# In the middle of the clone: aborted.
$c->while_paused('s3', 'recipient_cloned', $move, sub { is(lose('s3'), '901|MAXKEY', 'a range that had not come is not lost'); });
$c->is_sound('recipient in the clone', 900, 's2');

# The donor, when the config node has decided and nobody was told: the recipient has the rows.
$c->while_paused('s2', 'config_committed', $move, sub { is(lose('s2'), '601|901', 'the range that has moved is not lost'); });
$c->is_sound('donor after the decision', 600, 's3');

# The donor in the middle of the clone: the range is lost with it.
$c->query('s1', $_)
  foreach ("SELECT tessera.move_range('t', 501, 601, 's2')", "INSERT INTO t SELECT g, 'new' FROM generate_series(601, 700) AS g");
$c->while_paused('s2', 'donor_cloned', $move, sub { is(lose('s2'), '501|901', 'a range that was not moved is lost'); });
$c->is_sound('donor in the clone', 500, 's2');
$c->query('s1', "INSERT INTO t SELECT g, 'new' FROM generate_series(501, 1000) AS g; $move");
$c->is_sound('moves work', 1000, 's3');

done_testing();
