/*
 * replicate_table.c
 *	  tessera.replicate_table: makes a placed table whole on every node; tessera.unreplicate_table: a placed one again
 *	  (doc/design.md#replicated-tables).
 *
 * Phases, on the node that was asked: (1) check the table; (2) mark it on the config node; (3) on its primary shard, its lead from then on, lock
 * writers out, and mark it there and on the others; (4) send the rows to every copy, in batches. All is one distributed transaction: its rollback
 * leaves a placed table.
 *
 * Locks: SHARE UPDATE EXCLUSIVE on the table here; on the config node tessera.node against nodes that come, and promoted servers that register;
 * SHARE ROW EXCLUSIVE on the lead; to empty a copy ACCESS EXCLUSIVE on it, so that nobody reads it by an older plan.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "admin/shardable.h"
#include "catalog/change.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "config/chunks.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "ddl/subscription.h"
#include "executor/replicated.h"
#include "session/internal_connection.h"

PG_FUNCTION_INFO_V1(tessera_replicate_table);
PG_FUNCTION_INFO_V1(tessera_unreplicate_table);

#define TRIGGER_NAME "tessera_replicated"
#define PAGE_BLOCKS 64			/* looked at for one batch, at most */

/* One call. */
typedef struct Replication
{
	Oid			relid;
	char	   *qualified;		/* schema.table, quoted */
	const TesseraRouting *routing;
	pg_uuid_t	table_id;
	int32		lead;
} Replication;

/* ---- checks ---- */

_Noreturn static void
refuse(const char *name, const char *why, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("table \"%s\" cannot be replicated: %s", name, why),
			 errhint("%s", hint)));
}

static void
lock_name(void *arg)
{
	Replication *replication = arg;

	tessera_ddl_lock(tessera_routing(), list_make1(psprintf("relation %s", replication->qualified)),
					 tessera_ddl_groups(tessera_routing(), NIL, list_make1_oid(get_rel_namespace(replication->relid))), "tessera.replicate_table",
					 NULL, NULL);
}

/* The table's rows must be of use to who has no other: an own heap, and rows that are told apart. */
static void
check_kind(Relation rel)
{
	const char *name = RelationGetRelationName(rel);

	if (rel->rd_rel->relkind != RELKIND_RELATION || rel->rd_rel->relispartition || has_subclass(RelationGetRelid(rel)) ||
		has_superclass(RelationGetRelid(rel)))
		refuse(name, "it is no ordinary table, or has or is a partition or child", "Copy the rows to a table of its own.");
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		refuse(name, "it is unlogged or temporary", "ALTER TABLE ... SET LOGGED first.");
	if (!OidIsValid(tessera_primary_key(rel)))
		refuse(name, "it has no primary key", "Add one: the rows of the copies are found by it.");
	if (rel->rd_rules != NULL)
		refuse(name, "it has rewrite rules", "Use triggers instead of rules on a table of the cluster.");
}

/* What it refers to must be whole on every node, too. */
static void
check_references(const Replication *replication, Relation rel)
{
	ListCell   *cell;

	foreach(cell, RelationGetFKeyList(rel))
	{
		Oid			other = ((ForeignKeyCacheInfo *) lfirst(cell))->confrelid;
		const TesseraTable *table = tessera_routing_table(replication->routing, other);

		if (other != replication->relid && (table == NULL || !table->replicated))
			refuse(get_rel_name(replication->relid), psprintf("it has a foreign key to \"%s\", which is not replicated", get_rel_name(other)),
				   "Replicate that table first, or drop the foreign key.");
	}
}

/* Tables with a foreign key to this one. */
static List *
referring(Oid relid)
{
	Relation	constraints = table_open(ConstraintRelationId, AccessShareLock);
	ScanKeyData condition;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *tables = NIL;

	ScanKeyInit(&condition, Anum_pg_constraint_confrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(constraints, InvalidOid, false, NULL, 1, &condition);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (((Form_pg_constraint) GETSTRUCT(tuple))->contype == CONSTRAINT_FOREIGN)
			tables = list_append_unique_oid(tables, ((Form_pg_constraint) GETSTRUCT(tuple))->conrelid);
	systable_endscan(scan);
	table_close(constraints, AccessShareLock);
	return tables;
}

/* A table whose rows are elsewhere could not be checked any more. */
static void
check_referrers(const Replication *replication)
{
	List	   *others = referring(replication->relid);
	ListCell   *cell;

	foreach(cell, others)
	{
		const TesseraTable *other = tessera_routing_table(replication->routing, lfirst_oid(cell));

		if (lfirst_oid(cell) != replication->relid &&
			(other == NULL || other->replicated || other->group >= 0 || other->node_id != replication->lead))
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("table %s cannot become a placed table: table \"%s\", which has rows on other nodes, has a foreign key to it",
							replication->qualified, get_rel_name(lfirst_oid(cell))),
					 errhint("Drop the foreign key first.")));
	}
}

static void
check(Replication *replication, Oid relid, bool wanted)
{
	char	   *name = get_rel_name(relid);
	const TesseraTable *table;
	Relation	rel;

	replication->relid = relid;
	tessera_require_table_owner(relid);
	(void) tessera_sharding_routing();
	replication->qualified = tessera_quote_qualified(get_namespace_name(get_rel_namespace(relid)), name);
	tessera_ddl_attempts(lock_name, replication, TESSERA_PATIENCE_DDL);
	rel = table_open(relid, ShareUpdateExclusiveLock);
	tessera_require_table_owner(relid);
	replication->routing = tessera_sharding_routing();
	table = tessera_routing_table(replication->routing, relid);
	if (table == NULL || table->group >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg(table == NULL ? "table \"%s\" is no table of the cluster" : "table \"%s\" is sharded", name),
				 errhint("Only placed tables can be replicated. tessera.tables shows the kind of each table.")));
	if (table->replicated == wanted)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg(wanted ? "table \"%s\" is already replicated" : "table \"%s\" is not replicated", name)));
	replication->table_id = table->table_id;
	replication->lead = table->node_id;
	if (wanted)
	{
		check_kind(rel);
		check_references(replication, rel);
	}
	else
		check_referrers(replication);
	table_close(rel, NoLock);
}

/* ---- the nodes ---- */

/* Returns whether the lead has rows. The config node comes first, as when a node is added: what is locked there keeps nodes from coming and going. */
static bool
mark(const Replication *replication, bool wanted)
{
	int32		config = tessera_routing_config(replication->routing)->node_id;
	const char *by = GetUserNameFromId(GetUserId(), false);
	const char *nodes = tessera_node_list(replication->routing);
	bool		has_rows;

	tessera_call_mark_replicated(tessera_writing(tessera_to_node(config)), &replication->table_id, wanted, nodes, by);
	tessera_call_lock_for_sharding(tessera_writing(tessera_to_node(replication->lead)), replication->qualified, &has_rows);
	for (int i = 0; i < replication->routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(replication->routing, i)->node_id;

		if (node_id != config)
			tessera_call_mark_replicated(tessera_writing(tessera_to_node(node_id)), &replication->table_id, wanted, nodes, by);
	}
	tessera_injection("replicated_marked");
	return has_rows;
}

static void
send_rows(const Replication *replication)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera rows of a table", ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	int64		block = 0;

	while (block >= 0)
	{
		TesseraReplicatedRowsAnswer answer;

		CHECK_FOR_INTERRUPTS();
		tessera_call_replicated_rows(tessera_to_node(replication->lead), replication->qualified, block, &answer);
		block = answer.next;
		if (strcmp(answer.batch, "{}") != 0)
			tessera_batch_send(replication->routing, answer.batch, NIL, replication->lead, true);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}

Datum
tessera_replicate_table(PG_FUNCTION_ARGS)
{
	Replication replication;

	tessera_fan_out_settle_tables();
	check(&replication, PG_GETARG_OID(0), true);
	if (mark(&replication, true))
		send_rows(&replication);
	tessera_injection("replicate_sent");
	PG_RETURN_VOID();
}

Datum
tessera_unreplicate_table(PG_FUNCTION_ARGS)
{
	Replication replication;

	check(&replication, PG_GETARG_OID(0), false);
	(void) mark(&replication, false);
	PG_RETURN_VOID();
}

/* ---- what nodes do ---- */

/* Rows from the block on that the newest snapshot sees. next: where to go on; -1: that was all. The caller has locked writers out. */
void
tessera_serve_replicated_rows(const TesseraReplicatedRowsArgs *args, TesseraReplicatedRowsResult *result)
{
	Relation	rel = table_open(args->table_name, AccessShareLock);
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TesseraRowBatch batch = {0};
	BlockNumber block = (BlockNumber) args->block;
	int			level = NewGUCNestLevel();

	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	while (block < blocks && block < args->block + PAGE_BLOCKS && !tessera_batch_is_full(&batch))
	{
		ItemPointerData first;
		ItemPointerData last;
		TableScanDesc scan;

		CHECK_FOR_INTERRUPTS();
		ItemPointerSet(&first, block, FirstOffsetNumber);
		ItemPointerSet(&last, block, MaxOffsetNumber);
		scan = table_beginscan_tidrange(rel, snapshot, &first, &last);
		while (table_scan_getnextslot_tidrange(scan, ForwardScanDirection, slot))
			tessera_batch_row(&batch, rel, 'I', NULL, slot);
		table_endscan(scan);
		block++;
	}
	result->next = block < blocks ? (int64) block : -1;
	result->batch = tessera_batch_take(&batch);
	AtEOXact_GUC(true, level);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/* The capturing trigger: on every node, as any of them may be the lead one day. */
static void
create_trigger(Oid relid)
{
	CreateTrigStmt *statement = makeNode(CreateTrigStmt);

	statement->trigname = TRIGGER_NAME;
	statement->relation = makeRangeVar(get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid), -1);
	statement->funcname = list_make2(makeString("tessera_internal"), makeString("capture_replicated"));
	statement->row = true;
	statement->timing = TRIGGER_TYPE_AFTER;
	statement->events = TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE;
	(void) CreateTriggerFiringOn(statement, NULL, relid, InvalidOid, InvalidOid, InvalidOid, InvalidOid, InvalidOid, NULL, true, false,
								 TRIGGER_FIRES_ALWAYS);
}

static void
drop_trigger(Relation rel)
{
	Oid			function = LookupFuncName(list_make2(makeString("tessera_internal"), makeString("capture_replicated")), 0, NULL, false);
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		if (triggers->triggers[i].tgfoid == function)
		{
			ObjectAddress trigger;

			ObjectAddressSet(trigger, TriggerRelationId, triggers->triggers[i].tgoid);
			performDeletion(&trigger, DROP_RESTRICT, PERFORM_DELETION_INTERNAL);
			return;
		}
}

/* Deletes, so that a snapshot of before still sees the rows: a transaction may go on to read its plan's copy. */
static void
empty_copy(Relation rel)
{
	TableScanDesc scan = table_beginscan(rel, GetLatestSnapshot(), 0, NULL);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		simple_table_tuple_delete(rel, &slot->tts_tid, GetLatestSnapshot());
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

static void
require_empty(Relation rel)
{
	TableScanDesc scan = table_beginscan(rel, GetLatestSnapshot(), 0, NULL);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	if (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("table \"%s\" has rows on this node, which is not its shard", RelationGetRelationName(rel)),
				 errhint("Try again when tessera.range_deletions is empty on every shard.")));
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

static const char *
own_name(void)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	const TesseraNode *self = tessera_routing_node(routing, routing->self);

	return self != NULL ? NameStr(self->name) : "unknown";
}

/* The row of the catalog; returns the table as this node has it. */
static Oid
write_mark(const TesseraMarkReplicatedArgs *args)
{
	TesseraSpi	spi;
	Oid			types[] = {UUIDOID, BOOLOID};
	Datum		values[] = {UUIDPGetDatum(args->table_id), BoolGetDatum(args->replicated)};
	Oid			relid;

	tessera_spi_begin(&spi);
	if (tessera_routing_or_error()->is_config)
		(void) tessera_spi_run("LOCK TABLE tessera.node IN SHARE MODE", SPI_OK_UTILITY, 0, NULL, NULL, NULL);
	if (tessera_spi_run("UPDATE tessera.cluster_table SET replicated = $2 WHERE table_id = $1 AND group_id IS NULL"
						" RETURNING coalesce(to_regclass(format('%I.%I', schema_name, table_name))::oid, 0::oid)", SPI_OK_UPDATE_RETURNING, 2, types,
						values, NULL) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("node \"%s\" knows the table otherwise, or not at all", own_name()),
				 errhint("Try again.")));
	relid = DatumGetObjectId(spi_row_value(0, 1));
	tessera_spi_end(&spi);
	/* under the lock: no node comes or goes, and no promoted server registers any more */
	if (tessera_routing_or_error()->is_config)
		tessera_require_same_nodes(args->nodes);
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("the table does not exist on node \"%s\"", own_name())));
	return relid;
}

/* Its rows would come into one copy only. */
static void
refuse_subscribed(const TesseraRouting *routing, Oid relid)
{
	ListCell   *cell;

	foreach(cell, tessera_subscribed_here(routing))
	{
		const TesseraSubscribed *subscribed = lfirst(cell);

		if (subscribed->relid == relid)
			refuse(get_rel_name(relid), psprintf("subscription \"%s\" of node \"%s\" writes into it", subscribed->subscription, subscribed->node),
				   "Take it out of the publication, then ALTER SUBSCRIPTION ... REFRESH PUBLICATION on that node; or drop the subscription.");
	}
}

void
tessera_serve_mark_replicated(const TesseraMarkReplicatedArgs *args)
{
	const TesseraTable *table = tessera_routing_table_by_id(tessera_routing_or_error(), args->table_id);
	const TesseraRouting *routing = tessera_routing_or_error();
	bool		lead = table != NULL && table->node_id == routing->self;
	Oid			relid = write_mark(args);
	/* readers of a copy that is emptied must not go on by a plan of before */
	Relation	rel = table_open(relid, args->replicated || lead ? ShareRowExclusiveLock : AccessExclusiveLock);

	if (args->replicated)
	{
		if (!lead)
			require_empty(rel);
		refuse_subscribed(routing, relid);
		create_trigger(relid);
	}
	else
	{
		drop_trigger(rel);
		if (!lead)
			empty_copy(rel);
	}
	if (routing->is_config)
		tessera_changelog_add(args->replicated ? "replicate_table" : "unreplicate_table",
							  tessera_quote_qualified(get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel)), NULL, args->by,
							  NULL, NULL);
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	tessera_catalog_changed();
}

/* The row as the config node has it; the refresher finds it in place. */
void
tessera_serve_learn_node(const TesseraLearnNodeArgs *args)
{
	TesseraSpi	spi;
	Oid			types[] = {JSONBOID};
	Datum		values[] = {JsonbPGetDatum(args->node)};

	tessera_spi_begin(&spi);
	(void) tessera_spi_run("INSERT INTO tessera.node SELECT * FROM jsonb_populate_record(NULL::tessera.node, $1) ON CONFLICT DO NOTHING",
						   SPI_OK_INSERT, 1, types, values, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

void
tessera_empty_copies(void)
{
	const TesseraRouting *routing = tessera_routing_or_error();

	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);
		Relation	rel;

		if (!table->replicated)
			continue;
		rel = table_open(table->relid, AccessExclusiveLock);
		drop_trigger(rel);
		if (table->node_id != routing->self)
			empty_copy(rel);
		table_close(rel, NoLock);
	}
}
