
# A sequence's value that has left its home, in a block or in a row, does not come again when the home crashes: what the server logs of a sequence
# ahead of its values, in a transaction that is still open, is flushed before. And a block that is drawn waits for ALTER SEQUENCE before it keeps
# setval off.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('twice');
$c->create(shards => 2, routers => 1);
$c->query('s1', 'CREATE SCHEMA a; CREATE SCHEMA b');
my %schema = map { my ($schema, $shard) = split /\|/; $shard => $schema } split /\n/,
	$c->query('s1', q{SELECT schema, shard FROM tessera.schemas WHERE schema IN ('a', 'b')});
my $app = $schema{s2} // die 'no schema on s2';

$c->query('r1', "CREATE TABLE $app.t (k int, n serial, PRIMARY KEY (k, n)); CREATE SEQUENCE $app.block");
$c->query('s1', "SELECT tessera.shard_table('$app.t', 'k')");
$c->query('s1', "SELECT tessera.move_range('$app.t', 0, 1000, 's1')");
$c->query('r1', "INSERT INTO $app.t (k) VALUES (1)");
$c->query('s1', "ALTER SEQUENCE $app.t_n_seq RESTART 1000");

# ---- a row ----

my $open = $c->session('s2');
$open->query_safe("BEGIN; SELECT nextval('$app.t_n_seq')");
my $written = $c->query('s2', "INSERT INTO $app.t (k) VALUES (2) RETURNING n");
my $block = $c->query('s2', "BEGIN; INSERT INTO $app.t (k) VALUES (3), (4); COMMIT; SELECT max(n) FROM $app.t");
$c->kill9('s2');
$c->start('s2');
cmp_ok($c->query('s2', "SELECT nextval('$app.t_n_seq')"), '>', $block,
	"rows on another shard with values of their sequence's home ($written, $block): they do not come again");

# ---- a block ----

$open = $c->session('s2');
$open->query_safe("BEGIN; SELECT nextval('$app.block')");
my $got = $c->query('r1', "SELECT nextval('$app.block')");
$c->kill9('s2');
$c->start('s2');
cmp_ok($c->query('s2', "SELECT nextval('$app.block')"), '>', $got, "a value in a block ($got)");

# ---- ALTER SEQUENCE and setval in one transaction, while a block is drawn ----

$open = $c->session('s2', on_error_stop => 0);
$open->query_safe("BEGIN; ALTER SEQUENCE $app.block MAXVALUE 100000");
my $draw = $c->background('s2', "SELECT tessera_internal.sequence_block('$app.block', 40)");
ok($c->wait_for('s2', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'internal.sequence_block' AND pid <> " .
	"pg_backend_pid()", '1'),
	'who draws a block waits for ALTER SEQUENCE');
my ($set, $failed) = $open->query("SET deadlock_timeout = '100ms'; SELECT setval('$app.block', 5000)");
is($failed, 0, 'whose transaction sets the value without a deadlock');
$open->query('COMMIT');
is($c->ended($draw), '', 'then the block is drawn');
$open->quit;

done_testing();
