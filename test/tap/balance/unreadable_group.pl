# A table group whose chunks a shard cannot read does not hold up the splitter: it is left out and named, the others are measured and split.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

# No node asks for changes by itself: s2 first hears of the chunks when it needs them, when one is missing.
my $c = TesseraCluster->new('unreadable', settings => { 'tessera.split_interval' => '100ms', 'tessera.balancer_interval' => 3600,
	'tessera.registry_refresh_interval' => 3600 });
$c->create(shards => 2);
$c->query('s1', 'SELECT tessera.stop_balancer()');
foreach my $table ('before', 'holed', 'after')
{
	$c->query('s1', "CREATE TABLE $table (k int PRIMARY KEY, v text)");
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k', max_chunk_size => 256 * 1024)");
	$c->query('s1', "SELECT tessera.move_range('$table', tessera.minkey(), tessera.maxkey(), 's1')");
}
$c->query('s1', "SELECT tessera.split_chunk('holed', $_)") foreach 100, 200;

sub chunks { return "SELECT count(*) > $_[1] FROM tessera.chunks WHERE table_name = '$_[0]'::regclass AND shard = 's1'"; }
sub fill { return $c->query('s2', "INSERT INTO $_[0] SELECT g, repeat('x', 400) FROM generate_series(1, 3000) g"); }
# The balancer names it, too.
my $named = q{SELECT subject, problem ~ 'XX001: the chunks of a table group do not cover its keys' FROM tessera.health
	WHERE severity = 'error' AND problem ~ '^this shard '};

my $here = "group_id = (SELECT group_id FROM tessera.cluster_table WHERE table_name = 'holed') AND min::text = '100'";
$c->query('s1', "CREATE TABLE kept AS SELECT * FROM tessera.chunk WHERE $here");
$c->query('s1', "DELETE FROM tessera.chunk WHERE $here");
$c->restart('s1');
fill($_) foreach 'before', 'after';
ok($c->wait_for('s1', chunks($_, 2), 't'), "$_ is split, though another group has a hole") foreach 'before', 'after';
ok($c->wait_for('s1', $named, 'table group of holed|t'), 'which health names') or diag $c->query('s1', 'SELECT * FROM tessera.health');
# it fetches what has changed, when it hears of a change; all, if told to
$c->psql('s2', 'SELECT tessera.reload_routing()');
ok($c->wait_for('s2', $named, 'table group of holed|t'), 'on the other shard, too, which has fetched the chunks as they are');
my $log = slurp_file($c->node('s1')->logfile);
is(scalar(() = $log =~ /LOG: .*the splitter leaves out the table group of public\.holed, whose chunks cannot be read: XX001/g), 1,
	'the log says so, once');

# Mended, it is followed again.
$c->query('s1', 'INSERT INTO tessera.chunk SELECT * FROM kept; DROP TABLE kept');
$c->query('s2', 'SELECT tessera.reload_routing()');
ok($c->wait_for($_, $named, ''), "nothing is wrong on $_ any more") foreach 's1', 's2';
fill('holed');
ok($c->wait_for('s1', chunks('holed', 4), 't'), 'it is split, too');
$c->query('s1', 'SELECT tessera.balancer_round()');
is($c->query('s1', "SELECT count(*) FROM tessera.health WHERE subject <> 'balancer' AND subject !~ '^node '"), 0, 'nothing needs an operator');
# One by one: the moves that the round has begun go on, and a statement of several scans may meet one between two of them.
is($c->query('s2', "SELECT count(*) FROM $_"), 3000, "all rows of $_") foreach 'before', 'holed', 'after';
$c->query('s1', 'SELECT tessera.start_balancer()');
$c->is_settled('in the end');
done_testing();
