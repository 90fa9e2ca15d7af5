/*
 * migration_slot.h
 *	  Shared memory of running migrations: one slot for each migration and side, from before its worker starts until its result was read.
 *
 * A slot is reserved by the session that starts the worker, attached by the worker, and ended when the worker exits, however it does. An ended slot
 * keeps the result until it is needed for another migration. The generation tells a slot's uses apart.
 *
 * Locks: one LWLock of the module for all fields. Only the attached worker writes progress and result; any process may set `cancel`. The condition
 * variable of the module is broadcast at each change of state, cancel or result.
 */
#ifndef TESSERA_MIGRATION_SLOT_H
#define TESSERA_MIGRATION_SLOT_H

#include "postgres.h"
#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "utils/uuid.h"

#include "catalog/migration_state.h"
#include "transport/exchange.h"

#define TESSERA_MIGRATION_SLOTS 64
#define TESSERA_MIGRATION_TEXT 512

typedef enum TesseraSlotUse
{
	TESSERA_SLOT_FREE,
	TESSERA_SLOT_RESERVED,		/* the worker is about to be started */
	TESSERA_SLOT_RUNNING,
	TESSERA_SLOT_ENDED			/* result is kept */
} TesseraSlotUse;

typedef struct TesseraMigrationSlot
{
	/* set at the reservation */
	TesseraSlotUse use;
	uint32		generation;
	Oid			database;
	TesseraMigrationSide side;
	pg_uuid_t	migration_id;
	pg_uuid_t	group_id;
	TimestampTz reserved;

	/* what the recipient's worker needs to connect: set before it starts */
	char		public_key[TESSERA_CURVE_KEY_SIZE];
	char		secret_key[TESSERA_CURVE_KEY_SIZE];
	char		peer_key[TESSERA_CURVE_KEY_SIZE];
	char		endpoint[256];

	/* the worker */
	int			pid;			/* 0: none */
	int			pgprocno;
	bool		cancel;			/* asked to end; too late once it is deciding */
	char		cancelled_by[128];	/* the statement that it makes way for; empty: a user asked */
	bool		completed;		/* recipient: the outcome was carried out by another process */
	XLogRecPtr	confirming;		/* recipient: the attempt of the donor that it is about to confirm, or has, by its last batch's position */
	XLogRecPtr	taken_back;		/* recipient: attempts up to this one are over; written under the placement row's lock, as it is compared */
	TesseraMigrationState state;
	TimestampTz started;
	int64		rows;
	int64		bytes;
	int64		mods;
	int64		rows_total;		/* donor: estimate of the rows that it will clone; -1: not made yet */
	uint64		backlog;		/* donor: bytes of WAL not decoded yet */
	double		lag_ms;			/* donor: how far the recipient is behind; -1: not known */
	double		pause_ms;		/* donor: of the last closed gate */
	int32		gate_attempts;
	int64		memory;			/* bytes that the worker had allocated when last looked */
	int64		memory_peak;
	char		waiting_for[256];	/* a holder's text, and what it holds up */

	/* the result */
	TesseraMigrationResult result;
	TimestampTz decided;		/* since when it is known; 0: it is not */
	char		sqlstate[6];
	char		message[TESSERA_MIGRATION_TEXT];
	char		detail[TESSERA_MIGRATION_TEXT];
	char		hint[TESSERA_MIGRATION_TEXT];
} TesseraMigrationSlot;

/* Reserves a slot (the live one of this migration and side if there is one: *existing). ERROR 53400 if all are taken. */
extern int	tessera_migration_slot_reserve(TesseraMigrationSide side, const pg_uuid_t *migration_id, const pg_uuid_t *group_id, bool *existing);

/* Gives a reservation back; nothing if the slot is of another use by now. */
extern void tessera_migration_slot_unreserve(int slot, uint32 generation);

/* A copy of the slot of this migration and side in this database; live ones first. false if there is none. */
extern bool tessera_migration_slot_find(TesseraMigrationSide side, const pg_uuid_t *migration_id, int *slot, TesseraMigrationSlot *copy);
extern void tessera_migration_slot_copy(int slot, TesseraMigrationSlot *copy);

/* True if the slot's worker is alive, or about to be started (reserved less than 30 s ago). */
extern bool tessera_migration_slot_live(const TesseraMigrationSlot *copy);

/* Sets what the recipient needs to connect. */
extern void tessera_migration_slot_set_keys(int slot, const TesseraExchangeKeys *keys);
extern void tessera_migration_slot_set_peer(int slot, const char *endpoint, const char *peer_key);

/* Starts the worker of a reserved slot. ERROR 53000 with a HINT if there is no worker left. */
extern void tessera_migration_slot_start_worker(int slot, uint32 generation);

/* Asks the worker to end; wakes it. by: the statement that it makes way for, or NULL; the first one counts. false if there is no worker. */
extern bool tessera_migration_slot_cancel(TesseraMigrationSide side, const pg_uuid_t *migration_id, const char *by);

/* Tells the recipient's worker that the outcome is carried out. */
extern void tessera_migration_slot_completed(const pg_uuid_t *migration_id);

/*
 * Tells the recipient's worker that the attempts up to this one are over. true: it has begun to confirm one of them. The caller holds the placement
 * row's lock.
 */
extern bool tessera_migration_slot_take_back(const pg_uuid_t *migration_id, XLogRecPtr attempt);

/* ---- the worker's own slot ---- */

/* Attaches; from here on the slot ends when the process exits. false if the slot is of another use by now. */
extern bool tessera_migration_slot_attach(int slot, uint32 generation);

/* Exit step of a migration's worker: the slot has no process any more. */
extern void tessera_migration_slot_leave(int code, Datum arg);

/*
 * Own slot's entry, NULL in other processes: changed between tessera_migration_slot_lock and tessera_migration_slot_unlock; read by its owner
 * without.
 */
extern TesseraMigrationSlot *tessera_my_migration;
extern void tessera_migration_slot_lock(void);
extern void tessera_migration_slot_unlock(bool broadcast);

/* Enters a state (checked against the table of transitions). */
extern void tessera_migration_slot_enter(TesseraMigrationState state);

/* What it waits for; NULL: nothing. */
extern void tessera_migration_slot_waiting(const char *what);

/* Notes how much memory this process has now; looks at it ten times a second at most. */
extern void tessera_migration_slot_note_memory(void);

/* Donor: how many rows it expects to clone. */
extern void tessera_migration_slot_expect(int64 rows_total);

/* Adds to the counters. */
extern void tessera_migration_slot_count(int64 rows, int64 bytes, int64 mods);

/* Recipient, before it wants the placement row's lock: it is about to confirm this attempt. */
extern void tessera_migration_slot_confirming(XLogRecPtr attempt);

/* True if it was asked to end. */
extern bool tessera_migration_slot_cancelled(void);

/* The result; shows when the worker has exited or at once. error NULL: none. */
extern void tessera_migration_slot_result(TesseraMigrationResult result, const ErrorData *error);

/* Waits until the slot has ended or timeout_ms have passed; false if there is no such slot. Interruptible. */
extern bool tessera_migration_slot_wait(TesseraMigrationSide side, const pg_uuid_t *migration_id, int timeout_ms, TesseraMigrationSlot *copy);

extern void tessera_migration_slot_init(void); /* from _PG_init */

#endif							/* TESSERA_MIGRATION_SLOT_H */
