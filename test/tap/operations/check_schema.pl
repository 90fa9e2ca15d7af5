# tessera.check_schema tells of all tables of a schema at once what stands in the way of sharding them together. Followed from top to bottom, its rows
# take the schema there: foreign keys dropped first, each table mended and sharded, foreign keys back at the end, with the shard key in them. What
# cannot be mended is told, and left as it is.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('check_schema');
$c->create(shards => 2);

sub rows
{
	my ($arguments, $columns, $condition) = @_;
	return $c->query('s1', "SELECT $columns FROM tessera.check_schema($arguments) WHERE " . ($condition // 'true'));
}

# Runs the statements of the report from top to bottom, each by itself. Returns them.
sub follow
{
	my ($arguments) = @_;
	my @statements = split /\n/, rows($arguments, 'coalesce(drop_foreign_key, statement, add_foreign_key)',
		'num_nonnulls(drop_foreign_key, statement, add_foreign_key) = 1');
	$c->query('s1', $_) foreach @statements;
	return @statements;
}

sub foreign_keys
{
	my ($schema) = @_;
	return $c->query('s1', "SELECT string_agg(conname, ' ' ORDER BY conname) FROM pg_constraint WHERE contype = 'f' AND " .
		"connamespace = '$schema'::regnamespace");
}

# A shop: the key has another name in customers and invoices, and another type in visits; order and name of the tables say nothing about who
# references whom; accounts and customers reference each other.
$c->query('s1', $_) foreach (
	'CREATE SCHEMA shop',
	'CREATE TABLE shop.customers (id bigint PRIMARY KEY, email text NOT NULL UNIQUE)',
	'CREATE TABLE shop.products (sku text PRIMARY KEY)',
	'CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint REFERENCES shop.customers ON DELETE CASCADE, sku text REFERENCES ' .
	'shop.products, parent bigint REFERENCES shop.orders)',
	'CREATE TABLE shop.items (customer_id bigint NOT NULL, order_id bigint REFERENCES shop.orders ON DELETE SET NULL, pos int, ' .
	'UNIQUE (order_id, pos))',
	'CREATE TABLE shop.invoices (no bigint PRIMARY KEY, cust bigint NOT NULL REFERENCES shop.customers)',
	'CREATE TABLE shop.a_lines (customer_id bigint NOT NULL, invoice bigint REFERENCES shop.invoices, PRIMARY KEY (invoice, customer_id))',
	'CREATE TABLE shop.accounts (customer_id bigint PRIMARY KEY REFERENCES shop.customers)',
	'ALTER TABLE shop.customers ADD FOREIGN KEY (id) REFERENCES shop.accounts (customer_id) DEFERRABLE INITIALLY DEFERRED',
	'CREATE TABLE shop.a_hits (customer_id int)',
	'CREATE TABLE shop.visits (customer_id int, at timestamptz) PARTITION BY RANGE (at)',
	"CREATE TABLE shop.visits_1 PARTITION OF shop.visits FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')",
	'CREATE TABLE shop.odd (v int NOT NULL, customer_id bigint GENERATED ALWAYS AS (v) STORED, id int PRIMARY KEY, order_id bigint)',
	'ALTER TABLE shop.odd ADD FOREIGN KEY (order_id) REFERENCES shop.orders',
	'CREATE TABLE shop.notes (odd int REFERENCES shop.odd)',
	"INSERT INTO shop.products VALUES ('p')",
	q(BEGIN; INSERT INTO shop.customers SELECT g, 'c' || g FROM generate_series(1, 20) g;
	INSERT INTO shop.accounts SELECT id FROM shop.customers; COMMIT),
	q(INSERT INTO shop.orders SELECT g, 1 + g % 20, 'p', CASE WHEN g > 40 THEN g - 20 END FROM generate_series(21, 100) g),
	'INSERT INTO shop.items SELECT customer_id, id, 1 FROM shop.orders',
	'INSERT INTO shop.invoices SELECT id, customer_id FROM shop.orders',
	'INSERT INTO shop.a_lines SELECT customer_id, id FROM shop.orders',
	"INSERT INTO shop.visits SELECT id, '2020-05-05' FROM shop.customers");

my $arguments = "'shop', 'customer_id'";
is(rows($arguments, 'DISTINCT table_name', "severity = 'error' AND num_nonnulls(drop_foreign_key, statement, add_foreign_key) = 0"), 'shop.odd',
	'what no statement mends is told');
is(rows($arguments, 'count(*)', "table_name = 'shop.odd'::regclass AND statement IS NOT NULL"), 0, 'and left as it is');
is(rows($arguments, "string_agg(table_name::text, ' ' ORDER BY table_name::text)", "problem ~ 'It stays a placed table'"),
	'shop.notes shop.products', 'tables without the key are told');
my $report = rows($arguments, "severity, coalesce(drop_foreign_key, statement, add_foreign_key)", 'true');
my ($drop, $mend, $add) = (rindex($report, 'DROP CONSTRAINT orders_customer_id_fkey'), index($report, 'ADD CONSTRAINT orders_pkey'),
	index($report, 'ADD CONSTRAINT orders_customer_id_fkey'));
is(rows($arguments, 'table_name', "statement ~ 'shard_table' AND statement !~ 'colocate_with'"), 'shop.accounts',
	'a table that others reference begins the group, though another one is named before it and references nothing');
ok($drop >= 0 && $drop < $mend && $mend < $add, 'dropped, mended, added again');
is(scalar(() = $report =~ /DROP CONSTRAINT orders_customer_id_fkey/g), 1, 'a foreign key of two tables is told once');
is(rows($arguments, 'max(num_nonnulls(drop_foreign_key, statement, add_foreign_key))'), 1, 'one statement in a row');
is(rows($arguments, 'count(*)', "drop_foreign_key ~ 'notes_odd_fkey'"), 0, 'foreign keys of tables that stay are left alone');
is($c->query('s2', "SELECT count(*) FROM tessera.check_schema($arguments)"), rows($arguments, 'count(*)'), 'another node tells the same');

my @rest = follow($arguments);
is($c->query('s1', "SELECT string_agg(table_name || ' ' || key, ', ' ORDER BY table_name::text) FROM tessera.tables
	WHERE table_name::text ~ '^shop' AND kind = 'sharded'"),
	'shop.a_hits customer_id, ' .
	'shop.a_lines customer_id, shop.accounts customer_id, shop.customers id, shop.invoices cust, shop.items customer_id, shop.orders customer_id, ' .
	'shop.visits customer_id', 'followed from top to bottom, all tables that can be are sharded');
is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.tables WHERE table_name::text ~ '^shop' AND kind = 'sharded'"), 1, 'in one group');
is(foreign_keys('shop'), 'a_lines_invoice_fkey accounts_customer_id_fkey customers_id_fkey invoices_cust_fkey items_order_id_fkey notes_odd_fkey ' .
	'orders_customer_id_fkey orders_parent_fkey', 'with their foreign keys');
is($c->query('s1', q(SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'a_lines_invoice_fkey')),
	'FOREIGN KEY (customer_id, invoice) REFERENCES shop.invoices(cust, no)', 'also where the key has two names');
is(rows($arguments, 'count(*)', "severity = 'step' OR (severity = 'error' AND table_name <> 'shop.odd'::regclass)"), 0,
	'then nothing is left to do');
$c->query('s1', "SELECT tessera.move_range('shop.customers', 10, tessera.maxkey(), 's2')");
$c->query('s2', 'DELETE FROM shop.orders WHERE customer_id = 15');
is($c->query('s1', 'SELECT count(*), count(order_id) FROM shop.items WHERE customer_id = 15'), '4|0', 'they hold on every shard');

# A table that comes later joins the group; a replicated one keeps what references it.
$c->query('s1', $_) foreach (
	'CREATE TABLE shop.late (customer_id bigint, id int, parent int, sku text REFERENCES shop.products, PRIMARY KEY (id))',
	'ALTER TABLE shop.late ADD FOREIGN KEY (parent) REFERENCES shop.late',
	"SELECT tessera.replicate_table('shop.products')");
unlike(rows($arguments, "string_agg(drop_foreign_key, ' ')"), qr/late_sku_fkey/, 'a foreign key to a replicated table stays');
follow($arguments);
is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.tables WHERE table_name IN ('shop.late'::regclass, 'shop.orders'::regclass)"), 1,
	'a table that came later joins');
like(foreign_keys('shop'), qr/late_parent_fkey late_sku_fkey/, 'with its foreign keys');

# Hashed, inherited, and with a table of another schema.
$c->query('s1', $_) foreach (
	'CREATE SCHEMA other',
	'CREATE TABLE other.base (tenant int, id int)',
	'CREATE TABLE other.child () INHERITS (other.base)',
	'CREATE TABLE other."Odd" (tenant text, id int)',
	'CREATE TABLE public.tenants (id int PRIMARY KEY)',
	"SELECT tessera.shard_table('tenants', 'id', strategy => 'hash')",
	'DROP TABLE other."Odd"',
	'CREATE TABLE other."Odd" (id int PRIMARY KEY, tenant int NOT NULL)');
is(rows("'other', 'tenant', 'hash', 'tenants'", 'count(*)', "statement ~ 'NO INHERIT'"), 1, 'what two tables name is told once');
# as doc/applications.md says
my $steps = "SELECT drop_foreign_key, statement, add_foreign_key, format('DELETE FROM sharding_steps WHERE ordinality = %s', ordinality) " .
	'FROM sharding_steps ORDER BY ordinality \\gexec';
$c->query('s2', "CREATE TABLE sharding_steps (severity text, table_name text, problem text, drop_foreign_key text, statement text,
	add_foreign_key text, ordinality bigint PRIMARY KEY)");
$c->query('s2', "INSERT INTO sharding_steps SELECT * FROM tessera.check_schema('other', 'tenant', 'hash', 'tenants') WITH ORDINALITY");
$c->query('s2', 'ALTER TABLE other.base RENAME TO away');
like($c->error('s2', "\\set ON_ERROR_STOP on\n$steps"), qr/42P01/, 'an error ends it');
cmp_ok($c->query('s2', 'SELECT count(*) FROM sharding_steps'), '>', 0, 'with steps left');
$c->query('s2', 'ALTER TABLE other.away RENAME TO base');
$c->query('s2', "\\set ON_ERROR_STOP on\n$steps\nDROP TABLE sharding_steps");
is($c->query('s1', "SELECT count(*) FROM tessera.tables WHERE kind = 'sharded' AND strategy = 'hash' AND group_id =
	(SELECT group_id FROM tessera.tables WHERE table_name = 'tenants'::regclass)"), 4, 'a schema joins a table of another one');

# Who may.
$c->query('s1', $_) foreach ('CREATE ROLE owner_of_all', 'CREATE ROLE owner_of_one', 'CREATE SCHEMA mine AUTHORIZATION owner_of_all',
	'CREATE TABLE mine.a (k int PRIMARY KEY)', 'CREATE TABLE mine.b (k int PRIMARY KEY)', 'ALTER TABLE mine.a OWNER TO owner_of_all',
	'ALTER TABLE mine.b OWNER TO owner_of_all');
is($c->query('s2', "SET ROLE owner_of_all; SELECT count(*) FROM tessera.check_schema('mine', 'k')"), 2, 'an owner of all tables may ask');
$c->query('s1', 'ALTER TABLE mine.a OWNER TO owner_of_one; GRANT USAGE ON SCHEMA mine TO owner_of_one');
foreach my $role ('owner_of_all', 'owner_of_one')
{
	like($c->error('s2', "SET ROLE $role; SELECT * FROM tessera.check_schema('mine', 'k')"), qr/42501/, "$role may not, who does not own all");
}
like($c->error('s2', "SET ROLE owner_of_one; SELECT * FROM tessera.check_schema('shop', 'customer_id')"), qr/42501/, 'nor who owns none');
$c->query('s1', 'GRANT tessera_admin TO owner_of_one');
is($c->query('s2', "SET ROLE owner_of_one; SELECT count(*) FROM tessera.check_schema('mine', 'k')"), 2, 'an administrator may');

like($c->error('s1', "SELECT * FROM tessera.check_schema('nowhere', 'k')"), qr/3F000/, 'no such schema');
like($c->error('s1', "SELECT * FROM tessera.check_schema('shop', 'nope')"), qr/42703/, 'no such column anywhere');
like($c->error('s1', "SELECT * FROM tessera.check_schema('shop', 'a,')"), qr/42602/, 'a name that is none');
like($c->error('s1', "SELECT * FROM tessera.check_schema('shop', NULL)"), qr/22004/, 'no key');
like($c->error('s1', "SELECT * FROM tessera.check_schema('shop', 'customer_id', 'list')"), qr/22023/, 'no such strategy');
like($c->error('s1', "SELECT * FROM tessera.check_schema('shop', 'customer_id', colocate_with => 'shop.notes')"), qr/42P16/,
	'not with a placed table');

done_testing();
