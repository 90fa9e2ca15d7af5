package Chaos::Fault::Crash;

# One process of a node is killed by kill -9; the server ends all others and recovers by itself (restart_after_crash).

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

sub plan
{
	my ($class, $random, @nodes) = @_;
	return (node => $random->pick(@nodes), process => sprintf('%.3f', int($random->unit * 1000) / 1000));
}

sub seconds
{
	return (0.5, 1);
}

sub begin
{
	my ($self, $cluster) = @_;
	my ($postmaster, @children) = $cluster->processes($self->{node});
	kill 'KILL', $children[ int($self->{process} * @children) ] if @children;
	return;
}

1;
