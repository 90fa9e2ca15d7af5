-- Arrays of hstore, enums, composite types and domains come through COPY, INSERT, reads, joins, key updates and moves.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS hstore WITH SCHEMA public;
DROP SCHEMA IF EXISTS c15 CASCADE;
CREATE SCHEMA c15;
CREATE TYPE c15.mood AS ENUM ('sad', 'NULL', 'so so', 'glad');
CREATE DOMAIN c15.name AS varchar(8);
CREATE TYPE c15.pair AS (m c15.mood, n int, t text);
CREATE TYPE c15.nest AS (ps c15.pair[], h public.hstore);
CREATE TABLE c15.bag (k int PRIMARY KEY, hs public.hstore[], ms c15.mood[], ps c15.pair[], ns c15.name[],
	x c15.nest, r int4range, rs nummultirange);
CREATE TABLE c15.bag_copy (k int PRIMARY KEY, hs public.hstore[], ms c15.mood[], ps c15.pair[], ns c15.name[],
	x c15.nest, r int4range, rs nummultirange);
SELECT tessera.shard_table('c15.bag', 'k', strategy => 'range');
SELECT tessera.shard_table('c15.bag_copy', 'k', strategy => 'hash', chunks => 6);
SELECT tessera.move_range('c15.bag', 3, 6, 's2');
SELECT tessera.move_range('c15.bag', 6, tessera.maxkey(), 's3');
SELECT tessera.move_range('c15.bag', tessera.minkey(), 3, 's1');
COPY c15.bag (k, hs, ms) FROM STDIN;
1	{a=>1,b=>2}	{sad,"NULL",NULL,"so so"}
3	{NULL,a=>NULL}	[0:1]={glad,sad}
6	{}	{{sad,glad},{glad,sad}}
\.
INSERT INTO c15.bag VALUES
  (2, ARRAY[public.hstore('q"uote', 'back\slash'), NULL], NULL, ARRAY[ROW('so so', 1, 'a,b')::c15.pair, ROW(NULL, NULL, '')::c15.pair, NULL],
	ARRAY['x', NULL, 'NULL'],
   ROW(ARRAY[ROW('glad', 2, '"')::c15.pair], public.hstore('k', NULL)), '[1,5)', '{[1.5,2),(3,4]}'),
  (4, NULL, '{}', '{}', '{}', ROW(NULL, NULL), 'empty', '{}'),
  (7, ARRAY[public.hstore(ARRAY['a', 'b'], ARRAY['NULL', NULL])], ARRAY['NULL', NULL]::c15.mood[], NULL, NULL, NULL, NULL, NULL);
SELECT k, hs, ms FROM c15.bag ORDER BY k;
SELECT k, ps, ns, x, r, rs FROM c15.bag ORDER BY k;
SELECT k, ms[2] IS NULL AS second_null, array_lower(ms, 1) AS low, (x).h -> 'k' AS v, ((x).ps)[1].n AS n FROM c15.bag ORDER BY k;
SELECT k FROM c15.bag WHERE 'NULL' = ANY (ms) ORDER BY k;
SELECT m, count(*) FROM c15.bag, unnest(ms) m GROUP BY m ORDER BY m;
INSERT INTO c15.bag_copy SELECT * FROM c15.bag;
SELECT count(*) FROM c15.bag a JOIN c15.bag_copy b ON a.hs IS NOT DISTINCT FROM b.hs AND a.ms IS NOT DISTINCT FROM b.ms AND a.ps IS NOT DISTINCT FROM b.ps
  AND a.x::text IS NOT DISTINCT FROM b.x::text AND a.k = b.k;
UPDATE c15.bag SET ms[2] = 'glad', ps[1] = ROW('sad', 9, 'set')::c15.pair, x.h = public.hstore('set', 'too') WHERE k = 2 RETURNING k, ms, ps, x;
UPDATE c15.bag SET ms[2] = 'glad', ps[1] = ROW('sad', 9, 'set')::c15.pair, x.h = public.hstore('set', 'too') WHERE k = 3 RETURNING k, ms, ps, x;
UPDATE c15.bag SET k = k + 10 WHERE k = 2 RETURNING k, hs, ns, x;
ALTER TYPE c15.mood ADD VALUE 'fine' BEFORE 'glad';
ALTER TYPE c15.mood RENAME VALUE 'sad' TO 'blue';
ALTER TYPE c15.pair ADD ATTRIBUTE extra text;
UPDATE c15.bag SET ms = ms || 'fine'::c15.mood WHERE k = 6;
UPDATE c15.bag SET ms = ms || 'fine'::c15.mood WHERE k = 1;
SELECT tessera.move_range('c15.bag', tessera.minkey(), tessera.maxkey(), 's2');
SELECT k, ms, ps, x FROM c15.bag ORDER BY k;
SELECT m, count(*) FROM c15.bag, unnest(ms) m WHERE m > 'so so' GROUP BY m ORDER BY m DESC;
