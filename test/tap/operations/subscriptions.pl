# Logical replication into tables of the cluster is refused: rows that an apply worker or its COPY writes would land on the node of the subscription,
# whatever shard owns them. By whatever way a subscription has got such a table, none of its rows lands, operators are told on any node, and there is
# a way out of it. Into tables of one node alone it works as ever.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;


my $c = TesseraCluster->new('subscriptions', settings => { wal_retrieve_retry_interval => '100ms' });
$c->create(shards => 2, routers => 1);
my $publisher = TesseraCluster::quote($c->conninfo('s1', 'pub'));
my %tables = (sharded => 'public.t', placed => 'app.p', replicated => 'public.r', partition => 'public.parts_1', own => 'public.own',
	own2 => 'public.own2');

# The publisher: another database of the server of s1. The tables of the cluster are made on s1, the last two on s2 alone.
$c->query('s1', 'CREATE DATABASE pub');
$c->query($_->[0], 'CREATE SCHEMA IF NOT EXISTS app', dbname => $_->[1]) foreach ([ 's1', 'pub' ], [ 's1', 'postgres' ]);
$c->query('s1', "CREATE TABLE $_ (k int PRIMARY KEY, v text)") foreach @tables{qw(sharded placed replicated)};
$c->query('s1', $_) foreach (
	'CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY RANGE (k)',
	'CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)',
	"SELECT tessera.shard_table('t', 'k')",
	"SELECT tessera.replicate_table('r')");
$c->query('s2', "SET tessera.replicate_ddl = off; CREATE TABLE $_ (k int PRIMARY KEY, v text)") foreach qw(own own2);
foreach my $kind (sort keys %tables)
{
	$c->query('s1', "CREATE TABLE $tables{$kind} (k int PRIMARY KEY, v text)", dbname => 'pub');
	$c->query('s1', "INSERT INTO $tables{$kind} VALUES (1, 'copied')", dbname => 'pub');
	$c->query('s1', "CREATE PUBLICATION $kind FOR TABLE $tables{$kind}", dbname => 'pub');
}

sub subscribe
{
	my ($publications, $options) = @_;
	return "CREATE SUBSCRIPTION sub CONNECTION $publisher PUBLICATION $publications" . ($options ? " WITH ($options)" : '');
}


# ---- The statements

my $refused = qr/ERROR:  0A000: subscription "sub" cannot write into table (\S+) of the cluster.*HINT:  Take the table out of the publication/s;
foreach my $kind (qw(sharded placed replicated partition))
{
	like($c->error('s2', subscribe($kind)), $refused, "CREATE SUBSCRIPTION: a $kind table");
}
like($c->error('s2', subscribe('own, sharded', 'create_slot = false, enabled = false')), $refused, 'among others, without a slot');
is($c->query('s1', 'SELECT count(*) FROM pg_replication_slots WHERE NOT temporary'), '0', 'nothing is left at the publisher');
is($c->query('s2', 'SELECT count(*) FROM pg_subscription'), '0', 'nor on the node');

$c->query('s2', subscribe('own'));
ok($c->wait_for('s2', 'SELECT v FROM own WHERE k = 1', 'copied'), 'a table of the node alone: its rows are copied');
$c->query('s1', "INSERT INTO own VALUES (2, 'applied')", dbname => 'pub');
ok($c->wait_for('s2', 'SELECT v FROM own WHERE k = 2', 'applied'), 'and changes are applied');

like($c->error('s2', "ALTER SUBSCRIPTION sub $_"), $refused, "ALTER SUBSCRIPTION ... $_")
  foreach ('SET PUBLICATION sharded', 'ADD PUBLICATION replicated');
$c->query('s1', 'ALTER PUBLICATION own ADD TABLE app.p', dbname => 'pub');
like($c->error('s2', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION'), $refused, 'and what the publication has got meanwhile');
$c->query('s1', 'ALTER PUBLICATION own DROP TABLE app.p', dbname => 'pub');

# before core has dropped at the publisher what would not come back: the slot of a table that is being copied
sub copying
{
	return $c->query('s1', "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name ~ '_sync_'");
}
my $holder = $c->begin('s2', "BEGIN; INSERT INTO own2 VALUES (1, 'held')");
$c->query('s2', 'ALTER SUBSCRIPTION sub ADD PUBLICATION own2');
ok($c->wait_for('s2', "SELECT count(*) FROM pg_stat_activity a JOIN pg_stat_subscription s USING (pid)
	WHERE s.relid = 'own2'::regclass AND a.wait_event = 'transactionid'", '1'), 'a copy waits');
my $slot = copying();
like($slot, qr/^pg_\d+_sync_\S+\|\S+$/, 'with a slot at the publisher');
like($c->error('s2', "ALTER SUBSCRIPTION sub $_"), $refused, "ALTER SUBSCRIPTION ... $_")
  foreach ('SET PUBLICATION sharded', 'SET PUBLICATION own, partition');
is(copying(), $slot, 'which is still there when that is refused');
$c->finish($holder);
ok($c->wait_for('s2', 'SELECT v FROM own2 WHERE k = 1', 'copied'), 'the copy goes on');
$c->query('s2', 'ALTER SUBSCRIPTION sub DROP PUBLICATION own2');

# ---- What was made in spite of it: rows of the catalog that the statements would not have made

sub add_table
{
	my ($table, $state) = @_;
	return $c->query('s2', "SET allow_system_table_mods = on; INSERT INTO pg_subscription_rel
		SELECT oid, '$table'::regclass, '$state', NULL FROM pg_subscription WHERE subname = 'sub'");
}

my $log = -s $c->node('s2')->logfile;
add_table($_, 'r') foreach qw(t app.p);
$c->query('s1', $_, dbname => 'pub') foreach (
	'ALTER PUBLICATION own ADD TABLE t, app.p',
	"INSERT INTO t SELECT g, 'applied' FROM generate_series(2, 9) g",
	"INSERT INTO app.p VALUES (2, 'applied')",
	"INSERT INTO own VALUES (3, 'applied')");
my $worker = qr/ERROR:  subscription "sub" cannot write into table (public\.t|app\.p) of the cluster/;
ok($c->node('s2')->wait_for_log($worker, $log), 'a worker that runs is refused when it commits');
ok($c->node('s2')->wait_for_log(qr/($worker.*){3}/s, $log), 'and whenever it starts again');
unlike(slurp_file($c->node('s2')->logfile, $log), qr/PANIC|TRAP/, 'with no harm to the server');
is($c->query('s2', 'SELECT count(*) FROM own'), '2', 'what came in the same transactions waits');

my $found = qr/^10\|(public\.t|app\.p)\|node s2: subscription sub writes into it$/;
my @violations = split /\n/, $c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)');
is(scalar(grep { /$found/ } @violations), 2, 'check_consistency finds both');
is(scalar(@violations), 2, 'and no row of theirs') or diag(join "\n", @violations);
my $problem = 'cannot be sharded: subscription "sub" of node "s2" writes into it';
like($c->query('s1', "SELECT problem FROM tessera.check_table('app.p', 'k') WHERE severity = 'error'"), qr/^table "p" $problem/m,
	'check_table names it');
like($c->error('s1', "SELECT tessera.shard_table('app.p', 'k')"), qr/0A000: table "p" $problem/, 'shard_table on another node refuses');
like($c->error('s1', "SELECT tessera.replicate_table('app.p')"), qr/0A000: .*cannot be replicated: subscription "sub" of node "s2" writes into it/,
	'so does replicate_table');
my ($elsewhere) = grep { $_ ne $c->query('s1', "SELECT shard FROM tessera.schemas WHERE schema = 'app'") } qw(s1 s2);
like($c->error('s1', "SELECT tessera.move_schema('app', '$elsewhere')"), qr/0A000: schema "app" cannot be moved: subscription "sub" of node "s2"/,
	'so does move_schema');

# a node that stands still is waited for before the table is locked
$c->freeze('r1');
my $check = $c->background('s1', "SELECT problem FROM tessera.check_table('app.p', 'k')");
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity a WHERE query ~ '^SELECT problem FROM tessera.check_table' AND wait_event = 'Extension'
	AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'app.p'::regclass)", '1'), 'check_table waits without a lock');
is($c->ended($check), '', 'it ends');
like($check->{out}, qr/^table "p" $problem/m, 'and knows what the other nodes say');
$c->thaw('r1');

# disabled by the error, and enabled again, which core needs for a REFRESH
sub enable
{
	my ($status, undef, $errors) = $c->psql('s2', 'ALTER SUBSCRIPTION sub ENABLE');
	is($status, 0, 'it can be enabled again');
	like($errors, qr/WARNING:  0A000: subscription "sub" cannot write into table (public\.t|app\.p) of the cluster/, 'with a warning');
	return;
}
my $enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'sub'";
$c->query('s2', 'ALTER SUBSCRIPTION sub SET (disable_on_error = true)');
ok($c->wait_for('s2', $enabled, 'f'), 'with disable_on_error it is disabled');
foreach my $time (1, 2)
{
	$log = -s $c->node('s2')->logfile;
	enable();
	ok($c->node('s2')->wait_for_log(qr/$worker.*subscription "sub" has been disabled because of an error/s, $log), "and again, $time");
	is($c->query('s2', $enabled), 'f', 'the catalog says so');
}
is($c->query('s2', 'SELECT count(*) FROM own'), '2', 'nothing has come');
$c->query('s2', 'ALTER SUBSCRIPTION sub SET (disable_on_error = false)');

# a COPY that a table begins with
$c->query('s2', "SET allow_system_table_mods = on; UPDATE pg_subscription_rel SET srsubstate = 'i' WHERE srrelid <> 'own'::regclass");
$log = -s $c->node('s2')->logfile;
enable();
ok($c->node('s2')->wait_for_log($worker, $log), 'a table that is to be copied first is refused as well');

# ---- Out of it

$c->query('s1', 'ALTER PUBLICATION own DROP TABLE t, app.p', dbname => 'pub');
$c->query('s2', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
ok($c->wait_for('s2', 'SELECT count(*) FROM own', '3'), 'without the tables of the cluster it goes on');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)'), '0', 'all is well');
is($c->query('s1', 'SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM app.p)'), '0', 'no row has come');
$c->query('s1', "SELECT tessera.shard_table('app.p', 'k')");

# ---- A database that is to be a cluster

$c->query('s2', 'CREATE DATABASE fresh');
$c->query('s2', $_, dbname => 'fresh') foreach ('CREATE TABLE own (k int PRIMARY KEY, v text)',
	subscribe('own', 'slot_name = fresh') =~ s/sub /fresh /r, 'CREATE EXTENSION tessera');
my $create = sprintf("SELECT tessera.create_cluster('f', %s, shard => 'f1')", TesseraCluster::quote($c->conninfo('s2', 'fresh')));
like($c->error('s2', $create, dbname => 'fresh'), qr/0A000: subscription "fresh" writes into table public\.own, which would be one of the cluster/,
	'create_cluster refuses a database with a subscription');
$c->query('s2', 'DROP SUBSCRIPTION fresh', dbname => 'fresh');
$c->query('s2', $create, dbname => 'fresh');
$c->query('s2', 'DROP SUBSCRIPTION sub');

done_testing();
