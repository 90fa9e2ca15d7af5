-- Whole rows, rows made of columns, functions of rows and functions that return rows work, with the names of the columns, dropped columns left
-- out.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c22 CASCADE;
CREATE SCHEMA c22;
SET search_path = c22, public;
CREATE TYPE c22.kind AS ENUM ('x', 'y');
CREATE TABLE c22."my table" (a int PRIMARY KEY, gone text, "B b" numeric, k c22.kind);
ALTER TABLE c22."my table" DROP COLUMN gone;
ALTER TABLE c22."my table" ADD COLUMN late text DEFAULT 'late';
CREATE TABLE c22.owner (a int PRIMARY KEY, name text);
SELECT tessera.shard_table('c22."my table"', 'a', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c22.owner', 'a', strategy => 'hash', colocate_with => 'c22."my table"');
INSERT INTO c22."my table" SELECT g, g * 1.5, CASE WHEN g % 2 = 0 THEN 'x' ELSE 'y' END::c22.kind FROM generate_series(1, 5) g;
INSERT INTO c22.owner SELECT g, 'owner ' || g FROM generate_series(1, 4) g;
CREATE FUNCTION c22.label(c22."my table") RETURNS text STABLE LANGUAGE sql AS $$SELECT $1.k || ' ' || $1."B b"$$;
CREATE FUNCTION c22.both(int, OUT twice int, OUT thrice int) LANGUAGE plpgsql IMMUTABLE AS $$BEGIN twice := $1 * 2; thrice := $1 * 3; END$$;
CREATE FUNCTION c22.tab(int) RETURNS TABLE (name text, id int) LANGUAGE plpgsql AS $$BEGIN RETURN QUERY SELECT 'n' || $1, $1; END$$;

SELECT row(t.*) FROM c22."my table" t ORDER BY a;
SELECT t.*::c22."my table" FROM c22."my table" t WHERE a = 2;
SELECT t FROM c22."my table" t ORDER BY t DESC LIMIT 2;
SELECT row_to_json(t) FROM c22."my table" t ORDER BY a;
SELECT row_to_json(s) FROM (SELECT * FROM c22."my table" WHERE a = 3) s;
SELECT jsonb_agg(to_jsonb(t) - 'a' ORDER BY t.a) FROM c22."my table" t;
SELECT t.a, t.label, c22.label(t) FROM c22."my table" t WHERE c22.label(t) LIKE 'x%' ORDER BY a;
SELECT DISTINCT (k, late) AS pair FROM c22."my table" ORDER BY 1;
SELECT (a, k) FROM c22."my table" WHERE a = 1;
SELECT a, c22.both(a) FROM c22."my table" ORDER BY a;
SELECT a, (c22.both(a)).* FROM c22."my table" ORDER BY a;
SELECT c22.tab(a) FROM c22."my table" ORDER BY a;
SELECT t.a, f.* FROM c22."my table" t, c22.tab(t.a) f ORDER BY t.a;
SELECT o.a, t IS NULL AS no_row, o IS NOT NULL AS all_there,
	count(t) OVER () FROM c22.owner o LEFT JOIN c22."my table" t ON t.a = o.a AND t.a > 2 ORDER BY o.a;
SELECT t.a FROM c22."my table" t WHERE t = ROW(2, 3.0, 'x', 'late')::c22."my table";
SELECT count(DISTINCT t), max(t.*::text) FROM c22."my table" t;
SELECT json_build_object('o', o, 't', t) FROM c22.owner o JOIN c22."my table" t USING (a) WHERE a = 2;
INSERT INTO c22."my table" SELECT (j).* FROM (SELECT json_populate_record(NULL::c22."my table", '{"a": 9, "B b": 1, "k": "y"}') AS j) s RETURNING *;
UPDATE c22."my table" t SET late = (SELECT o.name FROM c22.owner o WHERE o.a = t.a) WHERE k = 'y' AND a < 3 RETURNING t;
DELETE FROM c22."my table" t USING c22.owner o WHERE o.a = t.a AND o.a = 4 RETURNING t, o;
SELECT (array_agg(t ORDER BY t.a))[1:2] FROM c22."my table" t;
SELECT coalesce(t, ROW(0, 0, 'x', 'none')::c22."my table") FROM generate_series(1, 2) g LEFT JOIN c22."my table" t ON t.a = g * 3 ORDER BY g;
