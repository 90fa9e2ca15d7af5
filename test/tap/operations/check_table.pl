# What stands in the way of sharding a table is told at once (tessera.check_table), with statements that, run in their order, make the table fit:
# every kind of obstacle, foreign keys between tables with composite keys, a table to colocate with that is not sharded yet. Triggers, policies and
# checks that may reach rows of other shards are named before they fail: by check_table, shard_table and move_range.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('check_table');
$c->create(shards => 2);

sub report
{
	my ($arguments, %params) = @_;
	return $c->query($params{via} // 's1', "SELECT severity, table_name, problem FROM tessera.check_table($arguments)");
}

# Runs the statements of a report, in its order, each by itself.
sub mend
{
	my ($arguments, %params) = @_;
	my $statements = $c->query($params{via} // 's1', "SELECT statement FROM tessera.check_table($arguments) WHERE statement IS NOT NULL");
	$c->query($params{via} // 's1', $_) foreach split /\n/, $statements;
	return $statements;
}

sub errors
{
	my ($arguments) = @_;
	return $c->query('s1', "SELECT count(*) FROM tessera.check_table($arguments) WHERE severity = 'error'");
}

# A schema as applications have them.
my @shop = (
	'CREATE TABLE customers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL UNIQUE)',
	'CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint REFERENCES customers ON DELETE CASCADE, ref text UNIQUE, parent bigint ' .
	'REFERENCES orders)',
	'CREATE TABLE items (customer_id bigint NOT NULL, order_id bigint REFERENCES orders ON DELETE SET NULL DEFERRABLE, pos int, UNIQUE (order_id, ' .
	'pos) DEFERRABLE)',
	'CREATE TABLE notes (order_id bigint REFERENCES orders, body text)',
	'INSERT INTO customers (email) SELECT \'c\' || g FROM generate_series(1, 20) g',
	'INSERT INTO orders SELECT g, 1 + g % 20, \'r\' || g, nullif(g - g % 20, g) FROM generate_series(20, 100) g',
	'UPDATE orders SET parent = NULL WHERE parent = 0 OR parent % 20 <> id % 20',
	'INSERT INTO items SELECT customer_id, id, 1 FROM orders');
$c->query('s1', $_) foreach @shop;

my $error = $c->error('s1', "SELECT tessera.shard_table('customers', 'id')");
like($error, qr/42P16.*would leave the table group/s, 'a table with a foreign key to it is refused');
like($error, qr/HINT:  SELECT \* FROM tessera\.check_table\('public\.customers', 'id'\) lists all/, 'and says where the rest is told');
like($c->error('s1', "SELECT tessera.shard_table('orders', 'customer_id', strategy => 'hash', colocate_with => 'customers')"),
	qr/check_table\('public\.orders', 'customer_id', strategy => 'hash', colocate_with => 'public\.customers'\)/, 'with the arguments of the call');

my $found = report("'orders', 'customer_id', colocate_with => 'customers'");
my $to_customers = qr/FOREIGN KEY \(customer_id\) REFERENCES public.customers \(id\) ON DELETE CASCADE/;
my $to_orders = qr/FOREIGN KEY \(customer_id, order_id\) REFERENCES public.orders \(customer_id, id\)/;
like($found, $_) foreach (
	qr/^error\|orders\|foreign key "orders_customer_id_fkey".*ADD CONSTRAINT orders_customer_id_fkey $to_customers/m,
	qr/^error\|customers\|constraint "customers_email_key" does not contain the shard key/m,
	qr/^warning\|customers\|with the shard key in it, "customers_email_key" lets the same value of \(email\) in once for each shard key/m,
	qr/^warning\|orders\|with the shard key in it, "orders_pkey" lets the same value of \(id\) in/m,
	qr/^error\|customers\|table "customers" is not sharded/m,
	qr/^error\|items\|foreign key "items_order_id_fkey".*$to_orders ON DELETE SET NULL \(order_id\) DEFERRABLE/m,
	qr/^error\|notes\|foreign key "notes_order_id_fkey".*when table "notes" has the columns/m,
	qr/^error\|orders\|foreign key "orders_parent_fkey".*FOREIGN KEY \(customer_id, parent\) REFERENCES public.orders \(customer_id, id\)/m,
	qr/^error\|orders\|column "customer_id" of a shard key must be NOT NULL/m,
	qr/^error\|orders\|constraint "orders_pkey"/m,
	qr/^error\|orders\|constraint "orders_ref_key"/m);
is(scalar(() = $found =~ /orders_customer_id_fkey" between/g), 1, 'a foreign key of both tables is told once');
unlike($found, qr/no index that begins/, 'the new primary key is the key index');
is(report("'orders', 'customer_id', colocate_with => 'customers'", via => 's2'), $found, 'another node tells the same');

my %restore = map { split /\|/ } split /\n/, $c->query('s1', "SELECT substring(statement FROM 'DROP CONSTRAINT (.*)'), restore
	FROM tessera.check_table('orders', 'customer_id', colocate_with => 'customers') WHERE statement ~ '_fkey\$' AND restore IS NOT NULL");
is(join(' ', sort keys %restore), 'items_order_id_fkey orders_customer_id_fkey orders_parent_fkey',
	'foreign keys to drop, with the statements that bring them back');
mend("'orders', 'customer_id', colocate_with => 'customers'");
is(errors("'orders', 'customer_id', colocate_with => 'customers'"), 0, 'after its statements nothing is in the way');
$c->query('s1', "SELECT tessera.shard_table('orders', 'customer_id', colocate_with => 'customers')");
pass('shard_table accepts the table');
mend("'items', 'customer_id', colocate_with => 'orders'", via => 's2');
is(errors("'items', 'customer_id', colocate_with => 'orders'"), 0, 'nor of the next one');
$c->query('s1', "SELECT tessera.shard_table('items', 'customer_id', colocate_with => 'orders')");
$c->query('s1', $restore{$_}) foreach sort keys %restore;
is($c->query('s1', "SELECT string_agg(conname, ' ' ORDER BY conname) FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text IN " .
	"('orders', 'items')"),
	'items_order_id_fkey orders_customer_id_fkey orders_parent_fkey', 'foreign keys come back as the report says');
$c->query('s1', "SELECT tessera.move_range('orders', 10, tessera.maxkey(), 's2')");
$c->query('s2', 'DELETE FROM orders WHERE customer_id = 15');
is($c->query('s1', 'SELECT count(*), count(order_id) FROM items WHERE customer_id = 15'), '4|0', 'they hold on every shard');
like(report("'orders', 'customer_id'"), qr/^error\|orders\|table "orders" is already sharded/, 'a sharded table');

# Kinds of obstacles, each mended.
$c->query('s1', $_) foreach (
	'CREATE EXTENSION btree_gist',
	'CREATE UNLOGGED TABLE unlogged (k int PRIMARY KEY)',
	'CREATE TABLE parent (k int PRIMARY KEY)',
	'CREATE TABLE child () INHERITS (parent)',
	'ALTER TABLE child ADD PRIMARY KEY (k)',
	'CREATE TABLE grandchild () INHERITS (child)',
	'CREATE TABLE bare (k int, v int)',
	'CREATE TABLE nothing (k int NOT NULL, id int PRIMARY KEY)',
	'ALTER TABLE nothing REPLICA IDENTITY NOTHING',
	'CREATE TABLE "Odd table" ("Key" text COLLATE "C", "a b" text, v int NOT NULL, EXCLUDE USING gist (v WITH =), CONSTRAINT "odd con" UNIQUE ' .
	'NULLS NOT DISTINCT (v) INCLUDE ("a b"))',
	'CREATE UNIQUE INDEX "odd index" ON "Odd table" (lower("a b")) WHERE v > 0',
	'ALTER TABLE "Odd table" REPLICA IDENTITY USING INDEX "odd con"',
	'CREATE TABLE big (k bigint PRIMARY KEY)',
	"SELECT tessera.shard_table('big', 'k')",
	'CREATE TABLE small (k int PRIMARY KEY)');
foreach my $arguments ("'unlogged', 'k'", "'child', 'k'", "'bare', 'k'", "'nothing', 'k'", q('"Odd table"', '"Key"'),
	"'small', 'k', colocate_with => 'big'")
{
	my $call = $arguments;
	isnt(errors($arguments), 0, "$arguments is refused");
	mend($arguments);
	is(errors($arguments), 0, 'its statements mend it');
	$c->query('s1', "SELECT tessera.shard_table($arguments)");
}
is($c->query('s2', q(SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'odd con')),
	'UNIQUE NULLS NOT DISTINCT ("Key", v) INCLUDE ("a b")', 'a constraint keeps what it had');
is($c->query('s2', q(SELECT indisreplident FROM pg_index WHERE indexrelid = '"odd con"'::regclass)), 't', 'and stays the replica identity');
like($c->query('s2', q(SELECT pg_get_indexdef('"odd index"'::regclass))), qr/\("Key", lower\("a b"\)\) WHERE \(v > 0\)/, 'so does an index');
$c->query('s1', 'CREATE TABLE ruled (k int PRIMARY KEY)');
is(report("'ruled', 'k'"), '', 'no row: it can be sharded');

# What has no statement.
$c->query('s1', 'CREATE TABLE parts (k int PRIMARY KEY) PARTITION BY RANGE (k); CREATE TABLE part PARTITION OF parts DEFAULT');
$c->query('s1', 'CREATE TABLE odd_key (k regclass NOT NULL PRIMARY KEY, g int GENERATED ALWAYS AS (1) STORED)');
is($c->query('s1', "SELECT severity, statement IS NULL FROM tessera.check_table($_->[0])"), 'error|t', $_->[1])
  foreach ([ "'part', 'k'", 'a partition' ], [ "'odd_key', 'k'", 'a type that cannot be a key' ], [ "'odd_key', 'g'", 'a generated column' ],
	[ "'odd_key', 'nope'", 'no such column' ], [ "'odd_key', 'k,'", 'a name that is none' ], [ "'orders', 'customer_id'", 'a sharded table' ]);
is($c->query('s1', "SELECT count(*) FROM tessera.check_table('odd_key', 'nope, nada')"), 2, 'each column that is missing');

# Who may.
$c->query('s1', $_) foreach ('CREATE ROLE owner_of_one', 'CREATE ROLE nobody', 'CREATE TABLE owned (k int PRIMARY KEY)',
	'ALTER TABLE owned OWNER TO owner_of_one');
is($c->query('s2', "SET ROLE owner_of_one; SELECT count(*) FROM tessera.check_table('owned', 'k')"), 0, 'an owner may ask');
like($c->error('s2', "SET ROLE nobody; SELECT * FROM tessera.check_table('owned', 'k')"), qr/42501/, 'others may not');
like($c->error('s2', "SET ROLE owner_of_one; SELECT * FROM tessera.check_table('owned', 'k', colocate_with => 'orders')"), qr/42501/,
	'not about a group of others');
like($c->error('s1', "SELECT * FROM tessera.check_table('owned', NULL)"), qr/22004/, 'no key');
like($c->error('s1', "SELECT * FROM tessera.check_table('owned', 'k', 'list')"), qr/22023/, 'no such strategy');

# Code that may reach other tables.
$c->query('s1', $_) foreach (
	'CREATE TABLE totals (k int PRIMARY KEY, n int NOT NULL)',
	'CREATE TABLE t (k int PRIMARY KEY, v int, w text)',
	q(CREATE FUNCTION harmless() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN -- select nothing from nowhere
	  IF TG_OP = 'UPDATE' AND NEW.v IS DISTINCT FROM OLD.v THEN NEW.w := 'update totals' || extract(epoch FROM now())::numeric(10,2) || upper(NEW.w);
	  END IF;
	  RETURN NEW; END $$),
	q(CREATE FUNCTION helper(int) RETURNS int LANGUAGE sql AS 'SELECT n FROM totals WHERE k = $1'),
	q(CREATE FUNCTION by_statement() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO totals VALUES (NEW.k, 1); RETURN NEW; END'),
	q(CREATE FUNCTION by_call() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := public."helper" (NEW.k); RETURN NEW; END'),
	q(CREATE FUNCTION by_expression() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := count(*) FROM totals; RETURN NEW; END'),
	q(CREATE FUNCTION by_string() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN EXECUTE ''dele'' || ''te from totals''; RETURN NEW; END'),
	'SET check_function_bodies = off; CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN \'$$',
	'CREATE DOMAIN checked AS int CHECK (helper(VALUE) IS NULL)',
	'CREATE TRIGGER t_harmless BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION harmless()');
is(report("'t', 'k'"), '', 'a trigger that touches only its row is not named');
$c->query('s1', $_) foreach (
	(map { "CREATE TRIGGER t_$_ BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION $_()" } qw(by_statement by_call by_expression by_string broken)),
	'CREATE TRIGGER t_each AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION harmless()',
	'ALTER TABLE t ENABLE ROW LEVEL SECURITY',
	'CREATE POLICY p_near ON t USING (v > current_setting(\'app.v\')::int)',
	'CREATE POLICY p_far ON t USING (v IN (SELECT n FROM totals))',
	'CREATE POLICY p_call ON t WITH CHECK (helper(k) > 0)',
	'ALTER TABLE t ADD CONSTRAINT c_far CHECK (helper(k) > 0), ADD CONSTRAINT c_near CHECK (abs(v) > 0)',
	'ALTER TABLE t ADD COLUMN d checked, ADD COLUMN s int DEFAULT 1, ADD COLUMN i int GENERATED BY DEFAULT AS IDENTITY',
	'CREATE VIEW over_t AS SELECT * FROM t', 'CREATE RULE r AS ON INSERT TO over_t DO INSTEAD NOTHING',
	'CREATE PUBLICATION pub FOR TABLE t');
$found = report("'t', 'k'");
like($found, qr/^warning\|t\|\Q$_\E/m, "named: $_")
  foreach ('trigger "t_by_statement" (function public.by_statement) may reach', 'trigger "t_by_call"', 'trigger "t_by_expression"',
  'trigger "t_by_string"', 'trigger "t_broken"',
	'policy "p_far"', 'policy "p_call"', 'check constraint "c_far"', 'domain of column "d"', 'trigger "t_each" fires for each statement',
	'rule "r" of view',
	'publication "pub"', 'sequence public.t_i_seq');
is(scalar(() = $found =~ /\n/g), 12, 'and nothing else') or diag $found;
is(errors("'t', 'k'"), 0, 'a warning is no obstacle');

$c->query('s1', 'DROP TRIGGER t_broken ON t');
my $names = qr/trigger "t_by_call" .*policy "p_far".*check constraint "c_far"/;
my ($status, $out, $err) = $c->psql('s1', "SELECT tessera.shard_table('t', 'k')");
like($err, qr/WARNING:  01000: code of table public\.t may reach rows of other tables: .*$names/, 'shard_table names them');
($status, $out, $err) = $c->psql('s2', "SELECT tessera.move_range('t', 0, 10, 's2')");
like($err, qr/WARNING:  01000: code of the tables that move .*table "t": .*$names/, 'move_range names them');
is(scalar(() = $err =~ /WARNING/g), 1, 'once');
($status, $out, $err) = $c->psql('s1', "SELECT tessera.move_range('t', 0, 10, 's2')");
unlike($err, qr/WARNING/, 'not when nothing moves');
($status, $out, $err) = $c->psql('s1', "SELECT tessera.move_range('big', 0, 10, 's2')");
unlike($err, qr/WARNING/, 'nor for tables without such code');

done_testing();
