/*
 * cursor.c
 *	  Numbers of statements being executed, and what cursors ask of them; see cursor.h.
 *
 * The list of numbers is the backend's; an entry leaves it with its query context, also after an error. The shards learn that a cursor is gone with
 * the next number they are told.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "tcop/pquery.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"

#include "executor/cursor.h"
#include "session/internal_connection.h"

static TesseraStatementNumber *numbers = NULL;

static void
forget_number(void *arg)
{
	TesseraStatementNumber *number = arg;
	TesseraStatementNumber **link = &numbers;

	while (*link && *link != number)
		link = &(*link)->next;
	if (*link)
		*link = number->next;
	if (number->cursor)
		tessera_statement_forget(&number->kept);
}

TesseraStatementNumber *
tessera_statement_number_if_any(EState *estate)
{
	for (TesseraStatementNumber *number = numbers; number; number = number->next)
		if (number->estate == estate)
			return number;
	return NULL;
}

TesseraStatementNumber *
tessera_statement_number(EState *estate)
{
	TesseraStatementNumber *number = tessera_statement_number_if_any(estate);

	if (number != NULL)
		return number;
	number = MemoryContextAllocZero(estate->es_query_cxt, sizeof(TesseraStatementNumber));
	number->estate = estate;
	number->kept.number = tessera_next_statement();
	number->next = numbers;
	numbers = number;
	number->callback.func = forget_number;
	number->callback.arg = number;
	MemoryContextRegisterResetCallback(estate->es_query_cxt, &number->callback);
	return number;
}

/* The unnamed portal is run as soon as it is bound, and so are those of EXECUTE, which are not visible. */
bool
tessera_opens_cursor(int eflags)
{
	return ActivePortal != NULL && ActivePortal->status == PORTAL_DEFINED && ActivePortal->strategy == PORTAL_ONE_SELECT &&
		ActivePortal->visible && ActivePortal->name[0] != '\0' && (eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0;
}

void
tessera_open_in_cursor(void (*open) (void *scan), void *scan, EState *estate)
{
	TesseraStatementNumber *number = tessera_statement_number(estate);

	if (!number->cursor)
	{
		tessera_statement_keep(&number->kept);
		number->path = MemoryContextStrdup(estate->es_query_cxt, namespace_search_path);
	}
	number->cursor = true;
	tessera_nesting_enter();
	PG_TRY();
	{
		open(scan);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
	}
	PG_END_TRY();
}

int
tessera_cursor_path_begin(EState *estate)
{
	TesseraStatementNumber *number = tessera_statement_number_if_any(estate);
	int			nest;

	if (number == NULL || number->path == NULL || strcmp(number->path, namespace_search_path) == 0)
		return 0;
	nest = NewGUCNestLevel();
	(void) set_config_option("search_path", number->path, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return nest;
}

void
tessera_cursor_path_end(int nest)
{
	if (nest > 0)
		AtEOXact_GUC(true, nest);
}

static bool
find_running(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan) || (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC))
		return true;
	return expression_tree_walker(node, find_running, context);
}

bool
tessera_needs_running_plan(List *exprs)
{
	return find_running((Node *) exprs, NULL);
}

/* DECLARE CURSOR and OPEN of PL/pgSQL ask for a fast plan, and nothing else does. */
bool
tessera_cursor_holds(List *exprs, bool locks)
{
	return locks || (ActivePortal->cursorOptions & CURSOR_OPT_FAST_PLAN) != 0 || tessera_needs_running_plan(exprs);
}

void
tessera_cursor_stale(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("a chunk of a table was moved while a cursor on it was open"),
			 errhint("Retry the transaction.")));
}
