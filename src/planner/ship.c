/*
 * ship.c
 *	  Shippability, and the repair of a Query before PostgreSQL's own deparser writes it; see ship.h and PLANNER (a), (j2).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "catalog/portable.h"
#include "planner/ship.h"

/* Built-in functions that mean another thing on another node, whatever their volatility says. */
static const char *const node_bound_functions[] = {
	"nextval", "currval", "lastval", "setval", "set_config", "query_to_xml", "table_to_xml", "cursor_to_xml", "schema_to_xml", "database_to_xml",
	"ts_stat", "pg_backend_pid", "txid_current", "txid_current_if_assigned", "pg_current_xact_id", "pg_current_xact_id_if_assigned", "pg_notify",
	"pg_column_size", "pg_relation_size", "pg_table_size", "pg_total_relation_size", "pg_indexes_size", "pg_database_size", "pg_sleep",
	"pg_get_serial_sequence", "inet_server_addr", "inet_server_port", "inet_client_addr", "inet_client_port", "pg_cancel_backend",
	"pg_terminate_backend", "lo_create", "lo_import", "lo_export", "lo_unlink", "pg_export_snapshot", NULL
};

static bool
is_node_bound(Oid function)
{
	char	   *name = get_func_name(function);

	if (name == NULL)
		return true;
	if (strncmp(name, "pg_advisory", 11) == 0 || strncmp(name, "pg_try_advisory", 15) == 0)
		return true;
	for (int i = 0; node_bound_functions[i]; i++)
		if (strcmp(name, node_bound_functions[i]) == 0)
			return true;
	return false;
}

typedef struct ShipContext
{
	bool		writing;
	TesseraReason *reason;
} ShipContext;

/* For check_functions_in_node: true stops, the function does not ship. */
static bool
function_stays(Oid function, void *arg)
{
	ShipContext *context = arg;
	char		volatility = func_volatile(function);

	if (function < FirstNormalObjectId)
	{
		if (volatility != PROVOLATILE_VOLATILE && !is_node_bound(function))
			return false;
		/* volatile, but the same anywhere */
		if (function == F_RANDOM || function == F_CLOCK_TIMESTAMP || function == F_GEN_RANDOM_UUID || function == F_TIMEOFDAY)
			return false;
	}
	else if (volatility == PROVOLATILE_IMMUTABLE || (context->writing && get_func_namespace(function) != get_namespace_oid("tessera", true)))
		return false;
	if (context->reason)
	{
		context->reason->text = psprintf("it uses function %s(), which cannot run on a shard", get_func_name(function));
		context->reason->hint = "Compute the value first and pass it as a parameter.";
	}
	return true;
}

static bool
refuse(ShipContext *context, const char *text, const char *hint)
{
	if (context->reason)
	{
		context->reason->text = text;
		context->reason->hint = hint;
	}
	return true;
}

/* Assignments to several elements of one array or fields of one row are nested by the rewriter, and the deparser prints the outermost only (a1). */
static bool
nested_assignment(Node *node)
{
	if (IsA(node, SubscriptingRef))
	{
		SubscriptingRef *ref = (SubscriptingRef *) node;

		return ref->refassgnexpr && ref->refexpr && !IsA(ref->refexpr, Var);
	}
	if (IsA(node, FieldStore))
		return list_length(((FieldStore *) node)->newvals) > 1 || (((FieldStore *) node)->arg && !IsA(((FieldStore *) node)->arg, Var));
	return false;
}

/* May core put the body of the function in its place? Then the body would be planned as part of the shard's statement, not as a statement of its own. */
static bool
is_inlined(RangeTblEntry *rte)
{
	RangeTblFunction *function = linitial_node(RangeTblFunction, rte->functions);
	Oid			id = IsA(function->funcexpr, FuncExpr) ? ((FuncExpr *) function->funcexpr)->funcid : InvalidOid;
	HeapTuple	tuple;
	bool		result = false;

	if (id < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(id));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

		result = form->prolang == SQLlanguageId && form->provolatile != PROVOLATILE_VOLATILE && form->proretset;
		ReleaseSysCache(tuple);
	}
	return result;
}

static bool
stays_walker(Node *node, ShipContext *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, function_stays, context))
		return true;
	if (nested_assignment(node))
		return refuse(context, "it assigns several elements or fields of one column", "Assign the whole column.");
	switch (nodeTag(node))
	{
		case T_NextValueExpr:
			return refuse(context, "it draws from a sequence for each row", "Draw the values first, or insert the rows one by one.");
		case T_CurrentOfExpr:
			return refuse(context, "WHERE CURRENT OF is not supported on a table of the cluster", "Use the primary key.");
		case T_CommonTableExpr:
			if (((CommonTableExpr *) node)->search_clause || ((CommonTableExpr *) node)->cycle_clause)
				return refuse(context, "it has a SEARCH or CYCLE clause", NULL);	/* expanded already, and printed once more */
			return expression_tree_walker(node, stays_walker, context);
		case T_RangeTblEntry:
			{
				RangeTblEntry *rte = (RangeTblEntry *) node;

				if (rte->rtekind == RTE_NAMEDTUPLESTORE)
					return refuse(context, "it reads a transition table, or the rows of a WITH query that modifies data: they are on this node only", "Split the statement.");
				if (rte->rtekind == RTE_FUNCTION && is_inlined(rte))
					return refuse(context, "it calls an SQL function in FROM, which would read the rows of one shard only",
								  "Write the function in PL/pgSQL, or call it first and pass its result.");
				return false;	/* range_table_walker goes into its parts */
			}
		case T_Query:
			{
				Query	   *query = (Query *) node;

				if (query->withCheckOptions != NIL && query->commandType != CMD_SELECT && query->hasRowSecurity == false)
					return refuse(context, "it writes through a view with a check option", "Write to the table itself.");
				return query_tree_walker(query, stays_walker, context, QTW_EXAMINE_RTES_BEFORE);
			}
		default:
			return expression_tree_walker(node, stays_walker, context);
	}
}

bool
tessera_expression_ships(Node *node)
{
	ShipContext context = {0};

	return !stays_walker(node, &context);
}

/* ---- parameters ---- */

/* Location of the Params made here: they are of the text's numbering, not the user's. */
#define OWN_PARAM (-2)

/* ($id)::type, as the deparser prints it. */
static Node *
make_param_node(Expr *expr, int id)
{
	Param	   *param = makeNode(Param);
	RelabelType *cast;

	param->paramkind = PARAM_EXTERN;
	param->paramid = id;
	param->paramtype = exprType((Node *) expr);
	param->paramtypmod = -1;
	param->paramcollid = exprCollation((Node *) expr);
	param->location = OWN_PARAM;
	if (param->paramtype == UNKNOWNOID)
		return (Node *) param;
	cast = makeRelabelType((Expr *) param, param->paramtype, -1, param->paramcollid, COERCE_EXPLICIT_CAST);
	return (Node *) cast;
}

Node *
tessera_make_param(Expr *expr, List **params)
{
	ListCell   *cell;

	/* a volatile one is another value each time it stands there */
	foreach(cell, *params)
		if (!IsA(expr, Const) && equal(lfirst(cell), expr) && !contain_volatile_functions((Node *) expr))
			return make_param_node(expr, foreach_current_index(cell) + 1);
	*params = lappend(*params, expr);
	return make_param_node(expr, list_length(*params));
}

/* ---- repair ---- */

typedef struct RepairContext
{
	const TesseraRouting *routing;
	List	   *params;
	bool		conditional;	/* inside CASE or COALESCE */
} RepairContext;

static bool
needs_row(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var) || IsA(node, SubLink) || IsA(node, Aggref) || IsA(node, WindowFunc) || IsA(node, GroupingFunc) || IsA(node, Query) ||
		IsA(node, CaseTestExpr) || IsA(node, CoerceToDomainValue) || IsA(node, SetToDefault) || IsA(node, CurrentOfExpr) || IsA(node, NextValueExpr))
		return true;
	if (IsA(node, Param) && (((Param *) node)->paramkind != PARAM_EXTERN || ((Param *) node)->location == OWN_PARAM))
		return true;
	if ((IsA(node, FuncExpr) && ((FuncExpr *) node)->funcretset) || (IsA(node, OpExpr) && ((OpExpr *) node)->opretset))
		return true;
	return expression_tree_walker(node, needs_row, context);
}

static bool
is_expression(Node *node)
{
	switch (nodeTag(node))
	{
		case T_FuncExpr:
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
		case T_ScalarArrayOpExpr:
		case T_CoerceViaIO:
		case T_ArrayCoerceExpr:
		case T_SQLValueFunction:
		case T_CaseExpr:
		case T_CoalesceExpr:
		case T_MinMaxExpr:
		case T_Param:
			return true;
		default:
			return false;
	}
}

bool
tessera_becomes_param(Node *node, bool conditional)
{
	if (IsA(node, Param))
		return ((Param *) node)->paramkind == PARAM_EXTERN && ((Param *) node)->location != OWN_PARAM;
	if (!is_expression(node) || needs_row(node, NULL) || !contain_mutable_functions(node) || contain_volatile_functions(node) ||
		exprType(node) == VOIDOID)
		return false;
	return !conditional || IsA(node, SQLValueFunction) || (IsA(node, FuncExpr) && ((FuncExpr *) node)->args == NIL);
}

/* Views were expanded by the rewriter: name them again, so that their owner's rights and barriers hold on the shard (a4). */
static void
restore_view(RangeTblEntry *rte)
{
	Oid			view = rte->relid;

	if (rte->rtekind != RTE_SUBQUERY || rte->subquery == NULL)
		return;
	if (!OidIsValid(view) && rte->subquery->rtable != NIL)
	{
		RangeTblEntry *old = linitial(rte->subquery->rtable);

		if (old->rtekind == RTE_RELATION && old->relkind == RELKIND_VIEW && old->alias && strcmp(old->alias->aliasname, "old") == 0)
			view = old->relid;
	}
	if (!OidIsValid(view) || get_rel_relkind(view) != RELKIND_VIEW)
		return;
	rte->rtekind = RTE_RELATION;
	rte->relid = view;
	rte->relkind = RELKIND_VIEW;
	rte->rellockmode = AccessShareLock;
	rte->subquery = NULL;
	rte->security_barrier = false;
	rte->inh = true;
}

static Node *
repair_mutator(Node *node, RepairContext *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Query))
	{
		Query	   *query = (Query *) node;
		ListCell   *cell;

		foreach(cell, query->rtable)
		{
			RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

			restore_view(rte);
			rte->securityQuals = NIL;	/* the shard applies row security itself */
		}
		query->withCheckOptions = NIL;
		return (Node *) query_tree_mutator(query, repair_mutator, context, QTW_DONT_COPY_QUERY);
	}
	if (tessera_becomes_param(node, context->conditional))
		return tessera_make_param((Expr *) node, &context->params);
	if (IsA(node, CaseExpr) || IsA(node, CoalesceExpr))
	{
		bool		before = context->conditional;

		context->conditional = true;
		node = expression_tree_mutator(node, repair_mutator, context);
		context->conditional = before;
		return node;
	}
	return expression_tree_mutator(node, repair_mutator, context);
}

/* ---- numbers of objects ---- */

/*
 * An object has another OID on each node, but one name: what stays among names on the shard means the same there, what crosses as a number does not.
 */
static bool
is_named_object(Node *node)
{
	if (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return (IsA(node, Var) && ((Var *) node)->varattno == TableOidAttributeNumber) || (IsA(node, Const) && ((Const *) node)->consttype == REGCLASSOID);
}

static bool
leaks_number(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
		return ((Var *) node)->varattno == TableOidAttributeNumber;
	if (IsA(node, RelabelType) && ((RelabelType *) node)->resulttype == REGCLASSOID && is_named_object(node))
		return false;
	if (IsA(node, RelabelType) && ((RelabelType *) node)->resulttype == OIDOID && is_named_object(node))
		return true;
	if (IsA(node, OpExpr) && (get_opcode(((OpExpr *) node)->opno) == F_OIDEQ || get_opcode(((OpExpr *) node)->opno) == F_OIDNE) &&
		is_named_object(linitial(((OpExpr *) node)->args)) && is_named_object(lsecond(((OpExpr *) node)->args)))
		return false;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, leaks_number, context, 0);
	return expression_tree_walker(node, leaks_number, context);
}

/* An output column that is tableoid alone is known here, but for tables with children. */
static void
fold_tableoid(Query *query, List *targets, List **params)
{
	ListCell   *cell;

	foreach(cell, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Var		   *var = (Var *) entry->expr;
		RangeTblEntry *rte;

		if (!IsA(var, Var) || var->varattno != TableOidAttributeNumber || var->varlevelsup != 0)
			continue;
		rte = rt_fetch(var->varno, query->rtable);
		if (rte->rtekind == RTE_RELATION && rte->relkind != RELKIND_VIEW && !has_subclass(rte->relid))
			entry->expr = (Expr *) tessera_make_param((Expr *) makeConst(OIDOID, -1, InvalidOid, sizeof(Oid), ObjectIdGetDatum(rte->relid), false, true),
													  params);
	}
}

/* ---- constants ---- */

/* May this constant be a parameter, so that statements that differ in it share one text? */
static bool
is_liftable(Node *node)
{
	Const	   *constant = (Const *) node;

	if (!IsA(node, Const) || constant->constisnull || constant->consttypmod != -1)
		return false;
	if (constant->consttype == UNKNOWNOID || constant->consttype == BOOLOID || constant->consttype == OIDOID || constant->consttype == RECORDOID)
		return false;
	return !tessera_type_names_object(constant->consttype) && get_typtype(constant->consttype) != TYPTYPE_PSEUDO;
}

static Node *
lift_mutator(Node *node, List **params)
{
	if (node == NULL || IsA(node, SubLink) || IsA(node, Query) || tessera_becomes_param(node, false))
		return node;
	/* Printed in syntax of their own, for which the deparser reads some arguments as constants: EXTRACT, NORMALIZE, XMLROOT. */
	if (IsA(node, XmlExpr) || (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcformat == COERCE_SQL_SYNTAX))
		return node;
	if (is_liftable(node))
	{
		/* each constant its own parameter: equal ones of one execution may differ in the next */
		*params = lappend(*params, node);
		return make_param_node((Expr *) node, list_length(*params));
	}
	return expression_tree_mutator(node, lift_mutator, params);
}

static void
lift_in_jointree(Node *node, List **params)
{
	ListCell   *cell;

	if (node == NULL)
		return;
	if (IsA(node, FromExpr))
	{
		foreach(cell, ((FromExpr *) node)->fromlist)
			lift_in_jointree(lfirst(cell), params);
		((FromExpr *) node)->quals = lift_mutator(((FromExpr *) node)->quals, params);
	}
	else if (IsA(node, JoinExpr))
	{
		lift_in_jointree(((JoinExpr *) node)->larg, params);
		lift_in_jointree(((JoinExpr *) node)->rarg, params);
		((JoinExpr *) node)->quals = lift_mutator(((JoinExpr *) node)->quals, params);
	}
}

void
tessera_lift_constants(Query *query, List **params)
{
	ListCell   *cell;

	lift_in_jointree((Node *) query->jointree, params);
	/* Not in a SELECT's output: GROUP BY, DISTINCT and ORDER BY match by it. */
	if (query->commandType == CMD_UPDATE || (query->commandType == CMD_INSERT && query->jointree->fromlist == NIL))
		foreach(cell, query->targetList)
		{
			TargetEntry *entry = lfirst_node(TargetEntry, cell);

			/* a new row's values are computed here as a whole */
			if (query->commandType == CMD_INSERT && !IsA(entry->expr, Const))
				continue;
			if (!nested_assignment((Node *) entry->expr) && !IsA(entry->expr, SubscriptingRef) && !IsA(entry->expr, FieldStore))
				entry->expr = (Expr *) lift_mutator((Node *) entry->expr, params);
		}
}

/* The one row of an INSERT ... VALUES: every value that is no constant is computed here. */
static bool
is_own_param(Node *node)
{
	if (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return IsA(node, Param) && ((Param *) node)->location == OWN_PARAM;
}

static void
parametrise_row(Query *query, RepairContext *context)
{
	ListCell   *cell;

	foreach(cell, query->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (entry->resjunk || IsA(entry->expr, Const) || IsA(entry->expr, SetToDefault) || is_own_param((Node *) entry->expr))
			continue;
		if (IsA(entry->expr, NextValueExpr) || !needs_row((Node *) entry->expr, NULL))
			entry->expr = (Expr *) tessera_make_param(entry->expr, &context->params);
	}
}

static bool
is_single_row_insert(Query *query)
{
	return query->commandType == CMD_INSERT && query->jointree->fromlist == NIL;
}

bool
tessera_prepare_query(Query *query, bool writing, const TesseraRouting *routing, List **params, TesseraReason *reason)
{
	RepairContext repair = {.routing = routing, .params = *params};
	ShipContext ship = {.writing = writing, .reason = reason};

	reason->text = NULL;
	reason->hint = NULL;
	if (is_single_row_insert(query))
	{
		ListCell   *cell;

		parametrise_row(query, &repair);
		/* GENERATED ALWAYS identity: its value was drawn here (a3) */
		foreach(cell, query->targetList)
			if (!IsA(((TargetEntry *) lfirst(cell))->expr, SetToDefault))
				query->override = OVERRIDING_SYSTEM_VALUE;
	}
	fold_tableoid(query, query->commandType == CMD_SELECT ? query->targetList : query->returningList, &repair.params);
	(void) repair_mutator((Node *) query, &repair);
	*params = repair.params;
	if (leaks_number((Node *) query, NULL))
		return !refuse(&ship, "it uses the number of a table, which differs from node to node", "Use tableoid::regclass.");
	return !stays_walker((Node *) query, &ship);
}
