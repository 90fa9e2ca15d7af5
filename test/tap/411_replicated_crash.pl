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

my $n = 0;
foreach my $point (qw(replicated_carried commit_prepared commit_decided))
{
	foreach my $victim ('r1', $lead, $lead eq 's2' ? 's3' : 's2')
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

done_testing();
