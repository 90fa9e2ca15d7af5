# Replicated tables when servers die: the router, the lead or another node, before and after what was written is everywhere. A transaction is on all
# copies or on none.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('replicated_crash', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
$c->query('s1', 'CREATE TABLE country (id int PRIMARY KEY, name text)');
$c->query('s1', "INSERT INTO country SELECT g, 'old' FROM generate_series(1, 100) g");
$c->query('s1', "SELECT tessera.replicate_table('country')");
my $lead = $c->query('s1', "SELECT primary_shard FROM tessera.tables WHERE table_name = 'country'::regclass");

# All copies are alike once nothing is in doubt; returns what they say.
sub settled
{
	my ($name) = @_;
	my $sql = 'SELECT md5(string_agg(c::text, $$;$$ ORDER BY id)) FROM country c';
	ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xact()', '0', 90), "$name: nothing is in doubt on $_") foreach @nodes;
	my $lead_says = $c->query($lead, $sql);
	is($c->query($_, $sql), $lead_says, "$name: the copy on $_") foreach @nodes;
	return $c->query($lead, 'SELECT string_agg(DISTINCT name, $$ $$) FROM country');
}

my ($n, $turn) = (0, 0);
foreach my $point (qw(replicated_carried commit_prepared commit_decided))
{
	foreach my $victim (TesseraCluster::some_of($turn++, 'r1', $lead, $lead eq 's2' ? 's3' : 's2'))
	{
		my $name = "$victim dies at $point";
		$n++;
		my $before = settled("before $name");
		$c->pause_at('r1', $point);
		my $writer = $c->background('r1', "UPDATE country SET name = 'new$n'");
		ok($c->is_paused_at('r1', $point), "$name: paused");
		$c->kill9($victim);
		$c->go_on('r1', $point) if $victim ne 'r1';
		$c->start($victim);
		$c->ended($writer);
		my $after = settled($name);
		my @may = $point eq 'commit_decided' ? ("new$n") : ($before, "new$n");
		ok(scalar(grep { $after eq $_ } @may), "$name: all or nothing") or diag($after);
		$c->query($_, "UPDATE country SET name = name WHERE id = 1") foreach @nodes;
	}
}

# A table is replicated whole or not at all, whoever dies.
foreach my $point (qw(replicated_marked replicate_sent commit_prepared commit_decided))
{
	foreach my $victim (TesseraCluster::some_of($turn++, 'r1', $lead, $lead eq 's2' ? 's3' : 's2'))
	{
		my $name = "replicate_table, $victim dies at $point";
		$c->query('s1', "SELECT tessera.unreplicate_table('country')");
		$c->pause_at('r1', $point);
		my $run = $c->background('r1', "SELECT tessera.replicate_table('country')");
		ok($c->is_paused_at('r1', $point), "$name: paused");
		$c->kill9($victim);
		$c->go_on('r1', $point) if $victim ne 'r1';
		$c->start($victim);
		$c->ended($run);
		ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xact()', '0', 90), "$name: nothing is in doubt on $_") foreach @nodes;
		my $kind = $c->query('s1', "SELECT kind FROM tessera.tables WHERE table_name = 'country'::regclass");
		ok($c->wait_for($_, "SELECT kind FROM tessera.tables WHERE table_name = 'country'::regclass", $kind), "$name: the same on $_") foreach @nodes;
		is($c->query($_, 'SELECT count(*) FROM country'), '100', "$name: all rows from $_") foreach @nodes;
		is($kind, 'replicated', "$name: what was decided holds") if $point eq 'commit_decided';
		$c->query('s1', "SELECT tessera.replicate_table('country')") if $kind ne 'replicated';
		settled($name);
	}
}

# Nodes join while clients write: each copy has every row.
$c->query('s1', 'CREATE TABLE counted (id int PRIMARY KEY, n int)');
$c->query('s1', 'INSERT INTO counted SELECT g, 0 FROM generate_series(1, 50) g');
$c->query('s1', "SELECT tessera.replicate_table('counted')");
my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 2, seconds => 600, rate => 20, max_tries => 100, script => <<'EOS')->begun;
\set k random(1, 50)
BEGIN;
UPDATE counted SET n = n + 1 WHERE id = :k;
INSERT INTO counted VALUES (1000 + (random() * 1e8)::int, 0) ON CONFLICT DO NOTHING;
COMMIT;
EOS
$c->start_nodes('s4', 'r2');
$c->add_shard('s4');
$c->add_router('r2');
my $written = $c->query('s1', 'SELECT sum(n) FROM counted') + 40;
ok($c->wait_for('s1', "SELECT sum(n) >= $written FROM counted", 't'), 'clients write when both have joined');
my $sums = $load->end;
is($c->query('s1', 'SELECT sum(n) FROM counted'), $sums->{processed}, 'each transaction that was acknowledged counts once');
@nodes = $c->names;
foreach my $node (@nodes)
{
	is($c->query($node, 'SELECT count(*), sum(n), sum(id) FROM counted'), $c->query('s1', 'SELECT count(*), sum(n), sum(id) FROM counted'),
		"the copy on $node has all");
}
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'all is consistent');

# A node that joins dies before it has joined: it has not, and joins later.
$c->start_nodes('s5');
$c->pause_at('s1', 'add_node_filled');
my $joins = $c->background('s1', sprintf("SELECT tessera.add_shard('s5', %s)", TesseraCluster::quote($c->conninfo('s5'))));
$c->is_paused_at('s1', 'add_node_filled');
$c->kill9('s5');
$c->go_on('s1');
$c->start('s5');
like($c->ended($joins), qr/ERROR/, 'the newcomer dies: add_shard fails');
$c->query('r1', "UPDATE counted SET n = n + 1 WHERE id = 1");
ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xact()', '0', 90), "nothing is in doubt on $_") foreach @nodes, 's5';
$c->add_shard('s5');
is($c->query('s5', 'SELECT count(*), sum(n), sum(id) FROM counted'), $c->query('s1', 'SELECT count(*), sum(n), sum(id) FROM counted'),
	'it has joined, and has all');

done_testing();
