/*
 * time_value_test.c
 *	  Arithmetic of cluster times: what follows what, microseconds there and back, what is too far ahead, the order of the three, their text.
 */
#include "clock/time_value.h"
#include "tap.h"

#include <string.h>

#define SECOND TESSERA_TIME_SECOND

static void
test_next(void)
{
	TesseraTime time = 0;
	TesseraTime wall = 1700000000 * SECOND;

	check(tessera_time_next(wall - 5, wall) == wall, "the wall clock's, if that is later");
	check(tessera_time_next(wall, wall) == wall + 1, "one more, if it is the same");
	check(tessera_time_next(wall + 7, wall) == wall + 8, "one more, if the wall clock is behind");
	for (int i = 0; i < 100000; i++)
	{
		/* a clock that is set back and forth */
		TesseraTime next = tessera_time_next(time, wall + (TesseraTime) (i % 7) * SECOND - (TesseraTime) (i % 11) * SECOND);

		if (next <= time)
			break;
		time = next;
	}
	check(time > wall, "later each time, whatever the wall clock does");
	check(tessera_time_next(time, 0) == time + 1, "and without one");
}

static void
test_us(void)
{
	bool		exact = true;
	bool		ascends = true;
	int64_t		base = INT64_C(1764000000) * 1000000;

	for (int64_t us = 0; us < 1000000; us += 7)
	{
		exact &= tessera_time_to_us(tessera_time_from_us(base + us)) == base + us;
		ascends &= tessera_time_from_us(base + us) < tessera_time_from_us(base + us + 1);
	}
	check(exact, "microseconds, there and back");
	check(ascends, "each has a time of its own");
	check(tessera_time_from_us(base) >> 32 == 1764000000 && (tessera_time_from_us(base) & (SECOND - 1)) == 0, "seconds stand above");
	check(tessera_time_from_us(-1) == 0 && tessera_time_from_us(0) == 0, "nothing before 1970");
	check(tessera_time_from_us(INT64_C(4294967295) * 1000000) >> 32 == UINT64_C(4294967295), "until 2106");
}

static void
test_limits(void)
{
	TesseraTime wall = 1700000000 * SECOND;

	check(!tessera_time_too_far(wall + 60 * SECOND, wall, 60), "as far ahead as may be");
	check(tessera_time_too_far(wall + 60 * SECOND + 1, wall, 60), "and too far");
	check(!tessera_time_too_far(wall - 1000 * SECOND, wall, 60), "what is behind is not ahead");
	check(tessera_time_too_far(UINT64_MAX, wall, 1000000000), "the last of all");
	check(tessera_time_seconds_after(wall + 1, 10) >= wall + 10 * SECOND + 1, "a reservation is ahead");
	check((tessera_time_seconds_after(wall + 1, 10) & (SECOND - 1)) == 0, "a whole second");
	check(tessera_time_seconds_after(wall, 0) > wall, "and later in any case");
}

static void
test_order(void)
{
	TesseraTimes times = {10, 5, 3};
	TesseraTimes heard = {8, 7, 4};

	tessera_times_raise(&times, &heard);
	check(times.cluster == 10 && times.config == 7 && times.topology == 4, "each is raised by itself");
	heard = (TesseraTimes) {0, 0, 20};
	tessera_times_raise(&times, &heard);
	check(times.cluster == 20 && times.config == 20 && times.topology == 20, "the greater ones with the lesser");
	heard = (TesseraTimes) {1, 1, 1};
	check(!tessera_times_newer(&heard, &times), "older ones are not newer");
	tessera_times_raise(&times, &heard);
	check(times.cluster == 20 && times.topology == 20, "none goes back");
	heard = (TesseraTimes) {21, 0, 0};
	check(tessera_times_newer(&heard, &times), "one is enough");
	check(!tessera_times_ordered(&(TesseraTimes) {5, 6, 0}) && !tessera_times_ordered(&(TesseraTimes) {5, 4, 5}), "what is out of order is seen");
}

static void
test_text(void)
{
	static const char *const wrong[] = {"", "1", "1/1", "1/1/1/1", "g/1/1", "1//1", "1/1/", "/1/1", "1/2/1", "2/1/2", "12345678901234567/1/1", "-1/0/0", " 1/0/0"};
	TesseraTimes times = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
	TesseraTimes read;
	char		text[TESSERA_TIMES_SIZE];
	bool		refused = true;

	tessera_times_write(&times, text);
	check(strlen(text) == 50 && tessera_times_read(text, &read) && memcmp(&times, &read, sizeof(times)) == 0, "the longest text");
	times = (TesseraTimes) {UINT64_C(0x123456789abcdef), 16, 0};
	tessera_times_write(&times, text);
	check(strcmp(text, "123456789abcdef/10/0") == 0 && tessera_times_read(text, &read) && memcmp(&times, &read, sizeof(times)) == 0, "another one");
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		refused &= !tessera_times_read(wrong[i], &read);
	check(refused, "what is none is refused");
}

int
main(void)
{
	test_next();
	test_us();
	test_limits();
	test_order();
	test_text();
	return finish();
}
