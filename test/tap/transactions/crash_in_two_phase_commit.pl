# A crash at each step of a two-phase commit (doc/design.md#two-phase; invariant 6): of the router, of a coordinator that is the router itself, of a
# participant. When the nodes are back, all of the transaction is there or nothing of it, nothing stays prepared, and a decision is forgotten only
# when no participant can ask for it any more.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('resolver', settings => { 'tessera.injection_points' => 'on', restart_after_crash => 'on',
	log_min_messages => 'warning' });
$c->start_nodes('s1', 's2', 's3');
$c->query('s1', 'CREATE TABLE acc (id int PRIMARY KEY, what text)');
$c->create(shards => 3);
$c->query('s1', "SELECT tessera.shard_table('acc', 'id', 'hash', chunks => 12)");
ok($c->wait_for($_, 'SELECT count(DISTINCT shard) FROM tessera.chunks', '3'), "$_ knows the chunks") foreach $c->names;

my %ids = map { $_ => [] } $c->names;
foreach my $line (split /\n/, $c->query('s1', "SELECT g, tessera.range_owner('acc', g) FROM generate_series(1, 400) g"))
{
	my ($id, $owner) = split /\|/, $line;
	push @{ $ids{$owner} }, $id;
}
sub id { my ($shard) = @_; return shift @{ $ids{$shard} }; }

sub present { my (@wanted) = @_; return $c->query('s2', 'SELECT count(*) FROM acc WHERE id IN (' . join(',', @wanted) . ')'); }
sub prepared { return join(',', map { $c->query($_, 'SELECT count(*) FROM pg_prepared_xact()') } $c->names); }
sub resolve { $c->query($_, "SELECT * FROM tessera.resolve_transactions('0')") foreach @_; return; }
sub decisions { my ($name) = @_; return $c->query($name, 'SELECT count(*) FROM tessera.transaction_decision'); }
sub script { return 'BEGIN; ' . join('; ', map { "INSERT INTO acc VALUES ($_, 'x')" } @_) . '; COMMIT'; }

# The session dies at the point, and its server with it, which comes back at once.
sub crash_at
{
	my ($point, @wanted) = @_;
	my $checkpointer = $c->query('s1', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
	$c->query('s1', "SELECT tessera_test.injection_set('$point', 'crash')");
	my ($status) = $c->psql('s1', script(@wanted));
	isnt($status, 0, "the router dies at $point");
	ok($c->wait_for('s1', "SELECT pid <> $checkpointer FROM pg_stat_activity WHERE backend_type = 'checkpointer'"), 'and comes back');
	return;
}

# The three steps: before PREPARE, when all have prepared, when it is decided; the coordinator is s2, or the router itself.
foreach my $writers ([ 's2', 's3' ], [ 's1', 's2', 's3' ])
{
	foreach my $step ([ 'commit_decision_written', 0 ], [ 'commit_prepared', 0 ], [ 'commit_decided', 1 ])
	{
		my ($point, $committed) = @$step;
		my @wanted = map { id($_) } @$writers;
		crash_at($point, @wanted);
		resolve('s2', 's3');
		is(present(@wanted), $committed ? @wanted : 0, "writers @$writers, router dies at $point: " .
			($committed ? 'all is there' : 'nothing is there'));
		is(prepared(), '0,0,0', 'nothing stays prepared');
	}
}

# Forgotten decisions: not while a participant has it prepared, cannot be asked, or has a standby that has not got it.
sub pause_with_s3
{
	my ($point, @wanted) = @_;
	my $session = $c->session('s1', on_error_stop => 0);
	$c->pause_at('s1', $point);
	$session->query_safe('SET tessera.commit_timeout = 2000');
	$session->query_until(qr/started/, "\\echo started\n" . script(@wanted) . ";\n");
	ok($c->paused_at('s1', $point), "$point is reached");
	return $session;
}

{
	my @wanted = map { id($_) } 's1', 's3';
	my $session = pause_with_s3('commit_decision_written', @wanted);
	$c->kill9('s3');
	$c->go_on('s1');
	$session->query('SELECT 1');
	like($session->{stderr}, qr/ERROR/, 'a participant that dies before PREPARE fails the commit');
	$session->quit;
	$c->start('s3');
	is(present(@wanted), 0, 'and nothing is there');
}

$c->query($_, "SELECT tessera.prune_decisions('0')") foreach $c->names;
is(join(',', map { decisions($_) } $c->names), '0,0,0', 'decisions that all have carried out are forgotten');

{
	my @wanted = map { id($_) } 's1', 's3';
	my $session = pause_with_s3('commit_prepared', @wanted);
	like($c->query('s3', 'SELECT state, coordinator, waits_for, age < interval \'1 minute\' FROM tessera.distributed_transactions'),
		qr/^prepared\|s1\|decision of s1\|t$/, 'what it waits for is shown');
	$c->kill9('s3');
	$c->go_on('s1');
	$session->query('SELECT 1');
	like($session->{stderr}, qr/WARNING.*not confirmed/s, 'a participant that dies after PREPARE does not undo the commit');
	$session->quit;
	is($c->query('s1', "SELECT tessera.prune_decisions('0')"), '0', 'a participant that cannot be asked may need the decision');
	$c->start('s3');
	if ($c->query('s3', 'SELECT count(*) FROM pg_prepared_xact()') eq '1')
	{
		is($c->query('s1', "SELECT tessera.prune_decisions('0')"), '0', 'so may one that has it prepared');
		is(decisions('s1'), '1', 'the decision is kept');
	}
	ok($c->wait_for('s3', 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), 'the resolver finishes it by itself');
	is(present(@wanted), 2, 'and all of it is there');
	$c->query('s3', "SELECT pg_create_physical_replication_slot('away', true)");
	is($c->query('s1', "SELECT tessera.prune_decisions('0')"), '0', 'a standby that is away may need the decision');
	$c->query('s1', "UPDATE tessera.transaction_decision SET decided = decided - interval '3 minutes', finished = NULL");
	is($c->query('s1', 'SELECT state, waits_for FROM tessera.distributed_transactions'), 'committed|confirmation of s3',
		'the coordinator shows whom it waits for');
	$c->query('s3', "SELECT pg_drop_replication_slot('away')");
	is($c->query('s1', "SELECT tessera.prune_decisions('0'); "), '1', 'without it nobody does');
	is(decisions('s1'), '0', 'and it is forgotten');
}

# More than are asked for at once; a participant that is away holds up its own alone.
{
	my $left = "SELECT string_agg(participants[1] || ': ' || n, ', ' ORDER BY participants) FROM (SELECT participants, count(*) AS n
		FROM tessera.transaction_decision WHERE gid LIKE 'tessera_00000000%' GROUP BY 1) d";
	$c->query('s1', "INSERT INTO tessera.transaction_decision (gid, outcome, participants, decided)
		SELECT 'tessera_' || lpad(to_hex(i), 32, '0') || '_1', 'commit', ARRAY[2 + i % 2], now() - interval '1 hour' + i % 7 * interval '1 minute'
		FROM generate_series(1, 6000) i");
	$c->kill9('s2');
	$c->query('s1', "SELECT tessera.prune_decisions('0')");
	is($c->query('s1', $left), '2: 3000', 'those of the node that is there are gone, all of them');
	$c->start('s2');
	$c->query('s1', "SELECT tessera.prune_decisions('0')");
	is($c->query('s1', $left), '', 'the others when it is back');
}

done_testing();
