# SET CONSTRAINTS reaches the shards that take part and those that join later, in the scope of transaction and savepoint, and IMMEDIATE raises what
# they find; deferred constraints are checked at the end of the transaction by what is there then, whatever statement came last. All as on one server.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('constraints');
$c->create(shards => 2, routers => 1);

my @schema = (
	'CREATE SCHEMA a', 'CREATE SCHEMA b',
	# a cycle of two tables in each schema, a table with a deferrable key, one with a constraint trigger, a tree
	(map { (
		"CREATE TABLE $_.p (id int PRIMARY KEY, c int)",
		"CREATE TABLE $_.c (id int PRIMARY KEY, p int CONSTRAINT to_p REFERENCES $_.p DEFERRABLE INITIALLY IMMEDIATE)",
		"ALTER TABLE $_.p ADD CONSTRAINT to_c FOREIGN KEY (c) REFERENCES $_.c DEFERRABLE INITIALLY DEFERRED",
		"CREATE TABLE $_.u " .
		"(id int CONSTRAINT ${_}_key UNIQUE DEFERRABLE INITIALLY IMMEDIATE, o int CONSTRAINT other UNIQUE, n int CONSTRAINT positive CHECK (n > 0))",
		"CREATE TABLE $_.tree (id int PRIMARY KEY, up int CONSTRAINT up REFERENCES $_.tree DEFERRABLE INITIALLY DEFERRED)",
		"CREATE TABLE $_.log (n int)" ) } qw(a b)),
	'CREATE TABLE hp (k int, id int, PRIMARY KEY (k, id))',
	'CREATE TABLE hc (k int, id int, pid int, PRIMARY KEY (k, id))',
	'CREATE TABLE hu (k int NOT NULL, v int, CONSTRAINT hkey UNIQUE (k, v) DEFERRABLE INITIALLY IMMEDIATE)', 'ALTER TABLE hu REPLICA IDENTITY FULL',
	'CREATE TABLE ht (k int PRIMARY KEY, n int)',
	'CREATE FUNCTION check_ht() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF (SELECT n FROM public.ht WHERE k = NEW.k) IS DISTINCT FROM 0'
	  . q( THEN RAISE EXCEPTION 'n of % is not 0', NEW.k USING ERRCODE = 'P0077'; END IF; RETURN NULL; END $$),
	'CREATE CONSTRAINT TRIGGER must_be_0 AFTER INSERT OR UPDATE ON ht DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_ht()');
$c->everywhere($_) foreach @schema;
$c->query('s1', "SELECT tessera.shard_table('hp', 'k', 'hash', chunks => 8)");
$c->query('s1', "SELECT tessera.shard_table('hc', 'k', 'hash', colocate_with => 'hp')");
$c->query('s1', "SELECT tessera.shard_table('$_', 'k', 'hash', chunks => 8)") foreach qw(hu ht);
$c->everywhere('ALTER TABLE hc ADD CONSTRAINT hfk FOREIGN KEY (k, pid) REFERENCES hp DEFERRABLE INITIALLY DEFERRED');
$c->fetch_routing;
ok($c->wait_for('r1', "SELECT count(*) FROM tessera.tables WHERE kind = 'sharded'", '4'), 'the router knows the tables');
isnt($c->query('s1', "SELECT count(DISTINCT shard) FROM tessera.chunks"), '1', 'chunks are on both shards');
isnt($c->query('s1', "SELECT count(DISTINCT primary_shard) FROM tessera.tables WHERE table_name::text IN ('a.p', 'b.p')"), '1',
	'the schemas are on two shards')
  or diag $c->query('s1', 'SELECT * FROM tessera.tables');

# What a statement left, then clean again: each entry is a session of its own, the first statements of which are what is tested.
my $show = 'SELECT (SELECT count(*) FROM a.p), (SELECT count(*) FROM a.c), (SELECT count(*) FROM b.p), (SELECT count(*) FROM b.c), (SELECT ' .
	'count(*) FROM a.u), (SELECT count(*) FROM b.u),'
  . ' (SELECT count(*) FROM a.tree), (SELECT count(*) FROM b.tree), (SELECT count(*) FROM hp), (SELECT count(*) FROM hc), (SELECT count(*) FROM ' .
  'hu), (SELECT count(*) FROM ht)';
my $clean = 'BEGIN; SET CONSTRAINTS ALL DEFERRED; DELETE FROM a.p; DELETE FROM a.c; DELETE FROM b.p; DELETE FROM b.c; DELETE FROM a.u; DELETE ' .
	'FROM b.u; DELETE FROM a.tree; DELETE FROM b.tree;'
  . ' DELETE FROM hc; DELETE FROM hp; DELETE FROM hu; DELETE FROM ht; COMMIT';
my @script = map { (my $sql = $_) =~ s/\s*;?\s*$//; ("$sql;\n$show", $clean) } (
	# deferred foreign keys, the last statement being a multi-row INSERT, and its kin
	'BEGIN; INSERT INTO a.tree VALUES (1, 2), (2, 1); COMMIT',
	'INSERT INTO a.tree VALUES (1, 2), (2, 1)',
	'INSERT INTO b.tree SELECT g, g % 40 + 1 FROM generate_series(1, 40) g',
	'INSERT INTO b.tree VALUES (1, 2), (2, 3)',
	'INSERT INTO b.tree VALUES (1, 1), (2, 3) RETURNING id',
	'WITH x AS (INSERT INTO a.tree VALUES (1, 2) RETURNING id) INSERT INTO a.tree SELECT 2, id FROM x',
	'BEGIN; INSERT INTO hc VALUES (1, 1, 1), (2, 1, 1), (3, 1, 1); INSERT INTO hp VALUES (1, 1), (2, 1), (3, 1); COMMIT',
	'BEGIN; INSERT INTO hp VALUES (1, 1), (2, 1), (3, 1); INSERT INTO hc VALUES (1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 1); COMMIT',
	'BEGIN; INSERT INTO hp VALUES (1, 1), (2, 1), (3, 1); INSERT INTO hc VALUES (1, 1, 1), (2, 1, 1), (3, 1, 9), (1, 2, 1); COMMIT',
	'BEGIN; INSERT INTO hc SELECT g, 1, 1 FROM generate_series(1, 50) g; INSERT INTO hp SELECT g, 1 FROM generate_series(1, 50) g; COMMIT',
	"BEGIN; INSERT INTO hc SELECT g, 1, 1 FROM generate_series(1, 50) g;\nCOPY hp FROM STDIN;\n" . join('', map { "$_\t1\n" } 1 .. 50) .
	"\\.\nCOMMIT",
	"BEGIN;\nCOPY hc FROM STDIN;\n" . join('', map { "$_\t1\t1\n" } 1 .. 50) .
	"\\.\nINSERT INTO hp SELECT g, 1 FROM generate_series(1, 50) g; COMMIT",
	"BEGIN;\nCOPY hc FROM STDIN;\n" . join('', map { "$_\t1\t1\n" } 1 .. 50) .
	"\\.\nINSERT INTO hp SELECT g, 1 FROM generate_series(1, 49) g; COMMIT",
	'BEGIN; INSERT INTO a.p VALUES (1, 1), (2, 2); INSERT INTO a.c VALUES (1, 1), (2, 2); COMMIT',
	'BEGIN; INSERT INTO b.p VALUES (1, 1), (2, 3); INSERT INTO b.c VALUES (1, 1), (2, 2); COMMIT',
	'WITH x AS (INSERT INTO a.p VALUES (1, 1), (2, 2) RETURNING 1) INSERT INTO a.u VALUES (1, 1, 1); INSERT INTO a.c VALUES (1, 1)',
	'BEGIN; INSERT INTO ht VALUES (1, 1), (2, 1), (3, 0), (4, 1); UPDATE ht SET n = 0; COMMIT',
	'BEGIN; INSERT INTO ht VALUES (1, 1), (2, 1), (3, 0), (4, 1); UPDATE ht SET n = 0 WHERE k < 4; COMMIT',
	'BEGIN; INSERT INTO ht VALUES (1, 1); UPDATE ht SET n = 0; INSERT INTO ht VALUES (2, 0), (3, 0); COMMIT',
	'INSERT INTO ht VALUES (1, 0), (2, 0), (3, 0), (4, 0)',
	'INSERT INTO ht VALUES (1, 0), (2, 0), (3, 1), (4, 0)',
	'BEGIN; INSERT INTO hp SELECT g, 1 FROM generate_series(1, 40) g; INSERT INTO hc SELECT g, 1, 1 FROM generate_series(1, 20) g; UPDATE hc SET ' .
	'k = k + 20; COMMIT',
	'BEGIN; INSERT INTO hp SELECT g, 1 FROM generate_series(1, 39) g; INSERT INTO hc SELECT g, 1, 1 FROM generate_series(1, 20) g; UPDATE hc SET ' .
	'k = k + 20; COMMIT',
	'BEGIN; SET CONSTRAINTS hkey DEFERRED; INSERT INTO hu SELECT g % 10, g FROM generate_series(1, 20) g; UPDATE hu SET k = 5, v = v % 3; UPDATE ' .
	'hu SET v = k; DELETE FROM hu; COMMIT',
	'BEGIN; SET CONSTRAINTS hkey DEFERRED; INSERT INTO hu SELECT g % 10, g FROM generate_series(1, 20) g; UPDATE hu SET k = 5, v = v % 3; COMMIT',
	'INSERT INTO hu VALUES (1, 1), (1, 2), (2, 1), (2, 2); UPDATE hu SET v = v + 1; INSERT INTO hu VALUES (1, 2)',
	# deferred: those that take part and those that join later
	'BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1); INSERT INTO b.c VALUES (1, 1); INSERT INTO a.p VALUES (1, 1); INSERT ' .
		'INTO b.p VALUES (1, 1); COMMIT',
	'BEGIN; INSERT INTO a.tree VALUES (1, 1); SET CONSTRAINTS to_p, b.to_p DEFERRED; INSERT INTO b.c VALUES (1, 1); INSERT INTO b.p VALUES (1, ' .
	'1); COMMIT',
	'BEGIN; SET CONSTRAINTS b.to_p DEFERRED; INSERT INTO a.c VALUES (1, 1); COMMIT',
	'BEGIN; SET CONSTRAINTS a.to_p DEFERRED; INSERT INTO a.c VALUES (1, 1); COMMIT',
	'SET search_path = b, public; BEGIN; SET CONSTRAINTS to_p, b_key DEFERRED; INSERT INTO c VALUES (1, 1); INSERT INTO p VALUES (1, 1); INSERT ' .
	'INTO u VALUES (1, 1, 1), (2, 2, 2);'
	  . ' UPDATE u SET id = 2 WHERE id = 1; UPDATE u SET id = 1 WHERE o = 2; COMMIT',
	'SET search_path = b, a; BEGIN; SET CONSTRAINTS to_p DEFERRED; INSERT INTO a.c VALUES (1, 1); COMMIT',
	'SET search_path = public; BEGIN; SET CONSTRAINTS to_p DEFERRED; COMMIT',
	'BEGIN; SET CONSTRAINTS nowhere DEFERRED; COMMIT', 'BEGIN; SET CONSTRAINTS no.where DEFERRED; COMMIT',
	'BEGIN; SET CONSTRAINTS a.other DEFERRED; COMMIT',
	'BEGIN; SET CONSTRAINTS a.other IMMEDIATE; COMMIT', 'BEGIN; SET CONSTRAINTS a.positive IMMEDIATE; COMMIT',
	'BEGIN; SET CONSTRAINTS postgres.a.to_p DEFERRED; INSERT INTO a.c VALUES (1, 1); INSERT INTO a.p VALUES (1, 1); COMMIT',
	'BEGIN; SET CONSTRAINTS elsewhere.a.to_p DEFERRED; COMMIT',
	'SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1)',
	'SET CONSTRAINTS ALL DEFERRED \; INSERT INTO a.c VALUES (1, 1) \; INSERT INTO a.p VALUES (1, 1)',
	'BEGIN; SET CONSTRAINTS hkey DEFERRED; INSERT INTO hu VALUES (1, 1), (2, 1), (3, 1), (4, 1); INSERT INTO hu VALUES (1, 1), (2, 1), (3, 1), ' .
	'(4, 1); DELETE FROM hu WHERE ctid IN (SELECT max(ctid) FROM hu WHERE k = 1) AND k = 1; COMMIT',
	'BEGIN; SET CONSTRAINTS hkey DEFERRED; INSERT INTO hu VALUES (1, 1), (1, 1); DELETE FROM hu; INSERT INTO hu VALUES (1, ' .
	'1), (2, 1), (3, 1); COMMIT',
	# immediate raises, and undoes nothing else
	'BEGIN; INSERT INTO a.tree VALUES (1, 2); SET CONSTRAINTS ALL IMMEDIATE; SELECT 1; COMMIT',
	'BEGIN; INSERT INTO b.tree VALUES (1, 2); SET CONSTRAINTS b.up IMMEDIATE; SELECT 1; COMMIT',
	'BEGIN; INSERT INTO b.tree VALUES (1, 2); SET CONSTRAINTS a.up IMMEDIATE; SELECT 1; COMMIT',
	'BEGIN; INSERT INTO b.tree VALUES (1, 2); SAVEPOINT x; SET CONSTRAINTS b.up IMMEDIATE; ROLLBACK TO x; INSERT INTO b.tree VALUES (2, 1); COMMIT',
	'BEGIN; INSERT INTO a.p VALUES (1, 1); INSERT INTO b.p VALUES (1, 1); SAVEPOINT x; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO x; INSERT INTO ' .
	'a.c VALUES (1, 1); SET CONSTRAINTS a.to_c IMMEDIATE;'
	  . ' INSERT INTO b.c VALUES (1, 1); SET CONSTRAINTS ALL IMMEDIATE; INSERT INTO b.tree VALUES (5, 5), (6, 5); INSERT INTO a.tree VALUES (1, ' .
	  '2); COMMIT',
	'BEGIN; INSERT INTO ht VALUES (1, 1), (2, 1), (3, 1), (4, 1); SET CONSTRAINTS must_be_0 IMMEDIATE; COMMIT',
	'BEGIN; SET CONSTRAINTS must_be_0 IMMEDIATE; INSERT INTO ht VALUES (1, 0); INSERT INTO ht VALUES (2, 0), (3, 1), (4, 1); COMMIT',
	# scope: savepoints, the end of the transaction
	'BEGIN; SAVEPOINT x; SET CONSTRAINTS ALL DEFERRED; ROLLBACK TO x; INSERT INTO a.c VALUES (1, 1); COMMIT',
	'BEGIN; INSERT INTO a.tree VALUES (1, 1); SAVEPOINT x; SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1); ROLLBACK TO x; INSERT ' .
	'INTO a.c VALUES (1, 1); COMMIT',
	'BEGIN; SAVEPOINT x; SET CONSTRAINTS ALL DEFERRED; RELEASE x; INSERT INTO a.c VALUES (1, 1); INSERT INTO a.p VALUES (1, 1); COMMIT',
	'BEGIN; SET CONSTRAINTS ALL DEFERRED; SAVEPOINT x; INSERT INTO a.c VALUES (1, 1); ROLLBACK TO x; INSERT INTO a.c VALUES (1, 1); INSERT INTO ' .
	'b.c VALUES (2, 2); INSERT INTO a.p VALUES (1, 1);'
	  . ' INSERT INTO b.p VALUES (2, 2); COMMIT',
	'BEGIN; SET CONSTRAINTS ALL DEFERRED; SAVEPOINT x; SET CONSTRAINTS ALL IMMEDIATE; SAVEPOINT y; SET CONSTRAINTS a.to_p DEFERRED; INSERT INTO ' .
	'a.c VALUES (1, 1); RELEASE y; SAVEPOINT z;'
	  . ' INSERT INTO b.c VALUES (1, 1); ROLLBACK TO z; ROLLBACK TO x; INSERT INTO a.c VALUES (2, 2); INSERT INTO b.c VALUES (2, 2); INSERT INTO ' .
	  'a.p VALUES (2, 2); INSERT INTO b.p VALUES (2, 2); COMMIT',
	'BEGIN; SAVEPOINT x; SAVEPOINT y; SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1); RELEASE y; ROLLBACK TO x; INSERT INTO b.c ' .
	'VALUES (1, 1); COMMIT',
	'BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1); ROLLBACK; BEGIN; INSERT INTO a.c VALUES (1, 1); COMMIT',
	'BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1); INSERT INTO a.p VALUES (1, 1); COMMIT; INSERT INTO a.c VALUES (2, 2)',
	# functions and DO blocks
	q(DO $$ BEGIN SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1); INSERT INTO b.c VALUES (1, 1); INSERT INTO a.p VALUES (1, 1); ) .
		q(INSERT INTO b.p VALUES (1, 1); END $$),
	q(DO $$ BEGIN INSERT INTO a.tree VALUES (1, 2); SET CONSTRAINTS ALL IMMEDIATE; END $$),
	q(DO $$ BEGIN INSERT INTO b.tree VALUES (1, 2); BEGIN SET CONSTRAINTS ALL IMMEDIATE; EXCEPTION WHEN foreign_key_violation THEN INSERT INTO ) .
	q(b.tree VALUES (2, 1); END; END $$),
	q(CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (1, 1); RETURN 1; ) .
	q(END $$;)
	  . ' BEGIN; SELECT pg_temp.f(); INSERT INTO a.p VALUES (1, 1); COMMIT',
	q(DO $$ BEGIN FOR i IN 1..200 LOOP SET CONSTRAINTS a.to_p, b.to_p DEFERRED; SET CONSTRAINTS a.to_c IMMEDIATE; END LOOP; INSERT INTO a.c ) .
	q(VALUES (1, 1); INSERT INTO a.p VALUES (1, 1); END $$),
	# Django's migrations: checks now, DDL, and deferred again
	'BEGIN; INSERT INTO a.p VALUES (1, 1); INSERT INTO a.c VALUES (1, 1); SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE a.c ADD COLUMN d int DEFAULT ' .
		'5; SET CONSTRAINTS ALL DEFERRED; INSERT INTO a.c VALUES (2, 2, 2);'
	  . ' INSERT INTO a.p VALUES (2, 2); COMMIT; SELECT * FROM a.c ORDER BY id; ALTER TABLE a.c DROP COLUMN d',
	'BEGIN; INSERT INTO a.p VALUES (1, 1); INSERT INTO a.c VALUES (1, 1); ALTER TABLE a.p ADD COLUMN d int; COMMIT',
	'BEGIN; INSERT INTO b.tree VALUES (1, 1); CREATE INDEX i ON b.tree (up); COMMIT',
	'BEGIN; INSERT INTO hc VALUES (1, 1, 1), (2, 1, 1), (3, 1, 1); INSERT INTO hp VALUES (1, 1), (2, 1), (3, 1); ALTER TABLE hc ADD COLUMN d int; ' .
	'COMMIT',
	'BEGIN; INSERT INTO hc VALUES (1, 1, 1), (2, 1, 1), (3, 1, 1); INSERT INTO hp VALUES (1, 1), (2, 1), (3, 1); SET CONSTRAINTS hfk IMMEDIATE; ' .
	'ALTER TABLE hc ADD COLUMN d int; COMMIT; ALTER TABLE hc DROP COLUMN d',
	'BEGIN; INSERT INTO hc VALUES (1, 1, 1); TRUNCATE hc; COMMIT',
);
# The shards' own part is core's, the router has none. From each node, or, in make test, from one and the other in turn, each with its cleaning.
foreach my $names (TesseraCluster::long() ? ([ 'r1' ], [ 's1' ]) : [ 'r1', 's1' ])
{
	my $differ = 0;
	foreach my $turn (0 .. @script / 2 - 1)
	{
		$differ += $c->script_differs($names->[ $turn % @$names ], [ @script[ 2 * $turn, 2 * $turn + 1 ] ]);
	}
	is($differ, 0, "from @$names: " . @script . ' statements do as on a plain server');
}

# a statement of a view's or function's owner joins a shard: SET CONSTRAINTS is no matter of that user's rights
$c->query('s1', $_) foreach (
	'CREATE ROLE owner_of_f', 'CREATE ROLE caller LOGIN', 'GRANT USAGE ON SCHEMA b TO caller', 'GRANT ALL ON b.c, b.p TO caller',
	'CREATE TABLE public.counted (n int)',
	'CREATE FUNCTION count_one() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ INSERT INTO public.counted VALUES (1) $$',
	'GRANT ALL ON public.counted TO owner_of_f', 'ALTER FUNCTION count_one() OWNER TO owner_of_f');
is($c->query('r1', 'SET ROLE caller; BEGIN; SET CONSTRAINTS b.to_p DEFERRED; SELECT public.count_one(); INSERT INTO b.c VALUES (1, 1); INSERT ' .
	'INTO b.p VALUES (1, 1); COMMIT; SELECT p FROM b.c'), "\n1",
	'whoever is the first to reach a shard afterwards');
like($c->error('r1', 'SET ROLE caller; BEGIN; SET CONSTRAINTS a.to_p DEFERRED'), qr/42501.*permission denied for schema a/s,
	'names are resolved by the rights of the user');

# A trigger on a shard cannot tell the others.
$c->query('s1', $_) foreach (
	'CREATE TABLE setter (k int PRIMARY KEY)',
	'CREATE FUNCTION set_them() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = shard ' .
	  'AS $$ BEGIN SET CONSTRAINTS ALL DEFERRED; RETURN NEW; END $$',
	'CREATE TRIGGER setter BEFORE INSERT ON setter FOR EACH ROW EXECUTE FUNCTION set_them()');
like($c->error('r1', 'INSERT INTO setter VALUES (1)'), qr/0A000.*SET CONSTRAINTS/s, 'a trigger on a shard is refused');

# The statements of a deferred trigger are no statements of the router, which a shard may pass over when it was not told the version of their table.
$c->query('s1', $_) foreach (
	'CREATE TABLE noted (k int PRIMARY KEY)', 'CREATE TABLE notes (k int PRIMARY KEY)',
	"SELECT tessera.shard_table('noted', 'k', 'hash', chunks => 8)",
	"SELECT tessera.shard_table('notes', 'k', 'hash', chunks => 8)",
	'CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.notes VALUES (NEW.k); RETURN NULL; END $$',
	'CREATE CONSTRAINT TRIGGER note AFTER INSERT ON noted DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()');
foreach my $shard ('s1', 's2')
{
	my $k = $c->query('s1', "SELECT min(g) FROM generate_series(1, 100) g WHERE tessera.range_owner('noted', g) = '$shard' AND " .
		"tessera.range_owner('notes', g) = '$shard'");
	$c->query('r1', "BEGIN; INSERT INTO noted VALUES ($k); COMMIT");
	is($c->query('r1', "SELECT count(*) FROM notes WHERE k = $k"), '1', "what a deferred trigger wrote on $shard is there");
}
done_testing();
