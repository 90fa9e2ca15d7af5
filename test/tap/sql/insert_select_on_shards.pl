# INSERT ... SELECT within a group of tables is run by the shards, each with its own rows: the same rows as on a plain server, from a node that owns
# nothing and from one that owns a part, with triggers, defaults, ON CONFLICT and RETURNING, and while ranges move.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('inserts');
$c->create(shards => 3, routers => 1);
my $plain = $c->plain->background_psql('postgres');
$plain->set_query_timer_restart;

my $schema = <<'SQL';
CREATE TABLE a (k int PRIMARY KEY, v int, t text, big int8);
CREATE TABLE b (k int, i int, v int, PRIMARY KEY (k, i));
CREATE TABLE target (k int PRIMARY KEY, v int NOT NULL DEFAULT 7, t text DEFAULT 'none', at timestamptz DEFAULT now(),
  twice int GENERATED ALWAYS AS (v * 2) STORED);
CREATE TABLE numbered (k int, n int GENERATED ALWAYS AS IDENTITY, v int, PRIMARY KEY (k, n));
CREATE TABLE log (k int NOT NULL, was text); ALTER TABLE log REPLICA IDENTITY FULL; CREATE INDEX ON log (k);
CREATE TABLE small (id int PRIMARY KEY, name text);
CREATE TABLE outside (k int PRIMARY KEY, v int);
CREATE FUNCTION checked() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
  IF NEW.v = 13 THEN RETURN NULL; END IF; NEW.t := coalesce(NEW.t, '') || ' checked'; RETURN NEW; END$$;
CREATE FUNCTION moves_key() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.k := 4000 - NEW.k; RETURN NEW; END$$;
CREATE FUNCTION counted(x int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$BEGIN RETURN x + 1; END$$;
SQL
my $rows = <<'SQL';
INSERT INTO a SELECT g, g % 20, 'text ' || g % 3, g FROM generate_series(1, 3000) g;
INSERT INTO b SELECT g, i, g % 7 FROM generate_series(500, 3200) g, generate_series(1, 3) i;
INSERT INTO small SELECT g, 'name ' || g % 4 FROM generate_series(1, 9) g;
INSERT INTO outside SELECT g, g FROM generate_series(1, 30) g;
SQL
$c->query('s1', $schema);
$plain->query_safe($schema);
$c->query('s1', q{SELECT tessera.shard_table('a', 'k')});
$c->query('s1', qq{SELECT tessera.shard_table('$_', 'k', colocate_with => 'a')}) foreach qw(b target numbered log);
$c->query('s1', q{SELECT tessera.replicate_table('small')});
$c->query('s1', $rows);
$plain->query_safe($rows);
$c->query('s1', q{SELECT tessera.move_range('a', 1000, 2000, 's2'), tessera.move_range('a', 2000, tessera.maxkey(), 's3')});

my $trigger = 'CREATE TRIGGER checked BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION checked()';
# what each entry does, and whether the shards do it by themselves
my @inserts = (
	[ 1, 'INSERT INTO target (k, v, t, at) SELECT k, v, t, NULL::timestamptz FROM a' ],
	[ 1, 'INSERT INTO target (v, t, at, k) SELECT v + 1, upper(t), now(), k FROM a WHERE v < 9' ],
	[ 1, 'INSERT INTO target (k, v, t, at) SELECT a.k, b.v, small.name, NULL::timestamptz FROM a JOIN b ON b.k = a.k AND b.i = 1
	    JOIN small ON small.id = a.v' ],
	[ 1, 'INSERT INTO target (k, v, t, at) SELECT a.k, count(b.k), max(a.t), NULL::timestamptz FROM a LEFT JOIN b ON b.k = a.k GROUP BY a.k' ],
	[ 1, 'INSERT INTO target SELECT DISTINCT k, 5, max(t), NULL::timestamptz FROM a WHERE NOT EXISTS (SELECT FROM b WHERE a.k = b.k AND b.v > 3)
	    GROUP BY k' ],
	[ 1, 'INSERT INTO target SELECT k, row_number() OVER (PARTITION BY k ORDER BY i), NULL::text, NULL::timestamptz FROM b WHERE i = 2' ],
	[ 0, 'INSERT INTO target (k, v, t, at) SELECT k, v, t, NULL::timestamptz FROM a ON CONFLICT (k) DO UPDATE SET v = target.v + excluded.v' ],
	[ 1, 'INSERT INTO target (k, v, t, at) SELECT k, v + 1000, t, NULL::timestamptz FROM a ON CONFLICT DO NOTHING' ],
	[ 1, 'INSERT INTO log (k, was) SELECT k, t FROM target WHERE v > 10' ],
	[ 1, 'INSERT INTO log SELECT k, was FROM log' ],
	[ 0, 'INSERT INTO target (k, v) SELECT k, v FROM a' ],
	[ 0, 'INSERT INTO target (k, v) SELECT k + 5000, v FROM a' ],
	[ 0, 'INSERT INTO target (k, v) SELECT v + 6000, max(k) FROM a GROUP BY v' ],
	[ 0, 'INSERT INTO target (k, v) SELECT counted(k) + 9000, v FROM a WHERE k < 100' ],
	[ 0, 'INSERT INTO target (k, v) SELECT k + 20000, counted(v) FROM a WHERE k % 10 = 0' ],
	[ 0, 'INSERT INTO log SELECT k, counted(v)::text FROM a WHERE k % 10 = 0' ],
	[ 0, 'INSERT INTO log SELECT k, (SELECT count(*) FROM b)::text FROM a WHERE k % 10 = 0' ],
	[ 0, 'INSERT INTO log SELECT a.k, o.v::text FROM a JOIN outside o ON o.k = a.k' ],
	[ 0, 'INSERT INTO log SELECT k, t FROM a ORDER BY v, k LIMIT 10' ],
	[ 0, 'INSERT INTO log SELECT k, t FROM a UNION ALL SELECT k, v::text FROM b' ],
	[ 1, 'INSERT INTO log SELECT b.k, a.t FROM a LEFT JOIN b ON b.k = a.k WHERE b.k IS NOT NULL' ],
	[ 0, 'INSERT INTO outside SELECT k, v FROM a WHERE k > 2900' ],
	[ 0, 'INSERT INTO log SELECT v, k::text FROM outside' ]);

sub contents
{
	return $_[0]->('SELECT count(*), sum(hashtext((k, v, t, twice)::text)) FROM target; SELECT count(*), sum(hashtext((k, was)::text)) FROM log;
		SELECT count(*), sum(v) FROM outside; SELECT count(*), count(DISTINCT n), sum(v) FROM numbered');
}

sub run_all
{
	my ($when, $node, $which) = @_;
	my $session = $c->session($node);

	foreach my $insert (grep { $_->[1] =~ $which } @inserts)
	{
		my $plan = $session->query_safe("EXPLAIN (COSTS off) $insert->[1]");

		both('TRUNCATE target') if $insert->[1] =~ /^INSERT INTO target (?!.*ON CONFLICT)/s;

		is($plan =~ /\ACustom Scan \(Tessera\)/ ? 1 : 0, $insert->[0], "$when, $node: where it runs: $insert->[1]");
		$session->query_safe($insert->[1]);
		$plain->query_safe($insert->[1]);
		is(contents(sub { $session->query_safe($_[0]) }), contents(sub { $plain->query_safe($_[0]) }), "$when, $node: what is there then");
	}
	$session->quit;
}

sub both
{
	my ($statement) = @_;

	$c->query('s1', $statement);
	$plain->query_safe($statement);
}

my $clear = 'TRUNCATE target, log; DELETE FROM outside WHERE k > 30';
foreach my $node (qw(r1 s2))
{
	run_all('at rest', $node, qr/./);
	both($clear);
}
both($trigger);
run_all('with a trigger', 'r1', qr/target/);
both("$clear; DROP TRIGGER checked ON target");

# Rows come back, are counted, and are rolled back with all else.
sub sorted
{
	return join("\n", sort { $a cmp $b } split(/\n/, $_[0]));
}
foreach my $node (qw(r1 s1))
{
	my $session = $c->session($node);
	my $insert = 'INSERT INTO target SELECT k, v, t, NULL::timestamptz FROM a WHERE v < $1 ON CONFLICT (k) DO UPDATE SET v = 0 RETURNING k, v, twice';

	$session->query_safe("PREPARE p(int) AS $insert");
	foreach my $limit (3, 5, 5, 7, 9, 11, 13)
	{
		is(sorted($session->query_safe("EXECUTE p($limit)")), sorted($plain->query_safe($insert =~ s/\$1/$limit/r)),
			"RETURNING, prepared on $node, $limit");
	}
	$session->query_safe('BEGIN; SAVEPOINT s; INSERT INTO target (k, v) SELECT k, 1 FROM a WHERE v >= 13');
	is($session->query_safe('SELECT count(*) FROM target'), 3000, "seen on $node");
	$session->query_safe('ROLLBACK TO s');
	is($session->query_safe('SELECT count(*) FROM target'), $plain->query_safe('SELECT count(*) FROM target'), "and gone, on $node");
	$session->query_safe('ROLLBACK');
	is($session->query_safe(q{DO $$DECLARE n int; BEGIN INSERT INTO log SELECT k, t FROM a; GET DIAGNOSTICS n = ROW_COUNT;
	  RAISE EXCEPTION 'rows %', n;
	  EXCEPTION WHEN raise_exception THEN IF SQLERRM <> 'rows 3000' THEN RAISE 'not %', SQLERRM; END IF; END$$; SELECT count(*) FROM log}), 0,
		"rows are counted on $node");
	like($c->error($node, 'INSERT INTO target SELECT k, v, t, NULL::timestamptz FROM a'), qr/23505/, "a duplicate on $node");
	like($c->error($node, 'INSERT INTO target SELECT k, NULL::int, t, NULL::timestamptz FROM a WHERE k > 2990'), qr/23502/, "a NULL on $node");
	is($session->query_safe('SELECT count(*) FROM target'), $plain->query_safe('SELECT count(*) FROM target'),
		"nothing is left of it on $node");
	$session->quit;
	both($clear);
}

# Numbers stay unique over the cluster, so they are not the shards' to make.
both('INSERT INTO numbered (k, v) SELECT k, v FROM a');
is(contents(sub { $c->query('r1', $_[0]) }), contents(sub { $plain->query_safe($_[0]) }), 'identity columns');

# A trigger that gives a row a key of another shard.
$c->query('s1', 'CREATE TRIGGER moves_key BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION moves_key()');
isnt($c->error('r1', 'INSERT INTO target SELECT k, v, t, NULL::timestamptz FROM a'), '',
	'a row whose key its trigger gives to another shard is refused');
is($c->query('r1', 'SELECT count(*) FROM target'), 0, 'and all rows with it');
$c->query('s1', 'DROP TRIGGER moves_key ON target');

# Rights: of both tables, and policies of both.
$c->query('s1', <<'SQL');
CREATE ROLE writer LOGIN; GRANT SELECT (k, v) ON a TO writer; GRANT INSERT ON target TO writer; GRANT SELECT ON target TO writer;
ALTER TABLE a ENABLE ROW LEVEL SECURITY; CREATE POLICY low ON a USING (v < 5);
ALTER TABLE target ENABLE ROW LEVEL SECURITY; CREATE POLICY seen ON target USING (true) WITH CHECK (v < 3);
SQL
like($c->error('r1', 'SET ROLE writer; INSERT INTO target SELECT k, v, NULL::text, NULL::timestamptz FROM a'), qr/42501/,
	'a row that a policy refuses');
like($c->error('r1', 'SET ROLE writer; INSERT INTO target SELECT k, v, t, NULL::timestamptz FROM a'), qr/42501/, 'a column that may not be read');
is($c->query('r1', 'SET ROLE writer; INSERT INTO target SELECT k, v, NULL::text, NULL::timestamptz FROM a WHERE v IN (2, 9);
	SELECT count(*), min(v), max(v) FROM target'),
	'150|2|2', 'rows that policies let through');
$c->query('s1', 'ALTER TABLE a DISABLE ROW LEVEL SECURITY; ALTER TABLE target DISABLE ROW LEVEL SECURITY; TRUNCATE target');

# While ranges move, all rows are inserted, once.
my $script = <<'SQL';
\set n random(1, 1000000000)
BEGIN;
INSERT INTO log SELECT k, :n::text FROM a WHERE k BETWEEN 400 AND 1600;
SELECT 1 / (count(*) = 1201 AND count(DISTINCT k) = 1201)::int FROM log WHERE was = :n::text;
COMMIT;
SQL
my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 2, transactions => 10, script => $script, max_tries => 20);
my $moves = 0;
while ($moves < 3 || $load->running)
{
	$c->query('r1', "SELECT tessera.move_range('a', 500, 1500, '" . (qw(s3 s1 s2))[ $moves++ % 3 ] . "')");
}
my $result = $load->wait(120);
is("$result->{failed}|$result->{aborted}", '0|0', 'no statement failed but to be run again') or diag explain $result;
cmp_ok($result->{processed}, '>', 0, 'statements ran');
is($c->query('r1', 'SELECT count(*) FROM (SELECT was FROM log GROUP BY was HAVING count(*) <> 1201 OR count(DISTINCT k) <> 1201) s'), 0,
	'each statement has inserted each row once');

$plain->quit;
done_testing();
