
=head1 NAME

ServerTemplate - servers for tests whose data directory is a copy, which is much cheaper than initdb

=head1 SYNOPSIS

  use ServerTemplate;

  my $server = PostgreSQL::Test::Cluster->new('s1');
  ServerTemplate::init($server);
  ServerTemplate::init($other, extension => 1);

=head1 DESCRIPTION

TESSERA_TEMPLATE names a directory with two data directories, which test/run makes once: "plain", which initdb made with @OPTIONS, and "extension", in
which CREATE EXTENSION tessera was run as well. Without it each server has its own initdb. A copy gets a system identifier of its own, as a server of
initdb has one: the cluster tells servers by it. It stands in pg_control, whose checksum is computed anew, and in the first page of the WAL.

=cut

package ServerTemplate;

use strict;
use warnings FATAL => 'all';

use Carp;
use PostgreSQL::Test::Utils;
use Time::HiRes ();

# Of initdb; test/run makes the template with the same.
our @OPTIONS = ('--locale=C', '--encoding=UTF8', '--username=postgres');

# Position of the system identifier in pg_control, and in a WAL segment's first page header.
my $CONTROL_OFFSET = 0;
my $WAL_OFFSET = 24;

my @crc_table = map {
	my $value = $_;
	$value = $value & 1 ? ($value >> 1) ^ 0x82F63B78 : $value >> 1 foreach 1 .. 8;
	$value
} 0 .. 255;

# CRC-32C
sub _checksum
{
	my ($bytes) = @_;
	my $crc = 0xFFFFFFFF;
	$crc = $crc_table[($crc ^ $_) & 0xFF] ^ ($crc >> 8) foreach unpack 'C*', $bytes;
	return $crc ^ 0xFFFFFFFF;
}

# The checksum of a control file stands behind the bytes whose checksum it is.
sub _checksum_offset
{
	my ($bytes) = @_;
	foreach my $offset (map { $_ * 4 } 50 .. 127)
	{
		return $offset if unpack('V', substr($bytes, $offset, 4)) == _checksum(substr $bytes, 0, $offset);
	}
	croak 'no checksum found in pg_control';
}

sub _change
{
	my ($file, $change) = @_;
	open(my $handle, '+<:raw', $file) or croak "$file: $!";
	sysread($handle, my $bytes, 8192) // croak "$file: $!";
	my $before = $bytes;
	$change->($bytes);
	sysseek($handle, 0, 0) or croak "$file: $!";
	(syswrite($handle, $bytes) // 0) == length $before or croak "$file: $!";
	close $handle or croak "$file: $!";
	return;
}

# As initdb makes them: of the time, and of the process.
sub _new_identifier
{
	my ($seconds, $microseconds) = Time::HiRes::gettimeofday();
	return ($seconds << 32) | ($microseconds << 12) | ($$ & 0xFFF);
}

sub _copy
{
	my ($template, $directory) = @_;
	my $identifier = pack 'Q<', _new_identifier();
	my ($segment, @more) = glob "$template/pg_wal/0*";

	croak "no template of a server in $template" if !$segment || @more;
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', "$template/.", $directory);
	my ($old, $found);
	_change("$directory/global/pg_control", sub {
		my $checksum = _checksum_offset($_[0]);
		$old = substr $_[0], $CONTROL_OFFSET, 8;
		substr($_[0], $CONTROL_OFFSET, 8) = $identifier;
		substr($_[0], $checksum, 4) = pack 'V', _checksum(substr $_[0], 0, $checksum);
	});
	$segment =~ s/.*\///;
	_change("$directory/pg_wal/$segment", sub {
		$found = substr $_[0], $WAL_OFFSET, 8;
		substr($_[0], $WAL_OFFSET, 8) = $identifier;
	});
	$found eq $old or croak "the WAL of $template is not that of its server";
	return;
}

=pod

=head2 init(server, extension => 0)

What C<< $server->init >> does. With C<extension>, whose CREATE EXTENSION may or may not be left to do, the database postgres has the extension if
there is a template.

=cut

sub init
{
	my ($server, %params) = @_;
	return $server->init(extra => \@OPTIONS) unless $ENV{TESSERA_TEMPLATE};
	my $template = "$ENV{TESSERA_TEMPLATE}/" . ($params{extension} ? 'extension' : 'plain');
	my $system_or_bail = \&PostgreSQL::Test::Utils::system_or_bail;
	no warnings 'redefine';
	local *PostgreSQL::Test::Utils::system_or_bail = sub {
		return $_[0] eq 'initdb' ? _copy($template, $server->data_dir) : $system_or_bail->(@_);
	};
	return $server->init(extra => \@OPTIONS);
}

1;
