/*
 * identity.c
 *	  Reads tessera.identity by a scan of its own (one row, no SPI), and the extension's installed version. Nothing is kept.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog/identity.h"

static Datum
column(HeapTuple tuple, Relation relation, const char *name)
{
	AttrNumber	attribute = get_attnum(RelationGetRelid(relation), name);
	bool		null = true;
	Datum		value = (Datum) 0;

	if (attribute != InvalidAttrNumber)
		value = heap_getattr(tuple, attribute, RelationGetDescr(relation), &null);
	if (null)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("column \"%s\" of tessera.identity is missing or null", name)));
	return value;
}

bool
tessera_identity_read(TesseraIdentity *identity)
{
	Oid			schema = get_namespace_oid("tessera", true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid("identity", schema) : InvalidOid;
	Relation	relation;
	Snapshot	snapshot;
	TableScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	if (!OidIsValid(relid))
		return false;
	relation = table_open(relid, AccessShareLock);
	snapshot = RegisterSnapshot(ActiveSnapshotSet() ? GetActiveSnapshot() : GetLatestSnapshot());
	scan = table_beginscan(relation, snapshot, 0, NULL);
	if ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL &&
		DatumGetObjectId(column(tuple, relation, "database_oid")) == MyDatabaseId)
	{
		identity->cluster_id = *DatumGetUUIDP(column(tuple, relation, "cluster_id"));
		identity->node_id = DatumGetInt32(column(tuple, relation, "node_id"));
		namestrcpy(&identity->node, TextDatumGetCString(column(tuple, relation, "node")));
		identity->is_config = DatumGetBool(column(tuple, relation, "is_config"));
		identity->term = DatumGetInt64(column(tuple, relation, "term"));
		identity->timeline = DatumGetInt32(column(tuple, relation, "timeline"));
		identity->incarnation = DatumGetInt32(column(tuple, relation, "incarnation"));
		found = true;
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(relation, NoLock);
	return found;
}

char *
tessera_extension_version(void)
{
	Relation	relation = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum("tessera"));
	scan = systable_beginscan(relation, ExtensionNameIndexId, true, NULL, 1, &key);
	if ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		null;
		Datum		value = heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(relation), &null);

		if (!null)
			version = TextDatumGetCString(value);
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return version;
}
