# A subscriber with a subscription to each shard copies every row once: a session of the replication protocol shows what its node owns, not the rows
# of other shards, nor those that have moved away and are still to be deleted.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

# what has moved away stays in the heap
my $c = TesseraCluster->new('publications', settings => { 'tessera.orphan_cleanup_delay' => 3600 });
$c->create(shards => 2);
my @tables = (
	'CREATE SCHEMA app',
	'CREATE TABLE t (k int PRIMARY KEY, v text)',
	'CREATE TABLE h (k int PRIMARY KEY, v text)',
	'CREATE TABLE app.p (k int PRIMARY KEY, v text)',
	'CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY RANGE (k)',
	'CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (50)',
	'CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (50) TO (200)');
$c->everywhere($_) foreach @tables;
$c->query('s1', $_) foreach (
	"SELECT tessera.shard_table('h', 'k', strategy => 'hash', chunks => 4)",
	(map { "INSERT INTO $_ SELECT g, 'copied' FROM generate_series(1, 100) g" } qw(t h app.p parts)),
	(map { ("SELECT tessera.shard_table('$_', 'k')", "SELECT tessera.move_range('$_', 30, 60, 's2')") } qw(t parts)));
my ($primary, $other) = $c->query('s1', "SELECT shard FROM tessera.schemas WHERE schema = 'app'") eq 's1' ? qw(s1 s2) : qw(s2 s1);
$c->query('s1', "SELECT tessera.move_schema('app', '$other')");

my %owned = (
	t => { s1 => '1,29,60,100', s2 => '30,59' },
	parts => { s1 => '1,29,60,100', s2 => '30,59' },
	parts_1 => { s1 => '1,29', s2 => '30,49' },
	'app.p' => { $primary => '', $other => '1,100' });

# Ends of the runs of the keys that COPY shows.
sub copied
{
	my ($node, $copy) = @_;
	my $port = $c->node($node)->port;
	my ($stdout, $stderr);
	IPC::Run::run([ 'psql', '-X', '-q', '-d', "host=127.0.0.1 port=$port dbname=postgres replication=database", '-c', "COPY $copy TO STDOUT" ],
		'>', \$stdout, '2>', \$stderr);
	is($stderr, '', "COPY $copy on $node");
	my @keys = sort { $a <=> $b } split /\n/, $stdout;
	return join ',', grep { my $k = $_; !grep({ $_ == $k - 1 } @keys) || !grep({ $_ == $k + 1 } @keys) } @keys;
}

foreach my $table (sort keys %owned)
{
	# a partitioned table only as a query, as on one server
	is(copied($_, "$table (k)"), $owned{$table}{$_}, "$table on $_") foreach $table eq 'parts' ? () : qw(s1 s2);
	is(copied($_, "(SELECT k FROM $table WHERE v = 'copied')"), $owned{$table}{$_}, "$table on $_, as a query") foreach qw(s1 s2);
	isnt($c->query('s1', "SELECT count(*) FROM $table WHERE v = 'copied'"), '0', 'a session of a client sees them all');
}

my $published = 't, h, app.p, parts';
foreach my $node (qw(s1 s2))
{
	$c->query($node, "CREATE PUBLICATION cluster FOR TABLE $published");
	$c->plain_query(sprintf("CREATE SUBSCRIPTION from_$node CONNECTION %s PUBLICATION cluster", TesseraCluster::quote($c->conninfo($node))));
}
ok($c->plain->poll_query_until('postgres', "SELECT count(*) = 10 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel"),
	'all tables of both shards are copied');
foreach my $table (split /, /, $published)
{
	my ($same, $detail) = $c->same_everywhere("SELECT k, v FROM $table");
	ok($same, "$table: each row once") or diag $detail;
}
$c->query('s2', "INSERT INTO t SELECT g, 'later' FROM generate_series(-10, 0) g; UPDATE t SET v = 'changed' WHERE k IN (31, 61)");
ok($c->plain->poll_query_until('postgres', "SELECT count(*) = 111 AND count(*) FILTER (WHERE v = 'changed') = 2 FROM t"), 'and changes follow');
$c->plain_query("DROP SUBSCRIPTION from_$_") foreach qw(s1 s2);

done_testing();
