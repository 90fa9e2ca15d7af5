package Chaos::Balance;

# A cluster that splits, merges, moves and drains by itself while things go wrong, and what it must have come to in the end.
#
#   balance: removal    the removal of a shard, which all that was in its way has been taken from, comes to its end
#   balance: return     a shard that has left can come back
#   balance: zones      each row's chunk is on a shard of its zone, and ends at the zone's borders
#   balance: switch     the balancer can be resumed, and paused
#   balance: members    every node knows the same shards, all of them, and none is being removed

use strict;
use warnings FATAL => 'all';

use TesseraCluster;
use Time::HiRes qw(sleep time);

our %SETTINGS = (
	'tessera.balancer_interval' => '1s',
	'tessera.balancer_merge_after' => '4s',
	'tessera.split_interval' => '500ms',
	'tessera.load_sample_rate' => 4);

# Chunks are small, so that there is something to split and to merge. tables: as workloads tell them.
sub setup
{
	my ($tables) = @_;
	return map { "SELECT tessera.configure_table('$_', max_chunk_size => " . ($_ =~ /^(?:acc|item)$/ ? 16384 : 1024) . ')' } sort keys %$tables;
}

# Runs statements until they do, or the time is over: the last error, '' if there is none.
sub _insist
{
	my ($cluster, $until, $sql) = @_;
	while (1)
	{
		my ($status, $stdout, $stderr) = $cluster->psql('s1', $sql, timeout => 60);
		return '' if $status == 0;
		return $stderr if time >= $until;
		sleep 0.2;
	}
}

# Asks until the answer is '' or the time is over; returns the last one.
sub _await
{
	my ($cluster, $until, $sql) = @_;
	my $answer;
	while (1)
	{
		my ($status, $stdout, $stderr) = $cluster->psql('s1', $sql, timeout => 30);
		$answer = $status == 0 ? $stdout : $stderr;
		last if $answer eq '' || time >= $until;
		sleep 0.2;
	}
	return $answer;
}

# What the balancer says, for a finding.
sub _state
{
	my ($cluster) = @_;
	return join("\n", map { ($cluster->psql('s1', $_, timeout => 30))[1] } (
		'SELECT * FROM tessera.explain_balancer(now => true) LIMIT 12',
		'SELECT * FROM tessera.balancer_status ORDER BY asked DESC LIMIT 12',
		q{SELECT * FROM tessera.migration WHERE state = 'running'}));
}

# Zones whose shards are all being removed, or have left: those are in the way, and get another shard.
my $STUCK = <<'END';
SELECT string_agg(format('SELECT tessera.add_zone(%L, %L)', zone, 's1'), ';') FROM (
	SELECT DISTINCT r.zone FROM tessera.zone_ranges r WHERE NOT EXISTS (
		SELECT FROM tessera.zones z JOIN tessera.shards s ON s.name = z.shard WHERE z.zone = r.zone AND NOT s.draining)) AS stuck
END

my $AGAINST_ZONES = <<'END';
SELECT DISTINCT c.table_name || ' ' || c.min || ' to ' || c.max || ' on ' || c.shard || ', zone ' || z.zone
FROM tessera.zone_ranges z
	JOIN tessera.chunks c ON c.table_name = z.table_name AND c.min OPERATOR(tessera.<) z.max AND z.min OPERATOR(tessera.<) c.max
WHERE c.min OPERATOR(tessera.<) z.min OR z.max OPERATOR(tessera.<) c.max
	OR NOT EXISTS (SELECT FROM tessera.zones s WHERE s.zone = z.zone AND s.shard = c.shard)
END

sub _open_zones
{
	my ($cluster) = @_;
	my $statements = $cluster->query('s1', $STUCK);
	$cluster->query('s1', $statements) if $statements ne '';
	return;
}

sub _end_removals
{
	my ($cluster, $until, $call_off) = @_;
	my $draining = $cluster->query('s1', 'SELECT name FROM tessera.shards WHERE draining');
	return () if $draining eq '';
	# It may have left in the last moment.
	$cluster->psql('s1', "SELECT tessera.cancel_remove_shard('$draining')", timeout => 60) if $call_off;
	_open_zones($cluster);
	my $left = _await($cluster, $until, 'SELECT name FROM tessera.shards WHERE draining');
	return $left eq '' ? () : [ 'balance: removal', "of $left\n" . _state($cluster) ];
}

sub _bring_back
{
	my ($cluster, $until) = @_;
	my @findings;
	my %there = map { $_ => 1 } split /\n/, $cluster->query('s1', 'SELECT name FROM tessera.shards');
	foreach my $name (grep { !$there{$_} } $cluster->names)
	{
		my $error = _insist($cluster, $until, sprintf('SELECT tessera.add_shard(%s, %s)', map { TesseraCluster::quote($_) } $name,
			$cluster->conninfo($name)));
		push @findings, [ 'balance: return', "of $name: $error" ] if $error ne '';
	}
	return @findings;
}

# What was begun comes to its end; then the balancer is paused. Findings. call_off: a removal that is not done is called off.
sub settle
{
	my ($cluster, %params) = @_;
	my $until = time + $params{seconds};
	my $error = _insist($cluster, $until, 'SELECT tessera.resume_balancer()');
	return [ 'balance: switch', $error ] if $error ne '';
	my @findings = _end_removals($cluster, $until, $params{call_off});
	_open_zones($cluster);
	push @findings, _bring_back($cluster, time + 60);
	my $against = _await($cluster, time + $params{seconds}, $AGAINST_ZONES);
	push @findings, [ 'balance: zones', "$against\n" . _state($cluster) ] if $against ne '';
	$error = _insist($cluster, time + 60, "SELECT tessera.pause_balancer('1 day')");
	push @findings, [ 'balance: switch', $error ] if $error ne '';
	return @findings;
}

# When all is quiet.
sub check
{
	my ($cluster) = @_;
	my $wanted = join(', ', map { "$_ f" } sort $cluster->names);
	my @findings;
	foreach my $name ($cluster->names)
	{
		my $known = $cluster->query($name, "SELECT string_agg(concat(name, ' ', draining), ', ' ORDER BY name) FROM tessera.shards");
		push @findings, [ 'balance: members', "on $name: $known" ] if $known ne $wanted;
	}
	my $against = $cluster->query('s1', $AGAINST_ZONES);
	push @findings, [ 'balance: zones', "$against, when nothing moved any more" ] if $against ne '';
	return @findings;
}

# For the report: what the balancer and the splitter have done.
sub lines
{
	my ($cluster) = @_;
	my $actions = $cluster->query('s1',
		"SELECT string_agg(n || ' ' || what, ', ' ORDER BY what) FROM (SELECT kind || ' ' || reason || ' ' || state AS what, count(*) AS n
			FROM tessera.balancer_status GROUP BY 1) AS s");
	my $changes = $cluster->query('s1',
		"SELECT string_agg(n || ' ' || what, ', ' ORDER BY what) FROM (SELECT what, count(*) AS n FROM tessera.changelog GROUP BY 1) AS s");
	return ('balancer: ' . $actions, 'changelog: ' . $changes);
}

1;
