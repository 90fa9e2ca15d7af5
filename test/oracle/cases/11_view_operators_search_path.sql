-- A view means the operators that it was made with, whatever the search path of who reads it. citext compares without case.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS citext WITH SCHEMA public;
DROP SCHEMA IF EXISTS c11 CASCADE;
CREATE SCHEMA c11;
SET search_path = c11, public;
CREATE TABLE c11.member (id int PRIMARY KEY, email public.citext, level int);
SELECT tessera.shard_table('c11.member', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c11.member VALUES (1, 'root@example.org', 1), (2, 'Ann@example.org', 2), (3, 'NONE', 3), (4, 'none', 4), (5, 'bob@example.org', 5), (6,
	'Admin@Example.Org', 6),
  (7, NULL, 7), (8, 'ANN@EXAMPLE.ORG', 8), (9, 'Zoe@example.org', 9);
CREATE VIEW c11.not_root AS SELECT id FROM c11.member WHERE email IS DISTINCT FROM 'ROOT@EXAMPLE.ORG';
CREATE VIEW c11.with_mail AS SELECT id FROM c11.member WHERE nullif(email, 'None') IS NOT NULL;
CREATE VIEW c11.admins AS SELECT id FROM c11.member WHERE CASE email WHEN 'admin@example.org' THEN 1 ELSE 0 END = 1;
CREATE VIEW c11.after_bob AS SELECT id FROM c11.member WHERE (email, id) > ('BOB@example.org', 5);
CREATE VIEW c11.listed AS SELECT id FROM c11.member WHERE email IN ('ann@example.org', 'ZOE@EXAMPLE.ORG');
CREATE VIEW c11.kinds AS SELECT count(*) AS n FROM c11.member GROUP BY nullif(email, 'none');
CREATE VIEW c11.pairs AS SELECT a.id, b.id AS other FROM c11.member a JOIN c11.member b USING (email) WHERE a.id < b.id;
CREATE FUNCTION c11.others() RETURNS bigint LANGUAGE sql STABLE BEGIN ATOMIC SELECT count(*) FROM c11.member WHERE email IS DISTINCT FROM 'ANN@example.org'; END;

SELECT id FROM not_root ORDER BY id;
SET search_path = c11;
SELECT id FROM not_root ORDER BY id;
SELECT id FROM with_mail ORDER BY id;
SELECT id FROM admins ORDER BY id;
SELECT id FROM after_bob ORDER BY id;
SELECT id FROM listed ORDER BY id;
SELECT n, count(*) FROM kinds GROUP BY n ORDER BY n;
SELECT id, other FROM pairs ORDER BY 1, 2;
SELECT others();
-- the same in statements that no shard can answer alone
SELECT count(*) FROM not_root;
SELECT count(*) FROM with_mail;
SELECT count(*) FROM admins;
SELECT count(*) FROM after_bob;
SELECT count(*) FROM not_root v, generate_series(1, 9) g WHERE v.id = g;
SELECT min(v.id) FROM not_root v WHERE EXISTS (SELECT FROM with_mail m WHERE m.id = v.id + 1);
SET search_path = '';
SELECT count(*) FROM c11.not_root;
SELECT count(*) FROM c11.with_mail;
SELECT count(*) FROM c11.admins;
SELECT c11.others();
