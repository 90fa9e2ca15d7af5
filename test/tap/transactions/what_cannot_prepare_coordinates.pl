# What a node cannot PREPARE makes it the coordinator of the two-phase commit (doc/design.md#unpreparable): temporary objects of triggers. Two such
# nodes are refused, and nothing is left of the transaction. Notifications of triggers are sent by the session, whose node then coordinates.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);
use TesseraCluster;

my $c = TesseraCluster->new('coordinator');
$c->start_nodes('s1', 's2', 's3');
$c->query('s1', <<'SQL');
CREATE TABLE quiet (id int PRIMARY KEY);
CREATE TABLE noisy (id int PRIMARY KEY);
CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = 'shard'
  AS $$ BEGIN PERFORM pg_notify('shout', NEW.id::text); RETURN NULL; END $$;
CREATE TRIGGER shout AFTER INSERT ON noisy FOR EACH ROW EXECUTE FUNCTION shout();
CREATE TABLE scratchy (id int PRIMARY KEY);
CREATE FUNCTION scratch() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = 'shard'
  AS $$ BEGIN CREATE TEMP TABLE IF NOT EXISTS scratch_pad (a int); INSERT INTO scratch_pad
  VALUES (NEW.id); RETURN NEW; END $$;
CREATE TRIGGER scratch BEFORE INSERT ON scratchy FOR EACH ROW EXECUTE FUNCTION scratch();
SQL
$c->create(shards => 3);
$c->query('s1', "SELECT tessera.shard_table('$_', 'id', 'hash', chunks => 12)") foreach qw(quiet noisy scratchy);
ok($c->wait_for($_, 'SELECT count(DISTINCT shard) FROM tessera.chunks', '3'), "$_ knows the chunks") foreach $c->names;

my %ids;
foreach my $table (qw(quiet noisy scratchy))
{
	foreach my $line (split /\n/, $c->query('s1', "SELECT g, tessera.range_owner('$table', g) FROM generate_series(1, 200) g"))
	{
		my ($id, $owner) = split /\|/, $line;
		push @{ $ids{$table}{$owner} }, $id;
	}
}
# A transaction through s1 that inserts in these (table, shard), in this order.
sub script { return 'BEGIN; ' . join('; ', map { "INSERT INTO $_->[0] VALUES (" . shift(@{ $ids{ $_->[0] }{ $_->[1] } }) . ')' } @_) . '; COMMIT'; }
sub total { return $c->query('s2', 'SELECT (SELECT count(*) FROM quiet) + (SELECT count(*) FROM noisy) + (SELECT count(*) FROM scratchy)'); }
sub decisions { return join(',', map { $c->query($_, 'SELECT count(*) FROM tessera.transaction_decision') } $c->names); }
sub prepared { return join(',', map { $c->query($_, 'SELECT count(*) FROM pg_prepared_xact()') } $c->names); }

$c->query($_, "SELECT tessera.prune_decisions('0')") foreach $c->names;
my $listener = $c->session('s3');
$listener->query_safe('LISTEN shout');

$c->query('s1', script([ 'quiet', 's2' ], [ 'quiet', 's3' ]));
is(decisions(), '0,1,0', 'the first writer coordinates');
$c->query('s1', script([ 'quiet', 's2' ], [ 'noisy', 's3' ]));
is(decisions(), '1,1,0', 'unless a trigger has notified: then the session\'s node');
my ($heard, $deadline) = ('', time + $PostgreSQL::Test::Utils::timeout_default);
while ($heard !~ /Asynchronous notification/ && time < $deadline)
{
	$heard .= $listener->query_safe('SELECT 1');
	sleep 0.05;
}
like($heard, qr/Asynchronous notification "shout"/, 'which is heard everywhere');
$c->query('s1', script([ 'quiet', 's2' ], [ 'scratchy', 's3' ]));
is(decisions(), '1,1,1', 'or another has used temporary objects');
$c->query('s1', script([ 'noisy', 's3' ]));
is(decisions(), '1,1,1', 'one writer needs no coordinator');
$c->query('s1', script([ 'quiet', 's1' ], [ 'quiet', 's2' ], [ 'quiet', 's3' ]));
is(decisions(), '2,1,1', 'who writes here, coordinates here');
my $before = total();

foreach my $two ([ [ 'scratchy', 's2' ], [ 'scratchy', 's3' ] ], [ [ 'quiet', 's1' ], [ 'scratchy', 's3' ] ])
{
	like($c->error('s1', script(@$two)), qr/0A000.*cannot commit on several nodes what was done on node "s3".*Write to rows of one shard/s,
		'two such nodes are refused');
}
is(total(), $before, 'and nothing is left of it');
is(prepared(), '0,0,0', 'nor prepared');
$c->query('s1', script([ 'noisy', 's1' ], [ 'quiet', 's2' ]));
is(decisions(), '3,1,1', 'a notification of this node is no matter: it coordinates');
$c->query('s1', script([ 'noisy', 's2' ], [ 'scratchy', 's3' ]));
is(decisions(), '3,1,2', 'nor is one of a trigger for a node that has used temporary objects');
$c->query('s1', script([ 'quiet', 's2' ], [ 'quiet', 's3' ]));
is(decisions(), '3,2,2', 'the next transaction has forgotten it');
$listener->quit;
done_testing();
