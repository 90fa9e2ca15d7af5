/*
 * current_of.c
 *	  The row that WHERE CURRENT OF names; see current_of.h.
 *
 * It is where the cursor's portal stands: the last row of its plan, with the columns that planner/cursor_rows.c has added.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/portal.h"

#include "executor/current_of.h"
#include "executor/plan_private.h"

_Noreturn static void
raise_state(const char *format, const char *cursor, Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_CURSOR_STATE),
			 errmsg_internal(format, cursor, get_rel_name(relid))));
}

static char *
cursor_name(const CurrentOfExpr *expr, EState *estate)
{
	ParamListInfo params = estate->es_param_list_info;
	ParamExternData store;
	ParamExternData *param;

	if (expr->cursor_name)
		return expr->cursor_name;
	if (params == NULL || expr->cursor_param <= 0 || expr->cursor_param > params->numParams)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("no value found for parameter %d", expr->cursor_param)));
	param = params->paramFetch ? params->paramFetch(params, expr->cursor_param, false, &store) : &params->params[expr->cursor_param - 1];
	if (!OidIsValid(param->ptype) || param->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("no value found for parameter %d", expr->cursor_param)));
	if (param->ptype != REFCURSOROID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("type of parameter %d (%s) does not match that when preparing the plan (%s)", expr->cursor_param,
						format_type_be(param->ptype), format_type_be(REFCURSOROID))));
	return TextDatumGetCString(param->value);
}

/* Number of the table in the range table, if the plan's rows say where its rows lie; 0: not. */
static Index
find_table(const PlannedStmt *plan, Oid relid, const char *cursor, AttrNumber *ctid, AttrNumber *node)
{
	Index		found = 0;
	ListCell   *cell;

	foreach(cell, plan->planTree->targetlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Index		rti;

		if (!entry->resjunk || entry->resname == NULL || sscanf(entry->resname, TESSERA_CTID_COLUMN "%u", &rti) != 1 ||
			rti > list_length(plan->rtable) || rt_fetch(rti, plan->rtable)->relid != relid)
			continue;
		if (found > 0)
			raise_state("cursor \"%s\" has multiple FOR UPDATE/SHARE references to table \"%s\"", cursor, relid);
		found = rti;
		*ctid = entry->resno;
		*node = entry->resno + 1;
	}
	return found;
}

/* Where the plan has left its last row. */
static TupleTableSlot *
current_slot(PlanState *state)
{
	if (IsA(state, LockRowsState))
		return current_slot(outerPlanState(state));
	if (IsA(state, LimitState))
		return ((LimitState *) state)->subSlot;
	return state->ps_ResultTupleSlot;
}

bool
tessera_cursor_row(const CurrentOfExpr *expr, EState *estate, Oid relid, TesseraCursorRow *row)
{
	char	   *name = cursor_name(expr, estate);
	Portal		portal = GetPortalByName(name);
	AttrNumber	ctid;
	AttrNumber	node;
	TupleTableSlot *slot;
	Datum		value;
	bool		isnull;

	if (!PortalIsValid(portal))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_CURSOR),
				 errmsg("cursor \"%s\" does not exist", name)));
	if (portal->strategy != PORTAL_ONE_SELECT)
		raise_state("cursor \"%s\" is not a SELECT query", name, relid);
	if (portal->queryDesc == NULL || portal->queryDesc->estate == NULL)
		raise_state("cursor \"%s\" is held from a previous transaction", name, relid);
	if (find_table(portal->queryDesc->plannedstmt, relid, name, &ctid, &node) == 0)
		raise_state("cursor \"%s\" is not a simply updatable scan of table \"%s\"", name, relid);
	if (portal->atStart || portal->atEnd)
		raise_state("cursor \"%s\" is not positioned on a row", name, relid);
	slot = current_slot(portal->queryDesc->planstate);
	row->routing = tessera_scan_routing(portal->queryDesc->planstate, relid);
	if (TupIsNull(slot) || row->routing == NULL)
		raise_state("cursor \"%s\" is not a simply updatable scan of table \"%s\"", name, relid);
	value = slot_getattr(slot, ctid, &isnull);
	if (isnull)
		return false;
	ItemPointerCopy((ItemPointer) DatumGetPointer(value), &row->ctid);
	row->node_id = (int32) DatumGetObjectId(slot_getattr(slot, node, &isnull));
	return !isnull;
}
