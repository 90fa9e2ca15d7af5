/*
 * plan_private.h
 *	  What the planner leaves for the executor in custom_private and custom_exprs of tessera's plan nodes.
 *
 * Plans are copied and cached, so all of it is made of Nodes. Shards and chunk versions never stand in a plan: they are chosen at execution.
 */
#ifndef TESSERA_PLAN_PRIVATE_H
#define TESSERA_PLAN_PRIVATE_H

#include "postgres.h"
#include "nodes/extensible.h"
#include "nodes/pg_list.h"

#include "executor/shard_check.h"

/* Whole statement (T1, or DML to all its shards). custom_exprs: the parameters, then the key expressions of all pins. */
typedef enum TesseraStatementPrivate
{
	STATEMENT_SQL,				/* texts (tessera_deparse in planner/ship.h) with $1..$n */
	STATEMENT_NPARAMS,			/* Integer: how many of custom_exprs, the first ones, are parameters */
	STATEMENT_PINS,				/* List of IntList (relid, then the index in custom_exprs of each key column's value) */
	STATEMENT_PLACED,			/* OidList: placed tables it names */
	STATEMENT_SHARDED,			/* OidList: sharded tables it names */
	STATEMENT_FLAGS,			/* Integer: TesseraStatementFlags */
	STATEMENT_CONDITIONS,		/* List of IntList (executor/shard_pruning.h) that bound the shards of STATEMENT_MANY */
	STATEMENT_POSITION,			/* Integer: of STATEMENT_CURRENT_OF, the parameter that is the ctid; -1: no such statement */
	STATEMENT_QUERY,			/* the Query, to be planned again if this plan does not fit when it is executed */
	STATEMENT_READS,			/* List of PlannedStmt, run before; the first parameters are arrays, one for each of their columns */
	STATEMENT_COUNT
} TesseraStatementPrivate;

typedef enum TesseraStatementFlags
{
	STATEMENT_WRITES = 1,		/* modifies or locks rows */
	STATEMENT_RETURNS_ROWS = 2,
	STATEMENT_MANY = 4,			/* goes to every shard that owns part of its (one) group, if no pin bounds it */
	STATEMENT_DML = 8,			/* sets es_processed */
	STATEMENT_CURRENT_OF = 64,	/* of the row where a cursor stands */
	STATEMENT_TIMELESS = 512,	/* nothing that shards run of it asks for now() or statement_timestamp() (planner/timeless.h) */
	STATEMENT_ONCE = 256,		/* neither its text nor a plan of it is kept where it runs */
	STATEMENT_COUNTED_ROWS = 128,	/* routed rows: the rows of a shard go in one statement, which triggers for each statement see */
	TABLE_SINGLE = 16,			/* T3: the statement's only fragment, run once */
	TABLE_NODES = 32			/* T3: its rows' tableoid is the number of the node that they lie on (planner/cursor_rows.h) */
} TesseraStatementFlags;

/*
 * Names of columns of a cursor's plan that are dropped before the user sees them, each followed by the number of its table in the range table: where
 * the row lies.
 */
#define TESSERA_CTID_COLUMN "tessera_ctid"
#define TESSERA_NODE_COLUMN "tessera_node"

/* Scan of one cluster table (T3). custom_exprs: the parameters of the shipped conditions, then the key expressions if pinned. */
typedef enum TesseraTablePrivate
{
	TABLE_SQL,					/* texts */
	TABLE_NPARAMS,				/* Integer */
	TABLE_ATTRIBUTES,			/* IntList: attribute numbers the result's columns stand for, system columns among them */
	TABLE_PINS,					/* List of IntList, as above; at most one */
	TABLE_CONDITIONS,			/* List of IntList (executor/shard_pruning.h) */
	TABLE_FLAGS,				/* Integer: STATEMENT_WRITES if it locks rows, TABLE_SINGLE, TABLE_NODES, STATEMENT_TIMELESS */
	TABLE_ORDER,				/* List of IntList (column, operator, collation, whether nulls come first): the order of each shard's rows */
	TABLE_COUNT
} TesseraTablePrivate;

/* INSERT whose rows are computed here and routed one by one. */
typedef enum TesseraInsertPrivate
{
	INSERT_SQL,					/* texts: INSERT of one row, $1..$n */
	INSERT_PARAM_TYPES,			/* OidList: of the parameters */
	INSERT_PARAM_COLUMNS,		/* IntList: column of the source row (1..) that parameter i takes */
	INSERT_ATTRIBUTES,			/* IntList: attribute of the table that each column of the source row is for */
	INSERT_RELID,				/* Integer */
	INSERT_SOURCE,				/* PlannedStmt of the rows */
	INSERT_FLAGS,				/* Integer: STATEMENT_RETURNS_ROWS, STATEMENT_COUNTED_ROWS, STATEMENT_TIMELESS */
	/*
	 * List of (texts, Integer): the same for so many rows at once, largest first; row columns' parameters row by row, the others behind. RETURNING
	 * has one more column, the row's position among them
	 */
	INSERT_BATCHES,
	INSERT_ROW_COLUMNS,			/* Integer: how many of the parameters, the first ones, are columns of the row */
	INSERT_COUNT
} TesseraInsertPrivate;

/* A statement whose data-modifying WITH queries are statements of their own (part_scan.c). */
typedef enum TesseraPartsPrivate
{
	PARTS_PLANS,				/* List of PlannedStmt: the WITH queries in their order, then the statement itself */
	PARTS_NAMES,				/* List of String: by which a WITH query's rows are read, one for each but the last */
	PARTS_FLAGS,				/* Integer: STATEMENT_DML if the statement itself modifies data */
	PARTS_COUNT
} TesseraPartsPrivate;

/* UPDATE of the shard key: the rows are locked, deleted, and inserted again (key_update_scan.c). */
typedef enum TesseraKeyUpdatePrivate
{
	KEY_UPDATE_LOCK,			/* PlannedStmt: SELECT ctid, old key, new row ... FOR UPDATE */
	KEY_UPDATE_INSERT,			/* PlannedStmt: routed INSERT of the new rows, read by the name KEY_UPDATE_ROWS */
	KEY_UPDATE_DELETE,			/* String: DELETE by $1, an array of ctid */
	KEY_UPDATE_RELID,			/* Integer */
	KEY_UPDATE_KEYS,			/* IntList: attribute numbers of the key */
	KEY_UPDATE_COUNT
} TesseraKeyUpdatePrivate;

#define KEY_UPDATE_ROWS "tessera rows to move"

/*
 * INSERT, UPDATE or DELETE of a table whose triggers fire on the router (row_trigger_scan.c). Rows of TRIGGER_SOURCE: of an INSERT the columns of
 * TRIGGER_ASSIGNED; else ctid, the old row's columns of TRIGGER_COLUMNS, the values of TRIGGER_ASSIGNED, what else RETURNING needs.
 */
typedef enum TesseraTriggerPrivate
{
	TRIGGER_ORDINARY,			/* PlannedStmt: the statement with triggers that fire where the rows lie; run if that is this node alone */
	TRIGGER_COMMAND,			/* Integer: CmdType */
	TRIGGER_RELID,				/* Integer */
	TRIGGER_SOURCE,				/* PlannedStmt: the rows of an INSERT; or SELECT ... FOR UPDATE of those to be changed */
	TRIGGER_COLUMNS,			/* IntList: attribute numbers of all columns */
	TRIGGER_ASSIGNED,			/* IntList: attribute numbers of those that the statement gives values to */
	TRIGGER_SQL,				/* texts: writes one row; returns its ctid and TRIGGER_COLUMNS, unless it deletes it */
	TRIGGER_PARAMS,				/* IntList: attribute that each parameter of the text stands for; SelfItemPointerAttributeNumber: the row's place */
	TRIGGER_RETURNING,			/* List of PlannedStmt, at most one: SELECT of RETURNING from TRIGGER_ROWS */
	TRIGGER_CONFLICT,			/* List, by TesseraConflictPrivate, of ON CONFLICT DO UPDATE; NIL: there is none */
	TRIGGER_COUNT
} TesseraTriggerPrivate;

/* What is done with the row that is in the way of a new one. Expressions have its columns as INNER_VAR, those of the new row as OUTER_VAR. */
typedef enum TesseraConflictPrivate
{
	CONFLICT_SQL,				/* texts: finds and locks it by the new row's values; returns ctid and TRIGGER_COLUMNS */
	CONFLICT_PARAMS,			/* IntList: as TRIGGER_PARAMS */
	CONFLICT_OWNER,				/* Integer: the role by whose rights it is read */
	CONFLICT_UPDATE_SQL,		/* texts: as TRIGGER_SQL of an UPDATE */
	CONFLICT_UPDATE_PARAMS,
	CONFLICT_ASSIGNED,			/* IntList: attribute numbers */
	CONFLICT_VALUES,			/* List of expressions, one for each */
	CONFLICT_WHERE,				/* List of expressions, at most one */
	CONFLICT_COUNT
} TesseraConflictPrivate;

/* By this name it reads the rows that were written: TRIGGER_COLUMNS, and what else RETURNING needs. */
#define TRIGGER_ROWS "tessera written rows"

/* Registers them. From _PG_init. */
extern void tessera_executor_init(void);

/* Set by planner/: plans a Query again; whole: also as a whole statement (else its pins fell on different shards). */
typedef struct PlannedStmt *(*TesseraNestedPlanner) (struct Query *query, const char *source, struct ParamListInfoData *params, bool whole);
extern TesseraNestedPlanner tessera_nested_planner;

#endif							/* TESSERA_PLAN_PRIVATE_H */
