/*
 * ship.c
 *	  Shippability, and the repair of a Query before PostgreSQL's own deparser writes it; see ship.h, doc/design.md#deparser-traps and
 *	  doc/design.md#shippable.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_aggregate.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "catalog/portable_types.h"
#include "catalog/relation.h"
#include "common/operator_names.h"
#include "common/version_compat.h"
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
	bool		named;			/* in the query of a view: the view is named, its query is not printed */
	bool		hides;			/* an operator is hidden, found while the rest is asked; what a domain's checks call is not printed */
	TesseraReason *reason;
} ShipContext;

/* True if the type is temporary, or made of a temporary one: it exists in this session only. */
static bool
is_temporary_type(Oid type)
{
	HeapTuple	tuple;
	Oid			element;
	bool		result;

	if (type < FirstNormalObjectId)
		return false;
	element = get_element_type(type);
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(OidIsValid(element) ? element : type));
	if (!HeapTupleIsValid(tuple))
		return false;
	result = isAnyTempNamespace(((Form_pg_type) GETSTRUCT(tuple))->typnamespace);
	ReleaseSysCache(tuple);
	return result;
}

/* True if the node is printed with the name of such a type. */
static bool
names_temporary_type(Node *node)
{
	switch (nodeTag(node))
	{
		case T_Var:				/* a whole row */
			return ((Var *) node)->varattno == InvalidAttrNumber && is_temporary_type(((Var *) node)->vartype);
		case T_Const:
		case T_Param:
		case T_RelabelType:
		case T_CoerceViaIO:
		case T_CoerceToDomain:
		case T_ArrayCoerceExpr:
		case T_ConvertRowtypeExpr:
		case T_RowExpr:
		case T_ArrayExpr:
			return is_temporary_type(exprType(node));
		case T_RangeTblFunction:
			{
				ListCell   *cell;

				foreach(cell, ((RangeTblFunction *) node)->funccoltypes)
					if (is_temporary_type(lfirst_oid(cell)))
						return true;
				return false;
			}
		default:
			return false;
	}
}

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
		if (tessera_is_random(function) || function == F_CLOCK_TIMESTAMP || function == F_GEN_RANDOM_UUID || function == F_TIMEOFDAY)
			return false;
	}
	else if (isAnyTempNamespace(get_func_namespace(function)))
		;						/* only this session has it */
	else if (volatility == PROVOLATILE_IMMUTABLE || (context->writing && !tessera_is_own_schema(get_func_namespace(function))))
		return false;
	if (context->reason)
	{
		context->reason->text = psprintf("it uses function %s(), which cannot run on a shard", get_func_name(function));
		context->reason->hint = "Compute the value first and pass it as a parameter.";
	}
	return true;
}

/* True if values of the type are, or may be made of, OIDs of this node. */
static bool
holds_object(Oid type)
{
	return tessera_type_names_object(type) || type == RECORDOID;
}

bool
tessera_order_ships(const SortGroupClause *clause, Oid type)
{
	ShipContext nothing = {0};
	Oid			family;
	Oid			input;
	Oid			compare;
	int16		strategy;

	if (tessera_type_is_made_of(type, holds_object) || function_stays(get_opcode(clause->eqop), &nothing))
		return false;
	if (!OidIsValid(clause->sortop))
		return true;
	if (function_stays(get_opcode(clause->sortop), &nothing) || !get_ordering_op_properties(clause->sortop, &family, &input, &strategy))
		return false;
	compare = get_opfamily_proc(family, input, input, BTORDER_PROC);
	return OidIsValid(compare) && !function_stays(compare, &nothing);
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

/* What an assignment to an element or a field is made to: the column itself, or the result of another such assignment. NULL: it is none. */
static Node *
assignment_input(Node *node)
{
	if (node && IsA(node, FieldStore))
		return (Node *) ((FieldStore *) node)->arg;
	if (node && IsA(node, SubscriptingRef) && ((SubscriptingRef *) node)->refassgnexpr)
		return (Node *) ((SubscriptingRef *) node)->refexpr;
	return NULL;
}

/*
 * Assignments to several elements of one array or fields of one row are nested by the rewriter, and the deparser prints the outermost only
 * (doc/design.md#nested-assignments).
 */
static bool
nested_assignment(Node *node)
{
	if (assignment_input(assignment_input(node)) != NULL)
		return true;
	return IsA(node, FieldStore) && list_length(((FieldStore *) node)->newvals) > 1;
}

/* The assignments that the rewriter has nested, each by itself, in their order. */
static List *
split_assignment(Node *node)
{
	CoerceToDomain *domain = IsA(node, CoerceToDomain) && assignment_input((Node *) ((CoerceToDomain *) node)->arg) ? (CoerceToDomain *) node : NULL;
	List	   *parts = NIL;
	Node	   *column;
	ListCell   *cell;

	if (domain)
		node = (Node *) domain->arg;
	if (!nested_assignment(node))
		return NIL;
	for (column = node; assignment_input(column); column = assignment_input(column))
		;
	for (; assignment_input(node); node = assignment_input(node))
	{
		if (IsA(node, FieldStore))
			for (int i = list_length(((FieldStore *) node)->newvals) - 1; i >= 0; i--)
			{
				FieldStore *field = makeNode(FieldStore);

				memcpy(field, node, sizeof(FieldStore));
				field->arg = (Expr *) column;
				field->newvals = list_make1(list_nth(((FieldStore *) node)->newvals, i));
				field->fieldnums = list_make1_int(list_nth_int(((FieldStore *) node)->fieldnums, i));
				parts = lcons(field, parts);
			}
		else
		{
			SubscriptingRef *element = makeNode(SubscriptingRef);

			memcpy(element, node, sizeof(SubscriptingRef));
			element->refexpr = (Expr *) column;
			parts = lcons(element, parts);
		}
	}
	foreach(cell, parts)
		if (domain)
		{
			CoerceToDomain *whole = makeNode(CoerceToDomain);

			memcpy(whole, domain, sizeof(CoerceToDomain));
			whole->arg = lfirst(cell);
			lfirst(cell) = whole;
		}
	return parts;
}

/* True if core may inline the function. Then its body would be planned as part of the shard's statement, not as a statement of its own. */
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

/* The row of a JOIN ... AS name is printed as ROW(...), whose columns are f1, f2 and so on. */
static bool
has_column_names(const RowExpr *row)
{
	ListCell   *cell;

	if (row->row_typeid != RECORDOID)
		return false;
	foreach(cell, row->colnames)
		if (strcmp(strVal(lfirst(cell)), psprintf("f%d", foreach_current_index(cell) + 1)) != 0)
			return true;
	return false;
}

/* A row of the join (...) AS name, columns of which share a name: the deparser gives each its own. */
static bool
names_join_row(Node *node, Query *query)
{
	RangeTblEntry *rte;

	if (node == NULL)
		return false;
	if (IsA(node, Query))
		return false;			/* a row of an outer query's join is not looked for: it is refused by what it is compared with */
	if (!IsA(node, Var))
		return expression_tree_walker(node, names_join_row, query);
	if (((Var *) node)->varattno != InvalidAttrNumber || ((Var *) node)->varlevelsup > 0)
		return false;
	rte = rt_fetch(((Var *) node)->varno, query->rtable);
	if (rte->rtekind != RTE_JOIN)
		return false;
	for (int i = 0; i < list_length(rte->eref->colnames); i++)
		for (int j = 0; j < i; j++)
			if (equal(list_nth(rte->eref->colnames, i), list_nth(rte->eref->colnames, j)))
				return true;
	return false;
}

static bool stays_walker(Node *node, ShipContext *context);

/* An aggregate of a user's is immutable in pg_proc, whatever its functions are. */
static bool
aggregate_stays(Oid function, ShipContext *context)
{
	HeapTuple	tuple = function < FirstNormalObjectId ? NULL : SearchSysCache1(AGGFNOID, ObjectIdGetDatum(function));
	Form_pg_aggregate form;
	bool		stays = false;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_aggregate) GETSTRUCT(tuple);
	{
		Oid			functions[] = {form->aggtransfn, form->aggfinalfn, form->aggmtransfn, form->aggminvtransfn, form->aggmfinalfn};

		for (int i = 0; i < lengthof(functions) && !stays; i++)
			stays = OidIsValid(functions[i]) && function_stays(functions[i], context);
	}
	ReleaseSysCache(tuple);
	return stays;
}

/* So are what the checks of a domain call. */
static bool
domain_stays(Oid domain, ShipContext *context)
{
	DomainConstraintRef *checks = palloc0(sizeof(DomainConstraintRef)); /* the memory context keeps a pointer to it */
	bool		hides = context->hides;
	bool		stays = false;
	ListCell   *cell;

	InitDomainConstraintRef(domain, checks, CurrentMemoryContext, false);
	foreach(cell, checks->constraints)
		stays = stays || stays_walker((Node *) ((DomainConstraintState *) lfirst(cell))->check_expr, context);
	context->hides = hides;
	return stays;
}

/* Functions that the node calls by way of an object that it names. */
static bool
calls_stay(Node *node, ShipContext *context)
{
	switch (nodeTag(node))
	{
		case T_Aggref:
			return aggregate_stays(((Aggref *) node)->aggfnoid, context);
		case T_WindowFunc:
			return aggregate_stays(((WindowFunc *) node)->winfnoid, context);
		case T_CoerceToDomain:
			return domain_stays(((CoerceToDomain *) node)->resulttype, context);
		default:
			return false;
	}
}

static bool
stays_walker(Node *node, ShipContext *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, function_stays, context) || calls_stay(node, context))
		return true;
	if (context->named && (IsA(node, RowExpr) || IsA(node, CommonTableExpr)))
		return expression_tree_walker(node, stays_walker, context);
	if (nested_assignment(node))
		return refuse(context, "it assigns several elements or fields of one column", "Assign the whole column.");
	if (names_temporary_type(node))
		return refuse(context, "it uses a temporary type, which other nodes do not have", "Use a type that is not temporary.");
	context->hides = context->hides || (!context->named && tessera_hides_operator(node));
	switch (nodeTag(node))
	{
		case T_NextValueExpr:
			return refuse(context, "it draws from a sequence for each row", "Draw the values first, or insert the rows one by one.");
		case T_RowExpr:
			if (has_column_names((RowExpr *) node))
				return refuse(context, "it uses a row of a join, whose columns lose their names on the way to a shard",
							  "Name the columns that are used.");
			return expression_tree_walker(node, stays_walker, context);
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
					return refuse(context, "it reads a transition table, or the rows of a WITH query that modifies data: they are on this node only",
								  "Split the statement.");
				if (rte->rtekind == RTE_FUNCTION && is_inlined(rte))
					return refuse(context, "it calls an SQL function in FROM, which would read the rows of one shard only",
								  "Write the function in PL/pgSQL, or call it first and pass its result.");
				if (context->named)
					rte->securityQuals = NIL;	/* they are the shard's */
				return false;	/* range_table_walker goes into its parts */
			}
		case T_Query:
			{
				Query	   *query = (Query *) node;

				if (!context->named && query_tree_walker(query, names_join_row, query, QTW_IGNORE_RANGE_TABLE))
					return refuse(context, "it uses a row of a join, columns of which have the same name", "Name the columns that are used.");
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

	/* a volatile expression has another value at each place */
	if (!IsA(expr, Const))
		foreach(cell, *params)
			if (equal(lfirst(cell), expr) && !contain_volatile_functions((Node *) expr))
				return make_param_node(expr, foreach_current_index(cell) + 1);
	*params = lappend(*params, expr);
	return make_param_node(expr, list_length(*params));
}

/* ---- repair ---- */

typedef struct RepairContext
{
	List	   *params;
	bool		conditional;	/* inside CASE or COALESCE */
	bool		foreign_view;	/* a temporary view that reads with the rights of another role */
	ShipContext *ship;
	bool		view_stays;		/* what a view's query calls stays; ship says why */
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
	/* volatile, but one value for all of the client's statement */
	if (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcid == F_CURRENT_QUERY)
		return true;
	if (!is_expression(node) || needs_row(node, NULL) || !contain_mutable_functions(node) || contain_volatile_functions(node) ||
		get_typtype(exprType(node)) == TYPTYPE_PSEUDO)
		return false;
	return !conditional || IsA(node, SQLValueFunction) || (IsA(node, FuncExpr) && ((FuncExpr *) node)->args == NIL);
}

static bool
reads_as_other(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		Oid			role = rte->rtekind == RTE_RELATION ? tessera_check_as_user(query, rte) : InvalidOid;

		if (OidIsValid(role) && role != GetUserId())
			return true;
		if (rte->rtekind == RTE_SUBQUERY && !OidIsValid(rte->relid) && reads_as_other(rte->subquery))
			return true;
	}
	return false;
}

/*
 * Views were expanded by the rewriter: name them again, so that their owner's rights and barriers hold on the shard
 * (doc/design.md#views-named-again).
 */
static void
restore_view(RangeTblEntry *rte, RepairContext *context)
{
	Oid			view = rte->relid;

	if (rte->rtekind != RTE_SUBQUERY || rte->subquery == NULL)
		return;
	if (!OidIsValid(view) && rte->subquery->rtable != NIL)
	{
		RangeTblEntry *old = linitial(rte->subquery->rtable);

		if (old->rtekind == RTE_RELATION && old->relkind == RELKIND_VIEW && !old->inFromCl && old->alias &&
			strcmp(old->alias->aliasname, "old") == 0)
			view = old->relid;
	}
	if (!OidIsValid(view) || get_rel_relkind(view) != RELKIND_VIEW)
		return;
	if (get_rel_persistence(view) == RELPERSISTENCE_TEMP)
	{
		/* a temporary view exists here only: its query is sent in its place, if that needs no other role's rights */
		context->foreign_view |= reads_as_other(rte->subquery);
		return;
	}
	if (!context->view_stays)
	{
		context->ship->named = true;
		context->view_stays = stays_walker((Node *) rte->subquery, context->ship);
		context->ship->named = false;
	}
	rte->rtekind = RTE_RELATION;
	rte->relid = view;
	rte->relkind = RELKIND_VIEW;
	rte->rellockmode = AccessShareLock;
	rte->subquery = NULL;
	rte->security_barrier = false;
	rte->inh = true;
}

/* Number of the column of a multiple assignment, SET (a, b) = (SELECT ...), that the target takes, in the order of their subqueries; 0: of none. */
static int
multiple_assignment(const TargetEntry *target)
{
	Node	   *node = (Node *) target->expr;

	while (node)
	{
		if (IsA(node, FieldStore))
			node = linitial(((FieldStore *) node)->newvals);
		else if (IsA(node, SubscriptingRef) && ((SubscriptingRef *) node)->refassgnexpr)
			node = (Node *) ((SubscriptingRef *) node)->refassgnexpr;
		else if (IsA(node, CoerceToDomain))
			node = (Node *) ((CoerceToDomain *) node)->arg;
		else if (strip_implicit_coercions(node) != node)
			node = strip_implicit_coercions(node);
		else
			break;
	}
	return node && IsA(node, Param) && ((Param *) node)->paramkind == PARAM_MULTIEXPR ? ((Param *) node)->paramid : 0;
}

/*
 * The rewriter puts assignments in the order of the table's columns and makes one of those to parts of one column. The deparser prints those of
 * SET (b, a) = (SELECT ...) as they stand, and takes the subqueries one after the other: columns of each subquery together again, in its own order.
 */
static List *
order_assignments(List *targets)
{
	List	   *result = NIL;
	ListCell   *cell;

	foreach(cell, targets)
	{
		TargetEntry *target = lfirst_node(TargetEntry, cell);
		List	   *parts = target->resjunk ? NIL : split_assignment((Node *) target->expr);
		ListCell   *part;

		if (parts == NIL)
			result = lappend(result, target);
		foreach(part, parts)
		{
			TargetEntry *entry = flatCopyTargetEntry(target);

			entry->expr = lfirst(part);
			result = lappend(result, entry);
		}
	}
	targets = result;
	result = NIL;
	foreach(cell, targets)
	{
		int			number = multiple_assignment(lfirst(cell));
		int			position = list_length(result);

		while (position > 0 && multiple_assignment(list_nth(result, position - 1)) > number)
			position--;
		result = list_insert_nth(result, position, lfirst(cell));
	}
	return result;
}

/*
 * SET generated = DEFAULT assigns nothing, and the rewriter drops it; if nothing else is assigned, the text would be none. Any such column that the
 * user has named will do. A view shows what its column is only on the shard.
 */
static List *
assign_something(List *targets, const RangeTblEntry *table, const TesseraPermissions *named)
{
	Relation	relation;
	int			bit = -1;
	ListCell   *cell;
	List	   *result = targets;

	foreach(cell, targets)
		if (!lfirst_node(TargetEntry, cell)->resjunk)
			return targets;
	relation = table_open(table->relid, NoLock);
	while (result == targets && (bit = bms_next_member(named->updatedCols, bit)) >= 0)
	{
		AttrNumber	attribute = bit + FirstLowInvalidHeapAttributeNumber;
		Form_pg_attribute column = attribute > 0 ? TupleDescAttr(RelationGetDescr(relation), attribute - 1) : NULL;

		if (column && (column->attgenerated || table->relkind == RELKIND_VIEW))
		{
			SetToDefault *value = makeNode(SetToDefault);

			value->typeId = column->atttypid;
			value->typeMod = column->atttypmod;
			value->collation = column->attcollation;
			value->location = -1;
			result = lcons(makeTargetEntry((Expr *) value, attribute, pstrdup(NameStr(column->attname)), false), targets);
		}
	}
	table_close(relation, NoLock);
	return result;
}

static void
repair_assignments(Query *query)
{
	RangeTblEntry *table = query->resultRelation > 0 ? rt_fetch(query->resultRelation, query->rtable) : NULL;
	const TesseraPermissions *named = table ? tessera_permissions(query, table) : NULL;
	ListCell   *cell;

	if (query->commandType == CMD_UPDATE)
		query->targetList = assign_something(order_assignments(query->targetList), table, named);
	if (query->onConflict && query->onConflict->action == ONCONFLICT_UPDATE)
		query->onConflict->onConflictSet = assign_something(order_assignments(query->onConflict->onConflictSet), table, named);
	foreach(cell, query->mergeActionList)
	{
		MergeAction *action = lfirst_node(MergeAction, cell);

		if (action->commandType == CMD_UPDATE)
			action->targetList = assign_something(order_assignments(action->targetList), table, named);
	}
}

/* ---- what rules leave ---- */

typedef struct ReferentContext
{
	Query	   *query;
	Index		level;			/* of the query, seen from the expression */
} ReferentContext;

/*
 * The deparser prints a column by the name that the user has written (varnosyn), which differs from what it is only below the alias of a join. But a
 * rule's NEW stays in it where the rewriter has put the column of another relation in its place.
 */
static bool
repair_referents(Node *node, ReferentContext *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
	{
		Var		   *var = (Var *) node;

		if (var->varlevelsup == context->level && var->varnosyn != (Index) var->varno && var->varnosyn > 0 &&
			var->varnosyn <= list_length(context->query->rtable) && rt_fetch(var->varnosyn, context->query->rtable)->rtekind != RTE_JOIN)
		{
			var->varnosyn = var->varno;
			var->varattnosyn = var->varattno;
		}
		return false;
	}
	if (IsA(node, Query))
	{
		bool		result;

		context->level++;
		result = query_tree_walker((Query *) node, repair_referents, context, 0);
		context->level--;
		return result;
	}
	return expression_tree_walker(node, repair_referents, context);
}

/*
 * OLD, and the view that a rule is on, are joined without the mark by which the deparser prints FROM, and behind subqueries of the rule's which name
 * their columns: what cannot name others comes first.
 */
static void
repair_from(Query *query)
{
	List	   *first = NIL;
	List	   *others = NIL;
	ListCell   *cell;

	foreach(cell, query->jointree->fromlist)
	{
		RangeTblRef *reference = lfirst(cell);
		RangeTblEntry *rte = IsA(reference, RangeTblRef) && reference->rtindex != query->resultRelation ?
			rt_fetch(reference->rtindex, query->rtable) : NULL;

		if (rte && query->commandType != CMD_INSERT)
			rte->inFromCl = true;
		if (rte && (rte->rtekind == RTE_RELATION || (rte->rtekind == RTE_SUBQUERY && !rte->lateral)))
			first = lappend(first, reference);
		else
			others = lappend(others, reference);
	}
	query->jointree->fromlist = list_concat(first, others);
}

/* True if a rule may have put its OLD and NEW among the relations of the query. */
static bool
comes_from_rule(const Query *query)
{
	ListCell   *cell;

	foreach(cell, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

		if (rte->alias && strcmp(rte->alias->aliasname, "new") == 0)
			return true;
	}
	return false;
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

		repair_assignments(query);
		if (comes_from_rule(query))
		{
			ReferentContext referents = {.query = query};

			(void) query_tree_walker(query, repair_referents, &referents, 0);
			repair_from(query);
		}

		foreach(cell, query->rtable)
		{
			RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

			restore_view(rte, context);
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
	return (IsA(node, Var) && ((Var *) node)->varattno == TableOidAttributeNumber) ||
		(IsA(node, Const) && ((Const *) node)->consttype == REGCLASSOID);
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
			entry->expr = (Expr *) tessera_make_param((Expr *) makeConst(OIDOID, -1, InvalidOid, sizeof(Oid), ObjectIdGetDatum(rte->relid), false,
																		 true),
													  params);
	}
}

/* ---- constants ---- */

bool
tessera_is_array_with_null(const Node *node)
{
	const Const *constant = (const Const *) node;
	ArrayType  *array;

	if (!IsA(node, Const) || constant->constisnull || !OidIsValid(get_element_type(constant->consttype)))
		return false;
	array = DatumGetArrayTypeP(constant->constvalue);
	for (int i = 0; i < ARR_NDIM(array); i++)
		if (ARR_LBOUND(array)[i] != 1)
			return false;
	return array_contains_nulls(array);
}

/* So many become parameters at most; the others stay in the text. The protocol's limit is 65535. */
#define MAX_LIFTED 4096

/* An ARRAY[...] of so many becomes one parameter. A plan that does not know the values takes an array for one of ten. */
#define FOLDED_ELEMENTS 10

/* Of so many, a plan must know the values. */
#define LARGE_ARRAY 100

typedef struct LiftContext
{
	List	   *params;
	TesseraConstants found;
} LiftContext;

static bool
type_is_liftable(Oid type)
{
	return type != UNKNOWNOID && type != BOOLOID && type != OIDOID && type != RECORDOID && !tessera_type_names_object(type) &&
		get_typtype(type) != TYPTYPE_PSEUDO;
}

/* True if this constant may become a parameter, so that statements that differ in it share one text. */
static bool
is_liftable(Node *node)
{
	Const	   *constant = (Const *) node;

	return IsA(node, Const) && !constant->constisnull && constant->consttypmod == -1 && !tessera_is_array_with_null(node) &&
		type_is_liftable(constant->consttype);
}

/*
 * A constant of a liftable type, also NULL, or a parameter of the user's, or a cast of the server's own of one, as of 1 to bigint. converted: below a
 * cast that may fail: it must not where core would not come to it.
 */
static bool
is_given(Node *node, bool converted)
{
	FuncExpr   *cast = (FuncExpr *) node;

	if (IsA(node, Const))
		return !converted && ((Const *) node)->consttypmod == -1 && type_is_liftable(((Const *) node)->consttype);
	if (IsA(node, Param))
		return !converted && tessera_becomes_param(node, false) && ((Param *) node)->paramtypmod == -1 &&
			type_is_liftable(((Param *) node)->paramtype);
	if (IsA(node, RelabelType))
		return ((RelabelType *) node)->resulttypmod == -1 && is_given((Node *) ((RelabelType *) node)->arg, converted);
	return IsA(node, FuncExpr) && (cast->funcformat == COERCE_IMPLICIT_CAST || cast->funcformat == COERCE_EXPLICIT_CAST) &&
		cast->funcid < FirstNormalObjectId && list_length(cast->args) == 1 && func_volatile(cast->funcid) == PROVOLATILE_IMMUTABLE &&
		is_given(linitial(cast->args), converted || cast->funcformat == COERCE_EXPLICIT_CAST);
}

/* How many elements an array of such values has, over all dimensions; -1: some are others. */
static int
given_elements(const ArrayExpr *array)
{
	int			n = 0;
	ListCell   *cell;

	foreach(cell, array->elements)
	{
		Node	   *element = lfirst(cell);
		int			more = IsA(element, ArrayExpr) ? given_elements((ArrayExpr *) element) : is_given(element, false) ? 1 : -1;

		if (more < 0)
			return -1;
		n += more;
	}
	return n;
}

/*
 * ARRAY[...] of constants and parameters, which a list of IN is, too, as one value; NULL: it stays what it is. Only of types that go in binary: an
 * array's text is read otherwise while array_nulls is off.
 */
static Node *
fold_array(ArrayExpr *array, LiftContext *context)
{
	int			n = list_length(array->elements) >= FOLDED_ELEMENTS || array->multidims ? given_elements(array) : 0;

	if (n < FOLDED_ELEMENTS || !tessera_type_goes_binary(array->array_typeid) || !type_is_liftable(array->element_typeid) ||
		array->array_collid != get_typcollation(array->array_typeid) || exprTypmod((Node *) array) != -1)
		return NULL;
	context->found.large_array |= n >= LARGE_ARRAY;
	return eval_const_expressions(NULL, (Node *) array);
}

/* Each constant its own parameter: equal ones of one execution may differ in the next. */
static Node *
lift(Node *value, LiftContext *context)
{
	if (list_length(context->params) >= MAX_LIFTED)
	{
		context->found.many = true;
		return value;
	}
	context->params = lappend(context->params, value);
	return make_param_node((Expr *) value, list_length(context->params));
}

static Node *lift_mutator(Node *node, LiftContext *context);

/*
 * The deparser reads the length of a cast, as in varchar(2), from the cast's constant arguments: only what is cast may become a parameter.
 */
static Node *
lift_below_length_cast(FuncExpr *cast, LiftContext *context)
{
	FuncExpr   *result = makeNode(FuncExpr);

	memcpy(result, cast, sizeof(FuncExpr));
	result->args = list_copy(cast->args);
	linitial(result->args) = lift_mutator(linitial(cast->args), context);
	return (Node *) result;
}

static Node *
lift_mutator(Node *node, LiftContext *context)
{
	if (node == NULL || IsA(node, SubLink) || IsA(node, Query) || tessera_becomes_param(node, false))
		return node;
	/* Printed in syntax of their own, for which the deparser reads some arguments as constants: EXTRACT, NORMALIZE, XMLROOT. */
	if (IsA(node, XmlExpr) || (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcformat == COERCE_SQL_SYNTAX))
		return node;
	if (IsA(node, FuncExpr) && exprIsLengthCoercion(node, NULL))
		return lift_below_length_cast((FuncExpr *) node, context);
	if (IsA(node, ArrayCoerceExpr))
	{
		/* its length, too, is that of the expression for an element, which is not printed */
		ArrayCoerceExpr *result = makeNode(ArrayCoerceExpr);

		memcpy(result, node, sizeof(ArrayCoerceExpr));
		result->arg = (Expr *) lift_mutator((Node *) result->arg, context);
		return (Node *) result;
	}
	if (IsA(node, ArrayExpr))
	{
		Node	   *value = fold_array((ArrayExpr *) node, context);

		if (value)
			return lift(value, context);
	}
	if (is_liftable(node))
		return lift(node, context);
	return expression_tree_mutator(node, lift_mutator, context);
}

static void
lift_in_jointree(Node *node, LiftContext *context)
{
	ListCell   *cell;

	if (node == NULL)
		return;
	if (IsA(node, FromExpr))
	{
		foreach(cell, ((FromExpr *) node)->fromlist)
			lift_in_jointree(lfirst(cell), context);
		((FromExpr *) node)->quals = lift_mutator(((FromExpr *) node)->quals, context);
	}
	else if (IsA(node, JoinExpr))
	{
		lift_in_jointree(((JoinExpr *) node)->larg, context);
		lift_in_jointree(((JoinExpr *) node)->rarg, context);
		((JoinExpr *) node)->quals = lift_mutator(((JoinExpr *) node)->quals, context);
	}
}

TesseraConstants
tessera_lift_constants(Query *query, List **params)
{
	LiftContext context = {.params = *params};
	bool		large_array;
	ListCell   *cell;

	lift_in_jointree((Node *) query->jointree, &context);
	large_array = context.found.large_array;
	/* Not in a SELECT's output: GROUP BY, DISTINCT and ORDER BY match by it. */
	if (query->commandType == CMD_UPDATE || (query->commandType == CMD_INSERT && query->jointree->fromlist == NIL))
		foreach(cell, query->targetList)
		{
			TargetEntry *entry = lfirst_node(TargetEntry, cell);

			/* a new row's values are computed here as a whole */
			if (query->commandType == CMD_INSERT && !IsA(entry->expr, Const))
				continue;
			if (!nested_assignment((Node *) entry->expr) && !IsA(entry->expr, SubscriptingRef) && !IsA(entry->expr, FieldStore))
				entry->expr = (Expr *) lift_mutator((Node *) entry->expr, &context);
		}
	context.found.large_array = large_array;	/* no plan depends on what is written */
	*params = context.params;
	return context.found;
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
tessera_prepare_query(Query *query, bool writing, List **params, TesseraReason *reason)
{
	ShipContext ship = {.writing = writing,.reason = reason};
	RepairContext repair = {.params = *params,.ship = &ship};

	reason->text = NULL;
	reason->hint = NULL;
	if (is_single_row_insert(query))
	{
		ListCell   *cell;

		parametrise_row(query, &repair);
		/* GENERATED ALWAYS identity: its value was drawn here (doc/design.md#identity-values) */
		foreach(cell, query->targetList)
			if (!IsA(((TargetEntry *) lfirst(cell))->expr, SetToDefault))
				query->override = OVERRIDING_SYSTEM_VALUE;
	}
	fold_tableoid(query, query->commandType == CMD_SELECT ? query->targetList : query->returningList, &repair.params);
	(void) repair_mutator((Node *) query, &repair);
	*params = repair.params;
	if (repair.foreign_view)
		return !refuse(&ship, "it reads a temporary view of another role", "Read the tables themselves.");
	if (leaks_number((Node *) query, NULL))
		return !refuse(&ship, "it uses the number of a table, which differs from node to node", "Use tableoid::regclass.");
	if (repair.view_stays || stays_walker((Node *) query, &ship))
		return false;
	if (ship.hides && !tessera_operators_print((Node *) query))
		return !refuse(&ship, "it uses an operator that search_path does not find, where SQL cannot name its schema",
					   "Put the schema of the operator into search_path.");
	return true;
}
