# A range moves while it is in use (S35-S61): no transaction fails, every sum is conserved, every acknowledged row is there once, on every node; all
# tables of a group move together (S36); a migration that fails at any step leaves everything as it was (S44, S61, S63), one that is committed is
# carried out (S60); a shard takes part in so many migrations at a time as is set (S37), the same request joins (S38).
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use TesseraCluster;

my $c = TesseraCluster->new('move', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });
$c->create(shards => 3);
my @nodes = $c->names;

$c->everywhere($_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
	'CREATE TABLE history (id bigint NOT NULL, k int NOT NULL, delta int NOT NULL, PRIMARY KEY (k, id))',
	"INSERT INTO acc SELECT g, 0, repeat('x', g % 300) FROM generate_series(1, 6000) g",
	'CREATE TABLE items (name text PRIMARY KEY, n numeric, tags text[])',
	"INSERT INTO items SELECT 'item ' || g, g / 7.0, ARRAY[g::text, NULL] FROM generate_series(1, 3000) g");
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.shard_table('history', 'k', colocate_with => 'acc')");
$c->query('s1', "SELECT tessera.shard_table('items', 'name', strategy => 'hash', chunks => 6)");

sub move
{
	my ($min, $max, $to, %params) = @_;
	return $c->query($params{via} // 's1', sprintf("SELECT tessera.move_range('%s', %s, %s, '%s')", $params{table} // 'acc', $min, $max, $to));
}

sub owner
{
	my ($key, $node) = @_;
	return $c->query($node // 's1', "SELECT tessera.range_owner('acc', $key)");
}

sub same
{
	my ($name, $sql) = @_;
	my ($same, $detail) = $c->same_everywhere($sql);
	ok($same, $name) or diag $detail;
	return;
}

sub same_rows
{
	my ($name) = @_;
	same("$name: accounts", 'SELECT k, bal, md5(filler) FROM acc');
	same("$name: items", 'SELECT * FROM items');
	return;
}

# Idle.
like(move(1000, 2000, 's2'), qr/^[0-9a-f-]{36}$/, 'a part of a chunk moves');
is(owner(1000), 's2', 'to its new owner');
ok($c->wait_for('s2', "SELECT tessera.range_owner('acc', 1000)", 's2', 5), 'who knows it at once');
is(owner(999), 's1', 'below the range nothing has changed');
is(owner(2000), 's1', 'above neither');
is($c->query('s1', "SELECT state || ' ' || phase || ' ' || rows FROM tessera.migrations"), 'committed done 1000', 'the migration is on record');
same_rows('after a move');
$c->is_settled('a move');

is(move(1000, 2000, 's2'), '', 'a range that is there already is not moved');
move(1200, 1300, 's3', via => 's3');
same_rows('after a move asked for on the recipient');
move(1200, 1300, 's2', via => 's3');
move(1000, 2000, 's1', via => 's2');
same_rows('after all moved back');
$c->is_settled('moves there and back');

like($c->query('s2', "SELECT tessera.move_chunk('items', 'item 5', 's3')"), qr/-/, 'a chunk of a hash group moves');
is($c->query('s1', "SELECT tessera.range_owner('items', 'item 5')"), 's3', 'to its new owner');
same_rows('after a move of a hash chunk');
$c->is_settled('hash');

# Refusals.
my @refused = (
	[ '22023', "SELECT tessera.move_range('acc', 5, 5, 's2')", 'an empty range' ],
	[ '42704', "SELECT tessera.move_range('acc', 5, 6, 'nowhere')", 'an unknown shard' ],
	[ '25001', "BEGIN; SELECT count(*) FROM acc; SELECT tessera.move_range('acc', 1, 2, 's2')", 'a transaction that has used the table' ],
	[ '25001', "BEGIN; CREATE TEMP TABLE x (); SELECT pg_current_xact_id(); SELECT tessera.move_range('acc', 1, 2, 's2')",
	'a transaction that has written' ],
	[ '55000', "SELECT tessera.move_range('pg_class', 1, 2, 's2')", 'a table that is not sharded' ]);
like($c->error('s1', $_->[1]), qr/ERROR:  $_->[0]/, "refused: $_->[2]") foreach @refused;
move(3000, 3500, 's2');
move(2500, 3200, 's3');
is(join(' ', map { owner($_) } 2499, 2500, 3000, 3199, 3200), 's1 s3 s3 s3 s2', 'a range of two shards moves in parts (see operations/part_by_part)');
move(2500, 3500, 's1');

# Under load from every node: transfers inside and across the range, and inserts into the table that moves along.
my $transfer = <<'END';
\set a random(1, 6000)
\set b random(1, 6000)
\set d random(1, 100)
BEGIN;
UPDATE acc SET bal = bal - :d WHERE k = :a;
UPDATE acc SET bal = bal + :d WHERE k = :b;
COMMIT;
END
my $insert = <<'END';
\set k random(1, 6000)
\set id random(1, 1000000000000)
INSERT INTO history (id, k, delta) VALUES (:id, :k, 1);
END
my $load = $c->pgbench_start(script => $transfer, transactions => 60, rate => 50, clients => 2);
my $inserts = $c->pgbench_start(script => $insert, transactions => 120, rate => 50, clients => 1, protocol => 'prepared');
my $moves = 0;
while ($load->running || $inserts->running)
{
	foreach my $move ([ 1000, 4000, 's2' ], [ 2000, 3000, 's3' ], [ 1000, 2000, 's1' ], [ 3000, 4000, 's3' ], [ 2000, 4000, 's1' ])
	{
		my ($status, $stdout, $stderr) = $c->psql($nodes[ $moves % 3 ], "SELECT tessera.move_range('acc', $move->[0], $move->[1], '$move->[2]')");
		is($status, 0, "move of $move->[0] to $move->[1] to $move->[2] under load") or diag $stderr;
		$moves++;
	}
}
my $sums = $load->wait;
my $inserted = $inserts->wait;
cmp_ok($moves, '>=', 5, "$moves moves");
cmp_ok($sums->{processed}, '>', 0, "$sums->{processed} transfers");
is($sums->{failed} + $sums->{aborted}, 0, 'no transfer failed') or diag $sums->{errors};
is($inserted->{failed} + $inserted->{aborted}, 0, 'no insert failed') or diag $inserted->{errors};
foreach my $node (@nodes)
{
	is($c->query($node, 'SELECT count(*), sum(bal) FROM acc'), '6000|0', "$node: sums are conserved");
	is($c->query($node, 'SELECT count(*), count(DISTINCT (k, id)) FROM history'), "$inserted->{processed}|$inserted->{processed}",
		"$node: every acknowledged row is there once");
}
$c->is_settled('moves under load');
note($c->query('s1', 'SELECT count(*), max(pause_ms), avg(pause_ms) FROM tessera.migrations'));
$c->query('s1', 'UPDATE acc SET bal = 0');
same_rows('after the load');

# An error at any step of either side: before the decision nothing has changed, after it the move is carried out.
foreach my $point (
	[ 's1', 'donor_registered', 0 ], [ 's1', 'donor_flag_up', 0 ], [ 's1', 'donor_slot', 0 ], [ 's1', 'donor_cloned', 0 ],
	[ 's1', 'donor_steady', 0 ], [ 's1', 'donor_write_gate', 0 ], [ 's1', 'donor_read_gate', 0 ], [ 's1', 'config_commit', 0 ],
	[ 's1', 'config_committed', 1 ], [ 's1', 'donor_released', 1 ], [ 's1', 'donor_cleaning', 1 ],
	[ 's2', 'recipient_registered', 0 ], [ 's2', 'recipient_batch', 0 ], [ 's2', 'recipient_cloned', 0 ], [ 's2', 'recipient_confirming', 0 ],
	[ 's2', 'recipient_confirmed', 0 ])
{
	my ($node, $name, $committed) = @$point;
	$c->query($node, "SELECT tessera_test.injection_set('$name', 'error')");
	my ($status, $stdout, $stderr) = $c->psql('s3', "SELECT tessera.move_range('acc', 100, 900, 's2')");
	if ($committed)
	{
		is($status, 0, "$name: the move is carried out") or diag $stderr;
	}
	else
	{
		like($stderr, qr/ERROR:  38000: injected error at "$name"/, "$name: the move fails with the error") or diag $stdout;
		like($c->query('s1', 'SELECT error FROM tessera.migrations ORDER BY started DESC LIMIT 1'), qr/^38000: injected error at "$name"/,
			"$name: the error is on record");
	}
	is($c->query($node, 'SELECT count(*) FROM tessera_test.injection_list() WHERE hits > 0'), '1', "$name: it was there");
	$c->go_on($node);
	is(owner(500), $committed ? 's2' : 's1', "$name: owner");
	same("$name: rows", "SELECT count(*), count(DISTINCT k), sum(hashtext(k || ' ' || bal)) FROM acc");
	$c->is_settled($name);
	move(100, 900, 's1') if $committed;
}

# The same request joins, another one is refused, cancellation leaves everything as it was.
sub paused
{
	my ($node, $point, $sub) = @_;
	$c->pause_at($node, $point);
	my $session = $c->begin('s3', "SELECT tessera.move_range('acc', 100, 900, 's2')");
	ok($c->paused_at($node, $point), "a migration is paused at $point");
	my $id = $c->query('s1', "SELECT id FROM tessera.migrations ORDER BY started DESC LIMIT 1");
	$sub->($id, $session);
	$c->go_on($node);
	my $result = $session->query('SELECT 1');
	my $errors = $session->{stderr};
	$session->quit;
	return ($result, $errors);
}

$c->set('s1', 'tessera.max_moves_per_shard' => 1);
my ($result, $errors) = paused('s1', 'donor_cloned', sub {
	my ($id) = @_;
	like($c->error('s2', "SELECT tessera.move_range('acc', 5000, 5100, 's2')"),
		qr/ERROR:  55006: shard "s1" takes part in 1 migration already.*max_moves_per_shard of the config node allows 1/s, 'the shards are busy');
	like($c->error('s2', "SELECT tessera.move_range('acc', 100, 900, 's3')"),
		qr/ERROR:  55006: a part of the range is being moved already.*Migration $id moves 100 to 900/s, 'the same range to another shard: busy');
	my $joined = $c->session('s2');
	$joined->query_until(qr/begun/, "\\echo begun\nSELECT 'joined ' || tessera.move_range('acc', 100, 900, 's2');\n");
	like($c->query('s1', "SELECT side || ' ' || rows_done FROM tessera.stat_progress_migration"), qr/^donor \d{3,}$/, 'progress on the donor');
	is($c->query('s2', 'SELECT side FROM tessera.stat_progress_migration'), 'recipient', 'progress on the recipient');
	same_rows('in the middle of a migration');
	$c->go_on('s1');
	like($joined->query('SELECT 1'), qr/joined $id/, 'the same request joins the running migration');
	$joined->quit;
});
is(owner(500), 's2', 'it is carried out');
$c->is_settled('joined');
$c->set('s1', 'tessera.max_moves_per_shard' => 2);
move(100, 900, 's1');

($result, $errors) = paused('s1', 'donor_cloned', sub {
	my ($id) = @_;
	is($c->query('s2', "SELECT tessera.cancel_migration('$id')"), 't', 'a migration is cancelled');
});
like($errors, qr/57014: migration was cancelled/, 'its caller hears of it');
is(owner(500), 's1', 'nothing has moved');
same_rows('after a cancellation');
$c->is_settled('cancelled');

($result, $errors) = paused('s1', 'donor_cloned', sub {
	my ($id, $session) = @_;
	$c->query('s3', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT tessera.move_range%' AND pid <> pg_backend_pid()");
	ok($c->wait_for('s1', "SELECT state FROM tessera.migrations WHERE id = '$id'", 'aborted'), 'cancelling the statement cancels its migration');
});
is(owner(500), 's1', 'nothing has moved');
$c->is_settled('statement cancelled');

# Behind the point of no return a cancellation comes too late.
($result, $errors) = paused('s1', 'config_committed', sub {
	my ($id) = @_;
	$c->query('s1', "SELECT tessera_internal.cancel_migration('$id', NULL)");
	my $reader = $c->session('s3');
	$reader->query_until(qr/begun/, "\\echo begun\nSELECT 'count ' || count(*) FROM acc;\n");
	is($c->query('s3', 'SELECT count(*) FROM acc WHERE k = 5000'), '1', 'outside of the range reads go on');
	$c->go_on('s1');
	like($reader->query('SELECT 1'), qr/count 6000/, 'a reader of the range waits for the outcome and sees every row');
	$reader->quit;
});
is(owner(500), 's2', 'it is carried out');
$c->is_settled('decided');
move(100, 900, 's1');

# A transaction that sits in the range holds the gate open, and the migration waits.
my $writer = $c->session('s1');
($result, $errors) = paused('s1', 'donor_steady', sub {
	my ($id) = @_;
	$writer->query_safe('BEGIN; UPDATE acc SET bal = 77 WHERE k = 500');
	$c->go_on('s1');
	ok($c->wait_for('s1', "SELECT waiting_for FROM tessera.migrations WHERE id = '$id'", qr/^transaction of process \d+ on node "s1"/),
		'it shows what it waits for');
	is($c->query('s2', 'UPDATE acc SET bal = 78 WHERE k = 501 RETURNING bal'), '78', 'writers of the range go on meanwhile');
	$writer->query_safe('COMMIT');
});
$writer->quit;
is(owner(500), 's2', 'it is carried out when the writer is gone');
is($c->query('s3', 'SELECT string_agg(bal::text, $$ $$ ORDER BY k) FROM acc WHERE k IN (500, 501)'), '77 78', 'with what was written');
$c->is_settled('waited for a writer');

done_testing();
