/*
 * give_way.h
 *	  Does somebody wait for a table that this process reads at its leisure?
 */
#ifndef TESSERA_GIVE_WAY_H
#define TESSERA_GIVE_WAY_H

#include "postgres.h"

/*
 * True if a process waits for a lock on the table, which then conflicts with this process's own. Takes no lock: the answer may be a moment old. Reads
 * an entry for each process that the server may have.
 */
extern bool tessera_table_is_awaited(Oid relid);

#endif							/* TESSERA_GIVE_WAY_H */
