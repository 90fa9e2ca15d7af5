/*
 * transaction_steps.c
 *	  Runs the steps at the end of transactions and subtransactions; see transaction_steps.h.
 *
 * State: where the tables are. No locks, no memory.
 */
#include "postgres.h"

#include "common/transaction_steps.h"

static const TesseraTransactionSteps *tables = NULL;

static void
at_transaction_event(XactEvent event, void *arg)
{
	for (const TesseraTransactionStep *step = tables->at[event]; step != NULL && *step != NULL; step++)
		(*step) ();
}

static void
at_subtransaction_event(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	for (const TesseraSubtransactionStep *step = tables->at_sub[event]; step != NULL && *step != NULL; step++)
		(*step) (mine, parent);
}

void
tessera_transaction_steps_install(const TesseraTransactionSteps *steps)
{
	tables = steps;
	RegisterXactCallback(at_transaction_event, NULL);
	RegisterSubXactCallback(at_subtransaction_event, NULL);
}
