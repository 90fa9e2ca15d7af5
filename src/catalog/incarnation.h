/*
 * incarnation.h
 *	  Which of a node's servers is the node: the primary, the standby that was promoted in its place, or the old primary that came back.
 *
 * The config node gives each server that becomes a node a number, the node's incarnation: 1 when it joins, a higher one whenever a promoted server is
 * registered. tessera.identity has the server's own (replicated: a standby has its primary's until it is registered itself), tessera.node those of all nodes, as far as
 * known here. A server that knows what it owns (it is on the timeline that identity names), and finds its own number below the one in tessera.node, was
 * replaced: it refuses all that has to do with the cluster.
 */
#ifndef TESSERA_INCARNATION_H
#define TESSERA_INCARNATION_H

#include "postgres.h"

#include "catalog/identity.h"

/* The highest incarnation of a node that is known here; 0: no such node. With the newest committed eyes. */
extern int32 tessera_incarnation_registered(int32 node_id);

/* Somebody says that this node has a higher incarnation than its server: the refresher is woken, and writes it down. Never errors. */
extern void tessera_incarnation_outdone(int32 incarnation);

/*
 * For another node that connects: what it is told. Its own incarnation, as it claims (0: it does not know what it is), is compared with the one known here: if it was replaced,
 * the answer is the higher one, negative. expected: the incarnation of this node that it knows; if that is higher than this server's, it is written down here first
 * (waits for the refresher, some seconds at most). Else the answer is this server's incarnation, at least one more, and what is expected, if it is yet to be registered, 0 if it was
 * replaced. Below what is expected: not to be used.
 */
extern int32 tessera_incarnation_greet(const TesseraIdentity *identity, int32 caller, int32 claimed, int32 expected);

/*
 * Refresher's step, outside a transaction: writes down what was said. While this server is replaced, new sessions of the database are read-only by default, so that
 * target_session_attrs=read-write passes it over.
 */
extern void tessera_incarnation_step(void);

/* In a transaction: sessions of this database are read-only by default from now on, or no longer are. */
extern void tessera_incarnation_read_only(bool on);

/* From _PG_init: shared memory. */
extern void tessera_incarnation_init(void);

#endif							/* TESSERA_INCARNATION_H */
