# What carried out an outcome is not lost when it is acknowledged: a recipient that crashes right after the end of a move, before its WAL writer has
# come by; a donor whose standby is promoted with a coordinator row of a move that is long over. And who waited for a move through a restart can be
# cancelled afterwards.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;
use CrashCluster;

crash_cluster('kept', 's2', 's3');

sub sound
{
	my ($name, $owner) = @_;
	my @findings = (check_clean(), check_rows());
	my $now = owner();
	push @findings, "the owner is $now" if $now ne $owner;
	is(join("\n", @findings), '', $name);
	return;
}

# A move in the background, paused at a point of the donor: (the caller's session, donor, recipient).
sub move_paused
{
	my ($point) = @_;
	my $donor = owner();
	my $recipient = $donor eq $pair[0] ? $pair[1] : $pair[0];
	my $session = $c->session('s1', on_error_stop => 0);
	$c->pause_at($donor, $point);
	$session->query_until(qr/begun/, "\\echo begun\nSELECT tessera.move_range('acc', $RANGE_MIN, $RANGE_MAX, '$recipient');\n");
	$c->paused_at($donor, $point, 30) or fail "$point is reached";
	return ($session, $donor, $recipient);
}

foreach my $node (@pair)
{
	$c->query($node, "ALTER SYSTEM SET wal_writer_delay = '10s'");
	$c->query($node, 'SELECT pg_reload_conf()');
}

# The recipient was told the outcome twice: the second time it is durable.
my ($session, $donor, $recipient) = move_paused('config_commit');
my $worker = $c->query($recipient, 'SELECT pid FROM tessera.stat_progress_migration');
# else its own refresh would do it, sooner or later
kill 'STOP', $worker;
$c->pause_at($donor, 'donor_forgotten');
$c->go_on($donor, 'config_commit');
$c->paused_at($donor, 'donor_forgotten', 30) or fail 'the move is over';
$c->kill9($recipient);
$c->go_on($donor);
$c->start($recipient);
$session->quit;
sound('a recipient that crashes when the move is over', $recipient);

# The donor restarts while its caller waits; the answer is the config node's. Then the session is as it was.
($session, $donor, $recipient) = move_paused('config_committed');
$c->kill9($donor);
$c->start($donor);
like($session->query("SELECT 'moved'"), qr/^[0-9a-f-]{36}$/m, 'the caller is told through the restart');
$session->{stderr} = '';
$session->query("SET statement_timeout = '300ms'");
$session->query('SELECT pg_sleep(5)');
like($session->{stderr}, qr/statement timeout/, 'its session can be cancelled');
like($session->query("SELECT 'alive'"), qr/alive/, 'and goes on');
$session->quit;
sound('the donor restarts', $recipient);

# The donor's standby has the coordinator row, but not the end.
$donor = owner();
$c->add_standby($donor);
($session, $donor, $recipient) = move_paused('config_committed');
$c->catch_up($donor);
$c->cut_standby($donor);
$c->go_on($donor);
like($session->query("SELECT 'moved'"), qr/^[0-9a-f-]{36}$/m, 'the move ends');
$session->quit;
$c->wait_for($donor, 'SELECT count(*) FROM tessera.migration_coordinator', '0', 30) or fail 'the donor forgets the migration';
$c->promote($donor, lossy => 1);
sound('a promoted donor that knows of the migration, but not of its end', $recipient);

# The same, but the standby knows that it was registered and nothing else, and nobody has acknowledged it.
$donor = owner();
$c->add_standby($donor);
($session, $donor, $recipient) = move_paused('donor_registered');
$c->catch_up($donor);
$c->cut_standby($donor);
$c->pause_at($donor, 'donor_cleaning');
$c->go_on($donor, 'donor_registered');
$c->paused_at($donor, 'donor_cleaning', 30) or fail 'the move is committed';
$c->promote($donor, lossy => 1);
$session->quit;
sound('a promoted donor that only knows that the migration was registered', $recipient);

done_testing();
