/*
 * time_value.c
 *	  Arithmetic of cluster times; see time_value.h. Plain C: the unit test compiles it alone.
 */
#include "clock/time_value.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define US_PER_SECOND INT64_C(1000000)

static TesseraTime
later(TesseraTime a, TesseraTime b)
{
	return a > b ? a : b;
}

TesseraTime
tessera_time_from_us(int64_t us)
{
	if (us <= 0)
		return 0;
	return ((uint64_t) (us / US_PER_SECOND) << 32) + ((uint64_t) (us % US_PER_SECOND) << 32) / US_PER_SECOND;
}

int64_t
tessera_time_to_us(TesseraTime time)
{
	uint64_t	fraction = time & (TESSERA_TIME_SECOND - 1);

	/* rounded up, as the way there rounds down */
	return (int64_t) (time >> 32) * US_PER_SECOND + (int64_t) ((fraction * US_PER_SECOND + (TESSERA_TIME_SECOND - 1)) >> 32);
}

TesseraTime
tessera_time_next(TesseraTime previous, TesseraTime wall)
{
	return later(previous + 1, wall);
}

bool
tessera_time_too_far(TesseraTime time, TesseraTime wall, uint32_t seconds)
{
	return time > wall && time - wall > (uint64_t) seconds << 32;
}

TesseraTime
tessera_time_seconds_after(TesseraTime time, uint32_t seconds)
{
	return ((time >> 32) + seconds + 1) << 32;
}

void
tessera_times_raise(TesseraTimes *times, const TesseraTimes *heard)
{
	times->topology = later(times->topology, heard->topology);
	times->config = later(later(times->config, heard->config), times->topology);
	times->cluster = later(later(times->cluster, heard->cluster), times->config);
}

bool
tessera_times_ordered(const TesseraTimes *times)
{
	return times->cluster >= times->config && times->config >= times->topology;
}

bool
tessera_times_newer(const TesseraTimes *times, const TesseraTimes *than)
{
	return times->cluster > than->cluster || times->config > than->config || times->topology > than->topology;
}

void
tessera_times_write(const TesseraTimes *times, char text[TESSERA_TIMES_SIZE])
{
	snprintf(text, TESSERA_TIMES_SIZE, "%" PRIx64 "/%" PRIx64 "/%" PRIx64, times->cluster, times->config, times->topology);
}

/* One number of 1 to 16 digits; NULL if there is none, else what follows it. */
static const char *
read_hex(const char *text, TesseraTime *value)
{
	static const char hex[] = "0123456789abcdef";

	*value = 0;
	for (int digits = 0;; text++, digits++)
	{
		const char *digit = *text != '\0' ? strchr(hex, *text) : NULL;

		if (digit == NULL)
			return digits > 0 ? text : NULL;
		if (digits == 16)
			return NULL;
		*value = *value << 4 | (TesseraTime) (digit - hex);
	}
}

bool
tessera_times_read(const char *text, TesseraTimes *times)
{
	TesseraTime *values[] = {&times->cluster, &times->config, &times->topology};
	int			n = 0;

	memset(times, 0, sizeof(TesseraTimes));
	for (;;)
	{
		text = read_hex(text, values[n++]);
		if (text == NULL)
			return false;
		if (*text == '\0')
			return n == 3 && tessera_times_ordered(times);
		if (*text++ != '/' || n == 3)
			return false;
	}
}
