# An advisory lock is one lock in the whole cluster, whatever node its holder is connected to: every form of the functions, session and transaction
# level, waits, deadlocks, rollbacks; it goes when its transaction is committed everywhere, or its session ends. Also out of functions, DO blocks,
# prepared statements.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('advisory', settings => { deadlock_timeout => '100ms', 'tessera.deadlock_timeout' => '100ms' });
$c->create(shards => 3, routers => 2);
my @nodes = $c->names;
foreach my $name (@nodes)
{
	ok($c->wait_for($name, 'SELECT count(DISTINCT node_id) FROM tessera.advisory_home', '3'), "$name knows the homes of the keys");
}
is($c->query('s1', 'SELECT min(n) BETWEEN 20 AND 22 AND max(n) BETWEEN 20 AND 24 FROM (SELECT count(*) AS n FROM tessera.advisory_home GROUP BY ' .
	'node_id) h'), 't', 'each shard has its share');

# A key for each home.
my %key;
{
	my $session = $c->session('r1');
	$session->query_safe("SELECT pg_advisory_lock(k) FROM generate_series(1, 60) k");
	foreach my $line (split /\n/, $c->query('r2', 'SELECT objid, home FROM tessera.advisory_locks ORDER BY objid'))
	{
		my ($key, $home) = split /\|/, $line;
		push @{ $key{$home} }, $key;
	}
	is($c->query('r2', "SELECT count(*), count(DISTINCT home), string_agg(DISTINCT node, ','), count(DISTINCT pid) FROM tessera.advisory_locks"),
		'60|3|r1|1', 'all are shown, with their holder');
	$session->query_safe('SELECT pg_advisory_unlock_all()');
	is($c->query('s3', 'SELECT count(*) FROM tessera.advisory_locks'), '0', 'pg_advisory_unlock_all() reaches every home');
	is($c->query($_, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), '0', "nothing is left on $_") foreach 's1', 's2', 's3';
	$session->quit;
}
my ($k1, $k2, $k3) = map { $key{$_}[0] } 's1', 's2', 's3';

sub errors
{
	my ($session) = @_;
	my $errors = $session->{stderr};
	$session->{stderr} = '';
	return $errors;
}

#
# all forms, from two nodes
#
my ($a, $b) = map { $c->session($_, on_error_stop => 0) } 'r1', 's2';
foreach my $keys ((map { "$_" } $k1, $k2, $k3, -5), (map { "$_, -7" } 1 .. 3))
{
	is($a->query_safe("SELECT pg_try_advisory_lock($keys)"), 't', "key ($keys): taken");
	is($b->query_safe("SELECT pg_try_advisory_lock($keys)"), 'f', 'is taken for the other node');
	is($b->query_safe("SELECT pg_try_advisory_lock_shared($keys), pg_try_advisory_xact_lock($keys), pg_try_advisory_xact_lock_shared($keys)"),
		'f|f|f', 'in every form');
	is($a->query_safe("SELECT pg_advisory_lock($keys), pg_advisory_unlock($keys)"), '|t', 'not for its own session, which holds it twice');
	is($b->query_safe("SELECT pg_try_advisory_lock($keys)"), 'f', 'until then');
	is($a->query_safe("SELECT pg_advisory_unlock($keys)"), 't', 'released');
	is($b->query_safe("SELECT pg_try_advisory_lock_shared($keys)"), 't', 'and free');
	is($a->query_safe("SELECT pg_try_advisory_lock_shared($keys), pg_try_advisory_lock($keys)"), 't|f', 'shared with another');
	is($a->query_safe("SELECT pg_advisory_unlock_shared($keys)") . $b->query_safe("SELECT pg_advisory_unlock_shared($keys)"), 'tt', 'released');
	is($a->query_safe("BEGIN; SELECT pg_advisory_xact_lock($keys)"), '', 'taken for a transaction');
	is($b->query_safe("SELECT pg_try_advisory_xact_lock_shared($keys)"), 'f', 'is taken');
	$a->query_safe('COMMIT');
	is($b->query_safe("BEGIN; SELECT pg_try_advisory_xact_lock($keys)"), 't', 'and free as soon as COMMIT is answered');
	is($a->query_safe("SELECT pg_try_advisory_lock($keys)"), 'f', 'to the next');
	$b->query_safe('ROLLBACK');
	is($a->query_safe("SELECT pg_try_advisory_xact_lock($keys)"), 't', 'and free as soon as ROLLBACK is answered');
}
isnt($a->query_safe("SELECT pg_try_advisory_lock(42)"), 'f', 'an int8 key');
is($b->query_safe("SELECT pg_try_advisory_lock(0, 42)"), 't', 'is another one than two int4');
$a->query_safe('SELECT pg_advisory_unlock(42)');
$b->query_safe('SELECT pg_advisory_unlock(0, 42)');
foreach my $key ($k1, $k2)
{
	is($a->query("SELECT pg_advisory_unlock($key)"), 'f', 'what is not held is not released');
	like(errors($a), qr/WARNING:\s+you don't own a lock of type ExclusiveLock/, 'with the warning of one server');
}

#
# how they are called
#
$a->query_safe("PREPARE l(int8) AS SELECT pg_try_advisory_lock(\$1)");
is($a->query_safe("EXECUTE l($_)"), 't', "prepared $_") foreach ($k1, $k2, $k3) x 3;
$c->query('s1', "CREATE FUNCTION try_sql(k int8) RETURNS bool LANGUAGE sql AS 'SELECT pg_try_advisory_lock(k)'");
$c->query('s1', "CREATE FUNCTION try_body(k int8) RETURNS bool LANGUAGE sql RETURN pg_try_advisory_lock(k)");
$c->query('s1', "CREATE FUNCTION try_plpgsql(k int8) RETURNS bool LANGUAGE plpgsql AS 'BEGIN IF pg_try_advisory_lock(k) THEN RETURN true; END IF; " .
	"RETURN false; END'");
foreach my $key ($k1, $k2, $k3)
{
	is($b->query_safe("SELECT $_($key)"), 'f', "$_() sees the lock $key") foreach qw(try_sql try_body try_plpgsql);
	$b->query("DO \$\$BEGIN IF pg_try_advisory_lock($key) THEN RAISE 'taken'; END IF; END\$\$");
	is(errors($b), '', 'so does DO');
}
$a->query_safe('DISCARD ALL');
is($c->query('s1', 'SELECT count(*) FROM tessera.advisory_locks'), '0', 'DISCARD ALL releases all');
foreach my $statement ("CALL take(pg_try_advisory_lock($k1))", "EXECUTE l(pg_try_advisory_lock($k1)::int)")
{
	$b->query("CREATE PROCEDURE take(b bool) LANGUAGE plpgsql AS 'BEGIN END'") if $statement =~ /CALL/;
	$b->query("PREPARE l(int8) AS SELECT \$1") if $statement =~ /EXECUTE/;
	errors($b);
	$b->query($statement);
	like(errors($b), qr/cannot be called here/, 'a call that is not replaced is refused, not made on this node alone');
}
$b->query_safe('DEALLOCATE ALL');
$c->query('s1', 'CREATE ROLE nobody LOGIN');
$c->query($_, 'REVOKE EXECUTE ON FUNCTION pg_advisory_lock(int8) FROM PUBLIC') foreach @nodes;
$b->query("SET ROLE nobody; SELECT pg_advisory_lock($k1)");
like(errors($b), qr/permission denied for function pg_advisory_lock/, 'who may not call the function may not call what stands in for it');
$c->query($_, 'GRANT EXECUTE ON FUNCTION pg_advisory_lock(int8) TO PUBLIC') foreach @nodes;
$b->query_safe('RESET ROLE');

# the same holds of sequences: the body of a simple SQL function is not put in the place of its call
$c->query('s1', "CREATE SEQUENCE numbers; CREATE FUNCTION next_number() RETURNS int8 LANGUAGE sql AS 'SELECT nextval(''numbers'')'");
my %numbers = map { $_ => 1 } map { $c->query($_, 'SELECT next_number()') } (@nodes) x 2;
is(scalar keys %numbers, 2 * @nodes, 'nextval() out of an SQL function is unique over the nodes');

#
# rows
#
$c->query('s1', 'CREATE TABLE jobs (id int PRIMARY KEY, done bool)');
$c->query('s1', "SELECT tessera.shard_table('jobs', 'id', 'hash', chunks => 6)");
$c->query('s1', 'INSERT INTO jobs SELECT generate_series(1, 30), false');
is($a->query_safe('SELECT count(*) FROM (SELECT pg_try_advisory_lock(id) AS got FROM jobs) j WHERE got'), '30', 'a lock for each row of all shards');
is($b->query_safe('SELECT count(*) FROM (SELECT pg_try_advisory_lock(id) AS got FROM jobs WHERE id <= 20) j WHERE got'), '0', 'one session has them');
is($b->query_safe('SELECT pg_try_advisory_lock(id) FROM jobs WHERE id = 7'), 'f', 'also by its key');
$a->query_safe('SELECT pg_advisory_unlock(id) FROM jobs WHERE id <= 10');
is($b->query_safe('SELECT count(*) FROM (SELECT pg_try_advisory_lock(id) AS got FROM jobs WHERE id <= 20) j WHERE got'), '10',
	'until it releases some');
$_->query_safe('SELECT pg_advisory_unlock_all()') foreach $a, $b;

#
# transactions
#
foreach my $key ($k1, $k2)
{
	$a->query_safe("BEGIN; SAVEPOINT s; SELECT pg_advisory_xact_lock($key); ROLLBACK TO s");
	is($b->query_safe("SELECT pg_try_advisory_xact_lock($key)"), 't', "$key: ROLLBACK TO SAVEPOINT lets go");
	$a->query_safe("SAVEPOINT t; SELECT pg_advisory_xact_lock($key), pg_advisory_lock($key); ROLLBACK TO t; ROLLBACK");
	is($b->query_safe("SELECT pg_try_advisory_xact_lock($key)"), 'f', 'but not of what was taken for the session');
	is($a->query_safe("SELECT pg_advisory_unlock($key)"), 't', 'which is released by itself');
	$a->query("DO \$\$BEGIN BEGIN PERFORM pg_advisory_xact_lock($key), 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END; END\$\$");
	is($b->query_safe("SELECT pg_try_advisory_xact_lock($key)"), 't', 'nor does an exception block keep it');
	$b->query_safe("SELECT pg_advisory_lock($key)");
	$a->query("SET lock_timeout = '100ms'; SELECT pg_advisory_lock($key)");
	like(errors($a), qr/canceling statement due to lock timeout/, 'lock_timeout');
	$a->query("SET lock_timeout = 0; SET statement_timeout = '200ms'; SELECT pg_advisory_lock($key)");
	like(errors($a), qr/canceling statement due to statement timeout/, 'statement_timeout');
	$a->query_safe('SET statement_timeout = 0');
	$b->query_safe("SELECT pg_advisory_unlock($key)");
	is($b->query_safe("SELECT pg_try_advisory_lock($key), pg_advisory_unlock($key)"), 't|t', 'who gave up has nothing');
}

# writes on several shards under a lock: who gets it next sees them, at any time
foreach my $key ($k1, $k2, $k3)
{
	foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		$c->query('s1', 'UPDATE jobs SET done = false');
		$a->query_safe("BEGIN ISOLATION LEVEL $level; SELECT pg_advisory_xact_lock($key); UPDATE jobs SET done = true");
		my $waiter = $c->background('s3', "SELECT pg_advisory_lock($key); SELECT 'done ' || count(*) FROM jobs WHERE done;");
		ok($c->wait_for('r2', 'SELECT count(*) FROM tessera.advisory_locks WHERE NOT granted', '1'), 'another waits');
		$a->query_safe('COMMIT');
		is($c->ended($waiter), '', "$level, $key: gets it");
		like($waiter->{out}, qr/done 30/, 'and sees what was written under it on every shard');
	}
}
is($c->query($_, 'SELECT count(*) FROM pg_prepared_xacts'), '0', "nothing stays prepared on $_") foreach 's1', 's2', 's3';

# PREPARE TRANSACTION keeps them
foreach my $key ($k1, $k2, $k3)
{
	$a->query_safe("BEGIN; SELECT pg_advisory_xact_lock($key); INSERT INTO jobs VALUES (1000 + $key, false); PREPARE TRANSACTION 'p'");
	is($b->query_safe("SELECT pg_try_advisory_lock($key)"), 'f', "$key: a prepared transaction keeps its lock");
	$b->query_safe("COMMIT PREPARED 'p'");
	is($b->query_safe("SELECT pg_try_advisory_lock($key), pg_advisory_unlock($key)"), 't|t', 'until it is committed');
}

#
# deadlocks over two homes
#
foreach my $pair ([ $k1, $k2 ], [ $k2, $k3 ], [ $k3, $k1 ])
{
	my ($first, $second) = @$pair;
	foreach my $form ('pg_advisory_lock', 'pg_advisory_xact_lock')
	{
		my $end = $form eq 'pg_advisory_lock' ? 'SELECT pg_advisory_unlock_all()' : 'ROLLBACK';
		$_->query_safe('BEGIN') foreach $form eq 'pg_advisory_lock' ? () : ($a, $b);
		$a->query_safe("SELECT $form($first)");
		$b->query_safe("SELECT $form($second)");
		$a->query_until(qr/waits/, "\\echo waits\nSELECT $form($second);\n");
		ok($c->wait_for('r2', 'SELECT count(*) FROM tessera.advisory_locks WHERE NOT granted', '1'), 'one waits');
		$b->query("SELECT $form($first)");
		$b->query($end);
		$a->query('SELECT 1');
		$a->query($end);
		my @errors = grep { /deadlock detected/ } errors($a), errors($b);
		is(scalar @errors, 1, "$form($first), $form($second): one of two that wait for each other is told of the deadlock");
	}
}

#
# the end of sessions
#
{
	my $session = $c->session('r1', on_error_stop => 0);
	$session->query_safe("SELECT pg_advisory_lock($_)") foreach $k1, $k2, $k3;
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	is($b->query_safe("SELECT pg_try_advisory_lock($k2)"), 'f', 'held');
	$session->quit;
	ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.advisory_locks', '0'), 'a session that ends lets go');

	$session = $c->session('r1', on_error_stop => 0);
	$session->query_safe("SELECT pg_advisory_lock($_)") foreach $k1, $k2;
	$c->query('s2', "SELECT pg_terminate_backend(i.pid) FROM tessera.internal_sessions i JOIN pg_locks l USING (pid) WHERE l.locktype = " .
		"'advisory' AND l.objsubid = 1");
	ok($c->wait_for('s2', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", '0'), 'the home lost the lock');
	# the process there ends, and with it the connection, after it has let go
	my $said = '';
	my $deadline = time + 30;
	while ($said !~ /FATAL/ && time < $deadline)
	{
		eval { $session->query('SELECT 1') };
		$said .= $session->{stderr} . ($@ // '');
	}
	like($said, qr/FATAL:\s+the connection to node "s2", which kept advisory locks of this session, was lost/,
		'and the session that thought it had it ends');
	ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.advisory_locks', '0'), 'with all its locks');

	$session = $c->session('r1', on_error_stop => 0);
	$session->query_safe("BEGIN; SELECT pg_advisory_xact_lock($k2)");
	my $keeper = "FROM tessera.internal_sessions i JOIN pg_locks l USING (pid) WHERE l.locktype = 'advisory' AND l.objsubid = 1";
	my $holder = $c->query('s2', "SELECT i.pid $keeper");
	$c->query('s2', "SELECT pg_terminate_backend(i.pid) $keeper");
	ok($c->wait_for('s2', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", '0'), 'the home lost the lock');
	# the connection ends with the process, after it has let go
	ok($c->process_ends($holder), 'and its process has ended');
	$session->query('COMMIT');
	like(errors($session), qr/ERROR:\s+the connection to node "s2" was lost/, 'a transaction whose lock is lost fails');
	$session->quit;
}

#
# triggers, and locks of a node alone
#
$c->query('s1', "CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = 'shard' AS " .
  "'BEGIN PERFORM pg_advisory_xact_lock(5); RETURN NEW; END'");
$c->query('s1', 'CREATE TRIGGER take BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION take()');
$a->query('INSERT INTO jobs SELECT generate_series(31, 60), false');
like(errors($a), qr/cannot use advisory locks/, 'a trigger on a shard is refused');
$a->query_safe("SET tessera.advisory_locks = node; INSERT INTO jobs SELECT generate_series(31, 60), false");
is($a->query_safe('SELECT pg_try_advisory_lock(9)') . $b->query_safe('SELECT pg_try_advisory_lock(9)'), 'tt',
	'unless the locks are those of each node');
is($a->query_safe('SELECT pg_advisory_unlock(9)') . $b->query_safe('SELECT pg_advisory_unlock(9)'), 'tt', 'and so are their releases');
$a->query_safe('RESET tessera.advisory_locks');
$_->quit foreach $a, $b;

done_testing();
