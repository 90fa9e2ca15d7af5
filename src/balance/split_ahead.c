/*
 * split_ahead.c
 *	  Ends of the key space that ascending keys run to; see split_ahead.h.
 *
 * Phases: the newest writes to the group's first or last chunk are a window of key_growth.h; if the windows show that keys ascend there, and the
 * chunk will be full soon, a bound is chosen ahead of them, as far as they come until then; one short transaction looks by the key index whether
 * there is (nearly) nothing behind the bound; then, outside of it, the config node splits the chunk there, and the balancer is asked to move the
 * outer piece to another shard. Writers that reach it find it there, and the shard that has it then does the same. So the load of the newest rows
 * goes round, and what moves is empty, however fast they are.
 *
 * Keys: whole numbers, dates and timestamps in the first key column, under range. The bound has lowest values in the other columns.
 *
 * What fails is tried again with the next window, after a pause that grows. Locks: AccessShareLock on the group's tables, if it is free, to the end
 * of the transaction. Memory: the caller's context; what is known of the ends is chunk_load.c's. A crash leaves the split made, its move asked for
 * or not.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "utils/date.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "balance/chunk_split.h"
#include "balance/give_way.h"
#include "balance/key_sample.h"
#include "balance/move_reasons.h"
#include "balance/split_ahead.h"
#include "catalog/bound_array.h"
#include "common/text.h"
#include "control/calls.h"
#include "transaction/background.h"

#define CALL_MS 10000
#define AHEAD_S 3.0				/* so long before keys reach it is a piece split off, at least: it is to be gone by then */
#define FULL 0.9				/* of max_chunk_size: so large is the chunk to be by then */
#define FEW_ROWS 64				/* in all tables of the group: a piece with more is not empty */
#define RETRY_MS 1000
#define MAX_DOUBLINGS 6
#define BY "tessera"

/* An end of the group's key space, and what is to be done with it. */
typedef struct Ahead
{
	TesseraGroupLoad *load;
	TesseraEndWrites *end;
	bool		top;
	MemoryContext context;
	/* what was found; texts of bounds, in context */
	bool		found;
	int64		term;
	pg_uuid_t	table_id;
	char	   *object;			/* the table's name */
	char	   *points;
	char	   *piece_min;
	char	   *piece_max;
} Ahead;


/* ---- keys as whole numbers ---- */

/* The lowest and highest value of a type that ascends step by step; false: it is none. */
static bool
limits_of(Oid type, int64 *least, int64 *most)
{
	switch (type)
	{
		case INT2OID:
			*least = PG_INT16_MIN;
			*most = PG_INT16_MAX;
			return true;
		case INT4OID:
			*least = PG_INT32_MIN;
			*most = PG_INT32_MAX;
			return true;
		case INT8OID:
			*least = PG_INT64_MIN;
			*most = PG_INT64_MAX;
			return true;
		case DATEOID:
			*least = DATETIME_MIN_JULIAN - POSTGRES_EPOCH_JDATE;
			*most = DATE_END_JULIAN - POSTGRES_EPOCH_JDATE - 1;
			return true;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			*least = MIN_TIMESTAMP;
			*most = END_TIMESTAMP - 1;
			return true;
		default:
			return false;
	}
}

static int64
number_of(Oid type, Datum value)
{
	switch (type)
	{
		case INT2OID:
			return DatumGetInt16(value);
		case INT4OID:
			return DatumGetInt32(value);
		case DATEOID:
			return DatumGetDateADT(value);
		default:
			return DatumGetInt64(value);
	}
}

static Datum
value_of(Oid type, int64 number)
{
	switch (type)
	{
		case INT2OID:
			return Int16GetDatum((int16) number);
		case INT4OID:
			return Int32GetDatum((int32) number);
		case DATEOID:
			return DateADTGetDatum((DateADT) number);
		default:
			return Int64GetDatum(number);
	}
}


/* ---- looking ---- */

/* Makes a window of the newest writes. Returns bytes per second in it; *seconds: how long it was. */
static double
add_window(const Ahead *ahead, TesseraKeySpace *ks, double *seconds)
{
	TesseraEndWrites *end = ahead->end;
	TimestampTz now = GetCurrentTimestamp();
	int64		keys[TESSERA_NEWEST_WRITES];
	double		bytes = end->bytes;

	for (int i = 0; i < TESSERA_NEWEST_WRITES; i++)
	{
		TesseraKeyBound position;

		tessera_sample_key_get(&end->newest[i], ks, &position);
		keys[i] = number_of(ks->columns[0].type, position.elements[0].value);
	}
	tessera_key_growth_add(&end->growth, now / 1e6, keys, TESSERA_NEWEST_WRITES);
	*seconds = Max((now - end->since) / 1e6, 0.1);
	end->windowed = end->n;
	end->bytes = 0;
	end->since = 0;
	return bytes / *seconds;
}

/* A key whose first column has the value, lower than all others with it; or an end of the key space. */
static TesseraKeyBound
bound_of(const TesseraKeySpace *ks, Datum value, int first_kind, int kind)
{
	TesseraKeyBound bound = {0};

	for (int i = 0; i < ks->nelements; i++)
		bound.elements[i].kind = i == 0 ? first_kind : kind;
	bound.elements[0].value = value;
	return bound;
}

/* Whether a range has few rows, in all tables of the group; false also if that cannot be said: one is not free, or has no index for its key. */
static bool
is_nearly_empty(const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks, const TesseraKeyBound *min,
				const TesseraKeyBound *max)
{
	int			rows = 0;

	for (int i = 0; i < routing->ntables && rows <= FEW_ROWS; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);
		Relation	rel;
		int			n;

		if (table->group != group->index || !OidIsValid(table->relid))
			continue;
		rel = tessera_open_if_free(table->relid);
		if (rel == NULL)
			return false;
		n = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ? 0 :
			tessera_rows_up_to(rel, ks, table->keys, min, max, FEW_ROWS + 1, GetActiveSnapshot());
		relation_close(rel, NoLock);
		if (n < 0)
			return false;
		rows += n;
	}
	return rows <= FEW_ROWS;
}

/* A table of the group, to name it by. */
static const TesseraTable *
table_of(const TesseraRouting *routing, const TesseraGroup *group)
{
	for (int i = 0; i < routing->ntables; i++)
		if (tessera_routing_table_at(routing, i)->group == group->index)
			return tessera_routing_root(routing, tessera_routing_table_at(routing, i));
	return NULL;
}

/* Sets what is to be done, if the outer piece from the bound on is one that may be split off. */
static void
set_piece(Ahead *ahead, const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks, int64 number)
{
	TesseraKeyBound point = bound_of(ks, value_of(ks->columns[0].type, number), TESSERA_VALUE, TESSERA_MINKEY);
	TesseraKeyBound min = ahead->top ? point : bound_of(ks, 0, TESSERA_MINKEY, TESSERA_MINKEY);
	TesseraKeyBound max = ahead->top ? bound_of(ks, 0, TESSERA_MAXKEY, TESSERA_MAXKEY) : point;
	const TesseraTable *table = table_of(routing, group);
	TesseraBound *bound = tessera_key_to_bound(ks, &point);
	TesseraChunk chunk;

	tessera_routing_chunk(routing, group, ahead->top ? ahead->load->nchunks - 1 : 0, &chunk);
	if (table == NULL || chunk.node_id != routing->self || tessera_key_compare(ks, &chunk.min, &point) >= 0 ||
		tessera_key_compare(ks, &point, &chunk.max) >= 0 || !is_nearly_empty(routing, group, ks, &min, &max))
		return;
	ahead->points = tessera_bounds_text(1, &bound);
	ahead->piece_min = tessera_bound_to_cstring(tessera_key_to_bound(ks, &min));
	ahead->piece_max = tessera_bound_to_cstring(tessera_key_to_bound(ks, &max));
	ahead->table_id = table->table_id;
	ahead->object = tessera_qualified_name(table->relid);
	ahead->term = routing->promised_term;
	ahead->found = true;
}

static void
look_at_end(Ahead *ahead, const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	const TesseraGroupLoad *load = ahead->load;
	double		window_s;
	double		bytes_per_s;
	double		speed;
	double		seconds;		/* until the chunk is as large as it is to be */
	int64		least;
	int64		most;
	int64		number;

	if (!limits_of(ks->columns[0].type, &least, &most))
	{
		ahead->end->windowed = ahead->end->n;
		return;
	}
	bytes_per_s = add_window(ahead, ks, &window_s);
	speed = tessera_key_growth_speed(&ahead->end->growth, ahead->top);
	if (speed == 0 || bytes_per_s <= 0 || GetCurrentTimestamp() < ahead->end->not_before || tessera_other_shards(routing) == 0)
		return;
	seconds = (FULL * load->max_chunk_size - load->chunks[ahead->top ? load->nchunks - 1 : 0].bytes) / bytes_per_s;
	/* the next window may come twice as late as this one */
	if (seconds > 2 * (AHEAD_S + window_s))
		return;
	if (tessera_key_growth_bound(&ahead->end->growth, speed, Max(seconds, AHEAD_S), least, most, &number))
		set_piece(ahead, routing, group, ks, number);
}

/* A transaction of its own. */
static bool
look(void *arg)
{
	Ahead	   *ahead = arg;
	const TesseraRouting *routing;
	const TesseraGroup *group;

	tessera_background_begin();
	MemoryContextSwitchTo(ahead->context);
	routing = tessera_routing();
	group = routing ? tessera_routing_group_by_id(routing, &ahead->load->group_id) : NULL;
	if (group != NULL && memcmp(&group->epoch, &ahead->load->epoch, UUID_LEN) == 0 && group->group_major == ahead->load->group_major &&
		group->group_minor == ahead->load->group_minor)
		look_at_end(ahead, routing, group);
	tessera_background_commit();
	return ahead->found;
}


/* ---- acting ---- */

static TesseraCallTarget
to_config(ErrorData **error)
{
	return tessera_keep_error(tessera_ask(tessera_within(tessera_to_config(), CALL_MS), TESSERA_TOLERATE_ERRORS), error);
}

static void
complain(const Ahead *ahead, const ErrorData *error)
{
	if (error == NULL)
		return;
	ereport(error->sqlerrcode == ERRCODE_OBJECT_IN_USE ? DEBUG1 : LOG,
			(errcode(error->sqlerrcode),
			 errmsg("the end from %s to %s of table %s cannot be moved away for now: %s", ahead->piece_min, ahead->piece_max, ahead->object,
					error->message)));
}

/* True: the config node has split the chunk. */
static bool
split_off(const Ahead *ahead)
{
	ErrorData  *error = NULL;
	TesseraSplitAnswer split;
	pg_uuid_t  *id;

	if (!tessera_call_split(to_config(&error), &ahead->load->group_id, &ahead->load->epoch, ahead->term, ahead->points, BY, ahead->object, &split))
	{
		complain(ahead, error);
		ahead->end->attempts++;
		ahead->end->not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RETRY_MS << Min(ahead->end->attempts, MAX_DOUBLINGS));
		return false;
	}
	ahead->end->attempts = 0;
	if (!tessera_call_request_move(to_config(&error), &ahead->table_id, ahead->piece_min, ahead->piece_max, NULL, TESSERA_REASON_TOP, BY, true,
								   ahead->term, &id))
		complain(ahead, error);
	return true;
}

bool
tessera_split_ahead(TesseraGroupLoad *load)
{
	bool		changed = false;

	for (int i = 0; i < 2 && !load->hashed && !changed; i++)
	{
		Ahead		ahead = {.load = load,.top = i == 0,.end = i == 0 ? &load->last : &load->first,.context = CurrentMemoryContext};

		/* another one has begun to count */
		if (ahead.end->n < ahead.end->windowed)
			ahead.end->windowed = 0;
		if (ahead.end->n - ahead.end->windowed < TESSERA_NEWEST_WRITES || !load->chunks[ahead.top ? load->nchunks - 1 : 0].own)
			continue;
		CHECK_FOR_INTERRUPTS();
		changed = tessera_background_try(look, &ahead) && split_off(&ahead);
	}
	return changed;
}
