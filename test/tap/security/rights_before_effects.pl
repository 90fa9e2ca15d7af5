# Rights are asked before a statement has an effect on others: DDL of somebody who may not run it ends no move and holds no name, setval() of somebody
# who may not leaves the blocks that nodes have of the sequence, and nobody but a plan enters a migration's gate.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('rights_first', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE ROLE alice', 'CREATE ROLE mallory', 'CREATE ROLE reader',
	'CREATE SCHEMA alice AUTHORIZATION alice', 'CREATE SCHEMA mallory AUTHORIZATION mallory', 'GRANT CREATE ON SCHEMA mallory TO reader',
	'SET ROLE alice; CREATE TABLE alice.big (k int PRIMARY KEY, v text)', 'SET ROLE alice; CREATE INDEX big_v ON alice.big (v)',
	'SET ROLE alice; CREATE FUNCTION alice.tf() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$',
	'SET ROLE alice; CREATE TRIGGER tr AFTER INSERT ON alice.big FOR EACH STATEMENT EXECUTE FUNCTION alice.tf()',
	'SET ROLE alice; CREATE POLICY po ON alice.big',
	q{SELECT tessera.shard_table('alice.big', 'k')}, q{SELECT tessera.move_range('alice.big', tessera.minkey(), tessera.maxkey(), 's1')},
	q{INSERT INTO alice.big SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g},
	'GRANT USAGE ON SCHEMA alice TO mallory, reader', 'GRANT SELECT ON alice.big TO reader',
	'SET ROLE alice; CREATE SEQUENCE alice.q; CREATE VIEW alice.vw AS SELECT 1 AS one; CREATE TABLE alice.placed (k int PRIMARY KEY)',
	'GRANT SELECT ON alice.vw, alice.q TO reader', 'SET ROLE mallory; CREATE TABLE mallory.parts (k int, v text) PARTITION BY LIST (k)');

# ---- DDL while a range moves ----

my @refused = (
	'ALTER TABLE alice.big ADD COLUMN x int', 'ALTER TABLE alice.big ALTER v TYPE varchar', 'ALTER TABLE alice.big RENAME TO b',
	'ALTER TABLE alice.big RENAME COLUMN v TO w', 'ALTER TABLE alice.big SET SCHEMA mallory', 'ALTER TABLE alice.big OWNER TO mallory',
	'ALTER INDEX alice.big_v RENAME TO w', 'ALTER TRIGGER tr ON alice.big RENAME TO w', 'ALTER POLICY po ON alice.big RENAME TO w',
	'ALTER POLICY po ON alice.big USING (true)', 'TRUNCATE alice.big', 'DROP TABLE alice.big', 'DROP INDEX alice.big_v',
	'DROP TRIGGER tr ON alice.big', 'DROP POLICY po ON alice.big', 'CREATE INDEX ON alice.big (v)', 'CREATE INDEX CONCURRENTLY ON alice.big (v)',
	'CREATE TRIGGER tr2 AFTER INSERT ON alice.big FOR EACH STATEMENT EXECUTE FUNCTION alice.tf()',
	'CREATE RULE ru AS ON INSERT TO alice.big DO INSTEAD NOTHING', 'CREATE POLICY po2 ON alice.big',
	'CREATE STATISTICS mallory.st ON k, v FROM alice.big',
	q{COMMENT ON TABLE alice.big IS 'mine'}, q{COMMENT ON COLUMN alice.big.v IS 'mine'}, 'CLUSTER alice.big USING big_v', 'REINDEX TABLE alice.big',
	'BEGIN; LOCK TABLE alice.big',
	'ALTER TABLE alice.big ENABLE ROW LEVEL SECURITY', 'ALTER TABLE alice.big DISABLE TRIGGER ALL', 'ALTER TABLE alice.big REPLICA IDENTITY FULL',
	'GRANT ALL ON alice.big TO mallory',
	'CREATE TABLE mallory.x () INHERITS (alice.big)', 'CREATE TABLE mallory.x (k int REFERENCES alice.big)',
	'ALTER TABLE mallory.parts ATTACH PARTITION alice.big FOR VALUES IN (1)', 'ALTER TRIGGER tr ON alice.big DEPENDS ON EXTENSION plpgsql');

$c->pause_at('s1', 'donor_cloned');
my $move = $c->background('r1', q{SELECT tessera.move_range('alice.big', tessera.minkey(), tessera.maxkey(), 's2')});
ok($c->paused_at('s1', 'donor_cloned'), 'a range moves');
foreach my $role (qw(mallory reader))
{
	foreach my $sql (@refused)
	{
		my ($status, $out, $err) = $c->psql('r1', "SET ROLE $role; $sql");
		like($err, qr/ERROR:  42501/, "$role: $sql") unless $role eq 'reader' && $sql =~ /LOCK|GRANT/;
	}
}
is($c->query('s1', q{SELECT count(*) FROM tessera.migrations WHERE state IN ('aborting', 'aborted') OR error IS NOT NULL}), '0', 'it goes on');
$c->go_on('s1');
is(TesseraCluster::ended($c, $move), '', 'and ends well');
is($c->query('s1', q{SELECT string_agg(DISTINCT shard, ' ') FROM tessera.chunks WHERE table_name = 'alice.big'::regclass}), 's2', 'where it should');

# The same while a schema moves: by what is made in it, and by views, sequences and placed tables that lie there. A GRANT by somebody who may grant
# nothing is core's to warn of, and holds nothing.
my ($from, $to) = $c->query('s1', q{SELECT shard FROM tessera.schemas WHERE schema = 'alice'}) eq 's1' ? qw(s1 s2) : qw(s2 s1);
$c->pause_at($from, 'donor_cloned');
$move = $c->background('r1', "SELECT tessera.move_schema('alice', '$to')");
ok($c->paused_at($from, 'donor_cloned'), 'a schema moves');
foreach my $sql (
	'CREATE TABLE alice.x (i int)', 'CREATE VIEW alice.x AS SELECT 1', 'CREATE SEQUENCE alice.x', 'CREATE TABLE alice.x AS SELECT 1',
	'CREATE TYPE alice.x AS (i int)', 'ALTER TABLE mallory.parts SET SCHEMA alice', 'ALTER SEQUENCE alice.q RESTART', 'DROP SEQUENCE alice.q',
	'DROP VIEW alice.vw', q{COMMENT ON VIEW alice.vw IS 'mine'}, 'ALTER VIEW alice.vw RENAME TO w',
	'CREATE RULE r AS ON INSERT TO alice.vw DO NOTHING',
	'CREATE TABLE mallory.x (k int REFERENCES alice.placed)', 'ALTER TABLE mallory.parts ATTACH PARTITION alice.placed FOR VALUES IN (1)',
	'GRANT SELECT ON alice.vw TO mallory', 'GRANT SELECT ON mallory.parts, alice.vw, alice.q TO mallory')
{
	foreach my $role (qw(mallory reader))
	{
		my ($status, $out, $err) = $c->psql('r1', "SET ROLE $role; $sql");
		like($err, $sql =~ /^GRANT/ && $role eq 'reader' ? qr/WARNING:  01007/ : qr/ERROR:  42501/, "$role: $sql")
			unless $role eq 'reader' && $sql =~ /mallory\.parts, /;
	}
}
my $granter = $c->session('r1');
$granter->query('BEGIN; SET LOCAL ROLE reader; GRANT SELECT ON alice.vw TO mallory');
is($c->query('s1', q{SELECT count(*) FROM tessera.migrations WHERE state IN ('aborting', 'aborted') OR error IS NOT NULL}), '0', 'it goes on');
$c->go_on($from);
is(TesseraCluster::ended($c, $move), '', 'and ends well');
$granter->quit;
is($c->query('s1', q{SELECT shard FROM tessera.schemas WHERE schema = 'alice'}), $to, 'where it should');

# A right of a partition or of a column's sequence, granted by who has it for that alone: on every node.
$c->query('s1', $_) foreach (
	'CREATE ROLE bob', 'CREATE TABLE whole (k serial, v int, PRIMARY KEY (k)) PARTITION BY RANGE (k)',
	'CREATE TABLE part PARTITION OF whole FOR VALUES FROM (1) TO (1000)', q{SELECT tessera.shard_table('whole', 'k')},
	'GRANT SELECT ON part TO bob WITH GRANT OPTION', 'GRANT USAGE ON SEQUENCE whole_k_seq TO bob WITH GRANT OPTION');
$c->query('r1', "SET ROLE bob; $_") foreach
	'GRANT SELECT ON part TO reader', 'GRANT USAGE ON SEQUENCE whole_k_seq TO reader';
is($c->query($_, q{SELECT has_table_privilege('reader', 'part', 'SELECT'), has_sequence_privilege('reader', 'whole_k_seq', 'USAGE')}), 't|t',
	"granted on $_, too") foreach $c->names;
$c->query('r1', 'SET ROLE bob; REVOKE SELECT ON part FROM reader');
is($c->query($_, q{SELECT has_table_privilege('reader', 'part', 'SELECT')}), 'f', "revoked on $_, too") foreach $c->names;

# Who may is not refused.
$c->query('r1', "SET ROLE alice; $_") foreach (
	'ALTER TABLE alice.big ADD COLUMN x int', 'ALTER INDEX alice.big_v RENAME TO big_w', 'ALTER TRIGGER tr ON alice.big RENAME TO tr3',
	'CREATE STATISTICS alice.st ON k, v FROM alice.big', 'DROP TRIGGER tr3 ON alice.big', q{COMMENT ON COLUMN alice.big.v IS 'mine'},
	'TRUNCATE alice.big');
$c->query('s1', 'GRANT TRIGGER, REFERENCES, TRUNCATE ON alice.big TO mallory');
$c->query('r1', "SET ROLE mallory; $_") foreach
	'TRUNCATE alice.big', 'CREATE TABLE mallory.v AS SELECT 1 AS k', 'CREATE TABLE mallory.l (LIKE mallory.v)';
$c->query('s1', 'CREATE SCHEMA AUTHORIZATION reader; CREATE TABLE reader.t (k int)');
$c->query('r1', 'SET ROLE reader; DROP TABLE reader.t');    # of another owner, in the schema of one's own

is($c->query('r1', 'SET ROLE mallory; CREATE TEMP TABLE tt (i int); CREATE VIEW of_tt AS SELECT i FROM tt; SELECT count(*) FROM of_tt'), '0',
	'a view of a temporary table is temporary, and needs no right on a schema');

# ---- a migration's gate ----

like($c->error('s1', q{SET ROLE mallory; SELECT tessera.require_owned(group_id, 5) FROM tessera.tables WHERE table_name = 'alice.big'::regclass}),
	qr/42501/, 'a gate is for plans alone to enter');

# ---- blocks of a sequence ----

my $left = q{SELECT values_left FROM tessera.sequence_pools() WHERE sequence = 'alice.q'::regclass};
my $node = $c->query('s1', q{SELECT shard FROM tessera.schemas WHERE schema = 'alice'}) eq 's1' ? 's2' : 's1';
$c->query($node, q{SELECT nextval('alice.q'), nextval('alice.q')});
my $before = $c->query($node, $left);
cmp_ok($before, '>', 0, 'a node has a block of the sequence');
foreach my $from ($c->names)
{
	like($c->error($from, q{SET ROLE mallory; SELECT setval(oid::regclass, 1) FROM pg_class WHERE relname = 'q' AND relkind = 'S'}), qr/42501/,
		"setval() without the right on $from");
	is($c->query($node, $left), $before, 'leaves it');
}

# ---- rights on all tables are none on the catalog's ----

$c->query('s1', 'CREATE ROLE writes_all IN ROLE pg_write_all_data');
like($c->error('s1', "SET ROLE writes_all; $_"), qr/42501/, $_) foreach
	q{SELECT setval('tessera.clock_reservation', 1)}, q{SELECT setval(pg_get_serial_sequence('tessera.changelog_entry', 'change_id'), 1)},
	'BEGIN; LOCK TABLE tessera.node IN SHARE MODE', 'BEGIN; LOCK TABLE tessera.chunk';

# ---- the server's functions of sequences, revoked ----

$c->query('s1', "REVOKE EXECUTE ON FUNCTION $_ FROM PUBLIC") foreach
	'setval(regclass, bigint)', 'nextval(regclass)', 'lastval()', 'currval(regclass)';
like($c->error('r1', "SET ROLE alice; SELECT $_"), qr/42501/, "$_, revoked") foreach
	q{setval('alice.q', 1)}, q{nextval('alice.q')}, 'lastval()', q{currval('alice.q')};
is($c->query('r1', q{SET ROLE alice; SELECT setval('alice.q', 7, true)}), '7', 'the other setval() is another function');

done_testing();
