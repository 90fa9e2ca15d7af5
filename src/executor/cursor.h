/*
 * cursor.h
 *	  Cursors over rows of other nodes: other statements of the session run between their start and their fetches (doc/design.md#cursors).
 *
 * A cursor shows the rows as they are when it is opened, so its scans begin at ExecutorStart. What is fetched at once (a FOR loop of PL/pgSQL, a portal of the
 * protocol) is sent there. A scan of a declared cursor, and one that takes values from other rows or locks its rows, is held: a probe of it runs on every shard
 * it may go to, and the shard keeps the probe's snapshot under the statement's number; the scan itself runs at the fetch, as on a plain server, errors and locks
 * included. It is routed by the image that it was opened with, valid to the end of the transaction: a move since leaves the old rows, or ends in 40001.
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
	bool		counted;		/* in the statistics, as T3 */
	List	   *scans;			/* of a cursor: those opened with it (table_scan.c) */
	MemoryContextCallback callback;
	struct TesseraStatementNumber *next;
} TesseraStatementNumber;

/* The one of an EState, made if it is the first scan that asks. */
extern TesseraStatementNumber *tessera_statement_number(EState *estate);

/* In BeginCustomScan: is this the start of a portal that other statements may run between the fetches of? False for EXPLAIN. */
extern bool tessera_opens_cursor(int eflags);

/* Calls open(scan) as a part of running the statement (nesting); then its rows belong to a cursor. */
extern void tessera_open_in_cursor(void (*open) (void *scan), void *scan, EState *estate);

/* Do the values come from the running plan (other rows, InitPlans)? */
extern bool tessera_needs_running_plan(List *exprs);

/* Of the portal being started: is its scan with these values held? See above. */
extern bool tessera_cursor_holds(List *exprs, bool locks);

/* ERROR 40001: a shard finds stale what an open cursor is routed by. */
extern _Noreturn void tessera_cursor_stale(void);

#endif							/* TESSERA_CURSOR_H */
