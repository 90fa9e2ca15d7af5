/*
 * reference_check.h
 *	  Foreign keys to replicated tables, whose checks each node makes for the rows that it owns (doc/design.md#replicated-tables).
 *
 * A row that is deleted, or gets another key, is looked for by each node among its own rows. Ranges of those may move between the looks of two nodes,
 * and then none would see what moved. So all nodes look by the same placement in a transaction: the versions by which a node looks are kept until it
 * ends, and others are ERROR 40001.
 */
#ifndef TESSERA_REFERENCE_CHECK_H
#define TESSERA_REFERENCE_CHECK_H

#include "postgres.h"
#include "executor/execdesc.h"
#include "nodes/pg_list.h"

#include "routing/routing.h"

/*
 * True for a text that core's triggers of foreign keys have made to look at, or change, rows that refer to one that is gone or has another key. Such
 * a query on a table that refers to a replicated one is each node's own: the row that is gone is gone on every node.
 */
extern bool tessera_is_reference_query(const char *text);

/* Before such a query runs: it goes by what this node owns, and waits at gates. ERROR 40001 if that is in doubt, or not what was kept. */
extern void tessera_reference_check(QueryDesc *query);

/* Versions of a node, of all tables whose rows refer to those replicated tables, or to what cascades reach; palloc'd, "" if there are none. */
extern char *tessera_reference_versions(const TesseraRouting *routing, const List *relids, int32 node_id);

/* Keeps versions for this node in this transaction. ERROR 40001 if others are kept. */
extern void tessera_reference_keep(const char *versions);

/* The lead keeps its own when a row of the table is captured; given to the router, which compares them with those by which it tells the others. */
extern void tessera_reference_keep_own(const TesseraRouting *routing, Oid relid);
extern char *tessera_reference_kept(void);
extern void tessera_reference_compare(const TesseraRouting *routing, const char *versions, int32 node_id);

/* Step at the end of a transaction: forgets the versions that it has kept. Never raises. */
extern void tessera_reference_forget(void);

#endif							/* TESSERA_REFERENCE_CHECK_H */
