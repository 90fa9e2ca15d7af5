/*
 * pruning_conditions.h
 *	  Conditions on the key that bound the shards of a scan or of a multi-shard modification; executor/shard_pruning.h uses them.
 */
#ifndef TESSERA_PRUNING_CONDITIONS_H
#define TESSERA_PRUNING_CONDITIONS_H

#include "postgres.h"
#include "nodes/pg_list.h"

#include "routing/routing.h"

/* True if the value of a planned expression can be computed before the scan, once: it needs no row. */
extern bool tessera_known_before_scan(Node *node);

/*
 * From ANDed clauses (expressions over relation rti): list of IntList as in executor/shard_pruning.h; their value expressions are appended to *exprs.
 */
extern List *tessera_pruning_conditions(List *clauses, Index rti, const TesseraRouting *routing, const TesseraTable *table, List **exprs);

#endif							/* TESSERA_PRUNING_CONDITIONS_H */
