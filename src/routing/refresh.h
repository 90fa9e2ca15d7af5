/*
 * refresh.h
 *	  Inside of the refresh from the config node. For routing/ only; what others call is in routing.h.
 */
#ifndef TESSERA_REFRESH_H
#define TESSERA_REFRESH_H

#include "postgres.h"

extern void tessera_refresh_init(void);

/* Images loaded in this database since the server started. (routing.c) */
extern uint64 tessera_routing_loads(void);

#endif							/* TESSERA_REFRESH_H */
