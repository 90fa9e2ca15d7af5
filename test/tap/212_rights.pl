# Whose tables, groups and addresses a user may touch: only owners of both tables put one beside the other; nobody reads a password of an address, in no message,
# no log and no table; code of owners that runs in a node's own processes leaves no settings behind.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('rights');
$c->create(shards => 2);
$c->query('s1', 'CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN; CREATE ROLE ann LOGIN IN ROLE tessera_admin; CREATE ROLE nod LOGIN IN ROLE tessera_internal');
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
		like($c->error($node, as('eve', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 'of_bob')")), qr/42501: must be owner of table of_bob/,
			"$node: nobody puts a table beside another's");
		like($c->error($node, as('eve', "SELECT tessera.shard_table('more_of_bob', 'k', colocate_with => 'of_eve')")), qr/42501: must be owner of table more_of_bob/,
			"$node: nor another's beside the own");
	}
	like($c->error('s1', as('eve', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 4294967295)")), qr/42P01/, 'a table that does not exist is said to be none');
	$c->query('s1', 'GRANT ALL ON of_bob TO eve');
	like($c->error('s1', as('eve', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 'of_bob')")), qr/42501/, 'rights on the rows are not enough');
	$c->query('s2', as('bob', "SELECT tessera.shard_table('more_of_bob', 'k', colocate_with => 'of_bob')"));
	is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.tables WHERE table_name IN ('of_bob'::regclass, 'more_of_bob'::regclass)"), '1', 'who owns both may');
	$c->query('s1', as('ann', "SELECT tessera.shard_table('more_of_eve', 'k', colocate_with => 'of_bob')"));
	is($c->query('s1', "SELECT count(DISTINCT group_id) FROM tessera.tables WHERE table_name IN ('of_bob'::regclass, 'more_of_eve'::regclass)"), '1', 'so may tessera_admin');
}

#
# what everybody may call looks at no other's rows and changes nothing: each new function is to be thought about
#
is($c->query('s1', q{SELECT string_agg(DISTINCT proname::text, ' ' ORDER BY proname::text) FROM pg_proc WHERE pronamespace = 'tessera'::regnamespace
		AND has_function_privilege('eve', oid, 'EXECUTE') AND proname !~ '^bound|^to_bound$|^minkey$|^maxkey$|^key_'}),
	join(' ', qw(check_node currval identity_nextval internal_copy_check internal_ddl_begin internal_decide internal_hello internal_migration_slots
		internal_range_deletions internal_session internal_stat_routing internal_statement internal_tell lastval migration_transitions nextval owned promotion_status range_owner
		require_owned sequence_row setval shard_table this_database)), 'functions that everybody may call');

done_testing();
