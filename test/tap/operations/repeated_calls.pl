# The connection of a call breaks while the other node serves it. A call that may be repeated is sent once more, and its caller notices nothing; one
# that may not is an error at its caller, and has been done once at most. Calls are held up by locks on tables of the config node's catalog, their
# backends there are ended.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('repeated_calls');
# s1 is the config node.
$c->create(shards => 2);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY)',
	"SELECT tessera.shard_table('t', 'k')",
	'INSERT INTO t SELECT generate_series(1, 100)');
$c->wait_for('s2', "SELECT count(*) FROM tessera.tables WHERE table_name = 't'::regclass", '1');

my $lock = $c->session('s1');

sub lock_table
{
	my ($table) = @_;
	$lock->query("BEGIN; LOCK TABLE tessera.$table IN ACCESS EXCLUSIVE MODE");
	return;
}

sub unlock
{
	$lock->query('COMMIT');
	return;
}

# The backend on s1 that serves a call and waits for the lock, but not that one.
sub serving
{
	my ($call, $but) = @_;
	my $sql = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%tessera_internal.$call(%' AND wait_event_type = 'Lock' AND pid <> " .
		($but // 0);
	$c->wait_for('s1', $sql, qr/^\d+$/) or return;
	return $c->query('s1', $sql);
}

sub end
{
	my ($pid) = @_;
	$c->query('s1', "SELECT pg_terminate_backend($pid, 10000)");
	return;
}

# check_consistency on s2 asks the config node for the migrations that run.
my $check = 'SELECT invariant, object, detail FROM tessera.check_consistency()';
lock_table('migration');
my $run = $c->background('s2', $check);
my $first = serving('busy_groups');
ok($first, 'a call that may be repeated waits');
end($first);
my $second = serving('busy_groups', $first);
ok($second, 'its backend is ended: it is sent again, over another connection');
unlock();
is($c->ended($run), '', 'the caller has no error');
is($run->{out}, '', 'and the answer: all is well');

lock_table('migration');
$run = $c->background('s2', $check);
$first = serving('busy_groups');
end($first);
$second = serving('busy_groups', $first);
end($second);
is($c->ended($run), '', 'lost twice');
like($run->{out}, qr/could not be checked: .*node "s1"/, 'it is not sent a third time');
unlock();

# split_chunk on s2: the config node splits.
my $chunks = "SELECT count(*) FROM tessera.chunks WHERE table_name = 't'::regclass";
my $before = $c->query('s1', $chunks);
lock_table('changelog_entry');
$run = $c->background('s2', "SELECT tessera.split_chunk('t', 50)");
$first = serving('split');
ok($first, 'a call that may not be repeated waits');
end($first);
like($c->ended($run), qr/08006.*node "s1"/s, 'its caller gets the error');
is($c->query('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%tessera_internal.split(%' AND wait_event_type = 'Lock'"), '0',
	'nothing is sent again');
unlock();
is($c->query('s1', $chunks), $before, 'nothing was split');
$c->query('s2', "SELECT tessera.split_chunk('t', 50)");
is($c->query('s1', $chunks), $before + 1, 'the next one splits, once');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), '0', 'all is well');

$lock->quit;
done_testing();
