-- Columns go by their names; rows are found by parent and by partition, before and after moves.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c13 CASCADE;
CREATE SCHEMA c13;
CREATE TABLE c13.reading (junk text, sensor int NOT NULL, at date NOT NULL, v numeric, note text DEFAULT 'n', PRIMARY KEY (sensor,
	at)) PARTITION BY RANGE (at);
CREATE TABLE c13.reading_2019 PARTITION OF c13.reading FOR VALUES FROM ('2019-01-01') TO ('2020-01-01');
SELECT tessera.shard_table('c13.reading', 'sensor', strategy => 'range');
INSERT INTO c13.reading SELECT 'j', g, date '2019-01-01' + g, g FROM generate_series(1, 12) g;
SELECT tessera.move_range('c13.reading', tessera.minkey(), 5, 's1');
SELECT tessera.move_range('c13.reading', 5, 9, 's2');
SELECT tessera.move_range('c13.reading', 9, tessera.maxkey(), 's3');
ALTER TABLE c13.reading DROP COLUMN junk;
ALTER TABLE c13.reading ADD COLUMN unit text DEFAULT 'K';
CREATE TABLE c13.reading_2020 PARTITION OF c13.reading FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE c13.reading_2021 (unit text DEFAULT 'C', note text DEFAULT 'ext', x int, v numeric, at date NOT NULL, sensor int NOT NULL,
  PRIMARY KEY (sensor, at));
ALTER TABLE c13.reading_2021 DROP COLUMN x;
ALTER TABLE c13.reading ATTACH PARTITION c13.reading_2021 FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
CREATE TABLE c13.reading_rest PARTITION OF c13.reading DEFAULT;

INSERT INTO c13.reading (sensor, at, v) SELECT g, date '2020-06-01' + g, g * 2 FROM generate_series(1, 12) g;
INSERT INTO c13.reading (at, v, sensor, note) SELECT date '2021-06-01' + g, g * 3, g, 'p' || g FROM generate_series(1, 12) g;
INSERT INTO c13.reading_2021 (sensor, at, v) VALUES (3, '2021-01-01', 33), (11, '2021-01-02', 44);
INSERT INTO c13.reading VALUES (7, '2030-01-01', 70, 'far', 'K');
COPY c13.reading (v, at, sensor) FROM STDIN (FORMAT csv);
1.5,2021-12-31,2
2.5,2020-12-31,6
3.5,1999-12-31,10
\.
SELECT tableoid::regclass AS partition, count(*), sum(v), min(sensor), max(sensor), min(note),
	max(unit) FROM c13.reading GROUP BY 1 ORDER BY (tableoid::regclass)::text;
INSERT INTO c13.reading (sensor, at, v) VALUES (3, '2021-01-01', 34), (3, '2020-06-04', 35) ON CONFLICT (sensor, at) DO UPDATE SET v = excluded.v,
	note = c13.reading.note || '!'
  RETURNING sensor, at, v, note, unit;
UPDATE c13.reading SET at = at + 366 WHERE sensor = 4 AND at < '2020-01-01' RETURNING sensor, at, v, note, unit;
UPDATE c13.reading SET sensor = sensor + 100 WHERE sensor = 5 AND at >= '2021-01-01' RETURNING sensor, at, v, note, unit;
SELECT tessera.move_range('c13.reading', 2, 7, 's3');
SELECT * FROM c13.reading WHERE sensor IN (2, 3, 6) ORDER BY sensor, at;
SELECT * FROM c13.reading_2021 ORDER BY sensor, at;
WITH d AS (DELETE FROM c13.reading WHERE sensor = 6 RETURNING tableoid::regclass::text AS p, sensor, v, unit) SELECT * FROM d ORDER BY p, v;
ALTER TABLE c13.reading DETACH PARTITION c13.reading_2021;
SELECT count(*), sum(v) FROM c13.reading_2021;
SELECT count(*), sum(v) FROM c13.reading;
