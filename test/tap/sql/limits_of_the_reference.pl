# The list of limits in the reference: each statement is refused with the SQLSTATE that it names, and each way around works.
use strict;
use warnings FATAL => 'all';

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

# Rows of the tables of the section: what is refused, its SQLSTATE, the way around (undef if it is none that can be run).
sub limits
{
	my ($file) = @_;
	my ($section) = slurp_file($file) =~ /^## Limits\n(.*?)(?=^## )/ms;
	my @limits;
	foreach my $line (split(/\n/, $section // ''))
	{
		my @cells = map { s/\\\|/|/gr } $line =~ /\G\|\s*((?:\\\||[^|])*?)\s*(?=\|)/g;
		next if @cells < 4 || $cells[1] !~ /^`(\w{5})`$/;
		my $state = $1;
		my ($refused) = $cells[0] =~ /^`(.*)`$/ or die "no statement in: $line";
		my ($instead) = $cells[3] =~ /^`([^`]*)`/;
		push @limits, [ $refused, $state, defined $instead && $instead !~ /\.\.\./ ? $instead : undef ];
	}
	return @limits;
}

my @limits = limits("$FindBin::RealBin/../../../doc/reference.md");
cmp_ok(scalar(@limits), '>', 30, 'the list is read');

my $c = TesseraCluster->new('limits');
$c->create(shards => 3, routers => 1);
$c->query('s1', $_) foreach
	"CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric, note text DEFAULT 'none', serial bigserial)",
	'CREATE TABLE lines (order_id int, n int, what text, PRIMARY KEY (order_id, n))',
	'CREATE TABLE customer (id int PRIMARY KEY, name text); CREATE TABLE setting (name text PRIMARY KEY, value text)',
	'CREATE TABLE country (id int PRIMARY KEY, name text)',
	"SELECT tessera.shard_table('orders', 'id'); SELECT tessera.shard_table('lines', 'order_id', colocate_with => 'orders')",
	"SELECT tessera.shard_table('customer', 'id', 'hash', chunks => 6); SELECT tessera.replicate_table('country')",
	"SELECT tessera.move_range('orders', 100, 200, 's2'); SELECT tessera.move_range('orders', 200, tessera.maxkey(), 's3')",
	"INSERT INTO orders SELECT g, g % 10, g FROM generate_series(1, 300) g; INSERT INTO lines SELECT g, 1, 'x' FROM generate_series(1, 300) g",
	"INSERT INTO customer SELECT g, 'c' || g FROM generate_series(0, 9) g; INSERT INTO country VALUES (1, 'a')";
foreach my $limit (@limits)
{
	my ($refused, $state, $instead) = @$limit;
	like(($c->psql('r1', $refused))[2], qr/ERROR:  $state:/, "$state: $refused");
	next if !defined $instead;
	my ($status, $stdout, $stderr) = $c->psql('r1', $instead);
	is($status, 0, "instead: $instead") or diag($stderr);
}
is($c->query('r1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'nothing is left half done');
done_testing();
