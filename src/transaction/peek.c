/*
 * peek.c
 *	  The coordinator's side of a reader's doubt; see peek.h.
 *
 * The clock here is raised to the reader's time first. Then, whatever has not taken its commit time takes a later one: "pushed". So the order is: the
 * clock, then the decision's row, then the commit time of who is at it, then whether that still runs; if it does not, all of it again.
 *
 * No row means that nobody has decided: the coordinator's part is not written yet, and will be later, or its transaction is gone, and the resolver
 * rolls it back. (A row is removed only when all parts are finished.)
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
#include "transaction/transaction_private.h"

#define HEX_DIGITS 32

bool
tessera_part_of(const char *gid, char transaction[TESSERA_TRANSACTION_GID], int32 *coordinator)
{
	const size_t prefix = strlen(TESSERA_GID_PREFIX);
	const char *last = strrchr(gid, '_');
	char	   *end;
	long		node;

	if (strncmp(gid, TESSERA_GID_PREFIX, prefix) != 0 || strspn(gid + prefix, "0123456789abcdef") != HEX_DIGITS || gid[prefix + HEX_DIGITS] != '_' ||
		last == gid + prefix + HEX_DIGITS || last - gid >= TESSERA_TRANSACTION_GID)
		return false;
	node = strtol(gid + prefix + HEX_DIGITS + 1, &end, 10);
	if (end != last || node <= 0 || node > PG_INT32_MAX)
		return false;
	strlcpy(transaction, gid, last - gid + 1);
	*coordinator = (int32) node;
	return true;
}

/* False: a later commit here may have an earlier time all the same. */
static bool
raise_clock(TesseraTime time)
{
	TesseraTimes now;

	tessera_clock_load();
	return tessera_clock_hear(&(TesseraTimes) {.cluster = time}, true) && tessera_clock_read(&now) && now.cluster >= time;
}

TesseraDecided
tessera_peek(const char *transaction, TesseraTime time)
{
	if (!raise_clock(time))
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
