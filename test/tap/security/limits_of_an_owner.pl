# What an owner of tables may ask the cluster for has the administrator's limits: chunks and table groups of one owner, and how small chunks are. They
# are asked for on the config node, before anything is done for the table, and of two that ask at once one is refused.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('limits_of_an_owner', settings => { 'tessera.injection_points' => 'on',
	'tessera.registry_refresh_interval' => 1 });    # what nodes that were not asked have heard is waited for
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE ROLE mallory LOGIN', 'CREATE ROLE alice LOGIN', 'CREATE ROLE helper LOGIN', 'GRANT tessera_admin TO helper',
	'CREATE SCHEMA mallory AUTHORIZATION mallory', 'GRANT USAGE ON SCHEMA mallory TO helper', 'CREATE SCHEMA alice AUTHORIZATION alice');
$c->set('s1', 'tessera.max_chunks_per_owner' => 20, 'tessera.max_groups_per_owner' => 3, 'tessera.min_chunk_size' => "'64kB'");

my @as_mallory = (extra_params => [ '-U', 'mallory' ]);

sub mallory
{
	my ($sql) = @_;
	return $c->query('r1', "SET ROLE mallory; $sql");
}

sub refused
{
	my ($sql, $message, $name) = @_;
	my (undef, undef, $error) = $c->psql('r1', "SET ROLE mallory; SET statement_timeout = '30s'; $sql");
	like($error, qr/ERROR:  53400: $message/, $name);
	return $error;
}

sub shard
{
	my ($table, $options) = @_;
	return "SELECT tessera.shard_table('mallory.$table', 'k', 'hash'" . ($options ? ", $options" : '') . ')';
}

# What there is of the cluster's groups and of mallory's tables, on each node; all nodes agree.
sub all_there_is
{
	my ($name) = @_;
	my $sql = q{SELECT (SELECT count(*) FROM tessera.table_group), (SELECT count(*) FROM tessera.chunk), (SELECT count(group_id) FROM
		tessera.cluster_table), (SELECT count(*) FROM pg_class WHERE relnamespace = 'mallory'::regnamespace)};
	my $there = $c->query('s1', $sql);
	ok($c->wait_for($_, $sql, $there), "$name: $_ has what the config node has") foreach grep { $_ ne 's1' } $c->names;
	return $there;
}

mallory("CREATE TABLE mallory.$_ (k int PRIMARY KEY)") foreach 'a', 'c' .. 'h';
mallory('CREATE TABLE mallory.b (k int NOT NULL); ALTER TABLE mallory.b REPLICA IDENTITY FULL');

# ---- chunks ----

mallory(shard('a', 'chunks => 16'));
my $before = all_there_is('a group');
my $error = refused(shard('b', 'chunks => 5, create_index => true'), 'tables of role "mallory" would have 21 chunks, and may have 20',
	'too many chunks');
like($error, qr/HINT:  .*tessera\.max_chunks_per_owner/, 'the hint names the setting');
is(all_there_is('refused'), $before, 'nothing is left of it, nor an index');

# Without a lock, and without a look at what others do with the table.
my $holder = $c->session_of('r1', 'SET ROLE mallory', 'BEGIN', 'ALTER TABLE mallory.b ADD x int');
refused(shard('b', 'chunks => 5'), 'tables of role', 'nor is it waited for a lock');
$holder->query('ROLLBACK');

# A migration of the schema goes on.
my $home = $c->query('s1', q{SELECT shard FROM tessera.schemas WHERE schema = 'mallory'});
my $other = $home eq 's1' ? 's2' : 's1';
$c->pause_at($home, 'donor_cloned');
my $move = $c->background('s1', "SELECT tessera.move_schema('mallory', '$other')");
ok($c->paused_at($home, 'donor_cloned'), 'the schema moves');
refused(shard('b', 'chunks => 5, create_index => true'), 'tables of role', 'while the schema moves');
is($c->query('s1', q{SELECT count(*) FROM tessera.migrations WHERE state IN ('aborting', 'aborted')}), '0', 'it goes on');
$c->go_on($home);
is(TesseraCluster::ended($c, $move), '', 'and ends well');
ok($c->wait_for($home, 'SELECT count(*) FROM tessera.range_deletions', '0'), 'what it left behind is deleted');
$before = all_there_is('after the move');

# Only what the transaction has asked for before, and is not committed yet.
refused("BEGIN; " . shard('c', 'chunks => 4') . '; ' . shard('d', 'chunks => 1') . '; COMMIT', 'tables of role "mallory" would have 21 chunks',
	'what the transaction has asked for counts');
is(all_there_is('rolled back'), $before, 'and is rolled back');

# ---- size ----

$error = refused(shard('c', 'max_chunk_size => 65535'), 'max_chunk_size would be 65535 bytes, and must be at least 65536', 'too small chunks');
like($error, qr/HINT:  .*tessera\.min_chunk_size/, 'the hint names the setting');
is(all_there_is('refused'), $before, 'nothing is left of it');
mallory(shard('c', 'max_chunk_size => 65536'));
like($c->error('s1', "SELECT tessera.configure_table('mallory.c', max_chunk_size => 1023)"), qr/22023: max_chunk_size must be at least 1024 bytes/,
	'a floor for administrators');
is($c->query('s1', "SELECT tessera.configure_table('mallory.c', max_chunk_size => 1024)"), '', 'who may go below the limit');

# ---- groups ----

mallory(shard('d'));
$before = all_there_is('three groups');
$error = refused(shard('e'), 'tables of role "mallory" would be in 4 table groups, and may be in 3', 'too many groups');
like($error, qr/HINT:  .*tessera\.max_groups_per_owner/, 'the hint names the setting');
is(all_there_is('refused'), $before, 'nothing is left of it');
mallory(shard('e', "colocate_with => 'mallory.d'"));
ok(1, 'one more table of a group is none more');
is($c->query('r1', "SET ROLE alice; CREATE TABLE alice.t (k int PRIMARY KEY); SELECT tessera.shard_table('alice.t', 'k', 'hash', chunks => 20)"), '',
	'others have limits of their own');

# ---- administrators ----

foreach my $who ('helper', 'postgres')
{
	is($c->query('r1', "SET SESSION AUTHORIZATION $who; " . shard($who eq 'helper' ? 'f' : 'g', 'chunks => 30, max_chunk_size => 1024')), '',
		"$who is not limited");
}
$before = all_there_is('by administrators');
refused(shard('h'), 'tables of role "mallory" would be in 6 table groups', 'what they have made counts');
$c->set('r1', 'tessera.max_groups_per_owner' => 100, 'tessera.max_chunks_per_owner' => 1000);
refused(shard('h'), 'tables of role "mallory" would be in 6 table groups', 'settings of other nodes do not');
$c->set('s1', 'tessera.max_groups_per_owner' => 0, 'tessera.max_chunks_per_owner' => 0, 'tessera.min_chunk_size' => "'1kB'");
mallory(shard('h', 'chunks => 40, max_chunk_size => 1024'));
ok(1, 'an administrator has taken the limits away');
like($c->error('r1', "SET ROLE mallory; SELECT tessera_internal.check_owner_limits('mallory.a', 'postgres', 1, NULL)"), qr/ERROR:  42501/,
	'nobody asks in the name of another one');

# ---- two at once ----

mallory("DROP TABLE mallory.$_") foreach 'a' .. 'h';
mallory("CREATE TABLE mallory.$_ (k int PRIMARY KEY)") foreach 'a' .. 'h';
$c->set('s1', 'tessera.max_chunks_per_owner' => 20);

foreach my $end ('ROLLBACK', 'COMMIT')
{
	my $first = $c->session('r1', on_error_stop => 0, @as_mallory);
	$first->query_safe('BEGIN; ' . shard('a', 'chunks => 12'));
	my $second = $c->background('s2', 'SET ROLE mallory; ' . shard('b', 'chunks => 12'));
	ok($c->wait_for('s1', "SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND NOT granted", '1'), 'the second waits for the first');
	$first->query_safe($end);
	my $errors = TesseraCluster::ended($c, $second);
	is($errors, '', 'which has given up') if $end eq 'ROLLBACK';
	like($errors, qr/ERROR:  53400: tables of role "mallory" would have 24 chunks/, 'which has had its chunks') if $end eq 'COMMIT';
	is($c->query($_, 'SELECT count(*) FROM tessera.chunk JOIN tessera.cluster_table USING (group_id) WHERE schema_name = ' . "'mallory'"), '12',
		"those of one on $_") foreach 's1', 's2';
	if ($end eq 'ROLLBACK')
	{
		mallory('DROP TABLE mallory.b');
		mallory('CREATE TABLE mallory.b (k int PRIMARY KEY)');
	}
	$first->quit;
}

# Who goes by an old snapshot counts what is there now.
my $old = $c->session_of('s2', 'SET ROLE mallory', 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM mallory.a');
mallory(shard('c', 'chunks => 8'));
is($c->answer($old, shard('d', 'chunks => 1')), '53400', 'an old snapshot hides nothing');
$old->quit;

# ---- a group for the time of its moves ----

mallory("INSERT INTO mallory.$_ SELECT generate_series(1, 100)") foreach 'e', 'f';
$c->set('s1', 'tessera.max_groups_per_owner' => 2);
refused(shard('d'), 'tables of role "mallory" would be in 3 table groups', 'both limits are reached');
$c->pause_at('r1', 'colocate_apart');
my $cancelled = $c->background('r1', 'SET ROLE mallory; ' . shard('e', "colocate_with => 'mallory.a'"));
ok($c->paused_at('r1', 'colocate_apart'), 'a table with rows has a group of its own beyond them, until it has joined');
my $second = "SELECT tessera.shard_table('mallory.f', 'k', 'hash', colocate_with => 'mallory.a')";
$error = refused($second, 'tables of role "mallory" would be in 4 table groups, and may be in 2', 'only one at a time');
like($error, qr/HINT:  First let the role's tables join/, 'the hint says which');
$c->query('r1', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%mallory.e%colocate_with%' AND pid <> pg_backend_pid()});
like(TesseraCluster::ended($c, $cancelled), qr/57014/, 'it is cancelled');
$c->go_on('r1');
refused($second, 'tables of role "mallory" would be in 4 table groups', 'the group that is left counts');
$c->set('s1', 'tessera.max_groups_per_owner' => 10);
$error = refused($second, 'tables of role "mallory" would have 44 chunks, and may have 20', 'and so do its chunks');
like($error, qr/HINT:  First let the role's tables join/, 'the hint says it again');
like($c->error('r1', "SET ROLE mallory; SELECT tessera.configure_table('mallory.e', balancing => true)"), qr/ERROR:  42501/,
	'nor can the owner make it one like others');
foreach my $table ('e', 'f')
{
	mallory(shard($table, "colocate_with => 'mallory.a'"));
	is($c->query('r1', "SELECT count(*) FROM mallory.$table"), '100', "table $table joins");
}
is($c->query('s1', q{SELECT count(DISTINCT group_id) FROM tessera.cluster_table WHERE schema_name = 'mallory'}), '2',
	'nothing is left beyond the limits');

done_testing();
