/*
 * write_gate.h
 *	  The lock of a migration's write gate (doc/design.md#gate): writers of the moving range take it in share mode.
 *
 * The gate itself is not a lock: it is the placement row and its copy in shared memory. The donor closes it in migration/donor_gate.c, and statements
 * wait at it in executor/shard_check.c (wait_at_gate). The lock only tells the donor's worker which transactions may
 * still write. Statements that may write the moving range take it in share mode, to the end of their transaction. It is never taken exclusively; the
 * donor's worker waits for its holders (tessera_gate_holders).
 */
#ifndef TESSERA_WRITE_GATE_H
#define TESSERA_WRITE_GATE_H

#include "postgres.h"
#include "storage/lock.h"
#include "utils/uuid.h"

/* Takes the lock; true if this transaction did not hold it before. Never waits (there are no exclusive holders). */
extern bool tessera_gate_enter(const pg_uuid_t *migration_id);

/* Gives back a lock that tessera_gate_enter has newly taken. */
extern void tessera_gate_leave(const pg_uuid_t *migration_id);

/* The transactions that hold the lock (palloc'd, terminated by an invalid one). For the donor's worker. */
extern VirtualTransactionId *tessera_gate_holders(const pg_uuid_t *migration_id, int *n);

#endif							/* TESSERA_WRITE_GATE_H */
