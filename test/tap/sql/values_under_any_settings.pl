# What is stored is what was written, whatever its type, its way and the session's settings: types of the core and of contrib, arrays, rows, ranges
# and domains of them, at their extremes, on every way that a value takes between client, router and shards, under settings that change how values
# are read and shown. One script is run through a router and on a plain server; what psql prints and what lies in the tables must be the same, cell by
# cell. Keys below zero are on s1, those above on s2.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('values');
$c->create(shards => 2, routers => 1);

my $schema = <<'SQL';
SET client_min_messages = warning;
CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE EXTENSION cube; CREATE EXTENSION seg; CREATE EXTENSION citext; CREATE EXTENSION isn;
CREATE EXTENSION intarray; CREATE EXTENSION lo; CREATE EXTENSION earthdistance;
CREATE SCHEMA aside; CREATE SCHEMA "Odd ""Name";
CREATE TYPE mood AS ENUM ('sad', 'NULL', E'so "so"\\ ', 'happy');
CREATE TYPE "Odd ""Name".mood AS ENUM ('elsewhere'); CREATE TYPE aside.mood AS ENUM ('x');
CREATE TABLE aside.got (k int); CREATE TABLE "Odd ""Name"."T" (k int);
CREATE FUNCTION aside.one(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION aside.one(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION aside.only(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE OPERATOR aside.<+> (LEFTARG = int, RIGHTARG = int, FUNCTION = int4pl);
CREATE DOMAIN d_text AS text CHECK (VALUE <> 'no'); CREATE DOMAIN d_float AS float8; CREATE DOMAIN d_time AS timestamptz;
CREATE DOMAIN d_money AS money;
CREATE DOMAIN d_xml AS xml; CREATE DOMAIN d_mood AS mood; CREATE DOMAIN d_ints AS int[];
CREATE DOMAIN d_span AS tstzrange; CREATE DOMAIN d_numeric AS numeric(12,4);
CREATE TYPE spans AS RANGE (subtype = float8); CREATE TYPE mood_range AS RANGE (subtype = mood); CREATE TYPE d_range AS RANGE (subtype = d_time);
CREATE TYPE mixed AS (f float8, at d_time, i interval, b bytea, e mood, d date, x xml, n numeric, m money, t text, r tstzrange, "A b" float4[]);
CREATE TYPE outer_row AS (m mixed, ms mixed[], h hstore, dt d_text); CREATE DOMAIN d_mixed AS mixed;
CREATE FUNCTION other_style(int) RETURNS text LANGUAGE sql AS $$
  SELECT set_config('DateStyle', (ARRAY['SQL, DMY', 'SQL, MDY', 'German'])[$1 % 3 + 1], false) || set_config('extra_float_digits', '-15', false) ||
    set_config('TimeZone', (ARRAY['Asia/Kolkata', 'America/New_York'])[$1 % 2 + 1], false)$$;
SQL

# Literals are E'', so that they mean the same under each setting. %s is what stands in ARRAY[] or behind the value.
my $mixed = "ROW(1 / 3.0::float8, '2024-03-02 12:00:00.123456+00', '1 mon -3 days 04:05:06.7', E'\\\\x00ff5c27', 'happy', '0044-03-15 BC', " .
	"xmlparse(content 'a<b/>'), 1.5000, '1234.56', E'q\"\\'\\\\ ,(){}\\n', '[2024-01-01 00:00+00,)', ARRAY[0.1, NULL]::float4[])::public.mixed";
my $nulls = 'ROW(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::public.mixed';
my $strange = q(E'q"\\\\ \\',{}()[]\\n\\t\\u00e9 NULL'),
	my $declared = q(xmlparse(document E'<?xml version="1.0" encoding="UTF-8"?><a b="1">\\u00e9</a>'));
my @infinite = ("'infinity'", "'-infinity'");
my @moments = ("'0044-03-15 12:00+00 BC'", "'2024-12-11 10:09:08.765432+00'", "'1880-01-01 12:00+00'", @infinite);
my @numbers = ("'NaN'", "'Infinity'", "'-1e-307'", "1 / 3.0::float8");
my @types = (
	[ bool => 'true', 'false' ], [ '"char"' => "E'\\\\'", "'a'", "E'\\\\351'" ], [ name => $strange, "''" ],
	[ int2 => 32767, -32768 ], [ int4 => 2147483647, '-2147483648' ], [ int8 => 9223372036854775807, "'-9223372036854775808'" ],
	[ float4 => "'NaN'", "'-0'", "3.4028235e38", "1e-45::float4", "1 / 3.0::float4" ],
	[ float8 => "'NaN'", "'-0'", "1.7976931348623157e308", "5e-324::float8", "0.1::float8 + 0.2::float8" ],
	[ numeric => "'NaN'", "'-Infinity'", "1e1000", "-1.000e-800", "1.5000" ], [ 'numeric(12,4)' => 12345678.9, 0.00005 ],
	[ money => "'92233720368547758.07'", "'-92233720368547758.08'", "'0.01'" ],
	[ text => $strange, "''", "'NULL'", "E'\\\\N'", "repeat('x', 9000)" ], [ 'varchar(40)' => $strange, "'  '" ],
	[ 'char(30)' => $strange, "' a '" ],
	[ bytea => "E'\\\\x00ff5c27'", "''", "E'\\\\x'", "decode(repeat('00ff', 3000), 'hex')" ],
	[ date => "'4713-01-01 BC'", "'5874897-12-31'", @infinite, "'2024-02-03'" ], [ time => "'24:00'", "'00:00:00.000001'" ],
	[ timetz => "'24:00+15:59:59'", "'00:00:00.000001-15:59'" ], [ timestamp => "'4713-01-01 00:00 BC'", "'294276-12-31 23:59:59.999999'",
		@infinite ],
	[ timestamptz => @moments ], [ 'timestamptz(2)' => "'2024-12-11 10:09:08.765432+00'" ],
	[ interval => "'178000000 years'", "'-178000000 years -2147483648 days'", "'1 mon -3 days 04:05:06.7'", "'-00:00:00.000001'",
		"'-1 day +2:03'" ],
	[ 'bit(5)' => "B'00101'" ], [ varbit => "B'0'", "B'1111000011110'", "''" ], [ uuid => "'ffffffff-0000-4fff-8000-00000000ffff'" ],
	[ inet => "'::ffff:1.2.3.4/96'", "'10.1.2.3/8'" ], [ cidr => "'10.0.0.0/8'", "'::/0'" ], [ macaddr => "'08:00:2b:01:02:03'" ],
	[ macaddr8 => "'08:00:2b:01:02:03:04:05'" ], [ point => "point(1 / 3.0::float8, 'NaN')", "'(-0,Infinity)'" ], [ line => "'{1,-0.1,1e300}'" ],
	[ lseg => "lseg(point(0.1, pi()), point(-1e-300, 1e300))" ], [ box => "box(point(1 / 3.0::float8, 2), point(3, pi()))" ],
	[ path => "'[(0,0),(0.1,1e-5)]'", "'((1,1),(2,2))'" ],
	[ polygon => "'((0,0),(0.1,1),(1,0))'" ], [ circle => "circle(point(0.1, pi()), 1 / 3.0::float8)" ],
	[ json => q(E' {"b" : 1.50,  "a":"\\u00e9\\\\n", "b":2}'), "'null'" ],
	[ jsonb => q(E'{"b" : 1.50,  "a":"\\u00e9\\\\n", "n":1e400}'), "'null'", "'\"\"'" ],
	[ jsonpath => q('strict $."a b"[*] ? (@.x >= 1.50 && @ like_regex "^a" flag "i")') ],
	[ xml => $declared, "xmlparse(content 'text<b/>')", "xmlparse(content '')",
		"xmlparse(document E'<?xml version=\"1.0\" standalone=\"yes\"?><a/>')" ],
	[ tsvector => q(E'a:1A \\'b \\\\\\\\ \\'\\'c\\':2,3B \\u00e9'), "''" ], [ tsquery => q(E'a & !\\'b \\'\\' c\\':*AB <3> d'), "''" ],
	[ oid => 4294967295, 0 ], [ xid => "'4294967295'" ], [ xid8 => "'18446744073709551615'" ], [ cid => "'4294967295'" ],
	[ tid => "'(4294967295,65535)'" ],
	[ pg_lsn => "'FFFFFFFF/FFFFFFFF'" ], [ pg_snapshot => "'10:20:10,14'" ], [ refcursor => $strange ], [ int2vector => "'1 -2'", "''" ],
	[ oidvector => "'1 4294967295'", "''" ], [ regclass => "'aside.got'", "'pg_class'", "'public.got'", "0", q('"Odd ""Name"."T"') ],
	[ regtype => "'public.mood'", "'aside.mood'", "'timestamptz[]'", q('"Odd ""Name".mood[]') ],
	[ regproc => "'aside.only'", "'pg_catalog.now'", 0 ], [ regprocedure => "'aside.one(int)'", "'aside.one(text)'", "'lower(text)'" ],
	[ regoper => "'aside.<+>'", "'pg_catalog.||/'" ], [ regoperator => "'aside.<+>(int,int)'", "'+(int8,int4)'", "'-(none,int4)'" ],
	[ regrole => "'postgres'" ], [ regnamespace => "'aside'", q('"Odd ""Name"') ], [ regconfig => "'english'" ], [ regdictionary => "'simple'" ],
	[ regcollation => q('"C"') ], 
	[ int4range => "'[1,5)'", "'empty'", "'(,)'" ], [ int8range => "'[-9223372036854775808,9223372036854775807)'" ],
	[ numrange => "'[1.50,Infinity]'", "'(,NaN]'" ],
	[ tsrange => "'[2024-01-02 03:04,infinity)'" ], [ tstzrange => "'[0044-03-15 12:00+00 BC,2024-01-02 03:04:05.678901+00]'" ],
	[ daterange => "'[2024-02-03,2024-03-02)'", "'[,infinity]'" ],
	[ int4multirange => "'{[1,3),[5,7)}'", "'{}'" ], [ int8multirange => "'{[1,3),[5,)}'" ], [ nummultirange => "'{[1.50,2.0],(3,4)}'" ],
	[ tsmultirange => "'{[2024-01-02 03:04,2024-02-01 00:00]}'" ], [ tstzmultirange => "'{[2024-01-02 03:04+00,2024-02-01 00:00+00]}'" ],
	[ datemultirange => "'{[2024-01-02,2024-02-03)}'" ],
	[ 'public.spans' => "public.spans(1 / 3.0::float8, 1e300)", "'empty'" ],
	[ 'public.spans[]' => "ARRAY[public.spans(1 / 3.0::float8, NULL), NULL]" ],
	[ 'public.spans_multirange' => undef ], [ 'public.mood_range' => "'[sad,happy]'", "'[NULL,happy)'" ],
	[ 'public.d_range' => "'[2024-01-02 03:04+00,infinity)'" ],
	[ 'int[]' => "'{}'", "ARRAY[1, NULL]", "'[-1:0]={1,2}'", "ARRAY[[1,2],[3,NULL]]" ], [ 'text[]' => "ARRAY[$strange, 'NULL', '', NULL]" ],
	[ 'numeric[]' => "ARRAY['NaN'::numeric, 1.500, NULL]" ],
	[ 'timestamptz[]' => "ARRAY['2024-12-11 10:09:08.765432+00'::timestamptz, 'infinity', NULL]" ],
	[ 'date[]' => "ARRAY['2024-02-03'::date, '0044-03-15 BC']" ], [ 'interval[]' => "ARRAY['1 mon -3 days 04:05:06.7'::interval, NULL]" ],
	[ 'float8[]' => "ARRAY[1 / 3.0::float8, 'NaN', '-0', NULL]" ], [ 'bytea[]' => "ARRAY[E'\\\\x00ff5c'::bytea, '', NULL]" ],
	[ 'jsonb[]' => q(ARRAY['{"a": 1.50}'::jsonb, 'null', NULL]) ], [ 'xml[]' => "ARRAY[xmlparse(content 'a<b/>'), NULL]" ],
	[ 'box[]' => "ARRAY[box(point(1, 0.1), point(2, 3)), box(point(1, 1), point(1, 1))]" ],
	[ 'money[]' => "ARRAY['1234.56'::money, NULL]" ], [ 'regclass[]' => "ARRAY['aside.got'::regclass, 'public.got', NULL]" ],
	[ 'regprocedure[]' => "ARRAY['aside.one(text)'::regprocedure]" ],
	[ 'inet[]' => "ARRAY['10.1.2.3/8'::inet]" ], [ 'tstzrange[]' => "ARRAY['[2024-01-02 03:04+00,)'::tstzrange, NULL]" ],
	[ 'varbit[]' => "ARRAY[B'101'::varbit, B'']" ],
	[ 'name[]' => "ARRAY[$strange ::name]" ], [ 'bool[]' => 'ARRAY[true, NULL]' ], [ 'char(3)[]' => "ARRAY['a'::char(3), NULL]" ],
	[ 'public.mood' => "'sad'", "'NULL'", q(E'so "so"\\\\ ') ],
	[ 'public.mood[]' => q(ARRAY['sad', 'NULL', E'so "so"\\\\ ', NULL]::public.mood[]) ],
	[ 'public.d_text' => $strange, "''" ], [ 'public.d_text[]' => "ARRAY[$strange, 'NULL', NULL]::public.d_text[]" ],
	[ 'public.d_float' => @numbers ],
	[ 'public.d_float[]' => "ARRAY[1 / 3.0::float8, NULL]::public.d_float[]" ], [ 'public.d_time' => @moments ],
	[ 'public.d_time[]' => "ARRAY['2024-02-03 00:00+00', NULL]::public.d_time[]" ],
	[ 'public.d_money' => "'-1234.56'" ], [ 'public.d_xml' => $declared, "xmlparse(content 'a<b/>')" ], [ 'public.d_mood' => "'happy'" ],
	[ 'public.d_ints' => "ARRAY[1, NULL]" ],
	[ 'public.d_ints[]' => undef ], [ 'public.d_span' => "'[2024-02-03 00:00+00,infinity]'" ], [ 'public.d_numeric' => '0.00005' ],
	[ 'public.mixed' => $mixed, $nulls ], [ 'public.mixed[]' => "ARRAY[$mixed, NULL, $nulls]" ], [ 'public.d_mixed' => $mixed ],
	[ 'public.outer_row' => "ROW($mixed, ARRAY[$mixed, NULL], public.hstore('a', NULL), $strange)::public.outer_row" ],
	[ 'public.hstore' => "public.hstore($strange, $strange)", "public.hstore('NULL', NULL)", "''" ],
	[ 'public.hstore[]' => "ARRAY[public.hstore('a', 'b'), NULL]" ],
	[ 'public.ltree' => "'Top.a_1.b'", "''" ], [ 'public.ltree[]' => "ARRAY['a.b'::public.ltree, NULL]" ],
	[ 'public.lquery' => "'Top.*{1,2}.!a|b\@*'" ], [ 'public.ltxtquery' => "'a & !b\@*'" ],
	[ 'public.cube' => "public.cube(ARRAY[1 / 3.0::float8, 1e300], ARRAY[pi(), '-0'])", "'(1)'" ], [ 'public.earth' => "'(6378168,0,0)'" ],
	[ 'public.seg' => "'~6.50 .. 7.0'", "'<1'" ],
	[ 'public.citext' => $strange, "'Word'" ], [ 'public.citext[]' => "ARRAY['A'::public.citext, 'NULL', NULL]" ],
	[ 'public.isbn13' => "'978-0-306-40615-7'" ], [ 'public.ean13' => "'978-0-306-40615-7'" ],
	[ 'public.issn' => "'0317-8471'" ], [ 'public.upc' => "'036000291452'" ], [ 'public.query_int' => "'1&(2|!3)'" ],
	[ 'public.lo' => 4294967295 ]);
$_->[1] = "ARRAY[ARRAY[1, NULL]::public.d_ints]" foreach grep { $_->[0] eq 'public.d_ints[]' } @types;
$_->[1] = "public.spans_multirange(public.spans(1 / 3.0::float8, 1), public.spans(2, NULL))"
	foreach grep { $_->[0] eq 'public.spans_multirange' } @types;
# to look at some of them by hand
@types = grep { $_->[0] =~ /^(?:$ENV{TESSERA_VALUES_OF})\z/ } @types if $ENV{TESSERA_VALUES_OF};

# Those of isn, seg and intarray have no binary form, and that of an empty vector cannot be read.
my $no_binary = qr/^(?:public\.(?:seg|isbn13|ean13|issn|upc|query_int)|int2vector|oidvector)\z/;
my @names = map { "c$_" } 0 .. $#types;

# The values of a row: the last one has NULLs.
my $rows = TesseraCluster::long() ? 6 : 3;

# The columns that are written under the setting at hand.
our @written = 0 .. $#types;

sub values_of
{
	my ($i) = @_;
	return join(', ', map { my ($type, @values) = @{ $types[$_] }; $i == $rows ? 'NULL' : "($values[($i - 1) % @values])::$type" } @written);
}
sub names { my ($prefix) = @_; return join(', ', map { ($prefix // '') . "c$_" } @written); }
sub columns { return '(k, ' . names() . ')'; }
sub assignments { my ($from) = @_; return join(', ', map { "c$_ = $from.c$_" } @written); }

# Under two of them a shard reads parameters as the session would (doc/design.md, 4.13): what it would
# not read is left out, and ways that send it. A plain server does not read all that it has written in binary for a client of another encoding.
my @settings = (
	[],
	[ "DateStyle = 'SQL, DMY'", "TimeZone = 'Asia/Shanghai'", 'extra_float_digits = 0' ],
	[ "DateStyle = 'German'", "TimeZone = 'Asia/Kolkata'", 'extra_float_digits = -15', 'bytea_output = escape' ],
	[ "DateStyle = 'Postgres, DMY'", "TimeZone = 'America/New_York'", 'IntervalStyle = sql_standard' ],
	[ "DateStyle = 'SQL, MDY'", 'IntervalStyle = iso_8601' ],
	[ 'IntervalStyle = postgres_verbose', "TimeZone = 'Europe/Amsterdam'" ],
	[ 'xmloption = document', { without => qr/xml|mixed|outer_row/, ways => qr/^(?!a trigger)/ } ],
	[ 'array_nulls = off',
		{ without => qr/^public\..*\[\]|d_ints|mixed|outer_row|mood_range|reg.*\[\]/, ways => qr/^(?!a trigger|UPDATE FROM|COPY binary)/ } ],
	[ "lc_monetary = 'C.UTF-8'", "lc_numeric = 'C.UTF-8'" ],
	[ "client_encoding = 'LATIN1'", { ways => qr/^(?!COPY binary)/ } ],
	[ 'search_path = aside, pg_catalog' ],
	[ "search_path = ''", 'quote_all_identifiers = on' ],
	[ 'standard_conforming_strings = off', 'backslash_quote = on', 'escape_string_warning = off' ]);

# Keys of what a way writes under a setting: rows of src have 1 to $rows, and the same below zero.
sub key { my ($n, $from) = @_; $from //= 'k'; return "pg_catalog.sign($from)::int * ($n * 20 + pg_catalog.abs($from))"; }
sub copied { my ($n, $from) = @_; my $key = key($n); my $names = names(); return "SELECT $key, $names FROM " . ($from // 'public.src'); }
my $loop = "DO \$x\$ DECLARE r public.src; n int := 0; BEGIN FOR r IN %s LOOP n := n + 1; PERFORM public.other_style(n); r.k := " . key('%d',
	'r.k') .
	"; INSERT INTO public.got %s VALUES (r.k, %s); END LOOP; END \$x\$";
my $dir;
# What a text that is read again must be written under.
my @shown_whole = ("SET DateStyle = 'ISO, DMY'", 'SET IntervalStyle = postgres', 'SET extra_float_digits = 1', 'SET array_nulls = on',
	'SET xmloption = content');

# Ways: statements that write to got under keys of the number n, or show what is there.
my @ways = (
	[ constants => sub { my $n = shift; map { my $i = $_; map { 'INSERT INTO public.got ' . columns() . ' VALUES (' . $_ * ($n * 20 + $i) . ', ' .
		values_of($i) . ')' } -1, 1 } 1 .. $rows } ],
	[ 'constants in one statement' => sub {
		my $n = shift;
		'INSERT INTO public.got ' . columns() . ' VALUES ' . join(', ', map { my $i = $_; map { '(' . $_ * ($n * 20 + $i) . ', ' . values_of($i) .
			')' } -1, 1 } 1 .. $rows) . ' RETURNING *' } ],
	[ parameters => sub {
		my $n = shift;
		my @of = map { "\$$_" } 2 .. @written + 1;
		('PREPARE p(int, ' . join(', ', map { $types[$_][0] } @written) . ') AS INSERT INTO public.got ' . columns() . " VALUES (\$1, " . join(', ',
			@of) . ') RETURNING *',
			(map { my $i = $_; map { 'EXECUTE p(' . $_ * ($n * 20 + $i) . ', ' . values_of($i) . ')' } -1, 1 } 1 .. $rows), 'DEALLOCATE p') } ],
	[ 'from shard to shard' => sub { my $n = shift; my $key = key($n, '-k'); 'INSERT INTO public.got ' . columns() . " SELECT $key, " . names() .
		' FROM public.src' } ],
	[ 'on a shard, RETURNING' => sub { my $n = shift; 'INSERT INTO public.got ' . columns() . ' ' . copied($n) . ' RETURNING *' } ],
	[ 'by rows of a cursor' => sub { my $n = shift; sprintf($loop, 'SELECT * FROM public.src ORDER BY k', $n, columns(), names('r.')) } ],
	[ 'by rows of an UPDATE' => sub { my $n = shift; sprintf($loop, 'UPDATE public.src SET k = k RETURNING *', $n, columns(), names('r.')) } ],
	[ 'key update' => sub { my $n = shift; ('INSERT INTO public.got ' . columns() . ' ' . copied($n),
		"UPDATE public.got SET k = -pg_catalog.sign(k)::int * (pg_catalog.abs(k) + 10) WHERE pg_catalog.abs(k) / 20 = $n RETURNING *") } ],
	[ 'UPDATE FROM' => sub {
		my $n = shift;
		('INSERT INTO public.got SELECT ' . key($n) . ' FROM public.src',
			"UPDATE public.got SET " . assignments('s') . " FROM (SELECT k, " . names() .
				" FROM public.src ORDER BY k LIMIT 100) s WHERE pg_catalog.abs(got.k) / 20 = $n AND got.k = " . key($n, '-s.k')) } ],
	[ 'ON CONFLICT' => sub {
		my $n = shift;
		('INSERT INTO public.got SELECT ' . key($n) . ' FROM public.src', 'INSERT INTO public.got ' . columns() . ' ' . copied($n) .
			" ON CONFLICT (k) DO UPDATE SET " . assignments('excluded'),
			'INSERT INTO public.got ' . columns() . ' SELECT k, ' . names() . ' FROM public.got WHERE k = ' . ($n * 20 + 1) .
				' ON CONFLICT (k) DO UPDATE SET ' .
				assignments('excluded') . ' RETURNING *') } ],
	[ 'from a temporary table' => sub {
		my $n = shift;
		('CREATE TEMP TABLE kept AS SELECT * FROM public.src', 'INSERT INTO public.got ' . columns() . ' ' . copied($n, 'pg_temp.kept'),
			'DROP TABLE pg_temp.kept') } ],
	[ 'WITH' => sub { my $n = shift; "WITH u AS (UPDATE public.src SET k = k RETURNING *) INSERT INTO public.got " . columns() . ' ' . copied($n,
		'u') } ],
	[ 'COPY text' => sub { my $n = shift; (@shown_whole, "\\copy (" . copied($n) . ") to '$dir/f'", "\\copy public.got " . columns() .
		" from '$dir/f'") } ],
	[ 'COPY csv' => sub { my $n = shift; (@shown_whole, "\\copy (" . copied($n) . ") to '$dir/f' csv", "\\copy public.got " . columns() .
		" from '$dir/f' csv") } ],
	[ 'COPY binary' => sub { my $n = shift; local @written = grep { $types[$_][0] !~ $no_binary } @written; ("\\copy (" . copied($n) .
		") to '$dir/f' binary", "\\copy public.bin " . columns() . " from '$dir/f' binary",
			'INSERT INTO public.got ' . columns() . ' SELECT k, ' . names() . " FROM public.bin WHERE pg_catalog.abs(k) / 20 = $n") } ],
	[ 'a trigger' => sub { my $n = shift; ('UPDATE public.watched SET ' . assignments('watched') . ', k = k RETURNING k',
		'INSERT INTO public.got ' . columns() . ' ' . copied($n, 'public.log'), 'DELETE FROM public.log') } ],
	[ 'a replicated table' => sub { my $n = shift; ('INSERT INTO public.whole ' . columns() . ' ' . copied($n),
		"UPDATE public.whole SET k = k WHERE k > 0", 'INSERT INTO public.got ' . columns() . ' ' . copied(0, 'public.whole') .
		" WHERE pg_catalog.abs(k) / 20 = $n") } ],
	[ 'by key' => sub { map { "SELECT * FROM public.src WHERE k = $_" } -1, 1, -2, 2 } ],
	[ 'all rows' => sub { 'SELECT * FROM public.src ORDER BY k' } ],
	[ 'whole rows' => sub { 'SELECT s FROM public.src s ORDER BY k',
		'SELECT s FROM (SELECT * FROM public.src ORDER BY pg_catalog.abs(k), k LIMIT 9) s' } ],
	[ 'a cursor' => sub {
		('BEGIN', 'DECLARE c CURSOR FOR SELECT * FROM public.src ORDER BY k', 'FETCH 1 FROM c', 'SELECT public.other_style(1)', 'FETCH 2 FROM c',
			'SELECT public.other_style(2)', 'FETCH ALL FROM c', 'COMMIT') } ],
);

my $end = "\\echo == %s\n";
my (@script, %way_of);
my $n = 0;
foreach my $setting (@settings)
{
	foreach my $way (@ways)
	{
		next if grep { ref && $way->[0] !~ $_->{ways} } @$setting;
		$way_of{ ++$n } = "$way->[0] under " . (join(', ', grep { !ref } @$setting) || 'no settings');
		push @script, [ $n, $setting, $way->[1] ];
	}
}

sub script_for
{
	($dir) = @_;
	my $text = '';
	foreach my $part (@script)
	{
		my ($number, $setting, $statements) = @$part;
		my ($without) = map { $_->{without} // () } grep { ref } @$setting;
		@written = grep { !$without || $types[$_][0] !~ $without } 0 .. $#types;
		$text .= sprintf($end, $number) . join('', map { "SET $_;\n" } grep { !ref } @$setting);
		$text .= join('', map { /^\\/ ? "$_\n" : "$_;\n" } $statements->($number));
		$text .= "RESET ALL;\n";
	}
	@written = 0 .. $#types;
	return $text . sprintf($end, 'end');
}

# What the script prints, by number.
sub run_on
{
	my ($conninfo) = @_;
	my $out = '';
	my $script = script_for(PostgreSQL::Test::Utils::tempdir());
	local $ENV{PGOPTIONS} = '-c client_min_messages=warning';
	local $ENV{PGCLIENTENCODING} = 'UTF8';
	IPC::Run::run([ 'stdbuf', '-oL', 'psql', '-XAtq', '-v', 'SHOW_CONTEXT=never', '-P', 'null=NULL', '-d', $conninfo ], '<', \$script, '&>', \$out,
		IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
	my %answers;
	foreach my $block (split /^== /m, $out)
	{
		$answers{$1} = join("\n", sort split /\n/, $block) if $block =~ s/^(\d+|end)\n//;
	}
	return \%answers;
}

# Bit for bit: text that loses nothing, and the binary form where that is all of it.
my %send = map { split /\|/ } split /\n/,
	$c->plain_query("SELECT format_type(oid, NULL), typsend::regproc FROM pg_type WHERE typtype = 'b' AND typelem = 0 " .
	"AND typsend <> 0 AND oid < 10000 AND NOT typname ~ '^reg|^xml|aclitem|oidvector|int2vector|pg_node_tree'");
my %full = map { split /\|/ } split /\n/, $c->plain_query("SELECT t, format_type(t::regtype, NULL) FROM unnest('{" .
	join(',', map { $_->[0] =~ /^\w+$/ ? $_->[0] : () } @types) . "}'::text[]) t");
my $shown = join(', ', map {
	my ($type, $column) = ($types[$_][0], "c$_");
	my $text = $type =~ /^regproc$|^regoper$/ ? "$column\::" . ($type eq 'regproc' ? 'regprocedure' : 'regoperator') . '::text' : "$column\::text";
	my $send = $send{ $full{$type} // $type };
	$send ? "$text || ' ' || encode($send($column" . ($send eq 'textsend' ? '::text' : '') . "), 'hex')" : $text;
} 0 .. $#types);
my $exact = "SET DateStyle = 'ISO, MDY'; SET TimeZone = 'UTC'; SET extra_float_digits = 3; SET IntervalStyle = postgres; SET xmloption = content;";

sub cells
{
	my ($conninfo, $table, $where) = @_;
	my $script = "$exact COPY (SELECT k, $shown FROM $table WHERE $where) TO STDOUT;";
	my $out = '';
	local $ENV{PGCLIENTENCODING} = 'UTF8';
	IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $conninfo ],
		'<', \$script, '>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default))
		or die "cannot read $table";
	my %rows;
	foreach my $line (split /\n/, $out)
	{
		my ($key, @values) = split /\t/, $line, -1;
		$rows{$key} = \@values;
	}
	return \%rows;
}

# Compares tables cell by cell; what differs is said by way and type, a few of them.
my $counted = 0;
sub same_cells
{
	my ($what, $plain, $got) = @_;
	my (%found, $shown_here);
	foreach my $key (sort { $a <=> $b } keys %{ { %$plain, %$got } })
	{
		my $way = $way_of{ int(abs($key) / 20) } // 'what was there before';
		if (!$plain->{$key} || !$got->{$key})
		{
			$found{ "$way: " . ($got->{$key} ? 'a row too many' : 'a row is missing') } //= $key;
			next;
		}
		foreach my $i (0 .. $#types)
		{
			$counted++;
			$found{"$way: $types[$i][0]: '$plain->{$key}[$i]' is '$got->{$key}[$i]'"} //= $key if $plain->{$key}[$i] ne $got->{$key}[$i];
		}
	}
	is(scalar keys %found, 0, $what) or diag(join("\n", map { substr($_, 0,
		400) } (sort keys %found)[ 0 .. ($#{ [ keys %found ] } < 40 ? $#{ [ keys %found ] } : 40) ]));
	return;
}

$c->plain_query($schema);
$c->query('s1', $schema);
foreach my $table ('src', 'got', 'watched', 'log', 'bin', 'whole')
{
	# COPY wants to know how all columns are read in binary, and some cannot be
	my @kept = grep { $table ne 'bin' || $types[$_][0] !~ $no_binary } 0 .. $#types;
	$c->everywhere("CREATE TABLE $table (k int PRIMARY KEY, " . join(', ', map { "c$_ $types[$_][0]" } @kept) . ')');
	$c->query('s1', $table eq 'whole' ? "SELECT tessera.replicate_table('whole')" : "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.move_range('$table', 0, tessera.maxkey(), 's2')") unless $table eq 'whole';
}
$c->everywhere("SET client_min_messages = error; CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN OLD.k := -OLD.k; INSERT INTO public.log VALUES (OLD.*); RETURN NEW; END';
	CREATE TRIGGER keep AFTER UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION keep()");
# what there is at first is written by each shard itself
foreach my $table ('src', 'watched')
{
	foreach my $i (1 .. $rows)
	{
		$c->plain_query("INSERT INTO $table VALUES ($_, " . values_of($i) . ')') foreach -$i, $i;
		$c->query('s1', "INSERT INTO $table VALUES (-$i, " . values_of($i) . ')');
		$c->query('s2', "INSERT INTO $table VALUES ($i, " . values_of($i) . ')');
	}
}
my $plain = run_on($c->plain->connstr('postgres'));
my $got = run_on($c->conninfo('r1'));
ok(defined $got->{end}, 'the script has run to its end');
my (@failed, @differ);
foreach my $number (1 .. $n)
{
	push @failed, "$way_of{$number}: $1" if $plain->{$number} =~ /^(.*ERROR.*)$/m;
	next if ($got->{$number} // '') eq $plain->{$number};
	my %expected = map { $_ => 1 } split /\n/, $plain->{$number};
	my ($first) = grep { !$expected{$_} } split /\n/, $got->{$number} // 'nothing';
	push @differ, "$way_of{$number}: " . substr($first // 'lines are missing', 0, 300);
}
is(join("\n", @failed), '', 'no error on a plain server');
is(join("\n", @differ), '', 'and all answers are the same');

sub compare_tables
{
	my ($when, @owners) = @_;
	foreach my $table ('got', 'src')
	{
		my %there = map { %{ cells($c->conninfo($_->[0]), $table, $_->[1]) } } @owners;
		same_cells("$table $when", cells($c->plain->connstr('postgres'), $table, 'true'), \%there);
	}
	return;
}
compare_tables('as its owners have it', [ 's1', 'k < 0' ], [ 's2', 'k >= 0' ]);
same_cells("the copy on $_", cells($c->plain->connstr('postgres'), 'whole', 'true'), cells($c->conninfo($_), 'whole', 'true')) foreach $c->names;
$c->query('s1', "SELECT tessera.move_range('got', tessera.minkey(), 0, 's2'); SELECT tessera.move_range('src', tessera.minkey(), 0, 's2')");
compare_tables('after a move', [ 's2', 'true' ]);
note("$counted cells of " . @types . ' types, ' . @ways . ' ways, ' . @settings . ' settings');
cmp_ok($counted, '>=', @types * @settings * 15 * 2 * $rows, 'cells were compared');

done_testing();
