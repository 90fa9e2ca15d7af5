package Chaos::Fault::Link;

# The network between two nodes, or between one and all others, one way or both: held (nothing passes, nothing is closed), mute (what is asked passes,
# answers do not), dropped, slow, or narrow: what they say to each other by libpq, and the exchange of a migration's rows, in which the recipient
# connects to the donor.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

sub plan
{
	my ($class, $random, @nodes) = @_;
	my ($node, $other) = $random->sample(2, @nodes);
	my $kind = $random->weighted(hold => 3, mute => 2, drop => 3, slow => 2, throttle => 1);
	my $amount = $kind eq 'slow' ? 10 + $random->below(200) : $kind eq 'throttle' ? 2000 + $random->below(30000) : 0;
	return (node => $node, other => $random->chance(0.5) ? $other : '*', kind => $kind, amount => $amount,
		ways => $random->pick('in', 'out', 'both'));
}

sub seconds
{
	return (0.3, 5);
}

sub _set
{
	my ($self, $cluster, $fault) = @_;
	$cluster->network->link($self->{other}, $self->{node}, $fault) if $self->{ways} ne 'out';
	$cluster->network->link($self->{node}, $self->{other}, $fault) if $self->{ways} ne 'in';
	return;
}

sub begin
{
	my ($self, $cluster) = @_;
	$self->_set($cluster, $self->{amount} ? "$self->{kind} $self->{amount}" : $self->{kind});
	return;
}

sub end
{
	my ($self, $cluster) = @_;
	$self->_set($cluster, 'ok');
	return;
}

1;
