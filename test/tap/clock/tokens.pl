# Cluster times for clients: tokens are signed, forged ones and such as are far ahead move no clock; keys rotate, old tokens stay good; what was
# read by one node is seen by way of another (doc/design.md#cluster-time).
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('tokens');
$c->create(shards => 2, routers => 1);
$c->make_table([ 501, 'tessera.maxkey()', 's2' ]);

sub now_on { return $c->query($_[0], 'SELECT tessera.cluster_time()'); }
sub token_of { return $c->query($_[0], 'SELECT tessera.cluster_time_token()'); }

# handed from one node to another: its clock is at least as late then, and so is a shard from which is read
$c->query('s1', "UPDATE t SET v = 'seen' WHERE k = 1") foreach 1 .. 3;
my $token = token_of('s1');
# what the token says: s1 may have committed something since
my $time = $c->query('s1', "SELECT ('x' || substr('$token', 4, 16))::bit(64)::int8");
like($token, qr/^v1\.[0-9a-f]{16}\.[0-9a-f]{16}\.[0-9a-f]{64}$/, 'a token');
is($c->query('r1', "SET tessera.after_cluster_time = '$token'; SELECT tessera.cluster_time() >= $time"), 't', 'a router takes it');
$token = token_of('s1');
$time = $c->query('s1', "SELECT ('x' || substr('$token', 4, 16))::bit(64)::int8");
$c->query('r1', "SET tessera.after_cluster_time = '$token'; SELECT count(*) FROM t WHERE k = 502");
is($c->query('s2', "SELECT tessera.cluster_time() >= $time"), 't', 'a shard from which is read is told of it');
is($c->query('r1', "BEGIN; SET LOCAL tessera.after_cluster_time = '$token'; COMMIT; SHOW tessera.after_cluster_time; SELECT 1"), "\n1", 'SET LOCAL');

# what is no token of this cluster
my $other = TesseraCluster->new('other');
$other->create(shards => 1);
my $before = now_on('r1');
my ($v, $t, $key, $signature) = split /\./, $token;
my $far = sprintf('%08x%s', hex(substr($t, 0, 8)) + 86400, substr($t, 8));
foreach my $case (
	[ 'nothing', qr/It is not what tessera.cluster_time_token\(\) returns/ ],
	[ '7712035683195420697', qr/It is not what/ ],
	[ "$v.$far.$key.$signature", qr/Its signature is wrong/ ],
	[ "$v.$t.$key." . ('0' x 64), qr/Its signature is wrong/ ],
	[ "$v.$t.0000000000000001.$signature", qr/signed by a key that this cluster does not have/ ],
	[ uc($token), qr/It is not what/ ],
	[ "$token ", qr/It is not what/ ],
	[ $other->query('s1', 'SELECT tessera.cluster_time_token()'), qr/signed by a key that this cluster does not have/ ])
{
	my ($wrong, $why) = @$case;
	my $error = $c->error('r1', "SET tessera.after_cluster_time = '$wrong'");
	like($error, qr/22023: .*invalid cluster time token/, substr($wrong, 0, 24) . ' is refused');
	like($error, $why, 'and told why');
}
is($c->query('r1', "SELECT tessera.cluster_time() < $before + 4294967296::numeric * 3600"), 't', 'the clock is unmoved');
like($c->error('s1', "ALTER ROLE postgres SET tessera.after_cluster_time = 'x'"), qr/22023|invalid/, 'nor is it a setting of a role');

# signed, but too far ahead
$c->node('r1')->append_conf('postgresql.conf', "tessera.max_clock_drift = 60s\ntessera.clock_shift = -3600000");
$c->node('r1')->reload;
ok($c->wait_for('r1', "SELECT setting FROM pg_settings WHERE name = 'tessera.clock_shift'", '-3600000', 30), 'the router\'s wall clock is behind');
$c->query('s1', "UPDATE t SET v = 'x' WHERE k = 1");
$token = token_of('s1');
$before = now_on('r1');
like($c->error('r1', "SET tessera.after_cluster_time = '$token'"), qr/22023: .*It is 3\d\d\d s ahead of this server's clock/s,
	'a time far ahead is refused');
is(now_on('r1'), $before, 'and the clock is unmoved');
$c->node('r1')->append_conf('postgresql.conf', "tessera.clock_shift = 0");
$c->node('r1')->reload;
ok($c->wait_for('r1', "SELECT setting FROM pg_settings WHERE name = 'tessera.clock_shift'", '0', 30), 'it is right again');
is($c->query('r1', "SET tessera.after_cluster_time = '$token'; SELECT 1"), '1', 'then the token is taken');

# who may see keys
$c->query('s1', 'CREATE ROLE reader LOGIN; GRANT pg_read_all_data TO reader; CREATE ROLE node LOGIN; GRANT tessera_internal, tessera_admin TO node');
is($c->query('s1', 'SET ROLE reader; SELECT count(*) FROM tessera.signing_key'), '0', 'who may read every table sees no key');
like($c->error('s1', 'SET ROLE node; SELECT key FROM tessera.signing_key'), qr/42501/, 'nor does a node\'s role');
is($c->query('s1', "SET ROLE reader; SELECT tessera.cluster_time_token() ~ '^v1'"), 't', 'everybody may have a token');

# keys: one to sign by, one that follows; rotation, with tokens of before
is($c->query('r1', 'SELECT count(*), min(expires) > now() FROM tessera.signing_key'), '2|t', 'the router has two keys');
my $old = token_of('r1');
$c->node('s1')->append_conf('postgresql.conf', 'tessera.signing_key_lifetime = 20s');
$c->node('s1')->reload;
$c->query('s1', "UPDATE tessera.signing_key SET expires = clock_timestamp()");
ok($c->wait_for('s1', 'SELECT count(*) > 3 FROM tessera.signing_key', 't', 60), 'keys that have expired are followed by others');
isnt((split /\./, token_of('s1'))[2], (split /\./, $old)[2], 'which sign');
is($c->query($_, "SET tessera.after_cluster_time = '$old'; SELECT 1"), '1', "a token of before is taken by $_") foreach ('s1', 's2', 'r1');
$token = token_of('s1');
is($c->query('s2', "SET tessera.after_cluster_time = '$token'; SELECT 1"), '1', 'a node fetches a key that it does not know yet');
done_testing();
