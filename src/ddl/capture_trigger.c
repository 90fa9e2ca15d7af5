/*
 * capture_trigger.c
 *	  The trigger that captures rows of a replicated table stays on.
 *
 * ALTER TABLE ... DISABLE TRIGGER ALL, which a restore of data uses, means foreign keys and users' triggers. A row that is written without being
 * captured would be on the lead alone. Locks: those of the ALTER TABLE, held.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "parser/parse_func.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "ddl/ddl.h"

static bool
touches_triggers(const AlterTableStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->cmds)
	{
		AlterTableType type = lfirst_node(AlterTableCmd, cell)->subtype;

		if (type == AT_DisableTrig || type == AT_DisableTrigAll || type == AT_EnableTrig || type == AT_EnableTrigAll ||
			type == AT_EnableAlwaysTrig || type == AT_EnableReplicaTrig)
			return true;
	}
	return false;
}

static void
turn_on(Relation triggers, HeapTuple tuple)
{
	HeapTuple	copy = heap_copytuple(tuple);

	((Form_pg_trigger) GETSTRUCT(copy))->tgenabled = TRIGGER_FIRES_ALWAYS;
	CatalogTupleUpdate(triggers, &copy->t_self, copy);
	heap_freetuple(copy);
}

void
tessera_keep_capture_trigger(Node *statement, const TesseraRouting *routing)
{
	Oid			function;
	Oid			relid;
	const TesseraTable *table;
	Relation	triggers;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!IsA(statement, AlterTableStmt) || !touches_triggers((AlterTableStmt *) statement))
		return;
	relid = RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, true);
	table = OidIsValid(relid) ? tessera_routing_table(routing, relid) : NULL;
	if (table == NULL || !table->replicated)
		return;
	CommandCounterIncrement();
	function = LookupFuncName(list_make2(makeString("tessera_internal"), makeString("capture_replicated")), 0, NULL, false);
	triggers = table_open(TriggerRelationId, RowExclusiveLock);
	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (((Form_pg_trigger) GETSTRUCT(tuple))->tgfoid == function)
			turn_on(triggers, tuple);
	systable_endscan(scan);
	table_close(triggers, RowExclusiveLock);
	CacheInvalidateRelcacheByRelid(relid);
}
