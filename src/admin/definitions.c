/*
 * definitions.c
 *	  Invariant 10 of check_consistency: each node defines the tables of the cluster as the config node does, and its catalog knows them.
 *
 * Phases: every node is asked for its definitions, item by item (call table_definitions). The lists come sorted and are merged with the
 * config node's; what differs of one table on one node is one row. Nothing is locked, so DDL may come in between: a node that differs is asked again,
 * with the config node, and only what still differs counts.
 *
 * Memory: results live in the caller's context. Nothing is kept.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "admin/consistency.h"
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

/* What a node has answered. */
typedef struct Definitions
{
	TesseraTableDefinitionsAnswer *rows;	/* sorted by object, then item */
	int			n;
} Definitions;

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
note_missing(Difference *d, const TesseraTableDefinitionsAnswer *row, bool there)
{
	const char *item = row->item;

	if (item[0] == WRONG)
	{
		if (there)
			note(d, row->object, item + 1);
	}
	else if (strcmp(item, "row of the catalog") == 0)
		note(d, row->object, there ? "its catalog has the table, the config node's has not" : "its catalog does not know the table");
	else if (strcmp(item, "table") == 0)
		note(d, row->object, there ? "the table exists there, but not on the config node" : "the table does not exist");
	else if (strcmp(item, "owner") != 0 && strcmp(item, "privileges") != 0 && strcmp(item, "row security of the table") != 0)
		note(d, row->object, psprintf(there ? "%s is not on the config node" : "%s is missing", item));
}

static void
note_both(Difference *d, const TesseraTableDefinitionsAnswer *expected, const TesseraTableDefinitionsAnswer *row)
{
	const char *item = row->item;

	if (item[0] == WRONG)
		note(d, row->object, item + 1);
	else if (strcmp(expected->definition, row->definition) != 0)
		note(d, row->object, psprintf("%s: \"%s\", not \"%s\" as on the config node", item, row->definition, expected->definition));
}

/* Merges two sorted lists; returns the number of tables that differ. With check, each of them is reported. */
static int
compare(TesseraCheck *check, const char *node, const Definitions *expected, const Definitions *found)
{
	Difference	d = {.check = check, .node = node};
	int			i = 0;
	int			j = 0;

	initStringInfo(&d.text);
	while (i < expected->n || j < found->n)
	{
		const TesseraTableDefinitionsAnswer *left = &expected->rows[i];
		const TesseraTableDefinitionsAnswer *right = &found->rows[j];
		int			order;

		CHECK_FOR_INTERRUPTS();
		if (i == expected->n)
			order = 1;
		else if (j == found->n)
			order = -1;
		else if ((order = strcmp(left->object, right->object)) == 0)
			order = strcmp(left->item, right->item);

		if (order == 0)
			note_both(&d, left, right);
		else
			note_missing(&d, order < 0 ? left : right, order > 0);
		i += order <= 0;
		j += order >= 0;
	}
	flush(&d);
	return d.ntables;
}

static bool
definitions_of(TesseraCheck *check, int32 node_id, Definitions *definitions)
{
	return tessera_check_answered(check, node_id, tessera_call_table_definitions(tessera_check_target(check, node_id), &definitions->rows,
																				 &definitions->n));
}

void
tessera_check_definitions(TesseraCheck *check)
{
	Definitions expected;

	if (!definitions_of(check, check->config, &expected))
		return;
	for (int i = 0; i < check->routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(check->routing, i)->node_id;
		const char *node = tessera_check_node_name(check, node_id);
		Definitions found = expected;

		if (node_id != check->config && !definitions_of(check, node_id, &found))
			continue;
		if (compare(NULL, node, &expected, &found) == 0)
			continue;
		/* perhaps it was DDL that ran meanwhile */
		if (!definitions_of(check, check->config, &expected))
			return;
		found = expected;
		if (node_id == check->config || definitions_of(check, node_id, &found))
			(void) compare(check, node, &expected, &found);
	}
}
