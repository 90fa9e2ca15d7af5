/*
 * change.h
 *	  Tells the shared-memory mirror (routing/) that catalog rows changed.
 *
 * Every writer of a catalog row calls tessera_catalog_changed() in the writing transaction. When that transaction commits, the database's catalog
 * sequence in shared memory is bumped (in the commit callback: after the commit is visible, before its locks go); a backend whose mirror was
 * loaded at an older sequence loads it again. COMMIT PREPARED of such a
 * transaction bumps it too. Inside the writing transaction itself
 * the mirror is private: see tessera_catalog_changed_here().
 */
#ifndef TESSERA_CHANGE_H
#define TESSERA_CHANGE_H

#include "postgres.h"
#include "datatype/timestamp.h"

/* This transaction (or subtransaction) changed catalog rows. */
extern void tessera_catalog_changed(void);

/* The same, of the row that says who this node is. At commit the workers that had ended because this node had no work for them are checked again. */
extern void tessera_catalog_role_changed(void);

/*
 * Number of changes of catalog rows that the current transaction has made and not rolled back; 0: none. If it is not 0 the shared mirror does not
 * show what this transaction sees. The number grows with each change, so a private copy is good until the next one.
 */
extern uint64 tessera_catalog_changed_here(void);

/* The database's catalog sequence. Read it before taking the snapshot with which the catalog is loaded. */
extern uint64 tessera_catalog_sequence(void);

/* Bumps the sequence at once. Never raises. COMMIT PREPARED does so by itself. */
extern void tessera_catalog_bump(void);

/* Waits until the sequence is no longer `seen` (true) or the deadline has passed (false). Interruptible; woken by every bump. */
extern bool tessera_catalog_wait(uint64 seen, TimestampTz deadline);

/*
 * Steps: a change is announced before the commit, and the sequence grows when it can be seen; PREPARE notes what there is to do when it is
 * committed; an abort grows it for a COMMIT PREPARED that was done before the error. But for the first none raises.
 */
extern void tessera_catalog_before_commit(void);
extern void tessera_catalog_committed(void);
extern void tessera_catalog_prepared(void);
extern void tessera_catalog_aborted(void);
extern void tessera_catalog_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

/* From _PG_init. */
extern void tessera_catalog_change_init(void);

#endif							/* TESSERA_CHANGE_H */
