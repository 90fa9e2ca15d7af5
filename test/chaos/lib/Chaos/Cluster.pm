package Chaos::Cluster;

# A TesseraCluster whose nodes reach each other through the proxy; clients and the checks connect directly. Faults act on it.

use strict;
use warnings FATAL => 'all';

use parent -norequire, 'TesseraCluster';

use Chaos::Network;
use PostgreSQL::Test::Utils;
use TesseraCluster;
use Time::HiRes qw(sleep time);

# Ports of a node's exchange.
my $LANES = 4;

our %SETTINGS = (
	'tessera.injection_points' => 'on',
	'tessera.orphan_cleanup_delay' => 50,
	'tessera.migration_batch_size' => 8,
	# as long as anything may take on this machine, by a quarter
	'tessera.migration_timeout' => int($PostgreSQL::Test::Utils::timeout_default / 4) . 's',
	# as users have it: attempts that overrun it belong to the chaos
	'tessera.critical_section_budget' => 50,
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
	$self->{disk} = $params{disk};
	return $self;
}

sub network
{
	my ($self) = @_;
	return $self->{network};
}

# Servers start with a disk that can be full. A standby has one of its own, which stays its own when it becomes the node.
sub _with_disk
{
	my ($self, $disk, $start) = @_;
	local $ENV{LD_PRELOAD} = $self->{disk} if $self->{disk};
	local $ENV{CHAOS_DISK_FULL} = $self->_full_file($disk);
	return $start->();
}

sub _full_file
{
	my ($self, $disk) = @_;
	$self->{full} //= PostgreSQL::Test::Utils::tempdir_short();
	return "$self->{full}/$disk";
}

sub _disk_of
{
	my ($self, $name) = @_;
	return $self->{disks}{$name} // $name;
}

# So many ports in a row that nobody uses, the first of them.
sub _free_ports
{
	my @ports = (PostgreSQL::Test::Cluster::get_free_port());
	while (@ports < $LANES)
	{
		my $port = PostgreSQL::Test::Cluster::get_free_port();
		@ports = () if $port != $ports[-1] + 1;
		push @ports, $port;
	}
	return $ports[0];
}

sub start_node
{
	my ($self, $name, %params) = @_;
	my $first = _free_ports();
	my $last = $first + $LANES - 1;
	my %lane = ('tessera.exchange_ports' => "$first-$last", 'tessera.exchange_address' => '127.0.0.1',
		'tessera.exchange_advertised_address' => $Chaos::Network::LANE_ADDRESS);
	my $server = $self->_with_disk($name, sub { $self->SUPER::start_node($name, %params, settings => { %lane, %{ $params{settings} // {} } }) });
	my $network = $self->{network};
	$self->{ports}{$name} = $network->listen($name, $server->port);
	$network->home($name, $server->data_dir);
	$network->lane($name, $first, $last);
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
	return $self->conninfo_of_all($name) if $self->{standbys}{$name};
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

sub start
{
	my ($self, $name, %params) = @_;
	return $self->_with_disk($self->_disk_of($name), sub { $self->SUPER::start($name, %params) });
}

# Each with its own disk.
sub start_new
{
	my ($self, @names) = @_;
	$self->start($_) foreach @names;
	return;
}

# The node's disk is full, or has room again.
sub fill_disk
{
	my ($self, $name) = @_;
	append_to_file($self->_full_file($self->_disk_of($name)), 'full');
	return;
}

sub free_disk
{
	my ($self, $name) = @_;
	unlink $self->_full_file($self->_disk_of($name));
	return;
}

# A standby that confirms every commit: none that was acknowledged is lost when it is promoted. Its address is the node's.
sub prepare_standby
{
	my ($self, $name) = @_;
	my $disk = $self->{standby_disks}{$name} = "$name." . ++$self->{standbys_made};
	$self->_with_disk($disk, sub { $self->add_standby($name, register => 0) });
	$self->node($name)->append_conf('postgresql.conf', "synchronous_standby_names = '*'\n");
	$self->node($name)->reload;
	return;
}

# The node loses power for good, and its standby takes its place.
sub fail_over
{
	my ($self, $name) = @_;
	$self->thaw($name);
	$self->promote($name, lossy => 1, stop => $self->runs($name) ? 'kill9' : undef);
	$self->{network}->target($name, $self->node($name)->port);
	$self->{network}->home($name, $self->node($name)->data_dir);
	$self->free_disk($name);
	$self->{disks}{$name} = $self->{standby_disks}{$name};
	$self->{unregistered}{$name} = 1;
	$self->_register($name, 10);
	return;
}

# What an operator does after a failover: tells the config node of the new timeline. It may be down now: then when all is healed. Returns the error.
sub _register
{
	my ($self, $name, $seconds) = @_;
	my $sql = sprintf('SELECT tessera.update_node(%s, %s, force => true)', map { TesseraCluster::quote($_) } $name, $self->conninfo($name));
	my ($status, $stdout, $stderr) = $self->psql($name, $sql, timeout => $seconds);
	delete $self->{unregistered}{$name} if $status == 0;
	return $status == 0 ? undef : $stderr;
}

# A standby that was not promoted goes; its node need not wait for it any more.
sub drop_standby
{
	my ($self, $name) = @_;
	my $standby = delete $self->{standbys}{$name} or return;
	$standby->stop('immediate');
	$self->node($name)->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
	$self->node($name)->reload;
	return;
}

# Everything as it should be: links, processes, servers.
sub heal
{
	my ($self) = @_;
	$self->{network}->heal;
	$self->thaw($_) foreach keys %{ $self->{stopped} };
	$self->free_disk($_) foreach $self->names;
	foreach my $name ($self->names)
	{
		$self->start($name) unless $self->runs($name);
		# one of whose processes has crashed starts again by itself
		$self->wait_for($name, 'SELECT 1', '1') or die "node $name does not come back\n";
		$self->psql($name, 'SELECT tessera_test.injection_clear()', timeout => 30);
	}
	foreach my $name (sort keys %{ $self->{unregistered} })
	{
		# A shard that has left is added with its new timeline when it comes back.
		if ($self->query('s1', 'SELECT count(*) FROM tessera.node WHERE name = ' . TesseraCluster::quote($name)) eq '0')
		{
			delete $self->{unregistered}{$name};
			next;
		}
		my $error = $self->_register($name, 60) or next;
		die "the promoted node $name cannot be registered: $error\n";
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
