/*
 * schema_sequences.h
 *	  The sequences of a schema that has moved follow it to its new shard: on the config node, by the balancer's worker.
 */
#ifndef TESSERA_BALANCER_SCHEMA_SEQUENCES_H
#define TESSERA_BALANCER_SCHEMA_SEQUENCES_H

#include "postgres.h"

/* Hands over what can be; false: some are left, to be tried again. Outside of a transaction; memory in the current context. */
extern bool tessera_sequences_follow(void);

#endif							/* TESSERA_BALANCER_SCHEMA_SEQUENCES_H */
