package Chaos::Fault::Freeze;

# SIGSTOP to a whole node, or to one process of it, and SIGCONT later: it neither answers nor closes its connections, and goes on where it was.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

sub plan
{
	my ($class, $random, @nodes) = @_;
	return (node => $random->pick(@nodes), process => $random->chance(0.5) ? 'all' : sprintf('%.3f', int($random->unit * 1000) / 1000));
}

sub seconds
{
	return (0.2, 4);
}

sub begin
{
	my ($self, $cluster) = @_;
	my ($postmaster, @children) = $cluster->processes($self->{node});
	if ($self->{process} eq 'all')
	{
		# The postmaster first: then nothing new is forked.
		$cluster->freeze($self->{node}, $postmaster);
		($postmaster, @children) = $cluster->processes($self->{node});
		$cluster->freeze($self->{node}, @children);
	}
	elsif (@children)
	{
		$cluster->freeze($self->{node}, $children[ int($self->{process} * @children) ]);
	}
	return;
}

sub end
{
	my ($self, $cluster) = @_;
	$cluster->thaw($self->{node});
	return;
}

1;
