/*
 * call.h
 *	  Calls between nodes: what a call is, whom it goes to, how it is run. Each call is defined once, in calls.def; control/calls.h, made of that, has
 *	  a function for each: tessera_call_NAME sends it and waits for its answer, tessera_queue_NAME puts it in front of a statement.
 *
 * The other side is a SQL function in schema tessera_internal, made of the same definition. It hands its arguments, as a struct, to the C function
 * that answers: tessera_serve_NAME.
 *
 * How a call reaches its node depends on its lane. The lanes are given by transaction/, which keeps the connections (tessera_call_lanes). In front of
 * every call on the control lane goes the envelope: which term of the config node the caller has seen.
 *
 * Versions: two nodes speak the lower one of their protocols (common/protocol.h). An argument or a column of the answer that the other node's
 * protocol does not have is left out; a call that it does not have is refused here with 55000.
 */
#ifndef TESSERA_CALL_H
#define TESSERA_CALL_H

#include "postgres.h"
#include "access/xlogdefs.h"
#include "fmgr.h"
#include "utils/uuid.h"

#include "transport/connection.h"

typedef enum TesseraCallLane
{
	TESSERA_LANE_CONTROL,		/* a connection beside the transaction's; the call commits by itself */
	TESSERA_LANE_TRANSACTION,	/* part of the distributed transaction */
	TESSERA_LANE_QUEUE,			/* in the same pipeline, in front of what follows */
	TESSERA_LANE_HELD,			/* a connection of its own; the call's transaction stays open (tessera_holding) */
	TESSERA_LANES
} TesseraCallLane;

typedef struct TesseraCallField
{
	const char *name;			/* as SQL writes it */
	const char *type;			/* qualified */
	int			since;			/* protocol that brought it */
} TesseraCallField;

#define TESSERA_USUAL_DEADLINE (-1)	/* 30 s in a background process; none for a statement, which can be cancelled */

typedef struct TesseraCallSpec
{
	const char *name;
	TesseraCallLane lane;
	bool		to_config;		/* only the config node answers it */
	int			deadline_ms;	/* 0: none */
	bool		repeatable;		/* the caller may send it again if the answer is lost */
	bool		many;			/* any number of rows */
	int			since;			/* protocol that brought it */
	int			nargs;
	const TesseraCallField *args;
	int			nresults;
	const TesseraCallField *results;
} TesseraCallSpec;

typedef enum TesseraCallTolerance
{
	TESSERA_RAISE,				/* every error is the caller's */
	TESSERA_TOLERATE_LOSS,		/* false if the node cannot be reached (53300: it is full), or does not answer in time (class 08) */
	TESSERA_TOLERATE_ERRORS,	/* false after any error but a request to end */
	TESSERA_TOLERATE_ALL		/* false after any error but the end of the process */
} TesseraCallTolerance;

/* Whom a call goes to, and what if that fails. */
typedef struct TesseraCallTarget
{
	int32		node_id;		/* 0: the config node */
	int			timeout_ms;		/* TESSERA_USUAL_DEADLINE: as the call's definition says; 0: none */
	bool		write;			/* in the transaction's lane: it may write there */
	bool		as_user;		/* in the transaction's lane: as this session's user, with its settings; else as the cluster's role */
	TesseraCallTolerance tolerance;
	ErrorData **error;			/* where a tolerated error is put, in the caller's memory context; NULL: it is dropped */
	int			lane;			/* TESSERA_LANES: as the call's definition says */
	int			hold_ms;		/* in the lane held: the other node ends the transaction if nothing was heard for so long */
	TesseraConnection *connection;	/* not NULL: this one, as the caller has prepared it (tessera_participant) */
	int		   *protocol;		/* on the lanes beside the transaction: where the protocol spoken with the node is put; NULL: nowhere */
} TesseraCallTarget;

/* The config node, a node, a node within so many ms; ask: a failure is no error but the answer false (see TesseraCallTolerance). */
extern TesseraCallTarget tessera_to_config(void);
extern TesseraCallTarget tessera_to_node(int32 node_id);
extern TesseraCallTarget tessera_within(TesseraCallTarget target, int timeout_ms);
extern TesseraCallTarget tessera_ask(TesseraCallTarget target, TesseraCallTolerance tolerance);
extern TesseraCallTarget tessera_writing(TesseraCallTarget target);
extern TesseraCallTarget tessera_as_user(TesseraCallTarget target);

/* Another lane than the call's own; a connection that the caller has opened; where to put a tolerated error, and the protocol spoken. */
extern TesseraCallTarget tessera_on_lane(TesseraCallTarget target, TesseraCallLane lane);
extern TesseraCallTarget tessera_over(TesseraConnection *connection);
extern TesseraCallTarget tessera_keep_error(TesseraCallTarget target, ErrorData **error);
extern TesseraCallTarget tessera_say_protocol(TesseraCallTarget target, int *protocol);

/*
 * The call does its work in a transaction that stays open at the other end: with all its locks, but seen by nobody. One at a time for each node; a
 * second call ends the first one's transaction. tessera_commit_held (transaction/participant.h) commits it. It is over, and nothing of it is left,
 * when this process ends or breaks the connection, and when hold_ms have passed.
 */
extern TesseraCallTarget tessera_holding(TesseraCallTarget target, int hold_ms);

/* Rows of an answer as text, in the memory context of who called. */
typedef struct TesseraCallAnswer
{
	int			nrows;
	int			ncolumns;
	char	  **values;			/* nrows * ncolumns; NULL where null */
} TesseraCallAnswer;

/* NULL where null, or beyond what came: the node's protocol is older. */
extern char *tessera_answer_value(const TesseraCallAnswer *answer, int row, int column);

/*
 * Sends a call and waits for the answer, in the current transaction if there is one, else in a short one of its own. false: it failed, as the target
 * tolerates. The reason is logged at DEBUG1 then. ERROR 08006 if the node cannot be reached or does not answer in time, 55000 if it does not know the
 * call yet, else what it answers. A background process holds no lock then that others wait for (S45): no transaction id, so no row, and no LWLock; a
 * test server (tessera.injection_points) refuses it. values: of all arguments, as text. For the functions of calls.h; others call those.
 */
extern bool tessera_call(const TesseraCallSpec *spec, TesseraCallTarget target, const char *const *values, TesseraCallAnswer *answer);

/* Queues a call in front of what follows on the connection; its error is raised by the call that reads the connection. */
extern void tessera_call_queue(const TesseraCallSpec *spec, TesseraConnection *connection, const char *const *values);

/*
 * The statement that makes the call, for nodes of this protocol, with a parameter for each argument. For who sends it by means of their own. In
 * static memory for the own protocol, else palloc'd. *nparams (if wanted): how many of the arguments the other node knows. ERROR 55000 if the
 * protocol does not have the call.
 */
extern const char *tessera_call_text(const TesseraCallSpec *spec, int protocol, int *nparams);

/* The same with the values in it, for nodes of this protocol; and for the oldest one: for a node of which nothing is known yet. Palloc'd. */
extern char *tessera_call_literal_for(const TesseraCallSpec *spec, int protocol, const char *const *values);
extern char *tessera_call_literal(const TesseraCallSpec *spec, const char *const *values);

/*
 * A statement with parameters $1 to $n, its values put in as literals: so their types are inferred as those of parameters of another node's are.
 * Palloc'd.
 */
extern char *tessera_sql_with_literals(const char *sql, int nparams, const char *const *values);

/* The protocol that the two ends of a connection speak; the oldest one if it has not said hello. */
extern int	tessera_connection_protocol(TesseraConnection *connection);

/*
 * How the lanes run a call; set by transaction/ when the library is loaded. Fills the answer's rows in the memory context given. node_id 0: the
 * config node. timeout_ms 0: no limit.
 */
typedef void (*TesseraCallRunner) (const TesseraCallSpec *spec, const TesseraCallTarget *target, int timeout_ms, const char *const *values,
								   MemoryContext context, TesseraCallAnswer *answer);
extern TesseraCallRunner tessera_call_lanes[TESSERA_LANES];

/*
 * Called before and after each call of the control lane (node_id 0: the config node); NULL: none. For views that show what a process waits for.
 */
extern void (*tessera_call_observer) (int32 node_id, bool begins);

/*
 * The answering side, for the functions made of calls.def. admit: ERROR 42501 unless the call is a statement of its own and, if said, the session has
 * said hello; set by session/ when the library is loaded. require_argument: ERROR 22004 if it is null. row: the function's only row.
 */
extern void (*tessera_call_admit) (FunctionCallInfo fcinfo, bool said);
extern void tessera_call_require_argument(FunctionCallInfo fcinfo, int number, const char *name);
extern Datum tessera_call_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls);

/* Rows of a result of libpq as an answer, in the current memory context. */
extern void tessera_answer_of_result(const PGresult *result, TesseraCallAnswer *answer);

/* Values as text, palloc'd, and back (null: 0, false, NULL; a uuid is palloc'd). */
extern char *tessera_call_from_uuid(const pg_uuid_t *value);	/* NULL for NULL */
extern char *tessera_call_from_int4(int32 value);
extern char *tessera_call_from_int8(int64 value);
extern char *tessera_call_from_float8(double value);
extern char *tessera_call_from_bool(bool value);
extern char *tessera_call_from_lsn(XLogRecPtr value);
extern pg_uuid_t *tessera_call_to_uuid(const char *text);
extern int32 tessera_call_to_int4(const char *text);
extern int64 tessera_call_to_int8(const char *text);
extern double tessera_call_to_float8(const char *text);
extern bool tessera_call_to_bool(const char *text);
extern XLogRecPtr tessera_call_to_lsn(const char *text);

#endif							/* TESSERA_CALL_H */
