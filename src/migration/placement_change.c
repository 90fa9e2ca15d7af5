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

typedef struct Place
{
	TesseraPlacementRow *placement;
	TesseraKeySpace *ks;		/* NULL: the group is gone */
	TesseraGatedRange *own;		/* the migration's gate; NULL: the placement is not in this migration */
	int64		term;			/* the highest that this shard has seen */
} Place;

static Place
lock_placement(const TesseraMigrationRow *row)
{
	const TesseraGroup *group;
	const TesseraRouting *routing;
	Place		place;

	/* a group that is not known here is fetched before anything is locked */
	(void) tessera_background_group(&row->group_id, &group);
	/* against a promoted config node that asks what this shard owns (internal_merge_facts): from then on terms before its own are over */
	LockRelationOid(tessera_catalog_relid(TESSERA_PLACEMENT), RowExclusiveLock);
	routing = tessera_background_known_group(&row->group_id, &group);
	place.term = routing->promised_term;
	place.ks = tessera_group_keyspace(routing, group);
	place.placement = tessera_placement_lock(&row->group_id);
	place.own = tessera_placement_gate_of(place.placement, &row->migration_id);
	return place;
}

/* ERROR 55006 if another migration, perhaps one whose outcome is not carried out yet here, has a part of the range. */
static void
refuse_other_migration(const Place *place, const TesseraMigrationRow *row)
{
	for (int i = 0; i < place->placement->ngates; i++)
	{
		const TesseraGatedRange *gate = &place->placement->gates[i];

		if (gate != place->own && tessera_ranges_overlap(place->ks, 1, &gate->range, &row->range))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("this shard takes part in migration %s of a part of the range", tessera_uuid_text(&gate->migration_id)),
					 errhint("Look at tessera.migrations.")));
	}
}

static void
set_gate(Place *place, const TesseraMigrationRow *row, TesseraGate gate)
{
	TesseraPlacementRow *placement = place->placement;

	if (place->own == NULL)
	{
		placement->gates = repalloc(placement->gates, sizeof(TesseraGatedRange) * (placement->ngates + 1));
		place->own = &placement->gates[placement->ngates++];
		*place->own = (TesseraGatedRange) {.migration_id = row->migration_id, .range = row->range};
	}
	place->own->gate = gate;
}

static void
remove_gate(Place *place)
{
	if (place->own == NULL)
		return;
	*place->own = place->placement->gates[--place->placement->ngates];
	place->own = NULL;
}

/* True if nothing is owned but what migrations have brought whose outcome is open. */
static bool
owns_nothing_settled(const Place *place)
{
	int			n = place->placement->nowned;
	TesseraRange *ranges = place->placement->owned;

	for (int i = 0; i < place->placement->ngates; i++)
		if (place->placement->gates[i].confirmed)
			tessera_ranges_remove(place->ks, &n, &ranges, &place->placement->gates[i].range);
	return n == 0;
}

/*
 * A range has left by an outcome that gives the shard this version. Outcomes of several migrations may be carried out in another order than they were
 * decided: the highest version counts; but 0, "has no chunk", is the lowest one, and says all if nothing is owned: then everything that migrations
 * have in motion here was decided, too, to leave (doc/design.md#placement-record).
 */
static void
lower_or_raise_version(const Place *place, int64 major)
{
	TesseraPlacementRow *placement = place->placement;

	if (!owns_nothing_settled(place))
		placement->major = Max(placement->major, major);
	else if (major == 0 || placement->major == 0 || placement->ngates == 0)
		placement->major = 0;
	else
		placement->major = Max(placement->major, major);
}

/* A split of another chunk while the gate was closed has left the version to us. After the row's lock: then its chunks are seen. */
static void
raise_version(const Place *place)
{
	const TesseraGroup *group;
	const TesseraRouting *routing = tessera_background_known_group(&place->placement->group_id, &group);

	(void) tessera_placement_raise_version(routing, group, place->placement);
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
refuse_older_term(const Place *place, const TesseraMigrationRow *row, int64 term)
{
	if (term < place->term)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("outcome of migration %s is of term " INT64_FORMAT ", an older one than " INT64_FORMAT, tessera_uuid_text(&row->migration_id),
						term, place->term)));
}


/* Donor */

void
tessera_placement_begin_donation(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	refuse_other_migration(&place, row);
	if (memcmp(&place.placement->epoch, &row->epoch, sizeof(pg_uuid_t)) != 0 ||
		!tessera_ranges_cover(place.ks, place.placement->nowned, place.placement->owned, &row->range))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("this shard does not own the whole range from %s to %s", tessera_bound_to_cstring(row->range.min),
						tessera_bound_to_cstring(row->range.max))));
	set_gate(&place, row, TESSERA_GATE_OPEN);
	tessera_ranges_add(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_STARTING, TESSERA_RESULT_NONE);
}

void
tessera_placement_set_gate(const TesseraMigrationRow *row, TesseraGate gate, TesseraMigrationState phase)
{
	Place		place = lock_placement(row);

	if (place.own == NULL)
		refuse_lost(row);
	place.own->gate = gate;
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, phase, TESSERA_RESULT_NONE);
}

void
tessera_placement_give_up_range(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (place.own == NULL || place.own->gate != TESSERA_GATE_READ)
		refuse_lost(row);
	tessera_ranges_remove(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_DECIDING, TESSERA_RESULT_NONE);
}

void
tessera_placement_commit_donation(const TesseraMigrationRow *row, int64 major, int64 term)
{
	Place		place = lock_placement(row);

	refuse_older_term(&place, row, term);
	if (place.own != NULL)
	{
		tessera_ranges_remove(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
		remove_gate(&place);
		lower_or_raise_version(&place, major);
		place.placement->term = Max(place.placement->term, term);
		tessera_placement_write(place.placement);
	}
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_RELEASING, TESSERA_RESULT_COMMITTED);
}

void
tessera_placement_commit_donation_late(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (place.own != NULL)
	{
		tessera_ranges_remove(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
		remove_gate(&place);
		raise_version(&place);
		tessera_placement_write(place.placement);
	}
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_RELEASING, TESSERA_RESULT_COMMITTED);
}

void
tessera_placement_abort_donation(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (place.own != NULL)
	{
		tessera_ranges_add(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
		tessera_ranges_remove(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
		remove_gate(&place);
		raise_version(&place);
		tessera_placement_write(place.placement);
	}
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_ABORTING, TESSERA_RESULT_ABORTED);
}

void
tessera_placement_take_back_range(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	tessera_ranges_add(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
	tessera_ranges_remove(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
	remove_gate(&place);
	raise_version(&place);
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_ABORTING, TESSERA_RESULT_ABORTED);
}


/* Recipient */

void
tessera_placement_require_free(const TesseraMigrationRow *row)
{
	const TesseraGroup *group;
	const TesseraRouting *routing = tessera_background_known_group(&row->group_id, &group);
	Place		place = {.placement = tessera_placement_read(&row->group_id, NULL), .ks = tessera_group_keyspace(routing, group)};

	if (place.placement != NULL)
		refuse_other_migration(&place, row);
}

bool
tessera_placement_begin_reception(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	refuse_other_migration(&place, row);
	if (tessera_ranges_overlap(place.ks, place.placement->nowned, place.placement->owned, &row->range))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the recipient owns a part of the range from %s to %s", tessera_bound_to_cstring(row->range.min),
						tessera_bound_to_cstring(row->range.max))));
	if (tessera_ranges_overlap(place.ks, place.placement->ndeletions, place.placement->deletions, &row->range))
		return false;
	tessera_ranges_add(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
	if (place.placement->major == 0)
	{
		/* owner of nothing: of no epoch or an old one */
		place.placement->epoch = row->epoch;
		place.placement->term = Max(place.placement->term, row->term);
	}
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RECEIVING, TESSERA_RESULT_NONE);
	return true;
}

/* With the row locked, as by who takes an attempt back: what is found holds to the end of the transaction. */
static bool
attempt_is_over(XLogRecPtr attempt)
{
	return attempt <= tessera_my_migration->taken_back;
}

bool
tessera_placement_begin_confirmation(const TesseraMigrationRow *row, XLogRecPtr attempt)
{
	Place		place;

	tessera_migration_slot_confirming(attempt);
	place = lock_placement(row);
	if (attempt_is_over(attempt))
		return false;
	refuse_other_migration(&place, row);
	set_gate(&place, row, TESSERA_GATE_READ);
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_CONFIRMING, TESSERA_RESULT_NONE);
	return true;
}

bool
tessera_placement_confirm(const TesseraMigrationRow *row, XLogRecPtr attempt)
{
	Place		place = lock_placement(row);

	if (attempt_is_over(attempt))
		return false;
	if (place.own == NULL || place.own->gate != TESSERA_GATE_READ)
		refuse_lost(row);
	tessera_ranges_add(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
	place.own->confirmed = true;
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_CONFIRMED, TESSERA_RESULT_NONE);
	return true;
}

static void
remove_confirmed(Place *place, const TesseraMigrationRow *row)
{
	tessera_ranges_remove(place->ks, &place->placement->nowned, &place->placement->owned, &row->range);
	remove_gate(place);
	/* what was owned besides may have left meanwhile */
	lower_or_raise_version(place, place->placement->major);
	raise_version(place);
	tessera_placement_write(place->placement);
}

void
tessera_placement_undo_confirmation(const TesseraMigrationRow *row, XLogRecPtr attempt)
{
	Place		place = lock_placement(row);

	if (!tessera_migration_slot_take_back(&row->migration_id, attempt) || place.own == NULL)
		return;
	remove_confirmed(&place, row);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RECEIVING, TESSERA_RESULT_NONE);
}

void
tessera_placement_commit_reception(const TesseraMigrationRow *row, int64 major, int64 term)
{
	Place		place = lock_placement(row);
	bool		same_epoch = memcmp(&place.placement->epoch, &row->epoch, sizeof(pg_uuid_t)) == 0;

	/* told by the donor and by the config node at the same time: the first one has done it */
	if (place.own == NULL && tessera_migration_row(TESSERA_RECIPIENT, &row->migration_id, false) == NULL)
		return;
	refuse_older_term(&place, row, term);
	if (place.own == NULL || !place.own->confirmed)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("migration %s was committed but is not confirmed on this shard", tessera_uuid_text(&row->migration_id))));
	tessera_ranges_remove(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
	place.placement->major = same_epoch ? Max(place.placement->major, major) : major;
	place.placement->epoch = row->epoch;
	place.placement->term = Max(place.placement->term, term);
	remove_gate(&place);
	tessera_placement_write(place.placement);
	tessera_migration_row_delete(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RELEASED);
}

void
tessera_placement_abort_reception(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (place.own != NULL)
		remove_confirmed(&place, row);
	tessera_migration_row_delete(TESSERA_RECIPIENT, &row->migration_id, TESSERA_DISCARDED);
}
