/*
 * load_sample.c
 *	  The ring of samples of a database, and each backend's counters; see load_sample.h.
 *
 * Shared memory: a small entry for each database slot; the ring itself lies in the server's DSA area, made by the splitter when it first collects,
 * and stays, also for the next database in the slot. An LWLock for each slot guards the ring's ends and its content; it is held for the copy of a
 * sample. step and ring are atomics, read without the lock: ring changes once from nothing to something, step at any time.
 *
 * A crash loses what is in the ring: the splitter then measures anew.
 */
#include "postgres.h"

#include <math.h>

#include "common/pg_prng.h"
#include "port/atomics.h"
#include "utils/guc.h"

#include "common/shmem.h"
#include "common/worker_registry.h"
#include "load/load_sample.h"

#define RING 4096				/* samples */

typedef struct Ring
{
	uint64		head;			/* samples put so far */
	uint64		tail;			/* samples taken so far */
	uint64		lost;
	TesseraLoadSample samples[RING];
} Ring;

typedef struct Slot
{
	pg_atomic_uint32 step;		/* bytes per sample; 0: nobody collects */
	pg_atomic_uint64 ring;		/* dsa_pointer */
} Slot;

/* This backend's counters: what is left until the next sample. */
typedef struct Counters
{
	uint32		step;			/* by which they count; 0: they do not yet */
	int			rate;
	double		bytes;
	int			statements;
} Counters;

static Slot *slots = NULL;
static LWLockPadded *locks = NULL;
static Counters counters;
static int	sample_rate = 16;	/* tessera.load_sample_rate */


/* ---- positions ---- */

void
tessera_sample_key_set(TesseraSampleKey *key, TesseraKeySpace *ks, const TesseraKeyBound *position)
{
	Size		values = sizeof(Datum) * ks->nelements;
	TesseraKeyBound flat;

	key->size = 0;
	if (values + tessera_key_flat_size(ks, position) > sizeof(key->words))
		return;
	key->size = (int32) tessera_key_flatten(ks, position, &flat, (char *) key->words, values);
	for (int i = 0; i < ks->nelements; i++)
		key->words[i] = flat.elements[i].value;
}

void
tessera_sample_key_get(const TesseraSampleKey *key, TesseraKeySpace *ks, TesseraKeyBound *position)
{
	TesseraKeyBound flat = {0};

	Assert(key->size > 0);
	for (int i = 0; i < ks->nelements; i++)
	{
		flat.elements[i].kind = TESSERA_VALUE;
		flat.elements[i].value = key->words[i];
	}
	tessera_key_unflatten(ks, &flat, (const char *) key->words, position);
}

bool
tessera_sample_key_equal(const TesseraSampleKey *a, const TesseraSampleKey *b)
{
	return a->size == b->size && memcmp(a->words, b->words, a->size) == 0;
}


/* ---- backends ---- */

static Slot *
my_slot(void)
{
	int			slot = tessera_database_slot_if_any();

	return slots != NULL && slot >= 0 ? &slots[slot] : NULL;
}

/* A backend that ends after a few rows or statements must count, too: it begins somewhere between two samples. */
static void
seed(uint32 step)
{
	counters.step = step;
	counters.rate = sample_rate;
	counters.bytes = pg_prng_double(&pg_global_prng_state) * step;
	counters.statements = 1 + (int) pg_prng_uint64_range(&pg_global_prng_state, 0, sample_rate - 1);
}

bool
tessera_load_sampled(void)
{
	Slot	   *slot;
	uint32		step;

	if (sample_rate == 0)
		return false;
	slot = my_slot();
	step = slot != NULL ? pg_atomic_read_u32(&slot->step) : 0;
	if (step == 0)
		return false;
	if (unlikely(step != counters.step || sample_rate != counters.rate))
		seed(step);
	return true;
}

double
tessera_load_count_bytes(double bytes)
{
	double		steps;

	counters.bytes -= bytes;
	if (counters.bytes > 0)
		return 0;
	steps = 1 + floor(-counters.bytes / counters.step);
	/* the place within the next step is drawn anew, so that no pattern of the rows meets that of the samples */
	counters.bytes += (steps + pg_prng_double(&pg_global_prng_state) - 0.5) * counters.step;
	return steps * counters.step;
}

int
tessera_load_count_statement(void)
{
	if (--counters.statements > 0)
		return 0;
	/* as above: in the mean after so many */
	counters.statements = 1 + (int) pg_prng_uint64_range(&pg_global_prng_state, 0, 2 * (counters.rate - 1));
	return counters.rate;
}

static Ring *
ring_of(Slot *slot)
{
	dsa_pointer pointer = (dsa_pointer) pg_atomic_read_u64(&slot->ring);

	return DsaPointerIsValid(pointer) ? dsa_get_address(tessera_dsa(), pointer) : NULL;
}

static void
put(const TesseraLoadSample *sample)
{
	int			number = tessera_database_slot_if_any();
	Ring	   *ring = number >= 0 ? ring_of(&slots[number]) : NULL;
	bool		half = false;

	if (ring == NULL)
		return;
	LWLockAcquire(&locks[number].lock, LW_EXCLUSIVE);
	if (ring->head - ring->tail == RING)
		ring->lost++;
	else
	{
		ring->samples[ring->head++ % RING] = *sample;
		half = ring->head - ring->tail == RING / 2;
	}
	LWLockRelease(&locks[number].lock);
	if (half)
		(void) tessera_worker_wake(TESSERA_SPLITTER);
}

void
tessera_load_put(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *position, double bytes, double statements,
				 double us)
{
	TesseraLoadSample sample = {.group_id = group->group_id, .epoch = group->epoch, .bytes = bytes, .statements = statements, .us = us, .chunk = -1};

	tessera_sample_key_set(&sample.key, tessera_group_keyspace(routing, group), position);
	if (sample.key.size == 0)
	{
		sample.chunk = tessera_routing_find_chunk(routing, group, position);
		sample.group_major = group->group_major;
		sample.group_minor = group->group_minor;
	}
	put(&sample);
}

void
tessera_load_emptied(const TesseraRouting *routing, const TesseraTable *table)
{
	TesseraLoadSample sample = {.emptied = true, .chunk = -1};

	if (table == NULL || table->group < 0 || !tessera_load_sampled())
		return;
	sample.group_id = tessera_routing_group(routing, table->group)->group_id;
	sample.epoch = tessera_routing_group(routing, table->group)->epoch;
	put(&sample);
}


/* ---- the splitter ---- */

void
tessera_load_collect(int step)
{
	Slot	   *slot = &slots[tessera_database_slot()];

	if (pg_atomic_read_u64(&slot->ring) == 0)
	{
		dsa_pointer pointer = dsa_allocate_extended(tessera_dsa(), sizeof(Ring), DSA_ALLOC_HUGE | DSA_ALLOC_ZERO);

		pg_atomic_write_u64(&slot->ring, (uint64) pointer);
	}
	pg_atomic_write_u32(&slot->step, (uint32) Max(Min(step, TESSERA_LOAD_STEP), 1));
}

void
tessera_load_ignore(void)
{
	Slot	   *slot = my_slot();

	if (slot != NULL)
		pg_atomic_write_u32(&slot->step, 0);
}

int
tessera_load_take(TesseraLoadSample *samples, int n, uint64 *lost)
{
	int			number = tessera_database_slot();
	Ring	   *ring = ring_of(&slots[number]);
	int			taken = 0;

	*lost = 0;
	if (ring == NULL)
		return 0;
	LWLockAcquire(&locks[number].lock, LW_EXCLUSIVE);
	while (taken < n && ring->tail < ring->head)
		samples[taken++] = ring->samples[ring->tail++ % RING];
	*lost = ring->lost;
	ring->lost = 0;
	LWLockRelease(&locks[number].lock);
	return taken;
}


/* ---- set-up ---- */

static Size
shared_size(void)
{
	return sizeof(Slot) * TESSERA_MAX_DATABASES;
}

static void
shared_init(void *memory, LWLockPadded *given, bool found)
{
	slots = memory;
	locks = given;
	for (int i = 0; !found && i < TESSERA_MAX_DATABASES; i++)
	{
		pg_atomic_init_u32(&slots[i].step, 0);
		pg_atomic_init_u64(&slots[i].ring, 0);
	}
}

/* The ring is kept: what is in it is about groups that the next database does not have. Nothing here may ask for the DSA area. */
static void
reset_slot(int slot)
{
	pg_atomic_write_u32(&slots[slot].step, 0);
}

static const TesseraShmemModule module = {"tessera_load", shared_size, TESSERA_MAX_DATABASES, shared_init, reset_slot};

void
tessera_load_sample_init(void)
{
	DefineCustomIntVariable("tessera.load_sample_rate",
							"Of so many statements on a shard, one is timed, so that the load of its key's chunk is known.",
							"0: neither load nor bytes written are tracked; then chunks are split only by what is measured.",
							&sample_rate, 16, 0, 100000, PGC_SIGHUP, 0, NULL, NULL, NULL);
	tessera_shmem_register(&module);
}
