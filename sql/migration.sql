-- The states of a migration as one table, and that the table is whole, for the state of the process and for that of the row: every state but the first
-- is reached, every state but the last ones is left, an abort is possible from every state before the decision. doc/migration.md shows it:
-- test/lint/transitions.py compares.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS tessera;
RESET client_min_messages;
\set VERBOSITY terse

SELECT side, from_state, to_state, kept_in, who, durable, comment FROM tessera.migration_transitions();

-- In the process and in the row alike.
CREATE TEMP VIEW migration_kept AS SELECT k.kept, t.* FROM tessera.migration_transitions() AS t, (VALUES ('process'), ('row')) AS k(kept) WHERE t.kept_in IN (k.kept, 'both');
SELECT kept, side, string_agg(state, ', ' ORDER BY state) FILTER (WHERE NOT reached) AS first_states, string_agg(state, ', ' ORDER BY state) FILTER (WHERE NOT "left") AS last_states
FROM (SELECT s.kept, s.side, s.state, EXISTS (SELECT FROM migration_kept AS t WHERE t.kept = s.kept AND t.side = s.side AND t.to_state = s.state) AS reached,
        EXISTS (SELECT FROM migration_kept AS t WHERE t.kept = s.kept AND t.side = s.side AND t.from_state = s.state) AS "left"
      FROM (SELECT kept, side, from_state AS state FROM migration_kept UNION SELECT kept, side, to_state FROM migration_kept) AS s) AS q
GROUP BY kept, side ORDER BY kept, side;

-- Not reachable from the first state of its side.
WITH RECURSIVE r AS (SELECT * FROM (VALUES ('process', 'donor', 'registered'), ('process', 'recipient', 'prepared'), ('row', 'donor', 'none'), ('row', 'recipient', 'none'),
          ('row', 'config node', 'none')) AS v(kept, side, state)
        UNION SELECT t.kept, t.side, t.to_state FROM r JOIN migration_kept AS t ON t.kept = r.kept AND t.side = r.side AND t.from_state = r.state)
SELECT DISTINCT t.kept, t.side, t.from_state FROM migration_kept AS t
WHERE NOT EXISTS (SELECT FROM r WHERE r.kept = t.kept AND r.side = t.side AND r.state = t.from_state);

-- No way to abort.
SELECT kept, side, from_state FROM migration_kept GROUP BY kept, side, from_state
HAVING NOT bool_or(to_state IN ('aborting', 'aborted', 'discarded')) ORDER BY kept, side, from_state;
DROP VIEW migration_kept;

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
