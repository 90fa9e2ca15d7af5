/*
 * limited_locks.c
 *	  FOR UPDATE, SHARE and their like with LIMIT over the rows of several shards.
 *
 * A scan of a table locks by its remote text, all rows that it finds; core's LockRows above it has nothing to do. With LIMIT n one server locks n
 * rows (and those of OFFSET), and the other workers of a queue find the rest. So such a level of a query
 *
 *		SELECT targets FROM t WHERE conditions ORDER BY ... LIMIT n FOR UPDATE
 *
 * is written as
 *
 *		SELECT l.* FROM (first candidates UNION ALL the others) c,
 *			LATERAL (SELECT targets FROM t WHERE conditions AND primary key = c's FOR UPDATE) l LIMIT n
 *
 * which can only be run as a nested loop over c: candidates come in order without a lock, then each is locked where it lives, under the statement's
 * snapshot there, so that core's own recheck leaves out what does not fit any more. Candidates are
 *
 *		SELECT primary key FROM t WHERE conditions ORDER BY ..., primary key
 *
 * the first ones with a limit, which shards know, the others with OFFSET: they are asked for when the first ones were not enough. The order is a
 * total one, so that both are parts of one list.
 *
 * Not for several tables, tables with policies for the user or that others inherit from, without a primary key that he may read, views that are
 * written out, a query with a WITH of its own, cursors of DECLARE (which CURRENT OF may name), system columns, WITH TIES, and what would run twice
 * otherwise than once: volatile functions and subqueries that lock. There the scan locks all it finds.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/tlist.h"
#include "parser/parse_clause.h"
#include "parser/parse_oper.h"
#include "rewrite/rewriteManip.h"
#include "utils/acl.h"
#include "utils/rel.h"
#include "utils/typcache.h"

#include "common/range_table.h"
#include "common/version_compat.h"
#include "planner/limited_locks.h"

#define SPARE_FIRST 200			/* candidates that others may have locked */
#define MOST_FIRST 100000

/* True if the table has a primary key whose values can be compared, and who reads the table may read them. */
static bool
has_usable_key(const Query *query, RangeTblEntry *rte)
{
	Relation	rel = table_open(rte->relid, NoLock);
	Bitmapset  *columns = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	const TesseraPermissions *permissions = tessera_permissions(query, rte);
	Oid			user = permissions && OidIsValid(permissions->checkAsUser) ? permissions->checkAsUser : GetUserId();
	bool		result = columns != NULL;
	int			column = -1;

	while (result && (column = bms_next_member(columns, column)) >= 0)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), column + FirstLowInvalidHeapAttributeNumber - 1);

		result = OidIsValid(lookup_type_cache(att->atttypid, TYPECACHE_EQ_OPR)->eq_opr) &&
			((permissions && bms_is_member(column, permissions->selectedCols)) ||
			 pg_class_aclcheck(rte->relid, user, ACL_SELECT) == ACLCHECK_OK ||
			 pg_attribute_aclcheck(rte->relid, att->attnum, user, ACL_SELECT) == ACLCHECK_OK);
	}
	table_close(rel, NoLock);
	return result;
}

/* True if the query locks rows, or one of its subqueries does. */
static bool
locks_rows(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
		return ((Query *) node)->rowMarks != NIL || query_tree_walker((Query *) node, locks_rows, context, 0);
	return expression_tree_walker(node, locks_rows, context);
}

/* True if the level names a system column: the table's row is not at hand where it would be named. */
static bool
names_system_column(Query *query)
{
	Bitmapset  *columns = NULL;

	pull_varattnos((Node *) query->targetList, 1, &columns);
	pull_varattnos(query->jointree->quals, 1, &columns);
	return columns != NULL && bms_next_member(columns, -1) + FirstLowInvalidHeapAttributeNumber < 0;
}

static bool
is_null(const Node *limit)
{
	return limit == NULL || (IsA(limit, Const) && ((const Const *) limit)->constisnull);
}

/* True if the level locks rows of one table of the cluster, up to a limit, and can be written in two. */
static bool
locks_up_to_limit(Query *query, const TesseraRouting *routing)
{
	RangeTblEntry *rte;

	if (query->rowMarks == NIL || is_null(query->limitCount) || query->limitOption != LIMIT_OPTION_COUNT || list_length(query->rtable) != 1 ||
		list_length(query->jointree->fromlist) != 1 || query->cteList != NIL || query->hasTargetSRFs)
		return false;
	rte = linitial_node(RangeTblEntry, query->rtable);
	if (rte->rtekind != RTE_RELATION || tessera_routing_table(routing, rte->relid) == NULL || rte->securityQuals != NIL)
		return false;
	/* what is unique in a table is not in those that inherit from it */
	if (rte->inh && rte->relkind == RELKIND_RELATION && has_subclass(rte->relid))
		return false;
	return has_usable_key(query, rte) && !names_system_column(query) && !contain_volatile_functions((Node *) query) &&
		!locks_rows((Node *) query->targetList, NULL) && !locks_rows(query->jointree->quals, NULL);
}

/* The query so many levels further down: what it says about levels further up is as many further. */
static Query *
copy_below(const Query *query, int levels)
{
	Query	   *copy = copyObject(unconstify(Query *, query));

	IncrementVarSublevelsUp((Node *) copy, levels, 1);
	copy->limitCount = copy->limitOffset = NULL;
	return copy;
}

/* How many candidates are asked for at first: what is wanted, and some that others may have. */
static int64
first_candidates(const Query *query)
{
	int64		wanted = 0;
	Node	   *limits[] = {query->limitCount, query->limitOffset};

	for (int i = 0; i < lengthof(limits); i++)
	{
		Node	   *limit = limits[i] ? eval_const_expressions(NULL, copyObject(limits[i])) : NULL;

		if (limit != NULL && IsA(limit, Const) && !((Const *) limit)->constisnull)
			wanted += Min(Max(DatumGetInt64(((Const *) limit)->constvalue), 0), MOST_FIRST);
	}
	return Min(wanted * 2 + SPARE_FIRST, MOST_FIRST);
}

static Var *
column_of(const FormData_pg_attribute *att)
{
	return makeVar(1, att->attnum, att->atttypid, att->atttypmod, att->attcollation, 0);
}

/* Sorts by the column, after what the query sorts by already, unless that has it. */
static void
order_by(Query *query, TargetEntry *entry)
{
	SortGroupClause *clause = makeNode(SortGroupClause);
	ListCell   *cell;

	foreach(cell, query->sortClause)
		if (equal(get_sortgroupclause_expr(lfirst(cell), query->targetList), entry->expr))
			return;
	get_sort_group_operators(exprType((Node *) entry->expr), true, true, false, &clause->sortop, &clause->eqop, NULL, &clause->hashable);
	clause->tleSortGroupRef = entry->ressortgroupref = assignSortGroupRef(entry, query->targetList);
	query->sortClause = lappend(query->sortClause, clause);
}

/* The primary key of the rows that fit, in order, unlocked: the first ones, or those after them. */
static Query *
unlocked_candidates(const Query *query, Relation rel, bool first)
{
	Query	   *select = copy_below(query, 2);
	Bitmapset  *key = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	List	   *targets = NIL;
	int			column = -1;
	ListCell   *cell;
	Const	   *number = makeConst(INT8OID, -1, InvalidOid, sizeof(int64), Int64GetDatum(first_candidates(query)), false, FLOAT8PASSBYVAL);

	while ((column = bms_next_member(key, column)) >= 0)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), column + FirstLowInvalidHeapAttributeNumber - 1);

		targets = lappend(targets, makeTargetEntry((Expr *) column_of(att), list_length(targets) + 1, pstrdup(NameStr(att->attname)), false));
	}
	foreach(cell, select->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (entry->ressortgroupref == 0)
			continue;
		entry->resno = list_length(targets) + 1;
		entry->resjunk = true;
		targets = lappend(targets, entry);
	}
	select->targetList = targets;
	foreach(cell, targets)
		if (!lfirst_node(TargetEntry, cell)->resjunk)
			order_by(select, lfirst(cell));
	select->rowMarks = NIL;
	select->hasForUpdate = false;
	if (first)
		select->limitCount = (Node *) number;
	else
		select->limitOffset = (Node *) number;
	return select;
}

/* column = the candidate's, in the subquery beside it. */
static Expr *
equals_candidate(const FormData_pg_attribute *att, int resno)
{
	Oid			equal = lookup_type_cache(att->atttypid, TYPECACHE_EQ_OPR)->eq_opr;
	Var		   *candidate = makeVar(1, resno, att->atttypid, att->atttypmod, att->attcollation, 1);

	return make_opclause(equal, BOOLOID, false, (Expr *) column_of(att), (Expr *) candidate, InvalidOid, att->attcollation);
}

/* What is asked for, of the candidate, locked. */
static Query *
locked_row(const Query *query, const Query *candidates, Relation rel)
{
	Query	   *select = copy_below(query, 1);
	List	   *conditions = NIL;
	List	   *targets = NIL;
	ListCell   *cell;

	foreach(cell, candidates->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Var		   *column = (Var *) entry->expr;
		Form_pg_attribute att;

		if (entry->resjunk)
			break;
		att = TupleDescAttr(RelationGetDescr(rel), column->varattno - 1);
		conditions = lappend(conditions, equals_candidate(att, entry->resno));
	}
	if (select->jointree->quals != NULL)
		conditions = lappend(conditions, select->jointree->quals);
	select->jointree->quals = (Node *) make_ands_explicit(conditions);
	foreach(cell, select->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		entry->ressortgroupref = 0;
		if (!entry->resjunk)
			targets = lappend(targets, entry);
	}
	select->targetList = targets;
	select->sortClause = NIL;
	select->hasForUpdate = true;	/* also if that was said further up: core pulls no such subquery up */
	return select;
}

/* An entry whose columns have the names of the subquery's. */
static RangeTblEntry *
entry_of(Query *subquery, const char *name)
{
	List	   *columns = NIL;
	ListCell   *cell;

	foreach(cell, subquery->targetList)
		if (!lfirst_node(TargetEntry, cell)->resjunk)
			columns = lappend(columns, makeString(pstrdup(lfirst_node(TargetEntry, cell)->resname)));
	return tessera_subquery_entry(subquery, name, columns);
}

static Query *
union_all(Query *first, Query *others)
{
	Query	   *result = makeNode(Query);
	SetOperationStmt *operation = makeNode(SetOperationStmt);
	ListCell   *cell;

	result->commandType = CMD_SELECT;
	result->canSetTag = true;
	result->rtable = list_make2(entry_of(first, "first"), entry_of(others, "others"));
	result->jointree = makeFromExpr(NIL, NULL);
	operation->op = SETOP_UNION;
	operation->all = true;
	operation->larg = (Node *) tessera_reference_to(1);
	operation->rarg = (Node *) tessera_reference_to(2);
	foreach(cell, first->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Var		   *column;

		if (entry->resjunk)
			continue;
		column = makeVarFromTargetEntry(1, entry);
		operation->colTypes = lappend_oid(operation->colTypes, column->vartype);
		operation->colTypmods = lappend_int(operation->colTypmods, column->vartypmod);
		operation->colCollations = lappend_oid(operation->colCollations, column->varcollid);
		result->targetList = lappend(result->targetList, makeTargetEntry((Expr *) column, entry->resno, pstrdup(entry->resname), false));
	}
	result->setOperations = (Node *) operation;
	return result;
}

static Query *
lock_one_by_one(Query *query)
{
	Query	   *result = makeNode(Query);
	Relation	rel = table_open(linitial_node(RangeTblEntry, query->rtable)->relid, NoLock);
	Query	   *first = unlocked_candidates(query, rel, true);
	Query	   *locked = locked_row(query, first, rel);
	Query	   *candidates = union_all(first, unlocked_candidates(query, rel, false));
	ListCell   *cell;

	table_close(rel, NoLock);
	result->commandType = CMD_SELECT;
	result->querySource = query->querySource;
	result->queryId = query->queryId;
	result->canSetTag = query->canSetTag;
	result->stmt_location = query->stmt_location;
	result->stmt_len = query->stmt_len;
	result->limitCount = query->limitCount;
	result->limitOffset = query->limitOffset;
	result->limitOption = query->limitOption;
	result->hasSubLinks = query->hasSubLinks;	/* the limit may have some */
	result->rtable = list_make2(entry_of(candidates, "candidate"), entry_of(locked, "locked"));
	lsecond_node(RangeTblEntry, result->rtable)->lateral = true;
	result->jointree = makeFromExpr(list_make2(tessera_reference_to(1), tessera_reference_to(2)), NULL);
	foreach(cell, locked->targetList)
	{
		TargetEntry *entry = flatCopyTargetEntry(lfirst_node(TargetEntry, cell));

		entry->expr = (Expr *) makeVarFromTargetEntry(2, entry);
		result->targetList = lappend(result->targetList, entry);
	}
	return result;
}

static Node *
levels_mutator(Node *node, void *routing)
{
	Query	   *query;

	if (node == NULL)
		return NULL;
	if (!IsA(node, Query))
		return expression_tree_mutator(node, levels_mutator, routing);
	query = query_tree_mutator((Query *) node, levels_mutator, routing, 0);
	return (Node *) (locks_up_to_limit(query, routing) ? lock_one_by_one(query) : query);
}

static bool
levels_walker(Node *node, void *routing)
{
	if (node == NULL)
		return false;
	if (!IsA(node, Query))
		return expression_tree_walker(node, levels_walker, routing);
	return locks_up_to_limit((Query *) node, routing) || query_tree_walker((Query *) node, levels_walker, routing, 0);
}

Query *
tessera_lock_up_to_limit(Query *query, const TesseraRouting *routing)
{
	void	   *context = unconstify(TesseraRouting *, routing);

	return levels_walker((Node *) query, context) ? (Query *) levels_mutator((Node *) query, context) : query;
}
