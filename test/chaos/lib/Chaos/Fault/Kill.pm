package Chaos::Fault::Kill;

# A node loses power: kill -9 of all its processes at once; it is started again when the fault ends.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

sub begin
{
	my ($self, $cluster) = @_;
	$cluster->kill9($self->{node});
	return;
}

sub end
{
	my ($self, $cluster) = @_;
	$cluster->start($self->{node}) unless $cluster->runs($self->{node});
	return;
}

1;
