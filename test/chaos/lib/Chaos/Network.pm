package Chaos::Network;

# The network between the nodes: test/chaos/proxy, through which each node is reached by the others.

use strict;
use warnings FATAL => 'all';

use Carp;
use Cwd ();
use IPC::Open2 qw(open2);

our $LANE_ADDRESS = '127.0.0.2';

sub new
{
	my ($class, $program) = @_;
	my $self = bless { links => {} }, $class;
	$self->{pid} = open2($self->{from}, $self->{to}, $program);
	return $self;
}

sub _ask
{
	my ($self, $line) = @_;
	print { $self->{to} } "$line\n";
	$self->{to}->flush;
	my $answer = readline($self->{from}) // croak 'the proxy has ended';
	chomp $answer;
	croak "the proxy answers to $line: $answer" if $answer =~ /^error/;
	return $answer;
}

# The port at which the node on that port is reached.
sub listen
{
	my ($self, $node, $port) = @_;
	my ($proxied) = $self->_ask("listen $node $port") =~ /^port (\d+)$/;
	return $proxied;
}

# From now on the node is the server on another port.
sub target
{
	my ($self, $node, $port) = @_;
	$self->_ask("target $node $port");
	return;
}

# A node's data directory: by it is known who connects to a lane.
sub home
{
	my ($self, $node, $directory) = @_;
	$self->_ask("home $node " . Cwd::realpath($directory));
	return;
}

# The exchange of a migration's rows with that node, on these ports, goes through the proxy at LANE_ADDRESS.
sub lane
{
	my ($self, $node, $first, $last) = @_;
	$self->_ask("lane $node $first $last");
	return;
}

# Connections of lanes so far, and those of them from nobody known.
sub lanes
{
	my ($self) = @_;
	return $self->_ask('lanes') =~ /(\d+) (\d+)/;
}

# A fault of the link from one node to another ('*': any); see proxy.c.
sub link
{
	my ($self, $from, $to, $fault) = @_;
	$self->_ask("link $from $to $fault");
	$self->{links}{"$from $to"} = 1;
	return;
}

sub heal
{
	my ($self) = @_;
	$self->_ask("link $_ ok") foreach sort keys %{ $self->{links} };
	return;
}

# The program ends when its input does.
sub quit
{
	my ($self) = @_;
	close $self->{to};
	close $self->{from};
	waitpid($self->{pid}, 0);
	return;
}

1;
