package Chaos::Fault::Point;

# The next process of a node that comes to a named point of the code is killed there, waits there, or fails there: what other faults hit by chance
# only.

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Fault';

my @POINTS = qw(donor_registered donor_flag_up donor_slot donor_cloned donor_steady donor_write_gate donor_read_gate config_commit config_committed
  donor_released
  donor_restored donor_cleaning donor_acknowledged recipient_registered recipient_batch recipient_cloned recipient_confirming recipient_confirmed
  recipient_released
  range_deleter_batch balancer_begun balancer_removing sequences_taken sequences_given sequences_follow sequences_change_home);

sub plan
{
	my ($class, $random, @nodes) = @_;
	return (node => $random->pick(@nodes), point => $random->pick(@POINTS), action => $random->weighted(crash => 4, pause => 3, error => 2));
}

sub seconds
{
	return (1, 4);
}

sub begin
{
	my ($self, $cluster) = @_;
	# A node that does not answer now has no luck: nothing is armed.
	$cluster->psql($self->{node}, "SELECT tessera_test.injection_set('$self->{point}', '$self->{action}')", timeout => 3);
	return;
}

sub end
{
	my ($self, $cluster) = @_;
	$cluster->psql($self->{node}, 'SELECT tessera_test.injection_clear()', timeout => 3);
	return;
}

1;
