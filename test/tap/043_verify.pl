# A move verified by content: what differs between donor and recipient ends it, and is named, whether it comes from the clone, from changes while the recipient
# catches up, or from the last ones before the hand-over; what only looks different on two nodes (OIDs, columns' order) does not.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('verify', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });
$c->create(shards => 2);

# Types and tables of the same names, with other OIDs, columns in another order, and a dropped one.
my $local = 'SET tessera.replicate_ddl = off';
$c->query('s2', "$local; CREATE TYPE only_here_$_ AS ENUM ('a', 'b')") foreach 1 .. 3;
$c->query('s1', $_) foreach (
	"CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')", 'CREATE TYPE pair AS (m mood, n int)', 'CREATE DOMAIN positive AS int CHECK (value > 0)',
	'CREATE TABLE odd (k int PRIMARY KEY, gone text, m mood, ms mood[], p pair, ps pair[], n numeric, f float8, d positive, t text, j jsonb,
		twice int GENERATED ALWAYS AS (k * 2) STORED)');
$c->query('s1', "$local; ALTER TABLE odd DROP COLUMN gone");
$c->query('s2', "$local; ALTER TABLE odd DROP COLUMN gone, DROP COLUMN m, DROP COLUMN d; ALTER TABLE odd ADD COLUMN d positive, ADD COLUMN m mood");
$c->query('s1', $_) foreach (
	"INSERT INTO odd (k, m, ms, p, ps, n, f, d, t, j) SELECT g, CASE WHEN g % 5 > 0 THEN 'happy'::mood END, ARRAY['sad', NULL]::mood[], ROW('ok', g)::pair, ARRAY[ROW('sad', g)::pair, NULL],
		(g || CASE WHEN g % 2 = 0 THEN '.10' ELSE '.1' END)::numeric, CASE WHEN g % 2 = 0 THEN '-0'::float8 ELSE 0 END, g,
		CASE WHEN g % 50 = 0 THEN (SELECT string_agg(md5(g::text || x), '') FROM generate_series(1, 1000) x) END, jsonb_build_object('g', g)
		FROM generate_series(1, 500) g",
	"SELECT tessera.shard_table('odd', 'k')",
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
	"INSERT INTO acc SELECT g, 0, repeat('x', g % 100) FROM generate_series(1, 4000) g WHERE g <> 777",
	"SELECT tessera.shard_table('acc', 'k')",
	'CREATE TABLE log (k int NOT NULL, line text)',
	'CREATE INDEX ON log (k)',
	'ALTER TABLE log REPLICA IDENTITY FULL',
	"INSERT INTO log SELECT g / 4, 'line ' || g % 2 FROM generate_series(4, 4000) g",
	"SELECT tessera.shard_table('log', 'k', colocate_with => 'acc')");
isnt($c->query('s1', "SELECT 'mood'::regtype::oid"), $c->query('s2', "SELECT 'mood'::regtype::oid"), 'types have different OIDs on the nodes');

my $odd = 'SELECT k, m, ms, p, ps, n, f, d, md5(t), j, twice FROM odd';
my $accounts = "SELECT count(*), sum(k), sum(bal), md5(string_agg(k || filler, '' ORDER BY k)) FROM acc";
my $lines = "SELECT count(*), md5(string_agg(k || line, '' ORDER BY k, line)) FROM log";

sub clean
{
	my ($name) = @_;
	foreach my $node ($c->names)
	{
		ok($c->wait_for($node,
			"SELECT (SELECT count(*) FROM tessera.migration_coordinator) + (SELECT count(*) FROM tessera.migration_recipient)
			+ (SELECT count(*) FROM tessera.placement WHERE gate <> 'open' OR migration_id IS NOT NULL OR confirmed)
			+ (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM tessera.range_deletions)", '0', 60), "$name: $node is clean");
	}
	is($c->query('s1', "SELECT * FROM tessera.check_consistency(deep => true)"), '', "$name: consistent");
	return;
}

# Pauses a node at a point; waits until it is there; lets it go on.
sub arm
{
	my ($node, $point) = @_;
	$c->query($node, "SELECT tessera.injection_set('$point', 'pause')");
	return;
}

sub paused
{
	my ($node, $point) = @_;
	ok($c->wait_for($node, "SELECT sum(paused) FROM tessera.injection_list() WHERE name = '$point'", '1'), "paused at $point");
	return;
}

sub begin
{
	my ($sql) = @_;
	my $session = $c->session('s1', on_error_stop => 0);
	$session->query_until(qr/begun/, "\\echo begun\n\\set VERBOSITY verbose\n$sql;\n");
	return $session;
}

sub finish
{
	my ($session) = @_;
	$c->query($_, 'SELECT tessera.injection_clear()') foreach $c->names;
	$session->query('SELECT 1');
	my $errors = $session->{stderr};
	$session->quit;
	return $errors;
}

# What damages a table of the recipient behind the migration's back: a row too few, another one, one too many.
$c->query('s2', "$local; CREATE TABLE twin (LIKE acc); CREATE TABLE twin_log (LIKE log)");
my %damages = (
	drop => "SELECT tessera.delete_range_rows('acc', ARRAY['k'], %d, %d + 1)",
	add => "BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO twin VALUES (%d, 0, 'added');
		SELECT tessera.apply_payload(ARRAY['acc'::regclass], ARRAY['k'], (SELECT payload FROM tessera.clone_payloads(ARRAY['twin'::regclass], ARRAY['k'])));
		DELETE FROM twin; COMMIT");
$damages{alter} = $damages{drop} . '; ' . $damages{add};

sub damage
{
	my ($how, $key) = @_;
	$c->query('s2', "$local; " . sprintf($damages{$how}, ($key) x 3));
	return;
}

# Nothing to find.
foreach my $to ('s2', 's1')
{
	$c->query('s1', "SELECT tessera.move_range('odd', 100, 400, '$to', verify => true)");
	is($c->query('s1', "SELECT tessera.range_owner('odd', 200)"), $to, "odd types are verified on the way to $to");
}
is($c->query('s1', "SELECT count(*), count(m), sum(n), sum(twice), count(t) FROM odd"), '500|400|125300.00|250500|10', 'and there');
foreach my $to ('s2', 's1')
{
	my $before = $c->query('s1', $accounts) . $c->query('s1', $lines);
	$c->query('s1', "SELECT tessera.move_range('acc', 500, 900, '$to', verify => true)");
	is($c->query('s1', $accounts) . $c->query('s1', $lines), $before, "a group with a table without identity is verified on the way to $to");
}
is($c->query('s1', 'SELECT bool_and(verify) FROM tessera.migration'), 't', 'moves are verified by default');

# A clone that differs. 777 is the key of no row.
my %counts = (drop => 398, alter => 399, add => 400);
foreach my $how (sort keys %counts)
{
	arm('s2', 'recipient_cloned');
	my $session = begin("SELECT tessera.move_range('acc', 500, 900, 's2')");
	paused('s2', 'recipient_cloned');
	damage($how, $how eq 'add' ? 777 : 600);
	like(finish($session), qr/XX001: verification of the clone: rows of table "public\.acc" differ \(donor: 399 rows, recipient: $counts{$how} rows\)/,
		"clone, $how: found, and the table is named");
	is($c->query('s1', "SELECT tessera.range_owner('acc', 600)"), 's1', "clone, $how: the donor keeps the range");
	clean("clone, $how");
}
arm('s2', 'recipient_cloned');
my $unverified = begin("SELECT tessera.move_range('acc', 500, 900, 's2', verify => false)");
paused('s2', 'recipient_cloned');
damage('drop', 600);
is(finish($unverified), '', 'without verification nobody notices');
is($c->query('s1', 'SELECT count(*) FROM acc'), '3998', 'that a row is lost');
is($c->query('s1', 'SELECT count(*) FROM tessera.migration WHERE NOT verify'), '1', 'which the migration shows');

done_testing();
