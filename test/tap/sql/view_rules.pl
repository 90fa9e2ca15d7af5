# Views with rules, over sharded and placed tables of several schemas, written through nodes that own all, some and nothing of them: the same rows as
# on a plain server, or an error. What the rewriter leaves of a rule (NEW as the name of another relation's column, OLD joined without a mark,
# conditions of an INSERT) must reach the shards.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('view_rules');
$c->create(shards => 2, routers => 1);
my $plain = $c->plain;

sub everywhere
{
	my ($sql) = @_;
	$c->everywhere($_) foreach split /;\n(?! )/, $sql;
	return;
}

everywhere(<<'SQL');
CREATE SCHEMA app;
CREATE SCHEMA other;
CREATE DOMAIN app.small AS int CHECK (VALUE < 1000);
CREATE DOMAIN app.name AS text CHECK (VALUE <> '');
CREATE DOMAIN app.pair AS int[] CHECK (array_length(VALUE, 1) = 2);
CREATE TYPE app.mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN app.good AS app.mood CHECK (VALUE <> 'sad');
CREATE TABLE app.placed (a int PRIMARY KEY, b text DEFAULT 'none', c int);
CREATE TABLE app.sharded (k int PRIMARY KEY, v text, n int DEFAULT 7);
CREATE TABLE other.log (what text, a int, b text);
CREATE TABLE app.log (what text, a int, b text);
CREATE TABLE app.child (pid int, descrip text);
CREATE TABLE app.by_small (k app.small PRIMARY KEY, v app.small);
CREATE TABLE app.by_name (k app.name PRIMARY KEY, v int);
CREATE TABLE app.by_pair (k app.pair PRIMARY KEY, v int);
CREATE TABLE app.by_good (k app.good PRIMARY KEY, v int);
INSERT INTO app.placed SELECT g, 'row ' || g, g FROM generate_series(1, 6) g;
INSERT INTO app.sharded SELECT g, 'row ' || g, g FROM generate_series(1, 40) g;
INSERT INTO app.child VALUES (1, 'one');
INSERT INTO app.by_small SELECT g, g FROM generate_series(1, 9) g;
INSERT INTO app.by_name SELECT 'n' || g, g FROM generate_series(1, 9) g;
INSERT INTO app.by_pair SELECT ARRAY[g, g], g FROM generate_series(1, 9) g;
INSERT INTO app.by_good VALUES ('ok', 1), ('happy', 2);
CREATE VIEW app.v AS SELECT a, b FROM app.placed;
CREATE RULE ins AS ON INSERT TO app.v DO INSTEAD INSERT INTO app.placed VALUES (NEW.a, NEW.b) RETURNING a, b;
CREATE RULE upd AS ON UPDATE TO app.v DO INSTEAD UPDATE app.placed SET a = NEW.a, b = NEW.b WHERE a = OLD.a RETURNING NEW.*;
CREATE RULE del AS ON DELETE TO app.v DO INSTEAD DELETE FROM app.placed WHERE a = OLD.a RETURNING OLD.*;
CREATE VIEW app.vv AS SELECT a, b FROM app.v WHERE a < 100;
CREATE RULE upd AS ON UPDATE TO app.vv DO INSTEAD UPDATE app.v SET b = NEW.b WHERE a = OLD.a;
CREATE VIEW app.upper AS SELECT a + 100 AS h, b FROM app.v;
CREATE RULE upd AS ON UPDATE TO app.upper DO INSTEAD UPDATE app.vv SET b = NEW.b WHERE a = OLD.h - 100;
CREATE VIEW app.logged AS SELECT a, b, c FROM app.placed;
CREATE RULE also_upd AS ON UPDATE TO app.logged DO ALSO INSERT INTO app.log VALUES ('upd', OLD.a, NEW.b);
CREATE RULE also_ins AS ON INSERT TO app.logged DO ALSO INSERT INTO app.log VALUES ('ins', NEW.a, NEW.b);
CREATE RULE also_del AS ON DELETE TO app.logged DO ALSO INSERT INTO app.log (b, a) VALUES (OLD.b, OLD.a);
CREATE VIEW app.copied AS SELECT a, b, c FROM app.placed;
CREATE RULE same AS ON UPDATE TO app.copied DO INSTEAD INSERT INTO app.log VALUES (OLD.b, OLD.a, OLD.b);
CREATE VIEW app.far AS SELECT a, b FROM app.placed;
CREATE RULE upd AS ON UPDATE TO app.far DO INSTEAD INSERT INTO other.log VALUES ('far', OLD.a, NEW.b);
CREATE VIEW app.children AS SELECT a AS pid, b AS txt, child.descrip FROM app.placed LEFT JOIN app.child ON a = pid;
CREATE RULE upd AS ON UPDATE TO app.children DO INSTEAD (INSERT INTO app.child (pid, descrip) SELECT OLD.pid, NEW.descrip WHERE OLD.descrip IS NULL;
  UPDATE app.child SET descrip = NEW.descrip WHERE child.pid = OLD.pid);
CREATE VIEW app.crossed AS SELECT a, b FROM app.placed;
CREATE RULE upd AS ON UPDATE TO app.crossed DO INSTEAD INSERT INTO app.log SELECT 'crossed', pid, NEW.b FROM app.child;
CREATE VIEW app.lateral AS SELECT * FROM app.placed;
CREATE RULE ins AS ON INSERT TO app.lateral DO ALSO INSERT INTO app.placed SELECT * FROM (SELECT a + 10 FROM app.placed WHERE a = NEW.a) tt;
CREATE RULE upd AS ON UPDATE TO app.lateral DO ALSO
  UPDATE app.placed t SET c = tt.a * 10 FROM (SELECT a FROM app.placed WHERE a = OLD.a) tt WHERE t.a = tt.a;
CREATE VIEW app.upsert AS SELECT a, b FROM app.placed;
CREATE RULE ins AS ON INSERT TO app.upsert WHERE EXISTS (SELECT FROM app.placed WHERE a = NEW.a) DO INSTEAD UPDATE app.placed SET b = NEW.b
  WHERE a = NEW.a;
CREATE VIEW app.positive AS SELECT a, b FROM app.placed;
CREATE RULE ins AS ON INSERT TO app.positive WHERE NEW.a < 0 DO INSTEAD NOTHING;
CREATE RULE ins2 AS ON INSERT TO app.positive WHERE NEW.a > 50 DO ALSO INSERT INTO app.log VALUES ('big', NEW.a, NEW.b);
CREATE VIEW app.s AS SELECT k, v FROM app.sharded;
CREATE RULE upd AS ON UPDATE TO app.s DO INSTEAD UPDATE app.sharded SET v = NEW.v WHERE k = OLD.k;
CREATE RULE ins AS ON INSERT TO app.s DO INSTEAD INSERT INTO app.sharded VALUES (NEW.k, NEW.v);
CREATE RULE del AS ON DELETE TO app.s DO INSTEAD DELETE FROM app.sharded WHERE k = OLD.k;
CREATE VIEW app.keys AS SELECT k, v FROM app.sharded;
CREATE RULE upd AS ON UPDATE TO app.keys DO INSTEAD UPDATE app.sharded SET k = NEW.k, v = NEW.v WHERE k = OLD.k;
CREATE VIEW app.audited AS SELECT k, v FROM app.sharded;
CREATE RULE upd AS ON UPDATE TO app.audited DO ALSO INSERT INTO app.log VALUES ('s', OLD.k, NEW.v);
CREATE RULE ins AS ON INSERT TO app.audited WHERE NEW.k % 2 = 0 DO INSTEAD INSERT INTO app.log VALUES ('even', NEW.k, NEW.v);
CREATE VIEW app.domained AS SELECT k, v FROM app.by_small;
CREATE RULE upd AS ON UPDATE TO app.domained DO INSTEAD UPDATE app.by_small SET k = NEW.k, v = NEW.v WHERE k = OLD.k RETURNING NEW.*;
SQL
$c->query('s1', "SELECT tessera.shard_table('app.sharded', 'k')");
# A key of a domain: what is routed by is its base type.
$c->query('s1', "SELECT tessera.shard_table('app.$_', 'k')") foreach qw(by_small by_name by_good by_pair);
$c->query('s1', "SELECT tessera.move_range('app.by_$_->[0]', $_->[1], tessera.maxkey(), '$_->[2]')")
  foreach [ 'small', 5, 's1' ], [ 'small', 6, 's2' ], [ 'name', "'n4'", 's1' ], [ 'name', "'n5'", 's2' ], [ 'pair', "'{4,4}'::int[]::text", 's1' ],
  [ 'pair', "'{5,5}'::int[]::text", 's2' ];
my ($shard) = split /\n/, $c->query('s1', "SELECT DISTINCT tessera.range_owner('app.sharded', k) FROM app.sharded");
$c->query('s1', sprintf("SELECT tessera.move_range('app.sharded', 1, 21, '%s')", $shard eq 's1' ? 's2' : 's1'));

my @script = (
	"UPDATE app.v SET b = 'three' WHERE a = 3 RETURNING *",
	"UPDATE app.v SET b = b || '!' WHERE b LIKE 'row%'",
	'UPDATE app.v SET a = a + 10 WHERE b = \'three\' RETURNING *',
	"UPDATE app.v SET b = child.descrip FROM app.child WHERE a = pid RETURNING a, b, descrip",
	"UPDATE app.v AS new SET b = 'alias' WHERE new.a = 2",
	"UPDATE app.v AS old SET b = 'alias' WHERE old.a = 4 RETURNING old.b",
	"INSERT INTO app.v VALUES (20, 'twenty'), (21, 'more') RETURNING *",
	"INSERT INTO app.v SELECT a + 30, b FROM app.v WHERE a < 3",
	'DELETE FROM app.v WHERE a = 21 RETURNING *',
	"UPDATE app.vv SET b = 'vv' WHERE a = 1",
	"UPDATE app.upper SET b = 'upper' WHERE h = 102",
	"UPDATE app.upper SET b = b || '?'",
	"UPDATE app.logged SET b = 'logged' WHERE a = 2",
	"UPDATE app.logged SET c = c + 1",
	"UPDATE app.logged SET b = 'x' WHERE a IN (SELECT pid FROM app.child)",
	"INSERT INTO app.logged VALUES (60, 'sixty', 1)",
	"INSERT INTO app.logged VALUES (61, 'a', 1), (62, 'b', 2)",
	"DELETE FROM app.logged WHERE a BETWEEN 60 AND 61",
	"UPDATE app.copied SET b = 'none' WHERE a > 3",
	"UPDATE app.copied SET b = 'none'",
	"UPDATE app.children SET descrip = 'test1' WHERE pid = 1",
	"UPDATE app.children SET descrip = 'test2' WHERE pid = 2",
	"UPDATE app.children SET descrip = 'all'",
	"UPDATE app.crossed SET b = 'const'",
	"UPDATE app.crossed SET b = 'const' WHERE a = 2",
	"INSERT INTO app.lateral VALUES (70, 'a'), (71, 'b')",
	'UPDATE app.lateral SET b = upper(b)',
	"INSERT INTO app.upsert VALUES (1, 'upserted')",
	"INSERT INTO app.upsert VALUES (90, 'inserted')",
	"INSERT INTO app.upsert VALUES (2, 'both'), (91, 'both')",
	"INSERT INTO app.positive VALUES (-1, 'never')",
	"INSERT INTO app.positive VALUES (-2, 'never'), (92, 'big')",
	"INSERT INTO app.positive VALUES (93, 'big')",
	"PREPARE i AS INSERT INTO app.positive VALUES (\$1, \$2); EXECUTE i (-5, 'no'); EXECUTE i (94, 'yes'); EXECUTE i (40, 'yes')",
	"UPDATE app.s SET v = 'five' WHERE k = 5",
	"UPDATE app.s SET v = 'thirty' WHERE k = 30",
	"INSERT INTO app.s VALUES (100, 'new')",
	'DELETE FROM app.s WHERE k = 6',
	"INSERT INTO app.audited VALUES (101, 'odd')",
	"INSERT INTO app.audited VALUES (102, 'even')",
	"INSERT INTO app.audited VALUES (103, 'odd'), (104, 'even')",
	"SET search_path = other; UPDATE app.v SET b = 'path' WHERE a = 1 RETURNING *",
	"SET search_path = app, pg_catalog; UPDATE v SET b = 'path' WHERE a = 2 RETURNING *",
	'UPDATE app.by_small SET k = k + 10 WHERE k = 7',
	'UPDATE app.by_small SET k = 18::app.small, v = 3 WHERE k = 8 RETURNING k',
	"UPDATE app.by_name SET k = 'm' || v WHERE k = 'n3'",
	"UPDATE app.by_name SET k = '' WHERE k = 'n4'",
	"UPDATE app.by_name SET k = k || '.' WHERE k IN ('n5', 'n6') RETURNING *",
	"UPDATE app.by_pair SET k = '{7,8}' WHERE k = '{3,3}'",
	"UPDATE app.by_pair SET k = '{1}' WHERE v = 5",
	"DELETE FROM app.by_good WHERE k = 'happy'",
	"UPDATE app.by_good SET k = 'happy' WHERE k = 'ok'",
	"UPDATE app.by_good SET k = 'sad'",
	"PREPARE u AS UPDATE app.by_small SET k = \$1 WHERE k = \$2; EXECUTE u (500, 1); EXECUTE u (5000, 2)",
	"PREPARE u (app.small, app.name) AS UPDATE app.by_small SET k = \$1 WHERE v = length(\$2); EXECUTE u (501, 'xx')");
# An UPDATE of a shard key with another relation, which a rule makes of any, or of a part of the key.
my @refused = (
	'UPDATE app.domained SET v = v + 1 WHERE k = 4 RETURNING *',
	'UPDATE app.domained SET k = k + 100 WHERE k = 5::app.small',
	'UPDATE app.domained SET k = 2000 WHERE k = 6',
	"UPDATE app.keys SET v = 'x' WHERE k = 1",
	"UPDATE app.by_pair SET k[2] = 9 WHERE k = '{4,4}'::app.pair");
my @tables = qw(app.placed app.sharded app.log app.child other.log app.by_small app.by_name app.by_pair app.by_good);
push @script, @refused;
push @script, map { "TABLE $_" } @tables;

# What is there before is there again for each node.
sub kept
{
	my ($table) = @_;
	return 'kept_' . ($table =~ s/\./_/r);
}
$c->everywhere('CREATE TABLE ' . kept($_) . " AS SELECT * FROM $_") foreach @tables;
foreach my $name ('r1', 's1', 's2')
{
	is($c->script_differs($name, \@script, \@refused), 0, "from $name: " . scalar(@script) . ' statements do as on a plain server, or are refused');
	$c->everywhere("DELETE FROM $_; INSERT INTO $_ SELECT * FROM " . kept($_)) foreach @tables;
}
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency()'), '0', 'and the cluster is consistent');

done_testing();
