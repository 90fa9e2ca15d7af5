/*
 * internal_connection.h
 *	  The shard's side of an internal connection: who the statement runs as, which versions the router routes by, which statement it belongs to.
 *
 * An internal connection is authenticated as a superuser or a member of tessera_internal, and has called tessera_internal.hello. All state is
 * backend-local C (not settings: a rollback would revert those, doc/design.md#internal-connections) except the effective user and mirrored settings,
 * which a rollback does revert: the router sends them again after any error. The internal_* SQL functions work only as top-level statements of an
 * internal connection (never from inside a function or trigger), so user code that runs on the shard cannot reach them.
 */
#ifndef TESSERA_INTERNAL_CONNECTION_H
#define TESSERA_INTERNAL_CONNECTION_H

#include "postgres.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

typedef struct TesseraToldVersion
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		term;
	int64		major;
} TesseraToldVersion;

/* Flags of the router's security context that the shard takes over, beside the effective user. SECURITY_LOCAL_USERID_CHANGE always holds there. */
#define TESSERA_MIRRORED_SECURITY (SECURITY_RESTRICTED_OPERATION | SECURITY_NOFORCE_RLS)

/* True if this backend serves another node. */
extern bool tessera_internal_connection(void);

/* The protocol that both ends of the internal connection speak; 0: this is none. */
extern int	tessera_internal_protocol(void);

/* True if a client is behind what this process does: its own, or that of the node it serves; false: a worker of the cluster. */
extern bool tessera_works_for_client(void);

/*
 * True for what the router itself has sent in the protocol message at hand: text is the statement's, by its address. False for all that runs inside
 * such a statement, or beside it: user code at Bind (input functions, checks of domains), in the planner, at the end of a query or of a transaction.
 */
extern bool tessera_received(const char *text);

/* False while a function uses SPI, whatever portal is the active one. */
extern bool tessera_outside_spi(void);

/* After a statement of an internal connection: tells the router, once in a transaction, if that cannot be prepared (INFO of SQLSTATE TS008). */
extern void tessera_internal_tell_unpreparable(void);

/*
 * Says this node's times to the router with the answer at hand, if they are later than all that was said on the connection: at the end of a
 * statement in a transaction block, and by itself at each end of a transaction. Never raises.
 */
extern void tessera_internal_tell_time(void);

/*
 * Before anything of a statement is evaluated, and as its message is executed: its times are those that the router has told, if it has done so in
 * this transaction (the server has set the statement's anew for each message since). Cheap; raises nothing.
 */
extern void tessera_internal_restate_start(void);

/* The version that the router told for a group; NULL: none (the router takes the table for a placed one, or does not know it). */
extern const TesseraToldVersion *tessera_internal_told(const pg_uuid_t *group_id);

/*
 * Nesting of executor and utility in this backend: 0 outside, 1 in a top-level statement or a deferred trigger at the end of the transaction. Kept by
 * executor/ through these.
 */
extern int	tessera_nesting(void);
extern void tessera_nesting_enter(void);
extern void tessera_nesting_leave(void);

/* The router's statement number of the fragment at hand (0: the statement has only one fragment here), and the snapshot kept for it. */
extern uint64 tessera_internal_statement(void);
extern Snapshot tessera_internal_statement_snapshot(void);	/* NULL if none kept yet */
/* registered with the top transaction; dropped at its end, or when the router is done with the statement */
extern void tessera_internal_keep_snapshot(Snapshot snapshot);

/* The config node's term that the caller of the control lane's call at hand has seen; 0: it has not said. */
extern int64 tessera_internal_caller_term(void);

/*
 * Steps. Before a commit or PREPARE the snapshots kept for a router's cursors are dropped; at the end, of a subtransaction by an error as well, the
 * router is told the time of what was seen. But for the first none raises.
 */
extern void tessera_internal_before_end(void);
extern void tessera_internal_ended(void);	/* committed or prepared */
extern void tessera_internal_aborted(void);
extern void tessera_internal_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

/* From _PG_init. */
extern void tessera_internal_init(void);

#endif							/* TESSERA_INTERNAL_CONNECTION_H */
