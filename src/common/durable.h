/*
 * durable.h
 *	  Commits that others rely on: flushed, whatever the session's synchronous_commit says.
 */
#ifndef TESSERA_DURABLE_H
#define TESSERA_DURABLE_H

#include "postgres.h"

/* The current transaction's commit is flushed before it is reported (and waits for standbys, where synchronous_commit wants that). In a transaction. */
extern void tessera_commit_durably(void);

/*
 * The same, and with it all that was committed before on this server, by anybody, without being flushed. A transaction that writes nothing else would not flush anything. In a
 * transaction, which gets an xid.
 */
extern void tessera_commit_all_durably(void);

#endif							/* TESSERA_DURABLE_H */
