# The old primary of a node that lives on beside its promoted standby: no statement of the cluster is executed by it, be it reached by a connection of
# before, by a conninfo that still leads to it, or by its own clients, once it or who connects to it knows of the new one (S62, invariants 2 and 8).

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('old_primary',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 50, 'tessera.gate_timeout' => '5s',
	'tessera.connect_timeout' => '2s',
		'tessera.registry_refresh_interval' => '1h' });
# s1 is the config node, s2 loses its primary, r1 is a router.
$c->create(shards => 3, routers => 1);
$c->make_table([ 501, 901, 's2' ], [ 901, 'tessera.maxkey()', 's3' ]);
my $replaced = qr/TS003: .*another server was promoted in the place of this one/;

sub sound
{
	my ($what) = @_;
	ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)', '0', 30), "$what: consistent")
	  or diag $c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)');
	foreach my $n ($c->names)
	{
		is($c->query($n, 'SELECT count(*), count(DISTINCT k) FROM t'), '1000|1000', "$what: $n shows each row once");
	}
	return;
}

# An error of a session that stays open.
sub refused
{
	my ($session, $sql, $error, $what) = @_;
	$session->{stderr} = '';
	$session->query("\\set VERBOSITY verbose\n$sql;\n");
	like($session->{stderr}, $error, $what);
	return;
}

# Workers connect to other nodes on their own account (to pass notifications on, to collect statistics, to resolve transactions), and so tell an old
# primary, or are told by others. Where what others do is looked at, they wait: those of the nodes named, and those of a server that is yet to be
# started, from its start on.
sub hold_workers
{
	my ($server, @names) = @_;
	$c->query($_, "SELECT tessera_test.injection_set('worker_connecting', 'pause', NULL)") foreach @names;
	$server->append_conf('postgresql.conf', "tessera.injection_start = 'worker_connecting'");
	return;
}

sub release_workers
{
	my ($server, @names) = @_;
	$c->query($_, "SELECT tessera_test.injection_clear()") foreach @names;
	$server->safe_psql('postgres', 'SELECT tessera_test.injection_clear()');
	$server->append_conf('postgresql.conf', "tessera.injection_start = ''");
	return;
}

# Promotes the standby of a node and leaves the primary alive: returns it.
sub promote_beside
{
	my ($name) = @_;
	my $old = $c->node($name);
	$c->promote($name, stop => undef);
	return $old;
}

sub old_error
{
	my ($old, $sql) = @_;
	my ($status, $stdout, $stderr) = $old->psql('postgres', $sql, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

# The conninfo lists the old primary first, and it lives: a promoted standby does not take the node over. Then the address is changed.
$c->add_standby('s2');
my $reader = $c->session('r1', on_error_stop => 0);
$reader->query("SELECT count(*) FROM t");
my $writer = $c->session('r1', on_error_stop => 0);
$writer->query("BEGIN; UPDATE t SET v = 'lost' WHERE k = 700");
my $local = $c->session('s2', on_error_stop => 0);
$local->query("SELECT count(*) FROM t WHERE k = 800");
my $local_writer = $c->session('s2', on_error_stop => 0);
$local_writer->query("BEGIN; UPDATE t SET v = 'lost' WHERE k = 801");
my $both = $c->conninfo_of_all('s2');
$c->standby('s2')->safe_psql('postgres', "SELECT tessera_test.injection_set('node_registered', 'pause')");
my $old = promote_beside('s2');
is($c->query('s1', "UPDATE t SET v = 'before' WHERE k = 600 RETURNING v"), 'before',
	'the old primary is the node until the cluster is told otherwise');
$c->query('s1', sprintf("SELECT tessera.update_node('s2', %s, force => true)", TesseraCluster::quote($c->conninfo('s2'))));
ok($c->wait_for('s2', "SELECT sum(paused) FROM tessera_test.injection_list() WHERE name = 'node_registered'", '1'),
	'the promoted server is registered');
$c->query('s1', sprintf("SELECT tessera.update_node('s2', %s, force => true)", TesseraCluster::quote($c->conninfo('s2'))));
$c->query('s2', 'SELECT tessera_test.injection_clear()');
ok($c->wait_for('s2', 'SELECT placements_known AND NOT replaced FROM tessera.promotion_status()'),
	'it takes the node over, though the operator was late');
is($c->query('s2', 'SELECT incarnation > 1, replaced FROM tessera.promotion_status()'), 't|f', 'as a new incarnation of it');

# The old one knows at once: it was told by the config node. A restart does not make it forget.
is($old->safe_psql('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 't', 'the old primary knows that it was replaced');
like(old_error($old, 'SELECT count(*) FROM t WHERE k = 800'), $replaced, 'and refuses reads of its own clients');
like(old_error($old, "BEGIN READ WRITE; UPDATE t SET v = 'wrong' WHERE k = 800"), $replaced, 'and writes');
like(old_error($old, "BEGIN READ WRITE; UPDATE t SET v = 'wrong' WHERE k = 100"), $replaced, 'also to other nodes');
like(old_error($old, 'BEGIN READ WRITE; CREATE TABLE u (a int)'), $replaced, 'and DDL');
like(old_error($old, "SELECT tessera.move_range('t', 501, 601, 's3')"), $replaced, 'and moves');
refused($local, 'SELECT count(*) FROM t WHERE k = 800', $replaced, 'so it does in a session of before');
refused($local_writer, 'COMMIT', $replaced, 'and a transaction that has written before is not committed');
refused($writer, "UPDATE t SET v = 'lost' WHERE k = 701", qr/08006: .*was promoted in the middle of this transaction/,
	'a transaction of a router that has been there does not go on');
$writer->query('ROLLBACK');
is($reader->query("UPDATE t SET v = 'reader' WHERE k = 702 RETURNING v"), 'reader', 'a connection of before is not used again');
is($c->query('s2', "SELECT string_agg(v, ' ' ORDER BY k) FROM t WHERE k IN (600, 700, 701, 702, 801)"), 'old old old reader old',
	'nothing was written on the old one since');
sound('told');
$old->restart;
like(old_error($old, 'SELECT count(*) FROM t WHERE k = 800'), $replaced, 'after a restart the old primary still knows');

# A conninfo that leads to it is of no use: by its name alone, or before the other's.
like($c->error('s1', sprintf("SELECT tessera.update_node('s2', %s, force => true)", TesseraCluster::quote($old->connstr('postgres')))),
	qr/TS003: .*reaches a server that was replaced/, 'it is not registered again');
$c->query('s1', sprintf("SELECT tessera.update_node('s2', %s)", TesseraCluster::quote($both)));
is($c->query('r1', "SELECT count(*) FROM t WHERE k BETWEEN 501 AND 900"), '400', 'target_session_attrs=read-write passes it over');
sound('listed');
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's3')");
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");
sound('moves go on');

# The old primary is away while the standby is promoted, and finds no config node when it is back. It cannot know; but others do, and tell it, as soon
# as they connect to it: its address is still the first.
$old->stop('immediate');
$c->add_standby('s2');
$c->stop('s2', 'immediate');
my $gone = $c->node('s2');
$c->promote('s2', stop => undef, lossy => 1);
ok($c->wait_for('r1', 'SELECT count(*) FROM t', '1000', 30), 'the new server serves while the old one is away');
$c->stop('s1');
hold_workers($gone, 's2', 's3', 'r1');
$gone->start;
is($gone->safe_psql('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 'f', 'the old primary is back, and cannot know');
my $session = $c->session('r1', on_error_stop => 0);
is($session->query("UPDATE t SET v = 'router' WHERE k = 800 RETURNING v"), 'router', 'a router that knows finds the new one');
is($gone->safe_psql('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 't', 'and has told the old one');
like(old_error($gone, 'SELECT count(*) FROM t WHERE k = 800'), $replaced, 'which refuses now');
is($c->query('s2', 'SELECT v FROM t WHERE k = 800'), 'router', 'the write went to the new one');
release_workers($gone, 's2', 's3', 'r1');
$c->start('s1');

# It is to be the node again: the other one is stopped for good.
$c->stop('s2', 'immediate');
like(old_error($gone, 'SELECT tessera.recover_node()'), qr/another server was promoted/, 'not without being told to');
is($gone->safe_psql('postgres', 'SELECT tessera.recover_node(force => true)'), '', 'the old primary takes the node over again');
my $next = $c->node('s2');
$c->{nodes}{s2} = $gone;
is($c->query('s2', 'SELECT placements_known, replaced FROM tessera.promotion_status()'), 't|f', 'and is the node');
is($c->query('s2', 'SHOW default_transaction_read_only'), 'off', 'for target_session_attrs, too');
sound('back');

# Now the other one is the one that was replaced. Without the config node it learns of it from a node that it asks for something.
$c->stop('s1');
hold_workers($next, 's2', 's3', 'r1');
$next->start;
is($next->safe_psql('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 'f', 'the other one is back, and cannot know');
like(old_error($next, "BEGIN; UPDATE t SET v = 'wrong' WHERE k IN (800, 950); COMMIT"), qr/$replaced.*Node "s3" says so/s,
	'another node refuses its statements, and tells it');
ok($next->poll_query_until('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 'so it knows');
like(old_error($next, 'SELECT count(*) FROM t WHERE k = 800'), $replaced, 'and refuses');
release_workers($next, 's2', 's3', 'r1');
$c->start('s1');
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's3')");
$c->query('s1', "SELECT tessera.move_range('t', 501, 601, 's2')");
sound('moves go on after that');

done_testing();
