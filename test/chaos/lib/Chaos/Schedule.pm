package Chaos::Schedule;

# What happens in a round, and when: a pure function of seed, round and the parameters. What it means can depend on the state of the cluster (a move
# goes from whoever owns the key), but not what is tried.
#
#   my $schedule = Chaos::Schedule->new(seed => 1, round => 1, seconds => 30, nodes => [...], tables => {...}, faults => ['Kill', ...]);
#   $schedule->{faults}   [{at, until, fault}, ...] in the order of their beginning
#   $schedule->{changes}  [{at, kind, table, key, ...}, ...] moves, splits, merges and DDL, for one mover after the other
#   $schedule->{operations}  [{at, kind, ...}, ...] what the operator does, see Chaos/Operator.pm; none without `balancer`
#   $schedule->{leaver}   the shard that the operator may remove in this round, undef: none. Nobody connects to it: it may be no node meanwhile
#   print $schedule->text;

use strict;
use warnings FATAL => 'all';

use Chaos::Operator;
use Chaos::Random;

sub new
{
	my ($class, %params) = @_;
	my $self = bless { faults => [], changes => [], operations => [] }, $class;
	eval "require Chaos::Fault::$_; 1" or die $@ foreach @{ $params{faults} };
	$self->_plan_faults(%params) if @{ $params{faults} };
	if ($params{balancer})
	{
		my $random = Chaos::Random->new($params{seed}, $params{round}, 'operations');
		($self->{leaver}, @{ $self->{operations} }) = Chaos::Operator::plan($random, %params);
	}
	$self->_plan_changes(%params, nodes => [ $self->present(@{ $params{nodes} }) ], all => $params{nodes});
	return $self;
}

# Those of the nodes that are nodes all the time.
sub present
{
	my ($self, @nodes) = @_;
	return grep { $_ ne ($self->{leaver} // '') } @nodes;
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
			{ at => $at, kind => $kind, table => $name, low => $low, high => $high, step => 1 + $random->below(@{ $params{all} } - 1),
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
	push @lines, [ $_->{at}, sprintf('%-6.2f %s', $_->{at}, Chaos::Operator::text($_)) ] foreach @{ $self->{operations} };
	return join('', map { "$_->[1]\n" } sort { $a->[0] <=> $b->[0] } @lines);
}

1;
