-- Grouping sets, windows, DISTINCT, joins and limits over the rows of all shards.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c28 CASCADE;
CREATE SCHEMA c28;
CREATE TABLE c28.s (x int, y int, cat text, v numeric, at date, PRIMARY KEY (x, y));
CREATE TABLE c28.u (id bytea PRIMARY KEY, name text);
CREATE TABLE c28.c (account bytea, id bytea, start int, PRIMARY KEY (account, id));
SELECT tessera.shard_table('c28.s', 'x', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c28.u', 'id', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c28.c', 'account', strategy => 'hash', colocate_with => 'c28.u');
INSERT INTO c28.s SELECT g % 10, g, 'c' || g % 3, CASE WHEN g % 7 <> 0 THEN g * 1.25 END, date '2024-01-01' + g % 40 FROM generate_series(1, 120) g;
INSERT INTO c28.u VALUES ('\x5b3f', 'p'), ('\x5aff', 'q'), ('\x0001', 'r'), ('\x', 's');
INSERT INTO c28.c VALUES ('\x5aff', '\x01', 10), ('\x5b3f', '\x02', 20), ('\x5aff', '\x03', NULL), ('\x9999', '\x04', 40), ('\x5aff', '\x02', 5);
SELECT * FROM (SELECT x % 2 AS e, cat, count(*) AS n, grouping(x % 2, cat) AS g FROM c28.s GROUP BY GROUPING SETS ((x % 2), (cat),
	())) q ORDER BY g, e, cat;
SELECT x, cat, count(*), grouping(x, cat) FROM c28.s WHERE x < 3 GROUP BY CUBE (x, cat) ORDER BY 4, 1, 2;
SELECT x, sum(v), count(v), avg(v) FROM c28.s GROUP BY ROLLUP (x) HAVING count(*) > 1 ORDER BY x NULLS FIRST LIMIT 3;
SELECT GROUPING(cat), cat, max(at) FROM c28.s GROUP BY DISTINCT ROLLUP (cat), ROLLUP (cat) ORDER BY 1, 2;
SELECT avg(v)::numeric(10, 3) FROM c28.s GROUP BY cat ORDER BY cat;
SELECT cat, count(*) FROM c28.s GROUP BY cat, x ORDER BY count(*), cat LIMIT 4;
SELECT DISTINCT x, count(v) FROM c28.s GROUP BY x, v ORDER BY 2 DESC, 1 LIMIT 10;
SELECT DISTINCT ON (s.cat, s.x % 2) s.cat AS x, s.y AS cat FROM c28.s s ORDER BY s.cat, s.x % 2, s.y DESC;
SELECT count(*), x FROM c28.s WHERE x IN (1, 3) GROUP BY x ORDER BY x;
SELECT count(DISTINCT b.x), a.cat FROM c28.s a JOIN c28.s b ON b.cat = a.cat AND b.y = a.y + 3 GROUP BY a.cat ORDER BY a.cat LIMIT 3;
SELECT DISTINCT u.id, max(c.start) OVER (PARTITION BY c.id) AS m FROM c28.u LEFT JOIN c28.c ON u.id = c.account WHERE u.id IN ('\x5b3f',
	'\x5aff') ORDER BY 1, 2;
SELECT DISTINCT u.id, max(c.start) OVER (PARTITION BY u.id) AS m FROM c28.u LEFT JOIN c28.c ON u.id = c.account ORDER BY 1, 2;
SELECT id, u.name, c.start FROM c28.u FULL JOIN (SELECT account AS id, start FROM c28.c) c USING (id) ORDER BY id, start;
SELECT coalesce(u.name, '-') AS n, count(*), sum(c.start) FROM c28.u FULL JOIN c28.c ON u.id = c.account AND c.start > 5 GROUP BY 1 ORDER BY 1;
SELECT DISTINCT cat, sum(x) OVER () FROM c28.s ORDER BY cat;
SELECT x, y FROM c28.s a WHERE x IN (SELECT avg(x) OVER (PARTITION BY x) FROM c28.s b WHERE b.x = a.x AND b.y < 5) AND y < 25 ORDER BY y;
SELECT x, y, sum(v) OVER w, first_value(y) OVER w, count(*) FILTER (WHERE v IS NULL) OVER (PARTITION BY x),
	ntile(2) OVER (PARTITION BY x ORDER BY y) FROM c28.s WHERE y <= 40 AND x > 6
  WINDOW w AS (PARTITION BY x ORDER BY at RANGE BETWEEN '10 days' PRECEDING AND '1 day' FOLLOWING EXCLUDE CURRENT ROW) ORDER BY x, y;
SELECT x, rank() OVER (ORDER BY sum(v) DESC NULLS LAST) FROM c28.s GROUP BY x ORDER BY 2, 1 LIMIT 4;
SELECT t.x, l.y, l.v FROM (SELECT DISTINCT x FROM c28.s WHERE x < 3) t, LATERAL (SELECT y,
	v FROM c28.s i WHERE i.x = t.x ORDER BY v DESC NULLS LAST, y LIMIT 2) l ORDER BY 1, 2;
SELECT percentile_disc(ARRAY[0.25, 0.5]) WITHIN GROUP (ORDER BY y) AS p, mode() WITHIN GROUP (ORDER BY cat DESC) AS m, string_agg(DISTINCT cat,
	',' ORDER BY cat DESC) AS s,
  (array_agg(y ORDER BY v DESC NULLS LAST, y))[1:3] AS top, bool_and(v IS NOT NULL) AS b,
	count(*) FILTER (WHERE cat = 'c1') AS f FROM c28.s WHERE y < 30;
SELECT y FROM c28.s ORDER BY cat FETCH FIRST 0 ROWS WITH TIES;
SELECT cat FROM c28.s WHERE x = 4 ORDER BY cat FETCH FIRST 2 ROWS WITH TIES;
(SELECT x FROM c28.s WHERE x < 3 EXCEPT ALL SELECT x FROM c28.s WHERE y > 20) INTERSECT SELECT x FROM c28.s ORDER BY 1;
