/*
 * migration_state.h
 *	  States of a migration on its donor and on its recipient, and the transitions between them as one table.
 */
#ifndef TESSERA_MIGRATION_STATE_H
#define TESSERA_MIGRATION_STATE_H

#include "postgres.h"

typedef enum TesseraMigrationSide
{
	TESSERA_DONOR,
	TESSERA_RECIPIENT
} TesseraMigrationSide;

typedef enum TesseraMigrationState
{
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
	TESSERA_DISCARDED
} TesseraMigrationState;

#define TESSERA_MIGRATION_STATES (TESSERA_DISCARDED + 1)

/* Name of a state, as views and catalog rows show it. */
extern const char *tessera_migration_state_name(TesseraMigrationState state);

/* State of this name. ERROR XX001 if there is none: a catalog row is damaged. */
extern TesseraMigrationState tessera_migration_state_of(const char *name);

/* ERROR XX000 unless the table has the transition; the same state again is allowed. */
extern void tessera_migration_check_transition(TesseraMigrationSide side, TesseraMigrationState from, TesseraMigrationState to);

#endif							/* TESSERA_MIGRATION_STATE_H */
