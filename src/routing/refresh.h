/*
 * refresh.h
 *	  Inside of the refresh from the config node. For routing/ only; what others call is in routing.h.
 */
#ifndef TESSERA_REFRESH_H
#define TESSERA_REFRESH_H

#include "postgres.h"
#include "nodes/pg_list.h"

#include "routing/routing.h"

/* From _PG_init: shared memory and settings. (refresh.c) */
extern void tessera_refresh_init(void);

/* Images that this backend has loaded. (routing.c) */
extern uint64 tessera_routing_loads(void);

/* Pages of chunk maps that this database has in shared memory, of all images together. (routing.c) */
extern uint32 tessera_routing_shared_pages(void);

/* ---- refresh_apply.c ---- */

/* State of one fetch, while its rows are applied. */
typedef struct TesseraRefresh
{
	MemoryContext context;		/* of distrusted: outlives the transaction */
	const TesseraRouting *routing;	/* the image that `known` was made from; its chunk maps tell what incoming chunks replace */
	List	   *distrusted;		/* of pg_uuid_t *: groups to be fetched whole, because their chunks here cannot be right */
	bool		changed;		/* something was written */
	bool		lasting;		/* something beside changes of chunks, which are there to be fetched again after a crash */
	bool		ended;			/* the last row has come */
	bool		whole;			/* the group whose rows come now comes whole */
	List	   *patched;		/* of pg_uuid_t *: groups of which only changes come */
} TesseraRefresh;

/* What this node has, as the argument of tessera_internal.catalog_changes; palloc'd. */
extern char *tessera_refresh_known(TesseraRefresh *refresh);

/*
 * Writes one row of the config node's answer into the catalog of this node. data: JSON, NULL for some kinds. ERROR 40001 if rows changed here
 * meanwhile.
 */
extern void tessera_refresh_apply(TesseraRefresh *refresh, const char *kind, const char *group_id, const char *data);

/*
 * After the last row: fills relids, checks the chunks of patched groups. Returns false if some are wrong (they are in `distrusted` then): the caller
 * rolls back.
 */
extern bool tessera_refresh_finish(TesseraRefresh *refresh);

/*
 * tessera_placement_raise_version for all groups, in the caller's transaction. Placements that others have locked are left to a later fetch. true:
 * something was written.
 */
extern bool tessera_refresh_raise_versions(void);

#endif							/* TESSERA_REFRESH_H */
