/*
 * table_lock.h
 *	  Takes a table lock without stalling those who come after.
 *
 * A strong lock that queues behind a long transaction makes every later statement on the table queue behind it. So it is asked for with a short
 * deadline, let go, and asked for again (DESIGN section 9), until the setting tessera.ddl_lock_timeout has passed.
 */
#ifndef TESSERA_TABLE_LOCK_H
#define TESSERA_TABLE_LOCK_H

#include "postgres.h"
#include "storage/lockdefs.h"

/* Setting tessera.ddl_lock_timeout, in milliseconds; 0: one attempt without waiting. */
extern int	tessera_ddl_lock_timeout;

/*
 * Locks the table to the end of the transaction. ERROR 55P03 naming it if the setting's time has passed. Runs subtransactions: not for parallel
 * workers, nor in callbacks. Interruptible.
 */
extern void tessera_lock_table(Oid relid, LOCKMODE mode);

/* From _PG_init: the setting. */
extern void tessera_table_lock_init(void);

#endif							/* TESSERA_TABLE_LOCK_H */
