/*
 * exchange_address.c
 *	  Where the exchange of a donor listens; see exchange_address.h.
 *
 * A node whose conninfo names a loopback address or a socket directory is reached from its own machine only, and binds to 127.0.0.1. Any other binds
 * to all its addresses, and is found under the host of its conninfo. A conninfo may name several servers, of which one is the node now: the first
 * host that is this machine. The settings tessera.exchange_address, exchange_ports and exchange_advertised_address say otherwise. CURVE admits the
 * one recipient either way.
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq-fe.h"

#include "routing/routing.h"
#include "transfer/exchange_address.h"

#define LOOPBACK "127.0.0.1"
#define ANY "0.0.0.0"
#define LAST_PORT 65535

char	   *tessera_exchange_address;
char	   *tessera_exchange_advertised_address;
char	   *tessera_exchange_ports;

static bool
is_loopback(const char *host)
{
	return host == NULL || host[0] == '\0' || host[0] == '/' || host[0] == '@' || strcmp(host, "localhost") == 0 ||
		strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* True if a socket can be bound to the host's address: then it is this machine's. A name that cannot be resolved is not. */
static bool
is_local(const char *host)
{
	struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
	struct addrinfo *addresses = NULL;
	bool		found = false;

	if (is_loopback(host))
		return true;
	if (getaddrinfo(host, NULL, &hints, &addresses) != 0)
		return false;
	for (struct addrinfo *one = addresses; one != NULL && !found; one = one->ai_next)
	{
		int			fd = socket(one->ai_family, one->ai_socktype, one->ai_protocol);

		if (fd < 0)
			continue;
		found = bind(fd, one->ai_addr, one->ai_addrlen) == 0;
		close(fd);
	}
	freeaddrinfo(addresses);
	return found;
}

/* The one of several hosts, separated by commas, that is this machine; the first if none is, or if there is no other. */
static char *
own_host(const char *hosts)
{
	char	   *rest = strchr(hosts, ',') != NULL ? pstrdup(hosts) : NULL;
	char	   *host;

	while ((host = strsep(&rest, ",")) != NULL)
		if (is_local(host))
			return host;
	return pnstrdup(hosts, strcspn(hosts, ","));
}

/* Host (or hostaddr) of a conninfo, of this node; NULL if it names none. */
static char *
conninfo_host(const char *conninfo)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	const char *value = NULL;
	char	   *hosts;

	if (options == NULL)
		return NULL;
	for (PQconninfoOption *option = options; option->keyword != NULL; option++)
	{
		if (option->val == NULL || option->val[0] == '\0')
			continue;
		if (strcmp(option->keyword, "hostaddr") == 0 || (strcmp(option->keyword, "host") == 0 && value == NULL))
			value = option->val;
	}
	hosts = value == NULL ? NULL : pstrdup(value);
	PQconninfoFree(options);
	return hosts == NULL ? NULL : own_host(hosts);
}

void
tessera_exchange_find_address(TesseraExchangeAddress *address)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	char	   *host = conninfo_host(tessera_node_conninfo(routing, tessera_routing_node(routing, routing->self)));
	bool		loopback = is_loopback(host);

	if (tessera_exchange_advertised_address[0] != '\0')
	{
		loopback = false;
		host = pstrdup(tessera_exchange_advertised_address);
	}
	address->bind_to = pstrdup(tessera_exchange_address[0] != '\0' ? tessera_exchange_address : loopback ? LOOPBACK : ANY);
	if (tessera_exchange_advertised_address[0] == '\0' && strcmp(address->bind_to, ANY) != 0)
		address->host = NULL;
	else
		address->host = loopback ? pstrdup(LOOPBACK) : host;
	/* the setting was checked when it was made */
	(void) tessera_exchange_ports_parse(tessera_exchange_ports, &address->ports);
}

char *
tessera_exchange_advertise(const TesseraExchangeAddress *address, const char *endpoint)
{
	bool		bare_ipv6;

	if (address->host == NULL)
		return pstrdup(endpoint);
	bare_ipv6 = strchr(address->host, ':') != NULL && address->host[0] != '[';
	return psprintf(bare_ipv6 ? "tcp://[%s]%s" : "tcp://%s%s", address->host, strrchr(endpoint, ':'));
}

bool
tessera_exchange_ports_parse(const char *text, TesseraPorts *ports)
{
	int			length = 0;

	ports->first = ports->last = 0;
	if (text[0] == '\0')
		return true;
	if (sscanf(text, "%d%n", &ports->first, &length) != 1)
		return false;
	ports->last = ports->first;
	text += length;
	if (text[0] == '-' && sscanf(text + 1, "%d%n", &ports->last, &length) == 1)
		text += 1 + length;
	return text[0] == '\0' && ports->first >= 1 && ports->first <= ports->last && ports->last <= LAST_PORT;
}
