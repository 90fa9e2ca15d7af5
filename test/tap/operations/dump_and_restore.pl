
# What pg_dump of a node writes can be restored in one transaction: into a plain server, whether it has the extension or not, and into another
# cluster. Nothing of the cluster's own catalog is in it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('dump');
$c->create(shards => 2, routers => 1);
$c->query('r1', <<'SQL');
CREATE SCHEMA app;
CREATE TYPE app.mood AS ENUM ('sad', 'glad');
CREATE SEQUENCE app.counter START 5;
CREATE TABLE app.customer (id int PRIMARY KEY, name text NOT NULL, mood app.mood);
CREATE TABLE app.orders (customer int, nr serial, note varchar(10), PRIMARY KEY (customer, nr));
CREATE TABLE app.ident (k int PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY, d int GENERATED ALWAYS AS (k * 2) STORED);
CREATE VIEW app.glad AS SELECT * FROM app.customer WHERE mood = 'glad';
CREATE MATERIALIZED VIEW app.counts AS SELECT customer, count(*) AS n FROM app.orders GROUP BY customer;
CREATE FUNCTION app.twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2';
CREATE INDEX ON app.orders (app.twice(nr));
COMMENT ON TABLE app.customer IS 'who buys';
ALTER TABLE app.customer ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON app.customer USING (true);
SQL
$c->query('s1', q{SELECT tessera.shard_table('app.customer', 'id')});
$c->query('s1', q{SELECT tessera.shard_table('app.orders', 'customer', colocate_with => 'app.customer')});
$c->query('r1', 'ALTER TABLE app.orders ADD FOREIGN KEY (customer) REFERENCES app.customer');
$c->query('r1', <<'SQL');
INSERT INTO app.customer SELECT g, 'n' || g, CASE WHEN g % 2 = 0 THEN 'sad'::app.mood ELSE 'glad' END FROM generate_series(1, 100) g;
INSERT INTO app.orders (customer, note) SELECT 1 + g % 100, 'o' || g FROM generate_series(1, 300) g;
INSERT INTO app.ident SELECT g FROM generate_series(1, 10) g;
SELECT nextval('app.counter');
REFRESH MATERIALIZED VIEW app.counts;
SQL
$c->query('s1', q{SELECT tessera.move_range('app.customer', 40, 70, 's2')});

my $file = PostgreSQL::Test::Utils::tempdir_short() . '/dump.sql';
my @facts = (
	'SELECT count(*), sum(id), min(name), count(mood) FROM app.customer',
	'SELECT count(*), sum(customer), sum(nr), min(note) FROM app.orders',
	'SELECT sum(k), sum(n), sum(d) FROM app.ident',
	'SELECT count(*) FROM app.glad',
	'SELECT count(*), sum(n) FROM app.counts',
	q{SELECT nextval('app.counter') > 5},
	'INSERT INTO app.orders (customer, note) VALUES (1, $$new$$) RETURNING nr > 300');

sub dump_of
{
	my ($node, @options) = @_;
	command_ok([ 'pg_dump', '-d', $c->conninfo($node), '-f', $file, @options ], "pg_dump of $node @options");
	return slurp_file($file);
}

# Restores in one transaction and compares with the cluster.
sub restored
{
	my ($server, $database, $what) = @_;
	my ($stdout, $stderr) = ('', '');
	my $status = $server->psql($database, undef, extra_params => [ '-1', '-X', '-q', '-f', $file ], on_error_stop => 1, stdout => \$stdout,
		stderr => \$stderr);
	is($status, 0, "$what: restored in one transaction") or diag $stderr;
	foreach my $fact (@facts)
	{
		next if $fact =~ /nextval|INSERT/;
		is($server->safe_psql($database, $fact), $c->query('r1', $fact), "$what: $fact");
	}
	foreach my $fact (grep { /nextval|INSERT/ } @facts)
	{
		is($server->safe_psql($database, $fact), 't', "$what: $fact");
	}
	return;
}

foreach my $node ('r1', 's1')
{
	my $script = dump_of($node);
	unlike($script, qr/CREATE SCHEMA tessera/, "$node: the schema is made by CREATE EXTENSION");
	unlike($script, qr/tessera\.|SCHEMA tessera;|SCHEMA tessera /, "$node: nothing of the catalog is in the dump");
}

# A plain server that has the library, but is no cluster.
my $plain = $c->start_node('plain');
$plain->safe_psql('postgres', 'CREATE DATABASE restored');
restored($plain, 'restored', 'a server with the extension');
is($plain->safe_psql('restored', 'SELECT count(*) FROM tessera.tables'), '0', 'and it is in no cluster');

# The way that doc/operations.md names for a server without the extension.
my $script = dump_of('r1', '-N', 'tessera', '-e', 'plpgsql');
unlike($script, qr/tessera(?!-test)/, 'a dump without the extension does not name it');
my $bare = PostgreSQL::Test::Cluster->new('dump_bare');
ServerTemplate::init($bare);
$bare->start;
$bare->safe_psql('postgres', 'CREATE DATABASE restored');
restored($bare, 'restored', 'a server without it');

# Another cluster, through a node that owns nothing.
my $other = TesseraCluster->new('dump_other');
$other->create(shards => 2, routers => 1);
dump_of('r1');
restored($other->node('r1'), 'postgres', 'another cluster');
is($other->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), '0', 'which is consistent afterwards');

done_testing();
