# A reader of several shards does not wait for a two-phase commit that is not decided: it asks the coordinator, which commits later than the reader's
# moment then. Each order of question, decision and carrying out is forced, also with a coordinator that is down, and for what clients have prepared
# (doc/design.md#one-snapshot).
use strict;
use warnings FATAL => 'all';

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('pushed', settings => { 'tessera.snapshot_reads' => 'on', 'tessera.injection_points' => 'on',
	'tessera.advisory_locks' => 'node', 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
# Keys to 100 are on s1, to 200 on s2, above on s3.
foreach my $table ('t', 'other')
{
	$c->query('s1', $_) foreach (
		"CREATE TABLE $table (k int PRIMARY KEY, v bigint NOT NULL)", "SELECT tessera.shard_table('$table', 'k')",
		"INSERT INTO $table SELECT g, 0 FROM generate_series(1, 300) g",
		"SELECT tessera.move_range('$table', 101, 201, 's2')", "SELECT tessera.move_range('$table', 201, tessera.maxkey(), 's3')");
}

# with a shard that is down nobody hears of it later
$c->fetch_routing;

# Right if both are: no part is seen alone, and nothing that came later.
my $READ = "SELECT sum(v) || ' ' || coalesce(max(v) FILTER (WHERE k = 50), 0) FROM t";
my $WRITE = 'UPDATE t SET v = v + CASE k WHEN 50 THEN 2 ELSE -1 END WHERE k IN (50, 150, 250)';
my $written = 0;

# A reader waits for a transaction's end; a part is being committed, and not visible yet (or that it will be is being noted).
my $WAITS = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'transactionid' AND query ~ 'take|FROM t'";
my $HALF = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ 'COMMIT PREPARED|note_outcome'";

# A reader that has to wait for what the test holds up fails long before the test ends.
my @NO_WAIT = ("SET tessera.gate_timeout = '50s'");
my %BEGIN = ('READ COMMITTED' => 'BEGIN', 'REPEATABLE READ' => 'BEGIN ISOLATION LEVEL REPEATABLE READ',
	'SERIALIZABLE' => 'BEGIN ISOLATION LEVEL SERIALIZABLE');

sub end_all
{
	my (%session) = @_;
	foreach my $session (values %session)
	{
		$session->query('ROLLBACK');
		$session->quit;
	}
	return;
}

# The paused writer holds back nobody; and who has read keeps what it has seen, whatever comes of that.
sub writer_is_not_waited_for
{
	my ($node, $point) = @_;
	$c->pause_at($node, $point);
	my $writer = $c->background($node, $WRITE);
	$c->is_paused_at($node, $point);
	my %reader;
	foreach my $at (@nodes)
	{
		foreach my $level (sort keys %BEGIN)
		{
			my $session = $reader{"$at, $level"} = $c->session_of($at, @NO_WAIT, $BEGIN{$level});
			is($c->answer($session, $READ), "0 $written", "$node at $point: a reader of $at at $level");
			is($c->answer($session, 'SELECT count(*) FROM t WHERE k IN (50, 150, 250) AND v = ' . $written), $written == 0 ? 3 : 1, 'and its rows');
		}
	}
	is($c->answer($reader{'r1, READ COMMITTED'}, "DECLARE c CURSOR FOR $READ;\nFETCH c"), "0 $written", 'a cursor');
	my $copy = 'COPY (SELECT k, v FROM t WHERE k IN (50, 150, 250) ORDER BY k) TO STDOUT';
	like($c->answer($reader{'r1, READ COMMITTED'}, $copy), qr/^50\t$written\n/, 'COPY');
	$c->go_on($node, $point);
	is($c->ended($writer), '', "$node at $point: then it commits");
	$written += 2;
	foreach my $who (sort keys %reader)
	{
		my $right = $who =~ /COMMITTED/ ? $written : $written - 2;
		is($c->answer($reader{$who}, $READ), "0 $right", "$node at $point, afterwards: $who");
	}
	end_all(%reader);
	return;
}

subtest 'what is not decided' => sub {
	# another node coordinates, and the router itself
	writer_is_not_waited_for($_->[0], $_->[1])
		foreach [ 'r1', 'commit_decision_written' ], [ 'r1', 'commit_prepared' ], [ 's2', 'commit_decision_written' ], [ 's2', 'commit_prepared' ];
};

# The reader has its moment and the list of what is in doubt; the writer commits everywhere before the coordinator is asked.
subtest 'decided and carried out between the two questions' => sub {
	foreach my $level (sort keys %BEGIN)
	{
		$c->pause_at('s3', 'commit_prepared');
		my $writer = $c->background('s3', $WRITE);
		$c->is_paused_at('s3', 'commit_prepared');
		$c->pause_at('r1', 'cut_asked');
		my $reader = $c->background('r1', "$BEGIN{$level}; $READ; COMMIT");
		$c->is_paused_at('r1', 'cut_asked');
		$c->go_on('s3', 'commit_prepared');
		is($c->ended($writer), '', 'the writer ends');
		$c->go_on('r1', 'cut_asked');
		is($c->ended($reader), '', 'the reader ends');
		like($reader->{out}, qr/^0 $written$/m, "$level: its moment is before the decision");
		$written += 2;
	}
};

# Its shard has heard from the router that nobody has decided; the writer commits everywhere before the shard takes the snapshot.
subtest 'decided and carried out before the snapshot is taken' => sub {
	$c->pause_at('r1', 'commit_prepared');
	my $writer = $c->background('r1', $WRITE);
	$c->is_paused_at('r1', 'commit_prepared');
	$c->pause_at('s2', 'cut_take');
	my $reader = $c->background('s3', $READ);
	$c->is_paused_at('s2', 'cut_take');
	$c->go_on('r1', 'commit_prepared');
	is($c->ended($writer), '', 'the writer ends');
	$c->go_on('s2', 'cut_take');
	is($c->ended($reader), '', 'the reader ends');
	like($reader->{out}, qr/^0 $written$/m, 'its moment is before the decision');
	$written += 2;
};

# One shard answers late, when it has seen what is later than the decision: so the reader's moment is later, too, and the transaction, in doubt on the
# shard that has answered at once, has to be seen, whole.
subtest 'decided before the moment, by the time that the last shard answers' => sub {
	my $two = 'UPDATE t SET v = v + CASE k WHEN 50 THEN 2 ELSE -2 END WHERE k IN (50, 150)';
	$c->pause_at('s1', 'commit_prepared');
	my $writer = $c->background('s1', $two);
	$c->is_paused_at('s1', 'commit_prepared');
	$c->pause_at('s3', 'cut_ask');
	my $reader = $c->background('r1', "SET tessera.gate_timeout = '170s'; $READ");
	$c->is_paused_at('s3', 'cut_ask');
	ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%ask_moment%'", 't'),
		'another shard has answered');
	# that one cannot carry out what is decided now
	$c->set('s2', synchronous_standby_names => "'nobody'");
	ok($c->wait_for('s2', 'SHOW synchronous_standby_names', 'nobody'), 's2 answers no commit');
	$c->go_on('s1', 'commit_prepared');
	ok($c->wait_for('s2', $HALF, 't'), 'decided, and half carried out');
	$c->query('s3', 'UPDATE t SET v = v WHERE k = 260');
	$c->go_on('s3', 'cut_ask');
	ok($c->wait_for('s2', $WAITS, 't'), 'the reader waits for its other half');
	$c->set('s2', synchronous_standby_names => "''");
	is($c->ended($reader), '', 'the reader ends');
	unlike($c->ended($writer), qr/ERROR/, 'the writer ends');
	$written += 2;
	like($reader->{out}, qr/^0 $written$/m, 'all of it is seen');
};

subtest 'a coordinator that is down' => sub {
	$c->query('s1', 'CREATE TABLE quiet (k int PRIMARY KEY, v bigint NOT NULL)');
	$c->query('s1', "SELECT tessera.shard_table('quiet', 'k', colocate_with => 't')");
	$c->pause_at('r1', 'commit_prepared');
	my $writer = $c->background('r1', $WRITE);
	$c->is_paused_at('r1', 'commit_prepared');
	$c->kill9('s1');
	my $impatient = $c->session_of('s3', "SET tessera.gate_timeout = '2s'");
	my $some = 'SELECT sum(v) FROM t WHERE k >= 150';
	is($c->answer($impatient, 'SELECT count(*) FROM quiet WHERE k >= 150'), '0', 'who reads what it does not write does not wait');
	is($c->answer($impatient, $some), '55P03', 'who reads what it writes waits for its end');
	$impatient->query($BEGIN{'REPEATABLE READ'});
	is($c->answer($impatient, 'SELECT count(*) FROM quiet WHERE k >= 150'), '0', 'nor does a transaction that reads something else');
	is($c->answer($impatient, $some), '55P03', 'until it comes to what it writes');
	$impatient->query('ROLLBACK');
	my $whole = $c->session_of('s2', @NO_WAIT, $BEGIN{'REPEATABLE READ'});
	is($c->answer($whole, 'SELECT count(*) FROM quiet WHERE k >= 150'), '0', 'another one of those');
	my $patient = $c->background('s3', "SET tessera.gate_timeout = '170s'; $some");
	ok($c->wait_for('s3', $WAITS, 't'), 'another waits');
	$c->start('s1');
	# whose decision was not written, so the next reader need not wait for its parts to be rolled back
	ok($c->wait_for('s3', $some, "-$written", 60), 'it is back, and has not decided: the parts are not seen');
	$c->go_on('r1', 'commit_prepared');
	like($c->ended($writer), qr/ERROR/, 'the writer fails');
	$c->wait_for($_, "SELECT count(*) >= 0 FROM tessera.resolve_transactions('0')", 't') foreach @nodes;
	is($c->ended($patient), '', 'who has waited has its answer');
	is($c->answer($whole, $some), "-$written", 'so has a transaction that has begun before');
	$whole->quit;
	is($c->query('r1', $READ), "0 $written", 'nothing of it is left');
	$impatient->quit;
};

# It has decided, and told nobody. Who asks for a snapshot later has to see it as soon as it reads what was written.
subtest 'a coordinator that is down and has decided' => sub {
	$c->query('s1', "SELECT tessera_test.injection_set('commit_decided', 'crash')");
	my $writer = $c->background('s1', $WRITE);
	unlike($c->ended($writer), qr/^$/, 'it crashes');
	$c->await_end('s1');
	my $some = 'SELECT sum(v) FROM t WHERE k >= 150';
	my $other = 'SELECT sum(v) FROM other WHERE k >= 150';
	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		my $impatient = $c->session_of('s3', "SET tessera.gate_timeout = '2s'", $BEGIN{$level});
		is($c->answer($impatient, $other), '0', "$level: who reads something else does not wait");
		is($c->answer($impatient, "SAVEPOINT s;\nSELECT v FROM t WHERE k = 150"), '55P03', "$level: who reads what it has written does");
		$impatient->query('ROLLBACK');
		$impatient->quit;
	}
	# whose moment is later than the decision
	$c->query('s3', 'UPDATE other SET v = 1 WHERE k = 260');
	my %patient = map { $_ => $c->session_of($_, @NO_WAIT, $BEGIN{'REPEATABLE READ'}) } 's2', 's3', 'r1';
	is($c->answer($patient{$_}, $other), '1', "a reader of $_ that reads something else") foreach sort keys %patient;
	my $waits = $c->background('s3', "SET tessera.gate_timeout = '170s'; $BEGIN{'REPEATABLE READ'}; $other; $some; COMMIT");
	ok($c->wait_for('s3', $WAITS, 't'), 'one that comes to what was written waits');
	$c->start('s1');
	$c->wait_for($_, "SELECT count(*) >= 0 FROM tessera.resolve_transactions('0')", 't') foreach @nodes;
	$written += 2;
	like($c->ended($waits), qr/40001/, 'its snapshot does not have what it should show: it has to retry');
	is($c->answer($patient{$_}, $other), '1', "the reader of $_ goes on") foreach sort keys %patient;
	is($c->answer($patient{r1}, 'COPY (SELECT k FROM other WHERE k >= 299 ORDER BY k) TO STDOUT'), "299\n300", 'COPY, too');
	my $copy = 'COPY (SELECT k FROM t WHERE k >= 299) TO STDOUT';
	is($c->answer($patient{$_}, $_ eq 'r1' ? $copy : $some), '40001', "$_: until it comes to what was written") foreach sort keys %patient;
	is($c->answer($patient{$_}, "ROLLBACK;\n$BEGIN{'REPEATABLE READ'};\n$some"), -$written, "$_: the next sees all of it") foreach sort keys %patient;
	end_all(%patient);
};

subtest 'what clients have prepared' => sub {
	my $client = $c->session_of('r1', 'BEGIN', $WRITE, "PREPARE TRANSACTION 'mine'");
	my %reader = map { $_ => $c->session_of($_, @NO_WAIT, $BEGIN{'REPEATABLE READ'}) } @nodes;
	is($c->answer($reader{$_}, $READ), "0 $written", "prepared: a reader of $_") foreach sort keys %reader;
	is($c->query($_, $READ), "0 $written", "prepared: another of $_") foreach @nodes;
	# half of it is carried out: s2 answers no commit
	$c->set('s2', synchronous_standby_names => "'nobody'");
	ok($c->wait_for('s2', 'SHOW synchronous_standby_names', 'nobody'), 's2 answers no commit');
	my $commit = $c->background('s3', "COMMIT PREPARED 'mine'");
	ok($c->wait_for('s2', $HALF, 't'), 'decided, and half carried out');
	is($c->answer($reader{$_}, $READ), "0 $written", "half carried out: the reader of $_ keeps its moment") foreach sort keys %reader;
	my @waiting = map { $c->background($_, "SET tessera.gate_timeout = '170s'; $READ") } @nodes;
	ok($c->wait_for('s2', $WAITS, 't'), 'who comes now waits');
	$c->set('s2', synchronous_standby_names => "''");
	unlike($c->ended($commit), qr/ERROR/, 'it is committed');
	$written += 2;
	foreach my $run (@waiting)
	{
		is($c->ended($run), '', 'who has waited has its answer');
		like($run->{out}, qr/^0 $written$/m, 'and sees all of it');
	}
	is($c->answer($reader{$_}, $READ), '0 ' . ($written - 2), "committed: the reader of $_ keeps its moment") foreach sort keys %reader;
	end_all(%reader);
	$client->quit;
};

$c->is_settled('at the end');
done_testing();
