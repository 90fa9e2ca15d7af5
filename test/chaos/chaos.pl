# chaos.pl: rounds of chaos, as a TAP script; test/chaos/run prepares what it needs.
#
# SEED of the schedule and the clients (1); ROUNDS (3) or MINUTES; ROUND_SECONDS of a round (20); CLIENTS (3), MOVERS (1); FAULTS: words, see
# doc/chaos.md
#   SCHEDULE=1   prints the schedule and does nothing
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/lib";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use Chaos::Run;

my $run = Chaos::Run->new(
	seed => $ENV{SEED} || 1,
	seconds => $ENV{ROUND_SECONDS} || 20,
	clients => $ENV{CLIENTS} || 3,
	movers => $ENV{MOVERS} || 1,
	$ENV{FAULTS} ? (faults => [ split ' ', $ENV{FAULTS} ]) : (),
	hurry => $ENV{HURRY},
	directory => PostgreSQL::Test::Utils::tempdir(),
	say => sub { note($_[0]) });
my $rounds = $ENV{ROUNDS} || ($ENV{MINUTES} ? 0 : 3);
my $until = time + 60 * ($ENV{MINUTES} || 0);

if ($ENV{SCHEDULE})
{
	foreach my $round (1 .. $rounds || 1)
	{
		note("round $round\n" . $run->schedule($round)->text);
	}
	pass('the schedule is printed');
	done_testing();
	exit 0;
}

$run->start;
my $round = 0;
while ($rounds ? $round < $rounds : time < $until)
{
	$round++;
	my @findings = $run->round($round);
	my $sound = is(join("\n", map { "$_->[0]: $_->[1]" } @findings), '', "seed $run->{seed}, round $round");
	note($_) foreach $run->report;
	# What was lost once stays lost: a second round would tell nothing new.
	last unless $sound;
}
$run->quit;
done_testing();
