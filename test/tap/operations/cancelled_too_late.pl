
# A cancel that comes too late for one part of a range ends move_range before the next. A session gives back an advisory lock where it took it, also
# when its node has not heard of the key's new home.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('late', settings => { 'tessera.injection_points' => 'on', 'tessera.registry_refresh_interval' => 3600 });
$c->create(shards => 3, routers => 1);

# ---- move_range ----

$c->query('s1', $_) foreach ('CREATE TABLE acc (k int PRIMARY KEY)', 'INSERT INTO acc SELECT generate_series(1, 3000)',
	"SELECT tessera.shard_table('acc', 'k')",
	"SELECT tessera.move_range('acc', 1000, 2000, 's2')");
$c->pause_at('s1', 'config_committed');
my $move = $c->background('s3', "SELECT tessera.move_range('acc', 500, 1500, 's3')");
ok($c->paused_at('s1', 'config_committed'), 'the first part is committed');
$c->query('s3', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT tessera.move_range%'");
$c->go_on('s1');
my $error = $c->ended($move);
like($error, qr/57014: canceling statement due to user request/, 'the statement is cancelled');
like($error, qr/Moved to shard "s3": 500 to 1000 .*Not moved: 1000 to 1500/s, 'and says what it has done');
is(join(' ', map { $c->query('s1', "SELECT tessera.range_owner('acc', $_)") } 499, 500, 1000, 1500), 's1 s3 s2 s2', 'no other part has moved');
is($c->left_behind, '', 'nothing is left of it');

# ---- advisory locks ----

sub homes
{
	my $all = $c->query('s1', q{SELECT pg_advisory_lock(k) FROM generate_series(1, 300) k; SELECT objid || ' ' || home FROM } .
		q{tessera.advisory_locks WHERE objid BETWEEN 1 AND 300});
	return map { /^(\d+) (\w+)$/ ? ($1 => $2) : () } split /\n/, $all;
}
my %before = homes();
$c->start_node('s4');
my $refresher = $c->query('r1', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'tessera refresher'");
kill 'STOP', $refresher;
$c->query('s4', 'CREATE EXTENSION tessera');
$c->add_shard('s4');
$c->query('s1', "SELECT tessera.remove_shard('s4')");
my %after = homes();
my ($key) = grep { $before{$_} ne 's1' && $after{$_} eq 's1' } sort keys %before;
ok($key, 'a lock has another home, by way of a node that has come and gone');
my $session = $c->session('r1', on_error_stop => 0);
$session->query_safe("SELECT pg_advisory_lock($key)");
is($c->query('s1', "SELECT pg_try_advisory_lock($key)"), 'f', 'a session of a node that has not heard of it has the lock');
is($session->query("SELECT pg_advisory_unlock($key)"), 't', 'and gives it back');
is($c->query('s1', "SELECT pg_try_advisory_lock($key)"), 't', 'it is free');
kill 'CONT', $refresher;
$session->quit;

done_testing();
