-- What COPY reads and writes by its options: delimiters, quotes, strings for NULL, escapes, columns in another order, conditions; literals of time.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c14 CASCADE;
CREATE SCHEMA c14;
CREATE TABLE c14.spice (gone int, gone_too text, id int, name text, flavor text DEFAULT 'plain', ph numeric, PRIMARY KEY (id));
ALTER TABLE c14.spice DROP COLUMN gone, DROP COLUMN gone_too;
SELECT tessera.shard_table('c14.spice', 'id', strategy => 'hash', chunks => 6);
COPY c14.spice (name, id, flavor, ph) FROM STDIN (DELIMITER '|', NULL 'empty');
a\\b|1|tab\there|1.5
pipe\|inside|2|empty|empty
"empty"|3|new\nline|2
\x41\102|4|\\empty|3
\empty|5| empty|4
_''odd*(#\\)@|6||5
\.
COPY c14.spice FROM STDIN (FORMAT csv, HEADER, QUOTE '''', ESCAPE '\', NULL 'nil', FORCE_NULL (flavor), FORCE_NOT_NULL (name));
id,name,flavor,ph
10,nil,'nil',1
11,'it\'s','two
lines',2
12,'a,b',nil,nil
13,'\\','',3
\.
COPY c14.spice (id, name) FROM STDIN (FORMAT csv, HEADER MATCH);
id,name
20,twenty
\.
COPY c14.spice (id, name) FROM STDIN (FORMAT csv, HEADER MATCH);
id,title
21,no
\.
COPY c14.spice (ph, id, name) FROM STDIN WHERE ph > 1 AND name <> 'skip';
0.5	30	low
1.5	31	high
2.5	32	skip
\.
SELECT id, replace(replace(quote_nullable(name), chr(10), '<nl>'), chr(9), '<tab>') AS name, replace(replace(quote_nullable(flavor), chr(10),
	'<nl>'), chr(9), '<tab>') AS flavor, ph
  FROM c14.spice ORDER BY id;
COPY (SELECT * FROM c14.spice ORDER BY id) TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE (name), NULL 'nil');
COPY (SELECT id, name, flavor FROM c14.spice ORDER BY id) TO STDOUT (DELIMITER ',', NULL '');
DELETE FROM c14.spice WHERE id <> 11;
COPY c14.spice (flavor, id) TO STDOUT (FORMAT csv, QUOTE '"', FORCE_QUOTE *);
COPY c14.spice TO STDOUT (FORMAT csv, HEADER, DELIMITER ';');

-- defaults that are drawn for each row, and literals of time
CREATE TABLE c14.visit (id int PRIMARY KEY, token uuid DEFAULT gen_random_uuid(), at timestamptz, made timestamptz DEFAULT now());
SELECT tessera.shard_table('c14.visit', 'id', strategy => 'hash', chunks => 6);
BEGIN;
COPY c14.visit (id, at) FROM STDIN;
1	now
2	now
3	now
4	now
5	now
6	now
7	now
8	now
\.
SELECT count(DISTINCT at) AS moments, count(*) FILTER (WHERE at = now()) AS of_this_transaction, count(DISTINCT token) AS tokens,
	count(DISTINCT made) AS made FROM c14.visit;
COMMIT;
COPY c14.visit (id) FROM STDIN;
8
\.
SELECT count(*) FROM c14.visit;
