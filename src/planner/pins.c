/*
 * pins.c
 *	  Pin analysis of an unplanned Query (doc/design.md#pins).
 *
 * Columns are nodes of a union-find forest, one for each (query level, range table index, attribute); a class may have a value: an expression that
 * needs no row. WHERE and inner joins' equalities join classes both ways. Where a value may flow in one direction only it is a directed edge: from
 * the kept to the nullable side of an outer join, from the outer query into a correlated sublink, from a subquery's output to its user, and back only
 * where restricting the output restricts the input alike (no LIMIT, windows, aggregates that the column does not group). Edges are followed to a
 * fixed point. FULL joins pin nothing.
 *
 * Equality, and the types of values that may be a key's, are those of routing/key_comparison.h.
 *
 * A statement is closed over the key if all tables get the same value once a placeholder is given to the key of the rows that drive it: those of
 * the target, for a MERGE that inserts those of its source, for a SELECT, also that of an INSERT, those of a table of which each joined row has one.
 * Then it is the union of one statement for each key, each pinned.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_operator.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "common/version_compat.h"
#include "executor/system_row.h"
#include "executor/targets.h"
#include "planner/pins.h"
#include "planner/read_columns.h"
#include "routing/key_comparison.h"

typedef struct Column
{
	Query	   *query;
	Index		rti;
	AttrNumber	attribute;
	int			parent;
	Expr	   *value;
} Column;

typedef struct Edge
{
	int			from;
	int			to;
} Edge;

typedef struct Context
{
	const TesseraRouting *routing;
	Query	   *statement;
	TesseraAnalysis *analysis;
	Column	   *columns;
	int			ncolumns;
	int			columns_size;
	Edge	   *edges;
	int			nedges;
	int			edges_size;
	List	   *ancestors;		/* of Query *, innermost first */
} Context;

static void analyse_query(Query *query, Context *context);
static bool restriction_passes(Query *sub, TargetEntry *entry);

/* ---- naming ---- */

static bool
names_walker(Node *node, const TesseraRouting *routing)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *rte = (RangeTblEntry *) node;

		return rte->rtekind == RTE_RELATION && tessera_routing_table(routing, rte->relid) != NULL;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, names_walker, (void *) routing, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, names_walker, (void *) routing);
}

bool
tessera_names_cluster_table(Query *query, const TesseraRouting *routing)
{
	ListCell   *cell;
	bool		deep = query->hasSubLinks || query->cteList != NIL || query->setOperations != NULL;

	foreach(cell, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

		if (rte->rtekind == RTE_RELATION)
		{
			if (tessera_routing_table(routing, rte->relid) != NULL)
				return true;
			if (rte->securityQuals != NIL)
				deep = true;
		}
		else if (rte->rtekind != RTE_JOIN && rte->rtekind != RTE_RESULT)
			deep = true;
	}
	return deep && names_walker((Node *) query, routing);
}

/* ---- forest ---- */

static int
column_of(Context *context, Query *query, Index rti, AttrNumber attribute)
{
	Column	   *column;

	for (int i = 0; i < context->ncolumns; i++)
	{
		column = &context->columns[i];
		if (column->query == query && column->rti == rti && column->attribute == attribute)
			return i;
	}
	if (context->ncolumns == context->columns_size)
	{
		context->columns_size = Max(16, context->columns_size * 2);
		context->columns = context->columns ? repalloc(context->columns, sizeof(Column) * context->columns_size)
			: palloc(sizeof(Column) * context->columns_size);
	}
	column = &context->columns[context->ncolumns];
	column->query = query;
	column->rti = rti;
	column->attribute = attribute;
	column->parent = context->ncolumns;
	column->value = NULL;
	return context->ncolumns++;
}

static int
root_of(Context *context, int i)
{
	while (context->columns[i].parent != i)
		i = context->columns[i].parent = context->columns[context->columns[i].parent].parent;
	return i;
}

static void
give_value(Context *context, int column, Expr *value)
{
	Column	   *root = &context->columns[root_of(context, column)];

	if (root->value == NULL)
		root->value = value;
}

static void
join_classes(Context *context, int a, int b)
{
	a = root_of(context, a);
	b = root_of(context, b);
	if (a == b)
		return;
	context->columns[b].parent = a;
	if (context->columns[a].value == NULL)
		context->columns[a].value = context->columns[b].value;
}

static void
add_edge(Context *context, int from, int to)
{
	if (context->nedges == context->edges_size)
	{
		context->edges_size = Max(16, context->edges_size * 2);
		context->edges = context->edges ? repalloc(context->edges, sizeof(Edge) * context->edges_size)
			: palloc(sizeof(Edge) * context->edges_size);
	}
	context->edges[context->nedges].from = from;
	context->edges[context->nedges].to = to;
	context->nedges++;
}

static void
follow_edges(Context *context)
{
	bool		changed = true;

	while (changed)
	{
		changed = false;
		for (int i = 0; i < context->nedges; i++)
		{
			Column	   *from = &context->columns[root_of(context, context->edges[i].from)];
			Column	   *to = &context->columns[root_of(context, context->edges[i].to)];

			if (from->value && !to->value)
			{
				to->value = from->value;
				changed = true;
			}
		}
	}
}

/* ---- expressions ---- */

static bool
needs_row_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var) || IsA(node, SubLink) || IsA(node, Aggref) || IsA(node, WindowFunc) || IsA(node, GroupingFunc) || IsA(node, CurrentOfExpr) ||
		IsA(node, SetToDefault) || IsA(node, Query))
		return true;
	if (IsA(node, Param) && ((Param *) node)->paramkind != PARAM_EXTERN)
		return true;
	if ((IsA(node, FuncExpr) && ((FuncExpr *) node)->funcretset) || (IsA(node, OpExpr) && ((OpExpr *) node)->opretset))
		return true;
	return expression_tree_walker(node, needs_row_walker, context);
}

/* An expression that the router can evaluate once for the whole statement. */
static bool
is_value(Node *node)
{
	return !needs_row_walker(node, NULL) && !contain_volatile_functions(node);
}

/*
 * The Var below labels that leave open which values are equal. A text as bpchar or as citext is another matter: what these find equal has different
 * keys. NULL: there is none.
 */
static Var *
labelled_var(Node *node)
{
	Var		   *var = (Var *) tessera_unlabelled(node);
	TypeCacheEntry *type;

	if (var == NULL || !IsA(var, Var))
		return NULL;
	if ((Node *) var == node)
		return var;
	type = lookup_type_cache(exprType(node), TYPECACHE_EQ_OPR);
	if (OidIsValid(type->eq_opr) &&
		!tessera_is_equality(type->eq_opr, exprCollation(node), getBaseType(exprType((Node *) var)), exprCollation((Node *) var)))
		return NULL;
	return var;
}

/* Vars through joins' alias lists: unplanned queries name join columns by the join. NULL if it is no plain column. */
static Var *
resolve_join_var(Query *query, Var *var)
{
	while (var->varlevelsup == 0)
	{
		RangeTblEntry *rte = rt_fetch(var->varno, query->rtable);

		if (rte->rtekind != RTE_JOIN || var->varattno <= 0)
			return var;
		var = labelled_var(list_nth(rte->joinaliasvars, var->varattno - 1));
		if (var == NULL)
			return NULL;
	}
	return var;
}

/* The column behind a plain Var (levelsup counted from the innermost ancestor); -1 if it is none. *outer: it belongs to an outer query. */
static int
column_of_node(Context *context, Node *node, bool *outer)
{
	Var		   *var = labelled_var(node);
	Query	   *query;

	if (var == NULL || var->varattno <= 0 || var->varlevelsup >= list_length(context->ancestors))
		return -1;
	query = list_nth(context->ancestors, var->varlevelsup);
	*outer = var->varlevelsup > 0;
	if (!*outer)
	{
		var = resolve_join_var(query, var);
		if (var == NULL)
			return -1;
	}
	else
	{
		Var			plain = *var;

		plain.varlevelsup = 0;
		var = resolve_join_var(query, &plain);
		if (var == NULL)
			return -1;
		return column_of(context, query, var->varno, var->varattno);
	}
	return column_of(context, query, var->varno, var->varattno);
}

/* True if the operator is the equality of the operand's own type and collation. Through a cast it may be another type's: text as citext. */
static bool
is_equality_of(Oid operator, Oid inputcollid, Node *operand)
{
	operand = tessera_unlabelled(operand);
	return tessera_is_equality(operator, inputcollid, getBaseType(exprType(operand)), exprCollation(operand));
}

/* left and right may be compared so: they then have the same key, if they are columns. */
static bool
is_equality(Oid operator, Oid inputcollid, Node *left, Node *right)
{
	return (!IsA(tessera_unlabelled(left), Var) || is_equality_of(operator, inputcollid, left)) &&
		(!IsA(tessera_unlabelled(right), Var) || is_equality_of(operator, inputcollid, right));
}

/* ---- conditions ---- */

/* nullable: NULL, or the relations on the nullable side of the outer join whose ON clause this is: values flow only into those. */
static void
use_equality(Context *context, Node *left, Node *right, Relids nullable)
{
	Query	   *query = linitial(context->ancestors);
	bool		outer_left = false;
	bool		outer_right = false;
	int			a = column_of_node(context, left, &outer_left);
	int			b = column_of_node(context, right, &outer_right);

	if (a >= 0 && b >= 0)
	{
		bool		a_may = !outer_left && (nullable == NULL || bms_is_member(context->columns[a].rti, nullable));
		bool		b_may = !outer_right && (nullable == NULL || bms_is_member(context->columns[b].rti, nullable));

		if (a_may && b_may)
		{
			if (nullable == NULL)
				join_classes(context, a, b);
			else
			{
				/* both on the nullable side: equal wherever they match */
				add_edge(context, a, b);
				add_edge(context, b, a);
			}
		}
		else if (a_may)
			add_edge(context, b, a);
		else if (b_may)
			add_edge(context, a, b);
		return;
	}
	if (a >= 0 && !outer_left && context->columns[a].query == query && (nullable == NULL || bms_is_member(context->columns[a].rti, nullable)) &&
		is_value(right))
		give_value(context, a, (Expr *) right);
	else if (b >= 0 && !outer_right && context->columns[b].query == query &&
			 (nullable == NULL || bms_is_member(context->columns[b].rti, nullable)) && is_value(left))
		give_value(context, b, (Expr *) left);
}

static TargetEntry *
output_column(Query *sub, int number)
{
	ListCell   *cell;

	foreach(cell, sub->targetList)
		if (lfirst_node(TargetEntry, cell)->resno == number && !lfirst_node(TargetEntry, cell)->resjunk)
			return lfirst(cell);
	return NULL;
}

/* One comparison of IN (SELECT ...): the row's column has the value of some row of the subquery. */
static void
use_any_column(Context *context, OpExpr *op, Query *sub)
{
	Param	   *param = list_length(op->args) == 2 ? (Param *) tessera_unlabelled(lsecond(op->args)) : NULL;
	TargetEntry *entry = param && IsA(param, Param) && param->paramkind == PARAM_SUBLINK ? output_column(sub, param->paramid) : NULL;
	bool		outer_left = false;
	bool		outer_inner = false;
	int			left;
	int			inner;

	if (entry == NULL || !is_equality(op->opno, op->inputcollid, linitial(op->args), (Node *) entry->expr))
		return;
	left = column_of_node(context, linitial(op->args), &outer_left);
	context->ancestors = lcons(sub, context->ancestors);
	inner = column_of_node(context, (Node *) entry->expr, &outer_inner);
	context->ancestors = list_delete_first(context->ancestors);
	if (left < 0 || inner < 0 || outer_inner)
		return;
	if (restriction_passes(sub, entry))
		add_edge(context, left, inner);
	if (!outer_left)
		add_edge(context, inner, left);
}

/* (a, b) IN (SELECT ...), where it must hold. */
static void
use_any(Context *context, SubLink *link)
{
	Query	   *sub = (Query *) link->subselect;
	BoolExpr   *test = (BoolExpr *) link->testexpr;
	ListCell   *cell;

	if (link->subLinkType != ANY_SUBLINK || sub->setOperations)
		return;
	if (IsA(test, OpExpr))
		use_any_column(context, (OpExpr *) test, sub);
	else if (IsA(test, BoolExpr) && test->boolop == AND_EXPR)
		foreach(cell, test->args)
			if (IsA(lfirst(cell), OpExpr))
				use_any_column(context, lfirst(cell), sub);
}

static void
use_condition(Context *context, Node *node, Relids nullable)
{
	ListCell   *cell;

	if (node == NULL)
		return;
	if (IsA(node, List))
	{
		foreach(cell, (List *) node)
			use_condition(context, lfirst(cell), nullable);
	}
	else if (IsA(node, BoolExpr) && ((BoolExpr *) node)->boolop == AND_EXPR)
	{
		foreach(cell, ((BoolExpr *) node)->args)
			use_condition(context, lfirst(cell), nullable);
	}
	else if (IsA(node, OpExpr) && list_length(((OpExpr *) node)->args) == 2)
	{
		OpExpr	   *op = (OpExpr *) node;

		if (is_equality(op->opno, op->inputcollid, linitial(op->args), lsecond(op->args)))
			use_equality(context, linitial(op->args), lsecond(op->args), nullable);
	}
	else if (IsA(node, ScalarArrayOpExpr) && ((ScalarArrayOpExpr *) node)->useOr)
	{
		/* k IN (one value) */
		ScalarArrayOpExpr *op = (ScalarArrayOpExpr *) node;
		ArrayExpr  *array = (ArrayExpr *) tessera_unlabelled(lsecond(op->args));

		if (array && IsA(array, ArrayExpr) && list_length(array->elements) == 1 &&
			is_equality(op->opno, op->inputcollid, linitial(op->args), linitial(array->elements)))
			use_equality(context, linitial(op->args), linitial(array->elements), nullable);
	}
	else if (IsA(node, SubLink) && nullable == NULL)
		use_any(context, (SubLink *) node);
}

static void
relids_of(Node *node, Relids *relids)
{
	ListCell   *cell;

	if (IsA(node, RangeTblRef))
		*relids = bms_add_member(*relids, ((RangeTblRef *) node)->rtindex);
	else if (IsA(node, JoinExpr))
	{
		relids_of(((JoinExpr *) node)->larg, relids);
		relids_of(((JoinExpr *) node)->rarg, relids);
	}
	else if (IsA(node, FromExpr))
		foreach(cell, ((FromExpr *) node)->fromlist)
			relids_of(lfirst(cell), relids);
}

/* True for a MERGE that inserts: rows of its source do something even if no row of the target matches. */
static bool
merge_inserts(const Query *query)
{
	ListCell   *cell;

	foreach(cell, query->mergeActionList)
		if (lfirst_node(MergeAction, cell)->commandType == CMD_INSERT)
			return true;
	return false;
}

/* nullable: relations that outer joins above may null-extend or filter; conditions below the nullable side still hold for its own rows. */
static void
use_jointree(Context *context, Node *node)
{
	Query	   *query = linitial(context->ancestors);
	ListCell   *cell;

	if (node == NULL)
		return;
	if (IsA(node, FromExpr))
	{
		foreach(cell, ((FromExpr *) node)->fromlist)
			use_jointree(context, lfirst(cell));
		/* MERGE ... ON bounds the target's rows only, if the source's go on to NOT MATCHED. */
		use_condition(context, ((FromExpr *) node)->quals, merge_inserts(query) ? bms_make_singleton(query->resultRelation) : NULL);
	}
	else if (IsA(node, JoinExpr))
	{
		JoinExpr   *join = (JoinExpr *) node;
		Relids		nullable = NULL;

		use_jointree(context, join->larg);
		use_jointree(context, join->rarg);
		switch (join->jointype)
		{
			case JOIN_INNER:
				use_condition(context, join->quals, NULL);
				break;
			case JOIN_LEFT:
				relids_of(join->rarg, &nullable);
				use_condition(context, join->quals, nullable);
				break;
			case JOIN_RIGHT:
				relids_of(join->larg, &nullable);
				use_condition(context, join->quals, nullable);
				break;
			default:
				break;			/* FULL pins nothing */
		}
	}
}

/* ---- queries ---- */

/* True if a condition on an output column may be pushed down to the rows below. */
static bool
restriction_passes(Query *sub, TargetEntry *entry)
{
	if (sub->commandType != CMD_SELECT || sub->limitCount || sub->limitOffset || sub->hasWindowFuncs || sub->hasDistinctOn || sub->hasTargetSRFs)
		return false;
	if (sub->groupingSets)
		return false;
	if (sub->hasAggs || sub->groupClause)
	{
		ListCell   *cell;

		foreach(cell, sub->groupClause)
			if (lfirst_node(SortGroupClause, cell)->tleSortGroupRef == entry->ressortgroupref && entry->ressortgroupref != 0)
				return true;
		return false;
	}
	return true;
}

/*
 * A subquery in FROM: its plain output columns are its inner columns. Those of a set operation are those of every branch: nothing is known of them.
 */
static void
use_subquery(Context *context, Query *query, Index rti, Query *sub, bool both_ways)
{
	ListCell   *cell;

	if (sub->setOperations)
		return;
	foreach(cell, sub->commandType == CMD_SELECT ? sub->targetList : sub->returningList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		bool		outer = false;
		int			inner;
		int			column;

		if (entry->resjunk)
			continue;
		context->ancestors = lcons(sub, context->ancestors);
		inner = column_of_node(context, (Node *) entry->expr, &outer);
		context->ancestors = list_delete_first(context->ancestors);
		column = column_of(context, query, rti, entry->resno);
		if (inner >= 0 && !outer)
		{
			add_edge(context, inner, column);
			if (both_ways && restriction_passes(sub, entry))
				add_edge(context, column, inner);
		}
		else if (is_value((Node *) entry->expr))
			give_value(context, column, entry->expr);
	}
}

static bool
sublink_walker(Node *node, Context *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		analyse_query((Query *) node, context);
		return false;
	}
	return expression_tree_walker(node, sublink_walker, context);
}

static void
walk_policies(Context *context, Node *policies)
{
	int			before = list_length(context->analysis->occurrences);

	(void) sublink_walker(policies, context);
	if (list_length(context->analysis->occurrences) > before)
		context->analysis->policies_read_cluster = true;
}

static void
add_occurrence(Context *context, Query *query, Index rti, const TesseraTable *table)
{
	TesseraOccurrence *occurrence = palloc0(sizeof(TesseraOccurrence));

	occurrence->query = query;
	occurrence->rti = rti;
	occurrence->table = table;
	context->analysis->occurrences = lappend(context->analysis->occurrences, occurrence);
	if (table->group < 0)
		context->analysis->nplaced++;
}

/*
 * True if rows of a replicated table that are locked so are locked on its lead, where they are written. FOR KEY SHARE, which foreign keys use, is
 * taken on the copy that is read: a change of the key or a deletion comes to every copy, and waits there.
 */
static bool
locks_lead(const RowMarkClause *mark)
{
	return mark != NULL && mark->strength > LCS_FORKEYSHARE;
}

static void
visit_relation(Context *context, Query *query, Index rti, RangeTblEntry *rte)
{
	TesseraAnalysis *analysis = context->analysis;
	const TesseraTable *table = tessera_routing_table(context->routing, rte->relid);

	if (table == NULL)
	{
		/* A view's own OLD/NEW entries are not read. */
		if (rte->relkind != RELKIND_VIEW)
			analysis->nother++;
		return;
	}
	/* a copy is everywhere: it pins nothing, and is no hindrance to going anywhere */
	if (table->replicated && query->resultRelation != rti && !locks_lead(get_parse_rowmark(query, rti)) &&
		!(tessera_names_row_version(tessera_permissions(query, rte)) &&
		  tessera_reads_row_version(query, NULL, rti, tessera_unread_outputs(context->statement))))
		return;
	add_occurrence(context, query, rti, table);
	if (query->resultRelation == rti)
		analysis->writes_cluster = true;
	if (get_parse_rowmark(query, rti) != NULL)
		analysis->locks_rows = true;
}

/* *alone: nothing else reads it, so what is asked of this reference may be asked of its rows. */
static Query *
cte_query(Context *context, RangeTblEntry *rte, bool *alone)
{
	Query	   *query;
	ListCell   *cell;

	if (rte->self_reference || rte->ctelevelsup >= list_length(context->ancestors))
		return NULL;
	query = list_nth(context->ancestors, rte->ctelevelsup);
	foreach(cell, query->cteList)
	{
		CommonTableExpr *cte = lfirst_node(CommonTableExpr, cell);

		if (strcmp(cte->ctename, rte->ctename) != 0)
			continue;
		query = (Query *) cte->ctequery;
		*alone = cte->cterefcount == 1 && query->commandType == CMD_SELECT && query->rowMarks == NIL &&
			!contain_volatile_functions((Node *) query);
		return cte->cterecursive ? NULL : query;
	}
	return NULL;
}

/* A new row's columns, under the range table index that stands for it. volatile_too: its values are computed here, once. */
static void
use_row(Context *context, Query *query, Index rti, List *targets, bool volatile_too)
{
	ListCell   *cell;

	foreach(cell, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		bool		outer = false;
		int			source;
		int			column;

		if (entry->resjunk || entry->resno <= 0)
			continue;
		column = column_of(context, query, rti, entry->resno);
		source = column_of_node(context, (Node *) entry->expr, &outer);
		if (source >= 0 && !outer)
			add_edge(context, source, column);
		else if (volatile_too ? !needs_row_walker((Node *) entry->expr, NULL) : is_value((Node *) entry->expr))
			give_value(context, column, entry->expr);
	}
}

/* INSERT: its one row, or those of its source. */
static void
use_insert(Context *context, Query *query)
{
	bool		single_row = query->jointree->fromlist == NIL && list_length(context->ancestors) == 1;

	use_row(context, query, query->resultRelation, query->targetList, single_row);
}

/* MERGE: the rows that it inserts have keys of their own; each action is an occurrence of the table under an index beyond the range table. */
static void
use_merge(Context *context, Query *query)
{
	const TesseraTable *table = tessera_routing_table(context->routing, rt_fetch(query->resultRelation, query->rtable)->relid);
	Index		rti = list_length(query->rtable);
	ListCell   *cell;

	foreach(cell, query->mergeActionList)
	{
		MergeAction *action = lfirst_node(MergeAction, cell);

		if (action->commandType != CMD_INSERT || table == NULL)
			continue;
		add_occurrence(context, query, ++rti, table);
		use_row(context, query, rti, action->targetList, false);
	}
}

static void
analyse_query(Query *query, Context *context)
{
	Index		rti = 0;
	ListCell   *cell;

	context->ancestors = lcons(query, context->ancestors);
	foreach(cell, query->cteList)
	{
		CommonTableExpr *cte = lfirst_node(CommonTableExpr, cell);

		if (IsA(cte->ctequery, Query))
		{
			if (((Query *) cte->ctequery)->commandType != CMD_SELECT)
				context->analysis->has_writing_cte = true;
			analyse_query((Query *) cte->ctequery, context);
		}
	}
	foreach(cell, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		Query	   *sub;
		bool		alone = false;

		rti++;
		switch (rte->rtekind)
		{
			case RTE_RELATION:
				visit_relation(context, query, rti, rte);
				(void) sublink_walker((Node *) rte->tablesample, context);
				break;
			case RTE_SUBQUERY:
				analyse_query(rte->subquery, context);
				use_subquery(context, query, rti, rte->subquery, true);
				break;
			case RTE_CTE:
				sub = cte_query(context, rte, &alone);
				if (sub)
					use_subquery(context, query, rti, sub, alone);
				break;
			case RTE_FUNCTION:
				(void) sublink_walker((Node *) rte->functions, context);
				break;
			case RTE_VALUES:
				(void) sublink_walker((Node *) rte->values_lists, context);
				break;
			case RTE_TABLEFUNC:
				(void) sublink_walker((Node *) rte->tablefunc, context);
				break;
			default:
				break;
		}
		walk_policies(context, (Node *) rte->securityQuals);
	}
	use_jointree(context, (Node *) query->jointree);
	if (query->commandType == CMD_INSERT && query->resultRelation > 0)
		use_insert(context, query);
	if (query->commandType == CMD_MERGE)
		use_merge(context, query);

	/* sublinks, wherever they stand */
	(void) sublink_walker((Node *) query->targetList, context);
	(void) sublink_walker((Node *) query->jointree, context);
	(void) sublink_walker((Node *) query->havingQual, context);
	(void) sublink_walker((Node *) query->returningList, context);
	(void) sublink_walker((Node *) query->onConflict, context);
	walk_policies(context, (Node *) query->withCheckOptions);
	(void) sublink_walker((Node *) query->mergeActionList, context);
	(void) sublink_walker((Node *) query->windowClause, context);
	(void) sublink_walker(query->limitCount, context);
	(void) sublink_walker(query->limitOffset, context);
	context->ancestors = list_delete_first(context->ancestors);
}

static void
read_pin(Context *context, TesseraOccurrence *occurrence)
{
	const TesseraGroup *group;

	if (occurrence->table->group < 0)
		return;
	group = tessera_routing_group(context->routing, occurrence->table->group);
	for (int i = 0; i < occurrence->table->nkeys; i++)
	{
		int			column = column_of(context, occurrence->query, occurrence->rti, occurrence->table->keys[i]);
		Expr	   *value = context->columns[root_of(context, column)].value;

		if (value == NULL || !tessera_key_types_compatible(exprType((Node *) value), getBaseType(group->types[i])))
		{
			occurrence->key = NIL;
			return;
		}
		occurrence->key = lappend(occurrence->key, value);
	}
	occurrence->pinned = true;
}

/* ---- statements closed over the key ---- */

TesseraOccurrence *
tessera_target_of(const TesseraAnalysis *analysis, const Query *query)
{
	ListCell   *cell;

	foreach(cell, analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);

		if (occurrence->query == query && query->resultRelation > 0 && occurrence->rti == query->resultRelation)
			return occurrence;
	}
	return NULL;
}

static bool
has_outer_join(Node *node)
{
	ListCell   *cell;

	if (IsA(node, JoinExpr))
		return ((JoinExpr *) node)->jointype != JOIN_INNER || has_outer_join(((JoinExpr *) node)->larg) ||
			has_outer_join(((JoinExpr *) node)->rarg);
	if (IsA(node, FromExpr))
		foreach(cell, ((FromExpr *) node)->fromlist)
			if (has_outer_join(lfirst(cell)))
				return true;
	return false;
}

/* True if the column is that of a sharded table's rows, never extended by NULL: rows of the source then lie where those of the table lie. */
static bool
is_rows_own(Context *context, Query *query, Var *var)
{
	RangeTblEntry *rte;
	TargetEntry *entry;

	if (var == NULL || !IsA(var, Var) || var->varlevelsup != 0 || var->varattno <= 0)
		return false;
	var = resolve_join_var(query, var);
	if (var == NULL || has_outer_join((Node *) query->jointree))
		return false;
	rte = rt_fetch(var->varno, query->rtable);
	if (rte->rtekind == RTE_RELATION)
	{
		const TesseraTable *table = tessera_routing_table(context->routing, rte->relid);

		return table != NULL && table->group >= 0;
	}
	if (rte->rtekind != RTE_SUBQUERY || rte->subquery->setOperations || rte->subquery->groupingSets)
		return false;
	entry = output_column(rte->subquery, var->varattno);
	return entry != NULL && is_rows_own(context, rte->subquery, (Var *) tessera_unlabelled((Node *) entry->expr));
}

/* MERGE that inserts: the source's column that ON compares with this column of the target; -1: there is none whose rows are those of a table. */
static int
source_key(Context *context, Query *query, AttrNumber attribute)
{
	List	   *conditions = make_ands_implicit((Expr *) query->jointree->quals);
	ListCell   *cell;

	foreach(cell, conditions)
	{
		OpExpr	   *op = lfirst(cell);

		if (!IsA(op, OpExpr) || list_length(op->args) != 2 || !is_equality(op->opno, op->inputcollid, linitial(op->args), lsecond(op->args)))
			continue;
		for (int side = 0; side < 2; side++)
		{
			Var		   *target = (Var *) tessera_unlabelled(list_nth(op->args, side));
			Var		   *source = (Var *) tessera_unlabelled(list_nth(op->args, 1 - side));
			bool		outer = false;

			if (IsA(target, Var) && target->varlevelsup == 0 && target->varno == query->resultRelation && target->varattno == attribute &&
				IsA(source, Var) && source->varno != query->resultRelation && is_rows_own(context, query, source))
				return column_of_node(context, (Node *) source, &outer);
		}
	}
	return -1;
}

/* Gives a placeholder to each column of the key of the rows that drive the statement; false: that key is not known. */
static bool
give_placeholders(Context *context, Query *query, const TesseraOccurrence *target)
{
	const TesseraGroup *group = tessera_routing_group(context->routing, target->table->group);

	for (int i = 0; i < target->table->nkeys; i++)
	{
		AttrNumber	attribute = target->table->keys[i];
		int			column = merge_inserts(query) ? source_key(context, query, attribute) : column_of(context, target->query, target->rti, attribute);
		Param	   *placeholder = makeNode(Param);

		if (column < 0)
			return false;
		placeholder->paramkind = PARAM_EXEC;
		placeholder->paramid = i;
		placeholder->paramtype = group->types[i];
		placeholder->paramtypmod = -1;
		placeholder->location = -1;
		/* a value that is known stays: whatever has that is as good */
		give_value(context, column, (Expr *) placeholder);
	}
	return true;
}

/* Relations of which an outer join may put NULLs in the place of a row. */
static void
add_extended(Node *node, Relids *extended)
{
	ListCell   *cell;

	if (IsA(node, FromExpr))
		foreach(cell, ((FromExpr *) node)->fromlist)
			add_extended(lfirst(cell), extended);
	else if (IsA(node, JoinExpr))
	{
		JoinExpr   *join = (JoinExpr *) node;

		add_extended(join->larg, extended);
		add_extended(join->rarg, extended);
		if (join->jointype == JOIN_LEFT || join->jointype == JOIN_FULL)
			relids_of(join->rarg, extended);
		if (join->jointype == JOIN_RIGHT || join->jointype == JOIN_FULL)
			relids_of(join->larg, extended);
	}
}

/* True if rows that are equal in these columns (of SortGroupClause) have the same key. */
static bool
has_key(Context *context, Query *query, const TesseraOccurrence *driver, List *clauses)
{
	if (driver->query != query)
		return false;
	for (int i = 0; i < driver->table->nkeys; i++)
	{
		bool		found = false;
		ListCell   *cell;

		foreach(cell, clauses)
		{
			Node	   *expr = get_sortgroupclause_expr(lfirst_node(SortGroupClause, cell), query->targetList);
			bool		outer = false;
			int			column = column_of_node(context, expr, &outer);
			int			key = column_of(context, query, driver->rti, driver->table->keys[i]);

			found |= column >= 0 && !outer && root_of(context, column) == root_of(context, key) &&
				is_equality_of(lfirst_node(SortGroupClause, cell)->eqop, exprCollation(expr), expr);
		}
		if (!found)
			return false;
	}
	return true;
}

/* Whether what a SELECT does with its joined rows, before ORDER BY and LIMIT, is done for each key by itself. */
static bool
goes_by_key(Context *context, Query *query, const TesseraOccurrence *driver)
{
	ListCell   *cell;

	if (query->setOperations || query->groupingSets || query->rowMarks)
		return false;
	if (query->groupClause ? !has_key(context, query, driver, query->groupClause) : query->hasAggs || query->havingQual)
		return false;
	if (query->distinctClause && !has_key(context, query, driver, query->distinctClause))
		return false;
	foreach(cell, query->windowClause)
		if (!has_key(context, query, driver, lfirst_node(WindowClause, cell)->partitionClause))
			return false;
	return true;
}

/*
 * The sharded table of which each row of a SELECT, before it groups, has one row: joined there, or in a subquery that goes by its key. NULL: there is
 * none.
 */
static TesseraOccurrence *
driver_of(Context *context, Query *query)
{
	Relids		joined = NULL;
	Relids		extended = NULL;
	TesseraOccurrence *driver = NULL;
	ListCell   *cell;
	int			rti = -1;

	relids_of((Node *) query->jointree, &joined);
	add_extended((Node *) query->jointree, &extended);
	joined = bms_difference(joined, extended);
	foreach(cell, context->analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);

		if (occurrence->query == query && occurrence->table->group >= 0 && bms_is_member(occurrence->rti, joined))
			return occurrence;
	}
	while (driver == NULL && (rti = bms_next_member(joined, rti)) >= 0)
	{
		Query	   *sub = rt_fetch(rti, query->rtable)->subquery;

		if (rt_fetch(rti, query->rtable)->rtekind != RTE_SUBQUERY || sub->limitCount || sub->limitOffset)
			continue;
		context->ancestors = lcons(sub, context->ancestors);
		driver = driver_of(context, sub);
		if (driver && !goes_by_key(context, sub, driver))
			driver = NULL;
		context->ancestors = list_delete_first(context->ancestors);
	}
	return driver;
}

static Expr *
value_of_key(Context *context, const TesseraOccurrence *occurrence, int i)
{
	/* first: it may move the columns */
	int			column = column_of(context, occurrence->query, occurrence->rti, occurrence->table->keys[i]);

	return context->columns[root_of(context, column)].value;
}

/* INSERT ... SELECT: the SELECT. NULL: the rows come from elsewhere. */
static Query *
source_of_insert(const Query *query)
{
	RangeTblRef *source = list_length(query->jointree->fromlist) == 1 ? linitial(query->jointree->fromlist) : NULL;

	return source != NULL && IsA(source, RangeTblRef) ? rt_fetch(source->rtindex, query->rtable)->subquery : NULL;
}

/* The occurrence whose rows drive the statement, if it does with them what it does for each key by itself; NULL: there is none. */
static TesseraOccurrence *
driver_of_statement(Context *context, Query *query)
{
	Query	   *reads = query->commandType == CMD_INSERT ? source_of_insert(query) : query;
	TesseraOccurrence *driver;

	if (query->commandType != CMD_SELECT && query->commandType != CMD_INSERT)
		return tessera_target_of(context->analysis, query);
	if (reads == NULL || (query->commandType == CMD_INSERT && (reads->limitCount || reads->limitOffset)))
		return NULL;
	if (reads != query)
		context->ancestors = lcons(reads, context->ancestors);
	driver = driver_of(context, reads);
	if (driver != NULL && !goes_by_key(context, reads, driver))
		driver = NULL;
	context->ancestors = list_make1(query);
	return driver;
}

static void
find_closed(Context *context, Query *query)
{
	TesseraAnalysis *analysis = context->analysis;
	TesseraOccurrence *target;
	ListCell   *cell;

	context->ancestors = list_make1(query);
	target = driver_of_statement(context, query);
	if (target == NULL || target->table->group < 0 || !give_placeholders(context, query, target))
		return;
	follow_edges(context);
	analysis->all_closed = true;
	foreach(cell, analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);

		occurrence->closed = occurrence->table->group == target->table->group;
		for (int i = 0; i < target->table->nkeys && occurrence->closed; i++)
		{
			Expr	   *value = value_of_key(context, target, i);

			occurrence->closed = value != NULL && equal(value, value_of_key(context, occurrence, i));
		}
		analysis->all_closed &= occurrence->closed;
	}
}

TesseraAnalysis *
tessera_analyse(Query *query, const TesseraRouting *routing)
{
	Context		context = {.routing = routing,.statement = query};
	ListCell   *cell;

	context.analysis = palloc0(sizeof(TesseraAnalysis));
	analyse_query(query, &context);
	follow_edges(&context);
	context.analysis->all_pinned = true;
	foreach(cell, context.analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);

		read_pin(&context, occurrence);
		if (occurrence->table->group >= 0 && !occurrence->pinned)
			context.analysis->all_pinned = false;
	}
	if (context.analysis->writes_cluster || query->commandType == CMD_SELECT)
		find_closed(&context, query);
	return context.analysis;
}
