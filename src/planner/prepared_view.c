/*
 * prepared_view.c
 *	  In a query of a client on a member node, pg_catalog.pg_prepared_xacts means tessera.prepared_transactions, whose columns are the same: drivers
 *	  look there for the identifiers that they gave (XA recover).
 *
 * It is done right after parse analysis, when the names are resolved and nothing else is. What is stored stays as it is written: definitions of
 * views, rules and functions. The extension itself reads the function pg_prepared_xact(), which nothing replaces.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"

#include "planner/prepared_view.h"
#include "routing/routing.h"
#include "session/internal_connection.h"

typedef struct Swap
{
	Oid			from;
	Oid			to;
} Swap;

static post_parse_analyze_hook_type previous_analyze = NULL;
static ProcessUtility_hook_type previous_utility = NULL;
static bool defining = false;	/* what is analysed will be stored */

static bool
swap_walker(Node *node, void *context)
{
	Swap	   *swap = context;

	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *rte = (RangeTblEntry *) node;

		if (rte->rtekind == RTE_RELATION && rte->relid == swap->from)
		{
			LockRelationOid(swap->to, rte->rellockmode);
			rte->relid = swap->to;
		}
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, swap_walker, context, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, swap_walker, context);
}

static void
swap_view(Query *query)
{
	Oid			schema = get_namespace_oid("tessera", true);
	Swap		swap = {.from = get_relname_relid("pg_prepared_xacts", PG_CATALOG_NAMESPACE)};

	swap.to = OidIsValid(schema) ? get_relname_relid("prepared_transactions", schema) : InvalidOid;
	if (OidIsValid(swap.from) && OidIsValid(swap.to))
		(void) query_tree_walker(query, swap_walker, &swap, QTW_EXAMINE_RTES_BEFORE);
}

static void
analyze_hook(ParseState *state, Query *query, JumbleState *jumble)
{
	if (previous_analyze)
		previous_analyze(state, query, jumble);
	/* the text is looked at before the image: this is run for every statement */
	if (!defining && !tessera_known_no_node() && state->p_sourcetext != NULL && strstr(state->p_sourcetext, "pg_prepared_xacts") != NULL &&
		!tessera_internal_connection() && IsTransactionState() && !RecoveryInProgress() && tessera_routing() != NULL)
		swap_view(query);
}

static void
utility_hook(PlannedStmt *statement, const char *text, bool read_only, ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	ProcessUtility_hook_type volatile next = previous_utility ? previous_utility : standard_ProcessUtility;

	if (!IsA(statement->utilityStmt, ViewStmt) && !IsA(statement->utilityStmt, RuleStmt) && !IsA(statement->utilityStmt, CreateFunctionStmt))
	{
		next(statement, text, read_only, context, params, environment, receiver, completion);
		return;
	}
	defining = true;			/* no query is run in between, but those of event triggers */
	PG_TRY();
	{
		next(statement, text, read_only, context, params, environment, receiver, completion);
	}
	PG_FINALLY();
	{
		defining = false;
	}
	PG_END_TRY();
}

void
tessera_prepared_view_init(void)
{
	previous_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = analyze_hook;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility_hook;
}
