/*
 * range_deleter.c
 *	  The range deleter: removes rows of ranges that this shard no longer owns (S64-S81, doc/design.md#range-deletion).
 *
 * What is to be deleted is in the placement row: deletion ranges, without what is owned, without the range of a migration that is under way. Each
 * batch's transaction locks that row and looks again, so that no row is deleted that is owned at its commit (invariant 5). When no table of the group
 * has a row of the range left, the range goes from the placement row.
 *
 * What is deleted here may be the only copy, if this shard and the owner have both lost commits. So a range is touched only when the shards that own
 * it by the chunks have said that they do, by their own placements: not one that was promoted and does not know yet, or that has lost the move.
 *
 * No snapshot has to be waited for: MVCC keeps the rows for those who may still see them, here and on standbys. orphan_cleanup_delay only spares work
 * when a range soon comes back; its clock is this process's memory, and starts anew with it.
 *
 * A crash leaves the range in the placement row.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/migration_row.h"
#include "catalog/placement_ranges.h"
#include "common/injection.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "migration/burden.h"
#include "migration/range_deleter.h"
#include "transfer/lock_holders.h"
#include "transfer/transfer.h"
#include "migration/migration.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"
#include "migration/range_deleter.h"
#include "transaction/background.h"
#include "transfer/lock_holders.h"
#include "transfer/transfer.h"


#define IDLE_MS 5000L
#define HELD_MS 1000L			/* looks again so soon if a migration holds a range back: its end may wake us before it is visible */
#define ASK_MS 5000				/* for an owner's answer */
#define REFRESH_FIRST_MS 10000L	/* between fetches of the chunks that have not helped, doubled by each */
#define REFRESH_LAST_MS 60000L
#define STANDBYS_MS 10000		/* after a batch waits so long for standbys that have much to replay */
#define STANDBYS_POLL_MS 100
/* A migration that has older rows deleted first leaves the placement row to another one whose gate is closed: for so long, looking so often. */
#define CLOSED_GATE_MS 500
#define CLOSED_GATE_POLL_MS 20

/* Of a batch. */
#define NOT_TO_BE (-1)
#define NOT_NOW (-2)

/* A range of a group that may be deleted. */
typedef struct Piece
{
	pg_uuid_t	group_id;
	TesseraRange range;
} Piece;

/* A part of a piece that has one owner. */
typedef struct Part
{
	int32		owner;
	char	   *min;
	char	   *max;
} Part;

/* Since when a range is seen as one to delete. By a hash of it: two ranges with the same hash would only share the time. */
typedef struct Watched
{
	uint64		hash;
	TimestampTz since;
	TimestampTz last;			/* step at which it was still there */
} Watched;

static HTAB *watched = NULL;	/* lives as long as the process */

/* Fetches of the chunks because an owner has denied; lives as long as the process. */
static struct
{
	TimestampTz not_before;		/* the next one */
	long		distance;		/* ms, from the last one */
} fetches = {0};


/*
 * Deletions of the placement that may be carried out: all but those of ranges that migrations receive, or have given away without having ended; or,
 * for a migration that has not received anything yet, those within its own ranges. By its id, not by its ranges: if it was ended meanwhile, they
 * may be another migration's. In a transaction.
 */
static int
deletable(TesseraKeySpace *ks, const TesseraPlacementRow *placement, const TesseraMigrationRow *receiver, TesseraRange **ranges)
{
	int			n = placement->ndeletions;
	int			nreceived;
	int			ndonated;
	TesseraRange *donated = tessera_donated_ranges(&placement->group_id, &ndonated);
	TesseraRange *received = tessera_received_ranges(&placement->group_id, receiver ? &receiver->migration_id : NULL, NULL, &nreceived);

	*ranges = placement->deletions;
	for (int i = 0; i < placement->nowned; i++)
		tessera_ranges_remove(ks, &n, ranges, &placement->owned[i]);
	for (int i = 0; i < placement->ngates; i++)
		tessera_ranges_remove(ks, &n, ranges, &placement->gates[i].range);
	for (int i = 0; i < nreceived; i++)
		tessera_ranges_remove(ks, &n, ranges, &received[i]);
	for (int i = 0; i < ndonated; i++)
		tessera_ranges_remove(ks, &n, ranges, &donated[i]);
	if (receiver != NULL && n > 0)
	{
		/* cut to its ranges: what lies outside of them is taken away */
		TesseraRange *outside = *ranges;
		int			noutside = n;

		for (int i = 0; i < receiver->nranges; i++)
			if (memcmp(&receiver->ranges[i].group_id, &placement->group_id, sizeof(pg_uuid_t)) == 0)
				tessera_ranges_remove(ks, &noutside, &outside, &receiver->ranges[i].range);
		for (int i = 0; i < noutside; i++)
			tessera_ranges_remove(ks, &n, ranges, &outside[i]);
	}
	return n;
}

/*
 * Locks the tables; false: another transaction has locked one. The deleter does not wait for it, as a migration would: it has other ranges to delete.
 */
static bool
lock_tables(const TesseraMovingRanges *moving, const TesseraMigrationRow *receiver)
{
	for (int i = 0; i < moving->ntables; i++)
	{
		if (receiver != NULL)
			tessera_lock_table_by_retry(moving->tables[i].relid, RowExclusiveLock);
		else if (!ConditionalLockRelationOid(moving->tables[i].relid, RowExclusiveLock))
			return false;
	}
	return true;
}

static bool
is_replicated(const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *table = tessera_routing_table(routing, relid);

	return table != NULL && table->replicated;
}

/*
 * One batch of one range, in a transaction of its own. Returns rows deleted; 0: none were left, and the range is off the deletions; NOT_TO_BE: it is
 * no longer to be deleted; NOT_NOW: in a while.
 *
 * The tables are locked first: who waits for them must not hold up the steps of migrations, which want the placement row. For the same reason,
 * and if heeds_gates, no batch begins while a gate of the group is closed.
 */
static int64
delete_batch(const Piece *piece, const TesseraMigrationRow *receiver, bool heeds_gates)
{
	const TesseraGroup *group;
	const TesseraRouting *routing;
	TesseraPlacementRow *placement;
	TesseraKeySpace *ks;
	TesseraRange *ranges;
	TesseraMovingRanges *moving;
	pg_uuid_t	nobody = {{0}};
	TesseraGate gate;
	int			n;
	int64		rows = 0;

	tessera_background_begin();
	routing = tessera_background_group(&piece->group_id, &group);
	moving = tessera_moving_ranges(&nobody, 1, &(TesseraOperationRange) {piece->group_id, group->epoch, piece->range});
	if (!lock_tables(moving, receiver))
	{
		tessera_background_commit();
		return NOT_NOW;
	}
	ks = tessera_group_keyspace(routing, group);
	placement = tessera_placement_lock(&piece->group_id);
	gate = tessera_placement_closest_gate(placement);
	routing = tessera_background_known_group(&piece->group_id, &group);
	n = deletable(ks, placement, receiver, &ranges);
	if (routing->placements_unknown || routing->replaced || !tessera_ranges_cover(ks, n, ranges, &piece->range) ||
		(gate != TESSERA_GATE_OPEN && heeds_gates))
	{
		rows = gate != TESSERA_GATE_OPEN && heeds_gates ? NOT_NOW : NOT_TO_BE;
		tessera_background_commit();
		return rows;
	}
	for (int i = 0; i < moving->ntables && rows == 0; i++)
	{
		/* what was replicated before it was locked has rows that stay */
		if (!is_replicated(routing, moving->tables[i].relid))
			rows = tessera_delete_range_batch(routing, group, moving->tables[i].relid, moving->groups[0].ranges, tessera_range_deleter_batch_size);
	}
	if (rows == 0)
	{
		tessera_ranges_remove(ks, &placement->ndeletions, &placement->deletions, &piece->range);
		tessera_placement_write(placement);
	}
	else
		tessera_background_commit_lazily();
	tessera_injection("range_deleter_batch");
	tessera_background_commit();
	return rows;
}

/* Between batches: the delay is the least, whatever wakes this process meanwhile; a new setting counts at once. */
static void
rest(void)
{
	TimestampTz began = GetCurrentTimestamp();
	char		who[TESSERA_BURDEN_TEXT];
	long		left;

	tessera_background_handle_interrupts();
	while ((left = tessera_range_deleter_batch_delay - (long) ((GetCurrentTimestamp() - began) / 1000)) > 0)
		tessera_background_sleep(left);
	/* standbys that do not follow are waited for, but not for ever */
	while (tessera_standbys_burdened(who) && !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), STANDBYS_MS))
	{
		pgstat_report_activity(STATE_RUNNING, psprintf("deleting ranges: waiting for the %s", who));
		tessera_background_sleep(STANDBYS_POLL_MS);
	}
}

/* How far it is: as the process's activity, and for a migration that waits for it in what it waits for. */
static void
show_progress(const Piece *piece, const TesseraMigrationRow *receiver, int64 total)
{
	if (receiver != NULL)
		tessera_migration_slot_waiting(psprintf("deletion of the range's older rows: " INT64_FORMAT " so far", total));
	else
		pgstat_report_activity(STATE_RUNNING,
							   psprintf("deleting range %s to %s: " INT64_FORMAT " rows so far", tessera_bound_to_cstring(piece->range.min),
													   tessera_bound_to_cstring(piece->range.max), total));
}

/* false: it has to be gone on with later. */
static bool
delete_piece(const Piece *piece, const TesseraMigrationRow *receiver, bool heeds_gates)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera range deletion", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	int64		total = 0;
	int64		rows;

	while ((rows = delete_batch(piece, receiver, heeds_gates)) > 0)
	{
		MemoryContextReset(context);
		total += rows;
		show_progress(piece, receiver, total);
		if (receiver != NULL)
			tessera_background_handle_interrupts();
		else
			rest();
	}
	if (receiver == NULL)
		pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return rows != NOT_NOW;
}

/*
 * Everything that may be deleted, in the current context. *deletions: true if there is any deletion range, including those that a migration holds
 * back.
 */
static Piece *
find_pieces(const TesseraMigrationRow *receiver, bool *deletions, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	const TesseraRouting *routing;
	TesseraPlacementRow **rows;
	Piece	   *pieces;
	int			nrows;
	int			room = 16;

	*n = 0;
	*deletions = false;
	tessera_background_begin();
	routing = tessera_routing();
	MemoryContextSwitchTo(caller);
	pieces = palloc(sizeof(Piece) * room);
	rows = tessera_placement_read_all(NULL, &nrows);
	for (int i = 0; i < nrows && routing != NULL && !routing->placements_unknown && !routing->replaced; i++)
	{
		const TesseraGroup *group = tessera_routing_group_by_id(routing, &rows[i]->group_id);
		TesseraRange *ranges;
		int			nranges;

		if (rows[i]->ndeletions == 0 || group == NULL ||
			(receiver != NULL && !tessera_migration_row_has_group(receiver, &rows[i]->group_id)))
			continue;
		*deletions = true;
		nranges = deletable(tessera_group_keyspace(routing, group), rows[i], receiver, &ranges);
		for (int j = 0; j < nranges; j++)
		{
			if (*n == room)
				pieces = repalloc(pieces, sizeof(Piece) * (room *= 2));
			pieces[*n].group_id = rows[i]->group_id;
			pieces[(*n)++].range = ranges[j];
		}
	}
	tessera_background_commit();
	return pieces;
}

void
tessera_delete_overlap(const TesseraMigrationRow *receiver)
{
	int			n;
	bool		deletions;
	Piece	   *pieces = find_pieces(receiver, &deletions, &n);
	TimestampTz deadline = TimestampTzPlusMilliseconds(tessera_now(), CLOSED_GATE_MS);

	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of the range on the recipient cannot be deleted at present"),
				 errdetail("Another migration uses a part of the range.")));
	for (int i = 0; i < n; i++)
		while (!delete_piece(&pieces[i], receiver, tessera_now() < deadline))
			tessera_background_sleep(CLOSED_GATE_POLL_MS);
}

/* The piece, by owners: chunks of one owner in a row are one part. In the current context. */
static Part *
parts_of(const Piece *piece, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	const TesseraGroup *group;
	const TesseraRouting *routing;
	TesseraKeySpace *ks;
	TesseraKeyBound min;
	TesseraKeyBound max;
	Part	   *parts;
	int			first;

	tessera_background_begin();
	routing = tessera_background_group(&piece->group_id, &group);
	ks = tessera_group_keyspace(routing, group);
	tessera_key_from_bound(ks, piece->range.min, &min);
	tessera_key_from_bound(ks, piece->range.max, &max);
	first = tessera_routing_find_chunk(routing, group, &min);
	MemoryContextSwitchTo(caller);
	parts = palloc(sizeof(Part) * (tessera_routing_nchunks(routing, group) - first));
	*n = 0;
	for (int i = first; i < tessera_routing_nchunks(routing, group); i++)
	{
		TesseraChunk chunk;
		bool		ends;

		tessera_routing_chunk(routing, group, i, &chunk);
		if (tessera_key_compare(ks, &chunk.min, &max) >= 0)
			break;
		ends = tessera_key_compare(ks, &chunk.max, &max) >= 0;
		if (*n == 0 || parts[*n - 1].owner != chunk.node_id)
			parts[(*n)++] = (Part) {.owner = chunk.node_id,.min = tessera_bound_to_cstring(i == first ? piece->range.min :
																						   tessera_key_to_bound(ks, &chunk.min))};
		parts[*n - 1].max = tessera_bound_to_cstring(ends ? piece->range.max : tessera_key_to_bound(ks, &chunk.max));
	}
	tessera_background_commit();
	return parts;
}

/* True if the owners of the piece, by the chunks, have answered that they own it. *denied is set if one has answered that it does not. */
static bool
ask_owners(const Piece *piece, bool *denied)
{
	int			n;
	Part	   *parts = parts_of(piece, &n);

	for (int i = 0; i < n; i++)
	{
		bool		owned;

		if (!tessera_call_owns_range(tessera_ask(tessera_within(tessera_to_node(parts[i].owner), ASK_MS), TESSERA_TOLERATE_ERRORS), &piece->group_id,
									 parts[i].min, parts[i].max, &owned))
			return false;
		if (!owned)
		{
			*denied = true;
			return false;
		}
	}
	return true;
}

/*
 * True if they have. When a range has moved on from the shard to which it went from here, nobody tells this one, which no statement may ever make
 * fetch the chunks again: so an answer of no is asked about with newer chunks. While that does not help it is done less and less
 * often: the config node may be the one that is down, or the owner one that has lost the move.
 */
static bool
owners_confirm(const Piece *piece)
{
	bool		denied = false;

	if (ask_owners(piece, &denied))
		return true;
	if (!denied || GetCurrentTimestamp() < fetches.not_before)
		return false;
	tessera_background_refresh();
	fetches.distance = Min(Max(fetches.distance * 2, REFRESH_FIRST_MS), REFRESH_LAST_MS);
	fetches.not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), fetches.distance);
	if (!ask_owners(piece, &denied))
		return false;
	fetches.distance = 0;
	fetches.not_before = 0;
	return true;
}

/* This shard knows what it owns, and that it owns the range. */
bool
tessera_serve_owns_range(const TesseraOwnsRangeArgs *args)
{
	pg_uuid_t  *group_id = args->group_id;
	TesseraRange range = {args->min, args->max};
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = routing ? tessera_routing_group_by_id(routing, group_id) : NULL;
	TesseraPlacementRow *placement = group ? tessera_placement_read(group_id, NULL) : NULL;

	return placement != NULL && !routing->placements_unknown && !routing->replaced &&
				   tessera_ranges_cover(tessera_group_keyspace(routing, group), placement->nowned, placement->owned, &range);
}

static Watched *
watch(const Piece *piece, HASHACTION action, bool *found)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) piece->range.min, VARSIZE(piece->range.min), 1) ^
		hash_bytes_extended((const unsigned char *) piece->range.max, VARSIZE(piece->range.max), 2) ^
		hash_bytes_extended(piece->group_id.data, UUID_LEN, 3);
	HASHCTL		control = {.keysize = sizeof(uint64), .entrysize = sizeof(Watched)};

	if (watched == NULL)
		watched = hash_create("tessera ranges to delete", 64, &control, HASH_ELEM | HASH_BLOBS);
	return hash_search(watched, &hash, action, found);
}

/* Milliseconds until the piece may be deleted; called once in each step that begins at now. */
static long
delay_left(const Piece *piece, TimestampTz now)
{
	bool		found;
	Watched    *entry = watch(piece, HASH_ENTER, &found);

	if (!found)
		entry->since = now;
	entry->last = now;
	return tessera_orphan_cleanup_delay - (long) ((now - entry->since) / 1000);
}

/* What is deleted, or no longer to be deleted, is forgotten: if the range is given up again, its delay begins anew. */
static void
forget(const Piece *piece)
{
	(void) watch(piece, HASH_REMOVE, NULL);
}

static void
forget_others(TimestampTz now)
{
	HASH_SEQ_STATUS scan;
	Watched    *entry;

	if (watched == NULL)
		return;
	hash_seq_init(&scan, watched);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (entry->last != now)
			(void) hash_search(watched, &entry->hash, HASH_REMOVE, NULL);
}

long
tessera_range_deleter_step(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "tessera range deleter", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	int			n;
	bool		deletions;
	Piece	   *pieces = find_pieces(NULL, &deletions, &n);
	TimestampTz now = GetCurrentTimestamp();
	long		next = deletions ? HELD_MS : IDLE_MS;

	for (int i = 0; i < n; i++)
	{
		long		left = delay_left(&pieces[i], now);

		if (left > 0)
			next = Min(next, left);
		else if (owners_confirm(&pieces[i]) && delete_piece(&pieces[i], NULL, true))
			forget(&pieces[i]);
		else
			next = Min(next, HELD_MS);
	}
	forget_others(now);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return next;
}
