# What a plain user can and cannot do: session user and settings that policies look at, functions of the extension that are not for everybody, and a
# node that is made to forget its cluster.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('trust');
$c->create(shards => 2, routers => 1);
$c->query('s1', 'CREATE ROLE bob LOGIN');
$c->query('s1', 'GRANT CREATE ON SCHEMA public TO bob');

# Runs as a client that has logged in as bob.
sub as_bob
{
	my ($sql) = @_;
	return "SET SESSION AUTHORIZATION bob; $sql";
}

sub owner
{
	return TesseraCluster::user();
}

# A sharded table with keys 1 to 4 on s1 and from 100 on s2.
sub sharded
{
	my ($table, $columns) = @_;
	$c->query('s1', "CREATE TABLE $table (k int PRIMARY KEY, $columns)");
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.move_range('$table', 100, tessera.maxkey(), 's2')");
	$c->query('s1', "GRANT ALL ON $table TO bob");
	return;
}

#
# functions that everybody may call because plans do take no value for what it is not
#
{
	sharded('typed', 'v int');
	$c->query('s1', 'CREATE TABLE texts (k text COLLATE "C" PRIMARY KEY); SELECT tessera.shard_table(\'texts\', \'k\')');
	my $group = "(SELECT group_id FROM tessera.tables WHERE table_name = '%s'::regclass)";
	like($c->error('s1', as_bob(sprintf "SELECT tessera.require_owned($group, 1)", 'typed')), qr/42501/, 'a gate is for plans alone to pass');
	foreach my $function ('owned')
	{
		like($c->error('s1', as_bob(sprintf "SELECT tessera.$function($group, 1)", 'texts')), qr/22023/, "$function takes no number for a text");
		like($c->error('s1', as_bob(sprintf "SELECT tessera.$function($group, 1, 2)", 'typed')), qr/22023/, "$function takes no values too many");
		like($c->error('s1', as_bob(sprintf "SELECT tessera.$function($group, VARIADIC ARRAY[1])", 'typed')), qr/22023/, "$function takes no array");
		is($c->query('s1', as_bob(sprintf "SELECT tessera.$function($group, 1)", 'typed')), 't', "$function takes the key");
	}
}

#
# session_user on a shard is the client's, not the role of the connection between nodes
#
{
	sharded('guarded', 'v int');
	$c->query('s1', 'INSERT INTO guarded VALUES (1, 0), (101, 0)');
	$c->query('s1', 'ALTER TABLE guarded ENABLE ROW LEVEL SECURITY');
	$c->query('s1', sprintf('CREATE POLICY only_owner ON guarded USING (session_user = %s)', TesseraCluster::quote(owner())));
	foreach my $node ($c->names)
	{
		is($c->query($node, as_bob("SELECT count(*) FROM guarded WHERE k = $_")), '0', "a policy by session_user hides row $_ on $node") foreach 1,
			101;
		is($c->query($node, as_bob('WITH u AS (UPDATE guarded SET v = v + 1 WHERE k = 101 RETURNING k) SELECT count(*) FROM u')), '0',
			"and protects it on $node");
	}
	$c->query('s1', "ALTER POLICY only_owner ON guarded USING (session_user = 'bob')");
	foreach my $node ($c->names)
	{
		is($c->query($node, as_bob('SELECT count(*) FROM guarded')), '2', "a policy by session_user shows its rows on $node");
		is($c->query($node, as_bob('SET force_parallel_mode = on; SELECT count(*) FROM guarded')), '2', "also to parallel workers, on $node");
	}

	sharded('audited', 'who text, login text');
	$c->query('s1', 'CREATE FUNCTION note_user() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.who := current_user; NEW.login := session_user; ' .
		'RETURN NEW; END $$');
	$c->query('s1', 'CREATE TRIGGER note_user BEFORE INSERT ON audited FOR EACH ROW EXECUTE FUNCTION note_user()');
	$c->query('s1', 'CREATE ROLE carol');
	$c->query('s1', 'GRANT carol TO bob');
	$c->query('s1', 'GRANT ALL ON audited TO carol');
	my $key = 1;
	foreach my $node ($c->names)
	{
		my $session = $c->session($node);
		my $insert = sub { my ($k) = @_; return $session->query_safe("INSERT INTO audited (k) VALUES ($k) RETURNING who || ' ' || login") };
		my ($a, $b) = ($key++, 100 + $key);
		my @seen;
		push @seen, $insert->($a), $insert->($b);
		$session->query_safe('SET SESSION AUTHORIZATION bob');
		$session->query_safe('SET ROLE carol');
		$session->query_safe('BEGIN');
		push @seen, $insert->(1000 + $a), $insert->(-$a);
		$session->query_safe('SAVEPOINT a');
		$session->query_safe('RESET ROLE');
		push @seen, $insert->(2000 + $a);
		$session->query_safe('ROLLBACK TO a');
		push @seen, $insert->(3000 + $a);
		$session->query_safe('ROLLBACK');
		$session->query_safe('RESET SESSION AUTHORIZATION');
		push @seen, $insert->(4000 + $a);
		my $owner = owner();
		is(join(', ', @seen), join(', ', ("$owner $owner") x 2, ('carol bob') x 2, 'bob bob', 'carol bob', "$owner $owner"),
			"current_user and session_user in a trigger, from $node");
		$session->quit;
	}
}

#
# a setting that the session takes back is taken back on the shards, however long its name
#
{
	my $name = 'app.' . 'tenant_' x 12;
	sharded('tenants', "tenant text");
	$c->query('s1', "CREATE FUNCTION note_tenant() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN NEW.tenant := " .
		"coalesce(current_setting('$name', true), ''); RETURN NEW; END \$\$");
	$c->query('s1', 'CREATE TRIGGER note_tenant BEFORE INSERT ON tenants FOR EACH ROW EXECUTE FUNCTION note_tenant()');
	my $session = $c->session('r1');
	$session->query_safe("SELECT set_config('$name', 'a', false)");
	is($session->query_safe('INSERT INTO tenants VALUES (101) RETURNING tenant'), 'a', 'a setting with a long name holds on a shard');
	$session->query_safe("SELECT set_config('$name', NULL, false)");
	is($session->query_safe('INSERT INTO tenants VALUES (102) RETURNING tenant'), '', 'and no longer than here');
	$session->quit;
}

#
# trigger functions of the catalog read a row as the catalog's: on another table they would read anything
#
foreach my $function ('invalidate_plans', 'note_catalog_change')
{
	like($c->error('s2', as_bob("CREATE TEMP TABLE x (a int, b int, c int); CREATE TRIGGER t AFTER INSERT ON x FOR EACH ROW EXECUTE FUNCTION " .
		"tessera.$function()")),
		qr/42501/, "$function() is not for everybody");
}
like($c->error('s2', 'CREATE TEMP TABLE x (a int); CREATE TRIGGER t AFTER INSERT ON x FOR EACH ROW EXECUTE FUNCTION tessera.invalidate_plans(); ' .
	'INSERT INTO x VALUES (1)'),
	qr/39P01/, 'and not for other tables');

#
# a node cannot be made to forget its cluster by mistake: it would show the rows that lie on it as all there are
#
foreach my $node ($c->names)
{
	like($c->error($node, 'DROP EXTENSION tessera'), qr/2BP01/, "DROP EXTENSION is refused on $node");
}

done_testing();
