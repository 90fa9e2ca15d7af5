# Whose tables, groups and addresses a user may touch: only owners of both tables put one beside the other; nobody reads a password of an address, in
# no message, no log and no table; code of owners that runs in a node's own processes leaves no settings behind.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('rights');
$c->create(shards => 2);
$c->query('s1', 'CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN; CREATE ROLE ann LOGIN IN ROLE tessera_admin; CREATE ROLE nod LOGIN IN ROLE ' .
	'tessera_internal');
$c->query('s1', 'GRANT CREATE ON SCHEMA public TO bob, eve, ann');

sub as
{
	my ($user, $sql) = @_;
	return "SET SESSION AUTHORIZATION $user; $sql";
}

#
# who joins a group can stand in the way of its moves
#
{
	foreach my $user ('bob', 'eve')
	{
		$c->query('s1', as($user, "CREATE TABLE of_$user (k int PRIMARY KEY, v int); CREATE TABLE more_of_$user (k int PRIMARY KEY, v int)"));
		$c->query('s1', as($user, "SELECT tessera.shard_table('of_$user', 'k')"));
	}
	foreach my $node ('s1', 's2')
	{
		like($c->error($node, as('eve', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 'of_bob')")),
			qr/42501: must be owner of table of_bob/,
			"$node: nobody puts a table beside another's");
		like($c->error($node, as('eve', "SELECT tessera.shard_table('more_of_bob', 'k', colocate_with => 'of_eve')")),
			qr/42501: must be owner of table more_of_bob/,
			"$node: nor another's beside the own");
	}
	like($c->error('s1', as('eve', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 4294967295)")), qr/42P01/,
		'a table that does not exist is said to be none');
	$c->query('s1', 'GRANT ALL ON of_bob TO eve');
	like($c->error('s1', as('eve', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 'of_bob')")), qr/42501/,
		'rights on the rows are not enough');
	$c->query('s2', as('bob', "SELECT tessera.shard_table('more_of_bob', 'k', colocate_with => 'of_bob')"));
	is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.tables WHERE table_name IN ('of_bob'::regclass, 'more_of_bob'::regclass)"), '1',
		'who owns both may');
	$c->query('s1', as('ann', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 'of_bob')"));
	is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.tables WHERE table_name IN ('of_bob'::regclass, 'more_of_eve'::regclass)"), '1',
		'so may tessera_admin');
}

#
# code of owners that runs in a recipient's worker leaves no settings behind, nor do owners meet each other's
#
{
	$c->query('s1', q{CREATE FUNCTION meddle(v int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
		IF (SELECT backend_type FROM pg_stat_activity WHERE pid = pg_backend_pid()) = 'client backend' THEN RETURN true; END IF;
		PERFORM set_config('default_transaction_read_only', 'on', false); PERFORM set_config('lock_timeout', '1ms', false);
		PERFORM set_config('statement_timeout', '1ms', false);
		PERFORM set_config('datestyle', 'SQL, DMY', false); PERFORM set_config('search_path', 'nosuch', false); RETURN true; END $$});
	$c->query('s1', as('bob', 'CREATE TABLE settled (k int PRIMARY KEY, v int, CHECK (public.meddle(v)), g int GENERATED ALWAYS AS (v + 1) STORED)'));
	$c->query('s1', as('bob', "SELECT tessera.shard_table('settled', 'k')"));
	$c->query('s1', 'INSERT INTO settled SELECT i, i FROM generate_series(1, 3000) i');
	my $moved = ($c->psql('s1', "SELECT tessera.move_range('settled', 1, 2000, 's2', verify => true)"))[2];
	unlike($moved, qr/ERROR/, 'a range whose CHECK sets session settings moves');
	is($c->query('s2', 'SELECT count(*), sum(v) FROM settled'), '3000|4501500', 'with its rows');
	unlike(($c->psql('s2', "SELECT tessera.move_range('settled', 1, 2000, 's1')"))[2], qr/ERROR/, 'and moves back');
}

#
# passwords of addresses: in no message, in no log, in no table that the role between nodes reads
#
{
	my $secret = 'very-secret-8472';
	my $address = "host=127.0.0.1 port=1 dbname=x user=y password=$secret connect_timeout=2";
	my @attempts = (
		"SELECT tessera.add_shard('s9', '$address')",
		"SELECT tessera.add_router('s9', '$address')",
		"SELECT tessera.update_node('s2', '$address')",
		"SELECT tessera.update_node('s9', '$address')",
		"SELECT tessera.create_cluster('d', '$address', 's9')",
		"SELECT tessera.add_shard('s9', 'host=127.0.0.1 password=two $secret')",
		"SELECT tessera.add_shard('s9', 'postgresql://y:$secret\@127.0.0.1:1/x?connect_timeout=2')",
		"SELECT tessera.add_shard('s9', 'host=127.0.0.1 port=1 password = ''$secret'' connect_timeout=2')",
		"DO \$\$ BEGIN PERFORM tessera.add_shard('s9', '$address'); END \$\$",
		"DO \$\$ BEGIN EXECUTE 'SELECT tessera.update_node(''s2'', ''$address'')'; END \$\$");
	foreach my $node ('s1', 's2')
	{
		foreach my $sql (@attempts)
		{
			my ($status, $out, $err) = $c->psql($node, $sql);
			isnt($status, 0, "$node: fails");
			unlike($err =~ s/^(LINE|QUERY|STATEMENT).*$//mgr, qr/$secret/, "$node: the error does not say the password: " . substr($sql, 0, 60));
		}
	}
	foreach my $node ('s1', 's2')
	{
		my $log = slurp_file($c->node($node)->logfile);
		my @lines = grep { /$secret/ } split /\n/, $log;
		# A DO block's own text is the statement of the client, whom nobody keeps from writing passwords there.
		is(join("\n", grep { !/STATEMENT:  DO/ } @lines), '', "$node: nor does the log");
	}
	foreach my $user ('nod', 'eve', 'bob')
	{
		like($c->error('s1', as($user, 'SELECT conninfo FROM tessera.node')), qr/42501/, "$user does not read addresses");
		like($c->error('s1', as($user, 'SELECT n FROM tessera.node n')), qr/42501/, "$user does not read whole rows");
		like($c->error('s1', as($user, 'SELECT config_conninfo FROM tessera.identity')), qr/42501/, "$user does not read the config node's");
		like($c->error('s1', as($user, "SELECT tessera.node_conninfo('s1')")), qr/42501/, "$user does not ask for them");
	}
	is($c->query('s1', as('nod', 'SELECT count(*) FROM (SELECT name, server_start FROM tessera.node) n')), '2',
		'the rest is there for the role between nodes');
}

#
# what CREATE TABLE ... AS says of ON COMMIT
#
foreach my $form ('CREATE TABLE oc ON COMMIT DELETE ROWS AS SELECT 1 AS a', 'CREATE TABLE oc ON COMMIT DROP AS SELECT 1 AS a',
	'CREATE UNLOGGED TABLE oc ON COMMIT DELETE ROWS AS SELECT 1 AS a',
	'CREATE TABLE oc ON COMMIT PRESERVE ROWS AS SELECT 1 AS a', 'CREATE TABLE oc (a) ON COMMIT DROP AS VALUES (1) WITH NO DATA',
	'CREATE TABLE oc (a int) ON COMMIT DROP')
{
	my ($expected) = ($c->plain->psql('postgres', $form, extra_params => [ '-v', 'VERBOSITY=verbose' ]))[2] =~ /ERROR:  (.*)/;
	foreach my $node ('s1', 's2')
	{
		my ($got) = ($c->psql($node, $form))[2] =~ /ERROR:  (.*)/;
		is($got, $expected, "$node: $form");
	}
}
is($c->query('s1', 'CREATE TEMP TABLE oc ON COMMIT DROP AS SELECT 1 AS a; CREATE TABLE oc2 AS SELECT 2 AS a; SELECT a FROM oc2'), '2',
	'of temporary tables all is well');

#
# the README's way, with a role between nodes that is no superuser; what stood in the database before
#
{
	my $old = $c->start_node('old', extension => 1);
	$c->start_node('new');
	my $secret = 'word';
	$c->query('old', q{CREATE ROLE owner_1 LOGIN; CREATE SCHEMA shop AUTHORIZATION owner_1; SET ROLE owner_1;
		CREATE TABLE shop.orders (tenant_id int, id int, PRIMARY KEY (tenant_id, id));
		INSERT INTO shop.orders SELECT i, i FROM generate_series(1, 20) i; CREATE MATERIALIZED VIEW shop.totals AS SELECT count(*) AS n
		FROM shop.orders; CREATE UNIQUE INDEX ON shop.totals (n)});
	$c->query('old', 'CREATE ROLE cluster LOGIN IN ROLE tessera_internal');
	$c->query('new', 'CREATE ROLE owner_1 LOGIN; CREATE ROLE cluster LOGIN SUPERUSER');
	my ($at_old, $at_new) = map { my $info = $c->conninfo($_); $info =~ s/user=\S+/user=cluster/; $info } 'old', 'new';
	like($c->error('old', "SELECT tessera.create_cluster('shop', '$at_old')"), qr/55000.*tables/, 'a database with a view that has rows is a shard');
	$c->query('old', "SELECT tessera.create_cluster('shop', '$at_old', shard => 's1')");
	$c->query('old', "SELECT tessera.shard_table('shop.orders', 'tenant_id')");
	my $error = $c->error('old', "SELECT tessera.add_shard('s2', '$at_new')");
	like($error, qr/42501: node "s2" cannot join: role "cluster" of this node's conninfo cannot read the schema/,
		'what the role lacks is said before');
	like($error, qr/table shop\.orders.*GRANT pg_read_all_data TO cluster/s, 'and what helps');
	$c->query('old', 'GRANT pg_read_all_data TO cluster');
	$c->query('old', 'CREATE EXTENSION postgres_fdw; CREATE SERVER away FOREIGN DATA WRAPPER postgres_fdw; CREATE USER MAPPING FOR owner_1 SERVER ' .
		'away OPTIONS (password \'x\')')
	  if $c->query('old', "SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'");
	like($c->error('old', "SELECT tessera.add_shard('s2', '$at_new')"), qr/42501.*options of the user mapping.*SUPERUSER/s,
		'nor are options left out without a word');
	$c->query('old', 'DROP USER MAPPING FOR owner_1 SERVER away');
	$c->query('new', 'ALTER ROLE cluster NOSUPERUSER');
	like($c->error('old', "SELECT tessera.add_shard('s2', '$at_new')"), qr/42501.*ALTER ROLE cluster SUPERUSER/s,
		'the newcomer wants a superuser, and says so');
	$c->query('new', 'ALTER ROLE cluster SUPERUSER');
	$c->query('old', "SELECT tessera.add_shard('s2', '$at_new')");
	$c->query('old', 'ALTER ROLE cluster NOSUPERUSER; GRANT tessera_internal TO cluster; REVOKE pg_read_all_data FROM cluster');
	$c->query('old', "SELECT tessera.move_range('shop.orders', 10, 15, 's2')");
	is($c->query('new', 'SELECT count(*) FROM shop.orders'), '20', 'a range is moved, and all is seen');
	$c->query('new', 'INSERT INTO shop.orders VALUES (12, 99), (3, 99)');
	foreach my $node ('old', 'new')
	{
		is($c->query($node, 'SELECT n FROM shop.totals'), '20', "$node: the materialized view from before is the cluster's");
	}
	$c->query('new', 'REFRESH MATERIALIZED VIEW shop.totals');
	foreach my $node ('old', 'new')
	{
		is($c->query($node, 'SELECT n FROM shop.totals'), '22', "$node: refreshed through either node");
	}
	is($c->query('old', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');
}

done_testing();
