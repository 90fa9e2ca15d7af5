package Chaos::Schedule;

# What happens in a round, and when: a pure function of seed, round and the parameters. What it means can depend on the state of the cluster (a move
# goes from whoever owns the key), but not what is tried.
#
#   my $schedule = Chaos::Schedule->new(seed => 1, round => 1, seconds => 30, nodes => [...], tables => {...}, faults => ['Kill', ...]);
#   $schedule->{faults}   [{at, until, fault}, ...] in the order of their beginning
#   $schedule->{changes}  [{at, kind, table, key, ...}, ...] moves, splits, merges and DDL, for one mover after the other
#   print $schedule->text;

use strict;
use warnings FATAL => 'all';

use Chaos::Random;

sub new
{
	my ($class, %params) = @_;
	my $self = bless { faults => [], changes => [] }, $class;
	eval "require Chaos::Fault::$_; 1" or die $@ foreach @{ $params{faults} };
	$self->_plan_faults(%params) if @{ $params{faults} };
	$self->_plan_changes(%params);
	return $self;
}

# Faults one after the other, sometimes one into the next, but never two of one node.
sub _plan_faults
{
	my ($self, %params) = @_;
	my $random = Chaos::Random->new($params{seed}, $params{round}, 'faults');
	my %busy;    # node => until when
	my %had;     # kinds of which one is enough
	my $at = $random->between(0.5, 2);
	while ($at < $params{seconds} - 1)
	{
		my $class = 'Chaos::Fault::' . $random->pick(@{ $params{faults} });
		my $fault = $class->new($class->plan($random, @{ $params{nodes} }));
		my $until = $at + $random->between($fault->seconds);
		my $gap = $random->chance(0.3) ? $random->between(0, 0.5) : $until - $at + $random->between(0.5, 3);
		if ($at >= ($busy{ $fault->node } // 0) && !($fault->once && $had{$class}++))
		{
			push @{ $self->{faults} }, { at => $at, until => $until, fault => $fault };
			$busy{ $fault->node } = $until + 0.5;
		}
		$at += $gap;
	}
	return;
}

sub _key
{
	my ($random, $table) = @_;
	return $table->{min} + $random->below($table->{max} - $table->{min});
}

sub _plan_changes
{
	my ($self, %params) = @_;
	my $random = Chaos::Random->new($params{seed}, $params{round}, 'changes');
	my $at = $random->between(0, 0.5);
	while ($at < $params{seconds})
	{
		my $name = $random->pick(sort keys %{ $params{tables} });
		my $table = $params{tables}{$name};
		my $kind = $random->weighted(move => 6, split => 1, merge => 1, ddl => 1);
		my $low = _key($random, $table);
		my $width = 1 + $random->below(int(($table->{max} - $table->{min}) / 2) + 1);
		my $high = $low + $width < $table->{max} ? $low + $width : $table->{max};
		push @{ $self->{changes} },
			{ at => $at, kind => $kind, table => $name, low => $low, high => $high, step => 1 + $random->below(@{ $params{nodes} } - 1),
			via => $random->pick(@{ $params{nodes} }) };
		$at += $random->between(0.1, 1.2);
	}
	return;
}

sub text
{
	my ($self) = @_;
	my @lines;
	push @lines, [ $_->{at}, sprintf('%-6.2f %s, until %.2f', $_->{at}, $_->{fault}->text, $_->{until}) ] foreach @{ $self->{faults} };
	push @lines, [ $_->{at}, sprintf('%-6.2f %s %s from %s to %s, step %d, by %s', @$_{qw(at kind table low high step via)}) ]
		foreach @{ $self->{changes} };
	return join('', map { "$_->[1]\n" } sort { $a->[0] <=> $b->[0] } @lines);
}

1;
