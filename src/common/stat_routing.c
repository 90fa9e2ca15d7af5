/*
 * stat_routing.c
 *	  Counters of the node; see stat_routing.h.
 *
 * One set for each database slot, of atomics: no lock. A restart of the server begins at zero; so does the next database in a slot.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "port/atomics.h"
#include "utils/timestamp.h"

#include "common/shmem.h"
#include "common/stat_routing.h"

PG_FUNCTION_INFO_V1(tessera_internal_stat_routing);
PG_FUNCTION_INFO_V1(tessera_stat_routing_reset);

typedef struct Stats
{
	pg_atomic_uint64 counts[TESSERA_STAT_COUNT];
	pg_atomic_uint64 since;		/* TimestampTz */
} Stats;

static Stats *shared = NULL;

static void
reset(int slot)
{
	for (int i = 0; i < TESSERA_STAT_COUNT; i++)
		pg_atomic_write_u64(&shared[slot].counts[i], 0);
	pg_atomic_write_u64(&shared[slot].since, (uint64) GetCurrentTimestamp());
}

static Size
stats_size(void)
{
	return sizeof(Stats) * TESSERA_MAX_DATABASES;
}

static void
stats_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	if (found)
		return;
	for (int slot = 0; slot < TESSERA_MAX_DATABASES; slot++)
	{
		for (int i = 0; i < TESSERA_STAT_COUNT; i++)
			pg_atomic_init_u64(&shared[slot].counts[i], 0);
		pg_atomic_init_u64(&shared[slot].since, (uint64) GetCurrentTimestamp());
	}
}

static const TesseraShmemModule stat_module = {"tessera_stat_routing", stats_size, 0, stats_init, reset};

void
tessera_stat_add(TesseraStat stat, uint64 amount)
{
	int			slot = tessera_database_slot_if_any();

	if (shared != NULL && slot >= 0)
		(void) pg_atomic_fetch_add_u64(&shared[slot].counts[stat], amount);
}

void
tessera_stat_count(TesseraStat stat)
{
	tessera_stat_add(stat, 1);
}

/* internal_stat_routing(): the counters in the order of TesseraStat, then since when; no row if there are none */
Datum
tessera_internal_stat_routing(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	int			slot = tessera_database_slot_if_any();
	Datum		values[TESSERA_STAT_COUNT + 1];
	bool		nulls[TESSERA_STAT_COUNT + 1] = {false};

	InitMaterializedSRF(fcinfo, 0);
	if (shared == NULL || slot < 0)
		return (Datum) 0;
	for (int i = 0; i < TESSERA_STAT_COUNT; i++)
		values[i] = Int64GetDatum((int64) pg_atomic_read_u64(&shared[slot].counts[i]));
	values[TESSERA_STAT_COUNT] = TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&shared[slot].since));
	tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
	return (Datum) 0;
}

Datum
tessera_stat_routing_reset(PG_FUNCTION_ARGS)
{
	int			slot = tessera_database_slot_if_any();

	if (shared != NULL && slot >= 0)
		reset(slot);
	PG_RETURN_VOID();
}

void
tessera_stat_init(void)
{
	tessera_shmem_register(&stat_module);
}
