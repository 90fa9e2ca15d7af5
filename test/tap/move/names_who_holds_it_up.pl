# A move that waits says for whom, so that an operator can act: for a client's session the node and the process that tessera.terminate takes, and its
# application, wherever the client is connected; for what a client has prepared the client's identifier, owner and time. It shows no statement and no
# key of a row.
use strict;
use warnings;

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('holders', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.balancer_interval' => 1 });
$c->create(shards => 3, routers => 1);
$c->query('s1', $_) foreach (
	'SELECT tessera.stop_balancer()',
	'CREATE ROLE teller LOGIN',
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL)',
	'INSERT INTO acc SELECT g, 0 FROM generate_series(1, 300) g',
	'GRANT SELECT, UPDATE ON acc TO teller',
	"SELECT tessera.shard_table('acc', 'k')",
	"SELECT tessera.move_range('acc', 101, tessera.maxkey(), 's2')");

my $DONOR = "SELECT waiting_for FROM tessera.stat_progress_migration WHERE side = 'donor'";
my $MOVES = "SELECT waiting_for FROM tessera.migrations WHERE state = 'running'";

# Who writes through a router: the router's process, not that of the shard, ends it.
my $writer = $c->session('r1', on_error_stop => 0);
$writer->query("SET application_name = 'till'; BEGIN; UPDATE acc SET bal = 4711 WHERE k = 150");
my $pid = $writer->query('SELECT pg_backend_pid()');
my $move = $c->begin('s1', "SELECT tessera.move_range('acc', 101, 201, 's3')");
my $named = qr/^transaction of process $pid on node "r1" \(application "till"\)$/;
ok($c->wait_for('s2', $DONOR, $named), 'the donor names the session on its own node');
ok($c->wait_for('s1', $MOVES, $named), 'so does the config node');
is($c->query('s1', "SELECT state, query ~ '^(SELECT pg_backend_pid|UPDATE)' FROM tessera.cluster_activity WHERE node = 'r1' AND pid = $pid"),
	'idle in transaction|t', 'that is what tessera.cluster_activity shows');
is($c->query('s3', "SELECT tessera.terminate('r1', $pid)"), 't', 'and what tessera.terminate takes');
is($c->finish($move), '', 'then the move goes on');
is($c->query('s2', "SELECT tessera.range_owner('acc', 150)"), 's3', 'to its end');
eval { $writer->quit };

# A session of the donor itself.
$writer = $c->session('s2');
$writer->query("SET application_name = 'desk'; BEGIN; UPDATE acc SET bal = 1 WHERE k = 250");
$pid = $writer->query('SELECT pg_backend_pid()');
$move = $c->begin('s1', "SELECT tessera.move_range('acc', 201, 301, 's3')");
my $user = $c->user;
ok($c->wait_for('s1', $MOVES, qr/^transaction of process $pid on node "s2" \(user "$user", application "desk"\)$/),
	'a session of the donor, with its role');
$writer->query('COMMIT');
is($c->finish($move), '', 'when it has ended the move goes on');
$writer->quit;

# What a client has prepared, over several nodes.
$c->query('r1', "SET ROLE teller; BEGIN; UPDATE acc SET bal = bal - 5 WHERE k = 1; UPDATE acc SET bal = bal + 5 WHERE k = 150; " .
	"PREPARE TRANSACTION 'pay roll'");
$move = $c->begin('s1', "SELECT tessera.move_range('acc', 101, 201, 's2')");
$named = qr/^prepared transaction "pay roll" of role "teller" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00$/;
ok($c->wait_for('s3', $DONOR, $named), 'the donor names what a client has prepared');
ok($c->wait_for('s1', $MOVES, $named), 'so does the config node');
$c->query('s2', "COMMIT PREPARED 'pay roll'");
is($c->finish($move), '', 'when it is committed the move goes on');
is($c->query('r1', 'SELECT sum(bal) FROM acc'), '1', 'and nothing is lost');

# A client's session that prepares what it was waited for: it is no longer to blame.
$writer = $c->session('s2');
$writer->query("SET application_name = ''; BEGIN; UPDATE acc SET bal = bal + 1 WHERE k = 150");
$pid = $writer->query('SELECT pg_backend_pid()');
$move = $c->begin('s1', "SELECT tessera.move_range('acc', 101, 201, 's3')");
ok($c->wait_for('s1', $MOVES, qr/^transaction of process $pid on node "s2" \(user "$user"\)$/), 'a session without an application');
$writer->query("PREPARE TRANSACTION 'wages'");
ok($c->wait_for('s1', $MOVES, qr/^prepared transaction "wages" of role "$user" since/), 'what it has prepared is named instead');
$writer->query("ROLLBACK PREPARED 'wages'");
is($c->finish($move), '', 'when that is rolled back the move goes on');
$writer->quit;
$c->query('s1', "SELECT tessera.move_range('acc', 101, 201, 's2')");

# A shard that is to leave.
$c->query('r1', "SET ROLE teller; BEGIN; UPDATE acc SET bal = bal - 5 WHERE k = 1; UPDATE acc SET bal = bal + 5 WHERE k = 250; " .
	"PREPARE TRANSACTION 'rent'");
$c->query('s1', "SELECT tessera.remove_shard('s3')");
ok($c->wait_for('s1', "SELECT array_to_string(array_agg(in_the_way), ' ') FROM tessera.draining_shards",
	qr/prepared transaction "rent" of role "teller" since/), 'it is named as what is in the way');
$c->query('s1', "ROLLBACK PREPARED 'rent'");
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.shards WHERE name = 's3'", 0), 'when it is rolled back the shard leaves');

done_testing();
