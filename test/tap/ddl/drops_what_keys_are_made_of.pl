# DROP of collations, types, operator classes and extensions, with the tables whose shard keys are made of them: the statement itself reads the
# catalog of tables when what the keys are made of is gone already; other sessions read it while the statement commits; while its transaction is
# open, others go on with other tables, and after a rollback with these. What a key is made of goes with its table only.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('keysgo', settings => { 'tessera.injection_points' => 'on' });
$c->create(shards => 3, routers => 1);
$c->query('s1', 'CREATE TABLE other (k int PRIMARY KEY, v int); INSERT INTO other VALUES (1, 1)');

# What each kind of key is made of, in schema gone; the table is gone.t, sharded by k.
my @kinds = (
	[ 'an ICU collation', 'CREATE COLLATION gone.num (provider = icu, locale = \'en-u-kn-true\')', 'text COLLATE gone.num', 'range', "'item 9'" ],
	[ 'a collation under hash', 'CREATE COLLATION gone.de (provider = icu, locale = \'de\')', 'text COLLATE gone.de', 'hash', "'item 9'" ],
	[ 'a domain with a collation', 'CREATE COLLATION gone.num (provider = icu, locale = \'en-u-kn-true\'); CREATE DOMAIN gone.label AS text ' .
		'COLLATE gone.num', 'gone.label', 'range', "'item 9'" ],
	[ 'an enum', "CREATE TYPE gone.size AS ENUM ('small', 'large')", 'gone.size', 'range', "'large'" ],
	[ 'a composite type', 'CREATE TYPE gone.pair AS (a int, b text COLLATE "C")', 'gone.pair', 'range', "ROW(1, 'x')::gone.pair" ],
	[ 'a range type with a collation', 'CREATE COLLATION gone.num (provider = icu, locale = \'en-u-kn-true\'); CREATE TYPE gone.span AS RANGE ' .
		'(subtype = text, collation = gone.num)', 'gone.span', 'range', "gone.span('item 9', 'item 10')" ],
	[ 'an extension', 'CREATE EXTENSION citext SCHEMA gone', 'gone.citext', 'hash', "'Item 9'" ]);

sub make_table
{
	my ($kind) = @_;
	my ($name, $made_of, $type, $strategy, $value) = @$kind;
	$c->query('s1', "SET client_min_messages = warning; CREATE SCHEMA gone; $made_of; CREATE TABLE gone.t (k $type PRIMARY KEY, v int)");
	$c->query('s1', "SELECT tessera.shard_table('gone.t', 'k', strategy => '$strategy')");
	$c->query('s1', "INSERT INTO gone.t VALUES ($value, 1)");
	return;
}

# from each node in turn, in a new session
my @nodes = $c->names;
foreach my $i (0 .. $#kinds)
{
	my $name = $kinds[$i][0];
	my $node = $nodes[ $i % @nodes ];
	make_table($kinds[$i]);
	$c->fetch_routing;

	# not yet: a transaction that is rolled back, in which this session reads the catalog of tables again; others go on meanwhile
	my $session = $c->session($node, on_error_stop => 0);
	$session->query('BEGIN; SET LOCAL client_min_messages = warning; DROP SCHEMA gone CASCADE');
	is($session->{stderr}, '', "$name: dropped on $node, in a transaction");
	is(scalar $session->query('SELECT v FROM other WHERE k = 1'), '1', "$name: which goes on with another table") or diag $session->{stderr};
	is(join(',', map { scalar $c->query($_, 'SELECT v FROM other WHERE k = 1') } @nodes), '1,1,1,1', "$name: as do others");
	$session->query('ROLLBACK');
	$session->quit;
	is(join(',', map { scalar $c->query($_, "SELECT v FROM gone.t WHERE k = $kinds[$i][4]") } @nodes), '1,1,1,1',
		"$name: the table is there after the rollback");

	my ($status, $stdout, $stderr) = $c->psql($node, 'SET client_min_messages = warning; DROP SCHEMA gone CASCADE');
	is($stderr, '', "$name: dropped on $node");
}

# ---- by itself ----

make_table($kinds[3]);
like($c->error('r1', 'DROP TYPE gone.size CASCADE'), qr/cannot drop column "k" of table "t": it is part of the shard key/,
	'a type does not go without the table');
is(($c->psql('r1', 'SET client_min_messages = warning; BEGIN; DROP TABLE gone.t; DROP TYPE gone.size; COMMIT'))[2], '', 'but after it');
$c->query('s1', 'DROP SCHEMA gone CASCADE');
make_table($kinds[6]);
like($c->error('s2', 'DROP EXTENSION citext CASCADE'), qr/cannot drop column "k" of table "t": it is part of the shard key/, 'nor an extension');
is(($c->psql('s2', 'BEGIN; DROP TABLE gone.t; DROP EXTENSION citext; COMMIT'))[2], '', 'but after it');
$c->query('s1', 'DROP SCHEMA gone CASCADE');

# An operator class: no table depends on that for hash, only the index on that for btree.
my $class = 'CREATE OPERATOR CLASS gone.lengths DEFAULT FOR TYPE gone.word USING hash AS OPERATOR 1 gone.= (gone.word, gone.word), ' .
  'FUNCTION 2 (gone.word, gone.word) gone.hash(gone.word, bigint), FUNCTION 1 gone.hash(gone.word)';
$c->query('s1', $_) foreach ('CREATE SCHEMA gone', 'CREATE TYPE gone.word',
	'CREATE FUNCTION gone.word_in(cstring) RETURNS gone.word LANGUAGE internal IMMUTABLE STRICT AS $$textin$$',
	'CREATE FUNCTION gone.word_out(gone.word) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS $$textout$$',
	'CREATE FUNCTION gone.word_recv(internal) RETURNS gone.word LANGUAGE internal IMMUTABLE STRICT AS $$textrecv$$',
	'CREATE FUNCTION gone.word_send(gone.word) RETURNS bytea LANGUAGE internal IMMUTABLE STRICT AS $$textsend$$',
	'CREATE TYPE gone.word (INPUT = gone.word_in, OUTPUT = gone.word_out, RECEIVE = gone.word_recv, SEND = gone.word_send, LIKE = text)',
	'CREATE FUNCTION gone.eq(gone.word, gone.word) RETURNS boolean LANGUAGE internal IMMUTABLE STRICT AS $$byteaeq$$',
	'CREATE FUNCTION gone.hash(gone.word) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS $$hashvarlena$$',
	'CREATE FUNCTION gone.hash(gone.word, bigint) RETURNS bigint LANGUAGE internal IMMUTABLE STRICT AS $$hashvarlenaextended$$',
	'CREATE OPERATOR gone.= (LEFTARG = gone.word, RIGHTARG = gone.word, FUNCTION = gone.eq, HASHES)', $class,
	map({ ("CREATE FUNCTION gone.$_->[0](gone.word, gone.word) RETURNS boolean LANGUAGE internal IMMUTABLE STRICT AS 'bytea$_->[0]'",
	"CREATE OPERATOR gone.$_->[1] (LEFTARG = gone.word, RIGHTARG = gone.word, FUNCTION = gone.$_->[0])") }
	  [ 'lt', '<' ], [ 'le', '<=' ], [ 'ge', '>=' ], [ 'gt', '>' ]),
	'CREATE FUNCTION gone.cmp(gone.word, gone.word) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS $$byteacmp$$',
	'CREATE OPERATOR CLASS gone.order DEFAULT FOR TYPE gone.word USING btree AS OPERATOR 1 gone.<, OPERATOR 2 gone.<=, OPERATOR 3 gone.=, ' .
	'OPERATOR 4 gone.>=, OPERATOR 5 gone.>, FUNCTION 1 gone.cmp(gone.word, gone.word)',
	'CREATE TABLE gone.w (k gone.word PRIMARY KEY, v int)', "SELECT tessera.shard_table('gone.w', 'k', strategy => 'hash')",
	"INSERT INTO gone.w VALUES ('a', 1), ('b', 2)");
foreach my $drop ('DROP OPERATOR CLASS gone.lengths USING hash', 'DROP OPERATOR FAMILY gone.lengths USING hash CASCADE',
	'DROP FUNCTION gone.hash(gone.word, bigint) CASCADE')
{
	like($c->error('r1', $drop), qr/2BP01: cannot drop the default hash operator class of type gone\.word: column "k" of table "w"/,
		"no node could read the key any more: $drop");
}
is(join(',', map { scalar $c->query($_, 'SELECT sum(v) FROM gone.w') } @nodes), '3,3,3,3', 'the rows are still there');
is(($c->psql('r1', 'SET client_min_messages = warning; DROP SCHEMA gone CASCADE'))[2], '', 'with its table it goes');

# ---- another session reads the catalog of tables while the statement commits ----

foreach my $kind (@kinds[ 0, 3, 6 ])
{
	my ($name) = @$kind;
	make_table($kind);
	$c->fetch_routing;
	$c->query('s2', "SET client_min_messages = warning; BEGIN; DROP SCHEMA gone CASCADE; PREPARE TRANSACTION 'gone'");
	# one that reads it stops where it has found the key to be there
	$c->pause_at('s1', 'image_key_taken_over');
	my $reader = $c->background('s1', 'SELECT tessera.reload_routing(); SELECT v FROM other WHERE k = 1');
	ok($c->paused_at('s1', 'image_key_taken_over', 60), "$name: a session reads the catalog of tables");
	$c->query('s2', "COMMIT PREPARED 'gone'");
	$c->go_on('s1', 'image_key_taken_over');
	is($c->ended($reader), '', "$name: what it has found is dropped meanwhile, and it goes on");
}
foreach my $node (@nodes)
{
	unlike(slurp_file($c->node($node)->logfile), qr/cache lookup failed/, "$node: nobody has looked up what is gone");
	is(scalar $c->query($node, 'SELECT v FROM other WHERE k = 1'), '1', "$node: the other table is there");
}
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency()'), '0', 'all nodes have the same schema');
done_testing();
