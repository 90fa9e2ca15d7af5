/*
 * ownership.h
 *	  The ownership filter: tessera.owned(group, key...) hides rows of this shard that it does not own (doc/design.md#ownership-filter).
 *
 * The planner adds it to scans of a group's tables while the placement hides anything (planner/table_path.c); it is decided at run time by the
 * placement that the statement's snapshot sees, so a plan that carries it is right whatever changed since.
 */
#ifndef TESSERA_OWNERSHIP_H
#define TESSERA_OWNERSHIP_H

#include "postgres.h"
#include "nodes/pg_list.h"

/* True if one of the (implicitly ANDed) quals is the filter. */
extern bool tessera_has_ownership_filter(List *quals);

/* Oid of tessera.owned(uuid, "any"...), cached; InvalidOid if the extension is gone. */
extern Oid	tessera_ownership_function(void);

/*
 * Oid of tessera.require_owned(uuid, "any"...), which raises an error for a row that this shard must not take; InvalidOid if the extension is gone.
 */
extern Oid	tessera_require_owned_function(void);

/* FuncExpr.location of a call of it that the planner has made: it may hold a migration's gate, so it is nobody's else to call. */
#define TESSERA_REQUIRES_OWNED (-4)

extern void tessera_ownership_init(void);	/* from _PG_init: what makes the oids forgotten */

#endif							/* TESSERA_OWNERSHIP_H */
