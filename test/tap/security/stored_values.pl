# A stored value is not a new one: rows that a move or a replicated table brings to another node, or that a router reads, run no check of a domain or
# a table there, however deep the domain lies in their types. Nobody's code runs as the tables' owner or as the reader, a rule that is newer than a
# row (NOT VALID) does not hold it up, and generated columns come as they are stored.
use strict;
use warnings;

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('stored', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 2, routers => 1);

# mallory's checks run as who inserts (alice), or as herself; the tables are a superuser's.
my $only = q{RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
	IF current_user NOT IN ('alice', 'mallory') THEN RAISE EXCEPTION 'mallory''s code runs as %', current_user; END IF;
	RETURN true; END $$};
$c->query('s1', $_) foreach (
	'CREATE ROLE alice', 'CREATE ROLE mallory', 'CREATE SCHEMA mallory AUTHORIZATION mallory', 'GRANT USAGE ON SCHEMA mallory TO PUBLIC',
	map({ "SET ROLE mallory; $_" }
		"CREATE FUNCTION mallory.ok(v anyelement) $only",
		'CREATE DOMAIN mallory.i AS int CHECK (mallory.ok(VALUE))',
		'CREATE DOMAIN mallory.s AS varchar(9) CHECK (mallory.ok(VALUE))',
		'CREATE DOMAIN mallory.ii AS mallory.i CHECK (mallory.ok(VALUE))',
		'CREATE DOMAIN mallory.list AS mallory.s[] CHECK (mallory.ok(VALUE))',
		'CREATE TYPE mallory.gone AS (x int)',
		'CREATE TYPE mallory.pair AS (a mallory.ii, g text, b mallory.s[])',
		'ALTER TYPE mallory.pair DROP ATTRIBUTE g',
		'CREATE DOMAIN mallory.pairs AS mallory.pair[] CHECK (mallory.ok(VALUE))',
		'CREATE TYPE mallory.whole AS (p mallory.pair, ps mallory.pairs, n numeric(6,2))',
		'CREATE TYPE mallory.span AS RANGE (subtype = mallory.ii)',
		'CREATE TYPE mallory.words AS RANGE (subtype = mallory.s)'));
my @columns = ('a mallory.i', 'b mallory.ii', 'c mallory.s', 'd mallory.list', 'e mallory.i[]', 'f mallory.pair', 'g mallory.pair[]', 
	'h mallory.pairs', 'm mallory.whole', 'r mallory.span', 'rs mallory.span[]',
	'w mallory.words', 'ws mallory.words[]', 'mr mallory.span_multirange', 'ms mallory.span_multirange[]', 'l mallory.list[]',
	'plain int CHECK (mallory.ok(plain))');
my $table = '(k int PRIMARY KEY, ' . join(', ', @columns) . ')';
$c->query('s1', $_) foreach ("CREATE TABLE public.t $table", "CREATE TABLE public.conf $table", q{SELECT tessera.replicate_table('public.conf')},
	q{SELECT tessera.shard_table('public.t', 'k')}, q{SELECT tessera.move_range('public.t', tessera.minkey(), tessera.maxkey(), 's1')},
	'GRANT ALL ON public.t, public.conf TO alice');

sub rows
{
	my ($name, $from, $to) = @_;
	my $pair = sub { return "ROW($_[0], $_[1]::mallory.s[])::mallory.pair" };
	my @values = ('k', 'k', 'k', q{'s' || k}, q{ARRAY['x', NULL, 'y,"' || k]::mallory.s[]}, 'ARRAY[k, NULL]', $pair->('k', q{ARRAY['q ' || k]}),
		'ARRAY[' . $pair->('k', q{ARRAY['"']}) . ', NULL]', 'ARRAY[' . $pair->('NULL', 'NULL') . ', ' . $pair->('k', q{'{}'}) . ']',
		'ROW(' . $pair->('k', q{ARRAY['z']}) . ', ARRAY[' . $pair->('k', 'NULL') . '], k / 4.0)::mallory.whole', 'mallory.span(k, k + 5)',
		'ARRAY[mallory.span(NULL, k)]', q{mallory.words('', 'a,"]\\' || k)}, q{ARRAY[mallory.words('b"', NULL, '(]'), 'empty'::mallory.words, NULL]},
		'mallory.span_multirange(mallory.span(k, k + 1), mallory.span(k + 5, k + 6))', q{ARRAY['{}'::mallory.span_multirange]},
		q{ARRAY[ARRAY['m']::mallory.list]}, 'k');
	return "SET ROLE alice; INSERT INTO public.$name SELECT " . join(', ', @values) . " FROM generate_series($from, $to) k";
}

# What a statement says, if anything.
sub told { return ($c->psql(@_))[2]; }

# All values, and what needs their types: names of fields, of elements, comparison with values made anew.
sub content
{
	my ($node, $name) = @_;
	return $c->query($node, "SET ROLE alice; SELECT count(*), md5(string_agg(t::text || row_to_json(t) || row_to_json(f) || array_to_json(g) || "
		  . 'row_to_json((m).p) || pg_typeof(d[1]) || pg_typeof(e[1]), \' \' ORDER BY k)), bool_and(e = ARRAY[k, NULL]::mallory.i[] AND '
		  . "g[1] = ROW(k, ARRAY['\"']::mallory.s[])::mallory.pair AND d[1] = 'x' AND "
		  . "h[2] = ROW(k, '{}'::mallory.s[])::mallory.pair AND (m).ps[1] = ROW(k, NULL)::mallory.pair) "
		  . "FROM public.$name AS t");
}

# ---- a replicated table ----

is(told('r1', rows('conf', 1, 20)), '', 'rows of a replicated table');
is(told('s2', 'SET ROLE alice; UPDATE public.conf SET a = a + 1, d = d || \'u\'::mallory.s, f.a = 7 WHERE k > 10'), '', 'changed');
is(told('r1', 'SET ROLE alice; DELETE FROM public.conf WHERE k = 20'), '', 'and deleted');
my $expected = content('s1', 'conf');
like($expected, qr/^19\|.*\|t$/, 'all are there');
is(content($_, 'conf'), $expected, "alike on $_") foreach qw(s2 r1);

# A generated column whose function says something else today, or in another session.
my $day = 'id int PRIMARY KEY, at timestamptz, d date GENERATED ALWAYS AS (mallory.day(at)) STORED, v int';
$c->query('s1', $_) foreach (q{CREATE FUNCTION mallory.day(timestamptz) RETURNS date IMMUTABLE LANGUAGE sql AS 'SELECT $1::date'},
	"CREATE TABLE public.days ($day)", "CREATE TABLE public.local_days ($day)", q{SELECT tessera.replicate_table('public.days')},
	q{SELECT tessera.shard_table('public.local_days', 'id')},
	q{SELECT tessera.move_range('public.local_days', tessera.minkey(), tessera.maxkey(), 's1')});
is(told('r1', "SET TIME ZONE 'America/New_York'; INSERT INTO public.$_ (id, at, v) SELECT g, '2024-03-05 02:00+00', 0 "
	  . 'FROM generate_series(1, 9) g'), '', "$_ in another zone") foreach qw(days local_days);
$c->query('s1', q{CREATE OR REPLACE FUNCTION mallory.day(timestamptz) RETURNS date IMMUTABLE LANGUAGE sql AS 'SELECT $1::date + 1000'});
is($c->query($_, 'SELECT count(*) FROM public.days WHERE d = DATE \'2024-03-04\''), '9', "stored so on $_") foreach qw(s1 s2 r1);
is(told('s2', 'UPDATE public.days SET v = 1 WHERE id < 5'), '', 'another column');
is($c->query($_, 'SELECT count(*), sum(v) FROM public.days WHERE d = DATE \'2024-03-04\''), '9|4', "stays so on $_") foreach qw(s1 s2 r1);
is(told('r1', 'UPDATE public.days SET at = at WHERE id = 9'), '', 'what it is made of');
my $ninth = 'SELECT d FROM public.days WHERE id = 9';
is($c->query($_, $ninth), $c->query('s1', $ninth), "alike on $_") foreach qw(s2 r1);

# What is new is judged, though a shard computes it: a function whose body is put in place says by its type alone what it returns.
$c->query('s1', $_) foreach ('CREATE DOMAIN public.pos AS int CHECK (VALUE > 0)', 'CREATE TABLE public.plain (k int PRIMARY KEY, v int)',
	q{SELECT tessera.shard_table('public.plain', 'k', 'hash')}, 'INSERT INTO public.plain VALUES (1, -1)',
	q{CREATE FUNCTION public.f() RETURNS SETOF public.pos STABLE LANGUAGE sql AS 'SELECT v FROM public.plain'},
	q{CREATE FUNCTION public.g(int) RETURNS public.pos IMMUTABLE LANGUAGE sql AS 'SELECT $1'});
like($c->error('r1', $_), qr/23514/, $_) foreach 'SELECT * FROM public.f()', 'SELECT f + 1 FROM public.f() AS f',
	'SELECT public.g(v) FROM public.plain', 'SELECT public.f()',
	'SELECT public.g(v), count(*) FROM public.plain GROUP BY 1', 'SELECT max(public.g(v)) FROM public.plain WHERE k = 1',
	'SELECT count(*) FROM public.plain WHERE public.g(v) < 5', 'CREATE TABLE public.made AS SELECT f FROM public.f() AS f';

# ---- a move ----

sub move
{
	my ($table, $donor, $recipient, @while) = @_;
	$c->pause_at($donor, 'donor_cloned');
	my $move = $c->background('r1', qq{SELECT tessera.move_range('$table', tessera.minkey(), tessera.maxkey(), '$recipient', verify => true)});
	ok($c->paused_at($donor, 'donor_cloned'), "to $recipient: cloned");
	is(told('r1', $_), '', 'a change meanwhile') foreach @while;
	$c->go_on($donor);
	unlike(TesseraCluster::ended($c, $move), qr/ERROR/, 'it ends well');
	is($c->query('s1', "SELECT string_agg(DISTINCT shard, ' ') FROM tessera.chunks WHERE table_name = '$table'::regclass"), $recipient, 'there');
}

is(told('r1', rows('t', 1, 50)), '', 'rows of a sharded table');
move('public.t', 's1', 's2', rows('t', 51, 60), 'SET ROLE alice; UPDATE public.t SET b = b + 1, c = \'new\', f.a = 9 WHERE k % 10 = 0',
	'SET ROLE alice; DELETE FROM public.t WHERE k = 7');
$expected = content('r1', 't');
like($expected, qr/^59\|.*\|t$/, 'all are there');

# Who reads runs no check either.
is(told('r1', $_), '', $_) foreach 'SELECT * FROM public.t', 'COPY public.t TO STDOUT', 'SELECT * FROM public.t WHERE k = 3 FOR UPDATE';

my $days = 'SELECT count(*), min(d), max(d), sum(v) FROM public.local_days';
is($c->query('r1', $days), '9|2024-03-04|2024-03-04|0', 'generated of before');
move('public.local_days', 's1', 's2', 'UPDATE public.local_days SET v = 1 WHERE id < 5');
is($c->query('r1', $days), '9|2024-03-04|2024-03-04|4', 'moved as they were');
is(told('r1', 'UPDATE public.local_days SET at = at'), '', 'computed by who writes');
is($c->query('r1', $days), '9|2026-11-30|2026-11-30|4', 'by the function of today');

# Rules that are newer than the rows.
$c->query('s1', $_) foreach (map({ "ALTER DOMAIN mallory.$_ ADD CONSTRAINT never CHECK (VALUE IS NULL) NOT VALID" } qw(i s list pairs)),
	'ALTER TABLE public.t ADD CONSTRAINT never CHECK (plain IS NULL) NOT VALID', 'ALTER TABLE public.t DROP COLUMN l');
my $texts = q{SET ROLE alice; SELECT count(*), md5(string_agg(t::text || row_to_json(f), ' ' ORDER BY k)) FROM public.t AS t WHERE k <> 8};
$expected = $c->query('r1', $texts);
like($expected, qr/^58\|/, 'read as they are');
move('public.t', 's2', 's1', 'SET ROLE alice; DELETE FROM public.t WHERE k = 8');
is($c->query('r1', $texts), $expected, 'and moved');
like($c->error('r1', 'SET ROLE alice; UPDATE public.t SET plain = 1 WHERE k = 3'), qr/23514/, 'new rows are judged');
like($c->error('r1', 'SET ROLE alice; UPDATE public.t SET a = 1 WHERE k = 3'), qr/23514/, 'and new values');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)'), '0', 'all is consistent');
$c->is_settled('in the end');
done_testing();
