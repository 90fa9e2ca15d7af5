/*
 * deparse.c
 *	  SQL text of a prepared query, by PostgreSQL's own deparser, and a cache of the texts of this backend.
 *
 * Constants have become parameters before (tessera_lift_constants), so statements that differ only in them have equal trees and share one text. The
 * cache maps a tree to its texts: a bucket by a cheap hash, then equal(). Any invalidation of a relation, function, type, operator or schema empties
 * it: names may have changed.
 *
 * Memory: a context of its own below TopMemoryContext, reset whole.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parser.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "common/fixed_settings.h"
#include "common/query_text.h"
#include "planner/exact_columns.h"
#include "planner/ship.h"

#define BUCKETS 256
#define LIMIT 512				/* entries; then the cache starts anew */

typedef struct Entry
{
	struct Entry *next;
	uint32		hash;
	Query	   *query;
	List	   *path;				/* OIDs of the schemas in which names were looked up, by the role of then */
	List	   *texts;
} Entry;

static MemoryContext cache_context = NULL;
static Entry *buckets[BUCKETS];
static int	entries = 0;
static bool outdated = false;

static void
forget_on_relation(Datum arg, Oid relid)
{
	outdated = true;
}

static void
forget_on_object(Datum arg, int cache, uint32 hash)
{
	outdated = true;
}

void
tessera_deparse_init(void)
{
	CacheRegisterRelcacheCallback(forget_on_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, forget_on_object, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, forget_on_object, (Datum) 0);
	CacheRegisterSyscacheCallback(OPEROID, forget_on_object, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, forget_on_object, (Datum) 0);
	CacheRegisterSyscacheCallback(ENUMOID, forget_on_object, (Datum) 0);
}

static void
prepare_cache(void)
{
	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext, "tessera statement texts", ALLOCSET_DEFAULT_SIZES);
	if (outdated || entries >= LIMIT)
	{
		MemoryContextReset(cache_context);
		memset(buckets, 0, sizeof(buckets));
		entries = 0;
		outdated = false;
	}
}

/* Hash of the parts that statements of one shape have in common: command, tables, number of output columns. */
static uint32
shape_of(Query *query)
{
	uint32		hash = hash_combine(query->commandType * 2 + standard_conforming_strings, list_length(query->targetList));
	ListCell   *cell;

	foreach(cell, query->rtable)
		hash = hash_combine(hash, hash_uint32(lfirst_node(RangeTblEntry, cell)->relid));
	return hash;
}

/* ARRAY[...] with one dimension of a constant's elements, from *element on. */
static Node *
spell_dimension(const Const *array, const int *sizes, int ndims, const Datum *values, const bool *nulls, int *element)
{
	ArrayExpr  *result = makeNode(ArrayExpr);
	int16		length;
	bool		by_value;
	char		align;

	result->array_typeid = array->consttype;
	result->array_collid = array->constcollid;
	result->element_typeid = get_element_type(array->consttype);
	result->multidims = ndims > 1;
	result->location = -1;
	get_typlenbyvalalign(result->element_typeid, &length, &by_value, &align);
	for (int i = 0; i < sizes[0]; i++)
	{
		if (ndims > 1)
			result->elements = lappend(result->elements, spell_dimension(array, sizes + 1, ndims - 1, values, nulls, element));
		else
		{
			result->elements = lappend(result->elements, makeConst(result->element_typeid, -1, array->constcollid, length, values[*element],
																   nulls[*element], by_value));
			(*element)++;
		}
	}
	return (Node *) result;
}

/* The array with NULL as it is read alike whether array_nulls is on or off. */
static Node *
spell_array(const Const *constant)
{
	Oid			element = get_element_type(constant->consttype);
	ArrayType  *array = DatumGetArrayTypeP(constant->constvalue);
	Datum	   *values;
	bool	   *nulls;
	int			n;
	int			first = 0;
	int16		length;
	bool		by_value;
	char		align;

	get_typlenbyvalalign(element, &length, &by_value, &align);
	deconstruct_array(array, element, length, by_value, align, &values, &nulls, &n);
	return spell_dimension(constant, ARR_DIMS(array), ARR_NDIM(array), values, nulls, &first);
}

static bool
has_null_in_array(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Const))
		return tessera_is_array_with_null(node);
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, has_null_in_array, context, 0);
	return expression_tree_walker(node, has_null_in_array, context);
}

static Node *
spell_arrays(Node *node, void *context)
{
	if (node == NULL)
		return NULL;
	if (tessera_is_array_with_null(node))
		return spell_array((Const *) node);
	if (IsA(node, Query))
		return (Node *) query_tree_mutator((Query *) node, spell_arrays, context, 0);
	return expression_tree_mutator(node, spell_arrays, context);
}

/* Everything must read the same under the shard's settings, whatever they are. Costs nothing where the session's own already do. */
static char *
deparse(Query *query)
{
	int			nest;
	char	   *sql;

	if (has_null_in_array((Node *) query, NULL))
		query = (Query *) spell_arrays((Node *) query, NULL);

	if (tessera_settings_are_fixed(TESSERA_FIXED_STYLES))
		return tessera_query_text(query);
	nest = tessera_fixed_settings_push(TESSERA_FIXED_STYLES);
	sql = tessera_query_text(query);
	AtEOXact_GUC(true, nest);
	return sql;
}

/* The exact one is made first: the deparser scribbles on its input. */
List *
tessera_deparse_once(Query *query)
{
	Query	   *exact = tessera_exact_query(query);
	String	   *sent = exact ? makeString(deparse(exact)) : NULL;
	String	   *text = makeString(deparse(query));

	return sent ? list_make2(text, sent) : list_make1(text);
}

List *
tessera_deparse(Query *query)
{
	uint32		hash = shape_of(query);
	List	   *path = fetch_search_path(true);
	Query	   *kept;
	Entry	   *entry;
	List	   *texts;
	MemoryContext before;

	/* equal() compares them; the text does not depend on them */
	query->stmt_len = 0;
	query->stmt_location = 0;
	query->queryId = 0;
	prepare_cache();
	for (entry = buckets[hash % BUCKETS]; entry; entry = entry->next)
		if (entry->hash == hash && equal(entry->path, path) && equal(entry->query, query))
			return copyObject(entry->texts);

	/* the deparser scribbles on its input, and what it looks up may invalidate the cache */
	kept = copyObject(query);
	texts = tessera_deparse_once(query);
	prepare_cache();
	before = MemoryContextSwitchTo(cache_context);
	entry = palloc(sizeof(Entry));
	entry->hash = hash;
	entry->query = copyObject(kept);
	entry->path = list_copy(path);
	entry->texts = copyObject(texts);
	entry->next = buckets[hash % BUCKETS];
	buckets[hash % BUCKETS] = entry;
	entries++;
	MemoryContextSwitchTo(before);
	return texts;
}
