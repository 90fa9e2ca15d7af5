# Plans of every kind can be printed at any time: auto_explain with log_verbose prints those of statements and cursors when they end, on each node,
# and EXPLAIN VERBOSE those of cursors and of the statements themselves. Statements do as without it.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('auto_explain', settings => {
	session_preload_libraries => 'auto_explain', 'auto_explain.log_min_duration' => 0, 'auto_explain.log_verbose' => 'on',
	'auto_explain.log_nested_statements' => 'on' });
$c->create(shards => 2, routers => 1);
$c->everywhere(<<'SQL');
CREATE TABLE t (k int PRIMARY KEY, v int); CREATE TABLE u (k int, n int, w text DEFAULT 'w', PRIMARY KEY (k, n));
CREATE TABLE placed (k int PRIMARY KEY, v int); CREATE TABLE copied (k int PRIMARY KEY, v int);
CREATE TABLE watched (k int PRIMARY KEY, v int); CREATE TABLE log (k int PRIMARY KEY, n int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO log VALUES (NEW.k, 1) ON CONFLICT (k) DO UPDATE SET n = log.n + 1; RETURN NEW; END';
CREATE VIEW both_of AS SELECT t.k, t.v, u.n FROM t JOIN u USING (k);
CREATE FUNCTION walk(low int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE c CURSOR FOR SELECT * FROM t WHERE k > low ORDER BY k FOR UPDATE; r record; n int := 0;
BEGIN
  FOR r IN c LOOP UPDATE t SET v = v + 1 WHERE CURRENT OF c; n := n + r.v; END LOOP; RETURN n;
END $$
SQL
$c->query('s1', "SELECT tessera.shard_table('t', 'k'), tessera.shard_table('u', 'k', colocate_with => 't'), tessera.shard_table('watched', 'k'), " .
	"tessera.replicate_table('copied')");
$c->query('s1', "SELECT tessera.move_range('$_', 100, tessera.maxkey(), 's2')") foreach 't', 'watched';
$c->everywhere('CREATE TRIGGER note AFTER INSERT OR UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION note()');
$c->everywhere('INSERT INTO t SELECT g, g % 10 FROM generate_series(1, 199, 3) g; INSERT INTO u SELECT k, n FROM t, generate_series(1, 2) n; ' .
	'INSERT INTO placed SELECT g, g FROM generate_series(1, 9) g; INSERT INTO copied TABLE placed; INSERT INTO watched TABLE t');

my @selects = (
	'SELECT * FROM t WHERE k = 151', 'SELECT * FROM t WHERE k = 49', 'SELECT * FROM t ORDER BY k', 'SELECT * FROM t ORDER BY v DESC, k LIMIT 3',
	'SELECT k, 1 AS one, v + 1 AS more FROM t ORDER BY k LIMIT 4 OFFSET 1', 'SELECT v, count(*), avg(k), min(k) FROM t GROUP BY v ORDER BY v',
	'SELECT DISTINCT v FROM t ORDER BY v', 'SELECT * FROM t JOIN u USING (k) ORDER BY k, n', 'SELECT * FROM both_of WHERE k = 151 ORDER BY n',
	'SELECT t.k, x.n FROM t LEFT JOIN u x ON x.n = t.v ORDER BY 1, 2 LIMIT 5', 'SELECT * FROM placed ORDER BY k', 'SELECT * FROM copied ORDER BY k',
	'SELECT p.k, t.v FROM placed p JOIN t ON t.v = p.k ORDER BY 1, 2', 'SELECT (SELECT count(*) FROM t) + p.k AS n FROM placed p ORDER BY n',
	'SELECT k, (SELECT max(n) FROM u WHERE u.k = t.k) AS m FROM t ORDER BY k LIMIT 3', 'SELECT t FROM t ORDER BY k LIMIT 2',
	'SELECT k, rank() OVER (PARTITION BY v ORDER BY k) FROM t ORDER BY k LIMIT 5',
	'SELECT k FROM t WHERE k < 10 UNION ALL SELECT k FROM u ORDER BY 1 LIMIT 9',
	'WITH m AS MATERIALIZED (SELECT * FROM t) SELECT count(*) FROM m a JOIN m b USING (v)', 'SELECT k, generate_series(1, 2) FROM t WHERE k = 151');
my @locking = ('SELECT * FROM t ORDER BY k FOR UPDATE', 'SELECT * FROM t WHERE k = 151 FOR UPDATE', 'SELECT * FROM t ORDER BY k LIMIT 2 FOR UPDATE');
my @writes = (
	'UPDATE t SET v = v + 1 WHERE k = 151 RETURNING *', 'UPDATE t SET v = v + 1',
	'UPDATE t SET v = p.v FROM placed p WHERE p.k = t.v RETURNING t.k, p.v',
	'DELETE FROM u WHERE n = 2 RETURNING k, w', 'INSERT INTO t VALUES (301, 1), (302, 2) RETURNING v', 'INSERT INTO t SELECT k + 1000, v FROM t',
	'INSERT INTO u (k, n) SELECT k, 3 FROM t RETURNING k, n', 'UPDATE t SET k = 500 - k WHERE v = 3 RETURNING k',
	'INSERT INTO placed SELECT k + 100, v FROM t',
	'WITH d AS (DELETE FROM t WHERE v = 3 RETURNING k) SELECT count(*) FROM d, placed', 'UPDATE copied SET v = v + 1 RETURNING k, v',
	'WITH i AS (INSERT INTO t VALUES (400, 4) RETURNING *) UPDATE placed SET v = i.v FROM i RETURNING placed.*',
	'UPDATE watched SET v = v + 1 RETURNING k, v',
	'INSERT INTO watched VALUES (333, 3) ON CONFLICT (k) DO UPDATE SET v = 4 RETURNING *', 'SELECT walk(150)',
	'MERGE INTO t USING placed p ON t.k = p.k WHEN MATCHED THEN UPDATE SET v = p.v WHEN NOT MATCHED THEN DO NOTHING');

my %sessions = (plain => $c->plain->background_psql('postgres', on_error_stop => 0), map { $_ => $c->session($_, on_error_stop => 0) } 's1', 'r1');

# What a script prints, its lines sorted; or its first error.
sub answer
{
	my ($node, $script) = @_;
	my $session = $sessions{$node};
	$session->{stderr} = '';
	my $rows = $session->query($script);
	return $session->{stderr} =~ /((?:ERROR|FATAL).*)/ ? $1 : join("\n", sort split /\n/, $rows);
}

sub same
{
	my ($script, $what) = @_;
	my $expected = answer('plain', $script);
	is(answer($_, $script), $expected, "$what, $_: $script") foreach 's1', 'r1';
	return;
}

foreach my $settings ('SET auto_explain.log_analyze = off', "SET auto_explain.log_analyze = on")
{
	answer($_, $settings) foreach 's1', 'r1';
	my $what = $settings =~ s/.*log_//r;
	foreach my $select (@selects, @locking)
	{
		same("BEGIN; $select; ROLLBACK", $what);
		foreach my $kind ($select =~ /FOR UPDATE/ ? ('', 'NO SCROLL') : ('', 'SCROLL', 'NO SCROLL'))
		{
			my $back = $kind eq 'SCROLL' ? 'FETCH BACKWARD 1 FROM c; FETCH ALL FROM c;' : '';
			same("BEGIN; DECLARE c $kind CURSOR FOR $select; FETCH 2 FROM c; $back CLOSE c; COMMIT", $what);
			unlike(answer('r1', "EXPLAIN VERBOSE DECLARE c $kind CURSOR FOR $select"), qr/ERROR/, "EXPLAIN, $kind: $select");
		}
	}
	same("BEGIN; DECLARE c CURSOR FOR $selects[2]; FETCH 1 FROM c; COMMIT", "$what, closed by COMMIT");
	same("BEGIN; DECLARE c SCROLL CURSOR WITH HOLD FOR $_; COMMIT; FETCH 2 FROM c; FETCH BACKWARD 1 FROM c; CLOSE c", "$what, held")
	  foreach @selects[ 0 .. 8 ];
	foreach my $write (@writes)
	{
		same("BEGIN; $write; ROLLBACK", $what);
		unlike(answer($_, "BEGIN; EXPLAIN VERBOSE $write; ROLLBACK"), qr/ERROR/, "EXPLAIN VERBOSE on $_: $write") foreach 's1', 'r1';
	}
	same("PREPARE p(int) AS SELECT * FROM t WHERE k = \$1; " . 'EXECUTE p(49); ' x 7 . 'EXECUTE p(151); DEALLOCATE p', "$what, prepared");
}
$_->quit foreach values %sessions;
like(PostgreSQL::Test::Utils::slurp_file($c->node($_)->logfile), qr/duration: .* plan:.*Output:/s, "$_: plans are in the log") foreach $c->names;

done_testing();
