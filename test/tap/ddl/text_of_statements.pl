# DDL goes to other nodes as text, and there it means what was parsed: also if lexer settings changed between the two, within one message; settings
# that decide what a text means go along.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('text');
$c->create(shards => 2, routers => 1);
my @nodes = $c->names;

# One message: all of it is parsed before the first of it runs.
sub one_message
{
	my ($node, $sql) = @_;
	my $server = $c->node($node);
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-h', $server->host, '-p', $server->port, '-d', 'postgres', '-c', $sql ], '>', \$out,
		'2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return ($out, $err);
}

sub same_text
{
	my ($sql, $expected, $what) = @_;
	foreach my $node (@nodes)
	{
		is($c->query($node, $sql), $expected, "$what: $node");
	}
	return;
}

sub default_of
{
	my ($table) = @_;
	return "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = '$table'::regclass";
}

# Parsed with standard_conforming_strings on, run with it off; and the other way.
one_message('s1', q{SET standard_conforming_strings = off; CREATE TABLE a (k int PRIMARY KEY, v text DEFAULT '\\x' CHECK (v <> 'it\\s'))});
same_text(default_of('a'), q{'\\x'::text}, 'SET to off before');
same_text(q{SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'a'::regclass AND contype = 'c'}, q{CHECK ((v <> 'it\\s'::text))},
	'and a CHECK');
$c->query('s1', 'ALTER ROLE CURRENT_USER SET escape_string_warning = off');
my $off = 'ALTER ROLE CURRENT_USER SET standard_conforming_strings = off';
$c->query('s1', $off);
one_message('r1', q{SET standard_conforming_strings = on; CREATE TABLE b (k int PRIMARY KEY, v text DEFAULT 'a\\\\b\\'c')});
$c->query('s1', 'ALTER ROLE CURRENT_USER RESET standard_conforming_strings');
same_text("SET standard_conforming_strings = on; " . default_of('b'), q{'a\\b''c'::text}, 'SET to on before, with a quote behind a backslash');
one_message('s2', q{SET standard_conforming_strings = off; SET backslash_quote = off; COMMENT ON TABLE a IS 'c:\\new\\table'; CREATE VIEW w AS
	SELECT '\\n' || k AS v FROM a;
	SET standard_conforming_strings = on; COMMENT ON COLUMN a.v IS 'x\\y'; CREATE DOMAIN d AS text CHECK (VALUE <> '\\')});
same_text(q{SELECT obj_description('a'::regclass)}, 'c:\\new\\table', 'a comment');
same_text(q{SELECT col_description('a'::regclass, 2)}, 'x\\y', 'the next one, with the setting that was');
same_text(q{SELECT pg_get_viewdef('w'::regclass) ~ '\\\\n'}, 't', 'a view');
same_text(q{SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid = 'd'::regtype}, q{CHECK ((VALUE <> '\\'::text))}, 'a domain');
one_message('s1', q{SET standard_conforming_strings = off; CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN E''a\\\\b''; END';
	CREATE FUNCTION g() RETURNS text LANGUAGE sql AS $$ SELECT 'x\\y'::text $$; CREATE ROLE with_secret PASSWORD 'a\\b'; CREATE MATERIALIZED VIEW m
	AS SELECT '\\q' || k AS q FROM a WITH NO DATA});
same_text(q{SELECT prosrc FROM pg_proc WHERE proname = 'f'}, q{BEGIN RETURN E'a\\\\b'; END}, 'body of a function');
same_text(q{SELECT prosrc FROM pg_proc WHERE proname = 'g'}, q{ SELECT 'x\\y'::text }, 'of another, in dollars');
same_text(q{SELECT pg_get_viewdef('m'::regclass) ~ '\\\\q'}, 't', 'a materialized view without data');
$c->query('s1', q{CREATE MATERIALIZED VIEW m2 AS SELECT '\\q' || k AS q FROM a WITH NO DATA; CREATE TABLE m3 AS SELECT '\\q'::text AS q});
same_text(q{SELECT pg_get_viewdef('m2'::regclass) ~ '\\\\q'}, 't', 'as it is parsed');
same_text('SELECT q FROM m3', '\\q', 'and a table of a query');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency()'), '', 'the tables are the same everywhere');

# A cached statement of a function keeps the tree of its first parse.
$c->query('s1', q{CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
	EXECUTE format('CREATE TABLE %I (k int, v text DEFAULT ''\\z'')', name); END $$;
	CREATE FUNCTION note() RETURNS void LANGUAGE plpgsql AS $$ BEGIN COMMENT ON TABLE b IS '\\t1'; END $$});
$c->query('s1', q{SELECT note(); SET standard_conforming_strings = off; SELECT note()});
same_text(q{SELECT obj_description('b'::regclass)}, '\\t1', 'a statement of a function, parsed before the setting changed');
$c->query('s1', q{SELECT make('m1')});
same_text(default_of('m1'), q{'\\z'::text}, 'a text made by a function');

# Settings on which the meaning of DDL depends otherwise.
my @settings = (
	[ q{datestyle = 'SQL, DMY'}, q{date DEFAULT '02/03/2026'} ],
	[ q{datestyle = 'SQL, MDY'}, q{date DEFAULT '02/03/2026'} ],
	[ q{intervalstyle = 'sql_standard'}, q{interval DEFAULT '-1 2:03:04'} ],
	[ q{timezone = 'Asia/Tokyo'}, q{timestamptz DEFAULT '2026-01-01 00:00'} ],
	[ q{transform_null_equals = on}, q{int CHECK (v = NULL)} ],
	[ q{xmloption = document}, q{text DEFAULT 'x'} ],
	[ q{array_nulls = off}, q{text[] DEFAULT '{NULL}'} ],
	[ q{bytea_output = escape}, q{bytea DEFAULT '\\x00ff'} ],
	[ q{extra_float_digits = -10}, q{float8 DEFAULT 0.1234567890123456} ],
	[ q{quote_all_identifiers = on}, q{int DEFAULT 1} ],
	[ q{lc_monetary = 'C'}, q{money DEFAULT '1.50'} ]);
foreach my $i (0 .. $#settings)
{
	my ($setting, $definition) = @{ $settings[$i] };
	$c->query($nodes[$i % @nodes], "SET $setting; CREATE TABLE set_$i (k int PRIMARY KEY, v $definition)");
	my %seen = map { $c->query($_, "SELECT (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'set_$i'::regclass),
		(SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'set_$i'::regclass AND contype = 'c')") => 1 } @nodes;
	is(scalar(keys %seen), 1, "$setting: the same everywhere") or diag join("\n", sort keys %seen);
}
$c->query('s1', 'CREATE SCHEMA other; CREATE TABLE other.q (k int)');
$c->query('s2', q{SET search_path = other, public; SET check_function_bodies = off; CREATE FUNCTION of_path() RETURNS bigint LANGUAGE sql
	AS 'SELECT count(*) FROM nosuch';
	CREATE VIEW of_q AS SELECT * FROM q});
same_text(q{SELECT pg_get_viewdef('other.of_q'::regclass) ~ 'other|q.k'}, 't', 'search_path and check_function_bodies');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency()'), '', 'the tables are the same everywhere, still');

done_testing();
