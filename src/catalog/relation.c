/*
 * relation.c
 *	  Opening and scanning the catalog tables.
 *
 * OIDs are looked up by name each time (a syscache look-up): the extension may be dropped and made again. The schema is only trusted while the
 * extension exists, which takes a superuser. Nothing is kept but the last answer, for invalidation callbacks, which must not read catalogs.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/extension.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "access/xact.h"

#include "catalog/relation.h"

static const char *const names[TESSERA_CATALOG_RELATIONS] = {
	[TESSERA_IDENTITY] = "identity",
	[TESSERA_NODE] = "node",
	[TESSERA_SCHEMA_PLACEMENT] = "schema_placement",
	[TESSERA_TABLE_GROUP] = "table_group",
	[TESSERA_CLUSTER_TABLE] = "cluster_table",
	[TESSERA_CHUNK] = "chunk",
	[TESSERA_PLACEMENT] = "placement",
	[TESSERA_ADVISORY_HOME] = "advisory_home",
	[TESSERA_TABLE_STATISTICS] = "table_statistics",
	[TESSERA_FORMER_MEMBERSHIP] = "former_membership",
	[TESSERA_TABLE_GROUP_KEY] = "table_group_pkey",
	[TESSERA_CLUSTER_TABLE_GROUP] = "cluster_table_group",
	[TESSERA_CHUNK_KEY] = "chunk_pkey",
	[TESSERA_CHUNK_VERSION] = "chunk_version",
	[TESSERA_PLACEMENT_KEY] = "placement_pkey",
	[TESSERA_TABLE_STATISTICS_KEY] = "table_statistics_pkey",
};

static Oid	known[TESSERA_CATALOG_RELATIONS];


bool
tessera_extension_exists(void)
{
	return OidIsValid(get_extension_oid("tessera", true));
}

bool
tessera_is_own_schema(Oid schema)
{
	return OidIsValid(schema) && (schema == get_namespace_oid("tessera", true) || schema == get_namespace_oid("tessera_internal", true));
}

Oid
tessera_catalog_relid(TesseraCatalogRelation relation)
{
	Oid			schema = get_namespace_oid("tessera", true);

	known[relation] = OidIsValid(schema) ? get_relname_relid(names[relation], schema) : InvalidOid;
	return known[relation];
}

Oid
tessera_catalog_known_relid(TesseraCatalogRelation relation)
{
	return known[relation];
}

Relation
tessera_catalog_open(TesseraCatalogRelation relation, LOCKMODE lockmode)
{
	Oid			relid = tessera_catalog_relid(relation);
	Relation	rel = OidIsValid(relid) ? try_table_open(relid, lockmode) : NULL;

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table tessera.%s does not exist", names[relation]),
				 errhint("Run CREATE EXTENSION tessera.")));
	return rel;
}

Snapshot
tessera_catalog_snapshot(void)
{
	Oid			relid = tessera_catalog_relid(TESSERA_IDENTITY);
	Snapshot	snapshot;

	/* A relation without a syscache: always a fresh one. */
	snapshot = RegisterSnapshot(GetCatalogSnapshot(relid));
	/* What the command now running has written, too. */
	snapshot->curcid = GetCurrentCommandId(false) + 1;
	return snapshot;
}

SysScanDesc
tessera_catalog_scan(Relation relation, TesseraCatalogRelation index, AttrNumber attribute, const pg_uuid_t *value, Snapshot snapshot)
{
	ScanKeyData key;

	ScanKeyInit(&key, attribute, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(value));
	return systable_beginscan(relation, tessera_catalog_relid(index), true, snapshot, 1, &key);
}

Oid
tessera_resolve_table(Oid relid, const char *schema, const char *table)
{
	Oid			namespace = get_namespace_oid(schema, true);
	char	   *name;

	if (!OidIsValid(namespace))
		return InvalidOid;
	if (OidIsValid(relid) && get_rel_namespace(relid) == namespace && (name = get_rel_name(relid)) != NULL && strcmp(name, table) == 0)
		return relid;
	return get_relname_relid(table, namespace);
}

List *
tessera_partitions(Oid table, LOCKMODE mode)
{
	return get_rel_relkind(table) != RELKIND_PARTITIONED_TABLE ? NIL : list_delete_first(find_all_inheritors(table, mode, NULL));
}

void
tessera_invalidate_tree(Oid table)
{
	ListCell   *cell;

	if (!OidIsValid(table) || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(table)))
		return;
	CacheInvalidateRelcacheByRelid(table);
	foreach(cell, tessera_partitions(table, NoLock))
		if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(lfirst_oid(cell))))
			CacheInvalidateRelcacheByRelid(lfirst_oid(cell));
}
