/*
 * replicated.h
 *	  What is written to replicated tables: captured on the lead, carried to the copies (doc/design.md#replicated-tables).
 */
#ifndef TESSERA_REPLICATED_H
#define TESSERA_REPLICATED_H

#include "postgres.h"
#include "nodes/execnodes.h"
#include "utils/array.h"
#include "utils/rel.h"

#include "executor/execdesc.h"
#include "nodes/pg_list.h"
#include "routing/routing.h"

/*
 * After a statement, at any depth: on a router, brings what was captured by it to every copy, as part of the transaction; on an internal connection,
 * outside of any statement, tells the router that there is something to fetch. Costs a comparison where nothing is captured. ERROR 08006 if a node
 * cannot be reached, and whatever applying the rows there raises.
 */
extern void tessera_replicated_carry(void);

/* Before a statement runs: ERROR 40001 if it reads a copy that was made after its snapshot. */
extern void tessera_replicated_check_snapshot(const QueryDesc *query);

/*
 * After the start of a query of a foreign key's trigger that changes rows: of a replicated table they are a copy's, unless this node is its lead;
 * users' triggers fire on the lead alone.
 */
extern void tessera_replicated_cascade_started(PlanState *plan);

/* True if a write to one of the tables on its shard may reach a replicated table there: it must not commit before that is carried on. */
extern bool tessera_replicated_may_follow(const TesseraRouting *routing, const List *relids);

/*
 * Rows as a batch for tessera_call_apply_replicated: empty when zeroed; row adds one ('I' with the new row, 'U' with both, 'D' with the old one);
 * is_full: it is to be sent; take returns it, palloc'd, and leaves an empty one. In the current memory context.
 */
typedef struct TesseraRowBatch
{
	ArrayBuildState *items;
	Size		bytes;
	int			nrows;
	Oid			relid;			/* whose rows follow */
} TesseraRowBatch;
extern void tessera_batch_row(TesseraRowBatch *batch, Relation rel, char operation, TupleTableSlot *old, TupleTableSlot *row);
extern bool tessera_batch_is_full(const TesseraRowBatch *batch);
extern ArrayType *tessera_batch_take(TesseraRowBatch *batch);

/* Sends a batch of rows of those tables to every node but one, and applies it here unless that is this node. fresh: the copies are being filled. */
extern void tessera_batch_send(const TesseraRouting *routing, const char *batch, const List *relids, int32 except, bool fresh);

/* The nodes of an image, as a word that can be compared; palloc'd. require: ERROR 40001 if this node, once it has asked, knows others. */
extern char *tessera_node_list(const TesseraRouting *routing);
extern void tessera_require_same_nodes(const char *nodes);

/*
 * Steps. Before a commit or PREPARE what deferred triggers have written is carried to the copies (errors as of tessera_replicated_carry), or on a
 * shard must have been fetched: ERROR XX000. What was captured ends with its transaction or subtransaction: these never raise.
 */
extern void tessera_replicated_before_end(void);
extern void tessera_replicated_forget(void);
extern void tessera_replicated_subtransaction_committed(SubTransactionId mine, SubTransactionId parent);
extern void tessera_replicated_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

#endif							/* TESSERA_REPLICATED_H */
