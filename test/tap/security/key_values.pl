# Key values are data. Bounds of chunks, moves, zones and deletions are keys of rows: views and functions show them to who may read the key's column
# of every table of the group under no row security, and to administrators; to others nothing that they can read or call has one in it, while counts,
# shards and sizes are everybody's. Relations and functions are taken from the server's catalog, so that later ones are looked at, too.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('key_values', settings => { 'tessera.orphan_cleanup_delay' => 3600000, 'tessera.split_interval' => 600000,
	'tessera.injection_points' => 'on' });
$c->create(shards => 2, routers => 1);

# The keys of each table begin with a word of its own.
my %word = ('alice.people' => 'secretly', 'alice.open' => 'openly', 'alice.pair' => 'doubly');

# What a role sees through a node: lines of "what|row"; errors, notices.
sub as_role
{
	my ($role, $node, $sql) = @_;
	my ($status, $out, $err) = PsqlPool::run($c->node($node)->connstr('postgres') . " user=$role", $sql, options => [ '-v', 'VERBOSITY=verbose' ],
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	return ($out, $err);
}

my $relations = <<'SQL';
SELECT format('SELECT %L AS what, x::text FROM (SELECT %s FROM %s) AS x', c.oid::regclass, a.columns, c.oid::regclass)
FROM pg_class c, LATERAL (
  SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) AS columns FROM pg_attribute
  WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND has_column_privilege(c.oid, attnum, 'SELECT')) AS a
WHERE c.relnamespace IN ('tessera'::regnamespace, 'tessera_internal'::regnamespace) AND c.relkind IN ('r', 'v', 'm') AND a.columns IS NOT NULL
ORDER BY 1 \gexec
SQL

# Those that want nothing, and those that want a table.
my $functions = <<'SQL';
SELECT format('SELECT %L AS what, x::text FROM %s(%s) AS x', p.oid::regprocedure, p.oid::regproc, given)
FROM pg_proc p, LATERAL (
  SELECT '' AS given WHERE p.pronargs = p.pronargdefaults
  UNION ALL
  SELECT format('%L::oid::regclass', t.relid) FROM tessera.cluster_table t
  WHERE p.pronargs = p.pronargdefaults + 1 AND p.proargtypes[0] = 'regclass'::regtype) AS g
WHERE p.pronamespace IN ('tessera'::regnamespace, 'tessera_internal'::regnamespace) AND p.prokind = 'f' AND p.provariadic = 0
  AND p.prorettype NOT IN ('trigger'::regtype, 'internal'::regtype, 'event_trigger'::regtype) AND has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1 \gexec
SQL

# Where a role meets keys of the table, on all nodes: names of relations and functions; "?": in an error or a notice.
sub meets
{
	my ($walk, $table, $role) = @_;
	my %found;
	foreach my $node ($c->names)
	{
		my ($out, $err) = as_role($role, $node, $walk);
		$found{$1} = 1 while $out =~ /^([\w.(),]+)\|.*$word{$table}\d/mg;
		$found{'?'} = 1 if $err =~ /$word{$table}\d/;
		cmp_ok(scalar(() = $out =~ /^tessera\.tables\|/mg), '>=', 4, "$role has looked on $node");
	}
	return join(' ', sort keys %found);
}

sub oid_of
{
	my ($node, $table) = @_;
	return $c->query($node, "SELECT '$table'::regclass::oid") . '::oid';
}

# ---- tables, rights, and something of every kind that has bounds ----

$c->query('s1', "CREATE ROLE $_ LOGIN") foreach qw(alice bob mallory reader other bulk admin monitor);
$c->query('s1', $_) foreach (
	'GRANT tessera_admin TO admin', 'GRANT pg_read_all_data TO bulk', 'SELECT tessera.pause_balancer($$1 day$$)',
	'CREATE SCHEMA alice AUTHORIZATION alice', 'CREATE SCHEMA bob AUTHORIZATION bob', 'SELECT tessera.move_schema($$alice$$, $$s1$$)');
foreach my $table (sort keys %word)
{
	my $word = $word{$table};
	$c->query('s1', $_) foreach (
		qq{SET ROLE alice; CREATE TABLE $table (email text COLLATE "C" PRIMARY KEY, v int)},
		"INSERT INTO $table SELECT '$word' || g, g FROM generate_series(1000, 2999) g",
		"SELECT tessera.shard_table('$table', 'email', chunks => 16)",
		"SELECT tessera.move_range('$table', '${word}1500', '${word}2500', 's2')",
		"SELECT tessera.split_chunk('$table', '${word}17' || n) FROM unnest(ARRAY[77, 88, 99]) AS n",
		"SELECT tessera.merge_chunks('$table', '${word}1777', '${word}1799')",
		"SELECT tessera.add_zone('zone', 's1'), tessera.set_zone_range('$table', 'zone', '${word}1000', '${word}1010')",
		"SELECT tessera.move_range('$table', '${word}1600', '${word}1700', 's1', wait => false)");
}
$c->query('s1', $_) foreach (
	'CREATE TABLE bob.pair (email text COLLATE "C" PRIMARY KEY, v int); ALTER TABLE bob.pair OWNER TO bob',
	q{SELECT tessera.shard_table('bob.pair', 'email', colocate_with => 'alice.pair')},
	'ALTER TABLE alice.people ENABLE ROW LEVEL SECURITY', 'SET ROLE alice; CREATE POLICY own ON alice.people USING (current_user = $$alice$$)',
	'GRANT SELECT ON alice.people, alice.pair TO reader', 'GRANT SELECT (email) ON alice.open TO reader',
	'GRANT SELECT (v) ON alice.people, alice.open, alice.pair, bob.pair TO other', 'ANALYZE alice.people; ANALYZE alice.open; ANALYZE alice.pair');
$c->pause_at('s1', 'donor_cloned');
my $move = $c->background('s1', q{SELECT tessera.move_range('alice.people', 'secretly2600', 'secretly2700', 's2')});
ok($c->paused_at('s1', 'donor_cloned'), 'a range moves');
# What comes of itself, but seldom: errors with keys in them, a hot key, a chunk that cannot be split; a shard that is being removed.
$c->query('s1', $_) foreach (
	q{UPDATE tessera.migration SET error = format('XX000: the range %s', (SELECT string_agg(r::text, ' ') FROM unnest(ranges) AS r))},
	q{UPDATE tessera.balancer_action SET donor = 2, error = format('XX000: from %s', min), attempts = 5},
	q{INSERT INTO tessera.ddl_operation (operation_id, kind, table_id, schema_name, object_name, statement, search_path, command, asked_by, runner,
	  state, error) SELECT gen_random_uuid(), 'create index', table_id, 'alice', 'i', 's', 'p', 'c', 'alice', 1, 'failed', 'value: secretly1234'
	  FROM tessera.cluster_table WHERE table_name = 'people'},
	q{UPDATE tessera.chunk SET jumbo = true WHERE minor % 3 = 0},
	q{INSERT INTO tessera.chunk_estimate (group_id, min, node_id, bytes, statements, load)
	  SELECT group_id, min, node_id, 100, 1, 1 FROM tessera.chunk ON CONFLICT DO NOTHING},
	q{UPDATE tessera.chunk_estimate SET load = 1, hot_key = min, hot_share = 1, measured = clock_timestamp()},
	q{SELECT tessera.remove_shard('s2')});
$c->query($_, 'GRANT SELECT ON tessera.health TO monitor') foreach $c->names;
$c->query($_, 'SELECT tessera.reload_routing()') foreach $c->names;

# ---- who meets keys ----

my @with_bounds = sort qw(tessera.balancer_action tessera.balancer_status tessera.changelog tessera.changelog_entry tessera.chunk
	tessera.chunk_estimate tessera.chunks tessera.draining_shards tessera.health tessera.hot_chunks tessera.migration tessera.migrations
	tessera.placement tessera.range_deletions tessera.zone_range tessera.zone_ranges);
# The move, and an index that could not be built.
my %others = ('alice.people' => 'tessera.migration_coordinator tessera.migration_recipient tessera.ddl_operation tessera.ddl_operations');
my @shown = qw(tessera.balancer_status tessera.changelog tessera.chunks tessera.draining_shards tessera.migrations tessera.range_deletions
	tessera.zone_ranges tessera_internal.migrations);
# What pg_read_all_data may read besides.
my @read_by_all = qw(tessera.hot_chunks tessera_internal.balancer_status tessera_internal.hot_chunks tessera_internal.zone_ranges);
foreach my $table (sort keys %word)
{
	my %all = map { $_ => 1 } split / /, meets($relations, $table, TesseraCluster::user());
	my @there = sort(@with_bounds, split ' ', $others{$table} // '');
	is(join(' ', grep { $all{$_} } @there), "@there", "$table has keys in all of these");
	%all = map { $_ => 1 } split / /, meets($relations, $table, 'admin');
	is(join(' ', grep { $all{$_} } @with_bounds), "@with_bounds", 'administrators see them');
	is(meets("$relations$functions", $table, $_), '', "$_ sees no key of $table") foreach qw(mallory other);
}
is(meets("$relations$functions", 'alice.people', $_), '', "row security hides keys from $_") foreach qw(reader bulk bob);
is(meets("$relations$functions", 'alice.people', 'alice'), join(' ', sort @shown, 'tessera.ddl_operations',
	'tessera_internal.ddl_operations()', 'tessera_internal.range_deletions()'), 'but not from the owner');
is(meets($relations, 'alice.open', 'alice'), "@shown", 'an owner sees keys in the views');
is(meets($relations, 'alice.open', 'reader'), "@shown", 'so does who may read the column');
is(meets($relations, 'alice.open', 'bulk'), join(' ', sort @shown, @read_by_all), 'and who may read all tables');
is(meets("$relations$functions", 'alice.pair', $_), '', "a table of another owner in the group hides them from $_") foreach qw(alice bob reader);
is(meets($relations, 'alice.pair', 'bulk'), join(' ', sort @shown, @read_by_all), 'not from who may read both');
$c->query('s1', 'GRANT SELECT ON bob.pair TO reader');
is(meets($relations, 'alice.pair', 'reader'), "@shown", 'rights on both');
$c->go_on('s1');
is(TesseraCluster::ended($c, $move), '', 'the move ends');
$c->query('s1', 'ALTER TABLE alice.people FORCE ROW LEVEL SECURITY');
is(meets($relations, 'alice.people', 'alice'), 'tessera.ddl_operations', 'row security forced on the owner');
$c->query('s1', 'ALTER TABLE alice.people NO FORCE ROW LEVEL SECURITY');

foreach my $table (@with_bounds, 'tessera.migration_coordinator', 'tessera.migration_recipient')
{
	next if $c->query('s1', "SELECT relkind FROM pg_class WHERE oid = '$table'::regclass") ne 'r';
	is((as_role('bulk', 's1', "SELECT count(*) FROM $table"))[0], '0', "pg_read_all_data gets no row of $table");
}

# ---- health, for who has been given the view ----

is(meets('SELECT $$tessera.tables$$, n FROM generate_series(1, 4) AS n; SELECT $$tessera.health$$, h::text FROM tessera.health h',
	'alice.people', 'monitor'), '', 'health has no keys for who may not see them');
is((as_role('monitor', 's1', "SELECT severity, count(*), count(subject), count(problem) FROM tessera.health WHERE subject ~ '^(key|chunk|move) '
	GROUP BY 1 ORDER BY 1"))[0], (as_role('admin', 's1', "SELECT severity, count(*), count(*), count(*) FROM tessera.health
	WHERE subject ~ '^(key|chunk|move) ' GROUP BY 1 ORDER BY 1"))[0], 'but all its rows');

# ---- what stays visible ----

foreach my $node ($c->names)
{
	my $people = oid_of($node, 'alice.people');
	my $facts = "SELECT count(*), count(bytes), sum(bytes), string_agg(shard, ' ' ORDER BY major, minor), %s FROM tessera.chunks
		WHERE table_name = $people";
	my $known = $c->query($node, sprintf $facts, 'count(*), count(*)');
	is((as_role('mallory', $node, sprintf $facts, 'count(*) FILTER (WHERE min IS NULL), count(*) FILTER (WHERE max IS NULL)'))[0], $known,
		"chunks, their shards and sizes on $node");
	cmp_ok((split /\|/, $known)[0], '>', 16, 'there are some');
}
my ($what) = as_role('mallory', 's1', "SELECT string_agg(DISTINCT what, ' ' ORDER BY what) FROM tessera.changelog WHERE object = 'alice.people'");
like($what, qr/merge.*move.*shard_table.*split/, 'the changelog says what was done');
is((as_role('mallory', 's1', 'SELECT string_agg(DISTINCT error, $$ $$) FROM tessera.migrations'))[0], 'error XX000', 'a failure by its code');

# ---- by the side door ----

my $door = 'alice.people';
my $chunks = oid_of('s1', $door);
my (undef, $said) = as_role('mallory', 's1', <<"SQL");
CREATE FUNCTION pg_temp.leak(tessera.bound) RETURNS bool LANGUAGE plpgsql COST 0.0001 AS
  \$\$ BEGIN RAISE NOTICE 'seen: %', \$1; RETURN true; END \$\$;
SELECT count(*) FROM tessera.chunks WHERE pg_temp.leak(min) AND table_name = $chunks;
SELECT count(*) FROM tessera.zone_ranges WHERE pg_temp.leak(max);
SELECT count(*) FROM tessera.migrations WHERE pg_temp.leak(min);
SQL
like($said, qr/seen: <NULL>/, 'a function of the user is called');
unlike($said, qr/$word{$door}\d/, 'with what the user may see');
like((as_role('mallory', 's1', "SELECT tessera.range_owner($chunks\::regclass, 'a')"))[1], qr/42501.*alice\.people/,
	'nobody finds bounds by asking for owners of keys');
is((as_role('reader', 's1', 'SELECT tessera.range_owner(' . oid_of('s1', 'alice.open') . q{::regclass, 'a')}))[0], 's1', 'who may see them asks');
# ---- once for each group, not for each chunk ----

my $groups = $c->query('s1', 'SELECT count(*) FROM tessera.table_group');
my $calls = $c->query('s1', <<'SQL');
BEGIN;
SET LOCAL track_functions = 'all';
SET LOCAL ROLE mallory;
SELECT count(min) FROM tessera.chunks;
RESET ROLE;
SELECT pg_stat_get_xact_function_calls('tessera_internal.keys_visible(uuid)'::regprocedure);
COMMIT;
SQL
is($calls, "0\n$groups", 'a view asks once for each group');

# ---- another table of the same name is another group ----

$c->query('s1', 'ALTER TABLE alice.people RENAME TO persons');
$c->query('s1', $_) foreach (
	'GRANT CREATE, USAGE ON SCHEMA alice TO mallory', 'SET ROLE mallory; CREATE TABLE alice.people (email text COLLATE "C" PRIMARY KEY)',
	q{SET ROLE mallory; SELECT tessera.shard_table('alice.people', 'email')});
is(meets("$relations$functions", $door, 'mallory'), '', 'the name of a table is not its keys');

done_testing();
