/*
 * consistency.h
 *	  A running check_consistency, for the files that share its work.
 */
#ifndef TESSERA_ADMIN_CONSISTENCY_H
#define TESSERA_ADMIN_CONSISTENCY_H

#include "libpq-fe.h"
#include "nodes/execnodes.h"

#include "routing/routing.h"

/* A running check. */
typedef struct TesseraCheck
{
	const TesseraRouting *routing;
	ReturnSetInfo *result;
	int32		config;
	bool		deep;
	int			nshards;
	int32	   *shards;
	PGresult  **placements;		/* of each shard; NULL: it did not answer */
	PGresult   *busy;			/* group_id, node_id of running migrations */
} TesseraCheck;

/* One violation of an invariant (0: something could not be checked). */
extern void tessera_check_report(TesseraCheck *check, int invariant, const char *object, const char *detail);

/* A query on a node over the control lane; if that fails, it is reported that the node could not be checked, and NULL is the answer. */
extern PGresult *tessera_check_ask(TesseraCheck *check, int32 node_id, const char *sql, int nparams, const char *const *values);

/* Name of a node, palloc'd or of the routing image. */
extern const char *tessera_check_node_name(const TesseraCheck *check, int32 node_id);

/* Invariant 10: reports where definitions of the cluster's tables differ between nodes (definitions.c). */
extern void tessera_check_definitions(TesseraCheck *check);

#endif							/* TESSERA_ADMIN_CONSISTENCY_H */
