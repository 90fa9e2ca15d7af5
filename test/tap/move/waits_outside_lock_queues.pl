# Locks of tables that others hold: a move waits for them outside of the lock's queue, says who holds them, and fails with that name after
# tessera.migration_lock_timeout; the range deleter does not wait for them with the placement locked, and keeps its pauses. A committed transaction
# that nobody sees yet, behind a closed gate.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);
use TesseraCluster;

my $c = TesseraCluster->new('locks',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0, 'tessera.migration_lock_timeout' => '2s',
	'tessera.critical_section_attempts' => 3,
		'tessera.gate_timeout' => '10s' });
# s1 is the config node, s2 gives to s3.
$c->create(shards => 3);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int, sub int, v text, PRIMARY KEY (k, sub))',
	'ALTER TABLE t ALTER v SET STORAGE EXTERNAL',
	"SELECT tessera.shard_table('t', 'k')",
	"INSERT INTO t SELECT g, 0, 'old' FROM generate_series(1, 1000) g",
	"SELECT tessera.move_range('t', tessera.minkey(), tessera.maxkey(), 's2')");
my $move = "SELECT tessera.move_range('t', 501, 801, 's3')";
my $DONOR = "SELECT waiting_for FROM tessera.stat_progress_migration WHERE side = 'donor'";

# A session that holds a lock of the table, which is one of all nodes; its process on its own node.
sub holder
{
	my ($mode) = @_;
	my $session = $c->session('s1');
	$session->query("BEGIN; LOCK TABLE t IN $mode MODE");
	return ($session, $session->query('SELECT pg_backend_pid()'));
}

sub set
{
	my ($node, %settings) = @_;
	$c->query($node, "ALTER SYSTEM SET $_ = '$settings{$_}'") foreach sort keys %settings;
	$c->query($node, 'SELECT pg_reload_conf()');
	return;
}

sub paused
{
	my ($node, $point) = @_;
	ok($c->wait_for($node, "SELECT sum(paused) FROM tessera_test.injection_list() WHERE name = '$point'", '1'), "paused at $point");
	return;
}

# On the donor, before anything of it is read.
my ($other, $pid) = holder('ACCESS EXCLUSIVE');
my $session = $c->begin('s1', $move);
ok($c->wait_for('s2', $DONOR, qr/^lock of a table: transaction of process $pid on node "s1"/, 10), 'the donor names who holds the table');
my $error = $c->finish($session);
like($error, qr/55P03: *table "t" is locked by others/, 'the move fails');
like($error, qr/DETAIL: *Waited 2000 ms for: transaction of process $pid/, 'with the name of who holds it') or diag $error;
$other->query('ROLLBACK');
$other->quit;
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migration WHERE state = 'running'", '0', 30), 'nothing runs');

# On the recipient, when there is something to write.
$c->query('s3', "SELECT tessera_test.injection_set('recipient_registered', 'pause')");
$session = $c->begin('s1', $move);
paused('s3', 'recipient_registered');
($other, $pid) = holder('SHARE');
$c->query('s3', 'SELECT tessera_test.injection_clear()');
ok($c->wait_for('s2', $DONOR, qr/^recipient: lock of a table: transaction of process $pid on node "s1"/, 10),
	'the recipient names who holds the table');
is(($c->psql('s2', 'BEGIN; LOCK TABLE t IN SHARE MODE NOWAIT; ROLLBACK'))[0], 0, 'nobody stands behind the move');
$error = $c->finish($session);
like($error, qr/55P03: *table "t" is locked by others/, 'the move fails');
like($error, qr/Waited 2000 ms for: transaction of process $pid/, 'with the name of who holds it') or diag $error;

# What came in vain cannot be deleted now; the placement is not locked for as long as the deleter would like to.
my $locked = 0;
foreach (1 .. 20)
{
	$locked++ if ($c->psql('s3', 'BEGIN; SELECT FROM tessera.placement FOR UPDATE NOWAIT; ROLLBACK'))[0];
	sleep(0.05);
}
cmp_ok($locked, '<', 20, 'the placement is not locked all the time by who waits for the table');
is($c->query('s3', 'SELECT count(*) FROM tessera.range_deletions'), '1', 'the deletion waits');
$other->query('ROLLBACK');
$other->quit;
ok($c->wait_for('s3', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'and is done when the lock is gone');

# A commit that waits for a synchronous standby is decoded before it is visible. Its row has a new identity, and lacks what WAL does not have. (Nobody
# who has respected the gate can be in that state behind it.)
$c->query('s1', "UPDATE t SET v = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i) WHERE k = 600");
set('s2', synchronous_commit => 'local', synchronous_standby_names => 'nobody', 'tessera.critical_section_budget' => '10s');
$c->query('s2', "SELECT tessera_test.injection_set('donor_write_gate', 'pause')");
$session = $c->begin('s1', $move);
paused('s2', 'donor_write_gate');
$c->query('s2', "SELECT tessera_test.injection_set('gate', 'skip', NULL)");
my $writer = $c->session('s2');
$writer->query_until(qr/begun/, "SET synchronous_commit = on;\n\\echo begun\nUPDATE t SET sub = 1 WHERE k = 600;\n");
ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%sub = 1%'", 't', 20),
	'a commit waits for a standby');
$c->query('s2', 'SELECT tessera_test.injection_clear()');
$error = $c->finish($session);
like($error, qr/55P03: *change capture waited for too long while the gate was closed/, 'the move is given up: no gate is kept closed for it');
like($error, qr/a committed transaction to become visible/, 'with what it waited for');
$c->query('s2', $_) foreach ('ALTER SYSTEM RESET ALL', 'SELECT pg_reload_conf()');
$writer->query('SELECT 1');
$writer->quit;
is($c->query('s1', 'SELECT sub, length(v) FROM t WHERE k = 600'), '1|6400', 'the row is there');

# The range deleter's pause is the least, whatever wakes it.
$c->query('s1', $move);
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'nothing is to be deleted');
set('s3', 'tessera.range_deleter_batch_size' => 100, 'tessera.range_deleter_batch_delay' => 600000);
$c->query('s1', "SELECT tessera.move_range('t', 501, 801, 's2')");
my $deleter = "SELECT coalesce(max(substring(query FROM ': (\\d+) rows so far')), '') FROM pg_stat_activity WHERE backend_type = 'tessera range " .
	"deleter'";
ok($c->wait_for('s3', $deleter, '100', 30), 'the first batch is deleted');
my %seen;
foreach (1 .. 30)
{
	$c->query('s3', 'SELECT pg_reload_conf()');
	$seen{ $c->query('s3', $deleter) }++;
}
is(join(' ', sort keys %seen), '100', 'what wakes the range deleter does not shorten its pause');
set('s3', 'tessera.range_deleter_batch_delay' => 0);
ok($c->wait_for('s3', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'a shorter pause counts at once');
is($c->query('s1', 'SELECT count(*) FROM t'), '1000', 'all rows are there');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');

# A table that somebody has made unlogged on one node: its changes would not be followed.
$c->query('s2', 'SET tessera.replicate_ddl = off; ALTER TABLE t SET UNLOGGED');
like($c->error('s1', $move), qr/55000: *table "t" is unlogged/, 'an unlogged table is not moved');
$c->query('s2', 'SET tessera.replicate_ddl = off; ALTER TABLE t SET LOGGED');
$c->query('s2', "SELECT tessera_test.injection_set('donor_steady', 'pause')");
$session = $c->begin('s1', $move);
paused('s2', 'donor_steady');
$c->query('s2', $_) foreach ('SET tessera.replicate_ddl = off; ALTER TABLE t SET UNLOGGED', "INSERT INTO t VALUES (555, 5, 'unlogged')");
$c->query('s2', 'SELECT tessera_test.injection_clear()');
like($c->finish($session), qr/55000: *table "t" is unlogged/, 'nor one that became unlogged on the way');
$c->query('s2', 'SET tessera.replicate_ddl = off; ALTER TABLE t SET LOGGED');
$c->query('s1', $move);
is($c->query('s1', 'SELECT count(*) FROM t'), '1001', 'all rows are there');

done_testing();
