/*
 * query_text.c
 *	  SQL text of a query that is to be parsed again; see query_text.h.
 *
 * Core prints columns of a query of one relation without its name. In ORDER BY and DISTINCT ON a bare name means the output column of that name
 * first: SELECT -n AS n FROM t ORDER BY t.n would read ORDER BY n, which sorts by -n. Core itself has no such queries: what it prints of views has
 * more relations. So one more is added where an output column has the name of another column; it is in no FROM.
 *
 * Nor does core print a coercion to a domain that nobody has written, as the result of an SQL function that was put in place has it. What a SELECT
 * returns is taken for values of the types that it has here (rows/stored_value.h): so the check must be made there.
 *
 * Nor does it print the schemas of operators where SQL has no place for them: operator_names.h.
 */
#include "postgres.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/ruleutils.h"

#include "common/operator_names.h"
#include "common/query_text.h"

/* True if the one relation has a column of that name. */
static bool
has_column(const RangeTblEntry *rte, const char *name)
{
	ListCell   *cell;

	if (rte->rtekind == RTE_RELATION && get_attnum(rte->relid, name) != InvalidAttrNumber)
		return true;
	foreach(cell, rte->eref->colnames)
		if (strcmp(strVal(lfirst(cell)), name) == 0)
			return true;
	return false;
}

static bool
is_column(RangeTblEntry *rte, const TargetEntry *entry)
{
	const Var  *var = (const Var *) entry->expr;

	return IsA(var, Var) && var->varno == 1 && var->varlevelsup == 0 && var->varattno > 0 &&
		strcmp(get_rte_attribute_name(rte, var->varattno), entry->resname) == 0;
}

/* True if a bare name in ORDER BY or DISTINCT ON could mean an output column instead of a column. */
static bool
needs_prefixes(const Query *query)
{
	ListCell   *cell;

	if (query->commandType != CMD_SELECT || list_length(query->rtable) != 1 || (query->sortClause == NIL && query->distinctClause == NIL))
		return false;
	foreach(cell, query->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (!entry->resjunk && entry->resname != NULL && has_column(linitial(query->rtable), entry->resname) &&
			!is_column(linitial(query->rtable), entry))
			return true;
	}
	return false;
}

static bool show_domains(Node *node, void *context);

static bool
show_domains_of_selects(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (!IsA(node, Query))
		return expression_tree_walker(node, show_domains_of_selects, context);
	return query_tree_walker((Query *) node, ((Query *) node)->commandType == CMD_SELECT ? show_domains : show_domains_of_selects, context, 0);
}

/* Every coercion to a domain is printed. Not in what is assigned to columns, which core prints by its form, and where the column has the check. */
static bool
show_domains(Node *node, void *context)
{
	if (node == NULL || IsA(node, Query))
		return show_domains_of_selects(node, context);
	if (IsA(node, CoerceToDomain))
		((CoerceToDomain *) node)->coercionformat = COERCE_EXPLICIT_CAST;
	return expression_tree_walker(node, show_domains, context);
}

char *
tessera_query_text(Query *query)
{
	List	   *relations;
	RangeTblEntry *other;
	char	   *text;

	query = tessera_name_operators(query);
	relations = query->rtable;
	(void) show_domains_of_selects((Node *) query, NULL);
	if (!needs_prefixes(query))
		return pg_get_querydef(query, false);
	other = makeNode(RangeTblEntry);
	other->rtekind = RTE_RESULT;
	other->eref = makeAlias("*RESULT*", NIL);
	query->rtable = lappend(list_copy(relations), other);
	text = pg_get_querydef(query, false);
	query->rtable = relations;
	return text;
}
