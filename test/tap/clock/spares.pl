# The first statement of a transaction at REPEATABLE READ asks all shards for its snapshot, those, too, that it does not read (yet): one that hangs,
# is down or has no connection to give holds up nobody, and is asked when it is needed (doc/design.md#one-snapshot).
use strict;
use warnings FATAL => 'all';

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('spares', settings => { 'tessera.snapshot_reads' => 'on', 'tessera.injection_points' => 'on',
	'tessera.snapshot_timeout' => '1500ms' });
$c->create(shards => 3, routers => 1);
# Keys to 100 are on s1, to 200 on s2, above on s3.
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v bigint NOT NULL)', "SELECT tessera.shard_table('t', 'k')",
	'INSERT INTO t SELECT g, g FROM generate_series(1, 300) g',
	"SELECT tessera.move_range('t', 101, 201, 's2')", "SELECT tessera.move_range('t', 201, tessera.maxkey(), 's3')");

$c->fetch_routing;

my $BEGIN = 'BEGIN ISOLATION LEVEL REPEATABLE READ';

# Transactions of the router's clients on a node.
my $TRANSACTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'spares.pl' AND client_addr IS NOT NULL " .
	'AND xact_start IS NOT NULL';

subtest 'all shards take part' => sub {
	my $session = $c->session_of('r1', "SET tessera.snapshot_timeout = '60s'", $BEGIN);
	is($c->answer($session, 'SELECT v FROM t WHERE k = 50'), '50', 'a row of one');
	is($c->query($_, $TRANSACTIONS), '1', "$_ has a transaction") foreach 's1', 's2', 's3';
	$c->query('s3', 'UPDATE t SET v = v + 1000 WHERE k = 250');
	is($c->answer($session, 'SELECT v FROM t WHERE k = 250'), '250', 'what was committed since is not seen');
	is($c->answer($session, 'COMMIT'), '', 'it ends');
	$session->quit;
	$c->query('s3', 'UPDATE t SET v = v - 1000 WHERE k = 250');
};

subtest 'one that hangs' => sub {
	my %session = map { $_ => $c->session_of('r1', $_ eq 'third' ? () : 'SELECT count(*) FROM t') } 'first', 'second', 'third', 'fourth';
	$c->pause_at('s3', 'cut_ask');
	$session{$_}->query($BEGIN) foreach sort keys %session;
	is($c->answer($session{first}, 'SELECT v FROM t WHERE k = 50'), '50', 'who does not need it is answered');
	is($c->query('s3', "SELECT max(paused) FROM tessera_test.injection_list() WHERE name = 'cut_ask'"), '1', 'while it hangs');
	# what has come to the point goes by its own connection, which is closed; with a new one the node answers
	$c->go_on('s3', 'cut_ask');
	ok($c->wait_for('s3', $TRANSACTIONS, '0'),
		'it is in the transaction no more');
	is($c->answer($session{second}, 'SELECT v FROM t WHERE k = 50'), '50', 'the next does not ask it');
	is($c->query('s3', $TRANSACTIONS), '0', 'and so does not wait for it');
	is($c->answer($session{third}, 'SELECT v FROM t WHERE k = 150'), '150', 'nor one without a connection');
	# a worker may have committed there since
	my $late;
	foreach (1 .. 100)
	{
		$late = $c->answer($session{first}, 'SELECT v FROM t WHERE k IN (50, 250) ORDER BY k');
		last if $late ne '40001';
		$c->answer($session{first}, "ROLLBACK;\n$BEGIN;\nSELECT v FROM t WHERE k = 50");
	}
	is($late, "50\n250", 'it is asked when it is needed');
	$c->query('s3', 'UPDATE t SET v = v + 1000 WHERE k = 250');
	is($c->answer($session{first}, 'SELECT v FROM t WHERE k = 250'), '250', 'and keeps the moment');
	is($c->answer($session{second}, 'SELECT v FROM t WHERE k = 250'), '40001', 'who asks it after a commit there has to retry');
	is($c->answer($session{third}, 'SELECT sum(v) FROM t WHERE k <= 200'), 200 * 201 / 2, 'others go on');
	is($c->answer($session{fourth}, 'SELECT v FROM t WHERE k = 250'), '1250', 'who needs it from the start asks it');
	is($c->answer($session{$_}, 'ROLLBACK'), '', "$_ ends") foreach sort keys %session;
	$_->quit foreach values %session;
};

subtest 'one that is down' => sub {
	my $before = $c->session_of('r1', $BEGIN, 'SELECT v FROM t WHERE k = 50');
	$c->stop('s2', 'immediate');
	is($c->answer($before, 'SELECT v FROM t WHERE k = 51'), '51', 'after the first statement');
	is($c->answer($before, 'COMMIT'), '', 'and it commits');
	is($c->answer($before, "$BEGIN;\nSELECT v FROM t WHERE k IN (50, 250) ORDER BY k"), "50\n1250", 'before it');
	is($c->answer($before, 'SELECT v FROM t WHERE k = 150'), '08006', 'who needs it is told');
	is($c->answer($before, 'ROLLBACK'), '', 'and ends');
	# at READ COMMITTED all that have rows of the tables are asked, where there are several scans
	my $several = 'SELECT (SELECT v FROM t WHERE k = 50) + (SELECT v FROM t WHERE k = %d)';
	is($c->query('r1', sprintf($several, 250)), '1300', 'what several scans do not come to');
	like($c->error('r1', sprintf($several, 150)), qr/08006/, 'what they come to');
	$c->pause_at('r1', 'cut_asked');
	my $run = $c->background('r1', sprintf($several, 150));
	$c->is_paused_at('r1', 'cut_asked');
	$c->start('s2');
	$c->go_on('r1', 'cut_asked');
	like($c->ended($run), qr/could not be reached when the statement began/, 'and if it is back by then: it does not see the same moment');
	ok($c->wait_for('r1', "$BEGIN; SELECT v FROM t WHERE k = 150; COMMIT", '150'), 'it is back');
	$before->quit;
};

subtest 'one that is lost before it is needed' => sub {
	my @one = ("SET tessera.snapshot_timeout = '60s'", 'SELECT v FROM t WHERE k = 50');
	my %session = map { $_ => $c->session_of('r1', $one[0], "BEGIN ISOLATION LEVEL $_", $one[1]) } 'REPEATABLE READ', 'SERIALIZABLE';
	ok($c->wait_for('s2', $TRANSACTIONS, '2'), 'it takes part');
	$c->stop('s2', 'immediate');
	is($c->answer($session{$_}, "SET CONSTRAINTS ALL IMMEDIATE;\nSELECT v FROM t WHERE k = 51"), '51', "$_: the others go on")
		foreach sort keys %session;
	is($c->answer($session{SERIALIZABLE}, 'COMMIT'), '', 'and commit');
	$c->start('s2');
	like($c->answer($session{'REPEATABLE READ'}, 'SELECT v FROM t WHERE k = 151'), qr/^(151|40001)$/, 'it may join again');
	$_->quit foreach values %session;
	ok($c->wait_for('r1', 'SELECT count(*) FROM t', '300'), 'it is back');
};

# It has answered once, and nobody needs it since: a rollback that waited for it would last for an hour.
subtest 'one that hangs when the transaction ends' => sub {
	my @settings = ("SET tessera.snapshot_timeout = '60s'", "SET tessera.abort_timeout = '1h'", 'SELECT count(*) FROM t');
	my %session = map { $_ => $c->session_of('r1', @settings, $BEGIN) } 'rollback', 'error', 'savepoint', 'commit';
	$session{savepoint}->query('SAVEPOINT a');
	is($c->answer($session{$_}, 'SELECT v FROM t WHERE k = 50'), '50', "$_ has read") foreach sort keys %session;
	is($c->query('s3', $TRANSACTIONS), '4', 'all take part');
	$c->freeze('s3');
	is($c->answer($session{rollback}, 'ROLLBACK'), '', 'ROLLBACK');
	is($c->answer($session{error}, 'SELECT 1 / 0'), '22012', 'an error');
	is($c->answer($session{error}, 'ROLLBACK'), '', 'and the ROLLBACK after it');
	is($c->answer($session{savepoint}, "ROLLBACK TO a;\nSELECT v FROM t WHERE k = 51"), '51', 'ROLLBACK TO');
	my $caught = q{DO $$BEGIN PERFORM v FROM t WHERE k = 52; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END$$};
	is($c->answer($session{savepoint}, $caught), q{},
		'a block that ends with an error');
	is($c->answer($session{$_}, 'COMMIT'), '', "COMMIT of $_") foreach 'savepoint', 'commit';
	$c->thaw('s3');
	is($c->answer($session{$_}, 'SELECT count(*), count(DISTINCT v % 1000) FROM t'), '300|300', "$_ goes on") foreach sort keys %session;
	ok($c->wait_for('s3', $TRANSACTIONS, '0'), 'they have left it');
	$_->quit foreach values %session;
};

# Its connection has a lock of the session, so it stays, and is waited for.
subtest 'one that keeps a lock of the session' => sub {
	my $session = $c->session_of('r1', "SET tessera.gate_timeout = '50s'", 'SELECT count(*) FROM t');
	$session->query('SELECT pg_advisory_lock(k) FROM generate_series(1, 50) k');
	my $key = $c->answer($session, "SELECT min(objid) FROM tessera.advisory_locks WHERE home = 's3'");
	ok($key, 's3 keeps one');
	$c->pause_at('s3', 'cut_ask');
	$session->query($BEGIN);
	$session->query_until(qr/begun/, "\\echo begun\nSELECT v FROM t WHERE k = 50;\n");
	$c->runs_for('r1', 'SELECT v FROM t WHERE k = 50%', '3 s');
	$c->go_on('s3', 'cut_ask');
	is($c->answer($session, 'SELECT v FROM t WHERE k = 250'), "50\n1250", 'it is waited for');
	is($c->answer($session, 'COMMIT'), '', 'and used');
	is($c->query('r1', "SELECT pg_try_advisory_lock($key)"), 'f', 'the lock is still there');
	$session->quit;
};

# Where there are several scans all that have rows of the tables are asked.
subtest 'one that hangs at READ COMMITTED' => sub {
	my $several = 'SELECT (SELECT v FROM t WHERE k = 50) + (SELECT v FROM t WHERE k = %d)';
	my @settings = ("SET tessera.node_timeout = '1s'", "SET tessera.connect_timeout = '1s'");
	my %session = ('a connection' => $c->session_of('r1', @settings, sprintf($several, 150)), 'none' => $c->session_of('r1', @settings));
	my $cursor = $c->session_of('r1', @settings, 'BEGIN', 'DECLARE c CURSOR FOR SELECT v FROM t ORDER BY k', 'FETCH c');
	$c->freeze('s2');
	is($c->answer($cursor, sprintf($several, 250)), '08006', 'what a cursor may read on is not let go');
	$cursor->quit;
	foreach my $who (sort keys %session)
	{
		is($c->answer($session{$who}, sprintf($several, 250)), '1300', "$who: it is not needed") foreach 1, 2;
		my $twice = join ";\n", 'BEGIN', (sprintf($several, 250)) x 2, 'COMMIT';
		is($c->answer($session{$who}, $twice), "1300\n1300", "$who: twice in a transaction");
		is($c->answer($session{$who}, sprintf($several, 150)), '08006', "$who: it is needed");
	}
	$c->thaw('s2');
	ok($c->wait_for('r1', sprintf($several, 150), '200'), 'it is back');
	is($c->answer($session{$_}, sprintf($several, 150)), '200', "$_: for all") foreach sort keys %session;
	$_->quit foreach values %session;
};

subtest 'one that has no connection to give' => sub {
	$c->set('r1', 'tessera.max_connections_per_shard' => 1);
	my $holder = $c->session_of('r1');
	ok($c->heeds($holder, 'tessera.max_connections_per_shard', '1'), 'one connection to each');
	is($c->answer($holder, "BEGIN;\nSELECT v FROM t WHERE k = 250"), '1250', 'one transaction has that to s3');
	my $reader = $c->session_of('r1', $BEGIN);
	is($c->answer($reader, 'SELECT v FROM t WHERE k = 50'), '50', 'another does not wait for it');
	is($c->query('r1', "SELECT waits FROM tessera.node_connections WHERE node = 's3'"), '0', 'not at all');
	is($c->answer($holder, 'COMMIT'), '', 'it ends');
	like($c->answer($reader, 'SELECT v FROM t WHERE k = 251'), qr/^(251|40001)$/, 'then the other has it when it needs it');
	$_->quit foreach $holder, $reader;
	$c->reset_settings('r1');
};

subtest 'a snapshot that is passed on stays as it is' => sub {
	$c->query('s1', 'CREATE TABLE placed (v int); INSERT INTO placed VALUES (1)');
	my $from = $c->session_of('s1', $BEGIN);
	my $id = $c->answer($from, 'SELECT pg_export_snapshot()');
	$c->query('s1', 'UPDATE placed SET v = 2');
	my $to = $c->session_of('s1', $BEGIN, "SET TRANSACTION SNAPSHOT '$id'");
	is($c->answer($_, 'SELECT v FROM placed'), '1', 'of before') foreach $to, $from;
	is($c->answer($_, "ROLLBACK;\n$BEGIN;\nSELECT v FROM placed"), '2', 'and of now') foreach $to, $from;
	$_->quit foreach $to, $from;
};

# What it reads first need not be of the cluster.
subtest 'what was read stays as it was' => sub {
	my $session = $c->session_of('s1', $BEGIN);
	is($c->answer($session, "SELECT count(*) FROM pg_class WHERE relname = 'made_later'"), '0', 'the catalog');
	$c->query('s1', 'CREATE TABLE made_later (k int)');
	$c->query('s2', 'UPDATE t SET v = v + 1 WHERE k = 150');
	is($c->answer($session, 'SELECT sum(v) FROM t WHERE k IN (50, 150)'), '200', 'all shards by the same moment');
	is($c->answer($session, "SELECT count(*) FROM pg_class WHERE relname = 'made_later'"), '0', 'and so the catalog');
	$session->query("ROLLBACK;\n$BEGIN;\nSET tessera.snapshot_reads = off");
	is($c->answer($session, 'SELECT v FROM t WHERE k = 50'), '50', 'without a common moment');
	$c->query('s1', 'UPDATE t SET v = v + 1 WHERE k = 50');
	is($c->answer($session, "SET tessera.snapshot_reads = on;\nSELECT v FROM t WHERE k = 50"), '50', 'a setting does not change what was read');
	$c->query('s1', 'UPDATE t SET v = v - 1 WHERE k = 50');
	$session->query("ROLLBACK;\nSET tessera.snapshot_reads = on");
	$session->query("ROLLBACK;\nCREATE TEMP TABLE mine AS SELECT 1;\n$BEGIN");
	is($c->answer($session, "COPY mine TO STDOUT;\nSELECT v FROM t WHERE k = 50"), "1\n50", 'what is of this session alone settles nothing');
	$c->query('s2', 'UPDATE t SET v = v + 1 WHERE k = 150');
	is($c->answer($session, 'SELECT v FROM t WHERE k = 150'), '151', 'all shards by one moment');
	$c->query('s2', 'UPDATE t SET v = v - 1 WHERE k = 150');
	# a cursor takes its snapshot when it is opened, and reads later
	my $made = "SELECT count(*) FROM pg_class WHERE relname = 'made_last'";
	$c->query('s1', $_) foreach (
		'CREATE FUNCTION of_all() RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT sum(v) FROM t WHERE k IN (50, 150)); END$$',
		"CREATE FUNCTION of_catalog() RETURNS int STABLE LANGUAGE plpgsql AS \$\$BEGIN RETURN ($made); END\$\$");
	$session->query("ROLLBACK;\n$BEGIN;\nDECLARE c CURSOR FOR $made");
	$c->query('s1', 'CREATE TABLE made_last (k int)');
	$c->query('s2', 'UPDATE t SET v = v + 1 WHERE k = 150');
	is($c->answer($session, 'SELECT of_all(), of_catalog()'), '202|1', 'the moment is that of the first read, for functions of each kind');
	is($c->answer($session, 'FETCH c'), '1', 'and for what was opened before');
	$session->quit;
};

$c->is_settled('at the end');
done_testing();
