/*
 * announce_server.c
 *	  A node has another server now: all are told, and first of all the servers that it had before, if they live (catalog/incarnation.h).
 *
 * They may live at any of the addresses that the node's conninfo lists, so each is connected to by itself. What cannot be reached soon learns of it
 * by itself. Nothing durable.
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "libpq-fe.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "catalog/identity.h"
#include "common/protocol.h"
#include "common/spi_text.h"
#include "config/membership.h"
#include "control/calls.h"
#include "transaction/participant.h"

#define TELL_MS 5000			/* connecting to all of them */


static int
count_items(const char *list)
{
	int			n = 1;

	for (const char *c = list ? list : ""; *c; c++)
		n += *c == ',';
	return n;
}

/* Item i of a list with commas; the only item, if there is just one. Palloc'd. */
static char *
list_item(const char *list, int i)
{
	int			n = count_items(list);

	for (; i > 0 && n > 1; i--)
		list = strchr(list, ',') + 1;
	return pnstrdup(list, strcspn(list, ","));
}

static bool
is_list(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 || strcmp(keyword, "port") == 0;
}

static void
append_option(StringInfo conninfo, const char *keyword, const char *value)
{
	appendStringInfo(conninfo, "%s='", keyword);
	for (; *value; value++)
	{
		if (*value == '\'' || *value == '\\')
			appendStringInfoChar(conninfo, '\\');
		appendStringInfoChar(conninfo, *value);
	}
	appendStringInfoString(conninfo, "' ");
}

/* The conninfo with only its address number i. Palloc'd. */
static char *
single_conninfo(const PQconninfoOption *options, int i)
{
	StringInfoData conninfo;

	initStringInfo(&conninfo);
	for (const PQconninfoOption *option = options; option->keyword; option++)
		if (option->val)
			append_option(&conninfo, option->keyword, is_list(option->keyword) ? list_item(option->val, i) : option->val);
	return conninfo.data;
}

static int
count_addresses(const PQconninfoOption *options)
{
	int			n = 1;

	for (const PQconninfoOption *option = options; option->keyword; option++)
		if (option->val && is_list(option->keyword))
			n = Max(n, count_items(option->val));
	return n;
}

void
tessera_announce_incarnation(const char *name, const char *conninfo, int incarnation)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	char	  **addresses;
	int			n;

	if (options == NULL)
		return;
	n = count_addresses(options);
	addresses = palloc(sizeof(char *) * n);
	for (int i = 0; i < n; i++)
		addresses[i] = single_conninfo(options, i);
	PQconninfoFree(options);
	for (int i = 0; i < n; i++)
		tessera_announce(name, addresses[i], tessera_hello_text(tessera_require_cluster(), incarnation, MyProcPid));
}

static void
announce(int32 node_id)
{
	const char *values[] = {psprintf("%d", node_id)};
	const char *name = tessera_admin_value("SELECT name FROM tessera.node WHERE node_id = $1::int4", 1, values);
	TesseraRegistered *node = tessera_registered_or_error(name != NULL ? name : values[0]);

	tessera_announce_incarnation(node->name, node->conninfo, node->incarnation);
	tessera_announce_others(node->node_id, tessera_reload_call());
}

/* On the config node; all that can be reached soon are told after the transaction. */
void
tessera_serve_announce_server(const TesseraAnnounceServerArgs *args)
{
	TimestampTz before = tessera_connections_limit(TimestampTzPlusMilliseconds(GetCurrentTimestamp(), TELL_MS));
	TesseraSpi	access;

	PG_TRY();
	{
		tessera_spi_begin(&access);
		announce(args->node);
		tessera_spi_end(&access);
	}
	PG_FINALLY();
	{
		(void) tessera_connections_limit(before);
	}
	PG_END_TRY();
}
