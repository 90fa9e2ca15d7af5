/*
 * bound.c
 *	  The yardstick of the benchmarks: the least that any server must do to answer from another one.
 *
 * A function that hands a statement, prepared once, to another server over one libpq connection and returns its answer: no routing, no check of versions, nothing
 * but the way there and back. What tessera reaches of its throughput is the ratio that test/bench/run prints.
 *
 *	  tessera_bench_forward(conninfo text, key int)	-- SELECT v FROM kv WHERE k = key
 *	  tessera_bench_forward_update(conninfo text, key int)	-- UPDATE kv SET v = v + 1 WHERE k = key, a transaction of its own there
 *	  tessera_bench_forward_transfer(conninfo text, key int)	-- the same update, as a part of this transaction: prepared there before it commits here,
 *															-- which is the decision, and committed there after that
 *
 * Each backend keeps one connection, to the server of its first call, until it ends. Results are of int4, in binary. Errors end the transaction; nothing is
 * recovered after a crash: never use it for anything else.
 */
#include "postgres.h"

#include <arpa/inet.h>

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "libpq-fe.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(tessera_bench_forward);
PG_FUNCTION_INFO_V1(tessera_bench_forward_update);
PG_FUNCTION_INFO_V1(tessera_bench_forward_transfer);

static PGconn *connection = NULL;
static uint32 transfers = 0;	/* of this backend; part of the name of prepared transactions */
static bool in_transfer = false;


/* Takes one result; ends the transaction if it is not the one expected. */
static PGresult *
expect(PGresult *result, ExecStatusType status)
{
	if (PQresultStatus(result) != status)
	{
		char	   *message = pstrdup(PQerrorMessage(connection));

		PQclear(result);
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the other server failed: %s", message)));
	}
	return result;
}

static void
command(const char *sql)
{
	PQclear(expect(PQexec(connection, sql), PGRES_COMMAND_OK));
}

static void
prepare(const char *name, const char *sql)
{
	PQclear(expect(PQprepare(connection, name, sql, 0, NULL), PGRES_COMMAND_OK));
}

/* At commit: PREPARE TRANSACTION there, the commit here, COMMIT PREPARED there. */
static void
on_transaction_end(XactEvent event, void *arg)
{
	char		sql[64];

	if (!in_transfer)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			snprintf(sql, sizeof(sql), "PREPARE TRANSACTION 'bench_%d_%u'", MyProcPid, ++transfers);
			command(sql);
			break;
		case XACT_EVENT_COMMIT:
			in_transfer = false;
			snprintf(sql, sizeof(sql), "COMMIT PREPARED 'bench_%d_%u'", MyProcPid, transfers);
			/* Too late for an error. */
			PQclear(PQexec(connection, sql));
			break;
		case XACT_EVENT_ABORT:
			in_transfer = false;
			PQclear(PQexec(connection, "ROLLBACK"));
			break;
		default:
			break;
	}
}

static void
connect_once(text *conninfo)
{
	if (connection != NULL)
		return;
	connection = PQconnectdb(text_to_cstring(conninfo));
	if (PQstatus(connection) != CONNECTION_OK)
	{
		char	   *message = pstrdup(PQerrorMessage(connection));

		PQfinish(connection);
		connection = NULL;
		ereport(ERROR,
				(errcode(ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION),
				 errmsg("could not connect to the other server: %s", message)));
	}
	prepare("read", "SELECT v FROM kv WHERE k = $1::int4");
	prepare("write", "UPDATE kv SET v = v + 1 WHERE k = $1::int4 RETURNING v");
	RegisterXactCallback(on_transaction_end, NULL);
}

/* Runs a prepared statement with the key, in a transaction block begun in the same trip if wanted; returns the integer that comes back. */
static int32
forward(FunctionCallInfo fcinfo, const char *statement, bool begin)
{
	uint32		key = htonl((uint32) PG_GETARG_INT32(1));
	const char *values[] = {(const char *) &key};
	const int	lengths[] = {sizeof(key)};
	const int	formats[] = {1};
	PGresult   *result;
	uint32		value;

	connect_once(PG_GETARG_TEXT_PP(0));
	if (begin)
	{
		if (!PQenterPipelineMode(connection) || !PQsendQueryParams(connection, "BEGIN", 0, NULL, NULL, NULL, NULL, 1) ||
			!PQsendQueryPrepared(connection, statement, 1, values, lengths, formats, 1) || !PQpipelineSync(connection))
			ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE), errmsg("could not send: %s", PQerrorMessage(connection))));
		PQclear(expect(PQgetResult(connection), PGRES_COMMAND_OK));
		PQgetResult(connection);
		result = expect(PQgetResult(connection), PGRES_TUPLES_OK);
		PQgetResult(connection);
		PQclear(expect(PQgetResult(connection), PGRES_PIPELINE_SYNC));
		PQexitPipelineMode(connection);
	}
	else
		result = expect(PQexecPrepared(connection, statement, 1, values, lengths, formats, 1), PGRES_TUPLES_OK);
	if (PQntuples(result) != 1)
		ereport(ERROR, (errcode(ERRCODE_NO_DATA_FOUND), errmsg("the other server has no row of this key")));
	memcpy(&value, PQgetvalue(result, 0, 0), sizeof(value));
	PQclear(result);
	return (int32) ntohl(value);
}

Datum
tessera_bench_forward(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(forward(fcinfo, "read", false));
}

Datum
tessera_bench_forward_update(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(forward(fcinfo, "write", false));
}

Datum
tessera_bench_forward_transfer(PG_FUNCTION_ARGS)
{
	int32		value = forward(fcinfo, "write", true);

	in_transfer = true;
	PG_RETURN_INT32(value);
}
