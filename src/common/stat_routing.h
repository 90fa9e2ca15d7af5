/*
 * stat_routing.h
 *	  Cumulative counters of this node: as a router statements by tier, retries, connections; as a shard waits at gates (view tessera.stat_routing).
 */
#ifndef TESSERA_STAT_ROUTING_H
#define TESSERA_STAT_ROUTING_H

#include "postgres.h"

typedef enum TesseraStat
{
	TESSERA_STAT_T1,			/* statements sent whole to one shard */
	TESSERA_STAT_WHOLE,			/* modifications sent whole to several */
	TESSERA_STAT_INSERT,		/* inserts routed row by row */
	TESSERA_STAT_GENERAL,		/* T3 */
	TESSERA_STAT_PARTS,
	TESSERA_STAT_STALE,			/* attempts that a shard, or the image, found stale */
	TESSERA_STAT_CONNECTIONS,	/* opened to other nodes */
	TESSERA_STAT_GATE_WAITS,	/* statements that have waited at the gate of a migration */
	TESSERA_STAT_GATE_WAIT_US,	/* microseconds they waited, added up */
	TESSERA_STAT_COUNT
} TesseraStat;

/* Counts one, or `amount`. Never raises. Counts nothing before the database has a slot in shared memory. */
extern void tessera_stat_count(TesseraStat stat);
extern void tessera_stat_add(TesseraStat stat, uint64 amount);

extern void tessera_stat_init(void);	/* from _PG_init: shared memory */

#endif							/* TESSERA_STAT_ROUTING_H */
