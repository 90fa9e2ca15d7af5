/*
 * read_columns.c
 *	  Which columns of an entry of its range table a query reads; see read_columns.h.
 *
 * A subquery in FROM, as a view is one, names more columns than who selects from it reads. Of those that nothing reads, and that decide nothing in
 * the subquery either, core's planner computes none.
 *
 * Nothing is kept.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"

#include "planner/read_columns.h"

typedef struct ReadContext
{
	Query	   *query;
	Index		rti;
	const List *unread;
	int			level;			/* of queries below that one */
	TesseraReadColumns read;
} ReadContext;

static bool read_walker(Node *node, ReadContext *context);

static void
read_column(Var *var, ReadContext *context)
{
	RangeTblEntry *rte = rt_fetch(var->varno, context->query->rtable);
	TesseraReadColumns *read = &context->read;
	int			level = context->level;

	if (var->varno == context->rti && var->varattno > 0)
		read->columns = bms_add_member(read->columns, var->varattno);
	else if (var->varno == context->rti && var->varattno == 0)
		read->whole = true;
	else if (var->varno == context->rti)
		read->system = bms_add_member(read->system, var->varattno - FirstLowInvalidHeapAttributeNumber);
	else if (rte->rtekind == RTE_JOIN)
	{
		context->level = 0;
		(void) read_walker(var->varattno > 0 ? list_nth(rte->joinaliasvars, var->varattno - 1) : (Node *) rte->joinaliasvars, context);
		context->level = level;
	}
}

static bool
read_walker(Node *node, ReadContext *context)
{
	if (node == NULL || (IsA(node, TargetEntry) && list_member_ptr(context->unread, node)))
		return false;
	if (IsA(node, Var))
	{
		if ((int) ((Var *) node)->varlevelsup == context->level)
			read_column((Var *) node, context);
		return false;
	}
	if (IsA(node, Query))
	{
		context->level++;
		(void) query_tree_walker((Query *) node, read_walker, context, QTW_IGNORE_JOINALIASES);
		context->level--;
		return false;
	}
	return expression_tree_walker(node, read_walker, context);
}

TesseraReadColumns
tessera_read_columns(Query *query, Node *more, Index rti, const List *unread)
{
	ReadContext context = {.query = query,.rti = rti,.unread = unread};

	(void) query_tree_walker(query, read_walker, &context, QTW_IGNORE_JOINALIASES);
	(void) read_walker(more, &context);
	return context.read;
}

bool
tessera_reads_row_version(Query *query, Node *more, Index rti, const List *unread)
{
	static const AttrNumber columns[] = {MinTransactionIdAttributeNumber, MaxTransactionIdAttributeNumber, MinCommandIdAttributeNumber,
	MaxCommandIdAttributeNumber};
	TesseraReadColumns read = tessera_read_columns(query, more, rti, unread);

	for (int i = 0; i < lengthof(columns); i++)
		if (bms_is_member(columns[i] - FirstLowInvalidHeapAttributeNumber, read.system))
			return true;
	return false;
}

/* Of the subquery's columns; its own subqueries are looked at after it. */
static void
add_unread(Query *query, Index rti, Query *subquery, List **unread)
{
	TesseraReadColumns read;
	ListCell   *cell;

	if (query->setOperations || subquery->setOperations || subquery->distinctClause || subquery->commandType != CMD_SELECT)
		return;
	read = tessera_read_columns(query, NULL, rti, *unread);
	foreach(cell, read.whole ? NIL : subquery->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (!entry->resjunk && entry->ressortgroupref == 0 && !bms_is_member(entry->resno, read.columns) &&
			!contain_volatile_functions((Node *) entry->expr) && !expression_returns_set((Node *) entry->expr))
			*unread = lappend(*unread, entry);
	}
}

/* A query is looked at before those in it, as what is unread of it reads nothing of them. */
static bool
unread_walker(Node *node, List **unread)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		Query	   *query = (Query *) node;
		ListCell   *cell;

		foreach(cell, query->rtable)
			if (lfirst_node(RangeTblEntry, cell)->rtekind == RTE_SUBQUERY)
				add_unread(query, foreach_current_index(cell) + 1, lfirst_node(RangeTblEntry, cell)->subquery, unread);
		return query_tree_walker(query, unread_walker, unread, QTW_IGNORE_JOINALIASES);
	}
	return expression_tree_walker(node, unread_walker, unread);
}

List *
tessera_unread_outputs(Query *statement)
{
	List	   *unread = NIL;

	(void) unread_walker((Node *) statement, &unread);
	return unread;
}
