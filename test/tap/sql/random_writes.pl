# Random writes do as on a plain server, from a shard and from a router (doc/design.md#statements): INSERT of all kinds of sources with ON CONFLICT,
# UPDATE, DELETE, MERGE, several of them in WITH, through views, with RETURNING, in transactions with savepoints that go wrong. What a node refuses as
# not supported is left out on the plain server. Answers are compared statement by statement, the tables at the end. TESSERA_SEED repeats a run;
# TESSERA_STATEMENTS is how many.
#
# Nothing may depend on an order that SQL does not fix: sources are sorted, the parts of a statement modify different tables, and which of several
# errors is raised is not compared.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $seed = $ENV{TESSERA_SEED} // 20240301;
my $wanted = $ENV{TESSERA_STATEMENTS} // 500;
srand($seed);
note "seed $seed";

my $schema = <<'SQL';
CREATE TABLE a (junk int, k int NOT NULL, id int NOT NULL, x int, s text COLLATE "C" DEFAULT 'dflt', g int GENERATED ALWAYS AS (x * 2) STORED,
  PRIMARY KEY (k, id));
ALTER TABLE a DROP COLUMN junk;
CREATE TABLE b (k int NOT NULL, id int NOT NULL, x int CONSTRAINT few CHECK (x < 1000), s text COLLATE "C", PRIMARY KEY (k, id))
  PARTITION BY RANGE (id);
CREATE TABLE b1 PARTITION OF b FOR VALUES FROM (MINVALUE) TO (2);
CREATE TABLE b2 (s text COLLATE "C", x int CONSTRAINT few CHECK (x < 1000), id int NOT NULL, k int NOT NULL);
ALTER TABLE b ATTACH PARTITION b2 DEFAULT;
CREATE TABLE d (k int NOT NULL, id int NOT NULL, x int, s text COLLATE "C", PRIMARY KEY (k));
CREATE TABLE p (k int, id int NOT NULL, x int, s text COLLATE "C", PRIMARY KEY (id));
CREATE TABLE c (k int NOT NULL, s text COLLATE "C" NOT NULL, id int NOT NULL, x int, PRIMARY KEY (k, s, id));
CREATE TABLE n (k numeric NOT NULL, id int NOT NULL, x int, s varchar(12), at timestamptz DEFAULT now(), PRIMARY KEY (k, id));
CREATE VIEW va AS SELECT k, id, x, s FROM a WHERE x IS NOT NULL;
CREATE VIEW vb WITH (security_barrier) AS SELECT k, id, x, s FROM b WHERE x > 1;
CREATE VIEW vc AS SELECT s, x, id, k FROM b WHERE x < 5 WITH CHECK OPTION;
CREATE VIEW vn AS SELECT k, id, x, s FROM n;
CREATE VIEW vp AS SELECT k, id, x, s FROM p WHERE x < 3 WITH CHECK OPTION;
CREATE VIEW vu AS SELECT k, id, x, s FROM a UNION ALL SELECT k, id, x, s FROM b;
CREATE FUNCTION plus(int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN $1 + 1; END $$;
SQL
my @rows = (
	(map { "DELETE FROM $_" } qw(a b d p c n)),
	q{INSERT INTO a SELECT k, i, CASE WHEN (k + i) % 5 > 0 THEN (k * i) % 7 END, 's' || (k + i) % 4 FROM generate_series(1, 12) k, } .
	q{generate_series(1, 3) i},
	q{INSERT INTO b SELECT k, i, CASE WHEN (k * i) % 4 > 0 THEN (k + i) % 6 END, 's' || (k * i) % 5 FROM generate_series(3, 15) k, } .
	q{generate_series(1, 2) i},
	q{INSERT INTO d SELECT k, k % 4, CASE WHEN k % 3 > 0 THEN k % 5 END, 's' || k % 3 FROM generate_series(2, 14) k},
	q{INSERT INTO p SELECT CASE WHEN i % 4 > 0 THEN i END, i, i % 3, 's' || i % 6 FROM generate_series(1, 10) i},
	q{INSERT INTO c SELECT k, 's' || (k + i) % 4, i, k % 4 FROM generate_series(1, 12) k, generate_series(1, 2) i},
	q{INSERT INTO n SELECT k / 2.0, 1, k % 5, 's' || k FROM generate_series(2, 24) k});
my %base = (va => 'a', vb => 'b', vc => 'b', vn => 'n', vp => 'p');
my %unique = (a => 'k, id', b => 'k, id', d => 'k', p => 'id', c => 'k, s, id', n => 'k, id');
my @targets = qw(a a b b d p c n va vb vc vn vp);
my @readable = qw(a a b b d p c n va vb vc vu);

# ---- the generator ----

my $alias = 0;
sub pick { return $_[ int rand @_ ]; }
sub chance { return rand() < $_[0]; }
sub new_alias { return 'q' . ++$alias; }
sub constant { return int rand 15; }

sub value
{
	my ($q) = @_;
	my $z = new_alias();
	return pick("$q.x", "$q.id", constant(), constant(), 'NULL', "$q.x + 1", "coalesce($q.x, 3)", "length($q.s)", "plus($q.id)",
		"(SELECT max($z.x) FROM " . pick(@readable) . " $z WHERE $z.k = $q.k)");
}

sub condition
{
	my ($q) = @_;
	my $z = new_alias();
	my $kind = rand;
	return "$q." . pick(qw(k k id)) . ' = ' . constant() if $kind < 0.4;
	return "$q.k IN (" . constant() . ', ' . pick('NULL', constant()) . ')' if $kind < 0.5;
	return "$q.x " . pick('<', '>', '<>') . ' ' . constant() if $kind < 0.65;
	return "$q.s = 's" . int(rand 6) . "'" if $kind < 0.75;
	return "$q.k BETWEEN " . constant() . ' AND ' . constant() if $kind < 0.82;
	return "$q." . pick(qw(k x)) . pick('', ' NOT') . " IN (SELECT $z.k FROM " . pick(@readable) . " $z WHERE $z.id = " . constant() . ')'
		if $kind < 0.9;
	return pick('', 'NOT ') . "EXISTS (SELECT FROM " . pick(@readable) . " $z WHERE $z.k = $q.k AND $z.x > 2)";
}

sub where { my ($q, $chance) = @_; return chance($chance) ? ' WHERE ' . join(' AND ', map { condition($q) } 1 .. 1 + int rand 2) : ''; }

# A SELECT of k, id, x, s.
sub source
{
	my ($depth) = @_;
	my ($q, $z) = (new_alias(), new_alias());
	my $kind = $depth > 0 ? rand : rand 0.5;
	return "SELECT $q.k::int AS k, $q.id, $q.x, $q.s::text AS s FROM " . pick(@readable) . " $q" . where($q, 0.6) if $kind < 0.4;
	return "SELECT k::int AS k, max(id) AS id, min(x) AS x, max(s)::text AS s FROM " . pick(@readable) . " $q" . where($q, 0.5) . ' GROUP BY k::int'
		if $kind < 0.5;
	return "SELECT g AS k, g % 3 + 1 AS id, g % 6 AS x, 's' || g % 5 AS s FROM generate_series(" . constant() . ', 16) g' if $kind < 0.62;
	return 'VALUES ' . join(', ', map { '(' . constant() . ', ' . (1 + int rand 4) . ', ' . pick('NULL', constant()) . ", 's" . int(rand 6) .
		"')" } 1 .. 1 + rand 4) if $kind < 0.75;
	return source(0) . pick(' UNION ALL ', ' UNION ALL ', ' UNION ', ' EXCEPT ') . source(0) if $kind < 0.9;
	return "SELECT $q.k::int AS k, $q.id, $z.x, $q.s::text AS s FROM " . pick(@readable) . " $q LEFT JOIN d $z ON $z.k = $q." . pick(qw(k id)) .
		where($q, 0.6);
}

sub returning
{
	my ($q) = @_;
	return pick('', '', " RETURNING $q.k, $q.id, $q.x, $q.s", " RETURNING $q.x + 1, plus($q.id)", " RETURNING $q.k, $q.s || $q.id", ' RETURNING 1');
}

sub insert
{
	my ($table) = @_;
	my $q = pick($table, 'target');
	my $sql = "INSERT INTO $table" . ($q eq $table ? '' : " AS $q");
	my $rows = source(1);
	my $base = $base{$table} // $table;

	if (chance(0.3) && $table !~ /^v[bc]$/)
	{
		# several rows, or one, with defaults
		my @lists = map { '(' . join(', ', constant(), 1 + int rand 5, pick('NULL', 'DEFAULT', constant(), plus_of()), "'s" . int(rand 6) . "'") .
			')' } 1 .. pick(1, 1, 2, 4);
		$sql .= ' (k, id, x, s) VALUES ' . join(', ', @lists);
	}
	elsif (chance(0.4)) { $sql .= " (s, id, k, x) SELECT s, id, k, x FROM ($rows) o (k, id, x, s) ORDER BY k, id, x, s"; }
	elsif (chance(0.3) && $base ne 'c') { $sql .= " (id, k) SELECT DISTINCT id, k FROM ($rows) o (k, id, x, s) ORDER BY k, id"; }
	else { $sql .= " (k, id, x, s) SELECT * FROM ($rows) o (k, id, x, s) ORDER BY k, id, x, s"; }
	$sql .= pick('', ' ON CONFLICT DO NOTHING', " ON CONFLICT ($unique{$base}) DO UPDATE SET x = "
		  . pick('excluded.x', "$q.x + 1", "coalesce(excluded.x, 0) + coalesce($q.x, 0)") . pick('', " WHERE $q.k > 5", ' WHERE excluded.x > 2'));
	return ($sql, $q);
}

sub plus_of { return 'plus(' . constant() . ')'; }

# What FROM and USING name, and how it is joined. Several of its rows may meet one of the target's: none is written.
sub joined
{
	my ($q, $z) = @_;
	my ($y, $kind) = (new_alias(), rand);
	my $rows = $kind < 0.3 ? "d $z" : $kind < 0.6 ? pick(@readable) . " $z" : $kind < 0.8 ? '(' . source(1) . ") $z (k, id, x, s)" :
		pick(@readable) . " $z " . pick('', 'LEFT ', 'RIGHT ', 'FULL ') . 'JOIN ' . pick(@readable) . " $y ON $y.k = $z.k AND $y.id = $z.id";
	return ($rows, pick("$z.k = $q.k", "$z.k = $q.k", "$z.k = $q.k AND $z.id = $q.id", "$z.id = $q.id", "$z.x = $q.x AND $z.id > 2"));
}

sub update
{
	my ($table) = @_;
	my $q = pick($table, 'target');
	my $z = new_alias();
	my $sql = "UPDATE $table" . ($q eq $table ? '' : " AS $q") . ' SET x = ' . value($q);
	my $key = ($base{$table} // $table) eq 'p' ? 'id' : 'k';
	my @conditions = chance(0.5) ? "$q.$key = " . constant() : ();

	$sql .= ", s = left($q.s, 3) || 'z'" if chance(0.3) && ($base{$table} // $table) ne 'c';
	if (chance(0.15) && $table =~ /^[abn]$/)
	{
		# no new key is an old one of another row: only a plain server minds
		$sql .= ", k = $q.k + 30";
		push @conditions, "$q.k < 20";
	}
	if (chance(0.3))
	{
		my ($rows, $join) = joined($q, $z);
		$sql .= " FROM $rows";
		push @conditions, $join;
	}
	push @conditions, condition($q) if chance(0.6);
	return ($sql . (@conditions ? ' WHERE ' . join(' AND ', @conditions) : ''), $q);
}

sub delete_rows
{
	my ($table) = @_;
	my $q = pick($table, 'target');
	my $z = new_alias();
	my ($rows, $join) = joined($q, $z);
	return ("DELETE FROM $table" . ($q eq $table ? '' : " AS $q") . (chance(0.3) ? " USING $rows WHERE $join AND " : ' WHERE ') .
		join(' AND ', map { condition($q) } 1 .. 2), $q);
}

sub merge
{
	my $k = constant();
	return 'MERGE INTO ' . pick(qw(a b)) . ' m USING ' . pick("(SELECT * FROM d WHERE k = $k)",
		"(SELECT k, max(id) AS id, max(x) AS x, max(s) AS s FROM b WHERE k = $k GROUP BY k)", "(VALUES ($k, 1, 2, 's1'))")
	  . " o (k, id, x, s) ON m.k = o.k AND m.id = 1 AND m.k = $k" . pick(' WHEN MATCHED AND m.x > 2 THEN DELETE',
	  ' WHEN MATCHED THEN UPDATE SET x = o.x') . pick('', ' WHEN NOT MATCHED THEN INSERT (x, id, k, s) VALUES (o.x, 40, o.k, o.s)');
}

sub modification { my ($table) = @_; return pick(\&insert, \&update, \&delete_rows)->($table); }

sub parts
{
	my @bases = sort { rand() <=> 0.5 } qw(a b d p c n);
	my (@with, @names);

	foreach my $i (0 .. 1 + int rand 2)
	{
		my $base = shift @bases;
		my ($sql, $q) = modification(pick($base, grep { $base{$_} eq $base } sort keys %base));
		push @with, "w$i AS ($sql RETURNING $q.k::int AS k, $q.id, $q.x, $q.s::text AS s)";
		push @names, "w$i";
		push @with, "r$i AS " . pick('', 'MATERIALIZED ') . '(' . source(0) . ')' if chance(0.3);
	}
	my $from = pick(@names);
	my $base = $bases[0];
	if (chance(0.3))
	{
		my ($rows, $join) = joined($base, 'z');
		my $read = "r AS (" . source(1) . "), o AS (SELECT * FROM r x (k, id, x, s) WHERE x.k > 2)";
		return "WITH $read " . pick("DELETE FROM $base USING o WHERE o.k = $base.k AND o.x = $base.x", "UPDATE $base SET x = 8 FROM o, $rows WHERE " .
			"o.id = $base.id AND $join", "UPDATE $base SET x = (SELECT max(id) FROM o WHERE o.k = $base.k) WHERE id IN (SELECT id FROM o)");
	}
	return 'WITH ' . join(', ', @with) . pick(" SELECT * FROM $from", " SELECT o.*, z.x FROM $from o LEFT JOIN d z ON z.k = o.k",
		" SELECT count(*), sum(x) FROM $from", " SELECT o.k FROM b o WHERE o.k IN (SELECT k FROM $from)",
		" INSERT INTO $base (s, k, x, id) SELECT s, k, x, id + 50 FROM $from ORDER BY k, id, x, s ON CONFLICT DO NOTHING RETURNING k, s",
		" UPDATE $base SET x = 1 WHERE k = " . constant() . ' RETURNING k, x');
}

sub statement
{
	my $kind = rand;
	$alias = 0;
	return parts() if $kind < 0.25;
	return merge() if $kind < 0.3;
	return source(1) if $kind < 0.45;
	my ($sql, $q) = modification(pick(@targets));
	return $sql . returning($q);
}

# Statements in a row; some of them in transactions, which end either way.
sub script
{
	my @script;
	my $inside = 0;

	while (@script < $wanted)
	{
		if (!$inside && chance(0.2)) { push @script, 'BEGIN' . pick('', ' ISOLATION LEVEL REPEATABLE READ', ' ISOLATION LEVEL SERIALIZABLE');
		$inside = 1; }
		elsif ($inside && chance(0.25)) { push @script, pick('COMMIT', 'COMMIT', 'ROLLBACK'); $inside = 0; }
		elsif ($inside && chance(0.2)) { push @script, 'SAVEPOINT here', statement(), 'ROLLBACK TO here'; }
		else { push @script, statement(); }
	}
	push @script, 'COMMIT' if $inside;
	return @script;
}

# ---- the comparison ----

# One session runs all; each answer is its SQLSTATE, the number of rows, and the rows, sorted. An error in a transaction takes back its statement
# only.
sub answers
{
	my ($conninfo, @statements) = @_;
	my $script = "\\set ON_ERROR_ROLLBACK on\nSET statement_timeout = '20s';\n";
	my ($out, $err) = ('', '');
	my @answers;

	$script .= "\\echo #$_\n$statements[$_];\n\\echo :SQLSTATE :ROW_COUNT\n" foreach 0 .. $#statements;
	IPC::Run::run([ 'psql', '-XAtq', '-d', $conninfo ], '<', \$script, '>', \$out, '2>', \$err, IPC::Run::timeout(300));
	foreach my $answer (split /^#\d+\n/m, $out)
	{
		my @lines = split /\n/, $answer;
		my ($state, $count) = split / /, (pop @lines // '');
		$state = 'error' if ($state // '') !~ /^(00000|0A000)$/;
		push @answers, join("\n", $state, $count // '', sort @lines);
	}
	shift @answers;
	return @answers;
}

my $c = TesseraCluster->new('writes', settings => { 'tessera.orphan_cleanup_delay' => 0 });
$c->start_nodes('s1');
$c->query('s1', $schema);
$c->create(shards => 2, routers => 1);
$c->query('s1', "SELECT tessera.shard_table('a', 'k', 'hash', chunks => 6); SELECT tessera.shard_table('b', 'k', 'hash', colocate_with => 'a'); " .
	"SELECT tessera.shard_table('d', 'k', 'hash', chunks => 5)");
$c->query('s1', "SELECT tessera.shard_table('c', 'k, s'); SELECT tessera.shard_table('n', 'k'); SELECT " .
	"tessera.move_range('c', (6, 's2'), tessera.maxkey(), 's2'); SELECT tessera.move_range('n', 4.5, 9, 's2')");
# the end of a deletion is a change, too, and could cost a transaction a retry
$c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', '0') or fail 's1 deletes what it gave away';
$c->plain_query($schema);
my $plain = $c->plain->connstr('postgres');
my @state = map { "SELECT k, id, x, s FROM $_" } qw(a b d p c n);

foreach my $name ('s2', 'r1')
{
	$c->query('s1', "SELECT tessera.replicate_table('p')") if $name eq 'r1';
	my @script = (@rows, script());
	my @got = answers($c->conninfo($name), @script, @state);
	my @refused = grep { ($got[$_] // '') =~ /^0A000/ } 0 .. $#script;
	my %refused = map { $_ => 1 } @refused;
	my @expected = answers($plain, (map { $refused{$_} ? 'SELECT 1' : $script[$_] } 0 .. $#script), @state);
	my $differ = 0;

	cmp_ok(scalar(@refused), '<', $wanted / 4, "from $name: most statements are supported");
	cmp_ok(scalar(grep { /^error/ } @expected), '<', $wanted / 4, "from $name: few of them fail");
	foreach my $i (0 .. $#script + @state)
	{
		next if $refused{$i} || ($got[$i] // 'no answer') eq $expected[$i];
		$differ++;
		diag "from $name: " . ($script[$i] // $state[ $i - @script ]) . "\n--- plain\n$expected[$i]\n--- cluster\n" . ($got[$i] // 'no answer')
			if $differ <= 4;
	}
	is($differ, 0, "from $name: $wanted random statements do as on a plain server, and leave the same rows");
}
is($c->query('r1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'the copies of the replicated table are alike');

done_testing();
