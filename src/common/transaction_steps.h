/*
 * transaction_steps.h
 *	  What the extension does as a transaction or a subtransaction ends: for each event the steps of one table, from top to bottom.
 *
 * The server calls its callbacks in the reverse order of their registration, each for all events. So it knows one of ours for transactions and one
 * for subtransactions; the tables are in init.c. A step is a plain function of its module. What it raises goes as from any callback: before a commit
 * or PREPARE an error rolls back, and the steps behind it are not run; at a commit it is a PANIC.
 *
 * Steps are run in a client's session where there may be something to do: the transaction has written, wherever, or a module has said that it has
 * part in it or in the session. Else it costs a few comparisons. In other processes they are always run.
 */
#ifndef TESSERA_TRANSACTION_STEPS_H
#define TESSERA_TRANSACTION_STEPS_H

#include "postgres.h"
#include "access/xact.h"

typedef void (*TesseraTransactionStep) (void);

/* mine: the subtransaction that the event is about; parent: the one around it. */
typedef void (*TesseraSubtransactionStep) (SubTransactionId mine, SubTransactionId parent);

/* For each event its steps, and a NULL behind them; no array: nothing is done. */
typedef struct TesseraTransactionSteps
{
	const TesseraTransactionStep *at[XACT_EVENT_PRE_PREPARE + 1];
	const TesseraSubtransactionStep *at_sub[SUBXACT_EVENT_PRE_COMMIT_SUB + 1];
} TesseraTransactionSteps;

/*
 * In a transaction: it has something of ours, so the steps are run. Whoever gets an image (routing/routing.h) has said so; a module that keeps
 * something of a transaction without one says it itself. Never raises.
 */
extern void tessera_transaction_involved(void);

/* The same for all transactions from here on to the end of the process: it has connections to other nodes, or is one's. */
extern void tessera_session_involved(void);

/* From _PG_init, once: the tables (static, never freed). */
extern void tessera_transaction_steps_install(const TesseraTransactionSteps *steps);

#endif							/* TESSERA_TRANSACTION_STEPS_H */
