package Chaos::Fault::Promote;

# A node loses power for good, and its standby, which has confirmed every commit, is promoted. The standby is made before the round.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

sub once
{
	return 1;
}

sub prepare
{
	my ($self, $cluster) = @_;
	$cluster->prepare_standby($self->{node});
	return;
}

sub begin
{
	my ($self, $cluster) = @_;
	$cluster->fail_over($self->{node});
	return;
}

sub finish
{
	my ($self, $cluster) = @_;
	$cluster->drop_standby($self->{node});
	return;
}

1;
