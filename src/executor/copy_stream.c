/*
 * copy_stream.c
 *	  One COPY FROM STDIN on another node: opening, data with back-pressure, the answer, and the way out after an error.
 *
 * COPY does not go with pipeline mode: the connection leaves it for the time of the stream. libpq's own buffer grows without limit, so no more than
 * one buffer of ours is ever given to it before the socket has taken the last.
 *
 * Memory: the buffer lives in the context current at opening; the connection is transport's.
 */
#include "postgres.h"

#include "libpq-fe.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#include "executor/copy.h"
#include "transaction/participant.h"

#define BUFFER_SIZE (64 * 1024)
#define ABORT_MS 10000

_Noreturn static void
raise_lost(TesseraCopyStream *stream)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("lost connection to node \"%s\" during COPY", tessera_connection_name(stream->connection)),
			 errdetail_internal("%s", pchomp(PQerrorMessage(tessera_connection_pg(stream->connection))))));
}

/* The next result, waited for; NULL at the end. */
static PGresult *
next_result(TesseraCopyStream *stream)
{
	PGconn	   *pg = tessera_connection_pg(stream->connection);

	for (;;)
	{
		int			unsent = PQflush(pg);

		if (unsent < 0)
			raise_lost(stream);
		if (!PQisBusy(pg))
			return PQgetResult(pg);
		tessera_connection_await_socket(stream->connection, WL_SOCKET_READABLE | (unsent ? WL_SOCKET_WRITEABLE : 0));
		if (!PQconsumeInput(pg))
			raise_lost(stream);
	}
}

_Noreturn static void
raise_result(TesseraCopyStream *stream, PGresult *result)
{
	tessera_connection_state(stream->connection)->known = false;
	tessera_connection_raise(stream->connection, result, NULL);
}

void
tessera_copy_stream_open(TesseraCopyStream *stream, const TesseraRouting *routing, int nversions, const TesseraToldVersion *versions, const char *sql)
{
	TesseraCommandNeeds needs = {.write = true, .nversions = nversions, .versions = versions};
	PGresult   *result;
	PGconn	   *pg;

	initStringInfo(&stream->buffer);
	stream->connection = tessera_participant(routing, stream->node_id, &needs);
	tessera_connection_sync(stream->connection);
	tessera_connection_leave_pipeline(stream->connection);
	stream->copying = true;
	pg = tessera_connection_pg(stream->connection);
	if (!PQsendQuery(pg, sql))
		raise_lost(stream);
	result = next_result(stream);
	if (PQresultStatus(result) != PGRES_COPY_IN)
		raise_result(stream, result);
	PQclear(result);
}

/*
 * What the other node says meanwhile is taken off the socket, so that it never waits for us. Its error, if it has given up, is heard at the end:
 * libpq does not look at what arrives while data is copied in.
 */
static void
take_input(TesseraCopyStream *stream)
{
	if (!PQconsumeInput(tessera_connection_pg(stream->connection)))
		raise_lost(stream);
}

/* Until libpq has given everything to the socket. */
static void
drain_output(TesseraCopyStream *stream)
{
	int			unsent;

	while ((unsent = PQflush(tessera_connection_pg(stream->connection))) != 0)
	{
		if (unsent < 0)
			raise_lost(stream);
		tessera_connection_await_socket(stream->connection, WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE);
		take_input(stream);
	}
}

void
tessera_copy_stream_flush(TesseraCopyStream *stream, bool force)
{
	PGconn	   *pg = tessera_connection_pg(stream->connection);

	if (stream->buffer.len == 0 || (!force && stream->buffer.len < BUFFER_SIZE))
		return;
	drain_output(stream);
	take_input(stream);
	if (PQputCopyData(pg, stream->buffer.data, stream->buffer.len) != 1 || PQflush(pg) < 0)
		raise_lost(stream);
	resetStringInfo(&stream->buffer);
}

void
tessera_copy_stream_end(TesseraCopyStream *stream)
{
	tessera_copy_stream_flush(stream, true);
	drain_output(stream);
	if (PQputCopyEnd(tessera_connection_pg(stream->connection), NULL) != 1)
		raise_lost(stream);
}

void
tessera_copy_stream_finish(TesseraCopyStream *stream)
{
	PGresult   *result = next_result(stream);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		raise_result(stream, result);
	stream->processed = strtou64(PQcmdTuples(result), NULL, 10);
	PQclear(result);
	while ((result = next_result(stream)) != NULL)
		PQclear(result);
	tessera_connection_enter_pipeline(stream->connection);
	stream->copying = false;
}

/* Reads until the other node is ready for a new command; false: it is not in time, or is gone. */
static bool
await_ready(PGconn *pg)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ABORT_MS);

	for (;;)
	{
		int			unsent = PQflush(pg);
		long		left;
		PGresult   *result;

		if (unsent < 0)
			return false;
		while (!PQisBusy(pg))
		{
			ExecStatusType status;

			result = PQgetResult(pg);
			if (result == NULL)
				return PQstatus(pg) == CONNECTION_OK;
			status = PQresultStatus(result);
			PQclear(result);
			if (status == PGRES_COPY_IN && PQputCopyEnd(pg, "the COPY on the router failed") != 1)
				return false;
		}
		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		if (left <= 0)
			return false;
		(void) WaitLatchOrSocket(NULL, WL_SOCKET_READABLE | (unsent ? WL_SOCKET_WRITEABLE : 0) | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, PQsocket(pg), left,
								 PG_WAIT_EXTENSION);
		if (!PQconsumeInput(pg))
			return false;
	}
}

void
tessera_copy_stream_abort(TesseraCopyStream *stream)
{
	PGconn	   *pg;

	if (stream->connection == NULL || !stream->copying)
		return;
	stream->copying = false;
	tessera_connection_state(stream->connection)->known = false;
	pg = tessera_connection_pg(stream->connection);
	if (pg == NULL)
		return;
	if (!await_ready(pg) || !PQenterPipelineMode(pg))
		tessera_connection_close(stream->connection);
}
