/*
 * index_maintenance.c
 *	  The server's functions that maintain one index (brin_summarize_new_values and its like, gin_clean_pending_list), on all parts of an index of the
 *	  cluster: the planner puts these in their place (common/stand_in.h).
 *
 * Each node that may have rows of the table runs the server's function on its part of the index, in the caller's transaction and as the caller's
 * role, one after another; the answers are added up. Numbers of blocks are those of each node's part. What a node has done stays, whatever becomes of
 * the transaction, as on one server. Locks: those of the server's function, which lets them go. Nothing is kept.
 */
#include "postgres.h"

#include "catalog/index.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "common/acting_as.h"
#include "common/stand_in.h"
#include "control/calls.h"
#include "ddl/ddl.h"
#include "routing/routing.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"

PG_FUNCTION_INFO_V1(tessera_brin_summarize_new_values);
PG_FUNCTION_INFO_V1(tessera_brin_summarize_range);
PG_FUNCTION_INFO_V1(tessera_brin_desummarize_range);
PG_FUNCTION_INFO_V1(tessera_gin_clean_pending_list);

/* The server's function on this node's part; 0 if it answers nothing. block: of those that take one. */
static int64
maintain_here(Oid function, Oid index, int64 block)
{
	switch (function)
	{
		case F_BRIN_SUMMARIZE_NEW_VALUES:
			return DatumGetInt32(DirectFunctionCall1(brin_summarize_new_values, ObjectIdGetDatum(index)));
		case F_BRIN_SUMMARIZE_RANGE:
			return DatumGetInt32(DirectFunctionCall2(brin_summarize_range, ObjectIdGetDatum(index), Int64GetDatum(block)));
		case F_BRIN_DESUMMARIZE_RANGE:
			(void) DirectFunctionCall2(brin_desummarize_range, ObjectIdGetDatum(index), Int64GetDatum(block));
			return 0;
		case F_GIN_CLEAN_PENDING_LIST:
			return DatumGetInt64(DirectFunctionCall1(gin_clean_pending_list, ObjectIdGetDatum(index)));
		default:
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("function %u does not maintain an index", function)));
	}
}

/* As who has called the function there: the server's function asks for his rights. What the index calls it runs as the table's owner. */
int64
tessera_serve_maintain_index(const TesseraMaintainIndexArgs *args)
{
	Oid			namespace = get_namespace_oid(args->schema, true);
	Oid			index = OidIsValid(namespace) ? get_relname_relid(args->index_name, namespace) : InvalidOid;
	TesseraActing before;
	int64		done;

	if (!OidIsValid(index))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("index \"%s.%s\" does not exist on this node", args->schema, args->index_name),
				 errhint("It was dropped meanwhile, or the schemas differ: see tessera.check_consistency().")));
	tessera_act_as_user(&before, get_role_oid(args->role, false));
	done = maintain_here((Oid) args->maintenance, index, args->block);
	tessera_act_end(&before);
	return done;
}

/* True if the node may have rows of the table. */
static bool
has_part(const TesseraTable *table, const TesseraNode *node)
{
	if (table->group < 0)
		return table->replicated || table->node_id == node->node_id;
	return node->is_shard;
}

static int64
maintain(FunctionCallInfo fcinfo, Oid function, int64 block)
{
	Oid			index = PG_GETARG_OID(0);
	const TesseraRouting *routing = tessera_routing();
	Oid			root = routing ? tessera_cluster_root(routing, IndexGetRelation(index, true)) : InvalidOid;
	const TesseraTable *table = OidIsValid(root) ? tessera_routing_table(routing, root) : NULL;
	const char *role = GetUserNameFromId(GetUserId(), false);
	int64		done = 0;

	tessera_stand_in_check(fcinfo->flinfo->fn_oid);
	if (table == NULL)
		return maintain_here(function, index, block);
	if (tessera_internal_connection())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("an index of the cluster cannot be maintained in a statement that runs on a shard"),
				 errhint("Call the function in a statement of its own.")));
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		int64		part;

		CHECK_FOR_INTERRUPTS();
		if (!has_part(table, node))
			continue;
		if (node->node_id == routing->self)
			part = maintain_here(function, index, block);
		else
			(void) tessera_call_maintain_index(tessera_to_node(node->node_id), role, get_namespace_name(get_rel_namespace(index)),
											   get_rel_name(index), (int32) function, block, &part);
		done += part;
	}
	return done;
}

/* brin_summarize_new_values(index regclass) returns int4 */
Datum
tessera_brin_summarize_new_values(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) maintain(fcinfo, F_BRIN_SUMMARIZE_NEW_VALUES, 0));
}

/* brin_summarize_range(index regclass, block int8) returns int4 */
Datum
tessera_brin_summarize_range(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) maintain(fcinfo, F_BRIN_SUMMARIZE_RANGE, PG_GETARG_INT64(1)));
}

/* brin_desummarize_range(index regclass, block int8) returns void */
Datum
tessera_brin_desummarize_range(PG_FUNCTION_ARGS)
{
	(void) maintain(fcinfo, F_BRIN_DESUMMARIZE_RANGE, PG_GETARG_INT64(1));
	PG_RETURN_VOID();
}

/* gin_clean_pending_list(index regclass) returns int8 */
Datum
tessera_gin_clean_pending_list(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(maintain(fcinfo, F_GIN_CLEAN_PENDING_LIST, 0));
}
