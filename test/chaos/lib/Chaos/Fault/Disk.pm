package Chaos::Fault::Disk;

# The disk of a node is full: no table or index grows, for user statements and for a recipient's rows alike.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

sub seconds
{
	return (0.5, 4);
}

sub begin
{
	my ($self, $cluster) = @_;
	$cluster->fill_disk($self->{node});
	return;
}

sub end
{
	my ($self, $cluster) = @_;
	$cluster->free_disk($self->{node});
	return;
}

1;
