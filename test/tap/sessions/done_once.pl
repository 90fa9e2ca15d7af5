# What is done under a number of a session is done once: statements that commit by themselves, over one shard or several, with generated keys and
# RETURNING, and whole transactions; repeated from any node, also while ranges move.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('done_once', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 2, routers => 1);
my @nodes = ('s1', 's2', 'r1');

# ---- before sessions are enabled ----

like($c->error('s1', 'SELECT tessera.start_session()'), qr/55000: this cluster has no sessions.*HINT:.*tessera\.enable_sessions/s,
	'sessions are to be enabled first');
$c->query('s1', 'CREATE ROLE alice LOGIN');
$c->query('s1', 'CREATE ROLE bob LOGIN');
like($c->error('r1', 'SET ROLE alice; SELECT tessera.enable_sessions()'), qr/42501/, 'by a superuser alone');
$c->query('s1', 'CREATE SCHEMA tessera_session AUTHORIZATION bob');
$c->query('s1', 'CREATE TABLE tessera_session.session (id uuid); CREATE TABLE tessera_session.record (id uuid)');
like($c->error('r1', 'SELECT tessera.start_session()'), qr/55000/, 'tables of somebody else are no sessions');
like($c->error('r1', 'SELECT tessera.enable_sessions()'), qr/42P06/, 'and in the way');
$c->query('s1', 'DROP SCHEMA tessera_session CASCADE');
is($c->query('r1', 'SET search_path = public, pg_catalog; CREATE DOMAIN public.name AS int; SELECT tessera.enable_sessions()'), 't', 'enabled');
ok($c->wait_for($_, 'SELECT tessera.enable_sessions()', 'f'), "$_ knows it") foreach @nodes;

$c->query('s1', $_) foreach (
	'CREATE TABLE acc (id bigint PRIMARY KEY, n int NOT NULL, note text)',
	"SELECT tessera.shard_table('acc', 'id', 'hash', chunks => 8)",
	'INSERT INTO acc SELECT g, 0, NULL FROM generate_series(1, 100) g',
	'CREATE TABLE gen (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text, at timestamptz DEFAULT clock_timestamp())',
	"SELECT tessera.shard_table('gen', 'id', 'hash', chunks => 8)",
	'CREATE TABLE placed (id int PRIMARY KEY, v text)',
	'GRANT ALL ON acc, gen, placed TO alice, bob');

my $turn = 0;

# A node, another one each time.
sub some_node
{
	return $nodes[ $turn++ % @nodes ];
}

sub started
{
	my ($role) = @_;
	return $c->query(some_node(), ($role ? "SET ROLE $role; " : '') . 'SELECT tessera.start_session()');
}

my $session = started();
my $number = 0;

sub under
{
	my ($n, $sql, $statement) = @_;
	return "SET tessera.session = '$session'; SET tessera.txn_number = $n; "
		. (defined $statement ? "SET tessera.statement_id = $statement; " : '') . $sql;
}

# Each statement from each node; the answers are the same, and the effect is one.
sub once
{
	my ($name, $sql, $look) = @_;
	my $before = $c->query('s1', $look);
	$number++;
	my $first = $c->query(some_node(), under($number, $sql));
	my $after = $c->query('s1', $look);
	isnt($after, $before, "$name: has its effect");
	is($c->query($_, under($number, $sql)), $first, "$name: the same answer from $_") foreach @nodes;
	is($c->query('s1', $look), $after, "$name: once");
}

my $all = 'SELECT sum(n), count(*) FROM acc';
once('an update of one row', 'UPDATE acc SET n = n + 1 WHERE id = 7', $all);
once('with RETURNING', 'UPDATE acc SET n = n + 1 WHERE id = 8 RETURNING id, n, note, clock_timestamp()', $all);
once('of many rows over the shards', 'UPDATE acc SET n = n + 1 WHERE id <= 50 RETURNING id', $all);
once('an insert', "INSERT INTO acc VALUES (1000, 5, 'x') RETURNING *", $all);
once('a delete', 'DELETE FROM acc WHERE id = 1000', $all);
once('ON CONFLICT', 'INSERT INTO acc VALUES (7, 0) ON CONFLICT (id) DO UPDATE SET n = acc.n + 10 RETURNING n', $all);
once('of the shard key', 'UPDATE acc SET id = id + 2000 WHERE id = 9 RETURNING id', 'SELECT min(id), max(id) FROM acc WHERE id = 9 OR id > 2000');
once('keys and times that are generated', "INSERT INTO gen (v) VALUES ('a'), ('b'), ('c') RETURNING id, v, at", 'SELECT count(*) FROM gen');
once('from a query', 'INSERT INTO gen (v) SELECT id::text FROM acc WHERE id < 5 RETURNING id', 'SELECT count(*) FROM gen');
once('a placed table', "INSERT INTO placed VALUES (1, 'p') RETURNING v", 'SELECT count(*) FROM placed');
once('a CTE that writes', 'WITH d AS (UPDATE acc SET n = n + 1 WHERE id = 20 RETURNING id, n) SELECT * FROM d', $all);
once('two statements of one message', 'UPDATE acc SET n = n + 1 WHERE id = 1; UPDATE acc SET n = n + 1 WHERE id = 2 RETURNING n', $all);
once('a prepared statement', 'PREPARE p(int) AS UPDATE acc SET n = n + $1 WHERE id = 3 RETURNING n; EXECUTE p(5); EXECUTE p(5)', $all);
once('a transaction of nothing but statements by themselves',
	join('; ', map { "UPDATE acc SET n = n + 1 WHERE id = $_" } 30 .. 35), $all);

# ---- answers that are not kept ----

$number++;
my $large = 'UPDATE acc SET n = n + 1 WHERE id = 60 RETURNING repeat(note, 100), repeat($$x$$, 3000)';
$c->query('s1', "SET tessera.max_recorded_answer = 1; " . under($number, $large));
like($c->error('s2', under($number, $large)), qr/TS006: statement 0 .* its answer was not kept/, 'a large answer is not kept');
once('no columns', 'WITH d AS (UPDATE acc SET n = n + 1 WHERE id < 5 RETURNING 1) SELECT FROM d', $all);

# ---- values that text could spoil ----

$number++;
my $values = q{INSERT INTO acc VALUES (3000, 1, 'ä') RETURNING id, 0.1::float8 + 0.2, '2024-01-02 03:04:05+00'::timestamptz, 'a b'::bytea,
	ARRAY[NULL, 'NULL', '{}'], '1 mon -1 day'::interval, NULL::text, 'x'::name, '{"a": 1}'::jsonb, ROW(1, 2, 'b')::acc};
my $first = $c->query('s2', under($number, $values));
is($c->query('r1', "SET DateStyle = 'German'; SET TimeZone = 'Asia/Tokyo'; SET extra_float_digits = -10; SET bytea_output = 'escape';"
		. under($number, 'SELECT 1') . "; RESET ALL; " . under($number, $values)) =~ s/^1\n//r, $first, 'values are given as they were');

# ---- whole transactions ----

$number++;
my $block = 'BEGIN; UPDATE acc SET n = n + 1 WHERE id = 40; UPDATE acc SET n = n + 1 WHERE id = 41; COMMIT';
my $sum = $c->query('s1', $all);
$c->query('s1', under($number, $block));
isnt($c->query('s1', $all), $sum, 'a transaction has its effect');
$sum = $c->query('s1', $all);
foreach my $node (@nodes)
{
	like($c->error($node, under($number, $block)), qr/TS005: transaction number $number was committed before/, "$node knows that it was committed");
}
is($c->query('s2', $all), $sum, 'once');
is($c->query('r1', "SELECT outcome, at < now() FROM tessera.transaction_outcome('$session', $number)"), 'committed|t', 'its outcome');

$number++;
$c->query('s1', under($number, 'BEGIN; UPDATE acc SET n = n + 1 WHERE id = 40; ROLLBACK'));
is($c->query('s1', $all), $sum, 'rolled back');
$c->query('s2', under($number, 'BEGIN; UPDATE acc SET n = n + 1 WHERE id = 40; COMMIT'));
isnt($c->query('s1', $all), $sum, 'it can be done after that');

$number++;
$sum = $c->query('s1', $all);
my $savepoint = 'BEGIN; SAVEPOINT a; UPDATE acc SET n = n + 1 WHERE id = 40; ROLLBACK TO a; UPDATE acc SET n = n + 1 WHERE id = 41; COMMIT';
$c->query('s2', under($number, $savepoint));
isnt($c->query('s1', $all), $sum, 'after a savepoint that took the record with it');
like($c->error('r1', under($number, $savepoint)), qr/TS005/, 'it is recorded all the same');

$number++;
$c->query('s1', under($number, "BEGIN; DO 'BEGIN UPDATE acc SET n = n + 1 WHERE id = 42; END'; COMMIT"));
like($c->error('s2', under($number, "BEGIN; DO 'BEGIN UPDATE acc SET n = n + 1 WHERE id = 42; END'; COMMIT")), qr/TS005/, 'of code');

# ---- several statements of one message are one transaction ----

sub message
{
	my ($name, $sql) = @_;
	my ($out, $error);
	my $server = $c->node($name);
	IPC::Run::run([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-h', $server->host, '-p', $server->port, '-d', 'postgres', '-c', $sql ], '<', \undef,
		'>', \$out, '2>', \$error);
	return $error;
}

$number++;
$sum = $c->query('s1', $all);
is(message('s1', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1; UPDATE acc SET n = n + 1 WHERE id = 2')), '', 'a message of several');
isnt($c->query('s1', $all), $sum, 'has its effect');
$sum = $c->query('s1', $all);
like(message('s2', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1; UPDATE acc SET n = n + 1 WHERE id = 2')), qr/TS005/, 'and is known');
like(message('r1', under($number, 'UPDATE acc SET n = n + 9 WHERE id = 1; UPDATE acc SET n = n + 1 WHERE id = 2')), qr/22023: the first statement of/,
	'another one is none');
like($c->error('r1', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1')), qr/22023: what was done of .* was another one/,
	'nor is a statement by itself');
like(message('s1', under($number + 1, $_)), qr/0A000/, "refused in a message: $_")
	foreach 'TRUNCATE acc', 'BEGIN; TRUNCATE acc; COMMIT', 'CREATE TABLE no (k int)';
$number++;
like(message('s1', under($number, "DO 'BEGIN PERFORM 1; END'; COMMIT; DO 'BEGIN PERFORM 1; END'")), qr/22023: a transaction was committed under/,
	'nor two transactions in one message');
$number++;
$c->query('s1', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1'));
$sum = $c->query('s1', $all);
like(message('s2', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1; SELECT 1')), qr/22023: what was done of/, 'a statement is no transaction');
like($c->error('s2', under($number, 'BEGIN; UPDATE acc SET n = n + 1 WHERE id = 1; COMMIT')), qr/22023: what was done of/, 'nor a block');
$number++;
like($c->error('s2', under($number, 'BEGIN; UPDATE acc SET n = n + 1 WHERE id = 1; COMMIT; BEGIN; UPDATE acc SET n = n + 1 WHERE id = 1')),
	qr/22023: a transaction was committed under number/, 'two blocks have two numbers');
like($c->error('s2', under($number + 1, 'BEGIN; UPDATE acc SET n = n + 1 WHERE id = 1; COMMIT AND CHAIN; UPDATE acc SET n = n + 1 WHERE id = 2')),
	qr/22023: a transaction was committed under number/, 'in a chain, too');
$number++;

# ---- numbers ----

like($c->error('s1', under($number - 1, 'UPDATE acc SET n = 0 WHERE id = 1')), qr/22023: transaction number \d+ is older than/, 'an older number');
is($c->query('s1', "BEGIN; SET tessera.session = '$session'; SET tessera.txn_number = 77; ROLLBACK; SHOW tessera.txn_number"), '77',
	'does not take the number back');
foreach my $reset ('RESET ALL', 'DISCARD ALL')
{
	is($c->query('s1', "SET tessera.session = '$session'; SET tessera.txn_number = 77; $reset; SHOW tessera.txn_number"), '0', "$reset does");
	is($c->query('s1', "BEGIN; SET LOCAL tessera.session = '$session'; SET LOCAL tessera.txn_number = 77; COMMIT; SHOW tessera.txn_number; " .
		"$reset; SHOW tessera.txn_number; SHOW tessera.session"), "77\n0\n", "$reset also does after SET LOCAL");
}
like($c->error('s1', 'SET tessera.txn_number = 5'), qr/22023: .*DETAIL:.*works for no session/s, 'no number without a session');
like($c->error('s1', "$_ SET tessera.txn_number = 5"), qr/22023/, "not by $_")
	foreach 'ALTER ROLE alice', "CREATE FUNCTION g() RETURNS int LANGUAGE sql AS 'SELECT 1'";
$number++;
$c->query('s1', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1', 4));
$sum = $c->query('s1', $all);
$c->query('r1', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1', 4));
is($c->query('s1', $all), $sum, 'a statement that has its number given');
$c->query('r1', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1', 5));
isnt($c->query('s1', $all), $sum, 'the next number is another statement');
like($c->error('s1', under($number, 'UPDATE acc SET n = n + 2 WHERE id = 1', 5)), qr/22023: statement 5 of .* was another one/, 'other text');
is($c->query('s1', "SET tessera.session = '$session'; SET tessera.txn_number = 78; SET tessera.session = '$session'; SHOW tessera.txn_number"), '78',
	'the session said once more leaves the number');
like($c->error('s1', 'SET search_path = public, pg_catalog; ' . under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1', 5)), qr/22023/,
	'another search_path');

# ---- what is refused ----

foreach my $refused (
	['COPY acc FROM stdin', qr/0A000: COPY cannot/], ['CREATE TABLE no (k int)', qr/0A000: CREATE TABLE cannot/],
	["DO 'BEGIN UPDATE acc SET n = 0; END'", qr/0A000: DO can be done once only in a transaction block/],
	['EXPLAIN ANALYZE UPDATE acc SET n = 0', qr/0A000: what writes inside/],
	['SELECT f()', qr/0A000: what writes inside/])
{
	$c->query('s1', "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'UPDATE acc SET n = 0 RETURNING n'") if $refused->[0] =~ /f\(\)/;
	like($c->error('s2', under($number + 1, $refused->[0])), $refused->[1], "refused: $refused->[0]");
}
# what is refused inside of functions, whoever calls them and however
$c->query('s1', $_) foreach (
	q{CREATE FUNCTION empties() RETURNS int LANGUAGE plpgsql AS 'BEGIN EXECUTE ''TRUNCATE acc''; RETURN 1; END'},
	q{CREATE FUNCTION loops() RETURNS int LANGUAGE plpgsql AS 'DECLARE r record; BEGIN
		FOR r IN UPDATE acc SET n = n + 1 WHERE id = 1 RETURNING id LOOP UPDATE acc SET n = n + 1 WHERE id = 2; END LOOP; RETURN 1; END'},
	'CREATE VIEW two AS SELECT * FROM acc',
	'CREATE RULE two AS ON UPDATE TO two DO INSTEAD (UPDATE acc SET n = 0 WHERE id = 1; UPDATE acc SET n = 0)');
$sum = $c->query('s1', $all);
like($c->error('s1', under($number + 1, $_)), qr/0A000/, "refused: $_")
	foreach 'SELECT empties()', 'SELECT loops()', 'PREPARE p(int) AS SELECT $1; EXECUTE p(loops())', 'UPDATE two SET n = 5 WHERE id = 1',
	'EXPLAIN ANALYZE CREATE TABLE no AS SELECT 1';
is($c->query('s1', $all), $sum, 'and nothing was written');
$number++;
$c->query('s1', under($number, 'BEGIN; DO $$ BEGIN EXECUTE \'CREATE TEMP TABLE inside (k int)\'; END $$; COMMIT'));
like($c->error('s2', under($number, 'BEGIN; DO $$ BEGIN EXECUTE \'CREATE TEMP TABLE inside (k int)\'; END $$; COMMIT')), qr/TS005/,
	'a block that writes by DDL of a function is recorded');
is($c->query('r1', under($number + 1, "SELECT nextval('gen_id_seq') > 0")), 't', 'a sequence is nobody\'s row');
is($c->query('r1', under($number + 1, 'BEGIN READ ONLY; SELECT 1; COMMIT')), '1', 'what cannot write is not recorded');

# ---- whose session ----

my $others = started('alice');
like($c->error('s1', "SET ROLE bob; SET tessera.session = '$others'; SET tessera.txn_number = 1; UPDATE acc SET n = n + 1 WHERE id = 1"),
	qr/TS006: session .* does not exist or has ended/, 'another role\'s session is none');
is($c->query('s1', "SET ROLE bob; SELECT tessera.end_session('$others')"), 'f', 'nor can it be ended');
is($c->query('s1', "SET ROLE bob; SELECT outcome FROM tessera.transaction_outcome('$others', 1)"), 'expired', 'nor asked');
like($c->error('s2', "SET ROLE $_; SELECT * FROM tessera_session.record"), qr/42501/, "$_ does not read records") foreach 'alice', 'bob';
$c->query('s1', 'GRANT pg_read_all_data, pg_write_all_data TO bob');
is($c->query('r1', 'SET ROLE bob; SELECT count(*) FROM tessera_session.record'), '0', 'nor does pg_read_all_data');
like($c->error('s1', "BEGIN; SELECT tessera.transaction_outcome('$session', 1000)"), qr/25001/, 'an outcome is not asked for in a block');
like($c->error('r1', "SET ROLE bob; INSERT INTO tessera_session.session VALUES (gen_random_uuid(), 'bob', 0, 0, 0, now(), now())"), qr/42501/,
	'nor writes pg_write_all_data');

# ---- outcomes ----

$number += 10;
is($c->query('s2', "SELECT outcome FROM tessera.transaction_outcome('$session', $number)"), 'aborted', 'what was not done was aborted');
like($c->error('s1', under($number, 'UPDATE acc SET n = n + 1 WHERE id = 1')), qr/TS003: transaction number $number was given up/,
	'and is not done any more');
is($c->query('s2', "SELECT outcome FROM tessera.transaction_outcome('$session', @{[$number - 1]})"), 'expired', 'of an older one nothing is known');
$number++;
my $holder = $c->begin('s1', under($number, 'BEGIN') . '; UPDATE acc SET n = n + 1 WHERE id = 1');
$holder->query('SELECT 1');
is($c->query('r1', "SELECT outcome FROM tessera.transaction_outcome('$session', $number)"), 'running', 'one that runs');
my $retry = $c->background('r1', under($number, 'BEGIN; UPDATE acc SET n = n + 1 WHERE id = 1; COMMIT'));
$c->runs_for('r1', '%txn_number%', '300 ms');
$holder->query('COMMIT');
is($c->finish($holder) =~ /ERROR/, '', 'the first attempt commits');
my $error = $c->ended($retry);
like($error, qr/TS005/, 'and learns that it was committed');

# ---- the next transaction of a connection has other parts than the one before ----

my %at;
foreach my $row (split /\n/, $c->query('s1', q{SELECT g, tessera.range_owner('acc', g) FROM generate_series(1, 100) g}))
{
	my ($id, $owner) = split /\|/, $row;
	push @{ $at{$owner} }, $id;
}
ok($at{s1} && $at{s2}, 'rows on both shards');
$number++;
# all of it on one node, if the session's home is there: what it has recorded is no other transaction's
my $home = $c->query('s1', "SELECT tessera.range_owner('tessera_session.session', '$session'::uuid)");
my $mixed = $c->session($home, on_error_stop => 0);
$mixed->query("SET tessera.session = '$session'; SET tessera.txn_number = $number");
$mixed->query("UPDATE acc SET n = n + 1 WHERE id = $at{$home}[0]");
$mixed->query('SET tessera.txn_number = 0');
$sum = $c->query('s1', $all);
$c->query($home, "SELECT tessera_test.injection_set('commit_prepared', 'pause')");
$mixed->query_until(qr/begun/, "\\echo begun\nBEGIN; UPDATE acc SET n = n + 1 WHERE id IN ($at{s1}[1], $at{s2}[1]); COMMIT;\n");
ok($c->paused_at($home, 'commit_prepared'), 'a transaction is prepared and not decided');
my $repeater = $home eq 's1' ? 's2' : 's1';
$c->query($repeater, under($number, "UPDATE acc SET n = n + 1 WHERE id = $at{$home}[0]"));
is($c->query('r1', $all), $sum, 'a repetition of the one before commits no part of it');
is(join(',', sort map { $c->query($_, 'SELECT count(*) FROM pg_prepared_xact()') } 's1', 's2'), '0,1', 'which stays prepared');
$c->go_on($home, 'commit_prepared');
$mixed->query('SELECT 1');
$mixed->quit;

# ---- what a connection leaves ----

my $leaving = $c->session('s1', on_error_stop => 0);
$leaving->query("SET tessera.session = '$session'; SET tessera.txn_number = $number; RESET tessera.session");
is($leaving->query('SET force_parallel_mode = on; SELECT count(*) FROM pg_class WHERE relname = $$pg_class$$'), '1',
	'parallel workers bear a number without a session');
$leaving->query("SET tessera.session = '$session'; BEGIN; SELECT 1/0; ROLLBACK");
is($c->query('s1', "SELECT string_agg(DISTINCT state, ',') FROM tessera.sessions WHERE id = '$session'"), 'idle', 'a failed block leaves it idle');
$leaving->quit;

# ---- what has ended ----

is($c->query('s2', "SELECT tessera.end_session('$session')"), 't', 'a session ends');
like($c->error('s1', under($number + 1, 'UPDATE acc SET n = n + 1 WHERE id = 1')), qr/TS006/, 'and is no more');
is($c->query('s1', 'SELECT count(*) FROM tessera_session.record'), '0', 'nor are its records');

done_testing();
