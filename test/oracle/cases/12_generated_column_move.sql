-- Moves pass, and change no value. What a generated column has stored stays as it is, also if its function was replaced since.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c12 CASCADE;
CREATE SCHEMA c12;
CREATE FUNCTION c12.slug(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT lower(replace($1, ' ', '-'))$$;
CREATE TABLE c12.product (gone int, price numeric, id int PRIMARY KEY, total numeric GENERATED ALWAYS AS (price * 3) STORED, info jsonb,
	tags text[]);
ALTER TABLE c12.product DROP COLUMN gone;
INSERT INTO c12.product (id, price, info, tags) SELECT g, g * 1.5, jsonb_build_object('name', 'Big Box ' || g),
	ARRAY['t' || g] FROM generate_series(1, 12) g;
SELECT tessera.shard_table('c12.product', 'id', strategy => 'range');
SELECT tessera.move_range('c12.product', tessera.minkey(), 5, 's1');
SELECT tessera.move_range('c12.product', 5, 9, 's2');
SELECT tessera.move_range('c12.product', 9, tessera.maxkey(), 's3');
ALTER TABLE c12.product ADD COLUMN slug text GENERATED ALWAYS AS (c12.slug(info ->> 'name')) STORED;
ALTER TABLE c12.product ADD COLUMN added text DEFAULT 'later';
CREATE INDEX ON c12.product (slug);
SELECT id, total, info, tags, slug, added FROM c12.product ORDER BY id;
SELECT tessera.move_range('c12.product', 3, 7, 's3');
SELECT id, total, slug FROM c12.product WHERE id BETWEEN 2 AND 7 ORDER BY id;

CREATE OR REPLACE FUNCTION c12.slug(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT upper(replace($1, ' ', '_'))$$;
SELECT count(*) FILTER (WHERE slug = lower(slug)) AS old_form, count(*) FILTER (WHERE slug = upper(slug)) AS new_form FROM c12.product;
SELECT tessera.move_range('c12.product', 3, 7, 's2');
SELECT tessera.move_range('c12.product', 9, tessera.maxkey(), 's1');
SELECT count(*) FILTER (WHERE slug = lower(slug)) AS old_form, count(*) FILTER (WHERE slug = upper(slug)) AS new_form FROM c12.product;
UPDATE c12.product SET info = info || '{"name": "New One"}' WHERE id = 4 RETURNING id, slug, total;
UPDATE c12.product SET price = 100 WHERE id = 5 RETURNING id, slug, total;
INSERT INTO c12.product (id, price, info) VALUES (13, 2, '{"name": "Last"}') ON CONFLICT (id) DO UPDATE SET price = excluded.price RETURNING id,
	total, slug;
INSERT INTO c12.product (id, price) VALUES (13, 5) ON CONFLICT (id) DO UPDATE SET price = excluded.price RETURNING id, total, slug;
SELECT id, price, total, slug FROM c12.product ORDER BY id;
