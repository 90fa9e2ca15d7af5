# What a migration meets on its way: snapshots older than it, limits, a worker that is ended, a config node that is away while it should decide
# (doc/design.md#commit-and-fence), keys of several columns, and a shard that gives everything away (S20).
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('edges', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });
$c->create(shards => 3);
$c->everywhere($_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL)',
	'INSERT INTO acc SELECT g, g FROM generate_series(1, 2000) g',
	'CREATE TABLE pairs (a text COLLATE "C" NOT NULL, b int NOT NULL, c timestamptz, PRIMARY KEY (a, b))',
	"INSERT INTO pairs SELECT chr(97 + g % 26), g, '2026-01-01'::timestamptz + g * interval '1 hour' FROM generate_series(1, 2600) g");
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.shard_table('pairs', 'a, b')");

sub same
{
	my ($name, $sql) = @_;
	my ($same, $detail) = $c->same_everywhere($sql);
	ok($same, $name) or diag $detail;
	return;
}

# Begins a move on s3 and waits until it is paused.
sub begin
{
	my ($node, $point, $sql) = @_;
	$c->pause_at($node, $point);
	my $session = $c->begin('s3', $sql);
	$c->is_paused_at($node, $point);
	return $session;
}

sub finish
{
	my ($node, $session) = @_;
	$c->go_on($node);
	return $c->finish($session);
}

# Keys of two columns, bounds of one and of two.
$c->query('s1', "SELECT tessera.move_range('pairs', 'f', ('m', 1500), 's2')");
$c->query('s1', "SELECT tessera.move_range('pairs', ('m', 1500), tessera.maxkey(), 's3')");
same('keys of two columns', 'SELECT * FROM pairs');
is($c->query('s1', "SELECT string_agg(shard, ' ' ORDER BY min) FROM tessera.chunks WHERE table_name = 'pairs'::regclass"), 's1 s2 s3',
	'split where it was cut');
$c->is_settled('two columns');

# All that a shard has.
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's2')");
same('everything moved', 'SELECT * FROM acc');
$c->is_settled('everything');
is($c->query('s1', 'SELECT major FROM tessera.placement WHERE owned = $${}$$'), '0', 'an owner of nothing has version 0');
$c->query('s2', 'UPDATE acc SET bal = bal WHERE k = 7');

# A snapshot from before the move: what it sees stays whole, or the transaction is told to retry.
foreach my $node (qw(s1 s2 s3))
{
	my $reader = $c->session($node, on_error_stop => 0);
	$reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	is($reader->query('SELECT count(*), sum(bal) FROM acc'), '2000|2001000', "$node: a snapshot is taken");
	$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's3')");
	$c->query('s1', 'UPDATE acc SET bal = bal + 1 WHERE k = 1000');
	ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0'), 'the donor has deleted');
	$reader->{stderr} = '';
	my $answer = $reader->query('SELECT count(*), sum(bal) FROM acc');
	ok($answer eq '2000|2001000' || $reader->{stderr} =~ /could not serialize|40001/, "$node: its rows, or a request to retry") or
		diag "answer: $answer, " . $reader->{stderr};
	$reader->query('ROLLBACK');
	is($reader->query('SELECT count(*), sum(bal) FROM acc'), '2000|2001001', "$node: the next transaction sees all");
	$reader->quit;
	$c->query('s1', 'UPDATE acc SET bal = bal - 1 WHERE k = 1000');
	$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')");
}
$c->is_settled('snapshots');

# A transaction that has read, at READ COMMITTED, and goes on reading by the same prepared statement.
my $open = $c->session('s3', on_error_stop => 0);
$open->query("PREPARE q AS SELECT count(*), sum(bal) FROM acc");
$open->query('BEGIN');
is($open->query('EXECUTE q'), '2000|2001000', 'a transaction has read');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's1')");
is($open->query('EXECUTE q'), '2000|2001000', 'and reads on when the range has moved') or diag $open->{stderr};
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')");
is($open->query('EXECUTE q'), '2000|2001000', 'and has come back') or diag $open->{stderr};
$open->query('COMMIT');
$open->quit;

# Limits.
$c->query('s2', 'ALTER SYSTEM SET tessera.migration_max_backlog = 1024');
$c->query('s2', 'SELECT pg_reload_conf()');
my $session = begin('s3', 'recipient_cloned', "SELECT tessera.move_range('acc', 500, 1500, 's3')");
$c->query('s2', "UPDATE acc SET bal = bal; SELECT pg_logical_emit_message(false, 'x', repeat('x', 3000000)); UPDATE acc SET bal = bal");
ok($c->wait_for('s1', "SELECT state || ' ' || left(error, 5) FROM tessera.migrations ORDER BY started DESC LIMIT 1", 'aborted 53400', 30),
	'too large a backlog aborts');
like(finish('s3', $session), qr/53400.*migration_max_backlog/s, 'and says so');
$c->query('s2', 'ALTER SYSTEM RESET tessera.migration_max_backlog');
$c->query('s2', 'ALTER SYSTEM SET tessera.migration_timeout = 500');
$c->query('s2', 'SELECT pg_reload_conf()');
$session = begin('s3', 'recipient_cloned', "SELECT tessera.move_range('acc', 500, 1500, 's3')");
ok($c->wait_for('s1', "SELECT state || ' ' || left(error, 5) FROM tessera.migrations ORDER BY started DESC LIMIT 1", 'aborted 57014', 30),
	'a timeout aborts');
finish('s3', $session);
$c->query('s2', 'ALTER SYSTEM RESET tessera.migration_timeout');
$c->query('s2', 'SELECT pg_reload_conf()');
$c->is_settled('limits');

# Its workers are ended.
$session = begin('s3', 'recipient_cloned', "SELECT tessera.move_range('acc', 500, 1500, 's3')");
$c->query('s2', "SELECT pg_terminate_backend(pid) FROM tessera.stat_progress_migration");
like(finish('s3', $session), qr/ERROR:  57P01: the donor's worker ended/, 'the end of the donor aborts the migration, and the caller hears of it');
$c->is_settled('donor ended');
$session = begin('s3', 'recipient_cloned', "SELECT tessera.move_range('acc', 500, 1500, 's3')");
$c->query('s3', "SELECT pg_terminate_backend(pid) FROM tessera.stat_progress_migration");
isnt(finish('s3', $session), '', 'so does the end of the recipient');
$c->is_settled('recipient ended');
same('after workers ended', 'SELECT * FROM acc');

# The config node is away when it should decide: nothing of the range is served, nothing is guessed; when it is back, all goes on.
$session = begin('s2', 'config_commit', "SELECT tessera.move_range('acc', 500, 1500, 's3')");
$c->stop('s1', 'immediate');
$c->go_on('s2');
is($c->query('s2', 'SELECT bal FROM acc WHERE k = 100'), '100', 'outside of the range all goes on');
my ($status, $stdout, $stderr) = $c->psql('s2', "SET tessera.gate_timeout = 1000; SELECT bal FROM acc WHERE k = 1000");
isnt($status, 0, 'inside a statement gets an error at its deadline') or diag $stdout;
$c->start('s1');
ok($c->wait_for('s2', 'SELECT bal FROM acc WHERE k = 1000', '1000', 60), 'when the config node is back the range is served');
$session->quit;
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migrations WHERE state = 'running'", '0', 60), 'and the migration is settled');
$c->is_settled('config node away');
same('after the config node was away', 'SELECT * FROM acc');

# A row whose state the table of transitions does not let go where it should: an internal error, and the row stays.
my $stray = '00000000-0000-0000-0000-00000000beef';
$c->query('s3', "INSERT INTO tessera.migration_recipient (migration_id, ranges, donor, state, request)
	SELECT '$stray', ARRAY[(group_id, gen_random_uuid(), '500', '600')::tessera.operation_range], 2, 'applying',
	'{\"term\": 1, \"donor_incarnation\": 1, \"recipient_incarnation\": 1}'
	FROM tessera.cluster_table WHERE table_name = 'acc'");
($status, $stdout, $stderr) = $c->psql('s3', "SELECT tessera_internal.release_recipient('$stray', 'aborted', '{}', 0, false)");
like($stderr, qr/ERROR:  XX000: recipient of a migration cannot go from state applying to discarded in its row/,
	'a change that is not in the table is refused');
is($c->query('s3', "DELETE FROM tessera.migration_recipient WHERE migration_id = '$stray' RETURNING state"), 'applying', 'nothing is changed');

# Registered, but its donor was never told, by a caller that lives: too long ago.
$session = $c->session('s1');
$session->query("SELECT tessera_internal.register_migration(table_id, '500', '1500', NULL, CASE WHEN tessera.range_owner('acc', 1000) = 's2'
	THEN 's3' ELSE 's2' END, 1, true, false)
	FROM tessera.cluster_table WHERE table_name = 'acc'");
is($session->query("UPDATE tessera.migration SET started = started - interval '1 minute' WHERE state = 'running' RETURNING 1"), '1',
	'a migration is registered');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migrations WHERE state = 'running'", '0', 60), 'it is fenced');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migrations WHERE error LIKE '%never reached its donor'", '1', 10), 'with the reason');
$session->quit;
$c->is_settled('never donated');

done_testing();
