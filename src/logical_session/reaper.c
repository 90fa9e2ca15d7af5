/*
 * reaper.c
 *	  The step of the session reaper; see reaper.h.
 *
 * Every tessera.session_refresh_interval each node writes the last uses that it has noted to the sessions' rows. Then the config node ends the
 * sessions that were not used for tessera.session_timeout, but those that a node has noted and not written yet: it asks them all before. While one
 * does not answer, a session is given an interval more, in which that node can write. One that somebody has taken is locked, and passed over.
 *
 * All in batches, each a transaction of its own that waits for no row. A crash between two leaves less to do. An error, as of a shard that is down,
 * ends the step: nothing is reaped while a shard cannot be asked, and what was noted stays noted.
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/injection.h"
#include "logical_session/cluster_uses.h"
#include "logical_session/reaper.h"
#include "logical_session/session_tables.h"
#include "logical_session/session_uses.h"
#include "routing/routing.h"
#include "transaction/background.h"
#include "transport/connection.h"

PG_FUNCTION_INFO_V1(tessera_session_reaper_status);

#define WRITE_BATCH 100
#define REAP_BATCH 1000

static int	refresh_interval = 300000;
static int	session_timeout = 1800000;

/* Of this worker. */
typedef struct Rounds
{
	TimestampTz last;			/* when the last one was made; 0: none */
} Rounds;

static Rounds rounds = {0};

/* ---- last uses ---- */

static int
by_session_and_role(const void *a, const void *b)
{
	const TesseraSessionUse *one = a;
	const TesseraSessionUse *other = b;
	int			order = memcmp(&one->session, &other->session, sizeof(pg_uuid_t));

	if (order != 0)
		return order;
	if (one->role != other->role)
		return one->role < other->role ? -1 : 1;
	return one->used < other->used ? 1 : one->used > other->used ? -1 : 0;
}

static bool
same_session(const TesseraSessionUse *a, const TesseraSessionUse *b)
{
	return memcmp(&a->session, &b->session, sizeof(pg_uuid_t)) == 0;
}

/*
 * Writes as many of the uses, sorted, as one transaction takes, and returns how many they were. Each session once: what another role says of it in
 * the same batch would hide its own, so it begins another one.
 */
static int
write_batch(const TesseraSessionUse *uses, int n)
{
	TesseraLastUse batch[WRITE_BATCH];
	bool		somebody_has[WRITE_BATCH];
	int			nbatch = 0;
	int			end = 0;
	int			first = 0;
	uint64		written;

	for (; end < n; end++)
	{
		bool		again = end > 0 && same_session(&uses[end - 1], &uses[end]);

		if (again && uses[end - 1].role == uses[end].role)
			continue;			/* of an earlier time */
		if (again || nbatch == WRITE_BATCH)
			break;
		batch[nbatch++] = (TesseraLastUse) {uses[end].session, uses[end].role, uses[end].used};
	}
	tessera_background_begin();
	written = tessera_sessions_used(nbatch, batch, somebody_has);
	tessera_injection("session_uses_before_commit");
	tessera_background_commit();
	tessera_injection("session_uses_written");
	tessera_reaper_count_add(TESSERA_REAPER_WRITTEN, written);
	for (int i = 0, at = -1; i < end; i++)
	{
		if (at < 0 || !same_session(&uses[i - 1], &uses[i]))
			at++;
		if (!somebody_has[at])
			continue;
		tessera_session_uses_written(i - first, &uses[first]);
		first = i + 1;
		tessera_reaper_count_add(TESSERA_REAPER_POSTPONED, 1);
	}
	tessera_session_uses_written(end - first, &uses[first]);
	return end;
}

static void
refresh(void)
{
	TesseraSessionUse *uses;
	int			all;
	int			n = 0;

	uses = tessera_session_uses(&all);
	for (int i = 0; i < all; i++)
		if (!uses[i].written)
			uses[n++] = uses[i];
	qsort(uses, n, sizeof(TesseraSessionUse), by_session_and_role);
	for (int at = 0; at < n;)
	{
		CHECK_FOR_INTERRUPTS();
		at += write_batch(&uses[at], n - at);
	}
	tessera_reaper_refreshed(GetCurrentTimestamp());
}

/* ---- reaping ---- */

/* Uses that nodes have noted and not written; *unasked: nodes that have not answered. */
static TesseraSessionUser *
noted_uses(int *n, int *unasked)
{
	MemoryContext context = CurrentMemoryContext;
	TesseraClusterUse *uses;
	TesseraSessionUser *users;
	int			all;

	tessera_background_begin();
	uses = tessera_cluster_uses(&all, unasked);
	users = MemoryContextAlloc(context, Max(all, 1) * sizeof(TesseraSessionUser));
	*n = 0;
	for (int i = 0; i < all; i++)
		if (!uses[i].written)
			users[(*n)++] = (TesseraSessionUser) {uses[i].session, MemoryContextStrdup(context, uses[i].role)};
	tessera_background_commit();
	return users;
}

static void
reap(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		timeout = session_timeout;
	int			n;
	int			unasked;
	TesseraSessionUser *noted = noted_uses(&n, &unasked);
	uint64		gone;

	if (unasked > 0)
		timeout += refresh_interval;
	do
	{
		CHECK_FOR_INTERRUPTS();
		tessera_background_begin();
		gone = tessera_sessions_delete_unused(now - timeout * 1000, REAP_BATCH, n, noted);
		tessera_injection("sessions_reap_before_commit");
		tessera_background_commit();
		tessera_injection("sessions_reaped");
		tessera_reaper_count_add(TESSERA_REAPER_SESSIONS, gone);
	} while (gone == REAP_BATCH);
	do
	{
		CHECK_FOR_INTERRUPTS();
		tessera_background_begin();
		gone = tessera_sessions_delete_orphans(REAP_BATCH);
		tessera_background_commit();
		tessera_reaper_count_add(TESSERA_REAPER_RECORDS, gone);
	} while (gone == REAP_BATCH);
}

/* ---- the worker ---- */

/* What this node may do: nothing, as the cluster has no sessions; write uses; or reap, as the config node that knows what is true. */
static void
duties(bool *refreshes, bool *reaps)
{
	const TesseraRouting *routing;

	tessera_background_begin();
	routing = tessera_routing_or_error();
	*refreshes = tessera_sessions_enabled();
	*reaps = *refreshes && routing->is_config && !routing->metadata_unknown && !routing->replaced;
	tessera_background_commit();
}

static void
make_round(void)
{
	bool		refreshes;
	bool		reaps;

	duties(&refreshes, &reaps);
	if (refreshes)
		refresh();
	if (reaps)
		reap();
}

long
tessera_session_reaper_step(void)
{
	TimestampTz due = TimestampTzPlusMilliseconds(rounds.last, (int64) refresh_interval);
	TimestampTz now = GetCurrentTimestamp();
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;

	if (now < due && now >= rounds.last && !tessera_session_uses_hurry())
		return Max(TimestampDifferenceMilliseconds(now, due), 1);
	context = AllocSetContextCreate(caller, "tessera session reaper", ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		make_round();
	}
	PG_FINALLY();
	{
		MemoryContextSwitchTo(caller);
		MemoryContextDelete(context);
		tessera_connections_close(1);	/* an idle session would keep CREATE, ALTER and DROP DATABASE there waiting */
	}
	PG_END_TRY();
	rounds.last = now;
	return refresh_interval;
}

/* tessera.session_reaper_status(): the counts of session_uses.h, in their order */
Datum
tessera_session_reaper_status(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[TESSERA_REAPER_COUNTS];
	bool		nulls[TESSERA_REAPER_COUNTS] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("return type must be a row type")));
	for (int i = 0; i < TESSERA_REAPER_COUNTS; i++)
		values[i] = Int64GetDatum(tessera_reaper_count((TesseraReaperCount) i));
	nulls[TESSERA_REAPER_REFRESHED] = DatumGetInt64(values[TESSERA_REAPER_REFRESHED]) == 0;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

void
tessera_session_reaper_init(void)
{
	DefineCustomIntVariable("tessera.session_refresh_interval",
							"How often a node writes down which logical sessions were used on it, and the config node ends those that time out.",
							NULL,
							&refresh_interval, 300000, 100, 24 * 3600 * 1000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.session_timeout",
							"How long a logical session is kept that is not used.",
							"The config node's setting counts.",
							&session_timeout, 1800000, 100, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}
