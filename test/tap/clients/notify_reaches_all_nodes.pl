# A NOTIFY reaches the listeners of all nodes: after its commit, in the order of each sender, once; in every form, out of functions, DO blocks and
# triggers on shards; not what was rolled back. A node that does not answer keeps nobody else waiting, and its queue is bounded.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('notify');
$c->create(shards => 3, routers => 1);
my @nodes = $c->names;
foreach my $name (@nodes)
{
	ok($c->wait_for($name, 'SELECT count(*) FROM tessera.stat_notifications WHERE listening', '3'), "$name passes notifications on to three nodes");
}
my %listener;
foreach my $name (@nodes)
{
	$listener{$name} = $c->session($name, on_error_stop => 0);
	$listener{$name}->query_safe('LISTEN jobs; LISTEN "end"; LISTEN "Odd ""name"" {,}"');
}

my $marks = 0;

# What the listener of a node has heard since the last mark, which another session sets: "channel:payload ...".
sub heard
{
	my ($name) = @_;
	my $session = $listener{$name};
	my @heard;
	my $deadline = time + 60;
	while (time < $deadline)
	{
		my $out = $session->query("SELECT 1 AS poll");
		while ($out =~ /Asynchronous notification "(.*?)" (?:with payload "(.*?)" )?received from server process/sg)
		{
			my ($channel, $payload) = ($1, $2 // '');
			return join(' ', @heard) if $channel eq 'end' && $payload eq $marks;
			push @heard, "$channel:$payload" unless $channel eq 'end';
		}
		select(undef, undef, undef, 0.05);
	}
	return 'no mark after: ' . join(' ', @heard);
}

# All nodes hear the same, which a node says by statements; the mark comes from the same session.
sub all_hear
{
	my ($from, $sql, $expected, $what) = @_;
	my $session = ref $from ? $from : $c->session($from, on_error_stop => 0);
	$session->query($sql);
	my $errors = $session->{stderr};
	$session->{stderr} = '';
	$marks++;
	$session->query_safe("NOTIFY \"end\", '$marks'");
	my @heard = map { heard($_) } @nodes;
	is(join("\n", @heard), join("\n", ($expected) x @nodes), $what) or diag $errors;
	$session->quit unless ref $from;
	return $errors;
}

foreach my $from (@nodes)
{
	all_hear($from, "NOTIFY jobs; NOTIFY jobs, 'a b'; SELECT pg_notify('jobs', 'c')", 'jobs: jobs:a b jobs:c', "$from: NOTIFY and pg_notify");
}
all_hear('r1', "BEGIN; NOTIFY jobs, '1'; NOTIFY jobs, '1'; SAVEPOINT s; NOTIFY jobs, '2'; ROLLBACK TO s; NOTIFY jobs, '3'; COMMIT; BEGIN; NOTIFY " .
	"jobs, '4'; ROLLBACK; NOTIFY jobs, '1'; NOTIFY jobs, '1'",
	'jobs:1 jobs:3 jobs:1 jobs:1', 'what is committed, once for each transaction');
all_hear('s2', q{NOTIFY "Odd ""name"" {,}", 'x "y" {z,}\\'; SELECT pg_notify('jobs', NULL), pg_notify('jobs', E'two\nlines, \u00e4\u20ac')},
	"Odd \"name\" {,}:x \"y\" {z,}\\ jobs: jobs:two\nlines, \x{c3}\x{a4}\x{e2}\x{82}\x{ac}", 'any name, any text');
my $long = join('', map { chr(ord('a') + $_ % 26) } 1 .. 7950);
my $euros = "x" . "\x{e2}\x{82}\x{ac}" x 2650;
all_hear('r1', "NOTIFY jobs, '$long'; NOTIFY jobs, '${long}2'; NOTIFY jobs, '$long'; NOTIFY jobs, '$euros'; NOTIFY jobs, 'next'",
	"jobs:$long jobs:${long}2 jobs:$long jobs:$euros jobs:next", 'the longest texts');
all_hear('r1', "BEGIN; NOTIFY jobs, '$long'; NOTIFY jobs, '${long}2'; NOTIFY jobs, '$long'; COMMIT", "jobs:$long jobs:${long}2",
	'also where the server drops duplicates');
$c->query('s1', q{CREATE FUNCTION tell_sql(t text) RETURNS void LANGUAGE sql AS $$SELECT pg_notify('jobs', t)$$});
$c->query('s1', q{CREATE FUNCTION tell(t text) RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM pg_notify('jobs', t); NOTIFY jobs, 'told'; END$$});
foreach my $from ('s3', 'r1')
{
	all_hear($from, q{SELECT tell_sql('sql'); SELECT tell('plpgsql'); DO $$BEGIN PERFORM pg_notify('jobs', 'do'); END$$; PREPARE n(text) AS } .
		q{SELECT pg_notify('jobs', $1); EXECUTE n('p'); EXECUTE n('q')},
		'jobs:sql jobs:plpgsql jobs:told jobs:do jobs:p jobs:q', "$from: functions, DO, prepared statements");
}
like($c->error('r1', $_), qr/42939: channel "tessera_notifications" is reserved/, $_)
  foreach 'NOTIFY tessera_notifications', 'LISTEN tessera_notifications', "SELECT pg_notify('tessera_notifications', 'w01xy')";
like($c->error('r1', "SELECT pg_notify('', 'x')"), qr/22023: channel name cannot be empty/, 'errors are those of the server');
like($c->error('r1', "SELECT pg_notify('jobs', repeat('x', 8000))"), qr/22023: payload string too long/, 'also of what is too long');

#
# triggers
#
$c->query('s1', <<'SQL');
CREATE TABLE job (id int PRIMARY KEY, state text);
CREATE FUNCTION tell_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('jobs', NEW.id || NEW.state); RETURN NULL; END $$;
CREATE TRIGGER tell AFTER INSERT OR UPDATE ON job FOR EACH ROW EXECUTE FUNCTION tell_job();
CREATE TABLE late (id int PRIMARY KEY);
CREATE FUNCTION tell_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('jobs', 'late' || NEW.id); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER tell AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tell_late();
SQL
$c->query('s1', "SELECT tessera.shard_table('$_', 'id', 'hash', chunks => 6)") foreach 'job', 'late';
$c->fetch_routing;
foreach my $name (@nodes)
{
	ok($c->wait_for($name, "SELECT count(*) FROM tessera.chunks WHERE table_name::text IN ('job', 'late')", '12'), "$name knows the chunks");
}
my $id = 0;
foreach my $from ('s1', 'r1')
{
	my $session = $c->session($from, on_error_stop => 0);
	foreach (1 .. 3)
	{
		$id++;
		all_hear($session, "INSERT INTO job VALUES ($id, 'new'); UPDATE job SET state = 'done' WHERE id = $id", "jobs:${id}new jobs:${id}done",
			"$from: a trigger on the shard of $id");
		all_hear($session, "INSERT INTO late VALUES ($id)", "jobs:late$id", 'a deferred one');
	}
	my ($a, $b, $d) = map { ++$id } 1 .. 3;
	is(all_hear($session, "BEGIN; INSERT INTO job VALUES ($a, 'a'); SAVEPOINT s; INSERT INTO job VALUES ($b, 'b'); ROLLBACK TO s; NOTIFY jobs, " .
		"'x'; INSERT INTO job VALUES ($d, 'd'); COMMIT",
		"jobs:${a}a jobs:x jobs:${d}d", 'of several shards in one transaction, in order, without what was rolled back'), '', 'without an error');
	my @ids = map { ++$id } 1 .. 8;
	is(all_hear($session, "BEGIN; " . join('', map { "INSERT INTO late VALUES ($_);" } @ids) . " NOTIFY jobs, 'first'; ROLLBACK", '',
		'nothing of a transaction that was rolled back'), '', 'without an error');
	my $session2 = $c->session($from, on_error_stop => 0);
	$session2->query("BEGIN; " . join('', map { "INSERT INTO late VALUES ($_);" } @ids) . " NOTIFY jobs, 'first'; COMMIT; NOTIFY \"end\", '" .
		++$marks . "'");
	is(join(' ', sort split / /, heard($_)), join(' ', sort 'jobs:first', map { "jobs:late$_" } @ids),
		"$from: deferred triggers of several shards, heard on $_") foreach @nodes;
	is($session2->{stderr}, '', 'that transaction could be prepared');
	$session2->quit;
	$c->query('s1', 'CREATE OR REPLACE FUNCTION tell_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify(\'jobs\', \'late\' || ' .
		'NEW.id); PERFORM 1 / (NEW.id % 1000); RETURN NULL; END $$');
	like(all_hear($session, "INSERT INTO late VALUES (1000)", '', 'nothing of a commit that failed'), qr/division by zero/, 'which says so');
	$session->quit;
}

#
# order, and nothing lost, from several senders
#
my @senders = map { my $n = $_; $c->background($n, join('', map { "SELECT pg_notify('jobs', '$n $_');" } 1 .. 200)) } 's1', 's2', 'r1';
is($c->ended($_), '', 'sent') foreach @senders;
$marks++;
$c->query($_, "SELECT pg_notify('jobs', 'sent by $_')") foreach 's1', 's2', 'r1';
foreach my $name (@nodes)
{
	my ($session, $out) = ($listener{$name}, '');
	my $deadline = time + 60;
	while (time < $deadline && (grep { $out !~ /sent by $_"/ } 's1', 's2', 'r1'))
	{
		$out .= $session->query('SELECT 1 AS poll');
		select(undef, undef, undef, 0.05);
	}
	foreach my $sender ('s1', 's2', 'r1')
	{
		my @numbers = $out =~ /payload "$sender (\d+)"/g;
		is("@numbers", join(' ', 1 .. 200), "$name heard $sender in order, each once");
	}
}

#
# a node that does not answer
#
my @stopped = split /\n/,
	$c->query('s3', "SELECT pid FROM tessera.internal_sessions JOIN pg_stat_activity USING (pid) WHERE query LIKE '%internal_notify%'");
ok(@stopped >= 1, 'the connections over which s3 is told');
kill 'STOP', @stopped;
$marks++;
my $slow = $c->session('r1', on_error_stop => 0);
$slow->query_safe(q{DO $$BEGIN FOR i IN 1 .. 12000 LOOP PERFORM pg_notify('other', 'number ' || i); END LOOP; END$$});
$slow->query_safe("NOTIFY jobs, 'fast'; NOTIFY \"end\", '$marks'");
is(heard($_), 'jobs:fast', "$_ hears at once what s3 cannot be told") foreach 's1', 's2', 'r1';
ok($c->wait_for('r1', "SELECT queued <= 10000 AND dropped > 0 FROM tessera.stat_notifications WHERE node = 's3'", 't'),
	'what does not fit into the queue is dropped and counted');
like(slurp_file($c->node('r1')->logfile), qr/WARNING:\s+notifications for node "s3" are dropped/, 'and told of');
kill 'CONT', @stopped;
ok($c->wait_for('r1', "SELECT queued FROM tessera.stat_notifications WHERE node = 's3'", '0'), 'the rest is passed on when it answers again');
$marks++;
$slow->query_safe("NOTIFY jobs, 'again'; NOTIFY \"end\", '$marks'");
like(heard('s3'), qr/jobs:again$/, 's3 hears what comes then');
$slow->quit;
$c->kill9('s3');
$slow = $c->session('r1', on_error_stop => 0);
$marks++;
$slow->query_safe("NOTIFY jobs, 'without s3'; NOTIFY \"end\", '$marks'");
like(heard($_), qr/jobs:without s3$/, "$_ hears while s3 is down") foreach 's1', 's2', 'r1';
$c->start('s3');
$listener{s3} = $c->session('s3', on_error_stop => 0);
$listener{s3}->query_safe('LISTEN jobs; LISTEN "end"');
ok($c->wait_for('s3', 'SELECT count(*) FROM tessera.stat_notifications WHERE listening', '3'), 's3 is back');
$marks++;
$slow->query_safe("NOTIFY jobs, 'with s3'; NOTIFY \"end\", '$marks'");
like(heard('s3'), qr/jobs:with s3$/, 'and hears again');

#
# a forwarder that is lost, a node that is new
#
my $forwarder = $c->query('r1', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'tessera notification forwarder'");
$c->query('r1', "SELECT pg_terminate_backend($forwarder)");
$marks++;
$slow->query_safe("NOTIFY jobs, 'anew'; NOTIFY \"end\", '$marks'") foreach 1;
# what is notified before the next one listens may be lost
ok($c->wait_for('r1', "SELECT count(*) FROM pg_stat_activity WHERE pid = $forwarder", '0'), 'the forwarder has ended');
ok($c->wait_for('r1', 'SELECT bool_and(listening) FROM tessera.stat_notifications', 't'), 'another one listens');
$marks++;
$slow->query_safe("NOTIFY jobs, 'once more'; NOTIFY \"end\", '$marks'");
like(heard('s1'), qr/jobs:once more$/, 'the forwarder is started again');
$c->start_node('r2');
$c->query('r2', 'CREATE EXTENSION tessera');
$c->add_router('r2');
$listener{r2} = $c->session('r2', on_error_stop => 0);
$listener{r2}->query_safe('LISTEN jobs; LISTEN "end"');
ok($c->wait_for('r1', "SELECT count(*) FROM tessera.stat_notifications WHERE node = 'r2'", '1'), 'r1 knows of the new node');
$marks++;
$slow->query_safe("NOTIFY jobs, 'for r2'; NOTIFY \"end\", '$marks'");
is(heard('r2'), 'jobs:for r2', 'which hears, too');
$_->quit foreach $slow;

done_testing();
