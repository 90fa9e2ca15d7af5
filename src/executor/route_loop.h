/*
 * route_loop.h
 *	  The repeat when stale: the one loop that every statement of the executor, and COPY, goes through. It chooses the shards by the routing table,
 *	  starts the statement there, and does both again as long as a shard finds that stale. DDL and TRUNCATE repeat in ddl/attempts.c.
 */
#ifndef TESSERA_ROUTE_LOOP_H
#define TESSERA_ROUTE_LOOP_H

#include "postgres.h"

#include "executor/shard_run.h"
#include "routing/routing.h"

typedef struct TesseraRoute TesseraRoute;

/* How one statement is routed. Lives on the caller's stack, or as the first member of a struct of the caller's. */
struct TesseraRoute
{
	void	   *owner;			/* for the functions below: whose statement it is */

	/*
	 * Sets request->targets and ntargets, and whatever else of the request depends on them, by request->routing, which is NULL if the database is in
	 * no cluster any more. false: nothing is to be started, the loop ends.
	 */
	bool		(*choose) (TesseraRoute *route, TesseraShardRunRequest *request);

	/* Starts it on the targets chosen; false: stale, nothing was done. NULL: tessera_shard_run_start. */
	bool		(*start) (TesseraRoute *route, TesseraShardRunRequest *request);

	/*
	 * A shard found it stale and will be asked again: what has to be made anew for that, such as the statement's number. Raises if it is too late.
	 * NULL: nothing.
	 */
	void		(*stale) (TesseraRoute *route, TesseraShardRunRequest *request);

	const TesseraRouting *fixed;	/* it goes by this image and no other (an open cursor); then `stale` raises. NULL: by the newest */
	const TesseraRouting *first;	/* by this one at first: other fragments of the statement went by it. NULL: by the newest */
	bool		begun;			/* other fragments of the statement have run (tessera_route_begun) */
	int			attempts;		/* how often it was found stale */
};

/*
 * Returns whether the statement runs: every shard has accepted it. The request's routing, targets and snapshot are those of the last attempt; a
 * snapshot that is not the one it came with belongs to the run (tessera_shard_run_take_snapshot). run: not started; NULL if `start` needs none. ERROR
 * 40001 when it is still stale after tessera.gate_timeout.
 */
extern bool tessera_route(TesseraRoute *route, TesseraShardRun *run, TesseraShardRunRequest *request);

/*
 * For `stale`: rows of other fragments of the statement are in use, so it cannot begin anew. It is asked again under the snapshot and the number that
 * it has: those are good if it was only the router, or a shard, that had not heard of a move. After a few attempts ERROR 40001.
 */
extern void tessera_route_begun(TesseraRoute *route);

#endif							/* TESSERA_ROUTE_LOOP_H */
