/*
 * consistency.c
 *	  tessera.check_consistency: the invariants of doc/rules.md "Invariants" that can be checked from outside, one row for each violation.
 *
 * Phases: (1) the authoritative rows are fetched from the config node, groups one by one, and checked by themselves (1); (2) each shard is asked for
 * its placements, prepared transactions and, if deep, for rows that it neither owns nor has to delete (4); (3) placements are compared with chunks
 * (2); the clocks are asked for (9); (4) the definitions of the tables are compared over all nodes (10, definitions.c), and if deep the copies of
 * replicated ones (11).
 *
 * Nothing is locked: what is read in different places is of different moments. So what a running migration may have changed in between is left out,
 * and a violation that is found while metadata change deserves a second look. A node that does not answer is reported (invariant 0), and the rest is
 * checked.
 *
 * Memory: one context per group, reset after it; answers of shards live in the function's context.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "admin/consistency.h"
#include "catalog/bound_array.h"
#include "catalog/placement.h"
#include "transaction/node_clocks.h"

#define REFRESH_MS 10000
#define CLOCK_MS 5000			/* ms that each node's clock is waited for; the checks before have reported who does not answer */

PG_FUNCTION_INFO_V1(tessera_check_consistency);
PG_FUNCTION_INFO_V1(tessera_internal_count_unowned);

/* A chunk or an owned range, typed. */
typedef struct Range
{
	TesseraKeyBound min;
	TesseraKeyBound max;
	const char *min_text;
	const char *max_text;
	int32		node_id;
	int64		major;
	int64		minor;
} Range;

void
tessera_check_report(TesseraCheck *check, int invariant, const char *object, const char *detail)
{
	Datum		values[3] = {Int32GetDatum(invariant), CStringGetTextDatum(object), CStringGetTextDatum(detail)};
	bool		nulls[3] = {false, false, false};

	tuplestore_putvalues(check->result->setResult, check->result->setDesc, values, nulls);
}

const char *
tessera_check_node_name(const TesseraCheck *check, int32 node_id)
{
	const TesseraNode *node = tessera_routing_node(check->routing, node_id);

	return node != NULL ? NameStr(node->name) : psprintf("node %d", node_id);
}

TesseraCallTarget
tessera_check_target(TesseraCheck *check, int32 node_id)
{
	return tessera_keep_error(tessera_ask(node_id == check->config ? tessera_to_config() : tessera_to_node(node_id), TESSERA_TOLERATE_ERRORS),
							  &check->error);
}

bool
tessera_check_answered(TesseraCheck *check, int32 node_id, bool answered)
{
	if (!answered)
		tessera_check_report(check, 0, psprintf("node %s", tessera_check_node_name(check, node_id)),
							 psprintf("could not be checked: %s", check->error->message));
	return answered;
}


/* Ranges */

static void
read_bound(TesseraKeySpace *ks, const char *text, TesseraKeyBound *bound)
{
	tessera_key_from_bound(ks, tessera_bound_of_text(text), bound);
}

static Range *
ranges_of_chunks(TesseraKeySpace *ks, const TesseraGroupChunksAnswer *rows, int n)
{
	Range	   *ranges = palloc(sizeof(Range) * Max(n, 1));

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		ranges[i].min_text = rows[i].min;
		ranges[i].max_text = rows[i].max;
		read_bound(ks, rows[i].min, &ranges[i].min);
		read_bound(ks, rows[i].max, &ranges[i].max);
		ranges[i].node_id = rows[i].node_id;
		ranges[i].major = rows[i].major;
		ranges[i].minor = rows[i].minor;
	}
	return ranges;
}

static int
compare_ranges(const void *a, const void *b, void *ks)
{
	return tessera_key_compare(ks, &((const Range *) a)->min, &((const Range *) b)->min);
}

static int
compare_versions(const void *a, const void *b)
{
	const Range *x = *(const Range *const *) a;
	const Range *y = *(const Range *const *) b;

	if (x->major != y->major)
		return x->major < y->major ? -1 : 1;
	return x->minor < y->minor ? -1 : x->minor > y->minor;
}

static void
sort_ranges(TesseraKeySpace *ks, Range *ranges, int n)
{
	qsort_arg(ranges, n, sizeof(Range), compare_ranges, ks);
}

/* Joins neighbours that touch, in place: what is left is the set as such. Sorted before and after. */
static int
join_ranges(TesseraKeySpace *ks, Range *ranges, int n)
{
	int			kept = 0;

	for (int i = 1; i < n; i++)
	{
		if (tessera_key_compare(ks, &ranges[kept].max, &ranges[i].min) == 0)
		{
			ranges[kept].max = ranges[i].max;
			ranges[kept].max_text = ranges[i].max_text;
		}
		else
			ranges[++kept] = ranges[i];
	}
	return n > 0 ? kept + 1 : 0;
}


/* Invariant 1: chunks cover all keys once, and their versions are unique */

static void
check_cover(TesseraCheck *check, const char *object, TesseraKeySpace *ks, const Range *chunks, int n)
{
	if (n == 0 || chunks[0].min.elements[0].kind != TESSERA_MINKEY)
		tessera_check_report(check, 1, object, n == 0 ? "there is no chunk" : psprintf("no chunk before %s", chunks[0].min_text));
	for (int i = 0; i < n; i++)
	{
		const TesseraNode *node = tessera_routing_node(check->routing, chunks[i].node_id);
		int			order = i + 1 < n ? tessera_key_compare(ks, &chunks[i].max, &chunks[i + 1].min) : 0;

		if (tessera_key_compare(ks, &chunks[i].min, &chunks[i].max) >= 0)
			tessera_check_report(check, 1, object, psprintf("chunk from %s to %s is empty", chunks[i].min_text, chunks[i].max_text));
		if (order < 0)
			tessera_check_report(check, 1, object, psprintf("no chunk between %s and %s", chunks[i].max_text, chunks[i + 1].min_text));
		if (order > 0)
			tessera_check_report(check, 1, object, psprintf("chunks from %s to %s and from %s to %s overlap", chunks[i].min_text, chunks[i].max_text,
											  chunks[i + 1].min_text, chunks[i + 1].max_text));
		if (node == NULL || !node->is_shard)
			tessera_check_report(check, 1, object, psprintf("chunk from %s is owned by %s, which is no shard", chunks[i].min_text,
											  tessera_check_node_name(check, chunks[i].node_id)));
	}
	if (n > 0 && chunks[n - 1].max.elements[0].kind != TESSERA_MAXKEY)
		tessera_check_report(check, 1, object, psprintf("no chunk behind %s", chunks[n - 1].max_text));
}

static void
check_versions(TesseraCheck *check, const char *object, const Range *chunks, int n, int64 group_major, int64 group_minor)
{
	const Range **sorted = palloc(sizeof(Range *) * Max(n, 1));

	for (int i = 0; i < n; i++)
		sorted[i] = &chunks[i];
	qsort(sorted, n, sizeof(Range *), compare_versions);
	for (int i = 1; i < n; i++)
		if (compare_versions(&sorted[i - 1], &sorted[i]) == 0)
			tessera_check_report(check, 1, object,
								 psprintf("chunks from %s and from %s both have version " INT64_FORMAT "|" INT64_FORMAT, sorted[i - 1]->min_text,
											  sorted[i]->min_text, sorted[i]->major, sorted[i]->minor));
	if (n > 0 && (sorted[n - 1]->major != group_major || sorted[n - 1]->minor != group_minor))
		tessera_check_report(check, 1, object,
							 psprintf("group version is " INT64_FORMAT "|" INT64_FORMAT ", but the highest chunk has " INT64_FORMAT "|" INT64_FORMAT,
										  group_major, group_minor, sorted[n - 1]->major, sorted[n - 1]->minor));
}


/* Invariant 2: placements are what the chunks say */

static bool
is_busy(const TesseraCheck *check, const pg_uuid_t *group_id, int32 node_id)
{
	for (int i = 0; i < check->nbusy; i++)
		if (memcmp(check->busy[i].group_id, group_id, UUID_LEN) == 0 && check->busy[i].node_id == node_id)
			return true;
	return false;
}

/* Compares two sets of joined ranges; reports the first place where they differ. */
static void
compare_sets(TesseraCheck *check, const char *object, TesseraKeySpace *ks, const char *shard, const Range *should, int nshould, const Range *is,
			 int nis)
{
	for (int i = 0; i < Max(nshould, nis); i++)
	{
		if (i < nshould && i < nis && tessera_key_compare(ks, &should[i].min, &is[i].min) == 0 &&
			tessera_key_compare(ks, &should[i].max, &is[i].max) == 0)
			continue;
		tessera_check_report(check, 2, object, psprintf("by its chunks shard %s owns %s, by its placement %s", shard,
										  i < nshould ? psprintf("the range from %s to %s", should[i].min_text, should[i].max_text) :
										  "no further range",
										  i < nis ? psprintf("the range from %s to %s", is[i].min_text, is[i].max_text) : "no further range"));
		return;
	}
}

/*
 * Ranges in rows of a shard's answer about a group: those that it owns, or those that it has to delete. *first: the first row about the group, or
 * NULL.
 */
static Range *
placement_ranges(TesseraKeySpace *ks, const TesseraShardPlacements *answer, const pg_uuid_t *group_id, bool deleted, int *n,
				 const TesseraOwnedRangesAnswer **first)
{
	Range	   *ranges = palloc(sizeof(Range) * Max(answer->n, 1));

	*n = 0;
	*first = NULL;
	for (int i = 0; i < answer->n; i++)
	{
		const TesseraOwnedRangesAnswer *row = &answer->rows[i];

		if (memcmp(row->group_id, group_id, UUID_LEN) != 0)
			continue;
		if (*first == NULL)
			*first = row;
		if (row->min == NULL || row->deleted != deleted)
			continue;
		ranges[*n].min_text = row->min;
		ranges[*n].max_text = row->max;
		read_bound(ks, ranges[*n].min_text, &ranges[*n].min);
		read_bound(ks, ranges[*n].max_text, &ranges[*n].max);
		(*n)++;
	}
	sort_ranges(ks, ranges, *n);
	return ranges;
}

/* Invariant 5: what a shard owns is not among what it has to delete. */
static void
check_deletions(TesseraCheck *check, const char *object, TesseraKeySpace *ks, const char *shard, const Range *owned, int nowned,
				const Range *deletions, int n)
{
	for (int i = 0; i < n; i++)
		for (int j = 0; j < nowned; j++)
			if (tessera_key_compare(ks, &deletions[i].min, &owned[j].max) < 0 && tessera_key_compare(ks, &owned[j].min, &deletions[i].max) < 0)
				tessera_check_report(check, 5, object, psprintf("shard %s has to delete the range from %s to %s, but owns that from %s to %s", shard,
																deletions[i].min_text,
												  deletions[i].max_text, owned[j].min_text, owned[j].max_text));
}

/* One shard's placement of one group: rows of its answer with that group_id. */
static void
check_placement(TesseraCheck *check, const TesseraTableGroupsAnswer *group, TesseraKeySpace *ks, int shard, const Range *chunks, int n)
{
	const TesseraShardPlacements *placements = &check->placements[shard];
	const char *object = group->tables;
	int32		node_id = check->shards[shard];
	const char *name = tessera_check_node_name(check, node_id);
	Range	   *should = palloc(sizeof(Range) * Max(n, 1));
	Range	   *is;
	Range	   *deletions;
	int			nshould = 0;
	int			nis;
	int			ndeletions;
	const TesseraOwnedRangesAnswer *first;
	int64		major = 0;

	for (int i = 0; i < n; i++)
		if (chunks[i].node_id == node_id)
		{
			should[nshould++] = chunks[i];
			major = Max(major, chunks[i].major);
		}
	is = placement_ranges(ks, placements, group->group_id, false, &nis, &first);
	deletions = placement_ranges(ks, placements, group->group_id, true, &ndeletions, &first);
	check_deletions(check, object, ks, name, is, nis, deletions, ndeletions);
	compare_sets(check, object, ks, name, should, join_ranges(ks, should, nshould), is, join_ranges(ks, is, nis));

	if ((first != NULL ? first->major : 0) != major)
		tessera_check_report(check, 2, object, psprintf("shard %s has shard version " INT64_FORMAT ", but its chunks have " INT64_FORMAT, name,
														first != NULL ? first->major : 0, major));
	if (first != NULL && nshould > 0 && memcmp(first->epoch, group->epoch, UUID_LEN) != 0)
		tessera_check_report(check, 2, object, psprintf("shard %s has another epoch of it", name));
	if (first != NULL && strcmp(first->gate, "open") != 0)
		tessera_check_report(check, 2, object, psprintf("on shard %s the %s gate is closed without a running migration", name, first->gate));
}

static void
check_group(TesseraCheck *check, const TesseraTableGroupsAnswer *row)
{
	const TesseraGroup *group = tessera_routing_group_by_id(check->routing, row->group_id);
	TesseraKeySpace *ks;
	TesseraGroupChunksAnswer *rows;
	Range	   *chunks;
	int			n;

	if (group == NULL)
	{
		tessera_check_report(check, 0, row->tables, "this node does not know the table group yet");
		return;
	}
	ks = tessera_group_keyspace(check->routing, group);
	if (!tessera_check_answered(check, check->config,
								tessera_call_group_chunks(tessera_check_target(check, check->config), row->group_id, &rows, &n)))
		return;
	chunks = ranges_of_chunks(ks, rows, n);
	sort_ranges(ks, chunks, n);
	check_cover(check, row->tables, ks, chunks, n);
	check_versions(check, row->tables, chunks, n, row->group_major, row->group_minor);
	for (int i = 0; i < check->nshards; i++)
		if (check->placements[i].known && !is_busy(check, row->group_id, check->shards[i]))
			check_placement(check, row, ks, i, chunks, n);
}


/* Shards by themselves */

/* Invariant 6: nothing stays prepared. */
static void
check_prepared(TesseraCheck *check, int32 node_id)
{
	TesseraPreparedPartsAnswer *rows;
	int			n;

	if (!tessera_check_answered(check, node_id, tessera_call_prepared_parts(tessera_check_target(check, node_id), &rows, &n)))
		return;
	for (int i = 0; i < n; i++)
		tessera_check_report(check, 6, psprintf("node %s", tessera_check_node_name(check, node_id)),
							 psprintf("transaction %s is prepared since %s", rows[i].gid, rows[i].since));
}

/* Invariant 8: a promoted node that does not know yet what it owns, or what is true, refuses. */
static void
check_promoted(TesseraCheck *check, int32 node_id)
{
	char	   *reason;

	if (tessera_check_answered(check, node_id, tessera_call_promotion_doubt(tessera_check_target(check, node_id), &reason)) && reason != NULL)
		tessera_check_report(check, 8, psprintf("node %s", tessera_check_node_name(check, node_id)),
							 psprintf("was promoted, and does not know what it owns: %s", reason));
}

/* Invariant 4: no row lies where it is neither owned nor to be deleted. */
static void
check_rows(TesseraCheck *check, int32 node_id)
{
	TesseraUnownedRowsAnswer *rows;
	int			n;

	if (!tessera_check_answered(check, node_id, tessera_call_unowned_rows(tessera_check_target(check, node_id), &rows, &n)))
		return;
	for (int i = 0; i < n; i++)
		tessera_check_report(check, 4, rows[i].table,
							 psprintf("shard %s holds " INT64_FORMAT " rows that it does not own%s%s", tessera_check_node_name(check, node_id),
									  rows[i].rows, rows[i].example == NULL ? "" : ", one of key ", rows[i].example == NULL ? "" : rows[i].example));
}

static void
check_clocks(TesseraCheck *check)
{
	int			n;
	TesseraNodeClock *clocks = tessera_node_clocks(CLOCK_MS, &n);

	for (int i = 0; i < n; i++)
		if (clocks[i].known && !tessera_times_ordered(&clocks[i].times))
			tessera_check_report(check, 9, psprintf("node %s", NameStr(clocks[i].name)),
								 psprintf("cluster time " UINT64_FORMAT ", config time " UINT64_FORMAT ", topology time " UINT64_FORMAT,
										  clocks[i].times.cluster, clocks[i].times.config, clocks[i].times.topology));
}

static void
read_shards(TesseraCheck *check)
{
	check->shards = palloc(sizeof(int32) * check->routing->nnodes);
	check->placements = palloc0(sizeof(TesseraShardPlacements) * check->routing->nnodes);
	for (int i = 0; i < check->routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(check->routing, i)->node_id;
		TesseraShardPlacements *placements = &check->placements[check->nshards];

		if (!tessera_routing_node_at(check->routing, i)->is_shard)
			continue;
		check->shards[check->nshards++] = node_id;
		placements->known = tessera_check_answered(check, node_id, tessera_call_owned_ranges(tessera_check_target(check, node_id), &placements->rows,
																							 &placements->n));
	}
}

/* tessera.check_consistency(deep bool) returns setof (invariant int4, object text, detail text) */
Datum
tessera_check_consistency(PG_FUNCTION_ARGS)
{
	TesseraCheck check = {.deep = PG_GETARG_BOOL(0)};
	MemoryContext scratch;
	MemoryContext old;
	TesseraTableGroupsAnswer *groups;
	int			ngroups = 0;

	InitMaterializedSRF(fcinfo, 0);
	check.result = (ReturnSetInfo *) fcinfo->resultinfo;
	(void) tessera_routing_refresh(REFRESH_MS); /* groups that are still not known are reported */
	check.routing = tessera_routing_or_error();
	check.config = tessera_routing_config(check.routing)->node_id;

	/* migrations before and groups after the placements: who moved in between is in one of the two */
	if (!tessera_check_answered(&check, check.config,
								tessera_call_busy_groups(tessera_check_target(&check, check.config), &check.busy, &check.nbusy)))
		PG_RETURN_NULL();
	read_shards(&check);
	if (!tessera_check_answered(&check, check.config, tessera_call_table_groups(tessera_check_target(&check, check.config), &groups, &ngroups)))
		ngroups = 0;

	scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera check_consistency", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(scratch);
	for (int i = 0; i < ngroups; i++)
	{
		check_group(&check, &groups[i]);
		MemoryContextReset(scratch);
	}
	for (int i = 0; i < check.routing->nnodes; i++)
	{
		check_prepared(&check, tessera_routing_node_at(check.routing, i)->node_id);
		check_promoted(&check, tessera_routing_node_at(check.routing, i)->node_id);
	}
	check_clocks(&check);
	tessera_check_definitions(&check);
	for (int i = 0; check.deep && i < check.nshards; i++)
		check_rows(&check, check.shards[i]);
	if (check.deep)
		tessera_check_copies(&check);
	MemoryContextSwitchTo(old);
	PG_RETURN_NULL();
}


/* The shard's side of invariant 4 */

/* Values of the key columns of a row; false if one is null. */
static bool
row_key(TupleTableSlot *slot, const TesseraTable *table, Datum *values)
{
	for (int i = 0; i < table->nkeys; i++)
	{
		bool		isnull;

		values[i] = slot_getattr(slot, table->keys[i], &isnull);
		if (isnull)
			return false;
	}
	return true;
}

/* Counts the rows that lie here without being owned or scheduled for deletion, and keeps the key of one. */
static int64
count_unowned(Relation rel, const TesseraRouting *routing, const TesseraTable *table, char **example)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);
	TesseraKeySpace *ks = group != NULL ? tessera_group_keyspace(routing, group) : NULL;
	bool		newest;
	Snapshot	snapshot = GetActiveSnapshot();
	const TesseraPlacement *placement = group != NULL ? tessera_placement_as_of(routing, group, snapshot, &newest) : NULL;
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera unowned rows", ALLOCSET_SMALL_SIZES);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	int64		count = 0;

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext old = MemoryContextSwitchTo(scratch);
		Datum		values[TESSERA_MAX_KEY_COLUMNS];
		TesseraKeyBound position;

		CHECK_FOR_INTERRUPTS();
		if (group == NULL)
			count++;
		else if (row_key(slot, table, values))
		{
			tessera_key_position(ks, values, &position);
			if (placement == NULL || (!tessera_placement_owns(placement, ks, &position) && !tessera_placement_hides(placement, ks, &position)))
			{
				count++;
				MemoryContextSwitchTo(old);
				if (*example == NULL && table->nkeys > 0)
					*example = tessera_bound_to_cstring(tessera_key_to_bound(ks, &position));
			}
		}
		MemoryContextSwitchTo(old);
		MemoryContextReset(scratch);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(scratch);
	return count;
}

/* internal_count_unowned(table regclass, OUT rows int8, OUT example text): the deep check of one table on this shard. */
Datum
tessera_internal_count_unowned(PG_FUNCTION_ARGS)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table;
	TupleDesc	desc;
	Relation	rel;
	Datum		values[2];
	bool		nulls[2] = {false, true};
	char	   *example = NULL;
	int64		count = 0;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));

	/* a placed table belongs on its primary shard, and there all of it; a replicated one belongs everywhere */
	if (routing != NULL && (table = tessera_routing_table(routing, PG_GETARG_OID(0))) != NULL && !table->replicated &&
		(table->placement_group >= 0 || table->node_id != routing->self))
	{
		rel = table_open(PG_GETARG_OID(0), AccessShareLock);
		if (rel->rd_rel->relkind == RELKIND_RELATION)
			count = count_unowned(rel, routing, table, &example);
		table_close(rel, AccessShareLock);
	}
	values[0] = Int64GetDatum(count);
	if (example != NULL)
	{
		values[1] = CStringGetTextDatum(example);
		nulls[1] = false;
	}
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
