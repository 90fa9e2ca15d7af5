/*
 * subtransaction.h
 *	  Something that may fail, in a subtransaction of its own, so that an error ends there.
 */
#ifndef TESSERA_SUBTRANSACTION_H
#define TESSERA_SUBTRANSACTION_H

#include "postgres.h"

/*
 * Calls attempt(arg) in the caller's memory context. Returns NULL if it went through; else what it has done is rolled back, its locks are released,
 * and the error is returned, palloc'd in the caller's context. Any error, a request to cancel included: the caller decides which goes on
 * (ReThrowError), which it may do at once, since the subtransaction has ended. Memory context and resource owner are the caller's again.
 */
extern ErrorData *tessera_try(void (*attempt) (void *arg), void *arg);

/*
 * The same for what may fail of one thing among several: the error as text, "SQLSTATE: message", palloc'd; NULL: it went through. An error that says
 * nothing of the thing goes on: a request to cancel, want of memory; a node that cannot be reached is of the thing.
 */
extern char *tessera_try_one(void (*attempt) (void *arg), void *arg);

#endif							/* TESSERA_SUBTRANSACTION_H */
