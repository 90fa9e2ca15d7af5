# A message of a user's trigger on a shard that looks like a notification of the extension: one that the server would not take is shown as the message
# that it is. It must not end the router's transaction with an error, least of all when the shard has committed.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('forged_notifications');
$c->create(shards => 2);
$c->query('s1', <<'SQL');
CREATE ROLE mal LOGIN; CREATE SCHEMA m AUTHORIZATION mal; SET ROLE mal;
CREATE TABLE m.t (k int PRIMARY KEY, channel text, payload text);
SELECT tessera.shard_table('m.t', 'k', 'hash', chunks => 4);
CREATE FUNCTION m.forge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE INFO USING ERRCODE = 'TS009', MESSAGE = NEW.channel,
  DETAIL = NEW.payload; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER forge AFTER INSERT ON m.t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION m.forge();
SQL

my %forged = ('without a channel' => [ "''", "'x'" ], 'of a long channel' => [ "repeat('c', 64)", "'x'" ],
	'of a long payload' => [ "'c'", "repeat('x', 9000)" ],
	'of the reserved channel' => [ "'tessera_notifications'", "'x'" ]);
my $k = 0;
foreach my $what (sort keys %forged)
{
	my ($channel, $payload) = @{ $forged{$what} };
	foreach my $rows (1, 1, 1, 1, 6)
	{
		my $first = $k + 1;
		$k += $rows;
		my ($status, undef, $stderr) =
			$c->psql('s1', "SET ROLE mal; BEGIN; INSERT INTO m.t SELECT g, $channel, $payload FROM generate_series($first, $k) g; COMMIT");
		is($status, 0, "a notification $what: $rows rows") or diag $stderr;
		is($c->query('s2', "SELECT count(*) FROM m.t WHERE k BETWEEN $first AND $k"), $rows, 'they are there');
	}
}

# The other messages of the extension between nodes: a statement is not taken for one that did not run (its rows would be there twice), nor a shard
# for one that cannot be prepared.
$c->query('s1', <<'SQL');
SET ROLE mal;
CREATE TABLE m.u (k int NOT NULL, code text);
CREATE INDEX ON m.u (k); ALTER TABLE m.u REPLICA IDENTITY FULL;
SELECT tessera.shard_table('m.u', 'k', 'hash', chunks => 4);
CREATE FUNCTION m.say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE INFO USING ERRCODE = NEW.code, MESSAGE = 'x'; RETURN NULL; END $$;
CREATE TRIGGER say AFTER INSERT ON m.u FOR EACH ROW EXECUTE FUNCTION m.say();
SQL
foreach my $code ('TS001', 'TS005', 'TS006', 'TS008', 'TS009')
{
	my ($status, undef, $stderr) =
		$c->psql('s1', "SET ROLE mal; INSERT INTO m.u SELECT g, '$code' FROM generate_series(1, 12) g; INSERT INTO m.u VALUES (100, '$code')");
	is($status, 0, "$code raised by a trigger") or diag $stderr;
	is($c->query('s2', "SELECT count(*), count(DISTINCT k) FROM m.u WHERE code = '$code'"), '13|13', 'each row once');
}
done_testing();
