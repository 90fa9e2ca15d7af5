/*
 * migration_row.h
 *	  The local rows of migrations: tessera.migration_coordinator on the donor, tessera.migration_recipient on the recipient.
 *
 * All functions run in the caller's transaction; results are in the current memory context.
 */
#ifndef TESSERA_MIGRATION_ROW_H
#define TESSERA_MIGRATION_ROW_H

#include "postgres.h"
#include "access/xlogdefs.h"
#include "utils/array.h"
#include "utils/uuid.h"

#include "catalog/migration_state.h"
#include "catalog/placement.h"

/* What both rows say. */
typedef struct TesseraMigrationRow
{
	pg_uuid_t	migration_id;
	int			nranges;
	TesseraOperationRange *ranges;	/* what moves: by group_id, then by min */
	int32		peer;			/* donor's row: the recipient; recipient's: the donor */
	TesseraMigrationState state;	/* durable phase or state */
	TesseraMigrationResult decision;	/* donor */
	char	   *slot;			/* donor: of the replication slot */
	int64		term;			/* of the registration */
	int32		donor_incarnation;
	int32		recipient_incarnation;
	bool		verify;			/* by content */
	bool		yields;			/* makes way for clients and standbys: the balancer has begun it */
	double		share;			/* of the rows that the donor has of these groups; -1: not known */
	char	   *request;		/* as registered: jsonb text */
} TesseraMigrationRow;

/* Index of the first range behind i that is of another group, or nranges: walks the groups. */
static inline int
tessera_next_group(const TesseraMigrationRow *row, int i)
{
	int			next = i + 1;

	while (next < row->nranges && memcmp(&row->ranges[next].group_id, &row->ranges[i].group_id, sizeof(pg_uuid_t)) == 0)
		next++;
	return next;
}

/* True if a range of the group is among those that move. */
extern bool tessera_migration_row_has_group(const TesseraMigrationRow *row, const pg_uuid_t *group_id);

/*
 * The shard versions that the outcome gives, an int8[] with one for each group in the order of ranges, as a list; palloc'd. ERROR XX001 if they are
 * not as many as the groups. The other one makes the int8[] of its text form.
 */
extern const int64 *tessera_migration_majors(const TesseraMigrationRow *row, ArrayType *array);
extern ArrayType *tessera_majors_of_text(const char *text);

/* Inserts the row from a request; false if there is one. */
extern bool tessera_migration_row_insert(TesseraMigrationSide side, const pg_uuid_t *migration_id, const char *request, const char *slot);

/* Reads it, locked FOR UPDATE if wanted; NULL if there is none. */
extern TesseraMigrationRow *tessera_migration_row(TesseraMigrationSide side, const pg_uuid_t *migration_id, bool lock);

/*
 * Writes the phase; the decision stays as it is for TESSERA_RESULT_NONE (donor). ERROR 55000 if the row is gone, XX000 if the table of transitions
 * does not have it.
 */
extern void tessera_migration_row_set(TesseraMigrationSide side, const pg_uuid_t *migration_id, TesseraMigrationState state,
									  TesseraMigrationResult decision);

/* Deletes the row, if it is there: the side has come to this end. ERROR XX000 if the table of transitions does not have it. */
extern void tessera_migration_row_delete(TesseraMigrationSide side, const pg_uuid_t *migration_id, TesseraMigrationState state);

/* Makes the plans that reading, changing and deleting such a row will need: for a session that will do it while others wait, for the first time. */
extern void tessera_migration_row_plan(TesseraMigrationSide side);

/* Ids of all rows. */
extern pg_uuid_t *tessera_migration_row_ids(TesseraMigrationSide side, int *n);

/*
 * Ranges of the group that migrations receive here (which only those migrations delete), without one migration's (NULL: all); their ids, if ids is
 * not NULL.
 */
extern TesseraRange *tessera_received_ranges(const pg_uuid_t *group_id, const pg_uuid_t *except, pg_uuid_t **ids, int *n);

/* Ranges of the group that migrations give away here, from the coordinator row's beginning to its end. */
extern TesseraRange *tessera_donated_ranges(const pg_uuid_t *group_id, int *n);

#endif							/* TESSERA_MIGRATION_ROW_H */
