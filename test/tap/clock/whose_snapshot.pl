# Whose snapshot becomes that of the common moment, and whose does not: a walsender keeps that of its slot; a bitmap scan that was started before the
# question goes by the moment, as all else of its statement; COPY of a copy waits for what its snapshot cannot judge (doc/design.md#one-snapshot).
use strict;
use warnings FATAL => 'all';

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('whose', settings => { 'tessera.snapshot_reads' => 'on', 'tessera.injection_points' => 'on',
	'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3, routers => 0);
# Keys to 100 are on s1, to 200 on s2, above on s3; each node has a copy of `copied`; `placed` is on s1, where the tests read it.
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v int NOT NULL)', "SELECT tessera.shard_table('t', 'k')",
	'INSERT INTO t SELECT g, 0 FROM generate_series(1, 300) g',
	"SELECT tessera.move_range('t', 101, 201, 's2')", "SELECT tessera.move_range('t', 201, tessera.maxkey(), 's3')",
	'CREATE TABLE copied (k int PRIMARY KEY, v int)', "SELECT tessera.replicate_table('copied')", 'INSERT INTO copied VALUES (1, 0), (2, 0)',
	'CREATE TABLE placed (k int, v int)', 'CREATE INDEX ON placed (k)', 'INSERT INTO placed SELECT g, 0 FROM generate_series(1, 300) g');
$c->fetch_routing;

my $BEGIN = 'BEGIN ISOLATION LEVEL REPEATABLE READ';

# What is committed after the slot comes by the stream: if the copy had it too there would be twice as much.
subtest 'a walsender' => sub {
	my $sender = $c->session('s1', on_error_stop => 0, replication => 'database');
	$sender->query("$BEGIN READ ONLY");
	like($sender->query("CREATE_REPLICATION_SLOT whose TEMPORARY LOGICAL pgoutput (SNAPSHOT 'use')"), qr/^whose\|/, 'a slot with its snapshot');
	$c->query('s1', 'UPDATE placed SET v = 1 WHERE k = 1');
	is($c->answer($sender, 'SELECT v FROM placed WHERE k = 1'), '0', 'what was committed since is not seen');
	is($c->answer($sender, 'COPY placed TO STDOUT') =~ /^1\t(\d)$/m ? $1 : 'none', '0', 'nor copied');
	$sender->quit;
	is($c->query('s1', 'SELECT v FROM placed WHERE k = 1'), '1', 'a client sees it');
};

# The statement has its scans ready when it asks; one shard answers late, and has committed meanwhile what this node has, too.
subtest 'a bitmap scan of this node' => sub {
	my @plans = ('SET enable_seqscan = off', 'SET enable_indexscan = off', 'SET enable_indexonlyscan = off');
	foreach my $condition ('k < 3', 'k = 1 OR k = 2')
	{
		$c->query('s1', 'BEGIN; UPDATE copied SET v = 0; UPDATE t SET v = 0; COMMIT');
		my $sql = "SELECT (SELECT sum(v) FROM copied WHERE $condition), max(a.v), max(b.v) FROM t a JOIN t b ON a.v = b.v WHERE random() < 2";
		like($c->query('s1', join('; ', @plans, "EXPLAIN $sql")), qr/Bitmap Heap Scan on copied/, "$condition: it is one");
		$c->pause_at('s2', 'cut_ask');
		my $reader = $c->background('s1', join('; ', @plans, $sql));
		$c->is_paused_at('s2', 'cut_ask');
		$c->query('s1', 'BEGIN; UPDATE copied SET v = 1 WHERE k < 3; UPDATE t SET v = 1 WHERE k IN (150, 250); COMMIT');
		$c->go_on('s2', 'cut_ask');
		is($c->ended($reader), '', "$condition: it ends");
		like($reader->{out}, qr/^2\|1\|1$/m, "$condition: and shows what was committed before the moment");
	}
};

# The server judges what a transaction that only reads has to do with others by the moment of its snapshot. A report that shows a batch as closed and
# has not seen all of its receipts: one of the three has to fail (reader before writer, writer before closer, closer before reader).
subtest 'a report at SERIALIZABLE' => sub {
	# on s2
	$c->query('s1', $_) foreach 'CREATE SCHEMA two', 'CREATE TABLE two.batch (n int)', 'CREATE TABLE two.receipt (n int)',
		'INSERT INTO two.batch VALUES (0)', "SELECT tessera.move_schema('two', 's2')";
	$c->fetch_routing;
	foreach my $case (map { ([ 's1', 'cut_ask', @$_ ], [ 's2', 'cut_begins', @$_ ]) } [ '', 0 ], [ ' READ ONLY', 0 ], [ ' READ ONLY', 1 ])
	{
		my ($at, $point, $only, $late) = @$case;
		my $begin = 'BEGIN ISOLATION LEVEL SERIALIZABLE';
		my $n = $c->query('s2', 'SELECT n FROM two.batch');
		my $writer = $c->session_of('s2', $late ? () : ($begin, 'SELECT n FROM two.batch'));
		$c->pause_at('s2', $point);
		my $report = $c->background($at, "$begin$only; SELECT 'open ' || n FROM two.batch; " .
			"SELECT 'receipts ' || count(*) FROM two.receipt WHERE n = $n; COMMIT");
		$c->is_paused_at('s2', $point);
		# when the report was begun there was nobody who writes
		$c->answer($writer, "$begin;\nSELECT n FROM two.batch") if $late;
		$c->query('s2', "$begin; UPDATE two.batch SET n = n + 1; COMMIT");
		$c->go_on('s2', $point);
		my @errors = $c->ended($report);
		push @errors, $c->answer($writer, "INSERT INTO two.receipt VALUES ($n)"), $c->answer($writer, 'COMMIT');
		$writer->quit;
		my $shown = join ' ', $report->{out} =~ /^(?:open|receipts) (\d+)$/mg;
		ok("@errors" =~ /40001/ || $shown eq "$n 0",
			"$at at $point$only, $late: one of them fails, or the report shows the batch as open: $shown, @errors");
	}
};

# The closer has its time, and stalls; the writer, who has not seen it, is committed first, by a later time. One server has no snapshot with the
# closer and without the writer.
subtest 'a report at SERIALIZABLE, when commits are overtaken' => sub {
	my $begin = 'BEGIN ISOLATION LEVEL SERIALIZABLE';
	foreach my $at ('s1', 's2')
	{
		my $n = $c->query('s2', 'SELECT n FROM two.batch');
		my $writer = $c->session_of('s2', $begin, 'SELECT n FROM two.batch');
		$c->pause_at('s2', 'commit_timed');
		my $closer = $c->background('s2', "$begin; UPDATE two.batch SET n = n + 1; COMMIT");
		$c->is_paused_at('s2', 'commit_timed');
		# the moment is later than the closer's time
		$c->query('s3', 'UPDATE t SET v = v WHERE k = 250');
		$c->pause_at('s2', 'cut_take');
		my $report = $c->background($at, "$begin; SELECT 'open ' || n FROM two.batch; " .
			"SELECT 'receipts ' || count(*) FROM two.receipt WHERE n = $n; COMMIT");
		$c->is_paused_at('s2', 'cut_take');
		my @errors = ($c->answer($writer, "INSERT INTO two.receipt VALUES ($n)"), $c->answer($writer, 'COMMIT'));
		$c->go_on('s2', 'commit_timed');
		push @errors, $c->ended($closer);
		$c->go_on('s2', 'cut_take');
		push @errors, $c->ended($report);
		$writer->quit;
		my $shown = join ' ', $report->{out} =~ /^(?:open|receipts) (\d+)$/mg;
		my $next = $n + 1;
		ok("@errors" =~ /40001/ || $shown =~ /^$n \d|^$next 1$/, "$at: one of them fails, or the report is right: $shown, @errors");
	}
};

# No shard is read-only for longer than was said.
subtest 'what a shard is told' => sub {
	my $report = $c->session_of('s1', 'BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE');
	is($c->answer($report, 'SELECT count(*) FROM two.receipt WHERE n = -1'), '0', 'READ ONLY DEFERRABLE');
	is($c->answer($report, 'INSERT INTO two.receipt VALUES (-2)'), '25006', 'only reads');
	my $session = $c->session_of('s1', $BEGIN, 'SAVEPOINT a', 'SET TRANSACTION READ ONLY');
	is($c->answer($session, 'SELECT count(*) FROM placed'), '300', 'a subtransaction that only reads');
	is($c->answer($session, "ROLLBACK TO a;\nUPDATE t SET v = v WHERE k IN (150, 250)"), '', 'the transaction may write on all shards');
	is($c->answer($session, 'COMMIT'), '', 'and commit');
	# s2 is first used in the inner one of two, and says what it is
	my $says = q{SELECT current_setting('transaction_read_only', v < 0) FROM t WHERE k = 150};
	is($c->answer($session, "$BEGIN READ ONLY;\nSAVEPOINT a;\n$says;\nRELEASE a;\n$says;\nCOMMIT"), "on\non", 'after RELEASE it is read-only still');
	is($c->answer($session, "$BEGIN;\nSAVEPOINT a;\nSET TRANSACTION READ ONLY;\nSAVEPOINT b;\n$says;\nROLLBACK TO b;\n$says;\nROLLBACK TO a;\n$says"),
		"on\non\noff", 'one of two subtransactions that only read');
	is($c->answer($session, 'COMMIT'), '', 'it commits');
	$_->quit foreach $report, $session;
};

# Its foreign key reads while rows are on their way to other shards.
subtest 'COPY FROM' => sub {
	$c->query('s1', $_) foreach 'CREATE TABLE child (k int PRIMARY KEY, c int REFERENCES copied)',
		"SELECT tessera.shard_table('child', 'k', colocate_with => 't')";
	$c->fetch_routing;
	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		my $copy = q{COPY child FROM PROGRAM 'printf "50\\t1\\n150\\t1\\n250\\t2\\n51\\t2\\n"'};
		my $session = $c->session_of('s1', "BEGIN ISOLATION LEVEL $level");
		is($c->answer($session, $copy), '', "$level: rows for all shards");
		is($c->answer($session, 'SELECT count(*) FROM child'), '4', "$level: are there");
		is($c->answer($session, 'COMMIT'), '', "$level: and stay");
		$session->quit;
		$c->query('s1', 'DELETE FROM child');
	}
};

# The coordinator has decided and is down: whether the copy shows it cannot be known before it is back.
subtest 'COPY of a copy' => sub {
	$c->pause_at('s1', 'commit_decided');
	my $writer = $c->background('s1', 'UPDATE copied SET v = 1 WHERE k = 1');
	$c->is_paused_at('s1', 'commit_decided');
	$c->stop('s1', 'immediate');
	$c->ended($writer);
	# the moment is later than the decision
	$c->query($_, 'UPDATE t SET v = 2 WHERE k = ' . ($_ eq 's2' ? 150 : 250)) foreach 's2', 's3';
	my $reader = $c->session_of('s2', "SET tessera.gate_timeout = '2s'", $BEGIN);
	is($c->answer($reader, 'SELECT v FROM t WHERE k = 150'), '2', 'who reads something else is not held up');
	my $ways = { 'COPY' => 'COPY copied TO STDOUT', 'COPY of a query' => 'COPY (SELECT * FROM copied) TO STDOUT',
		SELECT => 'SELECT v FROM copied WHERE k = 1' };
	foreach my $way (sort keys %$ways)
	{
		is($c->answer($reader, "SAVEPOINT a;\n$ways->{$way}"), '55P03', "$way waits, and does not show what may be wrong");
		$reader->query('ROLLBACK TO a');
	}
	$reader->quit;
	$c->start('s1');
	$c->wait_for($_, "SELECT count(*) >= 0 FROM tessera.resolve_transactions('0')", 't') foreach $c->names;
	is($c->query($_, 'SELECT v FROM copied WHERE k = 1'), '1', "$_: then it is seen") foreach $c->names;
};

$c->is_settled('at the end');
done_testing();
