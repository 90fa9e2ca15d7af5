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
#include "transaction/background.h"
#include "transfer/verify.h"

#define QUEUE_SIZE 65536

/* A round of verification begins a moment after the last one: so often, every so many milliseconds, is it tried. */
#define ROUND_TRIES 100
#define ROUND_POLL_MS 10

typedef struct Channel
{
	dsm_segment *segment;
	shm_mq_handle *out;
	shm_mq_handle *in;
} Channel;

/* The worker. */
typedef struct Server
{
	Channel		channel;
	TesseraCapture *capture;	/* NULL: none */
	TesseraVerify *verify;		/* NULL: the capture is not verified */
	XLogRecPtr	sent;			/* changes up to here have been handed out */
} Server;

typedef struct WorkerIdentity
{
	Oid			database;
	Oid			user;
} WorkerIdentity;

PG_FUNCTION_INFO_V1(tessera_capture_start_sql);
PG_FUNCTION_INFO_V1(tessera_capture_operation);
PG_FUNCTION_INFO_V1(tessera_capture_next_sql);
PG_FUNCTION_INFO_V1(tessera_capture_round);
PG_FUNCTION_INFO_V1(tessera_verify_operation);
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

static struct varlena *
take_varlena(StringInfo message)
{
	int			size = pq_getmsgint(message, 4);
	struct varlena *value = palloc(size);

	memcpy(value, pq_getmsgbytes(message, size), size);
	return value;
}

/* What a request is about: ranges of groups, or tables with key columns and one range; in the current context. */
static TesseraMovingRanges *
take_moving(StringInfo message)
{
	bool		operation = pq_getmsgbyte(message);
	int			ntables,
				nkeys;
	Oid		   *tables;
	char	  **keys;
	bool		hashed;
	TesseraBound *min;

	if (operation)
		return tessera_diagnostic_operation((ArrayType *) take_varlena(message));
	tables = tessera_diagnostic_tables((ArrayType *) take_varlena(message), &ntables);
	keys = tessera_diagnostic_keys((ArrayType *) take_varlena(message), &nkeys);
	hashed = pq_getmsgbyte(message);
	min = take_varlena(message);
	return tessera_diagnostic_range(ntables, tables, nkeys, keys, hashed, min, take_varlena(message));
}

/* Answers a start request: the clone, its digests if it is to be verified, then an open capture. */
static void
serve_start(Server *server, StringInfo message)
{
	char	   *slot = pstrdup(pq_getmsgrawstring(message));
	int			timeout_ms = pq_getmsgint(message, 4);
	bool		verified = pq_getmsgbyte(message);
	TesseraMovingRanges *moving;
	TesseraCloneReader *reader;
	StringInfoData payload;
	int			table;
	int64		rows;

	tessera_background_begin();
	MemoryContextSwitchTo(TopMemoryContext);
	moving = take_moving(message);
	tessera_background_commit();

	MemoryContextSwitchTo(TopMemoryContext);
	server->capture = tessera_capture_create(moving, slot, timeout_ms, report_waiting, NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	if (verified)
	{
		server->verify = tessera_verify_begin(moving);
		tessera_capture_note_keys(server->capture, server->verify);
	}
	initStringInfo(&payload);
	reader = tessera_clone_begin(moving, verified ? tessera_verify_sums(server->verify) : NULL);
	while ((rows = tessera_clone_next(reader, &payload, 1024 * 1024, &table)) > 0)
	{
		send_reply(&server->channel, 'C', table, rows, InvalidXLogRecPtr, false, &payload);
		resetStringInfo(&payload);
	}
	tessera_clone_end(reader);
	CommitTransactionCommand();
	if (verified)
	{
		tessera_verify_write_sums(server->verify, &payload);
		send_reply(&server->channel, 'C', -1, 0, InvalidXLogRecPtr, false, &payload);
	}
}

/* Answers a request for changes: batches until upto is reached. */
static void
serve_next(Server *server, StringInfo message)
{
	XLogRecPtr	upto = pq_getmsgint64(message);
	Size		bytes = pq_getmsgint64(message);
	bool		caught_up = false;
	StringInfoData payload;

	initStringInfo(&payload);
	while (!caught_up)
	{
		int64		changes = tessera_capture_next(server->capture, &payload, bytes, upto, &server->sent, &caught_up);

		send_reply(&server->channel, 'M', 0, changes, server->sent, caught_up, &payload);
		tessera_capture_confirm(server->capture, server->sent);
		resetStringInfo(&payload);
	}
}

/* Answers a request for a step of a round of verification: begins one, or sends its keys, which count as found equal. */
static void
serve_round(Server *server, StringInfo message)
{
	bool		last = pq_getmsgbyte(message);
	TesseraMessage round;
	StringInfoData payload;

	initStringInfo(&payload);
	if (tessera_verify_round_ready(server->verify, server->sent))
	{
		if (!tessera_verify_write_round(server->verify, &round, &payload))
			return;
		send_reply(&server->channel, 'R', 0, round.rows, InvalidXLogRecPtr, round.last, &payload);
		tessera_verify_answered(server->verify, round.sequence);
	}
	else if (last)
		(void) tessera_verify_rest(server->verify);
	else
	{
		/* the last round may have ended just now */
		for (int i = 0; !tessera_verify_begin_round(server->verify) && i < ROUND_TRIES; i++)
			tessera_background_sleep(ROUND_POLL_MS);
	}
}

/* Answers a request to compare the rows here with a payload of digests, or of a round's keys. */
static void
serve_verify(StringInfo message)
{
	bool		keys = pq_getmsgbyte(message);
	TesseraMovingRanges *moving;
	bytea	   *payload;

	tessera_background_begin();
	MemoryContextSwitchTo(TopMemoryContext);
	moving = take_moving(message);
	tessera_background_commit();
	payload = take_varlena(message);
	if (keys)
		tessera_verify_keys(moving, VARDATA(payload), VARSIZE(payload) - VARHDRSZ, false);
	else
		tessera_verify_clone(moving, VARDATA(payload), VARSIZE(payload) - VARHDRSZ);
}

static void
serve(Server *server)
{
	StringInfoData message;

	while (MemoryContextSwitchTo(TopMemoryContext), channel_receive(&server->channel, &message))
	{
		char		kind = pq_getmsgbyte(&message);

		if ((kind == 'N' && server->capture == NULL) || (kind == 'R' && server->verify == NULL))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("no such change capture is running for this session")));
		switch (kind)
		{
			case 'S':
				serve_start(server, &message);
				break;
			case 'N':
				serve_next(server, &message);
				break;
			case 'R':
				serve_round(server, &message);
				break;
			case 'V':
				serve_verify(&message);
				break;
			default:
				return;
		}
		send_reply(&server->channel, 'D', 0, 0, InvalidXLogRecPtr, false, NULL);
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
	Server	   *server = palloc0(sizeof(Server));
	dsm_segment *segment;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&identity, MyBgworkerEntry->bgw_extra, sizeof(identity));
	BackgroundWorkerInitializeConnectionByOid(identity.database, identity.user, 0);
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		proc_exit(0);
	attach(&server->channel, segment, true, NULL);
	PG_TRY();
	{
		serve(server);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		AbortCurrentTransaction();
		send_error(&server->channel);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	if (server->capture != NULL)
		tessera_capture_end(server->capture, true);
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

/* Sends a request and puts each payload that comes back into the result: columns of 'C', 'M' or 'R' replies. */
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
		values[1] = kind == 'C' ? Int64GetDatum(count) : kind == 'M' ? LSNGetDatum(lsn) : payload;
		values[2] = kind == 'C' ? payload : BoolGetDatum(caught_up);
		values[3] = payload;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	session_end();
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("the worker of change capture has gone")));
}

/* A value of variable length as it is, detoasted. */
static void
put_varlena(StringInfo message, Datum value)
{
	struct varlena *plain = PG_DETOAST_DATUM(value);

	pq_sendint32(message, VARSIZE(plain));
	appendBinaryStringInfo(message, (char *) plain, VARSIZE(plain));
}

static void
put_operation(StringInfo message, Datum ranges)
{
	pq_sendbyte(message, true);
	put_varlena(message, ranges);
}

static void
begin_start_request(StringInfo request, Name slot, int timeout_ms, bool verified)
{
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
	initStringInfo(request);
	pq_sendbyte(request, 'S');
	pq_sendstring(request, NameStr(*slot));
	pq_sendint32(request, timeout_ms);
	pq_sendbyte(request, verified);
}

/* tessera_test.capture_start(slot, tables, keys, min, max, hashed, timeout_ms) */
Datum
tessera_capture_start_sql(PG_FUNCTION_ARGS)
{
	StringInfoData request;

	begin_start_request(&request, PG_GETARG_NAME(0), PG_GETARG_INT32(6), false);
	pq_sendbyte(&request, false);
	put_varlena(&request, PG_GETARG_DATUM(1));
	put_varlena(&request, PG_GETARG_DATUM(2));
	pq_sendbyte(&request, PG_GETARG_BOOL(5));
	put_varlena(&request, PG_GETARG_DATUM(3));
	put_varlena(&request, PG_GETARG_DATUM(4));
	InitMaterializedSRF(fcinfo, 0);
	launch();
	ask(&request, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* tessera_test.capture_operation(slot, ranges, timeout_ms) */
Datum
tessera_capture_operation(PG_FUNCTION_ARGS)
{
	StringInfoData request;

	begin_start_request(&request, PG_GETARG_NAME(0), PG_GETARG_INT32(2), true);
	put_operation(&request, PG_GETARG_DATUM(1));
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

/* tessera_test.capture_round(last) */
Datum
tessera_capture_round(PG_FUNCTION_ARGS)
{
	StringInfoData request;

	initStringInfo(&request);
	pq_sendbyte(&request, 'R');
	pq_sendbyte(&request, PG_GETARG_BOOL(0));
	InitMaterializedSRF(fcinfo, 0);
	ask(&request, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* tessera_test.verify_operation(ranges, payload, keys): by a worker, since each comparison is a transaction of its own. */
Datum
tessera_verify_operation(PG_FUNCTION_ARGS)
{
	StringInfoData request;

	initStringInfo(&request);
	pq_sendbyte(&request, 'V');
	pq_sendbyte(&request, PG_GETARG_BOOL(2));
	put_operation(&request, PG_GETARG_DATUM(0));
	put_varlena(&request, PG_GETARG_DATUM(1));
	if (session_channel == NULL)
		launch();
	ask(&request, NULL);
	PG_RETURN_VOID();
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
