# The home of an advisory lock changes only while nobody holds it: under load no two sessions ever have a lock at once while nodes come and go; a node
# whose locks are held cannot leave; what was moved is found by sessions that have not heard of it; the loss of a home, and of the session's own node.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('homes', settings => { 'tessera.registry_refresh_interval' => 3600 });
$c->start_nodes('s2', 's3');
$c->create(shards => 1, routers => 1);
$c->query('s1', 'CREATE TABLE counter (k int PRIMARY KEY, n int NOT NULL DEFAULT 0)');
$c->query('s1', "SELECT tessera.shard_table('counter', 'k', 'hash', chunks => 8)");
$c->query('s1', 'INSERT INTO counter SELECT generate_series(1, 40)');
$c->query($_, 'CREATE EXTENSION tessera') foreach 's2', 's3';

sub homes { return $c->query($_[0] // 's1', "SELECT string_agg(name || ':' || n, ' ' ORDER BY name) FROM " .
	"(SELECT name, count(*) AS n FROM tessera.advisory_home JOIN tessera.node USING (node_id) GROUP BY name) h"); }

is(homes(), 's1:64', 'the first node keeps all locks');

#
# load: each lock guards a counter, which is read and written by two statements
#
my %scripts = (
	"\\set k random(1, 12)\nBEGIN;\nSELECT pg_advisory_xact_lock(:k);\nSELECT n FROM counter WHERE k = :k \\gset\n" .
	"UPDATE counter SET n = :n + 1 WHERE k = :k;\nCOMMIT;\n" => 1,
	"\\set k random(21, 32)\nSELECT pg_advisory_lock(:k);\nSELECT n FROM counter WHERE k = :k \\gset\n" .
	"UPDATE counter SET n = :n + 1 WHERE k = :k;\nSELECT pg_advisory_unlock(:k);\n" => 1);
my $done = 0;

sub load
{
	my ($what, $then) = @_;
	my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], scripts => \%scripts, clients => 4, seconds => 600);
	my $before = $c->query('s1', 'SELECT sum(n) FROM counter');
	ok($c->wait_for('s1', "SELECT sum(n) > $before + 30 FROM counter", 't'), 'the load runs');
	$then->();
	my $since = $c->query('s1', 'SELECT sum(n) FROM counter');
	ok($c->wait_for('s1', "SELECT sum(n) > $since + 30 FROM counter", 't'), 'and goes on');
	my $sums = $load->stop;
	unlike($sums->{errors}, qr/ERROR|FATAL/, "$what: no transaction fails");
	return;
}

my $holder = $c->session('r1', on_error_stop => 0);
$holder->query_safe('SELECT pg_advisory_lock(777)');
load('add_shard', sub { $c->add_shard('s2'); });
like(homes(), qr/^s1:\d\d s2:\d\d$/, 'the new shard has slots');
is(homes('s2'), homes(), 'and knows it');
is($c->query('r1', "SELECT home, node FROM tessera.advisory_locks WHERE objid = 777"), 's1|r1', 'a lock that is held stays where it is');
load('add_shard', sub { $c->add_shard('s3'); });
like(homes(), qr/^s1:\d\d s2:\d\d s3:\d\d$/, 'the third shard has slots');

# no two had a lock at once: no update was lost. The ended pgbench may have left statements behind.
ok($c->wait_for($_, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", '0'), "the load is over on $_") foreach 's1', 'r1';
$c->query('s1', 'UPDATE counter SET n = 0');
my $sums = $c->pgbench_start(nodes => [ 's1', 'r1', 's2' ], scripts => \%scripts, clients => 4, transactions => 40);
$c->add_router('r2') if $c->start_node('r2') && $c->query('r2', 'CREATE EXTENSION tessera') eq '';
my $result = $sums->wait(120);
is($result->{failed} + $result->{aborted}, 0, 'no transaction fails');
is($c->query('s1', 'SELECT sum(n) FROM counter'), $result->{processed}, 'and no update is lost');

#
# a node leaves
#
my $keys = $c->query('r1', <<'SQL');
SELECT pg_advisory_lock(k) FROM generate_series(1000, 1100) k;
SELECT min(objid::int8) FILTER (WHERE home = 's3'), min(objid::int8) FILTER (WHERE home <> 's3') FROM tessera.advisory_locks
	WHERE objid BETWEEN 1000 AND 1100;
SQL
my ($key, $elsewhere) = $keys =~ /(\d+)\|(\d+)\s*$/;
$holder->query_safe("SELECT pg_advisory_lock($key)");
my $stale = $c->session('r2', on_error_stop => 0);
$stale->query_safe("SELECT pg_try_advisory_lock_shared($elsewhere)");
like($c->error('s1', "SELECT tessera.remove_shard('s3')"), qr/55006: node "s3" cannot be removed: it is still in use.*keeps advisory locks/s,
	'a node that keeps locks cannot leave');
is($c->query('s2', "SELECT pg_try_advisory_lock($key)"), 'f', 'the lock is still one');
my $before = homes();
$holder->query_safe("SELECT pg_advisory_unlock($key)");
is(homes(), $before, 'nothing has moved');
# What an ended session had is released once its backends have noticed.
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.advisory_locks WHERE home = 's3'", '0'), 'nobody has a lock there');
$c->query('s1', "SELECT tessera.remove_shard('s3')");
like(homes(), qr/^s1:\d\d s2:\d\d$/, 'its slots are with the others when it has left');
is($stale->query_safe("SELECT pg_try_advisory_lock($key)"), 't', 'a session of another node finds the new home');
is($c->query('s2', "SELECT pg_try_advisory_lock($key)"), 'f', 'which all others do, too');
is($c->query('r1', "SELECT pg_try_advisory_lock($key)"), 'f', 'all others');
$stale->quit;
$holder->query_safe('SELECT pg_advisory_unlock_all()');

#
# kill -9
#
my $there = $c->query('s1', "SELECT pg_advisory_lock(k) FROM generate_series(2000, 2050) k; SELECT min(objid::int8) FROM tessera.advisory_locks " .
	"WHERE home = 's2' AND objid BETWEEN 2000 AND 2050");
($there) = $there =~ /(\d+)\s*$/;
$holder->query_safe("SELECT pg_advisory_lock($there), pg_advisory_lock(777)");
my $waiter = $c->background('s1', "SELECT pg_advisory_lock($there)");
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.advisory_locks WHERE NOT granted', '1'), 'another waits for the lock');
$c->kill9('r1');
is($c->ended($waiter), '', 'when the node of the session that has a lock dies, the lock is free');
$c->start('r1');

$holder = $c->session('r1', on_error_stop => 0);
$holder->query_safe("SELECT pg_advisory_lock($there)");
my $lost = $c->session('r1', on_error_stop => 0);
$lost->query_safe("BEGIN; SELECT pg_advisory_xact_lock(777), pg_advisory_xact_lock($there + 0) FROM generate_series(1, 0)");
$c->kill9('s2');
eval { $holder->query('SELECT 1') };
like($holder->{stderr} . ($@ // ''), qr/FATAL:\s+the connection to node "s2", which kept advisory locks/, 'when the home dies, the session ends');
like($c->error('r1', "SELECT pg_advisory_lock($there)"), qr/08006: could not connect to node "s2"/, 'its locks cannot be taken meanwhile');
like($c->query('r1', 'SELECT count(*) FROM tessera.advisory_locks'), qr/^\d+$/, 'locks of the others are shown');
$lost->query_safe('ROLLBACK');
$c->start('s2');
is($c->query('r1', "SELECT pg_try_advisory_lock($there)"), 't', 'and can be when it is back');

done_testing();
