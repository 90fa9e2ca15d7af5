# A clone that takes several turns scans an index that holds entries of dead rows: what the scan remembers of them must live as long as the scan, not
# one turn.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('move_dead_rows', settings => { 'tessera.migration_batch_size' => '8kB', autovacuum => 'off' });
$c->create(shards => 2);
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
	"INSERT INTO acc SELECT g, 0, repeat('x', 80) FROM generate_series(1, 5000) g",
	'CREATE INDEX ON acc (bal)',
	"SELECT tessera.shard_table('acc', 'k')");
# The second index keeps updates from being HOT: each leaves a dead entry in the index of the key.
$c->query('s1', 'UPDATE acc SET bal = bal + 1') foreach 1 .. 2;
foreach my $to ('s2', 's1')
{
	$c->query('s1', "SELECT tessera.move_range('acc', 100, 4900, '$to')");
	is($c->query($_, 'SELECT count(*), sum(k), min(bal), max(bal) FROM acc'), '5000|12502500|2|2', "moved to $to, seen from $_") foreach $c->names;
	$c->query($to, 'UPDATE acc SET bal = bal + 1 WHERE k < 4900');
	$c->query($to, 'UPDATE acc SET bal = 2');
}
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(true)'), '', 'consistent');
done_testing();
