/*
 * join_entry.c
 *	  Range table entries of joins; see join_entry.h.
 */
#include "postgres.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"

#include "common/join_entry.h"

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
