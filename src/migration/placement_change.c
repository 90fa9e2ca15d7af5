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
	bool		ours;			/* the placement is in this migration */
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
	place.ours = place.placement->has_migration && memcmp(&place.placement->migration_id, &row->migration_id, sizeof(pg_uuid_t)) == 0;
	return place;
}

static void
refuse_other_migration(const Place *place)
{
	if (place->placement->has_migration && !place->ours)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("this shard takes part in migration %s of the table", tessera_uuid_text(&place->placement->migration_id)),
				 errhint("Look at tessera.migrations.")));
}

static void
set_flag(const Place *place, const TesseraMigrationRow *row, TesseraGate gate)
{
	place->placement->has_migration = true;
	place->placement->migration_id = row->migration_id;
	place->placement->gate = gate;
	place->placement->gate_range = row->range;
}

static void
clear_flag(const Place *place)
{
	place->placement->has_migration = false;
	memset(&place->placement->migration_id, 0, sizeof(pg_uuid_t));
	place->placement->gate = TESSERA_GATE_OPEN;
	place->placement->gate_range.min = place->placement->gate_range.max = NULL;
	place->placement->confirmed = false;
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

	refuse_other_migration(&place);
	if (memcmp(&place.placement->epoch, &row->epoch, sizeof(pg_uuid_t)) != 0 ||
		!tessera_ranges_cover(place.ks, place.placement->nowned, place.placement->owned, &row->range))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("this shard does not own the whole range from %s to %s", tessera_bound_to_cstring(row->range.min),
						tessera_bound_to_cstring(row->range.max))));
	set_flag(&place, row, TESSERA_GATE_OPEN);
	tessera_ranges_add(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_STARTING, TESSERA_RESULT_NONE);
}

void
tessera_placement_set_gate(const TesseraMigrationRow *row, TesseraGate gate, TesseraMigrationState phase)
{
	Place		place = lock_placement(row);

	if (!place.ours)
		refuse_lost(row);
	place.placement->gate = gate;
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, phase, TESSERA_RESULT_NONE);
}

void
tessera_placement_give_up_range(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (!place.ours || place.placement->gate != TESSERA_GATE_READ)
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
	if (place.ours)
	{
		tessera_ranges_remove(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
		place.placement->major = major;
		place.placement->term = Max(place.placement->term, term);
		clear_flag(&place);
		tessera_placement_write(place.placement);
	}
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_RELEASING, TESSERA_RESULT_COMMITTED);
}

void
tessera_placement_commit_donation_late(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (place.ours)
	{
		tessera_ranges_remove(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
		clear_flag(&place);
		raise_version(&place);
		tessera_placement_write(place.placement);
	}
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_RELEASING, TESSERA_RESULT_COMMITTED);
}

void
tessera_placement_abort_donation(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (place.ours)
	{
		tessera_ranges_add(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
		tessera_ranges_remove(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
		clear_flag(&place);
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
	if (place.ours)
		clear_flag(&place);
	raise_version(&place);
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_DONOR, &row->migration_id, TESSERA_ABORTING, TESSERA_RESULT_ABORTED);
}


/* Recipient */

bool
tessera_placement_begin_reception(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	refuse_other_migration(&place);
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
	refuse_other_migration(&place);
	set_flag(&place, row, TESSERA_GATE_READ);
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
	if (!place.ours || place.placement->gate != TESSERA_GATE_READ)
		refuse_lost(row);
	tessera_ranges_add(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
	place.placement->confirmed = true;
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_CONFIRMED, TESSERA_RESULT_NONE);
	return true;
}

void
tessera_placement_undo_confirmation(const TesseraMigrationRow *row, XLogRecPtr attempt)
{
	Place		place = lock_placement(row);

	if (!tessera_migration_slot_take_back(&row->migration_id, attempt) || !place.ours)
		return;
	tessera_ranges_remove(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
	clear_flag(&place);
	raise_version(&place);
	tessera_placement_write(place.placement);
	tessera_migration_row_set(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RECEIVING, TESSERA_RESULT_NONE);
}

void
tessera_placement_commit_reception(const TesseraMigrationRow *row, int64 major, int64 term)
{
	Place		place = lock_placement(row);

	/* told by the donor and by the config node at the same time: the first one has done it */
	if (!place.ours && tessera_migration_row(TESSERA_RECIPIENT, &row->migration_id, false) == NULL)
		return;
	refuse_older_term(&place, row, term);
	if (!place.ours || !place.placement->confirmed)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("migration %s was committed but is not confirmed on this shard", tessera_uuid_text(&row->migration_id))));
	tessera_ranges_remove(place.ks, &place.placement->ndeletions, &place.placement->deletions, &row->range);
	place.placement->major = major;
	place.placement->epoch = row->epoch;
	place.placement->term = Max(place.placement->term, term);
	clear_flag(&place);
	tessera_placement_write(place.placement);
	tessera_migration_row_delete(TESSERA_RECIPIENT, &row->migration_id, TESSERA_RELEASED);
}

void
tessera_placement_abort_reception(const TesseraMigrationRow *row)
{
	Place		place = lock_placement(row);

	if (place.ours)
	{
		tessera_ranges_remove(place.ks, &place.placement->nowned, &place.placement->owned, &row->range);
		clear_flag(&place);
		raise_version(&place);
		tessera_placement_write(place.placement);
	}
	tessera_migration_row_delete(TESSERA_RECIPIENT, &row->migration_id, TESSERA_DISCARDED);
}
