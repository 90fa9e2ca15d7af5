# A shard is lost for good, and there is no standby and no backup of it: it is given up. An empty database becomes the shard; its ranges are empty,
# all others whole, and everything works again, DDL first of all. Sequences that had their home there give no value twice. What it was to decide is
# rolled back. The lost server, should it come back, is refused. A shard that lives is not given up, nor is one by a word that is not that of what
# would be lost.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('give_up',
	settings => { 'tessera.connect_timeout' => '2s', 'tessera.registry_refresh_interval' => 1, 'tessera.orphan_cleanup_delay' => 50,
		'tessera.statistics_interval' => 1, 'tessera.gate_timeout' => '5s' });
$c->create(shards => 3, routers => 1);
# s1 is the config node. t: up to 500 on s1, then on s2, from 801 on s3
$c->make_table([ 501, 801, 's2' ], [ 801, 'tessera.maxkey()', 's3' ]);
$c->query('s1', $_) foreach (
	'CREATE SCHEMA app',
	"SELECT tessera.move_schema('app', 's2')",
	'CREATE SCHEMA lead',
	"SELECT tessera.move_schema('lead', 's2')",
	'CREATE TABLE app.placed (n serial PRIMARY KEY, v text)',
	'CREATE TABLE app.counted (k int PRIMARY KEY, n bigserial)',
	"SELECT tessera.shard_table('app.counted', 'k')",
	"SELECT tessera.move_range('app.counted', 300, tessera.maxkey(), 's1')",
	"SELECT tessera.move_range('app.counted', 200, 300, 's3')",
	'CREATE SEQUENCE app.down INCREMENT -2 MAXVALUE 1000 MINVALUE -1000000000 START 1000',
	'CREATE TABLE lead.every (k int PRIMARY KEY, v text)',
	"SELECT tessera.replicate_table('lead.every')",
	"INSERT INTO lead.every SELECT n, 'e' FROM generate_series(1, 50) AS n",
	'CREATE TABLE everywhere (k int PRIMARY KEY)',
	"SELECT tessera.replicate_table('everywhere')",
	'INSERT INTO everywhere SELECT generate_series(1, 20)',
	'CREATE TABLE elsewhere (k int)',
	'INSERT INTO elsewhere SELECT generate_series(1, 10)',
	'ANALYZE',
	'CREATE ROLE plain LOGIN');
my @nodes = qw(s1 s2 s3 r1);
my %seen;

sub draw
{
	my ($where, @from) = @_;
	my $twice = 0;
	foreach my $node (@from)
	{
		foreach my $sequence (qw(app.placed_n_seq app.counted_n_seq app.down))
		{
			$twice += $seen{$sequence}{$_}++ foreach split /\n/, $c->query($node, "SELECT nextval('$sequence') FROM generate_series(1, 40)");
		}
	}
	is($twice, 0, "$where: no value of a sequence twice");
	return;
}

sub give_up
{
	my ($how) = @_;
	return "SELECT kind, object, min, max, rows IS NOT NULL, detail FROM tessera.give_up_shard('s2'$how)";
}

draw('before', @nodes);
foreach my $i (0 .. $#nodes)
{
	$seen{'app.placed_n_seq'}{$_}++ foreach split /\n/, $c->query($nodes[$i], "INSERT INTO app.placed (v) VALUES ('a'), ('b') RETURNING n");
	$c->query($nodes[$i], "INSERT INTO app.counted (k) SELECT generate_series(90 + 10 * $i, 110 + 100 * $i, 10) ON CONFLICT DO NOTHING");
}
$c->query('s1', "INSERT INTO app.counted (k) SELECT generate_series(1000, 1100) ON CONFLICT DO NOTHING");
$c->query('s1', 'ANALYZE');
$seen{'app.counted_n_seq'}{$_} = 1 foreach split /\n/, $c->query('s1', 'SELECT n FROM app.counted');
my $kept = $c->query('s1', 'SELECT count(*) FROM app.counted WHERE k >= 200');

# ---- who may, and what may not be given up ----

like($c->error('s1', "SET ROLE plain; SELECT * FROM tessera.give_up_shard('s2')"), qr/42501/, 'only an administrator may');
like($c->error('r1', give_up('')), qr/55006: .*cannot be given up: it is not lost/, 'a shard that lives is not given up');
like($c->error('s1', give_up(", 'word'")), qr/55006: .*it is not lost/, 'not with a word either');
like($c->error('s1', "SELECT * FROM tessera.give_up_shard('s1')"), qr/is the config node/, 'nor the config node');
like($c->error('s1', "SELECT * FROM tessera.give_up_shard('r1')"), qr/is not a shard/, 'nor a router');
like($c->error('s1', "SELECT * FROM tessera.give_up_shard('s9')"), qr/does not exist/, 'nor a node that there is not');

# ---- it is lost, with a transaction that it had prepared, and one that it was to decide ----

my $figures = "SELECT count(*) > 0 FROM tessera.table_statistics AS s JOIN tessera.node AS n USING (node_id) WHERE n.name = 's2' AND tuples > 0";
ok($c->wait_for('s1', $figures, 't'),
	'figures of the shard are known');
my $lost = $c->node('s2');
my $s2 = $c->query('s1', "SELECT node_id FROM tessera.node WHERE name = 's2'");
my $s3 = $c->query('s1', "SELECT node_id FROM tessera.node WHERE name = 's3'");
my $gid = sprintf('tessera_%s_%d_%d', 'ab' x 16, $s2, $s3);
$c->query('s3', "BEGIN; INSERT INTO tessera.unreadable_group VALUES (gen_random_uuid(), 'prepared'); PREPARE TRANSACTION '$gid'");
$c->stop('s2', 'immediate');
rename($lost->data_dir, $lost->data_dir . '.gone') or die "rename: $!";

like($c->error('s1', 'CREATE TABLE late (k int)'), qr/08006/, 'DDL of other tables fails');
like($c->error('s1', "SELECT tessera.remove_shard('s2', force => true)"), qr/owns \d+ chunks/, 'it cannot be removed');
my $new = $c->start_node('new');
my $at = TesseraCluster::quote($c->conninfo('new'));
like($c->error('s1', "SELECT tessera.update_node('s2', $at, force => true)"), qr/does not lead to node/, 'nor get an empty database');

# ---- what would be lost ----

my $said = $c->query('r1', give_up(''));
like($said, qr/^range\|public\.t\|501\|801\|t\|/m, 'it says which range of which table would be lost');
like($said, qr/^range\|app\.counted\|MINKEY\|200\|/m, 'of each table');
like($said, qr/^placed table\|app\.placed\|\|\|t\|/m, 'and placed tables');
unlike($said, qr/every|elsewhere/, 'not what others have');
my $word = $c->query('s1', "SELECT DISTINCT confirm_with FROM tessera.give_up_shard('s2')");
like($word, qr/^[0-9a-f]{16}$/, 'and the word');
is($c->query('r1', "SELECT DISTINCT confirm_with FROM tessera.give_up_shard('s2')"), $word, 'which is the same one on each node');
like($c->error('s1', give_up(", 'no', $at")), qr/22023: that is not the word to confirm/, 'another word is refused');
like($c->error('s1', give_up(", '$word'")), qr/08006/, 'nothing is at its address that could take its place');
like($c->error('s1', "BEGIN; SELECT pg_current_xact_id(); " . give_up(", '$word', $at")), qr/25001: .*in a transaction that has changed something/,
	'not in a transaction that has changed something');
is($c->query('s1', 'SELECT count(*) FROM app.counted WHERE k = 1000'), '1', 'nothing is changed so far');

# ---- it is given up; two at once: one does it, the other one finds a shard that lives ----

my @both = map { $c->background($_, give_up(", '$word', $at")) } qw(r1 s1);
my @ended = map { $c->ended($_) } @both;
is(scalar(grep { /it is not lost|not the word/ } @ended), 1, 'two at once: one is refused') or diag(join("\n", @ended));
$c->{nodes}{s2} = $c->{nodes}{new};
delete $c->{nodes}{new};
$c->{order} = [ grep { $_ ne 'new' } @{ $c->{order} } ];
is($c->query('s1', "SELECT object, before @> '[{\"object\": \"public.t\", \"min\": \"501\"}]' FROM tessera.changelog WHERE what = 'give_up_shard'"),
	's2|t', 'the changelog has what was lost');
like($c->error('s1', give_up(", '$word', $at")), qr/it is not lost/, 'it is not given up once more');

# ---- everything works ----

$c->fetch_routing;
foreach my $node (@nodes)
{
	is($c->query($node, 'SELECT count(*), min(k), max(k), count(*) FILTER (WHERE k BETWEEN 501 AND 800) FROM t'), '700|1|1000|0',
		"$node: its range is empty, others are whole");
	is($c->query($node, 'SELECT count(*), count(*) FILTER (WHERE k < 200) FROM app.counted'), "$kept|0", "$node: of the other table, too");
	is($c->query($node, 'SELECT count(*) FROM app.placed; SELECT count(*) FROM elsewhere'), "0\n10", "$node: placed tables");
	is($c->query($node, 'SELECT count(*) FROM lead.every; SELECT count(*) FROM everywhere'), "50\n20", "$node: replicated tables have all rows");
}
$c->query('s1', 'CREATE TABLE late (k int PRIMARY KEY, v text); ALTER TABLE t ADD COLUMN extra int; CREATE INDEX ON t (extra)');
foreach my $i (0 .. $#nodes)
{
	my $k = 600 + $i;
	$c->query($nodes[$i], "INSERT INTO t (k, v) VALUES ($k, 'new'); UPDATE t SET v = 'newer' WHERE k = $k");
	is($c->query($nodes[ $i - 1 ], "SELECT v FROM t WHERE k = $k"), 'newer', "$nodes[$i]: writes to the range");
	$c->query($nodes[$i], "BEGIN; UPDATE t SET v = 'both' WHERE k IN ($k, 10, 900); COMMIT");
	$c->query($nodes[$i], "INSERT INTO lead.every VALUES (1000 + $i, 'n'); INSERT INTO everywhere VALUES (1000 + $i)");
	my ($n) = $c->query($nodes[$i], "INSERT INTO app.placed (v) VALUES ('c') RETURNING n");
	is($seen{'app.placed_n_seq'}{$n}++ // 0, 0, "$nodes[$i]: a value that no row had");
	($n) = $c->query($nodes[$i], "INSERT INTO app.counted (k) VALUES (101 + $i) RETURNING n");
	is($seen{'app.counted_n_seq'}{$n}++ // 0, 0, "$nodes[$i]: nor here");
}
draw('after', @nodes);
is($c->query($_, 'SELECT count(*) FROM lead.every; SELECT count(*) FROM everywhere'), "54\n24", "$_: copies are written") foreach @nodes;
ok($c->wait_for('s3', "SELECT count(*) FROM pg_prepared_xacts WHERE gid = '$gid'", '0', 60), 'what the lost shard was to decide is ended');
is($c->query('s3', 'SELECT count(*) FROM tessera.unreadable_group'), '0', 'rolled back');
$c->query('s1', "SELECT tessera.$_")
  foreach ("move_range('t', 501, 601, 's3')", "move_range('t', 1, 101, 's2')", "move_schema('app', 's3')");
$c->query('s1', 'SELECT tessera.balancer_round()');
is($c->query('s2', 'SELECT count(*) FROM t WHERE k <= 100'), '100', 'moves from and to it work');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.check_consistency(deep => true)", '0', 30), 'nothing is inconsistent')
  or diag($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'));
draw('after the move', @nodes);

# ---- the lost server comes back ----

rename($lost->data_dir . '.gone', $lost->data_dir) or die "rename: $!";
$lost->start;
ok($lost->poll_query_until('postgres', 'SELECT replaced FROM tessera.promotion_status()'), 'the lost server learns that it was replaced');
like($c->error_of($lost, $_), qr/TS003|25006/, "it refuses: $_")
  foreach ('SELECT count(*) FROM t WHERE k = 700', "SET default_transaction_read_only = off; INSERT INTO t (k, v) VALUES (700, 'lost')",
	'SELECT count(*) FROM app.placed', "SET default_transaction_read_only = off; SELECT nextval('app.placed_n_seq')", 'CREATE TABLE x (a int)');
like($c->error_of($lost, 'SET default_transaction_read_only = off; SELECT tessera.recover_node(force => true)'),
	qr/leads to another server than the promoted one/, 'and cannot become the shard again');
$lost->stop('immediate');
is($c->query('s1', "SELECT v FROM t WHERE k = 602; SELECT count(*) FROM t WHERE k = 700"), "both\n0", 'the cluster goes on');

# ---- and it leaves, if the cluster is to be without it ----

$c->query('s1', "SELECT tessera.unreplicate_table('lead.every'); SELECT tessera.remove_shard('s2')");
my $removal = "SELECT coalesce((SELECT tessera.remove_shard(name) FROM tessera.shards WHERE name = 's2'), 'removed')";
ok($c->wait_for('s1', $removal, 'removed', 120), 'the shard can be removed as any other');
is($c->query('s1', 'SELECT count(*) FROM t WHERE k <= 100'), '100', 'with its rows moved away');

done_testing();
