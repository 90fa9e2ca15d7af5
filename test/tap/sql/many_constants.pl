# Statements with more constants than the protocol has numbers for parameters: lists of IN and ARRAY[...] go to the shards as one array, of other
# constants what is beyond some thousands stays in the text. Each is run on a plain server and through each node, and the answers are the same. A
# statement that cannot be sent fails by itself: the connection and the transaction go on.
use strict;
use warnings;

use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('constants');
$c->create(shards => 2, routers => 1);

my $schema = <<'SQL';
CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE t (k int PRIMARY KEY, v int, b bigint, s text, sc text COLLATE "C", vc varchar(9), ch char(4), nm name, n numeric(10,2), d date,
	f float8, i interval, o oid, ci citext, m mood, a int[], va varchar(3)[]);
CREATE TABLE u (k int, w int, PRIMARY KEY (k, w));
CREATE TABLE pl (k int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g * 10, g, 's' || g, chr(64 + g), 'v' || g, 'c' || g, 'n' || g, g / 4.0, date '2024-01-01' + g, g / 8.0,
	g * interval '1 hour', g, 'C' || g, (ARRAY['sad', 'ok', 'happy'])[1 + g % 3]::mood, ARRAY[[g, g], [1, 2]], ARRAY['a' || g]
	FROM generate_series(1, 20) g;
INSERT INTO t (k) VALUES (21);
INSERT INTO u SELECT g, w FROM generate_series(1, 20) g, generate_series(1, 3) w;
INSERT INTO pl SELECT g, g FROM generate_series(1, 20) g;
CREATE FUNCTION again(statement text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE total bigint = 0; n bigint;
BEGIN
	-- more often than it takes for a plan that does not know the values
	FOR i IN 1 .. 8 LOOP
		EXECUTE format(statement, (SELECT string_agg(g::text, ', ') FROM generate_series(i, i + 11) g));
		GET DIAGNOSTICS n = ROW_COUNT;
		total = total + n;
	END LOOP;
	RETURN total;
END $$;
SQL
$c->query('s1', $schema);
$c->query('s1', $_) foreach ("SELECT tessera.shard_table('t', 'k')", "SELECT tessera.shard_table('u', 'k', colocate_with => 't')",
	"SELECT tessera.move_range('t', 11, tessera.maxkey(), 's2')");
$c->plain_query($schema);

# Short lists, of a type each, which are folded alike. (): twelve values of the form that follows.
sub twelve { my ($form) = @_; return join ', ', map { $form =~ s/#/$_/gr } 5 .. 16; }
sub filled { my ($statement, $form) = @_; my $list = twelve($form); return $statement =~ s/\(\)/$list/gr; }
my @lists = (
	[ 'k IN (())', '#' ], [ 'k IN ((), NULL)', '#' ], [ 'k NOT IN ((), NULL)', '#' ], [ 'k <> ALL (ARRAY[()])', '#' ], [ 'b IN (())', '#' ],
	[ 'b IN ((), 5000000000)', '#' ], [ 'k IN ((), 5000000000)', '#' ], [ 'v > ANY (ARRAY[(), NULL])', '#' ], [ 's IN (())', q('s#') ],
	[ 's IN ((), NULL)', q('s#') ], [ 'sc < ALL (ARRAY[()])', q('b#') ], [ 's COLLATE "C" < ALL (ARRAY[()])', q('T#') ],
	[ 's < ALL (ARRAY[()])', q('T#' COLLATE "C") ], [ 'vc IN (())', q('v#') ], [ 'ch IN (())', q('c#') ], [ 'ch IN (())', q('c#'::char(2)) ],
	[ 'vc IN (())', q('v#'::varchar(2)) ], [ 'nm IN (())', q('n#') ], [ 'n IN (())', '# / 4.0' ], [ 'n IN ((), 1.25)', '1.#' ],
	[ 'n IN (())', '1.#::numeric(4,1)' ], [ 'd IN (())', q(date '2024-01-01' + #) ], [ 'd IN ((), NULL)', q('2024-01-#') ],
	[ 'd IN ((), NULL)', q(date '12.1.20#') ], [ 'f IN ((), 0.5)', '0.#' ], [ 'f IN ((), 1)', '#' ], [ 'i IN (())', q('# hours') ],
	[ 'i IN (())', q(interval(0) '# hours 0.2 s') ], [ q{o::int8 IN ((), 't'::regclass::int8)}, '#' ],
	[ 'ci IN (())', q('c#') ], [ q{ci IN ((), NULL, 'null')}, q('c#') ], [ 'm IN (())', q('sad') ], [ 'm::text IN (())', q('sad') ],
[ 'a = ARRAY[[()], [()]]', '#' ], [ 'a && ARRAY[()]', '#' ],
	[ 'va && ARRAY[()]', q('a#'::varchar(2)) ], [ 'va && ARRAY[()]::varchar(2)[]', q('a#') ], [ 'k = ANY (ARRAY[()]::bigint[])', '#' ],
	[ '(k IN (())) = (v IN (()))', '#' ], [ 'CASE WHEN k IN (()) THEN v IN ((), 100) END', '#' ],
);
my @short = (
	(map { filled("UPDATE t SET v = -1 WHERE $_->[0] RETURNING k", $_->[1]) } @lists),
	(map { filled("SELECT k FROM t WHERE k IN (1, 5, 14) AND $_->[0]", $_->[1]) } @lists),
	(map { filled("SET array_nulls = off; SET datestyle = 'german, dmy'; SELECT u.w FROM t JOIN u USING (k) WHERE k = 14 AND $_->[0]", $_->[1]) }
		@lists),
	(map { filled(@$_) } (
			[ 'UPDATE t SET a = ARRAY[()], va = ARRAY[()] WHERE k IN (1, 14) RETURNING a, va', '#' ],
			[ 'UPDATE t SET va = ARRAY[()] WHERE k IN (1, 14) RETURNING a, va', q('a#') ],
			[ q{UPDATE t SET va = ARRAY[(), 'long'] WHERE k = 14}, q('a#') ],
			[ 'UPDATE t SET a = ARRAY[[(), NULL], [NULL, ()]] WHERE k IN (1, 14) RETURNING a', '#' ],
			[ 'UPDATE t SET a = ARRAY[[()], [1]] WHERE k IN (1, 14) RETURNING a', '#' ],
			[ 'UPDATE t SET a[2] = 5, v = cardinality(ARRAY[()]) WHERE k = 14 RETURNING v, a', '#' ],
			[ 'INSERT INTO t (k, a) VALUES (30, ARRAY[()]) RETURNING a', '#' ],
			[ 'DELETE FROM t WHERE k IN (()) RETURNING k', '#' ], [ 'DELETE FROM pl WHERE k IN (()) RETURNING k', '#' ])),
	(map { "SELECT again('$_'); SELECT k, v FROM t; SELECT * FROM pl; SELECT * FROM u" }
		'UPDATE t SET v = v + 1 WHERE k IN (%s)', 'DELETE FROM t WHERE v IN (%s)', 'UPDATE t SET v = v + 1 WHERE k = 14 AND b IN (%s)',
		'UPDATE pl SET v = v + 1 WHERE k IN (%s)', 'DELETE FROM u WHERE k = 14 AND w NOT IN (%s)',
		'SELECT FROM t JOIN u USING (k) WHERE k = 14 AND w IN (%s)', 'SELECT FROM t LEFT JOIN u USING (k) WHERE w IN (%s)'),
	# variables and columns among them
	(map { 'DO $$ DECLARE x int = 1; y bigint = 14; n int; BEGIN FOR i IN 1 .. 8 LOOP x = i; ' .
			"UPDATE t SET v = v - 1 WHERE $_; y = y + i; END LOOP; END \$\$; SELECT k, v FROM t" }
		'k IN (x, y, 3, x + 1, 5, 6, 7, 8, 9, 10, 11, NULL)', 'b IN (x, n, 3, x, 5, 6, 7, 8, 9, 10, 11, NULL)',
		'k = 14 AND b IN (x, y, 3, 4, 5, 6, 7, 8, 9, 10, 11, k)', 'k = 14 AND b IN (x, y, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)',
		's IN (x::text, y::text, n::text, chr(x), chr(5), chr(6), chr(7), chr(8), chr(9), chr(10), chr(11), \'s3\')'),
);
is($c->table_differs($_, \@short), 0, "from $_: " . scalar(@short) . ' statements with lists') foreach $c->names;

# Long ones.
my $n = 66_000;
my $ids = join ',', 1 .. $n;
my $when = join ' ', map { "WHEN $_ THEN $_" } 1 .. 35_000;
my @long = (
	"UPDATE t SET v = 2 WHERE k IN ($ids) RETURNING k",
	"UPDATE t SET v = 2 WHERE k NOT IN ($ids, NULL)",
	"UPDATE t SET v = 2 WHERE b IN ($ids) AND k = 14 RETURNING k",
	"DELETE FROM t WHERE v IN ($ids) RETURNING k",
	"UPDATE pl SET v = 0 WHERE k IN ($ids) RETURNING k",
	"DELETE FROM pl WHERE k IN ($ids) RETURNING k",
	"SELECT t.k, u.w FROM t JOIN u USING (k) WHERE k = 14 AND u.w IN ($ids)",
	"SELECT t.k, u.w FROM t LEFT JOIN u USING (k) WHERE t.v IN ($ids)",
	"SELECT count(*) FROM t JOIN pl USING (k) WHERE t.v IN ($ids)",
	"SELECT k FROM t WHERE k IN ($ids) FOR UPDATE",
	"UPDATE t SET v = CASE k $when END WHERE k IN (3, 14) RETURNING k, v",
	"UPDATE pl SET v = CASE k $when END WHERE k IN (3, 14) RETURNING k, v",
	"SELECT k FROM t WHERE CASE k $when END = 14",
	"UPDATE t SET a = ARRAY[$ids], v = cardinality(ARRAY[$ids]) WHERE k = 14 RETURNING cardinality(a), v",
	'UPDATE t SET a = ARRAY[' . join(',', map { "[$_,NULL]" } 1 .. $n / 2) . '] WHERE k IN (3, 14) RETURNING a[33000:33000][1:2]',
	'UPDATE t SET v = 3 WHERE ci IN (' . join(',', map { "'c$_'" } 1 .. $n) . ') RETURNING k',
	"UPDATE t SET k = k + 100 WHERE v IN ($ids) AND k < 13 RETURNING k; SELECT k, v FROM t",
	"INSERT INTO u SELECT k, v FROM t WHERE b IN ($ids); SELECT * FROM u",
	"WITH d AS (DELETE FROM t WHERE k IN ($ids) RETURNING k, v) INSERT INTO pl SELECT k + 100, v FROM d; SELECT * FROM pl",
	"DELETE FROM t USING pl WHERE pl.v = t.b AND t.v IN ($ids) RETURNING t.k",
	"UPDATE t SET v = 1 WHERE k IN (SELECT k FROM pl WHERE v IN ($ids)) RETURNING k",
	"MERGE INTO t USING u ON t.k = u.k AND u.w = 1 WHEN MATCHED AND t.v IN ($ids) THEN UPDATE SET v = 1; SELECT sum(v) FROM t",
);
is($c->table_differs($_, \@long), 0, "from $_: " . scalar(@long) . " statements with $n constants") foreach $c->names;

# What stays in the text is not kept: neither by the other shard's session, nor by this one.
$c->query('s1', 'CREATE FUNCTION kept() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM pg_prepared_statements
	WHERE length(statement) > 100000); END $$');
is($c->query('r1', "UPDATE t SET v = CASE k $when END WHERE k IN (1, 14);
		UPDATE t SET v = kept() WHERE k IN (1, 14) RETURNING v"), "0\n0",
	'no prepared statement of it is kept');

# Parameters of the user's own.
my $parameters = join ',', map { "\$$_" } 1 .. $n;
$c->query('s1', "UPDATE t SET v = k");
foreach my $name ($c->names)
{
	my $session = $c->session_of($name, "PREPARE long AS UPDATE t SET v = v + 1 WHERE k IN ($parameters) RETURNING k",
		'PREPARE short(' . join(', ', ('int') x 12) . ') AS UPDATE t SET v = v + 1 WHERE k > 0 AND b IN (' .
		join(', ', map { "\$$_" } 1 .. 12) . ') RETURNING k');
	is(scalar(split /\n/, $c->answer($session, "EXECUTE long($ids)")), 21, "$name: a list of $n parameters");
	foreach my $i (1 .. 8)
	{
		my $keys = $c->answer($session, 'EXECUTE short(' . join(', ', $i .. $i + 10) . ', NULL)');
		is(join(' ', sort { $a <=> $b } split /\n/, $keys), join(' ', $i .. $i + 10), "$name: a list of parameters, the ${i}th time");
	}
	$session->quit;
}

# What cannot be sent fails by itself. Constants of types that users make all become parameters of a scan (planner/scan_text.c).
my $citext = join ' ', map { "WHEN 'c$_'::citext THEN $_" } 1 .. $n;
foreach my $name ($c->names)
{
	my $session = $c->session_of($name);
	is($c->answer($session, $_), '', "$name: $_") foreach 'BEGIN', 'UPDATE t SET v = 1000 WHERE k IN (3, 14)', 'SAVEPOINT s';
	is($c->answer($session, "SELECT k FROM t WHERE CASE ci $citext END = 14"), '54000', "$name: too many parameters");
	like($session->{stderr}, qr/\d+ parameters.*HINT:.*array/s, "$name: it says so");
	is($c->answer($session, $_->[0]), $_->[1], "$name: $_->[0]") foreach ([ 'ROLLBACK TO s', '' ],
		[ 'UPDATE t SET v = v + 1 WHERE k IN (3, 14)', '' ], [ 'COMMIT', '' ], [ 'SELECT DISTINCT v FROM t WHERE k IN (3, 14)', '1001' ]);
	$session->quit;
}

done_testing();
