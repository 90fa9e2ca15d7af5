# Cursors over rows of other nodes show the rows as they are when they are opened, whatever the same transaction does before it fetches: as on a plain
# server, from the node that has the rows, another shard and a router. A move between the two gives the old rows or asks for a retry. Tables that a
# cursor reads are in use.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('cursors');

my $schema = <<'SQL';
CREATE TABLE t (k int NOT NULL, id int NOT NULL, v text, n int NOT NULL DEFAULT 0, PRIMARY KEY (k, id));
CREATE TABLE u (k int NOT NULL, w int, PRIMARY KEY (k));
CREATE TABLE p (id int PRIMARY KEY, key int);
CREATE FUNCTION climbs(low int, high int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE r record; s text := '';
BEGIN
	FOR r IN SELECT k, id, n FROM t WHERE k BETWEEN low AND high ORDER BY k, id LOOP
		UPDATE t SET n = n + r.n + 1 WHERE k = r.k;
		DELETE FROM t WHERE k = r.k AND id = 9;
		INSERT INTO t (k, id, v) VALUES (r.k, 9, 'new');
		s := s || r.k || r.id || r.n || ' ';
	END LOOP;
	RETURN s || (SELECT sum(n) FROM t WHERE k BETWEEN low AND high);
END $$;
CREATE FUNCTION two_cursors(key int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE a refcursor; b CURSOR (x int) FOR SELECT n FROM t WHERE k = x ORDER BY id; i int; s text := '';
BEGIN
	OPEN a FOR SELECT n FROM t ORDER BY k, id;
	UPDATE t SET n = n + 1000 WHERE k = key;
	OPEN b(key);
	UPDATE t SET n = n + 1000 WHERE k = key;
	FOR j IN 1 .. 3 LOOP FETCH a INTO i; s := s || i || ','; FETCH b INTO i; s := s || i || ' '; END LOOP;
	CLOSE a;
	RETURN s;
END $$;
CREATE PROCEDURE commits(low int, high int) LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
	FOR r IN SELECT t.k, t.id FROM t JOIN u USING (k) WHERE t.k BETWEEN low AND high ORDER BY 1, 2 LOOP
		UPDATE t SET n = 7 * r.id WHERE k = r.k;
		COMMIT;
	END LOOP;
END $$;
INSERT INTO t SELECT k, id, 'v' || k || '-' || id, k * 10 + id FROM generate_series(1, 20) k, generate_series(1, 3) id;
INSERT INTO u SELECT k, 21 - k FROM generate_series(1, 20) k;
INSERT INTO p SELECT i, i * 3 FROM generate_series(1, 6) i;
SQL

# What the session does between the opening of the cursor and the fetch.
my @changes = (
	q{UPDATE t SET n = n + 1000},
	q{UPDATE t SET n = n + 1000 WHERE k = 4; DELETE FROM t WHERE k = 14 AND id = 1; INSERT INTO t VALUES (4, 8, 'x'), (14, 8, 'x'); SELECT } .
	q{count(*) FROM t},
	q{UPDATE u SET w = 3; SELECT sum(n) FROM t JOIN u ON u.w = t.k; SAVEPOINT s; DELETE FROM t WHERE id = 2; ROLLBACK TO s; UPDATE t SET n = 0 } .
	q{WHERE id = 3; SELECT count(*) FROM u},
);
# Queries of cursors: one shard, all shards, joins of several scans, scans that take values from other rows, row locks.
my @queries = (
	(map { my $k = $_; (
		qq{SELECT id, n FROM t WHERE k = $k ORDER BY id},
		qq{SELECT id, n FROM t WHERE k = $k AND id < 3 ORDER BY id FOR UPDATE},
	) } 4, 14),
	q{SELECT k, id, n FROM t ORDER BY k, id},
	q{SELECT k, id, n FROM t WHERE id = 3 ORDER BY k, id FOR SHARE},
	q{SELECT sum(n), count(*) FROM t},
	q{SELECT t.k, t.id, t.n, u.w FROM t, u WHERE u.w = t.k AND t.id < 3 ORDER BY t.k, t.id},
	q{SELECT p.id, t.n FROM p, LATERAL (SELECT n FROM t WHERE t.k = p.key ORDER BY t.id LIMIT 2) t ORDER BY 1, 2},
	q{SELECT u.k, (SELECT sum(n) FROM t WHERE t.k = u.w) FROM u ORDER BY 1},
	q{SELECT k, id, n FROM t WHERE n > (SELECT avg(n) FROM t) ORDER BY 1, 2},
	q{WITH x AS MATERIALIZED (SELECT k, max(n) AS m FROM t GROUP BY k) SELECT u.w, x.m FROM u JOIN x ON x.k = u.w ORDER BY 1},
	q{SELECT k FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.k = u.w AND t.n > 100) ORDER BY 1},
);
my @script;
foreach my $query (@queries)
{
	# Rows are locked all at once by the first fetch.
	my $between = $query =~ /FOR (UPDATE|SHARE)/ ? '' : 'UPDATE t SET n = n - 1; ';
	push @script, "BEGIN; DECLARE c CURSOR FOR $query; $_; FETCH 2 FROM c; ${between}FETCH ALL FROM c; ROLLBACK" foreach @changes;
	push @script, "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; BEGIN; DECLARE c CURSOR FOR $query; " .
		"$changes[0]; FETCH ALL FROM c; ROLLBACK";
	push @script, "BEGIN ISOLATION LEVEL REPEATABLE READ; DECLARE c CURSOR FOR $query; $changes[1]; FETCH ALL FROM c; ROLLBACK";
	next if $between eq '';
	push @script, "BEGIN; UPDATE t SET n = n + 1 WHERE k = 4; SAVEPOINT a; DECLARE c CURSOR FOR $query; UPDATE t SET n = n + 1; RELEASE a; FETCH " .
		"1 FROM c; UPDATE t SET n = n + 1; FETCH ALL FROM c; ROLLBACK";
	push @script, "BEGIN; DECLARE c SCROLL CURSOR FOR $query; $changes[0]; FETCH LAST FROM c; FETCH FIRST FROM c; $changes[1]; FETCH ALL FROM c; " .
		"MOVE ABSOLUTE 0 FROM c; FETCH ALL FROM c; ROLLBACK";
	push @script, "BEGIN; DECLARE c CURSOR WITH HOLD FOR $query; UPDATE t SET n = n + 1; COMMIT; UPDATE t SET n = n - 1; FETCH ALL FROM c";
}
push @script,
	q{BEGIN; SELECT climbs(4, 4); ROLLBACK}, q{BEGIN; SELECT climbs(14, 14); ROLLBACK},
	q{BEGIN; SELECT climbs(8, 12); SELECT climbs(1, 20); ROLLBACK},
	q{BEGIN; SELECT two_cursors(1); SELECT two_cursors(14); ROLLBACK},
	q{CALL commits(4, 4); CALL commits(14, 14); CALL commits(9, 12); SELECT k, id, n FROM t ORDER BY k, id},
	q{BEGIN; DECLARE a CURSOR FOR SELECT n FROM t, u WHERE u.w = t.k ORDER BY 1; UPDATE t SET n = n + 1; DECLARE b CURSOR FOR SELECT n FROM t, u } .
	q{WHERE u.w = t.k ORDER BY 1; UPDATE t SET n = n + 1; FETCH 3 FROM b; FETCH 3 FROM a; CLOSE a; UPDATE t SET n = n + 1; FETCH 3 FROM b; ROLLBACK},
	q{BEGIN; DECLARE c CURSOR FOR SELECT n FROM t WHERE k = 14; CLOSE c; DECLARE c CURSOR FOR SELECT n FROM t; CLOSE c; SELECT count(*) FROM t } .
	q{WHERE k = 14; COMMIT},
	q{BEGIN; DECLARE c CURSOR FOR SELECT 1 / (id - 3) FROM t WHERE k = 14; FETCH ALL FROM c; ROLLBACK; SELECT count(*) FROM t WHERE k = 14};
# In use.
foreach my $query (q{SELECT n FROM t WHERE k = 4}, q{SELECT n FROM t WHERE k = 14}, q{SELECT n FROM t}, q{SELECT t.n FROM t, u WHERE u.w = t.k},
	q{SELECT n FROM t WHERE k = 14 FOR UPDATE})
{
	push @script, map { "BEGIN; DECLARE c CURSOR FOR $query; $_; ROLLBACK" } 'ALTER TABLE t ADD COLUMN z int', 'DROP TABLE t', 'TRUNCATE t';
	push @script, "BEGIN; DECLARE c CURSOR FOR $query; MOVE 1 FROM c; CLOSE c; ALTER TABLE t ADD COLUMN z int; ROLLBACK";
}

$c->start_nodes('s1', 's2', 'r1');
$c->create(shards => 2, routers => 1);
$c->query('s1', $schema);
foreach my $table (qw(t u))
{
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.move_range('$table', 11, tessera.maxkey(), 's2')");
}
$c->plain_query($schema);
# Nothing is left of the moves: a join that meets their end would have to ask for a retry.
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0', 30), 'the moves are done');
$c->query($_, 'SELECT count(*) FROM t') && $c->query($_, 'SELECT count(*) FROM u') foreach $c->names;

# What a server answers to each of them, one after the other in one session.
sub answers
{
	my ($conninfo) = @_;
	my $settings = "SET client_min_messages = warning;\nSET timezone = 'UTC';\n";
	my $text = $settings . join '', map { "\\echo == $_\n$script[$_];\nCLOSE ALL;\nRESET ALL;\n$settings" } 0 .. $#script;
	my $out = '';
	IPC::Run::run([ 'stdbuf', '-oL', 'psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-v', 'SHOW_CONTEXT=never', '-P', 'null=NULL', '-d', $conninfo ],
		'<', \$text, '&>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my (undef, @blocks) = split /^== /m, $out;
	return map { s/^psql:.*?: //mgr } @blocks;
}

# Some change rows for good, so plain runs them as often.
foreach my $name ($c->names)
{
	my @expected = answers($c->plain->connstr('postgres'));
	is(scalar @expected, scalar @script, "for $name: all were run");
	my @got = answers($c->conninfo($name));
	my @differ = grep { ($got[$_] // 'no answer') ne ($expected[$_] // '') } 0 .. $#script;
	is(scalar @differ, 0, "from $name: as on a plain server");
	foreach (@differ[ 0 .. ($#differ < 7 ? $#differ : 7) ])
	{
		diag "$script[$_]\n--- plain\n" . ($expected[$_] // '') . "--- cluster\n" . ($got[$_] // 'no answer');
	}
}
# In sessions that have done nothing before: make test-long all of them, make test one for each query.
my %seen;
my @first = grep { TesseraCluster::long() || /CURSOR FOR (.*?); / && !$seen{$1}++ } @script;
is($c->script_differs($_, \@first), 0, "from $_, in new sessions: as on a plain server") foreach TesseraCluster::long() ? $c->names : 'r1';

# A move between the cursor's start and its fetches: the old rows or a retry, never part of them.
my @moved = grep { !/FOR UPDATE|FOR SHARE/ && !/k = 4/ } @queries;
my %whole = map { $_ => $c->query('s1', $_) } @moved;
foreach my $name ('s2', 'r1')
{
	my @sessions = map { $c->session($name, on_error_stop => 0) } @moved;
	$sessions[$_]->query("BEGIN; DECLARE c CURSOR FOR $moved[$_]") foreach 0 .. $#moved;
	$c->query('s1', "SELECT tessera.move_range('t', 11, tessera.maxkey(), 's1')");
	$c->query('s1', 'UPDATE t SET n = n + 5000');
	foreach my $i (0 .. $#moved)
	{
		my ($rows) = $sessions[$i]->query('FETCH ALL FROM c');
		note($rows eq '' ? 'a retry' : 'the old rows');
		ok($rows eq $whole{ $moved[$i] } || $rows eq '', "from $name, over a move: $moved[$i]") or diag $rows;
		$sessions[$i]->query('ROLLBACK');
		$sessions[$i]->quit;
	}
	$c->query('s1', 'UPDATE t SET n = n - 5000');
	$c->query('s1', "SELECT tessera.move_range('t', 11, tessera.maxkey(), 's2')");
}

foreach my $name ($c->names)
{
	unlike(slurp_file($c->node($name)->logfile), qr/leak|TRAP|PANIC/, "$name: nothing leaks");
}

done_testing();
