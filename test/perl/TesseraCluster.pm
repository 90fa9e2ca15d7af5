
=head1 NAME

TesseraCluster - a tessera cluster of several PostgreSQL servers, for TAP tests

=head1 SYNOPSIS

  use PostgreSQL::Test::Utils;
  use Test::More;
  use TesseraCluster;

  my $c = TesseraCluster->new('moves');
  $c->create(shards => 2, routers => 1);     # servers s1, s2, r1; s1 is the config node
  $c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v text)');
  $c->plain->safe_psql('postgres', 'CREATE TABLE t (k int PRIMARY KEY, v text)');

  my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], script => '...', seconds => 10);
  $c->query('s1', "SELECT tessera.move_range('t', 0, 100, 's2')");
  my $result = $load->wait(60);              # {processed => N, failed => N, ...}

  my ($same, $detail) = $c->same_everywhere('SELECT * FROM t');
  ok($same, 'every node shows the same rows') or diag $detail;
  done_testing();

=head1 DESCRIPTION

Each node is a server of its own (PostgreSQL::Test::Cluster) on a unix socket and on 127.0.0.1 over tcp; the nodes reach each other by tcp, with trust
authentication, as the superuser C<postgres>, whoever runs the test, in the database C<postgres>. No call waits without a deadline: waits end after
$PostgreSQL::Test::Utils::timeout_default seconds (PG_TEST_TIMEOUT_DEFAULT) unless told otherwise. Servers stop at the end of the test;
what kill9 left of a server is cleaned up as well.

=cut

package TesseraCluster;

use strict;
use warnings FATAL => 'all';

use Carp;
use IPC::Run ();
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use PsqlPool;
use ServerTemplate;
use Test::More ();
use Time::HiRes qw(sleep time);

# Settings of a node; new(settings => {...}) and start_node(settings => {...}) override them.
our %SETTINGS = (
	shared_preload_libraries => 'tessera',
	wal_level => 'logical',
	max_prepared_transactions => 50,
	max_replication_slots => 20,
	max_wal_senders => 20,
	max_worker_processes => 40,
	# rounds come when a test asks for them, or when shards come or go; only tests that name an interval have the balancer even out
	'tessera.balancer_interval' => 3600,
	'tessera.balancer_window' => '00:00-00:00',
	# what a session that waits for a move is told comes by the clock
	'tessera.move_progress_interval' => 0,
	# On a machine with as many tests at once as there are here 50 ms are too short now and then, and the next attempt comes only seconds later; with
	# much more than 100 ms it comes so late after a pause that a test makes.
	'tessera.critical_section_budget' => 100,
	# who does not answer in time may mean 40001 later
	'tessera.snapshot_timeout' => '20s',
	max_connections => 100,
	shared_buffers => '32MB',
	max_wal_size => '1GB',
	fsync => 'off',
	# joins of tables without statistics are taken for so much work that compiling them takes longer than all else; operations/settings_of_each_node
	# has it done on one node
	jit => 'off',
	log_statement => 'none',
	log_replication_commands => 'off',
	dynamic_shared_memory_type => 'mmap');

# Not the name of the OS user, which may be that of a role in a test.
$ENV{PGUSER} = 'postgres';

# All that were made here.
my @servers;

# What this test has cost, said at its end.
my %cost = (statements => 0, polls => 0);

# System V segments of servers that kill9 ended and that were not started again, by data directory.
my %killed;

# Processes that stand still, by the name of their server.
my %frozen;

=pod

=head1 METHODS

=head2 new(name, settings => {...})

A cluster without servers. C<settings> hold for each node started later. C<name> is part of the names of the servers.

=cut

sub new
{
	my ($class, $name, %params) = @_;
	my $self = {
		name => $name,
		settings => $params{settings} // {},
		nodes => {},    # name => PostgreSQL::Test::Cluster
		order => [],    # names, in the order of their start
		standbys => {},    # name => PostgreSQL::Test::Cluster
		replaced => {},    # name => [ servers that were primaries ]
		plain => undef
	};
	return bless $self, $class;
}

sub _conf
{
	my ($server, %settings) = @_;
	# a standby that comes late finds the WAL, whatever checkpoints there were
	my $conf = "listen_addresses = '127.0.0.1'\nwal_keep_size = '128MB'\nwal_init_zero = off\n";
	foreach my $setting (sort keys %settings)
	{
		my $value = $settings{$setting};
		next unless defined $value;
		$value =~ s/'/''/g;
		$conf .= "$setting = '$value'\n";
	}
	$server->append_conf('postgresql.conf', $conf);
	return;
}

=pod

=head2 start_node(name, settings => {...}, start => 1, extension => 0)

A new server for a node; it is in no cluster yet. With C<extension> runs CREATE EXTENSION. Returns the PostgreSQL::Test::Cluster object.

=cut

sub start_node
{
	my ($self, $name, %params) = @_;
	croak "node $name exists" if $self->{nodes}{$name};
	my $server = PostgreSQL::Test::Cluster->new("$self->{name}_$name");
	ServerTemplate::init($server, extension => $params{extension});
	my %settings = (%{ $self->{settings} }, %{ $params{settings} // {} });
	$settings{'tessera.balancer_window'} //= '' if exists $settings{'tessera.balancer_interval'};
	_conf($server, %SETTINGS, %settings);
	push @servers, $server;
	$self->{nodes}{$name} = $server;
	push @{ $self->{order} }, $name;
	if ($params{start} // 1)
	{
		$server->start;
		$self->query($name, 'CREATE EXTENSION IF NOT EXISTS tessera') if $params{extension};
	}
	return $server;
}

=pod

=head2 start_nodes(name, ...)

start_node for each, without the extension: what the other side of add_shard needs.

=cut

sub start_nodes
{
	my ($self, @names) = @_;
	$self->start_node($_) foreach @names;
	return;
}

# Starts servers of start_node(start => 0), all at once.
sub start_new
{
	my ($self, @names) = @_;
	my @runs;
	foreach my $name (@names)
	{
		my $server = $self->node($name);
		local %ENV = $server->_get_env(PGAPPNAME => undef);
		my @command = ('pg_ctl', '-w', '-D', $server->data_dir, '-l', $server->logfile, '-o', '--cluster-name=' . $server->name, 'start');
		push @runs, [ $server, IPC::Run::start(\@command, '<', \undef, '>', '/dev/null', '2>', '/dev/null') ];
	}
	foreach my $run (@runs)
	{
		my ($server, $handle) = @$run;
		$handle->finish or croak $server->name . " does not start:\n" . slurp_file($server->logfile);
		$server->_update_pid(1);
	}
	return;
}

=pod

=head2 create(shards => N, routers => N, cluster => 'c', before_add => sub {...})

Starts servers s1 to sN and r1 to rN as far as they do not run yet, makes s1 the config node and first shard, and adds the others. If the cluster's
settings turn injection points on, s1 has the extension tessera_test, and the others get it when they join. C<before_add> is called with the cluster
after create_cluster and before the first add_shard: there a test makes tables that existed before the cluster grew.

=cut

sub create
{
	my ($self, %params) = @_;
	my $shards = $params{shards} // 1;
	my $routers = $params{routers} // 0;
	my @shards = map { "s$_" } 1 .. $shards;
	my @routers = map { "r$_" } 1 .. $routers;

	my @new = grep { !$self->{nodes}{$_} } @shards, @routers;
	$self->start_node($_, extension => 1, start => 0) foreach @new;
	$self->start_new(@new);
	$self->query($_, 'CREATE EXTENSION IF NOT EXISTS tessera') foreach @shards, @routers;
	$self->query('s1', 'CREATE EXTENSION IF NOT EXISTS tessera_test') if ($self->{settings}{'tessera.injection_points'} // '') eq 'on';
	$self->query('s1', sprintf("SELECT tessera.create_cluster(%s, %s, shard => 's1')", quote($params{cluster} // 'c'), quote($self->conninfo('s1'))));
	$params{before_add}->($self) if $params{before_add};
	$self->add_shard($_) foreach @shards[ 1 .. $#shards ];
	$self->add_router($_) foreach @routers;
	return $self;
}

=pod

=head2 add_shard(name), add_router(name)

Adds a node, whose server must run, through s1.

=cut

sub add_shard
{
	my ($self, $name) = @_;
	return $self->query('s1', sprintf('SELECT tessera.add_shard(%s, %s)', quote($name), quote($self->conninfo($name))));
}

sub add_router
{
	my ($self, $name) = @_;
	return $self->query('s1', sprintf('SELECT tessera.add_router(%s, %s)', quote($name), quote($self->conninfo($name))));
}

=pod

=head2 node(name), names(), conninfo(name, dbname)

The server of a node; the names of all, in the order of their start; how other nodes reach it (tcp).

=cut

sub node
{
	my ($self, $name) = @_;
	return $self->{nodes}{$name} // croak "no node $name";
}

sub names
{
	my ($self) = @_;
	return @{ $self->{order} };
}

sub conninfo
{
	my ($self, $name, $dbname) = @_;
	return _conninfo($self->node($name), $dbname);
}

sub _conninfo
{
	my ($server, $dbname) = @_;
	return sprintf("host=127.0.0.1 port=%d dbname=%s user=%s", $server->port, $dbname // 'postgres', user());
}

=pod

=head2 add_standby(name, register => 1)

A streaming standby of a node, which has caught up; one for each node at a time. With C<register> (default) the node's address from now on names both
servers, with target_session_attrs=read-write, by update_node through the node itself. Returns the standby's PostgreSQL::Test::Cluster object.

=cut

my $standby_number = 0;

sub add_standby
{
	my ($self, $name, %params) = @_;
	my $primary = $self->node($name);
	my $number = ++$standby_number;
	my $standby = PostgreSQL::Test::Cluster->new("$self->{name}_${name}_standby$number");

	croak "node $name has a standby" if $self->{standbys}{$name};
	$primary->backup("backup$number", backup_options => [ '--checkpoint=fast', '--no-sync' ]);
	$standby->init_from_backup($primary, "backup$number", has_streaming => 1);
	$standby->start;
	push @servers, $standby;
	$self->{standbys}{$name} = $standby;
	$self->catch_up($name);
	$self->query($name, sprintf('SELECT tessera.update_node(%s, %s)', quote($name), quote($self->conninfo_of_all($name))))
	  if $params{register} // 1;
	return $standby;
}

=pod

=head2 standby(name), conninfo_of_all(name), catch_up(name)

The standby of a node; an address of both; waits until the standby has replayed all that is committed on the node by now.

=cut

sub standby
{
	my ($self, $name) = @_;
	return $self->{standbys}{$name} // croak "node $name has no standby";
}

sub conninfo_of_all
{
	my ($self, $name) = @_;
	my @servers = ($self->node($name), $self->standby($name));
	return sprintf("host=%s port=%s dbname=postgres user=%s target_session_attrs=read-write connect_timeout=5",
		join(',', map { '127.0.0.1' } @servers),
		join(',', map { $_->port } @servers), user());
}

sub catch_up
{
	my ($self, $name) = @_;
	$self->node($name)->wait_for_catchup($self->standby($name), 'replay', $self->query($name, 'SELECT pg_current_wal_flush_lsn()'));
	return;
}

=pod

=head2 cut_standby(name)

The standby no longer gets anything from its primary: what is committed from now on is missing on it. It replays what it has.

=cut

sub cut_standby
{
	my ($self, $name) = @_;
	my $standby = $self->standby($name);
	$standby->append_conf('postgresql.conf', "primary_conninfo = ''\n");
	$standby->reload;
	$standby->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_wal_receiver')
	  or croak "the standby of node $name still receives";
	return;
}

=pod

=head2 promote(name, lossy => 0, stop => 'immediate', tell => undef)

The failover of a node: its primary is stopped for good and its standby promoted; from now on the name means the promoted server. Without C<lossy> the
standby catches up first; with it, it is expected to have been cut off. C<stop> is the primary's end: a mode of stop(), 'kill9', or undef if it does
not run any more. C<tell> names a node on which update_node(..., force => true) is run then.

=cut

sub promote
{
	my ($self, $name, %params) = @_;
	my $standby = $self->standby($name);
	my $conninfo = $self->conninfo_of_all($name);
	my $stop = exists $params{stop} ? $params{stop} : 'immediate';

	$self->catch_up($name) unless $params{lossy};
	if (defined $stop)
	{
		$stop eq 'kill9' ? $self->kill9($name) : $self->stop($name, $stop);
	}
	push @{ $self->{replaced}{$name} }, $self->node($name);
	$self->{nodes}{$name} = $standby;
	delete $self->{standbys}{$name};
	$standby->promote;
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or croak "the standby of node $name was not promoted";
	$self->query($params{tell}, sprintf('SELECT tessera.update_node(%s, %s, force => true)', quote($name), quote($conninfo))) if $params{tell};
	return $standby;
}

=pod

=head2 replaced(name)

The servers that a node had before it was promoted, oldest first.

=cut

sub replaced
{
	my ($self, $name) = @_;
	return @{ $self->{replaced}{$name} // [] };
}

=pod

=head2 user(), quote(text)

Functions: name of the superuser; an SQL literal.

=cut

sub user
{
	return 'postgres';
}

sub quote
{
	my ($text) = @_;
	my $escape = $text =~ /\\/ ? 'E' : '';
	$text =~ s/\\/\\\\/g;
	$text =~ s/'/''/g;
	return "$escape'$text'";
}

=pod

=head2 long(), some_of(turn, values)

Functions: whether this is make test-long, which goes through all; of several values all then, else one, another one each turn.

=cut

sub long
{
	return ($ENV{TESSERA_SIZE} // '') eq 'long';
}

sub some_of
{
	my ($turn, @values) = @_;
	return long() ? @values : $values[ $turn % @values ];
}

=pod

=head2 psql(name, sql, dbname => 'postgres', timeout => seconds)

Runs SQL on a node and never dies: (exit status as psql's: 0 or 3 for an error, stdout, stderr).

=cut

sub psql
{
	my ($self, $name, $sql, %params) = @_;
	return _psql($self->node($name), $sql, %params);
}

sub _psql
{
	my ($server, $sql, %params) = @_;
	$cost{statements}++;
	my ($status, $stdout, $stderr) = PsqlPool::run(
		$server->connstr($params{dbname} // 'postgres'), $sql,
		options => [ '-v', 'VERBOSITY=verbose' ],
		stop => 1,
		timeout => $params{timeout} // $PostgreSQL::Test::Utils::timeout_default);
	return (124, $stdout, $stderr . 'psql timed out') unless defined $status;
	croak "psql ended by a signal: $stderr" if $status & 127;
	return ($status >> 8, $stdout, $stderr);
}

=pod

=head2 query(name, sql, ...), query_all(sql), error(name, sql, ...)

C<query> returns what psql prints (unaligned), or dies with the error. C<query_all> runs the same on each node and returns the list, in the order of
names(). C<error> expects an error and returns it, with its SQLSTATE (C<ERROR:  40001: ...>); dies if there is none.

=cut

sub query
{
	my ($self, $name, $sql, %params) = @_;
	my ($status, $stdout, $stderr) = $self->psql($name, $sql, %params);
	croak "on $name: $sql\n$stderr" if $status != 0;
	return $stdout;
}

sub query_all
{
	my ($self, $sql, %params) = @_;
	return map { $self->query($_, $sql, %params) } $self->names;
}

sub error
{
	my ($self, $name, $sql, %params) = @_;
	my ($status, $stdout, $stderr) = $self->psql($name, $sql, %params);
	croak "on $name: no error: $sql" if $status == 0;
	return $stderr;
}

=pod

=head2 answers(name, query, ...), plain_answers(query, ...)

What each of these statements, which leave nothing behind, prints on a node, or on plain: all in one session, which costs far less than C<query> for
each. Dies with the first error.

=cut

sub answers
{
	my ($self, $name, @queries) = @_;
	return _answers_in_turn($self->node($name), @queries);
}

sub plain_answers
{
	my ($self, @queries) = @_;
	return _answers_in_turn($self->plain, @queries);
}

sub _answers_in_turn
{
	my ($server, @queries) = @_;
	my ($status, $stdout, $stderr) = _psql($server, join '', map { "$queries[$_];\n\\echo === END $_ ===\n" } 0 .. $#queries);
	croak 'on ' . $server->name . ": $stderr" if $status != 0;
	my @answers = split /^=== END \d+ ===(?:\n|\z)/m, $stdout, -1;
	pop @answers;
	chomp @answers;
	@answers == @queries or croak 'not an answer for each query';
	return @answers;
}

=pod

=head2 same_answers(what, [query, ...], [name, ...], any_order => 0)

Tests that each of the queries has the same answer, line by line, on each of the nodes as on plain (C<answers>); with C<any_order> the same lines.

=cut

sub same_answers
{
	my ($self, $what, $queries, $names, %params) = @_;
	my $form = $params{any_order} ? sub { join "\n", sort split /\n/, $_[0], -1 } : sub { $_[0] };
	my @expected = map { $form->($_) } $self->plain_answers(@$queries);
	foreach my $name (@$names)
	{
		my @got = map { $form->($_) } $self->answers($name, @$queries);
		Test::More::is($got[$_], $expected[$_], "$what, $name: $queries->[$_]") foreach 0 .. $#$queries;
	}
	return;
}

=pod

=head2 error_of(server, sql)

The errors of statements, with SQLSTATEs, on a server that is no node of the cluster: a PostgreSQL::Test::Cluster. '' if there are none.

=cut

sub error_of
{
	my ($self, $server, $sql) = @_;
	my ($status, $stdout, $stderr) = $server->psql('postgres', $sql, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

=pod

=head2 make_table([from, to, shard], ...)

The table t (k, v), sharded by its key, with the keys 1 to 1000 and the value 'old', on s1; then ranges of it are moved.

=cut

sub make_table
{
	my ($self, @moves) = @_;
	$self->query('s1', $_) foreach (
		'CREATE TABLE t (k int PRIMARY KEY, v text)',
		"SELECT tessera.shard_table('t', 'k')",
		"INSERT INTO t SELECT g, 'old' FROM generate_series(1, 1000) g",
		map { "SELECT tessera.move_range('t', $_->[0], $_->[1], '$_->[2]')" } @moves);
	return;
}

=pod

=head2 make_thirds(name, columns, values)

A sharded table with the keys 1 to 300: to 100 on s1, to 200 on s2, above on s3. C<columns> stand behind the key, C<values> (of g, the key) in them.

=cut

sub make_thirds
{
	my ($self, $name, $columns, $values) = @_;
	$self->query('s1', $_) foreach (
		"CREATE TABLE $name (k int PRIMARY KEY, $columns)", "SELECT tessera.shard_table('$name', 'k')",
		"INSERT INTO $name SELECT g, $values FROM generate_series(1, 300) g",
		"SELECT tessera.move_range('$name', 101, 201, 's2')", "SELECT tessera.move_range('$name', 201, tessera.maxkey(), 's3')");
	return;
}

=pod

=head2 wait_for(name, sql, expected, timeout)

Asks until the answer is C<expected> (a string, default 't', or a qr//). Errors count as another answer: the node may be down. Returns true; after
C<timeout> seconds (at least the default) false, with the last answer as a diagnostic.

=cut

sub wait_for
{
	my ($self, $name, $sql, $expected, $timeout) = @_;
	$expected //= 't';
	# what comes in a second on a quiet machine may take a minute on a busy one
	$timeout = max($timeout // 0, $PostgreSQL::Test::Utils::timeout_default);
	my ($came, $answer) = PsqlPool::ask(
		$self->node($name)->connstr('postgres'), $sql,
		sub { return ref $expected ? $_[0] =~ $expected : $_[0] eq $expected },
		options => [ '-v', 'VERBOSITY=verbose' ],
		timeout => $timeout,
		interval => 0.05,
		asked => sub { $cost{polls}++; $cost{statements}++ });
	return 1 if $came;
	Test::More::diag("on $name: $sql\nexpected: $expected\nlast answer: $answer");
	return 0;
}

=pod

=head2 process_ends(pid)

Waits until there is no such process any more. False if there still is after the default timeout.

=cut

sub process_ends
{
	my ($self, $pid) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while (kill 0, $pid)
	{
		return 0 if time >= $deadline;
		sleep 0.02;
	}
	return 1;
}

=pod

=head2 stop(name, mode), start(name), restart(name), kill9(name), kill_backend(name, pid)

C<mode> is fast, immediate or smart. C<kill9> ends the postmaster and all its children by SIGKILL at once, as a crash of the machine would, and
returns when they are gone, so that the server can be started again. C<kill_backend> ends one process by SIGKILL; the server then restarts only with
C<restart_after_crash>, which PostgreSQL::Test::Cluster turns off.

=cut

sub stop
{
	my ($self, $name, $mode) = @_;
	return $self->node($name)->stop($mode // 'fast');
}

sub start
{
	my ($self, $name, %params) = @_;
	my $server = $self->node($name);
	my $started = $server->start(%params);
	delete $killed{ $server->data_dir } if $started;
	return $started;
}

sub restart
{
	my ($self, $name) = @_;
	return $self->node($name)->restart;
}

sub _children
{
	my ($parent) = @_;
	my @children;
	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open(my $stat, '<', $file) or next;
		my $line = <$stat> // '';
		close $stat;
		push @children, $1 if $line =~ /^(\d+) \(.*\) \S (\d+) / && $2 == $parent;
	}
	return @children;
}

sub kill9
{
	my ($self, $name) = @_;
	my $server = $self->node($name);
	my $postmaster = $server->{_pid} // croak "node $name does not run";
	my @lock_files = ($server->data_dir . '/postmaster.pid', $server->host . '/.s.PGSQL.' . $server->port . '.lock');

	# Nothing new is forked once the postmaster stands still.
	kill 'STOP', $postmaster;
	my @processes = ($postmaster, _children($postmaster));
	kill 'KILL', @processes;
	$server->{_pid} = undef;
	$killed{ $server->data_dir } = _segment($lock_files[0]);

	my $deadline = time + 30;
	while (grep { _alive($_) } @processes)
	{
		croak "node $name survives SIGKILL" if time >= $deadline;
		sleep 0.01;
	}

	# Where nobody collects the dead soon, the lock files would seem to belong to a process that lives.
	unlink @lock_files if kill 0, $postmaster;
	return;
}

# System V segment that a server's lock file names.
sub _segment
{
	my ($lock_file) = @_;
	my @lines = split /\n/, slurp_file($lock_file);
	return ($lines[6] // '') =~ /^\s*\d+\s+(\d+)/ ? $1 : undef;
}

# A process that was not waited for by its parent is dead, too.
sub _alive
{
	my ($pid) = @_;
	open(my $stat, '<', "/proc/$pid/stat") or return 0;
	my $line = <$stat> // '';
	close $stat;
	return $line =~ /^\d+ \(.*\) ([A-Z])/ && $1 ne 'Z' && $1 ne 'X';
}

=pod

=head2 await_end(name)

Waits until a server has ended by itself, after the crash of one of its processes; it can be started again then.

=cut

sub await_end
{
	my ($self, $name) = @_;
	my $server = $self->node($name);
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while ($server->{_pid} && _alive($server->{_pid}))
	{
		croak "node $name goes on" if time > $deadline;
		sleep 0.02;
	}
	$server->{_pid} = undef;
	return;
}

=pod

=head2 freeze(name), thaw(name)

All processes of a server stand still, or go on; at the end of the test they do in any case.

=cut

sub freeze
{
	my ($self, $name) = @_;
	my $postmaster = $self->node($name)->{_pid} // croak "node $name does not run";
	kill 'STOP', $postmaster;
	$frozen{$name} = [ $postmaster, _children($postmaster) ];
	kill 'STOP', @{ $frozen{$name} };
	return;
}

sub thaw
{
	my ($self, $name) = @_;
	kill 'CONT', reverse @{ delete $frozen{$name} // [] };
	return;
}

sub kill_backend
{
	my ($self, $name, $pid) = @_;
	kill('KILL', $pid) == 1 or croak "no process $pid on $name";
	return;
}

# A test that is told to end stops its servers, too.
$SIG{TERM} = $SIG{INT} = sub { exit 143 };

# The servers end together; what does not end within some seconds is left to PostgreSQL::Test::Cluster. The System V segment of a server that was
# killed and not started again has no other owner.
END
{
	my $exit_code = $?;
	Test::More::note(sprintf('cost: %d servers, %d statements, %d of them polls', scalar @servers, @cost{qw(statements polls)}));
	kill 'CONT', map { @$_ } values %frozen;
	my @running = grep { $_->{_pid} && kill('QUIT', $_->{_pid}) } @servers;
	my $deadline = time + 10;
	while (@running && time < $deadline)
	{
		$_->{_pid} = undef foreach grep { !_alive($_->{_pid}) } @running;
		@running = grep { $_->{_pid} } @running;
		sleep 0.01;
	}
	foreach my $segment (grep { defined } values %killed)
	{
		IPC::Run::run([ 'ipcrm', '-m', $segment ], '<', '/dev/null', '>', '/dev/null', '2>', '/dev/null');
	}
	$? = $exit_code;
}

=pod

=head2 plain(), plain_query(sql), same_everywhere(sql, nodes => [...]), same_as_plain(name, sql)

C<plain> is a PostgreSQL server without the extension (started at the first call): what it answers is right. C<same_everywhere> runs a query on plain
and on each node and compares the sorted lines: (true) or (false, what differs). C<ordered> => 1 compares without sorting.

=cut

sub plain
{
	my ($self) = @_;
	if (!$self->{plain})
	{
		my $server = PostgreSQL::Test::Cluster->new("$self->{name}_plain");
		ServerTemplate::init($server);
		_conf($server, shared_buffers => '32MB', max_connections => 50, jit => 'off', log_statement => 'none', dynamic_shared_memory_type => 'mmap');
		$server->start;
		push @servers, $server;
		$self->{plain} = $server;
	}
	return $self->{plain};
}

sub plain_query
{
	my ($self, $sql, %params) = @_;
	my ($status, $stdout, $stderr) = _psql($self->plain, $sql, %params);
	croak "on plain: $sql\n$stderr" if $status != 0;
	return $stdout;
}

=pod

=head2 everywhere(sql, via => name)

Runs a statement on plain and through one node of the cluster (default the first): how tests fill both alike.

=cut

sub everywhere
{
	my ($self, $sql, %params) = @_;
	$self->plain_query($sql);
	return $self->query($params{via} // $self->{order}[0], $sql);
}

sub same_everywhere
{
	my ($self, $sql, %params) = @_;
	my $form = $params{ordered} ? sub { $_[0] } : sub { join "\n", sort split /\n/, $_[0], -1 };
	my $expected = $form->($self->plain_query($sql));
	my @differences;
	foreach my $name (@{ $params{nodes} // [ $self->names ] })
	{
		my ($status, $stdout, $stderr) = $self->psql($name, $sql);
		if ($status != 0)
		{
			push @differences, "$name: $stderr";
		}
		elsif ($form->($stdout) ne $expected)
		{
			push @differences, "$name differs from plain:\n" . _difference($expected, $form->($stdout));
		}
	}
	return (!@differences, @differences ? "$sql\n" . join("\n", @differences) : '');
}

# The first lines that only one of two texts has.
sub _difference
{
	my ($expected, $found) = @_;
	my (%count, @lines);
	$count{$_}++ foreach split /\n/, $expected, -1;
	$count{$_}-- foreach split /\n/, $found, -1;
	foreach my $line (sort grep { $count{$_} != 0 } keys %count)
	{
		push @lines, ($count{$line} > 0 ? "  missing: " : "  too many: ") . $line .
			(abs $count{$line} > 1 ? " (" . abs($count{$line}) . " times)" : '');
		last if @lines >= 20;
	}
	return @lines ? join("\n", @lines) : '  the same lines in another order';
}

=pod

=head2 script_differs(name, script, refused)

Runs the statements of a script (list) one by one, each in a session of its own, on plain and on a node, and returns how many answers differ: rows (as
a set where nothing orders them) and SQLSTATEs; the first of them are diagnosed. C<refused> (list) are statements that the node must refuse with
0A000; plain does not run them.

=cut

sub _answer
{
	my ($conninfo, $sql) = @_;
	my (undef, $out, $err) = PsqlPool::run(
		$conninfo, "SET client_min_messages = warning; SET timezone = 'UTC';\n$sql",
		options => [ '-v', 'VERBOSITY=sqlstate', '-P', 'null=NULL' ],
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	my @lines = split /\n/, $out, -1;
	(my $last = $sql) =~ s/^SET [^;]*;//;
	@lines = sort @lines unless $last =~ /ORDER BY [^()]*$|BEGIN|;/;
	$err =~ s/^psql:.*?: //mg;
	return join("\n", @lines, $err);
}

sub script_differs
{
	my ($self, $name, $script, $refused) = @_;
	my %refused = map { $_ => 1 } @{ $refused // [] };
	my $plain = $self->plain->connstr('postgres');
	my $differ = 0;
	foreach my $sql (@$script)
	{
		my $expected = $refused{$sql} ? '' : _answer($plain, $sql);
		my $got = _answer($self->conninfo($name), $sql);
		next if $refused{$sql} ? $got =~ /0A000/ : $got eq $expected;
		Test::More::diag("from $name: $sql\n--- plain\n$expected\n--- cluster\n$got\n") if ++$differ <= 8;
	}
	return $differ;
}

=pod

=head2 table_differs(name, script, refused, encoding => ...)

The same for long tables of statements, fast: all in one session, each in a transaction that is rolled back; its lines are compared as a set. An entry
may be several statements. With C<encoding> the client's is that, and the statements are bytes of it.

=cut

sub _answers
{
	my ($conninfo, $script, %params) = @_;
	my $text = "SET client_min_messages = warning; SET timezone = 'UTC';\n";
	$text .= "\\echo == $_\nBEGIN;\n$script->[$_];\nROLLBACK;\nDEALLOCATE ALL;\n" foreach 0 .. $#$script;
	my $out = '';
	local $ENV{PGCLIENTENCODING} = $params{encoding} // 'UTF8';
	# Rows and errors in the order in which they came.
	IPC::Run::run(
		[ 'stdbuf', '-oL', 'psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-v', 'SHOW_CONTEXT=never', '-P', 'null=NULL', '-d', $conninfo ],
		'<', \$text, '&>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my @answers;
	foreach my $block (split /^== /m, $out)
	{
		next unless $block =~ s/^(\d+)\n//;
		$answers[$1] = join "\n", sort map { s/^psql:.*?: //r } split /\n/, $block;
	}
	return @answers;
}

sub table_differs
{
	my ($self, $name, $script, $refused, %params) = @_;
	my @all = (@$script, @{ $refused // [] });
	my $key = join "\0", $params{encoding} // '', @$script;
	$self->{expected} = { $key => [ _answers($self->plain->connstr('postgres'), $script, %params) ] } unless $self->{expected}{$key};
	my $expected = $self->{expected}{$key};
	my @got = _answers($self->conninfo($name), \@all, %params);
	my $differ = 0;
	foreach my $i (0 .. $#all)
	{
		my $plain = $i <= $#$script ? $expected->[$i] : 'ERROR:  0A000';
		my $found = $got[$i] // 'no answer';
		next if $i <= $#$script ? $found eq ($plain // '') : $found =~ /0A000/;
		Test::More::diag("from $name: $all[$i]\n--- plain\n" . ($plain // '') . "\n--- cluster\n$found\n") if ++$differ <= 8;
	}
	return $differ;
}

=pod

=head2 session(name, dbname => ..., on_error_stop => 1)

A psql session in the background (PostgreSQL::Test::BackgroundPsql): query, query_safe, query_until, quit. The deadline counts for each query anew.

=cut

sub session
{
	my ($self, $name, %params) = @_;
	my $dbname = delete $params{dbname} // 'postgres';
	my $session = $self->node($name)->background_psql($dbname, %params);
	$session->set_query_timer_restart;
	return $session;
}

=pod

=head2 session_of(name, statement, ...), answer(session, sql)

A session that has run these statements; errors do not end it, and no statement of it runs for longer than a minute. C<answer> is what it prints for
a statement, or the SQLSTATE of its first error; C<< $session->{stderr} >> has all of them.

=cut

sub session_of
{
	my ($self, $name, @statements) = @_;
	my $session = $self->session($name, on_error_stop => 0);
	$session->query("\\set VERBOSITY verbose\nSET statement_timeout = '60s'");
	$session->query($_) foreach @statements;
	$session->{stderr} = '';
	return $session;
}

sub answer
{
	my ($self, $session, $sql) = @_;
	$session->{stderr} = '';
	my $rows = $session->query($sql);
	return $session->{stderr} =~ /(?:ERROR|FATAL):  (\w{5})/ ? $1 : $rows;
}

=pod

=head2 set(name, setting => value, ...)

Changes settings of a node (of all, if the name is undef) by ALTER SYSTEM, and reloads. C<reset_settings(name)> takes them all back.

=cut

sub set
{
	my ($self, $name, %settings) = @_;
	foreach my $node ($name // $self->names)
	{
		$self->query($node, "ALTER SYSTEM SET $_ = $settings{$_}") foreach sort keys %settings;
		$self->query($node, 'SELECT pg_reload_conf()');
	}
	return;
}

=pod

=head2 heeds(session, setting, value)

Waits until a session that is open goes by a setting that was changed and reloaded. False if it still does not after the default timeout.

=cut

sub heeds
{
	my ($self, $session, $setting, $value) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while ($self->answer($session, "SHOW $setting") ne $value)
	{
		return 0 if time > $deadline;
		sleep(0.02);
	}
	return 1;
}

sub reset_settings
{
	my ($self, $name) = @_;
	foreach my $node ($name // $self->names)
	{
		$self->query($node, $_) foreach 'ALTER SYSTEM RESET ALL', 'SELECT pg_reload_conf()';
	}
	return;
}

=pod

=head2 pause_at(name, point), paused_at(name, point, timeout), go_on(name, point)

Who comes to the injection point on that node pauses there. C<paused_at> waits until somebody does, and is false if nobody did in time. C<go_on> lets
go: at that point, or at all of them.

=cut

sub pause_at
{
	my ($self, $name, $point) = @_;
	$self->query($name, "SELECT tessera_test.injection_set('$point', 'pause')");
	return;
}

sub paused_at
{
	my ($self, $name, $point, $timeout) = @_;
	return $self->wait_for($name, "SELECT max(paused) > 0 FROM tessera_test.injection_list() WHERE name = '$point'", 't', $timeout);
}

sub go_on
{
	my ($self, $name, $point) = @_;
	$self->query($name, 'SELECT tessera_test.injection_clear(' . ($point ? "'$point'" : '') . ')');
	return;
}

=pod

=head2 left_behind(timeout)

Waits until no node has anything left of a migration: rows about it, closed gates, slots, processes, ranges to delete; and no migration runs on the
config node, all know what they own, and nothing is inconsistent. Returns what it found, '' if nothing.

=cut

sub left_behind
{
	my ($self, $timeout) = @_;
	$timeout //= $PostgreSQL::Test::Utils::timeout_default;
	my @findings;
	foreach my $name ($self->names)
	{
		$self->wait_for($name,
			"SELECT (SELECT count(*) FROM tessera.migration_coordinator) + (SELECT count(*) FROM tessera.migration_recipient)
			+ (SELECT count(*) FROM tessera.placement WHERE gates <> '{}')
			+ (SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'tessera%') + (SELECT count(*) FROM tessera.stat_progress_migration)
			+ (SELECT count(*) FROM tessera.range_deletions)", '0', $timeout) or push @findings, "$name is not clean";
	}
	$self->wait_for('s1',
		"SELECT (SELECT count(*) FROM tessera.migration WHERE state = 'running') + (SELECT count(*) FROM tessera.migration_outcome)", '0', $timeout)
		or push @findings, 'migrations or outcomes are left';
	# A node that was promoted or restarted finds out first what it owns; shards raise their versions when they have fetched the chunks of a new term.
	foreach my $name ($self->names)
	{
		$self->wait_for($name, 'SELECT NOT EXISTS (SELECT FROM tessera.identity)
			OR coalesce(placements_known, false) AND coalesce(metadata_known, true) FROM tessera.promotion_status()', 't', $timeout)
			or push @findings, "$name does not know what it owns";
	}
	$self->wait_for('s1', 'SELECT count(*) FROM tessera.check_consistency(deep => true)', '0', $timeout)
		or push @findings, $self->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)');
	return join("\n", grep { $_ ne '' } @findings);
}

=pod

=head2 fetch_routing()

Has each node fetch now what has changed, of which a router hears within tessera.registry_refresh_interval, or when it needs it.

=cut

sub fetch_routing
{
	my ($self) = @_;
	foreach my $name ($self->names)
	{
		croak "node $name does not reach the config node" unless $self->query($name, 'SELECT tessera.reload_routing()') eq 't';
	}
	return;
}

=pod

=head2 is_paused_at(name, point), is_settled(what), is_counted(load, what, before, sum, each), is_sound(what, rows, owner)

Tests: somebody has come to the point; nothing is left behind; the load (of pgbench_start) ends without a failure, and what the query C<sum> gives
has grown by C<each> for each of its transactions since it gave C<before>; after a failover every node knows what it owns, nothing is left behind,
every node shows each row of make_table's table once, and the key 550 is this shard's (where C<owner> is given).

=cut

sub is_paused_at
{
	my ($self, $name, $point) = @_;
	return Test::More::ok($self->paused_at($name, $point), "paused at $point");
}

sub is_settled
{
	my ($self, $what) = @_;
	return Test::More::is($self->left_behind, '', "$what: nothing is left behind, all is consistent");
}

sub is_counted
{
	my ($self, $load, $what, $before, $sum, $each) = @_;
	my $sums = $load->wait;
	Test::More::is($sums->{failed} // 0, 0, "$what: no transaction failed");
	Test::More::cmp_ok($sums->{processed}, '>', 0, "$what: $sums->{processed} transactions");
	$self->is_settled($what);
	Test::More::is($self->query(($self->names)[-1], $sum) - $before, $each * $sums->{processed}, "$what: each change once");
	return;
}

sub is_sound
{
	my ($self, $what, $rows, $owner) = @_;
	foreach my $name ($self->names)
	{
		Test::More::ok($self->wait_for($name,
			'SELECT placements_known AND coalesce(metadata_known, true) AND NOT replaced FROM tessera.promotion_status()', 't', 60),
			"$what: $name knows")
		  or Test::More::diag($self->query($name, 'SELECT * FROM tessera.promotion_status()'));
	}
	$self->is_settled($what);
	foreach my $name ($self->names)
	{
		Test::More::is($self->query($name, 'SELECT count(*), count(DISTINCT k) FROM t'), "$rows|$rows", "$what: $name shows each row once");
	}
	Test::More::is($self->query('s1', "SELECT tessera.range_owner('t', 550)"), $owner, "$what: owner") if $owner;
	return;
}

=pod

=head2 while_paused(name, point, sql, code)

Begins a statement on s1, waits until somebody has come to the point on that node, and calls C<code>, which lets go in the end. Returns what the
statement's session has said on stderr since then, with SQLSTATEs.

=cut

sub while_paused
{
	my ($self, $name, $point, $sql, $code) = @_;
	$self->pause_at($name, $point);
	my $session = $self->begin('s1', $sql);
	$self->is_paused_at($name, $point);
	$code->();
	$session->{stderr} = '';
	return $self->finish($session);
}

=pod

=head2 begin(name, sql), finish(session)

C<begin> returns a session in which the statement has begun. C<finish> waits for its end, ends the session, and returns what it said on stderr, with
SQLSTATEs.

=cut

sub begin
{
	my ($self, $name, $sql) = @_;
	my $session = $self->session($name, on_error_stop => 0);
	$session->query_until(qr/begun/, "\\echo begun\n\\set VERBOSITY verbose\n$sql;\n");
	return $session;
}

sub finish
{
	my ($self, $session) = @_;
	$session->query('SELECT 1');
	my $errors = $session->{stderr};
	$session->quit;
	return $errors;
}

=pod

=head2 runs_for(name, pattern, interval)

Test: a statement that is LIKE the pattern comes to run on the node for longer than the interval: it waits for something, and would have given up.

=cut

sub runs_for
{
	my ($self, $name, $pattern, $interval) = @_;
	my $since = sprintf('SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE %s AND state = %s AND query_start < now() - interval %s AND ' .
		'pid <> pg_backend_pid()', map { quote($_) } $pattern, 'active', $interval);
	return Test::More::ok($self->wait_for($name, $since), "$pattern runs for $interval");
}

=pod

=head2 background(name, sql), ended(run)

C<background> runs statements by a psql of their own, which stops at the first error. C<ended> waits for its end, for the default timeout from its
call, and returns the errors, with SQLSTATEs; C<< $run->{out} >> is its answer, with command tags. If it does not end, what all nodes do is said.

=cut

sub background
{
	my ($self, $name, $sql) = @_;
	my %run = (out => '', err => '', timer => IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my $server = $self->node($name);
	$run{handle} = IPC::Run::start([ 'psql', '-XAt', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '-h', $server->host, '-p', $server->port,
		'-d', 'postgres', '-c', $sql ],
		'<', \undef, '>', \$run{out}, '2>', \$run{err}, $run{timer});
	return \%run;
}

sub ended
{
	my ($self, $run) = @_;
	$run->{timer}->start($PostgreSQL::Test::Utils::timeout_default);
	return $run->{err} if eval { $run->{handle}->finish; 1 };
	my $activity = 'SELECT pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), now() - xact_start, application_name, left(query, 150)
		FROM pg_stat_activity WHERE xact_start IS NOT NULL ORDER BY pid';
	my $doing = join "\n", map { my (undef, $rows) = $self->node($_)->psql('postgres', $activity); "$_:\n" . ($rows // '') } $self->names;
	$run->{handle}->kill_kill;
	return "ERROR: did not end: $run->{err} $run->{out}\n$doing";
}

=pod

=head2 pgbench_start(nodes => [...], script => text, ...)

Starts pgbench in the background on each of the nodes (default: all) and returns a TesseraCluster::Load. Parameters: C<script> (text) or C<scripts>
({text => weight}), C<clients> (2), C<seconds> or C<transactions> (per client), C<protocol> (simple, extended, prepared), C<rate>,
C<variables> ({name => value}), C<max_tries> (1; retries of serialization and deadlock errors), C<dbname>, C<options> ([...]).

=cut

my $load_number = 0;

sub pgbench_start
{
	my ($self, %params) = @_;
	my @names = @{ $params{nodes} // [ $self->names ] };
	my %scripts = %{ $params{scripts} // { ($params{script} // croak 'no script') => 1 } };
	my $directory = PostgreSQL::Test::Utils::tempdir();
	# By default the time, in microseconds, is the seed: two that start in one microsecond would draw the same numbers, and meet in each row.
	my @options = ('-n', '-c', $params{clients} // 2, '-j', 1, '-M', $params{protocol} // 'simple', '--max-tries', $params{max_tries} // 1,
		'--failures-detailed', '--random-seed', 'rand');
	push @options, $params{transactions} ? ('-t', $params{transactions}) : ('-T', $params{seconds} // 5);
	push @options, '-R', $params{rate} if $params{rate};
	push @options, map { ('-D', "$_=$params{variables}{$_}") } sort keys %{ $params{variables} // {} };

	$load_number++;
	my $number = 0;
	foreach my $script (sort keys %scripts)
	{
		$number++;
		my $file = "$directory/load${load_number}_$number.pgbench";
		open(my $handle, '>', $file) or croak "$file: $!";
		print $handle $script;
		close $handle;
		push @options, '-f', "$file\@$scripts{$script}";
	}
	push @options, @{ $params{options} // [] };

	# which is the test's name otherwise
	local $ENV{PGAPPNAME} = 'pgbench';
	my $load = bless { runs => [], cluster => $self, clients => $params{clients} // 2 }, 'TesseraCluster::Load';
	foreach my $name (@names)
	{
		my $server = $self->node($name);
		my %run = (name => $name, stdout => '', stderr => '');
		my @command = ('pgbench', @options, '-h', $server->host, '-p', $server->port, $params{dbname} // 'postgres');
		print '# Running in background: ' . join(' ', @command) . "\n";
		$run{handle} = IPC::Run::start(\@command, '<', \undef, '>', \$run{stdout}, '2>', \$run{stderr});
		push @{ $load->{runs} }, \%run;
	}
	return $load;
}

=pod

=head2 pgbench(...)

pgbench_start and wait.

=cut

sub pgbench
{
	my ($self, %params) = @_;
	return $self->pgbench_start(%params)->wait($params{timeout});
}

=pod

=head1 TesseraCluster::Load

Several pgbench in the background.

=head2 running()

True while one of them runs.

=head2 wait(timeout)

Waits for all of them, at most C<timeout> seconds together (then kills them and dies). Returns the sums {processed, failed, retried, serialization,
deadlock, aborted, ok, by_node, errors}: transactions processed and failed; C<aborted>: clients that stopped on an error; C<ok>: every pgbench
ended with status 0; C<by_node>: the same for each; C<errors>: their error output.

=head2 begun()

Waits until each of their clients has begun a statement. Returns the load.

=head2 end(timeout)

For a load of C<seconds>: ends it now, each client when the transaction it is in has ended, and returns the sums, as C<wait> does. So a load lasts as
long as what is done meanwhile, and not longer. Tests that no client has ended before.

=head2 stop()

Ends them now by SIGINT and returns the sums (their numbers may be missing).

=cut

package TesseraCluster::Load;

use strict;
use warnings FATAL => 'all';

use Carp;
use Time::HiRes qw(sleep time);

# All handles are pumped: a full pipe would stop a pgbench.
sub running
{
	my ($self) = @_;
	my $running = 0;
	foreach my $run (@{ $self->{runs} })
	{
		next unless $run->{handle}->pumpable;
		$run->{handle}->pump_nb;
		$running = 1 if $run->{handle}->pumpable;
	}
	return $running;
}

sub wait
{
	my ($self, $timeout) = @_;
	$timeout //= $PostgreSQL::Test::Utils::timeout_default;
	my $deadline = time + $timeout;
	while ($self->running)
	{
		if (time >= $deadline)
		{
			$_->{handle}->kill_kill(grace => 1) foreach @{ $self->{runs} };
			croak "pgbench did not end within $timeout s\n" . join("\n", map { "$_->{name}: $_->{stderr}" } @{ $self->{runs} });
		}
		sleep 0.02;
	}
	return $self->_sums;
}

sub begun
{
	my ($self) = @_;
	my $clients = "SELECT count(*) >= $self->{clients} FROM pg_stat_activity " .
		"WHERE application_name = 'pgbench' AND client_addr IS NULL AND query <> ''";
	foreach my $run (@{ $self->{runs} })
	{
		$self->{cluster}->wait_for($run->{name}, $clients) or croak "pgbench does not begin on $run->{name}: $run->{stderr}";
	}
	$self->{begun} = 1;
	return $self;
}

# What pgbench does when its seconds are over, it does at this signal; it has set its alarm before its clients begin.
sub end
{
	my ($self, $timeout) = @_;
	$self->begun unless $self->{begun};
	foreach my $run (@{ $self->{runs} })
	{
		$run->{handle}->signal('ALRM') if $run->{handle}->pumpable;
	}
	my $sums = $self->wait($timeout);
	Test::More::is($sums->{aborted}, 0, 'no client of the load has ended on an error') or Test::More::diag($sums->{errors});
	return $sums;
}

sub stop
{
	my ($self) = @_;
	foreach my $run (@{ $self->{runs} })
	{
		$run->{handle}->signal('INT') if $run->{handle}->pumpable;
	}
	return $self->wait(30);
}

sub _sums
{
	my ($self) = @_;
	my %sums = (processed => 0, failed => 0, retried => 0, serialization => 0, deadlock => 0, aborted => 0, ok => 1, by_node => {}, errors => '');
	foreach my $run (@{ $self->{runs} })
	{
		$run->{handle}->finish unless $run->{finished}++;
		my %one = (
			processed => qr/^number of transactions actually processed: (\d+)/m,
			failed => qr/^number of failed transactions: (\d+)/m,
			retried => qr/^number of transactions retried: (\d+)/m,
			serialization => qr/^number of serialization failures: (\d+)/m,
			deadlock => qr/^number of deadlock failures: (\d+)/m);
		$one{$_} = $run->{stdout} =~ $one{$_} ? $1 : 0 foreach keys %one;
		$one{aborted} = () = $run->{stderr} =~ /client \d+ (?:script \d+ )?aborted/g;
		$sums{$_} += $one{$_} foreach keys %one;
		$one{ok} = $run->{handle}->full_result(0) == 0;
		$sums{ok} &&= $one{ok};
		$sums{by_node}{ $run->{name} } = \%one;
		$sums{errors} .= "$run->{name}: $run->{stderr}" if $run->{stderr} =~ /\S/;
	}
	return \%sums;
}

1;
