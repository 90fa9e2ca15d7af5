# A table with rows joins another group while a transaction at REPEATABLE READ on a shard, whose snapshot of another shard is older than the moves and
# the join, has not used it yet: what it then sees of the table are all its rows, or 40001, never fewer.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('colocate_snapshot', settings => { 'tessera.registry_refresh_interval' => 3600 });
$c->create(shards => 3);
$c->query('s1', $_) foreach ('CREATE TABLE other (k int PRIMARY KEY, v int)', 'INSERT INTO other SELECT g, g FROM generate_series(1, 60) g',
	"SELECT tessera.shard_table('other', 'k')", "SELECT tessera.move_range('other', 30, tessera.maxkey(), 's2')",
	'CREATE TABLE t (k int PRIMARY KEY, v int)', 'INSERT INTO t SELECT g, g FROM generate_series(1, 60) g');
$c->query($_, 'SELECT count(*) FROM other JOIN t USING (k)') foreach 's1', 's2', 's3';

foreach my $statement ('SELECT count(*) FROM t', 'SELECT count(*) FROM t WHERE k = 45', 'UPDATE t SET v = v WHERE k = 45 RETURNING k')
{
	my $expected = $statement =~ /^UPDATE/ ? '45' : $statement =~ /WHERE/ ? '1' : '60';
	my @sessions = map { $c->session($_, on_error_stop => 0) } 's1', 's3';
	foreach my $session (@sessions)
	{
		$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
		is($session->query_safe('SELECT v FROM other WHERE k = 45'), '45', 'its snapshot of the shard is taken');
	}
	$c->query('s2', "SELECT tessera.shard_table('t', 'k', colocate_with => 'other')");
	is($c->query('s2', $statement), $expected, "$statement: elsewhere");
	foreach my $session (@sessions)
	{
		my $answer = $session->query($statement);
		my $said = $session->{stderr};
		like($answer eq '' ? $said : $answer, qr/^$expected$|could not serialize access/, "$statement: all rows, or an error");
		$session->{stderr} = '';
		$session->query('ROLLBACK');
		is($session->query_safe($statement), $expected, "$statement: afterwards");
		$session->quit;
	}
	$c->query('s1', 'DROP TABLE t');
	$c->query('s1', $_) foreach ('CREATE TABLE t (k int PRIMARY KEY, v int)', 'INSERT INTO t SELECT g, g FROM generate_series(1, 60) g');
}
is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'nothing is inconsistent');
done_testing();
