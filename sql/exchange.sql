-- The data plane of a migration, both ends in one backend: messages from nothing to 20 MB each way, more than the queues hold, a client with a wrong key
-- kept out, and either side told when the other is gone.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS tessera;
CREATE EXTENSION IF NOT EXISTS tessera_test;
RESET client_min_messages;
\pset format unaligned
\pset tuples_only on

SELECT tessera_test.exchange_selftest();

-- Closing ends libzmq's threads; so does an error in the middle, with exchanges open (the wait for a refusal alone takes longer than that).
SELECT count(*) AS threads FROM pg_ls_dir('/proc/self/task');
SET statement_timeout = '300ms';
SELECT tessera_test.exchange_selftest();
RESET statement_timeout;
SELECT count(*) AS threads FROM pg_ls_dir('/proc/self/task');

-- It opens sockets: not for everybody.
CREATE ROLE regress_plain;
SELECT has_function_privilege('regress_plain', 'tessera_test.exchange_selftest()', 'EXECUTE') AS may_execute;
DROP ROLE regress_plain;
