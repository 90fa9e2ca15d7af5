
# Statements about the database (its privileges, owner, settings, comment) reach every node's database, whatever its name; a node that joins later
# gets them too. What belongs to one node, publications and large objects, says so.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('objects');
$c->start_nodes('s1', 's2');
$c->query('s2', 'CREATE DATABASE other_name');
$c->query('s1', 'CREATE EXTENSION tessera');
$c->query('s1', sprintf('SELECT tessera.create_cluster(%s, %s, shard => %s)', map { TesseraCluster::quote($_) } 'c', $c->conninfo('s1'), 's1'));
my $s2 = $c->conninfo('s2', 'other_name');
$c->query('s1', sprintf("SELECT tessera.add_shard('s2', %s)", TesseraCluster::quote($s2)));

# A query on the node itself, in its own database.
sub on
{
	my ($node, $sql) = @_;
	return $c->query($node, $sql, dbname => $node eq 's2' ? 'other_name' : 'postgres');
}

sub same
{
	my ($sql, $expected, $what) = @_;
	is(on($_, $sql), $expected, "$what: $_") foreach $c->names();
	return;
}

my $settings = q{SELECT coalesce(string_agg(coalesce(r.rolname, '') || ':' || e, ';' ORDER BY r.rolname NULLS FIRST, o), '')
	FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole,
	unnest(s.setconfig) WITH ORDINALITY u (e, o) WHERE d.datname = current_database() AND e !~ '^session_preload'};
my $library = q{SELECT e FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) e
	WHERE d.datname = current_database() AND setrole = 0 AND e ~ '^session_preload'};
my $rights = q{SELECT has_database_privilege('alice', current_database(), 'CREATE') || ' ' || has_database_privilege('bob', current_database(), } .
	q{'CONNECT')};
my $owner = 'SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()';

on('s1', 'CREATE ROLE alice LOGIN CREATEDB; CREATE ROLE bob LOGIN; CREATE SCHEMA "odd Name"');
on('s1', 'GRANT CREATE ON DATABASE postgres TO alice WITH GRANT OPTION; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC');
same($rights, 'true false', 'GRANT and REVOKE');
on('s2', 'GRANT CONNECT ON DATABASE other_name TO bob');
same($rights, 'true true', 'GRANT from the other node');
on('s1', q{ALTER DATABASE postgres SET search_path = "odd Name", public; ALTER DATABASE postgres SET work_mem = '5MB'});
on('s2', q{ALTER ROLE bob IN DATABASE other_name SET statement_timeout = '7s'});
same($settings, 'search_path="odd Name", public;work_mem=5MB;bob:statement_timeout=7s' =~ s/^/:/r =~ s/;work/;:work/r, 'settings');
on('s1', q{COMMENT ON DATABASE postgres IS 'the shop'});
same(q{SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = current_database()}, 'the shop', 'COMMENT');
on('s1', 'BEGIN; GRANT TEMPORARY ON DATABASE postgres TO bob; ALTER DATABASE postgres SET jit = off; ROLLBACK');
same($settings, ':search_path="odd Name", public;:work_mem=5MB;bob:statement_timeout=7s', 'rolled back everywhere');
is($c->node('s2')->safe_psql('postgres', 'SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE datname = ' .
	'current_database()'),
	'0', 'another database of the same server is left alone');

# A database that is no node is this server's own business.
on('s1', 'CREATE DATABASE unrelated');
on('s1', 'GRANT CREATE ON DATABASE unrelated TO bob');
is(on('s1', q{SELECT has_database_privilege('bob', 'unrelated', 'CREATE')}), 't', 'a database that is no node');
like(on('s1', 'GRANT CREATE ON DATABASE unrelated, postgres TO bob') .
	on('s2', q{SELECT has_database_privilege('bob', current_database(), 'CREATE')}), qr/t$/,
	'both in one statement');

# Rights: as on each node by itself, all or nothing.
my ($status, undef, $error) = $c->psql('s1', 'SET ROLE bob; GRANT CONNECT ON DATABASE postgres TO alice');
like($error, qr/WARNING:  01007: no privileges were granted/, 'who has no right to grant');
($status, undef, $error) = $c->psql('s1', 'SET ROLE bob; ALTER DATABASE postgres SET work_mem = 1000');
like($error, qr/42501.*must be owner of database postgres/, 'who is not the owner');
on('s1', 'ALTER DATABASE postgres OWNER TO alice');
same($owner, 'alice', 'OWNER TO');
on('s1', q{SET ROLE alice; ALTER DATABASE postgres SET work_mem = '6MB'});
same($settings, ':search_path="odd Name", public;:work_mem=6MB;bob:statement_timeout=7s', 'the new owner may');

# What keeps clients out of a server without the library stays.
same($library, 'session_preload_libraries=tessera', 'the library is asked for');
on('s1', 'ALTER DATABASE postgres RESET ALL');
same($library, 'session_preload_libraries=tessera', 'after RESET ALL');
same($settings, 'bob:statement_timeout=7s', 'which takes the rest away');
on('s2', q{ALTER DATABASE other_name SET session_preload_libraries = 'auto_explain'});
same($library, 'session_preload_libraries=auto_explain, tessera', 'after another list');
on('s1', 'ALTER DATABASE postgres RESET session_preload_libraries');
same($library, 'session_preload_libraries=tessera', 'after RESET');

# A node that joins.
on('s1', q{ALTER DATABASE postgres SET search_path = "odd Name", public; ALTER DATABASE postgres SET work_mem = '5MB'});
$c->start_node('r1');
$c->query('r1', 'CREATE ROLE bob LOGIN');
like($c->error('s1', sprintf("SELECT tessera.add_router('r1', %s)", TesseraCluster::quote($c->conninfo('r1')))),
	qr/role "alice" does not exist there/,
	'roles come first');
$c->query('r1', 'CREATE ROLE alice LOGIN CREATEDB');
$c->add_router('r1');
same($settings, ':search_path="odd Name", public;:work_mem=5MB;bob:statement_timeout=7s', 'settings of a newcomer');
is(on('r1', $rights), 'true true', 'its privileges');
is(on('r1', q{SELECT has_database_privilege('alice', current_database(), 'CONNECT')}), 't', 'its owner connects');
is(on('r1', q{SELECT count(*) FROM pg_database d, aclexplode(d.datacl) a WHERE d.datname = current_database() AND a.grantee = 0 AND } .
	q{a.privilege_type = 'CONNECT'}), '0',
	'what PUBLIC may not');
is(on('r1', q{SELECT bool_or(is_grantable) FROM pg_database d, aclexplode(d.datacl) a WHERE d.datname = current_database() AND a.grantee = } .
	q{'alice'::regrole}), 't', 'grant options');

# A server that was down.
$c->node('s2')->stop('fast');
($status, undef, $error) = $c->psql('s1', 'GRANT CREATE ON DATABASE postgres TO bob');
like($error, qr/08006/, 'a node is down: nothing is done');
$c->node('s2')->start;

# ---- publications ----

on('s1', 'CREATE SCHEMA app; CREATE TABLE app.t (k int PRIMARY KEY); CREATE TABLE public.u (k int PRIMARY KEY)');
(undef, undef, $error) = $c->psql('s1', 'CREATE PUBLICATION everything FOR ALL TABLES');
like($error, qr/WARNING.*without those of tessera.*WARNING.*on this node only/s, 'FOR ALL TABLES says what it is');
is(on('s1', q{SELECT string_agg(schemaname || '.' || tablename, ' ' ORDER BY schemaname) FROM pg_publication_tables WHERE pubname = 'everything'}),
	'app.t public.u', 'and leaves the catalog out');
(undef, undef, $error) = $c->psql('s1', 'CREATE PUBLICATION one FOR TABLE app.t');
like($error, qr/WARNING.*publication "one" holds the changes of rows on this node only/, 'FOR TABLE');
(undef, undef, $error) = $c->psql('s1', 'ALTER PUBLICATION one ADD TABLE public.u');
like($error, qr/WARNING.*publication "one" holds/, 'ADD TABLE');
(undef, undef, $error) = $c->psql('s1', 'ALTER PUBLICATION one DROP TABLE public.u; DROP PUBLICATION one');
unlike($error, qr/WARNING/, 'what takes away says nothing');
(undef, undef, $error) = $c->psql('s1', 'CREATE PUBLICATION unlike FOR ALL TABLES', dbname => 'unrelated');
unlike($error, qr/WARNING/, 'nor does a database that is no node');

# ---- large objects ----

(undef, undef, $error) = $c->psql('s1', q{SELECT lo_create(0); SELECT lo_from_bytea(0, 'x')});
is(() = $error =~ /large objects stay on the node/g, 1, 'a large object: once a session') or diag $error;
(undef, undef, $error) = $c->psql('s1', q{SELECT lo_create(0)}, dbname => 'unrelated');
unlike($error, qr/large objects/, 'not where there is no cluster');

done_testing();
