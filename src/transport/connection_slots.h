/*
 * connection_slots.h
 *	  How many connections this server's backends have to each node, and the caps on them (doc/design.md#connection-cap).
 *
 * A backend takes a slot before it opens a connection and returns it when that is closed. Of the transaction lane, beyond
 * tessera.max_connections_per_shard, it waits in a queue; who has a connection that it does not use gives it up for the first in the queue. On all
 * lanes, beyond tessera.max_connections_per_user of one role, it is refused.
 */
#ifndef TESSERA_CONNECTION_SLOTS_H
#define TESSERA_CONNECTION_SLOTS_H

#include "postgres.h"
#include "datatype/timestamp.h"

/* A connection's place in shared memory; zeroed: none. Only the process that holds it has it. */
typedef struct TesseraSlot
{
	int			node;			/* number of the node's counters, from 1; 0: none */
	int			number;			/* of the slot, from 1; 0: it is counted, but there was no room to note whose it is */
	bool		beside;			/* not of the transaction lane */
	TimestampTz since;			/* taken */
} TesseraSlot;

/*
 * Whether the transaction at hand has what others may wait for: then it waits for a slot a short time only. And whether a process of this server
 * waits for a lock that this one holds. Set once, by transaction/. They raise nothing but for want of memory.
 */
extern bool (*tessera_slot_holder) (void);
extern bool (*tessera_slot_blocks_others) (void);

/*
 * Takes a slot for a connection to the node, in `slot`, which has none. ERROR 53300 if the session user has as many as each may have there. Of the
 * transaction's lane: waits while the cap is reached, interruptibly, until timeout_ms at most (< 0: tessera.connection_wait_timeout alone decides);
 * ERROR 53300 then. Processes that serve no client are neither refused nor wait.
 */
extern void tessera_slot_take(TesseraSlot *slot, int32 node_id, const char *name, long timeout_ms, bool of_transaction);

/* Gives it back, to the first that waits for one, if the cap leaves it room. Raises nothing; does nothing if there is none. */
extern void tessera_slot_return(TesseraSlot *slot);

/* The connection is used by the transaction at hand; or by none since then. They cost one write each. */
extern void tessera_slot_busy(const TesseraSlot *slot);
extern void tessera_slot_idle(const TesseraSlot *slot, TimestampTz since);

/* True if anybody on this server waits for a slot: one read. */
extern bool tessera_slots_awaited(void);

/* True if the connection, which is idle, is to be given up: others wait, and it has been held for long enough, or the cap was lowered. */
extern bool tessera_slot_is_awaited(const TesseraSlot *slot);

/*
 * An attempt to connect to the node has succeeded, or failed: since when no attempt succeeds is what tessera.shards shows as silent_since. For
 * moments: an LWLock. Raises nothing.
 */
extern void tessera_node_reached(int32 node_id, bool reached);

/*
 * Whether one who does not need the node yet may ask it: not if it has kept another waiting lately, nor if a connection, that it does not have
 * (connected), would have to be waited for. After a while one may, to see whether the node answers again. For moments: an LWLock.
 */
extern bool tessera_node_is_at_hand(int32 node_id, bool connected);

/* It has kept one waiting lately who did not need it yet, and has answered nobody of that kind since. For moments: an LWLock. Raises nothing. */
extern bool tessera_node_keeps_waiting(int32 node_id);

/* It has kept one waiting who did not need it yet, or has answered such a one. For moments: an LWLock. Raise nothing. */
extern void tessera_node_kept_waiting(int32 node_id);
extern void tessera_node_is_back(int32 node_id);

/* Exit step: leaves the queue, and passes on what it was granted. */
extern void tessera_slots_leave(int code, Datum arg);

extern void tessera_slots_init(void);	/* from _PG_init: settings, shared memory */

#endif							/* TESSERA_CONNECTION_SLOTS_H */
