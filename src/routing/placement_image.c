/*
 * placement_image.c
 *	  The placement record in its typed, flat form, and the look-ups in it.
 *
 * Made from a catalog row: ranges are sorted and adjoining ones joined, so that a look-up is a binary search; whether rows are hidden at all
 * (deletions minus owned is not empty) is found out once, here. By-reference values lie behind the ranges; offsets count from the record's beginning.
 *
 * Which record counts: the image has the newest one and the xid that wrote it. A snapshot that sees this xid uses it; an older snapshot has the
 * catalog row read under itself (MVCC keeps it as long as the snapshot lives).
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "catalog/change.h"
#include "routing/image.h"

#define TESSERA_GATE_IMAGE(placement, i) ((TesseraGateImage *) ((char *) (placement) + (placement)->gates_offset) + (i))

typedef struct TypedRange
{
	TesseraKeyBound min;
	TesseraKeyBound max;
} TypedRange;


/* Making the flat form */

static int
compare_ranges(const void *a, const void *b, void *ks)
{
	return tessera_key_compare(ks, &((const TypedRange *) a)->min, &((const TypedRange *) b)->min);
}

/* Typed, sorted, joined; palloc'd. Returns their count. */
static int
typed_ranges(TesseraKeySpace *ks, int n, const TesseraRange *ranges, TypedRange **out)
{
	TypedRange *typed = palloc0(Max(n, 1) * sizeof(TypedRange));
	int			count = 0;
	int			joined = 0;

	for (int i = 0; i < n; i++)
	{
		tessera_key_from_bound(ks, ranges[i].min, &typed[count].min);
		tessera_key_from_bound(ks, ranges[i].max, &typed[count].max);
		if (tessera_key_compare(ks, &typed[count].min, &typed[count].max) < 0)
			count++;
	}
	qsort_arg(typed, count, sizeof(TypedRange), compare_ranges, ks);
	for (int i = 1; i < count; i++)
	{
		if (tessera_key_compare(ks, &typed[i].min, &typed[joined].max) > 0)
			typed[++joined] = typed[i];
		else if (tessera_key_compare(ks, &typed[i].max, &typed[joined].max) > 0)
			typed[joined].max = typed[i].max;
	}
	*out = typed;
	return count == 0 ? 0 : joined + 1;
}

/* True if any part of a deletion range is not owned. Both lists are sorted and joined, so a range that is covered lies within one owned range. */
static bool
any_hidden(TesseraKeySpace *ks, int nowned, const TypedRange *owned, int ndeletions, const TypedRange *deletions)
{
	int			at = 0;

	for (int i = 0; i < ndeletions; i++)
	{
		while (at < nowned && tessera_key_compare(ks, &owned[at].max, &deletions[i].max) < 0)
			at++;
		if (at == nowned || tessera_key_compare(ks, &owned[at].min, &deletions[i].min) > 0)
			return true;
	}
	return false;
}

static Size
ranges_bytes(TesseraKeySpace *ks, int n, const TypedRange *ranges)
{
	Size		size = 0;

	for (int i = 0; i < n; i++)
		size += tessera_key_flat_size(ks, &ranges[i].min) + tessera_key_flat_size(ks, &ranges[i].max);
	return size;
}

static Size
put_ranges(TesseraKeySpace *ks, TesseraPlacement *placement, int first, int n, const TypedRange *ranges, Size offset)
{
	for (int i = 0; i < n; i++)
	{
		TesseraKeyDatum *at = placement->ranges + (Size) 2 * (first + i) * ks->nelements;
		TesseraKeyBound flat;

		offset = tessera_key_flatten(ks, &ranges[i].min, &flat, (char *) placement, offset);
		memcpy(at, flat.elements, ks->nelements * sizeof(TesseraKeyDatum));
		offset = tessera_key_flatten(ks, &ranges[i].max, &flat, (char *) placement, offset);
		memcpy(at + ks->nelements, flat.elements, ks->nelements * sizeof(TesseraKeyDatum));
	}
	return offset;
}

/* Ranges of the gates, in their order; palloc'd. */
static TypedRange *
typed_gates(TesseraKeySpace *ks, const TesseraPlacementRow *row)
{
	TypedRange *typed = palloc0(Max(row->ngates, 1) * sizeof(TypedRange));

	for (int i = 0; i < row->ngates; i++)
	{
		tessera_key_from_bound(ks, row->gates[i].range.min, &typed[i].min);
		tessera_key_from_bound(ks, row->gates[i].range.max, &typed[i].max);
	}
	return typed;
}

static Size
put_gates(TesseraKeySpace *ks, TesseraPlacement *placement, const TesseraPlacementRow *row, const TypedRange *ranges, Size offset)
{
	for (int i = 0; i < row->ngates; i++)
	{
		TesseraGateImage *gate = TESSERA_GATE_IMAGE(placement, i);

		gate->migration_id = row->gates[i].migration_id;
		gate->gate = row->gates[i].gate;
		offset = tessera_key_flatten(ks, &ranges[i].min, &gate->min, (char *) placement, offset);
		offset = tessera_key_flatten(ks, &ranges[i].max, &gate->max, (char *) placement, offset);
	}
	return offset;
}

TransactionId
tessera_image_xid(TransactionId xid, TransactionId oldest)
{
	if (!TransactionIdIsNormal(xid) || (TransactionIdPrecedes(xid, oldest) && !TransactionIdIsCurrentTransactionId(xid)))
		return InvalidTransactionId;
	return xid;
}

TesseraPlacement *
tessera_placement_image(const TesseraPlacementRow *row, TesseraKeySpace *ks, TransactionId oldest)
{
	TypedRange *owned;
	TypedRange *deletions;
	int			nowned = typed_ranges(ks, row->nowned, row->owned, &owned);
	int			ndeletions = typed_ranges(ks, row->ndeletions, row->deletions, &deletions);
	TypedRange *gates = typed_gates(ks, row);
	Size		gates_at = MAXALIGN(offsetof(TesseraPlacement, ranges) + (Size) 2 * (nowned + ndeletions) * ks->nelements * sizeof(TesseraKeyDatum));
	Size		head = MAXALIGN(gates_at + row->ngates * sizeof(TesseraGateImage));
	Size		size = head + ranges_bytes(ks, nowned, owned) + ranges_bytes(ks, ndeletions, deletions) + ranges_bytes(ks, row->ngates, gates);
	TesseraPlacement *placement = palloc0(size);
	Size		offset;

	placement->term = row->term;
	placement->epoch = row->epoch;
	placement->major = row->major;
	placement->xid = tessera_image_xid(row->xmin, oldest);
	placement->ngates = row->ngates;
	placement->gates_offset = gates_at;
	placement->nowned = nowned;
	placement->ndeletions = ndeletions;
	placement->hides = any_hidden(ks, nowned, owned, ndeletions, deletions);
	placement->nelements = ks->nelements;
	placement->size = size;
	offset = put_ranges(ks, placement, 0, nowned, owned, head);
	offset = put_ranges(ks, placement, nowned, ndeletions, deletions, offset);
	offset = put_gates(ks, placement, row, gates, offset);
	Assert(offset == size);
	return placement;
}


/* Which one a snapshot sees */

/* True if an MVCC snapshot sees the changes of a transaction; xid: as an image keeps it. */
static bool
sees(Snapshot snapshot, TransactionId xid)
{
	if (!TransactionIdIsValid(xid) || snapshot == NULL || snapshot->snapshot_type != SNAPSHOT_MVCC)
		return true;
	if (TransactionIdPrecedes(xid, snapshot->xmin))
	{
		/* long ago: have the image loaded again before xids wrap around, it will then say "visible to all" */
		if (snapshot->xmin - xid > (TransactionId) 1 << 30)
			tessera_catalog_bump();
		return true;
	}
	return TransactionIdIsCurrentTransactionId(xid) || !XidInMVCCSnapshot(xid, snapshot);
}

bool
tessera_placements_known(const TesseraRouting *routing, Snapshot snapshot)
{
	return !routing->placements_unknown && sees(snapshot, routing->known_since);
}

const TesseraPlacement *
tessera_placement_as_of(const TesseraRouting *routing, const TesseraGroup *group, Snapshot snapshot, bool *newest)
{
	const TesseraPlacement *placement = group->placement_offset == 0 ? NULL : TESSERA_AT(routing, group->placement_offset, const TesseraPlacement);
	TesseraPlacementRow *row;

	*newest = true;
	/* rows of a group whose key is not known here cannot be told apart */
	if (group->ncolumns == 0 && !group->of_schema)
		(void) tessera_group_keyspace(routing, group);
	if (placement == NULL || sees(snapshot, placement->xid))
		return placement;

	*newest = false;
	row = tessera_placement_read(&group->group_id, snapshot);
	return row == NULL ? NULL : tessera_placement_image(row, tessera_group_keyspace(routing, group), InvalidTransactionId);
}


/* Questions */

#define RANGE_MIN(placement, i) ((const TesseraKeyBound *) ((placement)->ranges + (Size) 2 * (i) * (placement)->nelements))
#define RANGE_MAX(placement, i) ((const TesseraKeyBound *) ((placement)->ranges + ((Size) 2 * (i) + 1) * (placement)->nelements))

/* True if one of n sorted ranges, from number `first` on, holds the position. */
static bool
ranges_hold(const TesseraPlacement *placement, TesseraKeySpace *ks, int first, int n, const TesseraKeyBound *position)
{
	const char *base = (const char *) placement;
	int			low = first;
	int			high = first + n - 1;

	if (n == 0 || tessera_key_compare_flat(ks, RANGE_MIN(placement, first), base, position) > 0)
		return false;
	while (low < high)
	{
		int			middle = low + (high - low + 1) / 2;

		if (tessera_key_compare_flat(ks, RANGE_MIN(placement, middle), base, position) <= 0)
			low = middle;
		else
			high = middle - 1;
	}
	return tessera_key_compare_flat(ks, RANGE_MAX(placement, low), base, position) > 0;
}

bool
tessera_placement_owns(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraKeyBound *position)
{
	return placement != NULL && ranges_hold(placement, ks, 0, placement->nowned, position);
}

bool
tessera_placement_owns_same(const TesseraPlacement *a, const TesseraPlacement *b, TesseraKeySpace *ks)
{
	if (a == NULL || b == NULL || a->term != b->term || a->major != b->major || memcmp(&a->epoch, &b->epoch, sizeof(pg_uuid_t)) != 0 ||
		a->nowned != b->nowned)
		return false;
	for (int i = 0; i < a->nowned; i++)
	{
		TesseraKeyBound min,
					max;

		tessera_key_unflatten(ks, RANGE_MIN(b, i), (const char *) b, &min);
		tessera_key_unflatten(ks, RANGE_MAX(b, i), (const char *) b, &max);
		if (tessera_key_compare_flat(ks, RANGE_MIN(a, i), (const char *) a, &min) != 0 ||
			tessera_key_compare_flat(ks, RANGE_MAX(a, i), (const char *) a, &max) != 0)
			return false;
	}
	return true;
}

bool
tessera_placement_hides(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraKeyBound *position)
{
	return placement != NULL && placement->hides &&
		ranges_hold(placement, ks, placement->nowned, placement->ndeletions, position) &&
		!ranges_hold(placement, ks, 0, placement->nowned, position);
}

const TesseraGateImage *
tessera_placement_gate_image(const TesseraPlacement *placement, int i)
{
	return TESSERA_GATE_IMAGE(placement, i);
}

bool
tessera_placement_gate_holds(const TesseraPlacement *placement, TesseraKeySpace *ks, int i, const TesseraKeyBound *position)
{
	const char *base = (const char *) placement;
	const TesseraGateImage *gate = TESSERA_GATE_IMAGE(placement, i);

	return tessera_key_compare_flat(ks, &gate->min, base, position) <= 0 && tessera_key_compare_flat(ks, &gate->max, base, position) > 0;
}

/* True if the placement owns exactly this shard's chunks of the group. */
static bool
owns_chunks(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraRouting *routing, const TesseraGroup *group)
{
	const char *base = (const char *) placement;
	int			nchunks = tessera_routing_nchunks(routing, group);
	TesseraChunk first;
	TesseraChunk last;
	int			runs = 0;

	for (int i = 0, end; i < nchunks; i = end)
	{
		CHECK_FOR_INTERRUPTS();
		end = tessera_routing_run_end(routing, group, i);
		tessera_routing_chunk(routing, group, i, &first);
		if (first.node_id != routing->self)
			continue;
		tessera_routing_chunk(routing, group, end - 1, &last);
		if (runs == placement->nowned || tessera_key_compare_flat(ks, RANGE_MIN(placement, runs), base, &first.min) != 0 ||
			tessera_key_compare_flat(ks, RANGE_MAX(placement, runs), base, &last.max) != 0)
			return false;
		runs++;
	}
	return runs == placement->nowned;
}

bool
tessera_placement_raise_version(const TesseraRouting *routing, const TesseraGroup *group, TesseraPlacementRow *row)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	int64		major = tessera_routing_shard_major(routing, group, routing->self);
	bool		same_epoch = memcmp(&row->epoch, &group->epoch, sizeof(pg_uuid_t)) == 0;

	if (row->term > routing->term || (row->term == routing->term && (row->nowned == 0 || row->major >= major || !same_epoch)) ||
		(row->nowned > 0 && !same_epoch) || !owns_chunks(tessera_placement_image(row, ks, InvalidTransactionId), ks, routing, group))
		return false;
	row->term = routing->term;
	row->major = major;
	return true;
}

void
tessera_placement_begin_schema(const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraKeyBound min = {{{TESSERA_MINKEY}}};
	TesseraKeyBound max = {{{TESSERA_MAXKEY}}};
	TesseraRange all = {tessera_key_to_bound(ks, &min), tessera_key_to_bound(ks, &max)};
	TesseraPlacementRow *row;

	if (tessera_placement_read(&group->group_id, NULL) != NULL)
		return;
	row = tessera_placement_lock(&group->group_id);
	row->epoch = group->epoch;
	row->term = routing->term;
	row->major = group->group_major;
	row->nowned = 1;
	row->owned = &all;
	tessera_placement_write(row);
}
