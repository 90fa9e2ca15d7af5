/*
 * transaction_steps.c
 *	  Runs the steps at the end of transactions and subtransactions; see transaction_steps.h.
 *
 * State: where the tables are, and whether there is something to do. No locks, no memory.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "common/transaction_steps.h"

static const TesseraTransactionSteps *tables = NULL;

/* Of this process. */
typedef struct Involved
{
	bool		transaction;	/* the one at hand; until its last steps have been run */
	bool		session;
} Involved;

static Involved involved = {0};

void
tessera_transaction_involved(void)
{
	involved.transaction = true;
}

void
tessera_session_involved(void)
{
	involved.session = true;
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	if (!involved.transaction && !involved.session && MyBackendType == B_BACKEND && !TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	/* a step before the commit is always followed by those at the end */
	involved.transaction = true;
	for (const TesseraTransactionStep *step = tables->at[event]; step != NULL && *step != NULL; step++)
		(*step) ();
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE || event == XACT_EVENT_ABORT)
		involved.transaction = false;
}

static void
at_subtransaction_event(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (!involved.transaction && !involved.session && MyBackendType == B_BACKEND)
		return;
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
