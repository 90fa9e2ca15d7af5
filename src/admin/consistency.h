/*
 * consistency.h
 *	  A running check_consistency, for the files that share its work.
 */
#ifndef TESSERA_ADMIN_CONSISTENCY_H
#define TESSERA_ADMIN_CONSISTENCY_H

#include "nodes/execnodes.h"

#include "control/calls.h"
#include "routing/routing.h"

/* What a shard has said of its placements, in no order. */
typedef struct TesseraShardPlacements
{
	bool		known;			/* it has answered */
	TesseraOwnedRangesAnswer *rows;
	int			n;
} TesseraShardPlacements;

/* A running check. */
typedef struct TesseraCheck
{
	const TesseraRouting *routing;
	ReturnSetInfo *result;
	int32		config;
	bool		deep;
	int			nshards;
	int32	   *shards;
	TesseraShardPlacements *placements; /* of each shard */
	TesseraBusyGroupsAnswer *busy;	/* groups and nodes of running migrations */
	int			nbusy;
	ErrorData  *error;			/* of the last call that failed */
} TesseraCheck;

/* One violation of an invariant (0: something could not be checked). */
extern void tessera_check_report(TesseraCheck *check, int invariant, const char *object, const char *detail);

/* A node as the target of a call that may fail; and whether it did not: else it is reported that the node could not be checked. */
extern TesseraCallTarget tessera_check_target(TesseraCheck *check, int32 node_id);
extern bool tessera_check_answered(TesseraCheck *check, int32 node_id, bool answered);

/* Name of a node, palloc'd or of the routing image. */
extern const char *tessera_check_node_name(const TesseraCheck *check, int32 node_id);

/* Invariant 10: reports where definitions of the cluster's tables differ between nodes (definitions.c). */
extern void tessera_check_definitions(TesseraCheck *check);

/* Invariant 11: reports where copies of replicated tables differ from their lead's; reads all rows, on every node (compare_copies.c). */
extern void tessera_check_copies(TesseraCheck *check);

#endif							/* TESSERA_ADMIN_CONSISTENCY_H */
