# Monitoring (extension/monitoring): both exporters' files have the same queries and metrics; each query runs on each node as the role that the
# README there makes, and gives the columns that the file names; alerts and dashboard name only metrics, labels, functions and views that exist.
# Then Debian's prometheus-postgres-exporter scrapes every node: no query fails, and the values are those of the views.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use HTTP::Tiny;
use IPC::Run ();
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;
use Time::HiRes qw(sleep time);
use YAML::XS ();

my $folder = abs_path(dirname(__FILE__) . '/../../../extension/monitoring');
my @files = qw(README.md alerts.yml dashboard.json postgres_exporter.yml sql_exporter.collector.yml);

# The files: metric => what it is, in one form for both exporters.
my $queries = YAML::XS::LoadFile("$folder/postgres_exporter.yml");
my $collector = YAML::XS::LoadFile("$folder/sql_exporter.collector.yml");
my (%metrics, %labels_of, %values_of, %same, @wrong);
foreach my $name (sort keys %$queries)
{
	my @columns = map { [ %$_ ] } @{ $queries->{$name}{metrics} };
	$labels_of{$name} = [ map { $_->[0] } grep { $_->[1]{usage} eq 'LABEL' } @columns ];
	$values_of{$name} = [ map { $_->[0] } grep { $_->[1]{usage} ne 'LABEL' } @columns ];
	foreach (grep { $_->[1]{usage} ne 'LABEL' } @columns)
	{
		my ($column, $is) = @$_;
		push @wrong, "$name: usage of $column" unless $is->{usage} =~ /^(GAUGE|COUNTER)$/;
		push @wrong, "${name}_$column stands twice" if $metrics{"${name}_$column"};
		$metrics{"${name}_$column"} = { type => lc $is->{usage}, help => $is->{description}, labels => join(',', @{ $labels_of{$name} }),
			sql => $queries->{$name}{query} };
	}
	push @wrong, "$name: a column without description" if grep { !$_->[1]{description} } @columns;
}
is(join("\n", @wrong), '', 'postgres_exporter.yml: each column is a label, gauge or counter, with a description');

my %sql = map { $_->{query_name} => $_->{query} } @{ $collector->{queries} };
foreach my $metric (@{ $collector->{metrics} })
{
	my $name = $metric->{metric_name};
	ok(!$same{$name}, "$name stands once");
	is("$metric->{query_ref}_$metric->{values}[0]", $name, "$name is called as its query and its column") if @{ $metric->{values} } == 1;
	$same{$name} = { type => $metric->{type}, help => $metric->{help}, labels => join(',', @{ $metric->{key_labels} // [] }),
		sql => $sql{ $metric->{query_ref} } };
}
is_deeply(\%same, \%metrics, 'sql_exporter.collector.yml has the same metrics, with the same queries');
is_deeply([ sort keys %sql ], [ sort keys %$queries ], 'and no other query');

# Names: units, and _total for counters.
is(join(' ', grep { !/^tessera_[a-z][a-z_]*[a-z]$/ || (/_total$/ xor $metrics{$_}{type} eq 'counter') || /_(ms|kb|mb|size|time|age|lag|pause)$/ }
		sort keys %metrics), '', 'names of metrics: tessera_..., _total for counters alone, seconds, bytes');

# A cluster: two shards, and a router that joins when the role is there.
sub documented
{
	my ($where) = @_;
	return join("\n", slurp_file("$folder/README.md") =~ /^```sql\n-- \Q$where\E\n(.*?)^```/msg);
}
my $c = TesseraCluster->new('monitoring', settings => { 'tessera.registry_refresh_interval' => 1 });
$c->create(shards => 2);
like(documented('on any node'), qr/CREATE ROLE/, 'README.md: how to make the role');
$c->query('s2', documented('on any node'));
$c->query($_, documented('on every node')) foreach qw(s1 s2);
$c->start_node('r1');
$c->query('r1', 'CREATE EXTENSION tessera');
$c->query('r1', documented('on any node'));
$c->add_router('r1');
is($c->query('r1', "SELECT has_table_privilege('tessera_monitor', 'tessera.health', 'SELECT'),
	has_function_privilege('tessera_monitor', 'tessera.refresh_status()', 'EXECUTE')"), 't|t', 'a node that joins gets the grants with the schema');
$c->query('s1', 'CREATE ROLE somebody LOGIN');
is(join(' ', $c->query_all("SELECT pg_has_role('tessera_monitor', 'tessera_admin', 'MEMBER')")), 'f f f', 'the role is no member of tessera_admin');

$c->query('s1', $_) foreach (
	'SELECT tessera.stop_balancer()',	# it does what it is asked for, and nothing else
	'CREATE TABLE t (k int PRIMARY KEY, v text)',
	"INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g",
	"SELECT tessera.shard_table('t', 'k')",
	'CREATE TABLE with_t (k int PRIMARY KEY)',
	"SELECT tessera.shard_table('with_t', 'k', colocate_with => 't')",
	'CREATE SEQUENCE q',
	"SELECT tessera.move_range('t', 0, 500, 's2')",
	"SELECT tessera.move_range('t', 500, 800, 's2')");
$c->query('s2', "SELECT nextval('q')");
$c->query('r1', 'SELECT count(*) FROM t WHERE k < 500');
$c->query('r1', "SELECT tessera.move_range('t', 1900, 2000, 's2', wait => false)");
$c->query('s1', 'SELECT tessera.balancer_round()');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state = 'done'", '1'), 'the balancer has moved a range');
my $standby = $c->add_standby('s2', register => 0);

# One migration that runs, and waits; one range whose rows are not deleted; a transaction that a client has prepared.
$c->set('s1', 'tessera.orphan_cleanup_delay' => "'1h'");
$c->query('r1', "SELECT tessera.move_range('t', 800, 900, 's2')");
my $writer = $c->begin('s1', 'BEGIN; UPDATE t SET v = v WHERE k = 1000');
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE 'UPDATE t %'", '1'),
	'a transaction has written');
my $move = $c->background('s1', "SELECT tessera.move_range('t', 1000, 1100, 's2')");
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.migrations WHERE state = 'running' AND waiting_for IS NOT NULL", '1'), 'a migration waits');
$c->query('r1', "BEGIN; UPDATE t SET v = 'y' WHERE k IN (1, 1500); PREPARE TRANSACTION 'mine'");

# Every query, of one file: they are the same. By query: (errors, columns with types, rows as hashes)
sub run_queries
{
	my ($node, $role) = @_;
	my ($script, $out, $err, %result) = ('', '', '');
	foreach my $name (sort keys %$queries)
	{
		(my $sql = $queries->{$name}{query}) =~ s/\s+$//;
		$script .= "\\echo == $name\n\\warn == $name\n$sql \\gdesc\n\\echo --\n$sql;\n";
	}
	IPC::Run::run([ 'psql', '-XAq', '-P', 'footer=off', '-P', 'null=NULL', '-h', '127.0.0.1', '-p', $c->node($node)->port, '-U', $role,
		'-d', 'postgres' ], '<', \$script, '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my %errors = map { /^(\S+)\n(.*)/s } grep { $_ ne '' } split /^== /m, $err;
	my %answers = map { /^(\S+)\n(.*)/s } grep { $_ ne '' } split /^== /m, $out;
	foreach my $name (sort keys %$queries)
	{
		$result{$name} = [ $errors{$name} // 'psql ended' ];
		next if $result{$name}[0] ne '';
		my ($types, $rows) = split /^--\n/m, $answers{$name};
		my %type = map { split /\|/ } grep { $_ ne 'Column|Type' } split /\n/, $types;
		my ($head, @lines) = split /\n/, $rows;
		my @names = split /\|/, $head;
		$result{$name} = [ '', \%type, map { my %row; @row{@names} = split /\|/, $_, -1; \%row } @lines ];
	}
	return \%result;
}

my %answered;    # metric => { node => { labels => value } }
my %number = map { $_ => 1 } 'bigint', 'integer', 'double precision';
foreach my $node ($c->names)
{
	my $results = run_queries($node, 'tessera_monitor');
	foreach my $name (sort keys %$queries)
	{
		my ($error, $type, @rows) = @{ $results->{$name} };
		is($error, '', "$name runs on $node") or next;
		my @bad = grep { ($type->{$_} // 'none') ne 'text' } @{ $labels_of{$name} };
		push @bad, grep { !$number{ $type->{$_} // 'none' } } @{ $values_of{$name} };
		my (%seen, @odd);
		foreach my $row (@rows)
		{
			my $labels = join(',', map { "$_=$row->{$_}" } sort @{ $labels_of{$name} });
			push @odd, "twice: $labels" if $seen{$labels}++;
			push @odd, "null: $labels" if grep { $_ eq 'NULL' } values %$row;
			$answered{"${name}_$_"}{$node}{$labels} = $row->{$_} foreach @{ $values_of{$name} };
		}
		is("@bad @odd", ' ', "$name on $node: labels are text, values are numbers, no row twice, no null") or diag join(' ', %$type);
		is(join(' ', sort keys %$type), join(' ', sort @{ $labels_of{$name} }, @{ $values_of{$name} }), "$name on $node: each column is used");
	}
}
is(join(' ', grep { !$answered{$_} } sort keys %metrics), '', 'each metric has a value on some node');

my @config_only = grep { /^tessera_(migrations?|chunks|table|jumbo|shard|balancer)_/ && !/^tessera_migration_(progress|slots)_/ } sort keys %metrics;
is(join(' ', grep { join(' ', sort keys %{ $answered{$_} // {} }) ne 's1' } @config_only), '', 'what is of the config node is absent elsewhere');
is(join(' ', sort keys %{ $answered{tessera_refresh_age_seconds} }), 'r1 s2', 'tessera_refresh is absent on the config node');

# Another role.
my %refused;
my $results = run_queries('s2', 'somebody');
foreach my $name (sort keys %$queries)
{
	my ($error, $type, @rows) = @{ $results->{$name} };
	$refused{$name} = 1 if $error =~ /permission denied/;
	is(scalar @rows, 0, 'standbys are not shown to every role') if $name eq 'tessera_standby';
	is($error, '', "$name runs as any role") unless $name =~ /^tessera_(health|refresh)$/;
}
is(join(' ', sort keys %refused), 'tessera_health tessera_refresh', 'two queries need more, as README.md says');

# Alerts and dashboard: names.
my %known = map { $_ => 1 } split /\n/,
	$c->query('s1', "SELECT 'tessera.' || proname || '()' FROM pg_proc WHERE pronamespace = 'tessera'::regnamespace
	UNION SELECT 'tessera.' || relname FROM pg_class WHERE relnamespace = 'tessera'::regnamespace
	UNION SELECT name FROM pg_settings WHERE name LIKE 'tessera.%'");

sub unknown_names
{
	my ($where, $text) = @_;
	return map { "$where: $_" } grep { !$known{$_} } map { s/\($/()/r } $text =~ /\b(tessera\.[a-z_]*[a-z](?:\(|\b))/g;
}

# Metrics of an expression, and the labels that it names.
sub unknown_in
{
	my ($where, $expression) = @_;
	my (@found, %label);
	push @found, "$where: unbalanced" if ($expression =~ tr/(//) != ($expression =~ tr/)//) || ($expression =~ tr/{//) != ($expression =~ tr/}//);
	my @names = $expression =~ /\b(tessera_\w+)/g;
	push @found, "$where: no metric" unless @names;
	push @found, map { "$where: there is no $_" } grep { !$metrics{$_} } @names;
	return @found if @found;
	$label{$_} = 1 foreach 'instance', map { split /,/, $metrics{$_}{labels} } @names;
	while ($expression =~ /\b(tessera_\w+)\{([^}]*)\}/g)
	{
		my %own = map { $_ => 1 } 'instance', split /,/, $metrics{$1}{labels};
		push @found, map { "$where: $1 has no label $_" } grep { !$own{$_} } $2 =~ /(\w+)\s*(?:=|!=|=~|!~)\s*"/g;
	}
	push @found, map { "$where: no label $_" } grep { !$label{$_} } map { split /\s*,\s*/ } $expression =~ /\b(?:by|on|without)\s*\(([^)]*)\)/g;
	push @found, map { "$where: rate of a gauge, $_" } grep { $metrics{$_}{type} eq 'gauge' } $expression =~ /(tessera_\w+)(?:\{[^}]*\})?\[/g;
	push @found, map { "$where: $_ is a counter" } grep { $metrics{$_}{type} eq 'counter' } $expression =~ /(tessera_\w+)(?:\{[^}]*\})?(?![\w\[{])/g;
	return @found;
}
is(scalar(my @probe = unknown_in('x', 'rate(tessera_no[5m]) > 0')), 1, 'an unknown metric is found');
is(scalar(@probe = unknown_in('x', 'sum(tessera_gate_waits_total) + rate(tessera_jumbo_chunks{shard="a"}[5m])')), 3, 'so are labels and kinds');

my ($alerts, @found, %alert) = (YAML::XS::LoadFile("$folder/alerts.yml"));
foreach my $group (@{ $alerts->{groups} })
{
	foreach my $rule (@{ $group->{rules} })
	{
		my ($name, $texts) = ($rule->{alert}, join(' ', @{ $rule->{annotations} }{qw(summary description)}));
		push @found, "$name stands twice" if $alert{$name}++;
		push @found, "$name: keys" if join(' ', grep { $_ ne 'for' } sort keys %$rule) ne 'alert annotations expr labels';
		push @found, "$name: severity" unless $rule->{labels}{severity} =~ /^(critical|warning|info)$/;
		push @found, "$name: for" if ($rule->{for} // '1m') !~ /^\d+[mhd]$/;
		push @found, "$name: the description names nothing of tessera" unless $rule->{annotations}{description} =~ /tessera\.|pg_stat_/;
		push @found, unknown_in($name, $rule->{expr}), unknown_names($name, $texts);
		my @by = $rule->{expr} =~ /\bby\s*\(([^)]*)\)/;
		my @has = @by ? split(/\s*,\s*/, $by[0]) : ('instance', map { split /,/, $metrics{$_}{labels} } $rule->{expr} =~ /(tessera_\w+)/g);
		my %has = map { $_ => 1 } @has;
		push @found, map { "$name: no label $_ in the texts" } grep { !$has{$_} } $texts =~ /\$labels\.(\w+)/g;
	}
}
is(join("\n", @found), '', 'alerts.yml: rules are whole, and what they name exists');
cmp_ok(scalar(keys %alert), '>', 20, 'there are alerts');

my $dashboard = decode_json(slurp_file("$folder/dashboard.json"));
my (%id, %row);
@found = ();
my ($row, $expressions) = ('', 0);
foreach my $panel (@{ $dashboard->{panels} })
{
	push @found, "id $panel->{id} twice" if $id{ $panel->{id} }++;
	push @found, "$panel->{title}: place" unless $panel->{gridPos}{x} + $panel->{gridPos}{w} <= 24;
	$row = $panel->{title} if $panel->{type} eq 'row';
	next if $panel->{type} eq 'row';
	push @found, unknown_names($panel->{title}, $panel->{description} // '');
	push @found, "$panel->{title}: data source" if grep { $_->{datasource}{uid} ne '${datasource}' } $panel, @{ $panel->{targets} };
	foreach my $target (@{ $panel->{targets} })
	{
		push @found, unknown_in($panel->{title}, $target->{expr});
		$expressions++;
		$row{$row} = 1;
	}
}
is(join("\n", @found), '', 'dashboard.json: what its panels name exists');
is(join(' ', sort keys %row), 'Balancing Health Moves Routing Transactions', 'it has panels in each group');
is($dashboard->{templating}{list}[0]{type}, 'datasource', 'the data source can be chosen');
SKIP:
{
	skip 'promtool is not installed', 1 if system('command -v promtool >/dev/null 2>&1') != 0;
	command_ok([ 'promtool', 'check', 'rules', "$folder/alerts.yml" ], 'promtool takes alerts.yml');
}

# What is installed.
my ($share) = run_command([ $ENV{PG_CONFIG} // 'pg_config', '--sharedir' ]);
chomp $share;
is(join(' ', grep { !-e "$share/tessera/monitoring/$_" || slurp_file("$share/tessera/monitoring/$_") ne slurp_file("$folder/$_") } @files), '',
	"the files are installed in $share/tessera/monitoring");

# The exporter.
my ($exporter, $port, $log) = (undef, undef, '');

sub start_exporter
{
	my ($node, @options) = @_;
	local $ENV{DATA_SOURCE_NAME} = sprintf('host=127.0.0.1 port=%d user=tessera_monitor dbname=postgres sslmode=disable', $c->node($node)->port);
	$port = PostgreSQL::Test::Cluster::get_free_port();
	$log = '';
	$exporter = IPC::Run::start([ 'prometheus-postgres-exporter', "--web.listen-address=127.0.0.1:$port",
		"--extend.query-path=$folder/postgres_exporter.yml", @options ], '<', \undef, '>&', \$log);
	return;
}

sub stop_exporter
{
	$exporter->kill_kill(grace => 5) if $exporter;
	$exporter = undef;
	return;
}
END { local $?; stop_exporter(); }

# All that /metrics shows: { metric => { labels => value } }; nothing if it does not answer.
sub scrape
{
	my $answer = HTTP::Tiny->new(timeout => 30)->get("http://127.0.0.1:$port/metrics");
	my %shown;
	$exporter->pump_nb;
	return \%shown unless $answer->{success};
	foreach (grep { !/^#/ } split /\n/, $answer->{content})
	{
		my ($name, $labels, $value) = /^(\w+)(?:\{(.*)\})? (\S+)$/ or next;
		my %label = ($labels // '') =~ /(\w+)="((?:[^"\\]|\\.)*)"/g;
		delete $label{server};
		$shown{$name}{ join(',', map { "$_=$label{$_}" } sort keys %label) } = $value;
	}
	return \%shown;
}

# Scrapes until metrics are what they must be, [metric, labels, value, what] each; returns the scrape.
sub scraped
{
	my (@wanted) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my ($shown, @missing);
	while (1)
	{
		$shown = scrape();
		@missing = grep { my $value = $shown->{ $_->[0] }{ $_->[1] }; !defined $value || $value != $_->[2] } @wanted;
		last if !@missing || time >= $deadline;
		sleep 0.05;
	}
	my %missing = map { $_->[3] => 1 } @missing;
	ok(!$missing{ $_->[3] }, $_->[3]) foreach @wanted;
	diag "$_->[0] {$_->[1]}: expected $_->[2], got " . ($shown->{ $_->[0] }{ $_->[1] } // 'nothing') . "\n$log" foreach @missing;
	return $shown;
}

# No query has failed, and all that psql was told is there.
sub no_error
{
	my ($node, $shown) = @_;
	is($shown->{pg_exporter_last_scrape_error}{''}, 0, "$node: the last scrape had no error");
	is(join(' ', values %{ $shown->{pg_exporter_user_queries_load_error} }), 0, "$node: the file was loaded");
	unlike($log, qr/level=(error|warn)|[Ee]rror (running|retrieving)/, "$node: nor has the log one");
	my @missing;
	foreach my $metric (sort keys %metrics)
	{
		push @missing, map { "$metric {$_}" } grep { !defined $shown->{$metric}{$_} } keys %{ $answered{$metric}{$node} };
	}
	is(join("\n", @missing), '', "$node: every series is there");
	is(join(' ', grep { /^tessera_/ && !$metrics{$_} } sort keys %$shown), '', "$node: and no other");
	return;
}

SKIP:
{
	skip 'prometheus-postgres-exporter is not installed', 1 if system('command -v prometheus-postgres-exporter >/dev/null 2>&1') != 0;
	start_exporter('s1');
	my $shown = scraped([ 'pg_up', '', 1, 's1: the exporter is up, with its own metrics as well' ]);
	no_error('s1', $shown);
	my $of_s2 = "tessera.chunks WHERE table_name = 't'::regclass AND shard = 's2'";
	my $compare = sub {
		# what grows by itself may have grown since it was scraped
		my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
		my @wanted;
		while (1)
		{
			@wanted = split /\n/, $c->query('s1', join(";\n", map { $_->[2] } @_)), -1;
			last if time >= $deadline || !grep { ($shown->{ $_[$_][0] }{ $_[$_][1] } // -1) != $wanted[$_] } 0 .. $#_;
			$shown = scrape();
		}
		foreach (0 .. $#_)
		{
			my ($metric, $labels) = @{ $_[$_] };
			cmp_ok($shown->{$metric}{$labels} // 'nothing', '==', $wanted[$_], "$metric {$labels} is what the view says");
		}
	};
	$compare->(
		[ 'tessera_migrations_total', 'state=committed', "SELECT count(*) FROM tessera.migrations WHERE state = 'committed'" ],
		[ 'tessera_migrations_rows_total', 'state=committed', "SELECT sum(rows) FROM tessera.migrations WHERE state = 'committed'" ],
		[ 'tessera_migrations_bytes_total', 'state=committed', "SELECT sum(bytes) FROM tessera.migrations WHERE state = 'committed'" ],
		[ 'tessera_migrations_total', 'state=aborted', "SELECT count(*) FROM tessera.migrations WHERE state = 'aborted'" ],
		[ 'tessera_migration_running', '', 'SELECT 1' ],
		[ 'tessera_migration_waiting', '', 'SELECT 1' ],
		[ 'tessera_migration_slots_count', '', "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'tessera%'" ],
		[ 'tessera_migration_progress_running', 'side=donor', 'SELECT count(*) FROM tessera.stat_progress_migration' ],
		[ 'tessera_range_deletions_left', 'table=public.t', "SELECT count(*) FROM tessera.range_deletions WHERE table_name = 't'::regclass" ],
		[ 'tessera_chunks_count', 'shard=s2,table=public.t', "SELECT count(*) FROM $of_s2" ],
		[ 'tessera_chunks_bytes', 'shard=s2,table=public.t', "SELECT sum(bytes) FROM $of_s2" ],
		[ 'tessera_table_chunks_spread_ratio', 'table=public.t', "SELECT (max(chunks) - min(chunks)) / avg(chunks)::float8
			FROM tessera.chunk_distribution WHERE table_name = 't'::regclass" ],
		[ 'tessera_balancer_enabled', '', 'SELECT 0' ],
		[ 'tessera_health_problems', 'severity=notice', "SELECT count(*) FROM tessera.health WHERE severity = 'notice'" ],
		[ 'tessera_health_problems', 'severity=error', 'SELECT 0' ],
		[ 'tessera_balancer_actions_count', 'kind=move,reason=requested,state=done', 'SELECT 1' ],
		[ 'tessera_distributed_transactions_count', 'decided_by=client,state=prepared', 'SELECT count(*) FROM pg_prepared_xact()' ],
		[ 'tessera_cluster_node_registered', 'cluster=c,kind=router,node=r1', 'SELECT 1' ],
		[ 'tessera_node_info', 'cluster=c,config=true,kind=shard,node=s1', 'SELECT 1' ]);
	cmp_ok($shown->{tessera_migration_pause_max_seconds}{''} // 0, '>', 0, 'a pause is shown');
	ok(!exists $shown->{tessera_chunks_count}{'shard=s2,table=public.with_t'}, 'colocated tables are counted once');
	cmp_ok($shown->{tessera_distributed_transactions_oldest_seconds}{'decided_by=client,state=prepared'} // 0, '>', 0, 'age of what is prepared');

	# What changes.
	is($c->query('s1', "SELECT tessera.cancel_migration(id) FROM tessera.migrations WHERE state = 'running'"), 't', 'the migration is ended');
	like($c->ended($move), qr/ERROR/, 'the migration was cancelled');
	$c->finish($writer);
	$c->query('r1', "ROLLBACK PREPARED 'mine'");
	$c->query('s1', 'SELECT tessera.start_balancer()');
	$c->query('s1', "SELECT tessera.pause_balancer('1 hour')");
	$c->set('s1', 'tessera.orphan_cleanup_delay' => 0);
	$shown = scraped(
		[ 'tessera_migrations_total', 'state=aborted', 1, 'an aborted migration is counted' ],
		[ 'tessera_migration_running', '', 0, 'and does not run any more' ],
		[ 'tessera_distributed_transactions_count', 'decided_by=client,state=prepared', 0, 'nothing is prepared any more' ],
		[ 'tessera_range_deletions_left', 'table=public.t', 0, 'rows that have moved away are deleted' ],
		[ 'tessera_balancer_enabled', '', 1, 'the balancer is on' ]);
	cmp_ok($shown->{tessera_balancer_pause_seconds}{''}, '>', 3000, 'and paused');
	$c->query('s1', 'SELECT tessera.resume_balancer()');
	no_error('s1', scraped([ 'tessera_health_problems', 'severity=notice', 0, 'nothing to tell' ],
		[ 'tessera_balancer_pause_seconds', '', 0, 'not paused' ]));
	stop_exporter();

	start_exporter('s2', '--disable-default-metrics', '--disable-settings-metrics');
	$shown = scraped([ 'pg_up', '', 1, 's2: the exporter is up' ]);
	no_error('s2', $shown);
	is(join(' ', keys %{ $shown->{tessera_standby_lag_bytes} }), 'address=socket,standby=' . $standby->name, 'the standby of s2');
	cmp_ok($shown->{tessera_sequence_pool_values_left}{'sequence=public.q'}, '==', 31, 'values of a sequence that s2 holds');
	cmp_ok($shown->{tessera_refresh_age_seconds}{''}, '<', 60, 's2 fetches from the config node');
	stop_exporter();

	# A listener's node, and statements of a router.
	start_exporter('r1', '--disable-default-metrics', '--disable-settings-metrics');
	$shown = scraped([ 'pg_up', '', 1, 'r1: the exporter is up' ]);
	no_error('r1', $shown);
	my %before = map { $_ => $shown->{tessera_statements_total}{$_} } keys %{ $shown->{tessera_statements_total} };
	$c->query('r1', 'SELECT v FROM t WHERE k = 5');
	$c->query('r1', 'NOTIFY somewhere');
	$shown = scraped([ 'tessera_notifications_forwarded_total', 'to_node=s1',
		$shown->{tessera_notifications_forwarded_total}{'to_node=s1'} + 1, 'a notification is counted' ]);
	my $more = 0;
	$more += $shown->{tessera_statements_total}{$_} - $before{$_} foreach keys %before;
	cmp_ok($more, '>=', 1, 'so is a statement');

	# The config node is down: r1 goes on, and tells.
	$c->stop('s1');
	$shown = scraped([ 'tessera_refresh_failing', '', 1, 'r1 tells that it does not reach the config node' ],
		[ 'tessera_health_problems', 'severity=error', 2, 'tessera.health says so, and that the node does not answer' ]);
	is($shown->{pg_exporter_last_scrape_error}{''}, 0, 'and no query needs it');
	$c->start('s1');
	scraped([ 'tessera_refresh_failing', '', 0, 'it is back' ]);
	stop_exporter();
}
done_testing();
