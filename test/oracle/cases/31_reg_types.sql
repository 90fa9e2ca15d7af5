-- Values of regclass, regproc, regtype and so on name the same objects, whichever node has the row; they can be stored, compared, grouped and
-- moved.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c31 CASCADE;
CREATE SCHEMA c31;
CREATE TABLE c31.hook (id int PRIMARY KEY, fn regproc, fp regprocedure, op regoperator, cls regclass, typ regtype, rol regrole, ns regnamespace,
	cfg regconfig, coll regcollation);
CREATE TABLE c31.hook_copy (LIKE c31.hook INCLUDING ALL);
CREATE TYPE c31.shade AS ENUM ('dark');
CREATE FUNCTION c31.only_one(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION c31.many(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION c31.many(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
SELECT tessera.shard_table('c31.hook', 'id', strategy => 'range');
SELECT tessera.shard_table('c31.hook_copy', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c31.hook (id, fn, fp) VALUES (1, 'c31.only_one', 'c31.only_one(int)');
INSERT INTO c31.hook (id, cls, typ, ns) VALUES (2, 'c31.hook', 'c31.shade', 'c31'), (7, 'pg_class', 'c31.shade[]', 'pg_catalog');
INSERT INTO c31.hook (id, op, cfg, coll) VALUES (3, '||/', 'english', '"C"'), (8, '|/', 'simple', '"C"');
INSERT INTO c31.hook (id, typ) VALUES (4, 'numeric(4, 2)'), (9, 'timestamptz');
SELECT tessera.move_range('c31.hook', 3, 6, 's2');
SELECT tessera.move_range('c31.hook', 6, tessera.maxkey(), 's3');
SELECT tessera.move_range('c31.hook', tessera.minkey(), 3, 's1');
SELECT id, fn, fp FROM c31.hook WHERE fp IS NOT NULL ORDER BY id;
SELECT id, op, cls, typ, ns, cfg, coll FROM c31.hook ORDER BY id;
SELECT h.id, c.relkind FROM c31.hook h JOIN pg_class c ON c.oid = h.cls ORDER BY h.id;
SELECT typ::text, count(*) FROM c31.hook GROUP BY typ ORDER BY typ::text;
INSERT INTO c31.hook_copy SELECT * FROM c31.hook;
SELECT count(*) FROM c31.hook_copy a JOIN c31.hook b ON a.id = b.id AND a.typ IS NOT DISTINCT FROM b.typ AND a.fn IS NOT DISTINCT FROM b.fn AND a.fp IS NOT DISTINCT FROM b.fp;
SELECT count(tableoid), count(*), min(tableoid::regclass::text), max(tableoid::regclass::text) FROM c31.hook;
SELECT r,
	count(*) FROM (SELECT tableoid::regclass AS r FROM c31.hook UNION ALL SELECT tableoid::regclass FROM c31.hook_copy) u GROUP BY r ORDER BY r::text;
SELECT count(*) FROM c31.hook WHERE tableoid = 'c31.hook'::regclass;
UPDATE c31.hook SET typ = 'c31.shade'::regtype, cls = 'c31.hook_copy' WHERE id = 8 RETURNING typ, cls;
UPDATE c31.hook SET id = id + 10 WHERE id = 2 RETURNING id, cls, typ;
ALTER TABLE c31.hook_copy RENAME TO hook_moved;
ALTER TYPE c31.shade RENAME TO tint;
SELECT id, cls, typ FROM c31.hook WHERE cls IS NOT NULL ORDER BY id;
