# The postmaster dies while a backend has committed and waits for the other node to carry the decision out: the backend ends its commit and goes,
# without a PANIC (the transaction cannot be aborted any more). Found by `make chaos`.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('orphaned', settings => { 'tessera.commit_timeout' => '60s' });
$c->create(shards => 2);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT g, 0 FROM generate_series(1, 10) g',
	"SELECT tessera.shard_table('t', 'k')",
	"SELECT tessera.move_range('t', 6, 11, 's2')");

# The coordinator's own commit waits for a standby that does not exist; the other node is prepared by then, and stands still when the wait is over.
$c->query('s1', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$c->query('s1', 'SELECT pg_reload_conf()');
my $writer = $c->session('s1', on_error_stop => 0);
my $pid = $writer->query('SELECT pg_backend_pid()');
$writer->query_until(qr/begun/, "\\echo begun\nBEGIN; UPDATE t SET v = 1 WHERE k = 1; UPDATE t SET v = 1 WHERE k = 6; COMMIT;\n");
ok($c->wait_for('s2', 'SELECT count(*) FROM pg_prepared_xact()', '1', 30), 'the other node is prepared');
ok($c->wait_for('s1', "SELECT wait_event FROM pg_stat_activity WHERE pid = $pid", 'SyncRep', 30), 'the coordinator has committed');
$c->freeze('s2');
$c->query('s1', 'ALTER SYSTEM RESET synchronous_standby_names');
$c->query('s1', 'SELECT pg_reload_conf()');
ok($c->wait_for('s1', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid", 'Extension', 30), 'it waits for the other node');

my $postmaster = $c->node('s1')->{_pid};
kill 'KILL', $postmaster;
my $deadline = time + 30;
select(undef, undef, undef, 0.05) while TesseraCluster::_alive($pid) && time < $deadline;
ok(!TesseraCluster::_alive($pid), 'it ends with its postmaster');
unlike(slurp_file($c->node('s1')->logfile), qr/PANIC/, 'without a PANIC');

$c->thaw('s2');
eval { $writer->quit };
# What the postmaster has left behind.
$c->node('s1')->{_pid} = undef;
unlink $c->node('s1')->data_dir . '/postmaster.pid', $c->node('s1')->host . '/.s.PGSQL.' . $c->node('s1')->port . '.lock';
$c->start('s1');
ok($c->wait_for('s2', 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), 'the decision is carried out when the coordinator is back');
is($c->query('s2', 'SELECT sum(v) FROM t'), '2', 'on both nodes');
done_testing();
