/*
 * capture_diagnostics.c
 *	  Change capture in SQL: a worker captures, a session asks it for payloads. For tests.
 *
 * Capture needs transactions of its own, which a function cannot have: hence a worker. The session and its worker share a dynamic segment with two
 * queues, requests one way, replies the other. A request is answered by any number of replies, the last of them 'D' (done) or 'E' (error: the worker
 * then ends).
 *
 * The session keeps the segment mapped between statements; when it goes, the worker's queue is detached and the worker drops its slot and ends. One
 * worker for each session. A crash of the server leaves the slot, as it would a migration's; tessera_test.capture_drop_slot drops it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "libpq/pqformat.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"

#include "test_support/migration_diagnostics.h"

#define QUEUE_SIZE 65536

typedef struct Channel
{
	dsm_segment *segment;
	shm_mq_handle *out;
	shm_mq_handle *in;
} Channel;

typedef struct WorkerIdentity
{
	Oid			database;
	Oid			user;
} WorkerIdentity;

PG_FUNCTION_INFO_V1(tessera_capture_start_sql);
PG_FUNCTION_INFO_V1(tessera_capture_next_sql);
PG_FUNCTION_INFO_V1(tessera_capture_stop_sql);
PG_FUNCTION_INFO_V1(tessera_capture_drop_slot_sql);
PGDLLEXPORT void tessera_capture_diagnostics_main(Datum main_arg);

/* The session's. */
static Channel *session_channel = NULL;


/* ---- messages ---- */

static bool
channel_send(Channel *channel, StringInfo message)
{
	return shm_mq_send(channel->out, message->len, message->data, false, true) == SHM_MQ_SUCCESS;
}

/* The next message, in the current context; false if the other side has gone. */
static bool
channel_receive(Channel *channel, StringInfo message)
{
	Size		size;
	void	   *data;

	if (shm_mq_receive(channel->in, &size, &data, false) != SHM_MQ_SUCCESS)
		return false;
	initStringInfo(message);
	appendBinaryStringInfo(message, data, (int) size);
	return true;
}

static void
send_reply(Channel *channel, char kind, int table, int64 count, XLogRecPtr lsn, bool caught_up, StringInfo payload)
{
	StringInfoData message;

	initStringInfo(&message);
	pq_sendbyte(&message, kind);
	pq_sendint32(&message, table);
	pq_sendint64(&message, count);
	pq_sendint64(&message, lsn);
	pq_sendbyte(&message, caught_up);
	if (payload != NULL)
		appendBinaryStringInfo(&message, payload->data, payload->len);
	if (!channel_send(channel, &message))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the session that asked for change capture has gone")));
	pfree(message.data);
}


/* ---- worker ---- */

static void
report_waiting(const char *what, void *arg)
{
	ereport(DEBUG1,
			(errmsg_internal("change capture waits for %s", what)));
}

static TesseraBound *
take_bound(StringInfo message)
{
	int			size = pq_getmsgint(message, 4);
	TesseraBound *bound = palloc(size);

	memcpy(bound, pq_getmsgbytes(message, size), size);
	return bound;
}

/* The range that a start request tells; in the current context. */
static TesseraMovingRange *
take_range(StringInfo message)
{
	int			ntables = pq_getmsgint(message, 4);
	int			nkeys = pq_getmsgint(message, 4);
	bool		hashed = pq_getmsgbyte(message);
	Oid		   *tables = palloc(Max(ntables, 1) * sizeof(Oid));
	char	  **keys = palloc(Max(nkeys, 1) * sizeof(char *));
	TesseraMovingRange *range;

	for (int i = 0; i < ntables; i++)
		tables[i] = pq_getmsgint(message, 4);
	for (int i = 0; i < nkeys; i++)
		keys[i] = pstrdup(pq_getmsgrawstring(message));
	range = tessera_diagnostic_range(ntables, tables, nkeys, keys, hashed);
	tessera_key_from_bound(range->ks, take_bound(message), &range->min);
	tessera_key_from_bound(range->ks, take_bound(message), &range->max);
	return range;
}

/* Answers a start request: the clone, then an open capture. */
static TesseraCapture *
serve_start(Channel *channel, StringInfo message)
{
	char	   *slot = pstrdup(pq_getmsgrawstring(message));
	int			timeout_ms = pq_getmsgint(message, 4);
	TesseraMovingRange *range;
	TesseraCapture *capture;
	TesseraCloneReader *reader;
	StringInfoData payload;
	int			table;
	int64		rows;

	StartTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	range = take_range(message);
	CommitTransactionCommand();

	MemoryContextSwitchTo(TopMemoryContext);
	capture = tessera_capture_create(range, slot, timeout_ms, report_waiting, NULL);
	initStringInfo(&payload);
	reader = tessera_clone_begin(range, NULL);
	while ((rows = tessera_clone_next(reader, &payload, 1024 * 1024, &table)) > 0)
	{
		send_reply(channel, 'C', table, rows, InvalidXLogRecPtr, false, &payload);
		resetStringInfo(&payload);
	}
	tessera_clone_end(reader);
	CommitTransactionCommand();
	return capture;
}

/* Answers a request for changes: batches until upto is reached. */
static void
serve_next(Channel *channel, TesseraCapture *capture, StringInfo message)
{
	XLogRecPtr	upto = pq_getmsgint64(message);
	Size		bytes = pq_getmsgint64(message);
	bool		caught_up = false;
	StringInfoData payload;

	initStringInfo(&payload);
	while (!caught_up)
	{
		XLogRecPtr	lsn;
		int64		changes = tessera_capture_next(capture, &payload, bytes, upto, &lsn, &caught_up);

		send_reply(channel, 'M', 0, changes, lsn, caught_up, &payload);
		tessera_capture_confirm(capture, lsn);
		resetStringInfo(&payload);
	}
}

static void
serve(Channel *channel, TesseraCapture *volatile *capture)
{
	StringInfoData message;

	while (MemoryContextSwitchTo(TopMemoryContext), channel_receive(channel, &message))
	{
		switch (pq_getmsgbyte(&message))
		{
			case 'S':
				*capture = serve_start(channel, &message);
				break;
			case 'N':
				serve_next(channel, *capture, &message);
				break;
			default:
				return;
		}
		send_reply(channel, 'D', 0, (int64) tessera_capture_backlog(*capture), InvalidXLogRecPtr, false, NULL);
	}
}

/* Tells the session why the worker ends. */
static void
send_error(Channel *channel)
{
	ErrorData  *error;
	StringInfoData message;

	MemoryContextSwitchTo(TopMemoryContext);
	error = CopyErrorData();
	FlushErrorState();
	initStringInfo(&message);
	pq_sendbyte(&message, 'E');
	pq_sendint32(&message, error->sqlerrcode);
	appendStringInfoString(&message, error->message != NULL ? error->message : "");
	(void) channel_send(channel, &message);
}

static void
attach(Channel *channel, dsm_segment *segment, bool worker, BackgroundWorkerHandle *handle)
{
	shm_mq	   *requests = dsm_segment_address(segment);
	shm_mq	   *replies = (shm_mq *) ((char *) dsm_segment_address(segment) + QUEUE_SIZE);

	shm_mq_set_sender(worker ? replies : requests, MyProc);
	shm_mq_set_receiver(worker ? requests : replies, MyProc);
	channel->segment = segment;
	channel->in = shm_mq_attach(worker ? requests : replies, segment, handle);
	channel->out = shm_mq_attach(worker ? replies : requests, segment, handle);
}

void
tessera_capture_diagnostics_main(Datum main_arg)
{
	WorkerIdentity identity;
	Channel		channel;
	TesseraCapture *volatile capture = NULL;
	dsm_segment *segment;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&identity, MyBgworkerEntry->bgw_extra, sizeof(identity));
	BackgroundWorkerInitializeConnectionByOid(identity.database, identity.user, 0);
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		proc_exit(0);
	attach(&channel, segment, true, NULL);
	PG_TRY();
	{
		serve(&channel, &capture);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		AbortCurrentTransaction();
		send_error(&channel);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	if (capture != NULL)
		tessera_capture_end(capture, true);
	dsm_detach(segment);
	proc_exit(0);
}


/* ---- session ---- */

static void
session_end(void)
{
	if (session_channel == NULL)
		return;
	dsm_detach(session_channel->segment);
	pfree(session_channel);
	session_channel = NULL;
}

static void
launch(void)
{
	WorkerIdentity identity = {MyDatabaseId, GetUserId()};
	dsm_segment *segment = dsm_create(2 * QUEUE_SIZE, 0);
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	BackgroundWorkerHandle *handle;
	BackgroundWorker worker = {0};

	shm_mq_create(dsm_segment_address(segment), QUEUE_SIZE);
	shm_mq_create((char *) dsm_segment_address(segment) + QUEUE_SIZE, QUEUE_SIZE);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
	memcpy(worker.bgw_extra, &identity, sizeof(identity));
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "tessera");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tessera_capture_diagnostics_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tessera capture diagnostics");
	snprintf(worker.bgw_type, BGW_MAXLEN, "tessera capture diagnostics");
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker is free for change capture"),
				 errhint("Raise max_worker_processes.")));
	dsm_pin_mapping(segment);
	session_channel = palloc0(sizeof(Channel));
	attach(session_channel, segment, false, handle);
	MemoryContextSwitchTo(old);
}

/* Sends a request and puts each payload that comes back into the result: columns of 'C' or of 'M' replies. */
static void
ask(StringInfo request, ReturnSetInfo *result)
{
	StringInfoData message;

	if (session_channel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no change capture is running for this session"),
				 errhint("Begin one with tessera_test.capture_start.")));
	(void) channel_send(session_channel, request);
	while (channel_receive(session_channel, &message))
	{
		Datum		values[4];
		bool		nulls[4] = {false, false, false, false};
		int			kind = pq_getmsgbyte(&message);
		int			number = pq_getmsgint(&message, 4);
		int64		count;
		XLogRecPtr	lsn;
		bool		caught_up;
		Datum		payload;

		if (kind == 'E')
		{
			session_end();
			ereport(ERROR,
					(errcode(number),
					 errmsg("%s", message.data + message.cursor)));
		}
		count = pq_getmsgint64(&message);
		lsn = pq_getmsgint64(&message);
		caught_up = pq_getmsgbyte(&message);
		if (kind == 'D')
			return;
		payload = PointerGetDatum(cstring_to_text_with_len(message.data + message.cursor, message.len - message.cursor));
		values[0] = kind == 'C' ? Int32GetDatum(number) : Int64GetDatum(count);
		values[1] = kind == 'C' ? Int64GetDatum(count) : LSNGetDatum(lsn);
		values[2] = kind == 'C' ? payload : BoolGetDatum(caught_up);
		values[3] = payload;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	session_end();
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("the worker of change capture has gone")));
}

static void
put_bound(StringInfo message, TesseraBound *bound)
{
	pq_sendint32(message, VARSIZE(bound));
	appendBinaryStringInfo(message, (char *) bound, VARSIZE(bound));
}

/* tessera_test.capture_start(slot, tables, keys, min, max, hashed, timeout_ms) */
Datum
tessera_capture_start_sql(PG_FUNCTION_ARGS)
{
	StringInfoData request;
	int			ntables,
				nkeys;
	Oid		   *tables = tessera_diagnostic_tables(PG_GETARG_ARRAYTYPE_P(1), &ntables);
	char	  **keys = tessera_diagnostic_keys(PG_GETARG_ARRAYTYPE_P(2), &nkeys);

	if (session_channel != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("this session has a change capture already"),
				 errhint("End it with tessera_test.capture_stop.")));
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("change capture would wait for this transaction, which has written"),
				 errhint("Call tessera_test.capture_start in a transaction of its own.")));
	initStringInfo(&request);
	pq_sendbyte(&request, 'S');
	pq_sendstring(&request, NameStr(*PG_GETARG_NAME(0)));
	pq_sendint32(&request, PG_GETARG_INT32(6));
	pq_sendint32(&request, ntables);
	pq_sendint32(&request, nkeys);
	pq_sendbyte(&request, PG_GETARG_BOOL(5));
	for (int i = 0; i < ntables; i++)
		pq_sendint32(&request, tables[i]);
	for (int i = 0; i < nkeys; i++)
		appendBinaryStringInfo(&request, keys[i], strlen(keys[i]) + 1);
	put_bound(&request, PG_GETARG_TESSERA_BOUND_P(3));
	put_bound(&request, PG_GETARG_TESSERA_BOUND_P(4));
	InitMaterializedSRF(fcinfo, 0);
	launch();
	ask(&request, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* tessera_test.capture_next(upto, bytes) */
Datum
tessera_capture_next_sql(PG_FUNCTION_ARGS)
{
	StringInfoData request;

	initStringInfo(&request);
	pq_sendbyte(&request, 'N');
	pq_sendint64(&request, PG_ARGISNULL(0) ? GetFlushRecPtr(NULL) : PG_GETARG_LSN(0));
	pq_sendint64(&request, PG_GETARG_INT64(1));
	InitMaterializedSRF(fcinfo, 0);
	ask(&request, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* tessera_test.capture_stop() */
Datum
tessera_capture_stop_sql(PG_FUNCTION_ARGS)
{
	StringInfoData message;

	if (session_channel == NULL)
		PG_RETURN_VOID();
	initStringInfo(&message);
	pq_sendbyte(&message, 'Q');
	(void) channel_send(session_channel, &message);
	/* Its end, when it has dropped the slot, detaches the queue. */
	while (channel_receive(session_channel, &message))
		;
	session_end();
	PG_RETURN_VOID();
}

/* tessera_test.capture_drop_slot(slot) */
Datum
tessera_capture_drop_slot_sql(PG_FUNCTION_ARGS)
{
	tessera_capture_drop_slot(NameStr(*PG_GETARG_NAME(0)));
	PG_RETURN_VOID();
}
