# A node that stands still (its processes are stopped, or its link is cut without a word): whoever waits for it gets an error in time that names it,
# in every kind of wait; nobody who has nothing to do with it waits; a wait that is only long goes on.
use strict;
use warnings FATAL => 'all';

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);
use TesseraCluster;

my $proxy;
END { local $?; $proxy->kill_kill if $proxy }

my $c = TesseraCluster->new('still', settings => { 'tessera.connect_timeout' => '1s', 'tessera.node_timeout' => '1s',
	'tessera.commit_timeout' => '3s', 'tessera.abort_timeout' => '2s',
		tcp_keepalives_idle => 0 });
$c->create(shards => 3);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v int, filler text)',
	"SELECT tessera.shard_table('t', 'k')",
	"SELECT tessera.move_range('t', 1001, 2001, 's2')",
	"SELECT tessera.move_range('t', 2001, tessera.maxkey(), 's3')",
	'INSERT INTO t SELECT g, 0 FROM generate_series(1, 3000) g');

# Sessions of s1, each with a connection to s3 that has been used.
my %session;
sub opened
{
	my ($name, @before) = @_;
	my $session = $c->session('s1', on_error_stop => 0);
	$session->query("\\set VERBOSITY verbose");
	$session->query('SELECT v FROM t WHERE k = 2500');
	$session->query($_) foreach @before;
	die $session->{stderr} if $session->{stderr} =~ /ERROR/;
	$session{$name} = $session;
	return;
}

# Runs it in the session: an error that matches, while the server still stands still.
sub fails_meanwhile
{
	my ($name, $sql, $error) = @_;
	my $session = $session{$name};
	my $start = time;
	$session->{stderr} = '';
	$session->query($sql);
	my $took = time - $start;
	like($session->{stderr}, $error, "$name: an error that says why");
	$session->query('ROLLBACK');
	note sprintf('%s: %.1f s', $name, $took);
	return;
}

my $still = qr/08006: *(?:node "s3" stands still|could not connect to node "s3")/;

# ---- a wait that is long is no standing still; the sockets of internal connections are watched ----

opened('long');
my $holder = $c->session('s2');
$holder->query('BEGIN; UPDATE t SET v = 1 WHERE k = 2500');
my $waiting = $c->begin('s1', 'UPDATE t SET v = v + 1 WHERE k = 2500');
$c->runs_for('s1', 'UPDATE t SET v = v + 1%', '4 s');	# longer than any time-out
$holder->query('COMMIT');
is($c->finish($waiting), '', 'a statement that waits for a lock on another node waits on');
is($c->query('s3', 'SELECT v FROM t WHERE k = 2500'), '2', 'and is done');
is($c->query('s3', "SELECT DISTINCT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tessera%' AND client_addr IS NOT NULL") > 0 ? 1 : 0,
	1, 'internal connections are of TCP here');

# rows that wait in front of a busy shard: the router cannot send for longer than any time-out of sockets
my $file = "$PostgreSQL::Test::Utils::tmp_check/rows";
append_to_file($file, join '', map { "$_\t0\t" . ('x' x 4000) . "\n" } 4000 .. 12000);
chmod 0644, $file;
$holder->query("BEGIN; INSERT INTO t VALUES (4001, 1)");
my $copy = $c->begin('s1', "COPY t FROM '$file'");
$c->runs_for('s1', 'COPY t FROM%', '6 s');
$holder->query('ROLLBACK');
is($c->finish($copy), '', 'COPY into a shard that does not read for long goes on');
is($c->query('s2', 'SELECT count(*) FROM t WHERE k >= 4000'), '8001', 'and all rows are there');
$c->query('s1', 'DELETE FROM t WHERE k >= 4000');

# ---- a server that is stopped ----

opened('read');
opened('write');
opened('write in a block', 'BEGIN');
opened('commit of one', 'BEGIN', 'UPDATE t SET v = 10 WHERE k = 2510');
opened('commit of two', 'BEGIN', 'UPDATE t SET v = 20 WHERE k = 1520', 'UPDATE t SET v = 20 WHERE k = 2520');
opened('cursor', 'BEGIN', 'DECLARE d CURSOR FOR SELECT * FROM t WHERE k > 2000 ORDER BY k', 'FETCH 1 FROM d');
opened('all shards');
opened('COPY');
opened('DDL');
opened('LOCK TABLE', 'BEGIN');
opened('TRUNCATE');
opened('cancelled', "SET tessera.node_timeout = '1min'", "SET statement_timeout = '500ms'");
opened('move');
$c->freeze('s3');

is($c->query('s1', 'SELECT v FROM t WHERE k = 1500'), '0', 'others do not wait');
fails_meanwhile('read', 'SELECT v FROM t WHERE k = 2500', $still);
fails_meanwhile('read', 'SELECT v FROM t WHERE k = 2500', $still);
fails_meanwhile('all shards', 'SELECT count(*) FROM t', $still);
fails_meanwhile('write', 'UPDATE t SET v = 30 WHERE k = 2530', qr/08007: *node "s3" did not answer whether the statement is committed/);
fails_meanwhile('write in a block', 'UPDATE t SET v = 40 WHERE k = 2540', $still);
fails_meanwhile('commit of one', 'COMMIT', qr/0800[67]: *node "s3"/);
fails_meanwhile('commit of two', 'COMMIT', qr/0800[67]: /);
fails_meanwhile('cursor', 'FETCH ALL FROM d', qr/\A\z|$still/);
fails_meanwhile('COPY', "COPY t FROM '$file'", $still);
fails_meanwhile('DDL', 'CREATE INDEX never ON t (v)', $still);
fails_meanwhile('LOCK TABLE', 'LOCK TABLE t', $still);
fails_meanwhile('TRUNCATE', 'TRUNCATE t', $still);
fails_meanwhile('cancelled', 'SELECT v FROM t WHERE k = 2500', qr/57014/);
fails_meanwhile('move', "SELECT tessera.move_range('t', 1500, 1600, 's3')", qr/ERROR/);
is($c->query('s2', 'UPDATE t SET v = v WHERE k = 1400 RETURNING k'), '1400', 'no lock of theirs stays on the others');
$c->thaw('s3');
$_->quit foreach values %session;
%session = ();
ok($c->wait_for('s1', 'SELECT v FROM t WHERE k = 2999', '0'), 'the node goes on: it is asked again');
foreach my $node (qw(s1 s2 s3))
{
	ok($c->wait_for($node, 'SELECT count(*) FROM pg_prepared_xacts', '0', 60), "$node: nothing stays prepared");
}
like($c->query('s2', 'SELECT string_agg(v::text, \',\') FROM t WHERE k IN (1520, 2520)'), qr/^(?:0,0|20,20)$/,
	'the transaction over two shards is there or not, as a whole');
is($c->query('s1', 'SELECT count(*) FROM t'), '3000', 'all rows are there');

# ---- the config node ----

$c->freeze('s1');
is($c->query('s2', 'SELECT count(*) FROM t WHERE k IN (1500, 2500)'), '2', 'without the config node the others go on');
like($c->error('s2', 'CREATE TABLE x (a int)'), qr/08006: .*node "s1"/, 'DDL names it');
$c->thaw('s1');

# ---- a link that is cut: nothing passes, nobody is told ----

my $binary = "$PostgreSQL::Test::Utils::tmp_check/proxy";
(my $source = __FILE__) =~ s{tap/[^/]*/[^/]*$}{chaos/proxy.c};
is(system(qw(cc -std=gnu99 -O1 -o), $binary, $source), 0, 'the proxy is built');
my ($in, $out) = ('', '');
$proxy = IPC::Run::start([$binary], '<', \$in, '>', \$out);

sub ask_proxy
{
	my ($line) = @_;
	$out = '';
	$in = "$line\n";
	my $deadline = time + 20;
	while ($out !~ /\n/)
	{
		die "the proxy does not answer: $line" if time > $deadline;
		$proxy->pump_nb;
		sleep 0.01;
	}
	return $out;
}

my ($port) = ask_proxy('listen s3 ' . $c->node('s3')->port) =~ /port (\d+)/;
(my $conninfo = $c->conninfo('s3')) =~ s/port=\d+/port=$port/;
$c->query('s1', "SELECT tessera.update_node('s3', '$conninfo')");
opened('cut off');
opened('cut off in a block', 'BEGIN', 'UPDATE t SET v = 7 WHERE k = 2700');
like(ask_proxy('link s1 s3 hold'), qr/ok/, 'the link from s1 to s3 is cut');
fails_meanwhile('cut off', 'SELECT v FROM t WHERE k = 2500', $still);
fails_meanwhile('cut off', 'SELECT v FROM t WHERE k = 2500', $still);
fails_meanwhile('cut off in a block', 'UPDATE t SET v = 8 WHERE k = 2701', $still);
is($c->query('s2', 'SELECT count(*) FROM t'), '3000', 'who reaches it by another link does not notice');
like(ask_proxy('link s1 s3 ok'), qr/ok/, 'the link is mended');
ok($c->wait_for('s1', 'SELECT v FROM t WHERE k = 2701', '0'), 'and used again');
ok($c->wait_for('s1', "UPDATE t SET v = v WHERE k = 2700 RETURNING v", qr/^0/), 'what was under way has been rolled back');
$_->quit foreach values %session;
done_testing();
