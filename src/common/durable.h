/*
 * durable.h
 *	  Commits that other nodes rely on: they are flushed whatever the session's synchronous_commit says.
 */
#ifndef TESSERA_DURABLE_H
#define TESSERA_DURABLE_H

#include "postgres.h"

/*
 * Makes the current transaction's commit flush WAL before it returns (and wait for standbys where synchronous_commit wants that). In a transaction.
 */
extern void tessera_commit_durably(void);

/*
 * The same, and flushes with it all that any session of this server has committed before without a flush. In a transaction, which gets an xid: one
 * that writes nothing would not flush anything.
 */
extern void tessera_commit_all_durably(void);

#endif							/* TESSERA_DURABLE_H */
