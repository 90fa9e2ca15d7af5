/*
 * clock.h
 *	  The clock of this node: {cluster, config, topology} of each database, in shared memory, read and changed as one.
 *
 * A commit that writes ticks it, what is heard from other nodes advances it; it never goes back. So that a restart does not set it back either,
 * no time is given out beyond a durable reservation some seconds ahead, from which it goes on (catalog/clock_store.h writes it). In memory it may
 * be ahead of that by what was heard: who has said it keeps it.
 *
 * A standby keeps no clock. Nothing here raises an error.
 */
#ifndef TESSERA_CLOCK_H
#define TESSERA_CLOCK_H

#include "postgres.h"

#include "clock/time_value.h"

/* How far ahead of the newest time the reservation is made; from when on the worker makes another one ahead of need. In s. */
#define TESSERA_RESERVE_AHEAD 10
#define TESSERA_RESERVE_AGAIN 4

/* Setting tessera.max_clock_drift, in s. */
extern int	tessera_max_clock_drift;

/* What commits that write do here: a shard's tick the clock; the config node's tick the config time too, where they change metadata. */
typedef enum TesseraClockRole
{
	TESSERA_CLOCK_STOPPED,		/* it does not go (yet) */
	TESSERA_CLOCK_FOLLOWS,		/* a router: its commits tick nothing */
	TESSERA_CLOCK_TICKS,
	TESSERA_CLOCK_TICKS_CONFIG
} TesseraClockRole;

/* From what is durable; if the clock goes already nothing but the role is taken. */
extern void tessera_clock_start(TesseraClockRole role, TesseraTime reserved, const TesseraTimes *times);
extern TesseraClockRole tessera_clock_role(void);

/* Until it is started again. */
extern void tessera_clock_stop(void);

/* The clock; false, and zeros, if it does not go (yet): this database is no node, this server a standby, or nobody has started it. */
extern bool tessera_clock_read(TesseraTimes *times);

/* The wall clock of this server as a time. */
extern TesseraTime tessera_clock_wall(void);

/*
 * A time later than all that this node has given out or heard. metadata: where this is the config node, it is the config time, too. false: it is not
 * reserved, and nothing has changed; *time says what to reserve.
 */
extern bool tessera_clock_tick(bool metadata, TesseraTime *time);

/* True if it may be given out: it is reserved. */
extern bool tessera_clock_is_reserved(TesseraTime time);

/* The reservation is durable up to here; wakes those who wait for it. */
extern void tessera_clock_reserve(TesseraTime reserved);

/* True if the worker has to make a reservation: of *needed at least. */
extern bool tessera_clock_wants_reservation(TesseraTime *needed);

/* Waits until the time is reserved; false if it is not at the deadline. Interruptible. The caller has woken the worker. */
extern bool tessera_clock_await(TesseraTime time, TimestampTz deadline);

/*
 * Takes in what another node has said; false, and nothing has changed, if it is further ahead of the wall clock here than
 * tessera.max_clock_drift. The cluster time counts at once, the others when the worker has settled them. may_wake: wakes the workers that do
 * that, which may take memory.
 */
extern bool tessera_clock_hear(const TesseraTimes *heard, bool may_wake);

/*
 * Raises the clock to the time, as one that was heard. False: it stays behind, as it does not go, or the time is too far ahead: later commits here
 * may have earlier times.
 */
extern bool tessera_clock_raise(TesseraTime time);

/* What was heard and is not settled: the config time that is to be made durable, the topology time whose registry is to be fetched; 0: nothing. */
extern TesseraTime tessera_clock_config_heard(void);
extern TesseraTime tessera_clock_topology_heard(void);

/* It is durable, or in the registry here: it counts. */
extern void tessera_clock_settle(TesseraTime config, TesseraTime topology);

/* The newest time that this session has heard, or given to a commit of its own; 0: none. */
extern TesseraTime tessera_clock_session(void);

/* True if the time is too far ahead of the wall clock here; *ahead: how many seconds. */
extern bool tessera_clock_is_off(TesseraTime time, double *ahead);

/* From _PG_init. */
extern void tessera_clock_init(void);

#endif							/* TESSERA_CLOCK_H */
