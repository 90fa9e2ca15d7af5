/*
 * migration_outcome.h
 *	  The end of a migration, from the durable rows alone: after a decision, after an error, and after a crash.
 */
#ifndef TESSERA_MIGRATION_OUTCOME_H
#define TESSERA_MIGRATION_OUTCOME_H

#include "postgres.h"
#include "utils/array.h"
#include "utils/uuid.h"

#include "migration/migration_slot.h"

/* What the donor's worker knows beyond the rows; zeroed: nothing. */
typedef struct TesseraDonorResult
{
	bool		decided;		/* the config node has answered: committed, with these versions */
	MemoryContext context;		/* of the texts below */
	char	   *donor_majors;	/* one for each group, int8[] as text */
	char	   *recipient_majors;
	int64		term;
	const char *error;			/* for tessera.migration: why it is aborted */
	double		pause_ms;		/* -1: the gate was not closed */
	int64		rows;
	int64		bytes;
	int64		mods;
	TimestampTz gate_closed;	/* by tessera_now, like those below; 0: not closed: the pause is measured from here to the release */
	TimestampTz drained;		/* of that pause: writers inside had ended */
	TimestampTz shipped;		/* the recipient had everything */
	TimestampTz given_up;		/* it had confirmed, and the range was given up */
	TimestampTz answered;		/* the config node had committed */
} TesseraDonorResult;

/* "57014: migration was cancelled", as tessera.migration keeps an error. palloc'd. */
extern char *tessera_outcome_error(const char *sqlstate, const char *message, const char *detail);

/*
 * Brings a migration donated here to its end: finds the outcome (fencing the migration if it is open), carries it out on both sides, drops the slot,
 * acknowledges, deletes the coordinator row. Outside a transaction; runs its own. Each part is done once and can be repeated; an ERROR (a node cannot
 * be reached) leaves the rest to the next call. Returns the outcome; NONE if there is no coordinator row.
 */
extern TesseraMigrationResult tessera_outcome_complete_donor(const pg_uuid_t *migration_id, TesseraDonorResult *known);

/* Carries out an outcome on the recipient, in the caller's transaction. majors: if committed, of the recipient, one for each group. */
extern void tessera_outcome_complete_recipient(const pg_uuid_t *migration_id, bool committed, ArrayType *majors, int64 term);

/* Recipient: asks the config node for the outcome and carries it out. false: it is open. Outside a transaction. */
extern bool tessera_outcome_follow(const pg_uuid_t *migration_id);

#endif							/* TESSERA_MIGRATION_OUTCOME_H */
