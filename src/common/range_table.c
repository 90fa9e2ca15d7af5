/*
 * range_table.c
 *	  Parts of queries that are made here; see range_table.h.
 */
#include "postgres.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"

#include "common/range_table.h"

RangeTblRef *
tessera_reference_to(int rtindex)
{
	RangeTblRef *reference = makeNode(RangeTblRef);

	reference->rtindex = rtindex;
	return reference;
}

RangeTblEntry *
tessera_subquery_entry(Query *subquery, const char *name, List *columns)
{
	RangeTblEntry *rte = makeNode(RangeTblEntry);

	rte->rtekind = RTE_SUBQUERY;
	rte->subquery = subquery;
	rte->eref = makeAlias(name, columns);
	rte->inFromCl = true;
	return rte;
}

Query *
tessera_select_from(RangeTblEntry *rows)
{
	Query	   *select = makeNode(Query);

	select->commandType = CMD_SELECT;
	select->canSetTag = true;
	select->rtable = list_make1(rows);
	select->jointree = makeFromExpr(list_make1(tessera_reference_to(1)), NULL);
	return select;
}

Query *
tessera_select_around(Query *query, const char *name)
{
	RangeTblEntry *rows = tessera_subquery_entry(query, name, NIL);
	Query	   *select = tessera_select_from(rows);
	ListCell   *cell;

	foreach(cell, query->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (entry->resjunk)
			continue;
		rows->eref->colnames = lappend(rows->eref->colnames, makeString(psprintf("c%d", entry->resno)));
		select->targetList = lappend(select->targetList,
									 makeTargetEntry((Expr *) makeVarFromTargetEntry(1, entry), entry->resno, entry->resname, false));
	}
	rows->alias = copyObject(rows->eref);
	return select;
}

/* Adds the columns of a side. Returns their numbers there. */
static List *
add_columns(RangeTblEntry *join, const Query *query, Node *side)
{
	Index		rti = IsA(side, RangeTblRef) ? ((RangeTblRef *) side)->rtindex : ((JoinExpr *) side)->rtindex;
	List	   *attributes = NIL;
	List	   *names;
	List	   *columns;
	ListCell   *cell;

	expandRTE(rt_fetch(rti, query->rtable), rti, 0, -1, true, &names, &columns);
	foreach(cell, columns)
	{
		Node	   *column = lfirst(cell);
		AttrNumber	attribute = foreach_current_index(cell) + 1;

		if (!IsA(column, Var))
			continue;			/* a dropped one */
		join->joinaliasvars = lappend(join->joinaliasvars,
									  makeVar(rti, attribute, exprType(column), exprTypmod(column), exprCollation(column), 0));
		join->eref->colnames = lappend(join->eref->colnames, list_nth(names, attribute - 1));
		attributes = lappend_int(attributes, attribute);
	}
	return attributes;
}

void
tessera_set_join_columns(RangeTblEntry *join, const Query *query, Node *left, Node *right)
{
	join->eref = makeAlias(join->eref->aliasname, NIL);
	join->joinaliasvars = NIL;
	join->joinmergedcols = 0;
	join->joinleftcols = add_columns(join, query, left);
	join->joinrightcols = add_columns(join, query, right);
}
