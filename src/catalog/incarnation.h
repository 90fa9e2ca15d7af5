/*
 * incarnation.h
 *	  Which of a node's servers is the node: the primary, the standby that was promoted in its place, or the old primary that came back.
 *
 * The config node gives each server that becomes a node a number, the node's incarnation: 1 when it joins, a higher one whenever a promoted server is
 * registered. tessera.identity has the server's own (replicated: a standby has its primary's until it is registered itself), tessera.node those of
 * all nodes, as far as known here. A server that knows what it owns (it is on the timeline that identity names), and finds its own number below the
 * one in tessera.node, was replaced: it refuses all that has to do with the cluster.
 */
#ifndef TESSERA_INCARNATION_H
#define TESSERA_INCARNATION_H

#include "postgres.h"

#include "catalog/identity.h"

/*
 * Notes that, as another node has said, this node has a higher incarnation than its server. Wakes the refresher, which writes it into the catalog.
 * Never raises.
 */
extern void tessera_incarnation_outdone(int32 incarnation);

/* True if another node has said that this node has a higher incarnation than this one, that of its server. For a moment: a spinlock. */
extern bool tessera_incarnation_is_outdone(int32 own);

/*
 * The answer to another node (`caller`) that connects. claimed: the caller's own incarnation, 0 if it does not know it yet. If a higher one of the
 * caller is known here, the caller was replaced: the answer is that number, negative. expected: the incarnation of this node that the caller knows;
 * if it is higher than this server's, it is written down here first (waits some seconds at most for the refresher). Otherwise the answer is this
 * server's incarnation; if this server is yet to be registered, one more than that, and at least `expected`; 0 if it was replaced. The caller must
 * not use a server whose answer is below `expected`.
 */
extern int32 tessera_incarnation_greet(const TesseraIdentity *identity, int32 caller, int32 claimed, int32 expected);

/*
 * The refresher's step, outside a transaction: writes a noted incarnation into the catalog. While this server is replaced, new sessions of the
 * database are read-only by default, so that target_session_attrs=read-write skips it.
 */
extern void tessera_incarnation_step(void);

/* In a transaction: makes new sessions of this database read-only by default (on), or undoes that. */
extern void tessera_incarnation_read_only(bool on);

/* From _PG_init: shared memory. */
extern void tessera_incarnation_init(void);

#endif							/* TESSERA_INCARNATION_H */
