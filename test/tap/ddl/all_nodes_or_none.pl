# DDL over three servers and a router (doc/design.md#ddl; S104-S114): all nodes or none, whoever is down or killed on the way; locks that are
# not had in time are let go everywhere, so that others keep working (migrations in the way: ddl/ends_moves_of_its_table.pl). COPY and TRUNCATE
# by stale routing find their rows' shards; sequences give no value twice.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

my $c = TesseraCluster->new('ddl', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 3, routers => 1);

sub same_tables
{
	my ($what) = @_;
	my @answers = $c->query_all(<<'SQL');
SELECT string_agg(t, ' ' ORDER BY t) FROM (
  SELECT c.relname || '(' || string_agg(a.attname || ':' || format_type(a.atttypid, a.atttypmod), ',' ORDER BY a.attname) || ')' AS t
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i') AND attnum > 0
    AND NOT attisdropped
  GROUP BY c.relname
  UNION ALL SELECT table_id || schema_name || '.' || table_name || (relid = (schema_name || '.' || table_name)::regclass) FROM tessera.cluster_table
  UNION ALL SELECT schema_name || node_id FROM tessera.schema_placement) x
SQL
	my @other = grep { $_ ne $answers[0] } @answers;
	ok(!@other, "the same on every node: $what") or diag join("\n", @answers);
	return;
}

sub prepared { return join(',', $c->query_all('SELECT count(*) FROM pg_prepared_xact()')); }

sub finish
{
	my ($run) = @_;
	return $run->{handle}->finish;
}

# from a node that stores nothing
$c->query('r1', 'CREATE TABLE t (k int PRIMARY KEY, v text)');
$c->query('r1', 'CREATE SCHEMA app');
$c->query('r1', 'CREATE TABLE app.u (k int PRIMARY KEY)');
$c->query('r1', 'INSERT INTO app.u VALUES (1)');
same_tables('made on a router');
isnt($c->query('s1', "SELECT node_id FROM tessera.schema_placement WHERE schema_name = 'app'"), '', 'a new schema has a shard');
is($c->query('s3', 'SELECT count(*) FROM app.u'), '1', 'its table is reached from elsewhere');
$c->query('r1', "SELECT tessera.shard_table('t', 'k', strategy => 'hash', chunks => 12)");
$c->fetch_routing;
ok($c->wait_for($_, "SELECT count(DISTINCT shard) FROM tessera.chunks WHERE table_name = 't'::regclass", '3'), "$_ knows the chunks")
	foreach $c->names;
$c->query('r1', "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 300) g");

# roles: once per server, none twice, none forgotten
$c->query('s2', 'SET tessera.replicate_ddl = off; CREATE ROLE known');
$c->query('r1', "CREATE ROLE known; CREATE ROLE fresh LOGIN PASSWORD 'secret'; ALTER ROLE fresh SET work_mem = '7MB'; GRANT known TO fresh; " .
	"COMMENT ON ROLE fresh IS 'x'");
is(join(',', $c->query_all("SELECT count(*) FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member JOIN pg_db_role_setting s ON s.setrole = " .
	"r.oid WHERE rolname = 'fresh'")), '1,1,1,1',
	'a role with its settings and memberships on every server');
$c->query('r1', 'GRANT SELECT ON t TO fresh');
is($c->query('s3', 'SET ROLE fresh; SELECT count(*) FROM t'), '300', 'and its privileges');
my $error = $c->error('s1',
	"SET tessera.replicate_ddl = off; DROP ROLE IF EXISTS ghost; CREATE ROLE ghost; RESET tessera.replicate_ddl; ALTER ROLE ghost PASSWORD 'hush'");
like($error, qr/42704.*ghost/s, 'a role that another server lacks');
unlike($error, qr/hush.*node/s, 'its password is in no context');
$c->query('s1', 'DROP ROLE ghost');
$c->query('r1', 'REVOKE SELECT ON t FROM fresh; DROP ROLE fresh, known');
is(join(',', $c->query_all("SELECT count(*) FROM pg_roles WHERE rolname IN ('fresh', 'known', 'ghost')")), '0,0,0,0', 'dropped everywhere');

# a lock that is not had: all others keep working, and the statement gives up in time or goes through when the lock is free
my $holder = $c->node('s2')->background_psql('postgres');
$holder->query_safe('BEGIN; SELECT count(*) FROM t WHERE false');
my $waiting = $c->background('s1', 'SET tessera.ddl_lock_timeout = 3000; ALTER TABLE t ADD COLUMN late int');
my $slowest = 0;
while ($waiting->{handle}->pumpable)
{
	my $before = time;
	$c->query('s3', 'SELECT count(*) FROM t');
	$slowest = time - $before if time - $before > $slowest;
	$waiting->{handle}->pump_nb;
}
ok(!finish($waiting), 'ALTER TABLE gives up');
like($waiting->{err}, qr/55P03/, 'for the lock');
note "slowest read meanwhile: $slowest s";
same_tables('after a statement that gave up');
$waiting = $c->background('r1', 'SET tessera.ddl_lock_timeout = 20000; ALTER TABLE t ADD COLUMN late int');
$c->runs_for('r1', '%ALTER TABLE t ADD COLUMN late%', '1 s');
$holder->query_safe('COMMIT');
ok(finish($waiting), 'ALTER TABLE goes through when the lock is free') or diag $waiting->{err};
$holder->quit;
same_tables('after a statement that waited');

# many at once, on several nodes, under load: no deadlock stays, nobody is left out
my $load = $c->pgbench_start(nodes => [ 's1', 's3', 'r1' ], clients => 2, seconds => 6, rate => 30, max_tries => 20,
	script => "\\set k random(1, 300)\nUPDATE t SET v = v WHERE k = :k;\nSELECT count(*) FROM t;\n");
my @runs = map { $c->background($_->[0], "SET tessera.ddl_lock_timeout = 30000; ALTER TABLE t ADD COLUMN c_$_->[1] int DEFAULT $_->[1]") }
	map { my $n = $_; [ 's1', "1$n" ], [ 's2', "2$n" ], [ 'r1', "3$n" ] } 1 .. 3;
my $failed = 0;
foreach my $run (@runs)
{
	next if finish($run);
	$failed++;
	diag $run->{err};
}
is($failed, 0, 'nine statements on one table, from three nodes');
my $result = $load->wait(60);
ok($result->{processed} > 0, 'the load went on');
is($c->query('s3', "SELECT count(*), sum(c_11) FROM t WHERE c_33 = 33 AND c_21 = 21"), '300|3300', 'all their columns are there');
same_tables('after statements at once');
ok($c->wait_for('s1', 'SELECT count(*) FROM pg_prepared_xact()', '0'), 'nothing stays prepared');

# a name is one name on all nodes
@runs = map { $c->background($_, 'SET tessera.ddl_lock_timeout = 30000; CREATE OR REPLACE FUNCTION again() RETURNS int LANGUAGE sql RETURN 1') }
	qw(s1 s2 r1) x 3;
is(join('', map { $c->ended($_) } @runs), '', 'one function, made by nine statements from three nodes');

# a node that is down
$c->stop('s3');
like($c->error('s1', 'CREATE TABLE never (a int)'), qr/08006.*s3/s, 'DDL fails while a node is down, and names it');
is($c->query('s2', "SELECT to_regclass('never') IS NULL"), 't', 'nothing of it stays');
$c->start('s3');
$c->query('s1', 'CREATE TABLE after (a int)');
same_tables('after a node was down');

# killed on the way: an error between two nodes, then the death of a node that has run the statement and not committed
$c->query('r1', "SELECT tessera_test.injection_set('ddl_send', 'error')");
like($c->error('r1', 'ALTER TABLE after ADD COLUMN b int'), qr/38000/, 'an error between two nodes');
$c->go_on('r1');
same_tables('after an error between two nodes');
my $open = $c->node('r1')->background_psql('postgres');
$open->query_safe('BEGIN; ALTER TABLE after ADD COLUMN b int');
$c->kill9('s2');
$c->start('s2');
eval { $open->query('COMMIT') };
eval { $open->quit };
ok($c->wait_for('s1', 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), 'nothing stays prepared on the config node');
ok($c->wait_for('s2', 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), 'nor on the node that died');
same_tables('after a node died with the statement open');

# rows of stale routing after a move
my ($shard, $min, $max) = split /\|/, $c->query('s1',
	"SELECT shard, min, max FROM tessera.chunks WHERE table_name = 't'::regclass AND min::text <> 'MINKEY' AND max::text <> 'MAXKEY' LIMIT 1");
my $to = $shard eq 's1' ? 's2' : 's1';
SKIP:
{
	my ($status, undef, $message) = $c->psql('s1', "SELECT tessera.move_range('t', $min, $max, '$to')");
	skip "move_range does not work yet: $message", 4 if $status != 0;

	# the router does not know of the move yet: its rows must find the new owner
	my $rows = join('', map { "$_\tnew\n" } 1001 .. 1400);
	my $server = $c->node('r1');
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'psql', '-XAtq', '-h', $server->host, '-p', $server->port, '-d', 'postgres', '-c', 'COPY t (k, v) FROM STDIN' ], '<', \$rows, '>',
		\$out, '2>', \$err);
	is($err, '', 'COPY by stale routing');
	is($c->query('s3', 'SELECT count(*), count(DISTINCT k) FROM t'), '700|700', 'every row is there once');
	my ($violations) = $c->query('s1', 'SELECT count(*) FROM tessera.check_consistency()');
	is($violations, '0', 'the cluster is consistent');
	$c->query('r1', 'TRUNCATE t');
	is(join(',', $c->query_all('SELECT count(*) FROM t')), '0,0,0,0', 'TRUNCATE');
}

# sequences from all nodes at once
$c->query('s2', 'CREATE SEQUENCE seq; CREATE TABLE drawn (id int8 DEFAULT nextval(\'seq\'), node text)');
$load = $c->pgbench_start(clients => 3, transactions => 100, script => "INSERT INTO drawn (node) VALUES ('x');\n");
$result = $load->wait(120);
is($result->{failed} // 0, 0, 'inserts from every node');
is($c->query('s1', 'SELECT count(*), count(DISTINCT id) FROM drawn'), '1200|1200', 'no value twice');
$c->query('r1', 'ALTER SEQUENCE seq RESTART WITH 1000000');
my @values = $c->query_all("SELECT nextval('seq')");
is(scalar(grep { $_ >= 1000000 } @values), 4, 'RESTART is known everywhere at once') or diag "@values";
$c->query('s3', "SELECT setval('seq', 2000000)");
@values = $c->query_all("SELECT nextval('seq')");
is(scalar(grep { $_ > 2000000 } @values), 4, 'setval too') or diag "@values";

is(prepared(), '0,0,0,0', 'nothing stays prepared');
done_testing();
