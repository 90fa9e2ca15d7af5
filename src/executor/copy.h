/*
 * copy.h
 *	  COPY of tables of the cluster (doc/design.md#copy).
 *
 * COPY FROM: the router reads the rows, finds the shard of each by its key, and sends them on over one COPY stream per shard; its own shard's rows go
 * through the server's own COPY. Before the first row every shard that owns chunks has locked the table and accepted the version the router goes by,
 * so the routing stays right to the end of the transaction. COPY TO: COPY of a SELECT.
 */
#ifndef TESSERA_COPY_H
#define TESSERA_COPY_H

#include "postgres.h"
#include "access/attnum.h"
#include "commands/copyfrom_internal.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"

#include "common/utility_statement.h"
#include "routing/routing.h"
#include "session/internal_connection.h"
#include "transport/connection.h"

/* ---- copy.c ---- */

/* Runs COPY FROM of cluster tables and returns true; rewrites COPY TO of them in place and returns false. */
extern bool tessera_copy_statement(TesseraUtility *utility);

/* Replaces nextval() and the like in a column default; set by init.c (the sequences are the planner's). NULL: as it is. */
extern Node *(*tessera_route_default) (Node *expression);

/* ---- copy_stream.c: one COPY FROM STDIN on another node ---- */

typedef struct TesseraCopyStream
{
	int32		node_id;
	TesseraConnection *connection;	/* NULL: not opened */
	bool		copying;		/* the connection is out of pipeline mode */
	StringInfoData buffer;		/* not handed to libpq yet */
	uint64		processed;
} TesseraCopyStream;

/* Starts it within the distributed transaction. */
extern void tessera_copy_stream_open(TesseraCopyStream *stream, const TesseraRouting *routing, int nversions, const TesseraToldVersion *versions,
									 const char *sql);

/* Sends the buffer if it is large (or force). Waits while the other side does not keep up. ERROR of the other node. */
extern void tessera_copy_stream_flush(TesseraCopyStream *stream, bool force);

/* No more data. Then the answer: fills processed. */
extern void tessera_copy_stream_end(TesseraCopyStream *stream);
extern void tessera_copy_stream_finish(TesseraCopyStream *stream);

/* After an error: ends the COPY; afterwards the connection can be used for a rollback, or is closed. Never raises. */
extern void tessera_copy_stream_abort(TesseraCopyStream *stream);

/* ---- copy_row.c: rows as COPY data ---- */

typedef struct TesseraCopyRow
{
	bool		binary;			/* else text */
	int			ncolumns;
	AttrNumber *columns;
	Oid		   *types;
	FmgrInfo   *functions;		/* send or output */
} TesseraCopyRow;

/* For these columns; with binary, in binary form if every type's means the same on every node. In the current context. */
extern TesseraCopyRow *tessera_copy_row_make(TupleDesc desc, List *columns, bool binary);

/* Appends a row. Values that functions make are allocated in the current context. */
extern void tessera_copy_row_append(TesseraCopyRow *row, StringInfo out, const Datum *values, const bool *nulls);

extern void tessera_copy_row_header(TesseraCopyRow *row, StringInfo out);
extern void tessera_copy_row_trailer(TesseraCopyRow *row, StringInfo out);

/* ---- copy_from.c ---- */

/* Copies into the table, which is open and locked; privileges were checked. where: implicit-AND list, or NIL. Returns rows processed. */
extern uint64 tessera_copy_from(CopyStmt *statement, Relation rel, List *where, ParseState *pstate);

#endif							/* TESSERA_COPY_H */
