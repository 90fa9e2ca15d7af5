/*
 * row_write.c
 *	  Statements by which a router writes rows whose triggers it fires itself; see row_write.h.
 *
 * Form: a mark, which is a comment at the very beginning of the text. So it is part of the statement's identity wherever statements are cached. It
 * counts only in texts that come from a router, by the rule of session/check_as.h: what users write on the shard, or is shipped as they wrote it, is
 * never taken for such a text.
 *
 * Memory: nothing is kept.
 */
#include "postgres.h"

#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "parser/analyze.h"
#include "parser/parsetree.h"

#include "common/version_compat.h"
#include "session/check_as.h"
#include "session/row_write.h"

#define MARK "/*tessera rows*/ "
#define MARK_READS "/*tessera rows, read*/ "
#define MARK_ALL "/*tessera rows"

static post_parse_analyze_hook_type previous_hook = NULL;

char *
tessera_row_write_text(const char *sql, bool reads)
{
	return psprintf("%s%s", reads ? MARK_READS : MARK, sql);
}

bool
tessera_is_row_write(const char *sql)
{
	return sql != NULL && strncmp(sql, MARK_ALL, strlen(MARK_ALL)) == 0;
}

/* Before it is rewritten: the columns that it returns for the router are not read by the user. */
static void
analysed(ParseState *pstate, Query *query, JumbleState *jumble)
{
	if (query->resultRelation > 0 && tessera_is_row_write(pstate->p_sourcetext) && tessera_comes_from_router(pstate->p_sourcetext) &&
		strncmp(pstate->p_sourcetext, MARK, strlen(MARK)) == 0)
	{
		TesseraPermissions *permissions = tessera_permissions(query, rt_fetch(query->resultRelation, query->rtable));

		permissions->requiredPerms &= ~ACL_SELECT;
		permissions->selectedCols = NULL;
	}
	if (previous_hook)
		previous_hook(pstate, query, jumble);
}

void
tessera_row_write_planned(PlannedStmt *plan)
{
	ListCell   *cell;

	/* A query within a shipped utility statement, whose text is a user's, reads. */
	if (plan->commandType == CMD_SELECT)
		return;
	foreach(cell, plan->resultRelations)
		tessera_plan_permissions(plan, rt_fetch(lfirst_int(cell), plan->rtable))->requiredPerms = 0;
}

void
tessera_row_write_started(PlanState *plan)
{
	ModifyTableState *state = (ModifyTableState *) plan;

	if (!IsA(plan, ModifyTableState))
		return;
	for (int i = 0; i < state->mt_nrels; i++)
	{
		TriggerDesc *triggers = state->resultRelInfo[i].ri_TrigDesc;	/* a copy */

		for (int t = 0; triggers != NULL && t < triggers->numtriggers; t++)
			if (!triggers->triggers[t].tgisinternal)
				triggers->triggers[t].tgenabled = TRIGGER_DISABLED;
	}
	state->mt_transition_capture = NULL;
}

void
tessera_row_write_init(void)
{
	previous_hook = post_parse_analyze_hook;
	post_parse_analyze_hook = analysed;
}
