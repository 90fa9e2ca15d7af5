/*
 * burden.h
 *	  Who suffers on this shard, so that moves that the balancer has begun, and the range deleter, make way.
 */
#ifndef TESSERA_MIGRATION_BURDEN_H
#define TESSERA_MIGRATION_BURDEN_H

#include "postgres.h"

typedef enum TesseraBurden
{
	TESSERA_BURDEN_NONE,
	TESSERA_BURDEN_CLIENTS,		/* clients' transactions take longer than tessera.balancer_max_slowdown allows */
	TESSERA_BURDEN_STANDBY		/* an attached standby has more to replay than tessera.balancer_max_lag */
} TesseraBurden;

#define TESSERA_BURDEN_TEXT 96

/* By the settings of this server; the text (of TESSERA_BURDEN_TEXT bytes) says who, and is empty for none. Locks: for moments. */
extern TesseraBurden tessera_shard_burden(char *text);

/* The same of standbys alone. */
extern bool tessera_standbys_burdened(char *text);

#endif							/* TESSERA_MIGRATION_BURDEN_H */
