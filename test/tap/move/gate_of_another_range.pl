# A writer waits at the gate of the range that it touches, and at no other one, however its statement says which key it is about. And no form of it
# passes a closed gate: also not an equality that means other rows than the key's own does.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('gate_of_another', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.critical_section_budget' => 60000 });
$c->create(shards => 2, routers => 1);
$c->query('s1', $_) foreach (
	'CREATE DOMAIN tenant AS bigint CHECK (value > -1000)',
	"CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
	(map { ("CREATE TABLE $_->[0] (k $_->[1] PRIMARY KEY, v int NOT NULL DEFAULT 0)", "SELECT tessera.shard_table('$_->[0]', 'k')",
		"INSERT INTO $_->[0] SELECT $_->[2] FROM generate_series(1, 300) g") }
		([ 'wide', 'bigint', 'g' ], [ 'narrow', 'smallint', 'g' ], [ 'of_domain', 'tenant', 'g' ], [ 'exact', 'numeric', 'g' ],
		[ 'named', 'varchar(20) COLLATE "C"', "'x' || g" ], [ 'plain', 'text COLLATE "C"', "'x' || g" ])),
	(map { "INSERT INTO $_ VALUES ('letter'), ('LETTER')" } 'named', 'plain'),
	'CREATE TABLE pairs (a bigint, b int, v int NOT NULL DEFAULT 0, PRIMARY KEY (a, b))', "SELECT tessera.shard_table('pairs', 'a,b')",
	'INSERT INTO pairs SELECT g, 1 FROM generate_series(1, 300) g',
	'CREATE FUNCTION add(x int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN UPDATE wide SET v = v + 1 WHERE k = x; END $$',
	'CREATE FUNCTION add_sql(x smallint) RETURNS void LANGUAGE sql AS $$ UPDATE wide SET v = v + 1 WHERE k = x $$');


# Each is run for a key inside of the range that moves, and for one outside, in the place of KEY.
my $generic = 'SET plan_cache_mode = force_generic_plan;';
my %forms = (
	wide => [
		'UPDATE wide SET v = v + 1 WHERE k = KEY',
		'UPDATE wide SET v = v + 1 WHERE KEY = k',
		'UPDATE wide SET v = v + 1 WHERE k = KEY::bigint',
		'UPDATE wide SET v = v + 1 WHERE k = KEY::smallint AND v >= 0',
		q{UPDATE wide SET v = v + 1 WHERE k = 'KEY'},
		'UPDATE wide SET v = v + 1 WHERE k IN (KEY)',
		'UPDATE wide SET v = v + 1 WHERE k IN (KEY, 20)',
		q{UPDATE wide SET v = v + 1 WHERE k = ANY ('{20, NULL, KEY}'::int[])},
		'UPDATE wide SET v = v + 1 WHERE k = ANY (ARRAY[KEY, 20]::smallint[])',
		'DELETE FROM wide WHERE k = KEY AND v < 0',
		'INSERT INTO wide VALUES (KEY) ON CONFLICT (k) DO UPDATE SET v = wide.v + 1',
		'INSERT INTO wide VALUES (KEY), (20) ON CONFLICT DO NOTHING',
		'SELECT v FROM wide WHERE k = KEY FOR UPDATE',
		'WITH w AS (UPDATE wide SET v = v + 1 WHERE k = KEY RETURNING k) SELECT * FROM w',
		(map { "PREPARE p($_) AS UPDATE wide SET v = v + 1 WHERE k = \$1; EXECUTE p(KEY)" } 'bigint', 'int', 'smallint'),
		"$generic PREPARE p(int) AS UPDATE wide SET v = v + 1 WHERE k = \$1::bigint; EXECUTE p(KEY)",
		"$generic PREPARE p(int[]) AS UPDATE wide SET v = v + 1 WHERE k = ANY (\$1); EXECUTE p('{20,KEY}')",
		"$generic PREPARE p(int) AS INSERT INTO wide VALUES (\$1) ON CONFLICT DO NOTHING; EXECUTE p(KEY)",
		'SELECT add(KEY)', 'SELECT add_sql(KEY::smallint)',
		'DO $$ DECLARE r record; BEGIN SELECT KEY AS x INTO r; UPDATE wide SET v = v + 1 WHERE k = r.x; END $$' ],
	narrow => [ 'UPDATE narrow SET v = v + 1 WHERE k = KEY', 'UPDATE narrow SET v = v + 1 WHERE k = KEY::bigint',
		'UPDATE narrow SET v = v + 1 WHERE k IN (KEY, 100000)', q{UPDATE narrow SET v = v + 1 WHERE k = ANY ('{KEY, 100000}'::bigint[])} ],
	of_domain => [ 'UPDATE of_domain SET v = v + 1 WHERE k = KEY', 'UPDATE of_domain SET v = v + 1 WHERE k = KEY::tenant',
		'INSERT INTO of_domain VALUES (KEY) ON CONFLICT DO NOTHING' ],
	exact => [ 'UPDATE exact SET v = v + 1 WHERE k = KEY', 'UPDATE exact SET v = v + 1 WHERE k = KEY.0',
		"$generic PREPARE p(int) AS UPDATE exact SET v = v + 1 WHERE k = \$1; EXECUTE p(KEY)" ],
	(map { my $t = $_; ($t => [ (map { "UPDATE $t SET v = v + 1 WHERE k = 'KEY'$_" } '', '::text', '::varchar', ' COLLATE "C"', ' COLLATE "POSIX"'),
		"UPDATE $t SET v = v + 1 WHERE k = ANY ('{KEY}')" ]) } 'named', 'plain'),
	pairs => [ 'UPDATE pairs SET v = v + 1 WHERE a = KEY AND b = 1', 'UPDATE pairs SET v = v + 1 WHERE (a, b) = (KEY, 1)',
		'UPDATE pairs SET v = v + 1 WHERE a = KEY AND b IN (1, 20)', 'DELETE FROM pairs WHERE b = 1::bigint AND a = KEY AND v < 0' ],
);
my %range = ((map { $_ => [ 'letter', 'maxkey', 'letter', 'LETTER' ] } 'named', 'plain'), pairs => [ '(101,0)', '(201,0)', 150, 50 ]);

# About no key at all.
my %none = (
	wide => [ "$generic PREPARE p(bigint) AS UPDATE wide SET v = v + 1 WHERE k = \$1; EXECUTE p(NULL)",
		'UPDATE wide SET v = 1 WHERE k IN (NULL, 20)' ],
	narrow => [ 'UPDATE narrow SET v = v + 1 WHERE k = 100000', 'UPDATE narrow SET v = v + 1 WHERE k = 10000000000' ],
);
# Also about keys inside, whatever they look like.
my %others = (
	(map { $_ => [ "UPDATE $_ SET v = v + 1 WHERE k = 'LETTER' COLLATE nocase AND v >= 0", "DELETE FROM $_ WHERE 'LETTER' = k COLLATE nocase",
		"UPDATE $_ SET v = v + 1 WHERE k COLLATE nocase = ANY ('{LETTER}')" ] } 'named', 'plain'),
	wide => [ 'UPDATE wide SET v = v + 1 WHERE k + 100 = 250', 'UPDATE wide SET v = v + 1 WHERE k = 50 OR k = 150',
		'UPDATE wide SET v = v + 1 WHERE k <> ALL (ARRAY[50])', 'UPDATE wide SET v = v + 1 WHERE k = (SELECT max(k) - 150 FROM wide)' ],
	narrow => [ 'UPDATE narrow SET v = v + 1 WHERE k / 3 = 50' ],
);

sub error_of
{
	my ($node, $timeout, $sql) = @_;
	my ($status, undef, $errors) = $c->psql($node, "SET tessera.gate_timeout = $timeout; $sql");
	return $status == 0 ? '' : $errors;
}

foreach my $table (sort keys %forms)
{
	my ($min, $max, $inside, $outside) = @{ $range{$table} // [ 101, 201, 150, 50 ] };
	my $to = $max eq 'maxkey' ? 'tessera.maxkey()' : "'$max'";
	my $counted = q{SELECT gate_waits FROM tessera.stat_routing};
	my (@waited, @passed);

	$c->pause_at('s1', 'donor_write_gate');
	my $move = $c->begin('s1', "SELECT tessera.move_range('$table', '$min', $to, 's2')");
	$c->is_paused_at('s1', 'donor_write_gate');
	my $before = $c->query('s1', $counted);
	foreach my $node ($c->names)
	{
		foreach my $sql ((map { s/KEY/$outside/gr } @{ $forms{$table} }), @{ $none{$table} // [] })
		{
			my $error = error_of($node, 5000, $sql);
			push @waited, "$node: $sql: $error" if $error ne '';
		}
	}
	is(join("\n", @waited), '', "$table: statements about other keys go on");
	is($c->query('s1', $counted), $before, "$table: none of them has waited");
	foreach my $node ($c->names)
	{
		foreach my $sql ((map { s/KEY/$inside/gr } @{ $forms{$table} }), @{ $others{$table} // [] })
		{
			my $error = error_of($node, 20, $sql);
			push @passed, "$node: $sql: $error" if $error !~ /55P03.*gate|40001/s;
		}
	}
	is(join("\n", @passed), '', "$table: no statement about keys of the range passes its gate");
	$c->go_on('s1', 'donor_write_gate');
	is($c->finish($move), '', "$table: the move ends well");
}

done_testing();
