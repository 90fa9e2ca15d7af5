# Clients repeat each write several times through nodes drawn at random, over connections that are cut by themselves and by the servers, while ranges
# and the records move and nodes are killed: each has its effect once, and is given the same answer each time. That the checks can fail is shown by a
# build that leaves the record out.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Run ();
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $python = '/usr/bin/python3';    # the one that Debian's packages are for
plan skip_all => 'psycopg is not installed' if system("$python -c 'import psycopg' >/dev/null 2>&1") != 0;

my $client = dirname(abs_path(__FILE__)) . '/../../client/retry_storm.py';
my $c = TesseraCluster->new('retry_storm', settings => { 'tessera.injection_points' => 'on', restart_after_crash => 'on',
	'tessera.orphan_cleanup_delay' => 50, max_connections => 120 });
$c->create(shards => 3);
my @nodes = $c->names;
$c->query('s1', $_) foreach (
	'SELECT tessera.enable_sessions()',
	'CREATE TABLE counter (k int PRIMARY KEY, n int NOT NULL)',
	"SELECT tessera.shard_table('counter', 'k', 'hash', chunks => 6)",
	'CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client int, number int, note text)',
	"SELECT tessera.shard_table('entry', 'id', 'hash', chunks => 6)",
	'INSERT INTO counter SELECT g, 0 FROM generate_series(1, 40) g');
ok($c->wait_for($_, 'SELECT count(*) FROM tessera.tables WHERE kind = \'sharded\'', '4'), "$_ knows the tables") foreach @nodes;

my $round = 0;

# A storm while code runs. Returns what was wrong with its operations, and whether the clients came to their end.
sub storm
{
	my ($clients, $operations, $code) = @_;
	$round++;
	my $stop = PostgreSQL::Test::Utils::tempdir() . "/stop";
	my ($out, $err) = ('', '');
	$c->query('s1', 'UPDATE counter SET n = 0');
	$c->query('s1', 'DELETE FROM entry');
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	my $handle = IPC::Run::start([ $python, $client, $round, $clients, $operations, $stop, map { $c->conninfo($_) } @nodes ], '<', \undef, '>', \$out,
		'2>', \$err, IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
	$code->($handle, \$out);
	append_to_file($stop, '');
	my $ended = $handle->finish;
	diag $err if $err ne '';
	my (%expected, @wrong);
	my $bumps = 0;
	foreach my $line (split /\n/, $out)
	{
		my $operation = decode_json($line);
		my $what = "client $operation->{client}, number $operation->{number}, $operation->{kind}";
		push @wrong, "$what: different answers: " . encode_json($operation->{answers}) if @{ $operation->{answers} } > 1;
		$bumps += { insert => 0, update => 1, several => 2, conflict => 1, block => 2 }->{ $operation->{kind} };
		$expected{"$operation->{client}|$operation->{number}"} = 1 if $operation->{kind} =~ /insert|block/;
	}
	foreach my $row (split /\n/, $c->query('s2', 'SELECT client, number, count(*) FROM entry GROUP BY 1, 2'))
	{
		my ($who, $count) = $row =~ /^(.*)\|(\d+)$/;
		push @wrong, "$who: $count entries" if $count != 1 || !$expected{$who};
		delete $expected{$who};
	}
	push @wrong, "$_: no entry" foreach keys %expected;
	my $sum = $c->query('s3', 'SELECT sum(n) FROM counter');
	push @wrong, "counters: $sum, not $bumps" if $sum != $bumps;
	my $attempts = () = $out =~ /\n/g;
	note "$attempts operations";
	return (\@wrong, $ended);
}

# ---- moves of the data and of the records ----

my ($wrong, $ended) = storm(6, 15, sub {
	my @sessions = split /\n/, $c->query('s1', 'SELECT id FROM tessera_session.session');
	my @moved = ([ 'counter', '5' ], [ 'entry', '7' ], map { [ 'tessera_session.session', "'$_'::uuid" ] } @sessions);
	my $moves = 0;
	foreach my $turn (0 .. 2 * @moved - 1)
	{
		my ($table, $key) = @{ $moved[ $turn % @moved ] };
		my $owner = $c->query('s1', "SELECT tessera.range_owner('$table', $key)");
		my ($to) = grep { $_ ne $owner } @nodes[ $turn % 3 .. 2, 0 .. 2 ];
		my ($status, undef, $error) = $c->psql('s1', "SELECT tessera.move_chunk('$table', $key, '$to')");
		note "$table to $to: $error" if $status;
		$moves++ if $status == 0;
	}
	cmp_ok($moves, '>', @moved, 'ranges have moved');
});
ok($ended, 'the clients come to their end while ranges move');
is(join("\n", @$wrong), '', 'each operation was done once, with one answer');

# ---- nodes that die ----

($wrong, $ended) = storm(6, 15, sub {
	foreach my $victim ('s2', 's3', 's1')
	{
		$c->kill9($victim);
		$c->start($victim);
		ok($c->wait_for($victim, 'SELECT 1', '1'), "$victim is back");
	}
});
ok($ended, 'the clients come to their end though nodes die');
is(join("\n", @$wrong), '', 'each operation was done once, with one answer');
ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xact()', '0'), "nothing stays prepared on $_") foreach @nodes;

# ---- the checks find what they look for ----

$c->query($_, "SELECT tessera_test.injection_set('session_record', 'skip')") foreach @nodes;
($wrong) = storm(4, 12, sub { });
isnt(join("\n", @$wrong), '', 'without records something is done twice');
done_testing();
