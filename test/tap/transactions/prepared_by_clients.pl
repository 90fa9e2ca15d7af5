# Transactions that a client prepares (PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED) span nodes, are finished through any node, and are
# known by one identifier on all of them. What one server refuses is refused alike, and the transaction ends as there.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('prepared');
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, v int)', "SELECT tessera.shard_table('acc', 'k', 'hash', chunks => 12)",
	'CREATE TABLE noisy (k int PRIMARY KEY)', "SELECT tessera.shard_table('noisy', 'k', 'hash', chunks => 12)",
	q{CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('shout', NEW.k::text); RETURN NULL; END $$},
	'CREATE TRIGGER shout AFTER INSERT ON noisy FOR EACH ROW EXECUTE FUNCTION shout()',
	'CREATE TABLE later (k int PRIMARY KEY, up int REFERENCES later DEFERRABLE INITIALLY DEFERRED)',
	'CREATE ROLE ann LOGIN', 'CREATE ROLE bob LOGIN', 'GRANT ALL ON acc TO ann, bob');
$c->fetch_routing;
ok($c->wait_for($_, 'SELECT count(DISTINCT shard) FROM tessera.chunks', '3'), "$_ knows the chunks") foreach @nodes;

my %keys;
foreach my $line (split /\n/, $c->query('s1', "SELECT g, tessera.range_owner('acc', g) FROM generate_series(1, 400) g"))
{
	my ($key, $owner) = split /\|/, $line;
	push @{ $keys{$owner} }, $key;
}
sub k { my ($shard) = @_; return shift @{ $keys{$shard} }; }
sub inserts { return join('; ', map { "INSERT INTO acc VALUES ($_, 1)" } @_); }
sub rows { my $list = join(',', @_); my @answers = $c->query_all("SELECT count(*) FROM acc WHERE k IN ($list)"); return join(',', @answers); }
sub parts { return join(',', map { $c->query($_, 'SELECT count(*) FROM pg_prepared_xact()') } @nodes); }
sub listed { return join(' ', map { $c->query($_, "SELECT coalesce(string_agg(gid, ',' ORDER BY gid), '-') FROM pg_prepared_xacts") } @nodes); }
my $none = '0,0,0,0';

# What each node has: how many of these keys, what is prepared, and how many parts of it are here.
sub state
{
	my $list = join(',', @_ ? @_ : 'NULL');
	my @answers = map { [ split /\n/ ] } $c->query_all("SELECT count(*) FROM acc WHERE k IN ($list);
		SELECT coalesce(string_agg(gid, ',' ORDER BY gid), '-') FROM pg_prepared_xacts; SELECT count(*) FROM pg_prepared_xact()");
	return (join(',', map { $_->[0] } @answers), join(' ', map { $_->[1] } @answers), join(',', map { $_->[2] } @answers));
}
my $turn = 0;

# over which nodes, prepared on which, finished through which
foreach my $case ([ [ 's2', 's3' ], 'r1', 's1' ], [ [ 's2', 's3' ], 's1', 'r1' ], [ [ 's1', 's2', 's3' ], 's1', 's3' ], [ ['s2'], 's2', 'r1' ],
	[ [], 's3', 's2' ], [ ['s1'], 'r1', 'r1' ])
{
	my ($shards, $via, $through) = @$case;
	foreach my $end (@$shards == 3 ? ('COMMIT', 'ROLLBACK') : TesseraCluster::some_of($turn++, 'COMMIT', 'ROLLBACK'))
	{
		my @k = map { k($_) } @$shards;
		my $what = "$end: of " . (join(' ', @$shards) || 'nothing') . ", prepared on $via, finished through $through";
		$c->query($via, 'BEGIN; ' . inserts(@k) . "; PREPARE TRANSACTION 'one'");
		my ($seen, $known, $parts) = state(@k);
		is($seen, $none, "$what: invisible");
		is($known, 'one one one one', "$what: known everywhere");
		$c->query($_, "SELECT tessera.resolve_transactions('0')") foreach @nodes;
		is((state(@k))[2], $parts, "$what: left alone by the resolver");
		$c->query($through, "$end PREPARED 'one'");
		my $n = $end eq 'COMMIT' ? @k : 0;
		($seen, $known, $parts) = state(@k);
		is($seen, "$n,$n,$n,$n", "$what: done");
		is($parts, $none, "$what: nothing stays prepared");
		is($known, '- - - -', "$what: nor listed");
	}
}

# deferred triggers fire as whoever prepares
my @firing = (
	'CREATE TABLE fired (k int PRIMARY KEY)',
	q{CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF current_user = 'ann' THEN RAISE EXCEPTION 'x' USING ERRCODE = } .
	q{'P0A01'; END IF; RAISE EXCEPTION 'x' USING ERRCODE = 'P0A99'; END $$},
	'CREATE CONSTRAINT TRIGGER fire AFTER INSERT ON fired DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fire()',
	q{CREATE FUNCTION fire_off() RETURNS void SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.fired VALUES (1); END $$});
$c->query('s1', $_) foreach @firing;

# as one server: SQLSTATEs, and that the transaction is over
my $plain = $c->plain;
$plain->append_conf('postgresql.conf', "max_prepared_transactions = 10\n");
$plain->restart;
$c->plain_query($_) foreach ('CREATE TABLE acc (k int PRIMARY KEY, v int)',
	'CREATE TABLE later (k int PRIMARY KEY, up int REFERENCES later DEFERRABLE INITIALLY DEFERRED)', 'CREATE ROLE ann', 'CREATE ROLE bob',
	'GRANT ALL ON acc TO ann, bob', @firing);
my ($a, $b) = (k('s2'), k('s3'));
my $two = inserts($a, $b);
my $show = "SELECT count(*) FROM acc WHERE k IN ($a, $b); SELECT gid, owner, database, prepared > now() - interval '1 minute' AND prepared <= " .
	"clock_timestamp() FROM pg_prepared_xacts ORDER BY gid";
my $long = 'x' x 199;
my @script = map { ("$_;\n$show", "ROLLBACK PREPARED 'g';\nROLLBACK PREPARED 'h';\nDELETE FROM acc WHERE k IN ($a, $b)") } (
	"BEGIN; $two; PREPARE TRANSACTION 'g'; SELECT 1",
	"BEGIN; $two; PREPARE TRANSACTION 'g'; COMMIT PREPARED 'g'; COMMIT PREPARED 'g'",
	"BEGIN; $two; PREPARE TRANSACTION 'g'; ROLLBACK PREPARED 'g'; COMMIT PREPARED 'g'",
	"BEGIN; $two; PREPARE TRANSACTION 'g'; BEGIN; PREPARE TRANSACTION 'g'; SELECT 1",
	"BEGIN; $two; PREPARE TRANSACTION 'g'; BEGIN; INSERT INTO acc VALUES (1000, 1); PREPARE TRANSACTION 'h'; COMMIT PREPARED 'g'; ROLLBACK " .
	"PREPARED 'h'",
	"PREPARE TRANSACTION 'g'; SELECT 1", "BEGIN; SELECT 1/0; PREPARE TRANSACTION 'g'; SELECT 1", "$two \\; PREPARE TRANSACTION 'g'",
	"BEGIN; $two; SAVEPOINT x; INSERT INTO acc VALUES (1000, 1); ROLLBACK TO x; SAVEPOINT y; PREPARE TRANSACTION 'g'; SELECT 1; COMMIT PREPARED 'g'",
	"COMMIT PREPARED 'nowhere'; ROLLBACK PREPARED 'nowhere'", "BEGIN; COMMIT PREPARED 'g'; COMMIT", "BEGIN; ROLLBACK PREPARED 'g'; COMMIT",
	"BEGIN; $two; PREPARE TRANSACTION '" . $long . "y'; SELECT 1", "BEGIN; $two; PREPARE TRANSACTION '$long'; COMMIT PREPARED '$long'",
	"BEGIN; $two; PREPARE TRANSACTION ''''; COMMIT PREPARED ''''",
	"BEGIN; $two; PREPARE TRANSACTION E'\\\\u00e4\\\\\\\\{,\"'; SELECT gid FROM pg_prepared_xacts; COMMIT PREPARED E'\\\\u00e4\\\\\\\\{,\"'",
	"BEGIN; $two; CREATE TEMP TABLE t (a int); PREPARE TRANSACTION 'g'; SELECT 1", "BEGIN; $two; NOTIFY x; PREPARE TRANSACTION 'g'; SELECT 1",
	"BEGIN; $two; LISTEN x; PREPARE TRANSACTION 'g'; SELECT 1",
	"BEGIN; $two; DECLARE c CURSOR WITH HOLD FOR SELECT 1; PREPARE TRANSACTION 'g'; SELECT 1",
	"BEGIN; $two; SELECT pg_export_snapshot() IS NOT NULL; PREPARE TRANSACTION 'g'; SELECT 1",
	"BEGIN; $two; INSERT INTO later VALUES (1, 2); PREPARE TRANSACTION 'g'; SELECT 1",
	"BEGIN; $two; INSERT INTO later VALUES (1, 2), (2, 1); PREPARE TRANSACTION 'g'; COMMIT PREPARED 'g'; DELETE FROM later",
	"BEGIN ISOLATION LEVEL SERIALIZABLE; $two; PREPARE TRANSACTION 'g'; COMMIT PREPARED 'g'",
	"BEGIN READ ONLY; SELECT count(*) FROM later; PREPARE TRANSACTION 'g'; COMMIT PREPARED 'g'",
	"BEGIN; $two; PREPARE TRANSACTION 'g'; SET ROLE ann; COMMIT PREPARED 'g'; RESET ROLE; COMMIT PREPARED 'g'",
	"SET ROLE ann; BEGIN; $two; PREPARE TRANSACTION 'g'; SET ROLE bob; ROLLBACK PREPARED 'g'; COMMIT PREPARED 'g'; SET ROLE ann; SELECT gid, " .
	"owner FROM pg_prepared_xacts; COMMIT PREPARED 'g'",
	"SET ROLE ann; BEGIN; $two; PREPARE TRANSACTION 'g'; RESET ROLE; COMMIT PREPARED 'g'",
	"BEGIN; SET LOCAL ROLE ann; $two; PREPARE TRANSACTION 'g'; SELECT owner, current_user = 'ann' FROM pg_prepared_xacts; COMMIT PREPARED 'g'",
	"BEGIN; SET LOCAL ROLE ann; INSERT INTO acc VALUES (1000, 1); PREPARE TRANSACTION 'g'; SET ROLE bob; COMMIT PREPARED 'g'; SET ROLE ann; " .
	"ROLLBACK PREPARED 'g'",
	(map { "SET ROLE ann; BEGIN; SELECT fire_off(); $_; SELECT 1" } "PREPARE TRANSACTION 'g'", 'SET CONSTRAINTS ALL IMMEDIATE',
	'SET CONSTRAINTS fire IMMEDIATE', 'COMMIT',
		"SET CONSTRAINTS ALL DEFERRED; PREPARE TRANSACTION 'g'"),
	"DO \$\$ BEGIN PREPARE TRANSACTION 'g'; END \$\$", "DO \$\$ BEGIN COMMIT PREPARED 'g'; END \$\$",
	"CREATE VIEW pg_temp.v AS SELECT gid FROM pg_prepared_xacts; SELECT count(*) FROM pg_temp.v",
	"BEGIN; $two; PREPARE TRANSACTION 'g'; SELECT x.gid FROM (SELECT * FROM pg_catalog.pg_prepared_xacts) x WHERE EXISTS " .
	"(SELECT FROM pg_prepared_xacts y WHERE x.gid = y.gid)",
	"BEGIN; $two; PREPARE TRANSACTION 'g'; PREPARE q AS SELECT gid FROM pg_prepared_xacts WHERE database = current_database(); EXECUTE q; COMMIT " .
	"PREPARED 'g'; EXECUTE q",
	"SELECT attname, format_type(atttypid, atttypmod), attcollation FROM pg_attribute WHERE attrelid = 'pg_prepared_xacts'::regclass ORDER BY attnum",
	"CREATE TABLE made (a int); BEGIN; ALTER TABLE made ADD COLUMN b int; INSERT INTO made VALUES (1, 2); PREPARE TRANSACTION 'g'; COMMIT " .
	"PREPARED 'g'; SELECT * FROM made; DROP TABLE made",
	"BEGIN; CREATE TABLE made (a int PRIMARY KEY); INSERT INTO made VALUES (1); PREPARE TRANSACTION 'g'; ROLLBACK PREPARED 'g'; SELECT * FROM made",
);
is($c->script_differs($_, \@script), 0, "from $_: " . @script . ' statements do as on a plain server')
	foreach TesseraCluster::some_of(0, 'r1', 's2');
is($c->query('s1', "SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attcollation), ',' ORDER BY attnum) FROM " .
	"pg_attribute WHERE attrelid = 'tessera.prepared_transactions'::regclass"),
	$c->plain_query("SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attcollation), ',' ORDER BY attnum) FROM " .
	"pg_attribute WHERE attrelid = 'pg_prepared_xacts'::regclass"),
	'the view has the columns of the one it stands for');
is(parts(), $none, 'nothing stays prepared');

# a part that cannot be prepared on another node
my ($n2, $n3) = map { my $s = $_; $c->query('s1', "SELECT min(g) FROM generate_series(1, 100) g WHERE tessera.range_owner('noisy', g) = '$s'") } 's2',
	's3';
like($c->error('r1', "BEGIN; INSERT INTO acc VALUES ($a, 1); INSERT INTO noisy VALUES ($n3); PREPARE TRANSACTION 'g'"), qr/0A000.*NOTIFY/s,
	'NOTIFY of a trigger on a shard');
is(parts(), $none, 'nothing stays prepared of it');

# what administrators see, and removal of a node
$c->query('r1', 'BEGIN; ' . inserts(my @k = (k('s2'), k('s3'))) . "; PREPARE TRANSACTION 'kept'");
is($c->query('s2', "SELECT state, waits_for FROM tessera.distributed_transactions"), 'prepared|COMMIT PREPARED or ROLLBACK PREPARED of a client',
	'in distributed_transactions');
like($c->query('s2', "SELECT outcome FROM tessera.resolve_transactions('0')"), qr/^prepared$/, 'for resolve_transactions');
like($c->error('s1', "SELECT tessera.remove_router('r1')"), qr/55006.*COMMIT PREPARED/s, 'a node that takes part is not removed');
my $internal = $c->query('s2', 'SELECT gid FROM pg_prepared_xact()');
like($internal, qr/^tessera_/, 'a part has a name of its own');
like($c->error('s2', "SET ROLE ann; COMMIT PREPARED '$internal'"), qr/42501/, 'and is not for users');
$c->query('s1', "SELECT tessera.prune_decisions('0')") foreach 1 .. 2;
is(listed(), 'kept kept kept kept', 'pruning leaves it');

# a range that it has written to does not move, for a bounded time
$c->set(undef, 'tessera.migration_timeout' => q('2s'));
like($c->error('s1', "SELECT tessera.move_chunk('acc', $k[0], 's3')"), qr/ERROR/, 'a move of what it has written to gives up')
  or diag $c->query('s1', 'SELECT * FROM tessera.migrations');
is($c->query('s1', "SELECT tessera.range_owner('acc', $k[0])"), 's2', 'and the range stays');
$c->reset_settings;

# the config node is away: nothing is lost
$c->stop('s1');
like($c->error('r1', "COMMIT PREPARED 'kept'"), qr/08006/, 'without the config node nothing is decided');
like($c->error('r1', 'BEGIN; ' . inserts(k('s3')) . "; PREPARE TRANSACTION 'other'"), qr/08006/, 'nor prepared');
like($c->error('r1', "SELECT * FROM pg_prepared_xacts"), qr/08006/, 'nor listed');
$c->start('s1');
$c->query('s2', "COMMIT PREPARED 'kept'");
is(rows(@k), '2,2,2,2', 'and afterwards it is');

# a participant is away
$c->query('r1', 'BEGIN; ' . inserts(@k = (k('s2'), k('s3'))) . "; PREPARE TRANSACTION 'away'");
$c->kill9('s3');
my ($status, $out, $err) = $c->psql('r1', "COMMIT PREPARED 'away'");
is($status, 0, 'COMMIT PREPARED without a participant');
like($err, qr/WARNING.*node "s3" has not confirmed/s, 'warns');
$c->start('s3');
ok($c->wait_for('s3', 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), 'its resolver finishes it');
is(rows(@k), '2,2,2,2', 'everywhere');

# nodes that reach each other as a member of tessera_internal, no superuser: it ends what any user has prepared, and the resolver does
$c->query('s1', 'CREATE ROLE noder LOGIN IN ROLE tessera_internal');
foreach my $node (@nodes)
{
	(my $conninfo = $c->conninfo($node)) =~ s/user=\S+/user=noder/;
	$c->query('s1', "SELECT tessera.update_node('$node', '$conninfo')");
}
ok($c->wait_for($_, "SELECT count(*) FROM tessera.node WHERE conninfo LIKE '%user=noder%'", '4', 60), "$_ knows the new addresses") foreach @nodes;
$c->restart($_) foreach @nodes;
@k = map { k($_) } qw(s2 s3);
$c->query('r1', 'SET ROLE ann; BEGIN; ' . inserts(@k) . "; PREPARE TRANSACTION 'ann'");
($status, $out, $err) = $c->psql('s1', "SET ROLE ann; COMMIT PREPARED 'ann'");
is("$status$err", '0', 'COMMIT PREPARED between nodes without superusers');
is(rows(@k) . ' ' . parts(), "2,2,2,2 $none", 'is carried out');
@k = map { k($_) } qw(s2 s3);
$c->query('r1', 'SET ROLE ann; BEGIN; ' . inserts(@k) . "; PREPARE TRANSACTION 'ann'");
$c->kill9('s3');
$c->psql('r1', "SET ROLE ann; ROLLBACK PREPARED 'ann'");
$c->start('s3');
# woken here; above it came by itself
$c->query('s3', "SELECT tessera.resolve_transactions('0')") unless TesseraCluster::long();
ok($c->wait_for('s3', 'SELECT count(*) FROM pg_prepared_xact()', '0', 60), 'and by the resolver');
is(rows(@k) . ' ' . parts(), "$none $none", 'on all nodes');
is($c->query('s1', "SELECT count(*) FROM tessera.check_consistency()"), '0', 'all is consistent');
done_testing();
