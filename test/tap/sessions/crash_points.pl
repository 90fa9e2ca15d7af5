# The server that a numbered write came through dies at a step of it: repeated through another node the write is done once, and its outcome is told
# as it was.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('session_crashes', settings => { 'tessera.injection_points' => 'on', restart_after_crash => 'on' });
$c->create(shards => 3);
my @nodes = $c->names;
$c->query('s1', $_) foreach (
	'SELECT tessera.enable_sessions()',
	'CREATE TABLE acc (id int PRIMARY KEY, n int NOT NULL)',
	"SELECT tessera.shard_table('acc', 'id', 'hash', chunks => 12)",
	'INSERT INTO acc SELECT g, 0 FROM generate_series(1, 60) g');
ok($c->wait_for($_, "SELECT count(*) FROM tessera.tables WHERE kind = 'sharded'", '3'), "$_ knows the tables") foreach @nodes;

my $session = $c->query('s2', 'SELECT tessera.start_session()');
my $number = 0;

sub under
{
	my ($sql) = @_;
	return "SET tessera.session = '$session'; SET tessera.txn_number = $number; $sql";
}

my $statement = 'UPDATE acc SET n = n + 1 WHERE id IN (1, 2, 3, 4, 5, 6) RETURNING n';
my $block = 'BEGIN; UPDATE acc SET n = n + 1 WHERE id IN (1, 2, 3, 4, 5, 6); COMMIT';
my $sum = 'SELECT sum(n) FROM acc';
my $expected = 0;
my $decided = { commit_decided => 1 };

# Of the steps before the decision each kind has some here, and all in make test-long.
my @before = ('session_taken', 'commit_decision_written', 'commit_prepared');
foreach my $step (
	[ $statement, TesseraCluster::some_of(0, @before), 'session_statement_recorded', 'commit_decided' ],
	[ $block, TesseraCluster::some_of(2, @before), 'session_transaction_recorded', 'commit_decided' ])
{
	my ($sql, @points) = @$step;
	foreach my $point (@points)
	{
		my $what = ($sql =~ /^(\w+)/)[0] . ", the server dies at $point";
		my $checkpointer = $c->query('s1', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
		$number++;
		$c->query('s1', "SELECT tessera_test.injection_set('$point', 'crash')");
		my ($status) = $c->psql('s1', under($sql));
		isnt($status, 0, "$what: the client has no answer");
		my ($first, undef, $error) = $c->psql('s2', under($sql));
		my $repeated;
		# of another node's part that is prepared only the node that has died knows whether it is to be committed
		ok($c->wait_for('s1', "SELECT pid <> $checkpointer FROM pg_stat_activity WHERE backend_type = 'checkpointer'"), "$what: it comes back");
		my $known = $error =~ /TS005/;
		($repeated, undef, $error) = $c->psql('s3', under($sql));
		like($error, qr/TS005/, "$what: what was known is known") if $known;
		$expected += 6;
		if ($sql eq $block && ($decided->{$point} || $first == 0))
		{
			like($error, qr/TS005/, "$what: it was committed");
		}
		else
		{
			is($repeated, 0, "$what: it can be repeated") or diag $error;
		}
		is($c->query('s3', $sum), $expected, "$what: it is done once");
		is($c->query('s3', "SELECT outcome FROM tessera.transaction_outcome('$session', $number)"), 'committed', "$what: which its outcome says");
		if ($sql eq $block)
		{
			like($c->error('s1', under($sql)), qr/TS005/, "$what: a repetition knows it");
		}
		else
		{
			is($c->query('s1', under($sql)), $c->query('s2', under($sql)), "$what: repetitions get its answer");
		}
		is($c->query('s2', $sum), $expected, "$what: and still once");
	}
}

# ---- the outcome is asked for before anything is repeated ----

foreach my $point ('session_taken', 'commit_decided')
{
	my $checkpointer = $c->query('s1', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
	$number++;
	$c->query('s1', "SELECT tessera_test.injection_set('$point', 'crash')");
	$c->psql('s1', under($block));
	ok($c->wait_for('s1', "SELECT pid <> $checkpointer FROM pg_stat_activity WHERE backend_type = 'checkpointer'"), 'it comes back');
	my $outcome = $decided->{$point} ? 'committed' : 'aborted';
	ok($c->wait_for('s3', "SELECT outcome FROM tessera.transaction_outcome('$session', $number)", $outcome), "died at $point: $outcome");
	$expected += 6 if $decided->{$point};
	is($c->query('s3', $sum), $expected, 'as it is');
	like($c->error('s2', under($block)), $decided->{$point} ? qr/TS005/ : qr/TS003/, 'and remains');
}
ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xact()', '0'), "nothing stays prepared on $_") foreach @nodes;
done_testing();
