/*
 * peek.c
 *	  The coordinator's side of a reader's doubt; see peek.h.
 *
 * The clock here is raised to the reader's time first. Then, whatever has not taken its commit time takes a later one: "pushed". So the order is: the
 * clock, then the decision's row, then the commit time of who is at it, then whether that still runs; if it does not, all of it again.
 *
 * No row means that nobody has decided: the coordinator's part is not written yet, and will be later, or its transaction is gone, and the resolver
 * rolls it back. (A row is removed only when all parts are finished. A promoted server may have lost it: then the decision itself is lost, and the
 * resolver does what it does.)
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "catalog/clock_store.h"
#include "catalog/decision.h"
#include "clock/clock.h"
#include "common/injection.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/peek.h"
#include "transaction/prepared.h"
#include "transaction/transaction_private.h"

#define HEX_DIGITS 32
#define MOST_DIGITS 9			/* of the number of a node */

/* Behind an underscore and a number of a node; NULL: it is none. */
static const char *
skip_number(const char *text)
{
	size_t		n = *text == '_' ? strspn(text + 1, "0123456789") : 0;

	return n == 0 || n > MOST_DIGITS ? NULL : text + 1 + n;
}

bool
tessera_part_of(const char *gid, char transaction[TESSERA_TRANSACTION_GID], int32 *coordinator)
{
	const char *digits = gid + strlen(TESSERA_GID_PREFIX);
	const char *node;
	const char *end;

	if (strncmp(gid, TESSERA_GID_PREFIX, strlen(TESSERA_GID_PREFIX)) != 0 || strspn(digits, "0123456789abcdef") != HEX_DIGITS)
		return false;
	node = digits + HEX_DIGITS;
	end = skip_number(node);
	if (end == NULL || skip_number(end) == NULL || *skip_number(end) != '\0')
		return false;
	strlcpy(transaction, gid, end - gid + 1);
	*coordinator = atoi(node + 1);
	return true;
}

bool
tessera_part_is_clients(const char *gid)
{
	static const char prefix[] = TESSERA_GID_PREFIX TESSERA_CLIENT_GID;

	return strncmp(gid, prefix, strlen(prefix)) == 0;
}

/*
 * False: a later commit here may have an earlier time all the same. What a client has prepared outlives a crash of this server, after which the clock
 * may be back at its reservation.
 */
static bool
raise_clock(TesseraTime time, bool outlives_crash)
{
	tessera_clock_load();
	return tessera_clock_raise(time) && (!outlives_crash || tessera_clock_is_reserved(time));
}

TesseraDecided
tessera_peek(const char *transaction, TesseraTime time)
{
	if (!raise_clock(time, tessera_part_is_clients(transaction)))
		return TESSERA_DECIDED_UNKNOWN;
	for (;;)
	{
		TransactionId xid;
		TesseraTime at = 0;

		CHECK_FOR_INTERRUPTS();
		switch (tessera_decision_look(transaction, &xid, &at))
		{
			case TESSERA_DECISION_COMMIT:
				return at > time ? TESSERA_DECIDED_LATER : TESSERA_DECIDED;
			case TESSERA_DECISION_NONE:
			case TESSERA_DECISION_ABORT:
			case TESSERA_DECISION_CLIENT:
				return TESSERA_DECIDED_LATER;
			case TESSERA_DECISION_RUNS:
				if (tessera_commit_taken(xid, &at))
					return at > time ? TESSERA_DECIDED_LATER : TESSERA_DECIDED;
				if (TransactionIdIsInProgress(xid))
					return TESSERA_DECIDED_LATER;
				break;
		}
	}
}

ArrayType *
tessera_serve_peek(const TesseraPeekArgs *args)
{
	const TesseraRouting *routing = tessera_routing();
	Datum	   *gids;
	Datum	   *answers;
	bool	   *nulls;
	int			n;

	tessera_injection("peek");
	deconstruct_array(args->gids, TEXTOID, -1, false, TYPALIGN_INT, &gids, &nulls, &n);
	answers = palloc(sizeof(Datum) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		char		transaction[TESSERA_TRANSACTION_GID];
		TesseraDecided decided = TESSERA_DECIDED_UNKNOWN;
		int32		coordinator;

		if (!nulls[i] && routing != NULL && tessera_part_of(TextDatumGetCString(gids[i]), transaction, &coordinator) && coordinator == routing->self)
			decided = tessera_peek(transaction, (TesseraTime) args->cluster_time);
		answers[i] = Int32GetDatum((int32) decided);
	}
	return construct_array(answers, n, INT4OID, sizeof(int32), true, TYPALIGN_INT);
}
