package Chaos::Cluster;

# A TesseraCluster whose nodes reach each other through the proxy; clients and the checks connect directly. Faults act on it.

use strict;
use warnings FATAL => 'all';

use parent -norequire, 'TesseraCluster';

use Chaos::Network;
use PostgreSQL::Test::Utils;
use TesseraCluster;
use Time::HiRes qw(sleep time);

our %SETTINGS = (
	'tessera.injection_points' => 'on',
	'tessera.orphan_cleanup_delay' => 50,
	'tessera.migration_batch_size' => 8,
	'tessera.migration_timeout' => '30s',
	'tessera.connect_timeout' => '5s',
	'tessera.commit_timeout' => '10s',
	'tessera.registry_refresh_interval' => '5s',
	restart_after_crash => 'on');

sub new
{
	my ($class, $name, %params) = @_;
	my $self = $class->SUPER::new($name, settings => { %SETTINGS, %{ $params{settings} // {} } });
	$self->{network} = Chaos::Network->new($params{proxy});
	$self->{ports} = {};
	$self->{stopped} = {};    # node => processes that stand still
	return $self;
}

sub network
{
	my ($self) = @_;
	return $self->{network};
}

sub start_node
{
	my ($self, $name, %params) = @_;
	my $server = $self->SUPER::start_node($name, %params);
	$self->{ports}{$name} //= $self->{network}->listen($name, $server->port);
	return $server;
}

# How other nodes reach a node.
sub conninfo
{
	my ($self, $name, $dbname) = @_;
	my $conninfo = $self->SUPER::conninfo($name, $dbname);
	$conninfo =~ s/port=\d+/port=$self->{ports}{$name}/;
	return $conninfo;
}

# How a client reaches it.
sub client_conninfo
{
	my ($self, $name) = @_;
	return $self->SUPER::conninfo($name) . ' connect_timeout=5';
}

sub runs
{
	my ($self, $name) = @_;
	return defined $self->node($name)->{_pid};
}

# Processes of a node, the postmaster first.
sub processes
{
	my ($self, $name) = @_;
	my $postmaster = $self->node($name)->{_pid};
	return ($postmaster, sort { $a <=> $b } TesseraCluster::_children($postmaster));
}

# SIGSTOP to processes of a node, and SIGCONT to all that stand still.
sub freeze
{
	my ($self, $name, @processes) = @_;
	kill 'STOP', @processes;
	push @{ $self->{stopped}{$name} }, @processes;
	return;
}

sub thaw
{
	my ($self, $name) = @_;
	my $stopped = delete $self->{stopped}{$name} or return;
	kill 'CONT', reverse @$stopped;
	return;
}

# Everything as it should be: links, processes, servers.
sub heal
{
	my ($self) = @_;
	$self->{network}->heal;
	$self->thaw($_) foreach keys %{ $self->{stopped} };
	foreach my $name ($self->names)
	{
		$self->start($name) unless $self->runs($name);
	}
	return;
}

sub quit
{
	my ($self) = @_;
	$self->heal;
	$self->stop($_) foreach reverse $self->names;
	$self->{network}->quit;
	return;
}

1;
