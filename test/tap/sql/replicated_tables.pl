# Replicated tables: whole on every node, read there, written on their lead and carried to all copies before the statement is done.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('replicated', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 2, routers => 1);
my @nodes = $c->names;

# The rows that each node has by itself: read with no other node's help, by a session that sees the heap alone.
sub copies
{
	my ($table, $name) = @_;
	my %seen;
	foreach my $node (@nodes)
	{
		my $rows = $c->query($node, "SELECT coalesce(string_agg(t::text, ';' ORDER BY t::text COLLATE \"C\"), '') FROM $table t");
		push @{ $seen{$rows} }, $node;
	}
	is(scalar(keys %seen), 1, "$name: alike on all nodes") or diag(join("\n", map { "@{ $seen{$_} }: $_" } keys %seen));
	return (keys %seen)[0];
}

$c->query('s1', 'CREATE TABLE country (id int PRIMARY KEY, name text, note text, big text GENERATED ALWAYS AS (upper(name)) STORED)');
$c->query('s1', "INSERT INTO country SELECT g, 'c' || g, NULL FROM generate_series(1, 1000) g");
$c->query('s2', "SELECT tessera.replicate_table('country')");
is($c->query($_, "SELECT kind FROM tessera.tables WHERE table_name = 'country'::regclass"), 'replicated', "kind on $_") foreach @nodes;
copies('country', 'filled');
foreach my $node (@nodes)
{
	unlike($c->query($node, 'EXPLAIN SELECT * FROM country WHERE id = 5'), qr/Tessera/, "read here on $node");
	is($c->query($node, 'SELECT count(*), sum(id), min(big) FROM country'), '1000|500500|C1', "rows on $node");
}

# writes, from each node
my $i = 0;
foreach my $node (@nodes)
{
	$i++;
	is($c->query($node, "INSERT INTO country (id, name) VALUES (200$i, 'x''\"{},\\ ') RETURNING big"), "X'\"{},\\ ", "INSERT on $node");
	$c->query($node, "UPDATE country SET name = 'u$i', id = id + 10000 WHERE id = $i;
		UPDATE country SET note = 'n' || id WHERE id % 100 = $i;
		DELETE FROM country WHERE id = 10$i;
		INSERT INTO country (id, name) VALUES (20$i, 'again') ON CONFLICT (id) DO UPDATE SET name = excluded.name;
		INSERT INTO country (id, name) SELECT 3000 + 100 * $i + g, 's' FROM generate_series(1, 50) g;
		MERGE INTO country c USING (VALUES (30$i, 'm'), (400$i, 'new')) AS v (id, name) ON c.id = v.id
			WHEN MATCHED THEN UPDATE SET name = v.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (v.id, v.name)");
	copies('country', "written on $node");
	is($c->query($node, "BEGIN; INSERT INTO country (id, name) VALUES (900$i, 'own'); SELECT big FROM country WHERE id = 900$i; COMMIT"), 'OWN',
		"own rows are seen on $node");
	$c->query($node, "BEGIN; INSERT INTO country (id) VALUES (910$i); SAVEPOINT a; INSERT INTO country (id) VALUES (920$i);
		DELETE FROM country WHERE id = 910$i; ROLLBACK TO a; INSERT INTO country (id) VALUES (930$i); COMMIT;
		BEGIN; DELETE FROM country; ROLLBACK;
		DO \$\$ BEGIN BEGIN DELETE FROM country; RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN INSERT INTO country (id) VALUES (940$i); END; END \$\$");
	is($c->query($node, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM country WHERE id >= 9100 AND id < 9500 AND id % 10 = $i"),
		"910$i 930$i 940$i",
		"savepoints on $node");
	copies('country', "savepoints on $node");
}

# COPY, both ways
foreach my $node (@nodes)
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/$node.txt";
	$i++;
	append_to_file($file, join('', map { "5${i}0$_\tcopied\n" } 0 .. 9));
	$c->query($node, "COPY country (id, name) FROM '$file'");
	copies('country', "COPY on $node");
	$c->query($node, "COPY country TO '$file.out'");
	is(scalar(split(/\n/, slurp_file("$file.out"))), $c->query('s1', 'SELECT count(*) FROM country'), "COPY TO on $node");
}

# a trigger fires once, on the lead; what it writes is carried, too
$c->query('s1', "CREATE TABLE log (id bigserial PRIMARY KEY, what text); SELECT tessera.replicate_table('log')");
$c->query('s1', 'CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS
	$$ BEGIN INSERT INTO log (what) VALUES (TG_OP || NEW.id);
	BEGIN INSERT INTO log (what) VALUES (\'undone\'); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END;
	NEW.note = \'by trigger\'; RETURN NEW; END $$');
$c->query('s1', 'CREATE TRIGGER note BEFORE INSERT ON country FOR EACH ROW EXECUTE FUNCTION note()');
foreach my $node (@nodes)
{
	$i++;
	$c->query($node, "INSERT INTO country (id) VALUES (600$i)");
	is($c->query($_, "SELECT note FROM country WHERE id = 600$i; SELECT count(*) FROM log WHERE what = 'INSERT600$i'"), "by trigger\n1",
		"the trigger's row of $node, and what it wrote, once, on $_") foreach @nodes;
}
copies('log', 'written by a trigger');
$c->query('s1', 'DROP TRIGGER note ON country');

# joins, of any kind of table, from every node
$c->query('s1', "CREATE TABLE person (k int PRIMARY KEY, country int); SELECT tessera.shard_table('person', 'k', 'hash', chunks => 8)");
$c->query('s1', 'INSERT INTO person SELECT g, 500 + g % 10 FROM generate_series(1, 200) g');
foreach my $node (@nodes)
{
	is($c->query($node, 'SELECT count(*), sum(c.id) FROM person p JOIN country c ON c.id = p.country'), '200|100900', "join on $node");
	is($c->query($node, 'SELECT c.name FROM person p JOIN country c ON c.id = p.country WHERE p.k = 7'), 'c507', "join of one row on $node");
	unlike($c->query($node, 'EXPLAIN SELECT c.name FROM person p JOIN country c ON c.id = p.country WHERE p.k = 7'), qr/Hash Join|Nested Loop/,
		"it goes to the shard whole")
		if $node eq 'r1';
	is($c->query($node, 'UPDATE person p SET country = c.id FROM country c WHERE c.id = p.country AND p.k % 2 = 0 RETURNING 1') =~ tr/1//, 100,
		"UPDATE of sharded rows by it on $node");
	is($c->query($node, 'BEGIN; SELECT id FROM country WHERE id = 500 FOR UPDATE; COMMIT'), '500', "FOR UPDATE on $node");
}

# foreign keys: from sharded and placed tables of any home, and between replicated ones
$c->query('s1', "CREATE TABLE region (id int PRIMARY KEY, up int REFERENCES region, code text UNIQUE); SELECT tessera.replicate_table('region')");
$c->query('s1', 'INSERT INTO region SELECT g, NULL, g FROM generate_series(1, 100) g');
$c->query('s1', "CREATE TABLE town (id int PRIMARY KEY, region int REFERENCES region ON UPDATE CASCADE ON DELETE CASCADE)");
$c->query('s1', "SELECT tessera.replicate_table('town')");
$c->query('s1', 'INSERT INTO town SELECT g, g FROM generate_series(1, 50) g');
$c->query('s2', "CREATE SCHEMA far; CREATE TABLE far.visit (id int PRIMARY KEY, region int REFERENCES region DEFERRABLE INITIALLY DEFERRED)");
$c->query('s1', "SELECT tessera.move_schema('far', 's2')")
	if $c->query('s1', "SELECT primary_shard FROM tessera.tables WHERE table_name = 'far.visit'::regclass") ne 's2';
$c->query('s1', 'CREATE TABLE own (k int PRIMARY KEY, region int REFERENCES region, gone int REFERENCES region ON DELETE SET NULL)');
$c->query('s1', "SELECT tessera.shard_table('own', 'k', 'hash', chunks => 8)");
$c->query('s1', 'ALTER TABLE person ADD COLUMN region int REFERENCES region ON DELETE CASCADE');
foreach my $node (@nodes)
{
	$i++;
	my $from = 10 * ($i - 9);
	my ($a, $b, $d, $e, $f) = map { $from + $_ } 1 .. 5;
	like($c->error($node, "INSERT INTO own VALUES (1000 + $i, -1)"), qr/23503/, "a missing row is noticed on $node");
	$c->query($node, "INSERT INTO own SELECT 10000 * $i + g, $a, $b FROM generate_series(1, 40) g;
		INSERT INTO far.visit VALUES ($i, $d);
		INSERT INTO person (k, region) SELECT 10000 * $i + g, $e FROM generate_series(1, 40) g");
	like($c->error($node, "DELETE FROM region WHERE id = $a"), qr/23503/, "a row that sharded rows refer to stays, on $node");
	like($c->error($node, "DELETE FROM region WHERE id = $d"), qr/23503/, "a row that a placed row refers to stays, on $node");
	$c->query($node, "DELETE FROM region WHERE id = $b");
	is($c->query($node, "SELECT count(*), count(gone) FROM own WHERE k > 10000 * $i AND k < 10000 * $i + 50"), '40|0', "SET NULL from $node");
	is($c->query($node, "SELECT count(*) FROM person WHERE region = $e"), '40', "rows that refer to it, on $node");
	$c->query($node, "DELETE FROM region WHERE id = $e");
	is($c->query($node, "SELECT count(*) FROM person WHERE k > 10000 * $i AND k < 10000 * $i + 50"), '0',
		"CASCADE from $node");
	$c->query($node, "UPDATE region SET id = id + 1000 WHERE id = $f");
	copies('region', "foreign keys on $node");
	copies('town', "cascades on $node");
	is($c->query($node, "SELECT count(*) FROM town t WHERE NOT EXISTS (SELECT FROM region r WHERE r.id = t.region)"), '0',
		"cascades are whole on $node");
}
$c->query('s1', 'CREATE TABLE falls (k int PRIMARY KEY, region int DEFAULT 99 REFERENCES region ON DELETE SET DEFAULT ON UPDATE CASCADE)');
$c->query('s1', "SELECT tessera.shard_table('falls', 'k', 'hash', chunks => 8); INSERT INTO falls SELECT g, 98 FROM generate_series(1, 40) g");
$c->query('r1', 'UPDATE region SET id = 97098 WHERE id = 98; DELETE FROM region WHERE id = 97098');
is($c->query('r1', 'SELECT region, count(*) FROM falls GROUP BY 1'), '99|40', 'SET DEFAULT');
is(scalar(grep { slurp_file($c->node($_)->logfile) =~ /reference leak/ } @nodes), 0, 'no table is left open');
$c->query('s1', 'DROP TABLE falls');
like($c->error('s1', 'ALTER TABLE region ADD FOREIGN KEY (id) REFERENCES own'), qr/0A000.*not replicated/s, 'none to a sharded table');
like($c->error('s1', "SELECT tessera.unreplicate_table('region')"), qr/2BP01/, 'what others refer to stays replicated');
like($c->error('s1', "SELECT tessera.move_schema('public', 's2')"), qr/0A000.*unreplicate_table/s, 'its schema stays');
like($c->error('s1', "SELECT tessera.shard_table('region', 'id')"), qr/0A000.*is replicated/s, 'it is not sharded');

# References between replicated tables, of one lead or of two, by statements whose rows come in several batches, of 10000 rows.
my $most = TesseraCluster::long() ? 25000 : 10500;
$c->query('s1', 'CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree); CREATE INDEX ON tree (up)');
$c->query('s1', 'CREATE SCHEMA other; CREATE TABLE other.leaf (id int PRIMARY KEY, up int, soft int)');
$c->query('s1', 'CREATE INDEX ON other.leaf (up); CREATE INDEX ON other.leaf (soft)');
my %other = (s1 => 's2', s2 => 's1');
my ($of_tree, $of_leaf) = map { $c->query('s1', "SELECT primary_shard FROM tessera.tables WHERE table_name = '$_'::regclass") } 'tree', 'other.leaf';
$c->query('s1', "SELECT tessera.move_schema('other', '$other{$of_leaf}')") if $of_tree eq $of_leaf;
$c->query('s1', "SELECT tessera.replicate_table('tree'); SELECT tessera.replicate_table('other.leaf')");
$c->query('s1', 'ALTER TABLE other.leaf ADD FOREIGN KEY (up) REFERENCES tree, ADD FOREIGN KEY (soft) REFERENCES tree ON DELETE SET NULL');
$c->query('r1', "INSERT INTO tree SELECT g, nullif(g % $most + 1, 1) FROM generate_series(1, $most) g");
copies('tree', 'rows that refer to later ones');
$c->query('s2', "INSERT INTO other.leaf SELECT g, g, $most - 3000 + g FROM generate_series(1, 3000) g");
copies('other.leaf', 'rows of another lead');
like($c->error($_, 'DELETE FROM tree WHERE id = 5'), qr/23503/, "what leaves refer to stays, from $_") foreach @nodes;
like($c->error($_, 'INSERT INTO other.leaf VALUES (9999, 99999)'), qr/23503/, "a leaf without its tree, from $_") foreach @nodes;
$c->query('r1', 'UPDATE tree SET up = NULL; DELETE FROM other.leaf WHERE id > 10');
$c->query('s1', 'DELETE FROM tree WHERE id > 10');
copies('tree', 'deleted in several batches');
copies('other.leaf', 'set to NULL');
is($c->query('r1', 'SELECT count(*), count(soft) FROM other.leaf'), '10|0', 'the action reached them');
# One session deletes what another is about to refer to: one of them fails, or neither row is there without the other.
foreach my $order (0, 1)
{
	$c->query('r1', 'DELETE FROM other.leaf WHERE up = 9; INSERT INTO tree VALUES (9) ON CONFLICT DO NOTHING');
	my @runs = map { $c->background($_ ? 's2' : 'r1', $_ ? 'INSERT INTO other.leaf VALUES (100, 9)' : 'DELETE FROM tree WHERE id = 9') }
		$order ? (1, 0) : (0, 1);
	$c->ended($_) foreach @runs;
	is($c->query('r1', 'SELECT count(*) FROM other.leaf l WHERE NOT EXISTS (SELECT FROM tree t WHERE t.id = l.up)'), '0',
		"no leaf without a tree, $order");
	copies('tree', "after two sessions at once, $order");
	copies('other.leaf', "after two sessions at once, $order");
}

# A row's version is the lead's, whoever asks: what was read is found again.
$c->query('s1', 'CREATE VIEW versions AS SELECT id, xmin AS version, xmax FROM country');
foreach my $node (@nodes)
{
	my ($version, $next);
	my $read = sub { my ($by) = @_; $version = $c->query($by, 'SELECT xmin FROM country WHERE id = 700'); };
	my $write = sub { my ($of) = @_; return $c->query($node, "UPDATE country SET note = '$node' WHERE id = 700 AND xmin = '$of' RETURNING xmin"); };
	foreach my $by (@nodes)
	{
		$read->($by);
		$next = $write->($version);
		isnt($next, '', "read on $by, written on $node");
		is($write->($version), '', "an older version is not written on $node");
		is($read->($by), $next, "RETURNING on $node has told it to $by");
	}
	is($c->query($node, "SELECT id FROM country WHERE xmin = '$next'; SELECT id FROM versions WHERE version = '$next';
		SELECT (SELECT version FROM versions v WHERE v.id = c.id) = '$next' FROM country c WHERE id = 700;
		SELECT count(*) FROM country a JOIN country b USING (id) WHERE a.xmin = '$next';
		SELECT count(*) FROM country a JOIN town t ON t.id < 3 WHERE a.xmin = '$next';
		WITH v AS (SELECT xmin AS x, id FROM country) SELECT id FROM v WHERE x = '$next';
		SELECT count(*) FROM (SELECT xmin, id FROM country WHERE id = 700) AS v;
		BEGIN; DECLARE v CURSOR FOR SELECT id, xmin FROM country WHERE id = 700; FETCH v; COMMIT"),
		"700\n700\nt\n1\n" . $c->query($node, 'SELECT count(*) FROM town WHERE id < 3') . "\n700\n1\n700|$next",
		"by statements of each kind on $node");
	foreach my $reads ('off', 'on')
	{
		is($c->query($node, "SET tessera.snapshot_reads = $reads; UPDATE person SET country = 700 WHERE k IN (3, 4, 5, 6);
			SELECT count(*) FROM person p JOIN country c ON c.id = p.country WHERE c.xmin = '$next';
			SELECT count(*) FROM person p WHERE p.country IN (SELECT id FROM country WHERE xmin = '$next');
			SELECT c.xmin FROM person p JOIN country c ON c.id = p.country WHERE p.k = 3"), "4\n4\n$next",
			"joined with sharded rows on $node, snapshot_reads $reads");
	}
	my $session = $c->session($node);
	$session->query_safe('PREPARE v(xid) AS SELECT id FROM country WHERE id = 700 AND xmin = $1');
	is($session->query_safe("EXECUTE v('$next')"), '700', "prepared, the ${_}th time, on $node") foreach 1 .. 7;
	$session->quit;
	is($c->query($node, "BEGIN; UPDATE country SET note = 'own' WHERE id = 700;
		DELETE FROM country WHERE id = 700 AND xmin = (SELECT xmin FROM country WHERE id = 700) RETURNING id; ROLLBACK"), '700',
		"of the transaction itself, on $node");
	is($c->query($node, "INSERT INTO country (id) VALUES (777100) ON CONFLICT (id) DO UPDATE SET note = 'again' RETURNING xmax = '0'"),
		$node eq $nodes[0] ? 't' : 'f', "RETURNING tells whether the row was there, on $node");
}
copies('country', 'written by version');

# What only names it, as a view does, reads the copy here all the same.
foreach my $node (grep { $_ ne $nodes[0] } @nodes)
{
	my $plan = sub { my ($sql) = @_; return $c->query($node, "EXPLAIN (COSTS off) $sql"); };
	my $join = '(versions v JOIN (SELECT id AS town FROM town) t ON t.town = v.id) AS j';
	unlike($plan->($_), qr/Tessera/, "the copy on $node: $_") foreach (
		'SELECT id FROM versions', 'SELECT count(*) FROM versions WHERE id > 3', 'SELECT v.id FROM versions v JOIN town t ON t.id = v.id',
		"SELECT j.id FROM $join", 'SELECT id FROM (SELECT * FROM versions OFFSET 1) v',
		'SELECT x.id FROM town t, LATERAL (SELECT v.id, v.version FROM versions v WHERE v.id = t.id) x');
	like($plan->($_), qr/Tessera/, "not the copy on $node: $_") foreach (
		'SELECT version FROM versions', 'SELECT v FROM versions v', 'SELECT id FROM versions ORDER BY xmax::text', 'SELECT DISTINCT * FROM versions',
		"SELECT j.version FROM $join", 'SELECT * FROM (SELECT * FROM versions OFFSET 1) v', 'TABLE versions UNION ALL TABLE versions',
		'SELECT x.id FROM versions v, LATERAL (SELECT v.id, v.version) x WHERE x.version IS NOT NULL');
}
$c->query('s1', 'DROP VIEW versions');

# nodes that come have the rows, and go without them
$c->start_node($_) foreach qw(s3 r2);
$c->query($_, 'CREATE EXTENSION tessera') foreach qw(s3 r2);
$c->add_shard('s3');
$c->add_router('r2');
@nodes = $c->names;
copies('country', 'nodes have come');
copies('town', 'nodes have come');
$c->query($_, "INSERT INTO country (id, name) VALUES (70000 + ascii(right('$_', 1)) * 2 + ascii('$_') * 100, 'from $_')")
	foreach @nodes;
copies('country', 'written after nodes have come');
$c->query('s1', "SELECT tessera.remove_router('r2')");
$c->query($_, 'SELECT tessera.reload_routing()') foreach qw(s1 s2 r1 s3);
ok($c->wait_for('r2', 'SELECT count(*) FROM tessera.identity', '0'), 'a node has left');
$c->query('r2', 'DROP EXTENSION tessera CASCADE');
is($c->query('r2', 'SELECT count(*) FROM country'), '0', 'and keeps no rows');
@nodes = qw(s1 s2 r1 s3);
$c->query('s2', "UPDATE country SET name = 'later' WHERE id = 700");
copies('country', 'written after a node has left');

# what is refused
my %refused = (
	'ALTER TABLE region DROP CONSTRAINT region_pkey CASCADE' => qr/0A000.*primary key/s,
	'ALTER TABLE country DROP COLUMN id' => qr/0A000.*primary key/s,
	'ALTER TABLE country ADD COLUMN at timestamptz DEFAULT now()' => qr/0A000.*not constant.*SET DEFAULT/s,
	'ALTER TABLE country ADD COLUMN serial bigserial' => qr/0A000.*not constant/s,
	'ALTER TABLE country ADD COLUMN serial int GENERATED BY DEFAULT AS IDENTITY' => qr/0A000.*not constant/s,
	"ALTER TABLE country ALTER note TYPE text USING now()::text" => qr/0A000.*not immutable.*UPDATE/s,
	'CREATE TABLE child (LIKE country); ALTER TABLE child INHERIT country' => qr/0A000.*inheritance/s,
	'CREATE TABLE parent (LIKE log); ALTER TABLE log INHERIT parent' => qr/0A000.*inheritance/s,
	'CREATE TABLE child () INHERITS (log)' => qr/0A000.*inheritance/s,
	'CREATE TABLE parts (id bigint, what text) PARTITION BY LIST (id); ALTER TABLE parts ATTACH PARTITION log DEFAULT' => qr/0A000.*partition/s,
	'ALTER TABLE log SET UNLOGGED' => qr/0A000.*unlogged/s,
);
foreach my $statement (sort keys %refused)
{
	like($c->error('r1', "BEGIN; $statement; COMMIT"), $refused{$statement}, $statement);
}
$c->query('r1', "ALTER TABLE country ADD COLUMN constant text DEFAULT 'same', ALTER note TYPE varchar(200), ADD CHECK (length(name) < 100)");
$c->query('r1', 'ALTER TABLE country ALTER note TYPE text USING lower(note), ADD COLUMN at timestamptz');
$c->query('s2', 'ALTER TABLE country ALTER at SET DEFAULT now(); UPDATE country SET at = now()');
copies('country', 'after ALTER TABLE');
is($c->query('r1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'the check finds nothing');
foreach my $node (grep { $_ ne $c->query('s1', "SELECT primary_shard FROM tessera.tables WHERE table_name = 'country'::regclass") } @nodes)
{
	$c->query($node, "SET tessera.replicate_ddl = off; ALTER TABLE country ALTER note TYPE text USING coalesce(note, '') || '!'");
	like($c->query('r1', 'SELECT invariant, object, detail FROM tessera.check_consistency(deep => true)'),
		qr/\A11\|public\.country\|the copy on node $node has \d+ rows, that of its lead \w+ \d+, with other values\Z/,
		"a copy that differs, on $node");
	$c->query($node, "SET tessera.replicate_ddl = off; ALTER TABLE country ALTER note TYPE text USING nullif(left(note, -1), '')");
}
is($c->query('r1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'and none that does');
foreach my $node (@nodes)
{
	my $error = $c->error($node, "UPDATE country SET name = 'z' WHERE ctid = '(0,1)'");
	like($error, qr/goes by ctid/, "ctid is refused on $node");
}
$c->query('s1', 'TRUNCATE log');
is(copies('log', 'truncated'), '', 'TRUNCATE empties all copies');

# a node that is down
$c->query('r1', 'SELECT 1 FROM country');
$c->stop('r1');
my $error = $c->error('s2', "INSERT INTO country (id) VALUES (777000)");
like($error, qr/"r1"/, 'the error names the node');
like($error, qr/HINT:.*remove_router/, 'and says what can be done');
is($c->query($_, 'SELECT count(*) FROM country WHERE id = 777000'), '0', "nothing was written on $_") foreach qw(s1 s2);
$c->start('r1');
$c->query('s2', "INSERT INTO country (id) VALUES (777000)");
copies('country', 'the node is back');

# The trigger that captures stays: a restore of data turns all off and on again.
$c->query('r1', "ALTER TABLE country $_ TRIGGER ALL; INSERT INTO country (id) VALUES (777001) ON CONFLICT (id) DO UPDATE SET name = '$_'")
	foreach 'DISABLE', 'ENABLE';
$c->query('s2', "SET session_replication_role = replica; UPDATE country SET note = 'as a replica' WHERE id = 777001");
copies('country', 'triggers were turned off and on');
my $trigger = $c->query('r1',
	"SELECT quote_ident(tgname) FROM pg_trigger WHERE tgrelid = 'country'::regclass AND tgname LIKE 'tessera\\_replicated%'");
like($c->error('r1', "DROP TRIGGER $trigger ON country"), qr/0A000.*unreplicate_table/s, 'it is not dropped');

# Rows of its schema that are still to be deleted on a node are not its own; it is where its new schema is.
$c->query('s1', 'CREATE SCHEMA moved; CREATE TABLE moved.some (id int PRIMARY KEY); INSERT INTO moved.some SELECT generate_series(1, 100)');
my $from = $c->query('s1', "SELECT primary_shard FROM tessera.tables WHERE table_name = 'moved.some'::regclass");
my $to = $from eq 's1' ? 's2' : 's1';
$c->query($from, "SELECT tessera_test.injection_set('range_deleter_batch', 'pause')");
$c->query('s1', "SELECT tessera.move_schema('moved', '$to')");
$c->query('s1', 'ALTER TABLE country SET SCHEMA moved');
$c->go_on($from);
ok($c->wait_for($from, 'SELECT count(*) FROM tessera.range_deletions', '0'), 'what the schema left has been deleted');
copies('moved.country', 'in a schema that has moved');
$c->query($_, "UPDATE moved.country SET note = 'moved to $_' WHERE id = 777001") foreach @nodes;
copies('moved.country', 'written there');
$c->query('s2', 'ALTER TABLE moved.country SET SCHEMA public');
$c->query($_, "UPDATE country SET note = 'back in $_' WHERE id = 777001") foreach @nodes;
copies('country', 'and back');

# back to a placed table
$c->query('r1', "SELECT tessera.unreplicate_table('country')");
my $n = $c->query('s1', 'SELECT count(*) FROM country');
is($c->query($_, 'SELECT count(*) FROM country'), $n, "all rows from $_") foreach @nodes;
like($c->query('r1', 'EXPLAIN SELECT * FROM country'), qr/Tessera/, 'read on its shard');
$c->query('r1', 'DELETE FROM country WHERE id < 600');
$c->query('r1', "SELECT tessera.replicate_table('country')");
copies('country', 'replicated again');

# nothing is left of the trigger that was there before
$c->query('r1', 'CREATE TABLE brief (id int PRIMARY KEY)');
$c->query('r1', "SELECT tessera.$_('brief')") foreach 'replicate_table', 'unreplicate_table', 'replicate_table';
$c->query('s2', 'DROP TABLE brief');
is($c->query($_, "SELECT to_regclass('brief') IS NULL"), 't', "what was replicated twice is dropped on $_") foreach @nodes;

# A table becomes a replicated one by a transaction that is asked for elsewhere, and prepared on its primary shard. COMMIT PREPARED there gives back
# its lock before the mirror is told: a writer who has waited for it, or comes then, must not go on by the old image, or his row would be on one node
# alone.
{
	my ($home, $other) = ('s1', 's2');
	$c->query($home, $_) foreach ('CREATE TABLE later (k int PRIMARY KEY, n int)', 'INSERT INTO later VALUES (1, 1)');
	is($c->query($home, q(SELECT count(*) FROM later WHERE ctid = '(0,1)')), '1', "it is a table of $home");
	$c->pause_at($home, 'prepared_commit_seen');
	my $replicates = $c->background($other, q(SELECT tessera.replicate_table('later')));
	ok($c->paused_at($home, 'prepared_commit_seen', 60), 'it is replicated, and the mirror not told');
	my $writes = $c->background($home, 'INSERT INTO later VALUES (2, 2)');
	$c->wait_for($home, q(SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'INSERT INTO later%' AND wait_event IS NOT NULL), 't', 60)
		or diag 'the writer did not wait';
	$c->go_on($home, 'prepared_commit_seen');
	is($c->ended($replicates), '', 'replicated');
	is($c->ended($writes), '', 'and written');
	is($c->query($_, 'SELECT count(*) FROM later'), '2', "all rows are on $_") foreach qw(s1 s2 s3 r1);
	is($c->query($home, 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');
}

done_testing();
