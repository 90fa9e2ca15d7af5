/*
 * placement_change.h
 *	  The steps of a migration that change a placement row: each is one whole change, in the caller's transaction, together with the migration's own
 *	  row.
 *
 * Each locks the placement row first and the migration's row after it. All but the first ones of each side can be repeated: a step that finds the
 * migration no longer in the placement does nothing (it was done, or undone, before a crash).
 */
#ifndef TESSERA_MIGRATION_PLACEMENT_CHANGE_H
#define TESSERA_MIGRATION_PLACEMENT_CHANGE_H

#include "postgres.h"

#include "catalog/migration_row.h"

/* ---- donor ---- */

/*
 * Flag up: writers of the range take the gate lock; the range is pending deletion. ERROR 55006 if a part of it is in another migration here, TS002 if
 * this shard does not own the whole range at the registered epoch.
 */
extern void tessera_placement_begin_donation(const TesseraMigrationRow *row);

/* The gate; phase: what the coordinator row says from now on. */
extern void tessera_placement_set_gate(const TesseraMigrationRow *row, TesseraGate gate, TesseraMigrationState phase);

/* The range is given up; the outcome is open (phase deciding). */
extern void tessera_placement_give_up_range(const TesseraMigrationRow *row);

/* Committed: new version, gate open, flag down, the deletion is real. ERROR TS003 if the outcome's term is over. */
extern void tessera_placement_commit_donation(const TesseraMigrationRow *row, int64 major, int64 term);

/* The same when the outcome was acknowledged and its versions are not known any more: the version is what the chunks say, fetched before. */
extern void tessera_placement_commit_donation_late(const TesseraMigrationRow *row);

/* Aborted: everything as before. */
extern void tessera_placement_abort_donation(const TesseraMigrationRow *row);

/* Committed, but the recipient has lost the rows, and the config node has given the range back: it is owned again, and nothing of it was deleted. */
extern void tessera_placement_take_back_range(const TesseraMigrationRow *row);

/* ---- recipient ---- */

/* ERROR 55006 if another migration has a part of the range here. Looks without a lock: the steps look again. */
extern void tessera_placement_require_free(const TesseraMigrationRow *row);

/*
 * The range is to be deleted (and will be, should the migration fail). ERROR 55006 if a part of it is in another migration here, TS002 if any part is
 * owned. false if rows of an older deletion of the range may be there: nothing is changed, they have to be deleted first.
 */
extern bool tessera_placement_begin_reception(const TesseraMigrationRow *row);

/* Readers of the range wait, from before it becomes visible. attempt: the donor's, see migration_slot.h. false: it is over, nothing is changed. */
extern bool tessera_placement_begin_confirmation(const TesseraMigrationRow *row, XLogRecPtr attempt);

/* All rows are here: the range is owned as soon as the config node says so. false: the attempt is over, nothing is changed. */
extern bool tessera_placement_confirm(const TesseraMigrationRow *row, XLogRecPtr attempt);

/*
 * The donor has opened its gate again, so the attempt is over: as before its confirmation. Nothing if that was done, or was not begun, or a later
 * attempt is under way. By the worker or, as it may stand still, by another process: the worker's next step for the attempt finds that it is over.
 */
extern void tessera_placement_undo_confirmation(const TesseraMigrationRow *row, XLogRecPtr attempt);

/* Committed: the range is owned by this version. The recipient row goes. ERROR 55000 if it was not confirmed, TS003 if the
 * outcome's term is over. */
extern void tessera_placement_commit_reception(const TesseraMigrationRow *row, int64 major, int64 term);

/* Aborted: the range is not owned, its rows are the range deleter's. The recipient row goes. */
extern void tessera_placement_abort_reception(const TesseraMigrationRow *row);

#endif							/* TESSERA_MIGRATION_PLACEMENT_CHANGE_H */
