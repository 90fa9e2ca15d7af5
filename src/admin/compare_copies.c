/*
 * compare_copies.c
 *	  Invariant 11: the copies of a replicated table are alike; a part of tessera.check_consistency(deep => true).
 *
 * Each node counts its rows and adds up their hashes. Nothing is locked: a transaction may be committed on one node and not yet on another. So a node
 * that differs from the lead is asked again, between two answers of the lead that are alike, a few times.
 *
 * Locks: ACCESS SHARE on the table, on each node. The output functions of the types run as the table's owner, in a restricted operation.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "admin/consistency.h"
#include "common/acting_as.h"
#include "common/fixed_settings.h"
#include "common/text.h"
#include "common/wire.h"
#include "control/calls.h"
#include "transaction/background.h"

#define LOOKS 10
#define LOOK_MS 100

/* ---- on each node ---- */

static uint64
row_hash(TupleTableSlot *slot, FmgrInfo *outputs)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	StringInfoData row;

	initStringInfo(&row);
	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		const char *value;

		if (TupleDescAttr(desc, i)->attisdropped)
			continue;
		if (slot->tts_isnull[i])
		{
			appendStringInfoString(&row, "-,");
			continue;
		}
		value = tessera_wire_fixed_output(&outputs[i], slot->tts_values[i], TESSERA_FIXED_STYLES);
		appendStringInfo(&row, "%zu:%s,", strlen(value), value);
	}
	return hash_bytes_extended((const unsigned char *) row.data, row.len, 0);
}

static void
sum_rows(Relation rel, TesseraCopySumResult *result)
{
	TupleDesc	desc = RelationGetDescr(rel);
	FmgrInfo   *outputs = palloc0(sizeof(FmgrInfo) * Max(desc->natts, 1));
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera rows of a copy", ALLOCSET_DEFAULT_SIZES);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	uint64		sum = 0;

	for (int i = 0; i < desc->natts; i++)
	{
		Oid			function;
		bool		is_varlena;

		if (TupleDescAttr(desc, i)->attisdropped)
			continue;
		getTypeOutputInfo(TupleDescAttr(desc, i)->atttypid, &function, &is_varlena);
		fmgr_info(function, &outputs[i]);
	}
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext before = MemoryContextSwitchTo(scratch);

		CHECK_FOR_INTERRUPTS();
		sum += row_hash(slot, outputs);
		result->rows++;
		MemoryContextSwitchTo(before);
		MemoryContextReset(scratch);
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(scratch);
	result->sum = (int64) sum;
}

/*
 * A table that this node does not know as replicated has no rows, and says so. As its owner: output functions of the
 * columns' types run, and access methods, whoever has made them.
 */
void
tessera_serve_copy_sum(const TesseraCopySumArgs *args, TesseraCopySumResult *result)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	const TesseraTable *table = tessera_routing_table_by_id(routing, args->table_id);
	Relation	rel;
	TesseraActing before;
	int			level = tessera_fixed_settings_push(TESSERA_FIXED_ALL);

	result->rows = result->sum = 0;
	result->replicated = table != NULL && table->replicated;
	if (result->replicated)
	{
		rel = table_open(table->relid, AccessShareLock);
		tessera_act_as_owner(&before, rel->rd_rel->relowner);
		sum_rows(rel, result);
		tessera_act_end(&before);
		table_close(rel, AccessShareLock);
	}
	AtEOXact_GUC(true, level);
}

/* ---- the check ---- */

static bool
is_alike(const TesseraCopySumAnswer *a, const TesseraCopySumAnswer *b)
{
	return a->rows == b->rows && a->sum == b->sum && a->replicated == b->replicated;
}

static bool
ask(TesseraCheck *check, int32 node_id, const TesseraTable *table, TesseraCopySumAnswer *answer)
{
	return tessera_check_answered(check, node_id, tessera_call_copy_sum(tessera_check_target(check, node_id), &table->table_id, answer));
}

static void
compare_copy(TesseraCheck *check, const TesseraTable *table, int32 node_id, TesseraCopySumAnswer *lead)
{
	const char *name = tessera_quote_qualified(get_namespace_name(get_rel_namespace(table->relid)), get_rel_name(table->relid));
	TesseraCopySumAnswer copy;
	bool		rests = true;

	for (int look = 0; look < LOOKS; look++)
	{
		TesseraCopySumAnswer again;

		if (look > 0)
			tessera_background_sleep(LOOK_MS);
		if (!ask(check, node_id, table, &copy))
			return;
		if (is_alike(&copy, lead))
			return;
		if (!ask(check, table->node_id, table, &again))
			return;
		rests = is_alike(&again, lead);
		*lead = again;
	}
	if (rests)
		tessera_check_report(check, 11, name,
							 !copy.replicated ? psprintf("node %s does not know it as replicated", tessera_check_node_name(check, node_id)) :
							 psprintf("the copy on node %s has " INT64_FORMAT " rows, that of its lead %s " INT64_FORMAT "%s",
									  tessera_check_node_name(check, node_id), copy.rows, tessera_check_node_name(check, table->node_id), lead->rows,
									  copy.rows == lead->rows ? ", with other values" : ""));
	else
		tessera_check_report(check, 0, name,
							 psprintf("the copy on node %s could not be compared: rows are written all the time",
									  tessera_check_node_name(check, node_id)));
}

void
tessera_check_copies(TesseraCheck *check)
{
	for (int i = 0; i < check->routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(check->routing, i);
		TesseraCopySumAnswer lead;

		if (!table->replicated || !ask(check, table->node_id, table, &lead))
			continue;
		for (int n = 0; n < check->routing->nnodes; n++)
		{
			int32		node_id = tessera_routing_node_at(check->routing, n)->node_id;

			if (node_id != table->node_id)
				compare_copy(check, table, node_id, &lead);
		}
	}
}
