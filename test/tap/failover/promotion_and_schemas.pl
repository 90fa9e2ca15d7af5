# The config node is promoted without its newest commits, among them the end of a schema's move: it learns from the shards where the schema is, also
# if it was the schema's first move, by which the schema got its table group; and that its sequences had followed, so that no value comes twice.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('schema_promotion', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.connect_timeout' => '2s', 'tessera.balancer_interval' => 3600, 'tessera.split_interval' => 600000 });
$c->create(shards => 3);
$c->query('s1', 'SELECT tessera.stop_balancer()');
# One of these lives on s2 from the beginning.
$c->query('s1', "CREATE SCHEMA $_; CREATE TABLE $_.t (k int PRIMARY KEY, v int NOT NULL DEFAULT 0);
	CREATE SEQUENCE $_.s") foreach 'one', 'two', 'three';
my $schema = $c->query('s1', "SELECT schema FROM tessera.schemas WHERE shard = 's2' ORDER BY schema LIMIT 1");
isnt($schema, '', 'a schema lives on s2');
$c->query('s1', "INSERT INTO $schema.t SELECT g FROM generate_series(1, 1000) g");

sub lose_move
{
	my ($what, $to, $mod) = @_;
	$c->add_standby('s1');
	$c->cut_standby('s1');
	$c->query('s1', "SELECT nextval('$schema.s') FROM generate_series(1, 100)");
	$c->query('s3', "SELECT tessera.move_schema('$schema', '$to')");
	ok($c->wait_for('s1', "SELECT sequences_on FROM tessera.schemas WHERE schema = '$schema'", $to), "$what: the sequences have followed");
	my $drawn = $c->query($to, "SELECT max(nextval('$schema.s')) FROM generate_series(1, 1000)");
	$c->promote('s1', lossy => 1);
	ok($c->wait_for('s1', 'SELECT placements_known AND metadata_known FROM tessera.promotion_status()', 't', 60), "$what: the config node knows")
	  or diag $c->query('s1', 'SELECT * FROM tessera.promotion_status()');
	ok($c->wait_for($_, "SELECT shard FROM tessera.schemas WHERE schema = '$schema'", $to), "$what: $_ knows where it is") foreach $c->names;
	foreach my $name ($c->names)
	{
		is($c->query($name, "SELECT count(*), count(DISTINCT k) FROM $schema.t"), '1000|1000', "$what: $name shows each row once");
		is($c->query($name, "UPDATE $schema.t SET v = v + 1 WHERE k = 7 RETURNING k"), 7, "$what: $name changes one");
	}
	ok($c->wait_for($_, "SELECT sequences_on FROM tessera.schemas WHERE schema = '$schema'", $to), "$what: $_ knows where its sequences are")
	  foreach $c->names;
	is($c->query($_, "SELECT nextval('$schema.s') > $drawn"), 't', "$what: no value comes twice from $_") foreach $c->names;
	is($c->query('s1', "SELECT mod >= $mod FROM tessera.schemas WHERE schema = '$schema'"), 't', "$what: its version has not gone back");
	$c->is_settled($what);
	return;
}

lose_move('the first move', 's3', 1);
lose_move('a later move', 's2', 2);
$c->query('s1', "SELECT tessera.move_schema('$schema', 's3')");
is($c->query('s2', "SELECT sum(v), count(*) FROM $schema.t"), '6|1000', 'it can be moved again, and nothing is lost');
$c->is_settled('in the end');
done_testing();
