/*
 * growth_test.c
 *	  Keys that ascend or descend: noticed, and how far ahead they will be; keys in random order: not.
 */
#include "balance/key_growth.h"
#include "tap.h"

#include <math.h>
#include <string.h>

#define KEYS 12

static TesseraKeyGrowth growth;
static uint64_t seed = 1;

static int64_t
random_below(int64_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (int64_t) (seed >> 33) % n;
}

/* Windows, one a second, of keys that grow by so much in a second, in disorder by so much. */
static void
feed(int windows, int64_t from, double speed, int64_t disorder)
{
	int64_t		keys[KEYS];

	memset(&growth, 0, sizeof(growth));
	for (int i = 0; i < windows; i++)
	{
		for (int j = 0; j < KEYS; j++)
			keys[j] = from + (int64_t) (speed * (i + (j + 1) / (double) KEYS)) + (disorder > 0 ? random_below(disorder) : 0);
		tessera_key_growth_add(&growth, i, keys, KEYS);
	}
}

static void
test_speed(void)
{
	int64_t		keys[KEYS] = {0};
	double		speed;

	memset(&growth, 0, sizeof(growth));
	check(tessera_key_growth_speed(&growth, true) == 0, "nothing is known at first");
	feed(2, 0, 1000, 0);
	check(tessera_key_growth_speed(&growth, true) == 0, "two windows are not enough");
	feed(3, 0, 1000, 0);
	speed = tessera_key_growth_speed(&growth, true);
	check(speed > 900 && speed < 1100, "ascending keys");
	check(tessera_key_growth_speed(&growth, false) == 0, "which do not grow at the lower end");
	feed(3, 0, -1000, 0);
	speed = tessera_key_growth_speed(&growth, false);
	check(speed < -900 && speed > -1100 && tessera_key_growth_speed(&growth, true) == 0, "descending keys");
	feed(10, 0, 1000, 2500);
	speed = tessera_key_growth_speed(&growth, true);
	check(speed > 500 && speed < 2000, "several clients, out of order by more than a window");
	feed(200, 5, 1000, 0);
	check(fabs(tessera_key_growth_speed(&growth, true) - 1000) < 100, "only the newest windows are kept");

	/* a night without a row */
	feed(3, 0, 1000, 0);
	for (int i = 0; i < KEYS; i++)
		keys[i] = 4000 + i * 80;
	tessera_key_growth_add(&growth, 30000, keys, KEYS);
	check(tessera_key_growth_speed(&growth, true) > 0, "after a pause they still ascend");
	for (int i = 0; i < KEYS; i++)
		keys[i] = 5000 + i * 80;
	tessera_key_growth_add(&growth, 30001, keys, KEYS);
	check(tessera_key_growth_speed(&growth, true) > 900, "and the speed is that of now");
	keys[0] = INT64_MAX;
	keys[1] = INT64_MIN;
	for (int i = 2; i < KEYS; i++)
		keys[i] = 6000 + i * 80;
	tessera_key_growth_add(&growth, 30002, keys, KEYS);
	speed = tessera_key_growth_speed(&growth, true);
	check(speed > 900 && speed < 1200, "single keys far off do no harm");
}

static void
test_random(void)
{
	int			found = 0;

	for (int i = 0; i < 20000; i++)
	{
		feed(TESSERA_KEY_WINDOWS, 0, 0, 1000000);
		found += tessera_key_growth_speed(&growth, true) != 0 || tessera_key_growth_speed(&growth, false) != 0;
	}
	check(found == 0, "keys in random order do not ascend");
	feed(TESSERA_KEY_WINDOWS, 7, 0, 0);
	check(tessera_key_growth_speed(&growth, true) == 0 && tessera_key_growth_speed(&growth, false) == 0, "nor does one key");
}

static void
test_bound(void)
{
	int64_t		bound = 0;
	double		speed;

	feed(5, 1000, 100, 0);
	speed = tessera_key_growth_speed(&growth, true);
	check(tessera_key_growth_bound(&growth, speed, 10, INT64_MIN, INT64_MAX, &bound) && bound > 2300 && bound < 2700, "ten seconds ahead");
	check(tessera_key_growth_bound(&growth, 1e-9, 10, INT64_MIN, INT64_MAX, &bound) && bound > 1470 && bound < 1500, "one key at least");
	check(!tessera_key_growth_bound(&growth, speed, 10, INT64_MIN, 2000, &bound), "behind the highest key of the type there is nothing");
	check(!tessera_key_growth_bound(&growth, 1e300, 1e9, INT64_MIN, INT64_MAX, &bound), "nor does anything overflow");
	feed(5, INT64_MAX - 1000, 100, 0);
	speed = tessera_key_growth_speed(&growth, true);
	check(!tessera_key_growth_bound(&growth, speed, 1e6, INT64_MIN, INT64_MAX, &bound), "near the end of the type");
	feed(5, INT64_MIN + 1000, -100, 0);
	check(!tessera_key_growth_bound(&growth, -100, 1e6, INT64_MIN, INT64_MAX, &bound), "and near its beginning");
	feed(5, 1000, -100, 0);
	speed = tessera_key_growth_speed(&growth, false);
	check(tessera_key_growth_bound(&growth, speed, 10, INT64_MIN, INT64_MAX, &bound) && bound < -200 && bound > -700, "descending");
	check(!tessera_key_growth_bound(&growth, speed, 10, 0, INT64_MAX, &bound), "not below the lowest");
}

int
main(void)
{
	test_speed();
	test_random();
	test_bound();
	return finish();
}
