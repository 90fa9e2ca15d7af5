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
	uint32		join;			/* number of that joining */
	bool		wrote;			/* and may have written in it */
	bool		used;			/* and was sent more than questions about the transaction's snapshot: else nothing is lost with it */
	bool		locks;			/* and keeps transaction-level advisory locks, which go when the outcome is decided everywhere */
	bool		unlisted;
	int			level;			/* deepest subtransaction (1: none) that used it and is not rolled back */
	int			modes_sent;		/* so many of the transaction's SET CONSTRAINTS it has run (constraint_modes.c) */
	bool		prepared;		/* PREPARE TRANSACTION was sent; the transaction may exist as prepared */
	TesseraCommand command;		/* of the commit protocol */
} TesseraParticipant;

/* How far its commit is; two_phase.c says what each means. */
typedef enum TesseraCommitPhase
{
	TESSERA_COMMIT_OPEN,
	TESSERA_COMMIT_PREPARING,
	TESSERA_COMMIT_DECIDING,
	TESSERA_COMMIT_COMMITTED,
	TESSERA_COMMIT_UNKNOWN
} TesseraCommitPhase;

typedef struct TesseraConstraintMode TesseraConstraintMode;

/*
 * The transaction at hand, as far as other nodes take part. participant.c has the one there is and hands it to the others, each of which changes its
 * own part only; it is empty when a transaction begins.
 */
typedef struct TesseraTransaction
{
	/* participant.c; the array, which lives until the backend exits, may move when one is added */
	TesseraParticipant *participants;
	int			nparticipants;
	int			size;
	int32		self_node;		/* this node, known since one joined */

	/* constraint_modes.c; in TopTransactionContext */
	TesseraConstraintMode *modes;
	int			nmodes;
	int			modes_size;

	/* two_phase.c */
	TesseraCommitPhase phase;
	char		gid[TESSERA_GID_SIZE];	/* of the two-phase commit, or of what a client prepares */
	char		digits[33];		/* that the first of the two will have; empty: none were drawn yet */
	int32	   *client_nodes;	/* where that is prepared; in TopMemoryContext, outlives the transaction */
	int			client_nnodes;
	TesseraTime commit_time;	/* on all nodes, once the coordinator has taken it; 0: not known, as in a cluster that is being upgraded */
	XLogRecPtr	relied_on;		/* log position that values in this transaction, or one before, rest on: never emptied */
} TesseraTransaction;

/* For functions that are called from outside of transaction/, without it. */
extern TesseraTransaction *tessera_this_transaction(void);

extern int	tessera_abort_timeout;

/*
 * node_link.c: the connection of this backend to a node, on a lane (transport/connection.h), opened if need be; the server at the other end is the
 * node, as far as is known here. ERROR 08006, 42704 if there is no such node, TS003 if the address leads to another server only, or if this server
 * was replaced.
 */
extern TesseraConnection *tessera_open_node(const TesseraRouting *routing, int32 node_id, int lane);

/* True if the server at the other end of an open connection is the node. If not, the connection is closed: false; see node_link.c for the errors. */
extern bool tessera_is_node_itself(TesseraConnection *connection, const TesseraNode *node);

/* participant.c: the node joins; what follows on the connection runs as the cluster's own role. */
extern TesseraConnection *tessera_participant_as_cluster(const TesseraRouting *routing, int32 node_id, bool write);

/* participant.c: what follows on the connection runs as the current user, in its security context, with the session's settings. */
extern void tessera_queue_current_session(TesseraConnection *connection);

/*
 * Before the commit on that node: states the current user and security context there again, and the time of the statement, since deferred triggers
 * run as who commits, and in the statement that does.
 */
extern void tessera_participant_restate_session(TesseraParticipant *participant);

/* It is in the transaction in case it is needed (executor/cut.h), and was not. */
extern bool tessera_participant_is_unused(const TesseraParticipant *participant);

/* constraint_modes.c: true if this transaction has run SET CONSTRAINTS. */
extern bool tessera_constraint_modes_any(TesseraTransaction *transaction);

/*
 * The first that the participant has not run, if it is of this level of nesting or an outer one; else NULL. palloc'd. The caller queues it and counts
 * modes_sent.
 */
extern const char *tessera_constraint_modes_next(TesseraTransaction *transaction, const TesseraParticipant *participant, int level);

/* The subtransaction of this level is rolled back, or has become part of its parent; the transaction has ended. They raise nothing. */
extern void tessera_constraint_modes_rolled_back(TesseraTransaction *transaction, int level);
extern void tessera_constraint_modes_released(TesseraTransaction *transaction, int level);
extern void tessera_constraint_modes_forget(TesseraTransaction *transaction);

/* two_phase.c: flushes what tessera_participants_rely_on was told of. May raise. */
extern void tessera_participants_flush(TesseraTransaction *transaction);

/* two_phase.c: what the transaction callback does. The first may raise; the others never do. */
extern void tessera_two_phase_pre_commit(TesseraTransaction *transaction);
extern void tessera_two_phase_committed(TesseraTransaction *transaction);
extern void tessera_two_phase_aborted(TesseraTransaction *transaction);

/*
 * The same for PREPARE TRANSACTION of a client. client: before the statement; the transaction, if it comes to that, is prepared on all participants
 * as gid_<node id>. pre_prepare does so on the others and may raise, prepared runs when this node has, too. Returned: the nodes where the transaction
 * is prepared, n of them, this one not among them; valid until the next call.
 */
extern void tessera_two_phase_client(TesseraTransaction *transaction, const char *client_gid);
extern void tessera_two_phase_pre_prepare(TesseraTransaction *transaction);
extern void tessera_two_phase_prepared(TesseraTransaction *transaction);
extern const int32 *tessera_two_phase_prepared_nodes(TesseraTransaction *transaction, int *n);

/* TESSERA_GID_PREFIX, these 32 hex digits of which the first are fixed, and the coordinator: into gid. */
extern void tessera_make_gid(char *made, const char *fixed, int32 coordinator);

/*
 * resolver.c: asks the coordinator (node_id) for the outcome over the control lane. 'c' committed, 'a' aborted; of a client's transaction also 'p',
 * prepared. ERROR if it cannot be reached, or if it needs to know what other nodes know and one of them cannot be reached. timeline: of the decision,
 * for a client's transaction; may be NULL.
 */
extern char tessera_ask_outcome(const TesseraRouting *routing, int32 coordinator, const char *gid, int32 *timeline);

/*
 * prepared.c: how a client's transaction ended, as the other nodes know: "commit", "abort" or "none". ERROR 08006 if there is no answer and a node
 * cannot be reached.
 */
extern const char *tessera_prepared_evidence(const TesseraRouting *routing, int32 home, const char *gid, int32 timeline);

/* resolver.c: the commit time of a transaction whose outcome is to commit; 0: its coordinator knows none. ERROR if that cannot be reached. */
extern TesseraTime tessera_ask_commit_time(int32 coordinator, const char *gid);

/* Ends it on one node, which records the outcome first; time: of the commit, 0: not known. May raise. */
extern void tessera_prepared_carry_out(const TesseraRouting *routing, int32 node_id, const char *gid, bool commit, TesseraTime time, int32 timeline);

#endif							/* TESSERA_TRANSACTION_PRIVATE_H */
