-- The states of a migration as one table, and that the table is whole: every state but the first is reached, every state but the last ones is left, an abort is possible
-- from every state before the decision, and each side has one way on.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS tessera;
RESET client_min_messages;
\set VERBOSITY terse

SELECT side, from_state, to_state, durable, comment FROM tessera.migration_transitions();

WITH t AS (SELECT * FROM tessera.migration_transitions())
SELECT side, string_agg(state, ', ' ORDER BY state) FILTER (WHERE NOT reached) AS first_states, string_agg(state, ', ' ORDER BY state) FILTER (WHERE NOT "left") AS last_states
FROM (SELECT s.side, s.state, EXISTS (SELECT FROM t WHERE t.side = s.side AND t.to_state = s.state) AS reached,
        EXISTS (SELECT FROM t WHERE t.side = s.side AND t.from_state = s.state) AS "left"
      FROM (SELECT side, from_state AS state FROM t UNION SELECT side, to_state FROM t) AS s) AS q
GROUP BY side ORDER BY side;

-- Reachable from the first state of its side.
WITH RECURSIVE t AS (SELECT * FROM tessera.migration_transitions()),
  r AS (SELECT 'donor' AS side, 'registered' AS state UNION SELECT 'recipient', 'prepared'
        UNION SELECT t.side, t.to_state FROM r JOIN t ON t.side = r.side AND t.from_state = r.state)
SELECT DISTINCT t.side, t.from_state FROM t WHERE NOT EXISTS (SELECT FROM r WHERE r.side = t.side AND r.state = t.from_state);

-- No way to abort.
SELECT side, from_state FROM tessera.migration_transitions() GROUP BY side, from_state
HAVING NOT bool_or(to_state IN ('aborting', 'aborted', 'discarded')) ORDER BY side, from_state;

-- Outside of a cluster.
CREATE TABLE migration_t (k int PRIMARY KEY);
SELECT tessera.move_range('migration_t', 1, 2, 's2');
SELECT tessera.move_chunk('migration_t', 1, 's2');
SELECT tessera.cancel_migration('00000000-0000-0000-0000-000000000000');
SELECT * FROM tessera.migrations;
SELECT * FROM tessera.stat_progress_migration;
SELECT * FROM tessera.range_deletions;
DROP TABLE migration_t;

CREATE ROLE migration_nobody;
SET ROLE migration_nobody;
SELECT tessera.move_range('pg_class', 1, 2, 's2');
SELECT tessera_internal.donate('00000000-0000-0000-0000-000000000000', '{}');
SELECT count(*) FROM tessera.migrations;
RESET ROLE;
DROP ROLE migration_nobody;
