package Chaos::Operator;

# What an operator does to a cluster that balances itself, one thing after the other, each at its time or as soon as the one before has ended:
#
#   zone, unzone     a zone of one or two shards gets a range of a table, and gives it up
#   weight           a shard is to have more, or less
#   drain            remove_shard: of one shard in a round, the leaver
#   cancel, return   a while later: the removal is called off, or the shard, if it has left, comes back
#   pause, resume    nothing is begun for a while
#   later            a range is to move when there is room
#   schema           the placed schema of Chaos/Workload/Shop.pm moves
#   round            a round of the balancer, now
#
# Each may fail, as a fault or an earlier one is in its way. A new kind has its weight in %KINDS, its arguments in %arguments (a function of the seed
# alone), and its statements in %statements.

use strict;
use warnings FATAL => 'all';

use Chaos::Mover;
use Chaos::Random;

my %KINDS = (zone => 3, unzone => 2, weight => 2, drain => 2, pause => 1, resume => 1, later => 2, schema => 3, round => 2);

my %arguments = (
	zone => \&_plan_zone,
	unzone => \&_plan_unzone,
	weight => sub { my ($random, $plan) = @_; return { shard => $random->pick(@{ $plan->{nodes} }), weight => $random->pick(0.5, 1, 2, 4) } },
	drain => sub { my ($random, $plan) = @_; return defined $plan->{leaver} ? { shard => $plan->{leaver} } : undef },
	pause => sub { my ($random) = @_; return { seconds => sprintf('%.1f', $random->between(0.5, 4)) } },
	resume => sub { return {} },
	later => sub { my ($random, $plan) = @_; return { _range($random, $plan), shard => $random->pick(@{ $plan->{nodes} }) } },
	schema => sub { my ($random, $plan) = @_; return { shard => $random->pick(@{ $plan->{nodes} }) } },
	round => sub { return {} });

my %statements = (
	zone => sub {
		my ($operation, $range) = @_;
		return ((map { "SELECT tessera.add_zone('$operation->{zone}', '$_')" } split / /, $operation->{shards}),
			"SELECT tessera.set_zone_range('$operation->{table}', '$operation->{zone}', $range)");
	},
	unzone => sub {
		my ($operation, $range) = @_;
		return ("SELECT tessera.set_zone_range('$operation->{table}', NULL, $range)", "SELECT tessera.remove_zone('$operation->{zone}')");
	},
	weight => sub { my ($operation) = @_; return "SELECT tessera.set_shard_weight('$operation->{shard}', $operation->{weight})" },
	drain => sub { my ($operation) = @_; return "SELECT tessera.remove_shard('$operation->{shard}')" },
	cancel => sub { my ($operation) = @_; return "SELECT tessera.cancel_remove_shard('$operation->{shard}')" },
	return => sub { my ($operation, $range, $nodes) = @_; return "SELECT tessera.add_shard('$operation->{shard}', '$nodes->{$operation->{shard}}')" },
	pause => sub { my ($operation) = @_; return "SELECT tessera.pause_balancer('$operation->{seconds} s')" },
	resume => sub { return 'SELECT tessera.resume_balancer()' },
	later => sub {
		my ($operation, $range) = @_;
		return "SELECT tessera.move_range('$operation->{table}', $range, '$operation->{shard}', wait => false)";
	},
	schema => sub { my ($operation) = @_; return "SELECT tessera.move_schema('shop', '$operation->{shard}')" },
	round => sub { return 'SELECT tessera.balancer_round()' });

# A range of a table.
sub _range
{
	my ($random, $plan) = @_;
	my $name = $random->pick(sort keys %{ $plan->{tables} });
	my $table = $plan->{tables}{$name};
	my $size = $table->{max} - $table->{min};
	my $low = $table->{min} + $random->below($size);
	my $high = $low + 1 + $random->below(int($size / 3) + 1);
	return (table => $name, low => $low, high => $high < $table->{max} ? $high : $table->{max});
}

sub _plan_zone
{
	my ($random, $plan) = @_;
	my $zone = 'z' . ++$plan->{zones_made} . "_$plan->{round}";
	my %operation = (_range($random, $plan), zone => $zone, shards => join(' ', $random->sample($random->pick(1, 2), @{ $plan->{nodes} })));
	push @{ $plan->{zones} }, {%operation};
	return \%operation;
}

sub _plan_unzone
{
	my ($random, $plan) = @_;
	my ($zone) = $random->sample(1, @{ $plan->{zones} }) or return undef;
	delete $zone->{shards};
	$plan->{zones} = [ grep { $_ != $zone } @{ $plan->{zones} } ];
	return $zone;
}

# The shard that may leave, and the operations of a round. The config node's shard has the schema public, and cannot.
sub plan
{
	my ($random, %params) = @_;
	my $plan = { %params, zones => [] };
	my ($config, @others) = @{ $params{nodes} };
	$plan->{leaver} = $random->pick(@others) if @others && $random->chance(0.6);
	my @operations;
	my $at = $random->between(0.2, 1);
	while ($at < $params{seconds} - 0.5)
	{
		my $kind = $random->weighted(%KINDS);
		my $operation = $arguments{$kind}->($random, $plan);
		push @operations, { %$operation, kind => $kind, at => $at, via => $random->pick(grep { $_ ne ($plan->{leaver} // '') } @{ $params{nodes} }) }
			if $operation;
		if ($operation && $kind eq 'drain')
		{
			my $later = $at + $random->between(0.5, 8);
			push @operations, { %{ $operations[-1] }, kind => $random->pick('cancel', 'return'), at => $later } if $later < $params{seconds};
		}
		$at += $random->between(0.3, 2);
	}
	return ($plan->{leaver}, sort { $a->{at} <=> $b->{at} } @operations);
}

sub text
{
	my ($operation) = @_;
	return join(' ', $operation->{kind}, map { "$_=$operation->{$_}" } grep { $_ ne 'at' && $_ ne 'kind' } sort keys %$operation);
}

# The SQL of a range's ends; of a hashed key they are hashes.
sub _bounds
{
	my ($operation, $table) = @_;
	my @ends = @$operation{qw(low high)};
	return join(', ', map { '(' . ($_ - int($table->{max} / 2)) * 18_000_000_000_000 . ')::bigint' } @ends) if $table->{kind} eq 'hash';
	return join(', ', map { Chaos::Mover::literal($table, $_) } @ends);
}

# As Chaos::Mover::change. nodes: their conninfos. The answer is that of the first statement that fails, or of the last.
sub carry_out
{
	my ($connection, $operation, $table, $nodes) = @_;
	my $answer;
	foreach my $sql ($statements{ $operation->{kind} }->($operation, $table ? _bounds($operation, $table) : undef, $nodes))
	{
		$answer = $connection->run($sql);
		last if $answer->{outcome} ne 'ok';
	}
	return $answer;
}

# For the report.
sub lines
{
	my ($records) = @_;
	my %count;
	foreach my $record (@$records)
	{
		$count{ $record->{change}{kind} }{ $record->{outcome} eq 'ok' ? 'ok' : $record->{state} }++;
	}
	return map {
		my $of = $count{$_};
		sprintf('operator %-9s %s', $_, join(', ', map { "$of->{$_} $_" } sort keys %$of))
	} sort keys %count;
}

1;
