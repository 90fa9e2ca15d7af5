\echo Use "CREATE EXTENSION tessera" to load this file. \quit

-- A member of the extension, so that pg_dump leaves it to CREATE EXTENSION: the schema that a control file names is no member, and a dump would make
-- it again.
CREATE SCHEMA tessera;
COMMENT ON SCHEMA tessera IS 'tessera: one sharded cluster out of PostgreSQL nodes';

-- What nodes call on each other, and what views read: nothing for users.
CREATE SCHEMA tessera_internal;
COMMENT ON SCHEMA tessera_internal IS 'tessera: functions that nodes of a cluster call on each other, and sources of views';

-- Roles are shared by all databases of a server: made once, kept on DROP EXTENSION.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'tessera_admin') THEN
    CREATE ROLE tessera_admin NOLOGIN;
  END IF;
  -- Members may open internal connections: they state the effective user of every statement.
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'tessera_internal') THEN
    CREATE ROLE tessera_internal NOLOGIN;
  END IF;
END
$$;
