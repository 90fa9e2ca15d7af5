# S45: no lock is held across a call to another node. Each call of a migration is held up at the node that is called; the processes of the others then
# hold no row, no lock of a user's table but the clone's, and nothing that a statement, another migration or a promoted config node would wait for.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('unlocked',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '2s' });
# s1 is the config node, s2 gives to s3.
$c->create(shards => 3);
$c->make_table([ 'tessera.minkey()', 'tessera.maxkey()', 's2' ]);
my $move = "SELECT tessera.move_range('t', 501, 601, 's3')";

# Locks of a node's processes of migrations: rows (whoever locks one has a transaction id), relations of this extension beyond RowShareLock, tables of
# users at all.
my $locks = "SELECT a.backend_type, l.locktype, l.mode, l.relation::regclass FROM pg_locks l JOIN pg_stat_activity a USING (pid)
	WHERE a.backend_type ~ '^tessera (migration|range)' AND (l.locktype IN ('transactionid', 'tuple', 'object', 'advisory')
	OR l.locktype = 'relation' AND (l.mode NOT IN ('AccessShareLock', 'RowShareLock') OR l.relation = 't'::regclass)) ORDER BY 1, 2, 3, 4";
my $placement = "BEGIN; SET LOCAL lock_timeout = 1; LOCK TABLE tessera.placement, tessera.migration_coordinator, tessera.migration_recipient; " .
	"ROLLBACK";

# The nodes that do not carry out the call themselves.
sub unlocked
{
	my ($what, $clones, @nodes) = @_;
	foreach my $node (@nodes)
	{
		my $may = $node eq ($clones // '') ? 'tessera migration cloner|relation|AccessShareLock|t' : '';
		is($c->query($node, $locks), $may, "$what: no lock on $node");
		is(($c->psql($node, $placement))[0], 0, "$what: nothing of the catalog is locked on $node");
	}
	return;
}

# Runs a move with the call held up at a point of a node. error: [ node, point ] at which the move fails; clones: the node that holds the clone's lock
# then.
sub held
{
	my ($node, $point, %params) = @_;
	$c->pause_at($node, $point);
	$c->query($params{error}[0], "SELECT tessera_test.injection_set('$params{error}[1]', 'error')") if $params{error};
	my $session = $c->begin('s1', $move);
	$c->is_paused_at($node, $point);
	unlocked($point, $params{clones}, grep { $_ ne $node } $c->names);
	$c->go_on($_) foreach $c->names;
	$c->finish($session);
	$c->is_settled($point);
	return;
}

sub back
{
	$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");
	ok($c->wait_for('s3', 'SELECT count(*) FROM tessera.range_deletions', '0', 60), 'moved back');
	return;
}

held('s1', 'config_registered');
back();
held('s2', 'donor_noted');
back();
held('s3', 'recipient_noted');
back();
# While it clones, the donor asks the recipient how it fares: with the clone's lock, and no other. The rate keeps the clone from its end.
$c->query('s2', $_) foreach ('ALTER SYSTEM SET tessera.migration_max_rate = 1', 'SELECT pg_reload_conf()');
held('s3', 'recipient_batch', clones => 's2');
$c->query('s2', $_) foreach ('ALTER SYSTEM RESET tessera.migration_max_rate', 'SELECT pg_reload_conf()');
back();
held('s1', 'config_deciding');
back();
held('s3', 'recipient_releasing');
back();
held('s1', 'config_fencing', error => [ 's2', 'donor_steady' ]);
held('s3', 'recipient_discarding', error => [ 's2', 'donor_steady' ]);

# A promoted shard asks for its range to be returned.
$c->add_standby('s3');
$c->cut_standby('s3');
$c->pause_at('s1', 'config_returning');
$c->pause_at('s2', 'donor_cleaning');
my $session = $c->session('s1', on_error_stop => 0);
$session->query_until(qr/begun/, "\\echo begun\n$move;\n");
ok($c->paused_at('s2', 'donor_cleaning'), 'the move is committed, not acknowledged');
$c->promote('s3', lossy => 1);
ok($c->paused_at('s1', 'config_returning', 60), 'the promoted recipient asks for the range to be returned');
unlocked('config_returning', undef, 's2', 's3');
$c->go_on($_) foreach ('s1', 's2');
$session->query('SELECT 1');
$session->quit;
ok($c->wait_for('s3', 'SELECT placements_known FROM tessera.promotion_status()', 't', 60), 'the promoted server knows what it owns');
is($c->query('s1', 'SELECT count(*), count(DISTINCT k) FROM t'), '1000|1000', 'each row is there once');
ok($c->wait_for('s1', "SELECT tessera.range_owner('t', 550)", 's2'), 'the range is the donor\'s again');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migration WHERE state = 'running'", '0', 60), 'no migration runs');
ok($c->wait_for('s3', 'SELECT count(*) FROM tessera.range_deletions', '0', 60), 'nothing is left on the promoted server');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');

done_testing();
