/*
 * conditions.h
 *	  Conditions on the key that bound the shards of a scan or of a multi-shard modification; executor/prune.h uses them.
 */
#ifndef TESSERA_CONDITIONS_H
#define TESSERA_CONDITIONS_H

#include "postgres.h"
#include "nodes/pg_list.h"

#include "routing/routing.h"

/* From ANDed clauses (expressions over relation rti): list of IntList as in executor/prune.h; their value expressions are appended to *exprs. */
extern List *tessera_prune_conditions(List *clauses, Index rti, const TesseraRouting *routing, const TesseraTable *table, List **exprs);

#endif							/* TESSERA_CONDITIONS_H */
