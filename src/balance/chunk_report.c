/*
 * chunk_report.c
 *	  Reports of one shard about one table group; see chunk_report.h.
 *
 * A report is whole: it takes the place of the last one. Its bounds are read off the routing image in a short transaction, the call follows outside
 * of it. While the config node cannot be reached, one line a minute says so.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "balance/chunk_report.h"
#include "catalog/bound_array.h"
#include "control/calls.h"
#include "transaction/background.h"

#define CALL_MS 10000
#define MS_PER_CHUNK 1			/* of a report: it is sent no more often */
#define COMPLAIN_MS 60000
#define FADING_MS 60000			/* how often a load that fades is reported, if nothing else has changed */

typedef struct Report
{
	TesseraGroupLoad *load;
	MemoryContext context;
	bool		made;
	int32		node_id;
	char	   *mins;
	char	   *bytes;
	char	   *statements;
	char	   *loads;
	char	   *hot_keys;
	char	   *hot_shares;
} Report;

/* Values of the arrays, chunk by chunk. */
typedef struct Columns
{
	int			n;
	Datum	   *mins;
	Datum	   *bytes;
	Datum	   *statements;
	Datum	   *loads;
	Datum	   *hot_keys;
	Datum	   *hot_shares;
	bool	   *cold;			/* no hot key is known */
} Columns;

static char *
array_text(Datum *values, bool *nulls, int n, Oid type)
{
	int			dims[] = {n};
	int			lower[] = {1};
	int16		length;
	bool		by_value;
	char		align;
	Oid			output;
	bool		is_varlena;
	ArrayType  *array;

	get_typlenbyvalalign(type, &length, &by_value, &align);
	array = n > 0 ? construct_md_array(values, nulls, 1, dims, lower, type, length, by_value, align) : construct_empty_array(type);
	getTypeOutputInfo(get_array_type(type), &output, &is_varlena);
	return OidOutputFunctionCall(output, PointerGetDatum(array));
}

static int
heaviest_key(const TesseraChunkKeys *keys)
{
	int			heaviest = 0;

	for (int i = 1; i < keys->nhot; i++)
		if (keys->weights[i] > keys->weights[heaviest])
			heaviest = i;
	return heaviest;
}

static void
add_chunk(Columns *columns, const TesseraChunkLoad *load, TesseraKeySpace *ks, const TesseraKeyBound *min, double warm_up)
{
	int			i = columns->n++;

	columns->mins[i] = PointerGetDatum(tessera_key_to_bound(ks, min));
	columns->bytes[i] = Int64GetDatum((int64) load->bytes);
	columns->statements[i] = Float8GetDatum(load->statements * warm_up);
	columns->loads[i] = Float8GetDatum(load->load * warm_up);
	columns->cold[i] = load->keys == NULL || load->keys->nhot == 0 || load->load <= 0;
	if (!columns->cold[i])
	{
		int			heaviest = heaviest_key(load->keys);
		TesseraKeyBound position;

		tessera_sample_key_get(&load->keys->hot[heaviest], ks, &position);
		columns->hot_keys[i] = PointerGetDatum(tessera_key_to_bound(ks, &position));
		columns->hot_shares[i] = Float8GetDatum(Min(load->keys->weights[heaviest] / load->load, 1));
	}
}

static void
write_texts(Report *report, const Columns *columns)
{
	Oid			bound = tessera_bound_type();

	report->mins = array_text(columns->mins, NULL, columns->n, bound);
	report->bytes = array_text(columns->bytes, NULL, columns->n, INT8OID);
	report->statements = array_text(columns->statements, NULL, columns->n, FLOAT8OID);
	report->loads = array_text(columns->loads, NULL, columns->n, FLOAT8OID);
	report->hot_keys = array_text(columns->hot_keys, columns->cold, columns->n, bound);
	report->hot_shares = array_text(columns->hot_shares, columns->cold, columns->n, FLOAT8OID);
	report->made = true;
}

static Datum *
alloc_values(int n)
{
	return MemoryContextAllocExtended(CurrentMemoryContext, sizeof(Datum) * Max(n, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

static void
fill(Report *report, const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraGroupLoad *load = report->load;
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	double		warm_up = tessera_load_warm_up(GetCurrentTimestamp());
	Columns		columns = {.mins = alloc_values(load->nown), .bytes = alloc_values(load->nown), .statements = alloc_values(load->nown),
		.loads = alloc_values(load->nown), .hot_keys = alloc_values(load->nown), .hot_shares = alloc_values(load->nown)
	};

	columns.cold = palloc0(Max(load->nown, 1));
	report->node_id = routing->self;
	for (int i = 0; i < load->nchunks; i++)
	{
		TesseraChunk chunk;

		if (!load->chunks[i].own)
			continue;
		tessera_routing_chunk(routing, group, i, &chunk);
		add_chunk(&columns, &load->chunks[i], ks, &chunk.min, warm_up);
	}
	write_texts(report, &columns);
}

/* Writes the report by the newest chunk map. */
static bool
make_report(void *arg)
{
	Report	   *report = arg;
	const TesseraRouting *routing;
	const TesseraGroup *group;

	tessera_background_begin();
	MemoryContextSwitchTo(report->context);
	routing = tessera_routing();
	group = routing ? tessera_routing_group_by_id(routing, &report->load->group_id) : NULL;
	if (group != NULL && tessera_group_load(routing, group) == report->load)
		fill(report, routing, group);
	tessera_background_commit();
	return report->made;
}

static void
complain(const ErrorData *error)
{
	static TimestampTz due = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (error == NULL || now < due)
		return;
	due = TimestampTzPlusMilliseconds(now, COMPLAIN_MS);
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("sizes and load of chunks cannot be reported for now: %s", error->message)));
}

/* True for what is known of the sizes: until all chunks are measured there is nothing to tell. */
static bool
is_known(const TesseraGroupLoad *load)
{
	for (int i = 0; i < load->nchunks; i++)
		if (load->chunks[i].own && !load->chunks[i].known)
			return false;
	return true;
}

static bool
is_fading(const TesseraGroupLoad *load)
{
	for (int i = 0; i < load->nchunks; i++)
		if (load->chunks[i].own && load->chunks[i].statements > 0)
			return true;
	return false;
}

void
tessera_report_chunks(TesseraGroupLoad *load, int interval_ms, bool *by_load)
{
	TimestampTz now = GetCurrentTimestamp();
	Report		report = {.load = load, .context = CurrentMemoryContext};
	ErrorData  *error = NULL;
	bool		answer = false;

	if ((load->nown == 0 && !load->told) || !TimestampDifferenceExceeds(load->reported, now, Max(interval_ms, load->nown * MS_PER_CHUNK)))
		return;
	if (!load->unreported && !(TimestampDifferenceExceeds(load->reported, now, FADING_MS) && is_fading(load)))
		return;
	if (!is_known(load) || !tessera_background_try(make_report, &report))
		return;
	load->reported = now;
	if (tessera_call_report_chunks(tessera_keep_error(tessera_ask(tessera_within(tessera_to_config(), CALL_MS), TESSERA_TOLERATE_ERRORS), &error),
								   &load->group_id, &load->epoch, report.node_id, report.mins, report.bytes, report.statements, report.loads,
								   report.hot_keys, report.hot_shares, &answer))
	{
		*by_load = answer;
		load->unreported = false;
		load->told = load->nown > 0;
	}
	else
		complain(error);
}
