/*
 * clock_store.c
 *	  What of the clock is durable; see clock_store.h.
 *
 * A reservation is a whole second. Sessions that need one take turns by a lock on the sequence, let go of at once: else the later of two values could
 * be overwritten by the earlier one. The sequence's own lock, which setval keeps to the end of the transaction, is in nobody's way.
 *
 * Memory: what this transaction has changed of the membership, until its end.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/clock_store.h"
#include "catalog/identity.h"
#include "clock/commit_times.h"
#include "common/acting_as.h"
#include "common/spi.h"
#include "common/worker_registry.h"

PG_FUNCTION_INFO_V1(tessera_note_membership);

#define KEEPER_MS 10000			/* ms after which a reservation is not waited for any more */

#define READ_SQL \
	"SELECT t.changed, CASE WHEN i.is_config THEN 3 WHEN n.is_shard THEN 2 ELSE 1 END FROM tessera.topology AS t, " \
	"tessera.identity AS i LEFT JOIN tessera.node AS n USING (node_id)"

#define RESERVATION "clock_reservation"
#define CONFIG_HEARD "config_time_heard"

/* Time of the change of membership in this transaction; 0: none. Emptied at its end. */
static TesseraTime membership_changed = 0;


/* InvalidOid: the extension is gone; the transaction at hand may have dropped it. */
static Oid
sequence_relid(const char *name)
{
	Oid			schema = get_namespace_oid("tessera", true);

	return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

static Oid
reservation_relid(void)
{
	return sequence_relid(RESERVATION);
}

/*
 * The server's own functions, not by SQL: sequences in statements are the cluster's, and may have to wait for it. Arguments are a sequence and,
 * to set it, its value. Also in a transaction that has been made read-only after it has written. 0: it was never set.
 * As the cluster: nobody's code runs, since nothing hangs on a sequence, and it is the extension's own.
 */
static int64
call_for_sequence(PGFunction function, const char *name, int nargs, int64 value)
{
	LOCAL_FCINFO(fcinfo, 2);
	bool		read_only = XactReadOnly;
	TesseraActing before;
	volatile Datum result = (Datum) 0;

	InitFunctionCallInfoData(*fcinfo, NULL, nargs, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = ObjectIdGetDatum(sequence_relid(name));
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = Int64GetDatum(value);
	fcinfo->args[1].isnull = false;
	tessera_act_as_cluster(&before);
	PG_TRY();
	{
		if (nargs > 1)
			XactReadOnly = false;
		result = function(fcinfo);
	}
	PG_FINALLY();
	{
		XactReadOnly = read_only;
		tessera_act_end(&before);
	}
	PG_END_TRY();
	return fcinfo->isnull ? 0 : DatumGetInt64(result);
}

static int64
sequence_value(const char *name)
{
	return call_for_sequence(pg_sequence_last_value, name, 1, 0);
}

/* A sequence's value, on disk. */
static void
set_durably(const char *name, int64 value)
{
	(void) call_for_sequence(setval_oid, name, 2, value);
	XLogFlush(XactLastRecEnd);
}

/* Columns of the only row of the last answer; none is null. */
static TesseraTime
spi_int8(int column)
{
	bool		null;

	return (TesseraTime) DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, &null));
}

static int32
spi_int4(int column)
{
	bool		null;

	return DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, &null));
}

/* Reads what is durable; the clock goes on from there, or, if it goes, takes over its role and the registry's time. */
static void
read_store(void)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_look(READ_SQL, 0, NULL, NULL) == 1)
	{
		TesseraTime reserved = (TesseraTime) sequence_value(RESERVATION) << 32;
		TesseraTimes times = {.cluster = reserved,.config = (TesseraTime) sequence_value(CONFIG_HEARD),.topology = spi_int8(1)};
		TesseraClockRole role = (TesseraClockRole) spi_int4(2);

		/* what the config node had ticked up to the stop is not known: the reservation is later */
		if (role == TESSERA_CLOCK_TICKS_CONFIG)
			times.config = reserved;
		tessera_clock_start(role, reserved, &times);
		tessera_clock_settle(0, times.topology);
	}
	tessera_spi_end(&spi);
}

void
tessera_clock_load(void)
{
	if (tessera_clock_role() == TESSERA_CLOCK_STOPPED && !RecoveryInProgress() && OidIsValid(reservation_relid()))
		read_store();
}

/* At least up to the time, and some seconds more. */
static void
reserve(Oid relid, TesseraTime needed)
{
	TesseraTime reserved;

	LockRelationOid(relid, ShareUpdateExclusiveLock);
	/* the wait may have been for DROP EXTENSION */
	if (!tessera_clock_is_reserved(needed) && OidIsValid(reservation_relid()))
	{
		reserved = tessera_time_seconds_after(Max(needed, tessera_clock_wall()), TESSERA_RESERVE_AHEAD);
		set_durably(RESERVATION, (int64) (reserved >> 32));
		tessera_clock_reserve(reserved);
	}
	UnlockRelationOid(relid, ShareUpdateExclusiveLock);
}

/* false: there is no clock (any more). */
static bool
reserve_if_any(TesseraTime needed)
{
	Oid			relid = reservation_relid();

	if (!OidIsValid(relid) || tessera_clock_role() == TESSERA_CLOCK_STOPPED)
		return false;
	reserve(relid, needed);
	return true;
}

TesseraTime
tessera_clock_commit(bool metadata)
{
	TesseraTime time;

	tessera_clock_load();
	while (!tessera_clock_tick(metadata, &time))
		if (!reserve_if_any(time))
			return 0;
	return time;
}

TesseraTime
tessera_clock_take_commit_time(bool metadata, bool fixed)
{
	TransactionId xid = GetTopTransactionId();
	TesseraTime time;

	tessera_clock_load();
	if (tessera_clock_role() == TESSERA_CLOCK_STOPPED)
		return 0;
	while (!tessera_commit_take_time(xid, metadata, fixed, &time))
		if (!reserve_if_any(time))
			return 0;
	return time;
}

void
tessera_clock_begin(void)
{
	TesseraTimes times;

	/* this database may have been a node before, by another extension of the same name, whose reservation is gone */
	if (tessera_clock_read(&times))
	{
		tessera_clock_stop();
		set_durably(RESERVATION, Max(sequence_value(RESERVATION), (int64) (tessera_time_seconds_after(times.cluster, 0) >> 32)));
	}
	tessera_clock_load();
}

void
tessera_clock_read_durably(TesseraTimes *times)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this server is a standby, which keeps no clock"),
				 errhint("Ask the node's primary.")));
	tessera_clock_load();
	if (!tessera_clock_read(times))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster")));
	if (tessera_clock_is_reserved(times->cluster))
		return;
	(void) tessera_worker_wake(TESSERA_TRANSACTION_RESOLVER);
	if (!tessera_clock_await(times->cluster, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), KEEPER_MS)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the worker \"transaction resolver\", which keeps the clock, did not answer in time"),
				 errhint("Look into the server's log, and try again.")));
}

void
tessera_clock_keep(void)
{
	TesseraTime needed;
	TesseraTime config;

	if (tessera_clock_role() != TESSERA_CLOCK_STOPPED && !tessera_clock_wants_reservation(&needed) && tessera_clock_config_heard() == 0)
		return;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	tessera_clock_load();
	if (tessera_clock_wants_reservation(&needed) && OidIsValid(reservation_relid()))
		reserve(reservation_relid(), needed + TESSERA_RESERVE_AGAIN * TESSERA_TIME_SECOND);
	config = tessera_clock_config_heard();
	if (config != 0 && OidIsValid(reservation_relid()))
	{
		set_durably(CONFIG_HEARD, (int64) config);
		tessera_clock_settle(config, 0);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* trigger on tessera.node; elsewhere than on the config node its rows are copies */
Datum
tessera_note_membership(PG_FUNCTION_ARGS)
{
	TesseraIdentity identity;
	Datum		values[1];
	TesseraSpi	spi;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("note_membership is a trigger function")));
	if (!tessera_identity_read(&identity) || !identity.is_config)
		PG_RETURN_POINTER(NULL);
	tessera_spi_begin(&spi);
	/* the time of one change is taken after the one before has ended */
	tessera_spi_run("SELECT FROM tessera.topology WHERE singleton FOR UPDATE", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	membership_changed = tessera_clock_commit(true);
	values[0] = Int64GetDatum((int64) membership_changed);
	tessera_spi_run("UPDATE tessera.topology SET changed = $1 WHERE singleton", SPI_OK_UPDATE, 1, (Oid[]) {INT8OID}, values, NULL);
	tessera_spi_end(&spi);
	PG_RETURN_POINTER(NULL);
}

void
tessera_clock_registry_read(void)
{
	if (OidIsValid(reservation_relid()))
		read_store();
}

void
tessera_clock_end_transaction(bool committed)
{
	if (committed && membership_changed != 0)
		tessera_clock_settle(0, membership_changed);
	membership_changed = 0;
}
