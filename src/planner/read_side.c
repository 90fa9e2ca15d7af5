/*
 * read_side.c
 *	  Modifications that read what the shards of their target do not have; see read_side.h, doc/design.md#read-side.
 *
 * The statement's own text goes to the shards, with what it reads elsewhere in it as rows of arrays: in the place of a relation, or of a whole
 * subquery that refers to nothing around it, stands SELECT ... FROM unnest($1, $2). Those rows are the answer of a SELECT that is planned as a
 * statement of its own and runs once, on the router, before. What stays of the tables is closed over the key (pins.c), so each shard finds all of it.
 *
 * A relation's columns keep their places, whatever of them is sent: columns, names and joins around it stay as they are. Everything is done on a copy
 * of the Query and palloc'd in the planner's context.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "common/range_table.h"
#include "executor/plan_private.h"
#include "planner/pins.h"
#include "planner/read_columns.h"
#include "planner/read_side.h"
#include "planner/statement_plan.h"
#include "rows/exact_text.h"

typedef struct ReadContext
{
	List	   *kept;			/* of RangeTblEntry *: tables whose rows the shards have */
	const char *source;
	ParamListInfo params;
	TesseraReads reads;
	TesseraReason *reason;
	bool		failed;
} ReadContext;

static void take_from_query(Query *query, ReadContext *context);

static void
refuse(ReadContext *context, const char *text, const char *hint)
{
	context->reason->text = text;
	context->reason->hint = hint;
	context->failed = true;
}

/* ---- volatile ---- */

static bool
volatile_sublink_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubLink) && contain_volatile_functions(((SubLink *) node)->subselect))
		return true;
	return expression_tree_walker(node, volatile_sublink_walker, context);
}

bool
tessera_has_volatile_source(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

		if (contain_volatile_functions((Node *) rte->subquery) || contain_volatile_functions((Node *) rte->functions) ||
			contain_volatile_functions((Node *) rte->values_lists) || rte->tablesample)
			return true;
	}
	return contain_volatile_functions((Node *) query->cteList) || volatile_sublink_walker((Node *) query->targetList, NULL) ||
		volatile_sublink_walker((Node *) query->jointree, NULL) || volatile_sublink_walker((Node *) query->returningList, NULL) ||
		volatile_sublink_walker((Node *) query->mergeActionList, NULL);
}

/* ---- what is read elsewhere ---- */

static bool
elsewhere_walker(Node *node, ReadContext *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *rte = (RangeTblEntry *) node;

		return rte->rtekind == RTE_NAMEDTUPLESTORE || rte->tablesample ||
			(rte->rtekind == RTE_RELATION && rte->relkind != RELKIND_VIEW && !list_member_ptr(context->kept, rte));
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, elsewhere_walker, context, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, elsewhere_walker, context);
}

/* True if a shard cannot compute it, or would not compute what another one does. */
static bool
belongs_here(Node *node, ReadContext *context)
{
	return elsewhere_walker(node, context) || contain_volatile_functions(node) || !tessera_expression_ships(node);
}

/* True if something in it belongs to a query around it. level: of queries between; -1 for an expression, whose own query counts as around it. */
static bool
outside_walker(Node *node, int *level)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
		return (int) ((Var *) node)->varlevelsup > *level;
	if (IsA(node, Aggref) && (int) ((Aggref *) node)->agglevelsup > *level)
		return true;
	if (IsA(node, GroupingFunc) && (int) ((GroupingFunc *) node)->agglevelsup > *level)
		return true;
	if (IsA(node, RangeTblEntry))
		return ((RangeTblEntry *) node)->rtekind == RTE_CTE && (int) ((RangeTblEntry *) node)->ctelevelsup > *level;
	if (IsA(node, Query))
	{
		bool		result;

		(*level)++;
		result = query_tree_walker((Query *) node, outside_walker, level, QTW_EXAMINE_RTES_BEFORE);
		(*level)--;
		return result;
	}
	return expression_tree_walker(node, outside_walker, level);
}

static bool
refers_outside(Node *node)
{
	int			level = -1;

	return outside_walker(node, &level);
}

/* ---- conditions that its rows must meet whatever they are joined with ---- */

static bool
is_of_another(Node *node, Index *rti)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
		return ((Var *) node)->varlevelsup > 0 || ((Var *) node)->varno != *rti || ((Var *) node)->varattno <= 0;
	if (IsA(node, SubLink) || IsA(node, Query) || IsA(node, Aggref) || IsA(node, WindowFunc) || IsA(node, GroupingFunc) ||
		(IsA(node, Param) && ((Param *) node)->paramkind != PARAM_EXTERN))
		return true;
	return expression_tree_walker(node, is_of_another, rti);
}

/* Moves conditions of the relation alone from *quals to *own. */
static void
take_conditions(Node **quals, Index rti, List **own)
{
	List	   *others = NIL;
	ListCell   *cell;

	foreach(cell, make_ands_implicit((Expr *) *quals))
	{
		Node	   *condition = lfirst(cell);

		if (is_of_another(condition, &rti) || !contain_vars_of_level(condition, 0) || contain_volatile_functions(condition))
			others = lappend(others, condition);
		else
			*own = lappend(*own, condition);
	}
	*quals = others ? (Node *) make_ands_explicit(others) : NULL;
}

/* True if the relation is below the node, and not where an outer join may extend it by NULL. Takes its conditions on the way. */
static bool
take_conditions_above(Node *node, Index rti, List **own)
{
	ListCell   *cell;

	if (IsA(node, RangeTblRef))
		return ((RangeTblRef *) node)->rtindex == rti;
	if (IsA(node, FromExpr))
	{
		FromExpr   *from = (FromExpr *) node;

		foreach(cell, from->fromlist)
			if (take_conditions_above(lfirst(cell), rti, own))
			{
				take_conditions(&from->quals, rti, own);
				return true;
			}
	}
	else if (IsA(node, JoinExpr))
	{
		JoinExpr   *join = (JoinExpr *) node;
		bool		inner = join->jointype == JOIN_INNER;
		bool		below = ((inner || join->jointype == JOIN_LEFT) && take_conditions_above(join->larg, rti, own)) ||
			((inner || join->jointype == JOIN_RIGHT) && take_conditions_above(join->rarg, rti, own));

		if (below && inner && join->usingClause == NIL)
			take_conditions(&join->quals, rti, own);
		return below;
	}
	return false;
}

/* Takes out of the query what all rows of the relation must meet, whatever they are joined with. NULL: nothing. */
static Node *
own_conditions(Query *query, Index rti)
{
	List	   *own = NIL;

	/* MERGE also has use for rows that do not meet its ON */
	if (query->commandType != CMD_MERGE)
		(void) take_conditions_above((Node *) query->jointree, rti, &own);
	return own ? (Node *) make_ands_explicit(own) : NULL;
}

/* ---- rows of arrays ---- */

/*
 * True if values of the type cannot be elements of an array by themselves, or unnest() would take them apart, or the array could not go in binary:
 * then their text is. Text does: so NULL is NULL whatever array_nulls says, and an XML document keeps its declaration.
 */
static bool
goes_as_text(Oid type)
{
	Oid			base = getBaseType(type);

	return !tessera_binary_is_exact(type) || !OidIsValid(get_array_type(type)) || OidIsValid(get_element_type(base)) || type_is_rowtype(base);
}

/* The column of the arrays' rows that has the value of this one, as an expression over them. */
static Expr *
sent_value(Var *column, AttrNumber number, List **functions, ReadContext *context)
{
	Oid			element = goes_as_text(column->vartype) ? TEXTOID : column->vartype;
	Const	   *nothing = makeNullConst(get_array_type(element), -1, get_typcollation(element));
	Node	   *array = tessera_make_param((Expr *) nothing, &context->reads.params);
	FuncExpr   *unnest = makeFuncExpr(F_UNNEST_ANYARRAY, element, list_make1(array), get_typcollation(element), get_typcollation(element),
									  COERCE_EXPLICIT_CALL);
	RangeTblFunction *function = makeNode(RangeTblFunction);
	Expr	   *value = (Expr *) makeVar(1, number, element, -1, get_typcollation(element), 0);

	unnest->funcretset = true;
	function->funcexpr = (Node *) unnest;
	function->funccolcount = 1;
	*functions = lappend(*functions, function);
	if (element != column->vartype)
	{
		CoerceViaIO *cast = makeNode(CoerceViaIO);

		cast->arg = value;
		cast->resulttype = column->vartype;
		cast->resultcollid = get_typcollation(column->vartype);
		cast->coerceformat = COERCE_EXPLICIT_CAST;
		cast->location = -1;
		value = (Expr *) cast;
	}
	/* what compares it goes by the column's collation, not by its type's */
	if (OidIsValid(column->varcollid) && column->varcollid != get_typcollation(column->vartype))
	{
		CollateExpr *collate = makeNode(CollateExpr);

		collate->arg = value;
		collate->collOid = column->varcollid;
		collate->location = -1;
		value = (Expr *) collate;
	}
	return value;
}

/* SELECT all columns, NULL where none is sent, FROM unnest(...); of those that are, *sent are what the SELECT here answers. */
static Query *
rows_query(List *columns, List *names, Bitmapset *needed, List **sent, ReadContext *context)
{
	RangeTblEntry *arrays = makeNode(RangeTblEntry);
	Query	   *rows = tessera_select_from(arrays);
	List	   *array_names = NIL;
	ListCell   *cell;

	*sent = NIL;
	foreach(cell, columns)
	{
		int			number = foreach_current_index(cell) + 1;
		Node	   *column = lfirst(cell);
		Expr	   *value = (Expr *) makeNullConst(TEXTOID, -1, DEFAULT_COLLATION_OID);

		if (bms_is_member(number, needed))
		{
			*sent = lappend(*sent, makeTargetEntry(copyObject(lfirst(cell)), list_length(*sent) + 1, strVal(list_nth(names, number - 1)), false));
			value = sent_value((Var *) column, list_length(*sent), &arrays->functions, context);
		}
		rows->targetList = lappend(rows->targetList, makeTargetEntry(value, number, strVal(list_nth(names, number - 1)), false));
	}
	if (*sent == NIL)
	{
		/* how many they are is all that matters */
		Const	   *one = makeConst(INT4OID, -1, InvalidOid, sizeof(int32), Int32GetDatum(1), false, true);

		*sent = list_make1(makeTargetEntry((Expr *) one, 1, "one", false));
		(void) sent_value(makeVar(1, 1, INT4OID, -1, InvalidOid, 0), 1, &arrays->functions, context);
	}
	foreach(cell, *sent)
		array_names = lappend(array_names, makeString(psprintf("c%d", foreach_current_index(cell) + 1)));
	arrays->rtekind = RTE_FUNCTION;
	arrays->alias = makeAlias("r", array_names);
	arrays->eref = makeAlias("r", copyObject(array_names));
	arrays->inFromCl = true;
	return rows;
}

/* ---- the SELECT that runs here ---- */

/* Of the relation's rows alone, as the query around it has it. */
static Query *
select_of(Query *query, Index rti, List *targets, Node *conditions)
{
	Query	   *select = copyObject(query);
	ListCell   *cell;

	select->commandType = CMD_SELECT;
	select->queryId = 0;
	select->canSetTag = true;
	select->resultRelation = 0;
	select->jointree = makeFromExpr(list_make1(tessera_reference_to(rti)), conditions);
	select->targetList = targets;
	select->returningList = select->withCheckOptions = select->mergeActionList = select->cteList = NIL;
	select->groupClause = select->groupingSets = select->windowClause = select->distinctClause = select->sortClause = select->rowMarks = NIL;
	select->havingQual = select->limitOffset = select->limitCount = select->setOperations = NULL;
	select->onConflict = NULL;
	select->hasAggs = select->hasWindowFuncs = select->hasTargetSRFs = select->hasDistinctOn = select->hasRecursive = false;
	select->hasModifyingCTE = select->hasForUpdate = false;
	foreach(cell, select->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

		if (foreach_current_index(cell) + 1 == rti)
		{
			rte->inFromCl = true;
			rte->lateral = false;
			continue;
		}
		/* nothing names it any more */
		rte->rtekind = RTE_RESULT;
		rte->subquery = NULL;
		rte->functions = rte->values_lists = rte->securityQuals = NIL;
		rte->joinaliasvars = rte->joinleftcols = rte->joinrightcols = NIL;
		rte->tablefunc = NULL;
	}
	return select;
}

static bool
may_take(Query *query, Index rti, const TesseraReadColumns *need, ReadContext *context)
{
	const RangeTblEntry *rte = rt_fetch(rti, query->rtable);

	if (need->system != NULL)
		refuse(context, "it uses ctid, tableoid or the like of rows that are read on another node", "Use the primary key.");
	else if (need->whole && rte->rtekind != RTE_SUBQUERY && rte->rtekind != RTE_VALUES)
		refuse(context, "it uses a whole row of a table that is read on another node", "Name the columns that are used.");
	else if (query->constraintDeps != NIL)
		refuse(context, "it groups by a primary key, in a subquery that depends on the row", "Group by all columns that are used.");
	else if (get_parse_rowmark(query, rti) != NULL)
		refuse(context, "it locks rows of a table that is read on another node, in a subquery that depends on the row", "Lock them before.");
	return !context->failed;
}

/* Puts the rows that a SELECT answers here in the place of an entry of the range table. exists: whether there is one is all that matters. */
static void
take_out(Query *query, Index rti, bool exists, ReadContext *context)
{
	RangeTblEntry *rte = rt_fetch(rti, query->rtable);
	TesseraReadColumns need = {0};
	Node	   *conditions = own_conditions(query, rti);
	List	   *names;
	List	   *columns;
	List	   *sent;
	Query	   *rows;
	Query	   *select;
	ListCell   *cell;

	if (!exists)
		need = tessera_read_columns(query, NULL, rti, NIL);
	if (!may_take(query, rti, &need, context))
		return;
	expandRTE(rte, rti, 0, -1, true, &names, &columns);
	foreach(cell, columns)
	{
		int			number = foreach_current_index(cell) + 1;

		if (need.whole || query->setOperations)
			need.columns = bms_add_member(need.columns, number);
		if (!IsA(lfirst(cell), Var))
			need.columns = bms_del_member(need.columns, number);	/* a column that was dropped */
		if (strVal(list_nth(names, number - 1))[0] == '\0')
			lfirst(list_nth_cell(names, number - 1)) = makeString(psprintf("dropped%d", number));
		if (bms_is_member(number, need.columns) && get_typtype(exprType(lfirst(cell))) == TYPTYPE_PSEUDO)
		{
			refuse(context, "it reads rows of no named type on another node", "Cast them to a composite type, or name the columns.");
			return;
		}
	}
	rows = rows_query(columns, names, need.columns, &sent, context);
	select = select_of(query, rti, sent, conditions);
	if (exists)
		select->limitCount = (Node *) makeConst(INT8OID, -1, InvalidOid, sizeof(int64), Int64GetDatum(1), false, FLOAT8PASSBYVAL);
	context->reads.plans = lappend(context->reads.plans, tessera_nested_planner(select, context->source, context->params, true));

	rte->rtekind = RTE_SUBQUERY;
	rte->subquery = rows;
	rte->relid = InvalidOid;
	rte->relkind = 0;
	rte->rellockmode = NoLock;
	rte->tablesample = NULL;
	rte->inh = rte->lateral = rte->security_barrier = false;
	rte->functions = rte->values_lists = rte->securityQuals = NIL;
	rte->tablefunc = NULL;
	rte->enrname = NULL;
	rte->coltypes = rte->coltypmods = rte->colcollations = NIL;
	rte->alias = makeAlias(rte->eref->aliasname, copyObject(names));
	rte->eref = makeAlias(rte->eref->aliasname, names);
}

/* ---- the query ---- */

/* The whole subquery of a sublink. */
static void
take_sublink(SubLink *link, ReadContext *context)
{
	Query	   *around = tessera_select_around((Query *) link->subselect, "s");

	take_out(around, 1, link->subLinkType == EXISTS_SUBLINK, context);
	link->subselect = (Node *) linitial_node(RangeTblEntry, around->rtable)->subquery;
}

static bool
sublink_walker(Node *node, ReadContext *context)
{
	if (node == NULL || context->failed)
		return false;
	if (IsA(node, SubLink))
	{
		SubLink    *link = (SubLink *) node;

		(void) sublink_walker(link->testexpr, context);
		if (!belongs_here(link->subselect, context))
			return false;
		if (refers_outside(link->subselect))
			take_from_query((Query *) link->subselect, context);
		else
			take_sublink(link, context);
		return false;
	}
	return expression_tree_walker(node, sublink_walker, context);
}

static void
take_entry(Query *query, Index rti, ReadContext *context)
{
	RangeTblEntry *rte = rt_fetch(rti, query->rtable);
	Node	   *rows = NULL;

	switch (rte->rtekind)
	{
		case RTE_RELATION:
			if (elsewhere_walker((Node *) rte, context))
				take_out(query, rti, false, context);
			else if (elsewhere_walker((Node *) rte->securityQuals, context))
				refuse(context, "a row security policy reads other tables", "Keep what the policy needs in the table's own columns.");
			return;
		case RTE_NAMEDTUPLESTORE:
			take_out(query, rti, false, context);
			return;
		case RTE_SUBQUERY:
			if (!belongs_here((Node *) rte->subquery, context))
				return;
			if (refers_outside((Node *) rte->subquery))
				take_from_query(rte->subquery, context);
			else
				take_out(query, rti, false, context);
			return;
		case RTE_FUNCTION:
			rows = (Node *) rte->functions;
			break;
		case RTE_VALUES:
			rows = (Node *) rte->values_lists;
			break;
		case RTE_TABLEFUNC:
			rows = (Node *) rte->tablefunc;
			break;
		default:
			return;
	}
	if (!belongs_here(rows, context) && tessera_expression_ships((Node *) rte))
		return;
	if (refers_outside(rows))
		(void) sublink_walker(rows, context);
	else
		take_out(query, rti, false, context);
}

/* The query goes to the shards; what belongs here is taken out of it. */
static void
take_from_query(Query *query, ReadContext *context)
{
	if (query->cteList != NIL)
	{
		refuse(context, "it has a WITH query in a subquery that depends on the row", "Write the WITH query as a subquery.");
		return;
	}
	if (elsewhere_walker((Node *) query->withCheckOptions, context))
	{
		refuse(context, "a row security policy reads other tables", "Keep what the policy needs in the table's own columns.");
		return;
	}
	for (Index rti = 1; rti <= list_length(query->rtable) && !context->failed; rti++)
		if (rti != query->resultRelation)
			take_entry(query, rti, context);
	if (!context->failed)
		(void) query_tree_walker(query, sublink_walker, context, QTW_IGNORE_RANGE_TABLE);
}

/* ---- the statement ---- */

/* What the shards have: of a sharded target what is closed over its key with it, of a placed one the table itself. */
static bool
is_kept(const TesseraOccurrence *occurrence, const TesseraOccurrence *target)
{
	if (occurrence->rti > list_length(occurrence->query->rtable))
		return false;			/* a row of MERGE */
	if (target->table->group < 0)
		return occurrence->table->relid == target->table->relid;
	return occurrence == target || occurrence->closed;
}

/* True if all tables that are left are on the same shard, at any time: one has to do with no other. */
static bool
stays_together(const TesseraAnalysis *analysis, const TesseraOccurrence *target)
{
	ListCell   *cell;

	if (analysis->nother > 0)
		return false;
	foreach(cell, analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);

		if (target->table->group < 0 ? occurrence->table->relid != target->table->relid :
			!analysis->all_closed && !(analysis->all_pinned && occurrence->table->group == target->table->group &&
									   equal(occurrence->key, target->key)))
			return false;
	}
	return true;
}

PlannedStmt *
tessera_plan_reading(Query *query, const char *source, int cursor_options, ParamListInfo params, const TesseraRouting *routing,
					 TesseraReason *reason)
{
	Query	   *copy = copyObject(query);
	TesseraAnalysis *analysis = tessera_analyse(copy, routing);
	const TesseraOccurrence *target = tessera_target_of(analysis, copy);
	ReadContext context = {.source = source, .params = params, .reason = reason};
	ListCell   *cell;

	foreach(cell, analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);

		if (is_kept(occurrence, target))
			context.kept = lappend(context.kept, rt_fetch(occurrence->rti, occurrence->query->rtable));
	}
	take_from_query(copy, &context);
	if (context.failed || context.reads.plans == NIL)
		return NULL;
	analysis = tessera_analyse(copy, routing);
	target = tessera_target_of(analysis, copy);
	if (!stays_together(analysis, target) || tessera_has_volatile_source(copy))
		return NULL;
	context.reads.query = query;
	return tessera_plan_statement_reading(copy, &context.reads, cursor_options, routing, analysis,
										  target->table->group >= 0 && !analysis->all_pinned, reason);
}
