/*
 * retryable.h
 *	  What is done under a session's transaction number is done once (doc/design.md#sessions).
 */
#ifndef TESSERA_RETRYABLE_H
#define TESSERA_RETRYABLE_H

#include "postgres.h"

/* From _PG_init: executor and utility hooks, callbacks. */
extern void tessera_retryable_init(void);

#endif							/* TESSERA_RETRYABLE_H */
