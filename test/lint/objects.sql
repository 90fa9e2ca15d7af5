-- Run by test/run in its server: every object of the extensions has a comment, every column of a view of schema tessera, too, and doc/reference.md
-- names every function (but those between nodes, which src/control/calls.def describes), view, type and setting; doc/development.md those that only a build for tests has.
CREATE DATABASE tessera_objects;
\connect tessera_objects
SET client_min_messages = warning;
CREATE EXTENSION tessera;
CREATE EXTENSION tessera_test;
\set development `cat "$TESSERA_DEVELOPMENT"`
\set reference `cat "$TESSERA_REFERENCE"`

CREATE TEMP TABLE member AS
  SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS description, e.extname
  FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
  WHERE d.refclassid = 'pg_extension'::regclass AND e.extname IN ('tessera', 'tessera_test') AND d.deptype = 'e';

CREATE TEMP TABLE finding (check_name text, what text);

-- A sequence belongs to the column it fills; an operator family comes with its class.
INSERT INTO finding
  SELECT 'every SQL object has a comment', description
  FROM member m
  WHERE obj_description(objid, classid::regclass::name) IS NULL
    AND classid <> 'pg_opfamily'::regclass
    AND NOT (classid = 'pg_class'::regclass AND (SELECT relkind FROM pg_class WHERE oid = objid) = 'S');

INSERT INTO finding
  SELECT 'every column of a view has a comment', c.relname || '.' || a.attname
  FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid JOIN pg_attribute a ON a.attrelid = c.oid
  WHERE c.relkind = 'v' AND c.relnamespace = 'tessera'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
    AND col_description(a.attrelid, a.attnum) IS NULL;

CREATE TEMP TABLE reference_text AS SELECT :'reference'::text AS reference, :'development'::text AS development;

INSERT INTO finding
  SELECT DISTINCT 'doc/reference.md names every function', p.proname || '('
  FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid, reference_text
  WHERE m.extname = 'tessera' AND p.pronamespace <> 'tessera_internal'::regnamespace AND reference !~ ('\m' || p.proname || '\(');

INSERT INTO finding
  SELECT DISTINCT 'doc/development.md alone names what only tests need', p.proname || '('
  FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid, reference_text
  WHERE m.extname = 'tessera_test' AND (development !~ ('`tessera_test\.' || p.proname || '\(') OR reference ~ ('\m' || p.proname || '\('))
  UNION ALL
  SELECT 'doc/development.md alone names what only tests need', t.typname
  FROM member m JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid, reference_text
  WHERE m.extname = 'tessera_test' AND (development !~ ('tessera_test\.' || t.typname || '\M') OR reference ~ ('\m' || t.typname || '\M'))
  UNION ALL
  SELECT 'doc/development.md alone names what only tests need', s.name
  FROM pg_settings s, reference_text
  WHERE (s.name LIKE 'tessera.injection%' OR s.name = 'tessera.clock_shift') AND (development !~ ('`' || replace(s.name, '.', '\.') || '`') OR reference ~ 'injection|clock_shift');

INSERT INTO finding
  SELECT 'doc/reference.md names every view', c.relname
  FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid, reference_text
  WHERE c.relkind IN ('v', 'm') AND reference !~ ('`(tessera\.)?' || c.relname || '`');

INSERT INTO finding
  SELECT 'doc/reference.md names every type', t.typname
  FROM member m JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid, reference_text
  WHERE m.extname = 'tessera' AND reference !~ ('`(tessera\.)?' || t.typname || '`');

INSERT INTO finding
  SELECT 'doc/reference.md names every setting', s.name
  FROM pg_settings s, reference_text
  WHERE s.name LIKE 'tessera.%' AND s.name NOT LIKE 'tessera.injection%' AND s.name <> 'tessera.clock_shift' AND reference !~ ('`' || replace(s.name, '.', '\.') || '`');

INSERT INTO finding
  SELECT 'every setting has a description', s.name
  FROM pg_settings s
  WHERE s.name LIKE 'tessera.%' AND coalesce(s.short_desc, '') = '';

-- C functions that run SQL fix the path themselves; for the other languages the function states it.
INSERT INTO finding
  SELECT 'every SQL function fixes its search_path', m.description
  FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid JOIN pg_language l ON l.oid = p.prolang
  WHERE l.lanname NOT IN ('c', 'internal') AND p.prosqlbody IS NULL
    AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS c WHERE c LIKE 'search\_path=%');

SELECT CASE WHEN f.what IS NULL THEN 'ok - ' || c.name ELSE 'not ok - ' || c.name || E'\n' || f.what END
FROM (VALUES (1, 'every SQL object has a comment'), (2, 'doc/reference.md names every function'), (3, 'doc/reference.md names every view'),
             (4, 'doc/reference.md names every type'), (5, 'doc/reference.md names every setting'), (6, 'every setting has a description'),
             (7, 'every SQL function fixes its search_path'), (8, 'doc/development.md alone names what only tests need'),
             (9, 'every column of a view has a comment')) AS c (number, name)
LEFT JOIN (SELECT check_name, string_agg('#   ' || what, E'\n' ORDER BY what) AS what FROM finding GROUP BY check_name) AS f ON f.check_name = c.name
ORDER BY c.number;
