# Random SELECTs over sharded, colocated, partitioned, placed and replicated tables answer from every node as on a plain server
# (doc/design.md#statements): joins of all kinds, subqueries in every place, aggregates, windows, set operations, CTEs, with keys pinned, half
# pinned and not at all. TESSERA_SEED repeats a run; TESSERA_STATEMENTS is how many.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $seed = $ENV{TESSERA_SEED} // 20240229;
my $wanted = $ENV{TESSERA_STATEMENTS} // 250;
srand($seed);
note "seed $seed";

my $schema = <<'SQL';
CREATE TABLE a (k int NOT NULL, id int NOT NULL, x int, s text COLLATE "C", PRIMARY KEY (k, id));
CREATE TABLE b (k int NOT NULL, id int NOT NULL, x int, s text COLLATE "C", PRIMARY KEY (k, id)) PARTITION BY RANGE (id);
CREATE TABLE b1 PARTITION OF b FOR VALUES FROM (MINVALUE) TO (2);
CREATE TABLE b2 (s text COLLATE "C", x int, id int NOT NULL, k int NOT NULL);
ALTER TABLE b ATTACH PARTITION b2 DEFAULT;
CREATE TABLE d (k int NOT NULL, id int NOT NULL, x int, s text COLLATE "C", PRIMARY KEY (k));
CREATE TABLE p (k int, id int NOT NULL, x int, s text COLLATE "C", PRIMARY KEY (id));
CREATE TABLE e (k int, id int NOT NULL, x int, s text COLLATE "C", PRIMARY KEY (id));
CREATE VIEW va AS SELECT k, id, x, s FROM a WHERE x IS NOT NULL;
CREATE VIEW vg AS SELECT k, count(*)::int AS id, max(x) AS x, min(s) AS s FROM b GROUP BY k;
SQL
my $rows = <<'SQL';
INSERT INTO a SELECT k, i, CASE WHEN (k + i) % 5 > 0 THEN (k * i) % 7 END, 's' || (k + i) % 4 FROM generate_series(1, 12) k, generate_series(1, 3) i;
INSERT INTO b SELECT k, i, CASE WHEN (k * i) % 4 > 0 THEN (k + i) % 6 END, 's' || (k * i) % 5 FROM generate_series(3, 15) k, generate_series(1, 2) i;
INSERT INTO d SELECT k, k % 4, CASE WHEN k % 3 > 0 THEN k % 5 END, 's' || k % 3 FROM generate_series(2, 14) k;
INSERT INTO p SELECT CASE WHEN i % 4 > 0 THEN i END, i, i % 3, 's' || i % 6 FROM generate_series(1, 10) i;
INSERT INTO e SELECT CASE WHEN i % 5 > 0 THEN i END, i, CASE WHEN i % 3 > 0 THEN i % 4 END, 's' || i % 5 FROM generate_series(1, 12) i;
SQL

# ---- the generator ----

sub pick { return $_[ int rand @_ ]; }
sub chance { return rand() < $_[0]; }

my @tables = qw(a a b b d p e va vg);
my $alias = 0;

sub constant { return int(rand 14) + 1; }

# A comparison; mostly of keys, mostly with columns of the aliases at hand.
sub condition
{
	my ($depth, @aliases) = @_;
	my $left = pick(@aliases) . '.' . pick(qw(k k k id x));
	my $kind = rand;

	return "$left = " . constant() if $kind < 0.25;
	return "$left = " . pick(@aliases) . '.' . pick(qw(k k k id x)) if $kind < 0.5;
	return "$left IN (" . join(', ', map { constant() } 1 .. 1 + rand 3) . ')' if $kind < 0.58;
	return "$left " . pick('<', '>=', '<>') . ' ' . constant() if $kind < 0.66;
	return "$left IS " . pick('', 'NOT ') . 'NULL' if $kind < 0.70;
	return "$left IS " . pick('', 'NOT ') . 'DISTINCT FROM ' . pick(@aliases) . '.k' if $kind < 0.73;
	return pick(@aliases) . ".s = 's" . int(rand 5) . "'" if $kind < 0.78;
	return '(' . condition($depth - 1, @aliases) . pick(' OR ', ' AND ') . condition($depth - 1, @aliases) . ')' if $kind < 0.86 && $depth > 0;
	return 'CASE WHEN ' . condition(0, @aliases) . ' THEN ' . condition(0, @aliases) . ' ELSE ' . condition(0, @aliases) . ' END'
		if $kind < 0.89 && $depth > 0;
	return "$left = 1" if $depth <= 0;
	my $inner = 'q' . ++$alias;
	my $from = source($depth - 1, 0);
	my $where = join(' AND ', condition($depth - 1, $inner, @aliases), chance(0.7) ? "$inner.k = " . pick(@aliases) . '.k' : ());
	return pick('', 'NOT ') . "EXISTS (SELECT FROM $from $inner WHERE $where)" if $kind < 0.95;
	return "$left " . pick('', 'NOT ') . "IN (SELECT $inner.k FROM $from $inner WHERE $where)";
}

sub conditions { my ($depth, @aliases) = @_; return join(' AND ', map { condition($depth, @aliases) } 1 .. 1 + rand 2); }

# What can stand in FROM: always with columns k, id, x, s.
sub source
{
	my ($depth, $lateral, @outer) = @_;
	return pick(@tables) if $depth <= 0 || chance(0.6);
	my $inner = 'q' . ++$alias;
	my $kind = rand;

	return "(SELECT k, id, x, s FROM " . pick(@tables) . " $inner WHERE " . conditions($depth - 1, $inner, $lateral ? @outer : ()) . ')'
		if $kind < 0.35;
	return "(SELECT $inner.k, count(*)::int AS id, sum($inner.x)::int AS x, min($inner.s) AS s FROM " . source($depth - 1, 0) . " $inner WHERE " .
		conditions(0, $inner)
	  . " GROUP BY $inner.k" . (chance(0.3) ? ' HAVING count(*) > 1' : '') . ')' if $kind < 0.55;
	return "(SELECT DISTINCT k, id, x, s FROM " . source($depth - 1, 0) . " $inner)" if $kind < 0.63;
	return "(SELECT k, id, row_number() OVER (PARTITION BY " . pick('k', 'id') . " ORDER BY k, id, x, s)::int AS x, s FROM " . source($depth - 1, 0) .
		" $inner)" if $kind < 0.71;
	return "(SELECT k, id, x, s FROM " . source($depth - 1, 0) . " $inner ORDER BY k, id, x, s LIMIT " . constant() . ')' if $kind < 0.79;
	my $other = 'q' . ++$alias;
	# a branch of UNION ALL without a condition is planned otherwise
	my ($where, $other_where) = map { chance(0.4) ? '' : ' WHERE ' . conditions(0, $_) } $inner, $other;
	return "(SELECT k, id, x, s FROM " . source($depth - 1, 0) . " $inner$where" .
		pick(' UNION ALL ', ' UNION ALL ', ' UNION ', ' INTERSECT ', ' EXCEPT ')
	  . "SELECT k, id, x, s FROM " . source($depth - 1, 0) . " $other$other_where)";
}

sub joined
{
	my ($depth) = @_;
	my @aliases = ('t' . ++$alias);
	my $sql = source($depth, 0) . " $aliases[0]";

	for (1 .. int rand 3)
	{
		my $next = 't' . ++$alias;
		my $join = pick('JOIN', 'JOIN', 'LEFT JOIN', 'LEFT JOIN', 'RIGHT JOIN', 'FULL JOIN');
		my $lateral = $join =~ /^(JOIN|LEFT JOIN)$/ && chance(0.15);
		# FULL JOIN wants conditions that can be merged or hashed
		my $on = $join eq 'FULL JOIN' ? "$next.k = " . pick(@aliases) . '.k' :
			join(' AND ', chance(0.7) ? "$next.k = " . pick(@aliases) . '.k' : (), condition($depth - 1, $next, @aliases));
		$sql = "($sql)" if @aliases > 1 && chance(0.2);
		$sql .= " $join " . ($lateral ? 'LATERAL ' . do { my $q = source(1, 1, @aliases); $q =~ /^\(/ ? $q : "(SELECT * FROM $q)" } :
			source($depth - 1, 0)) . " $next ON $on";
		push @aliases, $next;
	}
	return ($sql, @aliases);
}

sub statement
{
	$alias = 0;
	my ($from, @aliases) = joined(2);
	my $where = chance(0.8) ? ' WHERE ' . conditions(2, @aliases) : '';
	my $kind = rand;
	my $one = pick(@aliases);
	my $other = pick(@aliases);

	return "SELECT $one.k, count(*), sum($other.x), min($other.s), count(DISTINCT $other.id) FROM $from$where GROUP BY $one.k" .
		(chance(0.3) ? " HAVING count(*) > 1" : '') if $kind < 0.2;
	return "SELECT count(*), sum($one.k * $other.id), max($other.s), bool_or($one.x > 2) FROM $from$where" if $kind < 0.35;
	return "SELECT $one.k, $one.id, rank() OVER (PARTITION BY $other.k ORDER BY $one.k, $one.id) FROM $from$where" if $kind < 0.42;
	return "SELECT $one.k, $one.id, (SELECT " . pick('count(*)', 'max(z.x)', 'min(z.s)') . " FROM " . pick(@tables) . " z WHERE z.k = $other.k" .
		(chance(0.4) ? " AND z.id = $one.id" : '') . ") FROM $from$where" if $kind < 0.55;
	return "WITH w AS (SELECT $one.k, $other.id, $one.x, $other.s FROM $from$where) SELECT w.*, v.k FROM w " . pick('JOIN', 'LEFT JOIN') . ' ' .
		pick(@tables) . ' v ON v.k = w.k AND ' . condition(0, 'v', 'w') if $kind < 0.65;
	return "SELECT DISTINCT $one.k, $other.s FROM $from$where" if $kind < 0.72;
	return "SELECT $one.k, $other.id, $one.s FROM $from$where ORDER BY 1 DESC NULLS LAST, 2, 3 LIMIT " . constant() . ' OFFSET ' . int(rand 3)
		if $kind < 0.8;
	return 'SELECT ' . join(', ', map { "$_.k, $_.id, $_.x" } @aliases) . " FROM $from$where";
}

# ---- the comparison ----

# One session asks all; each answer is preceded by its number. Unordered: compared as sets, the order given is of a limit's.
sub answers
{
	my ($conninfo, @statements) = @_;
	my $script = "SET statement_timeout = '10s';\n";
	my ($out, $err) = ('', '');
	my @answers;

	for my $i (0 .. $#statements)
	{
		$script .= "\\echo #$i\n$statements[$i];\n\\echo :SQLSTATE\n";
	}
	IPC::Run::run([ 'psql', '-XAtq', '-d', $conninfo ], '<', \$script, '>', \$out, '2>', \$err, IPC::Run::timeout(300));
	foreach my $answer (split /^#\d+\n/m, $out)
	{
		push @answers, join("\n", sort split /\n/, $answer);
	}
	shift @answers;
	return @answers;
}

my $c = TesseraCluster->new('random');
$c->start_nodes('s1');
$c->query('s1', $schema);
$c->create(shards => 3);
$c->query('s1', "SELECT tessera.shard_table('a', 'k', 'hash', chunks => 7); SELECT tessera.shard_table('b', 'k', 'hash', colocate_with => 'a'); " .
	"SELECT tessera.shard_table('d', 'k', 'hash', chunks => 5); SELECT tessera.replicate_table('e')");
$c->query('s2', $rows);
$c->plain_query($schema);
$c->plain_query($rows);

my @statements = map { statement() } 1 .. $wanted;
my @expected = answers($c->plain->connstr('postgres'), @statements);
is(scalar(@expected), scalar(@statements), 'all statements are answered');
cmp_ok(scalar(grep { !/^00000$/m } @expected), '<', $wanted / 20, 'few of them fail');

foreach my $name ($c->names)
{
	my @got = answers($c->conninfo($name), @statements);
	my $differ = 0;

	for my $i (0 .. $#statements)
	{
		next if ($got[$i] // 'no answer') eq $expected[$i];
		$differ++;
		diag "from $name: $statements[$i]\n--- plain\n$expected[$i]\n--- cluster\n" . ($got[$i] // 'no answer') if $differ <= 4;
	}
	is($differ, 0, "from $name: $wanted random statements answer as on a plain server");
}

done_testing();
