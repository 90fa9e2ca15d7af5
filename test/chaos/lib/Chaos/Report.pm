package Chaos::Report;

# What a run has done, for people to read.

use strict;
use warnings FATAL => 'all';

sub _sorted
{
	return sort { $a <=> $b } @_;
}

sub _percentile
{
	my ($share, @sorted) = @_;
	return @sorted ? $sorted[ int($share * $#sorted) ] : 0;
}

sub _spread
{
	my (@values) = _sorted(@_);
	return sprintf('p50 %.0f, p99 %.0f, max %.0f ms', _percentile(0.5, @values), _percentile(0.99, @values), _percentile(1, @values));
}

# Outcomes of each workload's kinds of work.
sub _work
{
	my ($records) = @_;
	my %count;
	$count{"$_->{workload} $_->{kind}"}{ $_->{outcome} }++ foreach @$records;
	return map { my $of = $count{$_}; sprintf('%-18s %s', $_, join(', ', map { "$of->{$_} $_" } sort keys %$of)) } sort keys %count;
}

sub _states
{
	my ($records) = @_;
	my %count;
	$count{ $_->{state} }++ foreach grep { $_->{state} } @$records;
	return join(', ', map { "$_ $count{$_}" } sort { $count{$b} <=> $count{$a} } keys %count) || 'none';
}

# Why moves were aborted, the most frequent reasons first; what differs from one to the next is left out.
sub _reasons
{
	my (@migrations) = @_;
	my %count;
	foreach my $migration (grep { $_->{state} eq 'aborted' } @migrations)
	{
		(my $reason = $migration->{error} || 'not told') =~ s/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b\d+\b/N/g;
		$count{$reason}++;
	}
	return map { sprintf('aborted %3d times: %s', $count{$_}, $_) } sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
}

# The longest piece of work that met each move. migrations: {started, finished, state}.
sub _stalls
{
	my ($records, $migrations) = @_;
	my @work = sort { $a->{begun} <=> $b->{begun} } @$records;
	my $longest = 0;
	foreach my $record (@work)
	{
		my $took = $record->{ended} - $record->{begun};
		$longest = $took if $took > $longest;
	}
	my @stalls;
	foreach my $migration (grep { $_->{state} eq 'committed' } @$migrations)
	{
		my $stall = 0;
		foreach my $record (@work)
		{
			next if $record->{begun} < $migration->{started} - $longest;
			last if $record->{begun} > $migration->{finished};
			my $took = $record->{ended} - $record->{begun};
			$stall = $took if $record->{ended} >= $migration->{started} && $took > $stall;
		}
		push @stalls, 1000 * $stall;
	}
	return @stalls;
}

# Lines about one round, or all of them. run: {records, changes, migrations, faults, notes}.
sub lines
{
	my (%run) = @_;
	my %state;
	$state{ $_->{state} }++ foreach @{ $run{migrations} };
	my $acknowledged = grep { $_->{change}{kind} eq 'move' && $_->{outcome} eq 'ok' && ($_->{rows}[0][0] // '') =~ /-/ } @{ $run{changes} };
	my $committed = $state{committed} // 0;
	my $others = grep { $_->{change}{kind} ne 'move' && $_->{outcome} eq 'ok' && $_->{status} ne 'SELECT 0' } @{ $run{changes} };
	my %faults;
	$faults{$_}++ foreach @{ $run{faults} };
	my @lines = (
		"faults: " . (join(', ', map { "$faults{$_} $_" } sort keys %faults) || 'none'),
		sprintf('moves: %d committed (%d of them after their caller had lost sight of them), %d aborted; splits, merges, DDL: %d',
			$committed, $committed > $acknowledged ? $committed - $acknowledged : 0, $state{aborted} // 0, $others),
		'pause of a move: ' . _spread(grep { defined } map { $_->{pause} } @{ $run{migrations} }),
		"longest work of a client in each move: " . _spread(_stalls($run{records}, $run{migrations})),
		'errors of clients: ' . _states($run{records}),
		'errors of the movers: ' . _states($run{changes}));
	return (@lines, _reasons(@{ $run{migrations} }), _work($run{records}), @{ $run{notes} });
}

1;
