# What a row says does not depend on how the session wants to see it. Types that cannot go in binary between nodes, made of what settings change
# the look of, on every way that rows come from shards: the same answers as a plain server, and bit for bit what was stored, also where settings
# change between two rows.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('exact_results');
$c->create(shards => 2, routers => 1);

my @types = (
	[ e => 'mood' ], [ df => 'd_float' ], [ dt => 'd_time' ], [ pair => 'mixed' ], [ ct => 'citext' ], [ h => 'hstore' ], [ es => 'mood[]' ],
	[ dfs => 'd_float[]' ], [ dts => 'd_time[]' ], [ pairs => 'mixed[]' ], [ cts => 'citext[]' ], [ hs => 'hstore[]' ], [ dfr => 'd_range' ],
	[ p => 'regprocedure' ], [ ps => 'regprocedure[]' ], [ rt => 'regtype' ], [ price => 'd_money' ], [ x => 'd_xml' ], [ one => '"char"' ],
	[ w => 'word' ], [ f => 'float8' ], [ at => 'timestamptz' ], [ i => 'interval' ], [ b => 'bytea' ], [ vec => 'oidvector' ]);
my $columns = 'k int PRIMARY KEY, ' . join(', ', map { "$_->[0] $_->[1]" } @types);
my $schema = <<"SQL";
SET client_min_messages = warning;
CREATE EXTENSION citext; CREATE EXTENSION hstore;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN d_float AS float8; CREATE DOMAIN d_time AS timestamptz; CREATE DOMAIN d_money AS money; CREATE DOMAIN d_xml AS xml;
CREATE TYPE d_range AS RANGE (subtype = float8);
CREATE TYPE mixed AS (f float8, at d_time, i interval, b bytea, e mood, d date);
CREATE TYPE word; CREATE FUNCTION word_in(cstring) RETURNS word IMMUTABLE STRICT LANGUAGE internal AS 'textin';
CREATE FUNCTION word_out(word) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'textout';
CREATE TYPE word (INPUT = word_in, OUTPUT = word_out, LIKE = text);
CREATE SCHEMA aside; CREATE FUNCTION aside.lower(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT pg_catalog.lower(\$1)';
CREATE FUNCTION aside.named(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE aside.mood AS ENUM ('x');
CREATE TABLE src ($columns); CREATE TABLE got ($columns); CREATE TABLE watched ($columns);
CREATE TABLE log (n int PRIMARY KEY, was mixed, at d_time, e mood);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log VALUES (OLD.k, OLD.pair, OLD.dt, OLD.e); RETURN NEW; END';
CREATE FUNCTION other_style(text) RETURNS text LANGUAGE sql AS \$\$
  SELECT set_config('DateStyle', \$1, true) || set_config('extra_float_digits', '-15', true) || set_config('search_path', 'public, aside', true)\$\$;
SQL
my @floats = ("1 / 3.0::float8", "1.7976931348623157e308::float8", "5e-324::float8", "pi()", "'-0'::float8", "'NaN'::float8",
	"0.333333333333333::float8", "0.1::float8 + 0.2::float8");
my @times = ("'2024-03-02 12:00:00.5+00'", "'1880-01-01 12:00+00'", "'infinity'", "'0044-03-15 12:00+00 BC'", "'2024-12-11 10:09:08.765432+00'",
	"'2024-10-27 00:30+00'", "'1900-06-05 04:03:02+00'", "NULL");
my @intervals = ("'-1 day -2:03'", "'1 mon -3 days 04:05:06.7'", "'-1 year'", "'-00:00:01'", "'1 day -1 hour'");

# One row in ten has NULLs only.
my $n = 0;
sub row
{
	my ($k) = @_;
	my ($f, $t, $i) = map { my $from = $_; $from->[ $n % @$from ] } \@floats, \@times, \@intervals;
	my $mood = (qw(sad ok happy))[ $n % 3 ];
	return "INSERT INTO src (k) VALUES ($k)" if ++$n % 10 == 0;
	my $pair = sprintf("ROW($f, $t, $i, '\\x00ff5c27', '$mood', '2024-03-%02d')::mixed", 1 + $n % 9);
	my @values = ("'$mood'", $f, $t, $pair, "'Word$n'", qq{hstore('A$n', '1,2 "')}, "ARRAY['$mood', NULL]::mood[]", "ARRAY[$f, NULL]::d_float[]",
		"ARRAY[$t, NULL]::d_time[]", "ARRAY[$pair, NULL]::mixed[]", q('{x,NULL,"n,"}'), "ARRAY[hstore('a', NULL)]", "d_range($f, NULL)",
		"'aside.named(int)'", "'{aside.named(int),lower(text)}'", $n % 2 ? "'aside.mood'" : "'mood'", '1234.56', "'<a>1</a>'", "'c'", "'w$n'", $f, $t,
		$i, "'\\x00ff5c27'", "'1 2'");
	return "INSERT INTO src SELECT $k, " . join(', ', @values);
}
my @keys = (1 .. 8, 101 .. 108, 201 .. 204);
my $rows = join(";\n", map { row($_) } @keys) . ";\nINSERT INTO watched SELECT * FROM src;\n";
$c->plain_query($schema);
$c->query('s1', $schema);
foreach my $table ('src', 'got', 'watched', 'log')
{
	$c->query('s1', "SELECT tessera.shard_table('$table', '" . ($table eq 'log' ? 'n' : 'k') . "')");
	$c->query('s1', "SELECT tessera.move_range('$table', 100, tessera.maxkey(), 's2')");
}
$c->everywhere('CREATE TRIGGER keep AFTER UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION keep()');
$c->everywhere($rows);

# Settings that show less than there is, and those that show all of it.
my @settings = (
	"DateStyle = 'SQL, DMY'; SET LOCAL TimeZone = 'Asia/Shanghai'; SET LOCAL extra_float_digits = 0",
	"DateStyle = 'German'; SET LOCAL TimeZone = 'Asia/Kolkata'; SET LOCAL extra_float_digits = -15; SET LOCAL bytea_output = escape",
	"DateStyle = 'Postgres, DMY'; SET LOCAL TimeZone = 'America/New_York'; SET LOCAL IntervalStyle = sql_standard",
	"DateStyle = 'SQL, MDY'; SET LOCAL TimeZone = 'Asia/Shanghai'; SET LOCAL IntervalStyle = iso_8601; SET LOCAL search_path = public, aside",
	"IntervalStyle = postgres_verbose; SET LOCAL search_path = aside, pg_catalog, public; SET LOCAL xmloption = document");
my $exact = "SET LOCAL DateStyle = 'ISO, MDY'; SET LOCAL TimeZone = 'UTC'; SET LOCAL extra_float_digits = 3; SET LOCAL IntervalStyle = postgres; " .
	"SET LOCAL bytea_output = hex; SET LOCAL search_path = public; SET LOCAL xmloption = content";
my $loop = "DO 'DECLARE r src; n int := 0; BEGIN FOR r IN %s LOOP n := n + 1; " .
	"PERFORM other_style((ARRAY[''SQL, DMY'', ''SQL, MDY'', ''German''])[n %% 3 + 1]); %s; END LOOP; END'";

# Ways of rows: what is done under the settings, and what is looked at thereafter.
my @ways = (
	[ 'TABLE src' ],
	[ map { "SELECT * FROM src WHERE k = $_" } 1, 101 ],
	[ 'INSERT INTO got SELECT * FROM src', 'TABLE got' ],
	[ 'INSERT INTO got SELECT * FROM src WHERE k = 101 RETURNING *', 'TABLE got' ],
	[ 'INSERT INTO got SELECT * FROM src RETURNING k, df, pair, dts', 'TABLE got' ],
	[ 'UPDATE src SET k = k + 50', 'TABLE src' ],
	[ 'UPDATE src SET k = 300 - k RETURNING k, e, df, dt, pair', 'TABLE src' ],
	[ 'UPDATE src SET df = s.df, dt = s.dt, pair = s.pair, rt = s.rt FROM (SELECT * FROM src ORDER BY df, k LIMIT 1) s', 'TABLE src' ],
	[ 'WITH u AS (UPDATE src SET k = k RETURNING *) INSERT INTO got SELECT * FROM u', 'TABLE got' ],
	[ 'WITH u AS (DELETE FROM src RETURNING *) SELECT e, df, dt, pair, rt FROM u', 'SELECT count(*) FROM src' ],
	[ 'WITH u AS (UPDATE src SET f = f WHERE k = 101 RETURNING *) SELECT u.e, u.df, u.pair, v.dts, v.rt FROM u JOIN u v USING (k) ORDER BY u.e' ],
	[ 'WITH u AS (UPDATE src SET f = src.f FROM (SELECT e AS m FROM src WHERE k = 101) y WHERE k = 101 RETURNING y AS r) SELECT (r).m FROM u' ],
	[ "UPDATE watched SET one = 'd'", 'TABLE log' ],
	[ "UPDATE watched SET one = 'd' RETURNING k, e, pair, dts, rt", 'TABLE log' ],
	[ 'CREATE TEMP TABLE kept AS SELECT * FROM src', 'TABLE kept' ],
	[ 'SELECT a.k, b.k FROM src a, src b WHERE a.df = b.df AND a.k < b.k', 'SELECT 1' ],
	[ 'SELECT a.k, b.k, a.rt FROM src a JOIN src b ON a.dt = b.dt AND a.pair = b.pair AND a.k <> b.k' ],
	[ 'SELECT count(DISTINCT df), count(DISTINCT dt), count(DISTINCT pair), count(DISTINCT ct), count(DISTINCT e) FROM src' ],
	[ 'SELECT DISTINCT e, df FROM src', 'SELECT DISTINCT dt, rt FROM src', 'SELECT DISTINCT lower(ct) FROM src WHERE k = 101' ],
	[ 'SELECT DISTINCT ON (e) e, df, k FROM src ORDER BY e DESC NULLS LAST, df, k', 'SELECT DISTINCT ON (k) k, pair FROM src ORDER BY k' ],
	[ 'SELECT e, count(*), max(dt), min(df), max(e) FROM src GROUP BY e', 'SELECT df, count(*) FROM src GROUP BY df' ],
	[ 'SELECT e, ct, count(*), max(e), avg(k), stddev(k) FROM src GROUP BY e, ct', 'SELECT max(e), avg(k), min(ct) FROM src' ],
	[ "SELECT lower(ct::text)::citext, avg(k), max(e) FROM src GROUP BY lower(ct::text)::citext" ],
	[ 'SELECT k, e, count(*) FROM src GROUP BY k', 'SELECT e, count(*) FROM src WHERE k = 101 GROUP BY ROLLUP (e)' ],
	[ 'SELECT e, df FROM src WHERE k = 101 UNION SELECT e, df FROM src WHERE k = 101 ORDER BY 1' ],
	[ 'SELECT e, df, dt FROM src WHERE k < 104 UNION ALL SELECT e, df, dt FROM src WHERE k >= 104' ],
	[ 'SELECT s FROM src s', 'SELECT s FROM src s WHERE k = 101', 'SELECT (pair).at, (pair).f, pairs[1] FROM src' ],
	[ 'SELECT k, unnest(es), unnest(dts) FROM src WHERE k = 101', 'SELECT k, unnest(dfs) FROM src' ],
	[ 'SELECT e, df, first_value(e) OVER (PARTITION BY k ORDER BY dt) FROM src' ],
	[ 'SELECT e, dt, pair FROM src WHERE k = 101 FOR UPDATE', 'SELECT e, dt FROM src FOR UPDATE' ],
	[ 'COPY src TO STDOUT', 'COPY (SELECT * FROM src WHERE k = 101) TO STDOUT' ],
	[ "DECLARE c CURSOR FOR SELECT * FROM src ORDER BY k; FETCH 3 FROM c; SELECT other_style('SQL, MDY'); FETCH 3 FROM c; " .
		"SELECT other_style('SQL, DMY'); FETCH ALL FROM c" ],
	[ "DECLARE c NO SCROLL CURSOR FOR SELECT k, e, dt, df, pair, rt, p FROM src WHERE k > 100 ORDER BY dt, k; FETCH 1 FROM c; " .
		"SELECT other_style('German'); FETCH 2 FROM c; SELECT other_style('SQL, DMY'); FETCH ALL FROM c" ],
	[ sprintf($loop, 'SELECT * FROM src ORDER BY k', 'INSERT INTO got SELECT (r).*'), 'TABLE got' ],
	[ sprintf($loop, 'SELECT * FROM src', 'INSERT INTO got SELECT (r).*'), 'TABLE got' ],
	[ sprintf($loop, 'UPDATE src SET one = one RETURNING *', 'INSERT INTO got SELECT (r).*'), 'TABLE got' ],
);
my @script;
foreach my $setting (@settings)
{
	push @script, map { my ($do, @look) = @$_; "SET LOCAL $setting; $do; $exact; " . join('; ', @look, 'TABLE src') } @ways;
}
is($c->table_differs($_, \@script), 0, "from $_: what is on a plain server") foreach 'r1', 's1';
my ($plain) = values %{ $c->{expected} };
is(join("\n", map { "$script[$_]: $1" } grep { $plain->[$_] =~ /ERROR:  (.*)/ } 0 .. $#script), '', 'which has no errors');

# Rows come in the order of their values, not of their texts, and to the limit.
foreach my $node ('r1', 's1')
{
	my $by_value = join("\n", map { "$_->[0]|$_->[1]" } sort { $b->[2] <=> $a->[2] || $a->[1] <=> $b->[1] }
			map { [ split /\|/ ] } split /\n/,
		$c->plain_query("SELECT e, k, array_position(enum_range(NULL::mood), e) FROM src WHERE e IS NOT NULL"));
	is($c->query($node, "SELECT e, k FROM src WHERE e IS NOT NULL ORDER BY e DESC, k"), $by_value, "$node: by value");
	is($c->query($node, "SELECT e, k FROM src WHERE e IS NOT NULL ORDER BY e DESC, k LIMIT 4"), join("\n", (split /\n/, $by_value)[ 0 .. 3 ]),
		"$node: the first");
}

# Types whose output function may not run in a parallel worker are left to the leader.
my $shown = $c->query('r1', 'EXPLAIN (VERBOSE, COSTS off) SELECT e, w FROM src WHERE k = 101');
like($shown, qr/exact_text\(\S*e\).*exact_text_in_leader\(\S*w\)/, 'in the leader');
like($c->query('r1', 'EXPLAIN (VERBOSE, COSTS off) SELECT e, ARRAY[w] AS ws FROM src WHERE k = 101'), qr/exact_text_in_leader\(.*ARRAY/,
	'also inside of an array');

# What a row on another shard says whole: XML with its declaration, which of several functions or operators is meant.
$c->query('s1', 'CREATE TABLE whole (k int PRIMARY KEY, x xml, p regproc, o regoper); SELECT tessera.shard_table(\'whole\', \'k\')');
$c->query('s1', "SELECT tessera.move_range('whole', 100, tessera.maxkey(), 's2')");
my $declared = qq{<?xml version="1.0" encoding="UTF-8"?><a b="1"/>};
$c->query('s2', "INSERT INTO whole SELECT 101, '$declared', 'lower(text)'::regprocedure, '+(int8,int4)'::regoperator");
foreach my $node ('r1', 's1', 's2')
{
	is($c->query($node, 'SELECT r.x::text, r.p::regprocedure, r.o::regoperator FROM (SELECT * FROM whole ORDER BY random()) r'),
		"$declared|lower(text)|+(bigint,integer)", "$node: all of it");
}

# Nobody may look at more than before, and the shard runs it as the user.
$c->query('s1', 'CREATE ROLE someone LOGIN; GRANT SELECT (k, e) ON src TO someone');
is($c->query('r1', 'SET ROLE someone; SELECT k, e FROM src WHERE k = 101'), $c->plain_query('SELECT k, e FROM src WHERE k = 101'),
	'columns that one may read');
like($c->error('r1', 'SET ROLE someone; SELECT k, df FROM src WHERE k = 101'), qr/42501/, 'and no others');

# With the extension's objects of an older version rows come as the session shows them, if that is all there is to them.
$c->query('r1', "SET tessera.replicate_ddl = off; ALTER EXTENSION tessera DROP FUNCTION tessera_internal.$_(\"any\");
	DROP FUNCTION tessera_internal.$_(\"any\")")
	foreach 'exact_text', 'exact_text_in_leader';
my $old = 'SELECT e, df, dts, pair, b, f, k FROM src ORDER BY k';
is($c->query('r1', "SET TimeZone = 'Asia/Tokyo'; $old"), $c->plain_query("SET TimeZone = 'Asia/Tokyo'; $old"), 'before ALTER EXTENSION UPDATE');
is($c->query('r1', 'SELECT avg(k), count(e) FROM src'), $c->plain_query('SELECT avg(k), count(e) FROM src'), 'aggregates');
is($c->query('r1', "SET DateStyle = 'SQL, DMY'; SELECT e, k FROM src ORDER BY k"), $c->plain_query('SELECT e, k FROM src ORDER BY k'),
	'what no setting changes');
like($c->error('r1', "SET DateStyle = 'SQL, DMY'; $old"), qr/55000.*cannot be read under this session's settings/,
	'and nothing that could be another');

done_testing();
