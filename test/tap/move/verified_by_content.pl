# A move verified by content: what differs between donor and recipient ends it, and is named, whether it comes from the clone, from changes while the
# recipient catches up, or from the last ones before the hand-over; what only looks different on two nodes (OIDs, columns' order) does not.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('verify', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100,
		# on a slow machine, too, the first attempt at the gate is the one that is looked at
		'tessera.critical_section_budget' => 2000, 'tessera.critical_section_lock_timeout' => 2000 });
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
	"INSERT INTO odd (k, m, ms, p, ps, n, f, d, t, j) SELECT g, CASE WHEN g % 5 > 0 THEN 'happy'::mood END, ARRAY['sad', NULL]::mood[], ROW('ok',
		g)::pair, ARRAY[ROW('sad', g)::pair, NULL],
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
	"SELECT tessera.shard_table('log', 'k', colocate_with => 'acc')",
	'CREATE TABLE notes (k int, id int, t text, PRIMARY KEY (k, id))',
	'ALTER TABLE notes ALTER t SET STORAGE EXTERNAL',
	"INSERT INTO notes SELECT g, 1, repeat('t', 5000) FROM generate_series(1, 4000, 100) g",
	"SELECT tessera.shard_table('notes', 'k', colocate_with => 'acc')");
isnt($c->query('s1', "SELECT 'mood'::regtype::oid"), $c->query('s2', "SELECT 'mood'::regtype::oid"), 'types have different OIDs on the nodes');

my $odd = 'SELECT k, m, ms, p, ps, n, f, d, md5(t), j, twice FROM odd';
my $accounts = "SELECT count(*), sum(k), sum(bal), md5(string_agg(k || filler, '' ORDER BY k)) FROM acc";
my $lines = "SELECT count(*), md5(string_agg(k || line, '' ORDER BY k, line)) FROM log";

sub finish
{
	my ($session) = @_;
	$c->go_on($_) foreach $c->names;
	return $c->finish($session);
}

# What damages a table of the recipient behind the migration's back: a row too few, another one, one too many.
$c->query('s2', "$local; CREATE TABLE twin (LIKE acc); CREATE TABLE twin_log (LIKE log)");
my %damages = (
	drop => "SELECT tessera_test.delete_range_rows('acc', ARRAY['k'], %d, %d + 1)",
	add => "BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO twin VALUES (%d, 0, 'added');
		SELECT tessera_test.apply_payload(ARRAY['acc'::regclass], ARRAY['k'], (SELECT payload
		FROM tessera_test.clone_payloads(ARRAY['twin'::regclass],
		ARRAY['k'])));
		DELETE FROM twin; COMMIT");
$damages{alter} = $damages{drop} . '; ' . $damages{add};

sub damage
{
	my ($how, $key) = @_;
	(my $sql = $damages{$how}) =~ s/%d/$key/g;
	$c->query('s2', "$local; $sql");
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
	$c->pause_at('s2', 'recipient_cloned');
	my $session = $c->begin('s1', "SELECT tessera.move_range('acc', 500, 900, 's2')");
	$c->is_paused_at('s2', 'recipient_cloned');
	damage($how, $how eq 'add' ? 777 : 600);
	like(finish($session),
		qr/XX001: verification of the clone: rows of table "public\.acc" differ \(donor: 399 rows, recipient: $counts{$how} rows\)/,
		"clone, $how: found, and the table is named");
	is($c->query('s1', "SELECT tessera.range_owner('acc', 600)"), 's1', "clone, $how: the donor keeps the range");
	$c->is_settled("clone, $how");
}
# A transaction inside the range keeps the gate open, so that rounds come before it.
sub writer_inside
{
	my $writer = $c->session('s1');
	$writer->query('BEGIN');
	$writer->query('UPDATE notes SET t = t WHERE k = 801');
	return $writer;
}

# Rows that have changed are compared while the recipient catches up, and the last of them in the pause.
sub change
{
	$c->query('s1', $_) foreach ('UPDATE acc SET bal = bal + 1 WHERE k BETWEEN 590 AND 610', "INSERT INTO acc VALUES (777, 1, '')",
		'DELETE FROM acc WHERE k = 777',
		"UPDATE log SET line = 'new ' || line WHERE k = 700");
	return;
}

# Begins a move, changes rows while it runs, and pauses the recipient when it is asked to compare them.
sub changed
{
	my ($stage) = @_;
	my ($session, $writer);
	if ($stage eq 'round')
	{
		$c->pause_at('s2', 'recipient_cloned');
		$session = $c->begin('s1', "SELECT tessera.move_range('acc', 500, 900, 's2')");
		$c->is_paused_at('s2', 'recipient_cloned');
		change();
		$writer = writer_inside();
		$c->pause_at('s2', 'recipient_verify_round');
		$c->go_on('s2', 'recipient_cloned');
	}
	else
	{
		$c->pause_at('s1', 'donor_closing');
		$session = $c->begin('s1', "SELECT tessera.move_range('acc', 500, 900, 's2')");
		$c->is_paused_at('s1', 'donor_closing');
		change();
		$c->pause_at('s2', 'recipient_verify_rest');
		$c->go_on('s1', 'donor_closing');
	}
	$c->is_paused_at('s2', "recipient_verify_$stage");
	if ($writer)
	{
		$writer->query('COMMIT');
		$writer->quit;
	}
	return $session;
}

my %found = (drop => 'acc" with key \(600\) differ \(donor: 1 rows, recipient: 0 rows\)',
	alter => 'acc" with key \(600\) differ \(donor: 1 rows, recipient: 1 rows\)',
	add => 'acc" with key \(777\) differ \(donor: 0 rows, recipient: 1 rows\)',
	again => 'log" with key \(700\) differ \(donor: 4 rows, recipient: 5 rows\)');
$damages{again} = "BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO twin_log VALUES (%d, 'new line 0');
	SELECT tessera_test.apply_payload(ARRAY['log'::regclass], ARRAY['k'], (SELECT payload
	FROM tessera_test.clone_payloads(ARRAY['twin_log'::regclass],
	ARRAY['k'])));
	DELETE FROM twin_log; COMMIT";
my %damaged = (drop => 600, alter => 600, add => 777, again => 700);
foreach my $stage ('round', 'rest')
{
	my $where = $stage eq 'rest' ? ' in the pause' : '';
	foreach my $how (sort keys %found)
	{
		my $session = changed($stage);
		damage($how, $damaged{$how});
		like(finish($session), qr/XX001: verification of changes$where: rows of table "public\.$found{$how}/,
			"$stage, $how: found, and table and key are named");
		is($c->query('s1', "SELECT tessera.range_owner('acc', 600)"), 's1', "$stage, $how: the donor keeps the range");
		$c->is_settled("$stage, $how");
		$c->query('s1', "UPDATE log SET line = substr(line, 5) WHERE k = 700");
	}
}
my $before = $c->query('s1', $lines);
is(finish(changed('round')), '', 'the same without damage: the range moves');
$c->query('s2', "UPDATE log SET line = substr(line, 5) WHERE k = 700");
is($c->query('s1', $lines), $before, 'with every row of the table without identity');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 900, 's1')");
$c->is_settled('no damage');

# A round's snapshot sees changes that are decoded much later: the keys that they change are not of this round.
$c->query('s1', "ALTER SYSTEM SET tessera.migration_batch_size = '8kB'");
$c->query('s1', 'SELECT pg_reload_conf()');
$c->pause_at('s2', 'recipient_cloned');
$c->pause_at('s1', 'donor_verify_round');
my $behind = $c->begin('s1', "SELECT tessera.move_range('acc', 500, 900, 's2')");
$c->is_paused_at('s2', 'recipient_cloned');
change();
my $inside = writer_inside();
$c->go_on('s2');
$c->is_paused_at('s1', 'donor_verify_round');
$inside->query('COMMIT');
$inside->quit;
$c->query('s1', 'UPDATE acc SET bal = bal + 1 WHERE k >= 500 AND k < 900 AND k <> 600') foreach 1 .. 5;
$c->query('s1', 'UPDATE acc SET bal = bal + 1 WHERE k = 600');
is(finish($behind), '', 'a key that changes behind much else is no difference');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 900, 's1')");
$c->query('s1', 'ALTER SYSTEM RESET tessera.migration_batch_size');
$c->query('s1', 'SELECT pg_reload_conf()');

# Changes of all kinds under load, back and forth: no difference is found, and it comes to an end.
my $load = $c->pgbench_start(nodes => [ 's1', 's2' ], clients => 2, seconds => 600, rate => 60, max_tries => 100, scripts => {
	"\\set k random(1, 3500)\nUPDATE acc SET bal = bal + 1 WHERE k = :k;\n" => 6,
	"\\set k random(1, 500)\nUPDATE odd SET m = CASE WHEN m = 'ok' THEN 'sad'::mood ELSE 'ok' END, n = n + 1, f = -f WHERE k = :k;\n" => 3,
	"\\set k random(1, 1000)\nINSERT INTO log VALUES (:k, 'twice'), (:k, 'twice');\n" => 1,
	"\\set k random(1, 1000)\nUPDATE log SET line = line || 'x' WHERE k = :k AND line LIKE 'line%' AND length(line) < 20;\n" => 1,
	"\\set k random(3501, 4000)\nDELETE FROM acc WHERE k = :k;\n" => 1,
	"\\set k random(3501, 4000)\nINSERT INTO acc VALUES (:k, 0, 'again') ON CONFLICT DO NOTHING;\n" => 1 });
foreach my $to ('s2', 's1', 's2')
{
	foreach my $move ("'acc', 500, 3900", "'odd', 100, 400")
	{
		my ($status, $stdout, $stderr) = $c->psql('s1', "SELECT tessera.move_range($move, '$to', verify => true)");
		is($stderr, '', "under load, $move to $to");
	}
}
my $sums = $load->stop;
is($sums->{aborted}, 0, 'no client has ended') or diag $sums->{errors};
cmp_ok($c->query('s1', 'SELECT sum(bal) FROM acc'), '>', 500, 'and they have written');
$c->is_settled('load');
is($c->query('s1', 'SELECT count(*), count(t) FROM odd'), '500|10', 'no row is lost');

# A row gets another identity, its TOAST is as it was and thus not in WAL, and the transaction, flushed, waits for a standby: others do not see it
# yet.
$c->query('s1', "SELECT tessera.move_range('acc', 500, 3900, 's2')") if $c->query('s1', "SELECT tessera.range_owner('acc', 600)") eq 's1';
$c->pause_at('s1', 'recipient_cloned');
my $late = $c->begin('s1', "SELECT tessera.move_range('acc', 500, 3900, 's1')");
$c->is_paused_at('s1', 'recipient_cloned');
$c->query('s2', 'ALTER SYSTEM SET synchronous_standby_names = nobody');
$c->query('s2', 'SELECT pg_reload_conf()');
my $writer = $c->session('s2', on_error_stop => 0);
$writer->query_until(qr/begun/, "\\echo begun\nUPDATE notes SET id = 2 WHERE k = 701;\n");
ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%notes%'", 't'),
	'a transaction waits for a standby');
$c->go_on('s1');
ok($c->wait_for('s2', "SELECT count(*) FROM tessera.stat_progress_migration WHERE waiting_for LIKE '%visible%'", '1'), 'the migration waits for it');
$c->query('s2', 'ALTER SYSTEM RESET synchronous_standby_names');
$c->query('s2', 'SELECT pg_reload_conf()');
$writer->quit;
is(finish($late), '', 'and finds its row');
is($c->query('s1', 'SELECT k, id, length(t) FROM notes WHERE k = 701'), '701|2|5000', 'which has moved');

# Too many keys: refused, not forgotten.
$c->query('s1', 'ALTER SYSTEM SET tessera.migration_verify_memory = 64');
$c->query('s1', 'SELECT pg_reload_conf()');
$c->pause_at('s2', 'recipient_cloned');
my $limited = $c->begin('s1', "SELECT tessera.move_range('acc', 500, 3900, 's2')");
$c->is_paused_at('s2', 'recipient_cloned');
$c->query('s1', 'UPDATE acc SET bal = bal');
like(finish($limited), qr/53400.*migration_verify_memory/s, 'more keys than there is memory for');
$c->query('s1', 'ALTER SYSTEM RESET tessera.migration_verify_memory');
$c->query('s1', 'SELECT pg_reload_conf()');
$c->is_settled('memory');

$c->pause_at('s2', 'recipient_cloned');
my $unverified = $c->begin('s1', "SELECT tessera.move_range('acc', 500, 900, 's2', verify => false)");
$c->is_paused_at('s2', 'recipient_cloned');
damage('drop', 600);
is(finish($unverified), '', 'without verification nobody notices');
is($c->query('s1', 'SELECT count(*) FROM acc WHERE k = 600'), '0', 'that a row is lost');
is($c->query('s1', 'SELECT count(*) FROM tessera.migration WHERE NOT verify'), '1', 'which the migration shows');

done_testing();
