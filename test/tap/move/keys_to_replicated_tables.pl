# Foreign keys to replicated tables while ranges and schemas of the referring rows move: each node looks among its own rows, and no row falls between
# the looks of two nodes.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('replicated_moves', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100 });
$c->create(shards => 3, routers => 1);
$c->query('s1', "CREATE TABLE r (id int PRIMARY KEY, name text); SELECT tessera.replicate_table('r')");
$c->query('s1', 'INSERT INTO r SELECT g FROM generate_series(1, 100) g');
$c->query('s1', "CREATE TABLE own (k int PRIMARY KEY, r int REFERENCES r); SELECT tessera.shard_table('own', 'k')");
$c->query('s1', "SELECT tessera.move_range('own', 1000, tessera.maxkey(), 's3')");
$c->query('s1', 'CREATE TABLE late (k int PRIMARY KEY, r int REFERENCES r DEFERRABLE INITIALLY DEFERRED)');
$c->query('s1', "SELECT tessera.shard_table('late', 'k', colocate_with => 'own')");
$c->query('s1', 'CREATE SCHEMA far; CREATE TABLE far.placed (k int PRIMARY KEY, r int REFERENCES public.r)');
$c->query('s1', "SELECT tessera.move_schema('far', 's3')");
$c->query('r1', 'INSERT INTO own SELECT 1000 + g, g FROM generate_series(1, 20) g');
$c->query('r1', 'INSERT INTO late SELECT 1000 + g, g FROM generate_series(21, 40) g');
$c->query('r1', 'INSERT INTO far.placed SELECT g, g FROM generate_series(41, 60) g');

sub dangling
{
	my ($name) = @_;
	ok($c->wait_for('r1', "SELECT count(*) FROM $_ t WHERE NOT EXISTS (SELECT FROM r WHERE r.id = t.r)", '0', 30),
		"$name: no row of $_ refers to one that is gone") foreach 'own', 'late', 'far.placed';
	return;
}

# Nodes are told in their order: s2 gets the rows before it owns what refers to them, s3 afterwards.
foreach my $case ([ 'own', 5 ], [ 'late', 25 ], [ 'far.placed', 45 ])
{
	my ($table, $id) = @$case;
	foreach my $statement ("DELETE FROM r WHERE id = $id", "UPDATE r SET id = id + 1000 WHERE id = $id")
	{
		$c->pause_at('s2', 'replicated_applied');
		my $run = $c->background('r1', $statement);
		$c->is_paused_at('s2', 'replicated_applied');
		$c->query('s1', $table eq 'far.placed' ? "SELECT tessera.move_schema('far', 's2')" :
			"SELECT tessera.move_range('own', 1000, tessera.maxkey(), 's2')");
		$c->go_on('s2');
		like($c->ended($run), qr/40001|23503/, "$statement while rows of $table move");
		dangling("$statement, $table");
		$c->query('s1', $table eq 'far.placed' ? "SELECT tessera.move_schema('far', 's3')" :
			"SELECT tessera.move_range('own', 1000, tessera.maxkey(), 's3')");
		like($c->error('r1', $statement), qr/23503/, 'again, when they are at rest');
	}
}

# A move waits for a transaction that has looked, which may look again.
my $session = $c->session('r1', on_error_stop => 0);
$session->query_safe('BEGIN; DELETE FROM r WHERE id = 99');
my $move = $c->background('s1', "SELECT tessera.move_range('own', 1000, tessera.maxkey(), 's2')");
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.migrations WHERE waiting_for IS NOT NULL', '1'), 'a move waits for who has looked');
$session->query_safe('DELETE FROM r WHERE id = 97; COMMIT');
unlike($c->ended($move), qr/ERROR/, 'then it goes on');
is($c->query('r1', 'SELECT count(*) FROM r WHERE id IN (97, 99)'), '0', 'both rows are gone');
dangling('a move that waited');
$session->quit;
is($c->query('r1', 'DELETE FROM r WHERE id = 98 RETURNING id'), '98', 'rows that nobody refers to go');
done_testing();
