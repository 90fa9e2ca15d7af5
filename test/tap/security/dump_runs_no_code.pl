# COPY of a table, as pg_dump does it, runs no code of the table's owner: not by the rights of who dumps, and not at all, as on one server. Core's
# planner would run constant calls of index expressions, predicates and statistics, on the node that is asked and on the shards.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('dumps');
$c->create(shards => 2, routers => 1);
$c->query('s1', 'CREATE ROLE eve; GRANT CREATE ON SCHEMA public TO eve');
$c->query('s1', "SET ROLE eve; $_") foreach (
	q{CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RAISE LOG ''code of eve as %'', current_user; RETURN $1; END'},
	"CREATE TYPE mood AS ENUM ('ok')",
	map { ("CREATE TABLE $_ (k int PRIMARY KEY, v int, CHECK (v > f(0) - 1000), g int GENERATED ALWAYS AS (v * 2) STORED, e mood DEFAULT 'ok')",
		"CREATE INDEX ON $_ ((v + f(1))) WHERE v > f(2)", "CREATE STATISTICS of_$_ ON (v + f(3)), (v - f(4)) FROM $_") } qw(t placed));
$c->query('s1', "SET ROLE eve; SELECT tessera.shard_table('t', 'k', 'range')");
$c->query('s1', "SELECT tessera.move_range('t', 51, tessera.maxkey(), 's2')");
$c->query('r1', "INSERT INTO $_ (k, v) SELECT g, g FROM generate_series(1, 100) g; ANALYZE $_") foreach qw(t placed);

# In new sessions, which have looked at no index before.
my %at = map { $_ => -s $c->node($_)->logfile } $c->names;
my @rows;
foreach my $node ($c->names)
{
	push @rows, map { join "\n", sort { (split /\t/, $a)[0] <=> (split /\t/, $b)[0] } split /\n/, $c->query($node, "COPY $_ TO STDOUT") }
	  't', 'placed', 't (v, k)', 'placed (v, k)';
	command_ok([ 'pg_dump', '--data-only', '-t', 't', '-t', 'placed', '-f', '/dev/null', '-d', $c->conninfo($node) ], "pg_dump on $node");
}
my ($all, $two) = map { my $more = $_; join("\n", map { "$_\t$_$more" } 1 .. 100) } "\tok", '';
is(scalar(grep { $rows[$_] ne ($_ % 4 < 2 ? $all : $two) } 0 .. $#rows), 0, 'all rows, on every node');
foreach my $node ($c->names)
{
	unlike(substr(slurp_file($c->node($node)->logfile), $at{$node}), qr/code of eve/, "no code of eve on $node");
}
# What is seen by that: a query runs it.
$c->query('s1', 'SELECT count(*) FROM t WHERE v > 3');
like(substr(slurp_file($c->node('s1')->logfile), $at{s1}), qr/code of eve/, 'a query of the table does');

# Only rows that a shard owns, while others wait for their deletion there; only what the user may read.
$c->query('s1', 'CREATE ROLE reader; GRANT SELECT (k) ON t TO reader');
is(scalar(split /\n/, $c->query('r1', 'SET ROLE reader; COPY t (k) TO STDOUT')), 100, 'a column that one may read');
like($c->error('r1', 'SET ROLE reader; COPY t TO STDOUT'), qr/42501/, 'and no others');

done_testing();
