# pg_stat_statements on a shard keeps the statements of applications: what nodes say to each other at the end of a transaction, which has a new
# identifier each time, is no statement of its own there, whichever of the two libraries comes first.
use strict;
use warnings;

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('stat', settings => { compute_query_id => 'on', 'pg_stat_statements.track' => 'all' });
$c->start_node('s1', start => 0, settings => { shared_preload_libraries => 'tessera,pg_stat_statements' });
$c->start_node('s2', start => 0, settings => { shared_preload_libraries => 'pg_stat_statements,tessera' });
$c->start_node('r1', start => 0, settings => { shared_preload_libraries => 'tessera,pg_stat_statements' });
$c->start_new('s1', 's2', 'r1');
$c->query($_, 'CREATE EXTENSION pg_stat_statements') foreach 's1', 's2', 'r1';
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)',
	'INSERT INTO accounts SELECT g, 100 FROM generate_series(1, 20) g',
	"SELECT tessera.shard_table('accounts', 'id')",
	"SELECT tessera.move_range('accounts', 11, tessera.maxkey(), 's2')",
	'SELECT tessera.stop_balancer()');

# Transactions over both shards, which client and node end in every way. COUNT transfers through each node.
my $number = 0;

sub transfers
{
	my ($via, $count) = @_;
	my $transfer = 'UPDATE accounts SET balance = balance - 1 WHERE id = 3; UPDATE accounts SET balance = balance + 1 WHERE id = 13';
	my @script = ("BEGIN; $transfer; COMMIT") x $count;
	push @script, map { $number++; ("BEGIN; $transfer; PREPARE TRANSACTION 'client $number'", "$_ PREPARED 'client $number'") } qw(COMMIT ROLLBACK);
	$c->query($via, join(";\n", @script));
	return;
}

sub statements
{
	my ($name) = @_;
	return $c->query($name, "SELECT DISTINCT query FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database
		WHERE datname = current_database()) AND query ~* '^(PREPARE TRANSACTION|(COMMIT|ROLLBACK) PREPARED|SET )' ORDER BY 1");
}

$c->query($_, 'SELECT pg_stat_statements_reset()') foreach 's1', 's2';
transfers('r1', 50);
is(statements($_), '', "$_ keeps no statement of one use") foreach 's1', 's2';
my %before = map { $_ => $c->query($_, 'SELECT count(*) FROM pg_stat_statements') } 's1', 's2';
transfers($_, 20) foreach 's1', 's2', 'r1';
foreach my $name ('s1', 's2')
{
	# those that client sends itself: COMMIT or ROLLBACK PREPARED with identifiers of its own, and what runs once for them
	my $new = $c->query($name, 'SELECT count(*) FROM pg_stat_statements') - $before{$name};
	cmp_ok($new, '<', 30, "$name: the number of statements is bounded");
	unlike(statements($name), qr/tessera_/, "$name keeps none of the cluster's identifiers");
	is($c->query($name, "SELECT count(*) > 0 FROM pg_stat_statements WHERE query ~ '^UPDATE .*accounts' AND calls >= 50"), 't',
		"$name keeps the application's");
}
like($c->query('s1', "SELECT string_agg(query, ';') FROM pg_stat_statements WHERE query ~* 'PREPARED'"), qr/COMMIT PREPARED 'client/,
	'and what a client prepares and ends itself');
is($c->query('r1', 'SELECT sum(balance) FROM accounts'), 2000, 'no money is lost');

done_testing();
