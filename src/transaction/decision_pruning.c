/*
 * decision_pruning.c
 *	  Deletes decisions of two-phase transactions; see decision_pruning.h and doc/design.md#decision-pruning.
 *
 * A decision is needed as long as a participant may ask: while it has the transaction prepared, or could have it again because a standby that is
 * promoted has not got the COMMIT PREPARED. Phases of a row: decided; finished (no participant had it prepared when asked); deleted, when every
 * participant's standbys have flushed WAL that is newer than that, and the retention is over. For the second, a participant's WAL position is noted
 * in one round and compared in a later one, so a participant with standbys takes two rounds. An `abort` row fences a coordinator that did not answer,
 * so that it cannot commit later; it goes after the retention alone.
 *
 * Of transactions that clients have prepared: `prepared` with the client's identifier stays until the client decides. A participant's own row (an
 * outcome that it noted, or that it was asked for one) names the config node as its participant, so that it stays until that node's standbys have the
 * decision as well.
 *
 * Positions live in this backend only; a restart begins again. A crash leaves rows, nothing else.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "common/spi.h"
#include "control/calls.h"
#include "transaction/decision_pruning.h"
#include "transaction/participant.h"

PG_FUNCTION_INFO_V1(tessera_prune_decisions);

#define BATCH 2000				/* decisions that are asked for and finished, or deleted, at once */

/* Those after a place in their order. Younger ones are most likely being carried out just now. */
#define UNFINISHED_SQL \
	"SELECT d.gid, d.decided, d.participants FROM tessera.transaction_decision d WHERE d.finished IS NULL AND d.outcome = 'commit' " \
	"AND d.decided < clock_timestamp() - least($1, 10000) * interval '1 millisecond' AND d.decided >= $2 AND (d.decided, d.gid) > ($2, $3) " \
	"ORDER BY d.decided, d.gid LIMIT " CppAsString2(BATCH)
/* By the key: an array's length is not known when this is planned. */
#define FINISH_SQL \
	"UPDATE tessera.transaction_decision d SET finished = clock_timestamp() WHERE d.finished IS NULL AND d.outcome = 'commit' " \
	"AND d.gid = ANY (ARRAY(SELECT unnest($1)))"
/* They wait for nobody. */
#define FINISH_OTHERS_SQL \
	"UPDATE tessera.transaction_decision d SET finished = clock_timestamp() WHERE d.finished IS NULL AND (d.outcome = 'abort' " \
	"OR (d.outcome = 'prepared' AND d.user_gid IS NULL))"
#define DUE_SQL \
	"SELECT d.gid, d.decided, d.participants FROM tessera.transaction_decision d " \
	"WHERE d.finished < clock_timestamp() - $1 * interval '1 millisecond' ORDER BY d.finished LIMIT " CppAsString2(BATCH)
#define DELETE_SQL \
	"DELETE FROM tessera.transaction_decision d WHERE d.finished < $2 AND d.gid = ANY (ARRAY(SELECT unnest($1)))"

/* What is known of a participant's standbys. */
typedef struct Flushed
{
	int32		node_id;		/* key */
	XLogRecPtr	lsn;			/* end of its WAL; InvalidXLogRecPtr: not asked yet */
	TimestampTz at;				/* when that was asked */
	TimestampTz until;			/* its standbys have flushed what it wrote before */
} Flushed;

typedef struct Decision
{
	char	   *gid;
	TimestampTz decided;
	int			nparticipants;
	int32	   *participants;
	bool		waits;			/* for a participant that has it prepared, or cannot be asked */
} Decision;

int			tessera_decision_retention = 3600;
static HTAB *flushed = NULL;

/* ---- asking ---- */

/* A node that may not be there now; its transactions wait then. */
static TesseraCallTarget
if_reachable(int32 node_id)
{
	return tessera_ask(tessera_to_node(node_id), TESSERA_TOLERATE_ERRORS);
}

static bool
is_member(const TesseraRouting *routing, int32 node_id)
{
	return tessera_routing_node(routing, node_id) != NULL;
}

/* Decisions that a query returns, in the current context. */
static Decision *
list_decisions(const char *sql, int nargs, const Oid *types, const Datum *values, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Decision   *decisions;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run(sql, SPI_OK_SELECT, nargs, types, values, NULL);
	MemoryContextSwitchTo(caller);
	decisions = palloc0(Max(*n, 1) * sizeof(Decision));
	for (int i = 0; i < *n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		null;
		ArrayType  *participants;

		decisions[i].gid = TextDatumGetCString(SPI_getbinval(row, desc, 1, &null));
		decisions[i].decided = DatumGetTimestampTz(SPI_getbinval(row, desc, 2, &null));
		participants = DatumGetArrayTypePCopy(SPI_getbinval(row, desc, 3, &null));
		decisions[i].nparticipants = ArrayGetNItems(ARR_NDIM(participants), ARR_DIMS(participants));
		decisions[i].participants = (int32 *) ARR_DATA_PTR(participants);
	}
	tessera_spi_end(&spi);
	return decisions;
}

/* At most BATCH of those after the place, in the order of decided and gid. */
static Decision *
list_unfinished(double age_ms, const TesseraDecisionPlace *place, int *n)
{
	Oid			types[3] = {FLOAT8OID, TIMESTAMPTZOID, TEXTOID};
	Datum		values[3] = {Float8GetDatum(age_ms), TimestampTzGetDatum(place->decided), CStringGetTextDatum(place->gid)};

	return list_decisions(UNFINISHED_SQL, 3, types, values, n);
}

/* An array of text: the identifiers of those that do not wait. */
static Datum
gids_of(const Decision *decisions, int n)
{
	Datum	   *gids = palloc(Max(n, 1) * sizeof(Datum));
	int			ngids = 0;

	for (int i = 0; i < n; i++)
		if (!decisions[i].waits)
			gids[ngids++] = CStringGetTextDatum(decisions[i].gid);
	return PointerGetDatum(construct_array(gids, ngids, TEXTOID, -1, false, TYPALIGN_INT));
}

static bool
takes_part(const Decision *decision, int32 node_id)
{
	for (int i = 0; i < decision->nparticipants; i++)
		if (decision->participants[i] == node_id)
			return true;
	return false;
}

/* Marks those that the node says it has prepared: an array's text, of identifiers with the node's number behind them. */
static void
mark_waiting(Decision *decisions, int n, char *prepared)
{
	char	   *next = prepared;

	while (next != NULL)
	{
		char	   *gid = strsep(&next, "{,}");
		char	   *node = strrchr(gid, '_');

		if (node == NULL)
			continue;			/* a brace */
		*node = '\0';
		for (int i = 0; i < n; i++)
			if (strcmp(decisions[i].gid, gid) == 0)
				decisions[i].waits = true;
	}
}

static bool
is_silent(const TesseraDecisionPlace *place, int32 node_id)
{
	for (int i = 0; i < place->nsilent; i++)
		if (place->silent[i] == node_id)
			return true;
	return false;
}

/* Asks a participant for all that it takes part in; what it may have prepared waits. */
static void
ask_participant(int32 node_id, TesseraDecisionPlace *place, Decision *decisions, int n)
{
	StringInfoData gids;
	char	   *prepared;

	initStringInfo(&gids);
	for (int i = 0; i < n; i++)
		if (takes_part(&decisions[i], node_id))
			appendStringInfo(&gids, "%c%s_%d", gids.len > 0 ? ',' : '{', decisions[i].gid, node_id);
	appendStringInfoChar(&gids, '}');
	if (!is_silent(place, node_id) && tessera_call_unfinished_transactions(if_reachable(node_id), gids.data, &prepared))
	{
		mark_waiting(decisions, n, prepared);
		return;
	}
	for (int i = 0; i < n; i++)
		decisions[i].waits |= takes_part(&decisions[i], node_id);
	if (!is_silent(place, node_id) && place->nsilent < TESSERA_SILENT_NODES)
		place->silent[place->nsilent++] = node_id;
}

/* Nodes that take part and are members: a removed one had nothing prepared when it went. */
static List *
participants_of(const TesseraRouting *routing, const Decision *decisions, int n)
{
	List	   *nodes = NIL;

	for (int i = 0; i < n; i++)
		for (int j = 0; j < decisions[i].nparticipants; j++)
			if (is_member(routing, decisions[i].participants[j]))
				nodes = list_append_unique_int(nodes, decisions[i].participants[j]);
	return nodes;
}

static void
finish(const Decision *decisions, int n)
{
	Oid			type = TEXTARRAYOID;
	Datum		value = gids_of(decisions, n);
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	(void) tessera_spi_run(FINISH_SQL, SPI_OK_UPDATE, 1, &type, &value, NULL);
	tessera_spi_end(&spi);
}

static void
finish_others(void)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	(void) tessera_spi_run(FINISH_OTHERS_SQL, SPI_OK_UPDATE, 0, NULL, NULL, NULL);
	tessera_spi_end(&spi);
}

/* Until when what the node wrote is on its standbys; DT_NOBEGIN if that is not known. */
static TimestampTz
flushed_until(const TesseraRouting *routing, int32 node_id)
{
	TimestampTz now = GetCurrentTimestamp();
	TesseraStandbysFlushedAnswer *answer;
	int			n;
	Flushed    *entry;
	bool		found;

	if (flushed == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(int32), .entrysize = sizeof(Flushed)};

		flushed = hash_create("tessera flushed participants", 16, &ctl, HASH_ELEM | HASH_BLOBS);
	}
	entry = hash_search(flushed, &node_id, HASH_ENTER, &found);
	if (!found)
	{
		entry->lsn = InvalidXLogRecPtr;
		entry->until = DT_NOBEGIN;
	}
	if (!tessera_call_standbys_flushed(if_reachable(node_id), entry->lsn != InvalidXLogRecPtr ? &entry->lsn : NULL, &answer, &n) || n == 0)
		return entry->until;
	if (answer->flushed)
		entry->until = entry->lsn != InvalidXLogRecPtr ? entry->at : now;
	else if (entry->lsn != InvalidXLogRecPtr)
		return entry->until;	/* the same position is looked at again */
	entry->lsn = answer->here;
	entry->at = now;
	return entry->until;
}

bool
tessera_decisions_finish(double retention_ms, TesseraDecisionPlace *place)
{
	const TesseraRouting *routing = tessera_routing();
	Decision   *decisions;
	int			n;
	ListCell   *cell;

	if (routing == NULL)
		return false;
	decisions = list_unfinished(retention_ms, place, &n);
	foreach(cell, participants_of(routing, decisions, n))
	{
		CHECK_FOR_INTERRUPTS();
		ask_participant(lfirst_int(cell), place, decisions, n);
	}
	finish(decisions, n);
	if (place->gid[0] == '\0')
		finish_others();
	if (n < BATCH)
	{
		*place = TESSERA_FIRST_DECISION;
		return false;
	}
	place->decided = decisions[n - 1].decided;
	strlcpy(place->gid, decisions[n - 1].gid, sizeof(place->gid));
	return true;
}

bool
tessera_decisions_delete(double retention_ms, uint64 *deleted)
{
	const TesseraRouting *routing = tessera_routing();
	Oid			types[2] = {TEXTARRAYOID, TIMESTAMPTZOID};
	Oid			type = FLOAT8OID;
	Datum		value = Float8GetDatum(retention_ms);
	TimestampTz until = DT_NOEND;
	Datum		values[2];
	Decision   *decisions;
	int			n;
	uint64		gone;
	TesseraSpi	spi;
	ListCell   *cell;

	if (routing == NULL)
		return false;
	decisions = list_decisions(DUE_SQL, 1, &type, &value, &n);
	foreach(cell, participants_of(routing, decisions, n))
		until = Min(until, flushed_until(routing, lfirst_int(cell)));
	/* those whose participants were asked, and no others that have become due meanwhile */
	values[0] = gids_of(decisions, n);
	values[1] = TimestampTzGetDatum(until);
	tessera_spi_begin(&spi);
	gone = tessera_spi_run(DELETE_SQL, SPI_OK_DELETE, 2, types, values, NULL);
	tessera_spi_end(&spi);
	*deleted += gone;
	return gone == BATCH;
}

/* With the memory of one batch at a time. */
static bool
finish_or_delete(double age_ms, TesseraDecisionPlace *place, uint64 *deleted)
{
	MemoryContext batch = AllocSetContextCreate(CurrentMemoryContext, "tessera decisions", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(batch);
	bool		more = place != NULL ? tessera_decisions_finish(age_ms, place) : tessera_decisions_delete(age_ms, deleted);

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(batch);
	return more;
}

/* prune_decisions(older_than interval) */
Datum
tessera_prune_decisions(PG_FUNCTION_ARGS)
{
	Interval   *age = PG_GETARG_INTERVAL_P(0);
	double		ms = age->time / 1000.0 + (age->day + age->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY * 1000.0;

	TesseraDecisionPlace place = TESSERA_FIRST_DECISION;
	uint64		deleted = 0;

	while (finish_or_delete(ms, &place, NULL))
		;
	while (finish_or_delete(ms, NULL, &deleted))
		;
	PG_RETURN_INT64((int64) deleted);
}

void
tessera_decisions_init(void)
{
	DefineCustomIntVariable("tessera.decision_retention",
							"How long decisions of two-phase transactions are kept after all participants have carried them out.", NULL,
							&tessera_decision_retention, 3600, 0, INT_MAX / 1000, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}
