/*
 * transaction_private.h
 *	  Shared inside transaction/: the nodes that take part in the transaction at hand.
 */
#ifndef TESSERA_TRANSACTION_PRIVATE_H
#define TESSERA_TRANSACTION_PRIVATE_H

#include "postgres.h"

#include "transaction/participant.h"

#define TESSERA_GID_PREFIX "tessera_"
#define TESSERA_GID_SIZE 64		/* tessera_ + 32 hex + _ + coordinator + nul; a participant prepares under gid_<its node id> */

/* A node that got a command in this transaction. */
typedef struct TesseraParticipant
{
	TesseraConnection *connection;
	int32		node_id;
	bool		joined;			/* has an open transaction there */
	bool		wrote;			/* and may have written in it */
	bool		unlisted;
	int			level;			/* deepest subtransaction (1: none) that used it and is not rolled back */
	bool		prepared;		/* PREPARE TRANSACTION was sent; the transaction may exist as prepared */
	TesseraCommand command;		/* of the commit protocol */
} TesseraParticipant;

/* participant.c; the array may move when one is added */
extern TesseraParticipant *tessera_participants;
extern int	tessera_participant_count;

extern int32 tessera_self_node;	/* this node, known since one joined */

extern int	tessera_abort_timeout;

/* Before the commit there: it is the current user's, in the current security context. */
extern void tessera_participant_restate_user(TesseraParticipant *participant);

/* Connections of the participants (palloc'd array); joined: only those with an open transaction. */
extern TesseraConnection **tessera_participant_connections(bool joined, int *n);

/* two_phase.c: what the transaction callback does. The first may raise; the others never do. */
extern void tessera_two_phase_pre_commit(void);
extern void tessera_two_phase_committed(void);
extern void tessera_two_phase_aborted(void);

/* resolver.c: asks the coordinator (node_id) for the outcome over the control lane. 'c' committed, 'a' aborted. ERROR if it cannot be reached. */
extern char tessera_ask_outcome(const TesseraRouting *routing, int32 coordinator, const char *gid);

#endif							/* TESSERA_TRANSACTION_PRIVATE_H */
