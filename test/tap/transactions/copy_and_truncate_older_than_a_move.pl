# COPY FROM and TRUNCATE that began before a move's commit and come to the table after it, on the donor, on the recipient and on a third node: what
# the statement's own snapshot sees is older than its locks. They go on by the new placements; they do not look at the old ones again and again until
# they fail (40001), with everybody else behind their locks.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('utility', settings => { 'tessera.injection_points' => 'on', 'tessera.critical_section_budget' => '20s',
	'tessera.gate_timeout' => '40s' });
# s1 keeps the keys from 1001 on: each node has a local part, before the move or after it.
$c->create(shards => 3);
$c->query('s1', $_) foreach (
	'CREATE TABLE t (k int PRIMARY KEY, v text)',
	"SELECT tessera.shard_table('t', 'k')",
	"SELECT tessera.move_range('t', 501, 1001, 's3')");

# psql in the background.
my $directory = PostgreSQL::Test::Utils::tempdir();
my $number = 0;

sub start
{
	my ($node, $sql) = @_;
	my %run = (node => $node, said => '');
	my $file = "$directory/" . ++$number;
	append_to_file($file, $sql);
	$run{handle} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '-h', $c->node($node)->host, '-p',
		$c->node($node)->port, 'postgres' ],
		'<', $file, '>', '/dev/null', '2>', \$run{said}, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return \%run;
}

sub succeeds
{
	my ($run, $name) = @_;
	$run->{handle}->finish;
	is($run->{handle}->result(0), 0, $name) or diag $run->{said};
	return;
}

# A statement of each node waits at the closed gate of s1, which then gives the range from 1 to 501 to s2.
my $waiting = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event_type = 'Extension' AND " .
	"(query LIKE 'COPY%' OR query LIKE '%internal_copy_check%')";
$c->query('s1', "SELECT tessera_test.injection_set('donor_write_gate', 'pause')");
my $move = start('s1', "SELECT tessera.move_range('t', 1, 501, 's2');");
ok($c->wait_for('s1', "SELECT max(paused) FROM tessera_test.injection_list()", '1'), 'the gate is closed');
my $key = 0;
my @copies = map { $key++; start($_, "COPY t FROM STDIN;\n" . join('', map { $key + $_ . "\tx\n" } 100, 600, 1100) . "\\.\n") } $c->names;
ok($c->wait_for('s1', $waiting, '3'), 'a COPY of each node waits at it');
$c->query('s1', "SELECT tessera_test.injection_clear('donor_write_gate')");
succeeds($move, 'the move gets there');
succeeds($_, "the COPY of $_->{node}, too") foreach @copies;
is($c->query('s1', "SELECT tessera.range_owner('t', 100)"), 's2', 'the range has moved');
is(join(' ', $c->query_all('SELECT count(*), count(DISTINCT k) FROM t')), '9|9 9|9 9|9', 'every row is there once');

# A TRUNCATE of each node waits for a move that the config node was told to commit.
my %range = (s1 => 's3', s2 => 's1', s3 => 's2');
foreach my $node ($c->names)
{
	my $donor = $c->query('s1', "SELECT tessera.range_owner('t', 100)");
	$c->query('s1', "INSERT INTO t SELECT g, 'x' FROM generate_series(1, 2000) g ON CONFLICT DO NOTHING");
	$c->query($donor, "SELECT tessera_test.injection_set('config_committed', 'pause')");
	$move = start('s1', "SELECT tessera.move_range('t', 1, 501, '$range{$donor}');");
	ok($c->wait_for($donor, "SELECT max(paused) FROM tessera_test.injection_list()", '1'), "a move of $donor is committed, and $donor does not know");
	my $truncate = start($node, 'TRUNCATE t;');
	ok($c->wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'TRUNCATE%'", '1'),
		"$node: TRUNCATE has begun");
	$c->query($donor, "SELECT tessera_test.injection_clear('config_committed')");
	succeeds($move, 'the move gets there');
	succeeds($truncate, "the TRUNCATE of $node, too");
	is(join(' ', $c->query_all('SELECT count(*) FROM t')), '0 0 0', 'nothing is left');
}
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');
done_testing();
