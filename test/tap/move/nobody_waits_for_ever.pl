# Nobody waits for ever: a migration whose nodes stand still (SIGSTOP of a whole server), whose recipient does not confirm in time, whose slot waits
# for a stranger's transaction. Its waits are named, they end, and the range is served meanwhile.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use TesseraCluster;

my $c = TesseraCluster->new('deadlines',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100, 'tessera.connect_timeout' => 2000,
	'tessera.abort_timeout' => 2000, 'tessera.critical_section_budget' => 50 });
$c->create(shards => 3);
$c->everywhere($_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL)',
	'INSERT INTO acc SELECT g, g FROM generate_series(1, 2000) g');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's2')");

# The config node s1 owns nothing; s2 gives to s3.
my $move = "SELECT tessera.move_range('acc', 500, 1500, 's3')";
my $running = "SELECT id FROM tessera.migrations WHERE state = 'running'";
my $waiting = "SELECT waiting_for FROM tessera.stat_progress_migration";

sub same
{
	my ($name) = @_;
	my ($same, $detail) = $c->same_everywhere('SELECT * FROM acc');
	ok($same, $name) or diag $detail;
	return;
}

sub settled
{
	my ($name) = @_;
	$c->is_settled($name);
	same("$name: same rows");
	return;
}

# Begins a move on a node and, with a point, waits until it is paused there.
sub begin
{
	my ($from, $node, $point, $sql) = @_;
	$c->pause_at($node, $point) if $point;
	my $session = $c->begin($from, $sql);
	$c->is_paused_at($node, $point) if $point;
	return $session;
}

# Runs SQL while a process stands still: that it ends at all, before this goes on, shows that it does not wait for it. Returns what psql returns.
sub meanwhile
{
	my ($name, $node, $sql) = @_;
	my $began = time;
	my @result = $c->psql($node, $sql);
	isnt($result[0], 124, "$name: ends");
	note sprintf('%s: %.1f s', $name, time - $began);
	return @result;
}

# The recipient does not confirm in time: the gate opens again, the range is served, the next attempt gets there.
my $session = begin('s1', 's3', 'recipient_last', $move);
ok($c->wait_for('s2', 'SELECT gate_attempts > 0 AND phase NOT IN ($$write_gate$$, $$read_gate$$) FROM tessera.stat_progress_migration', 't', 10),
	'a recipient that does not confirm: the gate is open again');
foreach my $node ($c->names)
{
	my ($status, undef, $stderr) = meanwhile("$node writes into the range", $node,
		'SET tessera.gate_timeout = 2000; UPDATE acc SET bal = bal + 1 WHERE k = 1000');
	is($status, 0, "$node: it is served") or diag $stderr;
}
$c->plain_query('UPDATE acc SET bal = bal + 3 WHERE k = 1000');
$c->pause_at('s3', 'recipient_taken_back');
$c->go_on('s3', 'recipient_last');
ok($c->paused_at('s3', 'recipient_taken_back'), 'a confirmation that came too late is taken back');
is($c->query('s3', "SELECT count(*) FROM tessera.placement WHERE gates <> '{}' OR owned <> '{}'"), '0',
	'nothing of it is left on the recipient');
same('while it is taken back');
$c->query('s2', 'UPDATE acc SET bal = bal + 1 WHERE k = 1001');
$c->plain_query('UPDATE acc SET bal = bal + 1 WHERE k = 1001');
$c->go_on('s3');
is($c->finish($session), '', 'the move gets there in another attempt');
settled('not confirmed in time');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')");

# The recipient's worker alone stands still when it has closed its gate for readers, or has confirmed: the donor gives the attempt up, and another
# process of the recipient's takes it back, so that statements go on there. The worker that goes on finds out.
$c->query('s1', "SELECT tessera.move_range('acc', 1, 101, 's3')");
foreach my $point ('recipient_confirming', 'recipient_confirmed')
{
	$session = begin('s1', 's3', $point, $move);
	my $worker = $c->query('s3', 'SELECT pid FROM tessera.stat_progress_migration');
	kill 'STOP', $worker;
	$c->query('s3', 'SELECT tessera_test.injection_clear()');
	foreach my $node ($c->names)
	{
		my ($status, $stdout, $stderr) = meanwhile("$node reads everything", $node, 'SET tessera.gate_timeout = 4000; SELECT count(*) FROM acc');
		is("$status $stdout", '0 2000', "$point: $node does not wait for a process that stands still") or diag $stderr;
		($status, undef, $stderr) = meanwhile("$node writes into the range", $node,
			'SET tessera.gate_timeout = 4000; UPDATE acc SET bal = bal WHERE k = 1000');
		is($status, 0, "$point: $node writes into the range") or diag $stderr;
	}
	is($c->query('s3', "SELECT count(*) FROM tessera.placement WHERE gates <> '{}' OR array_length(owned, 1) > 1"), '0',
		"$point: nothing of the confirmation is left");
	kill 'CONT', $worker;
	is($c->finish($session), '', "$point: the move gets there when the process goes on");
	settled($point);
	$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')");
}
$c->query('s1', "SELECT tessera.move_range('acc', 1, 101, 's2')");

# So often, and no more. On a busy machine the recipient shall get to the point within the one attempt.
$c->set('s2', 'tessera.critical_section_budget' => 1000);
$c->set('s2', 'tessera.critical_section_attempts' => 1);
$session = begin('s1', 's3', 'recipient_last', $move);
like($c->finish($session), qr/53400.*did not confirm the migration in time, in 1 attempts/s,
	'after so many attempts the move fails, with the reason');
$c->go_on('s3');
$c->query('s2', "ALTER SYSTEM RESET $_") foreach ('tessera.critical_section_attempts', 'tessera.critical_section_budget');
$c->query('s2', 'SELECT pg_reload_conf()');
settled('never confirmed');

# The recipient's server stands still in the clone: the donor says so, and the migration can be cancelled.
$c->set('s3', 'tessera.migration_commit_size' => 8);
$session = begin('s1', 's3', 'recipient_batch', $move);
$c->freeze('s3');
ok($c->wait_for('s2', $waiting, qr/^(answer of node s3|recipient: its node does not answer)$/, 30), 'a recipient that stands still is named');
my $id = $c->query('s1', $running);
my ($status, $stdout, $stderr) = meanwhile('cancelling it', 's1', "SELECT tessera.cancel_migration('$id')");
is("$status $stdout", '0 t', 'it is cancelled') or diag $stderr;
is((meanwhile('the range', 's2', 'SELECT bal FROM acc WHERE k = 1001'))[1], '1002', 'the range is served');

# A statement that waits for the node that stands still can be cancelled, too: the request to cancel does not hang.
$c->thaw('s3');
$c->go_on('s3');
like($c->finish($session), qr/57014/, 'its caller is told');
$c->query('s3', 'ALTER SYSTEM RESET tessera.migration_commit_size');
$c->query('s3', 'SELECT pg_reload_conf()');
settled('recipient stood still');
$c->query('s1', $move);
$session = $c->session('s1', on_error_stop => 0);
$session->query('SELECT bal FROM acc WHERE k = 1000');
$c->freeze('s3');
$session->query("SET statement_timeout = 500");
$session->query('SELECT bal FROM acc WHERE k = 1000');
like($session->{stderr}, qr/statement timeout/, 'a statement that waits for a server that stands still is cancelled');
$c->thaw('s3');
$session->{stderr} = '';
$session->query("SET statement_timeout = 0");
is($session->query('SELECT bal FROM acc WHERE k = 1001'), '1002', 'and the session goes on') or diag $session->{stderr};
$session->quit;
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')");

# The config node stands still: no gate is closed; when it is back the move goes on.
$session = begin('s3', 's2', 'donor_cloned', $move);
$c->freeze('s1');
$c->go_on('s2');
ok($c->wait_for('s2', $waiting, qr/^(answer of node s1|the config node does not answer)$/, 30), 'a config node that stands still is named');
($status) = meanwhile('the range', 's2', 'UPDATE acc SET bal = bal + 1 WHERE k = 1002');
is($status, 0, 'it is served');
$c->plain_query('UPDATE acc SET bal = bal + 1 WHERE k = 1002');
$c->thaw('s1');
is($c->finish($session), '', 'it goes on when the config node does');
settled('config node stood still');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')");

# It stands still when it should decide: who waits at the gate gets an error at its deadline, and nothing is guessed.
$session = begin('s3', 's2', 'config_commit', $move);
$c->freeze('s1');
$c->go_on('s2');
($status, $stdout, $stderr) = meanwhile('waiting at the gate', 's2', 'SET tessera.gate_timeout = 1000; SELECT bal FROM acc WHERE k = 1000');
like($stderr, qr/55P03.*gate|40001/s, 'it ends at tessera.gate_timeout');
is((meanwhile('outside of the range', 's2', 'SELECT bal FROM acc WHERE k = 1'))[1], '1', 'outside of the range all goes on');
$c->thaw('s1');
$c->finish($session);
ok($c->wait_for('s1', "SELECT count(*) FROM ($running) r", '0', 60), 'the config node decides when it is back');
settled('config node stood still while it should decide');
my $owner = $c->query('s1', "SELECT tessera.range_owner('acc', 1000)");
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')") if $owner ne 's2';

# Transactions of strangers hold up the slot: they are named, on the config node, too, and waited for as long as the migration may take.
$c->node('s2')->safe_psql('postgres', 'CREATE DATABASE other');
$c->node('s2')->safe_psql('other', "BEGIN; CREATE TABLE t (a int); PREPARE TRANSACTION 'forgotten'");
$session = begin('s1', 's2', undef, $move);
ok($c->wait_for('s1', "SELECT waiting_for FROM tessera.migrations WHERE state = 'running'", qr/^prepared transaction "forgotten" of role "/, 20),
	'a forgotten prepared transaction is named');
is((meanwhile('a write into the range', 's1', 'UPDATE acc SET bal = bal WHERE k = 1000'))[0], 0, 'it does not wait');
$c->node('s2')->safe_psql('other', "ROLLBACK PREPARED 'forgotten'");
is($c->finish($session), '', 'when it has ended the move goes on');
settled('prepared transaction');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's2')");
my $long = $c->session('s2', dbname => 'other', on_error_stop => 0);
$long->query('BEGIN; CREATE TABLE t2 (a int)');
my $pid = $long->query('SELECT pg_backend_pid()');
$c->set('s2', 'tessera.migration_timeout' => 1500);
$session = begin('s1', 's2', undef, $move);
ok($c->wait_for('s2', $waiting, qr/process $pid on node "s2" .*database "other"\)$/, 20), 'so is a long transaction of another database');
like($c->finish($session), qr/process $pid/, 'past tessera.migration_timeout the move fails, and says for whom it waited');
$long->query('ROLLBACK');
$long->quit;
$c->query('s2', 'ALTER SYSTEM RESET tessera.migration_timeout');
$c->query('s2', 'SELECT pg_reload_conf()');
settled('long transaction elsewhere');

done_testing();
