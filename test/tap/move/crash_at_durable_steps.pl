# A server is killed at a durable step of a migration (S57, S62, S63, S66-S69): when it is back, the migration is settled: carried out if the config
# node had committed it, else undone; no row is lost or doubled, and the next migration of the range succeeds.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('crash',
	settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100, restart_after_crash => 'on', fsync => 'on' });
# s1 is the config node; s2 and s3 the shards that crash, in turn donor and recipient.
$c->create(shards => 3);
$c->everywhere($_) foreach ('CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL)', 'INSERT INTO acc SELECT g, g FROM generate_series(1, 2000) g');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k')");
$c->query('s1', "SELECT tessera.move_range('acc', 1, 2001, 's2')");

my ($donor, $recipient) = ('s2', 's3');
foreach my $point (
	[ 'donor_registered', 0 ], [ 'donor_flag_up', 0 ], [ 'donor_slot', 0 ], [ 'donor_cloned', 0 ],
	[ 'donor_write_gate', 0 ], [ 'donor_read_gate', 0 ], [ 'config_commit', 0 ], [ 'config_committed', 1 ],
	[ 'donor_released', 1 ], [ 'donor_cleaning', 1 ], [ 'donor_restored', 0 ],
	[ 'recipient_registered', 0 ], [ 'recipient_batch', 0 ], [ 'recipient_cloned', 0 ], [ 'recipient_confirming', 0 ],
	[ 'recipient_confirmed', 0 ], [ 'recipient_released', 1 ])
{
	my ($name, $committed) = @$point;
	my $node = $name =~ /^recipient/ ? $recipient : $donor;
	$c->query($node, "SELECT tessera_test.injection_set('$name', 'crash')");
	# on the way back
	$c->query($donor, "SELECT tessera_test.injection_set('donor_cloned', 'error')") if $name eq 'donor_restored';
	my ($status, $stdout, $stderr) = $c->psql('s1', "SELECT tessera.move_range('acc', 500, 1500, '$recipient')");
	is($status == 0 ? 1 : 0, $committed, "$name: " . ($committed ? 'carried out' : 'undone')) or diag $stderr;
	$c->is_settled($name);
	is($c->query('s1', "SELECT tessera.range_owner('acc', 1000)"), $committed ? $recipient : $donor, "$name: owner");
	my ($same, $detail) = $c->same_everywhere('SELECT * FROM acc');
	ok($same, "$name: rows") or diag $detail;
	$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, '" . ($committed ? $donor : $recipient) . "')");
	($donor, $recipient) = ($recipient, $donor) unless $committed;
}

# A slot that no migration knows of, of a server that was restored without its rows for instance, keeps WAL for nobody.
$c->query('s2', "SELECT pg_create_logical_replication_slot('tessera_' || md5('nobody'), 'pgoutput')");
ok($c->wait_for('s2', 'SELECT count(*) FROM pg_replication_slots', '0', 90), 'a leftover slot is dropped');

done_testing();
