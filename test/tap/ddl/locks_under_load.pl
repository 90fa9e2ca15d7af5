# DDL and LOCK TABLE take their locks on all nodes (S104-S119): under writing clients they get through and hold nobody up; a statement that gives up
# says who holds the lock, as far as its user may know; sessions of different nodes that wait for each other by LOCK TABLE, TRUNCATE and DDL get
# 40P01; a mere wait ends when the lock is free.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);
use TesseraCluster;

my $c = TesseraCluster->new('ddllocks', settings => { 'tessera.deadlock_timeout' => '300ms' });
$c->create(shards => 3);
$c->query('s1', $_) foreach (
	"CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN",
	'CREATE TABLE t (k int PRIMARY KEY, v int)',
	'CREATE TABLE u (k int PRIMARY KEY, v int)',
	'CREATE TABLE small (k int PRIMARY KEY, v int)',
	map({ ("SELECT tessera.shard_table('$_', 'k')", "SELECT tessera.move_range('$_', 1001, 2001, 's2')",
	"SELECT tessera.move_range('$_', 2001, tessera.maxkey(), 's3')") } qw(t u small)),
	'INSERT INTO t SELECT g, 0 FROM generate_series(1, 3000) g',
	'INSERT INTO u SELECT g, 0 FROM generate_series(1, 3000) g',
	'GRANT ALL ON t, u, small TO alice',
	'GRANT CREATE ON SCHEMA public TO bob',
	'ALTER TABLE t OWNER TO bob');

my ($s1, $s2, $s3) = map { my $n = $_; sub { $c->session($n, on_error_stop => 0) } } qw(s1 s2 s3);

# What the session said on stderr since the last time.
sub said
{
	my ($session, $sql) = @_;
	$session->{stderr} = '';
	$session->query($sql);
	my $said = $session->{stderr};
	$session->{stderr} = '';
	return $said;
}

sub verbose
{
	my ($session) = @_;
	$session->query("\\set VERBOSITY verbose");
	return $session;
}

# ---- under load ----

my $load = $c->pgbench_start(clients => 3, transactions => 20, rate => 40, protocol => 'prepared',
	options => [ '-l', '--log-prefix', "$PostgreSQL::Test::Utils::tmp_check/load" ], scripts => {
		"\\set k random(1, 3000)\nUPDATE t SET v = v + 1 WHERE k = :k;\n" => 2,
		"\\set a random(1, 1000)\n\\set b random(1001, 3000)\nBEGIN;\nUPDATE t SET v = v - 1 WHERE k = :a;\n" .
		"UPDATE t SET v = v + 1 WHERE k = :b;\nEND;\n" => 1,
		"\\set k random(1, 3000)\nINSERT INTO small VALUES (:k, 1) ON CONFLICT (k) DO UPDATE SET v = small.v + 1;\n" => 1 });
my ($longest, $n) = (0, 0);
while ($load->running || $n == 0)
{
	foreach my $sql ('CREATE INDEX t_v ON t (v)', "ALTER TABLE t ADD COLUMN c$n int", 'DROP INDEX t_v', 'TRUNCATE small',
		"ALTER TABLE t DROP COLUMN c$n")
	{
		my $start = time;
		$c->query($n % 2 ? 's2' : 's1', $sql);
		$longest = time - $start if time - $start > $longest;
		$n++ if $sql =~ /DROP COLUMN/;
	}
}
my $sums = $load->wait;
ok($sums->{ok} && $sums->{failed} == 0 && $sums->{processed} == 3 * 60, 'clients of all nodes write, and none fails') or diag explain $sums;
my $slowest = 0;
foreach my $file (glob "$PostgreSQL::Test::Utils::tmp_check/load.*")
{
	foreach (split /\n/, slurp_file($file))
	{
		my $time = (split / /)[2];
		next if $time !~ /^\d+$/;	# a transaction that failed
		$time /= 1000;
		$slowest = $time if $time > $slowest;
	}
}
note sprintf('longest DDL %.2f s of %d, longest transaction of a client %.0f ms', $longest, 5 * $n, $slowest);

# ---- who holds it ----

# alice, on s2, has read a row of s3
my $holder = $s2->();
$holder->query("SET ROLE alice; SET application_name = 'reporting'");
my $pid = $holder->query('SELECT pg_backend_pid()');
$holder->query('BEGIN; SELECT v FROM t WHERE k = 2500');
my $who = qr/user "[^"]+", application "reporting"/;
my $error = $c->error('s1', "SET tessera.ddl_lock_timeout = '700ms'; ALTER TABLE t ADD COLUMN x int");
like($error, qr/55P03: *could not obtain lock on public\.t within 700 ms/, 'DDL gives up');
like($error,
	qr/DETAIL: *On node "s2", process $pid holds it: $who, idle in transaction since 20[^,]*, statement: .*SELECT v FROM t WHERE k = 2500\.\n/,
	'and says who holds it') or diag $error;
like($error, qr/HINT: .*pg_terminate_backend\($pid\) on node "s2", or raise tessera\.ddl_lock_timeout/, 'and what to do');
$error = $c->error('s1', "SET ROLE bob; SET tessera.ddl_lock_timeout = '700ms'; ALTER TABLE t ADD COLUMN x int");
like($error, qr/DETAIL: *On node "s2", process $pid holds it: $who\.$/m, 'whoever may not see others\' statements does not') or diag $error;
unlike($error, qr/SELECT v/, 'not at all');
$error = $c->error('s1', "SET lock_timeout = '300ms'; ALTER TABLE t ADD COLUMN x int");
like($error, qr/55P03: .*within 300 ms.*raise lock_timeout/s, 'lock_timeout is kept, if it is the shorter one') or diag $error;
# (who waited for the lock would wait for longer than this test does)
like($c->error('s1', "SET tessera.ddl_lock_timeout = '10min'; SET ROLE eve; ALTER TABLE t ADD COLUMN x int"), qr/42501/,
	'who may not change the table asks for no lock');
like($c->error('s1', 'SET ROLE eve; BEGIN; LOCK TABLE t'), qr/42501/, 'nor by LOCK TABLE');
$error = $c->error('s1', 'BEGIN; LOCK TABLE t NOWAIT');
like($error, qr/55P03: .*process $pid holds it/s, 'NOWAIT says it, too') or diag $error;
$error = $c->error('s1', "BEGIN; SET LOCAL lock_timeout = '300ms'; LOCK TABLE t");
like($error, qr/55P03: .*within 300 ms.*process $pid holds it/s, 'and LOCK TABLE with lock_timeout') or diag $error;
$holder->query('COMMIT');

# on a shard, for a client of another node: s1's lock is free, as the statement is the shard's alone
$holder->query('BEGIN; UPDATE t SET v = v WHERE k = 2500');
$error = $c->error('s3', "SET tessera.ddl_lock_timeout = '700ms'; ALTER TABLE t ADD COLUMN x int");
like($error, qr/process $pid (?:holds it|of node "s2")/, 'a process that works for another node\'s client is named with it') or diag $error;
$holder->query('ROLLBACK');

# a prepared transaction, and a statement under way elsewhere
$c->query('s1', "BEGIN; SELECT v FROM t WHERE k = 1; PREPARE TRANSACTION 'left'");
$error = $c->error('s2', "SET tessera.ddl_lock_timeout = '500ms'; ALTER TABLE t ADD COLUMN x int");
like($error, qr/DETAIL: *On node "s1", prepared transaction "left" of role "[^"]+" holds it\..*HINT: *COMMIT PREPARED/s,
	'a prepared transaction is named') or diag $error;
$error = $c->error('s1', "SET tessera.ddl_lock_timeout = '500ms'; ALTER TABLE t ADD COLUMN x int");
like($error, qr/DETAIL: *On node "s\d", prepared transaction "left" of role "[^"]+" holds it/, 'on the own node, too') or diag $error;
$c->query('s1', "ROLLBACK PREPARED 'left'");
$holder->query('RESET ROLE; BEGIN; ALTER TABLE t ADD COLUMN y int');
$error = $c->error('s3', "SET tessera.ddl_lock_timeout = '500ms'; ALTER TABLE t ADD COLUMN x int");
like($error, qr/names of what the statement changes.*process \d+ holds it for process $pid of node "s2": .*ALTER TABLE t ADD COLUMN y/s,
	'another node\'s DDL is named') or diag $error;
$holder->query('ROLLBACK');

# a child of the table
$c->query('s1', 'CREATE TABLE parent (k int, v int) PARTITION BY RANGE (k); CREATE TABLE child PARTITION OF parent FOR VALUES FROM (1) TO (100); ' .
	'INSERT INTO parent VALUES (1, 1)');
$holder->query('BEGIN; UPDATE child SET v = 2');
$error = $c->error('s3', "SET tessera.ddl_lock_timeout = '500ms'; CREATE INDEX x ON parent (v)");
like($error, qr/lock on public\.child.*process $pid (?:holds it|of node "s2")/s, 'the child of a table is named') or diag $error;
$error = $c->error('s3', 'BEGIN; LOCK TABLE parent IN SHARE MODE NOWAIT');
like($error, qr/lock on public\.child/, 'LOCK TABLE locks children, too') or diag $error;
is($c->query('s3', 'BEGIN; LOCK TABLE ONLY parent IN SHARE MODE NOWAIT; COMMIT'), '', 'but not with ONLY');
$holder->query('COMMIT');

# ---- a mere wait ----

$holder->query('BEGIN; UPDATE t SET v = v WHERE k = 1500');
my $waiting = $c->begin('s1', "SET tessera.ddl_lock_timeout = '500ms'; BEGIN; LOCK TABLE t IN SHARE MODE; SELECT 'locked' || count(*) FROM t");
$c->runs_for('s1', 'LOCK TABLE t IN SHARE MODE%', '2 s');
is(($c->psql('s3', 'UPDATE t SET v = v WHERE k = 2'))[0], 0, 'others write meanwhile');
$holder->query('COMMIT');
like($waiting->query('SELECT 1'), qr/locked3000/, 'LOCK TABLE waits until the lock is free, longer than tessera.ddl_lock_timeout')
	or diag $waiting->{stderr};
$waiting->quit;

# what is committed while LOCK TABLE waits is seen after it, at REPEATABLE READ, too: on every shard
foreach my $node (qw(s1 s3))
{
	foreach my $ends ('COMMIT', "PREPARE TRANSACTION 'waited for'")
	{
		$holder->query('BEGIN; INSERT INTO u VALUES (-1, 1), (1500001, 1); UPDATE u SET v = 1 WHERE k IN (7, 1507, 2507)');
		$holder->query($ends) if $ends ne 'COMMIT';
		$waiting = $c->begin($node, "BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK TABLE u; SELECT 'sum' || sum(v) FROM u; UPDATE u SET v = v + 1 " .
			"WHERE v = 1; SELECT 'then' || sum(v) FROM u");
		$c->runs_for($node, 'LOCK TABLE u%', '0.5 s');
		$holder->query($ends eq 'COMMIT' ? $ends : "COMMIT PREPARED 'waited for'");
		like($waiting->query('SELECT 1'), qr/sum5.*then10/s, "$node: LOCK TABLE at REPEATABLE READ sees what it has waited for: $ends")
			or diag $waiting->{stderr};
		$waiting->query('ROLLBACK');
		$waiting->quit;
		$c->query('s2', 'DELETE FROM u WHERE k IN (-1, 1500001)');
		$c->query('s2', 'UPDATE u SET v = 0 WHERE v <> 0');
	}
}
my $reader = $c->session('s1', on_error_stop => 0);
$reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM u');
$c->query('s2', 'UPDATE u SET v = 9 WHERE k = 2507');
is(join('|', map { scalar $reader->query($_) } 'LOCK TABLE u', 'SELECT sum(v) FROM u', 'COMMIT'), '|0|', 'who has read before has its snapshot')
	or diag $reader->{stderr};
is(scalar $reader->query('SELECT sum(v) FROM u'), '9', 'until it ends');
$reader->quit;

# ---- deadlocks ----

# Each statement of @$first on $a and of @$second on $b, crosswise: exactly one fails, with 40P01, in good time; the other goes through.
sub crossed
{
	my ($what, $a, $b, $first, $second) = @_;
	my @sessions = map { my $s = $c->session($_, on_error_stop => 0); $s->query("\\set VERBOSITY verbose"); $s } $a, $b;
	$_->query('BEGIN') foreach @sessions;
	is(said($sessions[0], $first->[0]) . said($sessions[1], $second->[0]), '', "$what: both have what they want first");
	my $began = time;
	$sessions[0]->query_until(qr/begun/, "\\echo begun\n$first->[1];\n");
	$sessions[1]->query_until(qr/begun/, "\\echo begun\n$second->[1];\n");
	# whoever is told of the deadlock lets go of all it has
	$_->query("ROLLBACK") foreach @sessions;
	my @codes = map { join ',', $_->{stderr} =~ /ERROR: +(\w{5}):/g } @sessions;
	my $took = time - $began;
	is(join('|', sort @codes), '|40P01', "$what: one of them gets 40P01") or diag join "\n---\n", map { $_->{stderr} } @sessions;
	note sprintf('%s: %.2f s', $what, $took);
	$_->quit foreach @sessions;
	return;
}

crossed('LOCK TABLE', 's1', 's2', [ 'LOCK TABLE t', 'LOCK TABLE u' ], [ 'LOCK TABLE u', 'LOCK TABLE t' ]);
crossed('LOCK TABLE on one node', 's2', 's2', [ 'LOCK TABLE t', 'LOCK TABLE u' ], [ 'LOCK TABLE u', 'LOCK TABLE t' ]);
crossed('ALTER TABLE', 's3', 's2', [ 'ALTER TABLE t ADD COLUMN x int', 'ALTER TABLE u ADD COLUMN x int' ],
	[ 'ALTER TABLE u ADD COLUMN y int', 'ALTER TABLE t ADD COLUMN y int' ]);
crossed('TRUNCATE', 's1', 's3', [ 'TRUNCATE t', 'TRUNCATE u' ], [ 'TRUNCATE u', 'TRUNCATE t' ]);
crossed('LOCK TABLE and rows', 's1', 's2', [ 'LOCK TABLE t', 'LOCK TABLE u' ],
	[ 'UPDATE u SET v = v WHERE k = 2500', 'UPDATE t SET v = v WHERE k = 2500' ]);
crossed('two readers that become writers', 's1', 's3', [ 'LOCK TABLE t IN SHARE MODE', 'UPDATE t SET v = v WHERE k = 1500' ],
	[ 'LOCK TABLE t IN SHARE MODE', 'UPDATE t SET v = v WHERE k = 2' ]);
crossed('DDL against rows', 's2', 's3', [ 'UPDATE u SET v = v WHERE k = 5', 'CREATE INDEX never ON t (v)' ],
	[ 'UPDATE t SET v = v WHERE k = 1200', 'ALTER TABLE u ADD COLUMN z int' ]);

is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency()'), '0', 'all nodes have the same schema');
# on other nodes those of sessions that have ended go a moment later
ok($c->wait_for($_, "SELECT count(*) FROM pg_locks WHERE relation IN ('t'::regclass, 'u'::regclass) AND granted AND mode <> 'AccessShareLock'", '0'),
	"no lock stays on $_")
  foreach qw(s1 s2 s3);
$holder->quit;
done_testing();
