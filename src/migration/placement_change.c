/*
 * placement_change.c
 *	  The steps of a migration that change a placement row; see placement_change.h.
 *
 * Why readers wait on the recipient, too: between its confirmation and the donor's giving up, a scan of all shards could see the range on both;
 * between them and the decision, by an old version on neither. The gate 'read' on both sides is closed in a commit of its own before ownership
 * changes, so a statement whose snapshot sees the change finds the gate closed (catalog/change.h: the mirror follows each commit at once, but after
 * it is visible).
 */
#include "postgres.h"

#include "storage/lmgr.h"

#include "catalog/placement_ranges.h"
#include "catalog/relation.h"
#include "common/errors.h"
#include "common/text.h"
#include "migration/migration_slot.h"
#include "migration/placement_change.h"
#include "transaction/background.h"

/* What a migration has to do with the placement of one group. */
typedef struct LockedPlacement
{
	TesseraPlacementRow *placement;
	TesseraKeySpace *ks;
	const pg_uuid_t *migration_id;
	const TesseraOperationRange *ranges;	/* of the group */
	int			nranges;
} LockedPlacement;

/* All placements of a migration, locked, in the order of its groups. */
typedef struct LockedPlacements
{
	int			n;
	LockedPlacement *locked;
	bool		ours;			/* they are in this migration: all of them or none, as each step changes all */
	int64		term;			/* the highest that this shard has seen */
} LockedPlacements;

static LockedPlacements
lock_placements(const TesseraMigrationRow *row)
{
	LockedPlacements all = {.locked = palloc0(sizeof(LockedPlacement) * row->nranges)};

	/* a group that is not known here is fetched before anything is locked */
	for (int i = 0; i < row->nranges; i = tessera_next_group(row, i))
	{
		const TesseraGroup *group;

		(void) tessera_background_group(&row->ranges[i].group_id, &group);
	}
	/* against a promoted config node that asks what this shard owns (internal_merge_facts): from then on terms before its own are over */
	LockRelationOid(tessera_catalog_relid(TESSERA_PLACEMENT), RowExclusiveLock);
	for (int i = 0; i < row->nranges; i = tessera_next_group(row, i))
	{
		LockedPlacement *locked = &all.locked[all.n++];
		const TesseraGroup *group;
		const TesseraRouting *routing = tessera_background_known_group(&row->ranges[i].group_id, &group);

		all.term = routing->promised_term;
		locked->ks = tessera_group_keyspace(routing, group);
		locked->migration_id = &row->migration_id;
		locked->ranges = &row->ranges[i];
		locked->nranges = tessera_next_group(row, i) - i;
		locked->placement = tessera_placement_lock(&row->ranges[i].group_id);
		all.ours |= tessera_placement_gate_of(locked->placement, &row->migration_id) != NULL;
	}
	return all;
}

static void
write_placements(const LockedPlacements *all)
{
	for (int i = 0; i < all->n; i++)
		tessera_placement_write(all->locked[i].placement);
}


/* Parts of steps, for one group */

/* ERROR 55006 if another migration, perhaps one whose outcome is not carried out yet here, has a part of a range. */
static void
refuse_other_migration(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->placement->ngates; i++)
	{
		const TesseraGatedRange *gate = &locked->placement->gates[i];

		if (memcmp(&gate->migration_id, locked->migration_id, sizeof(pg_uuid_t)) == 0)
			continue;
		for (int j = 0; j < locked->nranges; j++)
			if (tessera_ranges_overlap(locked->ks, 1, &gate->range, &locked->ranges[j].range))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_IN_USE),
						 errmsg("this shard takes part in migration %s of a part of the range", tessera_uuid_text(&gate->migration_id)),
						 errhint("Look at tessera.migrations.")));
	}
}

static void
own_ranges(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->nranges; i++)
		tessera_ranges_add(locked->ks, &locked->placement->nowned, &locked->placement->owned, &locked->ranges[i].range);
}

static void
disown_ranges(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->nranges; i++)
		tessera_ranges_remove(locked->ks, &locked->placement->nowned, &locked->placement->owned, &locked->ranges[i].range);
}

static void
add_deletions(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->nranges; i++)
		tessera_ranges_add(locked->ks, &locked->placement->ndeletions, &locked->placement->deletions, &locked->ranges[i].range);
}

static void
remove_deletions(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->nranges; i++)
		tessera_ranges_remove(locked->ks, &locked->placement->ndeletions, &locked->placement->deletions, &locked->ranges[i].range);
}

/* A gate for each range. Not for a placement that has them. */
static void
add_gates(const LockedPlacement *locked, TesseraGate gate)
{
	TesseraPlacementRow *placement = locked->placement;

	placement->gates = repalloc(placement->gates, sizeof(TesseraGatedRange) * (placement->ngates + locked->nranges));
	for (int i = 0; i < locked->nranges; i++)
		placement->gates[placement->ngates++] = (TesseraGatedRange) {
			.migration_id = *locked->migration_id, .range = locked->ranges[i].range, .gate = gate
		};
}

static void
set_gates(const LockedPlacement *locked, TesseraGate gate, bool confirmed)
{
	for (int i = 0; i < locked->placement->ngates; i++)
	{
		TesseraGatedRange *own = &locked->placement->gates[i];

		if (memcmp(&own->migration_id, locked->migration_id, sizeof(pg_uuid_t)) != 0)
			continue;
		own->gate = gate;
		own->confirmed = confirmed;
	}
}

static void
remove_gates(const LockedPlacement *locked)
{
	TesseraPlacementRow *placement = locked->placement;
	int			kept = 0;

	for (int i = 0; i < placement->ngates; i++)
		if (memcmp(&placement->gates[i].migration_id, locked->migration_id, sizeof(pg_uuid_t)) != 0)
			placement->gates[kept++] = placement->gates[i];
	placement->ngates = kept;
}

/* The gate of the migration's ranges, which is the same for all of them; that of a placement which is not in the migration is open. */
static TesseraGate
gate_of(const LockedPlacements *all, bool *confirmed)
{
	const TesseraGatedRange *own = tessera_placement_gate_of(all->locked[0].placement, all->locked[0].migration_id);

	*confirmed = own != NULL && own->confirmed;
	return own == NULL ? TESSERA_GATE_OPEN : own->gate;
}

/* True if nothing is owned but what migrations have brought whose outcome is open. */
static bool
owns_nothing_settled(const LockedPlacement *locked)
{
	int			n = locked->placement->nowned;
	TesseraRange *ranges = locked->placement->owned;

	for (int i = 0; i < locked->placement->ngates; i++)
		if (locked->placement->gates[i].confirmed)
			tessera_ranges_remove(locked->ks, &n, &ranges, &locked->placement->gates[i].range);
	return n == 0;
}

/*
 * A range has left by an outcome that gives the shard this version. Outcomes of several migrations may be carried out in another order than they were
 * decided: the highest version counts; but 0, "has no chunk", is the lowest one, and says all if nothing is owned: then everything that migrations
 * have in motion here was decided, too, to leave (doc/design.md#placement-record). What an older term has given does not count.
 */
static void
change_version(const LockedPlacement *locked, int64 major, int64 term)
{
	TesseraPlacementRow *placement = locked->placement;

	if (term > placement->term)
	{
		placement->term = term;
		placement->major = Min(placement->major, major);
	}
	if (owns_nothing_settled(locked) && (major == 0 || placement->major == 0 || placement->ngates == 0))
		placement->major = 0;
	else
		placement->major = Max(placement->major, major);
}

/* A split of another chunk while the gate was closed has left the version to us. After the row's lock: then its chunks are seen. */
static void
raise_version(const LockedPlacement *locked)
{
	const TesseraGroup *group;
	const TesseraRouting *routing = tessera_background_known_group(&locked->placement->group_id, &group);

	(void) tessera_placement_raise_version(routing, group, locked->placement);
}

static void
refuse_lost(const TesseraMigrationRow *row)
{
	ereport(ERROR,
			(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
			 errmsg("placement is no longer in migration %s", tessera_uuid_text(&row->migration_id))));
}

/* The outcome was given by a config node that was replaced: the new one may know of none, or of another. */
static void
refuse_older_term(const LockedPlacements *all, const TesseraMigrationRow *row, int64 term)
{
	if (term < all->term)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("outcome of migration %s is of term " INT64_FORMAT ", an older one than " INT64_FORMAT, tessera_uuid_text(&row->migration_id),
						term, all->term)));
}


/* Donor */

static void
refuse_unowned(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->nranges; i++)
	{
		const TesseraOperationRange *range = &locked->ranges[i];

		if (memcmp(&locked->placement->epoch, &range->epoch, sizeof(pg_uuid_t)) != 0 ||
			!tessera_ranges_cover(locked->ks, locked->placement->nowned, locked->placement->owned, &range->range))
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
					 errmsg("this shard does not own the whole range from %s to %s", tessera_bound_to_cstring(range->range.min),
							tessera_bound_to_cstring(range->range.max))));
	}
}

void
tessera_placement_begin_donation(const TesseraMigrationRow *row)
{
	LockedPlacements all = lock_placements(row);

	for (int i = 0; i < all.n; i++)
	{
		refuse_other_migration(&all.locked[i]);
		refuse_unowned(&all.locked[i]);
		if (!all.ours)
			add_gates(&all.locked[i], TESSERA_GATE_OPEN);
		add_deletions(&all.locked[i]);
	}
	write_placements(&all);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_STARTING, TESSERA_RESULT_NONE);
}

void
tessera_placement_set_gate(const TesseraMigrationRow *row, TesseraGate gate, TesseraMigrationState phase)
{
	LockedPlacements all = lock_placements(row);

	if (!all.ours)
		refuse_lost(row);
	for (int i = 0; i < all.n; i++)
		set_gates(&all.locked[i], gate, false);
	write_placements(&all);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, phase, TESSERA_RESULT_NONE);
}

void
tessera_placement_give_up_range(const TesseraMigrationRow *row)
{
	LockedPlacements all = lock_placements(row);
	bool		confirmed;

	if (gate_of(&all, &confirmed) != TESSERA_GATE_READ)
		refuse_lost(row);
	for (int i = 0; i < all.n; i++)
		disown_ranges(&all.locked[i]);
	write_placements(&all);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_DECIDING, TESSERA_RESULT_NONE);
}

void
tessera_placement_commit_donation(const TesseraMigrationRow *row, const int64 *majors, int64 term)
{
	LockedPlacements all = lock_placements(row);

	refuse_older_term(&all, row, term);
	for (int i = 0; all.ours && i < all.n; i++)
	{
		LockedPlacement *locked = &all.locked[i];

		disown_ranges(locked);
		remove_gates(locked);
		change_version(locked, majors[i], term);
	}
	if (all.ours)
		write_placements(&all);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_RELEASING, TESSERA_RESULT_COMMITTED);
}

void
tessera_placement_commit_donation_late(const TesseraMigrationRow *row)
{
	LockedPlacements all = lock_placements(row);

	for (int i = 0; all.ours && i < all.n; i++)
	{
		disown_ranges(&all.locked[i]);
		remove_gates(&all.locked[i]);
		raise_version(&all.locked[i]);
	}
	if (all.ours)
		write_placements(&all);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_RELEASING, TESSERA_RESULT_COMMITTED);
}

/* The ranges are owned as before, and not to be deleted. */
static void
restore_ranges(const LockedPlacements *all)
{
	for (int i = 0; i < all->n; i++)
	{
		own_ranges(&all->locked[i]);
		remove_deletions(&all->locked[i]);
		remove_gates(&all->locked[i]);
		raise_version(&all->locked[i]);
	}
	write_placements(all);
}

void
tessera_placement_abort_donation(const TesseraMigrationRow *row)
{
	LockedPlacements all = lock_placements(row);

	if (all.ours)
		restore_ranges(&all);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_ABORTING, TESSERA_RESULT_ABORTED);
}

void
tessera_placement_take_back_range(const TesseraMigrationRow *row)
{
	LockedPlacements all = lock_placements(row);

	restore_ranges(&all);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_ABORTING, TESSERA_RESULT_ABORTED);
}


/* Recipient */

void
tessera_placement_require_free(const TesseraMigrationRow *row)
{
	for (int i = 0; i < row->nranges; i = tessera_next_group(row, i))
	{
		const TesseraGroup *group;
		const TesseraRouting *routing = tessera_background_known_group(&row->ranges[i].group_id, &group);
		LockedPlacement		locked = {
			.placement = tessera_placement_read(&row->ranges[i].group_id, NULL),.ks = tessera_group_keyspace(routing, group),
			.migration_id = &row->migration_id,.ranges = &row->ranges[i],.nranges = tessera_next_group(row, i) - i
		};

		if (locked.placement != NULL)
			refuse_other_migration(&locked);
	}
}

static void
refuse_owned(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->nranges; i++)
	{
		const TesseraRange *range = &locked->ranges[i].range;

		if (tessera_ranges_overlap(locked->ks, locked->placement->nowned, locked->placement->owned, range))
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
					 errmsg("the recipient owns a part of the range from %s to %s", tessera_bound_to_cstring(range->min),
							tessera_bound_to_cstring(range->max))));
	}
}

static bool
has_deletions(const LockedPlacement *locked)
{
	for (int i = 0; i < locked->nranges; i++)
		if (tessera_ranges_overlap(locked->ks, locked->placement->ndeletions, locked->placement->deletions, &locked->ranges[i].range))
			return true;
	return false;
}

bool
tessera_placement_begin_reception(const TesseraMigrationRow *row)
{
	LockedPlacements all = lock_placements(row);

	for (int i = 0; i < all.n; i++)
	{
		refuse_other_migration(&all.locked[i]);
		refuse_owned(&all.locked[i]);
		if (has_deletions(&all.locked[i]))
			return false;
	}
	for (int i = 0; i < all.n; i++)
	{
		TesseraPlacementRow *placement = all.locked[i].placement;

		add_deletions(&all.locked[i]);
		if (placement->major == 0)
		{
			/* owner of nothing: of no epoch or an old one */
			placement->epoch = all.locked[i].ranges[0].epoch;
			placement->term = Max(placement->term, row->term);
		}
	}
	write_placements(&all);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RECEIVING, TESSERA_RESULT_NONE);
	return true;
}

/* With the rows locked, as by who takes an attempt back: what is found holds to the end of the transaction. */
static bool
attempt_is_over(XLogRecPtr attempt)
{
	return attempt <= tessera_my_migration->taken_back;
}

bool
tessera_placement_begin_confirmation(const TesseraMigrationRow *row, XLogRecPtr attempt)
{
	LockedPlacements all;

	tessera_migration_slot_confirming(attempt);
	all = lock_placements(row);
	if (attempt_is_over(attempt))
		return false;
	for (int i = 0; i < all.n; i++)
	{
		refuse_other_migration(&all.locked[i]);
		if (!all.ours)
			add_gates(&all.locked[i], TESSERA_GATE_READ);
	}
	write_placements(&all);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_CONFIRMING, TESSERA_RESULT_NONE);
	return true;
}

bool
tessera_placement_confirm(const TesseraMigrationRow *row, XLogRecPtr attempt)
{
	LockedPlacements all = lock_placements(row);
	bool		confirmed;

	if (attempt_is_over(attempt))
		return false;
	if (gate_of(&all, &confirmed) != TESSERA_GATE_READ)
		refuse_lost(row);
	for (int i = 0; i < all.n; i++)
	{
		own_ranges(&all.locked[i]);
		set_gates(&all.locked[i], TESSERA_GATE_READ, true);
	}
	write_placements(&all);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_CONFIRMED, TESSERA_RESULT_NONE);
	return true;
}

static void
remove_confirmed(const LockedPlacements *all)
{
	for (int i = 0; i < all->n; i++)
	{
		disown_ranges(&all->locked[i]);
		remove_gates(&all->locked[i]);
		/* what was owned besides may have left meanwhile */
		change_version(&all->locked[i], all->locked[i].placement->major, 0);
		raise_version(&all->locked[i]);
	}
	write_placements(all);
}

void
tessera_placement_undo_confirmation(const TesseraMigrationRow *row, XLogRecPtr attempt)
{
	LockedPlacements all = lock_placements(row);

	if (!tessera_migration_slot_take_back(&row->migration_id, attempt) || !all.ours)
		return;
	remove_confirmed(&all);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RECEIVING, TESSERA_RESULT_NONE);
}

/* One group of a reception that was committed. */
static void
receive_ranges(const LockedPlacement *locked, int64 major, int64 term)
{
	TesseraPlacementRow *placement = locked->placement;
	bool		same = memcmp(&placement->epoch, &locked->ranges[0].epoch, sizeof(pg_uuid_t)) == 0 && term <= placement->term;

	remove_deletions(locked);
	remove_gates(locked);
	placement->major = same ? Max(placement->major, major) : major;
	placement->epoch = locked->ranges[0].epoch;
	placement->term = Max(placement->term, term);
}

void
tessera_placement_commit_reception(const TesseraMigrationRow *row, const int64 *majors, int64 term)
{
	LockedPlacements all = lock_placements(row);
	bool		confirmed;

	/* told by the donor and by the config node at the same time: the first one has done it */
	if (!all.ours && tessera_migration_row(TESSERA_RECIPIENT, &row->migration_id, false) == NULL)
		return;
	refuse_older_term(&all, row, term);
	(void) gate_of(&all, &confirmed);
	if (!confirmed)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("migration %s was committed but is not confirmed on this shard", tessera_uuid_text(&row->migration_id))));
	for (int i = 0; i < all.n; i++)
		receive_ranges(&all.locked[i], majors[i], term);
	write_placements(&all);
	tessera_migration_row_delete(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RELEASED);
}

void
tessera_placement_abort_reception(const TesseraMigrationRow *row)
{
	LockedPlacements all = lock_placements(row);

	if (all.ours)
		remove_confirmed(&all);
	tessera_migration_row_delete(TESSERA_RECIPIENT, &row->migration_id, TESSERA_DISCARDED);
}
