/*
 * time_value.h
 *	  Cluster times as numbers: the arithmetic, without server state.
 *
 * A time is 64 bits: whole seconds since 1970 above, the fraction of the second in units of 2^-32 s below. So it is a wall clock and a counter in
 * one: the next time is the wall clock's, or, where that is not later, the previous one plus one unit. 0 is no time. Good until 2106.
 */
#ifndef TESSERA_TIME_VALUE_H
#define TESSERA_TIME_VALUE_H

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t TesseraTime;

/* cluster >= config >= topology (doc/design.md#cluster-time). */
typedef struct TesseraTimes
{
	TesseraTime cluster;		/* of the newest commit known */
	TesseraTime config;			/* of the config node's newest commit of metadata known */
	TesseraTime topology;		/* of the newest change of membership that this node's registry has */
} TesseraTimes;

#define TESSERA_TIME_SECOND (UINT64_C(1) << 32)

/* Room for the text of times, with its end. */
#define TESSERA_TIMES_SIZE 52

/* From and to microseconds since 1970; from there and back is exact. What is before 1970 is 0. */
extern TesseraTime tessera_time_from_us(int64_t us);
extern int64_t tessera_time_to_us(TesseraTime time);

/* The time that follows: of the wall clock, but later than the previous one in any case. */
extern TesseraTime tessera_time_next(TesseraTime previous, TesseraTime wall);

/* True if the time is more than so many seconds ahead of the wall clock. */
extern bool tessera_time_too_far(TesseraTime time, TesseraTime wall, uint32_t seconds);

/* A whole second that is at least so many seconds after the time. */
extern TesseraTime tessera_time_seconds_after(TesseraTime time, uint32_t seconds);

/* True if any of the times is later than the other's. */
extern bool tessera_times_newer(const TesseraTimes *times, const TesseraTimes *than);

/* Raises each of the times to what was heard, if that is later, and the greater ones with the lesser. None goes back. */
extern void tessera_times_raise(TesseraTimes *times, const TesseraTimes *heard);

extern bool tessera_times_ordered(const TesseraTimes *times);

/* As text between nodes: "cluster/config/topology", hexadecimal. Read returns false if it is none, or not in order. */
extern void tessera_times_write(const TesseraTimes *times, char text[TESSERA_TIMES_SIZE]);
extern bool tessera_times_read(const char *text, TesseraTimes *times);

#endif							/* TESSERA_TIME_VALUE_H */
