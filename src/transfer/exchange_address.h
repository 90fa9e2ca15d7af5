/*
 * exchange_address.h
 *	  Where the exchange of a donor listens, and where the recipient finds it.
 */
#ifndef TESSERA_TRANSFER_EXCHANGE_ADDRESS_H
#define TESSERA_TRANSFER_EXCHANGE_ADDRESS_H

#include "postgres.h"

#include "transport/exchange.h"

typedef struct TesseraExchangeAddress
{
	char	   *bind_to;
	TesseraPorts ports;
	char	   *host;			/* other nodes find it under this name; NULL: under the address it is bound to */
} TesseraExchangeAddress;

/* Settings; migration_settings.c defines them for the server. */
extern char *tessera_exchange_address;
extern char *tessera_exchange_advertised_address;
extern char *tessera_exchange_ports;	/* see tessera_exchange_ports_parse */

/* By the settings and this node's conninfo; the current context owns the strings. In a transaction. */
extern void tessera_exchange_find_address(TesseraExchangeAddress *address);

/* What to tell the recipient of an endpoint that is bound there; palloc'd. */
extern char *tessera_exchange_advertise(const TesseraExchangeAddress *address, const char *endpoint);

/* Reads "first-last", "port", or "" (any); false if it is something else. */
extern bool tessera_exchange_ports_parse(const char *text, TesseraPorts *ports);

#endif							/* TESSERA_TRANSFER_EXCHANGE_ADDRESS_H */
