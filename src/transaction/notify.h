/*
 * notify.h
 *	  NOTIFY in a cluster: listeners on all nodes get it, after the commit, in the order of each sender.
 *
 * A notification is the server's own on the node of the session that sends it. In the same transaction it is queued once more, wrapped, on a channel
 * of the extension's; what comes out there, in the order of commits, the forwarder of the node (notify_forward.c) passes to the other nodes. A
 * trigger or function on a shard does not notify there: the router is told, and its session is the sender.
 */
#ifndef TESSERA_NOTIFY_H
#define TESSERA_NOTIFY_H

#include "postgres.h"

#include "common/utility_statement.h"

/* The extension's own channel: users cannot use it. */
#define TESSERA_NOTIFY_CHANNEL "tessera_notifications"

/*
 * To be called before a NOTIFY runs here. Returns false if it runs on a shard for another node: the router was told, and nothing is to be queued
 * here. ERROR 42939 for the extension's own channel.
 */
extern bool tessera_notify_begins(const char *channel, const char *payload);

/* To be called after it has run here: queues it for the other nodes. */
extern void tessera_notify_ran(const char *channel, const char *payload);

/* ERROR 42939 for LISTEN on the extension's own channel, except by the forwarder itself. */
extern void tessera_listen_check(const TesseraUtility *utility);

/* True if this transaction has sent notifications, as far as is known. */
extern bool tessera_notified(void);

/* True if the server's queue of notifications is so full that the local commit may fail. */
extern bool tessera_notify_queue_fills(void);

/*
 * Holds off interrupts to the end of the transaction: another node has committed, and the local commit, which sends the notifications, must not fail.
 */
extern void tessera_notify_no_interrupts(void);

/* Steps: the commit lets interrupts in again; the end forgets what was noted of the transaction. Never raise. */
extern void tessera_notify_committed(void);
extern void tessera_notify_forget(void);

extern void tessera_notify_init(void);	/* from _PG_init: what takes notifications of other nodes */

/* ---- wrapped notifications ---- */

/* Result of unwrapping a text from the channel. Strings point into that text, or are palloc'd. */
typedef enum TesseraUnwrapped
{
	TESSERA_WRAPPED_WHOLE,
	TESSERA_WRAPPED_FIRST,		/* the first half; the other one follows */
	TESSERA_WRAPPED_BROKEN
} TesseraUnwrapped;

/* half: the first half that an earlier call (FIRST) has left there, palloc'd; NULL: none. */
extern TesseraUnwrapped tessera_notify_unwrap(const char *text, char **half, char **channel, char **payload);

/* ---- notify_forward.c ---- */

/* The forwarder's step (bgworkers/worker_main.c). */
extern long tessera_notify_forward_step(void);

/* True if the forwarder of this database listens. */
extern bool tessera_notify_forwarder_listens(void);

/* Exit step of the forwarder: it counts as not listening, and its connections are closed. */
extern void tessera_notify_forward_leave(int code, Datum arg);

extern void tessera_notify_forward_init(void);	/* from _PG_init: shared memory */

#endif							/* TESSERA_NOTIFY_H */
