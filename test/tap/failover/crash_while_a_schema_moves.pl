# A schema moves, and its donor, its recipient or the config node is killed in the middle: before the decision it stays, after it it has moved, and
# between the move and its sequences these go on giving out values, none of them twice (S41, S60 to S63). Afterwards nothing is stuck or left.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('schema_crash', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.gate_timeout' => 60000, 'tessera.sequence_reserve' => 0 });
# s1 is the config node; the schema goes between s2 and s3.
$c->create(shards => 3, before_add => sub { $c->query('s1', <<'END') });
CREATE SCHEMA app;
CREATE TABLE app.acc (k int PRIMARY KEY, bal bigint NOT NULL DEFAULT 0);
CREATE TABLE app.entry (id serial PRIMARY KEY, k int NOT NULL REFERENCES app.acc);
INSERT INTO app.acc SELECT g FROM generate_series(1, 500) g;
END
my $written = 0;

sub home { return $c->query('s1', "SELECT shard FROM tessera.schemas WHERE schema = 'app'"); }

# Writes from each node, which wait for what is being settled.
sub write_all
{
	my ($what) = @_;
	foreach my $node ($c->names)
	{
		my ($status, undef, $stderr) = $c->psql($node, 'INSERT INTO app.entry (k) SELECT g FROM generate_series(1, 10) g');
		is($status, 0, "$what: $node writes") or diag $stderr;
		$written += 10 if $status == 0;
	}
	return;
}

sub all_well
{
	my ($what) = @_;
	$c->is_settled($what);
	write_all($what);
	is($c->query($_, 'SELECT (SELECT count(*) FROM app.acc), count(*), count(DISTINCT id) FROM app.entry'), "500|$written|$written",
		"$what: all rows from $_") foreach $c->names;
	ok($c->wait_for('s1', "SELECT shard = sequences_on FROM tessera.schemas WHERE schema = 'app'", 't'), "$what: the sequences are there, too");
	write_all("$what, once more");
	return;
}

$c->query('s1', "SELECT tessera.move_schema('app', 's2')");
all_well('a move');

# Who is killed, where it stops, whether the move is decided.
foreach my $case (
	[ 'donor', 'donor_cloned', 0 ], [ 'donor', 'donor_readers_wait', 0 ], [ 'donor', 'config_committed', 1 ],
	[ 'recipient', 'recipient_confirmed', undef ], [ 'config', 'config_deciding', undef ])
{
	my ($role, $point, $committed) = @$case;
	my $from = home();
	my $to = $from eq 's2' ? 's3' : 's2';
	my $node = { donor => $from, recipient => $to, config => 's1' }->{$role};
	my $what = "the $role killed at $point";
	$c->pause_at($node, $point);
	my $run = $c->background($node eq 's3' ? 's1' : 's3', "SELECT tessera.move_schema('app', '$to')");
	$c->is_paused_at($node, $point);
	$c->kill9($node);
	$c->start($node);
	$c->ended($run);
	ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migrations WHERE state = 'running'", 0), "$what: the migration ends");
	is(home(), $committed ? $to : $from, "$what: where the schema is") if defined $committed;
	all_well($what);
}

# Between the decision and the sequences: the old home gives out values until it is fenced; then they wait, and come from the new one.
foreach my $point ([ 's1', 'sequences_follow' ], [ 's1', 'sequences_change_home' ])
{
	my ($node, $name) = @$point;
	my $to = home() eq 's2' ? 's3' : 's2';
	my $old = home();
	$c->pause_at($node, $name);
	$c->query('s3', "SELECT tessera.move_schema('app', '$to')");
	$c->is_paused_at($node, $name);
	is($c->query('s1', "SELECT shard, sequences_on FROM tessera.schemas WHERE schema = 'app'"), "$to|$old", "$name: the sequences are still there");
	write_all("$name, before the fence") if $name eq 'sequences_follow';
	my $writer = $c->background('s2', 'INSERT INTO app.entry (k) SELECT 1 + g % 500 FROM generate_series(1, 3000) g');
	$c->kill9('s1');
	$c->start('s1');
	is($c->ended($writer), '', "$name: who draws meanwhile gets values");
	$written += 3000;
	all_well("s1 killed at $name");
}

# Without a crash: what is drawn between the fence and the change of the home comes from the new one, so nothing comes twice.
my $next = home() eq 's2' ? 's3' : 's2';
$c->pause_at('s1', 'sequences_change_home');
$c->query('s3', "SELECT tessera.move_schema('app', '$next')");
$c->is_paused_at('s1', 'sequences_change_home');
my @drawing = map { $c->background($_, 'INSERT INTO app.entry (k) SELECT 1 + g % 500 FROM generate_series(1, 3000) g') } $c->names;
ok($c->wait_for($_, "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'INSERT INTO app.entry%' AND pid <> pg_backend_pid()", 't'),
	"$_ draws") foreach $c->names;
$c->go_on('s1');
is($c->ended($_), '', 'who draws meanwhile waits') foreach @drawing;
$written += 3000 * @drawing;
all_well('drawn meanwhile');

# Either home is killed when it has done its part.
foreach my $point ('sequences_given', 'sequences_taken')
{
	my $to = home() eq 's2' ? 's3' : 's2';
	my $node = $point eq 'sequences_given' ? home() : $to;
	$c->pause_at($node, $point);
	$c->query('s1', "SELECT tessera.move_schema('app', '$to')");
	$c->is_paused_at($node, $point);
	$c->kill9($node);
	$c->start($node);
	all_well("killed at $point");
}
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), 0, 'all is consistent');
$c->node($_)->stop foreach $c->names;
done_testing();
