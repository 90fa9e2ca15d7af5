# A split gives its pieces the group's major (S21), which can be above that of the shard that owns them, if only other shards were in moves of late.
# The shard's own version has to follow, or it would refuse every statement that is routed by the new one: when it is told, when it is not (the node
# that asked for the split died), on the config node, which refreshes from nobody, and while a migration of another range of the shard is under way or
# fails.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('versions', settings => {
	'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0, 'tessera.registry_refresh_interval' => 3600,
		'tessera.gate_timeout' => 5000 });
$c->create(shards => 3);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v int NOT NULL)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k', 'hash', chunks => 24)");
ok($c->wait_for($_, 'SELECT count(DISTINCT shard) FROM tessera.chunks', '3'), "$_ knows the chunks") foreach $c->names;
$c->query('s1', 'INSERT INTO t SELECT g, 0 FROM generate_series(1, 1000) g');

# A key of a shard, other than those that were given out before; its chunk is of that shard alone and lies between two bounds.
my %used;
sub chunk_of
{
	my ($shard) = @_;
	foreach my $line (split /\n/, $c->query('s1', "SELECT c.min, ((c.min::text::numeric + c.max::text::numeric) / 2)::bigint, min(g)
		FROM tessera.chunks c JOIN generate_series(1, 1000) g ON tessera.key_hash(g) >= c.min::text::bigint
		AND tessera.key_hash(g) < c.max::text::bigint
		WHERE c.shard = '$shard' AND c.min::text <> 'MINKEY' AND c.max::text <> 'MAXKEY' GROUP BY 1, 2 ORDER BY 1"))
	{
		my ($min, $middle, $key) = split /\|/, $line;
		return ($key, $middle) unless $used{$min}++;
	}
	die "no chunk of $shard is left";
}

# The group's major grows; the third shard's does not.
sub move_between
{
	my ($from, $to) = @_;
	my ($key) = chunk_of($from);
	return $c->query('s1', "SELECT tessera.move_chunk('t', $key, '$to')");
}

# As tessera.split_chunk begins, on the config node; and then its caller is gone.
sub split_alone
{
	my ($shard) = @_;
	my (undef, $middle) = chunk_of($shard);
	return $c->query('s1', "SELECT s.* FROM tessera.table_group, tessera.identity,
		tessera_internal.split(group_id, epoch, term, ARRAY[($middle)::bigint::tessera.bound], 'nobody', 't') s");
}

sub behind
{
	my ($shard) = @_;
	return $c->query($shard, 'SELECT major FROM tessera.placement') < $c->query('s1', 'SELECT group_major FROM tessera.table_group') ? 't' : 'f';
}

my $rounds = 0;
sub in_order
{
	my ($name) = @_;
	$rounds++;
	foreach my $node ($c->names)
	{
		is($c->query($node, 'UPDATE t SET v = v + 1; SELECT count(*), min(v), max(v) FROM t'), join('|', 1000, ($rounds) x 2),
			"$name: statements on $node");
		$rounds++ if $node ne 's3';
	}
	# every shard's version, as its placement has it and as every node's routing table has it
	my $versions = "SELECT string_agg(shard || ' ' || major, ', ' ORDER BY shard) FROM " .
		"(SELECT shard, max(major) AS major FROM tessera.chunks GROUP BY 1) s";
	my $expected = $c->query('s1', $versions);
	ok($c->wait_for($_, $versions, $expected), "$name: routing tables of $_") foreach $c->names;
	is(join(', ', map { "$_ " . $c->query($_, 'SELECT major FROM tessera.placement') } $c->names), $expected, "$name: versions of the shards");
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$name: the cluster is consistent");
	return;
}

# The owner is told.
move_between('s1', 's2');
is(behind('s3'), 't', 'the version of a shard that was in no move is behind');
my (undef, $middle) = chunk_of('s3');
$c->query('s2', "SELECT tessera.split_chunk('t', $middle)");
is(behind('s3'), 'f', 'a split tells its owner');
in_order('split');

# The owner is not told: it finds out at the first statement that is routed by the new version.
move_between('s2', 's1');
split_alone('s3');
in_order('a split that was not told');

# The config node's own.
move_between('s2', 's3');
is(behind('s1'), 't', 'the version of the config node is behind');
split_alone('s1');
is(behind('s1'), 'f', 'a split of its own chunk raises it at once');
in_order('a split on the config node');

# While a migration of another range of that shard runs; and after it was cancelled.
sub in_migration
{
	my ($node, $from, $to, $point, $sub) = @_;
	my ($key) = chunk_of($from);
	$c->pause_at($node, $point);
	my $session = $c->session('s1', on_error_stop => 0);
	$session->query_until(qr/begun/, "\\echo begun\nSELECT tessera.move_chunk('t', $key, '$to');\n");
	ok($c->paused_at($node, $point), "a migration is paused at $point");
	$sub->($c->query('s1', "SELECT id FROM tessera.migrations WHERE state = 'running'"));
	$c->go_on($node, $point);
	$session->query('SELECT 1');
	my $errors = $session->{stderr};
	$session->quit;
	$c->go_on($node);
	return $errors;
}

foreach my $case ([ 's3', 's2', [ 's1', 's2' ] ], [ 's1', 's2', [ 's2', 's3' ] ])
{
	my ($from, $to, $others) = @$case;
	move_between(@$others);
	my $errors = in_migration($from, $from, $to, 'donor_cloned', sub {
		my ($id) = @_;
		split_alone($from);
		in_order("split while $from gives");
		$c->query('s1', "SELECT tessera.cancel_migration('$id')");
	});
	like($errors, qr/migration was cancelled/, 'the migration is cancelled');
	in_order("split and cancelled on $from");
}

# A gate is closed to readers: the version is the migration's, and if that fails in the end, it raises it.
foreach my $case ([ 's1', [ 's2', 's3' ] ], [ 's3', [ 's1', 's2' ] ])
{
	my ($from, $others) = @$case;
	move_between(@$others);
	my $errors = in_migration($from, $from, 's2', 'donor_read_gate', sub {
		$c->query($from, "SELECT tessera_test.injection_set('config_commit', 'error')");
		split_alone($from);
		is(behind('s1'), 't', 'the range is given up: the version is left alone') if $from eq 's1';
	});
	like($errors, qr/injected error/, 'the migration fails');
	in_order("split and failed on $from");
}

done_testing();
