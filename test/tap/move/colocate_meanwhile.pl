# What happens meanwhile while a table with rows is placed by moving (shard_table, colocate_with): another move of the group that it is to join, a
# transaction that uses the table, a cancellation, the same call from another node, DDL and COPY of sessions that knew the table before. And a move of
# a group of which donor and recipient do not know yet that a table has joined it.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('colocate_meanwhile', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3);
$c->query('s1', $_) foreach ('CREATE TABLE other (k int PRIMARY KEY, v int)', 'INSERT INTO other SELECT g, g FROM generate_series(1, 60) g',
	"SELECT tessera.shard_table('other', 'k')", "SELECT tessera.move_range('other', 30, tessera.maxkey(), 's2')");

sub make
{
	my ($table) = @_;
	$c->query('s1', "CREATE TABLE $table (k int PRIMARY KEY, v int)");
	$c->query('s1', "INSERT INTO $table SELECT g, g FROM generate_series(1, 60) g");
	return;
}

sub call { my ($table) = @_; return "SELECT tessera.shard_table('$table', 'k', colocate_with => 'other')"; }

sub owners
{
	my ($table) = @_;
	return $c->query('s1',
		"SELECT string_agg(format('%s-%s %s', min, max, shard), ', ' ORDER BY min::text) FROM tessera.chunks WHERE table_name = '$table'::regclass");
}

sub joined
{
	my ($table, $what) = @_;
	is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.cluster_table WHERE table_name IN ('$table', 'other')"), '1',
		"$what: one group");
	is(owners($table), owners('other'), "$what: the same owners");
	# A statement over whole tables that meets the change of the group's version gets 40001.
	ok($c->wait_for('s3', "SELECT count(*), sum(t.v) FROM $table AS t JOIN other USING (k)", '60|1830'), "$what: all rows");
	return;
}

# A move of the other group goes on: it is waited for, and what it has moved is moved after it.
make('t1');
$c->set('s1', 'tessera.max_moves_per_shard' => 1);
$c->pause_at('s1', 'donor_cloned');
my $move = $c->background('s1', "SELECT tessera.move_range('other', 10, 20, 's3')");
$c->is_paused_at('s1', 'donor_cloned');
$c->query('s2', "SELECT tessera_test.injection_set('colocate_deadline', 'skip')");
my $error = $c->error('s2', call('t1'));
like($error, qr/ERROR:  55006: table public.t1 could not be colocated with table public.other in time: shard "s1" takes part in 1 migration already/,
	'not for ever');
like($error, qr/DETAIL:.*Table public.t1 is meanwhile a sharded table of its own, and can be used. It is not balanced./s, 'how things stand');
like($error, qr/HINT:.*Call tessera.shard_table with the same arguments again: it goes on where it was./s, 'what to do');
is($c->query('s3', 'SELECT count(*), sum(v) FROM t1'), '60|1830', 'it can be used');
$c->query('s3', 'UPDATE t1 SET v = v + 0');
is($c->query('s1', 'SELECT count(*) FROM tessera.table_group WHERE NOT balancing'), '1', 'and is not balanced');
$c->query('s2', 'SELECT tessera_test.injection_clear()');
my $waiting = $c->background('s2', call('t1'));
$c->go_on('s1', 'donor_cloned');
is($c->ended($move), '', 'the other move ends well');
is($c->ended($waiting), '' || $waiting->{err}, 'so does the call');
joined('t1', 'another move');
$c->set('s1', 'tessera.max_moves_per_shard' => 2);

# Behind the last move, before it joins: a range of the other group moves away, and back into one that the table has to follow.
make('t2');
$c->pause_at('s2', 'colocate_placed');
my $run = $c->background('s2', call('t2'));
$c->is_paused_at('s2', 'colocate_placed');
$c->query('s1', "SELECT tessera.move_range('other', 40, 50, 's1')");
my $knows = $c->session('s3');
$knows->query_safe($_) foreach ('SELECT count(*) FROM t2', 'SELECT count(*) FROM other', 'UPDATE t2 SET v = v + 0',
	'PREPARE one AS SELECT v FROM t2 WHERE k = $1', 'EXECUTE one(45)');
$c->go_on('s2', 'colocate_placed');
unlike($c->ended($run), qr/ERROR/, 'the call ends well');
joined('t2', 'moved behind its back');

# A session that had told all shards of the group that the table had on its way.
is($knows->query_safe('EXECUTE one(45)'), '45', 'a prepared statement');
$knows->query_safe("COPY t2 FROM PROGRAM 'printf \"101\\t1\\n102\\t1\\n103\\t1\\n\"'");
is($knows->query_safe('SELECT count(*) FROM t2'), '63', 'COPY');
$knows->query_safe('ALTER TABLE t2 ADD COLUMN w int DEFAULT 7');
is($knows->query_safe('SELECT sum(w) FROM t2'), '441', 'DDL');
$knows->query_safe('TRUNCATE t2');
is($knows->query_safe('SELECT count(*) FROM t2'), '0', 'TRUNCATE');
$knows->quit;

# A transaction that has used the table is waited for; who comes behind is not held up by that.
make('t3');
$c->pause_at('s1', 'colocate_placed');
$run = $c->background('s1', call('t3'));
$c->is_paused_at('s1', 'colocate_placed');
my $session = $c->session('s2');
$session->query_safe($_) foreach ('BEGIN', 'SELECT count(*) FROM t3', 'UPDATE t3 SET v = v + 0 WHERE k = 5');
$c->go_on('s1', 'colocate_placed');
ok($c->wait_for('s1', "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%internal_join_alike%' AND pid <> pg_backend_pid()", 't'),
	'it is about to join');
is($c->query('s3', 'SELECT count(*) FROM t3'), '60', 'others use the table meanwhile') foreach 1 .. 3;
$session->query_safe('UPDATE t3 SET v = v + 0 WHERE k = 55');
$session->query_safe('COMMIT');
$session->quit;
unlike($c->ended($run), qr/ERROR/, 'it joins when the transaction is over');
joined('t3', 'a transaction');

# Cancelled in the middle of a move, then the same call from two nodes at once.
make('t4');
$c->pause_at('s1', 'donor_cloned');
$run = $c->background('s3', call('t4'));
$c->is_paused_at('s1', 'donor_cloned');
$c->query('s3', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%shard_table%t4%' AND pid <> pg_backend_pid()");
$c->query('s1', 'SELECT pg_sleep(0.2)');
$c->go_on('s1', 'donor_cloned');
like($c->ended($run), qr/ERROR:  57014.*Call tessera.shard_table with the same arguments again/s, 'cancelled');
is($c->query('s2', 'SELECT count(*), sum(v) FROM t4'), '60|1830', 'nothing is lost');
my @both = map { $c->background($_, call('t4')) } 's2', 's3';
my @ends = map { $c->ended($_) } @both;
is(scalar(grep { /ERROR/ && !/already sharded/ } @ends), 0, 'two at once') or diag @ends;
joined('t4', 'two at once');

# Donor and recipient have not heard yet that a table has joined the group: the move must take it along.
$c->query($_, "UPDATE tessera.cluster_table SET group_id = NULL, key_columns = NULL WHERE table_name = 't4'") foreach 's2', 's3';
$c->query('s1', "SELECT tessera.configure_table('other', max_chunk_size => 1048576)");    # what they refresh from is new
$c->query('s1', "SELECT tessera.move_range('other', 50, 55, 's3')");
joined('t4', 'a move right after');

$c->is_settled('end');
done_testing();
