# A transaction has one now() on all nodes, and a statement one statement_timestamp(): in triggers, policies, checks, functions and COPY on the
# shards, in DDL, in deferred triggers at the end; also in statements that commit by themselves. Between two statements the clock visibly moves on.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('time');
$c->create(shards => 3, routers => 1);

# what fires or runs on the shard says what time it is there
$c->query('s1', $_) foreach (
	q{CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = 'shard' AS $$
		BEGIN NEW.at := now(); NEW.st := statement_timestamp(); RETURN NEW; END $$},
	q{CREATE FUNCTION stamp_late() RETURNS trigger LANGUAGE plpgsql SET tessera.trigger_place = 'shard' AS $$
		BEGIN UPDATE public.late SET at = now(), st = statement_timestamp() WHERE k = NEW.k AND at IS NULL; RETURN NULL; END $$},
	'CREATE FUNCTION at_now(int) RETURNS timestamptz STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN now(); END $$',
	'CREATE FUNCTION at_statement(int) RETURNS timestamptz STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN statement_timestamp(); END $$',
	'CREATE DOMAIN moment AS timestamptz CHECK (VALUE = now())',
	# returns when the clock has moved on since the statement began
	q{CREATE FUNCTION tick() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
		WHILE clock_timestamp() < statement_timestamp() + interval '3 ms' LOOP PERFORM pg_sleep(0.001); END LOOP; END $$},
	'CREATE TABLE t (k int PRIMARY KEY, v int, at timestamptz, st timestamptz)',
	'CREATE TABLE bare (k int PRIMARY KEY, v int, at timestamptz, txt text, st timestamptz)',
	'CREATE TABLE late (k int PRIMARY KEY, at timestamptz, st timestamptz)',
	'CREATE TABLE slot (k int PRIMARY KEY, starts timestamptz NOT NULL DEFAULT now() CHECK (starts = now()))',
	'CREATE TABLE doc (k int PRIMARY KEY, ends timestamptz NOT NULL DEFAULT now())',
	'CREATE TABLE dom (k int PRIMARY KEY, m moment)',
	(map { "SELECT tessera.shard_table('$_', 'k', 'hash', chunks => 12)" } qw(t bare late slot doc dom)),
	'CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION stamp()',
	'CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stamp_late()',
	'CREATE SCHEMA p2', 'CREATE SCHEMA p3', 'CREATE TABLE p2.placed (k int, at timestamptz, st timestamptz)',
	'CREATE TABLE p3.placed (k int, at timestamptz, st timestamptz)',
	(map { "CREATE TRIGGER stamp BEFORE INSERT ON $_.placed FOR EACH ROW EXECUTE FUNCTION stamp()" } qw(p2 p3)),
	'CREATE ROLE ann', 'GRANT ALL ON doc TO ann', 'ALTER TABLE doc ENABLE ROW LEVEL SECURITY',
	'CREATE POLICY p ON doc TO ann USING (ends = now()) WITH CHECK (ends = now())');
$c->fetch_routing;
ok($c->wait_for('r1', 'SELECT count(DISTINCT shard) FROM tessera.chunks', '3'), 'the router knows the chunks');

my %keys;
foreach my $line (split /\n/, $c->query('s1', "SELECT g, tessera.range_owner('t', g) FROM generate_series(1, 300) g"))
{
	my ($key, $owner) = split /\|/, $line;
	push @{ $keys{$owner} }, $key;
}
sub k { my ($shard) = @_; return shift @{ $keys{$shard} }; }
my $same = 'at = now(), st = statement_timestamp()';
my $tick = 'SELECT FROM tick()';

# What the statements of one session print, but for the ticks between them.
sub lines
{
	my ($node, @statements) = @_;
	my $script = join("\n$tick;\n", map { /^COPY/ ? $_ : "$_;" } @statements);
	return join(' ', grep { $_ ne '' } split /\n/, $c->query($node, $script));
}

# ---- statements that commit by themselves

foreach my $node (qw(r1 s1))
{
	foreach my $shard (qw(s1 s2 s3))
	{
		my $key = k($shard);
		is($c->query($node, "INSERT INTO t VALUES ($key, 1) RETURNING $same"), 't|t', "$node: INSERT of a row of $shard");
		is($c->query($node, "UPDATE t SET v = 2 WHERE k = $key RETURNING $same"), 't|t', "$node: UPDATE of it");
		is($c->query($node, "DO \$\$ BEGIN ASSERT (SELECT at_now(k) = now() FROM t WHERE k = $key); END \$\$"), '', "$node: a function over it");
	}
}
is($c->query('r1', "INSERT INTO t SELECT g, 1 FROM generate_series(1001, 1040) g RETURNING $same") =~ s/t\|t\n?//gr, '', 'INSERT of rows of all');
is($c->query('r1', 'WITH u AS (UPDATE t SET v = 3 RETURNING *) '
	. 'SELECT count(DISTINCT (at, st)), bool_and(at = now()), bool_and(st = statement_timestamp()) FROM u'),
	'1|t|t', 'UPDATE of all rows');
is(lines('r1', 'UPDATE t SET v = 4', 'SELECT count(DISTINCT at), bool_and(at = st) FROM t'), '1|t', 'the statement is the transaction');
is($c->query('r1', "INSERT INTO $_ VALUES (1) RETURNING $same"), 't|t', "a row of $_") foreach qw(p2.placed p3.placed);

# ---- a transaction

my @three = map { k($_) } qw(s1 s2 s3);
my $list = join(',', @three);
is(lines('r1', 'BEGIN', (map { "INSERT INTO t VALUES ($_, 1) RETURNING $same" } @three),
	"SELECT count(DISTINCT at), count(DISTINCT st), bool_and(at = now()) FROM t WHERE k IN ($list)",
	'UPDATE t SET v = 5', 'SELECT count(DISTINCT at), count(DISTINCT st), bool_and(at = now()), bool_and(st > now()) FROM t', 'COMMIT'),
	't|t t|t t|t 1|3|t 1|1|t|t', 'one now() on three shards, a time for each statement');
is(lines('r1', 'BEGIN', "INSERT INTO t VALUES (2001, 1) RETURNING $same", 'SAVEPOINT a', "INSERT INTO t VALUES (2002, 1) RETURNING $same",
	'ROLLBACK TO a',
	"INSERT INTO t VALUES (2002, 1) RETURNING $same", 'COMMIT', "INSERT INTO t VALUES (2003, 1) RETURNING $same",
	'BEGIN ISOLATION LEVEL SERIALIZABLE',
	"INSERT INTO t VALUES (2004, 1), (2005, 1) RETURNING $same", 'COMMIT', 'SELECT count(DISTINCT at) FROM t WHERE k > 2000'),
	't|t t|t t|t t|t t|t t|t 3',
	'after a savepoint, and in the transactions that follow');
my $session = $c->session_of('r1', 'BEGIN', "INSERT INTO t VALUES (2101, 1)", 'SAVEPOINT a');
is($c->answer($session, 'INSERT INTO t VALUES (2101, 1)'), '23505', 'an error on a shard');
$c->answer($session, 'ROLLBACK TO a');
$c->answer($session, $tick);
is($c->answer($session, "INSERT INTO t VALUES (2102, 1), (2103, 1), (2104, 1) RETURNING $same"), "t|t\nt|t\nt|t", 'after it');
$c->answer($session, 'ROLLBACK');
is($c->answer($session, "INSERT INTO t VALUES (2105, 1) RETURNING $same"), 't|t', 'after the rollback');
$session->quit;
is(lines('r1', "PREPARE q AS INSERT INTO t VALUES (\$1, 1) RETURNING $same", (map { "EXECUTE q($_)" } 2201 .. 2208)), join(' ', ('t|t') x 8),
	'a prepared statement, each time');
$c->query('r1', "DO \$\$ BEGIN FOR i IN 2301 .. 2320 LOOP INSERT INTO t VALUES (i, 1); PERFORM pg_sleep(0.001); END LOOP; END \$\$");
is($c->query('r1', 'SELECT count(*), count(DISTINCT (at, st)) FROM t WHERE k > 2300'), '20|1', 'one statement of the client, many here');
is(lines('r1', 'BEGIN', 'INSERT INTO p2.placed VALUES (2)', 'INSERT INTO p3.placed VALUES (2)',
	"INSERT INTO t VALUES (2401, 1), (2402, 1), (2403, 1)",
	'SELECT count(DISTINCT at), bool_and(at = now()) FROM (SELECT at FROM p2.placed WHERE k = 2 UNION ALL SELECT at FROM p3.placed WHERE k = 2 '
	. 'UNION ALL SELECT at FROM t WHERE k > 2400) a', 'COMMIT'), '1|t', 'placed tables, too');

# ---- checks, policies, functions, casts

foreach my $node (qw(r1 s2))
{
	my $from = $node eq 'r1' ? 100 : 200;
	is(lines($node, "INSERT INTO slot SELECT g FROM generate_series($from + 1, $from + 20) g", "INSERT INTO slot VALUES ($from)", 'BEGIN',
		(map { "INSERT INTO slot VALUES ($from + $_)" } 21 .. 26), 'COMMIT',
		"SELECT count(*), count(DISTINCT starts) FROM slot WHERE k BETWEEN $from AND $from + 99"),
		'27|3', "$node: a check that compares a default with now()");
	is(lines($node, 'SET ROLE ann', 'BEGIN', (map { "INSERT INTO doc VALUES ($from + $_)" } 1 .. 6), 'SELECT count(*) FROM doc',
		"UPDATE doc SET ends = now()", 'COMMIT',
		'SELECT count(*) FROM doc', "INSERT INTO doc VALUES ($from + 7)"), '6 0', "$node: a policy");
	is(lines($node, 'BEGIN', (map { "INSERT INTO dom VALUES ($from + $_, now())" } 1 .. 6), 'COMMIT', "SELECT count(*) FROM dom WHERE k > $from"),
		'6',
		"$node: a domain");
}
$c->query('r1', "INSERT INTO bare SELECT g, 1, NULL, 'now' FROM generate_series(1, 40) g");
my $all = 'SELECT count(DISTINCT at), bool_and(at = now()), count(*) FROM bare';
is(lines('r1', 'BEGIN', 'SELECT count(*) FROM bare', 'UPDATE bare SET at = at_now(k)', $all, 'UPDATE bare SET at = txt::timestamptz', $all,
	"UPDATE bare SET at = 'now'", $all, 'SELECT count(*) FROM bare WHERE at = txt::timestamptz',
	'UPDATE bare SET st = at_statement(k)', 'SELECT count(DISTINCT st), bool_and(st > now()) FROM bare',
	'DELETE FROM bare WHERE k <= 10 AND at_now(k) = now()', $all,
	'COMMIT'),
	'40 1|t|40 1|t|40 1|t|40 40 1|t 1|t|30', 'functions and casts of rows');

# ---- COPY

is(lines('r1', 'BEGIN', 'SELECT count(*) FROM bare', "COPY bare (k, at) FROM STDIN;\n" . join('', map { "$_\tnow\n" } 101 .. 120) . "\\.",
	'SELECT count(DISTINCT at), bool_and(at = now()), count(*) FROM bare WHERE k > 100',
	"COPY bare (k, at) FROM STDIN;\n201\ttoday\n202\ttoday\n203\ttoday\n\\.",
	"SELECT bool_and(at = 'today') FROM bare WHERE k > 200", "COPY slot (k) FROM STDIN;\n301\n302\n303\n304\n\\.",
	'SELECT bool_and(starts = now()) FROM slot WHERE k > 300',
	"COPY t (k) FROM STDIN;\n" . join('', map { "$_\n" } 2501 .. 2520) . "\\.",
	'SELECT count(DISTINCT at), count(DISTINCT st), bool_and(at = now()) FROM t WHERE k > 2500',
	'COMMIT'), '30 1|t|20 t t 1|1|t', 'COPY');

# ---- the end of a transaction

is(lines('r1', 'BEGIN', (map { "INSERT INTO late VALUES ($_)" } 1 .. 6), 'SELECT now()', 'COMMIT',
	'SELECT count(DISTINCT at), count(DISTINCT st), bool_and(st > at) FROM late')
	=~ s/^\S+ \S+ //r, '1|1|t', 'deferred triggers have the time of COMMIT');
is(lines('r1', 'INSERT INTO late SELECT g FROM generate_series(11, 30) g',
	'SELECT count(DISTINCT at), count(DISTINCT st), bool_and(st = at) FROM late WHERE k > 10'),
	'1|1|t', 'and of a statement that commits by itself');
is(lines('r1', 'INSERT INTO late VALUES (31)', 'SELECT st = at FROM late WHERE k = 31'), 't', 'on one shard');
is(lines('r1', 'BEGIN', (map { "INSERT INTO late VALUES ($_)" } 41 .. 46), 'SET CONSTRAINTS ALL IMMEDIATE',
	'SELECT count(DISTINCT at), count(DISTINCT st), bool_and(at = now() AND st > at) FROM late WHERE k > 40', 'COMMIT'), '1|1|t',
	'of SET CONSTRAINTS');
is(lines('r1', 'BEGIN', (map { "INSERT INTO late VALUES ($_)" } 51 .. 56), (map { "INSERT INTO t VALUES ($_, 1)" } 2601 .. 2606),
	"PREPARE TRANSACTION 'one time'",
	"COMMIT PREPARED 'one time'", 'SELECT count(DISTINCT at), count(DISTINCT st), bool_and(st > at) FROM late WHERE k > 50',
	'SELECT count(DISTINCT a.at) FROM (SELECT at FROM late WHERE k > 50 UNION ALL SELECT at FROM t WHERE k > 2600) a'), '1|1|t 1',
	'of a transaction that a client prepares');

my @late = map { my $shard = $_; my $key = k($shard); $key = k($shard) while $key < 100; $key } qw(s1 s2 s3);	# below are rows
$session = $c->session_of('r1', 'BEGIN', (map { ("INSERT INTO late VALUES ($_)", $tick) } @late), 'SAVEPOINT a');
is($c->answer($session, "INSERT INTO late VALUES ($late[1])"), '23505', 'an error on a shard');
$c->answer($session, $_) foreach 'ROLLBACK TO a', $tick, 'COMMIT';
$session->quit;
is($c->query('r1', 'SELECT count(*), count(DISTINCT st) FROM late WHERE k IN (' . join(',', @late) . ')'), '3|1', 'deferred triggers after an error');

# ---- DDL

$c->query('r1', 'ALTER TABLE bare ADD COLUMN made timestamptz NOT NULL DEFAULT now()');
is($c->query('r1', 'SELECT count(DISTINCT made), count(*) FROM bare'), '1|53', 'rows that are there get one value');
is($c->query('r1', 'INSERT INTO bare VALUES (501), (502), (503) RETURNING made = now()'), "t\nt\nt", 'new rows theirs');
$c->query('r1',
	"ALTER TABLE bare ADD joined timestamp DEFAULT localtimestamp, ADD day date DEFAULT current_date, ADD who text DEFAULT current_user, "
	. "ADD own text DEFAULT current_setting('some.setting', true), ADD lit timestamptz DEFAULT 'now', "
	. "ADD st2 timestamptz DEFAULT statement_timestamp()");
is($c->query('r1',
	'SELECT count(DISTINCT joined), count(DISTINCT day), '
	. 'count(DISTINCT who), count(DISTINCT lit), count(DISTINCT st2), bool_and(joined = lit) FROM bare'),
	'1|1|1|1|1|t', 'localtimestamp, current_date, a literal');
$c->query('r1', 'INSERT INTO bare (k) SELECT generate_series(511, 530)');
is($c->query('r1', 'SELECT count(DISTINCT lit) FROM bare'), '1', 'a literal is the same on all nodes');
is(lines('r1', 'BEGIN', 'SELECT count(*) FROM t WHERE k < 0', 'ALTER TABLE bare ADD COLUMN audited timestamptz DEFAULT transaction_timestamp()',
	'SELECT count(*) = count(*) FILTER (WHERE audited = now()) FROM bare', 'ALTER TABLE bare ALTER txt TYPE timestamptz USING now()',
	'SELECT count(*) = count(*) FILTER (WHERE txt = now()) FROM bare', 'COMMIT', 'SELECT count(DISTINCT txt) FROM bare'), '0 t t 1',
	'in a transaction');
like($c->error('r1', "ALTER TABLE bare ADD COLUMN x text DEFAULT $_"), qr/ERROR:  0A000:.*differs by shard/, "refused: DEFAULT $_")
  foreach ('txid_current()::text', 'pg_backend_pid()::text', "current_setting('port')", "current_setting('Tessera.listen', true)", 'current_catalog',
	'at_now(1)::text',
	'inet_server_port()::text',
	'clock_timestamp()::text');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency()'), '0', 'all nodes have the same definitions');

# ---- after a move, which the router does not know of, the statement goes out anew

my $moved = k('s2');
$c->query('s1', "SELECT tessera.move_range('t', min, max, 's3') FROM tessera.chunks WHERE table_name = 't'::regclass AND shard = 's2'");
is(lines('r1', 'BEGIN', "INSERT INTO t VALUES ($moved, 1) RETURNING $same", 'INSERT INTO t SELECT g FROM generate_series(2701, 2720) g',
	'SELECT count(DISTINCT at), bool_and(at = now()) FROM t WHERE k > 2700', 'COMMIT'), 't|t 1|t', 'after a move');

# ---- who may state times, and who need not

like($c->error($_, 'SELECT tessera_internal.began(0, 1)'), qr/ERROR:  42501: this function is called by other nodes only/,
	"$_: not a client") foreach qw(r1 s2);
$c->query('r1', "INSERT INTO bare VALUES (601, 1), (602, 1), (603, 1), (604, 1), (605, 1), (606, 1)");
$c->query('r1', 'CREATE TABLE plain (k int PRIMARY KEY, v int CHECK (v > 0), at timestamptz DEFAULT now())');
$c->query('r1', "SELECT tessera.shard_table('plain', 'k', 'hash', chunks => 12)");
$c->query('r1', 'INSERT INTO plain SELECT g, 1 FROM generate_series(1, 40) g');
$c->set($_, log_statement => "'all'") foreach qw(s1 s2 s3);
foreach my $shard (qw(s1 s2 s3))
{
	my $open = $c->session_of($shard);
	ok($c->heeds($open, 'log_statement', 'all'), "$shard logs statements");
	$open->quit;
}

# How often the shards were told while the statements ran.
sub told
{
	my (@statements) = @_;
	my %from = map { $_ => -s $c->node($_)->logfile } qw(s1 s2 s3);
	$c->query('r1', $_) foreach @statements;
	my $log = join('', map { slurp_file($c->node($_)->logfile, $from{$_}) } qw(s1 s2 s3));
	note $log;
	return scalar(() = $log =~ /tessera_internal\.began/g);
}
is(told('SELECT * FROM plain WHERE k = 7', 'SELECT * FROM plain WHERE k = 8 AND at < now()', 'UPDATE plain SET v = 2 WHERE k = 8',
	'INSERT INTO plain VALUES (41, 1)',
	'BEGIN; UPDATE plain SET v = 3 WHERE k IN (1, 2, 3, 4, 5, 6); DELETE FROM plain WHERE k = 9; COMMIT'), 0,
	'nothing is said where nothing asks for the time');
is(told('BEGIN; INSERT INTO t VALUES (3001, 1); INSERT INTO t VALUES (3002, 1); UPDATE plain SET v = 4; ROLLBACK'), 2,
	'and where a trigger does, in front of it');

done_testing();
