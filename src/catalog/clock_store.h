/*
 * clock_store.h
 *	  What of the clock is durable: up to which time it may go (a sequence, WAL-logged and not part of any transaction), the newest config time heard
 *	  (another one), and when the membership changed last (tessera.topology, a row of the catalog).
 *
 * After a restart, a crash or a promotion the clock goes on from the reservation. A reservation costs a flush of WAL; it is made some seconds
 * ahead, by the worker while the clock is in use, else by the commit that needs it.
 */
#ifndef TESSERA_CLOCK_STORE_H
#define TESSERA_CLOCK_STORE_H

#include "postgres.h"

#include "clock/clock.h"

/* Starts the clock if it does not go. In a transaction, on a primary. Nothing happens if the extension is not there (any more). */
extern void tessera_clock_load(void);

/*
 * In a transaction that writes, at its commit: a new time, later than all that this node has given out or heard, durably reserved. metadata: the
 * commit changes the catalog; on the config node that is the config time, too. 0: the extension is gone. May wait for another session's
 * reservation; ERROR if the catalog cannot be written.
 */
extern TesseraTime tessera_clock_commit(bool metadata);

/*
 * The same for the transaction at hand, which has an id then: its commit time, which readers find (clock/commit_times.h). fixed: others are told it
 * before the commit. Once taken it is the same. 0: this database has no clock.
 */
extern TesseraTime tessera_clock_take_commit_time(bool metadata, bool fixed);

/* When this database becomes a node: what its clock goes by is written, whatever it was before. In a transaction that writes. */
extern void tessera_clock_begin(void);

/*
 * The clock's times, all of them durable: waits for the worker where it has heard what is not reserved. ERROR 55000 on a standby, or if the
 * database is no node; 55P03 if the worker does not answer.
 */
extern void tessera_clock_read_durably(TesseraTimes *times);

/* The worker's part: makes a reservation ahead of need, and what was heard of the config time durable. Runs its own transaction. */
extern void tessera_clock_keep(void);

/* The row of tessera.topology counts, as it is committed: the registry here is as new. So does the node's role. In a transaction. */
extern void tessera_clock_registry_read(void);

/* At the end of a transaction that may have changed the membership. Never raises. */
extern void tessera_clock_end_transaction(bool committed);

#endif							/* TESSERA_CLOCK_STORE_H */
