# Ranges of a partitioned table move under load, all partitions at once, while partitions are made, detached, attached and dropped, and rows go from
# one partition to another; a shard crashes in between. No row is lost or doubled, and a partition that comes during a move ends it.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('partmove', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.injection_points' => 'on',
	'max_connections' => 60, restart_after_crash => 'on', 'tessera.registry_refresh_interval' => 1 });
$c->create(shards => 3, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE TABLE acct (k int PRIMARY KEY, n int NOT NULL)', 'INSERT INTO acct SELECT g, 0 FROM generate_series(1, 60) g',
	'CREATE TABLE ev (k int NOT NULL, at int NOT NULL, id bigserial, v int NOT NULL, PRIMARY KEY (k, at, id)) PARTITION BY RANGE (at)',
	'CREATE TABLE ev_0 PARTITION OF ev FOR VALUES FROM (0) TO (100)',
	'CREATE TABLE ev_1 (v int NOT NULL, id bigint NOT NULL DEFAULT nextval(\'ev_id_seq\'), at int NOT NULL, k int NOT NULL)',
	'ALTER TABLE ev ATTACH PARTITION ev_1 FOR VALUES FROM (100) TO (200)',
	'CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (200) TO (300) PARTITION BY HASH (k)',
	'CREATE TABLE ev_2a PARTITION OF ev_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0)', 'CREATE TABLE ev_2b PARTITION OF ev_2 FOR VALUES WITH ' .
		'(MODULUS 2, REMAINDER 1)',
	'CREATE TABLE ev_old PARTITION OF ev FOR VALUES FROM (900) TO (1000)',
	'INSERT INTO ev (k, at, v) SELECT g % 60 + 1, g % 300, 1 FROM generate_series(1, 3000) g',
	'INSERT INTO ev (k, at, v) SELECT g % 60 + 1, 900 + g % 100, 1 FROM generate_series(1, 600) g',
	"SELECT tessera.shard_table('acct', 'k')", "SELECT tessera.shard_table('ev', 'k', colocate_with => 'acct')",
	"SELECT tessera.move_range('ev', 20, 40, 's2'), tessera.move_range('ev', 40, tessera.maxkey(), 's3')");

# One row more and one more in acct in a transaction; a row of it goes to another partition.
my $script = <<'SQL';
\set k random(1, 60)
\set at random(0, 299)
BEGIN;
INSERT INTO ev (k, at, v) VALUES (:k, :at, 1);
UPDATE acct SET n = n + 1 WHERE k = :k;
UPDATE ev SET at = (at + 100) % 300 WHERE k = :k AND at = :at;
COMMIT;
SQL
my $counted = 'SELECT count(*), count(DISTINCT id), sum(v) - (SELECT sum(n) FROM acct) FROM ev WHERE at < 300';
my $load = $c->pgbench_start(nodes => [ 's1', 's2', 'r1' ], script => $script, clients => 2, transactions => 100,
	max_tries => 1000, rate => 40);

# What ends a move in favour of DDL, or the other way, is tried again.
sub try
{
	my ($node, $sql) = @_;
	foreach (1 .. 60)
	{
		my ($status, $out, $err) = $c->psql($node, $sql);
		return 1 if $status == 0;
		next if $err =~ /ERROR:  (TS00.|55006|57014|55P03|40001|40P01|55000)/;
		diag "$sql: $err";
		return 0;
	}
	return 0;
}

my ($moved, $changed, $round) = (0, 0, 0);
while ($round < 4 || $load->running)
{
	my $to = 's' . (1 + ($round + 1) % 3);
	my $mover = $c->background('s1', "SELECT tessera.move_range('ev', 10, 30, '$to')");
	$changed++ if try('r1', "CREATE TABLE new_$round PARTITION OF ev FOR VALUES FROM (" . (2000 + $round) . ') TO (' . (2001 + $round) . ')');
	my $errors = $c->ended($mover);
	$moved++ if $errors !~ /ERROR/;
	like($errors, qr/ERROR:  (TS00.|55006|57014|40001|55000)/, "round $round: a move ends by DDL alone") if $errors =~ /ERROR/;
	$moved++ if try('s1', "SELECT tessera.move_range('ev', 30, 50, 's" . (1 + $round % 3) . "')");
	$changed++ if try('s3', "INSERT INTO ev (k, at, v) VALUES (25, " . (2000 + $round) . ', 1)');
	$changed++ if try('s2', $round % 2 ? 'ALTER TABLE ev ATTACH PARTITION ev_old FOR VALUES FROM (900) TO (1000)' : 'ALTER TABLE ev DETACH ' .
		'PARTITION ev_old');
	is($c->query('r1', 'SELECT count(*) FROM ev_old'), '600', "round $round: rows of a partition that comes and goes");
	$changed++ if $round > 1 && try('s1', 'DROP TABLE new_' . ($round - 2));
	$round++;
}
my $sums = $load->wait;
cmp_ok($moved, '>', 2, "$moved moves, $changed changes in $round rounds");
is($sums->{failed} // 0, 0, 'no transaction failed') or diag $sums->{errors};
cmp_ok($sums->{processed}, '>', 0, "$sums->{processed} transactions");
$c->is_settled('under load');
my $expected = 3000 + $sums->{processed};
is($_, "$expected|$expected|3000", 'each row once') foreach $c->query_all($counted);

# ---- a partition that comes while a range moves ----

$c->query('s1', "SELECT tessera.move_range('ev', 1, 10, 's1')");
try('s1', 'ALTER TABLE ev ATTACH PARTITION ev_old FOR VALUES FROM (900) TO (1000)') if $round % 2;
$c->pause_at('s1', 'donor_cloned');
my $move = $c->background('s1', "SELECT tessera.move_range('ev', 1, 10, 's2')");
$c->is_paused_at('s1', 'donor_cloned');
my $ddl = $c->background('r1', 'CREATE TABLE late PARTITION OF ev FOR VALUES FROM (3000) TO (3100)');
ok($c->wait_for('r1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE TABLE late%' AND state = 'active'", '1'), 'both are under way');
$c->go_on('s1');
is($c->ended($ddl), '', 'the partition is made');
unlike($c->ended($move), qr/ERROR:  (?!55006|TS00)/, 'the move is over, or was just before');
$c->query('s2', 'INSERT INTO ev (k, at, v) SELECT g, 3000 + g, 1 FROM generate_series(1, 60) g');
$c->query('s1', "SELECT tessera.move_range('ev', 1, 10, 's2')");
is(join(' ', $c->query_all('SELECT count(*), count(DISTINCT k) FROM late')), join(' ', ('60|60') x 4), 'its rows move, too');

# ---- crashes ----

foreach my $crash ([ 's2', 'donor_write_gate' ], [ 's3', 'recipient_batch' ], [ 's2', 'range_deleter_batch' ])
{
	my ($node, $point) = @$crash;
	$c->query($node, "SELECT tessera_test.injection_set('$point', 'crash')");
	my ($status) = $c->psql('s1', "SELECT tessera.move_range('ev', 1, 10, 's3')");
	$c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0') if $status == 0;
	ok($c->wait_for($node, 'SELECT count(*) FROM tessera_test.injection_list()', '0', 60), "$point: $node has crashed, and is back");
	$c->is_settled($point);
	is($_, "$expected|$expected|3000", "$point: each row once") foreach $c->query_all($counted);
	is($_, '60|60', "$point: of the new partition") foreach $c->query_all('SELECT count(*), count(DISTINCT k) FROM late');
	$c->query('s1', "SELECT tessera.move_range('ev', 1, 10, 's2')");
}
$c->is_settled('at last');

done_testing();
