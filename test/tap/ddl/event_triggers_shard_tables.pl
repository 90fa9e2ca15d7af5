# A table is sharded or replicated by a function of an event trigger as soon as it is made. The statement that made it goes to the other nodes before,
# as whoever ran it and by the settings that it began with, not by those of the event trigger's function.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('event_trigger_tables');
$c->create(shards => 2, routers => 1);

$c->query('r1', 'CREATE SCHEMA hidden; CREATE SCHEMA app; CREATE ROLE maker; GRANT ALL ON SCHEMA app, public TO maker; CREATE TABLE log (name text)');
$c->query('r1', q{CREATE FUNCTION spread() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = hidden, pg_catalog SET DateStyle = 'ISO, DMY' AS $$
	DECLARE
		made record;
	BEGIN
		FOR made IN SELECT objid::regclass AS id FROM pg_event_trigger_ddl_commands() WHERE command_tag = 'CREATE TABLE' AND object_type = 'table'
		LOOP
			IF made.id::text ~ 'kept' THEN
				PERFORM tessera.replicate_table(made.id);
			ELSIF made.id::text ~ 'undone' THEN
				BEGIN
					PERFORM tessera.shard_table(made.id, 'id');
					RAISE 'never mind';
				EXCEPTION WHEN raise_exception THEN
					NULL;
				END;
			ELSIF made.id::text ~ 'noted' THEN
				CREATE TABLE IF NOT EXISTS public.seen (name text);
			ELSIF made.id::text !~ 'seen' THEN
				PERFORM tessera.shard_table(made.id, 'id', 'hash', chunks => 4);
			END IF;
		END LOOP;
	END $$;
	CREATE EVENT TRIGGER spread ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION spread()});

sub kinds
{
	my ($table) = @_;
	return join(' ', map { $c->query($_, "SELECT kind || '/' || chunks FROM tessera.tables WHERE table_name = to_regclass('$table')") } $c->names);
}

$c->query('r1', 'SET search_path = app; CREATE TABLE made (id int PRIMARY KEY, v serial)');
is(kinds('app.made'), 'sharded/4 sharded/4 sharded/4', 'a table is sharded by an event trigger, in the schema that its statement meant');
$c->query('r1', 'INSERT INTO app.made SELECT generate_series(1, 100)');
is($c->query('s2', 'SELECT count(*) FROM app.made'), '100', 'and takes rows');
$c->query('r1', 'CREATE TABLE kept (id int PRIMARY KEY)');
is(kinds('kept'), 'replicated/0 replicated/0 replicated/0', 'one is replicated');
$c->query('s2', 'CREATE TABLE undone (id int PRIMARY KEY)');
is(kinds('undone'), 'placed/0 placed/0 placed/0', 'sharding that is rolled back in the function leaves a placed table');
$c->query('s2', 'INSERT INTO undone VALUES (1)');
is($c->query('r1', 'SELECT count(*) FROM undone'), '1', 'which takes rows');
$c->query('r1', q{SET search_path = app; SET DateStyle = 'ISO, MDY'; SET ROLE maker;
	CREATE TABLE noted (id int PRIMARY KEY, d date DEFAULT '01/02/2020')});
foreach my $node ($c->names)
{
	is($c->query($node, "SELECT relowner::regrole || ' ' || pg_get_expr(adbin, adrelid) FROM pg_class c JOIN pg_attrdef ON adrelid = c.oid
		WHERE c.oid = to_regclass('app.noted')"),
		"maker '2020-01-02'::date", "$node: owner, schema and constants are those of the statement, not the function's");
	is($c->query($node, "SELECT relowner::regrole FROM pg_class WHERE oid = to_regclass('public.seen')"), 'postgres',
		"$node: what the function makes is its owner's");
}
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');

done_testing();
