# Any statement, from any node, answers as one plain PostgreSQL would (doc/design.md#statements; invariant 4): the same script runs on a plain server
# and from each of three nodes; results and SQLSTATEs are compared statement by statement. Tables: sharded by hash over three shards (two of them
# colocated), sharded with a compound key, placed, and temporary.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('statements');

my @tables = (
	'CREATE TABLE orders (tenant int NOT NULL, id int NOT NULL, note text, amount numeric(10,2), at timestamptz, tags text[], doc jsonb, PRIMARY ' .
	'KEY (tenant, id))',
	'CREATE TABLE items (tenant int NOT NULL, order_id int NOT NULL, line int NOT NULL, sku text, qty int, PRIMARY KEY (tenant, order_id, line))',
	'CREATE TABLE pairs (a int NOT NULL, b text COLLATE "C" NOT NULL, v int, PRIMARY KEY (a, b))',
	'CREATE TABLE regions (id int PRIMARY KEY, name text UNIQUE)');

# each statement that has no ORDER BY is compared as a set of rows
my @script = (
	# inserts
	"INSERT INTO regions VALUES (1, 'north'), (2, 'south'), (3, 'east')",
	"INSERT INTO orders VALUES (1, 1, 'first', 10.50, '2024-01-01 00:00:00+00', '{a,b}', '{\"k\": 1}')",
	"INSERT INTO orders (id, tenant, note) VALUES (2, 1, 'second')",
	"INSERT INTO orders SELECT t, i, 'note ' || t || '/' || i, t * 10 + i, '2024-01-01 00:00:00+00'::timestamptz + i * interval '1 hour', " .
	"ARRAY['x', i::text], jsonb_build_object('t', t) FROM generate_series(2, 12) t, generate_series(1, 5) i",
	"INSERT INTO items SELECT tenant, id, l, 'sku' || l, l * id FROM orders, generate_series(1, 3) l",
	"INSERT INTO pairs SELECT g % 7, 'b' || g, g FROM generate_series(1, 50) g",
	"INSERT INTO orders VALUES (1, 1, 'duplicate')",
	"INSERT INTO orders VALUES (1, 3, 'third', 1, NULL, NULL, NULL) RETURNING tenant, id, note, amount",
	"INSERT INTO orders (tenant, id) VALUES (20, 1), (21, 1), (22, 1) RETURNING tenant",
	"INSERT INTO orders (tenant, id, note) VALUES (20, 1, 'again') ON CONFLICT (tenant, id) DO UPDATE SET note = excluded.note || " .
	"coalesce(orders.note, '-') RETURNING note",
	"INSERT INTO orders (tenant, id, note) VALUES (20, 1, 'x'), (23, 1, 'y') ON CONFLICT DO NOTHING",
	"INSERT INTO orders (tenant, id) VALUES (NULL, 1)",
	# one shard
	"SELECT * FROM orders WHERE tenant = 1 ORDER BY id",
	"SELECT count(*), sum(amount), min(at), max(note) FROM orders WHERE tenant = 5",
	"SELECT o.id, i.line, i.qty FROM orders o JOIN items i ON i.tenant = o.tenant AND i.order_id = o.id WHERE o.tenant = 3 ORDER BY 1, 2",
	"SELECT o.id, i.line FROM orders o LEFT JOIN items i ON i.tenant = o.tenant AND i.order_id = o.id AND i.line = 2 WHERE " .
	"o.tenant = 3 ORDER BY 1, 2",
	"SELECT id FROM orders o WHERE tenant = 4 AND EXISTS (SELECT FROM items i WHERE i.tenant = o.tenant AND i.order_id = o.id AND i.qty > 10) " .
	"ORDER BY id",
	"SELECT tenant, count(*) FROM orders WHERE tenant = NULL GROUP BY tenant",
	"SELECT count(*) FROM orders WHERE tenant = NULL",
	"SELECT count(*) FROM orders WHERE tenant = 9999999999",
	"WITH x AS (SELECT * FROM orders WHERE tenant = 6) SELECT id, note FROM x ORDER BY id DESC LIMIT 2",
	"SELECT id, row_number() OVER (ORDER BY amount DESC) FROM orders WHERE tenant = 7 ORDER BY 1",
	"SELECT id FROM orders WHERE tenant = 7 UNION ALL SELECT line FROM items WHERE tenant = 7 ORDER BY 1",
	"SELECT v FROM pairs WHERE a = 3 AND b = 'b10'",
	"SELECT name FROM regions WHERE id = 2",
	"SELECT doc->>'t', tags[2] FROM orders WHERE tenant = 8 AND id = 2",
	# all shards
	"SELECT count(*) FROM orders",
	"SELECT * FROM orders",
	"SELECT tenant, count(*), sum(amount), avg(amount) FROM orders GROUP BY tenant ORDER BY tenant",
	"SELECT count(DISTINCT note), bool_or(amount > 50) FROM orders",
	"SELECT o.tenant, o.id, i.line FROM orders o JOIN items i USING (tenant) WHERE i.order_id = o.id AND i.qty > 12",
	"SELECT o.tenant, r.name FROM orders o JOIN regions r ON r.id = o.tenant ORDER BY 1, o.id",
	"SELECT r.name, count(o.id) FROM regions r LEFT JOIN orders o ON o.tenant = r.id GROUP BY r.name ORDER BY 1",
	"SELECT tenant FROM orders WHERE id IN (SELECT line FROM items WHERE qty = 6) GROUP BY 1",
	"SELECT (SELECT count(*) FROM items) - (SELECT count(*) FROM orders)",
	"SELECT tenant, id, (SELECT sum(qty) FROM items i WHERE i.tenant = o.tenant AND i.order_id = o.id) FROM orders o WHERE id = 2",
	"SELECT DISTINCT ON (tenant) tenant, id, note FROM orders ORDER BY tenant, id DESC",
	"SELECT tenant, id, sum(amount) OVER (PARTITION BY tenant ORDER BY id) FROM orders",
	"SELECT note FROM orders WHERE note LIKE 'note 1%' ORDER BY note COLLATE \"C\" LIMIT 5 OFFSET 2",
	"SELECT tenant FROM orders WHERE tenant BETWEEN 3 AND 5 INTERSECT SELECT tenant FROM items WHERE line = 1",
	"SELECT tenant FROM orders EXCEPT SELECT id FROM regions ORDER BY 1",
	"WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT r.n, count(o.*) FROM r LEFT JOIN orders o ON o.tenant = " .
	"r.n GROUP BY r.n ORDER BY 1",
	"SELECT a.v, b.v FROM pairs a FULL JOIN pairs b ON a.v = b.v + 48",
	"SELECT o.* FROM orders o WHERE o.tenant = 2 OR o.id = 4",
	"SELECT tenant, string_agg(note, ',' ORDER BY id) FROM orders WHERE tenant IN (2, 3) GROUP BY tenant",
	"SELECT GROUPING(tenant), tenant, count(*) FROM orders GROUP BY ROLLUP (tenant)",
	"SELECT x.tenant, l.line FROM orders x, LATERAL " .
	"(SELECT line FROM items i WHERE i.tenant = x.tenant AND i.order_id = x.id ORDER BY line DESC LIMIT 1) l WHERE x.id = 1 ORDER BY 1",
	"SELECT o, o.tenant FROM orders o WHERE tenant = 2 AND id = 1",
	"SELECT jsonb_agg(doc ORDER BY tenant, id) FROM orders WHERE doc IS NOT NULL AND id = 1",
	"SELECT count(*) FROM orders WHERE at > '2024-01-01 02:00:00+00' AND at < now()",
	"SELECT * FROM generate_series(1, 3) g JOIN orders o ON o.tenant = g AND o.id = 1 ORDER BY 1",
	"SELECT 1 FROM orders WHERE false",
	"SELECT tenant / 0 FROM orders WHERE tenant = 1",
	"SELECT nosuch FROM orders",
	# updates and deletes
	"UPDATE orders SET note = 'changed', amount = amount + 1 WHERE tenant = 2 AND id = 1",
	"UPDATE orders SET amount = amount * 2 WHERE amount > 50",
	"UPDATE orders SET note = upper(note) WHERE tenant = 3 RETURNING id, note",
	"UPDATE items SET qty = qty + 1 RETURNING tenant, order_id, line, qty",
	"UPDATE orders SET amount = 1 / (amount - amount) WHERE tenant = 4",
	"UPDATE regions SET name = name || '!' WHERE id < 3 RETURNING *",
	"DELETE FROM items WHERE qty > 14",
	"DELETE FROM orders WHERE tenant = 22 RETURNING *",
	"DELETE FROM orders WHERE tenant = 1000",
	"UPDATE orders o SET note = 'has ' || (SELECT count(*) FROM items i WHERE i.tenant = o.tenant AND i.order_id = o.id) WHERE tenant = 5",
	"SELECT * FROM orders",
	"SELECT * FROM items",
	# transactions
	"BEGIN; INSERT INTO orders (tenant, id, note) VALUES (30, 1, 'in'), (31, 1, 'tx'); SELECT count(*) FROM orders; UPDATE orders SET note = " .
		"'seen' WHERE tenant IN (30, 31); SELECT tenant, note FROM orders WHERE tenant >= 30 ORDER BY 1; COMMIT",
	"SELECT tenant, note FROM orders WHERE tenant >= 30 ORDER BY 1",
	"BEGIN; DELETE FROM orders WHERE tenant >= 30; SELECT count(*) FROM orders WHERE tenant >= 30; ROLLBACK; SELECT count(*) FROM orders WHERE " .
	"tenant >= 30",
	"BEGIN; INSERT INTO regions VALUES (9, 'west'); SAVEPOINT a; INSERT INTO regions VALUES (9, 'again'); ROLLBACK TO a; INSERT INTO regions " .
	"VALUES (10, 'up'); RELEASE a; COMMIT; SELECT * FROM regions ORDER BY 1",
	"BEGIN; UPDATE orders SET note = 'a' WHERE tenant = 6; SAVEPOINT s; UPDATE orders SET note = 'b' WHERE tenant = 6; ROLLBACK TO s; COMMIT; " .
	"SELECT note FROM orders WHERE tenant = 6",
	"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM orders; INSERT INTO orders (tenant, id) VALUES (40, 1); SELECT count(*) FROM " .
	"orders; COMMIT",
	"BEGIN READ ONLY; UPDATE orders SET note = 'x' WHERE tenant = 1; ROLLBACK",
	# prepared statements and cursors
	"PREPARE p (int) AS SELECT id, note FROM orders WHERE tenant = \$1 ORDER BY id; EXECUTE p(2); EXECUTE p(3); EXECUTE p(4); EXECUTE p(5); " .
		"EXECUTE p(6); EXECUTE p(7); EXECUTE p(8); DEALLOCATE p",
	"PREPARE u (int, text) AS UPDATE orders SET note = \$2 WHERE tenant = \$1 AND id = 1; EXECUTE u(2, 'p'); EXECUTE u(3, 'q'); DEALLOCATE u; " .
	"SELECT note FROM orders WHERE id = 1 AND tenant IN (2, 3) ORDER BY 1",
	"BEGIN; DECLARE c CURSOR FOR SELECT tenant, id FROM orders ORDER BY 1, 2; FETCH 3 FROM c; FETCH 2 FROM c; CLOSE c; COMMIT",
	"BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id FROM orders WHERE tenant = 2 ORDER BY id; FETCH 2 FROM c; FETCH BACKWARD 1 FROM c; FETCH LAST " .
	"FROM c; COMMIT",
	# row locks
	"BEGIN; SELECT id FROM orders WHERE tenant = 3 ORDER BY id FOR UPDATE; COMMIT",
	"BEGIN; SELECT tenant, id FROM orders WHERE id = 1 ORDER BY 1 FOR SHARE; COMMIT",
	# temporary tables mixed in
	"CREATE TEMP TABLE mine (tenant int, mark text); INSERT INTO mine VALUES (1, 'one'), (2, 'two'), (99, 'none'); SELECT m.mark, count(o.id) " .
		"FROM mine m LEFT JOIN orders o ON o.tenant = m.tenant GROUP BY m.mark ORDER BY 1; INSERT INTO mine SELECT tenant, note FROM orders WHERE " .
		"tenant = 3; SELECT * FROM mine ORDER BY 1, 2; INSERT INTO orders (tenant, id, note) SELECT tenant + 50, 1, mark FROM mine WHERE tenant " .
		"<= 2; SELECT tenant, note FROM orders WHERE tenant > 50 ORDER BY 1; UPDATE mine SET mark = o.note FROM orders o WHERE o.tenant = " .
		"mine.tenant AND o.id = 1; SELECT * FROM mine ORDER BY 1, 2; DELETE FROM mine USING orders o WHERE o.tenant = mine.tenant; SELECT * FROM " .
		"mine; DROP TABLE mine",
	# functions
	"DO \$\$ DECLARE n int; BEGIN FOR i IN 1..3 LOOP SELECT count(*) INTO n FROM orders WHERE tenant = i; UPDATE regions SET name = 'r' || n " .
		"WHERE id = i; END LOOP; END \$\$; SELECT * FROM regions ORDER BY 1",
	"DO \$\$ BEGIN INSERT INTO regions VALUES (1, 'dup'); EXCEPTION WHEN unique_violation THEN INSERT INTO regions VALUES (77, 'caught'); END " .
	"\$\$; SELECT name FROM regions WHERE id = 77");

# The tables are there before the cluster grows; they are sharded through a node that is not the config node.
$c->start_nodes('s1');
$c->query('s1', $_) foreach @tables;
$c->create(shards => 3);
$c->query('s3', "SELECT tessera.shard_table('orders', 'tenant', 'hash', chunks => 6)");
$c->query('s3', "SELECT tessera.shard_table('items', 'tenant', 'hash', colocate_with => 'orders')");
$c->query('s3', "SELECT tessera.shard_table('pairs', 'a, b', 'hash', chunks => 5)");

$c->plain_query($_) foreach @tables;

foreach my $name ($c->names)
{
	is($c->script_differs($name, \@script), 0, "from $name: " . scalar(@script) . ' statements do as on a plain server');
	foreach my $table (qw(orders items pairs regions))
	{
		$c->query($name, "DELETE FROM $table");
		$c->plain_query("DELETE FROM $table");
	}
}

done_testing();
