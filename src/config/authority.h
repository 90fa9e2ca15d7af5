/*
 * authority.h
 *	  What a call to the config node begins with: is this the config node, is its term not over, and is the group as the caller knows it?
 */
#ifndef TESSERA_AUTHORITY_H
#define TESSERA_AUTHORITY_H

#include "postgres.h"
#include "utils/uuid.h"

#include "catalog/key.h"
#include "routing/routing.h"

/* On the config node: its routing table. ERROR 55000 if this is another node, TS003 if the caller has seen a higher config term. */
extern const TesseraRouting *tessera_config_routing(int64 term);

/*
 * For the config node's workers, in a transaction of its own: below 0 this is another node; 0: it does not know yet what is true, or was replaced;
 * above 0 it may act.
 */
extern int	tessera_config_duty(void);

/* The group in the routing table, ERROR TS002 if it is not there or of another epoch (epoch NULL: any). */
extern const TesseraGroup *tessera_config_group(const TesseraRouting *routing, const pg_uuid_t *group_id, const pg_uuid_t *epoch);

/* min of the chunk that holds the position by this routing table: the hint for config/chunks.h. */
extern TesseraBound *tessera_chunk_hint(const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks,
										const TesseraKeyBound *position);

#endif							/* TESSERA_AUTHORITY_H */
