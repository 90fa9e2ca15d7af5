/*
 * clock_functions.c
 *	  SQL functions of the clock (doc/design.md#cluster-time).
 *
 * For users a cluster time is a numeric: 64 bits without a sign have no other type, and it can be compared and kept.
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "admin/clock_functions.h"
#include "catalog/clock_store.h"
#include "catalog/signing_key.h"
#include "routing/routing.h"
#include "transaction/node_clocks.h"

PG_FUNCTION_INFO_V1(tessera_cluster_time);
PG_FUNCTION_INFO_V1(tessera_cluster_time_to_timestamp);
PG_FUNCTION_INFO_V1(tessera_cluster_time_token);
PG_FUNCTION_INFO_V1(tessera_internal_clocks);

#define KEYS_MS 5000			/* ms that keys are waited for */

#define CLOCKS_MS 5000			/* ms that tessera.clocks waits for each node */

#define UNIX_EPOCH_US ((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)


Datum
tessera_numeric_of_time(TesseraTime time)
{
	return DirectFunctionCall3(numeric_in, CStringGetDatum(psprintf(UINT64_FORMAT, time)), ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
}

/* ERROR 22003 if it is none. */
static TesseraTime
time_of_numeric(Datum value)
{
	char	   *text = DatumGetCString(DirectFunctionCall1(numeric_out, value));
	TesseraTime time;
	char	   *end;

	errno = 0;
	time = strtoull(text, &end, 10);
	if (errno != 0 || *text < '0' || *text > '9' || *end != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("%s is not a cluster time", text)));
	return time;
}

static TimestampTz
timestamp_of_time(TesseraTime time)
{
	return tessera_time_to_us(time) - UNIX_EPOCH_US;
}

/* tessera.cluster_time() */
Datum
tessera_cluster_time(PG_FUNCTION_ARGS)
{
	TesseraTimes times;

	tessera_clock_read_durably(&times);
	PG_RETURN_DATUM(tessera_numeric_of_time(times.cluster));
}

/* tessera.cluster_time_token() */
Datum
tessera_cluster_time_token(PG_FUNCTION_ARGS)
{
	TesseraSigningKey key;
	TesseraTimes times;

	tessera_clock_read_durably(&times);
	/* a node that has joined just now has not fetched the keys yet */
	if (!tessera_signing_key_current(&key) && !(tessera_routing_refresh(KEYS_MS) && tessera_signing_key_current(&key)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node has no key to sign cluster times with"),
				 errdetail("The config node makes them; it was not reached for too long, or its clock is off."),
				 errhint("Call tessera.reload_routing() when the config node is there again.")));
	PG_RETURN_TEXT_P(cstring_to_text(tessera_token_sign(times.cluster, &key)));
}

/* tessera.cluster_time_to_timestamp(cluster_time) */
Datum
tessera_cluster_time_to_timestamp(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(timestamp_of_time(time_of_numeric(PG_GETARG_DATUM(0))));
}

/* tessera_internal.clocks(): the rows of tessera.clocks */
Datum
tessera_internal_clocks(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	TesseraNodeClock *clocks;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	clocks = tessera_node_clocks(CLOCKS_MS, &n);
	for (int i = 0; i < n; i++)
	{
		Datum		values[5] = {NameGetDatum(&clocks[i].name)};
		bool		nulls[5] = {false, !clocks[i].known, !clocks[i].known, !clocks[i].known, !clocks[i].known};

		if (clocks[i].known)
		{
			values[1] = tessera_numeric_of_time(clocks[i].times.cluster);
			values[2] = tessera_numeric_of_time(clocks[i].times.config);
			values[3] = tessera_numeric_of_time(clocks[i].times.topology);
			values[4] = TimestampTzGetDatum(timestamp_of_time(clocks[i].wall));
		}
		tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
	}
	return (Datum) 0;
}
