# What could break one snapshot over all shards, each forced: a commit that one shard has carried out and another has not, at each of its steps; a
# commit that hangs on a standby; many commits while a snapshot is taken; subtransactions; DDL and VACUUM between two reads of a transaction; a
# prepared transaction whose trigger waits for the reader; a crash and a promotion. And what snapshot isolation forbids and allows
# (doc/design.md#cluster-time).
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;
use Time::HiRes qw(sleep time);

my $c = TesseraCluster->new('traps', settings => { 'tessera.snapshot_reads' => 'on',
	'tessera.injection_points' => 'on', 'tessera.advisory_locks' => 'node',
	'tessera.orphan_cleanup_delay' => 0, 'tessera.commit_timeout' => '3s' });
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
# Keys to 100 are on s1, to 200 on s2, above on s3.
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v bigint NOT NULL, filler text)', "SELECT tessera.shard_table('t', 'k')",
	"INSERT INTO t SELECT g, 0, repeat('x', 50) FROM generate_series(1, 300) g",
	"SELECT tessera.move_range('t', 101, 201, 's2')", "SELECT tessera.move_range('t', 201, tessera.maxkey(), 's3')");

my $SUM = 'SELECT sum(v) FROM t';
my $RR = 'BEGIN ISOLATION LEVEL REPEATABLE READ';
# of those who wait for what a test holds up until they have given up
my $IMPATIENT = "SET tessera.gate_timeout = '2s'";

# A session of a node that has run these statements; errors do not end it, and are told with SQLSTATEs.
sub session_of
{
	my ($node, @statements) = @_;
	my $session = $c->session($node, on_error_stop => 0);
	$session->query("\\set VERBOSITY verbose\nSET statement_timeout = '60s'");
	$session->query($_) foreach @statements;
	return $session;
}

# What a session answers, or its first error.
sub answer
{
	my ($session, $sql) = @_;
	$session->{stderr} = '';
	my $rows = $session->query($sql);
	return $session->{stderr} =~ /(ERROR|FATAL):  (\w{5})/ ? $2 : $rows;
}

sub ends { $_->quit foreach @_; return; }

# Readers of every node at both levels, in the background: each adds up twice, with these settings.
sub begin_readers
{
	my (@settings) = @_;
	my @readers;
	foreach my $node (@nodes)
	{
		foreach my $level ('READ COMMITTED', 'REPEATABLE READ')
		{
			my $sql = join('; ', "SET statement_timeout = '60s'", @settings) . "; BEGIN ISOLATION LEVEL $level; $SUM; $SUM; COMMIT";
			push @readers, { node => $node, level => $level, run => $c->background($node, $sql) };
		}
	}
	return @readers;
}

# Has a node finish now what is prepared there.
sub resolve
{
	my ($node) = @_;
	$c->wait_for($node, "SELECT count(*) >= 0 FROM tessera.resolve_transactions('0')", 't', 30);
	return;
}

# Nothing is left of the subtest before: no trap depends on another.
sub begin_anew
{
	foreach my $node (@nodes)
	{
		resolve($node);
		ok($c->wait_for($node, 'SELECT count(*) FROM pg_prepared_xacts', '0', 60), "$node has nothing prepared");
	}
	$c->query('s1', 'UPDATE t SET v = 0');
	return;
}

# Each of their sums is one of these.
sub sums_of_readers_are
{
	my ($what, $readers, @right) = @_;
	foreach my $reader (@$readers)
	{
		my $error = $c->ended($reader->{run});
		my @sums = $reader->{run}{out} =~ /^(-?\d+)$/mg;
		my $same = $reader->{level} eq 'READ COMMITTED' || @sums == 2 && $sums[0] == $sums[1];
		# what is not decided is waited for, up to tessera.gate_timeout: an error then, never a half
		ok($error =~ /55P03/ || $same && @sums == 2 && !(grep { my $sum = $_; !grep { $_ == $sum } @right } @sums),
			"$what: whole or not at all by $reader->{node} at $reader->{level}") or diag "sums @sums, right: @right, $error";
	}
	return;
}

sub sums_are
{
	my ($what, @right) = @_;
	sums_of_readers_are($what, [ begin_readers() ], @right);
	return;
}

# Waits until all of them have ended, but not long: they may have to wait for what the test holds up.
sub await_readers
{
	my (@readers) = @_;
	my $deadline = time + 1;
	while (time < $deadline && grep { $_->{run}{handle}->pumpable } @readers)
	{
		$_->{run}{handle}->pump_nb foreach grep { $_->{run}{handle}->pumpable } @readers;
		sleep 0.02;
	}
	return;
}

subtest 'what is acknowledged is seen by the next statement of any node' => sub {
	begin_anew();
	my %session = map { $_ => session_of($_) } @nodes;
	my ($late, $n) = (0, 0);
	# three turns have each kind of write by each node
	foreach my $turn (1 .. (TesseraCluster::long() ? 25 : 6))
	{
		foreach my $writer (@nodes)
		{
			# one phase by itself, one phase in a block, two phases
			my $write = ('UPDATE t SET v = v + 1 WHERE k = ' . (1 + $n * 37 % 300),
				'BEGIN; UPDATE t SET v = v + 1 WHERE k = ' . (1 + $n * 41 % 300) . '; COMMIT',
				'UPDATE t SET v = v + CASE k WHEN 50 THEN 3 ELSE -1 END WHERE k IN (50, 150, 250)')[ $n % 3 ];
			$session{$writer}->query_safe($write);
			$n++;
			foreach my $reader (@nodes)
			{
				$late++ if $session{$reader}->query_safe($SUM) != $n;
				$late++ if $session{$reader}->query_safe("$RR;\n$SUM;\nCOMMIT") != $n;
			}
		}
	}
	is($late, 0, "all of $n writes by all nodes at once");
	ends(values %session);
};

# The writer is paused at a step of its commit; readers wait, or see all of it or nothing. It goes on when they have ended, or by a deadline of its
# own.
subtest 'a transaction that is prepared, decided, half carried out' => sub {
	begin_anew();
	my $commits = 4;
	# router r1: s1 coordinates; s2: it coordinates itself, so that its own part commits before the others are told
	foreach my $case ([ 'r1', 'commit_decision_written' ], [ 'r1', 'commit_prepared' ],
		[ 's2', 'commit_decision_written' ], [ 's2', 'commit_prepared' ])
	{
		my ($node, $point) = @$case;
		$c->pause_at($node, $point);
		my $writer = $c->background($node, 'UPDATE t SET v = v + CASE k WHEN 50 THEN 200 ELSE -100 END WHERE k IN (50, 150, 250)');
		$c->is_paused_at($node, $point);
		sums_of_readers_are("$node at $point", [ begin_readers($IMPATIENT) ], 0);
		$c->go_on($node, $point);
		is($c->ended($writer), '', "$node at $point: then it commits");
	}
	# The coordinator has committed, and cannot tell the others: one after the other is unreachable for it.
	foreach my $other ('s2', 's3')
	{
		$c->pause_at('r1', 'commit_prepared');
		my $writer = $c->background('r1', 'UPDATE t SET v = v + CASE k WHEN 50 THEN 200 ELSE -100 END WHERE k IN (50, 150, 250)');
		$c->is_paused_at('r1', 'commit_prepared');
		# its COMMIT PREPARED waits for a standby that nobody is
		$c->set($other, synchronous_standby_names => "'nobody'");
		ok($c->wait_for($other, 'SHOW synchronous_standby_names', 'nobody', 30), "$other answers no commit");
		$c->go_on('r1', 'commit_prepared');
		# the coordinator shows it; a reader of all shards may wait for the other
		ok($c->wait_for('s1', 'SELECT v FROM t WHERE k = 50', 200 * ++$commits, 30), 'the coordinator has committed');
		my @readers = begin_readers();
		await_readers(@readers);
		$c->set($other, synchronous_standby_names => "''");
		sums_of_readers_are("decided, and $other does not answer", \@readers, 0);
		unlike($c->ended($writer), qr/ERROR/, 'then it commits');
	}
	# The coordinator crashes between its decision and the answers: decided, and nobody carries it out until
	# the resolvers do, here when they are asked.
	$c->query('s1', "SELECT tessera_test.injection_set('commit_decided', 'crash')");
	my $writer = $c->background('s1', 'UPDATE t SET v = v + CASE k WHEN 50 THEN 200 ELSE -100 END WHERE k IN (50, 150, 250)');
	like($c->ended($writer), qr/server closed the connection|57P02|terminating connection/, 'the coordinator crashes when it has decided');
	$c->await_end('s1');
	$c->start('s1');
	my @readers = begin_readers();
	await_readers(@readers);
	resolve($_) foreach @nodes;
	sums_of_readers_are('after the crash of the coordinator', \@readers, 0);
};

subtest 'a commit that hangs on a synchronous standby' => sub {
	begin_anew();
	$c->set('s2', synchronous_standby_names => "'nobody'");
	ok($c->wait_for('s2', 'SHOW synchronous_standby_names', 'nobody', 30), 's2 answers no commit');
	# one phase: money moves between two accounts of s2
	my $one = $c->background('r1', 'UPDATE t SET v = v + CASE k WHEN 110 THEN 5 ELSE -5 END WHERE k IN (110, 120)');
	my $two = $c->background('s1', 'UPDATE t SET v = v + CASE k WHEN 60 THEN 7 ELSE -7 END WHERE k IN (60, 160)');
	ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'", 't', 30), 'commits wait');
	sums_are('while commits hang', 0);
	$c->set('s2', synchronous_standby_names => "''");
	unlike($c->ended($_), qr/ERROR/, 'then it is answered') foreach $one, $two;
	sums_are('after it', 0);
};

subtest 'many commits while a transaction holds its snapshot, with parallel workers' => sub {
	begin_anew();
	my @parallel = ('SET parallel_setup_cost = 0', 'SET parallel_tuple_cost = 0', 'SET min_parallel_table_scan_size = 0',
		'SET force_parallel_mode = on');
	$c->set($_, min_parallel_table_scan_size => 0, parallel_setup_cost => 0, parallel_tuple_cost => 0, synchronous_commit => 'off') foreach @nodes;
	my @readers = map { session_of($_, @parallel, $RR) } @nodes;
	my @first = map { answer($_, $SUM) } @readers;
	is("@first", '0 0 0 0', 'the first read');
	# far more on each shard than the list of a snapshot has room for
	my $number = $ENV{TRAP_COMMITS} // (TesseraCluster::long() ? 60_000 : 9_000);
	my $load = $c->pgbench(nodes => [ 's1', 's2', 's3' ], clients => 2, transactions => $number / 6, protocol => 'prepared', timeout => 300,
		script => "\\set k 10 * random(0, 29) + :client_id % 10 + 1\nUPDATE t SET v = v + 1 WHERE k = :k;\n", max_tries => 5);
	is($load->{processed}, $number, "$number commits by six clients, meanwhile");
	is(join(' ', map { answer($_, $SUM) } @readers), '0 0 0 0', 'the second read');
	is(join(' ', map { answer($_, 'SELECT count(*) FROM t WHERE v <> 0') } @readers), '0 0 0 0', 'no row of them is seen');
	is(join(' ', map { answer($_, "COMMIT;\n$SUM") } @readers), join(' ', ($number) x 4), 'all of them are seen by the next');
	ends(@readers);
	$c->reset_settings;
};

subtest 'savepoints are hidden with their transaction' => sub {
	begin_anew();
	my @readers = map { session_of($_, $RR, 'SELECT v FROM t WHERE k = 1') } @nodes;
	# more subtransactions than a backend tells of, on each shard; some are rolled back
	my $script = join "\n", map { my $k = $_;
		"SAVEPOINT s; UPDATE t SET v = v + 9 WHERE k IN ($k, $k + 100, $k + 200);" . ($k % 3 ? '' : ' ROLLBACK TO s;') . ' RELEASE s;' } 1 .. 90;
	my $deep = $c->background('r1', "DO \$\$ BEGIN FOR i IN 1 .. 90 LOOP BEGIN UPDATE t SET v = v + CASE WHEN k > 200 THEN -2 ELSE 1 END " .
		'WHERE k IN (i, i + 100, i + 200); IF i % 3 = 0 THEN RAISE division_by_zero; END IF; EXCEPTION WHEN division_by_zero THEN NULL; END; ' .
		'END LOOP; END $$');
	is($c->ended($deep), '', 'ninety subtransactions on three shards');
	is(join(' ', map { answer($_, $SUM) } @readers), '0 0 0 0', 'one sum');
	is(join(' ', map { answer($_, 'SELECT count(*) FROM t WHERE v <> 0') } @readers), '0 0 0 0', 'nothing of it is seen by who began before');
	my $first = session_of('s3', 'BEGIN', split /\n/, $script);
	my @more = map { session_of($_, $RR, $SUM) } @nodes;
	is(answer($first, 'COMMIT'), '', 'another, by savepoints');
	is(join(' ', map { answer($_, $SUM) } @readers, @more), join(' ', (0) x 8), 'nor by who began while it ran');
	is(join(' ', map { answer($_, "COMMIT;\n$SUM") } @more), join(' ', (3 * 60 * 9) x 4), 'the next sees what was not rolled back');
	ends(@readers, @more, $first);
};

# Between two reads of a transaction: it sees the same, or is told to retry; never a part.
subtest 'DDL and VACUUM between two reads' => sub {
	begin_anew();
	my @changes = (
		[ 'CREATE INDEX CONCURRENTLY', 'CREATE INDEX CONCURRENTLY t_v ON other (v)', 0 ],
		[ 'VACUUM', 'VACUUM (FREEZE) other', 0 ],
		[ 'TRUNCATE', 'TRUNCATE other', 1 ],
		[ 'ALTER TABLE ... TYPE', 'ALTER TABLE other ALTER COLUMN v TYPE numeric', 1 ]);
	foreach my $case (@changes)
	{
		my ($name, $sql, $rewrites) = @$case;
		$c->query('s1', $_) foreach 'DROP TABLE IF EXISTS other', 'CREATE TABLE other (k int PRIMARY KEY, v bigint)',
			"SELECT tessera.shard_table('other', 'k', colocate_with => 't')", 'INSERT INTO other SELECT g, 1 FROM generate_series(1, 300) g';
		# the table is not read before the change, or its lock would hold the change up
		my @readers = map { session_of($_, $RR, $SUM) } @nodes;
		my $change = $c->background('s1', "SET lock_timeout = '20s'; SET tessera.ddl_lock_timeout = '20s'; UPDATE other SET v = v + 1");
		is($c->ended($change), '', "$name: all rows change");
		my $ddl = $c->background('s1', $sql);
		# what waits for old snapshots ends when they do; what does not has ended by now
		my $waits = $name =~ /CONCURRENTLY/;
		is($c->ended($ddl), '', "$name is done") unless $waits;
		foreach my $n (0 .. $#nodes)
		{
			my $got = answer($readers[$n], 'SELECT count(*), sum(v) FROM other');
			# what writes a table anew leaves nothing to older snapshots, as on one server: then it is empty, on all shards
			my $right = $got eq '300|300' || $rewrites && $got =~ /^(40001|72000|0\|)$/;
			ok($right, "$name: $nodes[$n] sees what was there, or nothing of it: $got");
			answer($readers[$n], 'COMMIT');
		}
		is($c->ended($ddl), '', "$name is done") if $waits;
		ends(@readers);
	}
};

# The part of a transaction is about to be prepared, and its deferred trigger waits for a row that a reader has locked; the reader then reads what the
# transaction has written elsewhere.
subtest 'a deferred trigger that waits for the reader' => sub {
	begin_anew();
	$c->query('s1', $_) foreach (
		'CREATE TABLE gate (k int PRIMARY KEY, n int)', "SELECT tessera.shard_table('gate', 'k', colocate_with => 't')",
		'INSERT INTO gate VALUES (150, 0)',
		"CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = 'shard' AS " .
			'$$ BEGIN UPDATE gate SET n = n + 1 WHERE k = 150; RETURN NULL; END $$',
		'CREATE CONSTRAINT TRIGGER pass AFTER UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.k = 150) EXECUTE FUNCTION pass()');
	foreach my $begin ('BEGIN', $RR)
	{
		my $reader = session_of('r1', $IMPATIENT, $begin, 'SELECT n FROM gate WHERE k = 150 FOR UPDATE');
		my $writer = $c->background('s3', 'UPDATE t SET v = v + CASE k WHEN 50 THEN 2 ELSE -1 END WHERE k IN (50, 150, 250)');
		ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted", 't', 30), "$begin: the trigger waits for the reader");
		my $sum = answer($reader, $SUM);
		ok($sum eq '0' || $sum eq '40P01' || $sum eq '55P03', "$begin: the reader has one sum, or is the victim of a deadlock: $sum");
		answer($reader, 'COMMIT');
		my $error = $c->ended($writer);
		like($error, qr/^$|40P01|40001/, "$begin: the writer ends, too");
		ends($reader);
		sums_are("$begin: after it", 0);
	}
	$c->query('s1', 'DROP TRIGGER pass ON t');
};

subtest 'what snapshot isolation forbids and allows' => sub {
	begin_anew();
	# write skew on one shard, on two
	foreach my $case ([ 11, 12, 'one shard' ], [ 13, 113, 'two shards' ])
	{
		my ($a, $b, $where) = @$case;
		foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
		{
			my @both = map { session_of($_, "BEGIN ISOLATION LEVEL $level", "SELECT sum(v) FROM t WHERE k IN ($a, $b)") } 'r1', 's3';
			my @answers = (answer($both[0], "UPDATE t SET v = v + 1 WHERE k = $a"), answer($both[1], "UPDATE t SET v = v + 1 WHERE k = $b"),
				map { answer($_, 'COMMIT') } @both);
			my $refused = grep { $_ eq '40001' } @answers;
			is($refused, 0, "write skew on $where at $level is allowed") if $level eq 'REPEATABLE READ';
			cmp_ok($refused, '>=', 1, "write skew on $where at $level is caught") if $level eq 'SERIALIZABLE' && $where eq 'one shard';
			ends(@both);
		}
	}
	# a row that has changed since the snapshot, on a shard that was not read before
	foreach my $node (@nodes)
	{
		my $late = session_of($node, $RR, $SUM);
		$c->query('s1', 'UPDATE t SET v = v + 1 WHERE k = 160');
		is(answer($late, 'UPDATE t SET v = v + 1 WHERE k = 160'), '40001', "$node: an update of what has changed since");
		is(answer($late, $SUM), '25P02', "$node: its transaction is over");
		ends($late);
		my $own = session_of($node, $RR, $SUM);
		my $before = answer($own, $SUM);
		is(answer($own, 'UPDATE t SET v = v + 1 WHERE k IN (70, 170, 270)'), '', "$node: an update of what has not");
		is(answer($own, $SUM), $before + 3, "$node: its own writes are seen");
		is(answer($own, 'ROLLBACK'), '', "$node: and rolled back");
		ends($own);
	}
};

subtest 'a shard that crashes, and one that is promoted' => sub {
	begin_anew();
	my %kept = map { $_ => session_of($_, $RR, $SUM) } 'r1', 's1';
	$c->query('s1', 'UPDATE t SET v = v + CASE WHEN k <= 100 THEN 2 WHEN k <= 200 THEN -1 ELSE -1 END');
	$c->kill9('s2');
	$c->start('s2');
	sums_are('after a crash', 0);
	foreach my $node (sort keys %kept)
	{
		my $got = answer($kept{$node}, "$SUM WHERE v >= 0");
		like($got, qr/^(0|40001|08006|08003|57P0\d)$/, "a transaction of $node from before goes on or is told so: $got");
		ends($kept{$node});
	}
	# nothing is lost: each commit of s3 waits for its standby
	$c->add_standby('s3');
	$c->set('s3', synchronous_standby_names => "'*'");
	ok($c->wait_for('s3', 'SHOW synchronous_standby_names', '*', 30), 's3 waits for its standby');
	my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 1, seconds => 3600, rate => 60, max_tries => 100,
		script => "\\set a random(1, 100)\nUPDATE t SET v = v + CASE k WHEN :a THEN 1 ELSE -1 END WHERE k IN (:a, :a + 200);\n");
	ok($c->wait_for('s1', 'SELECT count(*) > 100 FROM t WHERE v NOT IN (2, -1)', 't', 60), 'there is a load');
	$c->promote('s3');
	ok($c->wait_for('s1', 'SELECT count(*) FROM t', '300', 60), 'the promoted server answers');
	sums_are('after a promotion', 0) foreach 1 .. (TesseraCluster::long() ? 3 : 1);
	$load->stop;
	sums_are('at the end', 0);
};

foreach my $node (@nodes)
{
	ok($c->wait_for($node, 'SELECT count(*) FROM pg_prepared_xacts', '0', 30), "$node has nothing prepared at the end");
}
is(join(' ', $c->query_all($SUM)), '0 0 0 0', 'nothing was lost');
$c->is_settled('at the end');
done_testing();
