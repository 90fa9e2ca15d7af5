# The library loads at server start and nowhere else; servers of a cluster start, crash, recover and carry load; and the test module that all
# multi-server tests stand on tells differences and errors apart.
use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('servers');
$c->start_nodes('a', 'b');

is_deeply([ $c->names ], [ 'a', 'b' ], 'nodes by name');
is(join(' ', $c->query_all('SHOW shared_preload_libraries')), 'tessera tessera', 'the library is preloaded');
is($c->query('a', 'SHOW wal_level'), 'logical', 'settings of a node');
like($c->conninfo('a'), qr/^host=127\.0\.0\.1 port=\d+ dbname=postgres user=\S+$/, 'conninfo');
my ($out) = run_command([ 'psql', '-X', '-A', '-t', '-d', $c->conninfo('b'), '-c', 'SELECT inet_server_addr()' ]);
is($out, '127.0.0.1', 'nodes are reached by tcp on the loopback interface');

# Without shared_preload_libraries.
like((_plain_psql("LOAD 'tessera'"))[1], qr/55000.*must be loaded at server start.*HINT:.*shared_preload_libraries/s,
	'a later LOAD is refused, with the way out');

$c->query_all('CREATE EXTENSION tessera');
is(join(' ', $c->query_all("SELECT extversion FROM pg_extension WHERE extname = 'tessera'")), '0.1.0 0.1.0', 'CREATE EXTENSION on each node');

# Errors and waiting.
like($c->error('a', 'SELECT 1/0'), qr/ERROR:  22012: division by zero/, 'errors come with their SQLSTATE');
ok(!eval { $c->query('a', 'SELECT 1/0'); 1 }, 'query dies on an error');
is(TesseraCluster::quote(q(it's a \ b)), q(E'it''s a \\\\ b'), 'literals');
ok($c->wait_for('a', 'SELECT 1', '1', 5), 'wait_for');

# A psql runs many statements (PsqlPool): each as in a psql and a session of its own.
my @pid = map { $c->query('a', 'SET work_mem = 64; SELECT pg_backend_pid()') } 1, 2;
isnt($pid[0], $pid[1], 'each statement has a session of its own');
is($c->query('a', 'SHOW work_mem'), '4MB', 'that begins anew');
ok($c->wait_for('a', "SELECT count(*) FROM pg_stat_activity WHERE pid IN ($pid[0], $pid[1])", '0', 10), 'and ends with it');
foreach my $sql ('SELECT 1; SELECT 2', '', ';', "SELECT 1;\nSELECT nothing;\nSELECT 3", 'SELECT (1', "SELECT 'open", '\\echo one', 'SELECT 1 -- one',
	"COPY (SELECT 1) TO STDOUT", q(DO $$BEGIN RAISE WARNING 'heard'; END$$), 'SELECT pg_terminate_backend(pg_backend_pid())',
	"SELECT repeat('x', 200000)", "SELECT length('" . 'x' x 200_000 . "')")
{
	my ($stdout, $stderr) = ('', '');
	my $status = $c->node('a')->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	is_deeply([ $c->psql('a', $sql) ], [ $status, $stdout, $stderr ], 'as a psql of its own: ' . substr($sql, 0, 40));
}
is(($c->psql('a', 'SELECT pg_sleep(60)', timeout => 1))[0], 124, 'a statement that takes too long is given up');
{
	local $ENV{PGOPTIONS} = '-c work_mem=77';
	is($c->query('a', 'SHOW work_mem'), '77kB', 'what the environment says counts');
}

# Comparison with a plain server.
$c->plain_query('CREATE TABLE t AS SELECT g AS k FROM generate_series(1, 5) AS g');
$c->query($_, 'CREATE TABLE t AS SELECT 6 - g AS k FROM generate_series(1, 5) AS g') foreach $c->names;
my ($same, $detail) = $c->same_everywhere('SELECT k FROM t');
ok($same, 'the same rows in another order are the same') or diag $detail;
$c->query('b', 'UPDATE t SET k = 7 WHERE k = 5');
($same, $detail) = $c->same_everywhere('SELECT k FROM t');
ok(!$same, 'another row is not');
like($detail, qr/b differs from plain:\n  missing: 5\n  too many: 7$/, 'and is named');

# Many questions in one session.
my @questions = ('SELECT k FROM t ORDER BY k', 'SELECT k FROM t WHERE k < 0', "SELECT NULL, ''", "SELECT E'a\\n\\nb\\n'",
	'SELECT k FROM t ORDER BY k DESC');
is(join(', ', map { "<$_>" } $c->plain_answers(@questions)),
	"<1\n2\n3\n4\n5>, <>, <|>, <a\n\nb\n>, <5\n4\n3\n2\n1>", 'each has its answer');
is(join(', ', $c->answers('b', @questions[ 0, 4 ])), "1\n2\n3\n4\n7, 7\n4\n3\n2\n1", 'of the node that is asked');
like(eval { $c->answers('b', 'SELECT 1', 'SELECT 1 / 0', 'SELECT 2'); 'no error' } // $@, qr/22012/, 'an error is told');
$c->same_answers('in another order', ['SELECT k FROM t WHERE k < 5'], [ 'a', 'b' ], any_order => 1);

# A session that waits for another.
my $session = $c->session('a');
$session->query_safe('BEGIN; LOCK TABLE t');
like($c->error('a', "SET lock_timeout = '50ms'; SELECT * FROM t"), qr/55P03/, 'a session keeps its lock');
$session->query_safe('COMMIT');
$session->quit;

# Load on several nodes.
$c->query_all('CREATE TABLE counter AS SELECT 0 AS n');
my $load = $c->pgbench_start(script => 'UPDATE counter SET n = n + 1;', clients => 2, transactions => 50);
my $sums = $load->wait(60);
is($sums->{processed}, 200, 'pgbench on two nodes, two clients each');
is($sums->{failed} + $sums->{aborted}, 0, 'without failures');
ok($sums->{ok}, 'and ended well') or diag $sums->{errors};
is($sums->{by_node}{b}{processed}, 100, 'counted by node');
is(join(' ', $c->query_all('SELECT n FROM counter')), '100 100', 'what pgbench counted is what happened');
$sums = $c->pgbench(nodes => ['a'], script => "SELECT 1/0;", clients => 1, transactions => 1);
ok(!$sums->{ok} && $sums->{aborted} == 1, 'an error ends a client and is told');
$load = $c->pgbench_start(nodes => ['b'], script => 'SELECT 1;', seconds => 600);
ok($load->running, 'a long run goes on');
$load->stop;
ok(!$load->running, 'until it is stopped');

$load = $c->pgbench_start(script => 'UPDATE counter SET n = n + 1;', clients => 2, seconds => 600, rate => 100)->begun;
cmp_ok($c->query('b', "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'"), '>=', 2, 'all clients have begun');
ok($load->running, 'and go on');
$sums = $load->end;
ok(!$load->running && $sums->{ok} && $sums->{failed} == 0, 'until it is ended') or diag $sums->{errors};
cmp_ok($sums->{processed}, '>', 0, "$sums->{processed} transactions");
is(join(' ', $c->query_all('SELECT n FROM counter')), join(' ', map { 100 + $sums->{by_node}{$_}{processed} } 'a', 'b'),
	'of which none was broken off');
$c->query_all('UPDATE counter SET n = 100');

# A crash: what was committed is there again.
my $lost = $c->session('a');
$lost->query_safe('BEGIN; INSERT INTO counter VALUES (-1)');
$c->kill9('a');
is_deeply([ map { s/ on socket .*//sr } $c->psql('a', 'SELECT 1') ], [ 2, '', 'psql: error: connection to server' ], 'a killed node does not answer')
	foreach 1, 2;
$c->start('a');
is($c->query('a', 'SELECT n FROM counter'), '100', 'after recovery only what was committed is there');
$lost->quit;
$c->stop('b', 'immediate');
$c->start('b');
is($c->query('b', 'SELECT n FROM counter'), '100', 'the same after an immediate shutdown');

# Left dead: the module cleans up.
$c->kill9('b');

done_testing();

sub _plain_psql
{
	my ($sql) = @_;
	my ($stdout, $stderr);
	my $status = $c->plain->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return ($status, $stderr);
}
