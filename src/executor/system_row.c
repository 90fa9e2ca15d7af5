/*
 * system_row.c
 *	  Slots for rows of a table that carry system columns read on another node; see system_row.h.
 *
 * The server's virtual slots have no system column but ctid and tableoid. These are virtual slots with room behind for the others, and a getsysattr
 * of their own that reads them from there; all other methods are the server's.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "catalog/heap.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"

#include "executor/system_row.h"

/* Of a slot: by attribute number, from -1 on. */
#define SYSTEM_COLUMNS (-FirstLowInvalidHeapAttributeNumber - 1)

typedef struct SystemSlot
{
	VirtualTupleTableSlot base;
	Datum		values[SYSTEM_COLUMNS];
} SystemSlot;

static Datum
get_system_column(TupleTableSlot *slot, int attribute, bool *isnull)
{
	Assert(attribute < 0 && attribute > FirstLowInvalidHeapAttributeNumber);
	*isnull = false;
	return ((SystemSlot *) slot)->values[-attribute - 1];
}

static const TupleTableSlotOps *
slot_ops(void)
{
	static TupleTableSlotOps ops = {0};

	if (ops.getsysattr == NULL)
	{
		memcpy(&ops, &TTSOpsVirtual, sizeof(ops));
		ops.base_slot_size = sizeof(SystemSlot);
		ops.getsysattr = get_system_column;
	}
	return &ops;
}

bool
tessera_names_row_version(const TesseraPermissions *permissions)
{
	static const AttrNumber columns[] = {MinTransactionIdAttributeNumber, MaxTransactionIdAttributeNumber, MinCommandIdAttributeNumber,
	MaxCommandIdAttributeNumber};

	for (int i = 0; permissions != NULL && i < lengthof(columns); i++)
		if (bms_is_member(columns[i] - FirstLowInvalidHeapAttributeNumber, permissions->selectedCols))
			return true;
	return false;
}

TupleTableSlot *
tessera_system_row_slot(EState *estate, TupleDesc desc)
{
	return ExecAllocTableSlot(&estate->es_tupleTable, desc, slot_ops());
}

void
tessera_system_row_set(TupleTableSlot *slot, AttrNumber attribute, Datum value)
{
	if (attribute == SelfItemPointerAttributeNumber)
		ItemPointerCopy((ItemPointer) DatumGetPointer(value), &slot->tts_tid);
	else if (attribute == TableOidAttributeNumber)
		slot->tts_tableOid = DatumGetObjectId(value);
	else
		((SystemSlot *) slot)->values[-attribute - 1] = value;
}

TupleDesc
tessera_system_row_desc(TupleDesc desc, List *attributes, AttrNumber *attnums)
{
	TupleDesc	wide = CreateTemplateTupleDesc(desc->natts + SYSTEM_COLUMNS);
	ListCell   *cell;

	for (AttrNumber i = 1; i <= desc->natts; i++)
		TupleDescCopyEntry(wide, i, desc, i);
	for (AttrNumber i = -1; i > FirstLowInvalidHeapAttributeNumber; i--)
	{
		const FormData_pg_attribute *column = SystemAttributeDefinition(i);

		/* a table has another number on each node, but the same name */
		TupleDescInitEntry(wide, desc->natts - i, NameStr(column->attname), i == TableOidAttributeNumber ? REGCLASSOID : column->atttypid, -1, 0);
	}
	foreach(cell, attributes)
		attnums[foreach_current_index(cell)] = lfirst_int(cell) > 0 ? lfirst_int(cell) : desc->natts - lfirst_int(cell);
	return wide;
}
