# The last connection slots of a node are its superusers': sessions of other nodes' clients do not take them, though their connections log in as a
# superuser. Workers of the cluster may take half of them, so that what is in doubt is decided on a full node. And an administrator can limit the
# connections that the sessions of one role have.
use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

use constant RESERVED => 6;
use constant SLOTS => 26;
use constant WORKER => 65536;    # TESSERA_CALLER_IS_WORKER

my $c = TesseraCluster->new('reserved');
$c->start_node('s1', extension => 1, settings => { max_connections => SLOTS, superuser_reserved_connections => RESERVED });
$c->start_node($_, extension => 1, settings => { max_connections => 100 }) foreach 's2', 'r1';
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE ROLE mallory LOGIN', 'CREATE ROLE alice LOGIN', 'CREATE SCHEMA mallory AUTHORIZATION mallory',
	'SET ROLE mallory; CREATE TABLE mallory.t (k int PRIMARY KEY)', q{SELECT tessera.shard_table('mallory.t', 'k', 'hash', chunks => 4)},
	'CREATE TABLE other (k int PRIMARY KEY)', 'GRANT SELECT ON other TO alice');

my $read = 'SELECT count(*) FROM mallory.t';

sub session
{
	my ($role) = @_;
	my $session = $c->session('r1', on_error_stop => 0, extra_params => [ '-U', $role ]);
	$session->query('\set VERBOSITY verbose');
	return $session;
}

# Sessions in transactions, until one is refused: those that have a connection, and the one that has none.
sub fill
{
	my @inside;
	while (@inside < 2 * SLOTS)
	{
		my $session = session('mallory');
		return (\@inside, $session) if $c->answer($session, "BEGIN; $read") eq '53300';
		push @inside, $session;
	}
	return (\@inside, undef);
}

# Slots of s1 that are taken, but for the one by which it is asked.
sub taken
{
	return $c->query('s1', q{SELECT count(*) FROM pg_stat_activity
		WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()});
}

sub refusals
{
	my $log = slurp_file($c->node('s1')->logfile);
	return scalar(() = $log =~ /FATAL:  remaining connection slots are reserved for superusers of this node/g);
}

# ---- a shard is full for clients ----

my ($inside, $refused) = fill();
ok($refused, 'no session of a client gets in any more');
cmp_ok(taken(), '<=', SLOTS - RESERVED, 'the reserve is free');
like($refused->{stderr}, qr/ERROR:  53300: node "s1" has no connection slot left for sessions of other nodes/, 'the error names the node');
like($refused->{stderr}, qr/HINT:  .*tessera\.max_connections_per_user/, 'and what to do');
$refused->query('ROLLBACK');
my $before = refusals();
is($c->answer($refused, $read), '53300', 'the next statement fails, too') foreach 1 .. 3;
is(refusals() - $before, 3, 'each asks once');
is($c->answer($inside->[0], $read), '0', 'who is inside goes on');

my @superusers;
foreach my $i (1 .. RESERVED - 2)
{
	my $session = eval { $c->session('s1') };
	push @superusers, $session if $session;
}
is(scalar(@superusers), RESERVED - 2, 'a superuser still gets in');
$_->quit foreach @superusers;
is($c->query('s1', 'SELECT 1'), '1', 'and looks what there is');

# ---- a worker ----

# What clients leave is enough for a worker on another node that asks how a transaction ends which is in doubt there.
my $ids = $c->query('s1', q{SELECT string_agg(node_id::text, ' ' ORDER BY name) FROM tessera.node WHERE name IN ('s1', 's2')});
my ($s1, $s2) = split / /, $ids;
$c->query('s1', "SELECT count(pg_terminate_backend(pid)) FROM tessera.internal_sessions WHERE node = 's2'");
my ($more, $also_refused) = fill();
push @$inside, @$more;
my $gid = sprintf('tessera_%s_%d_%d', 'ab' x 16, $s1, $s2);
$c->query('s2', "SET tessera.replicate_ddl = off; BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '$gid'");
ok($c->wait_for('s2', 'SELECT count(*) FROM pg_prepared_xact()', '0'), 'what is in doubt on another node is decided by the one that is full');

# The caller says what it is. As many as half of the reserve stay free of workers.
my ($cluster, $claimed, $expected) = split /\|/, $c->query('s1', q{SELECT cluster_id, (SELECT incarnation FROM tessera.node WHERE name = 's2'),
	(SELECT incarnation FROM tessera.node WHERE name = 's1') FROM tessera.identity});
my ($protocol) = slurp_file("$FindBin::Bin/../../../src/common/protocol.h") =~ /define\s+TESSERA_PROTOCOL\s+(\d+)/;

sub hello
{
	my ($flags) = @_;
	my $call = sprintf("SELECT tessera_internal.hello('%s', 's2', '0.1.0', %d, %d, 1, %d, %d)", $cluster,
		$protocol + $flags, $s2, $claimed, $expected);
	my ($status, $out, $err) = $c->node('s1')->psql('postgres', $call);
	return $err =~ /FATAL:  remaining connection slots/ ? 'refused' : $out =~ /^\{\d+,$protocol\}$/ ? 'greeted' : $err . $out;
}

is(hello(0), 'refused', 'a client of another node');
is(hello(WORKER), 'greeted', 'a worker of another node');
push @superusers, $c->session('s1') while hello(WORKER) eq 'greeted' && @superusers < SLOTS;
is(hello(WORKER), 'refused', 'not for ever');
is($c->error_of($c->node('s1'), 'SELECT 1'), '', 'superusers have the rest');
$_->quit foreach splice @superusers;

# ---- after that ----

$_->quit foreach @$inside;
ok($c->wait_for('s1', 'SELECT count(*) < 15 FROM pg_stat_activity WHERE ' . q{backend_type = 'client backend'}, 't'), 'the sessions end');
is($c->answer($refused, $read), '0', 'and others get in');
is($c->query('r1', q{SELECT string_agg(name, ' ' ORDER BY name) FROM tessera.node}), 'r1 s1 s2', 'the node is none that was given up');
$_->quit foreach $refused, $also_refused;

# ---- a limit for each user ----

$c->set('r1', 'tessera.max_connections_per_user' => 2);
my ($first, $second, $third) = map { session('mallory') } 1 .. 3;
ok($c->heeds($_, 'tessera.max_connections_per_user', 2), 'a limit') foreach $first, $second, $third;
is($c->answer($_, $read), '0', 'a session of the role') foreach $first, $second;
is($c->answer($third, $read), '53300', 'one more than it may have');
like($third->{stderr}, qr/ERROR:  53300: too many connections for role "mallory" to node "s[12]"/, 'the error names role and node');
like($third->{stderr}, qr/DETAIL:  .*tessera\.max_connections_per_user/, 'and the setting');
is($c->answer($first, $read), '0', 'those that are open are used');
is($c->answer(session('alice'), 'SELECT count(*) FROM other'), '0', 'another role has its own');
is($c->query('r1', $read), '0', 'a superuser has no limit');
is($c->query('r1', "SET ROLE mallory; $read"), '0', 'nor has one that acts as the role: sessions are counted');
$first->quit;
ok($c->wait_for('r1', 'SELECT count(*) FROM pg_stat_activity WHERE usename = ' . "'mallory'", '2'), 'a session ends');
is($c->answer($third, $read), '0', 'another one has its place');
is($c->query('r1', q{SELECT sum(refused) FROM tessera.node_connections}) > 0 ? 1 : 0, 1, 'refusals are counted');

# Lanes beside the transaction's count, too.
is($c->answer($third, 'SELECT count(*) FROM pg_prepared_xacts'), '53300', 'a call to the config node takes one more');
$c->set('r1', 'tessera.max_connections_per_user' => 3);
ok($c->heeds($third, 'tessera.max_connections_per_user', 3), 'a higher one');
is($c->answer($third, 'SELECT count(*) FROM pg_prepared_xacts'), '0', 'for which there is room now');
my $fourth = session('mallory');
ok($c->heeds($fourth, 'tessera.max_connections_per_user', 3), 'also for a new session');
is($c->answer($fourth, $read), '53300', 'and then no more');
$third->quit;
ok($c->wait_for('r1', 'SELECT count(*) FROM pg_stat_activity WHERE usename = ' . "'mallory'", '2'), 'a session ends');
is($c->answer($fourth, $read), '0', 'and gives back both');
$c->set('r1', 'tessera.max_connections_per_user' => 0);

# ---- a full node is left out where one that is down is ----

# Its reserve is all but two: with three sessions of superusers no session of a client gets in.
$_->quit foreach $first, $second, $fourth;
$c->set('s2', superuser_reserved_connections => 98);
$c->restart('s2');
push @superusers, $c->session('s2') foreach 1 .. 3;
like($c->error('s1', 'SELECT * FROM mallory.t'), qr/53300: node "s2" has no connection slot left/, 'another shard is full');
$c->start_node('s3', extension => 1);
$c->query('s3', "CREATE ROLE $_ LOGIN") foreach 'mallory', 'alice';
like($c->query('s1', q{SELECT tessera.add_shard('s3', } . TesseraCluster::quote($c->conninfo('s3')) . ')'), qr/^\d+$/, 'a shard joins meanwhile');
is($c->query('s1', q{SELECT count(*) > 0 FROM tessera.advisory_home JOIN tessera.node USING (node_id) WHERE name = 's2'}), 't',
	'the full one keeps its advisory locks');

done_testing();
