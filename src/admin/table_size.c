/*
 * table_size.c
 *	  Sizes of a table over all its shards: tessera.table_size, indexes_size, total_relation_size.
 *
 * Each node that may hold rows of the table is asked by the server's function of the same name, within the caller's transaction: a table made in it
 * is there, and the locks that the transaction holds on it block no part of the call. All shards are asked for a sharded table, as one that has given
 * its ranges away may still have rows to delete.
 *
 * Nothing is kept, nothing is locked longer than the call here; a shard keeps the statement's AccessShareLock to the end of the transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/partition.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "common/text.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"

PG_FUNCTION_INFO_V1(tessera_table_size);
PG_FUNCTION_INFO_V1(tessera_indexes_size);
PG_FUNCTION_INFO_V1(tessera_total_relation_size);

/* The cluster's table that a relation is, or is a partition of; NULL: the relation is this node's own. */
static const TesseraTable *
table_of(const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *table = tessera_routing_table(routing, relid);

	if (table == NULL && get_rel_relispartition(relid))
	{
		List	   *ancestors = get_partition_ancestors(relid);

		if (ancestors != NIL)
			table = tessera_routing_table(routing, llast_oid(ancestors));
	}
	return table;
}

/* The size on one node, by the server's own function. */
static int64
size_on(const TesseraRouting *routing, int32 node_id, const char *function, const char *name)
{
	int64		size;

	(void) tessera_call_relation_size(tessera_to_node(node_id), name, function, &size);
	if (size < 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table %s does not exist on node \"%s\"", name, NameStr(tessera_routing_node(routing, node_id)->name)),
				 errhint("It was dropped meanwhile, or the schemas differ: see tessera.check_consistency().")));
	return size;
}

static int64
size_on_shards(const TesseraRouting *routing, const TesseraTable *table, const char *function, const char *name)
{
	int64		size = 0;

	if (tessera_internal_connection())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the size of a table of the cluster cannot be asked for in a statement that runs on a shard"),
				 errhint("Call the function in a statement of its own.")));
	if (table->group < 0)
		return size_on(routing, table->node_id, function, name);
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		CHECK_FOR_INTERRUPTS();
		if (node->is_shard)
			size += size_on(routing, node->node_id, function, name);
	}
	return size;
}

/* Core's function, which answers NULL for a relation that is not there (any more). */
static Datum
size_here(FunctionCallInfo fcinfo, PGFunction function)
{
	LOCAL_FCINFO(call, 1);
	Datum		size;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = PG_GETARG_DATUM(0);
	call->args[0].isnull = false;
	size = function(call);
	fcinfo->isnull = call->isnull;
	return size;
}

static Datum
size_of(FunctionCallInfo fcinfo, PGFunction function, const char *function_name)
{
	Oid			relid = PG_GETARG_OID(0);
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing ? table_of(routing, relid) : NULL;
	char	   *schema;
	char	   *name;

	if (table == NULL)
		return size_here(fcinfo, function);
	schema = get_namespace_name(get_rel_namespace(relid));
	name = get_rel_name(relid);
	if (schema == NULL || name == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64(size_on_shards(routing, table, function_name, tessera_quote_qualified(schema, name)));
}

/* table_size(table_name regclass) returns bigint */
Datum
tessera_table_size(PG_FUNCTION_ARGS)
{
	return size_of(fcinfo, pg_table_size, "pg_table_size");
}

/* indexes_size(table_name regclass) returns bigint */
Datum
tessera_indexes_size(PG_FUNCTION_ARGS)
{
	return size_of(fcinfo, pg_indexes_size, "pg_indexes_size");
}

/* total_relation_size(table_name regclass) returns bigint */
Datum
tessera_total_relation_size(PG_FUNCTION_ARGS)
{
	return size_of(fcinfo, pg_total_relation_size, "pg_total_relation_size");
}
