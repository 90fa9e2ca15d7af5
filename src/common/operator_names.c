/*
 * operator_names.c
 *	  Forms in which hidden operators are written; see operator_names.h, doc/design.md#hidden-operators.
 *
 * Each form gives what core's executor gives, NULL where that does. An operand that it needs twice is written twice if it is small, has no subquery
 * and has one value each time. Others are compared as arrays of one element, where the operator is the one by which arrays compare their elements.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_oper.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "common/operator_names.h"
#include "common/range_table.h"

/* ---- which operators are hidden ---- */

/* True if the parser takes this operator for a name without a schema and operands of these types. */
static bool
is_found(const char *name, Oid left, Oid right, Oid operator)
{
	Operator	found = oper(NULL, list_make1(makeString(unconstify(char *, name))), left, right, true, -1);
	bool		same = HeapTupleIsValid(found) && oprid(found) == operator;

	if (HeapTupleIsValid(found))
		ReleaseSysCache(found);
	return same;
}

/* Type of an operand that is printed without the casts that nobody has written. */
static Oid
bare_type(Node *operand)
{
	return exprType(strip_implicit_coercions(operand));
}

/* The operator of CASE x WHEN y, for one y. NULL: it was planned into something else, which does not print. */
static OpExpr *
case_comparison(CaseWhen *when)
{
	OpExpr	   *comparison = (OpExpr *) when->expr;

	if (!IsA(comparison, OpExpr) || list_length(comparison->args) != 2 ||
		!IsA(strip_implicit_coercions(linitial(comparison->args)), CaseTestExpr))
		return NULL;
	return comparison;
}

static bool
hides_in_case(CaseExpr *expr)
{
	ListCell   *cell;

	foreach(cell, expr->arg ? expr->args : NIL)
	{
		OpExpr	   *comparison = case_comparison(lfirst_node(CaseWhen, cell));

		if (comparison == NULL || !is_found("=", exprType((Node *) expr->arg), bare_type(lsecond(comparison->args)), comparison->opno))
			return true;
	}
	return false;
}

static bool
hides_in_using(JoinExpr *join)
{
	ListCell   *cell;

	foreach(cell, join->usingClause ? make_ands_implicit((Expr *) join->quals) : NIL)
	{
		OpExpr	   *comparison = (OpExpr *) lfirst(cell);

		if (!IsA(comparison, OpExpr) ||
			!is_found("=", bare_type(linitial(comparison->args)), bare_type(lsecond(comparison->args)), comparison->opno))
			return true;
	}
	return false;
}

/* True if a name with the schema of the first operator means the other one, too: it takes just these types. */
static bool
shares_name(Oid first, Oid operator, Oid left, Oid right)
{
	HeapTuple	one = SearchSysCache1(OPEROID, ObjectIdGetDatum(first));
	HeapTuple	other = SearchSysCache1(OPEROID, ObjectIdGetDatum(operator));
	bool		shares = false;

	if (HeapTupleIsValid(one) && HeapTupleIsValid(other))
	{
		Form_pg_operator a = (Form_pg_operator) GETSTRUCT(one);
		Form_pg_operator b = (Form_pg_operator) GETSTRUCT(other);

		shares = a->oprnamespace == b->oprnamespace && strcmp(NameStr(a->oprname), NameStr(b->oprname)) == 0 &&
			b->oprleft == left && b->oprright == right;
	}
	if (HeapTupleIsValid(one))
		ReleaseSysCache(one);
	if (HeapTupleIsValid(other))
		ReleaseSysCache(other);
	return shares;
}

/*
 * Operators that are printed by the name of the first one, which has its schema if the path does not find it. bare: the right operands are the
 * columns of a subquery, without casts.
 */
static bool
hides_in_row(List *operators, List *left, List *right, bool bare)
{
	Oid			first = linitial_oid(operators);
	char	   *name = get_opname(first);
	bool		named = name == NULL || !is_found(name, exprType(linitial(left)), exprType(linitial(right)), first);

	for (int i = 0; i < list_length(operators); i++)
	{
		Oid			operator = list_nth_oid(operators, i);
		Oid			left_type = exprType(list_nth(left, i));
		Oid			right_type = bare ? bare_type(list_nth(right, i)) : exprType(list_nth(right, i));

		if (named ? i > 0 && !shares_name(first, operator, left_type, right_type) : !is_found(name, left_type, right_type, operator))
			return true;
	}
	return false;
}

static bool
hides_in_sublink(SubLink *link)
{
	List	   *operators = NIL;
	List	   *left = NIL;
	List	   *right = NIL;
	List	   *comparisons;
	ListCell   *cell;

	if (link->testexpr == NULL)
		return false;
	if (IsA(link->testexpr, RowCompareExpr))
	{
		RowCompareExpr *rows = (RowCompareExpr *) link->testexpr;

		return hides_in_row(rows->opnos, rows->largs, rows->rargs, true);
	}
	comparisons = IsA(link->testexpr, BoolExpr) ? ((BoolExpr *) link->testexpr)->args : list_make1(link->testexpr);
	foreach(cell, comparisons)
	{
		OpExpr	   *comparison = lfirst_node(OpExpr, cell);

		operators = lappend_oid(operators, comparison->opno);
		left = lappend(left, linitial(comparison->args));
		right = lappend(right, lsecond(comparison->args));
	}
	return hides_in_row(operators, left, right, true);
}

bool
tessera_hides_operator(Node *node)
{
	switch (nodeTag(node))
	{
		case T_DistinctExpr:
		case T_NullIfExpr:
			{
				OpExpr	   *expr = (OpExpr *) node;

				return !is_found("=", exprType(linitial(expr->args)), exprType(lsecond(expr->args)), expr->opno);
			}
		case T_CaseExpr:
			return hides_in_case((CaseExpr *) node);
		case T_RowCompareExpr:
			{
				RowCompareExpr *rows = (RowCompareExpr *) node;

				return hides_in_row(rows->opnos, rows->largs, rows->rargs, false);
			}
		case T_SubLink:
			return hides_in_sublink((SubLink *) node);
		case T_JoinExpr:
			return hides_in_using((JoinExpr *) node);
		default:
			return false;
	}
}

static bool
hides_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (tessera_hides_operator(node))
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, hides_walker, context, 0);
	return expression_tree_walker(node, hides_walker, context);
}

/* ---- operands ---- */

/* What is written again at most, in nodes. Relabelling does not count: a constant that becomes a parameter gets it. */
#define SMALL 32

static bool
is_large(Node *node, int *size)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubLink) || IsA(node, Query) || (!IsA(node, RelabelType) && ++*size > SMALL))
		return true;
	return expression_tree_walker(node, is_large, size);
}

static bool
may_repeat(Node *operand)
{
	int			size = 0;

	return !is_large(operand, &size) && !contain_volatile_functions(operand) && !expression_returns_set(operand);
}

/* Type of the arrays that compare their elements by the operator of the expression; InvalidOid: there is none. */
static Oid
array_type(const OpExpr *expr)
{
	Oid			type = exprType(linitial(expr->args));

	/* in ARRAY[...] an array is not an element */
	if (exprType(lsecond(expr->args)) != type || OidIsValid(get_element_type(getBaseType(type))) ||
		lookup_type_cache(type, TYPECACHE_EQ_OPR)->eq_opr != expr->opno)
		return InvalidOid;
	return get_array_type(type);
}

static Expr *
in_array(Node *value, Oid type)
{
	ArrayExpr  *array = makeNode(ArrayExpr);

	array->array_typeid = type;
	array->array_collid = exprCollation(value);
	array->element_typeid = exprType(value);
	array->elements = list_make1(value);
	array->location = -1;
	return (Expr *) array;
}

/* array_remove(ARRAY[value], removed): no element is left if the two are equal, or both NULL. */
static Expr *
unless_equal(Node *value, Node *removed, Oid type, Oid collation)
{
	return (Expr *) makeFuncExpr(F_ARRAY_REMOVE, type, list_make2(in_array(value, type), removed), exprCollation(value), collation,
								 COERCE_EXPLICIT_CALL);
}

static Expr *
comparison_of(const OpExpr *expr)
{
	return make_opclause(expr->opno, BOOLOID, false, linitial(expr->args), lsecond(expr->args), InvalidOid, expr->inputcollid);
}

static Expr *
null_test(Node *operand, NullTestType type)
{
	NullTest   *test = makeNode(NullTest);

	test->arg = (Expr *) operand;
	test->nulltesttype = type;
	test->location = -1;
	return (Expr *) test;
}

static CaseWhen *
when(Expr *condition, Expr *result)
{
	CaseWhen   *when = makeNode(CaseWhen);

	when->expr = condition;
	when->result = result;
	when->location = -1;
	return when;
}

static CaseExpr *
case_of(Oid type, Oid collation, List *whens, Expr *otherwise)
{
	CaseExpr   *expr = makeNode(CaseExpr);

	expr->casetype = type;
	expr->casecollid = collation;
	expr->args = whens;
	expr->defresult = otherwise;
	expr->location = -1;
	return expr;
}

/* ---- the forms; NULL: there is none ---- */

/* CASE WHEN a IS NULL THEN b IS NOT NULL WHEN b IS NULL THEN true ELSE NOT a = b END, or NOT ARRAY[a] = ARRAY[b]: NULLs are equal there. */
static Node *
name_distinct(const OpExpr *expr)
{
	Node	   *left = linitial(expr->args);
	Node	   *right = lsecond(expr->args);
	Oid			type = array_type(expr);

	if (may_repeat(left) && may_repeat(right))
		return (Node *) case_of(BOOLOID, InvalidOid,
								list_make2(when(null_test(left, IS_NULL), null_test(right, IS_NOT_NULL)),
										   when(null_test(right, IS_NULL), (Expr *) makeBoolConst(true, false))),
								makeBoolExpr(NOT_EXPR, list_make1(comparison_of(expr)), -1));
	if (!OidIsValid(type))
		return NULL;
	return (Node *) makeBoolExpr(NOT_EXPR, list_make1(make_opclause(ARRAY_EQ_OP, BOOLOID, false, in_array(left, type), in_array(right, type),
																	 InvalidOid, expr->inputcollid)), -1);
}

/* CASE WHEN a = b THEN NULL ELSE a END, or (array_remove(ARRAY[a], b))[1]. */
static Node *
name_nullif(const OpExpr *expr)
{
	Node	   *left = linitial(expr->args);
	Oid			type = array_type(expr);
	Node	   *result;

	/* CASE has no place for sets */
	if (may_repeat(left) && op_strict(expr->opno) && !expression_returns_set(lsecond(expr->args)))
		result = (Node *) case_of(exprType(left), exprCollation(left),
								  list_make1(when(comparison_of(expr),
												  (Expr *) makeNullConst(exprType(left), exprTypmod(left), exprCollation(left)))),
								  (Expr *) left);
	else if (OidIsValid(type))
	{
		SubscriptingRef *element = makeNode(SubscriptingRef);

		element->refcontainertype = type;
		element->refelemtype = element->refrestype = exprType(left);
		element->reftypmod = exprTypmod(left);
		element->refcollid = exprCollation(left);
		element->refupperindexpr = list_make1(makeConst(INT4OID, -1, InvalidOid, sizeof(int32), Int32GetDatum(1), false, true));
		element->refexpr = unless_equal(left, lsecond(expr->args), type, expr->inputcollid);
		result = (Node *) element;
	}
	else
		return NULL;
	if (OidIsValid(expr->opcollid) && expr->opcollid != exprCollation(result))
	{
		/* that of the other operand counts, too */
		CollateExpr *collate = makeNode(CollateExpr);

		collate->arg = (Expr *) result;
		collate->collOid = expr->opcollid;
		collate->location = -1;
		result = (Node *) collate;
	}
	return result;
}

/* The operator with an operand in the place of the CaseTestExpr, which has nothing above it but casts that nobody has written. */
static OpExpr *
with_operand(const OpExpr *comparison, Expr *operand)
{
	OpExpr	   *result = copyObject((OpExpr *) comparison);
	Node	  **place = (Node **) &linitial(result->args);

	while (!IsA(*place, CaseTestExpr))
		switch (nodeTag(*place))
		{
			case T_FuncExpr:
				place = (Node **) &linitial(((FuncExpr *) *place)->args);
				break;
			case T_RelabelType:
				place = (Node **) &((RelabelType *) *place)->arg;
				break;
			case T_CoerceViaIO:
				place = (Node **) &((CoerceViaIO *) *place)->arg;
				break;
			case T_ArrayCoerceExpr:
				place = (Node **) &((ArrayCoerceExpr *) *place)->arg;
				break;
			case T_ConvertRowtypeExpr:
				place = (Node **) &((ConvertRowtypeExpr *) *place)->arg;
				break;
			case T_CoerceToDomain:
				place = (Node **) &((CoerceToDomain *) *place)->arg;
				break;
			default:
				ereport(ERROR,
						(errcode(ERRCODE_INTERNAL_ERROR),
						 errmsg_internal("unexpected cast of the operand of CASE: node type %d", (int) nodeTag(*place))));
		}
	*place = (Node *) operand;
	return result;
}

/*
 * CASE WHEN x = y THEN ... END, or CASE array_remove(ARRAY[x], NULL) WHEN ARRAY[y] THEN ... END, where the array has an element that equals no NULL,
 * or none.
 */
static Node *
name_case(CaseExpr *expr)
{
	Node	   *operand = (Node *) expr->arg;
	bool		repeats = list_length(expr->args) == 1 || may_repeat(operand);
	Oid			array = InvalidOid;
	List	   *whens = NIL;
	CaseExpr   *result;
	ListCell   *cell;

	foreach(cell, expr->args)
	{
		CaseWhen   *old = lfirst_node(CaseWhen, cell);
		OpExpr	   *comparison = case_comparison(old);

		if (comparison == NULL)
			return NULL;
		if (!repeats)
		{
			CaseTestExpr *test = makeNode(CaseTestExpr);
			Oid			type = array_type(comparison);

			if (!OidIsValid(type) || !IsA(linitial(comparison->args), CaseTestExpr) || !is_found("=", type, type, ARRAY_EQ_OP))
				return NULL;
			array = type;
			test->typeId = type;
			test->typeMod = -1;
			test->collation = exprCollation(operand);
			comparison = (OpExpr *) make_opclause(ARRAY_EQ_OP, BOOLOID, false, (Expr *) test, in_array(lsecond(comparison->args), type),
												  InvalidOid, comparison->inputcollid);
		}
		else
			comparison = with_operand(comparison, (Expr *) operand);
		whens = lappend(whens, when((Expr *) comparison, old->result));
	}
	result = case_of(expr->casetype, expr->casecollid, whens, expr->defresult);
	if (!repeats)
		result->arg = unless_equal(operand, (Node *) makeNullConst(exprType(operand), -1, exprCollation(operand)), array, exprCollation(operand));
	return (Node *) result;
}

/*
 * CASE WHEN a1 = b1 THEN CASE WHEN a2 = b2 THEN a3 <= b3 ELSE a2 < b2 END ELSE a1 < b1 END: the first pair that is not equal decides, it is NULL if
 * that has a NULL, and no pair behind it is computed.
 */
static Node *
name_row_comparison(const RowCompareExpr *rows)
{
	int			last = list_length(rows->opnos) - 1;
	Expr	   *result = NULL;

	for (int i = last; i >= 0; i--)
	{
		Oid			operator = list_nth_oid(rows->opnos, i);
		Oid			family = list_nth_oid(rows->opfamilies, i);
		Oid			collation = list_nth_oid(rows->inputcollids, i);
		Expr	   *left = list_nth(rows->largs, i);
		Expr	   *right = list_nth(rows->rargs, i);
		Expr	   *equals = NULL;
		Expr	   *decides;
		bool		less = rows->rctype == ROWCOMPARE_LT || rows->rctype == ROWCOMPARE_LE;
		int			strategy;
		Oid			left_type;
		Oid			right_type;
		Oid			equal;

		if (i < last)
		{
			get_op_opfamily_properties(operator, family, false, &strategy, &left_type, &right_type);
			operator = get_opfamily_member(family, left_type, right_type, less ? BTLessStrategyNumber : BTGreaterStrategyNumber);
			equal = get_opfamily_member(family, left_type, right_type, BTEqualStrategyNumber);
			if (!OidIsValid(operator) || !OidIsValid(equal) || !may_repeat((Node *) left) || !may_repeat((Node *) right))
				return NULL;
			equals = make_opclause(equal, BOOLOID, false, left, right, InvalidOid, collation);
		}
		decides = make_opclause(operator, BOOLOID, false, left, right, InvalidOid, collation);
		result = equals == NULL ? decides : (Expr *) case_of(BOOLOID, InvalidOid, list_make1(when(equals, result)), decides);
	}
	return (Node *) result;
}

/* ---- comparisons with the rows of a subquery ---- */

/* In the place of a Param for a column of the subquery, that column of the query's only entry. Everything else is around the query. */
static Node *
columns_mutator(Node *node, void *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_SUBLINK)
	{
		Param	   *column = (Param *) node;

		return (Node *) makeVar(1, column->paramid, column->paramtype, column->paramtypmod, column->paramcollid, 0);
	}
	return expression_tree_mutator(node, columns_mutator, context);
}

/* True if the operand of such a comparison may be computed in another query, which is below its own. */
static bool
may_descend(List *operands)
{
	ListCell   *cell;

	foreach(cell, operands)
		if (!may_repeat(lfirst(cell)) || contain_aggs_of_level(lfirst(cell), 0) || contain_windowfuncs(lfirst(cell)))
			return false;
	return true;
}

/* What stands to the left of such a comparison. */
static List *
left_operands(Node *comparison)
{
	List	   *operands = NIL;
	ListCell   *cell;

	if (IsA(comparison, RowCompareExpr))
		return ((RowCompareExpr *) comparison)->largs;
	foreach(cell, IsA(comparison, BoolExpr) ? ((BoolExpr *) comparison)->args : list_make1(comparison))
		operands = lappend(operands, linitial(lfirst_node(OpExpr, cell)->args));
	return operands;
}

/*
 * (a, b) = ANY (SELECT c, d ...) as true = ANY (SELECT a = c AND b = d FROM (SELECT c, d ...) s); with a subquery of one row, the SELECT alone.
 * filters: that it does not hold and that it is NULL is the same. Where the planner would join the subquery's rows then, it does so with
 * EXISTS (SELECT FROM (SELECT c, d ...) s WHERE a = c AND b = d), too.
 */
static Node *
name_sublink(SubLink *link, bool filters)
{
	Node	   *comparison = copyObject(link->testexpr);
	List	   *operands = left_operands(comparison);
	bool		joins = filters && link->subLinkType == ANY_SUBLINK && !contain_vars_of_level(link->subselect, 1);
	Node	   *subselect;
	Query	   *around;

	if (IsA(comparison, RowCompareExpr))
		comparison = name_row_comparison((RowCompareExpr *) comparison);
	if (comparison == NULL || !may_descend(operands))
		return NULL;
	/* an operand that was written twice is one node in both places, whose level would be raised twice */
	comparison = copyObject(comparison);
	subselect = copyObject(link->subselect);
	IncrementVarSublevelsUp(comparison, 1, 0);
	IncrementVarSublevelsUp(subselect, 1, 1);
	comparison = columns_mutator(comparison, NULL);
	around = tessera_select_around((Query *) subselect, "s");
	around->targetList = joins ? NIL : list_make1(makeTargetEntry((Expr *) comparison, 1, pstrdup("holds"), false));
	around->jointree->quals = joins ? comparison : NULL;
	link->subselect = (Node *) around;
	link->operName = NIL;
	link->testexpr = NULL;
	if (joins)
		link->subLinkType = EXISTS_SUBLINK;
	else if (link->subLinkType == ROWCOMPARE_SUBLINK)
		link->subLinkType = EXPR_SUBLINK;
	else
	{
		Param	   *holds = makeNode(Param);

		holds->paramkind = PARAM_SUBLINK;
		holds->paramid = 1;
		holds->paramtype = BOOLOID;
		holds->paramtypmod = -1;
		holds->location = -1;
		link->testexpr = (Node *) make_opclause(BooleanEqualOperator, BOOLOID, false, (Expr *) makeBoolConst(true, false), (Expr *) holds,
												InvalidOid, InvalidOid);
	}
	return (Node *) link;
}

/* Comparisons of a query with rows of subqueries of which only matters whether they hold: its conditions, and those of its joins. */
static void
collect_filters(Node *node, List **filters)
{
	ListCell   *cell;

	if (node == NULL)
		return;
	if (IsA(node, FromExpr))
	{
		foreach(cell, ((FromExpr *) node)->fromlist)
			collect_filters(lfirst(cell), filters);
		collect_filters(((FromExpr *) node)->quals, filters);
	}
	else if (IsA(node, JoinExpr))
	{
		collect_filters(((JoinExpr *) node)->larg, filters);
		collect_filters(((JoinExpr *) node)->rarg, filters);
		collect_filters(((JoinExpr *) node)->quals, filters);
	}
	else if (is_andclause(node))
		foreach(cell, ((BoolExpr *) node)->args)
			collect_filters(lfirst(cell), filters);
	else if (IsA(node, SubLink))
		*filters = lappend(*filters, node);
}

/* True if a subquery may name what the query groups by: the parser finds there columns alone, not other expressions, as merged columns may be. */
static bool
is_column(const Query *query, const Node *node)
{
	while (IsA(node, Var) && rt_fetch(((Var *) node)->varno, query->rtable)->rtekind == RTE_JOIN)
		node = list_nth(rt_fetch(((Var *) node)->varno, query->rtable)->joinaliasvars, ((Var *) node)->varattno - 1);
	return IsA(node, Var);
}

static bool
has_member(Node *node, List *expressions)
{
	return node != NULL && (list_member(expressions, node) || expression_tree_walker(node, has_member, expressions));
}

static bool
moves_walker(Node *node, List *grouped)
{
	if (node == NULL || IsA(node, Query))
		return false;
	if (IsA(node, SubLink) && hides_in_sublink((SubLink *) node) && has_member((Node *) left_operands(((SubLink *) node)->testexpr), grouped))
		return true;
	return expression_tree_walker(node, moves_walker, grouped);
}

/* True if an expression by which the query groups would be put into a subquery of its output. */
static bool
moves_grouped(const Query *query)
{
	List	   *grouped = NIL;
	ListCell   *cell;

	foreach(cell, query->groupClause)
	{
		Node	   *expression = get_sortgroupclause_expr(lfirst(cell), query->targetList);

		if (!is_column(query, expression))
			grouped = lappend(grouped, expression);
	}
	return grouped != NIL && (moves_walker((Node *) query->targetList, grouped) || moves_walker(query->havingQual, grouped));
}

/* ---- JOIN ... USING ---- */

typedef struct JoinContext
{
	Query	   *query;
	Bitmapset  *joins;			/* their entries */
	Index		level;			/* of the query, seen from the expression */
	bool		named;			/* one of them has an alias, whose columns would not be the same */
} JoinContext;

/* Joins with USING, and those above them, whose columns are counted by theirs. */
static bool
collect_joins(Node *node, JoinContext *context)
{
	JoinExpr   *join = (JoinExpr *) node;
	bool		left;
	bool		right;

	/* what has an alias is taken for a table if it can be */
	if (!IsA(node, JoinExpr) || (join->alias && !hides_walker(node, NULL)))
		return false;
	left = collect_joins(join->larg, context);
	right = collect_joins(join->rarg, context);
	if (!left && !right && join->usingClause == NIL)
		return false;
	context->joins = bms_add_member(context->joins, join->rtindex);
	context->named |= join->alias != NULL;
	return true;
}

/* A merged column that is neither side's is a column of the join; it becomes the expression for it. */
static Node *
resolve_merged(Node *node, JoinContext *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Var) && ((Var *) node)->varlevelsup == context->level && bms_is_member(((Var *) node)->varno, context->joins))
	{
		RangeTblEntry *join = rt_fetch(((Var *) node)->varno, context->query->rtable);
		Node	   *merged = copyObject(list_nth(join->joinaliasvars, ((Var *) node)->varattno - 1));

		IncrementVarSublevelsUp(merged, context->level, 0);
		return resolve_merged(merged, context);
	}
	if (IsA(node, Query))
	{
		Query	   *query;

		context->level++;
		query = query_tree_mutator((Query *) node, resolve_merged, context, 0);
		context->level--;
		return (Node *) query;
	}
	return expression_tree_mutator(node, resolve_merged, context);
}

/* Each join behind those of its sides. */
static void
write_conditions(Node *node, const JoinContext *context)
{
	JoinExpr   *join = (JoinExpr *) node;

	if (!IsA(node, JoinExpr) || !bms_is_member(join->rtindex, context->joins))
		return;
	write_conditions(join->larg, context);
	write_conditions(join->rarg, context);
	join->isNatural = false;
	join->usingClause = NIL;
	join->join_using_alias = NULL;
	tessera_set_join_columns(rt_fetch(join->rtindex, context->query->rtable), context->query, join->larg, join->rarg);
}

/* Joins of a private copy of a query: ON instead of USING. */
static bool
name_joins(Query *query)
{
	JoinContext context = {.query = query};
	ListCell   *cell;

	foreach(cell, query->jointree ? query->jointree->fromlist : NIL)
		if (hides_walker(lfirst(cell), NULL))
			(void) collect_joins(lfirst(cell), &context);
	if (context.joins == NULL)
		return true;
	if (context.named)
		return false;
	(void) query_tree_mutator(query, resolve_merged, &context, QTW_DONT_COPY_QUERY | QTW_IGNORE_JOINALIASES);
	foreach(cell, query->jointree->fromlist)
		write_conditions(lfirst(cell), &context);
	return true;
}

/* ---- the tree ---- */

typedef struct NameContext
{
	List	   *filters;		/* of the query: collect_filters */
	bool		failed;			/* something cannot be written */
} NameContext;

static Node *name_mutator(Node *node, NameContext *context);

static Node *
name_in_query(Query *query, NameContext *context)
{
	List	   *before = context->filters;
	bool		moves = moves_grouped(query);

	context->filters = NIL;
	collect_filters((Node *) query->jointree, &context->filters);
	query = query_tree_mutator(query, name_mutator, context, 0);
	context->filters = before;
	context->failed |= moves || !name_joins(query);
	return (Node *) query;
}

static Node *
name_mutator(Node *node, NameContext *context)
{
	Node	   *result;
	Node	   *named;

	if (node == NULL)
		return NULL;
	if (IsA(node, Query))
		return name_in_query((Query *) node, context);
	if (IsA(node, SubLink))
	{
		SubLink    *link = makeNode(SubLink);

		/* what compares is printed as a part of it */
		memcpy(link, node, sizeof(SubLink));
		link->testexpr = expression_tree_mutator(link->testexpr, name_mutator, context);
		link->subselect = name_mutator(link->subselect, context);
		result = (Node *) link;
	}
	else
		result = expression_tree_mutator(node, name_mutator, context);
	if (IsA(node, JoinExpr) || !tessera_hides_operator(node))
		return result;
	switch (nodeTag(node))
	{
		case T_DistinctExpr:
			named = name_distinct((OpExpr *) result);
			break;
		case T_NullIfExpr:
			named = name_nullif((OpExpr *) result);
			break;
		case T_CaseExpr:
			named = name_case((CaseExpr *) result);
			break;
		case T_SubLink:
			named = name_sublink((SubLink *) result, list_member_ptr(context->filters, node));
			break;
		default:
			named = name_row_comparison(castNode(RowCompareExpr, result));
			break;
	}
	context->failed |= named == NULL;
	return named ? named : result;
}

bool
tessera_operators_print(Node *node)
{
	NameContext context = {0};

	(void) name_mutator(node, &context);
	return !context.failed;
}

Query *
tessera_name_operators(Query *query)
{
	NameContext context = {0};

	if (!hides_walker((Node *) query, NULL))
		return query;
	query = (Query *) name_mutator((Node *) query, &context);
	if (context.failed)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("an operator of the statement cannot be named in its text"),
				 errhint("Put the schema of the operator into search_path.")));
	return query;
}
