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
	int			modes_sent;		/* so many of the transaction's SET CONSTRAINTS it has run (constraint_modes.c) */
	bool		prepared;		/* PREPARE TRANSACTION was sent; the transaction may exist as prepared */
	TesseraCommand command;		/* of the commit protocol */
} TesseraParticipant;

/* participant.c; the array may move when one is added */
extern TesseraParticipant *tessera_participants;
extern int	tessera_participant_count;

extern int32 tessera_self_node;	/* this node, known since one joined */

extern int	tessera_abort_timeout;

/* Connections of the participants (palloc'd array); joined: only those with an open transaction. */
extern TesseraConnection **tessera_participant_connections(bool joined, int *n);

/* constraint_modes.c: has this transaction run SET CONSTRAINTS? */
extern bool tessera_constraint_modes_any(void);

/* The first that the participant has not run, if it is of this level of nesting or an outer one; else NULL. palloc'd. The caller queues it and counts modes_sent. */
extern const char *tessera_constraint_modes_next(const TesseraParticipant *participant, int level);

/* The subtransaction of this level is rolled back, or has become part of its parent; the transaction has ended. They raise nothing. */
extern void tessera_constraint_modes_rolled_back(int level);
extern void tessera_constraint_modes_released(int level);
extern void tessera_constraint_modes_forget(void);

/* two_phase.c: what the transaction callback does. The first may raise; the others never do. */
extern void tessera_two_phase_pre_commit(void);
extern void tessera_two_phase_committed(void);
extern void tessera_two_phase_aborted(void);

/* resolver.c: asks the coordinator (node_id) for the outcome over the control lane. 'c' committed, 'a' aborted. ERROR if it cannot be reached. */
extern char tessera_ask_outcome(const TesseraRouting *routing, int32 coordinator, const char *gid);

#endif							/* TESSERA_TRANSACTION_PRIVATE_H */
