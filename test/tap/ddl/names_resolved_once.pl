# A name is resolved once, by the server, under the user's own search_path; from then on the table is known by its OID. Renames and moves to other
# schemas leave a sharded table what it is, on every node; check_consistency tells of tables of which that is not so, and of schemas that differ
# between nodes.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('names');
$c->create(shards => 2, routers => 1);
my @nodes = $c->names;
$c->query('s1', 'CREATE SCHEMA other; CREATE SCHEMA "Odd one"');

sub sharded
{
	my ($table, $key, $path) = @_;
	my $set = $path ? "SET search_path = $path; " : '';
	$key //= 'k';
	$c->query('s1', "${set}CREATE TABLE $table ($key int PRIMARY KEY, v int)");
	$c->query('s1', "${set}SELECT tessera.shard_table('$table', '$key')");
	$c->query('s1', "${set}SELECT tessera.move_range('$table', 7, tessera.maxkey(), 's2')");
	$c->query('s1', "${set}INSERT INTO $table SELECT i, i FROM generate_series(1, 12) i");
	return;
}

# Is the table whole on each node, under its name, with its key?
sub is_whole
{
	my ($table, $key, $rows, $what) = @_;
	foreach my $i (0 .. $#nodes)
	{
		my $value = 1000 + $i;
		is($c->query($nodes[$i], "SELECT count(*) || '/' || count(DISTINCT $key) FROM $table;
				SELECT key FROM tessera.tables WHERE table_name = '$table'::regclass;
				INSERT INTO $table ($key, v) VALUES ($value, 0); UPDATE $table SET v = 1 WHERE $key = $value;
				SELECT count(*) FROM $table WHERE $key = $value; DELETE FROM $table WHERE $key = $value RETURNING v"), "$rows/$rows\n$key\n1\n1",
			"$what: $nodes[$i] sees all rows, knows the key's name, and writes");
	}
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$what: all is consistent");
	return;
}

sharded('ren');
my $session = $c->session('r1', on_error_stop => 0);
$session->query('PREPARE all_of AS SELECT count(*) FROM ren; PREPARE one_of AS SELECT count(*) FROM ren WHERE v = $1; EXECUTE all_of; EXECUTE ' .
	'one_of(9)');
$c->query('s1', 'ALTER TABLE ren RENAME COLUMN k TO kk');
is_whole('ren', 'kk', 12, 'RENAME COLUMN of the key');
is($session->query('EXECUTE all_of; EXECUTE one_of(9)'), "12\n1", 'statements prepared before go on');
$c->query('r1', 'ALTER TABLE ren RENAME kk TO "K 2"');
is_whole('ren', '"K 2"', 12, 'again, through a router');
$c->query('s2', 'BEGIN; SAVEPOINT a; ALTER TABLE ren RENAME "K 2" TO lost; INSERT INTO ren (lost, v) VALUES (50, 1); ROLLBACK TO a;
	INSERT INTO ren ("K 2", v) VALUES (51, 1);
	ALTER TABLE ren RENAME "K 2" TO a1; ALTER TABLE ren RENAME a1 TO a2; DELETE FROM ren WHERE a2 = 51; COMMIT');
is_whole('ren', 'a2', 12, 'in a transaction, in parts undone');
$c->query('s1', q{CREATE FUNCTION rename_it() RETURNS void LANGUAGE plpgsql SET search_path = public AS 'BEGIN ALTER TABLE ren RENAME a2 TO a3; } .
	q{END'; SET search_path = other; SELECT public.rename_it()});
is_whole('ren', 'a3', 12, 'in a function with a search_path of its own');
is($session->query('EXECUTE all_of; EXECUTE one_of(9)'), "12\n1", 'statements prepared before still go on');
$session->quit;

sharded('deep', 'k', 'other');
$c->query('s2', 'SET search_path = nosuch, other, public; ALTER TABLE deep RENAME k TO kk');
is_whole('other.deep', 'kk', 12, 'in another schema of the search_path');

# Two of a name: the first one of the path is meant.
sharded('twice');
sharded('twice', 'k', 'other');
$c->query('s1', 'SET search_path = other, public; ALTER TABLE twice RENAME k TO k1');
is_whole('other.twice', 'k1', 12, 'the first of two of a name');
is_whole('public.twice', 'k', 12, 'the other');
$c->query('s1', 'CREATE TEMP TABLE twice (k int); ALTER TABLE twice RENAME k TO z; DROP TABLE twice; ALTER TABLE twice RENAME k TO k2');
is_whole('public.twice', 'k2', 12, 'behind a temporary table of the name');

$c->query('s1', 'ALTER TABLE twice RENAME TO once');
is_whole('once', 'k2', 12, 'RENAME TO');
$c->query('s1', 'ALTER TABLE once SET SCHEMA "Odd one"');
is_whole('"Odd one".once', 'k2', 12, 'SET SCHEMA');
$c->query('s1', 'ALTER SCHEMA "Odd one" RENAME TO even');
is_whole('even.once', 'k2', 12, 'RENAME of the schema');
$c->query('s1', 'SET search_path = even; ALTER INDEX twice_pkey RENAME TO by_key; ALTER TABLE once RENAME k2 TO k3; ALTER TABLE by_key RENAME TO ' .
	'by_key_2');
is_whole('even.once', 'k3', 12, 'RENAME of the index behind the key');
$c->query('s1', 'SET search_path = even; BEGIN; DROP TABLE once; CREATE TABLE once (k3 int PRIMARY KEY, v int); ALTER TABLE once RENAME k3 TO k4; ' .
	'INSERT INTO once VALUES (1, 1); COMMIT');
is(join(' ', $c->query_all('SELECT count(*) FROM even.once')), '1 1 1', 'dropped and made anew: a table of its own');
is(join(' ', $c->query_all("SELECT kind FROM tessera.tables WHERE table_name = 'even.once'::regclass")), 'placed placed placed',
	'which is not sharded');
like($c->error('s1', 'SET search_path = other; ALTER TABLE twice ALTER k1 TYPE bigint'), qr/0A000|42P16/, 'the type of the key stays');

# What else knows the table by its OID.
sharded('used');
$c->query('s1', q{CREATE VIEW seen AS SELECT k, v FROM used; CREATE TABLE counted (n serial, k int PRIMARY KEY)});
$c->query('s1', 'ALTER TABLE used RENAME k TO kk; ALTER TABLE used RENAME TO used_2; ALTER SEQUENCE counted_n_seq RENAME TO numbers; INSERT INTO ' .
	'counted (k) VALUES (1)');
is_whole('used_2', 'kk', 12, 'beside a view');
is(join(' ', $c->query_all('SELECT count(*) FROM seen')), '12 12 12', 'the view sees all rows');
$c->query('r1', 'INSERT INTO counted (k) VALUES (2)');
is($c->query('s2', 'SELECT count(DISTINCT n) FROM counted'), '2', 'the renamed sequence goes on');

#
# what is not so any more is told
#
sub alone_on
{
	my ($node, $sql) = @_;
	return $c->query($node, "SET tessera.replicate_ddl = off; $sql");
}

sub findings
{
	return $c->query('r1', 'SELECT invariant, object, detail FROM tessera.check_consistency()');
}

is(findings(), '', 'all is consistent');
my @differences = (
	[ 'ALTER TABLE ren ADD COLUMN extra int', 'ALTER TABLE ren DROP COLUMN extra', qr/column extra/ ],
	[ 'ALTER TABLE ren ALTER v SET DEFAULT 5', 'ALTER TABLE ren ALTER v DROP DEFAULT', qr/column v/ ],
	[ 'ALTER TABLE ren ALTER v SET NOT NULL', 'ALTER TABLE ren ALTER v DROP NOT NULL', qr/column v/ ],
	[ 'ALTER TABLE ren ADD CONSTRAINT positive CHECK (v > -5)', 'ALTER TABLE ren DROP CONSTRAINT positive', qr/constraint positive/ ],
	[ 'CREATE INDEX by_v ON ren (v)', 'DROP INDEX by_v', qr/index by_v/ ],
	[ 'ALTER TABLE ren ENABLE ROW LEVEL SECURITY', 'ALTER TABLE ren DISABLE ROW LEVEL SECURITY', qr/table/ ],
	[ 'CREATE POLICY p ON ren USING (v > 0)', 'DROP POLICY p ON ren', qr/policy p/ ],
	[ 'GRANT SELECT ON ren TO PUBLIC', 'REVOKE SELECT ON ren FROM PUBLIC', qr/privileges/ ],
	[ 'CREATE ROLE other_owner; ALTER TABLE ren OWNER TO other_owner', 'ALTER TABLE ren OWNER TO CURRENT_USER; DROP ROLE other_owner', qr/owner/ ],
	[ 'CREATE TRIGGER t BEFORE UPDATE ON ren FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()', 'DROP TRIGGER t ON ren',
	qr/trigger t/ ],
	[ 'ALTER TABLE ren ALTER v TYPE bigint', 'ALTER TABLE ren ALTER v TYPE int', qr/column v/ ]);
foreach my $difference (@differences)
{
	my ($make, $undo, $expected) = @$difference;
	alone_on('s2', $make);
	my $found = findings();
	like($found, qr/^10\|public\.ren\|node s2: .*$expected[^\n]*$/m, "$make: noticed");
	is(scalar(split(/\n/, $found)), 1, 'once');
	alone_on('s2', $undo);
	is(findings(), '', "$undo: consistent again");
}
alone_on('s1', 'ALTER TABLE ren ADD COLUMN extra int');
like(findings(), qr/^10\|public\.ren\|node s2: .*extra.*\n10\|public\.ren\|node r1: .*extra/m,
	'a change on the config node alone is noticed of each other node');
alone_on('s1', 'ALTER TABLE ren DROP COLUMN extra');
is(findings(), '', 'dropped columns make no difference');

# A key column that is none: nothing is answered from the rows that lie here.
$c->query('s2', q{UPDATE tessera.cluster_table SET key_columns = '{nosuch}' WHERE table_name = 'ren'});
like(findings(), qr/^10\|public\.ren\|node s2: .*nosuch/m, 'a key column that does not exist is noticed');
foreach my $sql ('SELECT count(*) FROM ren', 'SELECT count(*) FROM ren WHERE a3 = 9', 'INSERT INTO ren VALUES (500, 1)', 'UPDATE ren SET v = 0',
	'DELETE FROM ren WHERE a3 = 9', 'TRUNCATE ren',
	'COPY ren TO STDOUT', "COPY ren FROM PROGRAM 'echo 501'", 'EXPLAIN ANALYZE SELECT * FROM ren', 'SELECT * FROM ren FOR UPDATE',
	'SELECT tessera.range_owner($$ren$$, 1)', 'SELECT tessera.shard_table($$ren$$, $$a3$$)',
	'MERGE INTO ren USING (VALUES (1)) AS w (a3) ON w.a3 = ren.a3 WHEN MATCHED THEN DELETE')
{
	# In the transaction that breaks it: else the node finds out by itself, and fetches the row anew. TRUNCATE tries again until its patience ends.
	my ($status, $out) = $c->psql('s2', "SET tessera.ddl_lock_timeout = 500;
		BEGIN; UPDATE tessera.cluster_table SET key_columns = '{nosuch}' WHERE table_name = 'ren'; $sql; ROLLBACK");
	isnt($status, 0, "refused: $sql") or diag $out;
}
is($c->query('s1', 'SELECT count(*), sum(v) FROM ren'), '12|78', 'and nothing has changed');
$c->query('s2', q{UPDATE tessera.cluster_table SET key_columns = '{a3}' WHERE table_name = 'ren'});
is(findings(), '', 'mended');

# Tables that are not there.
$c->query('s1', 'CREATE TABLE gone (k int PRIMARY KEY)');
alone_on('s2', 'DROP TABLE gone');
like(findings(), qr/^10\|public\.gone\|node s2: .*does not exist/m, 'a table that a node has not is noticed');
alone_on('s2', 'CREATE TABLE gone (k int PRIMARY KEY)');
is(findings(), '', 'mended');
my $row = $c->query('s2', q{DELETE FROM tessera.cluster_table WHERE table_name = 'gone' RETURNING table_id});
like(findings(), qr/^10\|public\.gone\|node s2: .*catalog/m, q{a table that a node's catalog does not know is noticed});
$c->query('s2', "INSERT INTO tessera.cluster_table (table_id, schema_name, table_name) VALUES ('$row', 'public', 'gone')");
is(findings(), '', 'mended');

$c->stop('s2');
like(findings(), qr/^0\|node s2\|could not be checked/m, 'a node that is down is a row');
$c->start('s2');

done_testing();
