-- A table becomes a partition and gets the key that its parent has.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c43 CASCADE;
CREATE SCHEMA c43;
CREATE TABLE c43.reading (sensor int, at date, PRIMARY KEY (sensor, at)) PARTITION BY RANGE (at);
SELECT tessera.shard_table('c43.reading', 'sensor', strategy => 'range');
CREATE TABLE c43.reading_2021 (sensor int NOT NULL, at date NOT NULL);
ALTER TABLE c43.reading ATTACH PARTITION c43.reading_2021 FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
