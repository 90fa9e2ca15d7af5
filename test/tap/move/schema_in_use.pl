# A schema moves while it is in use (S25, S41): every table of it, whatever its kind, with the rows that statements of all nodes change meanwhile,
# each once; foreign keys hold; schemas that they tie to it come along; nobody finds rows on the old shard; DDL goes before the move; who may not is
# refused.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('move_schema', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0 });
# All schemas are on s1, which was there first.
$c->create(shards => 3, before_add => sub { $c->query('s1', <<'END') });
CREATE SCHEMA app;
CREATE SCHEMA side;
CREATE SCHEMA alone;
CREATE SCHEMA elsewhere;
CREATE TABLE app.acc (k int PRIMARY KEY, bal bigint NOT NULL DEFAULT 0, filler text);
CREATE TABLE app.entry (id serial PRIMARY KEY, k int NOT NULL REFERENCES app.acc, delta int NOT NULL);
CREATE TABLE app.loose (k int, note text);
ALTER TABLE app.loose REPLICA IDENTITY FULL;
CREATE TABLE app.parts (k int, at int, v int NOT NULL DEFAULT 0, PRIMARY KEY (k, at)) PARTITION BY RANGE (at);
CREATE TABLE app.parts_1 PARTITION OF app.parts FOR VALUES FROM (0) TO (100);
CREATE TABLE app.parts_2 PARTITION OF app.parts FOR VALUES FROM (100) TO (200);
CREATE TABLE app.base (k int PRIMARY KEY, v int);
CREATE TABLE app.child (extra int) INHERITS (app.base);
ALTER TABLE app.child REPLICA IDENTITY FULL;
CREATE VIEW app.sums AS SELECT count(*) AS n, sum(bal) AS s FROM app.acc;
CREATE FUNCTION app.total() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT sum(bal) FROM app.acc); END';
CREATE TABLE side.note (id int PRIMARY KEY, k int REFERENCES app.acc, t text);
CREATE TABLE alone.t (k int PRIMARY KEY);
INSERT INTO app.acc SELECT g, 0, repeat('x', g % 200) FROM generate_series(1, 3000) g;
INSERT INTO app.loose SELECT g % 50, 'n' || g FROM generate_series(1, 500) g;
INSERT INTO app.parts SELECT g, g % 200 FROM generate_series(1, 1000) g;
INSERT INTO app.base SELECT g, g FROM generate_series(1, 100) g;
INSERT INTO app.child SELECT g, g, g FROM generate_series(101, 200) g;
INSERT INTO side.note SELECT g, g, 'side' FROM generate_series(1, 300) g;
INSERT INTO alone.t SELECT g FROM generate_series(1, 10) g;
CREATE MATERIALIZED VIEW app.snap AS SELECT k, bal FROM app.acc;
END

my @nodes = $c->names;

sub home { my ($schema, $node) = @_; return $c->query($node // 's1', "SELECT shard FROM tessera.schemas WHERE schema = '$schema'"); }
sub mod { return $c->query('s1', "SELECT mod FROM tessera.schemas WHERE schema = 'app'"); }
my ($first, $second, $third) = ('s1', 's2', 's3');

sub move { my ($schema, $to, %params) = @_; return $c->query($params{via} // 's1', "SELECT tessera.move_schema('$schema', '$to')"); }

# What is in the schema, from each node, the same.
sub whole
{
	my ($what) = @_;
	my $sql = 'SELECT (SELECT count(*) FROM app.acc), (SELECT count(*) FROM app.loose), (SELECT count(*) FROM app.parts), ' .
		'(SELECT count(*) FROM app.parts_1), (SELECT count(*) FROM app.base), (SELECT count(*) FROM ONLY app.base), ' .
		'(SELECT count(*) FROM app.child), ' .
		'(SELECT count(*) FROM app.snap), (SELECT count(*) FROM side.note), (SELECT n FROM app.sums)';
	ok($c->wait_for($_, $sql, '3000|500|1000|500|200|100|100|3000|300|3000'), "$what: all rows from $_") foreach @nodes;
	return;
}

# Idle.
my ($status, $stdout, $stderr) = $c->psql('s1', "SELECT tessera.move_schema('app', '$second')");
is($status, 0, 'a schema moves') or diag $stderr;
like($stderr, qr/NOTICE:.*schemas app, side move together/, 'with the one that a foreign key ties to it');
is(home('app') . home('side') . home('alone'), $second . $second . $first, 'both are there, the third is not');
is(mod(), 2, 'its version has grown');
whole('after a move');
is($c->query('s1', "SELECT table_name IS NULL, schema_name, min, max, donor, recipient, state FROM tessera.migrations"),
	"t|app|MINKEY|MAXKEY|$first|$second|committed", 'the migration is on record');
is($c->query('s1', "SELECT kind, primary_shard, chunks FROM tessera.tables WHERE table_name = 'app.acc'::regclass"), "placed|$second|0",
	'its tables are placed ones, as before');
is($c->query('s1', 'SELECT count(*) FROM tessera.chunks'), 0, 'and have no chunks to see');
is($c->query($_, 'SELECT app.total()'), 0, "a function of it, from $_") foreach @nodes;
$c->is_settled('a move');
($status, $stdout, $stderr) = $c->psql('s1', "SELECT tessera.move_schema('app', '$second')");
like($stderr, qr/NOTICE:.*schema "app" is on shard "$second" already/, 'once more: it is there');
is($stdout, '', 'and nothing moves');

# What lies on the old shard is deleted, and hidden until then.
$c->set($second, 'tessera.orphan_cleanup_delay' => 3600000);
move('app', $third, via => $third);
like(move('elsewhere', $third), qr/-/, 'a schema without tables moves');
whole('while the old rows are still there');
is($c->query($second, "SELECT count(*) FROM tessera.range_deletions WHERE table_name IN ('app.acc'::regclass, 'side.note'::regclass)"), 2,
	'they are on record');
# time enough for attempts to get their other locks: what the last of them met is the error
like($c->error($third, 'SET tessera.ddl_lock_timeout = 6000; ALTER TABLE app.acc SET SCHEMA elsewhere'),
	qr/TS004|55006: rows of table "acc" that moved away have not been deleted yet/,
	'no table leaves the schema before');
$c->set($second, 'tessera.orphan_cleanup_delay' => 0);
$c->is_settled('a second move');
is($c->query($second, 'SELECT count(*) FROM tessera.range_deletions'), 0, 'then they are gone');
is(mod(), 3, 'the version has grown again');

# Writes of every kind, from every node.
foreach my $node (@nodes)
{
	$c->query($node, 'UPDATE app.acc SET bal = bal + 1 WHERE k = 7; UPDATE app.parts SET at = 150 WHERE k = 7; ' .
		"DELETE FROM app.loose WHERE note = 'n1';" .
		"INSERT INTO app.loose VALUES (1, 'n1'); UPDATE app.parts SET at = 7 WHERE k = 7;" .
		'MERGE INTO app.base b USING (SELECT 1 AS k) s ON b.k = s.k WHEN MATCHED THEN UPDATE SET v = 1;' .
		'BEGIN; SELECT 1 FROM app.acc WHERE k = 8 FOR UPDATE; LOCK TABLE app.acc IN SHARE ROW EXCLUSIVE MODE; COMMIT');
	is($c->query($node, "COPY (SELECT * FROM app.acc WHERE k = 7) TO STDOUT") =~ /^7\t/ ? 1 : 0, 1, "$node: COPY TO");
	like($c->error($node, 'INSERT INTO side.note VALUES (1000, 99999)'), qr/23503/, "$node: the foreign key holds");
	like($c->error($node, 'DELETE FROM app.acc WHERE k = 5'), qr/23503/, "$node: from both ends");
}
is($c->query('s2', 'SELECT bal FROM app.acc WHERE k = 7'), 3, 'all are there');
$c->query('s2', 'UPDATE app.acc SET bal = 0');
# DDL that waits for no lock learns where the schema is all the same
is($c->query($_, "SET tessera.ddl_lock_timeout = 0; ALTER TABLE app.loose ALTER note SET DEFAULT '$_'"), '', "$_: DDL without waiting")
	foreach @nodes;

# Refusals.
my @refused = (
	[ '3F000', "SELECT tessera.move_schema('nowhere', 's2')", 'a schema that does not exist' ],
	[ '22023', "SELECT tessera.move_schema('pg_catalog', 's2')", "the system's" ],
	[ '22023', "SELECT tessera.move_schema('tessera', 's2')", "the extension's" ],
	[ '42704', "SELECT tessera.move_schema('app', 'nowhere')", 'an unknown shard' ],
	[ '25001', "BEGIN; SELECT count(*) FROM app.acc; SELECT tessera.move_schema('app', 's2')", 'a transaction that has used a table' ]);
like($c->error('s1', $_->[1]), qr/ERROR:  $_->[0]/, "refused: $_->[2]") foreach @refused;
$c->query('s1', 'CREATE ROLE nobody LOGIN');
like($c->error('s1', "SET ROLE nobody; SELECT tessera.move_schema('app', 's1')"), qr/42501/, 'refused: who is no administrator');
$c->query('s1', 'CREATE TABLE alone.bare (v int)');
like($c->error('s1', "SELECT tessera.move_schema('alone', '$second')"), qr/55000: table "bare" has no replica identity/,
	'refused: no replica identity');
is(home('alone'), $first, 'and it stays');
$c->query('s1', 'DROP TABLE alone.bare');
$c->is_settled('refusals');

# Under load from every node: transfers, inserts with a foreign key, into partitions, COPY, rows without a key.
my $transfer = <<'END';
\set a random(1, 3000)
\set b random(1, 3000)
\set d random(1, 100)
BEGIN;
UPDATE app.acc SET bal = bal - :d WHERE k = :a;
UPDATE app.acc SET bal = bal + :d WHERE k = :b;
INSERT INTO app.entry (k, delta) VALUES (:a, -:d), (:b, :d);
COMMIT;
END
my $other = <<'END';
\set k random(1, 1000)
\set id random(1001, 1000000000)
UPDATE app.parts SET v = v + 1 WHERE k = :k;
INSERT INTO side.note VALUES (:id, :k, 'load') ON CONFLICT DO NOTHING;
SELECT count(*) FROM app.base WHERE k = :k;
END
my $load = $c->pgbench_start(script => $transfer, transactions => 40, rate => 20, clients => 2);
my $others = $c->pgbench_start(script => $other, transactions => 80, rate => 20, clients => 1, protocol => 'prepared');
my $moves = 0;
my @to = ($first, $second, $third);
while ($load->running || $moves < 3)
{
	my $to = $to[ $moves % 3 ];
	($status, $stdout, $stderr) = $c->psql($nodes[ $moves % @nodes ], "SELECT tessera.move_schema('app', '$to')");
	is($status, 0, "move to $to under load") or diag $stderr;
	$moves++;
}
my $sums = $load->wait;
my $updates = $others->wait;
cmp_ok($moves, '>=', 3, "$moves moves");
cmp_ok($sums->{processed}, '>', 0, "$sums->{processed} transfers");
is($sums->{failed} + $sums->{aborted}, 0, 'no transfer failed') or diag $sums->{errors};
is($updates->{failed} + $updates->{aborted}, 0, 'nor another statement') or diag $updates->{errors};
foreach my $node (@nodes)
{
	is($c->query($node, 'SELECT count(*), sum(bal) FROM app.acc'), '3000|0', "$node: sums are conserved");
	is($c->query($node, 'SELECT count(*), count(DISTINCT id), sum(delta) FROM app.entry'), join('|', (2 * $sums->{processed}) x 2, 0),
		"$node: every entry is there once");
	is($c->query($node, 'SELECT sum(v) FROM app.parts'), $updates->{processed}, "$node: every update counts once");
	is($c->query($node, 'SELECT count(*) FROM app.acc a WHERE bal <> (SELECT coalesce(sum(delta), 0) FROM app.entry e WHERE e.k = a.k)'), 0,
		"$node: balances and entries agree");
}
$c->is_settled('moves under load');
# Its sequences follow, and give no value twice, whoever draws.
ok($c->wait_for('s1', "SELECT shard = sequences_on FROM tessera.schemas WHERE schema = 'app'", 't'), 'the sequences have followed');
my $last = $c->query('s1', 'SELECT max(id) FROM app.entry');
$c->query($_, "INSERT INTO app.entry (k, delta) SELECT 1, 0 FROM generate_series(1, 100)") foreach @nodes;
is($c->query('s1', "SELECT count(DISTINCT id) FROM app.entry WHERE delta = 0"), 100 * @nodes, 'values are new ones on every node');
is($c->query($_, "SELECT setval('app.entry_id_seq', 5000000); SELECT nextval('app.entry_id_seq') > 5000000, " .
	"currval('app.entry_id_seq') = lastval()"), "5000000\nt|t", "$_: setval reaches the new home") foreach @nodes;
cmp_ok($c->query(home('app'), "SELECT last_value FROM app.entry_id_seq"), '>=', 5000000, 'which has the value');
# A node that has not heard of the new home, the old one too, does not show where the sequence stood there.
foreach my $to (grep { $_ ne home('app') } @nodes)
{
	move('app', $to);
	ok($c->wait_for('s1', "SELECT shard = sequences_on FROM tessera.schemas WHERE schema = 'app'", 't'), "the sequences have followed to $to");
	my $value = $c->query($to, "SELECT nextval('app.entry_id_seq')");
	cmp_ok($c->query($_, 'SELECT last_value FROM app.entry_id_seq'), '>=', $value, "$_ reads the sequence where it is") foreach @nodes;
	cmp_ok($c->query($_, "SELECT last_value FROM pg_sequences WHERE sequencename = 'entry_id_seq'"), '>=', $value, "$_: pg_sequences, too")
		foreach @nodes;
}
$c->query('s1', 'DELETE FROM app.entry WHERE delta = 0');
note($c->query('s1', "SELECT count(*), max(pause_ms), avg(pause_ms) FROM tessera.migrations WHERE state = 'committed'"));

# A snapshot of before the move does not see the schema twice or not at all.
move('app', $first);
my $reader = $c->session($third);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.base;');
move('app', $second);
like($reader->query('SELECT count(*) FROM app.acc') . ($reader->{stderr} // ''), qr/^3000|40001|could not serialize/,
	'an older snapshot: right, or 40001');
$reader->quit;

# DDL goes before the move, and what is made later moves along.
$c->pause_at($second, 'donor_cloned');
my $run = $c->background('s1', "SELECT tessera.move_schema('app', '$third')");
$c->is_paused_at($second, 'donor_cloned');
my $ddl = $c->background('s3', 'CREATE TABLE app.later (k int PRIMARY KEY); INSERT INTO app.later SELECT generate_series(1, 20)');
is($c->ended($ddl), '', 'a statement that makes a table ends well while the donor is held');
$c->go_on($second);
like($c->ended($run), qr/55006|migration was cancelled/, 'the migration has made way for it');
move('app', $third);
is($c->query('s2', 'SELECT count(*) FROM app.later'), 20, 'the new table moves with the schema');
$c->query('s2', 'TRUNCATE app.later; ALTER SCHEMA app RENAME TO apps');
is(home('apps', 's2'), $third, 'renamed, it is where it was');
$c->query('s1', 'ALTER SCHEMA apps RENAME TO app; DROP TABLE app.later; REFRESH MATERIALIZED VIEW app.snap');
move('app', $first);
$c->query('s1', 'DELETE FROM side.note WHERE id > 1000');
whole('in the end');
$c->is_settled('the end');
$c->query('s1', 'DROP SCHEMA app, side, alone, elsewhere CASCADE');
is($c->query($_, 'SELECT (SELECT count(*) FROM tessera.table_group), (SELECT count(*) FROM tessera.placement)'), '0|0', "$_: nothing is left of it")
	foreach @nodes;
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), 0, 'all is consistent');
$c->node($_)->stop foreach @nodes;
done_testing();
