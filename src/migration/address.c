/*
 * address.c
 *	  Where the exchange of a donor listens; see address.h.
 *
 * A node whose conninfo names a loopback address or a socket directory is reached from its own machine only, and binds to 127.0.0.1. Any other binds to
 * all its addresses, and is found under the host of its conninfo. CURVE admits the one recipient either way.
 */
#include "postgres.h"

#include "libpq-fe.h"

#include "migration/address.h"
#include "migration/settings.h"
#include "routing/routing.h"

#define LOOPBACK "127.0.0.1"
#define ANY "0.0.0.0"

/* First host (or hostaddr) of a conninfo; NULL if it names none. */
static char *
first_host(const char *conninfo)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	const char *value = NULL;
	char	   *host = NULL;

	if (options == NULL)
		return NULL;
	for (PQconninfoOption *option = options; option->keyword != NULL; option++)
	{
		if (option->val == NULL || option->val[0] == '\0')
			continue;
		if (strcmp(option->keyword, "hostaddr") == 0 || (strcmp(option->keyword, "host") == 0 && value == NULL))
			value = option->val;
	}
	if (value != NULL)
		host = pnstrdup(value, strcspn(value, ","));
	PQconninfoFree(options);
	return host;
}

static bool
is_loopback(const char *host)
{
	return host == NULL || host[0] == '\0' || host[0] == '/' || host[0] == '@' || strcmp(host, "localhost") == 0 ||
		strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

void
tessera_exchange_addresses(char **bind_address, char **host)
{
	const TesseraRouting *routing = tessera_routing();
	char	   *name = first_host(tessera_node_conninfo(routing, tessera_routing_node(routing, routing->self)));
	bool		loopback = is_loopback(name);

	*host = loopback ? pstrdup(LOOPBACK) : name;
	if (tessera_exchange_address[0] != '\0')
		*bind_address = pstrdup(tessera_exchange_address);
	else
		*bind_address = pstrdup(loopback ? LOOPBACK : ANY);
}

char *
tessera_exchange_advertise(const char *endpoint, const char *host)
{
	const char *port = strrchr(endpoint, ':');

	if (strncmp(endpoint, "tcp://" ANY ":", strlen("tcp://" ANY ":")) == 0)
		return psprintf("tcp://%s%s", host, port);
	return pstrdup(endpoint);
}
