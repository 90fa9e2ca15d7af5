# A transaction that a client prepares survives the death (SIGKILL) of any node at any step: before the config node's row is committed it is rolled
# back everywhere, after it it stays until the client decides, and after the decision all of it ends so. A lossy failover of the config node never
# leaves it committed on one node and rolled back on another (doc/design.md#prepared-transactions).
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('prepared_crash', settings => { 'tessera.injection_points' => 'on', restart_after_crash => 'on' });
$c->create(shards => 3);
my @nodes = $c->names;
$c->query('s1', $_) foreach ('CREATE TABLE acc (k int PRIMARY KEY, v int)', "SELECT tessera.shard_table('acc', 'k', 'hash', chunks => 12)");
ok($c->wait_for($_, 'SELECT count(DISTINCT shard) FROM tessera.chunks', '3'), "$_ knows the chunks") foreach @nodes;
my %keys;
foreach my $line (split /\n/, $c->query('s1', "SELECT g, tessera.range_owner('acc', g) FROM generate_series(1, 600) g"))
{
	my ($key, $owner) = split /\|/, $line;
	push @{ $keys{$owner} }, $key;
}
sub k { my ($shard) = @_; return shift @{ $keys{$shard} }; }

# Rows of these keys, on each node; parts prepared on each node; what is listed. All nodes must answer again.
sub rows { my $list = join(',', @_); return join(',', map { $c->query($_, "SELECT count(*) FROM acc WHERE k IN ($list)") } @nodes); }
sub parts { return join(',', map { $c->query($_, 'SELECT count(*) FROM pg_prepared_xact()') } @nodes); }
sub listed { my ($node) = @_; return $c->query($node // 's1', "SELECT coalesce(string_agg(gid, ',' ORDER BY gid), '') FROM pg_prepared_xacts"); }
sub up { ok($c->wait_for($_, 'SELECT 1', '1', 60), "$_ is back") foreach @nodes; return; }

# Nothing is left prepared, all of it or nothing is there.
sub ended
{
	my ($what, $expected, @k) = @_;
	up();
	foreach my $node (@nodes)
	{
		$c->psql($node, "SELECT tessera.resolve_transactions('0')");
		ok($c->wait_for($node, 'SELECT count(*) FROM pg_prepared_xact()', '0', 90), "$what: nothing stays prepared on $node");
	}
	is(rows(@k), join(',', ($expected) x 3), "$what: " . ($expected ? 'committed' : 'rolled back') . ' on all nodes');
	is(listed(), '', "$what: no longer listed");
	return;
}

# What became of it by then: rolled back, prepared, or decided.
my @steps = (
	[ 'PREPARE', 'prepare_others_prepared', 'rolled back' ], [ 'PREPARE', 'prepare_prepared', 'rolled back' ],
	[ 'PREPARE', 'prepare_recorded', 'prepared' ],
	[ 'COMMIT', 'finish_decided', 'decided' ], [ 'COMMIT', 'prepared_noted', 'decided' ], [ 'ROLLBACK', 'finish_decided', 'decided' ],
	[ 'ROLLBACK', 'prepared_noted', 'decided' ]);

# Not every step on every node, but in make test-long.
my %some = (
	's1' => { map { $_ => 1 } 'PREPARE prepare_prepared', 'PREPARE prepare_recorded', 'COMMIT finish_decided' },
	's2' => { map { $_ => 1 } map { "$_->[0] $_->[1]" } @steps },
	's3' => { map { $_ => 1 } 'PREPARE prepare_others_prepared', 'COMMIT finish_decided' });
sub wanted { my ($node, $step) = @_; return TesseraCluster::long() || $some{$node}{"$step->[0] $step->[1]"}; }

# The node of the client dies: one that takes part, then the config node itself.
foreach my $node ('s2', 's1')
{
	foreach my $step (grep { wanted($node, $_) } @steps)
	{
		my ($command, $point, $state) = @$step;
		my $what = "$node dies at $point of $command";
		my @k = map { k($_) } @nodes;
		my $prepare = 'BEGIN; ' . join('; ', map { "INSERT INTO acc VALUES ($_, 1)" } @k) . "; PREPARE TRANSACTION 'g'";
		$c->query($node, $prepare) if $command ne 'PREPARE';
		$c->query($node, "SELECT tessera_test.injection_set('$point', 'crash')");
		my ($status, $out, $err) = $c->psql($node, $command eq 'PREPARE' ? $prepare : "$command PREPARED 'g'");
		isnt($status, 0, "$what: the client gets no answer");
		up();
		if ($state eq 'prepared')
		{
			is(listed('s3'), 'g', "$what: it is prepared");
			$c->query($_, "SELECT tessera.resolve_transactions('0')") foreach @nodes;
			is(parts(), '1,1,1', "$what: all of it");
			$c->query('s3', "COMMIT PREPARED 'g'");
		}
		ended($what, $state eq 'prepared' || $command eq 'COMMIT' ? 3 : 0, @k);
		like($c->error('s3', "COMMIT PREPARED 'g'"), qr/42704/, "$what: it is over");
	}
}

# Another node dies: the config node, or one that takes part only.
foreach my $victim ('s1', 's3')
{
	foreach my $step (grep { wanted($victim, $_) } @steps)
	{
		my ($command, $point, $state) = @$step;
		my $what = "$victim dies while $command of s2 is at $point";
		my @k = map { k($_) } @nodes;
		my $prepare = 'BEGIN; ' . join('; ', map { "INSERT INTO acc VALUES ($_, 1)" } @k) . "; PREPARE TRANSACTION 'g'";
		next if $point eq 'prepared_noted';
		$c->query('s2', $prepare) if $command ne 'PREPARE';
		$c->pause_at('s2', $point);
		my $session = $c->begin('s2', $command eq 'PREPARE' ? $prepare : "$command PREPARED 'g'");
		ok($c->paused_at('s2', $point), "$what: paused");
		$c->kill9($victim);
		$c->go_on('s2', $point);
		my $said = $c->finish($session);
		$c->start($victim);
		up();
		# a participant that is prepared already does not have to live on; the config node has to
		my $prepared = $command eq 'PREPARE' && ($victim eq 's3' || $state eq 'prepared') ? 1 : 0;
		if ($command eq 'PREPARE')
		{
			$prepared ? unlike($said, qr/ERROR/, "$what: goes on") : like($said, qr/ERROR:  08/, "$what: the client gets an error");
			is(listed(), $prepared ? 'g' : '', "$what: " . ($prepared ? 'it is prepared' : 'it is not prepared'));
			$c->query('s3', "ROLLBACK PREPARED 'g'") if $prepared;
		}
		else
		{
			like($said, qr/WARNING.*node "$victim" has not confirmed/s, "$what: warns");
		}
		ended($what, $command eq 'COMMIT' ? 3 : 0, @k);
	}
}

# Somebody takes a PREPARE that takes too long for dead, and wins.
{
	my @k = map { k($_) } @nodes;
	$c->pause_at('s2', 'prepare_prepared');
	my $session = $c->begin('s2', 'BEGIN; ' . join('; ', map { "INSERT INTO acc VALUES ($_, 1)" } @k) . "; PREPARE TRANSACTION 'slow'");
	ok($c->paused_at('s2', 'prepare_prepared'), 'a PREPARE that takes long');
	$c->query('s3', "SELECT tessera.resolve_transactions('0')");
	$c->go_on('s2');
	like($c->finish($session), qr/40000.*took too long/s, 'fails');
	ended('a PREPARE that took too long', 0, @k);
}

# A lossy failover of the config node. What it lost: a transaction (lost), one with its end (both), the end of one (kept), nothing (idle).
{
	$c->add_standby('s1');
	my %k = map { $_ => [ k('s2'), k('s3') ] } qw(idle kept lost both);
	my $prepare = sub { my ($gid) = @_;
	$c->query('s2', 'BEGIN; ' . join('; ', map { "INSERT INTO acc VALUES ($_, 1)" } @{ $k{$gid} }) . "; PREPARE TRANSACTION '$gid'"); };
	$prepare->($_) foreach qw(idle kept);
	$c->catch_up('s1');
	$c->cut_standby('s1');
	$prepare->($_) foreach qw(lost both);
	$c->kill9('s3');
	$c->query('s2', "COMMIT PREPARED '$_'") foreach qw(kept both);
	$c->promote('s1', lossy => 1, tell => 's2');
	ok($c->wait_for('s2', 'SELECT count(*) FROM pg_prepared_xacts', '2', 60), 'the promoted config node answers');
	like($c->error('s2', "ROLLBACK PREPARED 'kept'"), qr/42704.*committed before/s, 'what was committed before cannot be rolled back');
	like($c->error('s2', "COMMIT PREPARED 'idle'"), qr/08006.*may have lost/s, 'and nothing is decided before all nodes were asked');
	$c->start('s3');
	ok($c->wait_for('s3', 'SELECT 1', '1', 60), 's3 is back');
	$c->query('s2', "COMMIT PREPARED 'idle'");
	ended('after a lossy failover', 6, map { @{ $k{$_} } } qw(idle kept both));
	ended('a transaction that was lost', 0, @{ $k{lost} });
}
# the promoted config node asks again those that it could not reach, and shards raise their versions with the new term
$c->wait_for('s1', 'SELECT count(*) FROM tessera.check_consistency()', '0', 90);
is($c->query('s1', 'SELECT * FROM tessera.check_consistency()'), '', 'all is consistent');
done_testing();
