# A shard that is being removed and holds nothing any more, but has a prepared transaction, or keeps an advisory lock, or does not answer: that is
# shown while it lasts, logged once, and the shard leaves when it has gone, though the next round of the balancer is an hour away. The removal itself
# is not attempted again meanwhile. What is in the way is an administrator's to read.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('drained', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.auto_split' => 'off', 'tessera.balancer_interval' => 3600, 'tessera.balancer_merge' => 'off', max_prepared_transactions => 20 });
$c->create(shards => 2);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "SELECT tessera.split_chunk('t', 100)");

$c->query('s1', 'CREATE ROLE anybody');

# Nothing but the balancer's own looks tells it that what is in the way has gone.
sub leaves_after
{
	my ($way, $shown, $begin, $end) = @_;
	my $way_shown = sub { return $c->wait_for('s1', "SELECT in_the_way ~ '$_[0]' FROM tessera.draining_shards WHERE chunks = 0", 't') };
	$c->query('s1', "SELECT tessera.move_range('t', 100, tessera.maxkey(), 's2')");
	my $logged = -s $c->node('s1')->logfile;
	$c->pause_at('s1', 'balancer_removing');
	like($c->query('s1', "SELECT tessera.remove_shard('s2')"), qr/^draining: /, "$way: the shard is to go");
	$c->paused_at('s1', 'balancer_removing') or BAIL_OUT("$way: the shard is not empty in time");
	my $held = $begin->();
	$c->go_on('s1', 'balancer_removing');
	ok($way_shown->($shown), "$way: what is in the way is shown") or diag $c->query('s1', 'SELECT * FROM tessera.draining_shards');
	like($c->query('s1', "SELECT detail FROM tessera.explain_balancer() WHERE kind = 'remove' AND donor = 's2'"), qr/$shown/, "$way: and explained");
	foreach (1 .. 3)
	{
		my $made = $c->query('s1', 'SELECT made FROM tessera.balancer_round');
		$c->wait_for('s1', "SELECT made > '$made' FROM tessera.balancer_round", 't') or BAIL_OUT("$way: no round more");
	}
	my $log = slurp_file($c->node('s1')->logfile, $logged);
	my @lines = grep { /$shown/ } $log =~ /(shard "s2" is empty, but cannot be removed yet: .*)/g;
	is(scalar @lines, 1, "$way: after several attempts it is logged once") or diag join "\n", @lines;
	my @refused = $log =~ /(ERROR: .*node "s2" cannot be removed: .*)/g;
	is(scalar @refused, 1, "$way: and was refused once") or diag join "\n", @refused;
	my $told = $c->query('s1', 'SET ROLE anybody; SELECT in_the_way FROM tessera.draining_shards');
	like($told, qr/cannot be removed yet$/, "$way: anybody reads that something is");
	unlike($told, qr/$shown/, "$way: but not what");
	$end->($held, $way_shown);
	ok($c->wait_for('s1', "SELECT count(*) FROM tessera.shards WHERE name = 's2'", 0), "$way: the shard leaves when that has gone");
	ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.identity', 0), "$way: and forgets the cluster");
	return;
}

leaves_after('a prepared transaction', 'prepared transaction',
	sub { $c->query('s2', "BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'held'") },
	sub {
		my ($held, $way_shown) = @_;
		$c->stop('s2');
		ok($way_shown->('does not answer'), 'another obstacle takes its place: it does not answer');
		$c->start('s2');
		$c->query('s2', "ROLLBACK PREPARED 'held'");
	});
$c->query('s1', sprintf("SELECT tessera.add_shard('s2', %s)", TesseraCluster::quote($c->conninfo('s2'))));
leaves_after('advisory locks', 'advisory locks',
	sub {
		my $session = $c->session('s1');
		$session->query_safe('SELECT pg_advisory_lock(k) FROM generate_series(1, 300) AS k');
		return $session;
	},
	sub { $_[0]->quit });
is($c->query('s1', 'SELECT count(*) FROM tessera.draining_shards'), 0, 'no shard is being removed');

done_testing();
