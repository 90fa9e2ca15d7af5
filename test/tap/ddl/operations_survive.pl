# S113 to S118: DDL that cannot run in a transaction has a row on the config node before any node begins; it is carried on after a crash of whoever
# runs it, of a shard, of the config node and of its successor, as the role that has asked; what fails for good is taken back; the same statement
# waits for the one that runs; tessera.ddl_operations shows how far it is.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('ddl_operations', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });
$c->create(shards => 3, routers => 1);
$c->query('s1', 'CREATE ROLE owner LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE passing SUPERUSER LOGIN; GRANT ALL ON SCHEMA public TO owner');
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v int, few int)',
	'CREATE TABLE dup (k int NOT NULL, v int); CREATE INDEX dup_k ON dup (k); ALTER TABLE dup REPLICA IDENTITY FULL',
	'SET ROLE owner; CREATE TABLE owned (k int PRIMARY KEY, v int)');
$c->query('s1', $_) foreach map { ("SELECT tessera.shard_table('$_', 'k')", "SELECT tessera.move_range('$_', 1000, 2000, 's2')",
	"SELECT tessera.move_range('$_', 2000, tessera.maxkey(), 's3')") } 't', 'dup', 'owned';
$c->query('r1', "INSERT INTO $_ (k, v) SELECT g, g FROM generate_series(1, 2999) g") foreach 't', 'dup', 'owned';

# As in 405: what each node says of an index; '+' for each other one that is not valid.
sub states
{
	my ($index, $table) = @_;
	return join('', map { $c->query($_, "SELECT coalesce((SELECT CASE WHEN indisvalid AND indisready THEN 'v' ELSE 'i' END FROM pg_index " .
		"WHERE indexrelid = to_regclass('$index')), '-') || (SELECT repeat('+', count(*)::int) FROM pg_index WHERE indrelid = '" . ($table // 't') .
		"'::regclass AND NOT indisvalid AND indexrelid IS DISTINCT FROM to_regclass('$index'))") } $c->names);
}

# The last operation.
my $last = "FROM tessera.ddl_operations ORDER BY started DESC LIMIT 1";

sub ends
{
	my ($state, $what) = @_;
	return ok($c->wait_for('s1', "SELECT state $last", $state), "$what: $state");
}

sub back
{
	my ($node) = @_;
	$c->start($node);
	ok($c->wait_for($node, 'SELECT count(*) FROM t WHERE k IN (1, 1500, 2500)', '3'), "$node is back");
	return;
}

# A statement of its own, in the background, as a role.
sub as
{
	my ($role, $node, $sql) = @_;
	local $ENV{PGUSER} = $role;
	return $c->background($node, $sql);
}

# Begins a statement in a session of r1 that dies before any node has begun.
sub abandoned
{
	my ($sql, %params) = @_;
	my $point = $params{point} // 'index_build';
	$c->pause_at('r1', $point);
	my $run = as($params{role} // 'postgres', 'r1', $sql);
	$c->is_paused_at('r1', $point);
	$c->kill9('r1');
	$c->ended($run);
	return;
}

# ---- who runs it dies

abandoned('CREATE INDEX CONCURRENTLY early ON t (v)', point => 'index_recorded');
back('r1');
ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xacts', '0'), "$_ has nothing prepared") foreach $c->names;
is(states('early') . $c->query('s1', 'SELECT count(*) FROM tessera.ddl_operations'), '----0', 'before the first commit: neither index nor operation');

abandoned('CREATE INDEX CONCURRENTLY first ON t (v)');
is($c->query('s2', "SELECT kind, table_name, object_name, asked_by, runner, state, phase, nodes, nodes_done, waiting, attempts $last"),
	'create index|public.t|public.first|postgres|r1|running|build|4|0|r1, s1, s2, s3|0', 'the view, on another node');
is($c->query('s2', "SELECT statement $last"), 'CREATE INDEX CONCURRENTLY first ON t (v)', 'the statement');
back('r1');
ends('done', 'carried on');
is(states('first'), 'vvvv', 'valid everywhere');
is($c->query('r1', "SELECT runner, nodes_done, waiting IS NULL, finished IS NOT NULL $last"), 's1|4|t|t', 'the config node has run it');

# The config node's worker dies, too; and the config node together with who ran it.
$c->pause_at('s1', 'operation_taken_over');
abandoned('CREATE INDEX CONCURRENTLY second ON t (v, k)');
back('r1');
$c->is_paused_at('s1', 'operation_taken_over');
$c->kill9('s1');
back('s1');
ends('done', 'the config node crashed as well');
is(states('second'), 'vvvv', 'valid everywhere');

# A shard dies in the midst of its build, and leaves half an index.
my $reader = $c->session('s3');
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my $run = $c->background('r1', 'CREATE UNIQUE INDEX CONCURRENTLY third ON t (few, k)');
my $waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'virtualxid' AND query LIKE 'REINDEX INDEX CONCURRENTLY%'";
ok($c->wait_for('s3', $waits), 's3 builds');
ok($c->wait_for('s2', "SELECT nodes_done || waiting $last", '2r1, s3'), 'the view shows how far it is');
$c->kill9('s3');
like($c->ended($run), qr/goes on by itself/, 'the client hears that it goes on');
$reader = undef;
ok($c->wait_for('s1', "SELECT attempts > 0 AND error LIKE '%s3%' $last"), 'the view says which node it waits for');
like($c->query('s1', "SELECT problem FROM tessera.health WHERE subject ~ 'third'"), qr/s3/, 'and so does tessera.health');
back('s3');
ends('done', 'a shard crashed');
is(states('third'), 'vvvv', 'valid everywhere, and nothing else is left');

# ---- as the role that has asked

$c->query('s1', q{SET ROLE owner; CREATE FUNCTION who(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
	'BEGIN IF current_user <> ''owner'' THEN RAISE ''this is %'', current_user; END IF; RETURN $1; END'});
abandoned('CREATE INDEX CONCURRENTLY theirs ON owned (who(v))', role => 'owner');
back('r1');
ends('done', 'the owner\'s own');
is(states('theirs', 'owned'), 'vvvv', 'what the index calls has run as the owner');
$c->pause_at('s1', 'operation_taken_over');
abandoned('CREATE INDEX CONCURRENTLY gone ON owned (v)', role => 'passing');
back('r1');
$c->is_paused_at('s1', 'operation_taken_over');
$c->query('s2', 'DROP ROLE passing');
$c->go_on('s1');
ends('failed', 'the role is gone');
like($c->query('s1', "SELECT error $last"), qr/role "passing"/, 'it says so');
like($c->query('s2', "SELECT what_to_do FROM tessera.health WHERE subject ~ 'gone'"), qr/REINDEX INDEX CONCURRENTLY gone/, 'and health what to do');
$c->query('s2', 'REINDEX INDEX CONCURRENTLY gone');
is(states('gone', 'owned'), 'vvvv', 'which does it');

# ---- what fails for good is taken back

$c->query('r1', 'INSERT INTO dup VALUES (2500, 1)');
abandoned('CREATE UNIQUE INDEX CONCURRENTLY only_once ON dup (k)');
back('r1');
ends('failed', 'rows that are there twice');
like($c->query('r1', "SELECT error $last"), qr/could not create unique index "only_once/, 'the error is kept');
is(states('only_once', 'dup'), '----', 'nothing is left');

# ---- dropped meanwhile

$c->pause_at('s1', 'operation_taken_over');
abandoned('CREATE INDEX CONCURRENTLY brief ON t (few)');
back('r1');
$c->is_paused_at('s1', 'operation_taken_over');
$c->query('s2', 'DROP INDEX brief; CREATE INDEX CONCURRENTLY brief ON t (few, v)');
$c->go_on('s1');
ok($c->wait_for('s1', "SELECT string_agg(state, ' ' ORDER BY started) FROM tessera.ddl_operations WHERE object_name = 'public.brief'", 'failed done'),
	'dropped and made anew: the first operation has ended');
is(states('brief') . $c->query('s1', "SELECT pg_get_indexdef('brief'::regclass) ~ 'few, v'"), 'vvvvt', 'the second index stays');

# ---- the same once more

$c->pause_at('r1', 'index_build');
$run = $c->background('r1', 'CREATE INDEX CONCURRENTLY shared ON t (few, k)');
$c->is_paused_at('r1', 'index_build');
my @joined = map { $c->background($_->[0], $_->[1]) } ([ 's2', 'CREATE INDEX CONCURRENTLY shared ON t (few, k)' ],
	[ 's3', 'REINDEX INDEX CONCURRENTLY shared' ]);
like($c->ended(as('owner', 's1', 'CREATE INDEX CONCURRENTLY shared ON t (few, k)')), qr/42501/, 'not somebody else\'s');
like($c->error('s2', 'SET lock_timeout = 500; CREATE INDEX CONCURRENTLY shared ON t (few)'), qr/42P07/, 'another statement is not the same');
like($c->error('s2', 'REINDEX (CONCURRENTLY, VERBOSE) INDEX shared'), qr/55006.*ddl_operations/s, 'nor is this one');
ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY shared%' AND wait_event = 'Extension'"),
	'it waits');
$c->go_on('r1');
is($c->ended($run), '', 'the first ends');
like($c->ended($_), qr/^NOTICE.*under way: waiting for its end(?!.*ERROR)/s, 'so do those that have asked for the same') foreach @joined;
is(states('shared') . $c->query('s1', "SELECT count(*) FROM tessera.ddl_operations WHERE object_name = 'public.shared'"), 'vvvv1',
	'it was made once');
$c->pause_at('r1', 'index_build');
$run = $c->background('r1', 'CREATE UNIQUE INDEX CONCURRENTLY only_once ON dup (k)');
$c->is_paused_at('r1', 'index_build');
@joined = ($c->background('s2', 'CREATE UNIQUE INDEX CONCURRENTLY only_once ON dup (k)'));
ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CREATE UNIQUE INDEX%' AND wait_event = 'Extension'"), 'it waits');
$c->go_on('r1');
like($c->ended($_), qr/23505/, 'both get the error') foreach $run, @joined;
is(states('only_once', 'dup'), '----', 'taken back');

# ---- REINDEX

my $reindexed = sub { join(' ', map { $c->query($_, "SELECT '$_[0]'::regclass::oid") } $c->names) };
my $before = $reindexed->('first');
$c->query('r1', 'REINDEX INDEX CONCURRENTLY first');
isnt($reindexed->('first'), $before, 'REINDEX INDEX CONCURRENTLY');
is($c->query('s3', "SELECT kind, state, nodes_done $last"), 'reindex index|done|4', 'is an operation');
$before = $reindexed->('second');
abandoned('REINDEX TABLE CONCURRENTLY t');
back('r1');
ends('done', 'REINDEX TABLE CONCURRENTLY, carried on');
isnt($reindexed->('second'), $before, 'all nodes have done it');
$reader = $c->session('s2');
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$run = $c->background('r1', 'REINDEX TABLE CONCURRENTLY t');
ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'virtualxid' AND query LIKE 'REINDEX TABLE CONCURRENTLY%'"),
	's2 is at it');
like($c->error('s1', 'REINDEX (CONCURRENTLY, VERBOSE) TABLE t'), qr/55006/, 'another one waits for none');
$c->query('r1', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'REINDEX TABLE%' AND pid <> pg_backend_pid()");
like($c->ended($run), qr/57014/, 'cancelled');
$reader->query_safe('COMMIT');
is($c->query('s1', "SELECT state $last"), 'failed', 'that is its end');
ok($c->wait_for($_, "SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass AND NOT indisvalid", '0'), "$_ has nothing left of it")
  foreach $c->names;
like($c->error('r1', 'BEGIN; REINDEX INDEX CONCURRENTLY first; COMMIT'), qr/25001/, 'not in a transaction block');
like($c->error('r1', 'SET ROLE stranger; REINDEX INDEX CONCURRENTLY first'), qr/42501/, 'not somebody else\'s');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');

# ---- the list outlives its tables

$c->query('s2', 'CREATE TABLE short (k int PRIMARY KEY, v int)');
$c->query('s2', 'CREATE INDEX CONCURRENTLY short_v ON short (v)');
$c->query('s1', 'DROP TABLE short');
is($c->query('r1', "SELECT table_name IS NULL, state FROM tessera.ddl_operations WHERE object_name = 'public.short_v'"), 't|done',
	'an operation whose table was dropped');

# ---- a standby takes the config node's place

$c->add_standby('s1');
$c->pause_at('s1', 'operation_taken_over');
abandoned('CREATE INDEX CONCURRENTLY promoted ON t (v, few)');
back('r1');
$c->is_paused_at('s1', 'operation_taken_over');
$c->promote('s1', tell => 's2');
ends('done', 'a promoted config node goes on');
is(states('promoted'), 'vvvv', 'valid everywhere');
done_testing();
