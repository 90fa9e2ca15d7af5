# A table of very many chunks. A split, move or merge rewrites few pages of a node's chunk map, whatever there is besides, and the pages that no image
# needs any more are freed. Every node routes by what the config node has written: after single changes at the ends and in the middle, after random
# ones, with readers meanwhile, without room in shared memory, after a promotion of the config node and a restart.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $chunks = TesseraCluster::long() ? 20_000 : 8_000;
my $c = TesseraCluster->new('many_chunks', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0 });
$c->create(shards => 3);
$c->query('s1', 'CREATE TABLE t (k int PRIMARY KEY, v int NOT NULL)');
$c->query('s1', "SELECT tessera.shard_table('t', 'k', 'hash', chunks => $chunks)");
$c->query('s1', 'INSERT INTO t SELECT g, 0 FROM generate_series(1, 2000) g');

my $catalog = "SELECT md5(string_agg(concat_ws(' ', min, max, node_id, major, minor, jumbo), ',' ORDER BY min::text COLLATE \"C\")) FROM ";
my $facts = 'FROM tessera.routing_image()';

# What every node routes by is what the config node has; its own copy of the rows, too.
sub routes_alike
{
	my ($name) = @_;
	my $expected = $c->query('s1', "$catalog tessera.chunk");
	foreach my $node ($c->names)
	{
		$c->query($node, 'SELECT tessera.reload_routing()');
		ok($c->wait_for($node, "$catalog tessera.chunk", $expected), "$name: rows on $node");
		is($c->query($node, "$catalog tessera.routing_chunks('t')"), $expected, "$name: chunk map of $node");
		is($c->query($node, "SELECT count(*) FROM generate_series(1, 3000, 75) k JOIN tessera.chunk c ON tessera.key_hash(k)
			>= CASE WHEN c.min::text = 'MINKEY' THEN -9223372036854775808 ELSE c.min::text::int8 END AND
			(c.max::text = 'MAXKEY' OR tessera.key_hash(k) < (CASE WHEN c.max::text = 'MAXKEY' THEN '0' ELSE c.max::text END)::int8)
			WHERE tessera.routing_owner('t', k) <> c.node_id"), '0', "$name: owners of keys on $node") if $node eq 's2';
	}
	return;
}

# The newest image is the only one: no page is left of those before.
sub nothing_left
{
	my ($name) = @_;
	ok($c->wait_for($_, "SELECT shared_pages = pages AND NOT private $facts"), "$name: no page of old images on $_") foreach $c->names;
	return;
}

# A change by a statement on s1 makes few pages on every node.
sub few_pages
{
	my ($sql, $name) = @_;
	$c->query('s1', $sql);
	my $version = $c->query('s1', 'SELECT group_major, group_minor FROM tessera.table_group');
	foreach my $node ($c->names)
	{
		$c->query($node, 'SELECT tessera.reload_routing()');
		ok($c->wait_for($node, 'SELECT group_major, group_minor FROM tessera.table_group', $version), "$name: $node knows");
		my ($written, $pages) = split /\|/, $c->query($node, "SELECT written_pages, pages $facts");
		cmp_ok($written, '<=', 4, "$name: $written of $pages pages are new on $node");
	}
	return;
}

# Bounds of a chunk, by its number in key order.
sub bounds
{
	my ($number) = @_;
	return split /\|/, $c->query('s1', "SELECT min, max FROM tessera.routing_chunks('t') OFFSET $number LIMIT 1");
}

# A point inside of a chunk.
sub inside
{
	my ($min, $max) = bounds(@_);
	$min = '-9223372036854775808' if $min eq 'MINKEY';
	$max = '9223372036854775807' if $max eq 'MAXKEY';
	return $c->query('s1', "SELECT ((${min}::numeric + ${max}::numeric) / 2)::int8");
}

sub split_at
{
	my ($number) = @_;
	return sprintf("SELECT tessera.split_chunk('t', (%s)::int8::tessera.bound)", inside($number));
}

sub range_of
{
	my ($first, $last) = @_;
	return map { $_ eq 'MINKEY' ? 'tessera.minkey()' : $_ eq 'MAXKEY' ? 'tessera.maxkey()' : "(${_})::int8::tessera.bound" }
	  ((bounds($first))[0], (bounds($last))[1]);
}

sub merge_at
{
	return sprintf("SELECT tessera.merge_chunks('t', %s, %s)", range_of($_[0], $_[0] + 1));
}

sub move_at
{
	my ($number) = @_;
	my ($owner) = $c->query('s1', "SELECT node_id FROM tessera.routing_chunks('t') OFFSET $number LIMIT 1");
	return sprintf("SELECT tessera.move_range('t', %s, %s, '%s')", range_of($number, $number), $owner == 2 ? 's3' : 's2');
}

is($c->query('s1', "SELECT count(*), count(DISTINCT node_id) FROM tessera.chunk"), "$chunks|3", 'all chunks are there, on all shards');
routes_alike('made');
nothing_left('made');
cmp_ok($c->query('s2', "SELECT bytes $facts"), '<', 60 * $chunks, 'memory for each chunk');
cmp_ok($c->query('s2', "SELECT pages $facts"), '<', $chunks / 100, 'some hundreds on a page');

few_pages(split_at(0), 'split of the first chunk');
few_pages(split_at($chunks), 'split of the last chunk');
few_pages(split_at($chunks / 2), 'split in the middle');
few_pages(merge_at(0), 'merge of the first two');
few_pages(merge_at($chunks), 'merge of the last two');
few_pages(merge_at($chunks / 2), 'merge in the middle');
few_pages(move_at(0), 'move of the first chunk');
few_pages(move_at($chunks - 1), 'move of the last chunk');
few_pages(move_at($chunks / 2), 'move in the middle');
routes_alike('single changes');
is($c->query('s3', 'SELECT count(*) FROM t'), '2000', 'all rows are found');

# Random changes, while others read by images that are replaced meanwhile; several changes at a time.
my $load = $c->pgbench_start(nodes => [ 's2', 's3' ], seconds => 600, clients => 3, rate => 100, protocol => 'prepared', scripts => {
	"\\set k random(1, 2000)\nSELECT 1 / count(*) FROM t WHERE k = :k;\n" => 4,
	"BEGIN;\nSELECT 1 / (count(*) = 2000)::int FROM t;\nSELECT chunks, pages $facts;\nSELECT 1 / (count(*) = 2000)::int FROM t;\nCOMMIT;\n" => 1 });
srand(341);
my $changed = 0;
my $rounds = TesseraCluster::long() ? 8 : 4;
foreach my $round (1 .. $rounds)
{
	my $total = $c->query('s1', "SELECT chunks $facts");
	my @numbers = map { int(rand($total - 8)) } 1 .. 4;
	my @statements = ((map { split_at($_) } @numbers[0, 1]), merge_at($numbers[2]), $round % 3 == 0 ? move_at($numbers[3]) : split_at($numbers[3]));
	my @runs = map { $c->background(($c->names)[ $_ % 3 ], $statements[$_]) } 0 .. $#statements;
	# two chunks of different shards are not merged, and two changes may be about the same chunk
	foreach my $run (@runs)
	{
		my $error = $c->ended($run);
		$changed++ unless $error;
		like($error, qr/^$|different shards|already a boundary|inside one chunk|is in the way|no chunks begin|were changed|TS002/, 'a random change');
	}
}
cmp_ok($changed, '>', 2 * $rounds, "$changed random changes");
my $sums = $load->stop;
is($sums->{errors} =~ s/.*(pgbench: (?:hint|detail)).*//gr =~ /ERROR|aborted/ ? $sums->{errors} : '', '', 'readers saw all rows all the time');
routes_alike('random changes');
nothing_left('random changes');

# No room in shared memory: the server refuses it by an error, while it holds the locks of the area. The session goes by an image of its own.
$c->query('s2', "SELECT tessera_test.injection_set('shared_image_room', 'skip', NULL)");
$c->query('s1', split_at(100));
$c->query('s2', 'SELECT tessera.reload_routing()');
my $count = $c->query('s1', "SELECT chunks $facts");
ok($c->wait_for('s2', "SELECT chunks, private $facts", "$count|t"), 'no room: an image of its own');
is($c->query('s2', 'BEGIN; UPDATE t SET v = v + 1; SELECT count(*), min(v) FROM t; ROLLBACK'), '2000|1', 'no room: statements go on');
$c->query('s1', split_at(200));
$c->query('s2', 'SELECT tessera.reload_routing()');
ok($c->wait_for('s2', "SELECT chunks, private $facts", ($count + 1) . '|t'), 'no room: the next change is seen');
$c->go_on('s2');
ok($c->wait_for('s2', "SELECT chunks, private $facts", ($count + 1) . '|f'), 'there is room again: it is shared');
routes_alike('room again');
nothing_left('room again');

# An error while an old image is freed: what it was about is freed later.
$c->query('s2', "SELECT tessera_test.injection_set('image_free', 'error')");
foreach my $number (300, 400)
{
	$c->query('s1', split_at($number));
	$c->psql('s2', 'SELECT tessera.reload_routing()');
}
ok($c->wait_for('s2', "SELECT hits FROM tessera_test.injection_list() WHERE name = 'image_free'", '1'), 'an image could not be freed');
$c->go_on('s2');
routes_alike('freed later');
nothing_left('freed later');

# Another term: the same versions may mean other chunks, no page is taken over.
$c->add_standby('s1');
$c->promote('s1', tell => 's2');
ok($c->wait_for('s1', 'SELECT metadata_known FROM tessera.promotion_status()'), 'the config node is promoted');
ok($c->wait_for($_, "SELECT term $facts", $c->query('s1', 'SELECT term FROM tessera.identity')), "the new term on $_") foreach $c->names;
routes_alike('promoted');
is($c->query('s2', "SELECT written_pages = pages $facts"), 't', 'promoted: no page of the old term is left');
is($c->query('s2', 'SELECT count(*) FROM t'), '2000', 'promoted: all rows are found');
few_pages(split_at(500), 'split in the new term');

$c->restart('s3');
is($c->query('s3', "SELECT written_pages = pages $facts"), 't', 'after a restart all pages are made');
routes_alike('restarted');
few_pages(move_at($chunks / 2), 'move after the restart');
$c->is_sound('at the end', 2000);

done_testing();
