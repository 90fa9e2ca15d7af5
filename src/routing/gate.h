/*
 * gate.h
 *	  Publication of a migration and its write gate (doc/design.md#gate): the shared lock that writers of a group under migration take.
 *
 * The gate itself is not a lock: it is the placement row and its mirror. The lock only tells the mover who is inside. It is taken in share mode by statements that
 * may touch the moving range, to the end of their transaction; nobody takes it exclusively; the mover waits for its holders (tessera_gate_holders).
 */
#ifndef TESSERA_GATE_H
#define TESSERA_GATE_H

#include "postgres.h"
#include "storage/lock.h"
#include "utils/uuid.h"

/* Takes the lock; true if this transaction did not hold it before. Never waits (there are no exclusive holders). */
extern bool tessera_gate_enter(const pg_uuid_t *migration_id);

/* Gives back a lock that tessera_gate_enter has newly taken. */
extern void tessera_gate_leave(const pg_uuid_t *migration_id);

/* Transactions that are inside (palloc'd, terminated by an invalid one). For the mover. */
extern VirtualTransactionId *tessera_gate_holders(const pg_uuid_t *migration_id, int *n);

#endif							/* TESSERA_GATE_H */
