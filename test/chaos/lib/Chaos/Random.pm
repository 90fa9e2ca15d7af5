package Chaos::Random;

# Numbers that depend on a seed alone: the same on every machine and version of Perl.
#
#   my $random = Chaos::Random->new(7, 'schedule', 3);    # a stream of its own for each list of names
#   $random->below(10); $random->between(0.5, 2); $random->chance(0.3); $random->pick('a', 'b'); $random->weighted(a => 3, b => 1);

use strict;
use warnings FATAL => 'all';

use Digest::MD5 qw(md5);

my $MASK = (1 << 48) - 1;

sub new
{
	my ($class, @names) = @_;
	my ($state) = unpack('Q>', md5(join("\0", @names)));
	return bless { state => $state & $MASK }, $class;
}

# A linear congruential generator of 48 bits; the upper 31 are used.
sub _next
{
	my ($self) = @_;
	{
		use integer;
		$self->{state} = ($self->{state} * 25214903917 + 11) & $MASK;
	}
	return $self->{state} >> 17;
}

sub unit
{
	my ($self) = @_;
	return $self->_next / 2147483648;
}

sub below
{
	my ($self, $n) = @_;
	return int($self->unit * $n);
}

sub between
{
	my ($self, $min, $max) = @_;
	return $min + $self->unit * ($max - $min);
}

sub chance
{
	my ($self, $probability) = @_;
	return $self->unit < $probability;
}

sub pick
{
	my ($self, @list) = @_;
	return $list[ $self->below(scalar @list) ];
}

# One of the keys, by its weight.
sub weighted
{
	my ($self, %weights) = @_;
	my $sum = 0;
	$sum += $_ foreach values %weights;
	my $at = $self->unit * $sum;
	foreach my $key (sort keys %weights)
	{
		$at -= $weights{$key};
		return $key if $at < 0;
	}
	return (sort keys %weights)[-1];
}

# Several different ones of a list.
sub sample
{
	my ($self, $n, @list) = @_;
	my @taken;
	push @taken, splice(@list, $self->below(scalar @list), 1) while $n-- > 0 && @list;
	return @taken;
}

1;
