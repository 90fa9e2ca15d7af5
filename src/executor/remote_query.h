/*
 * remote_query.h
 *	  An SQL text with typed parameters and a row type, as it goes to shards: how its values cross the wire.
 *
 * Values go in binary where the type's send and receive functions mean the same on every node (built-in types without node-local OIDs inside), else
 * as text. Columns of a result that go as text are text within the statement (planner/exact_columns.h), so the result as a whole is binary. All of a
 * TesseraRemoteQuery lives in the context it was made in; what its values need is looked up when it first goes to another node.
 */
#ifndef TESSERA_REMOTE_QUERY_H
#define TESSERA_REMOTE_QUERY_H

#include "postgres.h"
#include "access/tupdesc.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "libpq-fe.h"
#include "nodes/pg_list.h"

#include "rows/stored_value.h"
#include "transport/connection.h"

typedef struct TesseraRemoteQuery
{
	const char *sql;			/* what is sent */
	const char *local;			/* what runs on this node: the same, with all columns as they are */
	const char *text;			/* the statement itself: what runs here, if it is read by the current user's rights */
	const char *exact;			/* that of sql */
	Oid			check_as;		/* else by whose */
	bool		once;			/* neither the text nor a plan of it is kept where it runs; false as it is made */
	int			nparams;
	Oid		   *types;			/* of the parameters, here */
	TupleDesc	desc;			/* rows returned; NULL: none */
	int			natts;			/* columns of a result row */
	AttrNumber *attnums;		/* column i of a result goes to this attribute of desc */

	/* from the first tessera_wire_params on */
	bool		prepared;
	Oid		   *wire_types;		/* as told to the shard: 0 for user types (the text casts them) */
	int		   *formats;
	FmgrInfo   *out;			/* send or output function of each parameter */
	uint32		shape;			/* hash of the types of its result columns; 0: none */
	FmgrInfo   *in;				/* receive function of each result column that is binary */
	Oid		   *ioparams;
	int32	   *typmods;
	TesseraStoredType **stored; /* of the others: how they are read, without checks of domains, which the shard has made; NULL: is binary */
	bool		has_text;		/* some are such others */
	TesseraStoredType **plain;	/* how those that are binary are read as text, from a shard of an older version; NULL: not needed yet */
} TesseraRemoteQuery;

/* Parameters of one execution, converted. Lives in the context given at conversion. */
typedef struct TesseraWireParams
{
	const char **values;
	int		   *lengths;
} TesseraWireParams;

/*
 * types: nparams parameter types. desc: full row type of the slots to fill, or NULL; attnums (NULL: all, in order): list of the attributes that the
 * result's columns stand for, natts of them. texts: of tessera_deparse in planner/ship.h. They and desc are not copied.
 */
extern TesseraRemoteQuery *tessera_remote_query_make(const List *texts, int nparams, const Oid *types, TupleDesc desc, int natts,
													 const AttrNumber *attnums);

/*
 * The text for a node that speaks this protocol, and the format in which it returns columns: one that does not know of exact text returns text as the
 * session's settings have it. ERROR 55000 if that may lose something. After tessera_wire_params.
 */
extern const char *tessera_remote_query_sql(const TesseraRemoteQuery *query, int protocol, int *result_format);

/* From now on its tables are read by this role's rights (session/check_as.h). Only a SELECT. */
extern void tessera_remote_query_check_as(TesseraRemoteQuery *query, Oid role);

/* A query with the same tables and parameters that reads nothing: for the locks, checks and snapshot that the query itself will run under. */
extern TesseraRemoteQuery *tessera_remote_query_probe(const TesseraRemoteQuery *query);

/* Values in their form on the wire, in the current context. The query can be sent after that. */
extern void tessera_wire_params(TesseraRemoteQuery *query, const Datum *values, const bool *nulls, TesseraWireParams *out);

/*
 * Stores row `row` of the result into the (virtual) slot; by-reference values are allocated in the current context. ERROR XX001-like on a wrong
 * shape.
 */
extern void tessera_wire_row(TesseraRemoteQuery *query, PGresult *result, int row, TupleTableSlot *slot);

#endif							/* TESSERA_REMOTE_QUERY_H */
