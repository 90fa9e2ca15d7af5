/*
 * retryable.h
 *	  What is done under a session's transaction number is done once (doc/design.md#sessions).
 */
#ifndef TESSERA_RETRYABLE_H
#define TESSERA_RETRYABLE_H

#include "postgres.h"

/* Steps at the end of a transaction and of a subtransaction; committed: also when it was prepared. */
extern void tessera_retryable_committed(void);
extern void tessera_retryable_aborted(void);
extern void tessera_retryable_subtransaction_committed(SubTransactionId mine, SubTransactionId parent);
extern void tessera_retryable_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

/* From _PG_init: executor and utility hooks. */
extern void tessera_retryable_init(void);

#endif							/* TESSERA_RETRYABLE_H */
