/*
 * column_merge.c
 *	  Merges the statistics of a column's parts on the shards; see column_merge.h.
 *
 * Shares of nulls and widths are weighted by rows. Distinct values: the sum where no value is on two shards, or where ranges of values do not meet;
 * else each part is taken for a sample of one set of values, whose size follows from how many of them a part of so many rows has seen. Most common
 * values: one list, by rows. Histograms: the bounds of all, each with the rows of its bucket, cut into buckets of equal rows again. The order of the
 * rows in the heap (correlation) means nothing over shards. What is left (elements of arrays, lengths of ranges) is that of the largest part.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_statistic.h"
#include "fmgr.h"
#include "port.h"
#include "utils/typcache.h"

#include "statistics/column_merge.h"

/* Above this share of the rows a number of distinct values counts as growing with them, as in core's ANALYZE. */
#define SCALES 0.1
/* A part in which so many of the rows differ tells nothing of the size of the set of values. */
#define ALL_DIFFER 0.95

typedef struct Point
{
	Datum		value;
	double		weight;			/* rows */
} Point;

typedef struct Order
{
	FmgrInfo   *compare;
	Oid			collation;
} Order;

typedef struct Merge
{
	const TesseraColumnPart *parts;
	int			n;
	bool		disjoint;
	double		tuples;
	double		nonnull;
	Order		order;
	int			target;			/* longest list or histogram of a part */
	Point	   *common;			/* merged list, the heaviest first; behind them what has no room */
	int			ncommon;
	Point	   *by_value;		/* the same ncommon by value */
	TesseraColumnStatistics *result;
} Merge;

static const TesseraStatisticsSlot *
slot_of(const TesseraColumnPart *part, int kind)
{
	for (int i = 0; i < part->statistics->nslots; i++)
		if (part->statistics->slots[i].kind == kind)
			return &part->statistics->slots[i];
	return NULL;
}

static int
compare_values(const Order *order, Datum a, Datum b)
{
	return DatumGetInt32(FunctionCall2Coll(order->compare, order->collation, a, b));
}

static int
compare_points(const void *a, const void *b, void *order)
{
	return compare_values(order, ((const Point *) a)->value, ((const Point *) b)->value);
}

static int
compare_weights(const void *a, const void *b)
{
	double		x = ((const Point *) a)->weight;
	double		y = ((const Point *) b)->weight;

	return x < y ? 1 : x > y ? -1 : 0;
}

static double
distinct_of(const TesseraColumnPart *part)
{
	float4		distinct = part->statistics->distinct;

	return distinct < 0 ? -distinct * part->tuples : distinct;
}

static double
nonnull_of(const TesseraColumnPart *part)
{
	return part->tuples * (1.0 - part->statistics->nullfrac);
}


/* Distinct values */

/*
 * Size of the set from which so many rows have drawn so many different values: U with U * (1 - exp(-rows / U)) = distinct. Infinite: no bound can be
 * seen.
 */
static double
set_size(double rows, double distinct)
{
	double		low = distinct;
	double		high = distinct;

	if (distinct >= rows * ALL_DIFFER)
		return HUGE_VAL;
	while (high * (1 - exp(-rows / high)) < distinct && high < 1e15)
		high *= 2;
	for (int i = 0; i < 60; i++)
	{
		double		middle = (low + high) / 2;

		if (middle * (1 - exp(-rows / middle)) < distinct)
			low = middle;
		else
			high = middle;
	}
	return high;
}

/* The lowest and highest value of a part, as far as its statistics say. */
static bool
range_of(const Merge *merge, const TesseraColumnPart *part, Datum *min, Datum *max)
{
	static const int kinds[] = {STATISTIC_KIND_MCV, STATISTIC_KIND_HISTOGRAM};
	bool		found = false;

	for (int k = 0; k < lengthof(kinds); k++)
	{
		const TesseraStatisticsSlot *slot = slot_of(part, kinds[k]);

		for (int i = 0; slot != NULL && i < slot->nvalues; i++)
		{
			if (!found || compare_values(&merge->order, slot->values[i], *min) < 0)
				*min = slot->values[i];
			if (!found || compare_values(&merge->order, slot->values[i], *max) > 0)
				*max = slot->values[i];
			found = true;
		}
	}
	return found;
}

/* True if the parts' ranges of values do not overlap. */
static bool
ranges_apart(const Merge *merge)
{
	Datum	   *min = palloc(sizeof(Datum) * merge->n);
	Datum	   *max = palloc(sizeof(Datum) * merge->n);

	for (int i = 0; i < merge->n; i++)
	{
		if (!range_of(merge, &merge->parts[i], &min[i], &max[i]))
			return false;
		for (int j = 0; j < i; j++)
			if (compare_values(&merge->order, max[i], min[j]) >= 0 && compare_values(&merge->order, max[j], min[i]) >= 0)
				return false;
	}
	return true;
}

static double
merged_distinct(const Merge *merge)
{
	double		sum = 0;
	double		most = 0;
	double		set = 0;

	for (int i = 0; i < merge->n; i++)
	{
		double		distinct = distinct_of(&merge->parts[i]);

		if (distinct <= 0)
			return 0;			/* not known of one, not known of all */
		sum += distinct;
		most = Max(most, distinct);
	}
	if (merge->disjoint)
		return sum;
	for (int i = 0; i < merge->n; i++)
	{
		double		rows = nonnull_of(&merge->parts[i]);

		if (rows > 0)
			set += set_size(rows, distinct_of(&merge->parts[i])) * rows / merge->nonnull;
	}
	if (isinf(set))
		return sum;
	return Min(Max(set * (1 - exp(-merge->nonnull / Max(set, 1))), most), sum);
}


/* Most common values */

/* Rows that a value which is not in a part's list may have there. */
static double
rows_unlisted(const Merge *merge, const TesseraColumnPart *part)
{
	const TesseraStatisticsSlot *slot = slot_of(part, STATISTIC_KIND_MCV);
	double		rest = nonnull_of(part);
	double		distinct = distinct_of(part) - (slot ? slot->nvalues : 0);

	if (merge->disjoint || distinct < 1)
		return 0;
	for (int i = 0; slot != NULL && i < slot->nnumbers; i++)
		rest -= slot->numbers[i] * part->tuples;
	rest = Max(rest, 0) / distinct;
	if (slot != NULL && slot->nnumbers > 0)
		rest = Min(rest, slot->numbers[slot->nnumbers - 1] * part->tuples);
	return rest;
}

/* All listed values, each once, by value; what parts that do not list it may have of it is added. */
static int
list_common(const Merge *merge, Point *points)
{
	int			n = 0;
	int			kept = 0;
	double		unlisted = 0;

	for (int i = 0; i < merge->n; i++)
	{
		const TesseraStatisticsSlot *slot = slot_of(&merge->parts[i], STATISTIC_KIND_MCV);
		double		here = rows_unlisted(merge, &merge->parts[i]);

		unlisted += here;
		for (int j = 0; slot != NULL && j < slot->nvalues && j < slot->nnumbers; j++)
		{
			points[n].value = slot->values[j];
			points[n++].weight = slot->numbers[j] * merge->parts[i].tuples - here;
		}
	}
	qsort_arg(points, n, sizeof(Point), compare_points, unconstify(Order *, &merge->order));
	for (int i = 0; i < n; i++)
	{
		if (kept > 0 && compare_values(&merge->order, points[kept - 1].value, points[i].value) == 0)
			points[kept - 1].weight += points[i].weight;
		else
			points[kept++] = points[i];
	}
	for (int i = 0; i < kept; i++)
		points[i].weight = Max(points[i].weight + unlisted, 0);
	return kept;
}

/* Makes the list of the heaviest; returns how many lighter ones there are. */
static int
merge_common(Merge *merge, Oid op, Oid collation, Oid type)
{
	TesseraStatisticsSlot *slot;
	int			total = 0;
	int			n;

	for (int i = 0; i < merge->n; i++)
	{
		const TesseraStatisticsSlot *part = slot_of(&merge->parts[i], STATISTIC_KIND_MCV);

		total += part ? part->nvalues : 0;
	}
	if (total == 0)
		return 0;
	merge->common = palloc(sizeof(Point) * total);
	n = list_common(merge, merge->common);
	qsort(merge->common, n, sizeof(Point), compare_weights);
	merge->ncommon = Min(n, merge->target);
	merge->by_value = palloc(sizeof(Point) * merge->ncommon);
	memcpy(merge->by_value, merge->common, sizeof(Point) * merge->ncommon);
	qsort_arg(merge->by_value, merge->ncommon, sizeof(Point), compare_points, &merge->order);

	slot = &merge->result->slots[merge->result->nslots++];
	memset(slot, 0, sizeof(*slot));
	slot->kind = STATISTIC_KIND_MCV;
	slot->op = op;
	slot->collation = collation;
	slot->type = type;
	slot->nvalues = slot->nnumbers = merge->ncommon;
	slot->values = palloc(sizeof(Datum) * merge->ncommon);
	slot->numbers = palloc(sizeof(float4) * merge->ncommon);
	for (int i = 0; i < merge->ncommon; i++)
	{
		slot->values[i] = merge->common[i].value;
		slot->numbers[i] = (float4) Min(merge->common[i].weight / merge->tuples, 1.0);
	}
	return n - merge->ncommon;
}


/* Histograms */

static bool
is_common(const Merge *merge, Datum value)
{
	Point		wanted = {.value = value};

	return merge->ncommon > 0 &&
		bsearch_arg(&wanted, merge->by_value, merge->ncommon, sizeof(Point), compare_points, unconstify(Order *, &merge->order)) != NULL;
}

/* Bounds of all parts with the rows between them and the bound before, and the values that fell out of the list of common ones. */
static int
histogram_points(const Merge *merge, int nlighter, Point *points)
{
	int			n = 0;

	for (int i = 0; i < merge->n; i++)
	{
		const TesseraStatisticsSlot *slot = slot_of(&merge->parts[i], STATISTIC_KIND_HISTOGRAM);
		const TesseraStatisticsSlot *common = slot_of(&merge->parts[i], STATISTIC_KIND_MCV);
		double		rows = nonnull_of(&merge->parts[i]);

		if (slot == NULL || slot->nvalues < 2)
			continue;
		for (int j = 0; common != NULL && j < common->nnumbers; j++)
			rows -= common->numbers[j] * merge->parts[i].tuples;
		for (int j = 0; j < slot->nvalues; j++)
		{
			if (is_common(merge, slot->values[j]))
				continue;
			points[n].value = slot->values[j];
			points[n++].weight = j == 0 ? 0 : Max(rows, 0) / (slot->nvalues - 1);
		}
	}
	for (int i = 0; i < nlighter; i++)
		points[n++] = merge->common[merge->ncommon + i];
	qsort_arg(points, n, sizeof(Point), compare_points, unconstify(Order *, &merge->order));
	return n;
}

/* Bounds of buckets with equal rows: the first point, then each at which another share of the rows is full. */
static int
equal_buckets(const Merge *merge, const Point *points, int n, Datum *bounds, int nbuckets)
{
	double		total = 0;
	double		passed = 0;
	int			nbounds = 0;

	for (int i = 0; i < n; i++)
		total += points[i].weight;
	for (int i = 0; i < n; i++)
	{
		passed += points[i].weight;
		if (i == 0 || i == n - 1 || (total > 0 && nbounds < nbuckets && passed >= total * nbounds / nbuckets))
		{
			if (nbounds > 0 && compare_values(&merge->order, bounds[nbounds - 1], points[i].value) == 0)
				continue;
			bounds[nbounds++] = points[i].value;
		}
	}
	return nbounds;
}

static void
merge_histogram(Merge *merge, int nlighter, Oid op, Oid collation, Oid type)
{
	TesseraStatisticsSlot *slot;
	int			total = nlighter;
	int			most = 2;
	Point	   *points;
	Datum	   *bounds;
	int			n;

	for (int i = 0; i < merge->n; i++)
	{
		const TesseraStatisticsSlot *part = slot_of(&merge->parts[i], STATISTIC_KIND_HISTOGRAM);

		total += part ? part->nvalues : 0;
		most = Max(most, part ? part->nvalues : 0);
	}
	most = Max(most, Min(nlighter, merge->target));
	if (total < 2)
		return;
	points = palloc(sizeof(Point) * total);
	bounds = palloc(sizeof(Datum) * (most + 1));
	n = histogram_points(merge, nlighter, points);
	n = n < 2 ? 0 : equal_buckets(merge, points, n, bounds, most - 1);
	if (n < 2)
		return;
	slot = &merge->result->slots[merge->result->nslots++];
	memset(slot, 0, sizeof(*slot));
	slot->kind = STATISTIC_KIND_HISTOGRAM;
	slot->op = op;
	slot->collation = collation;
	slot->type = type;
	slot->values = bounds;
	slot->nvalues = n;
}


/* All of it */

/* The comparison of the values; false: the parts have no lists, or lists of different kinds. */
static bool
find_order(Merge *merge, Oid *collation, Oid *type)
{
	static const int kinds[] = {STATISTIC_KIND_MCV, STATISTIC_KIND_HISTOGRAM};
	TypeCacheEntry *entry;

	*type = InvalidOid;
	for (int i = 0; i < merge->n; i++)
		for (int k = 0; k < lengthof(kinds); k++)
		{
			const TesseraStatisticsSlot *slot = slot_of(&merge->parts[i], kinds[k]);

			if (slot == NULL || slot->nvalues == 0)
				continue;
			if (OidIsValid(*type) && (*type != slot->type || *collation != slot->collation))
				return false;
			*type = slot->type;
			*collation = slot->collation;
			merge->target = Max(merge->target, slot->nvalues);
		}
	if (!OidIsValid(*type))
		return false;
	entry = lookup_type_cache(*type, TYPECACHE_CMP_PROC_FINFO | TYPECACHE_EQ_OPR | TYPECACHE_LT_OPR);
	if (!OidIsValid(entry->cmp_proc) || !OidIsValid(entry->eq_opr) || !OidIsValid(entry->lt_opr))
		return false;
	merge->order.compare = &entry->cmp_proc_finfo;
	merge->order.collation = *collation;
	return true;
}

static const TesseraColumnPart *
largest(const Merge *merge)
{
	const TesseraColumnPart *found = &merge->parts[0];

	for (int i = 1; i < merge->n; i++)
		if (merge->parts[i].tuples > found->tuples)
			found = &merge->parts[i];
	return found;
}

static void
take_others(Merge *merge)
{
	const TesseraColumnStatistics *from = largest(merge)->statistics;

	for (int i = 0; i < from->nslots; i++)
		if (from->slots[i].kind > STATISTIC_KIND_CORRELATION && merge->result->nslots < STATISTIC_NUM_SLOTS)
			merge->result->slots[merge->result->nslots++] = from->slots[i];
}

static void
merge_lists(Merge *merge)
{
	Oid			collation = InvalidOid;
	Oid			type;
	TypeCacheEntry *entry;
	int			nlighter;

	if (!find_order(merge, &collation, &type))
	{
		merge->order.compare = NULL;
		return;
	}
	entry = lookup_type_cache(type, TYPECACHE_EQ_OPR | TYPECACHE_LT_OPR);
	merge->disjoint |= ranges_apart(merge);
	nlighter = merge_common(merge, entry->eq_opr, collation, type);
	merge_histogram(merge, nlighter, entry->lt_opr, collation, type);
}

TesseraColumnStatistics *
tessera_merge_statistics(const TesseraColumnPart *parts, int n, bool disjoint)
{
	TesseraColumnStatistics *result = palloc0(sizeof(TesseraColumnStatistics));
	Merge		merge = {.parts = parts, .n = n, .disjoint = disjoint, .result = result};
	double		width = 0;
	double		distinct;

	*result = *parts[0].statistics;
	if (n == 1)
		return result;
	result->nslots = 0;
	for (int i = 0; i < n; i++)
	{
		merge.tuples += parts[i].tuples;
		merge.nonnull += nonnull_of(&parts[i]);
		width += parts[i].statistics->width * nonnull_of(&parts[i]);
	}
	result->nullfrac = (float4) (1.0 - Min(merge.nonnull / merge.tuples, 1.0));
	if (merge.nonnull > 0)
		result->width = (int32) rint(width / merge.nonnull);
	merge_lists(&merge);
	distinct = merged_distinct(&merge);
	result->distinct = (float4) (distinct > merge.tuples * SCALES ? -Min(distinct / merge.tuples, 1.0) : rint(distinct));
	take_others(&merge);
	return result;
}
