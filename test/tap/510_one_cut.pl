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
my $TIMES = $ENV{ONE_CUT_TIMES} // 30;

my $c = TesseraCluster->new('one_cut', settings => { 'tessera.advisory_locks' => 'node', 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
my $bank = TesseraBank->new($c);
$bank->is_whole('at the beginning');

# no ranges move
$bank->begin_writers(rate => 60);
$bank->is_right($bank->read(times => $TIMES), 'while money moves', 4 * $TIMES);
$c->set(undef, min_parallel_table_scan_size => 0, max_parallel_workers_per_gather => 1, parallel_setup_cost => 0, parallel_tuple_cost => 0);
# each statement starts workers, so there are fewer of them
$bank->is_right($bank->read(times => $TIMES / 3, readers => [ 'sum', 'groups', 'far_join', 'cursor_rr' ]), 'with parallel workers', 4 * $TIMES / 3);
$c->reset_settings;
foreach my $node ('s1', 'r1')
{
	$bank->dump_is_right($node, 'while money moves');
	$bank->dump_is_right($node, 'while money moves', '-j', 3);
}

# A transaction that holds its snapshot through moves, splits and merges sees what it saw.
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
foreach my $change (@changes)
{
	$c->query('s1', $change);
	my @others = grep { "@{ $first{$_} }[0, 1]" ne $session{$_}->query($reads[0]) . ' ' . $session{$_}->query($reads[1]) } sort keys %session;
	is(join(', ', @others), '', "all see the same after $change") or diag $session{ $others[0] }{stderr};
	$session{$_}{stderr} = '' foreach keys %session;
}
foreach my $who (sort keys %session)
{
	is(join(' ', map { scalar $session{$who}->query($_) } @reads), "@{ $first{$who} }", "$who: the same after all moves")
		or diag $session{$who}{stderr};
	$session{$who}->query('COMMIT');
	$session{$who}->quit;
}

# Ranges move to and fro while everybody reads.
my %sum;
foreach my $turn (1 .. 3)
{
	my $mover = $c->background('s1', join('; ', @changes));
	my $counts = $bank->read(times => 4);
	foreach my $reader (keys %$counts)
	{
		$sum{$reader}{$_} += $counts->{$reader}{$_} foreach 'checks', 'wrong', 'retries', 'errors';
		$sum{$reader}{first} //= $counts->{$reader}{first};
	}
	is($c->ended($mover), '', "the moves of turn $turn were made");
}
$bank->is_right(\%sum, 'while ranges move', 40);
$bank->dump_is_right('r1', 'after the moves');
$bank->end_writers;
$bank->is_whole('at the end');
$c->is_settled('at the end');
done_testing();
