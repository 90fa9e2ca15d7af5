/*
 * scan_text.c
 *	  The query that a scan sends to the shards, of what core's planner has made of the user's: tables and joins, conditions, expressions.
 *
 * Core's planner knows outer, semi- and antijoins, which SQL has no words for but JOIN ... ON and [NOT] EXISTS. A query for the shards is made anew
 * of them, for core's deparser to print (planner/deparse.c). Nothing is kept.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_inherits.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "utils/lsyscache.h"

#include "common/range_table.h"
#include "planner/planner.h"
#include "planner/ship.h"
#include "planner/table_path.h"

static Query *select_from(PlannerInfo *root, Node *tree, List *conditions, TesseraScanText *text);

/* The parameters of the whole text. */
static List **
params_of(TesseraScanText *text)
{
	while (text->outer)
		text = text->outer;
	return &text->params;
}


/* Expressions */

/* A column of the text's tables, or of those around it; of a lateral or parameterised outer, it is a parameter that core replaces. */
static Node *
column_of(Var *var, TesseraScanText *text)
{
	Index		level = 0;

	for (TesseraScanText *scope = text; scope != NULL && var->varlevelsup == 0; scope = scope->outer, level++)
		if (bms_is_member(var->varno, scope->relids))
		{
			var = copyObject(var);
			var->varno = var->varnosyn = bms_member_index(scope->relids, var->varno) + 1;
			var->varattnosyn = var->varattno;
			var->varlevelsup = level;
			return (Node *) var;
		}
	return tessera_make_param((Expr *) var, params_of(text));
}

/*
 * Params and what needs no row become $n; the relations' own Vars become those of the text's range table. Constants of types that users make become
 * $n, too: what reads them on the shard may run their code, and below a view must not do so before the statement runs as its caller
 * (session/check_as.c).
 */
static Node *
scan_mutator(Node *node, TesseraScanText *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Param) || (IsA(node, Const) && ((Const *) node)->consttype >= FirstNormalObjectId && !((Const *) node)->constisnull))
		return tessera_make_param((Expr *) node, params_of(context));
	if (IsA(node, Var))
		return column_of((Var *) node, context);
	if (tessera_becomes_param(node, context->conditional))
		return tessera_make_param((Expr *) node, params_of(context));
	/* what an aggregate computes for each row it does not compute if there is none */
	if (IsA(node, CaseExpr) || IsA(node, CoalesceExpr) || IsA(node, Aggref))
	{
		bool		before = context->conditional;

		context->conditional = true;
		node = expression_tree_mutator(node, scan_mutator, context);
		context->conditional = before;
		return node;
	}
	return expression_tree_mutator(node, scan_mutator, context);
}

Node *
tessera_scan_expression(Node *node, TesseraScanText *text)
{
	return scan_mutator(node, text);
}


/* Tables and joins */

Node *
tessera_closed_leaf(Index relid)
{
	return (Node *) tessera_reference_to(relid);
}

Relids
tessera_tree_relids(Node *tree)
{
	const JoinExpr *join = (const JoinExpr *) tree;

	if (IsA(tree, RangeTblRef))
		return bms_make_singleton(((RangeTblRef *) tree)->rtindex);
	return bms_union(tessera_tree_relids(join->larg), tessera_tree_relids(join->rarg));
}

Relids
tessera_tree_nullable(Node *tree)
{
	const JoinExpr *join = (const JoinExpr *) tree;
	Relids		nullable;

	if (IsA(tree, RangeTblRef))
		return NULL;
	nullable = bms_union(tessera_tree_nullable(join->larg), tessera_tree_nullable(join->rarg));
	if (join->jointype == JOIN_LEFT || join->jointype == JOIN_FULL)
		nullable = bms_union(nullable, tessera_tree_relids(join->rarg));
	if (join->jointype == JOIN_FULL)
		nullable = bms_union(nullable, tessera_tree_relids(join->larg));
	return nullable;
}

/* [NOT] EXISTS (SELECT FROM the join's right side WHERE its conditions). */
static Node *
exists_condition(PlannerInfo *root, const JoinExpr *join, TesseraScanText *text)
{
	TesseraScanText inner = {.outer = text,.conditional = true};
	SubLink    *link = makeNode(SubLink);

	link->subLinkType = EXISTS_SUBLINK;
	link->subselect = (Node *) select_from(root, join->rarg, (List *) join->quals, &inner);
	link->location = -1;
	return join->jointype == JOIN_SEMI ? (Node *) link : (Node *) make_notclause((Expr *) link);
}

/* NULL: there are none. */
static Node *
all_conditions(PlannerInfo *root, List *conditions, TesseraScanText *text)
{
	List	   *quals = NIL;
	ListCell   *cell;

	foreach(cell, conditions)
	{
		Node	   *condition = lfirst(cell);

		if (IsA(condition, JoinExpr))
			quals = lappend(quals, exists_condition(root, (JoinExpr *) condition, text));
		else
			quals = lappend(quals, scan_mutator((Node *) castNode(RestrictInfo, condition)->clause, text));
	}
	return quals ? (Node *) make_ands_explicit(quals) : NULL;
}

static void
add_table(PlannerInfo *root, Query *query, Index relid)
{
	RangeTblEntry *rte = planner_rt_fetch(relid, root);
	RangeTblEntry *table = copyObject(rte);

	table->inh = tessera_plan_reads_children(rte) || !has_subclass(rte->relid);
	table->securityQuals = NIL;
	query->rtable = lappend(query->rtable, table);
}

/* A tree of joins, with entries in the query's range table: each join's stands behind those of its sides. */
static Node *
join_tree(PlannerInfo *root, Query *query, Node *tree, TesseraScanText *text)
{
	const JoinExpr *join = (const JoinExpr *) tree;
	JoinExpr   *made;
	RangeTblEntry *rte;

	if (IsA(tree, RangeTblRef))
		return tessera_closed_leaf(bms_member_index(text->relids, ((RangeTblRef *) tree)->rtindex) + 1);
	made = makeNode(JoinExpr);
	made->jointype = join->jointype;
	made->larg = join_tree(root, query, join->larg, text);
	made->rarg = join_tree(root, query, join->rarg, text);
	made->quals = all_conditions(root, (List *) join->quals, text);
	rte = makeNode(RangeTblEntry);
	rte->rtekind = RTE_JOIN;
	rte->jointype = join->jointype;
	rte->eref = makeAlias("unnamed_join", NIL);
	tessera_set_join_columns(rte, query, made->larg, made->rarg);
	query->rtable = lappend(query->rtable, rte);
	made->rtindex = list_length(query->rtable);
	return (Node *) made;
}

/* FROM: the tables that inner joins join, in their order, then the outer joins among them. */
static void
collect_from(Node *tree, Relids *tables, List **joins)
{
	const JoinExpr *join = (const JoinExpr *) tree;

	if (IsA(tree, RangeTblRef))
		*tables = bms_add_member(*tables, ((RangeTblRef *) tree)->rtindex);
	else if (join->jointype == JOIN_INNER && join->quals == NULL)
	{
		collect_from(join->larg, tables, joins);
		collect_from(join->rarg, tables, joins);
	}
	else
		*joins = lappend(*joins, tree);
}

static Query *
select_from(PlannerInfo *root, Node *tree, List *conditions, TesseraScanText *text)
{
	Query	   *query = makeNode(Query);
	Relids		tables = NULL;
	List	   *joins = NIL;
	List	   *from = NIL;
	ListCell   *cell;
	int			relid = -1;

	text->relids = tessera_tree_relids(tree);
	while ((relid = bms_next_member(text->relids, relid)) >= 0)
		add_table(root, query, relid);
	collect_from(tree, &tables, &joins);
	relid = -1;
	while ((relid = bms_next_member(tables, relid)) >= 0)
		from = lappend(from, join_tree(root, query, tessera_closed_leaf(relid), text));
	foreach(cell, joins)
		from = lappend(from, join_tree(root, query, lfirst(cell), text));
	query->commandType = CMD_SELECT;
	query->canSetTag = true;
	query->jointree = makeFromExpr(from, all_conditions(root, conditions, text));
	query->hasSubLinks = checkExprHasSubLink((Node *) query->jointree);
	return query;
}

Query *
tessera_scan_query(PlannerInfo *root, const TesseraClosedRel *closed, TesseraScanText *text)
{
	return select_from(root, closed->tree, closed->conditions, text);
}
