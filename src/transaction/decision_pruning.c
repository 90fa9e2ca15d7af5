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

/* Younger ones are most likely being carried out just now. */
#define UNFINISHED_SQL \
	"SELECT coalesce(array_agg(u.gid), '{}')::text FROM (SELECT d.gid FROM tessera.transaction_decision d WHERE d.finished IS NULL " \
	"AND d.outcome = 'commit' AND d.decided < clock_timestamp() - least($1, 10000) * interval '1 millisecond' ORDER BY d.decided LIMIT 500) u"
#define PARTICIPANTS_SQL \
	"SELECT p.node_id::text, array_agg(d.gid || '_' || p.node_id)::text FROM tessera.transaction_decision d, unnest(d.participants) p(node_id) " \
	"WHERE d.gid = ANY ($1::text[]) GROUP BY p.node_id"
#define FINISH_SQL \
	"UPDATE tessera.transaction_decision d SET finished = clock_timestamp() WHERE d.finished IS NULL AND (d.outcome = 'abort' " \
	"OR (d.outcome = 'prepared' AND d.user_gid IS NULL) OR (d.outcome = 'commit' AND d.gid = ANY ($1::text[]) " \
	"AND NOT EXISTS (SELECT FROM unnest($2::text[]) u WHERE starts_with(u, d.gid || '_'))))"
#define DUE_SQL \
	"SELECT DISTINCT p.node_id::text FROM (SELECT d.participants FROM tessera.transaction_decision d " \
	"WHERE d.finished < clock_timestamp() - $1 * interval '1 millisecond' ORDER BY d.finished LIMIT 5000) x, unnest(x.participants) p(node_id)"
#define DELETE_SQL \
	"DELETE FROM tessera.transaction_decision t WHERE t.gid IN (SELECT d.gid FROM tessera.transaction_decision d " \
	"WHERE d.finished < clock_timestamp() - $1 * interval '1 millisecond' AND d.finished < $2 ORDER BY d.finished LIMIT 5000)"

/* What is known of a participant's standbys. */
typedef struct Flushed
{
	int32		node_id;		/* key */
	XLogRecPtr	lsn;			/* end of its WAL; InvalidXLogRecPtr: not asked yet */
	TimestampTz at;				/* when that was asked */
	TimestampTz until;			/* its standbys have flushed what it wrote before */
} Flushed;

typedef struct Asked
{
	int32		node_id;
	char	   *gids;			/* text form of an array; NULL where it is not wanted */
} Asked;

int			tessera_decision_retention = 3600;
static HTAB *flushed = NULL;

/* ---- SPI ---- */

static char *
first_text(const char *sql, Oid type, Datum value)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	char	   *result;

	tessera_spi_begin(&spi);
	(void) tessera_spi_run(sql, SPI_OK_SELECT, 1, &type, &value, NULL);
	result = MemoryContextStrdup(caller, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	tessera_spi_end(&spi);
	return result;
}

/* Nodes (and gids) as Asked, in the current context. */
static Asked *
list_nodes(const char *sql, Oid type, Datum value, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Asked	   *asked;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run(sql, SPI_OK_SELECT, 1, &type, &value, NULL);
	asked = MemoryContextAllocZero(caller, Max(*n, 1) * sizeof(Asked));
	for (int i = 0; i < *n; i++)
	{
		asked[i].node_id = pg_strtoint32(SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
		if (SPI_tuptable->tupdesc->natts > 1)
			asked[i].gids = MemoryContextStrdup(caller, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2));
	}
	tessera_spi_end(&spi);
	return asked;
}

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

/* Marks decisions whose participants have all carried them out. A removed node had nothing prepared when it went. */
static void
finish_decisions(const TesseraRouting *routing, double age_ms)
{
	char	   *gids = first_text(UNFINISHED_SQL, FLOAT8OID, Float8GetDatum(age_ms));
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];
	StringInfoData unfinished;
	int			n;
	Asked	   *asked = list_nodes(PARTICIPANTS_SQL, TEXTOID, CStringGetTextDatum(gids), &n);
	TesseraSpi	spi;

	initStringInfo(&unfinished);
	for (int i = 0; i < n; i++)
	{
		char	   *left = asked[i].gids;

		CHECK_FOR_INTERRUPTS();
		if (!is_member(routing, asked[i].node_id))
			continue;
		(void) tessera_call_unfinished_transactions(if_reachable(asked[i].node_id), asked[i].gids, &left);
		if (left == NULL || strlen(left) <= 2)
			continue;
		left[strlen(left) - 1] = '\0';	/* {a,b}: gids need no quotes */
		appendStringInfo(&unfinished, "%s%s", unfinished.len > 0 ? "," : "", left + 1);
	}
	values[0] = CStringGetTextDatum(gids);
	values[1] = CStringGetTextDatum(psprintf("{%s}", unfinished.data));
	tessera_spi_begin(&spi);
	(void) tessera_spi_run(FINISH_SQL, SPI_OK_UPDATE, 2, types, values, NULL);
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

static uint64
delete_decisions(const TesseraRouting *routing, double retention_ms)
{
	Oid			types[2] = {FLOAT8OID, TIMESTAMPTZOID};
	TimestampTz until = DT_NOEND;
	Datum		values[2];
	int			n;
	Asked	   *nodes = list_nodes(DUE_SQL, FLOAT8OID, Float8GetDatum(retention_ms), &n);
	uint64		deleted;
	TesseraSpi	spi;

	for (int i = 0; i < n; i++)
		if (is_member(routing, nodes[i].node_id))
			until = Min(until, flushed_until(routing, nodes[i].node_id));
	values[0] = Float8GetDatum(retention_ms);
	values[1] = TimestampTzGetDatum(until);
	tessera_spi_begin(&spi);
	deleted = tessera_spi_run(DELETE_SQL, SPI_OK_DELETE, 2, types, values, NULL);
	tessera_spi_end(&spi);
	return deleted;
}

void
tessera_decisions_finish(double retention_ms)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing != NULL)
		finish_decisions(routing, retention_ms);
}

uint64
tessera_decisions_delete(double retention_ms)
{
	const TesseraRouting *routing = tessera_routing();

	return routing != NULL ? delete_decisions(routing, retention_ms) : 0;
}

/* prune_decisions(older_than interval) */
Datum
tessera_prune_decisions(PG_FUNCTION_ARGS)
{
	Interval   *age = PG_GETARG_INTERVAL_P(0);
	double		ms = age->time / 1000.0 + (age->day + age->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY * 1000.0;

	tessera_decisions_finish(ms);
	PG_RETURN_INT64((int64) tessera_decisions_delete(ms));
}

void
tessera_decisions_init(void)
{
	DefineCustomIntVariable("tessera.decision_retention",
							"How long decisions of two-phase transactions are kept after all participants have carried them out.", NULL,
							&tessera_decision_retention, 3600, 0, INT_MAX / 1000, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}
