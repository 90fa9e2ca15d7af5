/*
 * give_way.h
 *	  Reading tables at one's leisure: only if they are free, and only as long as nobody waits for them.
 */
#ifndef TESSERA_GIVE_WAY_H
#define TESSERA_GIVE_WAY_H

#include "postgres.h"

#include "utils/rel.h"

/*
 * The table, locked with AccessShareLock, if that lock is free at once; NULL if it is not, or if the table is gone. Closed with NoLock, the lock
 * stays to the end of the transaction.
 */
extern Relation tessera_open_if_free(Oid relid);

/*
 * True if a process waits for a lock on the table, which then conflicts with this process's own. Takes no lock: the answer may be a moment old. Reads
 * an entry for each process that the server may have.
 */
extern bool tessera_table_is_awaited(Oid relid);

#endif							/* TESSERA_GIVE_WAY_H */
