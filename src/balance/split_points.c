/*
 * split_points.c
 *	  Sampling keys and choosing split points (S87, S89, S90). See split_points.h.
 *
 * A sample owns copies of the keys that it keeps, in the context in which it was made; dropping a key frees its copy.
 */
#include "postgres.h"

#include "utils/datum.h"

#include "catalog/key.h"
#include "balance/split_points.h"

/* A copy of a key, values plain (not compressed, not stored elsewhere). */
static void
copy_key(TesseraKeySample *sample, const TesseraKeyBound *key, TesseraKeyBound *copy)
{
	MemoryContext old = MemoryContextSwitchTo(sample->context);

	for (int i = 0; i < sample->ks->nelements; i++)
	{
		TesseraKeyColumn *column = TESSERA_KEY_ELEMENT_COLUMN(sample->ks, i);
		Datum		value = key->elements[i].value;

		copy->elements[i].kind = TESSERA_VALUE;
		if (column->typlen == -1)
			copy->elements[i].value = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
		else
			copy->elements[i].value = datumCopy(value, column->typbyval, column->typlen);
	}
	MemoryContextSwitchTo(old);
}

static void
free_key(TesseraKeySample *sample, TesseraKeyBound *key)
{
	for (int i = 0; i < sample->ks->nelements; i++)
		if (!TESSERA_KEY_ELEMENT_COLUMN(sample->ks, i)->typbyval)
			pfree(DatumGetPointer(key->elements[i].value));
}

/* Keeps every second of the kept keys, the first included. */
static void
thin_out(TesseraKeySample *sample)
{
	int			kept = 0;

	for (int i = 0; i < sample->n; i++)
	{
		if (i % 2 == 0)
			sample->keys[kept++] = sample->keys[i];
		else
			free_key(sample, &sample->keys[i]);
	}
	sample->n = kept;
	sample->every *= 2;
}

TesseraKeySample *
tessera_key_sample_create(TesseraKeySpace *ks, int capacity)
{
	TesseraKeySample *sample = palloc0(sizeof(TesseraKeySample));

	Assert(capacity >= 2 && capacity % 2 == 0);
	sample->ks = ks;
	sample->context = CurrentMemoryContext;
	sample->capacity = capacity;
	sample->every = 1;
	sample->keys = palloc(sizeof(TesseraKeyBound) * (capacity + 1));
	return sample;
}

void
tessera_key_sample_add(TesseraKeySample *sample, const TesseraKeyBound *key)
{
	if (sample->has_last)
	{
		free_key(sample, &sample->last);
		sample->has_last = false;
	}
	if (sample->seen % sample->every == 0 && sample->n == sample->capacity)
		thin_out(sample);
	if (sample->seen % sample->every == 0)
		copy_key(sample, key, &sample->keys[sample->n++]);
	else
	{
		copy_key(sample, key, &sample->last);
		sample->has_last = true;
	}
	sample->seen++;
}

static int
compare_keys(const void *a, const void *b, void *ks)
{
	return tessera_key_compare(ks, a, b);
}

void
tessera_key_sample_finish(TesseraKeySample *sample)
{
	if (sample->has_last)
	{
		sample->keys[sample->n++] = sample->last;
		sample->has_last = false;
	}
	qsort_arg(sample->keys, sample->n, sizeof(TesseraKeyBound), compare_keys, sample->ks);
}

void
tessera_key_sample_free(TesseraKeySample *sample)
{
	for (int i = 0; i < sample->n; i++)
		free_key(sample, &sample->keys[i]);
	pfree(sample->keys);
	pfree(sample);
}

int
tessera_split_points(TesseraKeySpace *ks, const TesseraKeyBound *keys, int n, int pieces, TesseraKeyBound *points)
{
	int			found = 0;

	for (int i = 1; i < pieces && n > 0; i++)
	{
		const TesseraKeyBound *below = found > 0 ? &points[found - 1] : &keys[0];
		int			at = (int) ((int64) i * n / pieces);

		/* rows with equal keys stay together: the next higher key, if this one is taken */
		while (at < n && tessera_key_compare(ks, &keys[at], below) <= 0)
			at++;
		if (at == n)
			break;
		points[found++] = keys[at];
	}
	return found;
}

void
tessera_split_points_of_hash(int n, TesseraKeyBound *points)
{
	/* 2^64 = n * step + rest; the first `rest` chunks are one larger */
	uint64		step = PG_UINT64_MAX / n;
	uint64		rest = PG_UINT64_MAX % n + 1;
	uint64		at = 0;

	if (rest == n)
	{
		step++;
		rest = 0;
	}
	for (int i = 0; i < n - 1; i++)
	{
		at += step + (i < rest ? 1 : 0);
		points[i].elements[0].kind = TESSERA_VALUE;
		points[i].elements[0].value = Int64GetDatum((int64) (at ^ (UINT64CONST(1) << 63)));
	}
}
