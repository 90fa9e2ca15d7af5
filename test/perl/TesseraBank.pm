
=head1 NAME

TesseraBank - a bank over three shards, its transfers, and readers that add it up, for TAP tests

=head1 SYNOPSIS

  my $bank = TesseraBank->new($cluster);
  $bank->begin_writers;
  my $counts = $bank->read(times => 25);
  $bank->is_right($counts, 'while money moves');
  $bank->end_writers;
  $bank->is_whole('at the end');

=head1 DESCRIPTION

Money moves between accounts and is neither made nor lost, so that whatever adds up all accounts must come to the same sum: a reader that sees half of
a transfer is wrong. The cluster has the shards s1 to s3. Readers are statements of many kinds (C<%READERS>), each with its own judge.

=cut

package TesseraBank;

use strict;
use warnings FATAL => 'all';

use Carp;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More ();
use Time::HiRes qw(sleep time);

my $ACCOUNTS = 300;
my $EACH = 1000;
my $TOTAL = $ACCOUNTS * $EACH;

# Writers. The accounts 1 to 100 are on s1, to 200 on s2, to 300 on s3. No two of them take the locks of rows in different orders, so that there is no
# deadlock over shards: what changes several rows at once has rows of its own for each writer, :n is its number (0 to 7).
my $LOW = '\set i random(0, 1)' . "\n" . '\set j random(:i + 1, 2)' . "\n";
my $TWO = $LOW . '\set a 100 * :i + 10 * random(0, 9) + random(7, 10)' . "\n" . '\set b 100 * :j + 10 * random(0, 9) + random(7, 10)' . "\n"
	. '\set d random(1, 50)' . "\n";
our %WRITERS = (
	transfer => "${TWO}BEGIN;\nUPDATE acc SET bal = bal - :d WHERE k = :a;\nUPDATE acc SET bal = bal + :d WHERE k = :b;\nCOMMIT;\n",
	# one statement, two shards
	pair => "$LOW\\set a 100 * :i + 10 * :n + random(3, 4)\n\\set b 100 * :j + 10 * :n + random(3, 4)\n" .
		"UPDATE acc SET bal = bal + CASE k WHEN :a THEN -7 ELSE 7 END WHERE k IN (:a, :b);\n",
	# one statement, all shards
	wave => "UPDATE acc SET bal = bal + CASE (k - 1) % 10 WHEN 0 THEN -3 ELSE 3 END WHERE (k - 1) % 10 < 2 AND (k - 1) / 10 % 8 = :n;\n",
	# writes on one shard, and has read another
	one_phase => "\\set a 10 * random(0, 29) + 5\n\\set b random(1, 300)\nBEGIN;\nSELECT bal FROM acc WHERE k = :b;\n" .
		"UPDATE acc SET bal = bal - 2 WHERE k = :a;\nUPDATE acc SET bal = bal + 2 WHERE k = :a + 1;\nCOMMIT;\n",
	# two transactions of one shard each, one after the other: nobody sees the second without the first
	chain => "UPDATE chain SET n = n + 1 WHERE k = :n + CASE :n % 2 WHEN 0 THEN 1 ELSE 201 END;\n" .
		"UPDATE chain SET n = n + 1 WHERE k = :n + CASE :n % 2 WHEN 0 THEN 201 ELSE 1 END;\n",
	insert_select => "\\set r random(0, 2)\nBEGIN;\nINSERT INTO purse SELECT k, 1 FROM pot WHERE k % 8 = :n AND k % 3 = :r " .
		"ON CONFLICT (k) DO UPDATE SET amount = purse.amount + excluded.amount;\n" .
		"UPDATE pot SET bal = bal - 1 WHERE k % 8 = :n AND k % 3 = :r;\nCOMMIT;\n",
	savepoints => "${TWO}BEGIN;\nSAVEPOINT one;\nUPDATE acc SET bal = bal - 1000 WHERE k = :a;\nUPDATE acc SET bal = bal + 999 WHERE k = :b;\n" .
		"ROLLBACK TO one;\nSAVEPOINT two;\nUPDATE acc SET bal = bal - :d WHERE k = :a;\nRELEASE two;\nSAVEPOINT three;\n" .
		"UPDATE acc SET bal = bal + :d WHERE k = :b;\nRELEASE three;\nCOMMIT;\n",
	function => "${TWO}SELECT transfer(:a, :b, :d);\n");

# Readers. sql: one check, # is its number; prepare: once in a session; judge: a name of %JUDGES; may_retry: 40001 is no error.
my $SUM = 'SELECT sum(bal) FROM acc';
my $ROWS = "SELECT md5(string_agg(k || ' ' || bal, ',' ORDER BY k)) FROM acc";
my $BOTH = 'SELECT (SELECT sum(bal) FROM pot) + (SELECT sum(amount) FROM purse)';
my $CHAIN = "SELECT $TOTAL + count(*) FROM (SELECT pair, sum(CASE WHEN first THEN n ELSE -n END) AS ahead FROM chain GROUP BY pair) c " .
	'WHERE ahead NOT IN (0, 1)';
my $REPEAT = "$SUM;\n$ROWS;\n$BOTH;\n$CHAIN;\n$SUM;\n$ROWS;\n$BOTH;";

sub _in { my ($level, $sql) = @_; return "BEGIN ISOLATION LEVEL $level;\n$sql\nCOMMIT;" }
sub _fetches { return join("\n", map { 'FETCH 50 FROM c;' } 1 .. 7) }
our %READERS = (
	sum => { sql => "$SUM;" },
	groups => { sql => 'SELECT sum(s) FROM (SELECT k % 7 AS g, sum(bal) AS s FROM acc GROUP BY 1) x;' },
	join => { sql => 'SELECT sum(a.bal) FROM acc a JOIN holder h ON h.k = a.k;' },
	semijoin => { sql => 'SELECT sum(bal) FROM acc WHERE k IN (SELECT k FROM holder WHERE k > 0);' },
	far_join => { sql => "SELECT ((sum(a.bal) + sum(b.bal)) / 2)::numeric(9) FROM acc a JOIN acc b ON b.k = 301 - a.k;" },
	two_scans => { sql => "SELECT $TOTAL + ($SUM) - ($SUM);" },
	union => { sql => 'SELECT sum(b) FROM (SELECT bal AS b FROM acc WHERE k <= 150 UNION ALL SELECT bal FROM acc WHERE k > 150) x;' },
	sorted => { sql => 'SELECT sum(b) FROM (SELECT bal AS b FROM acc ORDER BY bal OFFSET 0) x;' },
	two_tables => { sql => "$BOTH;" },
	joined_tables => { sql => 'SELECT sum(p.bal + u.amount) FROM pot p JOIN purse u ON u.k = p.k;' },
	chain => { sql => "$CHAIN;" },
	rr => { sql => _in('REPEATABLE READ', $REPEAT), judge => 'repeat', may_retry => 1 },
	rr_late => { sql => _in('REPEATABLE READ', "SELECT $TOTAL + 0 * bal FROM acc WHERE k = 50;\n$REPEAT"), judge => 'repeat', may_retry => 1 },
	serializable => { sql => _in('SERIALIZABLE', $REPEAT), judge => 'repeat', may_retry => 1 },
	plpgsql => { sql => 'SELECT bank_sum();' },
	plpgsql_stable => { sql => 'SELECT bank_sum_stable();' },
	plpgsql_loop => { sql => 'SELECT bank_loop();' },
	plpgsql_rr => { sql => _in('REPEATABLE READ', "SELECT bank_sum();\nSELECT bank_loop();\n$ROWS;\nSELECT bank_sum_stable();\n$ROWS;"),
		judge => 'repeat', may_retry => 1 },
	cursor => { sql => "BEGIN;\nDECLARE c CURSOR FOR SELECT k, bal FROM acc;\n" . _fetches() . "\nCOMMIT;", judge => 'rows' },
	cursor_hold => { sql => "BEGIN;\nDECLARE c CURSOR WITH HOLD FOR SELECT k, bal FROM acc;\nFETCH 50 FROM c;\nCOMMIT;\n" . _fetches() . "\nCLOSE c;",
		judge => 'rows' },
	cursor_rr => { sql => _in('REPEATABLE READ', "DECLARE c CURSOR FOR SELECT k, bal FROM acc;\n" . _fetches()), judge => 'rows', may_retry => 1 },
	copy_query => { sql => 'COPY (SELECT k, bal FROM acc) TO STDOUT;', judge => 'rows' },
	copy_table => { sql => 'COPY acc (k, bal) TO STDOUT;', judge => 'rows' },
	generic_plan => { prepare => "PREPARE g (int) AS SELECT sum(bal) FROM acc WHERE k > \$1;",
		sql => "SET plan_cache_mode = force_generic_plan;\nEXECUTE g (0);\nRESET plan_cache_mode;" },
	custom_plan => { prepare => "PREPARE f (int) AS SELECT sum(bal) FROM acc WHERE k > \$1;",
		sql => "SET plan_cache_mode = force_custom_plan;\nEXECUTE f (0);\nRESET plan_cache_mode;" },
	insert_select => { sql => "INSERT INTO log SELECT #, sum(bal) FROM acc RETURNING total;" },
	create_as => { sql => "CREATE TEMP TABLE made AS SELECT sum(bal) AS total FROM acc;\nSELECT total FROM made;\nDROP TABLE made;" },
	select_into => { sql => "SELECT k, bal INTO TEMP made FROM acc;\nSELECT sum(bal) FROM made;\nDROP TABLE made;" });

# What is wrong about the lines of a check; '' if nothing.
my %JUDGES = (
	total => sub {
		return @_ && !(grep { $_ ne $TOTAL } @_) ? '' : "sum @_";
	},
	repeat => sub {
		my @sums = grep { /^-?\d+(\.\d+)?$/ } @_;
		my %rows = map { $_ => 1 } grep { /^[0-9a-f]{32}$/ } @_;
		return "sums @sums" if !@sums || grep { $_ ne $TOTAL } @sums;
		return keys %rows == 1 ? '' : 'the rows have changed';
	},
	rows => sub {
		my ($sum, %seen) = (0);
		foreach my $line (@_)
		{
			my ($k, $bal) = split /[|\t]/, $line;
			return "line $line" unless defined $bal && $bal =~ /^-?\d+$/;
			$seen{$k}++;
			$sum += $bal;
		}
		return $sum == $TOTAL && keys %seen == $ACCOUNTS && @_ == $ACCOUNTS ? '' : @_ . " rows of " . keys(%seen) . " accounts, sum $sum";
	});

=pod

=head1 METHODS

=head2 new(cluster)

Makes the tables: acc, a third of it on each shard, and what the others need.

=cut

sub new
{
	my ($class, $cluster) = @_;
	my $self = bless { cluster => $cluster, writers => [], number => 0 }, $class;
	$cluster->query('s1', $_) foreach (
		'CREATE TABLE acc (k int PRIMARY KEY, bal bigint NOT NULL)',
		'CREATE TABLE holder (k int PRIMARY KEY, name text)',
		'CREATE TABLE pot (k int PRIMARY KEY, bal bigint NOT NULL)',
		'CREATE TABLE purse (k int PRIMARY KEY, amount bigint NOT NULL)',
		'CREATE TABLE chain (k int PRIMARY KEY, pair int NOT NULL, first boolean NOT NULL, n bigint NOT NULL)',
		'CREATE TABLE log (id bigint PRIMARY KEY, total bigint)',
		"SELECT tessera.shard_table('acc', 'k')",
		(map { "SELECT tessera.shard_table('$_', 'k', colocate_with => 'acc')" } 'holder', 'pot', 'purse', 'chain'),
		"SELECT tessera.shard_table('log', 'id', strategy => 'hash')",
		"INSERT INTO acc SELECT g, $EACH FROM generate_series(1, $ACCOUNTS) g",
		"INSERT INTO holder SELECT g, 'holder ' || g FROM generate_series(1, $ACCOUNTS) g",
		"INSERT INTO pot SELECT g, $EACH FROM generate_series(1, $ACCOUNTS) g",
		"INSERT INTO purse SELECT g, 0 FROM generate_series(1, $ACCOUNTS) g",
		"INSERT INTO chain SELECT g + h, g, (g % 2 = 0) = (h = 1), 0 FROM generate_series(0, 7) g, (VALUES (1), (201)) v (h)",
		"SELECT tessera.move_range('acc', 101, 201, 's2')",
		"SELECT tessera.move_range('acc', 201, tessera.maxkey(), 's3')",
		'CREATE FUNCTION transfer(a int, b int, d int) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
			BEGIN
				UPDATE acc SET bal = bal - d WHERE k = a;
				UPDATE acc SET bal = bal + d + 1 WHERE k = b;
				PERFORM 1 / 0;
			EXCEPTION WHEN division_by_zero THEN NULL;
			END;
			UPDATE acc SET bal = bal - d WHERE k = a;
			UPDATE acc SET bal = bal + d WHERE k = b;
		END $$',
		'CREATE FUNCTION bank_sum() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT sum(bal) FROM acc); END $$',
		'CREATE FUNCTION bank_sum_stable() RETURNS bigint STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT sum(bal) FROM acc); END $$',
		'CREATE FUNCTION bank_loop() RETURNS bigint LANGUAGE plpgsql AS $$
		DECLARE r record; s bigint := 0;
		BEGIN
			FOR r IN SELECT k, bal FROM acc LOOP s := s + r.bal; END LOOP;
			RETURN s;
		END $$');
	return $self;
}

sub total { return $TOTAL }

=pod

=head2 begin_writers(nodes => [...], writers => 8, weights => {name => n}, rate => n)

Starts so many writing clients, in turn on each of the nodes; C<weights> of C<%WRITERS>, by default all alike. C<rate>: transactions a second of each.

=head2 end_writers()

Tests that all of them still write, and ends them.

=cut

sub begin_writers
{
	my ($self, %params) = @_;
	my @nodes = @{ $params{nodes} // [ $self->{cluster}->names ] };
	my %weights = %{ $params{weights} // { map { $_ => 1 } keys %WRITERS } };
	foreach my $n (0 .. ($params{writers} // 8) - 1)
	{
		push @{ $self->{writers} }, $self->{cluster}->pgbench_start(nodes => [ $nodes[ $n % @nodes ] ], clients => 1, seconds => 3600,
			max_tries => 50, scripts => { map { ($WRITERS{$_} => $weights{$_}) } keys %weights }, variables => { n => $n }, rate => $params{rate});
	}
	return;
}

sub end_writers
{
	my ($self, $what) = @_;
	my @writers = splice @{ $self->{writers} };
	my @ended = grep { !$_->running } @writers;
	Test::More::ok(!@ended, ($what // 'writers') . ': all of them still write');
	foreach my $writer (@writers)
	{
		my $sums = $writer->stop;
		Test::More::diag($sums->{errors}) if grep { $_ == $writer } @ended;
	}
	return;
}

=pod

=head2 read(times => n, nodes => [...], readers => [...])

Each of the nodes runs each of the readers (default: all of C<%READERS>) so many times, all nodes at a time. Returns {reader => {checks, wrong,
retries, errors, first}}.

=cut

sub read
{
	my ($self, %params) = @_;
	my $cluster = $self->{cluster};
	my @readers = @{ $params{readers} // [ sort keys %READERS ] };
	my (%counts, @runs);
	foreach my $node (@{ $params{nodes} // [ $cluster->names ] })
	{
		my $script = "SET client_min_messages = error;\n";
		$script .= ($READERS{$_}{prepare} // '') . "\n" foreach @readers;
		foreach my $round (1 .. $params{times})
		{
			foreach my $reader (@readers)
			{
				$self->{number}++;
				$script .= "\\echo \@$reader\n" . ($READERS{$reader}{sql} =~ s/#/$self->{number}/r) . "\n";
			}
		}
		my %run = (node => $node, script => $script, out => '');
		$run{handle} = IPC::Run::start(
			[ 'stdbuf', '-oL', 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=never', '-d', $cluster->conninfo($node) ],
			'<', \$run{script}, '&>', \$run{out}, IPC::Run::timeout(300));
		push @runs, \%run;
	}
	foreach my $run (@runs)
	{
		$run->{handle}->finish;
		_count(\%counts, $run);
	}
	return \%counts;
}

sub _count
{
	my ($counts, $run) = @_;
	my (undef, @blocks) = split /^@/m, $run->{out};
	foreach my $block (@blocks)
	{
		my ($reader, @lines) = split /\n/, $block;
		my $count = $counts->{$reader} //= { checks => 0, wrong => 0, retries => 0, errors => 0 };
		my ($error) = grep { /(ERROR|FATAL|PANIC):|server closed/ } @lines;
		my $wrong = $error ? '' : $JUDGES{ $READERS{$reader}{judge} // 'total' }->(@lines);
		$count->{checks}++;
		if ($error && $READERS{$reader}{may_retry} && $error =~ /ERROR:  40001/) { $count->{retries}++; next; }
		$count->{errors}++ if $error;
		$count->{wrong}++ if $wrong ne '';
		$count->{first} //= "$run->{node}: " . ($error // $wrong) if $error || $wrong ne '';
	}
	return;
}

=pod

=head2 is_right(counts, what, least)

Tests, for each reader, that nothing was wrong, and that there were at least C<least> checks (1).

=cut

sub is_right
{
	my ($self, $counts, $what, $least) = @_;
	my %all = (checks => 0, wrong => 0);
	foreach my $reader (sort keys %$counts)
	{
		my $count = $counts->{$reader};
		my $text = "$what: $reader, $count->{checks} checks" . ($count->{retries} ? ", $count->{retries} to be retried" : '');
		Test::More::is("$count->{wrong} wrong, $count->{errors} errors", '0 wrong, 0 errors', $text)
			or Test::More::diag($count->{first});
		Test::More::cmp_ok($count->{checks} - $count->{retries}, '>=', ($least // 1) / ($READERS{$reader}{may_retry} ? 2 : 1),
			"$what: $reader, enough of them");
		$all{$_} += $count->{$_} foreach keys %all;
	}
	Test::More::note("$what: $all{checks} checks, $all{wrong} wrong");
	return;
}

=pod

=head2 dump_is_right(node, what, options...)

Tests that pg_dump of the whole database, with these options, writes the accounts as of one moment.

=cut

sub dump_is_right
{
	my ($self, $node, $what, @options) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my ($text, $errors) = ('', '');
	my $done = IPC::Run::run([ 'pg_dump', '-Fd', '-f', "$folder/dump", @options, '-d', $self->{cluster}->conninfo($node) ], '<', \undef,
			'2>', \$errors, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default))
		&& IPC::Run::run([ 'pg_restore', '-f', '-', "$folder/dump" ], '<', \undef, '>', \$text,
			'2>', \$errors, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	Test::More::ok($done, "$what: pg_dump @options of $node") or Test::More::diag($errors);
	return unless $done;
	my %rows = map { $_ => [ $text =~ /^COPY public\.$_ .*?;\n(.*?)^\\\.$/ms ? split(/\n/, $1) : () ] } 'acc', 'pot', 'purse', 'chain';
	my @moved = map { s/^(\d+)\t/$1 /r =~ s/ /\t/r } @{ $rows{pot} };
	my %purse = map { split /\t/ } @{ $rows{purse} };
	my %ahead;
	foreach my $row (@{ $rows{chain} })
	{
		my (undef, $pair, $first, $n) = split /\t/, $row;
		$ahead{$pair} += $first eq 't' ? $n : -$n;
	}
	Test::More::is($JUDGES{rows}->(@{ $rows{acc} }), '', "$what: one sum in pg_dump @options of $node");
	Test::More::is($JUDGES{rows}->(map { my ($k, $bal) = split /\t/; "$k\t" . ($bal + ($purse{$k} // 0)) } @moved), '',
		"$what: two tables of one moment in pg_dump @options of $node");
	Test::More::is(join(' ', grep { $_ != 0 && $_ != 1 } values %ahead), '',
		"$what: nothing without what came before it in pg_dump @options of $node");
	return;
}

=pod

=head2 is_whole(what)

Tests, when nobody writes, that no money was made or lost, from every node.

=cut

sub is_whole
{
	my ($self, $what) = @_;
	foreach my $node ($self->{cluster}->names)
	{
		Test::More::ok($self->{cluster}->wait_for($node, "$SUM; $BOTH; $CHAIN", "$TOTAL\n$TOTAL\n$TOTAL", 30),
			"$what: no money made or lost, by $node");
		Test::More::is($self->{cluster}->query($node, "SELECT count(*) FROM log WHERE total <> $TOTAL"), '0', "$what: nor noted, by $node");
	}
	return;
}

1;
