# README and "Roles and access" of doc/operations.md: the nodes reach each other as a role that is a superuser while they join, and a mere member of
# tessera_internal afterwards. What clients prepare, and what a crash leaves prepared, is finished then as well, whoever owns it.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('lesser', settings => { 'tessera.injection_points' => 'on', restart_after_crash => 'on' });
my $directory = PostgreSQL::Test::Utils::tempdir();
append_to_file("$directory/passfile", "*:*:*:cluster:secret\n");
chmod 0600, "$directory/passfile";
my %address;
foreach my $name ('s1', 's2')
{
	my $server = $c->start_node($name);
	$c->query($name, $_) foreach 'CREATE DATABASE shop', "CREATE ROLE cluster LOGIN PASSWORD 'secret'", 'CREATE ROLE app LOGIN';
	my $hba = slurp_file($server->data_dir . '/pg_hba.conf');
	open my $file, '>', $server->data_dir . '/pg_hba.conf' or die $!;
	print $file "host all cluster 127.0.0.1/32 scram-sha-256\n$hba";
	close $file;
	$server->reload;
	$address{$name} = sprintf('host=127.0.0.1 port=%d dbname=shop user=cluster passfile=%s/passfile', $server->port, $directory);
}
sub shop { my ($name, $sql) = @_; return $c->query($name, $sql, dbname => 'shop'); }
sub refused { my ($name, $sql) = @_; my ($status, undef, $error) = $c->psql($name, $sql, dbname => 'shop'); return $status == 3 ? $error : 'no error';
}

shop('s1', $_) foreach 'CREATE EXTENSION tessera', 'CREATE EXTENSION tessera_test';
my $create = "SELECT tessera.create_cluster('shop', '$address{s1}', shard => 's1')";
like(refused('s1', $create), qr/42501.*GRANT tessera_internal TO cluster/s, 'a role without rights is refused, and the hint says what it needs');
shop('s1', $_) foreach 'GRANT tessera_internal TO cluster', $create, 'CREATE TABLE orders (tenant_id int, n int, PRIMARY KEY (tenant_id))',
  'INSERT INTO orders SELECT g, 0 FROM generate_series(1, 3000) g', "SELECT tessera.shard_table('orders', 'tenant_id')", 'GRANT ALL ON orders TO app';
my $add = "SELECT tessera.add_shard('s2', '$address{s2}')";
like(refused('s1', $add), qr/42501.*HINT:  ALTER ROLE cluster SUPERUSER/s, 'a node joins as a superuser');
$c->query('s2', 'ALTER ROLE cluster SUPERUSER');
like(refused('s1', $add), qr/42501.*HINT:  GRANT pg_read_all_data TO cluster/s, 'the schema must be readable, and the hint says so');
shop('s1', $_) foreach 'GRANT pg_read_all_data TO cluster', $add;

# From here on with less.
shop('s1', $_) foreach 'ALTER ROLE cluster NOSUPERUSER; GRANT tessera_internal TO cluster', "SELECT tessera.move_range('orders', 1000, 2000, 's2')";
is($c->query('s2', "SELECT rolsuper FROM pg_roles WHERE rolname = 'cluster'"), 'f', 'the role is a superuser nowhere any more');
my $write = 'UPDATE orders SET n = n + 1 WHERE tenant_id IN (5, 1500)';
sub sum { return join(' ', map { shop($_, 'SELECT sum(n) FROM orders') } 's1', 's2'); }
sub parts { return join(' ', map { $c->query($_, 'SELECT count(*) FROM pg_prepared_xact()') } 's1', 's2'); }
foreach my $case ([ 'COMMIT', '2 2' ], [ 'ROLLBACK', '2 2' ])
{
	my ($end, $sum) = @$case;
	shop('s1', "SET ROLE app; BEGIN; $write; PREPARE TRANSACTION 'one'");
	my ($status, undef, $error) = $c->psql('s2', "SET ROLE app; $end PREPARED 'one'", dbname => 'shop');
	is("$status$error", '0', "$end PREPARED through the other node, without a warning");
	is(sum(), $sum, 'it is done');
	is(parts(), '0 0', 'nothing stays prepared');
}
like(refused('s2', "COMMIT PREPARED 'one'"), qr/42704/, 'it is gone');

# What the client's node could not finish is left to the resolver, which has no more rights.
shop('s1', "SET ROLE app; BEGIN; $write; PREPARE TRANSACTION 'two'");
like(refused('s2', "SET ROLE app; SET tessera.commit_timeout = '5s'; BEGIN; COMMIT PREPARED 'two'"), qr/25001/,
	'not in a transaction block, as on one server');
shop('s2', "SELECT tessera_test.injection_set('finish_decided', 'error')");
like(refused('s2', "COMMIT PREPARED 'two'"), qr/finish_decided/, 'decided, and carried out nowhere');
shop('s2', 'SELECT tessera_test.injection_clear()');
shop($_, "SELECT tessera.resolve_transactions('0')") foreach 's1', 's2';
is(sum() . ' ' . parts(), '4 4 0 0', 'the resolver has finished it');

# So it does with a transaction of two phases.
shop('s1', "SELECT tessera_test.injection_set('commit_decided', 'crash')");
$c->psql('s1', "SET ROLE app; BEGIN; $write; COMMIT", dbname => 'shop');
ok($c->wait_for('s1', 'SELECT 1', '1'), 'the server is back');
ok($c->wait_for($_, 'SELECT count(*) FROM pg_prepared_xact()', '0'), "nothing stays prepared on $_ after a crash") foreach 's1', 's2';
is(sum(), '6 6', 'and it is committed, as was decided');

# What clients do is seen from the other node, and ended by who may: but that somebody is a superuser a lesser role cannot say.
sub client
{
	my ($role) = @_;
	local $ENV{PGUSER} = $role if $role;
	my $session = $c->session('s2', dbname => 'shop', on_error_stop => 0);
	return ($session, $session->query('SELECT pg_backend_pid()'));
}
foreach my $role ('app', '')
{
	my ($session, $pid) = client($role);
	my $seen = "SELECT query FROM tessera.cluster_activity WHERE node = 's2' AND pid = $pid";
	like(shop('s1', $seen), qr/^SELECT pg_backend_pid/, 'a superuser sees statements on the other node');
	is(!!(shop('s1', "SET ROLE app; $seen") =~ /^SELECT/), $role eq 'app', 'others their own');
	if ($role eq 'app')
	{
		is(shop('s1', "SET ROLE app; SELECT tessera.terminate('s2', $pid)"), 't', 'who may ends a session there');
		ok($c->process_ends($pid), 'it has ended');
	}
	else
	{
		like(refused('s1', "SELECT tessera.terminate('s2', $pid)"), qr/42501: the role between the nodes is no superuser/,
			'a superuser\'s session stays');
	}
	$session->quit;
}

done_testing();
