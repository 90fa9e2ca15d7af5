/*
 * definitions.c
 *	  Invariant 10 of check_consistency: each node defines the tables of the cluster as the config node does, and its catalog knows them.
 *
 * Phases: every node is asked for its definitions, item by item (tessera_internal.table_definitions). The lists come sorted and are merged with the
 * config node's; what differs of one table on one node is one row. Nothing is locked, so DDL may come in between: a node that differs is asked again,
 * with the config node, and only what still differs counts.
 *
 * Memory: results live in the caller's context. Nothing is kept.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "admin/consistency.h"
#include "common/protocol.h"
#include "control/calls.h"

/* Items of one table that are named in a row; of more, their number. */
#define NAMED_ITEMS 6

/* Marks items that are wrong in themselves, whatever other nodes say. */
#define WRONG '!'

/* What differs of the table at hand, on the node at hand. */
typedef struct Difference
{
	TesseraCheck *check;		/* NULL: differences are only counted */
	const char *node;
	int			ntables;		/* that differ */
	char	   *object;			/* NULL: none yet */
	StringInfoData text;
	int			nitems;
} Difference;

static const char *
object_of(PGresult *rows, int i)
{
	return PQgetvalue(rows, i, 0);
}

static const char *
item_of(PGresult *rows, int i)
{
	return PQgetvalue(rows, i, 1);
}

/* The table at hand is done with. */
static void
flush(Difference *d)
{
	if (d->object == NULL)
		return;
	d->ntables++;
	if (d->nitems > NAMED_ITEMS)
		appendStringInfo(&d->text, "; and %d more", d->nitems - NAMED_ITEMS);
	if (d->check != NULL)
		tessera_check_report(d->check, 10, d->object, psprintf("node %s: %s", d->node, d->text.data));
	d->object = NULL;
}

static void
note(Difference *d, const char *object, const char *what)
{
	if (d->object == NULL || strcmp(d->object, object) != 0)
	{
		flush(d);
		d->object = pstrdup(object);
		resetStringInfo(&d->text);
		d->nitems = 0;
	}
	if (d->nitems++ < NAMED_ITEMS)
		appendStringInfo(&d->text, "%s%s", d->text.len > 0 ? "; " : "", what);
}

/* An item that only one of the two has. The first ones of a table say enough if it is missing as a whole. */
static void
note_missing(Difference *d, PGresult *rows, int i, bool there)
{
	const char *item = item_of(rows, i);

	if (item[0] == WRONG)
	{
		if (there)
			note(d, object_of(rows, i), item + 1);
	}
	else if (strcmp(item, "row of the catalog") == 0)
		note(d, object_of(rows, i), there ? "its catalog has the table, the config node's has not" : "its catalog does not know the table");
	else if (strcmp(item, "table") == 0)
		note(d, object_of(rows, i), there ? "the table exists there, but not on the config node" : "the table does not exist");
	else if (strcmp(item, "owner") != 0 && strcmp(item, "privileges") != 0 && strcmp(item, "row security of the table") != 0)
		note(d, object_of(rows, i), psprintf(there ? "%s is not on the config node" : "%s is missing", item));
}

static void
note_both(Difference *d, PGresult *expected, int i, PGresult *rows, int j)
{
	const char *item = item_of(rows, j);

	if (item[0] == WRONG)
		note(d, object_of(rows, j), item + 1);
	else if (strcmp(PQgetvalue(expected, i, 2), PQgetvalue(rows, j, 2)) != 0)
		note(d, object_of(rows, j),
			 psprintf("%s: \"%s\", not \"%s\" as on the config node", item, PQgetvalue(rows, j, 2), PQgetvalue(expected, i, 2)));
}

/* Merges two sorted lists; returns the number of tables that differ. With check, each of them is reported. */
static int
compare(TesseraCheck *check, const char *node, PGresult *expected, PGresult *rows)
{
	Difference	d = {.check = check, .node = node};
	int			i = 0;
	int			j = 0;

	initStringInfo(&d.text);
	while (i < PQntuples(expected) || j < PQntuples(rows))
	{
		int			order;

		CHECK_FOR_INTERRUPTS();
		if (i == PQntuples(expected))
			order = 1;
		else if (j == PQntuples(rows))
			order = -1;
		else if ((order = strcmp(object_of(expected, i), object_of(rows, j))) == 0)
			order = strcmp(item_of(expected, i), item_of(rows, j));

		if (order == 0)
			note_both(&d, expected, i++, rows, j++);
		else if (order < 0)
			note_missing(&d, expected, i++, false);
		else
			note_missing(&d, rows, j++, true);
	}
	flush(&d);
	return d.ntables;
}

static PGresult *
definitions_of(TesseraCheck *check, int32 node_id)
{
	const char *call = tessera_call_text(&tessera_call_specs[TESSERA_CALL_TABLE_DEFINITIONS], TESSERA_OLDEST_PROTOCOL, NULL);

	return tessera_check_ask(check, node_id, call, 0, NULL);
}

void
tessera_check_definitions(TesseraCheck *check)
{
	PGresult   *expected = definitions_of(check, check->config);

	if (expected == NULL)
		return;
	for (int i = 0; i < check->routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(check->routing, i)->node_id;
		const char *node = tessera_check_node_name(check, node_id);
		PGresult   *rows = node_id == check->config ? expected : definitions_of(check, node_id);

		if (rows == NULL || compare(NULL, node, expected, rows) == 0)
			continue;
		/* perhaps it was DDL that ran meanwhile */
		expected = definitions_of(check, check->config);
		rows = node_id == check->config ? expected : definitions_of(check, node_id);
		if (expected == NULL)
			return;
		if (rows != NULL)
			(void) compare(check, node, expected, rows);
	}
}
