/*
 * placement_ranges.c
 *	  Lists of ranges of a placement row; see placement_ranges.h. Pure but for memory.
 */
#include "postgres.h"

#include "catalog/placement_ranges.h"

/* Compares two bounds of the key space. */
static int
compare_bounds(TesseraKeySpace *ks, const TesseraBound *a, const TesseraBound *b)
{
	TesseraKeyBound ka;
	TesseraKeyBound kb;

	tessera_key_from_bound(ks, a, &ka);
	tessera_key_from_bound(ks, b, &kb);
	return tessera_key_compare(ks, &ka, &kb);
}

static bool
meets(TesseraKeySpace *ks, const TesseraRange *a, const TesseraRange *b)
{
	return compare_bounds(ks, a->min, b->max) < 0 && compare_bounds(ks, b->min, a->max) < 0;
}

bool
tessera_ranges_overlap(TesseraKeySpace *ks, int n, const TesseraRange *ranges, const TesseraRange *range)
{
	for (int i = 0; i < n; i++)
		if (meets(ks, &ranges[i], range))
			return true;
	return false;
}

bool
tessera_ranges_cover(TesseraKeySpace *ks, int n, const TesseraRange *ranges, const TesseraRange *range)
{
	int			nleft = 1;
	TesseraRange *left = palloc(sizeof(TesseraRange));

	left[0] = *range;
	for (int i = 0; i < n; i++)
		tessera_ranges_remove(ks, &nleft, &left, &ranges[i]);
	return nleft == 0;
}

void
tessera_ranges_remove(TesseraKeySpace *ks, int *n, TesseraRange **ranges, const TesseraRange *range)
{
	TesseraRange *result = palloc(sizeof(TesseraRange) * (2 * *n + 1));
	int			count = 0;

	for (int i = 0; i < *n; i++)
	{
		TesseraRange *old = &(*ranges)[i];

		if (!meets(ks, old, range))
		{
			result[count++] = *old;
			continue;
		}
		if (compare_bounds(ks, old->min, range->min) < 0)
			result[count++] = (TesseraRange) {.min = old->min, .max = range->min};
		if (compare_bounds(ks, range->max, old->max) < 0)
			result[count++] = (TesseraRange) {.min = range->max, .max = old->max};
	}
	*ranges = result;
	*n = count;
}

static int
compare_mins(const void *a, const void *b, void *ks)
{
	return compare_bounds(ks, ((const TesseraRange *) a)->min, ((const TesseraRange *) b)->min);
}

void
tessera_ranges_add(TesseraKeySpace *ks, int *n, TesseraRange **ranges, const TesseraRange *range)
{
	TesseraRange *result = palloc(sizeof(TesseraRange) * (*n + 1));
	int			joined = 0;

	memcpy(result, *ranges, sizeof(TesseraRange) * *n);
	result[*n] = *range;
	qsort_arg(result, *n + 1, sizeof(TesseraRange), compare_mins, ks);
	for (int i = 1; i <= *n; i++)
	{
		if (compare_bounds(ks, result[i].min, result[joined].max) > 0)
			result[++joined] = result[i];
		else if (compare_bounds(ks, result[i].max, result[joined].max) > 0)
			result[joined].max = result[i].max;
	}
	*ranges = result;
	*n = joined + 1;
}
