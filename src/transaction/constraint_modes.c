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

typedef struct ConstraintMode
{
	char	   *names;
	bool		deferred;
	int			level;			/* of nesting */
} ConstraintMode;

static ConstraintMode *modes = NULL;
static int	nmodes = 0;
static int	modes_size = 0;

bool
tessera_constraint_modes_any(void)
{
	return nmodes > 0;
}

static char *
mode_sql(const char *names, bool deferred)
{
	return psprintf("SET CONSTRAINTS %s %s", names, deferred ? "DEFERRED" : "IMMEDIATE");
}

const char *
tessera_constraint_modes_next(const TesseraParticipant *participant, int level)
{
	const ConstraintMode *mode;

	if (participant->modes_sent >= nmodes)
		return NULL;
	mode = &modes[participant->modes_sent];
	return mode->level <= level ? mode_sql(mode->names, mode->deferred) : NULL;
}

static void
remove_mode(int index)
{
	memmove(modes + index, modes + index + 1, (nmodes - index - 1) * sizeof(ConstraintMode));
	nmodes--;
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].modes_sent > index)
			tessera_participants[i].modes_sent--;
}

/* Takes off the list what the new one of this level replaces: all of the level, or those for the same names. What is left means the same. */
static void
remove_replaced(const char *names, int level)
{
	bool		all = strcmp(names, "ALL") == 0;

	for (int i = nmodes - 1; i >= 0 && modes[i].level == level; i--)
		if (all || strcmp(modes[i].names, names) == 0)
			remove_mode(i);
}

static void
add_mode(const char *names, bool deferred)
{
	ConstraintMode *mode;
	int			level = GetCurrentTransactionNestLevel();

	remove_replaced(names, level);
	if (nmodes == modes_size)
	{
		int			size = Max(8, modes_size * 2);

		if (modes == NULL)
			modes = MemoryContextAlloc(TopTransactionContext, size * sizeof(ConstraintMode));
		else
			modes = repalloc(modes, size * sizeof(ConstraintMode));
		modes_size = size;
	}
	mode = &modes[nmodes];
	mode->names = MemoryContextStrdup(TopTransactionContext, names);
	mode->deferred = deferred;
	mode->level = level;
	nmodes++;
}

/* On all participants, as this user; those that ran it are marked in `ran` (of tessera_participant_count). */
static void
run_everywhere(const TesseraRouting *routing, const char *sql, bool *ran)
{
	int			n = tessera_participant_count;
	TesseraCommand *commands = MemoryContextAllocZero(TopTransactionContext, Max(n, 1) * sizeof(TesseraCommand));

	for (int i = 0; i < n; i++)
	{
		TesseraEnvelope envelope = {.write = tessera_participants[i].wrote};	/* what is pending was written; its triggers may write, too */
		TesseraConnection *connection;

		if (!tessera_participants[i].joined || tessera_participants[i].unlisted)
			continue;
		connection = tessera_participant(routing, tessera_participants[i].node_id, &envelope);
		commands[i].sql = sql;
		tessera_connection_queue(connection, &commands[i]);
		tessera_connection_sync(connection);
		ran[i] = true;
	}
	for (int i = 0; i < n; i++)
		if (ran[i])
			tessera_connection_finish(tessera_participants[i].connection, &commands[i]);
	for (int i = 0; i < n; i++)
		if (ran[i])
			tessera_connection_check(tessera_participants[i].connection, &commands[i]);
	pfree(commands);
}

void
tessera_constraint_modes_set(const TesseraRouting *routing, const char *names, bool deferred)
{
	bool	   *ran = NULL;

	if (!deferred)
	{
		ran = palloc0(Max(tessera_participant_count, 1) * sizeof(bool));
		run_everywhere(routing, MemoryContextStrdup(TopTransactionContext, mode_sql(names, deferred)), ran);
	}
	add_mode(names, deferred);
	for (int i = 0; ran != NULL && i < tessera_participant_count; i++)
		if (ran[i])
			tessera_participants[i].modes_sent = nmodes;
}

void
tessera_constraint_modes_rolled_back(int level)
{
	while (nmodes > 0 && modes[nmodes - 1].level >= level)
		nmodes--;
	for (int i = 0; i < tessera_participant_count; i++)
		tessera_participants[i].modes_sent = Min(tessera_participants[i].modes_sent, nmodes);
}

void
tessera_constraint_modes_released(int level)
{
	for (int i = nmodes - 1; i >= 0 && modes[i].level >= level; i--)
		modes[i].level = level - 1;
}

void
tessera_constraint_modes_forget(void)
{
	modes = NULL;
	nmodes = modes_size = 0;
}
