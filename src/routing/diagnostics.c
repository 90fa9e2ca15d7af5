/*
 * diagnostics.c
 *	  SQL functions that show what this session routes by, for tests and for administrators; and the triggers that tell the mirror and the plans of
 *	  changed catalog rows.
 */
#include "postgres.h"

#include "access/table.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog/change.h"
#include "catalog/relation.h"
#include "routing/image.h"
#include "routing/refresh.h"

PG_FUNCTION_INFO_V1(tessera_note_catalog_change);
PG_FUNCTION_INFO_V1(tessera_invalidate_plans);
PG_FUNCTION_INFO_V1(tessera_routing_image_facts);
PG_FUNCTION_INFO_V1(tessera_routing_key_owner);
PG_FUNCTION_INFO_V1(tessera_routing_chunk_rows);
PG_FUNCTION_INFO_V1(tessera_routing_placement_facts);

Datum
tessera_note_catalog_change(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function must be called as a trigger")));
	if (RelationGetRelid(((TriggerData *) fcinfo->context)->tg_relation) == tessera_catalog_relid(TESSERA_IDENTITY))
		tessera_catalog_role_changed();
	else
		tessera_catalog_changed();
	return PointerGetDatum(NULL);
}

/* Invalidates the relcache entries, hence the plans, of the table that a row of tessera.cluster_table means, and of its partitions. */
static void
invalidate_table(HeapTuple tuple, TupleDesc desc)
{
	bool		null;
	Datum		relid = heap_getattr(tuple, Anum_cluster_table_relid, desc, &null);
	Oid			table = tessera_resolve_table(null ? InvalidOid : DatumGetObjectId(relid),
											  NameStr(*DatumGetName(heap_getattr(tuple, Anum_cluster_table_schema_name, desc, &null))),
											  NameStr(*DatumGetName(heap_getattr(tuple, Anum_cluster_table_table_name, desc, &null))));

	tessera_invalidate_tree(table);
}

/* The same for all tables of the schema that a row of tessera.schema_placement is about. */
static void
invalidate_schema(HeapTuple tuple, TupleDesc desc)
{
	bool		null;
	Name		schema = DatumGetName(heap_getattr(tuple, Anum_schema_placement_schema_name, desc, &null));
	Relation	rel = tessera_catalog_open(TESSERA_CLUSTER_TABLE, AccessShareLock);
	Snapshot	snapshot = tessera_catalog_snapshot();
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	row;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
		if (namestrcmp(DatumGetName(heap_getattr(row, Anum_cluster_table_schema_name, RelationGetDescr(rel), &null)), NameStr(*schema)) == 0)
			invalidate_table(row, RelationGetDescr(rel));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

Datum
tessera_invalidate_plans(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	void		(*invalidate) (HeapTuple, TupleDesc);

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function must be called as a row trigger")));
	if (RelationGetRelid(trigger->tg_relation) == tessera_catalog_relid(TESSERA_CLUSTER_TABLE))
		invalidate = invalidate_table;
	else if (RelationGetRelid(trigger->tg_relation) == tessera_catalog_relid(TESSERA_SCHEMA_PLACEMENT))
		invalidate = invalidate_schema;
	else
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function is a trigger of the extension's catalog only")));
	invalidate(trigger->tg_trigtuple, RelationGetDescr(trigger->tg_relation));
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		invalidate(trigger->tg_newtuple, RelationGetDescr(trigger->tg_relation));
	return PointerGetDatum(NULL);
}

static TupleDesc
result_desc(FunctionCallInfo fcinfo)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	return BlessTupleDesc(desc);
}

static Datum
record(TupleDesc desc, Datum *values, bool *nulls)
{
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/* Chunks, pages, pages that were made for this image, and bytes of an image with its maps. */
typedef struct Extent
{
	int64		chunks;
	int64		pages;
	int64		written;
	int64		bytes;
} Extent;

static Extent
extent_of(const TesseraRouting *routing)
{
	Extent		extent = {.bytes = routing->size};

	for (int i = 0; i < routing->ngroups; i++)
	{
		const TesseraChunkMap *map = tessera_group_map(tessera_routing_group(routing, i));

		if (map == NULL)
			continue;
		extent.chunks += map->nchunks;
		extent.pages += map->npages;
		extent.written += map->nwritten;
		extent.bytes += map->size;
		for (int32 page = 0; page < map->npages; page++)
			extent.bytes += tessera_map_page(map, page)->size;
	}
	return extent;
}

Datum
tessera_routing_image_facts(PG_FUNCTION_ARGS)
{
	TupleDesc	desc = result_desc(fcinfo);
	const TesseraRouting *routing = tessera_routing();
	Datum		values[13] = {0};
	bool		nulls[13] = {0};

	memset(nulls, routing == NULL, 8);
	memset(nulls + 9, routing == NULL, 3);
	values[8] = Int64GetDatum((int64) tessera_routing_loads());
	if (routing != NULL)
	{
		Extent		extent = extent_of(routing);

		values[0] = Int64GetDatum((int64) routing->sequence);
		values[1] = Int64GetDatum(routing->term);
		values[2] = Int32GetDatum(routing->self);
		values[3] = Int32GetDatum(routing->nnodes);
		values[4] = Int32GetDatum(routing->ntables);
		values[5] = Int32GetDatum(routing->ngroups);
		values[6] = Int64GetDatum(extent.chunks);
		values[7] = BoolGetDatum(!((const TesseraImage *) routing)->shared);
		values[9] = Int64GetDatum(extent.pages);
		values[10] = Int64GetDatum(extent.written);
		values[11] = Int64GetDatum(extent.bytes);
	}
	values[12] = Int64GetDatum((int64) tessera_routing_shared_pages());
	return record(desc, values, nulls);
}

/* The group of a sharded table, or ERROR. */
static const TesseraGroup *
group_of(const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *table = routing ? tessera_routing_table(routing, relid) : NULL;

	if (table == NULL || table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" is not a sharded table", get_rel_name(relid))));
	return tessera_routing_group(routing, table->group);
}

Datum
tessera_routing_key_owner(PG_FUNCTION_ARGS)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = group_of(routing, PG_GETARG_OID(0));
	Datum		key[TESSERA_MAX_KEY_COLUMNS];

	tessera_key_values_from_bound(tessera_group_keyspace(routing, group), PG_GETARG_TESSERA_BOUND_P(1), key);
	PG_RETURN_INT32(tessera_routing_owner(routing, group, key));
}

Datum
tessera_routing_chunk_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = group_of(routing, PG_GETARG_OID(0));
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < tessera_routing_nchunks(routing, group); i++)
	{
		TesseraChunk chunk;
		Datum		values[6];
		bool		nulls[6] = {0};

		CHECK_FOR_INTERRUPTS();
		tessera_routing_chunk(routing, group, i, &chunk);
		values[0] = PointerGetDatum(tessera_key_to_bound(ks, &chunk.min));
		values[1] = PointerGetDatum(tessera_key_to_bound(ks, &chunk.max));
		values[2] = Int32GetDatum(chunk.node_id);
		values[3] = Int64GetDatum(chunk.major);
		values[4] = Int64GetDatum(chunk.minor);
		values[5] = BoolGetDatum(chunk.jumbo);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
tessera_routing_placement_facts(PG_FUNCTION_ARGS)
{
	static const char *const gates[] = {"open", "write", "read"};
	TesseraGate gate = TESSERA_GATE_OPEN;
	TupleDesc	desc = result_desc(fcinfo);
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group;
	const TesseraPlacement *placement;
	Datum		values[8] = {0};
	bool		nulls[8] = {0};
	bool		newest;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	group = group_of(routing, PG_GETARG_OID(0));
	placement = tessera_placement_as_of(routing, group, GetActiveSnapshot(), &newest);
	memset(nulls, placement == NULL, 5);
	if (placement != NULL)
	{
		values[0] = Int64GetDatum(placement->major);
		values[1] = Int32GetDatum(placement->nowned);
		values[2] = Int32GetDatum(placement->ndeletions);
		for (int i = 0; i < placement->ngates; i++)
			gate = Max(gate, tessera_placement_gate_image(placement, i)->gate);
		values[3] = CStringGetTextDatum(gates[gate]);
		values[4] = BoolGetDatum(placement->hides);
	}
	values[5] = BoolGetDatum(newest);
	nulls[6] = nulls[7] = PG_ARGISNULL(1);
	if (!PG_ARGISNULL(1))
	{
		TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
		Datum		key[TESSERA_MAX_KEY_COLUMNS];
		TesseraKeyBound position;

		tessera_key_values_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(1), key);
		tessera_key_position(ks, key, &position);
		values[6] = BoolGetDatum(tessera_placement_owns(placement, ks, &position));
		values[7] = BoolGetDatum(tessera_placement_hides(placement, ks, &position));
	}
	return record(desc, values, nulls);
}
