# A transaction is visible on every node or on none (doc/design.md#two-phase; invariant 6): one-phase and two-phase commits, savepoints, failures of a
# participant at every step, a coordinator whose answer is lost, and what the resolver finishes (doc/design.md#asking-for-the-outcome). A statement on
# another node runs as the session's effective user under the session's settings, and nothing that runs there gets back to the connection's own role.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use TesseraCluster;

my $c = TesseraCluster->new('transactions', settings => { log_statement => 'all', log_min_messages => 'warning' });
$c->start_nodes('s1', 's2', 's3');
$c->query('s1', <<'SQL');
CREATE TABLE acc (id int PRIMARY KEY, bal int NOT NULL CHECK (bal >= 0));
CREATE TABLE seen (id int PRIMARY KEY, who name, tenant text, path text, zone text);
CREATE FUNCTION note_seen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.who := current_user;
  NEW.tenant := current_setting('app.tenant', true);
  NEW.path := current_setting('search_path');
  NEW.zone := current_setting('timezone');
  RETURN NEW;
END $$;
CREATE TRIGGER note BEFORE INSERT ON seen FOR EACH ROW EXECUTE FUNCTION note_seen();
CREATE TABLE trap (id int PRIMARY KEY, what text);
CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = 'shard' AS $$
BEGIN
  EXECUTE NEW.what;
  RETURN NEW;
END $$;
CREATE TRIGGER spring BEFORE INSERT ON trap FOR EACH ROW EXECUTE FUNCTION spring();
CREATE TABLE later (id int PRIMARY KEY);
CREATE FUNCTION fail_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'too late' USING ERRCODE = 'P0042'; END $$;
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_later();
CREATE TABLE private (id int PRIMARY KEY, owner name);
ALTER TABLE private ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON private USING (owner = current_user);
CREATE ROLE bob LOGIN;
GRANT SELECT, INSERT ON seen, trap, private TO bob;
CREATE FUNCTION insert_seen(i int) RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.seen (id) VALUES (i)';
SQL
$c->query($_, 'CREATE ROLE bob LOGIN') foreach 's2', 's3';
$c->create(shards => 3);
$c->query('s1', "SELECT tessera.shard_table('$_', 'id', 'hash', chunks => 12)") foreach qw(acc seen trap later private);
foreach my $name ($c->names)
{
	ok($c->wait_for($name, 'SELECT count(DISTINCT shard) FROM tessera.chunks', '3'), "$name knows the chunks");
}

# Ids by the shard that owns them.
my %ids = map { $_ => [] } $c->names;
foreach my $line (split /\n/, $c->query('s1', "SELECT g, tessera.range_owner('acc', g) FROM generate_series(1, 400) g"))
{
	my ($id, $owner) = split /\|/, $line;
	push @{ $ids{$owner} }, $id;
}
my %next = map { $_ => 0 } $c->names;
sub id { my ($shard) = @_; return $ids{$shard}[ $next{$shard}++ ]; }

# Which of the ids exist, seen from each node; all nodes must agree.
sub present
{
	my ($table, @wanted) = @_;
	my $list = join(',', @wanted);
	my @answers = $c->query_all("SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '') FROM $table WHERE id IN ($list)");
	return "nodes differ: @answers" if grep { $_ ne $answers[0] } @answers;
	return $answers[0];
}

sub sorted { return join(',', sort { $a <=> $b } @_); }

sub prepared { return join(',', map { $c->query($_, 'SELECT count(*) FROM pg_prepared_xact()') } $c->names); }

sub log_since
{
	my ($name, $offset) = @_;
	return substr(slurp_file($c->node($name)->logfile), $offset);
}

#
# one trip for a lone statement, one block for several
#
{
	my $id = id('s2');
	$c->query('s1', "INSERT INTO acc VALUES ($id, 100)");
	my $offset = -s $c->node('s2')->logfile;
	$c->query('s1', "INSERT INTO acc VALUES (" . id('s2') . ", 100); ");
	$c->query('s1', "SELECT * FROM acc WHERE id = $id");
	unlike(log_since('s2', $offset), qr/BEGIN|COMMIT/, 'a lone statement on one shard needs no transaction block there');
	is($c->query('s1', "UPDATE acc SET bal = bal + 1 WHERE id = $id RETURNING bal"), '101', 'RETURNING of a lone write');
	like($c->error('s1', "UPDATE acc SET bal = -1 WHERE id = $id"), qr/23514.*acc_bal_check.*node "s2"/s,
		'error keeps its SQLSTATE and names the node');
	is($c->query('s1', "SELECT bal FROM acc WHERE id = $id"), '101', 'and changes nothing');
	like($c->error('s1', "INSERT INTO later VALUES (" . id('s2') . ")"), qr/P0042/,
		'what fails at the implicit commit there is the error of the statement');
	$offset = -s $c->node('s2')->logfile;
	$c->query('s1', "BEGIN; UPDATE acc SET bal = 5 WHERE id = $id; UPDATE acc SET bal = 6 WHERE id = $id; COMMIT");
	my $log = log_since('s2', $offset);
	like($log, qr/BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE/, 'a block begins one there');
	unlike($log, qr/PREPARE TRANSACTION/, 'one writer commits in one phase');
}

#
# several writers
#
foreach my $via ($c->names)
{
	my @new = map { id($_) } $c->names;
	$c->query($via, 'BEGIN;' . join(';', map { "INSERT INTO acc VALUES ($_, 1)" } @new) . '; COMMIT');
	is(present('acc', @new), sorted(@new), "three writers commit, via $via");
	@new = map { id($_) } $c->names;
	$c->query($via, 'BEGIN;' . join(';', map { "INSERT INTO acc VALUES ($_, 1)" } @new) . '; ROLLBACK');
	is(present('acc', @new), '', "three writers roll back, via $via");
	@new = (id('s2'), id('s3'));
	$c->query($via, 'BEGIN;' . join(';', map { "INSERT INTO acc VALUES ($_, 1)" } @new) . '; COMMIT');
	is(present('acc', @new), sorted(@new), "writers s2 and s3 commit, via $via");
	foreach my $bad ($c->names)
	{
		@new = map { id($_) } $c->names;
		my $late = id($bad);
		like($c->error($via, 'BEGIN;' . join(';', map { "INSERT INTO acc VALUES ($_, 1)" } @new) . "; INSERT INTO later VALUES ($late); COMMIT"),
			qr/P0042/, "failure at the commit of $bad, via $via");
		is(present('acc', @new), '', 'rolls back everywhere');
	}
}
is(prepared(), '0,0,0', 'nothing stays prepared');
isnt($c->query('s1', 'SELECT count(*) FROM tessera.transaction_decision'), '0', 'decisions are recorded on the coordinator');

#
# savepoints and subtransactions
#
foreach my $via ('s1', 's3')
{
	my ($a, $b, $d, $e) = (id('s2'), id('s2'), id('s3'), id('s3'));
	$c->query($via, "BEGIN; INSERT INTO acc VALUES ($a, 1); SAVEPOINT x; INSERT INTO acc VALUES ($b, 1); INSERT INTO acc VALUES ($d, 1);
	ROLLBACK TO x;"
		  . " INSERT INTO acc VALUES ($e, 1); RELEASE x; COMMIT");
	is(present('acc', $a, $b, $d, $e), sorted($a, $e), "ROLLBACK TO on several nodes, via $via");
	($a, $b, $d) = (id('s2'), id('s3'), id('s1'));
	$c->query($via, "DO \$\$ BEGIN INSERT INTO acc VALUES ($a, 1);"
		  . " BEGIN INSERT INTO acc VALUES ($b, 1); INSERT INTO acc VALUES ($b, 1); EXCEPTION WHEN unique_violation THEN NULL; END;"
		  . " FOR i IN 1..20 LOOP BEGIN UPDATE acc SET bal = -1 WHERE id = $a;
		  EXCEPTION WHEN check_violation THEN UPDATE acc SET bal = bal + 1 WHERE id = $a; END; END LOOP;"
		  . " INSERT INTO acc VALUES ($d, 1); END \$\$");
	is(present('acc', $a, $b, $d), sorted($a, $d), "a caught error undoes what its block did, via $via");
	is($c->query($via, "SELECT bal FROM acc WHERE id = $a"), '21', 'and nothing else');
}

{
	my ($a, $b) = (id('s2'), id('s3'));
	like($c->error('s1', "DO \$\$ BEGIN INSERT INTO acc VALUES ($a, 1); INSERT INTO acc VALUES ($a, 1);
	END \$\$"), qr/23505/, 'a DO block that fails');
	like($c->error('s1', "CREATE FUNCTION pg_temp.twice(i int) RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO public.acc VALUES (i, 1);
	INSERT INTO public.acc VALUES (i, 1); END \$\$;"
			  . " SELECT pg_temp.twice($b)"), qr/23505/, 'a function that fails');
	is(present('acc', $a, $b), '', 'leaves nothing of its first statement');
}

#
# isolation level and modes go along
#
{
	my ($a) = (id('s2'));
	$c->query('s1', "INSERT INTO acc VALUES ($a, 1)");
	my $session = $c->session('s1');
	$session->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT bal FROM acc WHERE id = $a");
	$c->query('s3', "UPDATE acc SET bal = 2 WHERE id = $a");
	is($session->query_safe("SELECT bal FROM acc WHERE id = $a"), '1', 'REPEATABLE READ keeps its snapshot there');
	$session->query_safe('COMMIT');
	is($session->query_safe("SELECT bal FROM acc WHERE id = $a"), '2', 'and lets go of it at the end');
	$session->quit;
	like($c->error('s1', "BEGIN READ ONLY; UPDATE acc SET bal = 3 WHERE id = $a"), qr/25006/, 'READ ONLY holds');
}

#
# effective user and settings
#
{
	my %who;
	my $insert = sub { my ($sql, $id) = @_; $sql =~ s/ID/$id/; return $c->query('s1', "$sql; SELECT who, tenant, path,
		zone FROM seen WHERE id = $id") };
	like($insert->("SET app.tenant = 'x y\"{},\\z'; SET search_path = public, pg_temp; SET timezone = 'Asia/Tokyo';
	INSERT INTO seen (id) VALUES (ID)", id('s2')),
		qr/\|x y"\{\},\\z\|public, pg_temp\|Asia\/Tokyo$/, 'settings of the session hold on the shard');
	like($insert->("SET ROLE bob; INSERT INTO seen (id) VALUES (ID); RESET ROLE", id('s2')), qr/^bob\|/, 'SET ROLE holds');
	unlike($insert->("SET ROLE bob; SELECT FROM seen; RESET ROLE; INSERT INTO seen (id) VALUES (ID)", id('s2')), qr/^bob\|/, 'and its end, too');
	unlike($insert->("SET ROLE bob; SELECT insert_seen(ID); RESET ROLE", id('s2')), qr/^bob\|/, 'SECURITY DEFINER holds');
	is($insert->("BEGIN; SET LOCAL app.tenant = 'a'; ROLLBACK; SET app.tenant = 'b'; INSERT INTO seen (id) VALUES (ID)", id('s2')) =~ /\|b\|/ ? 1 : 0,
		1, 'a rollback here does not confuse settings there');
	my ($x, $y, $z) = (id('s2'), id('s2'), id('s2'));
	$c->query('s1', "BEGIN; SET LOCAL ROLE bob; SET LOCAL app.tenant = 'in'; INSERT INTO seen (id) VALUES ($x); SAVEPOINT p; RESET ROLE; SET " .
		"LOCAL app.tenant = 'deep';"
		  . " INSERT INTO seen (id) VALUES ($y); ROLLBACK TO p; INSERT INTO seen (id) VALUES ($z); COMMIT");
	is($c->query('s1', "SELECT string_agg(who || ':' || tenant, ' ' ORDER BY id) FROM seen WHERE id IN ($x, $y, $z)"), 'bob:in bob:in',
		'a rollback to a savepoint brings user and settings back');
	$c->query('s1', "INSERT INTO private VALUES (" . id('s2') . ", 'bob'), (" . id('s2') . ", 'alice'), (" . id('s3') . ", 'bob')");
	is($c->query('s1', 'SET ROLE bob; SELECT count(*) FROM private'), '2', 'row security sees the effective user');
	like($c->error('s1', 'SET ROLE bob; SELECT * FROM acc'), qr/42501/, 'privileges are those of the effective user');
	foreach my $what ('RESET ROLE', 'SET ROLE NONE', 'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION DEFAULT',
		"SELECT set_config('role', 'none', false)", "SELECT tessera_internal.session(NULL, '{}', '{}', NULL, '{}', 0)",
		"DO 'DECLARE r record; BEGIN FOR r IN SELECT tessera_internal.session(NULL, ''{}'', ''{}'', NULL, ''{}'', 0) LOOP END LOOP; END'")
	{
		my $quoted = TesseraCluster::quote($what);
		like($c->error('s1', "SET ROLE bob; INSERT INTO trap VALUES (" . id('s2') . ", $quoted)"), qr/42501/, "no way back on the shard by $what");
	}
	like($c->error('s1', "SELECT tessera_internal.session('bob', '{}', '{}', 'bob', '{}', 0)"), qr/42501/, 'internal functions are for other nodes');
	like($c->error('s1', "SELECT tessera_internal.tell('{}', '{}', '{}', '{}')"), qr/42501/, 'all of them');
	like($c->error('s1', "SELECT tessera_internal.decide('x', '{}')"), qr/42501/, 'really');
}

#
# prepared statements at the other end
#
{
	my $script = join(';', 'SET tessera.statement_cache_size = 3', map { "SELECT count(*) + $_ FROM acc WHERE id = " . ($_ % 50 + 1) .
		" AND bal <> $_" . ' ' x ($_ % 7) . ($_ % 7 ? " AND id < 10$_" : '') } 1 .. 60);
	my @lines = split /\n/, $c->query('s1', $script);
	is(scalar(@lines), 60, 'a small cache of prepared statements only costs time');
	# what is dropped from it is deallocated there, but not in front of a BEGIN
	my $levels = join(';', 'SET tessera.statement_cache_size = 3', map { ("BEGIN ISOLATION LEVEL " . ('REPEATABLE READ', 'SERIALIZABLE')[$_ % 2],
		"SELECT count(*) + $_ FROM acc AS a$_ WHERE id > $_", 'COMMIT') } 1 .. 12);
	@lines = split /\n/, $c->query('s1', $levels);
	is(scalar(@lines), 12, 'nor does it hinder transactions of another isolation level');
}

#
# cancel, locks, lost connections
#
{
	my $a = id('s2');
	$c->query('s1', "INSERT INTO acc VALUES ($a, 1)");
	my $holder = $c->session('s3');
	$holder->query_safe("BEGIN; UPDATE acc SET bal = 2 WHERE id = $a");
	my $waiter = $c->session('s1', on_error_stop => 0);
	my $pid = $waiter->query_safe('SELECT pg_backend_pid()');
	$waiter->query_until(qr/started/, "\\echo started\nUPDATE acc SET bal = 3 WHERE id = $a;\n");
	ok($c->wait_for('s2', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'", '1'),
		'a writer waits on the shard');
	$c->query('s1', "SELECT pg_cancel_backend($pid)");
	ok($c->wait_for('s2', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", '0'), 'a cancel reaches the shard');
	is($waiter->query("SELECT 'alive'"), 'alive', 'the session goes on');
	like($waiter->{stderr}, qr/canceling statement due to user request/, 'with the error of a cancel');
	$waiter->{stderr} = '';
	$holder->query_safe('ROLLBACK');
	$waiter->query_safe("UPDATE acc SET bal = 4 WHERE id = $a");
	is($c->query('s3', "SELECT bal FROM acc WHERE id = $a"), '4', 'and writes');

	$c->restart('s2');
	is($waiter->query_safe("SELECT bal FROM acc WHERE id = $a"), '4', 'a node that was restarted while idle costs no error');

	my ($b, $d) = (id('s2'), id('s3'));
	$waiter->query_safe("BEGIN; INSERT INTO acc VALUES ($b, 1); INSERT INTO acc VALUES ($d, 1)");
	$c->query('s2', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN tessera.internal_sessions USING (pid) WHERE node = 's1' AND " .
		"state = 'idle in transaction'");
	$waiter->query('COMMIT');
	like($waiter->{stderr}, qr/lost|terminat/, 'a writer that was lost fails the commit');
	$waiter->{stderr} = '';
	is(present('acc', $b, $d), '', 'everywhere');
	$waiter->quit;
	$holder->quit;
}

#
# the coordinator's answer is lost
#
sub commit_with_silent_coordinator
{
	my ($then) = @_;
	my ($a, $b) = (id('s2'), id('s3'));
	my $session = $c->session('s1', on_error_stop => 0);
	# s2, the first writer, coordinates: its commit waits for a standby that does not exist
	$session->query_safe("SET synchronous_commit = on; BEGIN; INSERT INTO acc VALUES ($a, 1); INSERT INTO acc VALUES ($b, 1)");
	$c->query('s2', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; ");
	$c->query('s2', 'SELECT pg_reload_conf()');
	ok($c->wait_for('s2', 'SHOW synchronous_standby_names', 'nobody'), 'no commit of s2 is answered');
	sleep 0.2;	# clock: the checkpointer tells all of the setting, and nothing shows that it has
	$session->query_until(qr/started/, "\\echo started\nCOMMIT;\n");
	ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity JOIN tessera.internal_sessions USING (pid) WHERE wait_event = 'SyncRep' AND " .
		"node = 's1'", 't'), 'the coordinator has decided but does not answer');
	is($c->query('s3', 'SELECT state, coordinator FROM tessera.distributed_transactions'), 'prepared|s2', 'the other waits for it');
	$then->();
	my $error = '';
	my $outcome = $session->query("SELECT 'done'");
	is($outcome, 'done', 'the session is answered');
	$error = $session->{stderr};
	$session->{stderr} = '';
	$session->quit;
	return ($error, $a, $b);
}

sub answer_again
{
	$c->query('s2', 'ALTER SYSTEM RESET synchronous_standby_names');
	$c->query('s2', 'SELECT pg_reload_conf()');
	return;
}

#
# a write that its shard commits by itself is not "cancelled" when it is committed there
#
{
	my $key = id('s2');
	$c->query('s1', "INSERT INTO acc VALUES ($key, 1)");
	$c->query('s2', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
	$c->query('s2', 'SELECT pg_reload_conf()');
	ok($c->wait_for('s2', 'SHOW synchronous_standby_names', 'nobody'), 'no commit of s2 is answered');
	my ($error, $rows);
	($rows, $error) = ('', '');
	IPC::Run::run([ 'psql', '-XAtq', '-d', $c->conninfo('s1') ], '<',
		\"SET synchronous_commit = on; SET statement_timeout = '2s';\nUPDATE acc SET bal = bal + 1 WHERE id = $key RETURNING bal;\n",
		'>', \$rows, '2>', \$error, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	unlike($error, qr/ERROR/, 'the statement whose commit could not be cancelled does not fail');
	is($rows, "2\n", 'it returns its row');
	answer_again();
	is($c->query('s3', "SELECT bal FROM acc WHERE id = $key"), '2', 'and is done');
}

{
	my ($error, $a, $b) = commit_with_silent_coordinator(
		sub { $c->query('s2', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN tessera.internal_sessions USING (pid) WHERE wait_event " .
		"= 'SyncRep' AND node = 's1'") });
	answer_again();
	unlike($error, qr/ERROR/, 'a lost answer is asked for: the commit is reported');
	is(present('acc', $a, $b), sorted($a, $b), 'and is there on every node');
	is(prepared(), '0,0,0', 'nothing stays prepared');
}
{
	my ($error, $a, $b) = commit_with_silent_coordinator(sub { $c->kill9('s2') });
	like($error, qr/did not answer whether transaction tessera_[0-9a-f]{32}_2 is committed/,
		'a coordinator that cannot be asked: the client is told so, with the gid');
	is($c->query('s3', 'SELECT count(*) FROM tessera.distributed_transactions'), '1', 'the other stays prepared');
	my ($status, $out, $err) = $c->psql('s3', "SELECT outcome FROM tessera.resolve_transactions('0')");
	is($out, 'in doubt', 'the resolver does not guess');
	$c->start('s2');
	answer_again();
	is($c->query('s3', "SELECT outcome FROM tessera.resolve_transactions('0')"), 'commit', 'it finishes when the coordinator is back');
	is(present('acc', $a, $b), sorted($a, $b), 'as the coordinator decided');
}

#
# what is left behind
#
{
	my $gid = 'tessera_' . '0123456789abcdef' x 2 . '_1';
	$c->query('s3', "SET tessera.replicate_ddl = off; CREATE TABLE local_rows (id int)");
	$c->query('s3', "BEGIN; INSERT INTO local_rows VALUES (1); PREPARE TRANSACTION '${gid}_3'");
	is($c->query('s3', "SELECT count(*) FROM tessera.resolve_transactions()"), '0', 'young ones are left alone');
	is($c->query('s3', "SELECT gid, outcome FROM tessera.resolve_transactions('0')"), "${gid}_3|abort", 'without a decision it is rolled back');
	is($c->query('s1', "SELECT outcome FROM tessera.transaction_decision WHERE gid = '$gid'"), 'abort', 'and can never be committed');
	my $other = 'tessera_' . 'fedcba9876543210' x 2 . '_1';
	my $coordinator = $c->session('s1');
	$coordinator->query_safe("BEGIN; INSERT INTO tessera.transaction_decision VALUES ('$other', 'commit')");
	$c->query('s3', "BEGIN; INSERT INTO local_rows VALUES (2); PREPARE TRANSACTION '${other}_3'");
	my $asker = $c->session('s3');
	$asker->query_until(qr/started/, "\\echo started\nSELECT outcome FROM tessera.resolve_transactions('0');\n");
	ok($c->wait_for('s1', "SELECT count(*) FROM pg_locks WHERE NOT granted", '1'), 'who asks waits for a coordinator that is still at it');
	$coordinator->query_safe('COMMIT');
	is($asker->query_safe("SELECT 1"), "commit\n1", 'and learns what it decided');
	is($c->query('s3', 'SELECT array_agg(id) FROM local_rows'), '{2}', 'so it is committed');
	$_->quit foreach $coordinator, $asker;
}

$c->query('s1', "BEGIN; UPDATE acc SET bal = bal; COMMIT");
is(prepared(), '0,0,0', 'nothing stays prepared in the end');
done_testing();
