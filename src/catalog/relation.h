/*
 * relation.h
 *	  The catalog tables: their columns, and how C code opens and scans them.
 */
#ifndef TESSERA_RELATION_H
#define TESSERA_RELATION_H

#include "postgres.h"
#include "access/genam.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

/* Catalog tables and their indexes that C code reads; names in relation.c, definitions in extension/install/10_catalog.sql. */
typedef enum TesseraCatalogRelation
{
	TESSERA_IDENTITY,
	TESSERA_NODE,
	TESSERA_SCHEMA_PLACEMENT,
	TESSERA_TABLE_GROUP,
	TESSERA_CLUSTER_TABLE,
	TESSERA_CHUNK,
	TESSERA_PLACEMENT,
	TESSERA_ADVISORY_HOME,
	TESSERA_TABLE_STATISTICS,
	TESSERA_FORMER_MEMBERSHIP,
	TESSERA_TABLE_GROUP_KEY,	/* indexes from here */
	TESSERA_CLUSTER_TABLE_GROUP,
	TESSERA_CHUNK_KEY,
	TESSERA_CHUNK_VERSION,
	TESSERA_PLACEMENT_KEY,
	TESSERA_TABLE_STATISTICS_KEY,
	TESSERA_CATALOG_RELATIONS	/* count */
} TesseraCatalogRelation;

enum
{
	Anum_identity_singleton = 1,
	Anum_identity_cluster_id,
	Anum_identity_cluster,
	Anum_identity_node_id,
	Anum_identity_node,
	Anum_identity_is_config,
	Anum_identity_config_conninfo,
	Anum_identity_term,
	Anum_identity_database_oid,
	Anum_identity_timeline,
	Anum_identity_incarnation,
	Anum_identity_backup_label,
	Anum_identity_promised_term
};

enum
{
	Anum_node_node_id = 1,
	Anum_node_name,
	Anum_node_conninfo,
	Anum_node_is_shard,
	Anum_node_is_config,
	Anum_node_draining,
	Anum_node_system_id,
	Anum_node_database,
	Anum_node_timeline,
	Anum_node_incarnation
};

enum
{
	Anum_schema_placement_schema_name = 1,
	Anum_schema_placement_node_id,
	Anum_schema_placement_sequence_home,
	Anum_schema_placement_group_id,
	Anum_schema_placement_mod
};

enum
{
	Anum_table_group_group_id = 1,
	Anum_table_group_epoch,
	Anum_table_group_ts,
	Anum_table_group_group_major,
	Anum_table_group_group_minor,
	Anum_table_group_strategy,
	Anum_table_group_key_types,
	Anum_table_group_key_collations
};

enum
{
	Anum_cluster_table_table_id = 1,
	Anum_cluster_table_schema_name,
	Anum_cluster_table_table_name,
	Anum_cluster_table_relid,
	Anum_cluster_table_group_id,
	Anum_cluster_table_key_columns,
	Anum_cluster_table_replicated
};

enum
{
	Anum_chunk_group_id = 1,
	Anum_chunk_min,
	Anum_chunk_max,
	Anum_chunk_node_id,
	Anum_chunk_major,
	Anum_chunk_minor,
	Anum_chunk_jumbo,
	Anum_chunk_moved,
	Anum_chunk_history
};

enum
{
	Anum_placement_group_id = 1,
	Anum_placement_term,
	Anum_placement_epoch,
	Anum_placement_major,
	Anum_placement_owned,
	Anum_placement_deletions,
	Anum_placement_gates,
	Natts_placement = Anum_placement_gates
};

enum
{
	Anum_advisory_home_slot = 1,
	Anum_advisory_home_node_id,
	Anum_advisory_home_version
};

enum
{
	Anum_table_statistics_table_id = 1,
	Anum_table_statistics_node_id,
	Anum_table_statistics_stamp,
	Anum_table_statistics_pages,
	Anum_table_statistics_tuples,
	Anum_table_statistics_bytes,
	Anum_table_statistics_columns,
	Anum_table_statistics_collected,
	Natts_table_statistics = Anum_table_statistics_collected
};

/* OID of a catalog table or index; InvalidOid if the extension is not (or no longer) in this database. Catalog access. */
extern Oid	tessera_catalog_relid(TesseraCatalogRelation relation);

/* What tessera_catalog_relid last answered in this backend, without catalog access. */
extern Oid	tessera_catalog_known_relid(TesseraCatalogRelation relation);

/*
 * Opens a catalog table. AccessShareLock etc. are kept to the end of the transaction if the caller closes with NoLock. ERROR 55000 if it is not
 * there.
 */
extern Relation tessera_catalog_open(TesseraCatalogRelation relation, LOCKMODE lockmode);

/* True if it is one of the extension's own schemas. */
extern bool tessera_is_own_schema(Oid schema);

/* True if the extension exists in this database. */
extern bool tessera_extension_exists(void);

/*
 * Snapshot that sees all that is committed now and all that this transaction has written, at any isolation level, without fixing the transaction's
 * own snapshot. Registered with the current resource owner: UnregisterSnapshot it.
 */
extern Snapshot tessera_catalog_snapshot(void);

/* Scan by an index's leading uuid column. */
extern SysScanDesc tessera_catalog_scan(Relation relation, TesseraCatalogRelation index, AttrNumber attribute, const pg_uuid_t *value,
										Snapshot snapshot);

/* Materialized views whose rows lie on another shard count as populated here: scans of them are planned. */
#define TESSERA_POPULATE_VIEWS_SQL \
	"UPDATE pg_catalog.pg_class c SET relispopulated = true FROM tessera.cluster_table t, tessera.schema_placement p, tessera.identity i " \
	"WHERE c.oid = t.relid AND c.relkind = 'm' AND NOT c.relispopulated AND p.schema_name = t.schema_name AND p.node_id <> i.node_id"

/*
 * Relation that a cluster_table row means on this node: relid if that still is the table of that name, else whatever has the name; InvalidOid if
 * none.
 */
extern Oid	tessera_resolve_table(Oid relid, const char *schema, const char *table);

/* Partitions of a table, of all levels, without itself, each locked (NoLock: as they are at the moment), parents first; NIL: it has none. */
extern List *tessera_partitions(Oid table, LOCKMODE mode);

/* Invalidates the relcache entries, hence the plans, of a table and of its partitions, if there is such a table. */
extern void tessera_invalidate_tree(Oid table);

#endif							/* TESSERA_RELATION_H */
