/*
 * shard_mode.c
 *	  Preparation of statements in shard mode; see shard_mode.h.
 *
 * A BEFORE ROW trigger may change the shard key, after the statement was routed and let through by the key that it names. Its row must not stay on a
 * shard that does not own it, so tables with such triggers get a check of each new row, in the form of a WITH CHECK OPTION: core evaluates those on
 * the row as the triggers have left it. Without triggers there is none, and no cost.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "partitioning/partdesc.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"
#include "utils/syscache.h"

#include "executor/ownership.h"
#include "planner/shard_mode.h"
#include "routing/routing.h"

static Node *
require_owned(Relation relation, Index rti, const TesseraRouting *routing, const TesseraTable *table)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	FuncExpr   *call;
	List	   *args;

	*id = tessera_routing_group(routing, table->group)->group_id;
	args = list_make1(makeConst(UUIDOID, -1, InvalidOid, sizeof(pg_uuid_t), UUIDPGetDatum(id), false, false));
	for (int i = 0; i < table->nkeys; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(relation), table->keys[i] - 1);

		args = lappend(args, makeVar(rti, att->attnum, att->atttypid, att->atttypmod, att->attcollation, 0));
	}
	call = makeFuncExpr(tessera_require_owned_function(), BOOLOID, args, InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL);
	call->location = TESSERA_REQUIRES_OWNED;
	return (Node *) call;
}

static void
add_check(Query *query, WCOKind kind, const char *name, Node *condition)
{
	WithCheckOption *check = makeNode(WithCheckOption);

	check->kind = kind;
	check->relname = pstrdup(name);
	check->qual = condition;
	query->withCheckOptions = lappend(query->withCheckOptions, check);
}

static bool
has_before_row_trigger(Relation relation)
{
	return relation->trigdesc && (relation->trigdesc->trig_insert_before_row || relation->trigdesc->trig_update_before_row);
}

static bool
has_triggers(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result = HeapTupleIsValid(tuple) && ((Form_pg_class) GETSTRUCT(tuple))->relhastriggers;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return result;
}

/* True if a trigger of the table, or one that a partition has by itself, may change the key of a row. */
static bool
may_change_key(Relation relation)
{
	bool		found = has_before_row_trigger(relation);
	PartitionDesc partitions = !found && relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ? RelationGetPartitionDesc(relation, true) : NULL;

	for (int i = 0; partitions != NULL && i < partitions->nparts && !found; i++)
	{
		Relation	partition;

		if (partitions->is_leaf[i] && !has_triggers(partitions->oids[i]))
			continue;
		partition = table_open(partitions->oids[i], AccessShareLock);
		found = may_change_key(partition);
		table_close(partition, AccessShareLock);
	}
	return found;
}

void
tessera_check_final_rows(Query *query)
{
	const TesseraRouting *routing = tessera_routing();
	ListCell   *cell;

	foreach(cell, query->cteList)
		if (IsA(lfirst_node(CommonTableExpr, cell)->ctequery, Query))
			tessera_check_final_rows((Query *) lfirst_node(CommonTableExpr, cell)->ctequery);
	if (routing != NULL && query->resultRelation > 0 && query->commandType != CMD_DELETE)
	{
		Oid			relid = rt_fetch(query->resultRelation, query->rtable)->relid;
		const TesseraTable *table = tessera_routing_table(routing, relid);
		Relation	relation;

		if (table == NULL || table->group < 0 || !OidIsValid(tessera_require_owned_function()))
			return;
		relation = table_open(relid, NoLock);
		if (may_change_key(relation))
		{
			Node	   *condition = require_owned(relation, query->resultRelation, routing, table);

			add_check(query, WCO_RLS_INSERT_CHECK, RelationGetRelationName(relation), condition);
			add_check(query, WCO_RLS_UPDATE_CHECK, RelationGetRelationName(relation), copyObject(condition));
		}
		table_close(relation, NoLock);
	}
}

static bool
relations_walker(Node *node, List **relations)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		if (((RangeTblEntry *) node)->rtekind == RTE_RELATION)
			*relations = list_append_unique_oid(*relations, ((RangeTblEntry *) node)->relid);
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, relations_walker, relations, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, relations_walker, relations);
}

List *
tessera_relations_of(Query *query)
{
	List	   *relations = NIL;

	(void) relations_walker((Node *) query, &relations);
	return relations;
}
