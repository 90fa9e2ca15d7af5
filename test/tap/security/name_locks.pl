# What one user prepares and does not finish holds only what it names: other users' DDL and statements about other roles go on, and so does a new
# address of a node. What it does hold is told with its name and owner, in the error of who waits for it and in tessera.health.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('name_locks', settings => { 'tessera.ddl_lock_timeout' => '2s' });
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE ROLE alice', 'CREATE ROLE mallory CREATEROLE', 'CREATE ROLE mallory2',
	'CREATE SCHEMA alice AUTHORIZATION alice', 'CREATE SCHEMA mallory AUTHORIZATION mallory',
	'GRANT CREATE ON DATABASE postgres TO alice, mallory');

my $held = q{SELECT string_agg(format('%s: %s', subject, problem), E'\n' ORDER BY subject) FROM tessera.health WHERE problem LIKE '%names of DDL%'};

# ---- statements of one user, prepared and left ----

my %left = (
	mallory_roles => q{ALTER ROLE mallory SET work_mem = '1MB'},
	mallory_ddl => 'CREATE TABLE mallory.x (i int)',
	mallory_defaults => 'ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO alice',
	mallory_schema => 'CREATE SCHEMA mallory3',
	mallory_missing => 'DROP TABLE IF EXISTS mallory.none',
	mallory_owned => 'DROP OWNED BY mallory2',
	mallory_function => 'CREATE FUNCTION mallory.f() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$');
$c->query('s1', 'GRANT mallory2 TO mallory');
$c->query('r1', "SET ROLE mallory; BEGIN; $left{$_}; PREPARE TRANSACTION '$_'") foreach sort keys %left;

$c->query('r1', $_) foreach (
	'ALTER ROLE alice NOLOGIN', q{ALTER ROLE ALL SET work_mem = '4MB'}, 'ALTER ROLE ALL RESET work_mem', 'CREATE ROLE bob', 'GRANT bob TO alice',
	'DROP ROLE bob', q{COMMENT ON ROLE alice IS 'other'}, 'CREATE ROLE carl IN ROLE alice', 'ALTER ROLE carl RENAME TO carla', 'DROP OWNED BY carla',
	'REASSIGN OWNED BY carla TO alice', 'DROP ROLE carla',
	'SET ROLE alice; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO mallory',
	'SET ROLE alice; ALTER DEFAULT PRIVILEGES IN SCHEMA alice GRANT SELECT ON TABLES TO mallory',
	'SET ROLE alice; CREATE SCHEMA alice2', 'ALTER SCHEMA alice2 RENAME TO alice3', 'DROP SCHEMA alice3',
	'SET ROLE alice; DROP TABLE IF EXISTS alice.none', 'SET ROLE alice; ALTER TABLE IF EXISTS alice.none RENAME TO other',
	'SET ROLE alice; CREATE FUNCTION alice.g() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$', 'SET ROLE alice; ALTER FUNCTION alice.g() STABLE');
pass('statements about other objects go through');
$c->query('r1', "SELECT tessera.update_node('$_', tessera.node_conninfo('$_'))") foreach $c->names;
pass('and so do new addresses');

# ---- what they hold ----

my %same = (
	mallory_roles => 'ALTER ROLE mallory NOLOGIN',
	mallory_defaults => 'ALTER DEFAULT PRIVILEGES FOR ROLE mallory GRANT SELECT ON TABLES TO mallory2',
	mallory_schema => 'CREATE SCHEMA mallory3',
	mallory_owned => 'DROP ROLE mallory2');
foreach my $gid (sort keys %same)
{
	my $error = $c->error('s2', "SET tessera.ddl_lock_timeout = '300ms'; $same{$gid}");
	like($error, qr/55P03: .*DETAIL: *On node "s1", prepared transaction "$gid" of role "mallory" holds it\..*HINT: *COMMIT PREPARED/s, $same{$gid});
}
like($c->error('s2', q{SET ROLE alice; SET tessera.ddl_lock_timeout = '300ms'; CREATE SCHEMA mallory3}),
	qr/DETAIL: *On node "s1", prepared transaction "mallory_schema" of role "mallory"/, 'every user is told');
$c->start_node('s3', extension => 1);
my $join = "SELECT tessera.add_shard('s3', " . TesseraCluster::quote($c->conninfo('s3')) . ')';
my $refused = qr/55P03: .*could not lock the registry of nodes within 2000 ms.*Prepared transaction "mallory_\w+" of role "mallory" holds it\./s;
like($c->error('s1', $join), $refused, 'a node that comes waits for a while only');
like($c->error('s2', q{SELECT tessera.remove_router('r1')}), $refused, 'as one that goes');

is($c->query('s1', $held), '', 'tessera.health is silent about what is new');
$c->set('s1', 'tessera.prepared_ddl_warning' => 0);
ok($c->wait_for('s1', 'SHOW tessera.prepared_ddl_warning', '0'), 'until the time of the setting has passed');
my $shown = $c->query('s1', $held);
like($shown, qr/^prepared transaction $_: role mallory has prepared it at \S+ \S+, and it holds \d+ names of DDL/m, "then it shows $_")
	foreach sort keys %left;
is(() = $shown =~ /^prepared/mg, scalar(keys %left), 'and nothing else');
$c->restart('s1');
is($c->query('s1', $held), $shown, 'after a restart, too');

$c->query('s2', "ROLLBACK PREPARED '$_'") foreach sort keys %left;
is($c->query('s1', $held), '', 'it is content when they have ended');
$c->query('s2', $same{$_}) foreach sort grep { $_ ne 'mallory_owned' } keys %same;
$c->query('s3', "CREATE ROLE $_") foreach qw(alice mallory mallory2);
$c->query('s1', $join);
pass('and all goes');

# ---- statements on the same names still meet ----

my $first = $c->session('s1');
$first->query_safe('BEGIN; ALTER ROLE alice CONNECTION LIMIT 1');
my $pid = $first->query_safe('SELECT pg_backend_pid()');
like($c->error('s2', "SET tessera.ddl_lock_timeout = '300ms'; $_"), qr/55P03: .*names of what the statement changes.*process $pid/s, $_)
	foreach 'ALTER ROLE alice CONNECTION LIMIT 2', 'GRANT mallory2 TO alice', 'DROP ROLE mallory, alice', 'CREATE ROLE dora ROLE alice',
	'SET ROLE alice; ALTER ROLE current_user SET work_mem = 64', 'ALTER ROLE alice RENAME TO alicia', 'REASSIGN OWNED BY mallory TO alice';
my $second = $c->background('s2', 'ALTER ROLE alice CONNECTION LIMIT 3');
$first->query_safe('COMMIT');
is(TesseraCluster::ended($c, $second), '', 'the second one waits for the first');
is_deeply([ $c->query_all(q{SELECT rolconnlimit FROM pg_roles WHERE rolname = 'alice'}) ], [ (3) x 4 ], 'and wins on every server');

# a table of the role's name is another name
$first->query_safe('BEGIN; CREATE TABLE mallory2 (i int)');
$c->query('s2', 'ALTER ROLE mallory2 CONNECTION LIMIT 3');
$first->query_safe('ROLLBACK');

$first->query_safe('BEGIN; CREATE ROLE twice CONNECTION LIMIT 1');
$second = $c->background('s2', 'CREATE ROLE twice CONNECTION LIMIT 2');
$first->query_safe('COMMIT');
like(TesseraCluster::ended($c, $second), qr/42710/, 'of two that create a role one wins');
is_deeply([ $c->query_all(q{SELECT rolconnlimit FROM pg_roles WHERE rolname = 'twice'}) ], [ (1) x 4 ], 'on every server');

# Core looks for cycles of memberships, and locks nothing for that: as on one server.
my @roles = ((map { "CREATE ROLE m$_" } 1 .. 4), 'GRANT m1 TO m2', 'GRANT m3 TO m4');
my $closing = "SET lock_timeout = '500ms'; GRANT m4 TO m1";
my $plain = $c->plain->background_psql('postgres');
$plain->query_safe($_) foreach @roles, 'BEGIN; GRANT m2 TO m3';
my $there = $c->error_of($c->plain, $closing);
$plain->query_safe('COMMIT');
$plain->quit;
$c->query('s1', $_) foreach @roles;
$first->query_safe('BEGIN; GRANT m2 TO m3');
my ($status, $out, $here) = $c->psql('s2', $closing);
$first->query_safe('COMMIT');
is($here =~ /ERROR:  (\w{5})/ ? $1 : '', $there =~ /ERROR:  (\w{5})/ ? $1 : '', 'two grants that close a cycle');
$first->quit;

# Both want to delete the row of the one membership, each on its own server first.
foreach my $round (1 .. 5)
{
	$c->query('s1', $_) foreach 'CREATE ROLE up', 'CREATE ROLE down IN ROLE up';
	my @drops = ($c->background('s1', 'DROP ROLE up'), $c->background('s2', 'DROP ROLE down'));
	my @errors = grep { $_ ne '' } map { TesseraCluster::ended($c, $_) } @drops;
	is_deeply([ grep { !/tuple concurrently (?:deleted|updated)/ } @errors ], [], "two members are dropped at once ($round)");
	my @left = $c->query_all(q{SELECT coalesce(string_agg(rolname, ','), '') FROM pg_roles WHERE rolname IN ('up', 'down')});
	is_deeply(\@left, [ ($left[0]) x 4 ], 'alike on every server');
	$c->query('s1', 'DROP ROLE IF EXISTS up, down');
}

done_testing();
