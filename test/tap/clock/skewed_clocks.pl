# Clocks of nodes that are 5 seconds apart, and one that is set back while all write: whoever adds up the accounts still sees one moment of them, and
# what was acknowledged is seen by the next statement of any node (doc/design.md#cluster-time). Only waits may grow; how much is told.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraBank;
use TesseraCluster;
use Time::HiRes qw(time);

my $c = TesseraCluster->new('skew', settings => { 'tessera.snapshot_reads' => 'on',
	'tessera.advisory_locks' => 'node', 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
my $bank = TesseraBank->new($c);
my @readers = ('sum', 'chain', 'two_tables', 'far_join', 'rr', 'rr_late', 'cursor', 'copy_table', 'insert_select', 'plpgsql_loop');

sub shift_clocks
{
	my (%ms) = @_;
	foreach my $node (sort keys %ms)
	{
		$c->set($node, 'tessera.clock_shift' => $ms{$node});
		ok($c->wait_for($node, "SELECT setting FROM pg_settings WHERE name = 'tessera.clock_shift'", $ms{$node}, 30),
			"$node is off by $ms{$node} ms");
	}
	return;
}

# Each write, of one shard or of two, is seen at once by way of every other node: in all of them, at both levels.
sub sees_at_once
{
	my ($what) = @_;
	my %session = map { $_ => $c->session($_) } @nodes;
	my ($late, $n, $longest) = (0, 0, 0);
	foreach my $turn (1 .. (TesseraCluster::long() ? 10 : 2))
	{
		foreach my $writer (@nodes)
		{
			$n++;
			$session{$writer}->query_safe("UPDATE holder SET name = 'seen $n' WHERE k " . ($turn % 2 ? '= ' . (1 + $n % 300) : 'IN (50, 150, 250)'));
			foreach my $reader (grep { $_ ne $writer } @nodes)
			{
				my $begun = time;
				my $seen = $session{$reader}->query_safe("SELECT count(*) FROM holder WHERE name = 'seen $n'");
				$longest = time - $begun if time - $begun > $longest;
				$late++ if $seen ne ($turn % 2 ? '1' : '3');
				$late++ if $session{$reader}->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ;\n"
					. "SELECT count(*) FROM holder WHERE name = 'seen $n';\nCOMMIT") ne ($turn % 2 ? '1' : '3');
			}
		}
	}
	is($late, 0, sprintf('%s: all of %d writes are seen at once; longest read %.3f s', $what, $n, $longest));
	$_->quit foreach values %session;
	return;
}

sub is_right
{
	my ($what) = @_;
	my $begun = time;
	my $times = TesseraCluster::long() ? 8 : 3;
	$bank->is_right($bank->read(times => $times, readers => \@readers), $what, $times * @nodes);
	note(sprintf('%s: %.2f s', $what, time - $begun));
	sees_at_once($what);
	is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency()'), '0', "$what: consistent");
	return;
}

$bank->begin_writers(rate => TesseraCluster::long() ? 60 : 10);
is_right('one clock');
shift_clocks(s2 => 5000, s3 => -5000, r1 => 2500);
is_right('shards 10 s apart');
shift_clocks(s1 => 5000, s2 => -5000, s3 => 0, r1 => -5000);
is_right('clocks set back by 10 s');
$c->query('s1', "SELECT tessera.move_range('acc', 101, 151, '$_')") foreach 's1', 's3', 's2';
is_right('after moves between them');
shift_clocks(s1 => -3600_000);
is_right('one set back by an hour');
$bank->end_writers('with clocks apart');
$bank->is_whole('at the end');
$c->is_settled('at the end');
done_testing();
