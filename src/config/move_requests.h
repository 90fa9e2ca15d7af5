/*
 * move_requests.h
 *	  Moves that the balancer is asked to make (config node).
 */
#ifndef TESSERA_MOVE_REQUESTS_H
#define TESSERA_MOVE_REQUESTS_H

#include "postgres.h"

#include "config/chunks.h"
#include "routing/routing.h"

/* The shard of a name, to be given rows. ERROR 42704 if there is none, 22023 if it is no shard or is being removed. */
extern int32 tessera_shard_to_move_to(const TesseraRouting *routing, const char *name);

#endif							/* TESSERA_MOVE_REQUESTS_H */
