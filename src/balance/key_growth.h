/*
 * key_growth.h
 *	  Do the keys that come in at an end of the key space ascend (or descend), how fast, and where will they be soon? Pure: it includes nothing of the
 *	  server, for unit tests.
 *
 * A window is a dozen of writes in a row, as the range of their keys. Keys ascend if a window lies above an older one, and that above a still older
 * one: for keys in random order this does not happen. Keys of several clients need not be in order within a window, nor from one to the next.
 */
#ifndef TESSERA_KEY_GROWTH_H
#define TESSERA_KEY_GROWTH_H

#include <stdbool.h>
#include <stdint.h>

#define TESSERA_KEY_WINDOWS 16

typedef struct TesseraKeyWindow
{
	double		at;				/* s, when it was complete */
	int64_t		low;			/* of its keys, but for one or two outermost ones */
	int64_t		high;
} TesseraKeyWindow;

/* All zero at first. */
typedef struct TesseraKeyGrowth
{
	uint32_t	n;				/* windows so far; the newest are kept */
	TesseraKeyWindow windows[TESSERA_KEY_WINDOWS];
} TesseraKeyGrowth;

/* Adds a window of n keys (n > 0), in any order: they are sorted. at: s, above that of the window before. */
extern void tessera_key_growth_add(TesseraKeyGrowth *growth, double at, int64_t *keys, int n);

/* Keys per second: positive if they ascend, negative if they descend, 0 if neither is known. top: at the upper end, where only ascending counts. */
extern double tessera_key_growth_speed(const TesseraKeyGrowth *growth, bool top);

/*
 * The bound that keys of this speed (not 0) reach in so many seconds from the newest window's outermost key on. False: it is not strictly between
 * least and most, which are the lowest and the highest bound that makes sense.
 */
extern bool tessera_key_growth_bound(const TesseraKeyGrowth *growth, double speed, double seconds, int64_t least, int64_t most, int64_t *bound);

#endif							/* TESSERA_KEY_GROWTH_H */
