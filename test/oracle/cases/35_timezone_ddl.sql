-- Bounds, defaults, checks and generated values mean what they meant in the session that made them, on every node and for every later session.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c35 CASCADE;
CREATE SCHEMA c35;
SET TIME ZONE 'Asia/Kolkata';
SET DateStyle = 'SQL, DMY';
SET IntervalStyle = 'sql_standard';
CREATE TABLE c35.ev (k int, at timestamptz NOT NULL DEFAULT '03/02/2024 10:00', day date DEFAULT '04/05/2024', len interval DEFAULT '-1 2:03:04',
	v int,
  CHECK (at >= '01/02/2024 00:00'), CHECK (day > '01/02/2023'), PRIMARY KEY (k, at)) PARTITION BY RANGE (at);
CREATE TABLE c35.ev_feb PARTITION OF c35.ev FOR VALUES FROM ('01/02/2024') TO ('01/03/2024');
CREATE TABLE c35.ev_mar PARTITION OF c35.ev FOR VALUES FROM ('01/03/2024') TO ('01/04/2024');
SELECT tessera.shard_table('c35.ev', 'k', strategy => 'range');
CREATE VIEW c35.late AS SELECT k, v FROM c35.ev WHERE at > '15/02/2024 12:00' AND len < '1 day';
CREATE TABLE c35.plain_ts (k int PRIMARY KEY, t timestamp, u text);
INSERT INTO c35.plain_ts VALUES (1, '05/03/2024 10:00', '05/03/2024 10:00'), (4, '05/03/2024 11:00', '06/03/2024 10:00'), (8, '05/03/2024 12:00',
	'07/03/2024 10:00');
SELECT tessera.shard_table('c35.plain_ts', 'k', strategy => 'range');
SELECT tessera.move_range('c35.ev', 4, 8, 's2');
SELECT tessera.move_range('c35.ev', 8, tessera.maxkey(), 's3');
SELECT tessera.move_range('c35.ev', tessera.minkey(), 4, 's1');
SELECT tessera.move_range('c35.plain_ts', 4, 8, 's2');
SELECT tessera.move_range('c35.plain_ts', 8, tessera.maxkey(), 's3');
SELECT tessera.move_range('c35.plain_ts', tessera.minkey(), 4, 's1');
INSERT INTO c35.ev (k, v) SELECT g, g FROM generate_series(1, 10) g;
INSERT INTO c35.ev (k, at, v) SELECT g, '01/03/2024 00:00', g FROM generate_series(1, 10) g;
ALTER TABLE c35.ev ADD COLUMN noted timestamptz DEFAULT '07/08/2024 09:00';
ALTER TABLE c35.plain_ts ALTER t TYPE timestamptz, ALTER u TYPE date USING u::date;

SET TIME ZONE 'America/New_York';
SET DateStyle = 'ISO, MDY';
SET IntervalStyle = 'postgres';
INSERT INTO c35.ev (k, at, v) SELECT 20 + g, timestamptz '2024-02-29 18:29:59+00' + g * interval '1 second', g FROM generate_series(0, 1) g;
INSERT INTO c35.ev (k, v) VALUES (30, 30);
INSERT INTO c35.ev (k, at) VALUES (31, '2024-01-31 18:29:59+00');
SELECT tableoid::regclass::text AS part, count(*), min(at AT TIME ZONE 'UTC'), max(at AT TIME ZONE 'UTC') FROM c35.ev GROUP BY 1 ORDER BY 1;
SELECT k, at AT TIME ZONE 'UTC' AS at, day, len, noted AT TIME ZONE 'UTC' AS noted FROM c35.ev WHERE k IN (1, 5, 9, 30) ORDER BY k, at;
SELECT count(*), sum(v) FROM c35.late;
SELECT k, t AT TIME ZONE 'UTC' AS t, u FROM c35.plain_ts ORDER BY k;
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'c35.ev'::regclass AND contype = 'c' ORDER BY conname;
SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = 'c35.ev_mar'::regclass;
SELECT date_trunc('day', at) AS d, count(*) FROM c35.ev GROUP BY 1 ORDER BY 1;
PREPARE days AS SELECT date_trunc('day', at)::text AS d, count(*) FROM c35.ev WHERE at >= '2024-02-29' GROUP BY 1 ORDER BY 1;
EXECUTE days;
SET TIME ZONE 'Asia/Kolkata';
EXECUTE days;
SET TIME ZONE 'UTC';
EXECUTE days;
INSERT INTO c35.ev (k, at, v) VALUES (1, '2024-02-29 18:30+00', 100), (5, '2024-02-29 18:30+00', 100) ON CONFLICT (k,
	at) DO UPDATE SET v = excluded.v;
SELECT sum(v) FROM c35.ev WHERE at = '2024-02-29 18:30+00';
CREATE TABLE c35.ev_apr PARTITION OF c35.ev FOR VALUES FROM ('2024-03-31 18:30+00') TO ('2024-05-01');
INSERT INTO c35.ev (k, at) VALUES (7, '2024-03-31 18:30+00'), (7, '2024-03-31 18:29:59+00') RETURNING tableoid::regclass::text, at;
