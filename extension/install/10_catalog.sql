-- The catalog. On the config node these rows are authoritative; elsewhere they are the persisted copy that the refresher keeps (S1-S4).
-- Rows are written by the extension's own functions only. Every writer calls tessera_catalog_changed() so that the
-- shared-memory mirror is rebuilt when its transaction commits.

CREATE FUNCTION tessera.this_database() RETURNS oid
  LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
  AS 'SELECT oid FROM pg_database WHERE datname = current_database()';
COMMENT ON FUNCTION tessera.this_database() IS 'OID of this database: an identity names its own';

-- Of the backup that the server was started from, if it ever was.
CREATE FUNCTION tessera_internal.backup_label() RETURNS text
  AS 'MODULE_PATHNAME', 'tessera_internal_backup_label' LANGUAGE C STABLE;
COMMENT ON FUNCTION tessera_internal.backup_label() IS 'label of the base backup that this server was last started from; empty: none';

-- Who this node is. One row once the node is in a cluster; never copied from another node. Local.
CREATE TABLE tessera.identity (
  singleton      bool PRIMARY KEY DEFAULT true CHECK (singleton),
  cluster_id     uuid NOT NULL,
  cluster        text NOT NULL,
  node_id        int4 NOT NULL,
  node           text NOT NULL,
  is_config      bool NOT NULL,
  config_conninfo text NOT NULL,      -- where a node finds the config node before it has a registry
  term           int8 NOT NULL,       -- config term of this catalog
  database_oid   oid NOT NULL DEFAULT tessera.this_database(), -- in a copy of the database (CREATE DATABASE ... TEMPLATE) the row is another's
  -- of the server when what this node owns was last known to be what the config node says: after a promotion it differs (src/failover/promotion.c)
  timeline       int4 NOT NULL DEFAULT ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1,
    8))::bit(32)::int4,
  -- the number that the config node gave to this server when it became the node; below that in tessera.node: it was replaced
  -- (src/catalog/incarnation.c)
  incarnation    int4 NOT NULL DEFAULT 1,
  -- the server's when what this node owns was last known: a server that was restored from a base backup has another one, even if it is on the same
  -- timeline
  backup_label   text NOT NULL DEFAULT tessera_internal.backup_label(),
  -- announced by a config node that was promoted and compares its catalog with this shard: no word of an older term counts any more
  -- (src/config/promotion_merge.c)
  promised_term  int8 NOT NULL DEFAULT 0
);
COMMENT ON TABLE tessera.identity IS 'who this node is in its cluster; one row, local';

-- Clusters that this database has been a node of, and has left: one of them may take it back with the tables that it has kept. Local.
CREATE TABLE tessera.former_membership (
  cluster_id     uuid PRIMARY KEY,
  node           text NOT NULL,
  ended          timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tessera.former_membership IS 'clusters that this database was removed from; local';

-- Registry of nodes (S30).
CREATE TABLE tessera.node (
  node_id        int4 PRIMARY KEY,
  name           text NOT NULL UNIQUE,
  conninfo       text NOT NULL,
  is_shard       bool NOT NULL,
  is_config      bool NOT NULL DEFAULT false,
  draining       bool NOT NULL DEFAULT false,
  system_id      int8 NOT NULL,       -- with database: the same node under two names is refused
  database       text NOT NULL,
  timeline       int4 NOT NULL,
  incarnation    int4 NOT NULL DEFAULT 1, -- grows whenever another server becomes the node: a promoted standby
  added          timestamptz NOT NULL DEFAULT now(),
  -- start of the server that was last registered as the node, after a promotion: tells it from others of its timeline
  server_start   text
);
COMMENT ON TABLE tessera.node IS 'registry of the nodes of the cluster';

-- For views of what only the config node keeps, in their WHERE: elsewhere they would be empty, which says the wrong thing. As the owner: the answer
-- does not depend on who asks. ERROR 55000 on a node that is not the config node; true there, and in a database that is no node.
CREATE FUNCTION tessera_internal.on_config_node(view_name text) RETURNS bool
  LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF EXISTS (SELECT FROM tessera.identity AS i WHERE NOT i.is_config) THEN
    RAISE EXCEPTION 'view tessera.% can be read on the config node only', view_name
      USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = coalesce((SELECT format('Connect to node "%s", which is the config node.', n.name) FROM tessera.node AS n WHERE n.is_config),
          'This database was removed from its cluster: connect to a node of that.');
  END IF;
  RETURN true;
END
$$;
COMMENT ON FUNCTION tessera_internal.on_config_node(text) IS 'true on the config node; elsewhere an error that names the view and the config node';

-- What of the clock is durable (src/catalog/clock_store.c). Sequences are written to the WAL at once, whatever becomes of the transaction. Local.
CREATE SEQUENCE tessera.clock_reservation MINVALUE 0 START 0;
COMMENT ON SEQUENCE tessera.clock_reservation IS 'second up to which this node may give cluster times; local';
CREATE SEQUENCE tessera.config_time_heard MINVALUE -9223372036854775808 START 0;
COMMENT ON SEQUENCE tessera.config_time_heard IS 'newest config time that this node has heard; local';

-- Cluster time of the newest change of tessera.node: a node that hears a later one fetches the registry (S133). One row.
CREATE TABLE tessera.topology (
  singleton      bool PRIMARY KEY DEFAULT true CHECK (singleton),
  changed        int8 NOT NULL DEFAULT 0
);
INSERT INTO tessera.topology DEFAULT VALUES;
COMMENT ON TABLE tessera.topology IS 'when the membership of the cluster changed last, by cluster time; one row';

-- Keys by which cluster times are signed for clients (src/catalog/signing_key.c): made on the config node, copied to all nodes, never deleted. Row
-- security without a policy keeps them from roles that may read every table, too.
CREATE TABLE tessera.signing_key (
  key_id         int8 PRIMARY KEY,
  purpose        text NOT NULL DEFAULT 'cluster time',
  key            bytea NOT NULL,
  made           timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires        timestamptz NOT NULL -- it signs no longer then; what it has signed stays good
);
ALTER TABLE tessera.signing_key ENABLE ROW LEVEL SECURITY;
COMMENT ON TABLE tessera.signing_key IS 'keys by which cluster times are signed; for nobody to read';

-- Where a schema's placed tables live (S15, S25, S29). Its version is <group_id, ts of the group, mod> (S25). The owner of the group's only chunk
-- is node_id: both change in one transaction.
CREATE TABLE tessera.schema_placement (
  schema_name    name PRIMARY KEY,
  node_id        int4 NOT NULL,
  sequence_home  int4,                -- node whose sequences are authoritative; NULL: node_id
  group_id       uuid,                -- table group without key columns, with which its placed tables move; NULL: it was never to move
  mod            int8 NOT NULL DEFAULT 1 -- grows with each move
);
COMMENT ON TABLE tessera.schema_placement IS 'primary shard of each schema: its placed tables live there';

-- A node that has handed the sequences of a schema over draws no values of them any more, as long as its copy of the schema's row has this mod
-- (src/ddl/sequence_follow.c). Local.
CREATE TABLE tessera.sequence_fence (
  schema_name    name PRIMARY KEY,
  mod            int8 NOT NULL
);
COMMENT ON TABLE tessera.sequence_fence IS 'schemas whose sequences this node has handed over to another one; local';

-- Tables sharded alike; or the placed tables of a schema: then there are no key types, and one chunk. group_major/group_minor: the group
-- version, highest of all its chunks (S14); its row lock allocates versions.
CREATE TABLE tessera.table_group (
  group_id       uuid PRIMARY KEY,
  epoch          uuid NOT NULL,
  ts             timestamptz NOT NULL,
  group_major    int8 NOT NULL,
  group_minor    int8 NOT NULL,
  strategy       text NOT NULL CHECK (strategy IN ('range', 'hash')),
  key_types      text[] NOT NULL,     -- format_type_extended text, schema-qualified
  key_collations text[] NOT NULL,     -- quoted "schema"."name", '' if not collatable
  max_chunk_size int8 NOT NULL DEFAULT 134217728,
  balancing      bool NOT NULL DEFAULT true,
  allow_migrations bool NOT NULL DEFAULT true
);
COMMENT ON TABLE tessera.table_group IS 'table groups: tables sharded alike, whose equal keys live together';

-- Every table of the cluster: placed (group_id NULL), one of them with copies on all nodes (replicated), or sharded. A table without a row here is
-- local to its node.
CREATE TABLE tessera.cluster_table (
  table_id       uuid PRIMARY KEY,
  schema_name    name NOT NULL,
  table_name     name NOT NULL,
  relid          oid,                 -- local to each node; filled by the node itself
  group_id       uuid REFERENCES tessera.table_group,
  key_columns    name[],
  -- whole on every node; written on its schema's shard first
  replicated     bool NOT NULL DEFAULT false CHECK (NOT replicated OR group_id IS NULL),
  UNIQUE (schema_name, table_name)
);
CREATE INDEX cluster_table_relid ON tessera.cluster_table (relid);
CREATE INDEX cluster_table_group ON tessera.cluster_table (group_id);
COMMENT ON TABLE tessera.cluster_table IS 'tables of the cluster: placed, replicated or sharded';

CREATE FUNCTION tessera_internal.partition_id(root uuid, schema_name name, name name) RETURNS uuid
  AS 'MODULE_PATHNAME', 'tessera_internal_partition_id' LANGUAGE C IMMUTABLE STRICT;
COMMENT ON FUNCTION tessera_internal.partition_id(uuid, name, name) IS
  'identifier of a partition, alike on every node: of the identifier of the table at the root and its own qualified name';

-- Sharded tables by their group, placed ones by their schema's, if that has one; each with its partitions.
CREATE VIEW tessera_internal.moving_table AS
  WITH RECURSIVE member (table_id, schema_name, table_name, relid, group_id, root_id) AS (
    SELECT t.table_id, t.schema_name, t.table_name, t.relid, coalesce(t.group_id, p.group_id), t.table_id
    FROM tessera.cluster_table t LEFT JOIN tessera.schema_placement p ON p.schema_name = t.schema_name AND t.group_id IS NULL
    WHERE t.group_id IS NOT NULL OR p.group_id IS NOT NULL
    UNION ALL
    SELECT tessera_internal.partition_id(m.root_id, n.nspname, c.relname), n.nspname, c.relname, c.oid, m.group_id,
      m.root_id
    FROM member m JOIN pg_catalog.pg_inherits i ON i.inhparent = m.relid JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)
  SELECT m.table_id, m.schema_name, m.table_name, m.relid, m.group_id FROM member m;
COMMENT ON VIEW tessera_internal.moving_table IS 'tables and partitions by the table group with which they move: their own, or that of their schema';

CREATE TABLE tessera.chunk (
  group_id       uuid NOT NULL REFERENCES tessera.table_group ON DELETE CASCADE,
  min            tessera.bound NOT NULL,
  max            tessera.bound NOT NULL,
  node_id        int4 NOT NULL,
  major          int8 NOT NULL,
  minor          int8 NOT NULL,
  jumbo          bool NOT NULL DEFAULT false,
  moved          timestamptz,         -- when the last move to its owner was about to be decided: its donor wrote for a moment longer
  history        jsonb NOT NULL DEFAULT '[]',
  PRIMARY KEY (group_id, min)
);
CREATE INDEX chunk_version ON tessera.chunk (group_id, major, minor);
COMMENT ON TABLE tessera.chunk IS 'chunks: [min, max) of a group''s key space, each owned by one shard';

-- What the shards say of their chunks, as they measure them (src/balance/). An estimate is about the keys from its min to the next one's: the chunks
-- may have been split or merged since. Config node only; no part of the mirror, as it changes all the time.
CREATE TABLE tessera.chunk_estimate (
  group_id       uuid NOT NULL REFERENCES tessera.table_group ON DELETE CASCADE,
  min            tessera.bound NOT NULL,
  node_id        int4 NOT NULL,       -- who says so
  bytes          int8 NOT NULL,       -- of rows that live, in all tables of the group
  statements     float8 NOT NULL,     -- per second
  load           float8 NOT NULL,     -- sessions at work on it, on average
  hot_key        tessera.bound,       -- that most of its statements are about, as far as known
  hot_share      float8,              -- of its load
  measured       timestamptz NOT NULL DEFAULT clock_timestamp(),
  since          timestamptz NOT NULL DEFAULT clock_timestamp(),   -- a chunk has begun at min since then, or before
  PRIMARY KEY (group_id, min)
);
CREATE INDEX chunk_estimate_node ON tessera.chunk_estimate (node_id);
COMMENT ON TABLE tessera.chunk_estimate IS 'size and load of chunks, as the shards have measured them (config node)';

-- Placement record of this shard (doc/design.md#placement-record): what it owns, what it still has to delete, which gates are closed. Local;
-- changed only whole.
CREATE TABLE tessera.placement (
  group_id       uuid PRIMARY KEY,
  term           int8 NOT NULL,
  epoch          uuid NOT NULL,
  major          int8 NOT NULL,       -- shard version; 0: owns nothing of the group
  owned          tessera.bound_range[] NOT NULL,
  deletions      tessera.bound_range[] NOT NULL DEFAULT '{}',
  gates          tessera.gated_range[] NOT NULL DEFAULT '{}'  -- ranges that migrations give away here, or are about to have brought
);
COMMENT ON TABLE tessera.placement IS 'what this shard owns of each group, what it has to delete, and its gates; local';

-- Migrations, as the config node knows them. outcome is the decision; commit and fence both insert into migration_outcome (unique key).
CREATE TABLE tessera.migration (
  migration_id   uuid PRIMARY KEY,
  table_id       uuid,                -- the table named by the caller
  schema_name    name,                -- or the schema
  ranges         tessera.operation_range[] NOT NULL CHECK (tessera_internal.ranges_complete(ranges)),   -- by group_id, then by min; disjoint
  donor          int4 NOT NULL,
  recipient      int4 NOT NULL,
  term           int8 NOT NULL,
  donor_incarnation int4 NOT NULL,
  recipient_incarnation int4 NOT NULL,
  verify         bool NOT NULL DEFAULT true,   -- by content
  caller_pid     int4,                -- session here that registered it, and stands behind it until the donor reports a phase; null: it has gone
  started        timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished       timestamptz,
  state          text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'committed', 'aborted')),
  phase          text,
  rows           int8 NOT NULL DEFAULT 0,
  bytes          int8 NOT NULL DEFAULT 0,
  mods           int8 NOT NULL DEFAULT 0,
  pause_ms       float8,
  error          text,
  waiting_for    text,
  yields         bool NOT NULL DEFAULT false,   -- makes way for clients and standbys: the balancer has begun it
  bytes_total    int8,                -- estimates of what moves, at its beginning; null: not known
  rows_total     int8,
  share          float8,              -- of the donor's rows of the group
  rate           float8,              -- bytes a second, as the donor has reported lately
  rate_reported  timestamptz,
  CHECK ((table_id IS NULL) <> (schema_name IS NULL))
);
CREATE INDEX migration_running ON tessera.migration (started) WHERE state = 'running';
COMMENT ON TABLE tessera.migration IS 'migrations and their outcomes (config node)';

CREATE TABLE tessera.migration_outcome (
  migration_id   uuid PRIMARY KEY,
  outcome        text NOT NULL CHECK (outcome IN ('committed', 'aborted')),
  donor_majors   int8[],              -- shard versions after the commit, one for each group in the order of ranges
  recipient_majors int8[]
);
COMMENT ON TABLE tessera.migration_outcome IS 'decisions of migrations: commit and fence insert the same key (config node)';

-- Donor's coordinator row, from register (step 1) until last (S64, S69). Local.
CREATE TABLE tessera.migration_coordinator (
  migration_id   uuid PRIMARY KEY,
  ranges         tessera.operation_range[] NOT NULL CHECK (tessera_internal.ranges_complete(ranges)),   -- as in tessera.migration
  recipient      int4 NOT NULL,
  slot           name,
  phase          text NOT NULL,
  decision       text,
  request        jsonb NOT NULL,
  created        timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tessera.migration_coordinator IS 'migrations this shard donates; local';

-- Recipient's row, from start (step 2). Every applied batch locks it and checks its state (doc/design.md#late-batches). Local.
CREATE TABLE tessera.migration_recipient (
  migration_id   uuid PRIMARY KEY,
  ranges         tessera.operation_range[] NOT NULL CHECK (tessera_internal.ranges_complete(ranges)),   -- as in tessera.migration
  donor          int4 NOT NULL,
  state          text NOT NULL,       -- cloning, confirmed, aborted
  request        jsonb NOT NULL,
  created        timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tessera.migration_recipient IS 'migrations this shard receives; local';

-- Table groups that the splitter of this shard leaves out (src/balance/unreadable.c). Local.
CREATE TABLE tessera.unreadable_group (
  group_id       uuid PRIMARY KEY,
  error          text NOT NULL,
  since          timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tessera.unreadable_group IS 'table groups whose chunks this shard cannot read, and neither measures nor splits; local';

-- How much a shard is to have, relative to the others; without a row: 1 (config node).
CREATE TABLE tessera.shard_weight (
  node_id        int4 PRIMARY KEY REFERENCES tessera.node ON DELETE CASCADE,
  weight         float8 NOT NULL CHECK (weight > 0 AND weight <= 1000000)
);
COMMENT ON TABLE tessera.shard_weight IS 'share of the data that a shard is to have, relative to the others (config node)';

-- Zones: which shards are in one, and which ranges must lie there (config node).
CREATE TABLE tessera.zone_shard (
  zone           name NOT NULL,
  node_id        int4 NOT NULL REFERENCES tessera.node ON DELETE CASCADE,
  PRIMARY KEY (zone, node_id)
);
COMMENT ON TABLE tessera.zone_shard IS 'shards of each zone (config node)';

CREATE TABLE tessera.zone_range (
  group_id       uuid NOT NULL REFERENCES tessera.table_group ON DELETE CASCADE,
  min            tessera.bound NOT NULL,
  max            tessera.bound NOT NULL,
  zone           name NOT NULL,
  PRIMARY KEY (group_id, min)
);
COMMENT ON TABLE tessera.zone_range IS 'ranges whose rows must lie on the shards of a zone (config node)';

-- What the balancer does, and what it is asked to do (src/balancer/). Ended ones are kept for a while (config node).
CREATE TABLE tessera.balancer_action (
  action_id      uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
  kind           text NOT NULL CHECK (kind IN ('move', 'merge', 'read')),   -- read: a table group that cannot be read
  schema_name    name,                -- a schema moves; NULL: a range of a table group
  group_id       uuid,
  table_id       uuid,                -- the table named, or one of the group
  min            tessera.bound,
  max            tessera.bound,
  ranges         tessera.operation_range[],   -- if it has several: all, by min; min and max are those of the first
  donor          int4,                -- NULL: whoever owns it
  recipient      int4,                -- NULL: the balancer chooses
  reason         text NOT NULL,       -- requested, top, draining, zone, group, node, empty, cold, unreadable
  detail         text,                -- the reason in figures
  by             name NOT NULL,
  verify         bool NOT NULL DEFAULT true,
  state          text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'failed', 'dropped')),
  bytes          int8,                -- estimate
  attempts       int4 NOT NULL DEFAULT 0,
  not_before     timestamptz,         -- after a failure
  migration_id   uuid,                -- the last one of it
  asked          timestamptz NOT NULL DEFAULT clock_timestamp(),
  started        timestamptz,
  finished       timestamptz,
  error          text,
  CHECK (schema_name IS NOT NULL OR kind = 'read' AND group_id IS NOT NULL
    OR (group_id IS NOT NULL AND table_id IS NOT NULL AND min IS NOT NULL AND max IS NOT NULL))
);
CREATE INDEX balancer_action_open ON tessera.balancer_action (asked) WHERE state IN ('queued', 'running');
COMMENT ON TABLE tessera.balancer_action IS 'moves and merges that the balancer makes or was asked for (config node)';

-- What the last round of the balancer has decided, as tessera.explain_balancer() shows it, and when (src/balancer/round_plan.c; config node).
CREATE TABLE tessera.balancer_plan (
  step           int4 PRIMARY KEY,
  due            text,
  kind           text NOT NULL,
  table_name     regclass,
  schema_name    text,
  min            tessera.bound,
  max            tessera.bound,
  ranges         int4,
  donor          text,
  recipient      text,
  reason         text,
  bytes          int8,
  detail         text
);
COMMENT ON TABLE tessera.balancer_plan IS 'what the last round of the balancer has decided, for tessera.explain_balancer() (config node)';

CREATE TABLE tessera.balancer_round (
  singleton      bool PRIMARY KEY DEFAULT true CHECK (singleton),
  made           timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tessera.balancer_round IS 'when the last round of the balancer was made (config node)';

-- Statements that run in phases, on each node in transactions of its own (src/ddl/operation.c). Ended ones are kept for a week (config node).
CREATE TABLE tessera.ddl_operation (
  operation_id   uuid PRIMARY KEY,
  kind           text NOT NULL CHECK (kind IN ('create index', 'reindex index', 'reindex table')),
  table_id       uuid NOT NULL,       -- the table of the cluster whose index it is
  schema_name    name NOT NULL,       -- of the index, or of the table
  object_name    name NOT NULL,
  statement      text NOT NULL,       -- as it was asked for
  search_path    text NOT NULL,       -- by which its names are meant
  command        text NOT NULL,       -- what each node runs
  asked_by       name NOT NULL,       -- the role whose rights it has
  runner         int4 NOT NULL,       -- the node whose process runs it
  state          text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'failed')),
  phase          text NOT NULL DEFAULT 'build' CHECK (phase IN ('build', 'take back')),
  done           int4[] NOT NULL DEFAULT '{}',   -- nodes that are through
  attempts       int4 NOT NULL DEFAULT 0,   -- that have failed
  tried          timestamptz,         -- the last of them
  code           text,                -- SQLSTATE of what it has failed with
  error          text,                -- what it waits for, or has failed with
  started        timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished       timestamptz
);
CREATE UNIQUE INDEX ddl_operation_running ON tessera.ddl_operation (schema_name, object_name) WHERE state = 'running';
COMMENT ON TABLE tessera.ddl_operation IS 'DDL that runs in phases, and how far it is (config node)';

-- Two-phase decisions of transactions this shard coordinated (doc/design.md#two-phase). Local.
CREATE TABLE tessera.transaction_decision (
  gid            text PRIMARY KEY,
  outcome        text NOT NULL CHECK (outcome IN ('commit', 'abort', 'prepared')),
  participants   int4[] NOT NULL DEFAULT '{}',
  decided        timestamptz NOT NULL DEFAULT clock_timestamp(),
  commit_time    int8,                      -- cluster time of the transaction on all nodes; NULL or 0: not known, or it was rolled back
  finished       timestamptz,               -- when no participant had it prepared any more; NULL: not known to be so
  -- identifier of the client that prepared it; NULL: not such a transaction, or this node only takes part in it
  user_gid       text,
  owner          name,                      -- who prepared it
  timeline       int4                       -- of the config node, for those of clients: on another timeline a decision may have been lost
);
CREATE UNIQUE INDEX transaction_decision_user_gid ON tessera.transaction_decision (user_gid) WHERE outcome = 'prepared';
COMMENT ON TABLE tessera.transaction_decision IS
  'decisions of two-phase transactions coordinated here, those that clients have prepared (on the config node), and how such ended here; local';
CREATE INDEX transaction_decision_unfinished ON tessera.transaction_decision (decided) WHERE finished IS NULL;
CREATE INDEX transaction_decision_finished ON tessera.transaction_decision (finished) WHERE finished IS NOT NULL;

-- Which node keeps the advisory locks of each slot of keys (src/transaction/advisory_home.c). A slot changes its node only while nobody holds a lock
-- of it, in one transaction here, on the old node and on the new one; the higher version is the right one.
CREATE TABLE tessera.advisory_home (
  slot           int4 PRIMARY KEY CHECK (slot BETWEEN 0 AND 63),
  node_id        int4 NOT NULL,
  version        int8 NOT NULL DEFAULT 1
);
COMMENT ON TABLE tessera.advisory_home IS 'home node of the advisory locks of each slot of keys';

-- What each shard knows of its part of a table, as this node last heard: for the planner (src/statistics/). Local; rows hold values of tables: nobody
-- may read it.
CREATE TABLE tessera.table_statistics (
  table_id       uuid NOT NULL,
  node_id        int4 NOT NULL,
  stamp          text NOT NULL,       -- changes whenever the rest does
  pages          float8 NOT NULL,
  tuples         float8 NOT NULL,     -- -1: not known
  bytes          int8 NOT NULL,       -- as pg_table_size, with all partitions
  columns        jsonb NOT NULL,      -- the shard's pg_statistic (src/statistics/statistics_json.c)
  collected      timestamptz NOT NULL,
  PRIMARY KEY (table_id, node_id)
);
COMMENT ON TABLE tessera.table_statistics IS 'statistics of the shards'' parts of tables, for the planner; local';

CREATE TABLE tessera.setting (
  name           text PRIMARY KEY,
  value          text NOT NULL
);
COMMENT ON TABLE tessera.setting IS 'settings of the whole cluster';

-- Every metadata change: who, when, before and after (config node).
CREATE TABLE tessera.changelog_entry (
  change_id      int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at             timestamptz NOT NULL DEFAULT clock_timestamp(),
  by             name NOT NULL DEFAULT session_user,
  what           text NOT NULL,       -- create_cluster, add_shard, shard_table, split, merge, move, ...
  object         text NOT NULL,       -- table or node concerned
  group_id       uuid,                -- table group whose keys before and after may name
  before         jsonb,
  after          jsonb
);
COMMENT ON TABLE tessera.changelog_entry IS 'every metadata change (config node)';
