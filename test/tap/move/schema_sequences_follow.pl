# Between a schema's move and the moment at which its sequences have followed: DDL in the schema waits, so that what is made, altered or brought there
# goes by the new home; a sequence that its owner may not set, or that other nodes do not have, keeps none of the others; an open ALTER SEQUENCE
# holds up nobody else; a transaction with an old snapshot finds the new home. And what the balancer sees of a schema that has just come, and of one
# that belongs to an extension.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('schema_sequences', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.auto_split' => 'off', 'tessera.split_interval' => 600000, 'tessera.balancer_interval' => 3600, 'tessera.ddl_lock_timeout' => 60000 });
# All schemas are on s1, which was there first.
$c->create(shards => 3, before_add => sub {
	$c->query($_, 'CREATE ROLE careless LOGIN') foreach 's1', 's2', 's3';
	$c->query('s1', <<'SQL') });
CREATE SCHEMA app;
CREATE SCHEMA side;
CREATE TABLE app.t (k serial PRIMARY KEY, v int);
CREATE SEQUENCE app.a;
CREATE SEQUENCE app.z;
GRANT USAGE, CREATE ON SCHEMA app TO careless;
SET ROLE careless;
CREATE SEQUENCE app.kept;
REVOKE ALL ON SEQUENCE app.kept FROM careless;
RESET ROLE;
CREATE SEQUENCE side.brought;
SQL
$c->query('s1', 'SELECT tessera.stop_balancer()');
my @nodes = $c->names;
my $where = "SELECT shard, sequences_on FROM tessera.schemas WHERE schema = 'app'";
sub followed { my ($what, $to) = @_; return ok($c->wait_for('s1', $where, "$to|$to"), "$what: the sequences have followed"); }

# What nobody may set, and what one node alone has.
$c->query('s1', 'SET tessera.replicate_ddl = off; CREATE SEQUENCE app.here_alone');
is($c->query('s1', "SELECT nextval('app.kept'), nextval('app.a'), nextval('app.here_alone')"), '1|1|1', 'values');
$c->query('s3', "SELECT tessera.move_schema('app', 's2')");
followed('whatever rights there are', 's2');
is($c->query('s3', "SELECT nextval('app.kept') > 1, nextval('app.a') > 1"), 't|t', 'they go on');
is($c->query('s2', "SELECT count(*) FROM pg_class WHERE relname = 'here_alone'"), 0, 'what one node alone has stays there');
$c->query('s1', 'SET tessera.replicate_ddl = off; DROP SEQUENCE app.here_alone');

# DDL waits, whatever it is, and what it does counts at the new home.
my $highest = $c->query('s2', "SELECT max(nextval('side.brought')) FROM generate_series(1, 50)");
$c->query('s1', "ALTER SEQUENCE app.z RESTART 500");
$c->pause_at('s1', 'sequences_follow');
$c->query('s3', "SELECT tessera.move_schema('app', 's3')");
$c->is_paused_at('s1', 'sequences_follow');
is($c->query('s1', $where), 's3|s2', 'the sequences are still on the old shard');
like($c->error('s2', 'SET tessera.ddl_lock_timeout = 500; CREATE TABLE app.no (k serial)'),
	qr/55P03: the sequences of schema "app" have not followed its tables to their new shard yet/, 'DDL in the schema is refused after a while');
cmp_ok($c->query($_, "SELECT nextval('app.z')"), '>=', 500, "$_ draws meanwhile") foreach @nodes;
my %ddl = (
	made => $c->begin('s1', 'BEGIN; CREATE TABLE app.made (k serial PRIMARY KEY, v int);' .
		'INSERT INTO app.made (v) SELECT 1 FROM generate_series(1, 100); COMMIT'),
	altered => $c->begin('s2', "BEGIN; ALTER SEQUENCE app.a RESTART 1000; SELECT nextval('app.a'); COMMIT"),
	brought => $c->begin("s3", "ALTER SEQUENCE side.brought SET SCHEMA app"),
	emptied => $c->begin('s1', 'TRUNCATE app.t RESTART IDENTITY'));
ok($c->wait_for($_->[0], "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '$_->[1]%' AND state = 'active'", 't'), "$_->[1] waits")
  foreach [ 's1', 'CREATE TABLE' ], [ 's2', 'ALTER SEQUENCE' ], [ 's3', 'ALTER SEQUENCE side.brought SET' ], [ 's1', 'TRUNCATE' ];
is($c->query('s1', "SELECT to_regclass('app.made')"), '', 'nothing is made meanwhile');
$c->go_on('s1');
unlike($c->finish($ddl{$_}), qr{ERROR}, "$_ is done") foreach sort keys %ddl;
followed('with DDL waiting', 's3');
foreach my $node (@nodes)
{
	is($c->query($node, 'INSERT INTO app.made (v) VALUES (2) RETURNING k > 100'), 't', "$node: a sequence made meanwhile goes on");
	is($c->query($node, "SELECT nextval('app.a') > 1000"), 't', "$node: an altered one, too");
	is($c->query($node, "SELECT nextval('app.brought') > $highest"), 't', "$node: one that was brought into the schema, too");
}
is($c->query('s1', 'SELECT count(*) - count(DISTINCT k) FROM app.made'), 0, 'no value came twice');

# An open transaction that has altered one sequence: those with other names are drawn from, everywhere.
$c->pause_at('s1', 'sequences_follow');
my $old = $c->session('s2');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.made');
$c->query('s1', "SELECT tessera.move_schema('app', 's1')");
$c->is_paused_at('s1', 'sequences_follow');
my $locked = $c->session('s3');
$locked->query_safe('BEGIN; LOCK TABLE pg_class IN SHARE MODE; ROLLBACK; BEGIN; SET tessera.replicate_ddl = off; ALTER SEQUENCE app.z INCREMENT 3');
$c->go_on('s1');
for my $i (1 .. 5)
{
	is($c->query($_, "SET statement_timeout = '20s'; SELECT nextval('app.a') > 1000"), 't', "$_ draws from others, round $i") foreach @nodes;
}
$locked->query_safe('ROLLBACK');
$locked->quit;
followed('when nobody holds a lock', 's1');
is($old->query_safe("SELECT nextval('app.a') > 1000"), 't', 'a transaction with a snapshot from before finds the new home');
$old->query_safe('COMMIT');
$old->quit;
$c->is_settled('DDL');

# The balancer knows the size of a schema that has just come.
$c->query('s1', "CREATE SCHEMA big; CREATE TABLE big.t (k int PRIMARY KEY, filler text)");
my $home = $c->query('s1', "SELECT shard FROM tessera.schemas WHERE schema = 'big'");
my $to = $home eq 's2' ? 's3' : 's2';
$c->query('s1', "INSERT INTO big.t SELECT g, repeat('x', 1000) FROM generate_series(1, 4000) g; ANALYZE big.t");
my $of = "SELECT bytes > 4000000 FROM tessera.explain_balancer(now => true) WHERE kind = 'shard' AND donor = '%s'";
my $columns = $c->query('s1', "SELECT string_agg(step::text || ' ' || kind || ' ' || coalesce(donor, '-'), ',')
	FROM tessera.explain_balancer(now => true)");
ok($c->wait_for('s1', sprintf($of, $home), 't'), 'it is seen where it is') or diag $columns;
$c->query('s1', "SELECT tessera.move_schema('big', '$to')");
is($c->query('s1', sprintf($of, $to)), 't', 'and where it has come to, at once');
is($c->query('s1', sprintf($of, $home)), 'f', 'its old shard is without it');

# A schema of an extension with a table of a user's.
$c->query($_, 'SET tessera.replicate_ddl = off; ALTER EXTENSION plpgsql ADD SCHEMA big') foreach @nodes;
$c->query('s1', "SELECT tessera.move_schema('big', '$home')");
is($c->query('s3', "SELECT shard FROM tessera.schemas WHERE schema = 'big'"), $home, "an extension's schema with a user's table moves");
$c->query($_, 'SET tessera.replicate_ddl = off; ALTER EXTENSION plpgsql DROP SCHEMA big') foreach @nodes;
$c->is_settled('in the end');
done_testing();
