# Columns of any type in a sharded table that was analyzed: conditions with the types' operators, joins and EXPLAIN do on every node as on a plain
# server, also where one shard has nothing but NULL in a column, and after a move. A type whose statistics are of a kind of its own (PostGIS has
# such) is planned without any: its selectivity function would fail on what other nodes can know of them.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('any_type', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 2, routers => 1);

my $schema = <<'SQL';
SET client_min_messages = warning;
CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE EXTENSION pg_trgm; CREATE EXTENSION cube; CREATE EXTENSION intarray;
CREATE EXTENSION seg; CREATE EXTENSION citext; CREATE EXTENSION isn;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE TYPE pair AS (a int, b text);
CREATE TYPE float_range AS RANGE (subtype = float8, subtype_diff = float8mi);
CREATE DOMAIN tags AS text[]; CREATE DOMAIN small AS int CHECK (VALUE < 1000); CREATE DOMAIN span AS int4range; CREATE DOMAIN feeling AS mood;
CREATE TYPE measured;
CREATE FUNCTION measured_in(cstring) RETURNS measured IMMUTABLE STRICT LANGUAGE internal AS 'textin';
CREATE FUNCTION measured_out(measured) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'textout';
CREATE TYPE measured (INPUT = measured_in, OUTPUT = measured_out, ANALYZE = tessera_test.measured_analyze, LIKE = text);
CREATE FUNCTION measured_equal(measured, measured) RETURNS bool IMMUTABLE STRICT LANGUAGE internal AS 'byteaeq';
CREATE OPERATOR === (LEFTARG = measured, RIGHTARG = measured, FUNCTION = measured_equal, COMMUTATOR = ===,
  RESTRICT = tessera_test.measured_selectivity);
CREATE DOMAIN measured_too AS measured;
SQL

# ISBN with its last digit.
sub isbn
{
	my $first = sprintf('%09d', shift);
	my $sum = 0;
	$sum += (10 - $_) * substr($first, $_, 1) foreach 0 .. 8;
	return $first . (0 .. 9, 'X')[ (11 - $sum % 11) % 11 ];
}
my $isbns = "'{" . join(',', map { isbn(30640615 + 11 * $_) } 0 .. 6) . "}'::text[]";

# Type; its values by g; conditions on a column v; how it is joined, if not by =.
my @types = (
	[ hstore => "hstore('a' || g % 3, (g % 7)::text)", "v @> 'a1=>2'", "v ? 'a2'", "v -> 'a0' = '3'", "v = 'a1=>1'", "v ?| ARRAY['a0', 'a5']" ],
	[ ltree => "('top.l' || g % 4 || '.x' || g)::ltree", "v <@ 'top.l2'", "v ~ '*.l3.*'", "v @ 'l1'", "v < 'top.l2'", "v @> 'top.l1.x5.deep'" ],
	[ text => "'word ' || g % 9 || ' of ' || g", "v % 'word 3 of 12'", "v ~ '7'", "v LIKE 'word 3%'", "v <-> 'word 3' < 0.7", "v ILIKE '%OF 1%'" ],
	[ cube => 'cube(ARRAY[g % 20, g % 11]::float8[])', "v <@ '(0,0),(5,5)'", "v && '(3,3),(4,9)'", "v <-> '(1,1)' < 4",
		"v = '(3,3)'", "v < '(4,1)'" ],
	[ seg => "(g % 30 || ' .. ' || g % 30 + 3)::seg", "v && '5 .. 7'", "v @> '8 .. 9'", "v = '3 .. 6'", "v < '4 .. 5'", "v << '9'" ],
	[ citext => "'Name' || g % 12", "v = 'NAME3'", "v LIKE 'name1%'", "v IN ('NAME2', 'x')", "v > 'naMe5'", "v ~ 'NAME1'" ],
	[ isbn => "($isbns)[g % 7 + 1]::isbn", "v = " . "'" . isbn(30640615) . "'", "v < '" . isbn(30640615 + 33) . "'" ],
	[ 'bigint[]' => 'ARRAY[g % 5, NULLIF(g % 3, 2), g % 13]', "v && '{3}'", "v @> '{1,2}'", "v <@ '{0,1,2,3}'", "4 = ANY (v)", "2 <> ALL (v)",
		"v = '{1,1,1}'" ],
	[ 'int[] NOT NULL' => 'ARRAY[g % 5, g % 4]', "v @@ '1&2'::query_int", "v && ARRAY[4]", "v @> ARRAY[3]", "icount(v) = 2 AND v <@ ARRAY[0, 1, 2]" ],
	[ 'text[]' => "ARRAY['x', 'y' || g % 6]", "v && '{y1,y2}'", "v @> '{x}'", "v <@ '{x,y3}'", "'y4' = ANY (v)" ],
	[ tags => "ARRAY['t' || g % 5, NULL]", "v && ARRAY['t1']", "v @> '{t2}'::text[]", "v = '{t3,NULL}'" ],
	[ 'mood[]' => "ARRAY[(ARRAY['sad', 'ok', 'happy'])[g % 3 + 1]::mood]", "v && '{ok}'", "v @> '{sad}'", "v = '{happy}'", "'ok' = ANY (v)" ],
	[ 'small[]' => 'ARRAY[g, g % 4]::small[]', "v::int[] && ARRAY[7]", "3::small = ANY (v)", "v = ARRAY[8, 0]::small[]" ],
	[ mood => "(ARRAY['sad', 'ok', 'happy'])[g % 3 + 1]::mood", "v = 'ok'", "v < 'happy'", "v IN ('sad', 'happy')" ],
	[ feeling => "(ARRAY['sad', 'ok'])[g % 2 + 1]::mood", "v::mood = 'ok'", "v::mood > 'sad'" ],
	[ small => 'g % 17', "v = 3", "v < 5", "v IN (1, 2, 16)" ],
	[ tsvector => "to_tsvector('simple', 'alpha w' || g % 8)", "v @@ 'w3'", "v @@ 'alpha & !w1'",
		"v @@ to_tsquery('simple', 'w:*')", "v = '''alpha'':1 ''w2'':2'" ],
	[ tsquery => "('w' || g % 8 || ' & alpha')::tsquery", "v @> 'w3'", "'alpha w5'::tsvector @@ v", "v = '''w1'' & ''alpha'''" ],
	[ int4range => 'CASE WHEN g % 11 = 0 THEN int4range(1, 1) ELSE int4range(g % 40, g % 40 + g % 9 + 1) END', "v && '[5,7)'",
		"v @> 3", "v <@ '[1,30)'",
		"v @> 'empty'", "v << '[9,12)'", "v = '[3,5)'", "v < '[4,5)'", "v -|- '[9,12)'", "isempty(v)" ],
	[ span => 'int4range(g % 25, NULL)', "v && '[5,7)'", "v @> 3", "v <@ '[3,)'", "v < '[4,5)'" ],
	[ daterange => "daterange('2024-01-01'::date + g % 50, '2024-03-01')", "v @> '2024-01-20'::date",
		"v && '[2024-01-01,2024-01-05)'", "v <@ '[2024-01-10,)'" ],
	[ float_range => 'float_range(g % 12, g % 12 + 1.5)', "v && '[5,7)'", "v @> 3::float8", "v <@ '[1,9)'", "v = '[3,4.5)'", "v > '[3,5)'" ],
	[ int4multirange => 'int4multirange(int4range(g % 40, g % 40 + 2), int4range(100, 103))', "v && '{[5,7)}'::int4multirange",
		"v @> 3", "v <@ '[1,104)'::int4range",
		"v = '{[3,5),[100,103)}'", "v < '{[4,5)}'", "v @> '{}'::int4multirange" ],
	[ jsonb => "jsonb_build_object('a', g % 6, 'b', jsonb_build_array(g % 4))", q(v @> '{"a": 3}'), "v ? 'a'",
		q(v @? '$.b[*] ? (@ == 2)'), q(v @@ '$.a > 3'),
		q(v = '{"a": 1, "b": [1]}'), "v -> 'a' < '2'" ],
	[ 'bit(8)' => '(g % 16)::bit(8)', "v = B'00000011'", "v < B'00000111'", "v & B'00000001' = B'00000001'" ],
	[ 'bit varying' => '(g % 16)::bit(8)::bit varying', "v = B'00000011'", "v > B'00000111'" ],
	[ inet => "('10.0.' || g % 7 || '.' || g % 50)::inet", "v << '10.0.3.0/24'", "v && '10.0.0.0/23'", "v = '10.0.1.1'",
		"v >>= '10.0.2.2'", "v < '10.0.3.0'" ],
	[ cidr => "('10.' || g % 9 || '.0.0/16')::cidr", "v >> '10.3.1.1'", "v = '10.4.0.0/16'" ],
	[ point => 'point(g % 20, g % 11)', "v <@ box '((0,0),(5,5))'", "v <-> '(1,1)' < 4", "v ~= '(3,3)'" ],
	[ box => 'box(point(g % 20, 0), point(g % 20 + 2, 3))', "v && '((3,3),(4,9))'", "v @> '(5,1)'::point", "v << '((9,9),(12,12))'" ],
	[ circle => 'circle(point(g % 20, 0), 2)', "v && '<(3,3),2>'", "v @> '(5,1)'::point" ],
	[ polygon => 'polygon(box(point(g % 20, 0), point(g % 20 + 2, 3)))', "v && '((3,3),(4,9),(5,1))'", "v ~= '((3,0),(3,3),(5,3),(5,0))'" ],
	[ pair => "ROW(g % 8, 'b' || g % 2)::pair", "v = ROW(3, 'b1')::pair", "(v).a = 4", "v < ROW(2, 'b')::pair" ],
	[ 'pair[]' => "ARRAY[ROW(g % 8, 'b')::pair]", "v = ARRAY[ROW(3, 'b')::pair]", "v && ARRAY[ROW(4, 'b')::pair]" ],
	[ bytea => "decode(lpad(to_hex(g % 20), 4, '0'), 'hex')", "v = '\\x0003'", "v < '\\x0005'", "v LIKE '\\x0004'" ],
	[ interval => "make_interval(days => g % 9, mins => -(g % 4))", "v = '3 days -3 minutes'", "v < '4 days'" ],
	[ money => '(g % 15)::text::money', "v = '3'", "v < '5'" ],
	[ oidvector => "(g % 6 || ' 1')::oidvector", "v = '3 1'" ],
	[ '"char"' => 'chr(97 + g % 5)::"char"', "v = 'c'", "v < 'd'" ],
	[ regtype => "(ARRAY['int', 'text', 'mood'])[g % 3 + 1]::regtype", "v = 'mood'::regtype" ],
	[ measured => "('m' || g % 9)::measured", "v === 'm3'", "'m4' === v" ],
	[ measured_too => "('m' || g % 9)::measured", "v === 'm3'" ]);

my @columns = map { "c$_ $types[$_][0]" } 0 .. $#types;
# NULL in each tenth row; of every other column, in all rows of the second shard.
my @values = map {
	my $nulls = $_ % 2 ? 'g % 10 = 0' : 'g % 10 = 0 OR g > 150';
	$types[$_][0] =~ /NOT NULL/ ? $types[$_][1] : "CASE WHEN NOT ($nulls) THEN $types[$_][1] END"
} 0 .. $#types;
my $fill = 'INSERT INTO t SELECT g, ' . join(', ', @values) . ' FROM generate_series(1, 300) g';

sub column { my ($text, $column) = @_; return $text =~ s/\bv\b/$column/gr; }

my @conditions = map { my $i = $_; map { column($_, "c$i") } @{ $types[$i] }[ 2 .. $#{ $types[$i] } ] } 0 .. $#types;
# Types without btree: by the condition's operator, as far as it takes two values of them.
my %joined = (hstore => '@>', cube => '&&', box => '&&', point => '~=', circle => '&&', polygon => '&&', measured => '===', measured_too => '===');
my @joins = map {
	my $operator = $joined{ $types[$_][0] } // '=';
	"SELECT count(*), sum(a.k), sum(b.k) FROM t a JOIN t b ON a.c$_ $operator b.c$_ WHERE a.k < 20 AND b.k > 140"
} grep { $types[$_][0] ne 'feeling' } 0 .. $#types;

$c->query('s1', $schema);
# the extension for tests is not there
$c->plain_query($schema =~ s/,\s+(?:ANALYZE|RESTRICT) = tessera_test\.\w+//gr);
$c->everywhere('CREATE TABLE t (k int PRIMARY KEY, ' . join(', ', @columns) . ')');
$c->query('s1', "SELECT tessera.shard_table('t', 'k')");
$c->query('s1', "SELECT tessera.move_range('t', 151, tessera.maxkey(), 's2')");
$c->query('r1', "$fill; ANALYZE t");
$c->plain_query("$fill; ANALYZE t");

my %sessions = (plain => $c->plain->background_psql('postgres', on_error_stop => 0), map { $_ => $c->session($_, on_error_stop => 0) } $c->names);

# Rows of a SELECT, or its error.
sub answer
{
	my ($node, $sql) = @_;
	my $session = $sessions{$node};
	$session->{stderr} = '';
	my $rows = $session->query($sql);
	return $session->{stderr} =~ /ERROR/ ? $session->{stderr} : $rows;
}

my %expected;
sub compare
{
	my ($what, @nodes) = @_;
	foreach my $sql ((map { "SELECT count(*), array_agg(k ORDER BY k) FROM t WHERE $_" } @conditions), @joins)
	{
		$expected{$sql} //= answer('plain', $sql);
		unlike($expected{$sql}, qr/ERROR/, "plain: $sql");
		is(answer($_, $sql), $expected{$sql}, "$what, $_: $sql") foreach @nodes;
		unlike(answer($nodes[-1], "EXPLAIN VERBOSE $sql"), qr/ERROR/, "$what, $nodes[-1]: EXPLAIN");
	}
	return;
}

compare('analyzed', 's1', 'r1');
cmp_ok(scalar(grep { /^0\|/ } values %expected), '<', 20, 'most conditions find something');

# What the statistics hold is read whatever the session's settings are, and estimates come of it.
foreach my $settings ('array_nulls = off', 'quote_all_identifiers = on', "IntervalStyle = 'sql_standard'")
{
	my $session = $c->session('r1');
	my ($numbers) = map { "c$_" } grep { $types[$_][0] eq 'bigint[]' } 0 .. $#types;
	like($session->query_safe("SET $settings; EXPLAIN SELECT FROM t WHERE $numbers = '{1,1,1}'"), qr/Tessera Scan.*rows=[1-9]\d?\b/, "SET $settings");
	$session->quit;
}
my ($spans) = map { "c$_" } grep { $types[$_][0] eq 'int4multirange' } 0 .. $#types;
my $overlaps = "EXPLAIN SELECT * FROM t WHERE $spans && '{[5,7)}'::int4multirange";
my ($rows) = $c->query('r1', $overlaps) =~ /Tessera Scan.*rows=(\d+)/;
my ($plain) = $c->plain_query($overlaps) =~ /Seq Scan.*rows=(\d+)/;
cmp_ok(abs($rows - $plain), '<=', 0.5 * $plain, "bounds of multiranges count: $rows rows expected, $plain by a plain server");

$c->query('s1', "SELECT tessera.move_range('t', 50, 101, 's2')");
compare('moved', 'r1');
$c->query('r1', 'ANALYZE t');
compare('moved and analyzed', 's2');

$_->quit foreach values %sessions;

done_testing();
