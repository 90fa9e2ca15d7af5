/*
 * target_view.c
 *	  Modifications through automatically updatable views and through rules of views; see target_view.h.
 *
 * The rewriter replaces the target view by its table: the view's columns by their expressions, its conditions added to the statement's or to the
 * table's security conditions, its check options kept apart, the owner to check rights by noted in the table's entry. None of the last three is
 * printed by the deparser. All of it is undone here, view by view from the innermost: the view's entry is still in the range table. The shard's
 * rewriter then does the same again.
 *
 * What the view does not show (a column that only its default gives a value to, a condition with a subquery) cannot be undone. Then the statement
 * goes to the table, if the view has nothing to enforce there and the current user owns it; plans that rest on this depend on the role.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteHandler.h"
#include "rewrite/rewriteManip.h"
#include "utils/rel.h"

#include "common/version_compat.h"
#include "planner/target_view.h"

/* A view whose columns come back in place of the table's. */
typedef struct ViewContext
{
	Index		rti;			/* of the view in the query */
	List	   *columns;		/* the view's target list over the query's table */
	Index		excluded;		/* of EXCLUDED; 0: none */
	List	   *excluded_columns;	/* the same over EXCLUDED */
	Index		target;			/* of the table in the query */
	int			sublevels;
	bool		failed;			/* something that the view does not show */
} ViewContext;

static bool
modifies(Query *query)
{
	return query->resultRelation > 0 && query->commandType != CMD_SELECT;
}

/* A view that is, or was, the target: its EXCLUDED asks for no rights. */
static bool
is_view_entry(Query *query, RangeTblEntry *rte)
{
	const TesseraPermissions *permissions;

	if (rte->rtekind != RTE_RELATION || rte->relkind != RELKIND_VIEW)
		return false;
	permissions = tessera_permissions(query, rte);
	return permissions != NULL && permissions->requiredPerms != 0;
}

/* The last view before the query's target in its range table: the one that it was reached through. 0: none. */
static Index
innermost_view(Query *query)
{
	for (Index rti = query->resultRelation - 1; rti > 0; rti--)
		if (is_view_entry(query, rt_fetch(rti, query->rtable)))
			return rti;
	return 0;
}

/* Only the rule that makes it a view: others have been applied already and would be again. */
static bool
has_no_rules(Relation view)
{
	return view->rd_rules != NULL && view->rd_rules->numLocks == 1;
}

/* ---- columns ---- */

static Node *
view_column(Node *node, List *columns, Index rti, ViewContext *context)
{
	ListCell   *cell;

	foreach(cell, columns)
	{
		TargetEntry *column = lfirst_node(TargetEntry, cell);
		Node	   *expr = (Node *) column->expr;

		if (column->resjunk || !contain_vars_of_level(expr, 0))
			continue;
		if (context->sublevels > 0)
		{
			expr = copyObject(expr);
			IncrementVarSublevelsUp(expr, context->sublevels, 0);
		}
		if (equal(node, expr))
		{
			/* another number on each node */
			if (IsA(expr, Var) && ((Var *) expr)->varattno == TableOidAttributeNumber)
				context->failed = true;
			return (Node *) makeVar(rti, column->resno, exprType(expr), exprTypmod(expr), exprCollation(expr), context->sublevels);
		}
	}
	return NULL;
}

static Node *
view_mutator(Node *node, ViewContext *context)
{
	Node	   *column;

	if (node == NULL)
		return NULL;
	if (IsA(node, Query))
	{
		Query	   *result;

		context->sublevels++;
		result = query_tree_mutator((Query *) node, view_mutator, context, 0);
		context->sublevels--;
		return (Node *) result;
	}
	column = view_column(node, context->columns, context->rti, context);
	if (column == NULL && context->excluded > 0)
		column = view_column(node, context->excluded_columns, context->excluded, context);
	if (column)
		return column;
	if (IsA(node, Var) && ((Var *) node)->varlevelsup == context->sublevels &&
		(((Var *) node)->varno == context->target || (context->excluded > 0 && ((Var *) node)->varno == context->excluded)))
	{
		context->failed = true;
		return node;
	}
	return expression_tree_mutator(node, view_mutator, context);
}

/* The view's column that is this column of the table, one that the user named if there are several. 0: none. */
static AttrNumber
column_of_attribute(ViewContext *context, const TesseraPermissions *view, AttrNumber attribute)
{
	AttrNumber	found = 0;
	ListCell   *cell;

	foreach(cell, context->columns)
	{
		TargetEntry *column = lfirst_node(TargetEntry, cell);
		Var		   *var = (Var *) column->expr;
		int			bit = column->resno - FirstLowInvalidHeapAttributeNumber;

		if (column->resjunk || !IsA(var, Var) || var->varattno != attribute)
			continue;
		if (found == 0 || bms_is_member(bit, view->insertedCols) || bms_is_member(bit, view->updatedCols))
			found = column->resno;
	}
	return found;
}

/* A column that the view does not show got its default: the shard gives it the same, if that does not depend on where and when. */
static bool
is_constant_default(RangeTblEntry *table, AttrNumber attribute)
{
	Relation	relation = table_open(table->relid, NoLock);
	Node	   *value = build_column_default(relation, attribute);

	table_close(relation, NoLock);
	return value != NULL && !contain_mutable_functions(value);
}

static List *
restore_assignments(List *targets, ViewContext *context, const TesseraPermissions *view, RangeTblEntry *table, bool with_defaults)
{
	List	   *result = NIL;
	ListCell   *cell;

	foreach(cell, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		AttrNumber	column;

		if (entry->resjunk)
		{
			result = lappend(result, entry);
			continue;
		}
		column = column_of_attribute(context, view, entry->resno);
		if (column > 0)
		{
			entry->resno = column;
			result = lappend(result, entry);
		}
		else if (!with_defaults || !is_constant_default(table, entry->resno))
			context->failed = true;
	}
	return result;
}

/* ---- one view ---- */

/* Takes the view's own conditions off the statement's. */
static bool
remove_conditions(Query *query, ViewContext *context, Node *conditions)
{
	Node	   *quals = query->jointree->quals;
	BoolExpr   *both = (BoolExpr *) quals;

	if (conditions == NULL || query->commandType == CMD_INSERT)
		return true;
	if (quals == NULL)
		return false;
	if (equal(quals, conditions))
		query->jointree->quals = NULL;
	else if (IsA(both, BoolExpr) && both->boolop == AND_EXPR && list_length(both->args) == 2 && equal(lsecond(both->args), conditions))
		query->jointree->quals = linitial(both->args);
	else
		return false;
	return true;
}

/* For each view gone through the rewriter makes another EXCLUDED and leaves the one before behind, whose name must not be in the way. */
static void
forget_other_excluded(Query *query)
{
	RangeTblEntry *rte = rt_fetch(query->onConflict->exclRelIndex, query->rtable);
	ListCell   *cell;

	foreach(cell, query->rtable)
	{
		RangeTblEntry *other = lfirst_node(RangeTblEntry, cell);

		if (other == rte || other->alias == NULL || strcmp(other->alias->aliasname, "excluded") != 0)
			continue;
		other->rtekind = RTE_RESULT;
		other->alias = NULL;
		other->eref = makeAlias("unused", NIL);
	}
}

/* EXCLUDED has the view's columns again. */
static void
restore_excluded(Query *query, ViewContext *context, Relation view)
{
	RangeTblEntry *rte = rt_fetch(context->excluded, query->rtable);
	List	   *names = NIL;

	forget_other_excluded(query);
	for (int i = 0; i < RelationGetNumberOfAttributes(view); i++)
		names = lappend(names, makeString(pstrdup(NameStr(TupleDescAttr(RelationGetDescr(view), i)->attname))));
	rte->relid = RelationGetRelid(view);
	rte->eref = makeAlias("excluded", names);
}

/* The query modifies the table of this view: let it modify the view. */
static bool
restore_view(Query *query, Index rti, Relation view)
{
	ViewContext context = {.rti = rti, .target = query->resultRelation};
	const TesseraPermissions *named;
	RangeTblEntry *table = rt_fetch(query->resultRelation, query->rtable);
	Query	   *definition = copyObject(get_view_query(view));
	RangeTblRef *base = linitial(definition->jointree->fromlist);

	if (!has_no_rules(view) || !IsA(base, RangeTblRef) || rt_fetch(base->rtindex, definition->rtable)->relid != table->relid)
		return false;
	context.columns = definition->targetList;
	ChangeVarNodes((Node *) context.columns, base->rtindex, context.target, 0);
	ChangeVarNodes(definition->jointree->quals, base->rtindex, context.target, 0);
	if (query->onConflict && query->onConflict->exclRelIndex > 0)
	{
		context.excluded = query->onConflict->exclRelIndex;
		context.excluded_columns = copyObject(context.columns);
		ChangeVarNodes((Node *) context.excluded_columns, context.target, context.excluded, 0);
		query->onConflict->exclRelTlist = NIL;	/* not printed */
	}
	if (!RelationIsSecurityView(view) && !remove_conditions(query, &context, definition->jointree->quals))
		return false;

	table->securityQuals = NIL;
	query->withCheckOptions = NIL;
	(void) query_tree_mutator(query, view_mutator, &context, QTW_DONT_COPY_QUERY);
	named = tessera_permissions(query, rt_fetch(rti, query->rtable));
	table = rt_fetch(query->resultRelation, query->rtable);
	if (query->commandType != CMD_DELETE)
		query->targetList = restore_assignments(query->targetList, &context, named, table, query->commandType == CMD_INSERT);
	if (query->onConflict)
		query->onConflict->onConflictSet = restore_assignments(query->onConflict->onConflictSet, &context, named, table, false);
	if (context.excluded > 0)
		restore_excluded(query, &context, view);
	ChangeVarNodes((Node *) query, context.target, rti, 0);
	return !context.failed;
}

static bool
restore_views(Query *query)
{
	Index		rti;

	while ((rti = innermost_view(query)) > 0)
	{
		Relation	view = table_open(rt_fetch(rti, query->rtable)->relid, NoLock);
		/* no other node has a temporary view */
		bool		restored = view->rd_rel->relpersistence != RELPERSISTENCE_TEMP && restore_view(query, rti, view);

		table_close(view, NoLock);
		if (!restored)
			return false;
	}
	return true;
}

/* ---- the table instead ---- */

/* Nothing of the view or its rule is lost if the statement goes to its tables by the current user. */
static bool
goes_to_table(Query *query)
{
	ListCell   *cell;

	if (query->withCheckOptions != NIL || rt_fetch(query->resultRelation, query->rtable)->securityQuals != NIL)
		return false;
	foreach(cell, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		Oid			role = rte->rtekind == RTE_RELATION ? tessera_check_as_user(query, rte) : InvalidOid;

		if (OidIsValid(role) && role != GetUserId())
			return false;
	}
	if (query->onConflict && query->onConflict->exclRelIndex > 0)
		forget_other_excluded(query);
	/* The deparser prints FROM by a mark that the rewriter does not keep up. */
	foreach(cell, query->jointree->fromlist)
		if (IsA(lfirst(cell), RangeTblRef))
		{
			Index		rti = lfirst_node(RangeTblRef, cell)->rtindex;

			rt_fetch(rti, query->rtable)->inFromCl = rti != query->resultRelation;
		}
	return true;
}

/* ---- statements ---- */

static bool
came_through_view(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->rtable)
		if (is_view_entry(query, lfirst_node(RangeTblEntry, cell)))
			return true;
	return false;
}

bool
tessera_restore_target_views(Query *query, TesseraReason *reason)
{
	ListCell   *cell;
	Query	   *before;

	foreach(cell, query->cteList)
	{
		Query	   *cte = (Query *) lfirst_node(CommonTableExpr, cell)->ctequery;

		if (IsA(cte, Query) && !tessera_restore_target_views(cte, reason))
			return false;
	}
	if (!modifies(query) || !came_through_view(query))
		return true;
	before = copyObject(query);
	if (restore_views(query))
		return true;
	memcpy(query, before, sizeof(Query));
	if (goes_to_table(query))
		return true;
	reason->text = "it writes through a view or a rule that cannot be said to a shard";
	reason->hint = "Write to the table itself, or let the view show all columns that have a default.";
	return false;
}

bool
tessera_modifies_view(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->cteList)
	{
		Query	   *cte = (Query *) lfirst_node(CommonTableExpr, cell)->ctequery;

		if (IsA(cte, Query) && tessera_modifies_view(cte))
			return true;
	}
	return modifies(query) && is_view_entry(query, rt_fetch(query->resultRelation, query->rtable));
}
