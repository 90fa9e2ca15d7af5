package Chaos::Workload;

# What clients do, and how it is checked. One module of Chaos/Workload for each kind of work:
#
#   name          a word; begins the names of its checks
#   tables        {name => how its keys are made}, for the mover: see key_of
#   setup         statements that make and fill the tables, to be run on the config node
#   round(n)      statements before round n
#   step          one piece of work on a connection: ($connection, $random, $next_id, $round); returns what is logged: {kind, outcome, state, ...}
#   final         {name => query}: asked on every node when a round is over and all is quiet
#   check         ([records of all rounds], {node => {name => [rows]}}): findings, each [name of the check, text]
#
# A check's name is fixed: the tests of the checks go by it. Findings of one name are told a few at a time.

use strict;
use warnings FATAL => 'all';

my $TOLD = 3;

sub new
{
	my ($class, %params) = @_;
	return bless { $class->defaults, %params }, $class;
}

sub defaults
{
	return ();
}

sub round
{
	return ();
}

# The outcome of an answer, as it is logged.
sub outcome
{
	my ($answer) = @_;
	return (outcome => $answer->{outcome}, $answer->{outcome} eq 'ok' ? () : (state => $answer->{state}, message => $answer->{message}));
}

# Findings of one check, shortened.
sub findings
{
	my ($check, @texts) = @_;
	my $more = @texts - $TOLD;
	splice @texts, $TOLD if $more > 0;
	push @texts, "and $more more" if $more > 0;
	return map { [ $check, $_ ] } @texts;
}

1;
