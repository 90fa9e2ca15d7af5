-- The index is found by columns, expressions and predicate; each row is counted as inserted or updated; a row cannot be hit twice.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c26 CASCADE;
CREATE SCHEMA c26;
CREATE TABLE c26.acct (tenant int, id int, email text, hits int DEFAULT 1, seen timestamptz DEFAULT now(), deleted bool DEFAULT false,
  label text GENERATED ALWAYS AS (email || ' x' || hits::text) STORED, tags text[] DEFAULT '{}', PRIMARY KEY (tenant, id));
CREATE UNIQUE INDEX acct_live ON c26.acct (tenant, lower(email)) WHERE NOT deleted;
CREATE UNIQUE INDEX acct_c ON c26.acct (tenant, email COLLATE "C" text_pattern_ops) WHERE deleted AND hits > 100;
SELECT tessera.shard_table('c26.acct', 'tenant', strategy => 'hash', chunks => 6);
INSERT INTO c26.acct (tenant, id, email) SELECT t, i, 'User' || i || '@example.org' FROM generate_series(1, 5) t, generate_series(1, 3) i;
INSERT INTO c26.acct (tenant, id, email) VALUES (1, 9, 'USER1@example.org') ON CONFLICT (tenant, lower(email)) WHERE NOT deleted
  DO UPDATE SET hits = c26.acct.hits + excluded.hits, tags = c26.acct.tags || excluded.email RETURNING id, hits, label, tags,
	xmax::text = '0' AS inserted;
INSERT INTO c26.acct (tenant, id, email) VALUES (2, 9, 'new@example.org') ON CONFLICT (tenant, lower(email)) WHERE NOT deleted
  DO UPDATE SET hits = c26.acct.hits + excluded.hits RETURNING id, hits, label, xmax::text = '0' AS inserted;
INSERT INTO c26.acct (tenant, id, email) VALUES (3, 1, 'other@example.org') ON CONFLICT (tenant, lower(email)) WHERE NOT deleted DO NOTHING;
INSERT INTO c26.acct AS a (tenant, id, email, hits) VALUES (3, 1, 'byname@example.org', 7) ON CONFLICT ON CONSTRAINT acct_pkey
  DO UPDATE SET (email, hits) = (excluded.email, a.hits + excluded.hits), seen = DEFAULT, tags = DEFAULT WHERE a.hits < 5 RETURNING a.id, a.email,
	a.hits, a.label, a.tags, a.seen = now() AS now_seen;
INSERT INTO c26.acct (tenant, id, email) VALUES (4, 9, 'User2@example.org') ON CONFLICT DO NOTHING RETURNING id;
INSERT INTO c26.acct (tenant, id, email) VALUES (4, 9, 'User2@example.org') ON CONFLICT (tenant, id) DO NOTHING;
INSERT INTO c26.acct (tenant, id, email, deleted, hits) VALUES (5, 10, 'old', true, 200), (5, 11, 'older', true, 200);
INSERT INTO c26.acct (tenant, id, email, deleted, hits) VALUES (5, 12, 'old', true, 300)
  ON CONFLICT (tenant, email COLLATE "C" text_pattern_ops) WHERE deleted AND hits > 100 DO UPDATE SET hits = excluded.hits RETURNING id, hits,
	label;
INSERT INTO c26.acct (tenant, id, email) VALUES (1, 1, 'x') ON CONFLICT (email) DO NOTHING;
INSERT INTO c26.acct (tenant, id, email) VALUES (1, 1, 'x') ON CONFLICT (tenant, lower(email)) DO NOTHING;
PREPARE up(int, int, text, int) AS INSERT INTO c26.acct (tenant, id, email, hits) VALUES ($1, $2, $3, $4) ON CONFLICT (tenant,
	lower(email)) WHERE NOT deleted
  DO UPDATE SET hits = c26.acct.hits + $4 WHERE c26.acct.hits < $4 + 100 RETURNING id, hits;
EXECUTE up(2, 90, 'user3@EXAMPLE.org', 10);
EXECUTE up(2, 90, 'user3@EXAMPLE.org', 20);
EXECUTE up(3, 90, 'user3@EXAMPLE.org', 10);
EXECUTE up(4, 90, 'user3@EXAMPLE.org', 10);
EXECUTE up(5, 90, 'user3@EXAMPLE.org', 10);
EXECUTE up(2, 90, 'user3@EXAMPLE.org', 500);
EXECUTE up(2, 90, 'user3@EXAMPLE.org', 1);
-- many rows, some there, some twice: the two are far apart
INSERT INTO c26.acct (tenant, id, email) SELECT 1 + g % 5, 100 + g, 'bulk' || g FROM generate_series(1, 500) g ON CONFLICT (tenant,
	lower(email)) WHERE NOT deleted
  DO UPDATE SET hits = c26.acct.hits + 1;
INSERT INTO c26.acct (tenant, id, email) SELECT 1 + g % 5, 1000 + g, 'BULK' || g FROM generate_series(251, 750) g ON CONFLICT (tenant,
	lower(email)) WHERE NOT deleted
  DO UPDATE SET hits = c26.acct.hits + 1;
SELECT count(*), count(*) FILTER (WHERE hits = 2) AS twice FROM c26.acct WHERE lower(email) LIKE 'bulk%';
INSERT INTO c26.acct (tenant, id, email) SELECT 3, 5000 + g, 'same' || g % 600 FROM generate_series(1, 601) g ON CONFLICT (tenant,
	lower(email)) WHERE NOT deleted
  DO UPDATE SET hits = c26.acct.hits + 1;
SELECT count(*) FROM c26.acct WHERE email LIKE 'same%';
INSERT INTO c26.acct (tenant, id, email) SELECT 3, 5000 + g, 'same' || g % 600 FROM generate_series(1, 601) g ON CONFLICT (tenant,
	lower(email)) WHERE NOT deleted DO NOTHING;
SELECT tenant, id, email, hits, label FROM c26.acct WHERE id < 100 ORDER BY tenant, id;
