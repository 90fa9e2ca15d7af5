# Change capture, all cases (S43, S48, doc/design.md#rewritten-tables, doc/design.md#unchanged-toast): whatever is written while a range moves is on
# the recipient afterwards. In every phase of a move, each held by an injection point, through every node: key updates into the range and out of it,
# update then delete, unchanged TOAST, savepoints rolled back, rows inserted and deleted in one transaction, a table without a primary key, generated
# and dropped columns, columns in another order, enums, domains, arrays and composites whose OIDs differ between the nodes, big values,
# transactions that stay prepared. The same statements run on a plain server; all rows must be the same. Foreign keys and triggers, ENABLE ALWAYS ones
# too, fire for the user's statements and for nothing else.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

# Much more than logical decoding keeps in memory.
my ($BIG_MB, $DECODING_MB) = TesseraCluster::long() ? (100, 64) : (24, 8);
my $BIG = $BIG_MB * 1024 * 1024;

my $c = TesseraCluster->new('capture',
	settings => {
		'tessera.injection_points' => 'on',
		'tessera.orphan_cleanup_delay' => 100,
		'tessera.migration_batch_size' => 64,
		'tessera.migration_commit_size' => 64,
		'tessera.gate_timeout' => 60000,
		logical_decoding_work_mem => "${DECODING_MB}MB",
		max_wal_size => '2GB'
	});
$c->create(shards => 2);
# OIDs differ by node, and so do attribute numbers: s3 joins when a column has been dropped.
$c->query('s2', 'SET tessera.replicate_ddl = off; CREATE TYPE only_here AS ENUM (); CREATE TABLE only_here_too (a only_here)');
$c->everywhere($_) foreach (
	"CREATE TYPE mood AS ENUM ('bad', 'fair', 'good')",
	'CREATE TYPE pair AS (m mood, n int)',
	'CREATE DOMAIN positive AS int CHECK (VALUE > 0)',
	'CREATE TABLE main (gone text, k int, id int, a text DEFAULT $$default$$, big text, m mood, moods mood[], p pair, ps pair[], pos positive,
		tags text[],
		twice int GENERATED ALWAYS AS (k * 2) STORED, PRIMARY KEY (k, id))',
	'ALTER TABLE main ALTER COLUMN big SET STORAGE EXTERNAL',
	'CREATE TABLE log (k int NOT NULL, note text, gone int, at numeric, doc json)',
	'ALTER TABLE log REPLICA IDENTITY FULL',
	'CREATE INDEX log_k ON log (k)',
	'CREATE TABLE child (k int NOT NULL, id int NOT NULL, n int NOT NULL, PRIMARY KEY (k, id, n))',
	'ALTER TABLE main DROP COLUMN gone',
	'ALTER TABLE log DROP COLUMN gone');
$c->start_node('s3');
$c->query('s3', 'CREATE EXTENSION tessera');
$c->add_shard('s3');
# On s2 the columns stand in another order.
$c->query('s2', 'SET tessera.replicate_ddl = off; ALTER TABLE main DROP COLUMN a; ALTER TABLE main ADD COLUMN a text DEFAULT $$default$$');
my @nodes = $c->names;
my @attributes = $c->query_all("SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'main'::regclass AND attnum > 0");
isnt($attributes[1], $attributes[0], 'columns are in another order');
isnt($attributes[2], $attributes[0], 'or have other numbers');
my %oids = map { $_ => 1 } $c->query_all("SELECT 'mood'::regtype::oid");
cmp_ok(scalar(keys %oids), '>', 1, 'types have other OIDs');

# Triggers: one that changes keys; others that count what fires, in a table of each node's own.
my $triggers = <<'END';
CREATE FUNCTION change_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.k := replace(to_jsonb(NEW)->>TG_ARGV[0], 'to ', '')::int;
  RETURN NEW;
END $$;
CREATE TRIGGER change_key BEFORE UPDATE ON main FOR EACH ROW WHEN (NEW.a LIKE 'to %' AND NEW.a <> OLD.a) EXECUTE FUNCTION change_key('a');
CREATE TRIGGER change_key BEFORE UPDATE ON log FOR EACH ROW WHEN (NEW.note LIKE 'to %' AND NEW.note <> OLD.note) EXECUTE FUNCTION change_key('note');
CREATE TABLE fired (op text, k int);
CREATE FUNCTION note_fired() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.fired VALUES (TG_OP, CASE WHEN TG_OP = 'DELETE' THEN OLD.k ELSE NEW.k END);
  RETURN NULL;
END $$;
CREATE TRIGGER always AFTER INSERT OR UPDATE OR DELETE ON child FOR EACH ROW EXECUTE FUNCTION note_fired();
ALTER TABLE child ENABLE ALWAYS TRIGGER always;
CREATE TRIGGER replica AFTER INSERT OR UPDATE OR DELETE ON child FOR EACH ROW EXECUTE FUNCTION note_fired();
ALTER TABLE child ENABLE REPLICA TRIGGER replica;
DO $$
DECLARE t record;
BEGIN
  FOR t IN SELECT tgrelid::regclass AS relation, tgname FROM pg_trigger WHERE tgrelid IN ('main'::regclass, 'child'::regclass) AND tgisinternal LOOP
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', t.relation, t.tgname);
  END LOOP;
END $$;
END
$c->query('s1', "SELECT tessera.shard_table('main', 'k'); SELECT tessera.shard_table('log', 'k', colocate_with => 'main'); SELECT " .
	"tessera.shard_table('child', 'k', colocate_with => 'main')");
$c->everywhere('ALTER TABLE child ADD FOREIGN KEY (k, id) REFERENCES main');
$c->query($_, "SET tessera.replicate_ddl = off; SET client_min_messages = warning; $triggers") foreach @nodes;
$c->plain_query($triggers);

# Inside: the range that moves, 1000 to 2999. The donor has 4000 to 5999 as well, s1 all the rest.
$c->everywhere($_) foreach (
	"INSERT INTO main (k, id, a, big, m, moods, p, ps, pos, tags) SELECT g, 0, 'first ' || g, CASE WHEN g % 5 = 0 THEN repeat(md5(g::text), 100) END,
		'fair',
		ARRAY['bad', NULL, 'good']::mood[], ROW('good', g)::pair, ARRAY[ROW('bad', 1)::pair], g, ARRAY[g::text, NULL] FROM generate_series(1000,
		7999) g",
	"INSERT INTO log SELECT g, 'note', 1.50, json_build_object('k', g) FROM generate_series(1000, 7999) g",
	"INSERT INTO log SELECT g, repeat(md5(g::text), 200), g, NULL FROM generate_series(1000, 7999, 50) g",
	"INSERT INTO child SELECT g, 0, 1 FROM generate_series(1000, 7999) g WHERE g % 100 IN (28, 29, 31)");
$c->query('s1', $_) foreach ("SET client_min_messages = warning; SELECT tessera.move_range('main', tessera.minkey(), tessera.maxkey(), 's1')",
	"SELECT tessera.move_range('main', 1000, 6000, 's2')");

# A row gets another key in place, by the trigger.
sub key_update
{
	my ($from, $to, $id) = @_;
	return sprintf "UPDATE main SET a = 'to %d', id = %d WHERE k = %d AND id = %d", $to, ($id // 20) + 1, $from, $id // 0;
}

# What one phase writes: statements that can run in any order; those of a list follow each other. keys: rows that change their key, too, which is
# possible as long as one shard has the old key and the new one.
sub statements
{
	my ($phase, $keys) = @_;
	my ($i, $o, $x) = (1000 + 100 * $phase, 4000 + 100 * $phase, 6000 + 100 * $phase);
	my @moved = (
		key_update($o + 2, $i + 2), key_update($i + 4, $o + 4), key_update($i + 5, $o + 5), key_update($o + 15, $i + 11),
		[ key_update($o + 25, $i + 13), key_update($i + 13, $o + 13, 21) ],
		[ key_update($i + 8, $o + 8), key_update($o + 8, $i + 9, 21), "UPDATE main SET a = 'back, and changed' WHERE k = $i + 9" ]);
	my @changed = (
		[ "UPDATE main SET a = 'to ' || ($i + 12), id = 22 WHERE k = $o + 20", "DELETE FROM main WHERE k = $i + 12 AND id = 22" ],
		[ "UPDATE main SET a = 'to ' || ($i + 14), id = 25 WHERE k = $o + 30", "UPDATE main SET big = 'changed' WHERE k = $i + 14 AND id = 25" ],
		[ "UPDATE main SET a = 'to ' || ($i + 15), id = 26 WHERE k = $o + 35", "UPDATE main SET a = 'twice moved' WHERE k = $i + 15 AND id = 26",
		"UPDATE main SET a = 'to ' || ($i + 95), id = 27 WHERE k = $i + 15 AND id = 26" ],
		"UPDATE log SET note = 'to ' || ($i + 27) WHERE k = $o + 27",
		"UPDATE log SET note = 'to ' || ($o + 28) WHERE k = $i + 28",
		"UPDATE log SET note = 'to ' || ($i + 51), at = 51 WHERE k = $o + 50");
	my @all = (
		"INSERT INTO main (k, id, m) VALUES ($i + 1, 7, 'good')",
		"INSERT INTO main (k, id, big, moods) VALUES ($o + 1, 7, 'outside', '{bad}')",
		[ "UPDATE main SET a = 'soon gone' WHERE k = $i + 6", "DELETE FROM main WHERE k = $i + 6" ],
		"UPDATE main SET a = 'TOAST unchanged' WHERE k = $i + 10",
		"BEGIN; INSERT INTO main (k, id) VALUES ($i + 16, 5); SAVEPOINT a; UPDATE main SET a = 'never' WHERE k = $i + 17; DELETE FROM main
			WHERE k = $i + 18;
			INSERT INTO main (k, id) VALUES ($i + 18, 6); ROLLBACK TO a; SAVEPOINT b; UPDATE main SET a = 'kept' WHERE k = $i + 19; RELEASE b;
			COMMIT",
		"BEGIN; INSERT INTO main (k, id) VALUES ($i + 21, 5); UPDATE main SET big = repeat('y', 9000) WHERE k = $i + 21 AND id = 5; DELETE FROM " .
		"main WHERE k = $i + 21 AND id = 5; COMMIT",
		"BEGIN; DELETE FROM main WHERE k = $i + 22; INSERT INTO main (k, id, a) VALUES ($i + 22, 0, 'again'); ROLLBACK",
		"BEGIN; DELETE FROM main WHERE k = $i + 23; INSERT INTO main (k, id, a) VALUES ($i + 23, 0, 'again'); COMMIT",
		"INSERT INTO log VALUES ($i + 24, 'twin', 1.5, '{\"a\":  1}'), ($i + 24, 'twin', 1.5, '{\"a\":  1}')",
		"UPDATE log SET note = 'changed', at = 1.5 WHERE k = $i + 25",
		"DELETE FROM log WHERE k = $i + 26",
		"UPDATE log SET at = 0 WHERE k = $i + 50",
		"INSERT INTO child VALUES ($i + 28, 0, 2), ($o + 28, 0, 2)",
		"BEGIN; DELETE FROM child WHERE k = $i + 29; DELETE FROM main WHERE k = $i + 29; COMMIT",
		"UPDATE child SET n = 3 WHERE k = $i + 31",
		"UPDATE main SET m = 'bad', moods = '{good,bad}', p = ROW('bad', 7), ps = ps || ROW('good', 8)::pair, pos = 9, tags = '{}' WHERE k = $i + 30",
		"INSERT INTO main (k, id, a) SELECT $i + g, 8, 'many' FROM generate_series(40, 49) g",
		"UPDATE main SET a = a || ', many' WHERE k BETWEEN $i + 50 AND $i + 60",
		"UPDATE main SET a = a || ', all over' WHERE k % 100 = 61 AND k / 100 % 20 = $phase",
		"INSERT INTO main (k, id, a) VALUES ($i + 62, 0, 'conflict') ON CONFLICT (k, id) DO UPDATE SET a = excluded.a, big = NULL",
		"DELETE FROM main WHERE k BETWEEN $i + 70 AND $i + 73",
		"MERGE INTO main USING (VALUES ($i + 74, 0)) v (k, id) ON main.k = v.k AND main.id = v.id AND main.k = $i + 74 WHEN MATCHED THEN UPDATE " .
		"SET a = 'merged'");
	return ($keys ? (@moved, @changed) : (), @all);
}

my $turn = 0;

# Each node gets a part of them.
sub write_all
{
	my ($phase, $gated) = @_;
	my @units = map { ref $_ ? $_ : [$_] } statements($phase, $phase < 7);
	my @failed;

	$c->plain_query(join(";\n", map { @$_ } @units));
	return begin_all(@units) if $gated;
	foreach my $n (0 .. $#nodes)
	{
		my $node = $nodes[ ($n + $turn) % @nodes ];
		my ($status, undef, $stderr) = $c->psql($node, join(";\n", map { @{ $units[$_] } } grep { $_ % @nodes == $n } 0 .. $#units));
		push @failed, "$node: $stderr" if $status != 0;
	}
	$turn++;
	is(join("\n", @failed), '', "phase $phase: all statements go through");
	return;
}

# In the background, in few sessions: they wait at the gate. Returns what collects them.
sub begin_all
{
	my (@units) = @_;
	my @sessions;

	foreach my $n (0 .. 5)
	{
		my $server = $c->node($nodes[ $n % @nodes ]);
		my @mine = map { @{ $units[$_] } } grep { $_ % 6 == $n } 0 .. $#units;
		my %run = (out => '', err => '', sql => \@mine);
		my $pid = open($run{handle}, '-|') // die "fork: $!";
		if ($pid == 0)
		{
			foreach my $sql (@mine)
			{
				my $error;
				foreach my $attempt (1 .. 5)
				{
					my ($out, $err) = ('', '');
					IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '-h', $server->host, '-p', $server->port,
						'postgres', '-f', '-' ],
						'<', \$sql, '>', \$out, '2>', \$err);
					$error = $err;
					last unless $err =~ /40001/;
				}
				print "$sql: $error\n" if $error =~ /ERROR|FATAL/;
			}
			close STDOUT;
			require POSIX;
			POSIX::_exit(0);
		}
		push @sessions, \%run;
	}
	return \@sessions;
}

sub collect
{
	my ($name, $sessions) = @_;
	my $failed = '';

	foreach my $run (@$sessions)
	{
		my $handle = $run->{handle};
		$failed .= join('', <$handle>);
		close $handle;
	}
	is($failed, '', "$name: all statements go through in the end");
	return;
}

my @compared = ('SELECT k, id, a, length(big), md5(big), m, moods, p, ps, pos, tags, twice FROM main', 'SELECT k, note, at, doc FROM log',
	'SELECT * FROM child');

sub same
{
	my ($name, @sql) = @_;
	my @differences;
	foreach my $sql (@sql ? @sql : @compared)
	{
		my ($same, $detail) = $c->same_everywhere($sql);
		push @differences, $detail unless $same;
	}
	is(join("\n", @differences), '', "$name: rows");
	return;
}

sub fired
{
	my ($name) = @_;
	my $sum = 0;
	$sum += $_ foreach $c->query_all('SELECT count(*) FROM fired');
	is($sum, $c->plain_query('SELECT count(*) FROM fired'), "$name: triggers have fired for users' statements alone");
	return;
}

# Phases of a move: the point that holds it, on which side; gated: statements on the range wait.
my @phases = (
	[ 'donor_registered', 'donor' ], [ 'donor_flag_up', 'donor' ], [ 'donor_slot', 'donor' ], [ 'recipient_batch', 'recipient' ],
	[ 'donor_cloned', 'donor' ],
	[ 'recipient_cloned', 'recipient' ], [ 'donor_steady', 'donor' ], [ 'donor_write_gate', 'donor', 'gated' ],
	[ 'recipient_confirming', 'recipient', 'gated' ],
	[ 'donor_read_gate', 'donor', 'gated' ], [ 'config_committed', 'donor', 'gated' ], [ 'donor_released', 'donor' ], [ 'donor_cleaning', 'donor' ]);

# One move of the range, held in each of the phases given while statements run.
sub move_through
{
	my ($donor, $recipient) = @_;
	my %side = (donor => $donor, recipient => $recipient);
	my ($out, $err) = ('', '');
	my $server = $c->node('s1');
	my $move;
	my $previous;
	my @waiting;

	foreach my $n (0 .. $#phases)
	{
		my ($point, $side, $gated) = @{ $phases[$n] };
		my $node = $side{$side};
		$c->pause_at($node, $point);
		$move //= IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-h', $server->host, '-p', $server->port, 'postgres', '-c',
				"SELECT tessera.move_range('main', 1000, 3000, '$recipient')" ], '<', \undef, '>', \$out, '2>', \$err);
		$c->go_on($previous->[0], $previous->[1]) if $previous;
		$c->paused_at($node, $point, 60) or do { $move->pump_nb; die "$point is not reached: $err" };
		$previous = [ $node, $point ];
		collect(@{ shift @waiting }) while @waiting && !$gated;
		my $written = write_all($n, $gated);
		push @waiting, [ $point, $written ] if $gated;
		same("$donor to $recipient, $point") unless $gated || $n % 3;
	}
	$c->go_on($previous->[0], $previous->[1]);
	collect(@$_) foreach @waiting;
	$move->finish;
	like($out, qr/^[0-9a-f-]{36}$/, "$donor to $recipient: the range has moved") or diag $err;
	ok($c->wait_for($donor, 'SELECT count(*) FROM tessera.range_deletions', '0', 60), 'and the donor has deleted its rows');
	same("$donor to $recipient, the end");
	fired("$donor to $recipient");
	is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', "$donor to $recipient: consistent");
	return;
}

move_through('s2', 's3');

# Back, with big values: one in the clone, one inserted and one that enters the range while it catches up; and a transaction that is prepared
# when the move begins, another one that is prepared in the middle, and for which the gate waits.
is($c->query('s1', "SELECT tessera.range_owner('main', 1500) || tessera.range_owner('main', 4500) || tessera.range_owner('main', 6500)"), 's3s2s1',
	'owners');
my $big = "repeat('0123456789abcdef', $BIG / 16)";
$c->everywhere($_) foreach "INSERT INTO main (k, id, big) VALUES (1900, 100, $big)", "INSERT INTO main (k, id, big) VALUES (3900, 100, $big)";
$c->query('s1', "SELECT tessera.move_range('main', 3500, 4000, 's3')");

# A transaction of s1 and s3, stopped when s3 has prepared.
sub prepared
{
	my ($k) = @_;
	my $session = $c->session('s1');
	my $sql = "UPDATE main SET a = 'prepared' WHERE k IN ($k, $k + 5000)";
	$c->pause_at('s1', 'commit_prepared');
	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	$c->wait_for('s3', 'SELECT count(*) FROM pg_prepared_xact()', '1', 30) or fail 'a transaction is prepared';
	return $session;
}

sub finish_prepared
{
	my ($session, $k) = @_;
	$c->go_on('s1', 'commit_prepared');
	is($session->query('SELECT 1'), '1', 'the prepared transaction ends');
	$session->quit;
	$c->plain_query("UPDATE main SET a = 'prepared' WHERE k IN ($k, $k + 5000)");
	return;
}

my $open = prepared(1980);
my ($out, $err) = ('', '');
my $server = $c->node('s1');
$c->pause_at('s3', 'donor_cloned');
my $move = IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-h', $server->host, '-p', $server->port, 'postgres', '-c',
		"SELECT tessera.move_range('main', 1000, 3000, 's2')" ], '<', \undef, '>', \$out, '2>', \$err);
ok($c->wait_for('s3', 'SELECT waiting_for FROM tessera.stat_progress_migration', qr/^prepared transaction/, 30),
	'a transaction prepared before the move is waited for');
finish_prepared($open, 1980);
ok($c->paused_at('s3', 'donor_cloned', 60), 'cloned');
$c->everywhere($_) foreach ("INSERT INTO main (k, id, big) VALUES (1902, 100, $big)",
	"UPDATE main SET a = 'to 1903' WHERE k = 3900 AND id = 100", "UPDATE main SET a = 'TOAST unchanged' WHERE k = 1900 AND id = 100");
$open = prepared(1981);
$c->go_on('s3');
ok($c->wait_for('s3', 'SELECT waiting_for FROM tessera.stat_progress_migration', qr/^prepared transaction/, 60),
	'one prepared in the middle holds the gate off');
finish_prepared($open, 1981);
$move->finish;
like($out, qr/^[0-9a-f-]{36}$/, 'the range has moved back') or diag $err;
same("values of $BIG_MB MB", 'SELECT k, id, a, m FROM main', @compared[ 1, 2 ]);
my $digests = 'SELECT k, md5(big) FROM main WHERE id IN (21, 100) AND k IN (1900, 1902, 1903)';
is($c->query('s2', "$digests ORDER BY k"), $c->plain_query("$digests ORDER BY k"), 'they are whole');
is($c->plain_query("SELECT count(*) FROM main WHERE length(big) = $BIG"), '3', 'three of them');
fired('back');

# Tables that consist of others.
$c->query('s1', $_) foreach ('CREATE TABLE parent (k int PRIMARY KEY)',
	'CREATE TABLE heir (PRIMARY KEY (k)) INHERITS (parent)');
like($c->error('s1', "SELECT tessera.shard_table('$_', 'k')"), qr/0A000: table "$_" cannot be sharded: table inheritance is not supported/,
	"$_: inheritance is refused")
	foreach 'parent', 'heir';
like($c->error('s1', 'CREATE TABLE later () INHERITS (main)'), qr/0A000/, 'an heir of a sharded table, too');

done_testing();
