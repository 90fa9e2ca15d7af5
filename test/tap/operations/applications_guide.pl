# doc/applications.md, followed to the letter: its SQL blocks are run one after the other, on changing nodes but where it says
# which; then the shop is sharded, its rows are all there, and its foreign keys hold.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use File::Basename;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('applications');
$c->create(shards => 3);

my $text = slurp_file(dirname(__FILE__) . '/../../../doc/applications.md');
my @blocks = $text =~ /^```sql\n(.*?)^```/msg;
cmp_ok(scalar @blocks, '>=', 10, 'the document has SQL');
my @names = $c->names;
my $number = 0;
my %out;
foreach my $block (@blocks)
{
	my $name = $names[ $number++ % @names ];
	$name = 's1' if $block =~ /^-- on the config node$/m;
	my ($status, $out, $err) = $c->psql($name, $block);
	is($status, 0, "block $number on $name") or diag "$block\n$err";
	unlike($err, qr/WARNING/, "block $number warns of nothing");
	$out{$number} = $out;
	if ($block =~ /check_table/)
	{
		like($out, qr/^error\|$_->[0]\|.*$_->[1]/m, "the report names $_->[1]")
		  foreach ([ 'orders', 'orders_pkey' ], [ 'orders', 'orders_address_id_fkey' ], [ 'order_items', 'order_items_order_id_fkey' ],
		  [ 'payments', 'payments_order_id_fkey' ],
			[ 'customers', 'customers_email_key' ], [ 'customers', 'is not sharded' ]);
	}
}

is($c->query('s2', "SELECT count(*) FROM tessera.tables WHERE kind = 'sharded'"), 7, 'seven tables are sharded');
is($c->query('s1', "SELECT string_agg(DISTINCT shard, ' ' ORDER BY shard) FROM tessera.chunks WHERE table_name = 'payments'::regclass"), 's1 s2 s3',
	'over three shards');
is($c->query('s3', "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND connamespace = 'public'::regnamespace"), 10,
	'with the foreign keys of the group, and those of the other tables');
is($c->query($_, 'SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM order_items), (SELECT count(*) FROM payments), (SELECT count(*)
	FROM shipments),
	(SELECT count(*) FROM reviews), (SELECT count(*) FROM customer_emails)'), '901|1801|900|450|300|300', "all rows are there, from $_")
	foreach @names;
like($c->error('s1', 'INSERT INTO orders (id, customer_id) VALUES (200001, 99999)'), qr/23503/, 'a foreign key holds');
like($c->error('s1', 'DELETE FROM customers WHERE id = 250'), qr/23503/, 'on every shard');
$c->query('s1', 'DELETE FROM addresses WHERE customer_id = 250');
is($c->query('s1', 'SELECT count(*), count(address_id) FROM orders WHERE customer_id = 250'), '3|0', 'its action empties what it should');
like($c->error('s3', 'INSERT INTO shipments (customer_id, order_id) SELECT customer_id, order_id FROM shipments WHERE customer_id = 250 LIMIT 1'),
	qr/23505/, 'a unique constraint');
is($c->query('s1', 'SELECT quantity FROM stock WHERE product_id = 7'), 998, 'the order was placed once');
$c->is_settled('the shop');

# With the statements of the report alone: one table after the other.
$c->query('s1', $_) foreach ('CREATE TABLE authors (id int PRIMARY KEY, name text UNIQUE)',
	'CREATE TABLE books (id int PRIMARY KEY, author int REFERENCES authors)',
	'CREATE UNIQUE INDEX books_plain ON books (id) WHERE id > 0', 'INSERT INTO authors VALUES (1, 1)', 'INSERT INTO books VALUES (1, 1)');
my $report = "tessera.check_table('books', 'author', colocate_with => 'authors')";
my ($status, $out, $err) = $c->psql('s1', "SELECT statement FROM $report WHERE statement IS NOT NULL \\gexec");
is($status, 0, 'gexec runs the statements') or diag $err;
$c->query('s1', "SELECT tessera.shard_table('books', 'author', colocate_with => 'authors')");
is($c->query('s1', 'SELECT count(*) FROM books JOIN authors ON authors.id = author'), 1, 'and the table is sharded');

# What the documents for users name is there.
my %named;
foreach my $document (qw(applications differences operations migration))
{
	my $words = slurp_file(dirname(__FILE__) . "/../../../doc/$document.md");
	$named{$1} //= $document while $words =~ /\btessera\.([a-z_]+)(?![a-z_.]*\.(?:so|control|sql|c|h)\b)/g;
}
my $list = join(', ', map { "('$_', '$named{$_}')" } grep { !/_$/ } sort keys %named);
is($c->query('s1', "SELECT n.name, n.document FROM (VALUES $list) AS n(name, document)
	WHERE NOT EXISTS (SELECT FROM pg_proc WHERE proname = n.name AND pronamespace = 'tessera'::regnamespace)
	AND NOT EXISTS (SELECT FROM pg_class WHERE relname = n.name AND relnamespace = 'tessera'::regnamespace)
	AND NOT EXISTS (SELECT FROM pg_type WHERE typname = n.name AND typnamespace = 'tessera'::regnamespace)
	AND NOT EXISTS (SELECT FROM pg_settings WHERE pg_settings.name = 'tessera.' || n.name)"), '',
	'every function, view, type and setting that a document names exists');

done_testing();
