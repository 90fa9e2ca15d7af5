/*
 * constraint_modes.c
 *	  What SET CONSTRAINTS has set in this transaction; see constraint_modes.h.
 *
 * A list in the order of the statements, each with the nesting level of the subtransaction it belongs to, so levels never decrease along it. A
 * participant has run a prefix of the list (TesseraParticipant.modes_sent): each statement in the savepoint of its level, so that a rollback to a
 * savepoint there takes back what the rollback here takes off the list.
 *
 * What is run late, before some command, is run as the cluster's own role, since the command's user may have no rights on the constraints' schemas.
 * No code of users runs then: a DEFERRED one fires nothing, and an IMMEDIATE one is late only where the transaction has just begun. Where one may be
 * pending, it is sent at once, as the user who runs it, since the functions of pending triggers run as that user, as they do on one server.
 *
 * Memory: the list lives in TopTransactionContext. A crash leaves nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "transaction/constraint_modes.h"
#include "transaction/transaction_private.h"

struct TesseraConstraintMode
{
	char	   *names;
	bool		deferred;
	int			level;			/* of nesting */
};

bool
tessera_constraint_modes_any(TesseraTransaction *transaction)
{
	return transaction->nmodes > 0;
}

static char *
mode_sql(const char *names, bool deferred)
{
	return psprintf("SET CONSTRAINTS %s %s", names, deferred ? "DEFERRED" : "IMMEDIATE");
}

const char *
tessera_constraint_modes_next(TesseraTransaction *transaction, const TesseraParticipant *participant, int level)
{
	const TesseraConstraintMode *mode;

	if (participant->modes_sent >= transaction->nmodes)
		return NULL;
	mode = &transaction->modes[participant->modes_sent];
	return mode->level <= level ? mode_sql(mode->names, mode->deferred) : NULL;
}

static void
remove_mode(TesseraTransaction *transaction, int index)
{
	memmove(transaction->modes + index, transaction->modes + index + 1, (transaction->nmodes - index - 1) * sizeof(TesseraConstraintMode));
	transaction->nmodes--;
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].modes_sent > index)
			transaction->participants[i].modes_sent--;
}

/* Takes off the list what the new one of this level replaces: all of the level, or those for the same names. What is left means the same. */
static void
remove_replaced(TesseraTransaction *transaction, const char *names, int level)
{
	bool		all = strcmp(names, "ALL") == 0;

	for (int i = transaction->nmodes - 1; i >= 0 && transaction->modes[i].level == level; i--)
		if (all || strcmp(transaction->modes[i].names, names) == 0)
			remove_mode(transaction, i);
}

static void
add_mode(TesseraTransaction *transaction, const char *names, bool deferred)
{
	TesseraConstraintMode *mode;
	int			level = GetCurrentTransactionNestLevel();

	remove_replaced(transaction, names, level);
	if (transaction->nmodes == transaction->modes_size)
	{
		int			size = Max(8, transaction->modes_size * 2);

		if (transaction->modes == NULL)
			transaction->modes = MemoryContextAlloc(TopTransactionContext, size * sizeof(TesseraConstraintMode));
		else
			transaction->modes = repalloc(transaction->modes, size * sizeof(TesseraConstraintMode));
		transaction->modes_size = size;
	}
	mode = &transaction->modes[transaction->nmodes];
	mode->names = MemoryContextStrdup(TopTransactionContext, names);
	mode->deferred = deferred;
	mode->level = level;
	transaction->nmodes++;
}

/* On all participants, as this user; those that ran it are marked in `ran` (of transaction->nparticipants). */
static void
run_everywhere(TesseraTransaction *transaction, const TesseraRouting *routing, const char *sql, bool *ran)
{
	int			n = transaction->nparticipants;
	TesseraCommand *commands = MemoryContextAllocZero(TopTransactionContext, Max(n, 1) * sizeof(TesseraCommand));

	for (int i = 0; i < n; i++)
	{
		TesseraCommandNeeds needs = {.write = transaction->participants[i].wrote};	/* what is pending was written; its triggers may write, too */
		TesseraConnection *connection;

		if (!transaction->participants[i].joined || transaction->participants[i].unlisted || !transaction->participants[i].used)
			continue;			/* (who is used later hears of it then) */
		connection = tessera_participant(routing, transaction->participants[i].node_id, &needs);
		commands[i].sql = sql;
		tessera_connection_queue(connection, &commands[i]);
		tessera_connection_sync(connection);
		ran[i] = true;
	}
	for (int i = 0; i < n; i++)
		if (ran[i])
			tessera_connection_finish(transaction->participants[i].connection, &commands[i]);
	for (int i = 0; i < n; i++)
		if (ran[i])
			tessera_connection_check(transaction->participants[i].connection, &commands[i]);
	pfree(commands);
}

void
tessera_constraint_modes_set(const TesseraRouting *routing, const char *names, bool deferred)
{
	TesseraTransaction *transaction = tessera_this_transaction();
	bool	   *ran = NULL;

	if (!deferred)
	{
		ran = palloc0(Max(transaction->nparticipants, 1) * sizeof(bool));
		run_everywhere(transaction, routing, MemoryContextStrdup(TopTransactionContext, mode_sql(names, deferred)), ran);
	}
	add_mode(transaction, names, deferred);
	for (int i = 0; ran != NULL && i < transaction->nparticipants; i++)
		if (ran[i])
			transaction->participants[i].modes_sent = transaction->nmodes;
}

void
tessera_constraint_modes_rolled_back(TesseraTransaction *transaction, int level)
{
	while (transaction->nmodes > 0 && transaction->modes[transaction->nmodes - 1].level >= level)
		transaction->nmodes--;
	for (int i = 0; i < transaction->nparticipants; i++)
		transaction->participants[i].modes_sent = Min(transaction->participants[i].modes_sent, transaction->nmodes);
}

void
tessera_constraint_modes_released(TesseraTransaction *transaction, int level)
{
	for (int i = transaction->nmodes - 1; i >= 0 && transaction->modes[i].level >= level; i--)
		transaction->modes[i].level = level - 1;
}

void
tessera_constraint_modes_forget(TesseraTransaction *transaction)
{
	transaction->modes = NULL;
	transaction->nmodes = transaction->modes_size = 0;
}
