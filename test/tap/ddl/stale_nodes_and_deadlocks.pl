# What a review of DDL, COPY and transactions found: deadlocks over several nodes (40P01), DDL on nodes that have not heard yet what is sharded,
# triggers of a table that has just joined a group, statements prepared before a column changed its type, COPY of partitions, LOCK TABLE outside a
# transaction.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('stale_ddl', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 3, routers => 1);

# Ids by the shard that owns them.
$c->query('s1', 'CREATE TABLE acc (k int PRIMARY KEY, v int)');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k', 'hash', chunks => 6)");
$c->query('s1', 'INSERT INTO acc SELECT g, 0 FROM generate_series(1, 60) g');
my %id;
foreach my $line (split /\n/, $c->query('s1', "SELECT g, tessera.range_owner('acc', g) FROM generate_series(1, 60) g"))
{
	my ($id, $owner) = split /\|/, $line;
	$id{$owner} //= $id;
}

# Two transactions that lock rows of two shards in opposite order: from two nodes, and such that each waits at its own node.
foreach my $pair ([ 's1', 's1', 's2', 's3' ], [ 'r1', 's3', 's2', 's3' ], [ 's2', 's3', 's3', 's2' ])
{
	my ($node_a, $node_b, $first, $second) = @$pair;
	my @sessions = map { $c->session($_, on_error_stop => 0) } $node_a, $node_b;
	$sessions[0]->query_safe("BEGIN; UPDATE acc SET v = v + 1 WHERE k = $id{$first}");
	$sessions[1]->query_safe("BEGIN; UPDATE acc SET v = v + 1 WHERE k = $id{$second}");
	$sessions[0]->{stdin} .= "UPDATE acc SET v = v + 1 WHERE k = $id{$second};\n\\echo :SQLSTATE\nROLLBACK;\n\\echo done\n";
	$sessions[0]->{run}->pump_nb;
	$sessions[1]->{stdin} .= "UPDATE acc SET v = v + 1 WHERE k = $id{$first};\n\\echo :SQLSTATE\nROLLBACK;\n\\echo done\n";
	$_->{run}->pump_nb foreach @sessions;
	my $states = '';
	foreach my $session (@sessions)
	{
		$session->{timeout}->start(60);
		$session->{run}->pump until $session->{stdout} =~ /done\n/ || $session->{timeout}->is_expired;
		$states .= " $1" if $session->{stdout} =~ /^(00000|\d\w{4})$/m;
		$session->{stdout} = $session->{stderr} = '';
		$session->quit;
	}
	is(join(' ', sort split / /, $states), ' 00000 40P01', "deadlock of $node_a and $node_b over $first and $second: one gives way");
}
is($c->query('s1', 'SELECT sum(v) FROM acc'), '0', 'nothing of it stays');

# A table that was sharded through s1: the other nodes go by what is, not by what they last heard.
$c->query('s2', 'CREATE TABLE fresh (k int PRIMARY KEY, v int); CREATE TABLE child (k int PRIMARY KEY, f int)');
$c->query($_, 'SELECT count(*) FROM fresh') foreach $c->names;
$c->query('s1', "SELECT tessera.shard_table('fresh', 'k', 'hash', chunks => 6)");
like($c->error('r1', 'CREATE UNIQUE INDEX ON fresh (v)'), qr/ERROR:  42P16/,
	'a unique index without the shard key, from a router that has not heard');
like($c->error('s3', 'ALTER TABLE child ADD FOREIGN KEY (f) REFERENCES fresh'), qr/ERROR:  (42P16|0A000)/, 'a foreign key out of a group, the same');
$c->query('s1', 'CREATE SCHEMA other');
$c->query('s1', "CREATE TABLE going (k int PRIMARY KEY); SELECT tessera.shard_table('going', 'k', 'hash', chunks => 6); ALTER TABLE going SET " .
	"SCHEMA other");
is_deeply([ $c->query_all('SELECT count(*) FROM other.going') ], [ ('0') x 4 ], 'SET SCHEMA of a table that others take for a placed one');

# A trigger on a shard writes to a table that has just joined the group.
$c->query('s1', <<'SQL');
CREATE TABLE log (k int, id int, what text, PRIMARY KEY (k, id));
SELECT tessera.shard_table('log', 'k', 'hash', colocate_with => 'fresh');
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (NEW.k, (random() * 1000000)::int, TG_OP); RETURN NEW;
END $$;
CREATE TRIGGER note AFTER INSERT ON fresh FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO fresh SELECT g FROM generate_series(1, 30) g;
SQL
is($c->query('r1', 'SELECT count(*), count(DISTINCT k) FROM log'), '30|30', 'triggers on all shards');

# A column changes its type while statements that read it are prepared at the other ends of a session's connections.
my $session = $c->session('s1', on_error_stop => 0);
$session->query_safe('SELECT v FROM fresh LIMIT 1; SELECT k, v FROM fresh ORDER BY k LIMIT 1; SELECT v FROM fresh WHERE k = 3');
foreach my $type (qw(text varchar(20) bigint))
{
	$c->query('r1', "ALTER TABLE fresh ALTER v TYPE $type USING v::$type");
	my ($out) = $session->query('SELECT v FROM fresh LIMIT 1; SELECT k, v FROM fresh ORDER BY k LIMIT 1; SELECT v FROM fresh WHERE k = 3');
	is($session->{stderr}, '', "ALTER TYPE to $type does not fail statements of a session");
	$session->{stderr} = '';
}
$session->quit;

# Partitions of a placed table.
$c->query('s1', 'CREATE TABLE part (k int, PRIMARY KEY (k)) PARTITION BY RANGE (k); CREATE TABLE part1 PARTITION OF part FOR ' .
	'VALUES FROM (0) TO (100)');
$c->query('r1', "COPY part1 FROM PROGRAM 'seq 1 10'");
is_deeply([ $c->query_all('SELECT count(*) FROM part1') ], [ ('10') x 4 ], 'COPY FROM into a partition');
is($c->query('s3', 'COPY part1 TO stdout'), join("\n", 1 .. 10), 'and TO');

like($c->error($_, 'LOCK TABLE acc'), qr/ERROR:  25P01/, "LOCK TABLE outside a transaction, from $_") foreach 's1', 'r1';

# The parts of a statement that defines something are committed one after the other: what this node has committed stays, though the config node's
# rows are of before that for another moment. There, whatever differs is waited for.
$c->query('s1', 'CREATE SCHEMA early; CREATE TABLE early.t (k int)');
$c->query('s2', 'SELECT count(*) FROM early.t');
$c->pause_at('s2', 'commit_decided');
my $rename = $c->background('s2', 'BEGIN; ALTER SCHEMA early RENAME TO late; CREATE TABLE late.u (k int); COMMIT');
$c->is_paused_at('s2', 'commit_decided');
my $here = "SELECT (SELECT count(*) FROM tessera.schemas WHERE schema = 'late'), " .
	"(SELECT count(*) FROM tessera.cluster_table WHERE schema_name = 'late')";
is($c->query('s2', $here), '1|2', 'the new name is committed here');
is($c->query('s1', "SELECT count(*) FROM tessera.schemas WHERE schema = 'late'"), 0, 'and not yet on the config node');
my $before = $c->query('s2', 'SELECT succeeded FROM tessera.refresh_status()');
is($c->query('s2', 'SELECT tessera.reload_routing()'), 't', 'what is new is fetched');
cmp_ok($c->query('s2', 'SELECT succeeded FROM tessera.refresh_status()'), '>', $before, 'with success');
is($c->query('s2', $here), '1|2', 'the new name is still there');
my $refresh = $c->background('s2', 'SELECT tessera.reload_routing()');
$c->go_on('s2');
is($c->ended($rename), '', 'the statements end well');
is($c->ended($refresh), '', 'and so does a fetch that waited meanwhile');
is($c->query($_, $here), '1|2', "$_ knows the new name") foreach $c->names;
is($c->query('r1', 'SELECT count(*) FROM tessera.check_consistency()'), 0, 'all is consistent');
$c->query('s3', 'DROP SCHEMA late CASCADE');

# A fetch that was answered before a schema was renamed, and waits for the renaming's end, finds no row of that name any more and makes one: it is in
# nobody's way.
$c->query('s1', 'CREATE SCHEMA before; CREATE SCHEMA moved; CREATE TABLE moved.t (k int PRIMARY KEY)');
$c->fetch_routing;
$c->pause_at('s2', 'refresh_fetched');
$c->query('s1', "SELECT tessera.move_schema('moved', 's3')");
$refresh = $c->background('s2', 'SELECT tessera.reload_routing()');
ok($c->paused_at('s2', 'refresh_fetched'), 'a fetch is answered');
$c->pause_at('s1', 'commit_prepared');
$rename = $c->background('s1', 'ALTER SCHEMA before RENAME TO after');
ok($c->paused_at('s1', 'commit_prepared'), 'the schema is being renamed');
$c->go_on('s2', 'refresh_fetched');
ok($c->wait_for('s2', "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted", 't'), 'the fetch waits for that');
$c->go_on('s1', 'commit_prepared');
is($c->ended($rename), '', 'it is renamed');
is($c->ended($refresh), '', 'the fetch ends');
is(($c->psql('s3', 'ALTER SCHEMA after RENAME TO before'))[2], '', 'and back');
ok($c->wait_for($_, "SELECT string_agg(schema_name, ' ') FROM tessera.schema_placement WHERE schema_name IN ('before', 'after')", 'before'),
	"$_ knows the name") foreach $c->names;

done_testing();
