-- Type xml keeps the text it was given; x::text and XMLSERIALIZE show it with its declaration, before and after a move.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c10 CASCADE;
CREATE SCHEMA c10;
CREATE TABLE c10.doc (id int PRIMARY KEY, x xml, digest text);
INSERT INTO c10.doc VALUES (1, '<?xml version="1.0" encoding="UTF-8"?><a>1</a>'), (2, '<?xml version="1.0"?><a>2</a>'), (3, 'text<b/>');
SELECT id, x::text FROM c10.doc ORDER BY id;
SELECT tessera.shard_table('c10.doc', 'id', strategy => 'range');
SELECT tessera.move_range('c10.doc', tessera.minkey(), 2, 's1');
SELECT tessera.move_range('c10.doc', 2, 4, 's2');
SELECT tessera.move_range('c10.doc', 4, tessera.maxkey(), 's3');
INSERT INTO c10.doc VALUES (4, '<?xml version="1.0" encoding="UTF-8" standalone="yes"?><a>4</a>'), (5,
	'<?xml version="1.0" encoding="UTF-8"?>' || chr(10) || '<a>5</a>');
INSERT INTO c10.doc SELECT 6, x FROM c10.doc WHERE id = 1;
COPY c10.doc (id, x) FROM STDIN;
7	<?xml version="1.0" encoding="UTF-8"?><a>7</a>
\.
UPDATE c10.doc SET digest = md5(x::text);
SELECT id, replace(x::text, chr(10), '|') AS stored, length(x::text) FROM c10.doc ORDER BY id;
SELECT id, replace(xmlserialize(CONTENT x AS text), chr(10), '|') AS serialized FROM c10.doc WHERE id = 4;
SELECT id, digest = md5(x::text) AS same FROM c10.doc ORDER BY id;
SELECT tessera.move_range('c10.doc', tessera.minkey(), tessera.maxkey(), 's1');
SELECT tessera.move_range('c10.doc', 3, tessera.maxkey(), 's2');
SELECT id, digest = md5(x::text) AS same FROM c10.doc ORDER BY id;
