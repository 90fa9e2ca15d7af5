# Modifications through views (doc/design.md#views-named-again): automatically updatable ones, nested ones, with check options, security barriers,
# INSTEAD OF triggers and rules, with the owner's and with the invoker's rights. The same script runs on a plain server and from two nodes, and
# answers and SQLSTATEs are compared.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('views');

my $schema = <<'SQL';
CREATE TABLE t1 (k int NOT NULL, id int NOT NULL, v text, n numeric(10,2), PRIMARY KEY (k,id));
CREATE TABLE tu (k int8 NOT NULL, id int GENERATED ALWAYS AS IDENTITY, note text DEFAULT 'dflt', at timestamptz DEFAULT now(), PRIMARY KEY (k,id));
CREATE TABLE pl (id int PRIMARY KEY, name text DEFAULT 'noname', org int DEFAULT 7);
CREATE TABLE log (who text, what text);
CREATE VIEW v1 AS SELECT k, id, upper(v) AS uv, n, v AS vv FROM t1;
CREATE VIEW v_hidden AS SELECT id AS ident, k AS kk, v FROM t1 WHERE n < 100;
CREATE VIEW v_barrier WITH (security_barrier) AS SELECT k, id, v FROM t1 WHERE n < 100;
CREATE VIEW v_check AS SELECT k, id, v, n FROM t1 WHERE n < 100 WITH CHECK OPTION;
CREATE VIEW v_nest AS SELECT k, id, vv, n FROM v1 WHERE n > 20 AND uv <> 'X' WITH CASCADED CHECK OPTION;
CREATE VIEW v_base AS SELECT k, id, v, n FROM t1 WHERE n < 100;
CREATE VIEW v_local AS SELECT k, id, v, n FROM v_base WHERE n > 20 WITH LOCAL CHECK OPTION;
CREATE VIEW v_sub AS SELECT k, id, v FROM t1 WHERE k IN (SELECT id FROM pl);
CREATE VIEW v_tu AS SELECT k, note FROM tu;
CREATE TABLE tz (k int PRIMARY KEY, v text, at timestamptz DEFAULT now());
CREATE VIEW v_tz AS SELECT k, v FROM tz;
CREATE VIEW v_tzz AS SELECT v, k FROM v_tz;
CREATE VIEW v_pl AS SELECT id, name FROM pl WHERE org = 7 WITH CHECK OPTION;
CREATE VIEW v_join AS SELECT t1.k, t1.id, t1.v, pl.name FROM t1 JOIN pl ON pl.id = t1.k;
CREATE VIEW v_rule AS SELECT k, id, v FROM t1 WHERE n > 5;
CREATE RULE r_ins AS ON INSERT TO v_rule DO INSTEAD INSERT INTO t1 (k, id, v, n) VALUES (NEW.k, NEW.id, NEW.v, 50);
CREATE RULE r_upd AS ON UPDATE TO v_rule DO INSTEAD UPDATE t1 SET v = NEW.v || '!' WHERE k = OLD.k AND id = OLD.id;
CREATE RULE r_del AS ON DELETE TO v_rule DO INSTEAD DELETE FROM t1 WHERE k = OLD.k AND id = OLD.id;
CREATE VIEW v_also AS SELECT k, id, v FROM t1;
CREATE RULE r_also AS ON UPDATE TO v_also DO ALSO INSERT INTO log VALUES ('also', NEW.v);
CREATE FUNCTION tg_join() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
 IF tg_op = 'DELETE' THEN DELETE FROM t1 WHERE k = OLD.k AND id = OLD.id; RETURN OLD; END IF;
 IF tg_op = 'INSERT' THEN INSERT INTO t1 (k, id, v) VALUES (NEW.k, NEW.id, NEW.v); RETURN NEW; END IF;
 UPDATE t1 SET v = NEW.v WHERE k = OLD.k AND id = OLD.id; UPDATE pl SET name = NEW.name WHERE id = OLD.k; RETURN NEW; END $$;
CREATE TRIGGER tg INSTEAD OF INSERT OR UPDATE OR DELETE ON v_join FOR EACH ROW EXECUTE FUNCTION tg_join();
CREATE FUNCTION tg_who() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.name := NEW.name || '/' || current_user; RETURN NEW; END $$;
CREATE TABLE tw (k int PRIMARY KEY, name text, secret text);
CREATE TRIGGER tg BEFORE INSERT OR UPDATE ON tw FOR EACH ROW EXECUTE FUNCTION tg_who();
CREATE VIEW v_tw AS SELECT k, name FROM tw;
CREATE VIEW v_inv WITH (security_invoker) AS SELECT k, name FROM tw;
GRANT ALL ON v_tw, v_inv, v_check, v_join, v_rule, v_hidden TO bob;
CREATE TABLE tr (k int PRIMARY KEY, owner text, v int);
ALTER TABLE tr ENABLE ROW LEVEL SECURITY; 
CREATE POLICY own ON tr USING (owner = current_user);
GRANT ALL ON tr TO alice;
CREATE VIEW v_tr AS SELECT * FROM tr; ALTER VIEW v_tr OWNER TO alice; GRANT ALL ON v_tr TO bob;
SQL

my @refused;
sub refused { push @refused, $_[0]; return $_[0]; }

my @script = (
	q{INSERT INTO pl SELECT g, 'p' || g, 7 + g % 2 FROM generate_series(1,8) g},
	q{INSERT INTO t1 SELECT k, i, 'v' || k || '-' || i, k * 10 + i FROM generate_series(1, 15) k, generate_series(1, 4) i},
	q{UPDATE v1 SET n = 1 WHERE k = 7 RETURNING k, id, uv, n},
	q{UPDATE v1 SET vv = uv || '+' WHERE uv LIKE 'V3%' RETURNING vv, uv},
	q{UPDATE v1 SET uv = 'x' WHERE k = 3},
	q{UPDATE v1 x SET n = x.n + 1 WHERE x.id = 4 AND x.k > 12 RETURNING x},
	q{DELETE FROM v1 WHERE k = 15 AND id = 1 RETURNING *},
	q{INSERT INTO v1 (k, id, vv) VALUES (20, 1, 'ins'), (21, 1, 'ins2'), (22, 1, 'i3') RETURNING *},
	q{INSERT INTO v1 (k, id, vv) VALUES (23, 1, 'one') RETURNING uv},
	q{INSERT INTO v1 (k, id, vv) SELECT k, 50, vv FROM v1 WHERE id = 2 AND k < 5 RETURNING k, vv},
	q{INSERT INTO v1 (k, id, vv) VALUES (23, 1, 'again') ON CONFLICT (k, id) DO UPDATE SET vv = excluded.vv || v1.uv RETURNING vv},
	q{INSERT INTO v1 (k, id, vv) VALUES (23, 1, 'a'), (24, 1, 'b'), (20, 1, 'c') ON CONFLICT (k, id) DO UPDATE SET vv = excluded.vv || v1.uv } .
	q{WHERE v1.id = 1 RETURNING vv},
	q{INSERT INTO v1 (k, id) VALUES (23, 1) ON CONFLICT DO NOTHING},
	q{UPDATE v_hidden SET v = 'hid' WHERE kk = 5 RETURNING *},
	q{UPDATE v_hidden SET v = 'hid' WHERE ident = 1},
	q{DELETE FROM v_hidden WHERE ident = 3 AND kk < 20},
	q{INSERT INTO v_hidden VALUES (1, 30, 'x') RETURNING *},
	q{UPDATE v_barrier SET v = 'bar' WHERE k = 4 RETURNING *},
	q{UPDATE v_barrier SET v = 'bar2' WHERE id = 2 RETURNING k},
	q{DELETE FROM v_barrier WHERE k IN (8, 9)},
	q{INSERT INTO v_barrier VALUES (31, 1, 'x'), (32, 1, 'y')},
	q{UPDATE v_check SET n = 200 WHERE k = 3 AND id = 1},
	q{UPDATE v_check SET n = 200 WHERE id = 1},
	q{UPDATE v_check SET n = 42 WHERE id = 1 RETURNING k},
	q{INSERT INTO v_check VALUES (33, 1, 'x', 150)},
	q{INSERT INTO v_check VALUES (33, 1, 'x', 50)},
	q{INSERT INTO v_check VALUES (34, 1, 'x', 50), (35, 1, 'x', 500)},
	q{INSERT INTO v_check VALUES (34, 1, 'x', NULL)},
	q{INSERT INTO v_check VALUES (34, 1, 'x', 50), (35, 1, 'x', 51)},
	q{INSERT INTO v_check SELECT k, 60, v, n * 10 FROM t1 WHERE k = 1},
	q{INSERT INTO v_check VALUES (34, 1, 'x', 50) ON CONFLICT (k, id) DO UPDATE SET n = 500},
	q{UPDATE v_nest SET n = 25 WHERE k = 5 RETURNING *},
	q{UPDATE v_nest SET n = 10 WHERE k = 5},
	q{UPDATE v_nest SET n = 30 WHERE vv LIKE 'v6%' RETURNING k, id},
	q{DELETE FROM v_nest WHERE id = 2 AND k > 11 RETURNING k},
	q{INSERT INTO v_nest VALUES (36, 1, 'n', 10)},
	q{INSERT INTO v_nest VALUES (36, 1, 'n', 30), (37, 1, 'n', 31) RETURNING *},
	q{UPDATE v_local SET n = 10 WHERE k = 6},
	q{UPDATE v_local SET n = 500 WHERE k = 6},
	q{UPDATE v_sub SET v = 'sub' WHERE k = 2},
	q{UPDATE v_pl SET name = 'renamed' WHERE id = 2 RETURNING *},
	q{INSERT INTO v_pl VALUES (50, 'fifty') RETURNING *},
	q{INSERT INTO v_pl (id) VALUES (51), (52) RETURNING *},
	q{DELETE FROM v_pl WHERE id = 51},
	q{INSERT INTO v_tu VALUES (1, 'tu'), (2, 'tu')},
	q{INSERT INTO v_tu (k) VALUES (3) RETURNING *},
	q{UPDATE v_tu SET note = 'u' WHERE k = 2 RETURNING *},
	# a hidden column whose default is no constant: the statement goes to the table itself
	q{INSERT INTO v_tz VALUES (1, 'a'), (2, 'b') ON CONFLICT (k) DO UPDATE SET v = excluded.v || v_tz.v RETURNING *},
	q{INSERT INTO v_tz VALUES (1, 'c'), (3, 'd') ON CONFLICT (k) DO UPDATE SET v = excluded.v || v_tz.v RETURNING *},
	q{INSERT INTO v_tzz AS z (k, v) SELECT k, v || 'e' FROM v_tz ON CONFLICT (k) DO UPDATE SET v = excluded.v || z.v WHERE } .
	q{excluded.k > 1 RETURNING *},
	q{UPDATE v_join SET v = 'j', name = 'jn' WHERE k = 2 RETURNING *},
	q{UPDATE v_join SET v = 'jj' WHERE id = 1 RETURNING k, v},
	q{INSERT INTO v_join (k, id, v) VALUES (1, 70, 'joined'), (40, 1, 'unjoined')},
	q{DELETE FROM v_join WHERE k = 1 AND id = 70 RETURNING *},
	q{DELETE FROM v_join WHERE id = 4},
	q{INSERT INTO v_rule VALUES (41, 1, 'r'), (42, 1, 'r')},
	q{INSERT INTO v_rule VALUES (43, 1, 'r')},
	q{UPDATE v_rule SET v = 'ru' WHERE k = 6},
	q{UPDATE v_rule SET v = 'ru' WHERE id = 2},
	q{DELETE FROM v_rule WHERE k = 6 AND id = 1},
	q{UPDATE v_also SET v = 'al' WHERE k = 7 AND id = 2},
	q{WITH u AS (UPDATE v_check SET v = 'cte' WHERE k = 3 RETURNING id, v) SELECT * FROM u},
	q{WITH u AS (UPDATE v_check SET n = 1000 WHERE k = 3 RETURNING id, v) SELECT * FROM u},
	q{PREPARE p (int, text) AS UPDATE v_check SET v = $2 WHERE k = $1 AND id = 1 RETURNING v; EXECUTE p(3,'a'); EXECUTE p(4,'b'); EXECUTE } .
	q{p(5,'b'); EXECUTE p(6,'c'); EXECUTE p(7,'d'); EXECUTE p(10,'e'); EXECUTE p(11,'e')},
	q{PREPARE q (int, text) AS INSERT INTO v_pl VALUES ($1, $2) RETURNING *; EXECUTE q(61,'a'); EXECUTE q(62,'b'); SET ROLE bob; EXECUTE q(63, } .
	q{'c'); RESET ROLE; EXECUTE q(64,'b')},
	q{SET ROLE bob; INSERT INTO v_tw VALUES (1, 'bob'), (2, 'b2'), (3, 'b3') RETURNING *},
	q{SET ROLE bob; INSERT INTO v_tw VALUES (4, 'four') RETURNING *},
	q{SET ROLE bob; UPDATE v_tw SET name = 'new' WHERE k = 2 RETURNING *},
	q{SET ROLE bob; UPDATE v_tw SET name = name || '.' RETURNING *},
	q{SET ROLE bob; DELETE FROM v_tw WHERE k = 3},
	q{SET ROLE bob; UPDATE tw SET name = 'no' WHERE k = 2},
	q{SET ROLE bob; UPDATE v_inv SET name = 'no' WHERE k = 2},
	q{SET ROLE bob; INSERT INTO v_inv VALUES (9, 'no')},
	q{SET ROLE bob; UPDATE v_check SET v = 'bob' WHERE k = 4 RETURNING id},
	q{SET ROLE bob; UPDATE v_check SET v = 'bob' WHERE id = 2 RETURNING k},
	refused(q{SET ROLE bob; UPDATE v_rule SET v = 'ru' WHERE k = 6}),
	q{SET ROLE bob; INSERT INTO v_tr VALUES (1, 'bob', 1), (2, 'bob', 2)},
	q{SET ROLE bob; INSERT INTO v_tr VALUES (3, 'alice', 3)},
	q{SET ROLE bob; UPDATE v_tr SET v = 9 WHERE k = 1 RETURNING *},
	q{SELECT * FROM tr ORDER BY k},
	q{SELECT * FROM t1 ORDER BY k, id},
	q{SELECT k, note FROM tu ORDER BY k},
	q{SELECT * FROM pl ORDER BY id},
	q{SELECT * FROM tw ORDER BY k},
	q{SELECT * FROM log ORDER BY 1, 2},
);

$c->start_nodes('s1');
$c->query('s1', 'CREATE ROLE bob; CREATE ROLE alice');
$c->query('s1', $schema);
foreach my $name ('s2', 's3')
{
	$c->start_nodes($name);
	# the numbers of objects and users differ from node to node
	$c->query($name, 'CREATE ROLE alice; CREATE ROLE bob; CREATE TABLE other (a int); DROP TABLE other');
}
$c->create(shards => 3);
$c->query('s2', "SELECT tessera.shard_table('$_', 'k', 'hash', chunks => 6)") foreach qw(t1 tu tw tr tz);
$c->plain_query('CREATE ROLE bob; CREATE ROLE alice');
$c->plain_query($schema);

foreach my $name ('s1', 's2')
{
	is($c->script_differs($name, \@script, \@refused), 0, "from $name: " . scalar(@script) . ' statements do as on a plain server, or are refused');
	foreach my $table (qw(t1 tu tw tr tz pl log))
	{
		$c->query($name, "DELETE FROM $table");
		$c->plain_query("DELETE FROM $table");
	}
}

# What a check option refuses is refused by the shard's own view, not by the router.
my ($key) = grep { $c->query('s2', "SELECT tessera.range_owner('t1', $_)") ne 's2' } 1 .. 50;
like($c->error('s2', "INSERT INTO v_check VALUES ($key, 1, 'x', 500)"), qr/44000.*v_check.*node "s/s,
	'the check option is that of the view on the shard');

done_testing();
