# Types that are dropped and made anew, migrated or changed: sessions that have used the table go on. What is cached on connections and in plans goes
# by the types that are there now.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('types');
$c->create(shards => 2, routers => 1);
my @nodes = $c->names;

# Statements of a session over table t of columns k, v; $value is one of v's type.
sub statements
{
	my ($t, $value) = @_;
	return ("INSERT INTO $t VALUES (1, $value), (101, $value) ON CONFLICT (k) DO UPDATE SET v = excluded.v", "SELECT v FROM $t WHERE k = 101",
		"SELECT count(*) FROM $t WHERE v::text = ($value)::text", "SELECT count(*) FROM $t WHERE k = 1 AND v = $value",
		"UPDATE $t SET v = $value WHERE k = 101 RETURNING v",
		"UPDATE $t SET v = $value", "INSERT INTO $t VALUES (2, $value), (102, $value)", "SELECT v, count(*) FROM $t GROUP BY v",
		"SELECT a.v FROM $t a JOIN $t b USING (v) LIMIT 1",
		"DELETE FROM $t WHERE k IN (2, 102) RETURNING v", "SELECT max(k) FROM $t WHERE v IN ($value, NULL)");
}

sub sharded
{
	my ($t, $type) = @_;
	$c->query('s1', "CREATE TABLE $t (k int PRIMARY KEY, v $type); SELECT tessera.shard_table('$t', 'k'); SELECT " .
		"tessera.move_range('$t', 100, tessera.maxkey(), 's2')");
	return;
}

my %sessions = map { $_ => $c->session($_, on_error_stop => 0) } @nodes;
foreach my $node (@nodes)
{
	$sessions{$node}->query('\\set VERBOSITY verbose');
}

# Runs the statements in each session several times, so that their plans are generic ones; returns the errors.
sub errors_of
{
	my ($t, $value) = @_;
	my $errors = '';
	foreach my $node (@nodes)
	{
		foreach my $round (1 .. 2)
		{
			foreach my $sql (statements($t, $value))
			{
				$sessions{$node}{stderr} = '';
				$sessions{$node}->query($sql);
				$errors .= "$node: $sql: $sessions{$node}{stderr}\n" if $sessions{$node}{stderr} =~ /ERROR/;
			}
		}
		foreach my $round (1 .. 7)
		{
			$sessions{$node}{stderr} = '';
			$sessions{$node}->query("PREPARE p_$t(int) AS SELECT v FROM $t WHERE k = \$1") if $round == 1;
			$sessions{$node}->query("EXECUTE p_$t(101); EXECUTE p_$t(1)");
			$errors .= "$node: p_$t: $sessions{$node}{stderr}\n" if $sessions{$node}{stderr} =~ /ERROR/;
		}
		$sessions{$node}->query("DEALLOCATE p_$t");
	}
	return $errors;
}

sub goes_on
{
	my ($t, $value, $sql, $new_value, $what) = @_;
	is(errors_of($t, $value), '', "$what: before");
	$c->query($nodes[ int(rand(@nodes)) ], $sql);
	is(errors_of($t, $new_value), '', "$what: sessions go on");
	is($c->query('r1', "SELECT count(*), bool_and(v IS NOT NULL) FROM $t"), '2|t', "$what: rows are there");
	return;
}

srand(2);

# How frameworks migrate an enum.
$c->query('s1', "CREATE TYPE e1 AS ENUM ('a', 'b')");
sharded('en', 'e1');
goes_on('en', "'a'::e1", q{BEGIN; CREATE TYPE e1_new AS ENUM ('a', 'c'); ALTER TABLE en ALTER v TYPE e1_new USING v::text::e1_new; DROP TYPE e1; } .
	q{ALTER TYPE e1_new RENAME TO e1; COMMIT},
	"'c'::e1", 'an enum migrated');
goes_on('en', "'c'::e1", q{ALTER TYPE e1 ADD VALUE 'd'}, "'d'::e1", 'a value added');
goes_on('en', "'d'", q{ALTER TYPE e1 RENAME VALUE 'd' TO 'e'}, "'e'", 'a value renamed');
goes_on('en', "'e'", q{ALTER TYPE e1 RENAME TO e2}, "'c'", 'the type renamed');
goes_on('en', "'c'", q{CREATE SCHEMA away; ALTER TYPE e2 SET SCHEMA away}, "'a'", 'the type moved to another schema');
goes_on('en', "'a'", q{CREATE TYPE e3 AS ENUM ('a'); ALTER TABLE en ALTER v TYPE e3 USING v::text::e3; DROP TYPE away.e2}, "'a'",
	'another type in its place');

# Composite types, domains, ranges, arrays.
$c->query('s1', 'CREATE TYPE pair AS (a int, b text)');
sharded('co', 'pair');
goes_on('co', "ROW(1, 'x')::pair", 'ALTER TYPE pair ADD ATTRIBUTE c int', "ROW(1, 'x', 2)::pair", 'an attribute added');
goes_on('co', "ROW(1, 'x', 2)::pair", 'ALTER TYPE pair DROP ATTRIBUTE b', 'ROW(1, 2)::pair', 'an attribute dropped');
goes_on('co', 'ROW(1, 2)::pair', 'CREATE TYPE pair_2 AS (x int, y int); ALTER TABLE co ALTER v TYPE pair_2 USING ROW((v).a, (v).c)::pair_2; DROP ' .
	'TYPE pair; ALTER TYPE pair_2 RENAME TO pair',
	'ROW(3, 4)::pair', 'a composite type made anew');
$c->query('s1', 'CREATE DOMAIN positive AS int CHECK (VALUE > 0)');
sharded('dm', 'positive');
goes_on('dm', '5', 'ALTER DOMAIN positive ADD CHECK (VALUE < 100)', '6', 'a check added to a domain');
like($c->error('r1', 'INSERT INTO dm VALUES (3, 1000)'), qr/23514/, 'which holds');
goes_on('dm', '6::positive', 'CREATE DOMAIN positive_2 AS int; ALTER TABLE dm ALTER v TYPE positive_2; DROP DOMAIN positive; ALTER DOMAIN ' .
	'positive_2 RENAME TO positive', '-7::positive',
	'a domain made anew');
$c->query('s1', "CREATE TYPE e4 AS ENUM ('a', 'b')");
sharded('ar', 'e4[]');
goes_on('ar', "ARRAY['a', 'b']::e4[]",
	q{CREATE TYPE e5 AS ENUM ('a', 'z'); ALTER TABLE ar ALTER v TYPE e5[] USING '{}'; DROP TYPE e4; ALTER TYPE e5 RENAME TO e4},
	"ARRAY['z']::e4[]", 'an array of a migrated enum');
sharded('ba', 'int');
goes_on('ba', '1', 'ALTER TABLE ba ALTER v TYPE text', "'x'", 'a column of another type');

# Tables and their row types made anew.
goes_on('ba', "'x'", q{DROP TABLE ba; CREATE TABLE ba (k int PRIMARY KEY, v int); SELECT tessera.shard_table('ba', 'k'); SELECT } .
	q{tessera.move_range('ba', 50, tessera.maxkey(), 's2')},
	'4', 'a table made anew');

# In functions, whose plans are kept, too.
$c->query('s1', q{CREATE TYPE e9 AS ENUM ('a'); CREATE TABLE fn (k int PRIMARY KEY, v e9); SELECT tessera.shard_table('fn', 'k');
	SELECT tessera.move_range('fn', 100, tessera.maxkey(), 's2');
	CREATE FUNCTION put(key int, word text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE r text; BEGIN INSERT INTO fn VALUES (key, word::e9)
	ON CONFLICT (k) DO UPDATE SET v = excluded.v;
		SELECT v INTO r FROM fn WHERE k = key AND v = word::e9; RETURN r; END $$});
sub put
{
	my ($word) = @_;
	return join(' ', map { $sessions{$_}->query(join('', map { "SELECT put($_, '$word'); " } 1, 101, 1, 101, 1, 101, 1, 101)) =~ s/\n/,/gr } @nodes);
}
is(put('a'), join(' ', (join(',', ('a') x 8)) x 3), 'a function');
$c->query('s2', q{BEGIN; CREATE TYPE e9_new AS ENUM ('c'); ALTER TABLE fn ALTER v TYPE e9_new USING 'c'; DROP TYPE e9; ALTER TYPE e9_new RENAME } .
	q{TO e9; COMMIT});
is(put('c'), join(' ', (join(',', ('c') x 8)) x 3), 'goes on');
$_->quit foreach values %sessions;

done_testing();
