package Chaos::Fault;

# One thing that goes wrong, from `begin` to `end`. Each kind is a small class of Chaos/Fault:
#
#   plan(random, nodes)   arguments of one fault, as a hash of words; the same numbers give the same fault
#   node                  the node that it is about: no second fault is begun there meanwhile
#   prepare               on the cluster, before the load of the round begins
#   begin, end            on the cluster; `end` leaves it whole
#   finish                after the round, if it was prepared
#   seconds               how long it lasts, least and most

use strict;
use warnings FATAL => 'all';

sub new
{
	my ($class, %plan) = @_;
	return bless {%plan}, $class;
}

sub plan
{
	my ($class, $random, @nodes) = @_;
	return (node => $random->pick(@nodes));
}

sub node
{
	my ($self) = @_;
	return $self->{node};
}

sub seconds
{
	return (0.2, 3);
}

sub prepare
{
	return;
}

sub end
{
	return;
}

sub finish
{
	return;
}

# True if a round can have only one of its kind.
sub once
{
	return 0;
}

sub text
{
	my ($self) = @_;
	my ($kind) = ref($self) =~ /(\w+)$/;
	return join(' ', lc $kind, map { "$_=$self->{$_}" } sort keys %$self);
}

1;
