# Money moves between accounts of three shards, by all kinds of transactions and from every node, and every statement that adds the accounts up sees
# one moment of them: each transaction whole or not at all, at every isolation level, in every way to read; a transaction at REPEATABLE READ or
# SERIALIZABLE sees the same again and again, and goes on through moves, splits and merges (doc/design.md#cluster-time).
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraBank;
use TesseraCluster;

# Each reader is checked so often on each of four nodes.
my $TIMES = $ENV{ONE_CUT_TIMES} // (TesseraCluster::long() ? 30 : 6);

my $c = TesseraCluster->new('one_cut', settings => { 'tessera.snapshot_reads' => 'on',
	'tessera.advisory_locks' => 'node', 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
my $bank = TesseraBank->new($c);
$bank->is_whole('at the beginning');

# no ranges move
$bank->begin_writers(rate => TesseraCluster::long() ? 60 : 15);
$bank->is_right($bank->read(times => $TIMES), 'while money moves', 4 * $TIMES);
$c->set(undef, min_parallel_table_scan_size => 0, max_parallel_workers_per_gather => 1, parallel_setup_cost => 0, parallel_tuple_cost => 0);
# each statement starts workers, so there are fewer of them
$bank->is_right($bank->read(times => $TIMES / 3, readers => [ 'sum', 'groups', 'far_join', 'cursor_rr' ]), 'with parallel workers', 4 * $TIMES / 3);
$c->reset_settings;
# One process: what it exports for others (-j) is this node's snapshot alone (doc/design.md#one-snapshot).
$bank->dump_is_right($_, 'while money moves') foreach 's1', 'r1';

# A transaction that holds its snapshot through moves, splits and merges sees what it saw, or is told to retry.
my @reads = ("SELECT count(*), sum(bal) FROM acc", "SELECT md5(string_agg(k || ' ' || bal, ',' ORDER BY k)) FROM acc",
	'SELECT (SELECT sum(bal) FROM pot) + (SELECT sum(amount) FROM purse)', 'SELECT bal FROM acc WHERE k = 120', 'SELECT bank_loop()');
my @changes = (
	"SELECT tessera.move_range('acc', 101, 151, 's3')", "SELECT tessera.move_range('acc', 41, 101, 's2')", "SELECT tessera.split_chunk('acc', 20)",
	"SELECT tessera.merge_chunks('acc', tessera.minkey(), 41)", "SELECT tessera.move_range('acc', 101, 151, 's1')",
	"SELECT tessera.move_range('acc', 41, 101, 's1')", "SELECT tessera.move_range('acc', 101, 151, 's2')");
my (%session, %first);
foreach my $level ('REPEATABLE READ', 'SERIALIZABLE READ ONLY')
{
	foreach my $node (@nodes)
	{
		my $who = "$level on $node";
		$session{$who} = $c->session($node, on_error_stop => 0);
		$session{$who}->query("\\set VERBOSITY verbose\nBEGIN ISOLATION LEVEL $level");
		$first{$who} = [ map { scalar $session{$who}->query($_) } @reads ];
		is("@{ $first{$who} }[0, 2, 4]", '300|300000 300000 300000', "$who: one sum") or diag $session{$who}{stderr};
	}
}
my %ended;
foreach my $change (@changes)
{
	$c->query('s1', $change);
	my @others;
	foreach my $who (grep { !$ended{$_} } sort keys %session)
	{
		$session{$who}{stderr} = '';
		my @now = map { scalar $session{$who}->query($_) } @reads;
		$ended{$who} = $session{$who}{stderr} =~ /40001/;
		push @others, $who if !$ended{$who} && "@now" ne "@{ $first{$who} }";
		push @others, $who if $ended{$who} && grep { $now[$_] ne '' && $now[$_] ne $first{$who}[$_] } 0 .. $#reads;
	}
	is(join(', ', @others), '', "all see the same after $change");
}
foreach my $who (sort keys %session)
{
	$session{$who}->query('ROLLBACK');
	$session{$who}->quit;
}

# Ranges move to and fro while everybody reads.
my ($turns, $times) = TesseraCluster::long() ? (3, 4) : (2, 2);
my %sum;
foreach my $turn (1 .. $turns)
{
	my $mover = $c->background('s1', join('; ', @changes));
	my $counts = $bank->read(times => $times);
	foreach my $reader (keys %$counts)
	{
		$sum{$reader}{$_} += $counts->{$reader}{$_} foreach 'checks', 'wrong', 'retries', 'errors';
		$sum{$reader}{first} //= $counts->{$reader}{first};
	}
	is($c->ended($mover), '', "the moves of turn $turn were made");
}
$bank->is_right(\%sum, 'while ranges move', 4 * $turns * $times * 5 / 6);
$bank->dump_is_right('r1', 'after the moves');
$bank->end_writers;
$bank->is_whole('at the end');
$c->is_settled('at the end');
done_testing();
