# Snapshots and plans that are older than a move (S78-S80, doc/design.md#snapshot-and-placement; invariants 3 and 4): a STABLE function, a REPEATABLE
# READ transaction, an open cursor, a loop over a query, a generic plan, a parallel scan, on the donor, on the recipient, and on a router that has a
# part of the table itself. Each answers with all rows, each once, as of one moment, or asks for a retry (40001). Prepared statements survive moves
# and splits; a long transaction inside the range holds up the move and nobody else.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

my $c = TesseraCluster->new('snapshots', settings => { 'tessera.advisory_locks' => 'node', 'tessera.injection_points' => 'on',
	'tessera.orphan_cleanup_delay' => 0 });
# s1 keeps the keys outside of 501 to 1500: a router with a local part.
$c->create(shards => 3);
my @nodes = $c->names;
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
	"INSERT INTO acc SELECT g, g, repeat('x', 200) FROM generate_series(1, 2000) g",
	"SELECT tessera.shard_table('acc', 'k')",
	"SELECT tessera.move_range('acc', 501, 1501, 's2')",
	'CREATE FUNCTION read_all() RETURNS text STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) || $x$ $x$ || sum(bal) FROM acc); END $$',
	'CREATE FUNCTION read_key(key int) RETURNS text STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) || $x$ $x$ || coalesce(sum(bal), ' .
	'0) FROM acc WHERE k = key); END $$',
	'CREATE FUNCTION read_loop(lock int) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
	 DECLARE r record; n int := 0; s bigint := 0;
	 BEGIN
	   FOR r IN SELECT k, bal FROM acc LOOP
	     n := n + 1; s := s + r.bal;
	     IF n = 20 THEN PERFORM pg_advisory_lock(lock); PERFORM pg_advisory_unlock(lock); END IF;
	   END LOOP;
	   RETURN n || $x$ $x$ || s;
	 END $$');

my $owner = 's2';
my $sum = 2001000;
my $key_bal = 1000;

# Moves the range to the other shard, changes a row of it (+1), and waits until the former owner has deleted its copy.
sub move
{
	my $from = $owner;
	$owner = $owner eq 's2' ? 's3' : 's2';
	my ($status, $stdout, $stderr) = $c->psql('s1', "SELECT tessera.move_range('acc', 501, 1501, '$owner')");
	is($status, 0, "moved to $owner") or diag $stderr;
	$c->query('s1', 'UPDATE acc SET bal = bal + 1 WHERE k = 1000');
	$sum++;
	$key_bal++;
	$c->wait_for($from, 'SELECT count(*) FROM tessera.range_deletions', '0', 30) or fail "$from deletes";
	return;
}

# For each case a session on each node runs `before`; the range moves, once for all of them; then each runs `after`, whose last line must be one of
# the answers. OLD_..., NEW_...: where both are given, both are right; the old one alone where the snapshot says so; retry: 40001 is right, too. What
# is `blocked` has begun before the move, and waits meanwhile for an advisory lock, LOCK.
my $locks = 0;

sub across_a_move
{
	my (@cases) = @_;
	my ($old_sum, $old_bal) = ($sum, $key_bal);

	foreach my $case (@cases)
	{
		$case->{lock} = ++$locks if $case->{blocked};
		foreach my $node (@nodes)
		{
			if ($case->{blocked})
			{
				my $blocker = $case->{blocker}{$node} = $c->session($node, on_error_stop => 0);
				$blocker->query("SELECT pg_advisory_lock($case->{lock})");
			}
			my $session = $case->{session}{$node} = $c->session($node, on_error_stop => 0);
			$session->query(join("\n", '\set VERBOSITY verbose', map { "$_;" } "SET statement_timeout = '60s'", @{ $case->{before} // [] }));
			$session->{stderr} =~ /ERROR/ and diag "$case->{name} on $node: before: $session->{stderr}";
			$session->query_until(qr/begun/, "\\echo begun\n" . $case->{blocked} =~ s/LOCK/$case->{lock}/r . ";\n") if $case->{blocked};
		}
	}
	my $blocked = grep { $_->{blocked} } @cases;
	foreach my $node (@nodes)
	{
		$c->wait_for($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", $blocked, 30) or fail 'blocked' if $blocked;
	}
	my $role = "former owner $owner";
	move();
	foreach my $case (@cases)
	{
		is_right($case, $_, $role, $old_sum, $old_bal) foreach @nodes;
	}
	return;
}

# After the move, one session of a case.
sub is_right
{
	my ($case, $node, $role, $old_sum, $old_bal) = @_;
	my $session = $case->{session}{$node};
	my $answer;
	if ($case->{blocked})
	{
		$case->{blocker}{$node}->quit;
		$answer = $session->query('\echo');
	}
	else
	{
		$session->{stderr} = '';
		$answer = $session->query($case->{after});
	}
	$answer =~ s/\s+\z//;
	if ($case->{sum})
	{
		my ($n, $total) = @{ $case->{plus} // [ 0, 0 ] };
		$n++, $total += $_ foreach split /\n/, $answer;
		$answer = "$n $total";
	}
	$answer =~ s/.*\n//s;
	my @right = map { my $a = $_; $a =~ s/OLD_SUM/$old_sum/; $a =~ s/NEW_SUM/$sum/; $a =~ s/OLD_BAL/$old_bal/; $a =~ s/NEW_BAL/$key_bal/;
	$a } @{ $case->{right} };
	my $retry = $case->{retry} && $session->{stderr} =~ /ERROR:  40001/;
	ok($retry || (grep { $_ eq $answer } @right), "$case->{name} on $node ($role)" . ($retry ? ': to be retried' : ": $answer")) or
		diag "answer: $answer, right: @right, " . $session->{stderr};
	$session->{stderr} = '';
	$session->query('ROLLBACK') if $case->{transaction};
	is($session->query("SELECT count(*) || ' ' || sum(bal) FROM acc"), "2000 $sum", "$case->{name} on $node: then all is seen")
		or diag $session->{stderr};
	$session->quit;
	return;
}

my $all = "SELECT count(*) || ' ' || sum(bal) FROM acc";
my $key = "SELECT count(*) || ' ' || coalesce(sum(bal), 0) FROM acc WHERE k = 1000";

# The statement's snapshot is taken, the function reads under it much later.
across_a_move(
	{ name => 'STABLE function, whole table', blocked => "SELECT split_part(pg_advisory_lock(LOCK)::text || '|' || read_all(), '|', 2)",
		right => [ '2000 OLD_SUM', '2000 NEW_SUM' ], retry => 1 },
	{ name => 'STABLE function, one key', blocked => "SELECT split_part(pg_advisory_lock(LOCK)::text || '|' || read_key(1000), '|', 2)",
		right => [ '1 OLD_BAL', '1 NEW_BAL' ], retry => 1 },
	{ name => 'loop over a query', blocked => 'SELECT read_loop(LOCK)', right => [ '2000 OLD_SUM', '2000 NEW_SUM' ], retry => 1 });

# REPEATABLE READ: the snapshot sees the rows where they were, or the transaction is told to retry; also where the shard is touched for the first time
# after the move (doc/design.md#pinned-versions). The last one reads on several shards and writes.
my $begin = 'BEGIN ISOLATION LEVEL REPEATABLE READ';
across_a_move(
	{ name => 'REPEATABLE READ, whole table', before => [ $begin, $all ], after => $all, right => ['2000 OLD_SUM'], retry => 1, transaction => 1 },
	{ name => 'REPEATABLE READ, one key', before => [ $begin, $key ], after => $key, right => ['1 OLD_BAL'], retry => 1, transaction => 1 },
	{ name => 'REPEATABLE READ, the table not yet read', before => [ $begin, 'SELECT 1' ], after => $all,
		right => [ '2000 OLD_SUM', '2000 NEW_SUM' ], retry => 1, transaction => 1 },
	{ name => 'REPEATABLE READ, another key read', before => [ $begin, 'SELECT bal FROM acc WHERE k = 1' ], after => $all,
		right => ['2000 OLD_SUM'], retry => 1, transaction => 1 },
	{ name => 'REPEATABLE READ, update of a moved row', before => [ $begin, $key ],
		after => 'UPDATE acc SET bal = bal WHERE k = 1000 RETURNING k', right => [], retry => 1, transaction => 1 },
	{ name => 'INSERT SELECT into a temporary table',
		before => [ 'CREATE TEMP TABLE copy (k int, bal int)', $begin, 'SELECT bal FROM acc WHERE k = 1000' ],
		after => "WITH i AS (INSERT INTO copy SELECT k, bal FROM acc RETURNING bal) SELECT count(*) || ' ' || sum(bal) FROM i",
		right => ['2000 OLD_SUM'], retry => 1, transaction => 1 });

# Open cursors: rows that are fetched after the move (doc/design.md#cursors).
across_a_move(
	{ name => 'cursor, begun', before => [ 'BEGIN', 'DECLARE d CURSOR FOR SELECT bal FROM acc ORDER BY k DESC', 'MOVE 20 FROM d' ],
		after => 'FETCH ALL FROM d', sum => 1, plus => [ 20, sub { my $s = 0; $s += $_ foreach 1981 .. 2000; $s }->() ],
		right => [ '2000 OLD_SUM', '2000 NEW_SUM' ], retry => 1, transaction => 1 },
	{ name => 'cursor, unordered', before => [ 'BEGIN', 'DECLARE d CURSOR FOR SELECT bal FROM acc', 'MOVE 0 FROM d' ],
		after => 'FETCH ALL FROM d', sum => 1, right => [ '2000 OLD_SUM', '2000 NEW_SUM' ], retry => 1, transaction => 1 },
	{ name => 'cursor, one key', before => [ 'BEGIN', 'DECLARE d CURSOR FOR SELECT bal FROM acc WHERE k = 1000' ],
		after => 'FETCH ALL FROM d', sum => 1, right => [ '1 OLD_BAL', '1 NEW_BAL' ], retry => 1, transaction => 1 },
	{ name => 'cursor of a general plan',
		before => [ 'BEGIN', 'DECLARE d CURSOR FOR SELECT a.bal FROM acc a JOIN generate_series(1, 2000) g ON g = a.k' ],
		after => 'FETCH ALL FROM d', sum => 1, right => [ '2000 OLD_SUM', '2000 NEW_SUM' ], retry => 1, transaction => 1 });

# Cached plans (doc/design.md#old-plans): made before the move, used after it, with the table's lock held all the while, or not.
my (@plans, @locked);
foreach my $mode ('force_generic_plan', 'force_custom_plan')
{
	my @prepare = (
		"SET plan_cache_mode = $mode",
		"PREPARE whole AS $all",
		"PREPARE one(int) AS SELECT count(*) || ' ' || coalesce(sum(bal), 0) FROM acc WHERE k = \$1",
		'PREPARE change(int) AS UPDATE acc SET bal = bal WHERE k = $1 RETURNING k || $$ $$ || bal',
		('EXECUTE whole', 'EXECUTE one(1000)', 'EXECUTE change(1000)') x 2);
	push @plans, { name => "$mode, whole table", before => \@prepare, after => 'EXECUTE whole', right => ['2000 NEW_SUM'] };
	push @plans, { name => "$mode, one key", before => \@prepare, after => 'EXECUTE one(1000)', right => ['1 NEW_BAL'] };
	push @plans, { name => "$mode, update", before => \@prepare, after => 'EXECUTE change(1000)', right => ['1000 NEW_BAL'] };
	my @begun = (@prepare, 'BEGIN', 'EXECUTE whole', 'EXECUTE one(1000)');
	push @locked, { name => "$mode, whole table, in a transaction", before => \@begun, after => 'EXECUTE whole', right => ['2000 NEW_SUM'],
		transaction => 1 };
	push @locked, { name => "$mode, one key, in a transaction", before => \@begun, after => 'EXECUTE one(1000)', right => ['1 NEW_BAL'],
		transaction => 1 };
}
across_a_move(@plans);
across_a_move(@locked);

# Parallel scans of the local parts.
my @parallel = ('SET parallel_setup_cost = 0', 'SET parallel_tuple_cost = 0', 'SET min_parallel_table_scan_size = 0', 'SET force_parallel_mode = on');
across_a_move(
	{ name => 'parallel, whole table', before => [ @parallel, $all ], after => $all, right => ['2000 NEW_SUM'] },
	{ name => 'parallel, REPEATABLE READ', before => [ @parallel, $begin, $all ], after => $all, right => ['2000 OLD_SUM'], retry => 1,
		transaction => 1 },
	{ name => 'parallel, general plan', before => [ @parallel, 'SELECT 1' ],
		after => "SELECT count(*) || ' ' || sum(a.bal) FROM acc a JOIN acc b ON a.bal - b.bal = CASE WHEN b.k = 1000 THEN 0 ELSE 0 END AND a.k = b.k",
		right => ['2000 NEW_SUM'] });

# Splits and merges disturb no prepared statement, in a transaction or not.
foreach my $node (@nodes)
{
	my $session = $c->session($node, on_error_stop => 0);
	$session->query("PREPARE whole AS $all");
	$session->query('PREPARE change(int) AS UPDATE acc SET bal = bal WHERE k = $1 RETURNING k');
	$session->query("EXECUTE whole");
	$c->query('s1', "SELECT tessera.split_chunk('acc', 1200)");
	is($session->query('EXECUTE whole'), "2000 $sum", "$node: after a split") or diag $session->{stderr};
	$session->query('BEGIN');
	is($session->query('EXECUTE change(1100)'), '1100', "$node: in a transaction") or diag $session->{stderr};
	$c->query('s1', "SELECT tessera.split_chunk('acc', 900)");
	is($session->query('EXECUTE change(1300)'), '1300', "$node: in a transaction, split under it") or diag $session->{stderr};
	is($session->query('EXECUTE whole'), "2000 $sum", "$node: all rows") or diag $session->{stderr};
	$session->query('COMMIT');
	$session->quit;
	$c->query('s1', "SELECT tessera.merge_chunks('acc', 501, 1501)");
}

# A long transaction inside the range: the move waits, nobody else does.
foreach my $node (@nodes)
{
	my $long = $c->session($node, on_error_stop => 0);
	$long->query('BEGIN');
	$long->query('UPDATE acc SET bal = bal WHERE k = 700');
	my $to = $owner eq 's2' ? 's3' : 's2';
	my $mover = $c->session('s1', on_error_stop => 0);
	$mover->query_until(qr/begun/, "\\echo begun\nSELECT tessera.move_range('acc', 501, 1501, '$to');\n");
	ok($c->wait_for($owner, "SELECT count(*) FROM tessera.stat_progress_migration WHERE phase IN " .
		"('steady', 'write_gate', 'catching_up', 'cloning', 'starting')", '1', 30),
		"$node: the move is under way");
	my $slowest = 0;
	foreach my $n (1 .. 12)
	{
		my $begun = time;
		my $k = 501 + ($n * 37) % 1000;
		$k++ if $k == 700;
		$c->query($nodes[ $n % 3 ], "UPDATE acc SET bal = bal WHERE k = $k");
		$slowest = time - $begun if time - $begun > $slowest;
	}
	note sprintf('%s: the slowest of the others took %.2f s', $node, $slowest);
	is($c->query('s1', "SELECT tessera.range_owner('acc', 700)"), $owner, "$node: the move waits for it");
	is($long->query('UPDATE acc SET bal = bal WHERE k = 701 RETURNING k'), '701', "$node: the long transaction goes on writing there")
		or diag $long->{stderr};
	$long->query('COMMIT');
	$mover->query('\echo');
	is($c->query('s1', "SELECT tessera.range_owner('acc', 700)"), $to, "$node: then the range moves") or diag $mover->{stderr};
	$owner = $to;
	$_->quit foreach $long, $mover;
}

is($c->query($_, $all), "2000 $sum", "$_: all rows at the end") foreach @nodes;
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');
# A scan that runs under a snapshot older than the end of a deletion, but is planned after it: what the snapshot sees is hidden all the same, and
# nobody has to retry.
{
	my $from = 's1';		# it keeps other keys
	my %session;
	$c->set(undef, 'tessera.orphan_cleanup_delay' => "'1h'");
	$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), 251, '$owner')");
	is($c->query($from, 'SELECT count(*) FROM tessera.range_deletions'), '1', "$from keeps the rows");
	foreach my $name (@nodes)
	{
		$session{$name} = $c->session($name);
		$session{$name}->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT count(*), sum(bal) FROM acc');
		$session{$name}->query_safe("DECLARE d CURSOR FOR SELECT count(*) FROM acc WHERE filler || '$name' <> 'y'");
	}
	$c->set(undef, 'tessera.orphan_cleanup_delay' => 0);
	$c->wait_for($from, 'SELECT count(*) FROM tessera.range_deletions', '0', 30) or fail "$from deletes";
	foreach my $name (@nodes)
	{
		is(scalar($session{$name}->query_safe('FETCH c')), "2000|$sum", "a cursor on $name, older than the end of the deletion, answers");
		is(scalar($session{$name}->query_safe('FETCH d')), '2000', 'another, too');
		$session{$name}->quit;
	}
}

# A transaction at REPEATABLE READ on a shard that is the router, too, whose first statement finds its rows here, asks the other shards for their
# common snapshot; meanwhile the range moves and its rows are deleted here. That snapshot sees it, so the rows are looked for where they are now.
{
	$c->pause_at('s1', 'cut_begins');
	my $run = $c->background('s1',
		'SET tessera.snapshot_reads = on; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*), sum(bal) FROM acc WHERE k = 350; COMMIT');
	ok($c->paused_at('s1', 'cut_begins', 60), 'a transaction is about to ask for the common snapshot');
	$c->query('s2', "SELECT tessera.move_range('acc', 301, 401, 's2')");
	ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0', 60), 'the range has moved, its rows are deleted on s1');
	$c->query('s2', 'UPDATE acc SET bal = bal + 1 WHERE k = 350');
	$c->go_on('s1', 'cut_begins');
	my $error = $c->ended($run);
	$error eq '' ? like($run->{out}, qr/^1\|351$/m, 'the row is found where it is') : like($error, qr/40001/, 'to be retried');
}

done_testing();
