/*
 * splitter.c
 *	  The splitter's rounds; see splitter.h.
 *
 * A round: (1) the groups and their chunk maps are read, and the samples that backends have put since are taken in; (2) what has changed enough is
 * measured; (3) ends of the key space that keys run to are split off (split_ahead.c), and chunks that are too large are split (chunk_split.c); (4)
 * the config node is told what has changed (chunk_report.c). Where nothing is written or read, nothing is measured or reported. Each part is a short
 * transaction or a call; one that fails is logged and does not hold up the next. A group whose chunks cannot be read is left out and named
 * (unreadable.c).
 *
 * Memory: what is known of chunks is chunk_load.c's; all else goes at the end of a round. Locks: see measure.c, chunk_split.c; none is waited for but
 * those of the catalog. A crash loses what is known: the next process measures first.
 */
#include "postgres.h"

#include <limits.h>

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "balance/chunk_load.h"
#include "balance/chunk_report.h"
#include "balance/chunk_split.h"
#include "balance/measure.h"
#include "balance/split_ahead.h"
#include "balance/splitter.h"
#include "balance/unreadable.h"
#include "common/spi_row.h"
#include "common/subtransaction.h"
#include "load/load_sample.h"
#include "transaction/background.h"
#include "transaction/participant.h"

#define SAMPLES 512				/* taken at once */
#define STEPS_PER_CHUNK 64		/* samples by which a chunk grows from nothing to the group's max_chunk_size, at least */
#define CHANGED_SHARE 0.2		/* of a group's bytes on this shard: written since the last measurement, they make another one due */
#define SETTLED_MS 60000		/* so long after the last write what has changed is measured */
#define MEASURE_PAUSE 20		/* times as long as a measurement took is the next one put off, at least */
#define UNSETTLED_INTERVALS 6	/* after so many, what running transactions had written is measured, if they are over */
#define NOT_A_SHARD_MS (-1)
#define AUTOMATIC (-1)			/* tessera.split_load */
#define AUTOMATIC_LOAD 0.25		/* what it is then, where the balancer evens out load */

static bool auto_split = true;	/* tessera.auto_split */
static double split_load = AUTOMATIC;	/* tessera.split_load */
static int	interval = 5000;	/* tessera.split_interval, ms */
static TransactionId oldest_running;	/* as of this round */
static bool by_load = false;	/* the balancer evens out load, as the config node last said */

/* Sessions at work from which on a chunk is split; 0: none is for its load. */
static double
load_to_split(void)
{
	return split_load != AUTOMATIC ? split_load : by_load ? AUTOMATIC_LOAD : 0;
}


/* ---- what there is ---- */

/* The groups' max_chunk_size; the smallest one goes to the backends as the distance of samples. */
static void
read_sizes(void)
{
	int64		smallest = (int64) TESSERA_LOAD_STEP * STEPS_PER_CHUNK;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run_saved("SELECT group_id, max_chunk_size FROM tessera.table_group", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		TesseraGroupLoad *load = tessera_group_load_by_id(DatumGetUUIDP(spi_row_value(i, 1)));

		if (load == NULL)
			continue;
		load->max_chunk_size = DatumGetInt64(spi_row_value(i, 2));
		smallest = Min(smallest, load->max_chunk_size);
	}
	tessera_spi_end(&spi);
	tessera_load_collect((int) (smallest / STEPS_PER_CHUNK));
}

/* What is read of the groups in a round. */
typedef struct Following
{
	const TesseraRouting *routing;
	TimestampTz now;
	int			group;			/* index, at present */
	TesseraLoadSample samples[SAMPLES];
	int			nsamples;
	int			sample;			/* the next to be taken in */
	List	   *unreadable;		/* of TesseraUnreadable */
} Following;

/* Nothing is done with the group until the next round. */
static void
leave_out(Following *following, const pg_uuid_t *group_id, char *reason)
{
	TesseraGroupLoad *load = tessera_group_load_by_id(group_id);
	TesseraUnreadable *group = palloc(sizeof(TesseraUnreadable));

	if (load != NULL)
		load->listed = load->unreadable = true;
	group->group_id = *group_id;
	group->reason = reason;
	following->unreadable = lappend(following->unreadable, group);
}

static void
follow_group(void *arg)
{
	const Following *following = arg;
	TesseraGroupLoad *load = tessera_group_load(following->routing, tessera_routing_group(following->routing, following->group));

	load->listed = true;
	tessera_group_load_decay(load, following->now);
}

/* Those that were fetched, from the next on. */
static void
take_fetched(void *arg)
{
	Following  *following = arg;

	for (; following->sample < following->nsamples; following->sample++)
	{
		const TesseraLoadSample *sample = &following->samples[following->sample];
		const TesseraGroup *group = tessera_routing_group_by_id(following->routing, &sample->group_id);
		TesseraGroupLoad *load = group ? tessera_group_load_by_id(&sample->group_id) : NULL;

		if (load != NULL && !load->unreadable)
			tessera_group_load_sample(load, following->routing, group, sample, load_to_split() > 0);
	}
}

static void
take_samples(Following *following)
{
	do
	{
		uint64		lost;
		char	   *reason;

		following->nsamples = tessera_load_take(following->samples, SAMPLES, &lost);
		following->sample = 0;
		while (following->sample < following->nsamples && (reason = tessera_try_one(take_fetched, following)) != NULL)
			leave_out(following, &following->samples[following->sample++].group_id, reason);
		for (int i = 0; lost > 0 && tessera_group_load_at(i) != NULL; i++)
			tessera_group_load_at(i)->measure_due = true;
		CHECK_FOR_INTERRUPTS();
	} while (following->nsamples == SAMPLES);
}

/* A group that has lost a table, or got one, is measured: no statement has written the rows that it lost with it, or got. */
static void
follow_members(const TesseraRouting *routing)
{
	uint64	   *members = palloc0(sizeof(uint64) * Max(routing->ngroups, 1));

	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);

		if (table->group >= 0 && OidIsValid(table->relid))
			members[table->group] += hash_bytes_uint32_extended(table->relid, 0);
	}
	for (int i = 0; i < routing->ngroups; i++)
	{
		TesseraGroupLoad *load = tessera_group_load_by_id(&tessera_routing_group(routing, i)->group_id);

		if (load == NULL)
			continue;
		load->measure_due |= load->members != members[i];
		load->members = members[i];
	}
	pfree(members);
}

static void
follow_groups(const TesseraRouting *routing)
{
	Following  *following = palloc0(sizeof(Following));
	TesseraGroupLoad *load;

	following->routing = routing;
	following->now = GetCurrentTimestamp();
	for (int i = 0; (load = tessera_group_load_at(i)) != NULL; i++)
		load->listed = load->unreadable = false;
	for (; following->group < routing->ngroups; following->group++)
	{
		char	   *reason = tessera_try_one(follow_group, following);

		if (reason != NULL)
			leave_out(following, &tessera_routing_group(routing, following->group)->group_id, reason);
	}
	tessera_group_loads_sweep();
	follow_members(routing);
	read_sizes();
	take_samples(following);
	tessera_note_unreadable(following->unreadable);
}

/* Brings what is known up to now; false: this node is no shard. */
static bool
follow(void)
{
	const TesseraRouting *routing;
	const TesseraNode *self;
	bool		shard;

	tessera_background_begin();
	routing = tessera_routing();
	self = routing ? tessera_routing_node(routing, routing->self) : NULL;
	shard = self != NULL && self->is_shard && !routing->replaced;
	if (shard && !routing->placements_unknown)
	{
		oldest_running = GetActiveSnapshot()->xmin;
		follow_groups(routing);
	}
	tessera_background_commit();
	return shard;
}


/* ---- measuring ---- */

static bool
is_measure_due(const TesseraGroupLoad *load, TimestampTz now)
{
	double		bytes = 0;

	if (load->nown == 0 || !TimestampDifferenceExceeds(load->measured, now, Max(interval, (int) Min(load->measure_ms * MEASURE_PAUSE, INT_MAX))))
		return false;
	if (load->measure_due)
		return true;
	if (TransactionIdIsValid(load->horizon) && !TransactionIdPrecedes(oldest_running, load->horizon) &&
		TimestampDifferenceExceeds(load->measured, now, interval * UNSETTLED_INTERVALS))
		return true;
	if (load->changed == 0)
		return false;
	if (TimestampDifferenceExceeds(load->last_change, now, SETTLED_MS))
		return true;
	for (int i = 0; i < load->nchunks; i++)
		bytes += load->chunks[i].own ? load->chunks[i].bytes : 0;
	return load->changed > Max(bytes * CHANGED_SHARE, load->max_chunk_size / 2.0);
}

static bool
measure(void *arg)
{
	TesseraGroupLoad *load = arg;
	MemoryContext context = CurrentMemoryContext;
	TimestampTz start = GetCurrentTimestamp();
	const TesseraRouting *routing;
	const TesseraGroup *group;
	TesseraMeasure found = {.skipped = true};
	TransactionId horizon = InvalidTransactionId;

	tessera_background_begin();
	MemoryContextSwitchTo(context);
	/* the snapshot's own list of running transactions lacks those from its xmax on */
	if (load->changed > 0 && TransactionIdPrecedes(GetActiveSnapshot()->xmin, ReadNextTransactionId()))
		horizon = ReadNextTransactionId();
	routing = tessera_routing();
	group = routing ? tessera_routing_group_by_id(routing, &load->group_id) : NULL;
	if (group != NULL && tessera_group_load(routing, group) == load)
		tessera_measure_group(routing, group, &found);
	tessera_background_commit();
	load->measured = GetCurrentTimestamp();
	load->measure_ms = TimestampDifferenceMilliseconds(start, load->measured);
	if (found.skipped)
		return false;
	tessera_group_load_measured(load, &found, load->measured);
	load->horizon = horizon;
	return true;
}


/* ---- rounds ---- */

/* Returns whether there is more to do at once. */
static bool
run_round(void)
{
	TesseraGroupLoad *load;
	bool		changed = false;
	bool		again = false;

	for (int i = 0; (load = tessera_group_load_at(i)) != NULL; i++)
	{
		bool		more = false;

		CHECK_FOR_INTERRUPTS();
		if (load->unreadable)
			continue;
		if (is_measure_due(load, GetCurrentTimestamp()) && !tessera_background_try(measure, load))
			load->measured = GetCurrentTimestamp();
		if (auto_split && load->nown > 0)
			changed = tessera_split_ahead(load) || changed;
		if (auto_split && load->nown > 0)
			changed = tessera_split_chunks(load, load_to_split(), interval, &more) || changed;
		again = again || (more && changed);
	}
	if (changed)
		tessera_background_refresh();
	for (int i = 0; (load = tessera_group_load_at(i)) != NULL; i++)
		if (!load->unreadable)
			tessera_report_chunks(load, interval, &by_load);
	return again;
}

long
tessera_splitter_step(void)
{
	MemoryContext before = CurrentMemoryContext;
	MemoryContext context;
	volatile bool again = false;

	if (!follow())
	{
		tessera_load_ignore();
		return NOT_A_SHARD_MS;
	}
	context = AllocSetContextCreate(TopMemoryContext, "tessera splitter round", ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		again = run_round();
	}
	PG_FINALLY();
	{
		tessera_connections_close(1);	/* an idle session would keep CREATE, ALTER and DROP DATABASE there waiting */
		MemoryContextSwitchTo(before);
		MemoryContextDelete(context);
	}
	PG_END_TRY();
	return again ? 0 : interval;
}

/* Below 0 there is nothing but -1. */
static bool
check_split_load(double *value, void **extra, GucSource source)
{
	if (*value >= 0 || *value == AUTOMATIC)
		return true;
	GUC_check_errdetail("It is -1, or 0, or more.");
	return false;
}

void
tessera_splitter_init(void)
{
	DefineCustomBoolVariable("tessera.auto_split", "Shards split their chunks that are larger than max_chunk_size by themselves.", NULL,
							 &auto_split, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomRealVariable("tessera.split_load", "Sessions at work on a chunk, on average, from which on its shard splits it.",
							 "0: chunks are split for their size alone. -1: a quarter of a session while tessera.balancer_policy is load on the "
							 "config node, else 0.", &split_load, AUTOMATIC, AUTOMATIC, 10000, PGC_SIGHUP, 0, check_split_load, NULL, NULL);
	DefineCustomIntVariable("tessera.split_interval", "How often a shard looks at the sizes of its chunks.",
							"Also the least time between two measurements of a table group, and between two reports to the config node.",
							&interval, 5000, 10, 600000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}
