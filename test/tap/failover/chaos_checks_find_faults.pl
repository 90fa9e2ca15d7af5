# The checks of the chaos suite are checked: histories made up with one thing wrong are found by the check of that name, and by no other that has
# nothing to do with it; and a cluster that leaves out one of its safeguards (the gate, the version check, the ownership filter, the fence) is caught,
# while the same scenario with the safeguard finds nothing. See doc/chaos.md.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../../chaos/lib";

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Chaos::Run;

sub names
{
	my %names = map { $_->[0] => 1 } @_;
	return join(', ', sort keys %names);
}

# Made-up histories

my $at = 0;

sub record
{
	my (%record) = @_;
	$at++;
	return { node => 's1', outcome => 'ok', begun => $at, ended => $at + 0.5, %record };
}

sub found
{
	my ($workload, $records, $rows, $wanted, $what) = @_;
	my @findings = $workload->check($records, { s1 => $rows });
	is(names(@findings), $wanted, $what) or diag join("\n", map { "$_->[0]: $_->[1]" } @findings);
	return;
}

my $bank = Chaos::Workload::Bank->new(accounts => 2);
my @transfers = (record(kind => 'transfer', id => 1), record(kind => 'transfer', id => 2, outcome => 'failed', state => '40001'),
	record(kind => 'transfer', id => 3, outcome => 'unknown', state => '08006'));
my %accounts = (acc => [ [ 1, -5 ], [ 2, 5 ] ], entry => [ [ 1, 1, -5 ], [ 2, 1, 5 ] ]);
found($bank, \@transfers, \%accounts, '', 'bank: a right history');
found($bank, \@transfers, { acc => [ [ 1, -12 ], [ 2, 12 ] ], entry => [ @{ $accounts{entry} }, [ 1, 3, -7 ], [ 2, 3, 7 ] ] }, '',
	'bank: an unknown transfer may be there');
found($bank, \@transfers, { %accounts, acc => [ [ 1, -5 ], [ 2, 6 ] ] }, 'bank: balance, bank: total', 'bank: a wrong balance');
found($bank, \@transfers, { acc => [ [ 1, 0 ], [ 2, 0 ] ], entry => [] }, 'bank: transfer', 'bank: a lost transfer');
found($bank, \@transfers, { acc => [ [ 1, -4 ], [ 2, 4 ] ], entry => [ @{ $accounts{entry} }, [ 1, 2, 1 ], [ 2, 2, -1 ] ] }, 'bank: transfer',
	'bank: a failed transfer is there');
found($bank, \@transfers, { acc => [ [ 1, -4 ], [ 2, 5 ] ], entry => [ @{ $accounts{entry} }, [ 1, 3, 1 ] ] }, 'bank: total, bank: transfer',
	'bank: half of an unknown transfer');
found($bank, \@transfers, { %accounts, acc => [ [ 1, -5 ], [ 2, 5 ], [ 2, 5 ] ] }, 'bank: scan, bank: total', 'bank: an account twice');
found($bank, [ @transfers, record(kind => 'scan', rows => [ [ 3, 2, 0 ] ]) ], \%accounts, 'bank: scan', 'bank: a scan that saw a row twice');
found($bank, [ @transfers, record(kind => 'scan', rows => [ [ 2, 2, -5 ] ]) ], \%accounts, 'bank: moment',
	'bank: a scan that saw half of a transfer');
found($bank, [ @transfers, record(kind => 'account', k => 1, rows => [ [ -5, -4 ] ]) ], \%accounts, 'bank: balance',
	'bank: an account that did not fit its entries');
found($bank, [ @transfers, record(kind => 'account', k => 1, rows => []) ], \%accounts, 'bank: row', 'bank: an account that was not found');
found($bank, [ record(kind => 'transfer', id => 1, missing => [2]) ], \%accounts, 'bank: row', 'bank: an update that found nothing');
my $rewrite = record(kind => 'rewrite', id => 4, outcome => 'failed', state => '40001');
found($bank, [ @transfers, $rewrite ], \%accounts, '', 'bank: a rewrite that failed');
found($bank, [ @transfers, $rewrite ], { acc => [ [ 1, -7 ], [ 2, 7 ] ], entry => [ @{ $accounts{entry} }, [ 1, 4, -2 ], [ 2, 4, 2 ] ] },
	'bank: transfer', 'bank: a failed rewrite is there');
found($bank, [ @transfers, record(kind => 'rewrite', id => 5) ],
	{ acc => [ [ 1, -7 ], [ 2, 7 ] ], entry => [ @{ $accounts{entry} }, [ 1, 5, -3 ], [ 2, 5, 3 ] ] }, 'bank: balance',
	'bank: a rewrite that lost another update');
found($bank, [ @transfers, record(kind => 'rewrite', id => 3, missing => [2]) ], \%accounts, 'bank: row, bank: transfer',
	'bank: a rewrite that did not find its account');
sub repeat { return record(kind => 'repeat', k => 1, seen => [@_]) }
found($bank, [ @transfers, repeat(-5, -5, '2 2 0 5', -5, '2 2 0 5') ], \%accounts, '', 'bank: the same twice');
found($bank, [ @transfers, repeat(-5, -5, '2 2 0 5', -4, '2 2 0 5') ], \%accounts, 'bank: repeat', 'bank: an account that changed');
found($bank, [ @transfers, repeat(-5, -5, '2 2 0 5', -5, '2 2 1 5') ], \%accounts, 'bank: repeat', 'bank: accounts that changed');
found($bank, [ @transfers, repeat(-5, -5, '2 2 1 5', -5, '2 2 1 5') ], \%accounts, 'bank: moment', 'bank: half of a transfer, twice');
found($bank, [ @transfers, repeat(-5, -4, '2 2 0 5', -5, '2 2 0 5') ], \%accounts, 'bank: balance',
	'bank: entries of another snapshot than the account');
found($bank, [ @transfers, repeat('', 0, '2 2 0 5', '', '2 2 0 5') ], \%accounts, 'bank: balance, bank: row', 'bank: an account that was not seen');
found($bank, [ @transfers, repeat(-5, -5, '3 2 0 5', -5, '3 2 0 5') ], \%accounts, 'bank: scan', 'bank: a scan that saw a row twice, twice');
found($bank, [ @transfers, record(kind => 'repeat', k => 1, seen => [-5], outcome => 'failed', state => '40001') ], \%accounts, '',
	'bank: a reader that failed');

my $set = Chaos::Workload::Set->new;
my @inserts = (record(kind => 'insert', ids => [1]), record(kind => 'insert', ids => [ 2, 3 ]),
	record(kind => 'insert', ids => [4], outcome => 'failed', state => 'TS001'),
	record(kind => 'insert', ids => [ 5, 6 ], outcome => 'unknown', state => 'CHAOS'));
sub items { return { item => [ map { [$_] } @_ ] } }
found($set, \@inserts, items(1, 2, 3), '', 'set: a right history');
found($set, \@inserts, items(1, 2, 3, 5, 6), '', 'set: unknown rows may be there');
found($set, \@inserts, items(1, 2), 'set: lost', 'set: a lost row');
found($set, \@inserts, items(1, 2, 3, 3), 'set: doubled', 'set: a doubled row');
found($set, \@inserts, items(1, 2, 3, 4), 'set: unacknowledged', 'set: a failed row');
found($set, \@inserts, items(1, 2, 3, 5), 'set: half', 'set: half of a statement');
found($set, [ @inserts, record(kind => 'read', id => 1, rows => [ [0] ]) ], items(1, 2, 3), 'set: lost', 'set: a row that was not seen');
found($set, [ @inserts, record(kind => 'read', id => 1, rows => [ [2] ]) ], items(1, 2, 3), 'set: doubled', 'set: a row that was seen twice');
my @copies = (record(kind => 'copy', ids => [ 1, 2, 3 ]), record(kind => 'copy', ids => [ 4, 5 ], outcome => 'unknown', state => '08006'),
	record(kind => 'copy', ids => [6], outcome => 'failed', state => '53100'));
found($set, \@copies, items(1 .. 3), '', 'set: right copies');
found($set, \@copies, items(1 .. 5), '', 'set: an unknown copy may be there');
found($set, \@copies, items(1, 2), 'set: lost', 'set: a lost row of a copy');
found($set, \@copies, items(1 .. 4), 'set: half', 'set: half of a copy');
found($set, \@copies, items(1 .. 3, 6), 'set: unacknowledged', 'set: a failed copy');

my $counter = Chaos::Workload::Counter->new(counters => 1);
sub increment { return record(kind => 'increment', keys => ['c001'], rows => [ [ 'c001', $_[0] ] ]) }
my @increments = (increment(1), increment(2), record(kind => 'increment', keys => ['c001'], outcome => 'unknown', state => '08006'));
sub counters { return { counter => [ map { [ 'c001', $_ ] } @_ ] } }
found($counter, \@increments, counters($_), '', "counter: a right history, $_") foreach 2, 3;
found($counter, \@increments, counters(1), 'counter: lost', 'counter: a lost increment');
found($counter, \@increments, counters(4), 'counter: doubled', 'counter: one too many');
found($counter, \@increments, counters(2, 2), 'counter: row', 'counter: a row twice');
found($counter, \@increments, counters(), 'counter: row', 'counter: no row');
found($counter, [ increment(1), increment(1) ], counters(2), 'counter: doubled', 'counter: two increments that saw the same');
found($counter, [ increment(1), increment(2), record(kind => 'read', keys => ['c001'], rows => [ [ 'c001', 1 ] ]) ], counters(2), 'counter: stale',
	'counter: a read that went back');
found($counter, [ increment(1), record(kind => 'read', keys => ['c001'], rows => []) ], counters(1), 'counter: row',
	'counter: a read that found nothing');

my $wander = Chaos::Workload::Wander->new(rows => 1);
my @hops = (record(kind => 'hop', id => 1, count => 1), record(kind => 'hop', id => 1, count => 0),
	record(kind => 'hop', id => 1, count => 1, outcome => 'unknown', state => '08006'));
found($wander, \@hops, { wander => [ [ 1, $_ ] ] }, '', "wander: a right history, $_") foreach 1, 2;
found($wander, \@hops, { wander => [] }, 'wander: lost', 'wander: a lost row');
found($wander, \@hops, { wander => [ [ 1, 1 ], [ 1, 2 ] ] }, 'wander: doubled', 'wander: a doubled row');
found($wander, \@hops, { wander => [ [ 1, 0 ] ] }, 'wander: hops', 'wander: a hop that was lost');
found($wander, \@hops, { wander => [ [ 1, 3 ] ] }, 'wander: hops', 'wander: a hop too many');
my @updates = (record(kind => 'update', id => 1, count => 1), record(kind => 'update', id => 1, count => 0),
	record(kind => 'update', id => 1, count => 1, outcome => 'unknown', state => '08006'),
	record(kind => 'update', id => 1, count => 1, outcome => 'failed', state => '40001'), record(kind => 'look', id => 1));
found($wander, \@updates, { wander => [ [ 1, $_ ] ] }, '', "wander: right updates, $_") foreach 1, 2;
found($wander, \@updates, { wander => [ [ 1, $_ ] ] }, 'wander: hops', "wander: updates that were lost or done twice, $_") foreach 0, 3;

my $slate = Chaos::Workload::Slate->new(size => 2);
sub batch { my ($batch, @more) = @_; return record(kind => 'write', batch => $batch, @more) }
sub wipe { return record(kind => 'truncate', @_) }
sub slate { return { slate => [ map { ([ 1, $_ ], [ 2, $_ ]) } @_ ] } }
my @unknown = (outcome => 'unknown', state => '08006');
my @wiped = (batch(1), wipe(), batch(2), batch(3, @unknown), batch(4, outcome => 'failed', state => '40001'),
	wipe(outcome => 'failed', state => '55P03'));
found($slate, \@wiped, slate(2), '', 'slate: a right history');
found($slate, \@wiped, slate(2, 3), '', 'slate: an unknown batch may be there');
found($slate, \@wiped, slate(), 'slate: lost', 'slate: a lost batch');
found($slate, \@wiped, slate(1, 2), 'slate: kept', 'slate: a batch from before');
found($slate, \@wiped, slate(2, 4), 'slate: unacknowledged', 'slate: a failed batch');
found($slate, \@wiped, slate(2, 2), 'slate: doubled', 'slate: a doubled batch');
found($slate, \@wiped, { slate => [ [ 1, 2 ] ] }, 'slate: half', 'slate: half of a batch');
found($slate, [ @wiped, wipe(@unknown) ], slate(@$_), '', 'slate: an unknown TRUNCATE') foreach [], [2];
found($slate, [ batch(1), wipe(@unknown) ], { slate => [ [ 2, 1 ] ] }, 'slate: half', 'slate: half of a TRUNCATE');
found($slate, [ wipe(@unknown), batch(1) ], slate(), '', 'slate: an unknown TRUNCATE may come later');
found($slate, [ { %{ batch(1) }, begun => $at - 1 }, { %{ wipe() }, begun => $at - 1 } ], slate(@$_), '', 'slate: a TRUNCATE beside a batch')
	foreach [], [1];

my $shop = Chaos::Workload::Shop->new;
sub order { my ($id, $number, %other) = @_; return record(kind => 'order', id => $id, article => 1, rows => [ [$number], [$number] ], %other) }
# Of each order: its number, its id, and its lines.
sub shop
{
	my ($taken, $last, @orders) = @_;
	return { orders => [ map { [ @$_[0, 1], 1 ] } grep { defined $_->[1] } @orders ], line => [ map { [ @$_[0, 2] ] } grep { $_->[2] } @orders ],
		stock => [ [ 1, $taken ] ], last => [ [$last] ] };
}
my @orders = (order(10, 1), order(11, 3), order(12, 4, outcome => 'failed', state => '40001'), order(13, 5, @unknown));
my @there = ([ 1, 10, 2 ], [ 3, 11, 2 ]);
found($shop, \@orders, shop(2, 4, @there), '', 'shop: a right history');
found($shop, \@orders, shop(3, 5, @there, [ 5, 13, 2 ]), '', 'shop: an unknown order may be there');
found($shop, \@orders, shop(1, 4, $there[0]), 'shop: lost', 'shop: a lost order');
found($shop, \@orders, shop(3, 4, @there, [ 2, 11, 2 ]), 'shop: doubled', 'shop: a doubled order');
found($shop, \@orders, shop(3, 4, @there, [ 4, 12, 2 ]), 'shop: unacknowledged', 'shop: a failed order is there');
found($shop, \@orders, shop(2, 4, $there[0], [ 3, 11, 1 ]), 'shop: half', 'shop: a line is missing');
found($shop, \@orders, shop(2, 4, @there, [ 5, undef, 2 ]), 'shop: half', 'shop: lines without their order');
found($shop, \@orders, shop(1, 4, @there), 'shop: half', 'shop: a stock that an order did not change');
found($shop, \@orders, shop(2, 2, @there), 'shop: number', 'shop: a sequence that is behind');
found($shop, [ @orders, order(14, 3) ], shop(3, 4, @there, [ 3, 14, 2 ]), 'shop: half, shop: number', 'shop: a number for two');
sub seen { return record(kind => 'read', id => 10, rows => [ [@_] ]) }
found($shop, [ @orders, seen(0, 0) ], shop(2, 4, @there), 'shop: lost', 'shop: an order that was not seen');
found($shop, [ @orders, seen(2, 4) ], shop(2, 4, @there), 'shop: doubled', 'shop: an order seen twice');

my $list = Chaos::Workload::List->new;
sub transaction { my ($outcome, @operations) = @_; return { outcome => $outcome, state => 'x', node => 's1', missing => [],
	operations => \@operations } }
sub add { return [ 'append', @_ ] }
sub look { my ($k, @ids) = @_; return [ 'read', $k, \@ids ] }
sub lists { my (%lists) = @_; return { list => [ map { [ $_, '{' . join(',', @{ $lists{$_} }) . '}' ] } sort keys %lists ] } }
my @history = (transaction('ok', add(1, 10), add(2, 11)), transaction('ok', look(1, 10), add(1, 12)), transaction('failed', add(1, 13)),
	transaction('unknown', add(1, 14), add(2, 15)));
found($list, \@history, lists(1 => [ 10, 12 ], 2 => [11]), '', 'list: a right history');
found($list, \@history, lists(1 => [ 10, 12, 14 ], 2 => [ 11, 15 ]), '', 'list: an unknown transaction may be there');
found($list, \@history, lists(1 => [10], 2 => [11]), 'list: lost', 'list: a lost append');
found($list, \@history, lists(1 => [ 10, 12, 12 ], 2 => [11]), 'list: doubled', 'list: a doubled append');
found($list, \@history, lists(1 => [ 10, 12, 13 ], 2 => [11]), 'list: G1a', 'list: an append of a failed transaction');
found($list, \@history, lists(1 => [ 10, 12, 14 ], 2 => [11]), 'list: half', 'list: half of a transaction');
found($list, [ @history, transaction('ok', look(1, 10, 13)) ], lists(1 => [ 10, 12 ], 2 => [11]), 'list: G1a, list: order',
	'list: a read of an aborted append');
found($list, [ @history, transaction('ok', look(1, 12)) ], lists(1 => [ 10, 12 ], 2 => [11]), 'list: order', 'list: a read that is no beginning');
found($list, [ @history, transaction('ok', add(2, 16), look(2, 11)) ], lists(1 => [ 10, 12 ], 2 => [ 11, 16 ]), 'list: own',
	'list: an own append not seen');
found($list, [ transaction('ok', add(1, 10), add(1, 11)), transaction('ok', look(1, 10)) ], lists(1 => [ 10, 11 ]),
	'list: G-single, list: G1b, list: fractured',
	'list: an intermediate read');
found($list, [ transaction('ok', add(1, 10), add(2, 20)), transaction('ok', add(1, 11), add(2, 21)) ], lists(1 => [ 10, 11 ], 2 => [ 21, 20 ]),
	'list: G0', 'list: a cycle of writes');
found($list, [ transaction('ok', add(1, 10), look(2, 20)), transaction('ok', look(1, 10), add(2, 20)) ], lists(1 => [10], 2 => [20]), 'list: G1c',
	'list: a cycle of writes and reads');
found($list, [ transaction('ok', add(1, 10), look(3)), transaction('ok', look(1, 10), add(2, 20)), transaction('ok', look(2, 20), add(3, 30)),
	transaction('ok', look(3, 30), add(1, 11)) ],
	lists(1 => [ 10, 11 ], 2 => [20], 3 => [30]), '', 'list: a cycle with an rw that READ COMMITTED allows');
found($list, [ transaction('ok', add(1, 10), look(4, 40)), transaction('ok', look(1, 10), add(2, 20)), transaction('ok', look(2, 20), add(3, 30)),
	transaction('ok', look(3, 30), add(4, 40)) ],
	lists(1 => [10], 2 => [20], 3 => [30], 4 => [40]), 'list: G1c', 'list: a long cycle');

found($list, [ transaction('ok', add(1, 10), add(2, 20)), { %{ transaction('ok', look(1), look(2, 20)) }, level => 'REPEATABLE READ' } ],
	lists(1 => [10], 2 => [20]), 'list: G-single, list: fractured', 'list: half of a transaction was read at REPEATABLE READ');

is(Chaos::Schedule->new(seed => 5, round => 2, seconds => 20, nodes => [qw(s1 s2 s3)], tables => $bank->tables, faults => \@Chaos::Run::FAULTS)->text,
	Chaos::Schedule->new(seed => 5, round => 2, seconds => 20, nodes => [qw(s1 s2 s3)], tables => $bank->tables,
	faults => \@Chaos::Run::FAULTS)->text,
	'the seed gives the schedule');

# A cluster without a safeguard

# Only the workloads of the scenarios below have tables.
my $run = Chaos::Run->new(seed => 1, name => 'checks', faults => [], hurry => 1, balancer => 0, pause => 0.02,
	weights => { bank => 1, counter => 1, set => 1 }, directory => PostgreSQL::Test::Utils::tempdir(),
	settings => { 'tessera.registry_refresh_interval' => '1h', 'tessera.orphan_cleanup_delay' => '1500ms' });
$run->start;
my $cluster = $run->cluster;

# Waits, however slow the machine is, until clients have done so many pieces of work that began only now and that $matches accepts.
my @clients;

sub await_work
{
	my ($n, $what, $matches) = @_;
	my $since = time;
	my $done = 0;
	while ($done < $n && time < $since + 120)
	{
		sleep 0.05;
		$done = grep { $_->{begun} >= $since && $_->{outcome} eq 'ok' && $matches->($_) } map { $_->records } @clients;
	}
	cmp_ok($done, '>=', $n, "meanwhile: $what");
	return;
}

# A move in the background, paused at a point of a node.
my $said;
sub paused_move
{
	my ($sql, $node, $point) = @_;
	$cluster->pause_at($node, $point);
	$said = '';
	my $move = IPC::Run::start([ 'psql', '-Xq', '-d', $cluster->client_conninfo('s1'), '-c', $sql ], '<', \undef, '>', '/dev/null', '2>', \$said);
	ok($cluster->paused_at($node, $point, 60), "a move is at $point") or do { $move->pump_nb; diag "the move says: $said" };
	return $move;
}

sub move_sql
{
	my ($table, $to, $verify) = @_;
	return "SELECT tessera.move_range('$table', tessera.minkey(), tessera.maxkey(), '$to', verify => " . ($verify // 'true') . ')';
}

# A move, held for a moment when the recipient has everything and the donor does not know: who writes then on the donor writes in vain. The donor
# shall not give the attempt up meanwhile. Not verified: verification by content is a second safeguard, and would often end the move first.
sub without_gate
{
	my ($arm) = @_;
	$cluster->query('s1', move_sql('counter', 's1'));
	$cluster->query('s1', $_) foreach ('ALTER SYSTEM SET tessera.critical_section_budget = 10000', 'SELECT pg_reload_conf()');
	$arm->();
	my $move = paused_move(move_sql('counter', 's2', 'false'), 's2', 'recipient_confirmed');
	sleep 0.7;	# clock: so long is written in vain; the checks that follow look at what was written
	$cluster->go_on('s2', 'recipient_confirmed');
	$move->finish;
	$cluster->query('s1', $_) foreach ('ALTER SYSTEM RESET tessera.critical_section_budget', 'SELECT pg_reload_conf()');
	sleep 0.3;	# clock: writes go on
	return;
}

# Chunks move from s1 to s2; s3, who has not heard of it, goes on writing to s1.
sub without_version_check
{
	my ($arm) = @_;
	my @keys = (1, 1000, 77777, 123456);
	$cluster->query('s1', "SELECT tessera.move_chunk('item', $_, 's1')") foreach @keys;
	await_work(5, 's3 learns where the chunks are', sub { $_[0]->{ids} && $_[0]->{node} eq 's3' });
	$arm->();
	$cluster->query('s1', "SELECT tessera.move_chunk('item', $_, 's2')") foreach @keys;
	await_work(20, 's3 writes', sub { $_[0]->{ids} && $_[0]->{node} eq 's3' });
	return;
}

# Rows that were given up lie about for a while.
sub without_ownership_filter
{
	my ($arm) = @_;
	$cluster->query('s1', move_sql('acc', 's1'));
	$arm->();
	$cluster->query('s1', "SELECT tessera_test.injection_set('range_deleter_batch', 'pause', NULL)");
	$cluster->query('s1', "SELECT tessera.move_range('acc', 100, 200, 's2')");
	await_work(5, 'scans', sub { $_[0]->{kind} eq 'scan' });
	$cluster->query('s1', "SELECT tessera_test.injection_clear('range_deleter_batch')");
	$cluster->query('s1', "SELECT tessera.move_range('acc', 100, 200, 's1')");
	return;
}

# The commit of a move hangs on the config node; the donor crashes, comes back, and has the migration fenced. Then the commit goes on.
sub without_fence
{
	my ($arm) = @_;
	$cluster->query('s1', move_sql('counter', 's2'));
	$arm->();
	my $move = paused_move(move_sql('counter', 's3'), 's2', 'config_commit');
	my $session = $cluster->session('s1', on_error_stop => 0);
	$session->query('BEGIN');
	$session->query('SELECT FROM tessera.table_group FOR UPDATE');
	$cluster->go_on('s2', 'config_commit');
	ok($cluster->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%internal_commit_move%' AND wait_event_type = 'Lock'", '1',
		20),
		'the commit waits on the config node');
	$cluster->kill9('s2');
	$cluster->start('s2');
	ok($cluster->wait_for('s2', 'SELECT count(*) FROM tessera.migration_coordinator', '0', 30), 'the donor has settled the migration');
	$session->query('COMMIT');
	$session->quit;
	ok($cluster->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%internal_commit_move%' AND state = 'active' AND pid <> " .
		"pg_backend_pid()", '0', 20),
		'the commit has ended');
	$move->finish;
	# check_consistency passes over what has just been moved.
	ok($cluster->wait_for('s1', "SELECT count(*) FROM tessera.migration WHERE finished > clock_timestamp() - interval '5 s'", '0', 20),
		'some time ago');
	return;
}

# A safeguard; the workload that runs beside (none: the cluster's own judgement is asked); the check that must find it; the scenario.
my @scenarios = (
	[ 'ownership_filter', 'bank', 'bank: scan', \&without_ownership_filter ],
	[ 'gate', 'counter', 'counter: lost', \&without_gate ],
	[ 'version_check', 'set', 'set: lost', \&without_version_check ],
	[ 'fence', undef, 'consistency: 2', \&without_fence ]);
my $turn = 0;

# What clients see and the checks say, of a scenario with or without its safeguard.
sub play
{
	my ($skip, $workload, $scenario, $skipped) = @_;
	my $arm = sub { $skipped and $cluster->query($_, "SELECT tessera_test.injection_set('$skip', 'skip', NULL)") foreach $cluster->names };
	$run->{weights} = { $workload => 1 } if $workload;
	@clients = $workload ? $run->start_clients(++$turn) : ();
	await_work(5, 'clients work', sub { 1 }) if $workload;
	$scenario->($arm);
	my @findings = $run->end_workers($run->{records}, @clients);
	$cluster->go_on($_) foreach $cluster->names;
	# Without its fence the cluster is at odds with itself: then nobody waits until it is quiet. With all safeguards that is asked once, at the end,
	# of all scenarios together.
	push @findings, $workload ? $run->check_work : $skipped ? Chaos::Quiet::consistency($cluster) : $run->checks;
	return @findings;
}

foreach my $skipped (0, 1)
{
	foreach my $scenario (@scenarios)
	{
		my ($skip, $workload, $wanted, $body) = @$scenario;
		my @findings = play($skip, $workload, $body, $skipped);
		my $texts = join("\n", map { "$_->[0]: $_->[1]" } @findings);
		if ($skipped)
		{
			ok(scalar(grep { $_->[0] eq $wanted } @findings), "without its $skip: caught by $wanted") or diag $texts;
			note("without its $skip: " . names(@findings));
		}
		else
		{
			is($texts, '', "with its $skip: nothing is found");
		}
	}
}
$run->quit;
done_testing();
