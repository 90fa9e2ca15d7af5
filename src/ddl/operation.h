/*
 * operation.h
 *	  A statement that cannot run in a transaction: each node runs a command of its own, and a row of the config node (tessera.ddl_operation) says how
 *	  far it is (doc/design.md#ddl-concurrently; S113-S118).
 *
 * Who runs an operation has claimed it: a lock of its session, on its own node. Whoever asks for the same statement meanwhile waits for its end. If
 * the process or its node ends, the config node's worker claims it and goes on (config/ddl_operation_worker.c).
 */
#ifndef TESSERA_OPERATION_H
#define TESSERA_OPERATION_H

#include "postgres.h"
#include "utils/uuid.h"

#include "control/call.h"
#include "routing/routing.h"

#define TESSERA_OPERATION_CREATE "create index"
#define TESSERA_OPERATION_REINDEX_INDEX "reindex index"
#define TESSERA_OPERATION_REINDEX_TABLE "reindex table"

#define TESSERA_PHASE_TAKE_BACK "take back"

/* As its row; strings are the caller's. */
typedef struct TesseraOperation
{
	pg_uuid_t	id;
	const char *kind;
	pg_uuid_t	table_id;
	const char *schema;			/* of the index, or of the table */
	const char *object;
	const char *statement;		/* as it was asked for */
	const char *search_path;	/* by which its names are meant */
	const char *command;		/* what each node runs */
	int			ndone;
	int32	   *done;			/* nodes that need not run it */
} TesseraOperation;

/*
 * begin_new: an id, and the claim. claim: false if a session of this node has it. The claim is the session's, over transactions, until release or its
 * end: so release it after an error, too. No other locks; in a transaction.
 */
extern void tessera_operation_begin_new(TesseraOperation *operation);
extern bool tessera_operation_claim(const pg_uuid_t *id);
extern void tessera_operation_release(const pg_uuid_t *id);

/*
 * Its row on the config node: part of this transaction, or committed at once. ERROR 55006 if another operation on the object runs.
 */
extern void tessera_operation_record(const TesseraOperation *operation, bool in_transaction);

/*
 * The command on all nodes at once that are not done, as the current user, and each that is through is noted. Waits for all, then raises the first
 * error. The caller has no snapshot: each node's command waits for those that are older. In a transaction, and in memory that outlives the call.
 */
extern void tessera_operation_run(const TesseraOperation *operation);

/* Drops, on all nodes, what a REINDEX CONCURRENTLY of it that failed has left there, as the current user. Errors and conditions as those of run. */
extern void tessera_operation_clean(const TesseraOperation *operation);

/*
 * The end of it on the config node; error NULL: it is done. finished: without an answer the config node's worker finds out by itself. failed: part of
 * this transaction; false if it was not running any more: the object may be another one of the same name now.
 */
extern void tessera_operation_finished(const TesseraOperation *operation, const ErrorData *error);
extern bool tessera_operation_failed(const TesseraOperation *operation, const ErrorData *error);

/*
 * If an operation of the object runs that is the same one (the same statement by the same search path, or the same command, unless that is NULL),
 * waits for its end, and returns true, or raises the error with which it has failed. The caller has checked the user's rights. Ends the transaction,
 * and begins another one.
 */
extern bool tessera_operation_join(const char *schema, const char *object, const char *statement, const char *command);

/* True for errors that pass: a node is down, a lock is held, something is used up. */
extern bool tessera_operation_may_go_on(const ErrorData *error);

/* Ends the transaction of a statement that runs in several, and begins another one, without a snapshot. In the portal's memory. */
extern void tessera_operation_next_transaction(void);

#endif							/* TESSERA_OPERATION_H */
