# Who waits for a move is told how far it is, by NOTICEs, if it takes longer than tessera.move_progress_interval; stat_progress_migration has an
# estimate of the rows on the donor, also of a table that was never analyzed and a chunk that was never measured.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

my $c = TesseraCluster->new('tells', settings => { 'tessera.injection_points' => 'on', 'tessera.auto_split' => 'off', autovacuum => 'off',
	'tessera.split_interval' => 600000 });
$c->create(shards => 2);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, filler text NOT NULL)');
$c->query('s1', 'INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 10000) g');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "SELECT tessera.split_chunk('t', 5001)");
$c->query('s1', 'DELETE FROM tessera.chunk_estimate');
$c->set(undef, 'tessera.migration_batch_size' => 8, 'tessera.migration_commit_size' => 8);

# What the session has been told once it has been told that; or in time.
sub told
{
	my ($session, $pattern) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while ($session->{stderr} !~ $pattern && time < $deadline)
	{
		$session->{run}->pump_nb;
		sleep(0.05);
	}
	return $session->{stderr};
}

my $cloning = qr/NOTICE:  00000: the move to shard "s2" is under way: cloning, \d+ of about \d+ rows \(\d+ %\), [\d.]+ MB, [\d.]+ MB\/s/;
$c->pause_at('s2', 'recipient_batch');
my $session = $c->begin('s1', "SET tessera.move_progress_interval = 1;\nSELECT tessera.move_range('t', 5001, tessera.maxkey(), 's2')");
$c->is_paused_at('s2', 'recipient_batch');
like(told($session, $cloning), $cloning, 'it tells how far it is');
my $rows = $c->query('s1', "SELECT rows_total FROM tessera.stat_progress_migration WHERE side = 'donor'");
cmp_ok($rows, '>', 3000, 'the rows that move are estimated');
cmp_ok($rows, '<', 9000, 'and are not all of the table');
ok($c->wait_for('s1', "SELECT rows_total = $rows FROM tessera.migrations WHERE state = 'running'"), 'the config node hears of it');
$c->go_on('s2', 'recipient_batch');
unlike($c->finish($session), qr/ERROR/, 'the move ends well');

# Not if it is not wanted, however long it takes; nor of a move that is soon over.
$c->pause_at('s1', 'recipient_batch');
$session = $c->begin('s1', "SELECT tessera.move_range('t', 5001, tessera.maxkey(), 's1')");
$c->is_paused_at('s1', 'recipient_batch');
$c->runs_for('s1', 'SELECT tessera.move_range%', '2s');
$c->go_on('s1', 'recipient_batch');
is($c->finish($session), '', 'it tells nothing if that is off');
my (undef, undef, $stderr) =
  $c->psql('s1', "SET tessera.move_progress_interval = '1h'; SELECT tessera.move_range('t', 5001, tessera.maxkey(), 's2')");
is($stderr, '', 'nor if it is over sooner');
$c->is_settled('in the end');

done_testing();
