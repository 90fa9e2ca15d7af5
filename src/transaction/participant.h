/*
 * participant.h
 *	  The distributed transaction of this backend: which nodes take part, and how it ends (doc/design.md#transactions).
 *
 * A node joins when its first command is queued; BEGIN rides in front of it in the same pipeline. Savepoints follow lazily. At PRE_COMMIT: no writer:
 * reads are ended; one writer (and none here): one-phase commit there; several: two-phase with a decision row on the coordinator. At COMMIT the
 * others get COMMIT PREPARED; the answers are awaited for a limited time, and nothing may be raised there. At ABORT everything is rolled back or,
 * failing that, the connection is closed.
 */
#ifndef TESSERA_PARTICIPANT_H
#define TESSERA_PARTICIPANT_H

#include "postgres.h"
#include "access/xlogdefs.h"
#include "lib/ilist.h"

#include "routing/routing.h"
#include "session/internal_connection.h"
#include "transport/connection.h"

/* What a command needs at the node that it is sent to. */
typedef struct TesseraCommandNeeds
{
	bool		write;			/* the command may write or lock rows there */
	bool		aside;			/* a call beside the current statement: it does not end the snapshots that the shard keeps for that */
	/* no transaction block is needed: it may commit by itself (doc/design.md#remote-autocommit); ignored once a remote transaction is open */
	bool		autocommit;
	bool		timeless;		/* nothing that it runs there asks for now() or statement_timestamp(): it need not be told them */
	uint64		statement;		/* router's statement number, if the statement has several fragments; else 0 */
	int			nversions;
	const TesseraToldVersion *versions; /* versions this command is routed by */
	uint64		explain;		/* the command is measured, by these InstrumentOptions, and its plan kept there under this number; 0: it is not */
	int			instrument;
} TesseraCommandNeeds;

/*
 * Joins the node and queues what must precede a command there: hello, BEGIN with isolation level and modes, savepoints, effective user (the current
 * one, always: what a statement runs there is run by whom it would be run by here) and its security context, changed settings, versions not told yet,
 * statement number, when transaction and statement began. The caller then queues its command and calls tessera_connection_sync. ERROR 08006 if
 * unreachable. Never called for the local node.
 */
extern TesseraConnection *tessera_participant(const TesseraRouting *routing, int32 node_id, const TesseraCommandNeeds *needs);

/*
 * Joins a node that is not in the registry yet (add_shard, add_router): an unlisted connection becomes a writing participant under this node_id,
 * closed at the end of the transaction. As the cluster's own role, no versions. Calls of the transaction lane to this node_id then reach
 * it.
 */
extern TesseraConnection *tessera_participant_unlisted(int32 node_id, const char *name, const char *conninfo);

/*
 * Notes that a participant with an open transaction holds transaction-level advisory locks: its transaction is ended after all others, when the
 * outcome is decided everywhere.
 */
extern void tessera_participant_holds_locks(int32 node_id);

/*
 * Notes a WAL position of this server (of a sequence value, say) that must be flushed before anything of this transaction is committed on other
 * nodes.
 */
extern void tessera_participants_rely_on(XLogRecPtr position);

/*
 * The versions that go to a node with a statement on the table: under the table's own id its kind here (major 0: placed; 1: sharded, with the id of
 * its group for an epoch), and for a sharded one the version of its group by which the statement is routed. Room for TESSERA_TOLD_VERSIONS; returns
 * how many.
 */
#define TESSERA_TOLD_VERSIONS 2
extern int	tessera_told_versions(const TesseraRouting *routing, const TesseraTable *table, int32 node_id, TesseraToldVersion *versions);

/* The next participant that has said that rows of replicated tables were changed there (node_id), which it counts as fetched then; 0: none. */
extern int32 tessera_participants_captured(void);

/* True if there is one. */
extern bool tessera_participants_have_captured(void);

/*
 * Steps. Before a commit or PREPARE: ERROR if another server is this node now, or a participant is lost, and the first phase is done there. After it
 * the participants get to know the outcome, as far as they answer in time, and an abort rolls them back: these never raise.
 */
extern void tessera_participants_before_commit(void);
extern void tessera_participants_before_prepare(void);
extern void tessera_participants_committed(void);
extern void tessera_participants_prepared(void);
extern void tessera_participants_aborted(void);

/* Savepoints: begun; released, which is queued (ERROR 08006 as any queueing); or rolled back to. */
extern void tessera_participants_subtransaction_started(SubTransactionId mine, SubTransactionId parent);
extern void tessera_participants_before_subtransaction_commit(SubTransactionId mine, SubTransactionId parent);
extern void tessera_participants_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

/* A new statement number of this backend (1, 2, ...). */
extern uint64 tessera_next_statement(void);

/*
 * A statement of this backend during which others may run (a cursor's). From keep to forget the shards keep the snapshot of its first fragment. The
 * caller owns the struct, which must live until forget; its number may change.
 */
typedef struct TesseraKeptStatement
{
	dlist_node	node;
	uint64		number;
} TesseraKeptStatement;
extern void tessera_statement_keep(TesseraKeptStatement *statement);
extern void tessera_statement_forget(TesseraKeptStatement *statement);

/*
 * True if the only write of the current top-level statement may commit by itself on its shard (doc/design.md#remote-autocommit): no transaction
 * block, no procedure or function above, nothing written here, no other participant, and (extended protocol) a Sync follows. Call from ExecutorRun of
 * the top-level statement.
 */
extern bool tessera_autocommit_write_allowed(void);

/*
 * 32 hex digits by which this transaction's parts are known if it ends in a two-phase commit of this node's (tessera_finish_committed); to be written
 * by the transaction itself. Valid until its end.
 */
extern const char *tessera_transaction_digits(void);

/* tessera.commit_timeout, in ms. */
extern int	tessera_commit_timeout;

/*
 * The first call on a new connection to a node that is expected to be of this incarnation; it answers two numbers: a greeting, which is at least that
 * if it is the node, and the protocol that both speak. pid: of the backend whose transactions run there; 0: they are their own. Palloc'd.
 */
extern char *tessera_hello_text(const TesseraRouting *routing, int32 expected, int pid);

/*
 * COMMIT PREPARED, with the transaction's time (0: not known), or ROLLBACK PREPARED on a node, also this one, over the control lane: outside the
 * transaction. Connecting and waiting for the
 * answer take timeout_ms milliseconds at most (0: no limit); then ERROR 08006, and it is not known whether the node has done it.
 */
extern void tessera_finish_part(const TesseraRouting *routing, int32 node_id, const char *gid, bool commit, TesseraTime time, int timeout_ms);

/*
 * At REPEATABLE READ and above a node takes its snapshot for the whole transaction when it joins. joins: the current moment, for the other two.
 * joined_by: true if the node had joined by then and is still in the transaction. leave: rolls back on the nodes that have joined since that moment,
 * without waiting; their next command begins a new transaction. Only for callers that undo all that was done there. Never raises.
 */
extern uint32 tessera_participants_joins(void);
extern bool tessera_participant_joined_by(int32 node_id, uint32 moment);
extern void tessera_participants_leave(uint32 moment);

/* The node takes part in the transaction at hand, and not only in case it is needed (executor/cut.h). */
extern bool tessera_participant_was_used(int32 node_id);

/*
 * let_go: the node is in the transaction no more, and the connection to it is closed. Only of one that nothing was read from. Does nothing of one
 * that may not go: something was written there, advisory locks are held there, or a cursor may read on there (of another
 * statement than this one). Never raise.
 */
extern bool tessera_participant_may_go(int32 node_id, uint64 statement);
extern void tessera_participant_let_go(int32 node_id);

/*
 * Commits what a call has left open at the node (0: the config node; tessera_holding in control/call.h). false: it is not certain that it was
 * committed, and the connection is closed: the call must be made again if that can be done twice, or else the outcome be asked for. ERROR only if
 * this process is to end. Outside a transaction.
 */
extern bool tessera_commit_held(int32 node_id, int timeout_ms);

/* Gives up what is held at any node. Does not wait: the other end rolls it back when it sees that the connection is closed. Never raises. */
extern void tessera_release_held(void);

/*
 * A connection of the current statement alone to a node, for a command that runs in no transaction block there (VACUUM): as the current user, with
 * the session's settings. The caller queues that one command and syncs. It is no part of this backend's transaction, whose end leaves it alone, and
 * the locks that are taken there are not this session's. The caller ends it, also after an error. ERROR 08006 if the node cannot be reached.
 */
extern TesseraConnection *tessera_outside_block(const TesseraRouting *routing, int32 node_id);

/* Cancels what still runs there (waits tessera.abort_timeout at most) and closes the connections. Never raises. */
extern void tessera_outside_block_end(TesseraConnection **connections, int n);

extern void tessera_node_link_init(void);	/* from _PG_init: the lanes of calls */
extern void tessera_participant_init(void); /* from _PG_init: settings */

#endif							/* TESSERA_PARTICIPANT_H */
