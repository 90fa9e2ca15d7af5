/*
 * trigger_place.h
 *	  Where a user's trigger fires: on the router, in the client's session, or on the shard of its row.
 */
#ifndef TESSERA_TRIGGER_PLACE_H
#define TESSERA_TRIGGER_PLACE_H

#include "postgres.h"
#include "nodes/nodes.h"
#include "utils/rel.h"

/*
 * True if a statement of this kind that writes the table has to fire its triggers on the router: all that users have made, if any of them must. The
 * caller holds a lock on the table.
 */
extern bool tessera_fires_on_router(Relation rel, CmdType command);

/* True if any such trigger is deferrable. */
extern bool tessera_has_deferrable_trigger(Relation rel, CmdType command);

/*
 * Of the name of a built-in function that is not volatile: true if it tells of the session or of the node, so that another node may answer otherwise.
 */
extern bool tessera_tells_of_session(const char *function);

extern void tessera_trigger_place_init(void);	/* from _PG_init: setting, what makes its cache forget */

#endif							/* TESSERA_TRIGGER_PLACE_H */
