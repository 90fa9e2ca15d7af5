# A range of several shards moves part by part; if one part fails, what has moved stays and the error says so. A shard that is removed has no rows
# left: remove_shard waits for its range deletions, as long as it may. A recipient's error, a full disk say, reaches the caller and tessera.migrations
# as it was.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use File::Basename;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('operations', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });

# The disk of s2 is full while this file is there.
my $directory = PostgreSQL::Test::Utils::tempdir();
my $full = "$directory/full";
system_or_bail('cc', '-shared', '-fPIC', '-o', "$directory/disk.so", dirname(__FILE__) . '/../../chaos/disk.c', '-ldl');
{
	local $ENV{LD_PRELOAD} = "$directory/disk.so";
	local $ENV{CHAOS_DISK_FULL} = $full;
	$c->start_node('s2');
}
$c->create(shards => 3);
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int, filler text)',
	"INSERT INTO acc SELECT g, 0, repeat('x', 1000) FROM generate_series(1, 8000) g",
	"SELECT tessera.shard_table('acc', 'k')");

sub owners
{
	my (@keys) = @_;
	return join(' ', map { $c->query('s1', "SELECT tessera.range_owner('acc', $_)") } @keys);
}

# The reason of a recipient's failure.
sub move_fails
{
	my ($what, $error) = @_;
	my ($status, $out, $err) = $c->psql('s3', "SELECT tessera.move_range('acc', 1, 8000, 's2')");
	like($err, $error, "$what: the caller is told");
	like($c->query('s1', 'SELECT error FROM tessera.migrations ORDER BY started DESC LIMIT 1'), $error, "$what: so is tessera.migrations");
	is($c->query('s1', "SELECT count(*) FROM acc"), 8000, "$what: nothing is lost");
	return;
}
append_to_file($full, 'full');
move_fails('full disk, the recipient knows nothing', qr/could not extend|No space/);
unlink $full;
$c->query('s2', 'SELECT tessera.reload_routing()');
# Much is under way when the recipient fails.
$c->set('s1', 'tessera.migration_batch_size' => "'8kB'");
append_to_file($full, 'full');
move_fails('full disk', qr/53100.*(could not extend|No space)/);
unlink $full;
# Its last message may get lost with the connection, which the donor notices by itself when it sends the next batch: then the node is asked.
$c->set('s1', 'tessera.migration_batch_size' => "'64kB'", 'tessera.migration_max_rate' => "'2MB'");
$c->query('s2', "SELECT tessera_test.injection_set('pipe_fail_message', 'skip')");
my $move = $c->background('s1', "SELECT tessera.move_range('acc', 1, 8000, 's2')");
ok($c->wait_for('s1', "SELECT max(rows_done) > 2000 FROM tessera.stat_progress_migration WHERE side = 'donor'"), 'a clone is under way');
append_to_file($full, 'full');
like($c->ended($move), qr/53100.*(could not extend|No space)/, 'full disk, a lost message: the caller is told');
like($c->query('s1', 'SELECT error FROM tessera.migrations ORDER BY started DESC LIMIT 1'), qr/53100/, 'so is tessera.migrations');
$c->query('s2', 'SELECT tessera_test.injection_clear()');
unlink $full;
foreach my $point ('recipient_batch', 'recipient_cloned')
{
	$c->query('s2', $_) foreach "SELECT tessera_test.injection_set('pipe_fail_message', 'skip')",
		"SELECT tessera_test.injection_set('$point', 'error')";
	move_fails("an error at $point", qr/injected error at "$point"/);
	$c->query('s2', 'SELECT tessera_test.injection_clear()');
}
$c->reset_settings('s1');
$c->query('s1', "SELECT tessera.move_range('acc', 1, 8000, 's2')");
is(owners(1), 's2', 'with room again the range moves');
$c->query('s1', "SELECT tessera.move_range('acc', 1, 8000, 's1')");

# A range of several shards.
$c->query('s1', "SELECT tessera.move_range('acc', $_)") foreach "1000, 2000, 's2'", "2000, 3000, 's3'";
my ($status, $out, $err) = $c->psql('s2', "SELECT tessera.move_range('acc', 500, 3500, 's3')");
is(owners(499, 500, 1500, 2500, 3499, 3500), 's1 s3 s3 s3 s3 s1', 'all parts have moved');
is(scalar(() = $err =~ /NOTICE/g), 3, 'one migration after the other is reported');
like($err, qr/moved 500 to 1000 from shard "s1" to "s3".*moved 1000 to 2000 from shard "s2" to "s3".*moved 3000 to 3500 from shard "s1" to "s3"/s,
	'with what it moved');
is($out, $c->query('s1', 'SELECT id FROM tessera.migrations ORDER BY started DESC LIMIT 1'), 'the id is that of the last one');
$c->is_settled('a range of several shards');
($status, $out, $err) = $c->psql('s2', "SELECT tessera.move_range('acc', 500, 3500, 's3')");
like($err, qr/NOTICE.*already/, 'again: nothing to do');
is($out, '', 'and no id');

# One part fails.
$c->query('s1', "SELECT tessera.move_range('acc', $_)") foreach "500, 3500, 's1'", "1000, 2000, 's2'";
$c->query('s2', "SELECT tessera_test.injection_set('donor_cloned', 'error')");
($status, $out, $err) = $c->psql('s1', "SELECT tessera.move_range('acc', 500, 3500, 's3')");
$c->query('s2', 'SELECT tessera_test.injection_clear()');
like($err, qr/ERROR.*donor_cloned.*Moved to shard "s3": 500 to 1000 \(migration [0-9a-f-]+\)\. Not moved: 1000 to 3500/s,
	'the error says what has moved and what has not');
like($err, qr/HINT:.*tessera\.move_range again/, 'and what to do');
is(owners(500, 1500, 2500), 's3 s2 s1', 'what has moved stays');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 3500, 's3')");
is(owners(500, 1500, 2500, 3500), 's3 s3 s3 s1', 'the call again moves the rest');

# The first one fails: nothing has moved.
$c->query('s1', "SELECT tessera.move_range('acc', $_)") foreach "1000, 2000, 's2'";
$c->query('s3', "SELECT tessera_test.injection_set('donor_cloned', 'error')");
like($c->error('s1', "SELECT tessera.move_range('acc', 500, 2500, 's1')"), qr/Moved to shard "s1": nothing\. Not moved: 500 to 2500/,
	'nothing has moved');
$c->query('s3', 'SELECT tessera_test.injection_clear()');

# Two callers at once: one joins the other's migrations, also while the other has the donor write its row.
$c->pause_at('s3', 'donor_noted');
my @runs = $c->background('s1', "SELECT tessera.move_range('acc', 500, 2500, 's1')");
$c->is_paused_at('s3', 'donor_noted');
push @runs, $c->background('s2', "SELECT tessera.move_range('acc', 500, 2500, 's1')");
ok($c->wait_for('s3', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%wait_migration%' AND pid <> pg_backend_pid()", qr/[1-9]/),
	'the second waits for the migration of the first');
$c->go_on('s3');
unlike($c->ended($_), qr/ERROR.*/s, 'no caller fails') foreach @runs;
is(owners(500, 1500, 2499, 2500), 's1 s1 s1 s3', 'and all has moved');
$c->is_settled('two callers');

# A shard of a later part is busy with something else: that is waited for.
$c->query('s1', $_) foreach 'CREATE TABLE other (k int PRIMARY KEY)', "SELECT tessera.shard_table('other', 'k')";
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1000, 's2')");
$c->query('s1', "SELECT tessera_test.injection_set('donor_cloned', 'pause', 2)");
@runs = map { $c->background('s1', "SELECT tessera.move_range('other', $_)") } ("1, 10, 's2'", "10, 20, 's3'");
ok($c->wait_for('s1', "SELECT max(paused) FROM tessera_test.injection_list() WHERE name = 'donor_cloned'", 2),
	'a shard is in as many moves as it may be');
push @runs, $c->background('s2', "SELECT tessera.move_range('acc', 500, 2000, 's3')");
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migrations WHERE min::text = '500' AND max::text = '1000' AND recipient = 's3' AND state = " .
	"'committed' AND started > now() - interval '5 min'", qr/[1-9]/), 'the first part has moved');
$c->go_on('s1');
unlike($c->ended($_), qr/ERROR.*/s, 'nobody fails') foreach @runs;
is(owners(500, 1500), 's3 s3', 'and both parts have moved');
$c->query('s1', "SELECT tessera.move_range('other', 10, 20, 's1')");

# A removed shard is empty.
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's3')");
$c->is_settled('before the removal');
$c->set('s3', 'tessera.orphan_cleanup_delay' => 60000);
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's1')");
like($c->error('s2', "SET statement_timeout = '1s'; SELECT tessera.remove_shard('s3')"), qr/57014/,
	'rows are still to be deleted: the removal waits, and can be cancelled');
is($c->query('s1', "SELECT count(*) FROM tessera.shards"), 3, 'the shard is still there');
$c->query('s1', "SELECT tessera_test.injection_set('remove_node_deadline', 'skip')");
like($c->error('s1', "SELECT tessera.remove_shard('s3')"), qr/55006.*ranges.*tessera\.range_deletions/s,
	'it gives up in the end, and says what it waited for');
$c->query('s1', 'SELECT tessera_test.injection_clear()');
$c->set('s3', 'tessera.orphan_cleanup_delay' => 1000);
is($c->query('s2', "SELECT tessera.remove_shard('s3')"), 'removed', 'it is removed when they are gone');
$c->query('s3', 'DROP EXTENSION tessera CASCADE');
is($c->query('s3', 'SELECT count(*) FROM acc'), 0, 'its table is empty');
is($c->query('s2', 'SELECT count(*) FROM acc'), 8000, 'the others have all');

done_testing();
