# tessera.health names what an operator has to see to, on each node: nodes that are down or stand still, subscriptions that do not run, slots that
# keep WAL for nobody, synchronous standbys that are gone. It is empty before, and again when each is mended. Nodes that stand still are asked at
# once: the rows of two come together.
use strict;
use warnings FATAL => 'all';

use Test::More;
use TesseraCluster;


my $c = TesseraCluster->new('health', settings => { wal_retrieve_retry_interval => '100ms', max_wal_size => '32MB', min_wal_size => '32MB' });
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach 'CREATE TABLE t (k int PRIMARY KEY, v text)', "SELECT tessera.shard_table('t', 'k')", 'CREATE DATABASE pub',
	'CREATE ROLE reader';

sub found
{
	my ($name, $subject) = @_;
	return $c->query($name, "SELECT severity, subject, problem FROM tessera.health WHERE subject ~ '$subject' ORDER BY subject");
}

sub all_well
{
	my ($what) = @_;
	ok($c->wait_for($_, "SELECT count(*) FROM tessera.health WHERE subject !~ '^node ' OR severity <> 'warning'", '0'), "$what: all is well on $_")
		or diag $c->query($_, 'SELECT * FROM tessera.health')
		foreach $c->names;
	return;
}

my $silent = "SELECT string_agg(name, ' ' ORDER BY name) FROM (SELECT name, silent_since FROM tessera.shards
	UNION ALL SELECT name, silent_since FROM tessera.routers) AS n WHERE silent_since <= clock_timestamp()";
all_well('in the beginning');
is($c->query($_, $silent), '', "tessera.shards and tessera.routers have no silent node on $_") foreach $c->names;

# ---- Nodes

$c->stop('s2');
foreach my $name (qw(s1 r1))
{
	my $problem = found($name, '^node ');
	like($problem, qr/^error\|node s2\|it does not answer this node since \S+ \S+: Connection refused$/, "$name names a node that is down");
	is($c->query($name, $silent), 's2', "so do tessera.shards and tessera.routers on $name");
	is(found($name, '^node '), $problem, "since when does not change, on $name");
}
$c->start('s2');
all_well('the node is back');
is($c->query($_, $silent), '', "it is silent no longer on $_") foreach qw(s1 r1);

# whoever tries to connect finds it out
$c->query('s1', "SELECT tessera.move_range('t', 1000, tessera.maxkey(), 's2')");
$c->stop('s2');
like($c->error('r1', 'SELECT * FROM t'), qr/08006/, 'a statement needs a node that is down');
is($c->query('r1', "SET ROLE reader; $silent"), 's2', 'everybody sees it in tessera.shards, though nobody has looked at tessera.health');
$c->start('s2');
$c->query('r1', 'SELECT * FROM t');
is($c->query('r1', $silent), '', 'the first statement that reaches it ends that');

$c->freeze($_) foreach qw(s2 r1);
like(found('s1', '^node '), qr/^error\|node r1\|it does not answer this node since [^|]*: nothing has come from it for \d+ ms
error\|node s2\|it does not answer this node since [^|]*: nothing has come from it for \d+ ms$/, 'two nodes that stand still');
is($c->query('s1', $silent), 'r1 s2', 'both are silent');
$c->thaw($_) foreach qw(s2 r1);
all_well('they go on');

# ---- Subscriptions

my $publisher = TesseraCluster::quote($c->conninfo('s1', 'pub'));
$c->query('s1', $_, dbname => 'pub') foreach 'CREATE TABLE own (k int PRIMARY KEY)', 'CREATE TABLE t (k int PRIMARY KEY, v text)',
	'CREATE PUBLICATION own FOR TABLE own';
$c->query('s2', 'SET tessera.replicate_ddl = off; CREATE TABLE own (k int PRIMARY KEY)');
$c->query('s2', "CREATE SUBSCRIPTION sub CONNECTION $publisher PUBLICATION own");
ok($c->wait_for('s2', "SELECT count(*) FROM tessera.health", '0'), 'a subscription that works') or diag found('s2', '');
$c->query('s2', 'ALTER SUBSCRIPTION sub DISABLE');
is(found('s2', '^subscription'), 'notice|subscription sub|it is disabled: its slot at the publisher keeps WAL there', 'one that is disabled');
ok($c->wait_for('s1', "SELECT severity, problem ~ '^nobody reads it, and it keeps .* of WAL' FROM tessera.health
	WHERE subject = 'replication slot sub'", 'warning|t'), 'its slot keeps WAL, on the server of the publisher') or diag found('s1', '');
$c->query('s2', $_) foreach "ALTER SUBSCRIPTION sub CONNECTION 'dbname=nowhere'", 'ALTER SUBSCRIPTION sub ENABLE';
ok($c->wait_for('s2', "SELECT severity, problem ~ '^it has no worker: it fails again and again' FROM tessera.health
	WHERE subject = 'subscription sub'", 'warning|t'), 'one that cannot connect') or diag found('s2', '');
$c->query('s2', "ALTER SUBSCRIPTION sub CONNECTION $publisher");
all_well('it connects');
$c->query('s2', "SET allow_system_table_mods = on;
	INSERT INTO pg_subscription_rel SELECT oid, 't'::regclass, 'r', NULL FROM pg_subscription WHERE subname = 'sub'");
is(found('s2', '^subscription'), 'error|subscription sub|it does not run, as it would write into tables of the cluster: t',
	'one that is refused by the guard');
$c->query('s2', 'DROP SUBSCRIPTION sub');
all_well('it is dropped');

# ---- Slots and standbys

$c->query('s2', "SELECT pg_create_physical_replication_slot('gone', true)");
like(found('s2', 'slot'), qr/^warning\|replication slot gone\|no standby reads it, and it keeps \d+ \w+ of WAL$/, 'a slot whose standby is gone');
$c->query('s2', "SELECT pg_drop_replication_slot('gone')");
$c->set('s2', synchronous_standby_names => "'ANY 2 (a, b, c)'");
ok($c->wait_for('s2', "SELECT problem FROM tessera.health WHERE subject = 'synchronous standbys'",
	'0 of them are connected, and commits wait for 2: ANY 2 (a, b, c)'), 'synchronous standbys that are gone');
$c->set('s2', synchronous_standby_names => "'a'");
ok($c->wait_for('s2', "SELECT problem FROM tessera.health WHERE subject = 'synchronous standbys'",
	'0 of them are connected, and commits wait for 1: a'), 'one that is gone');
$c->reset_settings('s2');
all_well('they are not waited for');

done_testing();
