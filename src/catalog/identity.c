/*
 * identity.c
 *	  Reads tessera.identity by a scan of its own (one row, no SPI), the extension's installed version, and the backup label of this server, which
 *	  alone is kept.
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
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog/identity.h"
#include "common/protocol.h"

PG_FUNCTION_INFO_V1(tessera_internal_backup_label);

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
		identity->restored = tessera_backup_restored(TextDatumGetCString(column(tuple, relation, "backup_label")));
		found = true;
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(relation, NoLock);
	return found;
}

/* When the server starts from a base backup it keeps the backup's label under this name; nothing but the next restore changes it. */
static const char *
backup_label(void)
{
	static char *label = NULL;
	char		text[2048];
	FILE	   *file;
	size_t		size;

	if (label != NULL)
		return label;
	file = AllocateFile("backup_label.old", PG_BINARY_R);
	if (file == NULL && errno != ENOENT)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", "backup_label.old")));
	size = file == NULL ? 0 : fread(text, 1, sizeof(text) - 1, file);
	if (file != NULL)
		FreeFile(file);
	label = MemoryContextStrdup(TopMemoryContext, pnstrdup(text, size));
	return label;
}

bool
tessera_backup_restored(const char *known)
{
	const char *label = backup_label();

	return label[0] != '\0' && strcmp(label, known) != 0;
}

Datum
tessera_internal_backup_label(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(backup_label()));
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

int
tessera_own_protocol(void)
{
	char	   *version = tessera_extension_version();

	return version != NULL && strcmp(version, TESSERA_VERSION) == 0 ? TESSERA_PROTOCOL : TESSERA_OLDEST_PROTOCOL;
}
