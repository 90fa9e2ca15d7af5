# A client's encoding is its own affair: values, names and texts that go to or come from other nodes are in the database's encoding. Clients that
# speak LATIN1, EUC_JP, SQL_ASCII and UTF8 run the same statements on a plain server and through each node; what they get is compared byte by byte,
# then what is stored, as a UTF8 client reads it and as the shards hold it. Statements, COPY in each format, DDL, errors and notices; and bound values
# in binary, by libpq's protocol.
use strict;
use warnings;
use utf8;

use Encode qw(encode);
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('encoding');

my $schema = <<'SQL';
CREATE TYPE mood AS ENUM ('frö', '犬');
CREATE TYPE pair AS (x int, y text);
CREATE DOMAIN word AS text CHECK (value <> 'schlösser');
CREATE FUNCTION says(t text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'sagt %', t; RETURN 'ö' || t; END $$;
CREATE TABLE t (k text COLLATE "C" NOT NULL, id int NOT NULL, v varchar(20), c char(6), n name, ch "char", a text[], p pair, ps pair[], w word,
  j json, jb jsonb, x xml, m mood, b bytea,
	tv tsvector, PRIMARY KEY (k, id));
CREATE TABLE h (k text PRIMARY KEY, v text);
CREATE TABLE pl (id int PRIMARY KEY, v text UNIQUE);
CREATE TABLE fires (k text COLLATE "C" PRIMARY KEY, v text);
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE WARNING 'Zeile %', new.k;
	IF new.v = 'bös' THEN RAISE EXCEPTION 'böse: %', new.k USING DETAIL = 'größer'; END IF;
	new.v := new.v || '-ä';
	RETURN new;
END $$;
CREATE TRIGGER fire BEFORE INSERT OR UPDATE ON fires FOR EACH ROW EXECUTE FUNCTION fire();
SQL
my $rows = <<'SQL';
INSERT INTO t SELECT k, id, 'Käse ' || k, 'ä' || id, 'nämé', 'z', ARRAY['ü', NULL, k], (id, 'ß' || k)::pair, ARRAY[(1, k)::pair, (2, 'ñ')::pair],
  'wört', '{"ö": "é"}', '{"ö": ["é"]}', '<a>é</a>', 'frö', '\xe4f6',
	to_tsvector('simple', 'Käse ö') FROM unnest(ARRAY['ähnlich', 'zäh', 'Äpfel', 'müde', 'plain']) k, generate_series(1, 2) id;
INSERT INTO h SELECT v, v || '!' FROM unnest(ARRAY['ä', 'ö', 'ü', 'é', 'ñ', 'ß', 'a', 'b', 'c', 'd']) v;
INSERT INTO pl VALUES (1, 'für'), (2, 'gegen');
SQL

# What characters of its own each encoding has.
my %clients = (LATIN1 => [ 'ß', 'é', 'æøå' ], EUC_JP => [ '犬', '日本語', 'テスト' ], UTF8 => [ 'ß', '日本語', '€😀' ], SQL_ASCII => [ 'ß', 'é', '語' ]);
my @texts = split /^--\n/m, <<'SQL';
SELECT k, id, v, c, n, ch, a, p, ps, w, j, jb, x, m, b FROM t WHERE k = 'Wä' ORDER BY id
--
SELECT * FROM t WHERE k LIKE 'W%' ORDER BY k, id
--
SELECT k, id, length(v), octet_length(v), ascii(substr(k, 2)) FROM t ORDER BY k, id
--
INSERT INTO t (k, id, v, c, n, a, p, ps, w, j, jb, x) VALUES ('W1', 1, 'W1', 'W2', 'W3', ARRAY['W1','W2'], (1,'W3'), ARRAY[(1,'W1')::pair], 'W2',
  '{"W1": "W2"}', '{"W2": "W3"}', '<W>W1</W>') RETURNING *
--
INSERT INTO t (k, id, v) VALUES ('aW1', 1, 'W2'), ('zW1', 1, 'W3'), ('zW2', 2, 'W1') RETURNING k, v, length(v)
--
INSERT INTO t (k, id, v) SELECT 'W' || k, id, v || 'W1' FROM t RETURNING k, v
--
INSERT INTO t (k, id, v) VALUES ('aW1', 1, 'W2'), ('aW1', 1, 'W2') ON CONFLICT (k, id) DO NOTHING; INSERT INTO t (k, id, v) VALUES ('aW1', 1, 'neu')
  ON CONFLICT (k, id) DO UPDATE SET v = excluded.v || t.v || 'W3' RETURNING v
--
INSERT INTO t (k, id, v) VALUES ('aW1', 1, 'viel zu lang, W1W2W3W1W2W3W1W2W3')
--
INSERT INTO t (k, id, w) VALUES ('aW1', 1, 'schlösser')
--
INSERT INTO h VALUES ('W1', 'W2'), ('W2', 'W3'), ('W3', 'W1') RETURNING *; SELECT * FROM h WHERE k = 'W1'; SELECT * FROM h WHERE k = ANY (ARRAY['W2',
  'W3']) ORDER BY k; INSERT INTO h VALUES ('W1', ''); SELECT 1
--
SELECT h.k, t.k FROM h JOIN t ON substr(t.k, 1, 1) = h.k ORDER BY 1, 2
--
UPDATE t SET v = 'W1' || id, a[1] = 'W2', p.y = 'W3', jb = jb || '{"W1": 1}', x = '<W>W3</W>' WHERE k = 'zäh' RETURNING v, a, p, jb, x
--
UPDATE t SET v = left(v, 5) || 'W1', w = w || 'W2' RETURNING k, id, v, w
--
UPDATE t SET k = k || 'W1' WHERE id = 1 RETURNING k
--
DELETE FROM t WHERE v = 'Käse zäh' RETURNING k, v
--
DELETE FROM h WHERE k > 'c' RETURNING k
--
PREPARE p (text, text) AS SELECT k, id, v || $2 FROM t WHERE k = $1 ORDER BY id; EXECUTE p('zäh', 'W1'); EXECUTE p('ähnlich', 'W2'); EXECUTE p('zäh',
  'W1')
--
PREPARE p (text, text, text[]) AS INSERT INTO t (k, id, v, a) VALUES ($1, 1, $2, $3) RETURNING k, v, a; EXECUTE p('aW1', 'W2', ARRAY['W3']);
EXECUTE p('zW1', 'W2', '{"W3"}')
--
SELECT says(k) FROM t WHERE id = 1 ORDER BY k; SELECT k FROM t WHERE says(v) = 'öKäse zäh' ORDER BY id, k
--
DECLARE c SCROLL CURSOR FOR SELECT k, v || 'W1' FROM t ORDER BY k, id; FETCH 3 FROM c; FETCH BACKWARD 1 FROM c; FETCH LAST FROM c
--
SELECT string_agg(DISTINCT v, 'W1' ORDER BY v) FROM t; SELECT array_agg(k ORDER BY k, id), json_agg(p ORDER BY k, id), max(v) FROM t; SELECT xmlagg(x)
  FROM t WHERE k = 'zäh'
--
COPY t (k, id, v, a, p, jb, x) FROM stdin;
aW1	1	W2	{W3,W1}	(1,W2)	{"W1": "W3"}	<W>W1</W>
zW1	1	W3	{W3,W1}	(1,W2)	{"W1": "W3"}	<W>W1</W>
\.
SELECT k, v, a, p, jb, x FROM t WHERE k LIKE '_W%' OR k LIKE 'aW1' OR k LIKE 'zW1' ORDER BY k
--
COPY t (k, id, v, w) FROM stdin (FORMAT csv, QUOTE 'q', HEADER);
k,id,v,w
aW1,1,qWä,qq2q,W3
zW1,1,W3,
\.
SELECT k, v, w FROM t WHERE v LIKE '%W%' ORDER BY k
--
COPY t (k, id, v) FROM stdin WHERE v <> 'W2';
aW1	1	W2
zW1	2	W3
aW1	3	W1
\.
SELECT k, v FROM t WHERE id = 2 AND k LIKE 'z%' OR id = 3 ORDER BY k
--
COPY h FROM stdin;
W1	W2
W2	W3
neuä	W1
\.
SELECT * FROM h ORDER BY k COLLATE "C"
--
COPY pl FROM stdin;
3	W1
4	W2
\.
SELECT * FROM pl ORDER BY id; INSERT INTO pl VALUES (5, 'für')
--
COPY (SELECT k, id, v, p FROM t ORDER BY k, id) TO stdout
--
COPY (SELECT * FROM h ORDER BY k COLLATE "C") TO stdout (FORMAT csv)
--
CREATE TABLE "Tabelle W1" (k int PRIMARY KEY, "Spalte W2" text DEFAULT 'W3', CHECK ("Spalte W2" <> 'böW1')); INSERT INTO "Tabelle W1" (k) VALUES (1);
SELECT * FROM "Tabelle W1"; COMMENT ON TABLE "Tabelle W1" IS 'Kommentar W1'; SELECT obj_description('"Tabelle W1"'::regclass);
INSERT INTO "Tabelle W1" VALUES (2, 'böW1')
--
CREATE FUNCTION "fW1"(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'W2' || $1 || 'W3' $$; SELECT "fW1"(k) FROM t WHERE id = 1 ORDER BY k;
SELECT k FROM t WHERE "fW1"(k) = 'W2zähW3' ORDER BY id
--
CREATE TYPE "typW1" AS ENUM ('W1', 'W2', 'a'); CREATE TABLE e (k int PRIMARY KEY, e "typW1", "W3" text); INSERT INTO e VALUES (1, 'W1', 'x'), (2,
  'W2', 'y'); SELECT * FROM e WHERE e = 'W1'; ALTER TYPE "typW1" ADD VALUE 'W3'; ALTER TABLE e RENAME "W3" TO "W2"; SELECT "W2" FROM e ORDER BY k
--
CREATE TABLE "cW1" AS SELECT k AS "kW2", v || 'W3' AS v FROM t WHERE id = 1; SELECT * FROM "cW1" ORDER BY 1; CREATE VIEW "vW1" AS SELECT "kW2", 'W3'
  AS w FROM "cW1"; SELECT * FROM "vW1" ORDER BY 1
--
CREATE MATERIALIZED VIEW "mW1" AS SELECT k || 'W2' AS k FROM t WHERE id = 1; SELECT * FROM "mW1" ORDER BY 1
--
SELECT "gibt es nicht W1" FROM t
--
SET DateStyle = 'SQL, DMY'; SET extra_float_digits = 0; SELECT k, v FROM t WHERE k = 'zäh' ORDER BY id
--
SELECT * FROM xmltable('//r' PASSING '<r>W1</r>' COLUMNS v text PATH '.') x JOIN pl ON pl.id = 1
--
SELECT set_config('app.W1', 'W2', true); SELECT current_setting('app.W1') || v FROM pl WHERE id = 1
SQL

sub script_for
{
	my ($encoding) = @_;
	my ($one, $two, $three) = @{ $clients{$encoding} };
	my @script;
	foreach my $sql (@texts)
	{
		(my $text = $sql) =~ s/W1/$one/g;
		$text =~ s/W2/$two/g;
		$text =~ s/W3/$three/g;
		# What the schema is made of cannot be said in EUC_JP.
		$text =~ tr/äöüßñÄéæøå/AOUSNZEQWX/ if $encoding eq 'EUC_JP';
		push @script, encode($encoding eq 'LATIN1' ? 'iso-8859-1' : $encoding eq 'EUC_JP' ? 'euc-jp' : 'UTF-8', $text);
	}
	chomp @script;
	return \@script;
}

$c->create(shards => 2, routers => 1);
my $all = encode('UTF-8', "$schema $rows");
(my $plain_rows = $rows) =~ tr/äöüßñÄéæøå/AOUSNZEQWX/;
$c->query('s1', encode('UTF-8', $schema));
foreach my $table (qw(t fires))
{
	$c->query('s1', "SELECT tessera.shard_table('$table', '" . ($table eq 't' ? 'k, id' : 'k') . "')");
	$c->query('s1', "SELECT tessera.move_range('$table', " . ($table eq 't' ? "ROW('m'::text, 0)" : "'m'::text") . ", tessera.maxkey(), 's2')");
}
$c->query('s1', "SELECT tessera.shard_table('h', 'k', 'hash', chunks => 4)");
$c->plain_query(encode('UTF-8', $schema));

foreach my $encoding ('LATIN1', 'SQL_ASCII', 'UTF8', 'EUC_JP')
{
	# EUC_JP has none of the umlauts: such a client finds rows that it can read.
	my $fill = encode('UTF-8', $encoding eq 'EUC_JP' ? $plain_rows =~ s/'frO'/'frö'/r : $rows);
	$fill =~ s/'fr\xc3\xb6'/'\xe7\x8a\xac'/ if $encoding eq 'EUC_JP';
	$c->everywhere("TRUNCATE t, h, pl, fires");
	$c->everywhere($fill, via => 'r1');
	foreach my $name ($c->names)
	{
		is($c->table_differs($name, script_for($encoding), [], encoding => $encoding), 0, "$encoding client of $name: as on a plain server");
	}
}

# What an error, a notice or a warning says: word for word, but for where it happened.
sub said
{
	my ($conninfo, $encoding, $sql) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PGCLIENTENCODING} = $encoding;
	IPC::Run::run([ 'psql', '-XAtq', '-d', $conninfo ], '<', \$sql, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return join "\n", sort grep { /^\w*(?:ERROR|NOTICE|WARNING|DETAIL|HINT):/ } map { s/^psql:[^ ]* //r } split /\n/, $err;
}
my @noisy = (
	"INSERT INTO pl VALUES (5, 'für')", "INSERT INTO t (k, id) VALUES ('zäh', 1)", "INSERT INTO t (k, id, w) VALUES ('zäh', 9, 'schlösser')",
	'SELECT "gibt es nicht: é" FROM t', 'SELECT * FROM "nö"',
	"UPDATE t SET v = 'ö' || repeat('é', 20) WHERE k = 'zäh'", "INSERT INTO t (k, id, m) VALUES ('zäh', 9, 'böse')",
	"SELECT 'é'::int, k FROM t WHERE k = 'zäh'", "SELECT v::int FROM t WHERE k = 'zäh'",
	"INSERT INTO fires VALUES ('zö', 'gut')", "INSERT INTO fires VALUES ('zö', 'bös')", "INSERT INTO fires VALUES ('aö', 'bös')",
	"SELECT says(k) FROM t WHERE id = 1 AND k = 'zäh'",
	"COPY fires FROM stdin;\nzä\tgut\naä\tgut\n\\.\n", "CREATE TABLE \"Tä\" (k int CHECK (k > 0)); INSERT INTO \"Tä\" VALUES (0)",
	"DROP TABLE \"gibt es nicht: ß\"",
	"DO \$\$ BEGIN RAISE NOTICE 'größe %', (SELECT max(v) FROM h); END \$\$");
$c->everywhere('TRUNCATE t, h, pl, fires');
$c->everywhere(encode('UTF-8', $rows), via => 'r1');
foreach my $encoding ('LATIN1', 'UTF8')
{
	foreach my $sql (@noisy)
	{
		my $bytes = encode($encoding eq 'LATIN1' ? 'iso-8859-1' : 'UTF-8', "BEGIN; $sql; ROLLBACK;\n");
		my $expected = said($c->plain->connstr('postgres'), $encoding, $bytes);
		is(said($c->conninfo($_), $encoding, $bytes), $expected, encode('UTF-8', "$encoding client of $_ is told: $sql")) foreach 's1', 'r1';
	}
}

# What is stored, by clients that speak something else, is what a UTF8 client reads, wherever the rows lie.
sub feed
{
	my ($conninfo, $encoding, $command, $input, @options) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PGCLIENTENCODING} = $encoding;
	IPC::Run::run([ 'psql', '-XAtq', @options, '-d', $conninfo, '-c', $command ], '<', \$input, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	is($err, '', "$encoding: " . ($command =~ s/[^\x20-\x7e]/?/gr));
	return $out;
}
my %codes = (LATIN1 => 'iso-8859-1', EUC_JP => 'euc-jp');
my $number = 0;
foreach my $encoding (sort keys %codes)
{
	my @words = @{ $clients{$encoding} };
	foreach my $name ($c->names)
	{
		$number++;
		my $lines = join '', map { "${_}$number$words[0]\t1\t$words[1]\t{$words[2],$words[1]}\t(1,$words[0])\n" } 'a' .. 'c', 'x' .. 'z';
		my $insert = "INSERT INTO t (k, id, v) SELECT k || $number || '$words[1]', 2, '$words[2]' FROM unnest('{b,y}'::text[]) k";
		foreach my $conninfo ($c->conninfo($name), $name eq 's1' || $name eq 's2' || $name eq 'r1' ? $c->plain->connstr('postgres') : ())
		{
			feed($conninfo, $encoding, 'COPY t (k, id, v, a, p) FROM stdin', encode($codes{$encoding}, $lines));
			feed($conninfo, $encoding, encode($codes{$encoding}, $insert), '');
			feed($conninfo, $encoding, encode($codes{$encoding}, "INSERT INTO h VALUES ('$words[0]$number', '$words[1]')"), '');
		}
		# Binary: what the plain server writes for such a client, the node reads, and the other way round.
		my $columns = 'k, id, v, c, n, a, j, jb, b';
		my $where = "k LIKE '_$number%'";
		my $plain = feed($c->plain->connstr('postgres'), $encoding,
			"COPY (SELECT $columns FROM t WHERE $where ORDER BY k COLLATE \"C\", id) TO stdout (FORMAT binary)", '');
		my $found = feed($c->conninfo($name), $encoding,
			"COPY (SELECT $columns FROM t WHERE $where ORDER BY k COLLATE \"C\", id) TO stdout (FORMAT binary)", '');
		ok($plain eq $found, "$encoding: the same binary rows from $name");
		feed($_, $encoding, "DELETE FROM t WHERE $where", '') foreach $c->conninfo($name), $c->plain->connstr('postgres');
		feed($c->conninfo($name), $encoding, "COPY t ($columns) FROM stdin (FORMAT binary)", $plain);
		feed($c->plain->connstr('postgres'), $encoding, "COPY t ($columns) FROM stdin (FORMAT binary)", $found);
	}
}
my ($same, $difference) = $c->same_everywhere("SELECT k, id, v, a, p, octet_length(v) FROM t; SELECT k, v, octet_length(v) FROM h");
ok($same, 'stored alike') or diag $difference;
is($c->query('s2', "SELECT count(*) FROM tessera.check_consistency(deep => true)"), '0', 'rows lie where their keys belong');

# Bound values in binary and text, by libpq's own functions.
my $python = <<'PYTHON';
import sys
try:
    import psycopg
except ImportError:
    print("no psycopg")
    sys.exit(0)
out = []
for info in sys.argv[1:]:
    got = []
    with psycopg.connect(info, client_encoding="latin1", autocommit=True) as link:
        for binary in (False, True):
            for prepare in (False, True):
                cursor = link.cursor(binary=binary)
                mark = "%b" if binary else "%s"
                for key in ("a", "z"):
                    cursor.execute(f"DELETE FROM t WHERE k = {mark}", ("%s\xe9\xe5" % key,), prepare=prepare)
                    cursor.execute(f"INSERT INTO t (k, id, v, a, j, ch) VALUES ({mark}, 1, {mark}, {mark}::text[], {mark}::text::json, 'q') "
                                   "RETURNING k, v, a, length(k)",
                                   ("%s\xe9\xe5" % key, "\xdf", ["\xfc", "x"], '{"\xf6": 1}'), prepare=prepare)
                    got.append(cursor.fetchall())
                    cursor.execute(f"SELECT k, id, v, a, n, j::text, x::text, ch, p, m FROM t WHERE k = {mark} AND v = {mark}",
                                   ("%s\xe9\xe5" % key, "\xdf"), prepare=prepare)
                    got.append(cursor.fetchall())
                    cursor.execute(f"UPDATE t SET v = v || {mark} WHERE k = {mark} RETURNING v", ("\xb5", "%s\xe9\xe5" % key), prepare=prepare)
                    got.append(cursor.fetchall())
                cursor.execute("SELECT k, id, v, octet_length(k) FROM t WHERE id = 1 ORDER BY k COLLATE \"C\"", prepare=prepare)
                got.append(cursor.fetchall()[:4])
    out.append(repr(got))
print("alike" if len(set(out)) == 1 else "\n".join(out))
PYTHON
my @latin = ($c->plain->connstr('postgres'), map { $c->conninfo($_) } $c->names);
$c->everywhere("DELETE FROM t WHERE k !~ '^[\\x01-\\u00ff]*\$' OR v !~ '^[\\x01-\\u00ff]*\$' OR a::text !~ '^[\\x01-\\u00ff]*\$'");
my ($said, $wrong) = ('', '');
IPC::Run::run([ '/usr/bin/python3', '-', @latin ], '<', \encode('UTF-8', $python), '>', \$said, '2>', \$wrong,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
SKIP:
{
	skip 'python3-psycopg is not installed', 1 if $said =~ /no psycopg/;
	is($said . $wrong, "alike\n", 'bound values of a LATIN1 client, text and binary');
}

foreach my $name ($c->names)
{
	unlike(slurp_file($c->node($name)->logfile), qr/TRAP|PANIC|terminated by signal/, "$name: no crash");
}

done_testing();
