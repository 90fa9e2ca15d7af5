# The views tessera.cluster_activity and tessera.lock_waits: on every node they say which client does what, and which one waits for which other one,
# wherever their statements run; what is a user's own is shown as in pg_stat_activity. A node that is down has a row that says so.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('who_waits');
$c->create(shards => 2, routers => 1, settings => { max_prepared_transactions => 20 });
$c->query('s1', $_) foreach ('SELECT tessera.stop_balancer()', 'SELECT tessera.enable_sessions()',
	'CREATE ROLE alice LOGIN', 'CREATE ROLE bob LOGIN', 'CREATE ROLE carol LOGIN', 'CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats',
	'CREATE TABLE acc (id int PRIMARY KEY, n int)', 'GRANT ALL ON acc TO alice, bob', "SELECT tessera.shard_table('acc', 'id')",
	'INSERT INTO acc SELECT g, 0 FROM generate_series(1, 100) g', "SELECT tessera.move_range('acc', 50, 100, 's2')");
ok($c->wait_for($_, 'SELECT count(*) FROM tessera_session.session', '0'), "$_ has the tables of sessions") foreach $c->names;
my $logical = $c->query('s2', 'SET ROLE alice; SELECT tessera.start_session()');

# As who logs in: whose session it is goes by that.
sub session_as { my ($role, @what) = @_; local $ENV{PGUSER} = $role; return $c->session_of(@what); }
sub background_as { my ($role, @what) = @_; local $ENV{PGUSER} = $role; return $c->background(@what); }

my $holder = session_as('alice', 'r1', "SET application_name = 'till'", "SET tessera.session = '$logical'", 'BEGIN',
	'SET tessera.txn_number = 1', 'UPDATE acc SET n = 1 WHERE id = 60');
my $holding = $holder->query('SELECT pg_backend_pid()');
is($holder->{stderr}, '', 'alice has a row of s2');
my $update = 'UPDATE acc SET n = 2 WHERE id = 60';
my $waiter = background_as('bob', 's1', $update);

# ---- Who waits for whom

my $waits = 'SELECT node, usename, by_node, by_pid, by_user, gid, on_node, relation, lock, query FROM tessera.lock_waits';
ok($c->wait_for($_, $waits, "s1|bob|r1|$holding|alice||s2|public.acc|row|$update"), "who waits for whom, on $_") foreach $c->names;
my $waiting = $c->query('s2', 'SELECT pid FROM tessera.lock_waits');
is($c->query('s1', "SELECT usename, query FROM pg_stat_activity WHERE pid = $waiting"), "bob|$update", 'by the process of the client\'s session');
# psql sends what ends it on a line of its own
my $queries = q{SELECT query, rtrim(by_query, E';\n'), usename, by_user FROM tessera.lock_waits};
my $hidden = '<insufficient privilege>';
is($c->query('s2', "SET ROLE bob; $queries"), "$update|$hidden|bob|alice", 'bob sees his own statement');
is($c->query('s2', "SET ROLE alice; $queries"), "$hidden|SELECT pg_backend_pid()|bob|alice", 'alice hers');
is($c->query('s2', "SET ROLE carol; $queries"), "$hidden|$hidden|bob|alice", 'carol none');
is($c->query('s2', "SET ROLE watcher; $queries"), "$update|SELECT pg_backend_pid()|bob|alice", 'and who reads all statistics all');

# ---- Who does what

my $does = 'SELECT node, pid, usename, datname, application, state, session, query_start IS NOT NULL AS began, wait, ' .
	q{rtrim(query, E';\n') FROM tessera.cluster_activity};
my $alices = "r1|$holding|alice|postgres|till|idle in transaction|$logical|t|Client:ClientRead|SELECT pg_backend_pid()";
is($c->query($_, "$does WHERE pid = $holding AND node = 'r1'"), $alices, "what alice does, on $_") foreach $c->names;
is($c->query('s2', "SET ROLE alice; $does WHERE pid = $holding AND node = 'r1'"), $alices, 'she sees it herself');
is($c->query('s2', "SET ROLE bob; $does WHERE pid = $holding AND node = 'r1'"), "r1|$holding|alice|postgres|till|||f||$hidden", 'bob not all of it');
my ($node, $part) = split /:/, $c->query('s1', "SELECT parts FROM tessera.cluster_activity WHERE pid = $waiting AND node = 's1'");
is($node, 's2', 'the part of bob\'s statement is on s2');
is($c->query('s2', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $part"), 'Lock', 'where it waits');
is($c->query('s1', "SELECT count(*) FROM tessera.cluster_activity WHERE node = 's2' AND pid = $part"), '0', 'and is no session of a client');
is($c->query('s1', "SET ROLE carol; SELECT parts FROM tessera.cluster_activity WHERE pid = $waiting AND node = 's1'"), '', 'nothing of it for carol');
is($c->query('s1', "SET ROLE carol; SELECT count(*) FROM tessera.cluster_activity WHERE query <> '$hidden' OR state IS NOT NULL OR " .
	'client_addr IS NOT NULL OR query_start IS NOT NULL OR wait IS NOT NULL OR parts IS NOT NULL OR session IS NOT NULL'), '0', 'nor of anything');
like($c->error('s1', "SET ROLE carol; SELECT tessera_internal.$_"), qr/42501/, "the answers of nodes are not asked for by carol")
	foreach "activity('postgres', true)", "processes_here('postgres')", 'waits_here()';

# ---- A statement that asks for locks on several nodes in attempts

$holder->query($_) foreach 'ROLLBACK', 'RESET tessera.session';
is($c->ended($waiter), '', 'bob goes on after alice');
# not before: she would be as likely to have the row first
$holder->query($_) foreach 'BEGIN', 'UPDATE acc SET n = 1 WHERE id = 60';
my $ddl = $c->background('s2', 'ALTER TABLE acc ADD COLUMN x int');
ok($c->wait_for('s1', "SELECT node, by_node, by_pid, on_node FROM tessera.lock_waits WHERE lock = 'of several nodes'",
	"s2|r1|$holding|s2"), 'DDL waits for her');
$holder->query('ROLLBACK');
is($c->ended($ddl), '', 'it goes on after her');

# ---- Prepared transactions

$holder->query($_) foreach 'BEGIN', 'UPDATE acc SET n = 3 WHERE id IN (1, 60)', "PREPARE TRANSACTION 'mine'";
is($holder->{stderr}, '', 'alice prepares a transaction');
$waiter = background_as('bob', 's1', $update);
ok($c->wait_for($_, "$waits WHERE gid IS NOT NULL", "s1|bob|||alice|mine|s2|public.acc|row|$update"), "it is in bob's way, on $_") foreach $c->names;
is($c->query('r1', "SELECT prepared_for BETWEEN '0' AND now() - '2000-01-01' FROM tessera.lock_waits"), 't', 'and for how long');
my $locker = $c->background('s2', 'SET tessera.replicate_ddl = off; BEGIN; LOCK TABLE ONLY acc IN SHARE MODE');
ok($c->wait_for('s1', "SELECT count(*) > 0 FROM tessera.lock_waits WHERE gid = 'mine' AND (lock = 'ShareLock' OR query LIKE '%SHARE MODE%')"),
	'also in that of a lock on the table') or diag $c->query('s1', 'SELECT * FROM tessera.lock_waits');
$holder->query("COMMIT PREPARED 'mine'");
is($c->ended($waiter), '', 'bob goes on');
is($c->ended($locker), '', 'and so does who locks the table');
is($c->query('r1', 'SELECT count(*) FROM tessera.lock_waits'), '0', 'nobody waits any more');

# ---- A node that is down

$c->stop('s2');
foreach my $view ('cluster_activity', 'lock_waits')
{
	my $column = $view eq 'lock_waits' ? 'on_node' : 'node';
	like($c->query('s1', "SELECT $column, trouble FROM tessera.$view WHERE trouble IS NOT NULL"), qr/^s2\|\S.*$/, "$view says that s2 is down");
}
is($c->query('s1', "SELECT count(*) FROM tessera.cluster_activity WHERE pid = $holding AND node = 'r1'"), '1', 'and shows the others');
$c->start('s2');
is($c->query('s1', 'SELECT count(trouble) FROM tessera.cluster_activity'), '0', 'all is known again');
$holder->quit;
done_testing();
