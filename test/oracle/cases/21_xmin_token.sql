-- With the xmin that was read the row is changed, with an older one it is not; RETURNING tells the new one.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c21 CASCADE;
CREATE SCHEMA c21;
CREATE TABLE c21.doc (id int PRIMARY KEY, title text);
CREATE TABLE c21.setting (id int PRIMARY KEY, title text);
SELECT tessera.shard_table('c21.doc', 'id', strategy => 'hash', chunks => 6);
SELECT tessera.replicate_table('c21.setting');
INSERT INTO c21.doc SELECT g, 'doc ' || g FROM generate_series(1, 9) g;
INSERT INTO c21.setting SELECT g, 'setting ' || g FROM generate_series(1, 3) g;

SELECT xmin AS version FROM c21.doc WHERE id = 7 \gset
UPDATE c21.doc SET title = 'first' WHERE id = 7 AND xmin = :'version' RETURNING title, xmin::text <> :'version' AS newer;
UPDATE c21.doc SET title = 'too late' WHERE id = 7 AND xmin = :'version' RETURNING title;
PREPARE save(int, xid, text) AS UPDATE c21.doc SET title = $3 WHERE id = $1 AND xmin = $2 RETURNING title;
SELECT xmin AS version FROM c21.doc WHERE id = 7 \gset
EXECUTE save(7, :'version', 'second');
EXECUTE save(7, :'version', 'too late');
DELETE FROM c21.doc WHERE id = 7 AND xmin = :'version';
SELECT title FROM c21.doc WHERE id = 7;
-- read by all shards, written by key
SELECT id AS id1, xmin AS version1 FROM c21.doc ORDER BY id LIMIT 1 \gset
UPDATE c21.doc SET title = 'third' WHERE id = :id1 AND xmin = :'version1';
INSERT INTO c21.doc VALUES (20, 'new') RETURNING xmin::text <> '0' AS has_version, xmax;
INSERT INTO c21.doc VALUES (20, 'newer') ON CONFLICT (id) DO UPDATE SET title = excluded.title RETURNING xmax::text = '0' AS inserted;
INSERT INTO c21.doc VALUES (21, 'newer') ON CONFLICT (id) DO UPDATE SET title = excluded.title RETURNING xmax::text = '0' AS inserted;
SELECT count(*), count(xmin), count(cmin) FROM c21.doc;
SELECT xmin AS version FROM c21.setting WHERE id = 2 \gset
UPDATE c21.setting SET title = 'first' WHERE id = 2 AND xmin = :'version' RETURNING title;
UPDATE c21.setting SET title = 'too late' WHERE id = 2 AND xmin = :'version' RETURNING title;
SELECT id, title FROM c21.setting ORDER BY id;
SELECT id, title FROM c21.doc ORDER BY id;
