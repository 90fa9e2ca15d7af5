# A statement that is cancelled while it waits for another node ends as any other: it leaves no subtransaction behind, in which the session would go
# on until a ROLLBACK ends it.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('cancelled_views');
$c->create(shards => 2);
$c->query('s1', 'TABLE tessera.advisory_locks');

# s2 answers this when the lock is gone
my $holder = $c->session('s2');
$holder->query_safe('BEGIN; LOCK TABLE tessera.identity IN ACCESS EXCLUSIVE MODE');
my $session = $c->session('s1', on_error_stop => 0);
$session->query('SET statement_timeout = 1000');
$session->query('TABLE tessera.advisory_locks');
like($session->{stderr}, qr/canceling statement due to statement timeout/, 'the view waits and is cancelled');
$session->{stderr} = '';
$holder->query_safe('ROLLBACK');
is($session->query('SELECT 1'), '1', 'the session goes on') or diag $session->{stderr};
$session->query('ROLLBACK');
is($session->query('SELECT 2'), '2', 'also after ROLLBACK') or diag $session->{stderr};
$session->quit;
$holder->quit;
done_testing();
