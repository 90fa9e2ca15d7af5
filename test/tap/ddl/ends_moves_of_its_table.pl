# DDL and TRUNCATE meet a migration (doc/design.md#moves-and-ddl): they end the migrations of their tables' group before they want a lock, whatever
# phase those are in, from whatever node; past the decision they wait for it, not for ever. The move says what ended it. New moves of the group are
# held off while the statement's transaction is open. A clone makes way for whoever waits for its table without having named it. A statement that has
# to wait for others, and gives up, has ended no migration.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

my $c = TesseraCluster->new('moveddl', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 100,
	'tessera.migration_batch_size' => 16,
	'tessera.migration_commit_size' => 16 });
$c->create(shards => 3, routers => 1);
$c->everywhere($_) foreach (
	'CREATE DOMAIN positive AS int',
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, p positive, filler text)',
	"INSERT INTO acc SELECT g, g, g, repeat('x', 300) FROM generate_series(1, 3000) g",
	'CREATE TABLE history (k int NOT NULL, id int NOT NULL, PRIMARY KEY (k, id))',
	'INSERT INTO history SELECT g, g FROM generate_series(1, 3000) g',
	'CREATE TABLE other (k int PRIMARY KEY, v int)',
	'INSERT INTO other SELECT g, g FROM generate_series(1, 3000) g');
$c->query('s1', $_) foreach ("SELECT tessera.shard_table('acc', 'k')", "SELECT tessera.shard_table('history', 'k', colocate_with => 'acc')",
	"SELECT tessera.shard_table('other', 'k')");
my $all = 'tessera.minkey(), tessera.maxkey()';
$c->query('s1', $_) foreach ("SET client_min_messages = warning; SELECT tessera.move_range('acc', $all, 's1')",
	"SET client_min_messages = warning; SELECT tessera.move_range('other', $all, 's2')");

my %node_of = (donor => 's1', config => 's1', recipient => 's2');

# A move of acc (or what is given) in the background, paused at a point.
sub paused_at
{
	my ($point, %params) = @_;
	my $node = $params{at} // $node_of{ $point =~ /^(donor|config|recipient)/ ? $1 : die $point };
	$c->pause_at($node, $point);
	my $move = $c->background('r1', $params{sql} // "SELECT tessera.move_range('acc', 500, 1500, 's2')");
	$c->paused_at($node, $point, 30) or die "$point is not reached";
	return $move;
}

sub clear
{
	$c->go_on($_) foreach qw(s1 s2 s3);
	return;
}

sub clean
{
	my ($name) = @_;
	my @findings = ($c->left_behind);
	foreach my $table (qw(acc history other))
	{
		next if $c->query('s1', "SELECT to_regclass('$table') IS NULL") eq 't';
		my ($same, $detail) = $c->same_everywhere("SELECT * FROM $table");
		push @findings, $detail unless $same;
	}
	is(join("\n", grep { $_ ne '' } @findings), '', "$name: nothing is left behind, all rows are there");
	return;
}

# The statement on a node, and on the plain server; how long it took.
sub everywhere_timed
{
	my ($node, $sql) = @_;
	my $begun = time;
	my ($status, $stdout, $stderr) = $c->psql($node, $sql);
	$c->plain_query($sql);
	return ($stderr, time - $begun);
}

sub moves
{
	my ($node, $what, $name) = @_;
	my ($status, $stdout, $stderr) = $c->psql($node, "SELECT tessera.move_range($what)");
	ok($stdout =~ /^[0-9a-f-]{36}$/, $name) or diag $stderr;
	return;
}

# In each phase, each with another statement, from each node.
foreach my $case (
	[ 'donor_registered', 's1', 'ALTER TABLE acc ADD COLUMN a1 int', 'ALTER TABLE of "acc"' ],
	[ 'donor_flag_up', 's2', 'CREATE INDEX acc_bal ON acc (bal)', 'CREATE INDEX of "acc"' ],
	[ 'donor_slot', 's3', 'ALTER TABLE history ADD COLUMN note text', 'ALTER TABLE of "history"' ],
	[ 'recipient_registered', 'r1', 'TRUNCATE history', 'TRUNCATE TABLE of "history"' ],
	[ 'recipient_batch', 's1', 'ALTER TABLE acc ALTER COLUMN bal TYPE bigint', 'ALTER TABLE of "acc"' ],
	[ 'recipient_cloned', 's2', 'ALTER TABLE acc ADD CONSTRAINT bal_positive CHECK (bal > 0)', 'ALTER TABLE of "acc"' ],
	[ 'donor_cloned', 's3', 'ALTER TABLE acc DROP CONSTRAINT bal_positive', 'ALTER TABLE of "acc"' ],
	[ 'donor_steady', 'r1', 'COMMENT ON TABLE acc IS $$x$$', 'COMMENT of "acc"' ],
	[ 'donor_write_gate', 's2', 'ALTER TABLE acc DROP COLUMN a1', 'ALTER TABLE of "acc"' ],
	[ 'recipient_confirming', 's3', 'DROP TABLE history', 'DROP TABLE of "history"' ])
{
	my ($point, $node, $sql, $by) = @$case;
	my $move = paused_at($point);
	my ($stderr, $took) = everywhere_timed($node, $sql);
	is($stderr, '', "$point: $sql on $node") or diag slurp_file($c->node('s1')->logfile) =~ s/.*(.{3000})\z/$1/sr;
	note sprintf('%s: took %.1f s', $point, $took);
	clear();
	like($c->ended($move), qr/ERROR:  55006: migration was cancelled: \Q$by\E was in its way/, "$point: the mover is told");
	is($c->query('s1', 'SELECT state || $$ $$ || error FROM tessera.migrations ORDER BY started DESC LIMIT 1'),
		"aborted 55006: migration was cancelled: $by was in its way",
		"$point: it is on record");
	is($c->query('s1', "SELECT tessera.range_owner('acc', 700)"), 's1', "$point: the range has not moved");
	clean("$point, $sql");
}

# A statement that gives up, since others hold the table, leaves the move alone: while the rows are copied, and after; whoever holds it, on the
# statement's node and on another.
foreach my $case ([ 'recipient_batch', 's1', 's1' ], [ 'donor_steady', 's3', 'r1' ])
{
	my ($point, $holds, $node) = @$case;
	my $move = paused_at($point);
	my $holder = $c->session($holds, on_error_stop => 0);
	my $pid = $holder->query('SELECT pg_backend_pid()');
	$holder->query('BEGIN; SELECT count(*) FROM acc WHERE k = 2000');
	foreach my $sql ('ALTER TABLE acc ADD COLUMN never int', 'TRUNCATE acc', 'DROP TABLE acc CASCADE')
	{
		like($c->error($node, "SET lock_timeout = '400ms'; $sql"), qr/55P03: .*public\.acc within 400 ms.*process $pid (?:holds it|of node)/s,
			"$point: $sql gives up at lock_timeout, and says for whom it has waited");
	}
	like($c->error($node, "SET statement_timeout = '900ms'; ALTER TABLE acc ADD COLUMN never int"), qr/57014:/, "$point: at statement_timeout");
	my $ddl = $c->background($node, 'ALTER TABLE acc ADD COLUMN never int');
	$c->runs_for($node, 'ALTER TABLE acc ADD COLUMN never%', '1 s');
	$c->query($node, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE acc ADD COLUMN never%' AND " .
		'pid <> pg_backend_pid()');
	like($c->ended($ddl), qr/57014:/, "$point: when it is cancelled");
	is($c->query('s1', 'SELECT state FROM tessera.migrations ORDER BY started DESC LIMIT 1'), 'running', "$point: the move runs all the same");

	# one that gets its locks ends it
	$ddl = $c->background($node, 'ALTER TABLE acc ALTER COLUMN bal SET DEFAULT 0') if $point eq 'donor_steady';
	$holder->query('COMMIT');
	$holder->quit;
	if ($point eq 'donor_steady')
	{
		is($c->ended($ddl), '', "$point: one that gets its locks goes through");
		clear();
		like($c->ended($move), qr/55006: migration was cancelled: ALTER TABLE of "acc"/, "$point: and ends the move");
	}
	else
	{
		clear();
		is($c->ended($move), '', "$point: it is carried out");
		$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's1')");
	}
	clean("$point, statements that give up");
}

# Past the decision: wait for the end, for so long as the setting says.
my $move = paused_at('config_commit');
like($c->error('s3', "SET tessera.ddl_lock_timeout = '1s'; ALTER TABLE acc ADD COLUMN a2 int"),
	qr/55006: a migration of table public.acc has not ended within 1000 ms.*HINT:/s,
	'past the decision DDL waits for the end, and gives up at its deadline');
my $ddl = $c->background('s3', 'ALTER TABLE acc ADD COLUMN a2 int');
ok($c->wait_for('s3', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE acc ADD COLUMN a2%' AND pid <> pg_backend_pid() AND " .
	"state = 'active'", '1', 20),
	'another one waits');
clear();
is($c->ended($ddl), '', 'and runs when the migration has ended');
$c->plain_query('ALTER TABLE acc ADD COLUMN a2 int');
is($c->ended($move), '', 'which was carried out');
is($c->query('s1', "SELECT tessera.range_owner('acc', 700)"), 's2', 'the range has moved');
clean('past the decision');
$c->query('s1', "SELECT tessera.move_range('acc', 500, 1500, 's1')");

# A transaction that has written in the range, for which the move waits, and that goes on to DDL: no deadlock.
$move = paused_at('donor_steady');
my $session = $c->session('s3', on_error_stop => 0);
$session->query('BEGIN; UPDATE acc SET bal = bal + 1 WHERE k = 700');
clear();
ok($c->wait_for('s1', "SELECT waiting_for FROM tessera.migrations ORDER BY started DESC LIMIT 1", qr/^transaction of process/),
	'the move waits for a transaction');
$session->query('ALTER TABLE acc ADD COLUMN a3 int');
is($session->{stderr}, '', 'which goes on to DDL');
like($c->ended($move), qr/55006: migration was cancelled: ALTER TABLE of "acc"/, 'the move has ended');

# While that transaction is open new moves of the group are held off.
like($c->error('s2', "SELECT tessera.move_range('acc', 500, 1500, 's2')"), qr/55006: a DDL statement on the table/, 'a new move is held off');
$session->query('COMMIT');
is($session->{stderr}, '', 'the transaction commits');
$c->plain_query($_) foreach 'UPDATE acc SET bal = bal + 1 WHERE k = 700', 'ALTER TABLE acc ADD COLUMN a3 int';
clean('a transaction with DDL');
moves('s2', "'acc', 500, 1500, 's2'", 'then the range moves');
moves('s2', "'acc', 500, 1500, 's1'", 'and back');

# Several statements in one transaction end several migrations; one that rolls back has ended them all the same.
$move = paused_at('donor_cloned');
my $second = paused_at('donor_steady', at => 's2', sql => "SELECT tessera.move_range('other', 100, 2000, 's3')");
$session->{stderr} = '';
$session->query('BEGIN; ALTER TABLE acc ADD COLUMN a4 int; SAVEPOINT a; TRUNCATE other; ROLLBACK TO a; ALTER TABLE other ADD COLUMN w int; ALTER ' .
	'TABLE acc ADD COLUMN a5 int; ROLLBACK');
is($session->{stderr}, '', 'several statements in one transaction');
clear();
like($c->ended($move), qr/55006: migration was cancelled: ALTER TABLE of "acc"/, 'have ended the first migration');
like($c->ended($second), qr/55006: migration was cancelled: TRUNCATE TABLE of "other"/, 'and the second');
clean('several statements');
$session->quit;

# Statements that do not name the table, or are this node's alone: the clone makes way.
foreach my $case ([ 's1', 'DROP DOMAIN positive CASCADE', 1 ], [ 's1', 'VACUUM FULL acc', 0 ])
{
	my ($node, $sql, $plain) = @$case;
	$move = paused_at('recipient_batch');
	is($c->query('s1', "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'acc'::regclass AND mode = 'AccessShareLock' AND pid IN " .
		"(SELECT pid FROM tessera.stat_progress_migration)"),
		't', 'the clone holds the table');
	my ($status, $stdout, $stderr) = $c->psql($node, "SET client_min_messages = warning; $sql");
	is($stderr, '', "$sql goes through");
	$c->plain_query("SET client_min_messages = warning; $sql") if $plain;
	clear();
	like($c->ended($move), qr/55006: migration was cancelled: process \d+ waits for a table that it copies/, 'the clone has made way');
	clean($sql);
}

# The data: a move that nobody disturbs, of what all this has left.
moves('r1', "'acc', 500, 1500, 's2'", 'in the end it moves');
clean('the end');
done_testing();
