/*
 * migration_state.h
 *	  States of a migration on its donor, its recipient and the config node, the transitions between them as one table, and its outcome.
 */
#ifndef TESSERA_MIGRATION_STATE_H
#define TESSERA_MIGRATION_STATE_H

#include "postgres.h"

typedef enum TesseraMigrationSide
{
	TESSERA_DONOR,
	TESSERA_RECIPIENT,
	TESSERA_CONFIG
} TesseraMigrationSide;

typedef enum TesseraMigrationState
{
	TESSERA_NONE,				/* there is no row yet */
	/* donor */
	TESSERA_REGISTERED,
	TESSERA_STARTING,
	TESSERA_CLONING,
	TESSERA_CATCHING_UP,
	TESSERA_STEADY,
	TESSERA_WRITE_GATE,
	TESSERA_READ_GATE,
	TESSERA_DECIDING,
	TESSERA_RELEASING,
	TESSERA_CLEANING,
	TESSERA_DONE,
	TESSERA_ABORTING,
	TESSERA_ABORTED,
	/* recipient */
	TESSERA_PREPARED,
	TESSERA_RECEIVING,
	TESSERA_APPLYING,
	TESSERA_CONFIRMING,
	TESSERA_CONFIRMED,
	TESSERA_RELEASED,
	TESSERA_DISCARDED,
	/* config node; and aborted */
	TESSERA_RUNNING,
	TESSERA_COMMITTED
} TesseraMigrationState;

#define TESSERA_MIGRATION_STATES (TESSERA_COMMITTED + 1)

/* Where a state is kept. */
#define TESSERA_IN_PROCESS 1	/* in shared memory, by the migration's process */
#define TESSERA_IN_ROW 2		/* in the side's row */

/* How a migration has ended: what is decided, by the config node or by the donor, or known of that. */
typedef enum TesseraMigrationResult
{
	TESSERA_RESULT_NONE,		/* not decided; not known */
	TESSERA_RESULT_COMMITTED,
	TESSERA_RESULT_ABORTED
} TesseraMigrationResult;

/* Name of a state, as views and catalog rows show it. */
extern const char *tessera_migration_state_name(TesseraMigrationState state);

/* State of this name. ERROR XX001 if there is none: a catalog row is damaged. */
extern TesseraMigrationState tessera_migration_state_of(const char *name);

/* ERROR XX000 unless the table has the transition where the state is kept; the same state again is allowed. */
extern void tessera_migration_check_transition(TesseraMigrationSide side, int kept, TesseraMigrationState from, TesseraMigrationState to);

/* text[] of the states from which a row of this side may go to this one, and that state itself. In the current memory context. */
extern Datum tessera_migration_states_before(TesseraMigrationSide side, TesseraMigrationState to);

/* The state of the config node's row with this outcome. */
extern TesseraMigrationState tessera_migration_result_state(TesseraMigrationResult result);

/* As rows and calls between nodes have it: committed, aborted, running for none. */
extern const char *tessera_migration_result_text(TesseraMigrationResult result);

/* The same, from that text; NULL and running: none. ERROR 22023: it is another text. */
extern TesseraMigrationResult tessera_migration_result_of(const char *text);

#endif							/* TESSERA_MIGRATION_STATE_H */
