# Triggers for each statement of an INSERT: once for the statement, as on one server; where they fire on shards, once on each shard, however many rows
# it has there, and they see all of these as transition rows.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('statement_triggers');
$c->create(shards => 2, routers => 1);

my $tables = q{
	CREATE TABLE fired (id int, what text, n bigint, total bigint);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO fired SELECT coalesce(min(id), 0), TG_NAME, count(*), sum(id) FROM made;
		RETURN NULL;
	END $$;
	CREATE FUNCTION begun() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO fired VALUES (0, TG_NAME, NULL, NULL);
		RETURN NULL;
	END $$;
	CREATE TABLE t (id int PRIMARY KEY, v text, n int DEFAULT 7);
	CREATE TRIGGER after_insert AFTER INSERT ON t REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note();
	CREATE TRIGGER after_update AFTER UPDATE ON t REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note();
	CREATE TRIGGER before_insert BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION begun()};
$c->query('r1', $tables);
$c->plain_query($tables);

# The statement's rows are the same, and the triggers fire as on one server.
sub alike
{
	my ($sql, $what) = @_;
	my $fired = 'SELECT what, n, total FROM fired ORDER BY 1, 2, 3; DELETE FROM fired';
	is($c->query('r1', $sql), $c->plain_query($sql), "$what: what it returns");
	is($c->query('r1', $fired), $c->plain_query($fired), "$what: what fires");
	my ($same, $detail) = $c->same_everywhere('SELECT id, v, n FROM t');
	return ok($same, "$what: the rows") || diag $detail;
}

my $many = join(', ', map { "($_, 'v$_')" } 100 .. 340);
alike("INSERT INTO t VALUES (1, 'a')", 'one row');
alike("INSERT INTO t VALUES (2, 'a'), (3, NULL) RETURNING *", 'two rows');
alike("INSERT INTO t (id) VALUES (4), (5), (6), (7), (8), (9), (10), (11), (12), (13)", 'more than the smallest text has room for, defaults');
alike("INSERT INTO t (id, v) VALUES $many", '241 rows');
my $update = 'ON CONFLICT (id) DO UPDATE SET v = t.v || excluded.v';
alike("INSERT INTO t VALUES (1, 'b'), (2, 'b'), (20, 'b') $update WHERE false", 'ON CONFLICT that does nothing');
alike("INSERT INTO t VALUES (1, 'b'), (2, 'b'), (21, 'b') $update RETURNING id, v", 'ON CONFLICT DO UPDATE');
alike("INSERT INTO t SELECT g, g::text FROM generate_series(1000, 1800) g ON CONFLICT DO NOTHING", 'rows of a query');

# Rows on two shards: the triggers fire once, on the router; where their function says so, on each shard, with the rows of that, and what it writes
# must lie there.
$c->query('r1', 'DELETE FROM t; DELETE FROM fired; DROP TRIGGER before_insert ON t; ALTER TABLE fired ALTER id SET NOT NULL, REPLICA IDENTITY FULL');
$c->query('r1', "SELECT tessera.shard_table('t', 'id'); SELECT tessera.shard_table('fired', 'id', colocate_with => 't', create_index => true)");
$c->query('r1', "SELECT tessera.move_range('t', 1000, tessera.maxkey(), 's2')");
my %on = (router => [ 'after_insert|5|4009', 'after_insert|1991|2000955' ],
	shard => [ "after_insert|3|6\nafter_insert|2|4003", "after_insert|990|499455\nafter_insert|1001|1501500" ]);
foreach my $place ('router', 'shard')
{
	$c->query('r1', "DELETE FROM t; DELETE FROM fired; ALTER FUNCTION note() SET tessera.trigger_place = '$place'");
	$c->query('r1', "INSERT INTO t VALUES (1, 'a'), (2, 'a'), (2001, 'a'), (3, 'a'), (2002, 'a')");
	is($c->query('r1', 'SELECT what, n, total FROM fired ORDER BY id'), $on{$place}[0], "rows on two shards, triggers on the $place");
	$c->query('r1', 'DELETE FROM fired');
	$c->query('r1', "INSERT INTO t SELECT g FROM generate_series(10, 2000) g");
	is($c->query('r1', 'SELECT what, n, total FROM fired ORDER BY id'), $on{$place}[1], "rows of a query, triggers on the $place");
}

done_testing();
