/*
 * peek.h
 *	  Whether a transaction over several nodes is decided at a time or before, asked of its coordinator without deciding for it: what a reader as of
 *	  that time needs to know of what it finds prepared (doc/design.md#one-snapshot).
 */
#ifndef TESSERA_PEEK_H
#define TESSERA_PEEK_H

#include "postgres.h"

#include "clock/commit_times.h"
#include "clock/time_value.h"

/* Room for the identifier of a transaction, as its coordinator knows it. */
#define TESSERA_TRANSACTION_GID 64

/*
 * Of a prepared part: the identifier of its transaction, and the node that coordinates it. false: it is no part of a transaction over several nodes.
 */
extern bool tessera_part_of(const char *gid, char transaction[TESSERA_TRANSACTION_GID], int32 *coordinator);

/* True if a client has prepared it, who has yet to decide, or has just done so. */
extern bool tessera_part_is_clients(const char *gid);

/*
 * This node coordinates the transaction: if it is not decided by now, its commit will be later than the time. Waits for nothing. In a transaction.
 */
extern TesseraDecided tessera_peek(const char *transaction, TesseraTime time);

#endif							/* TESSERA_PEEK_H */
