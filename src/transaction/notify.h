/*
 * notify.h
 *	  NOTIFY in a cluster: listeners of all nodes hear it, after the commit, in the order of each sender.
 *
 * A notification is the server's own on the node of the session that sends it. In the same transaction it is queued once more, wrapped, on a channel of the
 * extension's; what comes out there, in the order of commits, the forwarder of the node (notify_forward.c) passes to the other nodes. A trigger or function on
 * a shard does not notify there: the router is told, and its session is the sender.
 */
#ifndef TESSERA_NOTIFY_H
#define TESSERA_NOTIFY_H

#include "postgres.h"

/* Users may not use it. */
#define TESSERA_NOTIFY_CHANNEL "tessera_notifications"

/*
 * A NOTIFY is about to run here. False: it runs on a shard for another node, which has been told; nothing is to be notified here. ERROR 42939 for the extension's own
 * channel.
 */
extern bool tessera_notify_begins(const char *channel, const char *payload);

/* It has run here: the other nodes are to hear it, too. */
extern void tessera_notify_ran(const char *channel, const char *payload);

/* ERROR 42939 if the channel is the extension's own, unless its own connection listens. */
extern void tessera_listen_check(const char *channel);

/* Has this transaction sent notifications, as far as is known? */
extern bool tessera_notified(void);

/* Is the server's queue so full that the local commit may fail for it? */
extern bool tessera_notify_queue_fills(void);

/* Nothing may interrupt this transaction any more: another node has committed, and the notifications have yet to go out. Ends with the transaction. */
extern void tessera_notify_no_interrupts(void);

extern void tessera_notify_init(void);	/* from _PG_init */

/* ---- wrapped notifications ---- */

/* What came out of the channel. Strings are those of the text given, or palloc'd. */
typedef enum TesseraUnwrapped
{
	TESSERA_WRAPPED_WHOLE,
	TESSERA_WRAPPED_FIRST,		/* the first half; the other one follows */
	TESSERA_WRAPPED_BROKEN
} TesseraUnwrapped;

/* half: what FIRST has left there, palloc'd; NULL: none. */
extern TesseraUnwrapped tessera_notify_unwrap(const char *text, char **half, char **channel, char **payload);

/* ---- notify_forward.c ---- */

/* The forwarder's step (bgworkers/worker.c). */
extern long tessera_notify_forward_step(void);

/* Does the forwarder of this database listen? */
extern bool tessera_notify_forwarder_listens(void);

/* Exit step of the forwarder: nobody listens any more, and its connections end. */
extern void tessera_notify_forward_leave(int code, Datum arg);

extern void tessera_notify_forward_init(void);	/* from _PG_init: shared memory */

#endif							/* TESSERA_NOTIFY_H */
