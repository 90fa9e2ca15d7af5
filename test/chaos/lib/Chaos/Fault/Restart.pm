package Chaos::Fault::Restart;

# A node is stopped, fast or immediately, and started again.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

sub plan
{
	my ($class, $random, @nodes) = @_;
	return (node => $random->pick(@nodes), mode => $random->pick('fast', 'immediate'));
}

sub begin
{
	my ($self, $cluster) = @_;
	$cluster->stop($self->{node}, $self->{mode});
	return;
}

sub end
{
	my ($self, $cluster) = @_;
	$cluster->start($self->{node}) unless $cluster->runs($self->{node});
	return;
}

1;
