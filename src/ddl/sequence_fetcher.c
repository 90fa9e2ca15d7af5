/*
 * sequence_fetcher.c
 *	  The worker that brings the values which pools of this database want ahead of use; see sequence_pool.c for how much that is.
 *
 * Each pool is filled in a transaction of its own, which writes nothing: values that a crash loses are gaps. It holds nextval's lock on the local
 * shell while it asks the home, for FETCH_TIMEOUT at most, so that ALTER SEQUENCE finds no fetch on its way.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/errors.h"
#include "ddl/sequence.h"
#include "ddl/sequence_private.h"

#define FETCH_TIMEOUT 5000		/* ms that a home may take to answer */
#define FETCH_PAUSE 1000L		/* ms until a home that did not answer is asked again: at first, and in the end */
#define FETCH_PAUSE_MAX 30000L
#define FETCHER_IDLE 60000		/* ms that the worker stays without work */

/* What the home gives for one pool; empty if it is not to be asked any more. In a transaction. */
static void
fetch_reserve(Oid sequence, int n, TesseraBlock *block)
{
	const TesseraRouting *routing = tessera_routing();
	int32		home = routing && get_rel_relkind(sequence) == RELKIND_SEQUENCE ? tessera_sequence_home(routing, sequence) : 0;

	if (home == 0 || home == routing->self)
		return;
	/*
	 * as nextval does, so that ALTER SEQUENCE, here or elsewhere, finds no fetch on its way; the holder of the lock may be about to drop it: later
	 * then
	 */
	if (ConditionalLockRelationOid(sequence, RowExclusiveLock))
		tessera_sequence_draw_within(routing, home, sequence, n, FETCH_TIMEOUT, block);
}

/*
 * True if the error says that the home did not answer. Other errors (the sequence has reached its end) would come again: then the pool is not filled
 * ahead.
 */
static bool
is_unreachable(int code)
{
	return tessera_error_is_unreachable(code) || ERRCODE_TO_CATEGORY(code) == ERRCODE_OPERATOR_INTERVENTION;
}

/* One pool, in a transaction of its own; false if the home did not answer. */
static bool
fill_pool(Oid sequence, int n, uint64 generation)
{
	MemoryContext context = CurrentMemoryContext;
	TesseraBlock block = {0};
	volatile bool answered = true;

	StartTransactionCommand();
	PG_TRY();
	{
		fetch_reserve(sequence, n, &block);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		/* a session that needs a value gets the error itself, so it is not logged each time */
		ereport(DEBUG1, (errmsg_internal("no values fetched: %s", error->message)));
		answered = !is_unreachable(error->sqlerrcode);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	tessera_pool_bring(sequence, generation, answered ? &block : NULL);
	return answered;
}

long
tessera_sequence_fetcher_step(void)
{
	static TimestampTz busy = 0;
	static long pause = FETCH_PAUSE;
	TimestampTz now = GetCurrentTimestamp();
	bool		failed = false;
	bool		more = false;
	int			position = 0;
	uint64		generation;
	Oid			sequence;
	int			n;

	while ((n = tessera_pool_next_wish(&position, &sequence, &generation)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		busy = now;
		if (fill_pool(sequence, n, generation))
			more = true;
		else
			failed = true;
	}
	if (failed)
	{
		pause = Min(pause * 2, FETCH_PAUSE_MAX);
		return pause / 2;
	}
	pause = FETCH_PAUSE;
	if (more)
		return 0;				/* the pools may still want more */
	if (busy == 0)
		busy = now;				/* started for a pool that a session is filling just now: it wakes this worker when it has */
	return now - busy > FETCHER_IDLE * INT64CONST(1000) ? -1 : FETCHER_IDLE;
}
