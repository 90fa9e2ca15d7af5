# Settings of a session that change how values are read: array_nulls, xmloption, DateStyle, IntervalStyle, extra_float_digits. They are mirrored to
# the shards, as the statement may depend on them; the values that travel must not.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('values_and_settings');
$c->create(shards => 2, routers => 1);
my @nodes = $c->names;
my $columns = 'id int PRIMARY KEY, name text, a int[], b text[], d d[], r r, i interval, f float8, t timestamptz, x xml';
$c->query('s1', "CREATE DOMAIN d AS text; CREATE TYPE r AS (n int, e d[]); CREATE TABLE whole ($columns); CREATE TABLE spread ($columns)");
$c->query('s1', "SELECT tessera.replicate_table('whole'); SELECT tessera.shard_table('spread', 'id')");
$c->query('s1', "SELECT tessera.move_range('spread', 100, tessera.maxkey(), 's2')");

my $settings = "SET xmloption = document; SET intervalstyle = sql_standard; SET extra_float_digits = -10; SET datestyle = 'SQL, DMY'; ";
my $values = "NULL, ARRAY[1, NULL], ARRAY['null', NULL, 'b'], NULL, NULL, '-1 day -2:03', pi(), '2026-03-04 05:06:07+00', '<a><b/></a>'";
my $read = "SELECT id, name IS NULL, a[2] IS NULL, b[1], b[2] IS NULL, d, r, i = '-1 day -2:03'::interval, f = pi(), t = '2026-03-04 05:06:07+00', " .
	'x FROM';
my ($id, %expected) = (0);

# Each node writes a row to each shard and to all copies, under these settings, with array_nulls on and off.
foreach my $node (@nodes)
{
	foreach my $nulls ('on', 'off')
	{
		foreach my $table ('whole', 'spread')
		{
			foreach my $at (++$id, $id + 1000)
			{
				$c->query($node, "SET array_nulls = $nulls; $settings INSERT INTO $table VALUES ($at, $values)");
				$expected{$table}{$at} = "$at|t|t|null|t|||t|t|t|<a><b/></a>";
			}
		}
	}
}
foreach my $node (@nodes)
{
	foreach my $nulls ('on', 'off')
	{
		foreach my $table ('whole', 'spread')
		{
			is($c->query($node, "SET array_nulls = $nulls; $read $table ORDER BY id"),
				join("\n", map { $expected{$table}{$_} } sort { $a <=> $b } keys %{ $expected{$table} }),
				"$table on $node, array_nulls $nulls: what was written");
		}
	}
}

# What goes as text: arrays of types that users have made. A value with NULL cannot be said while array_nulls is off. Constants can: their elements
# are spelled out.
my $far = 500;
foreach my $node ('s1', 'r1')
{
	$c->query($node, "INSERT INTO spread (id, d, r) SELECT $far, ARRAY['x', NULL]::d[], ROW(1, ARRAY['y', NULL]::d[])::r");
	is($c->query($node, "SET array_nulls = off; SELECT d[2] IS NULL, (r).e[2] IS NULL, d::text FROM spread WHERE id = $far"), 't|t|{x,NULL}',
		"$node: read while array_nulls is off");
	like($c->error($node, "SET array_nulls = off; INSERT INTO spread (id, d) VALUES ($far + 1, ARRAY['x', NULL]::d[])"),
		qr/ERROR:  0A000.*array_nulls/, "$node: what would become another value is refused");
	is($c->query($node, "SET array_nulls = off; " .
		"SELECT count(*) FROM spread WHERE a = ARRAY[1, NULL] AND b = ARRAY['null', NULL, 'b'] AND id < 500"), 6, "$node: constants");
	$far++;
}
$c->query('s1', "DELETE FROM spread WHERE d IS NOT NULL");
$c->query('r1', "SET array_nulls = off; SET xmloption = document; " .
	"UPDATE whole SET d = ARRAY['x', NULL]::d[], r = ROW(1, ARRAY['y', NULL]::d[])::r, name = '', x = xmlparse(content '<c/>') WHERE id = 1");
is($c->query($_, 'SELECT d[2] IS NULL, (r).e[2] IS NULL, name FROM whole WHERE id = 1'), 't|t|', "copy on $_") foreach @nodes;
is($c->query('r1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)'), 0, 'all copies are alike');

# A database whose default it is: moves go on, and bring what there was.
$c->query('s2', "INSERT INTO spread (id, d) VALUES (600, ARRAY['x', NULL]::d[])");
foreach my $node (@nodes)
{
	$c->query($node, "SET tessera.replicate_ddl = off; ALTER DATABASE postgres SET array_nulls = off");
}
$c->query('s1', "SELECT tessera.move_range('spread', 100, tessera.maxkey(), 's1')");
is($c->query('s1', 'SET array_nulls = on; SELECT d[2] IS NULL FROM spread WHERE id = 600'), 't', 'moved');

# What a shard's own server or database has set does not count: numbers, money and names of months are written as on the node that was asked.
$c->query('s1', "CREATE FUNCTION shown(int, text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN current_setting(\$2); END'");
foreach my $setting ('lc_monetary', 'lc_numeric', 'lc_time')
{
	$c->query('s1', "SET tessera.replicate_ddl = off; ALTER DATABASE postgres SET $setting = 'C.UTF-8'");
	is($c->query('r1', "SELECT shown(id, '$setting') FROM spread WHERE id = 2"), 'C', "$setting of the node that was asked");
	is($c->query('r1', "SET $setting = 'POSIX'; SELECT shown(id, '$setting') FROM spread WHERE id = 2"), 'POSIX', "$setting of the session");
}

# Who has set a setting travels in an array with NULLs, for those set by all rights, also while array_nulls is off.
my $off = $c->session('r1');
is($off->query_safe("SET array_nulls = off; SELECT shown(id, 'array_nulls') FROM spread WHERE id = 2"), 'off', 'array_nulls reaches the shard');
is($off->query_safe("SET session_replication_role = replica; SELECT shown(id, 'session_replication_role') FROM spread WHERE id = 2"), 'replica',
	'and what only superusers may set, thereafter');
$off->query_safe('CREATE TABLE made_so (k int PRIMARY KEY)');
$off->quit;
is($c->query('r1', 'SELECT count(*) FROM made_so'), 0, 'DDL');

# Settings of modules that are not loaded come while the session lives, in any order of their names; each reaches the shards.
my $session = $c->session('r1');
is($session->query_safe("SELECT shown(id, 'lc_time') FROM spread WHERE id = 2"), 'C', 'a shard has the settings of the session');
my @set;
foreach my $name ('tes.one', 'app.two', 'zone.three')
{
	push @set, $name;
	$session->query_safe("SET $name = 'set to $name'");
	is($session->query_safe("SELECT shown(id, '$_') FROM spread WHERE id = 2"), "set to $_", "$_ after $name") foreach @set;
	foreach (@set)
	{
		$session->query_safe("SET $_ = 'now $_'");
		is($session->query_safe("SELECT shown(id, '$_') FROM spread WHERE id = 2"), "now $_", "$_ again");
	}
	$session->query_safe("SET $_ = 'set to $_'") foreach @set;
}
$session->quit;

done_testing();
