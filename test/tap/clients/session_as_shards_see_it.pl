# What a trigger or function that runs on a shard sees of the client's session: its application_name, also in pg_stat_activity; the node that opened
# the connection shows in tessera.internal_sessions.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('session');
$c->start_nodes('s1', 's2', 'r1');
$c->create(shards => 2, routers => 1);
$c->query('s1', <<'SQL');
CREATE TABLE seen (id int PRIMARY KEY, name text, active text);
CREATE FUNCTION note_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.name := current_setting('application_name');
  NEW.active := (SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid());
  RETURN NEW;
END $$;
CREATE TRIGGER note BEFORE INSERT ON seen FOR EACH ROW EXECUTE FUNCTION note_name();
SQL
$c->query('s1', q{SELECT tessera.shard_table('seen', 'id', 'hash', chunks => 8)});
$c->fetch_routing;
foreach my $name ($c->names)
{
	ok($c->wait_for($name, 'SELECT count(DISTINCT shard) FROM tessera.chunks', '2'), "$name knows the chunks");
}

foreach my $router ('r1', 's1')
{
	my $session = $c->session($router);
	$session->query_safe("SET application_name = 'the client'");
	$session->query_safe('TRUNCATE seen');
	$session->query_safe('INSERT INTO seen SELECT generate_series(1, 20)');
	is($session->query_safe('SELECT DISTINCT name, active FROM seen'), 'the client|the client',
		"$router: a trigger sees the client's name wherever it runs");
	$session->query_safe("BEGIN; SET LOCAL application_name = 'another'; INSERT INTO seen SELECT generate_series(21, 40); COMMIT");
	is($session->query_safe('SELECT DISTINCT name, active FROM seen WHERE id > 20'), 'another|another', 'and what SET LOCAL makes of it');
	$session->query_safe("RESET application_name; SET application_name = ''; INSERT INTO seen SELECT generate_series(41, 60)");
	is($session->query_safe('SELECT DISTINCT name, active FROM seen WHERE id > 40'), '|', 'and none');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	is($c->query('s2', "SELECT node, count(*) FROM tessera.internal_sessions WHERE client_pid = $pid GROUP BY node"), "$router|1",
		'the session there is known by its node and process');
	is($c->query('s2', "SELECT count(*) FROM tessera.internal_sessions i JOIN pg_stat_activity a USING (pid) WHERE i.client_pid = $pid AND " .
		"a.backend_type = 'client backend'"), '1',
		'and joins with pg_stat_activity');
	$session->quit;
	ok($c->wait_for('s2', "SELECT count(*) FROM tessera.internal_sessions WHERE client_pid = $pid", '0'), 'until it ends');
}

done_testing();
