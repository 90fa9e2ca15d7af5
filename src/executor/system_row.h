/*
 * system_row.h
 *	  Slots for rows of a table that carry system columns read on another node.
 */
#ifndef TESSERA_SYSTEM_ROW_H
#define TESSERA_SYSTEM_ROW_H

#include "postgres.h"
#include "access/attnum.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"

#include "common/version_compat.h"

/*
 * True if a statement names xmin, xmax, cmin or cmax of the relation. Of a replicated table it then reads the lead, as copies have versions of their
 * own. NULL: nothing is checked of it, and so nothing named.
 */
extern bool tessera_names_row_version(const TesseraPermissions *permissions);

/*
 * A virtual slot of that row type, freed with the executor's tuple table, which answers xmin, cmin, xmax and cmax with what
 * tessera_system_row_set was given last; ctid and tableoid are the slot's tts_tid and tts_tableOid, as in any slot.
 */
extern TupleTableSlot *tessera_system_row_slot(EState *estate, TupleDesc desc);
extern void tessera_system_row_set(TupleTableSlot *slot, AttrNumber attribute, Datum value);

/*
 * The row type, with the system columns among the attributes behind it, in their order; attnums: where in it each attribute is. In the current
 * context.
 */
extern TupleDesc tessera_system_row_desc(TupleDesc desc, List *attributes, AttrNumber *attnums);

#endif							/* TESSERA_SYSTEM_ROW_H */
