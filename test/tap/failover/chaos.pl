# Servers are killed, crash, stand still, lose sight of each other, have a full disk, are replaced by their standby, while ranges move, split and
# merge under a load that checks itself: transfers, sets, counters, list appends (invariants 1 to 6). After each round everything is healed: every
# acknowledged write is there once, nothing is left in motion, every node agrees. A short run of what `make chaos` does for as long as you like; see
# doc/chaos.md.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../../chaos/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Chaos::Run;

my $seed = 33;
my $run = Chaos::Run->new(
	seed => $seed,
	seconds => 18,
	hurry => 1,
	directory => PostgreSQL::Test::Utils::tempdir(),
	say => sub { note($_[0]) });
$run->start;
# On a busy machine a round may end before much was done: another one then.
my ($written, $moved) = (0, 0);
foreach my $round (1 .. 8)
{
	my @findings = $run->round($round);
	is(join("\n", map { "$_->[0]: $_->[1]" } @findings), '', "seed $seed, round $round");
	$written = grep { $_->{outcome} eq 'ok' } @{ $run->{records} };
	# also those whose caller was cut off
	$moved = grep { $_->{state} eq 'committed' } $run->migrations;
	last if $written > 100 && $moved > 0;
}
note($_) foreach $run->report;
cmp_ok($written, '>', 100, 'there was load');
cmp_ok($moved, '>', 0, 'ranges have moved');
$run->quit;
done_testing();
