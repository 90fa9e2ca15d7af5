/*
 * key_growth.c
 *	  Speed of keys that ascend or descend; see key_growth.h.
 */
#include "balance/key_growth.h"

#include <stdlib.h>

/* Of the keys of a window, so large a part may lie far off on each side. */
#define OUTLIERS 8

/* Speed is that of so many seconds, if there are windows as old as that. */
#define LONGEST_S 30.0

static int
compare_keys(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return x < y ? -1 : x > y ? 1 : 0;
}

/* The newest window is number 0; NULL: so many are not kept. */
static const TesseraKeyWindow *
window(const TesseraKeyGrowth *growth, uint32_t age)
{
	return age < growth->n && age < TESSERA_KEY_WINDOWS ? &growth->windows[(growth->n - 1 - age) % TESSERA_KEY_WINDOWS] : NULL;
}

void
tessera_key_growth_add(TesseraKeyGrowth *growth, double at, int64_t *keys, int n)
{
	int			beyond = (n + OUTLIERS - 1) / OUTLIERS;

	if (2 * beyond >= n)
		beyond = 0;
	qsort(keys, n, sizeof(int64_t), compare_keys);
	growth->windows[growth->n++ % TESSERA_KEY_WINDOWS] = (TesseraKeyWindow) {.at = at,.low = keys[beyond],.high = keys[n - 1 - beyond]};
}

/* Whether all of a window lies behind all of an older one, in the direction of growth. */
static bool
is_ahead(const TesseraKeyWindow *newer, const TesseraKeyWindow *older, bool top)
{
	return newer->at > older->at && (top ? newer->low > older->high : newer->high < older->low);
}

static double
speed_between(const TesseraKeyWindow *newer, const TesseraKeyWindow *older, bool top)
{
	/* differences of whole numbers: doubles of keys near the end of the type are all the same */
	double		keys = top ? (double) ((uint64_t) newer->high - (uint64_t) older->high) : -(double) ((uint64_t) older->low - (uint64_t) newer->low);

	return keys / (newer->at - older->at);
}

/* The newest window that lies behind the one of this age; -1: none. */
static int
find_older(const TesseraKeyGrowth *growth, int age, bool top)
{
	const TesseraKeyWindow *newer = window(growth, age);
	const TesseraKeyWindow *older;

	for (int i = age + 1; (older = window(growth, i)) != NULL; i++)
		if (is_ahead(newer, older, top))
			return i;
	return -1;
}

double
tessera_key_growth_speed(const TesseraKeyGrowth *growth, bool top)
{
	int			second = growth->n > 0 ? find_older(growth, 0, top) : -1;
	int			third = second > 0 ? find_older(growth, second, top) : -1;
	int			base = second;
	const TesseraKeyWindow *older;

	if (third < 0)
		return 0;
	/* the longer, the less does it matter in which order keys come; but not over a pause */
	for (int i = second + 1; (older = window(growth, i)) != NULL && window(growth, 0)->at - older->at <= LONGEST_S; i++)
		if (is_ahead(window(growth, 0), older, top))
			base = i;
	return speed_between(window(growth, 0), window(growth, base), top);
}

bool
tessera_key_growth_bound(const TesseraKeyGrowth *growth, double speed, double seconds, int64_t least, int64_t most, int64_t *bound)
{
	const TesseraKeyWindow *newest = window(growth, 0);
	double		far = speed * seconds;
	/* one key ahead at least, and no more than the type holds: in doubles, which do not overflow */
	double		step = speed > 0 ? (far < 1 ? 1 : far) : (far > -1 ? -1 : far);
	int64_t		from = speed > 0 ? newest->high : newest->low;

	if (speed > 0 ? from >= most || step >= (double) ((uint64_t) most - (uint64_t) from) - 1 :
		from <= least || -step >= (double) ((uint64_t) from - (uint64_t) least) - 1)
		return false;
	*bound = from + (int64_t) step;
	return *bound > least && *bound < most;
}
