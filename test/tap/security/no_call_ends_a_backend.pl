# No call of a function of the extension ends a backend: each is called with nulls, wrong kinds and extremes for each of its arguments, by an ordinary
# user, a member of tessera_admin, one of tessera_internal, a superuser, and over connections that have said hello as another node would. The list is
# pg_proc's own, so a new function is in it. Each call is rolled back, and after a crash the server starts again: no call shields the next.
use strict;
use warnings;

use FindBin;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('fuzz', settings => { restart_after_crash => 'on' });
$c->create(shards => 1);
$c->query('s1', q{
	CREATE ROLE bob LOGIN; CREATE ROLE ann LOGIN IN ROLE tessera_admin; CREATE ROLE nod LOGIN IN ROLE tessera_internal;
	GRANT CREATE ON SCHEMA public TO bob, ann, nod;
	CREATE TABLE ranged (k int PRIMARY KEY, v text); SELECT tessera.shard_table('ranged', 'k');
	CREATE TABLE compound (a text COLLATE "C", b numeric, PRIMARY KEY (a, b)); SELECT tessera.shard_table('compound', 'a, b');
	CREATE TABLE hashed (k uuid PRIMARY KEY); SELECT tessera.shard_table('hashed', 'k', 'hash', chunks => 4);
	CREATE TABLE placed (k int PRIMARY KEY, v int);
	INSERT INTO ranged SELECT i, 'x' FROM generate_series(1, 20) i; INSERT INTO placed VALUES (1, 1);
	CREATE VIEW seen AS SELECT * FROM ranged; CREATE SEQUENCE counter; CREATE TYPE pair AS (a int, b int);
	SET tessera.replicate_ddl = off; CREATE TABLE here (k int); CREATE TABLE parted (k int) PARTITION BY LIST (k);
});
my ($group, $table) = split /\|/, $c->query('s1', q{SELECT group_id, table_id FROM tessera.cluster_table WHERE table_name = 'ranged'});
my ($cluster, $epoch) = split /\|/,
	$c->query('s1', qq{SELECT cluster_id, epoch FROM tessera.identity, tessera.table_group WHERE group_id = '$group'});
my $big = "pg_catalog.repeat('x', 100000)";

# Values by type: the first one is plausible, and stands in for arguments that are not the one under test.
my %values = (
	bool => [qw(true false)],
	int2 => [qw(1 0 -1 32767 -32768)],
	int4 => [qw(1 0 -1 2147483647 -2147483648)],
	int8 => [qw(1 0 -1 9223372036854775807 -9223372036854775808)],
	float4 => [qw(1 'NaN' 'Infinity')],
	float8 => [qw(1 'NaN' '-Infinity')],
	numeric => [qw(1 'NaN' 1e1000 'Infinity')],
	text => [ q{'s1'}, q{''}, q{'k'}, q{'ranged'}, q{'public.ranged'}, q{'nosuch'}, q{'{}'}, q{'['}, '\'{"a":\'', q{'%s%n%s'}, q{'(1,2'}, q{'MINKEY'},
	"E'\\x01\\n\\t\\''", $big],
	cstring => [ q{'1'}, q{''}, q{'('}, q{'(1'}, q{'("a'}, q{'"'}, q{'MINKEY'}, q{'\\\\'}, q{'(1,'}, q{'MAXKEY)'} ],
	name => [qw('k' '' 'nosuch' 'tessera_1')],
	uuid => [ "'$group'", "'$table'", "'$epoch'", "'$cluster'", "'00000000-0000-0000-0000-000000000000'" ],
	regclass => [qw('ranged' 'compound' 'hashed' 'placed' 'here' 'parted' 'seen' 'counter' 'ranged_pkey' 'pair'
		'pg_catalog.pg_class' 'tessera.node' 0 4294967295)],
	bound => [ q{tessera.bound(1)}, q{tessera.minkey()}, q{tessera.maxkey()}, q{tessera.bound('x')}, q{tessera.bound(1,2)}, q{tessera.bound('a',1.5)},
	q{tessera.bound(null)}, q{tessera.bound('x',tessera.minkey())}, "tessera.bound($big)",
	"'(1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33)'"],
	jsonb => [ q('{}'), q('[]'), q('null'), q('1'), q('"x"'), q('[null, 1, "x", {}]'),
		qq('{"group_id": "$group", "table_id": "$table", "epoch": "$epoch"}'),
		qq('{"group_id": null, "table_id": null, "key_columns": null, "chunks": null, "owned": null, "groups": null}'),
		qq('{"group_id": "$group", "table_id": "$table", "epoch": "$epoch", "term": "1", "strategy": "range", "object": "public.ranged", "by": "x",
			"primary": "1",
			"key_columns": [null], "key_types": [], "key_collations": {}, "chunks": [{"min": null}], "has_rows": "x", "owned": [{"min": 1}]}'),
		qq('{"group_id": 1, "term": [], "digests": 3, "cluster_id": "$cluster", "groups": [1, 2], "migration_id": "x", "min": {}, "max": []}'),
		qq('{"migration_id": "$group", "group_id": "$group", "table_id": "$table", "min": "1", "max": "2", "donor": 1, "recipient": 99,
			"epoch": "$epoch", "term": 1,
			"donor_incarnation": 1, "recipient_incarnation": 1, "verify": true}') ],
	bytea => [ q('\x'), q('\x00'), q('\xffffffffffffffffffff'), q('\x0000000100000001000000020000000300000004'),
	"pg_catalog.decode(pg_catalog.repeat('ff00', 5000), 'hex')" ],
	pg_lsn => [ q('0/0'), q('FFFFFFFF/FFFFFFFF'), q('0/1') ],
	timestamptz => [qw('2026-01-01' 'infinity' '-infinity')],
	timestamp => [qw('2026-01-01' 'infinity' '-infinity')],
	date => [qw('2026-01-01' 'infinity' '-infinity')],
	interval => [qw('1s' '-178000000years' '178000000years')],
	bpchar => [qw('a' '')],
	varchar => [qw('a' '')],
	record => [ q{ROW(1,2)}, q{ROW()}, q{ROW(NULL,NULL)}, q{ROW(ROW(1),'{}'::int[])}, 'ROW(' . join(',', 1 .. 40) . ')' ],
	any => [ q(1), q('x'::text), q(NULL), q(1.5, 'x'), q('{}'::int[]), q(ROW(1, 2)), q(VARIADIC '{}'::int[]), q(VARIADIC NULL::text[]),
	q(VARIADIC ARRAY[1, NULL]),
		q(VARIADIC '{{1,2},{3,4}}'::int[]), join(', ', 1 .. 40) ],
	internal => ['NULL'],
	regtype => [qw('int4' 0 4294967295 'record' 'any' 'tessera.bound' 'pair' 'json')],
	regcollation => [qw('"C"' 0 4294967295)],
	bound_range => [ q{'(MINKEY,MAXKEY)'}, q{'(,)'} ],
);

# Arrays: of plausible elements, empty, of nulls, of two dimensions, with another lower bound.
sub array_values
{
	my ($element) = @_;
	my @of = @{ values_of($element) };
	my $type = "$element\[]";
	$type = "tessera.$type" if $element =~ /^bound/;
	my @bare = map { "($_)::" . ($element =~ /^bound/ ? "tessera.$element" : $element) } @of;
	return [ "ARRAY[$bare[0]]", "'{}'::$type", "ARRAY[NULL]::$type", 'ARRAY[' . join(', ', @bare) . ']',
		"ARRAY[ARRAY[$bare[0], $bare[-1]], ARRAY[$bare[0], NULL]]",
		"pg_catalog.array_fill($bare[0], ARRAY[2], ARRAY[-5])" ];
}

sub values_of
{
	my ($type) = @_;
	return array_values($1) if $type =~ /^_(.*)/;
	return $values{$type} // [ q{'1'}, q{''}, q{'-1'}, q{'{}'} ];
}

sub cast
{
	my ($value, $type) = @_;
	return $value if $type eq 'any' || $type eq 'internal' || $type =~ /^_/ && $value ne 'NULL';
	$type = $type =~ /^_(.*)/ ? "$1\[]" : $type;
	$type = "pg_catalog.$type" if $type eq 'bpchar';
	return "CAST($value AS " . ($type =~ /^bound/ ? "tessera.$type" : $type) . ')';
}

# What an argument of that name stands for, where its type does not say it.
my %named = (
	epoch => "'$epoch'", table_id => "'$table'", sequence => "'public.counter'", table_name => "'public.ranged'", cluster => "'$cluster'",
	cluster_id => "'$cluster'",
	strategy => "'range'", key => 'tessera.bound(1)', at => 'tessera.bound(7)', max => 'tessera.maxkey()', min => 'tessera.minkey()',
	to_shard => "'s1'", keys => "ARRAY['k']",
	names => "ARRAY['work_mem']", settings => "ARRAY['1MB']", effective_user => "'bob'", client_user => "'bob'", outcome => "'aborted'");
my %fits = (text => qr/^'/, uuid => qr/^'[0-9a-f-]{36}'$/, regclass => qr/^'public/, bound => qr/^tessera/, _text => qr/^ARRAY/);

sub plain_value
{
	my ($type, $argument) = @_;
	my $value = $named{ $argument // '' };
	return $value if defined $value && $fits{$type} && $value =~ $fits{$type};
	return values_of($type)->[0];
}

# Calls of a function: plausible, all null, and for each argument each other value and null.
sub calls_of
{
	my ($name, $types, $arguments) = @_;
	my @types = @$types;
	my @plain = map { cast(plain_value($types[$_], $arguments->[$_]), $types[$_]) } 0 .. $#types;
	my @calls = ([@plain], [ map { cast('NULL', $_) } @types ]);
	foreach my $i (0 .. $#types)
	{
		foreach my $value ('NULL', @{ values_of($types[$i]) })
		{
			my @arguments = @plain;
			$arguments[$i] = cast($value, $types[$i]);
			push @calls, \@arguments;
		}
	}
	my %seen;
	return grep { !$seen{$_}++ } map { "SELECT $name(" . join(', ', @$_) . ')' } @calls;
}

my @calls;
my $functions = 0;
foreach my $line (split /\n/, $c->query('s1', q{SELECT p.pronamespace::regnamespace || '.' || quote_ident(p.proname), (SELECT string_agg(t.typname,
	',' ORDER BY o) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (oid, o)
		JOIN pg_type t ON t.oid = a.oid), array_to_string(p.proargnames, ',') FROM pg_proc p WHERE p.pronamespace IN ('tessera'::regnamespace,
		'tessera_internal'::regnamespace) AND p.prokind = 'f' ORDER BY 1, 2}))
{
	my ($name, $types, $arguments) = split /\|/, $line, -1;
	$functions++;
	push @calls, calls_of($name, [ split /,/, $types ], [ split /,/, $arguments ]);
}
cmp_ok($functions, '>', 140, "$functions functions of pg_proc, " . scalar(@calls) . ' calls');

my ($protocol) = slurp_file("$FindBin::Bin/../../../src/common/protocol.h") =~ /define\s+TESSERA_PROTOCOL\s+(\d+)/;
my $version = $c->query('s1', q{SELECT extversion FROM pg_extension WHERE extname = 'tessera'});
my $hello = "SELECT tessera_internal.hello('$cluster', 's9', '$version', $protocol, 9, 1, 1, 1)";
my $reset = "SELECT tessera_internal.session(NULL, '{}', '{}', NULL, '{}', 0)";

# Runs calls in one session as far as it gets: (number of the call at which it ended, what it said), or (undef) if all were answered.
sub run_calls
{
	my ($role, $internal, @list) = @_;
	my $settings = "SET client_min_messages = error;\nSET statement_timeout = '250ms';\nSET lock_timeout = '100ms';\n";
	my $script = ($internal ? "$hello;\n" : '') . $settings;
	foreach my $i (0 .. $#list)
	{
		$script .= "\\warn call $i\nBEGIN\\; $list[$i];\nROLLBACK;\n";
		# What a call states of settings and users does not come back by a rollback.
		$script .= "$reset;\n$settings" if $internal && $list[$i] =~ /tessera_internal\.(session|hello)\(/;
	}
	$script .= "\\echo all\nSELECT 'answered';\n";
	my ($out, $err) = ('', '');
	my $server = $c->node('s1');
	my $file = PostgreSQL::Test::Utils::tempdir() . '/calls.sql';
	append_to_file($file, $script);
	my $psql = IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-h', $server->host, '-p', $server->port, '-U', $role, '-d', 'postgres',
		'-f', $file ],
		'<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	if (!eval { $psql->finish; 1 })
	{
		$psql->kill_kill;
		$err .= "not answered in time\n";
	}
	return (undef, $out, $err) if $out =~ /^all\nanswered\n\z/m;
	my @reached = $err =~ /^call (\d+)$/mg;
	return ($reached[-1] // -1, $out, $err);
}

# Changes when the server starts, and when it starts its processes anew because one of them crashed.
my $started = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'};

sub fuzz
{
	my ($role, $internal, $what) = @_;
	my @left = @calls;
	my $ended = 0;
	my @internal_errors;
	my $start = $c->query('s1', $started);
	my ($out, $err);
	while (@left)
	{
		(my $at, $out, $err) = run_calls($role, $internal, @left);
		push @internal_errors, "$left[$1]: $2" while $err =~ /^call (\d+)\n[^\n]*ERROR:  (XX\d\d\d: [^\n]*)/mg;
		last unless defined $at;
		$ended++;
		diag "$what: the session ended at: " . ($at >= 0 ? $left[$at] : 'hello') . "\n" . substr($err, -600);
		last if $at < 0 || $ended >= 40;
		splice @left, 0, $at + 1;
		$c->wait_for('s1', 'SELECT true');
	}
	is($ended, 0, "$what: each call is answered");
	is($c->query('s1', $started), $start, "$what: the server has not crashed");
	# XX000 is for what cannot be, and is not what a wrong argument deserves. Of an OID that is no relation's the server's own functions say it, too.
	@internal_errors = grep { !/could not open relation with OID/ } @internal_errors;
	is(join("\n", @internal_errors), '', "$what: no wrong argument shows as an internal error");
	return;
}

my $superuser = TesseraCluster::user();
fuzz('bob', 0, 'ordinary user');
fuzz('ann', 0, 'member of tessera_admin');
fuzz('nod', 0, 'member of tessera_internal');
fuzz($superuser, 0, 'superuser');
fuzz('nod', 1, 'tessera_internal after hello');
fuzz($superuser, 1, 'superuser after hello');

# Binary values of the extension's types: whoever may send a parameter may send any bytes.
{
	my $directory = PostgreSQL::Test::Utils::tempdir();
	my $script = "SET client_min_messages = error;\nCREATE TEMP TABLE bytes (b tessera.bound);\nCREATE TEMP TABLE ranges (b tessera.bound_range);\n";
	my @seeds = ("\0", "\1", "\2", "\0\0\0\1", pack('N', 1) . "\1" . pack('N', 1) . '7', pack('n', 1) . "\1" . pack('N', 3) . 'abc',
		"\1\2\3\4\5\6\7\10");
	foreach my $value ('tessera.minkey()', 'tessera.bound(1)', "tessera.bound('abc', 2)", "tessera.bound(1, 'x', 2.5)", 'tessera.maxkey()')
	{
		push @seeds, pack('H*', $c->query('s1', "SELECT encode(tessera.bound_send($value), 'hex')"));
	}
	srand(7);
	my $number = 0;
	foreach my $seed (@seeds)
	{
		foreach my $round (0 .. 19)
		{
			my $bytes = $seed;
			substr($bytes, int(rand(length $bytes)), 1) = chr(int(rand(256))) foreach 1 .. $round % 4;
			$bytes = substr($bytes, 0, int(rand(1 + length $bytes))) if $round % 5 == 1;
			$bytes .= "\377" x int(rand(9)) if $round % 5 == 2;
			substr($bytes, 0, 4) = pack('N', 0x7fffffff) if $round == 18 && length $bytes >= 4;
			my $file = "$directory/bytes" . ++$number;
			open(my $handle, '>:raw', $file) or die "$file: $!";
			print $handle "PGCOPY\n\377\r\n\0", pack('NN', 0, 0), pack('n', 1), pack('N', length $bytes), $bytes, pack('n', 0xffff);
			close $handle;
			$script .= "\\copy bytes FROM '$file' WITH (FORMAT binary)\nSELECT count(b::text), count(tessera.bound_hash(b)) FROM bytes;\n\\copy " .
				"ranges FROM '$file' WITH (FORMAT binary)\n";
		}
	}
	$script .= "SELECT max(b), min(b) FROM bytes;\n\\echo all\nSELECT 'answered';\n";
	append_to_file("$directory/bytes.sql", $script);
	my $start = $c->query('s1', $started);
	my $server = $c->node('s1');
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'psql', '-XAtq', '-h', $server->host, '-p', $server->port, '-U', 'bob', '-d', 'postgres', '-f', "$directory/bytes.sql" ], '<',
		\undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	like($out, qr/^all\nanswered\n\z/m, "$number binary values: each is answered") or diag substr($err, -500);
	is($c->query('s1', $started), $start, 'binary values: the server has not crashed');
}

is($c->query('s1', 'SELECT count(*) FROM ranged'), '20', 'the tables are what they were');
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'and so is the catalog');

done_testing();
