/*
 * prepared_catalog.c
 *	  The config node's catalog is what others may go by only when no part of it is prepared that they may have committed already.
 *
 * A statement that defines something changes the catalogs of all nodes in one distributed transaction, whose parts are committed one after the other.
 * For that moment a node can know a table, a schema's new name or a group that the config node's rows do not show yet; taken for the truth, they
 * would undo it there. So before it answers a node whose rows differ, the config node waits for what is prepared.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "common/spi.h"
#include "common/subtransaction.h"

/* All parts of a transaction are committed within this time, unless a node is away. */
#define WAIT_MS 1000

PG_FUNCTION_INFO_V1(tessera_internal_await_catalog);

/*
 * Prepared transactions that have written schemas, tables or groups to the catalog. A client's own PREPARE TRANSACTION (its gid begins with "user")
 * can stay for as long as the client likes, and nobody else has committed it before that.
 */
static const char prepared_sql[] =
"WITH held AS MATERIALIZED (SELECT virtualtransaction, locktype, database, relation, transactionid, mode FROM pg_locks"
"  WHERE pid IS NULL AND granted)"
" SELECT p.transaction, p.gid ~ '^tessera_75736572' FROM pg_prepared_xact() AS p"
" JOIN held AS x ON x.locktype = 'transactionid' AND x.transactionid = p.transaction"
" WHERE EXISTS (SELECT FROM held AS l WHERE l.virtualtransaction = x.virtualtransaction AND l.locktype = 'relation'"
"  AND l.mode = 'RowExclusiveLock' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
"  AND l.relation IN ('tessera.schema_placement'::regclass, 'tessera.cluster_table'::regclass, 'tessera.table_group'::regclass))";

static void
wait_for_end(void *arg)
{
	XactLockTableWait(*(TransactionId *) arg, NULL, NULL, XLTW_None);
}

/* False if the transaction has not ended by then. */
static bool
has_ended(TransactionId xid, TimestampTz deadline)
{
	int			saved = LockTimeout;
	ErrorData  *error;

	LockTimeout = Max(1, (int) TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline));
	error = tessera_try(wait_for_end, &xid);
	LockTimeout = saved;
	if (error != NULL && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	return error == NULL;
}

/*
 * internal_await_catalog() returns bool: what was prepared when it was called has ended, for all that other nodes can have committed. Statements
 * after it see that. False after one second: a node that such a transaction needs is away.
 */
Datum
tessera_internal_await_catalog(PG_FUNCTION_ARGS)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), WAIT_MS);
	MemoryContext caller = CurrentMemoryContext;
	bool		settled = true;
	TesseraSpi	spi;
	int			n;
	TransactionId *xids;
	bool	   *of_client;

	tessera_spi_begin(&spi);
	n = (int) tessera_spi_look(prepared_sql, 0, NULL, NULL);
	xids = MemoryContextAlloc(caller, sizeof(TransactionId) * Max(n, 1));
	of_client = MemoryContextAlloc(caller, sizeof(bool) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		bool		null;

		xids[i] = DatumGetTransactionId(SPI_getbinval(row, SPI_tuptable->tupdesc, 1, &null));
		of_client[i] = DatumGetBool(SPI_getbinval(row, SPI_tuptable->tupdesc, 2, &null));
	}
	tessera_spi_end(&spi);

	for (int i = 0; i < n; i++)
		if (!has_ended(xids[i], deadline) && !of_client[i])
			settled = false;
	PG_RETURN_BOOL(settled);
}
