# A statement over several shards takes no trip for its common moment where nothing that it reads is in doubt: the router chooses the moment, and each
# shard says whether it can be had. Where it cannot, they are asked, and nothing of the first attempt is left. A range that moves between question and
# moment ends no statement (doc/design.md#one-snapshot).
use strict;
use warnings FATAL => 'all';

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('met',
	settings => { 'tessera.snapshot_reads' => 'on', 'tessera.injection_points' => 'on', 'tessera.advisory_locks' => 'node',
		'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
my @shards = grep { /^s/ } @nodes;
# Keys to 100 are on s1, to 200 on s2, above on s3.
foreach my $table ('t', 'other')
{
	$c->query('s1', $_) foreach (
		"CREATE TABLE $table (k int PRIMARY KEY, v bigint NOT NULL)", "SELECT tessera.shard_table('$table', 'k')",
		"INSERT INTO $table SELECT g, 1 FROM generate_series(1, 300) g",
		"SELECT tessera.move_range('$table', 101, 201, 's2')", "SELECT tessera.move_range('$table', 201, tessera.maxkey(), 's3')");
}
# Of this one each node has a copy.
$c->query('s1', $_) foreach ('CREATE TABLE copied (k int PRIMARY KEY, f bigint NOT NULL)', "SELECT tessera.replicate_table('copied')",
	'INSERT INTO copied VALUES (1, 1)');
$c->query('s1', 'CREATE FUNCTION own(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN $1; END$$');
# where questions are refused nobody gets to fetch what he is told to be stale
$c->fetch_routing;
my $READ = 'SELECT sum(v) FROM t';
my $ASKED = '38000';

# A shard that is asked says so by an error.
sub refuse_questions
{
	$c->query($_, "SELECT tessera_test.injection_set('cut_ask', 'error', NULL)") foreach @shards;
	return;
}

sub allow_questions
{
	$c->go_on($_, 'cut_ask') foreach @shards;
	return;
}

# The answer to the last one, in a session of its own.
sub answer
{
	my ($node, @statements) = @_;
	my $session = $c->session_of($node);
	my @answers = map { $c->answer($session, $_) } @statements;
	$session->quit;
	return (grep { $_ eq $ASKED } @answers) ? $ASKED : $answers[-1];
}

# The same while questions are refused. A worker may have committed on a shard since the moment was chosen, which then has to be asked: again.
sub met
{
	my ($node, @statements) = @_;
	my $answer;
	foreach (1 .. 100)
	{
		$answer = answer($node, @statements);
		last if $answer ne $ASKED;
	}
	return $answer;
}

subtest 'nothing is in doubt' => sub {
	refuse_questions();
	foreach my $node (@nodes)
	{
		is(met($node, $READ), '300', "$node: nobody is asked");
		is(met($node, 'SELECT k, v FROM t WHERE k IN (50, 150, 250) ORDER BY k'), "50|1\n150|1\n250|1", 'for some keys');
		is(met($node, "PREPARE p (int) AS SELECT count(*) FROM t WHERE k > \$1", 'EXECUTE p(50)', 'EXECUTE p(150)'), '150', 'prepared');
		is(met($node, 'BEGIN', 'UPDATE t SET v = v + 1 WHERE k = 150', $READ), '301', 'in a transaction that has written');
		is(met($node, 'BEGIN', $READ, 'UPDATE t SET v = v + 1 WHERE k = 250', 'SELECT v FROM t WHERE k = 250'), '2', 'in one that writes later');
		is(met($node, 'SELECT sum(1 / (k - 150)) FROM t'), '22012', 'an error of a shard');
		is(met($node, 'SELECT sum(1 / (k - 150)) FROM t', $READ), '300', 'and after it');
		is(met($node, "DO \$\$BEGIN PERFORM sum(v) FROM t; END\$\$"), '', 'in a function');
	}
	is(answer('r1', 'SELECT sum(own(v)) FROM t'), $ASKED, 'what calls code of a user is not tried: it would run twice');
	is(answer('r1', 'BEGIN', 'DECLARE c CURSOR FOR SELECT k FROM t ORDER BY k'), $ASKED, 'nor is a cursor');
	is(answer('r1', 'SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM other)'), $ASKED, 'nor what has several parts');
	allow_questions();
};

subtest 'something is in doubt' => sub {
	$c->pause_at('s1', 'commit_prepared');
	my $writer = $c->background('s1', 'UPDATE t SET v = v + CASE k WHEN 50 THEN 5 ELSE -5 END WHERE k IN (50, 150)');
	$c->is_paused_at('s1', 'commit_prepared');
	refuse_questions();
	is(answer($_, $READ), $ASKED, "$_: a shard where something is prepared has to be asked") foreach @nodes;
	is(met($_, 'SELECT sum(v) FROM t WHERE k IN (1, 250)'), '2', "$_: one that has nothing is not") foreach 's1', 's3', 'r1';
	is(met($_, 'SELECT sum(v) FROM other'), '300', "$_: nor where another table is read") foreach @nodes;
	allow_questions();
	foreach my $node (@nodes)
	{
		is(answer($node, $READ), '300', "$node: it is asked, and answers");
		is(answer($node, 'BEGIN', 'UPDATE t SET v = v + 1 WHERE k = 250', $READ), '301', 'in a transaction');
		is(answer($node, 'BEGIN', 'UPDATE t SET v = v + 1 WHERE k = 151', $READ, 'SELECT v FROM t WHERE k = 151'), '2', 'which reads a row later');
		is(answer($node, ($READ) x 8), '300', 'again and again');
	}
	$c->go_on('s1', 'commit_prepared');
	is($c->ended($writer), '', 'the writer ends');
	$c->pause_at('s1', 'commit_prepared');
	$writer = $c->background('s1', 'UPDATE copied SET f = 2');
	$c->is_paused_at('s1', 'commit_prepared');
	refuse_questions();
	is(answer($_, 'SELECT sum(v * f) FROM t JOIN copied ON t.k >= copied.k'), $ASKED, "$_: copies that are being written count, too") foreach @nodes;
	allow_questions();
	$c->go_on('s1', 'commit_prepared');
	is($c->ended($writer), '', 'the writer ends');
	is(answer($_, 'SELECT max(v) FROM t'), '6', "$_: and is seen") foreach @nodes;
	$c->query('s1', 'UPDATE t SET v = 1 WHERE v <> 1');
};

# The router's clock has the moment, and a transaction commits before it looks at its own rows: on another shard it is not carried out yet.
subtest 'a commit here after the moment was chosen' => sub {
	$c->pause_at('s1', 'cut_choose');
	my $reader = $c->background('s1', "SET tessera.gate_timeout = '170s'; $READ");
	$c->is_paused_at('s1', 'cut_choose');
	$c->pause_at('s1', 'commit_prepared');
	my $writer = $c->background('s1', 'UPDATE t SET v = v + CASE k WHEN 50 THEN 5 ELSE -5 END WHERE k IN (50, 150)');
	$c->is_paused_at('s1', 'commit_prepared');
	# s2 cannot carry out what is decided
	$c->set('s2', synchronous_standby_names => "'nobody'");
	ok($c->wait_for('s2', 'SHOW synchronous_standby_names', 'nobody'), 's2 answers no commit');
	$c->go_on('s1', 'commit_prepared');
	ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ 'COMMIT PREPARED|note_outcome'", 't'),
		'decided, and half carried out');
	$c->go_on('s1', 'cut_choose');
	ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'transactionid'", 't'),
		'the reader waits for the other half');
	$c->set('s2', synchronous_standby_names => "''");
	is($c->ended($reader), '', 'the reader ends');
	unlike($c->ended($writer), qr/ERROR/, 'the writer ends');
	like($reader->{out}, qr/^300$/m, 'it is seen whole or not at all');
	$c->query('s1', 'UPDATE t SET v = 1 WHERE v <> 1');
};

# The moment is the wall clock's and a little more, or the cluster's, as it is: reading does not drive that ahead.
subtest 'many readings' => sub {
	$c->set($_, 'tessera.clock_shift' => -60_000) foreach @nodes;
	ok($c->wait_for($_, "SELECT setting FROM pg_settings WHERE name = 'tessera.clock_shift'", -60_000), "$_ is behind") foreach @nodes;
	my $session = $c->session_of('s1');
	my $times = "SELECT tessera.cluster_time()";
	my $before = $c->answer($session, $times);
	is($c->answer($session, 'DO $$BEGIN FOR i IN 1 .. 300 LOOP PERFORM sum(v) FROM t; END LOOP; END$$'), '', 'one after the other');
	cmp_ok(($c->answer($session, $times) - $before) / 2**32, '<', 0.2, 'the clock stands, but for commits');
	$session->quit;
	$c->reset_settings($_) foreach @nodes;
};

# A commit that the shard has seen is not hidden from who comes after it, however late its clock has it.
subtest 'a shard whose clock is ahead' => sub {
	$c->set('s2', 'tessera.clock_shift' => 20_000);
	ok($c->wait_for('s2', "SELECT setting FROM pg_settings WHERE name = 'tessera.clock_shift'", 20_000), 'by 20 s');
	$c->query('s2', 'UPDATE t SET v = 7 WHERE k = 150');
	is(answer($_, $READ), '306', "what was committed before is seen by $_") foreach @nodes;
	$c->query('s2', 'UPDATE t SET v = 1 WHERE k = 150');
	$c->reset_settings('s2');
};

# The range is another shard's when the moment comes.
foreach my $statement ('SELECT (SELECT sum(v) FROM t) + (SELECT sum(v) FROM other)',
	'SELECT sum(t.v + other.v) FROM t JOIN other ON t.k = 301 - other.k',
	"WITH a AS MATERIALIZED (SELECT k, v FROM t WHERE k > 90) SELECT sum(a.v) + 90 + (SELECT sum(v) FROM other) FROM a")
{
	subtest "a move between question and moment: $statement" => sub {
		foreach my $to ('s3', 's2')
		{
			$c->pause_at('r1', 'cut_asked');
			my $reader = $c->background('r1', $statement);
			$c->is_paused_at('r1', 'cut_asked');
			$c->query('s1', "SELECT tessera.move_range('t', 101, 151, '$to')");
			$c->go_on('r1', 'cut_asked');
			is($c->ended($reader), '', "to $to: the statement ends well");
			like($reader->{out}, qr/^600$/m, 'and sees all');
		}
	};
}

$c->is_settled('at the end');
done_testing();
