/*
 * address.h
 *	  Where the exchange of a donor listens, and where the recipient finds it.
 */
#ifndef TESSERA_MIGRATION_ADDRESS_H
#define TESSERA_MIGRATION_ADDRESS_H

#include "postgres.h"

/* Address to bind to, and host name that other nodes use for this node (of its conninfo); palloc'd. In a transaction. */
extern void tessera_exchange_addresses(char **bind_address, char **host);

/* The endpoint with the host put in, unless it names an address of its own already; palloc'd. */
extern char *tessera_exchange_advertise(const char *endpoint, const char *host);

#endif							/* TESSERA_MIGRATION_ADDRESS_H */
