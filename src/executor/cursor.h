/*
 * cursor.h
 *	  Cursors over rows of other nodes: other statements of the session run between their start and their fetches (doc/design.md#cursors).
 *
 * A cursor shows the rows as they are when it is opened, so its scans begin at ExecutorStart. What is fetched at once (a FOR loop of PL/pgSQL, a
 * portal of the protocol) is sent there. A scan of a declared cursor, and one that takes values from other rows or locks its rows, is held: a probe
 * of it runs on every shard it may go to, and the shard keeps the probe's snapshot under the statement's number; the scan itself runs at the fetch,
 * as on a plain server, errors and locks included. It is routed by the image that it was opened with, valid to the end of the transaction: a move
 * since leaves the old rows, or ends in 40001.
 */
#ifndef TESSERA_CURSOR_H
#define TESSERA_CURSOR_H

#include "postgres.h"
#include "nodes/execnodes.h"

#include "transaction/participant.h"

/* A statement of several fragments, or a cursor: its number. Lives in the query context of its EState. */
typedef struct TesseraStatementNumber
{
	EState	   *estate;
	TesseraKeptStatement kept;	/* the number; listed if a cursor */
	bool		cursor;
	bool		emitted;		/* some scan has handed out a row: too late to begin anew */
	const struct TesseraRouting *routing;	/* by which its last fragment was accepted, or its nodes were asked */
	bool		several;		/* it has several fragments, or one that may run more than once */
	uint64		cut;			/* the number under which its nodes have a common snapshot, or need none (statement_cut.h); 0: not seen to yet */
	bool		asked;			/* they have one */
	bool		counted;		/* in the statistics, as T3 */
	List	   *scans;			/* of a cursor: those opened with it (table_scan.c) */
	char	   *path;			/* of a cursor: search_path, under which its texts were made */
	MemoryContextCallback callback;
	struct TesseraStatementNumber *next;
} TesseraStatementNumber;

/* The one of an EState, made if it is the first scan that asks. */
extern TesseraStatementNumber *tessera_statement_number(EState *estate);

/* NULL if no scan has asked. */
extern TesseraStatementNumber *tessera_statement_number_if_any(EState *estate);

/* In BeginCustomScan: true if a portal is being started between whose fetches other statements may run. False for EXPLAIN. */
extern bool tessera_opens_cursor(int eflags);

/* Calls open(scan) as part of the running statement (nesting level); marks its rows as a cursor's. */
extern void tessera_open_in_cursor(void (*open) (void *scan), void *scan, EState *estate);

/*
 * Until the end search_path is what it was when the statement's cursor was opened, by which its texts name what they read. Returns what the end
 * takes; 0: nothing was to be set. An error ends it with the transaction or subtransaction.
 */
extern int	tessera_cursor_path_begin(EState *estate);
extern void tessera_cursor_path_end(int nest);

/* True if the values come from the running plan (other rows, InitPlans). */
extern bool tessera_needs_running_plan(List *exprs);

/* For the portal being started: true if its scan with these values is held (see above). */
extern bool tessera_cursor_holds(List *exprs, bool locks);

/* ERROR 40001: a shard found an open cursor's routing stale. */
extern _Noreturn void tessera_cursor_stale(void);

#endif							/* TESSERA_CURSOR_H */
