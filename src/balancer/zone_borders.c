/*
 * zone_borders.c
 *	  Chunks are split where a zone's range begins or ends; see zone_borders.h.
 *
 * What is to be split is read off the routing image and tessera.zone_range, each split is a call to the config node, which looks again under its
 * locks. A crash leaves a chunk that is split the next time.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "balancer/zone_borders.h"
#include "catalog/bound_array.h"
#include "common/spi_row.h"
#include "common/subtransaction.h"
#include "common/text.h"
#include "config/membership.h"
#include "control/calls.h"
#include "transaction/background.h"

#define CALL_MS 10000

typedef struct Border
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		term;
	char	   *object;
	char	   *points;			/* text of an array of one bound */
} Border;

/* A name for the changelog: that of one of the group's tables. */
static char *
name_of_group(const TesseraRouting *routing, const TesseraGroup *group)
{
	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);

		if (table->group == group->index && get_rel_name(table->root) != NULL)
			return tessera_qualified_name(table->root);
	}
	return tessera_uuid_text(&group->group_id);
}

/* Adds the border unless chunks meet there already. */
static void
add_border(const TesseraRouting *routing, const TesseraGroup *group, const TesseraBound *bound, List **borders)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraKeyBound point;
	TesseraChunk chunk;
	TesseraBound *at;
	Border	   *border;

	tessera_key_from_bound(ks, bound, &point);
	tessera_routing_chunk(routing, group, tessera_routing_nchunks(routing, group) - 1, &chunk);
	if (tessera_key_compare(ks, &point, &chunk.max) >= 0)
		return;
	tessera_routing_chunk(routing, group, tessera_routing_find_chunk(routing, group, &point), &chunk);
	if (tessera_key_compare(ks, &point, &chunk.min) == 0)
		return;
	border = palloc(sizeof(Border));
	border->group_id = group->group_id;
	border->epoch = group->epoch;
	border->term = routing->promised_term;
	border->object = name_of_group(routing, group);
	at = tessera_key_to_bound(ks, &point);
	border->points = tessera_bounds_text(1, &at);
	*borders = lappend(*borders, border);
}

/* A border to look at. */
typedef struct Look
{
	const TesseraRouting *routing;
	const TesseraGroup *group;
	const TesseraBound *bound;
	List	  **borders;
} Look;

static void
look_at_border(void *arg)
{
	const Look *look = arg;

	add_border(look->routing, look->group, look->bound, look->borders);
}

/*
 * Borders inside of chunks, in the current context. A group that cannot be read is left out here; the policy's snapshot, which reads the same, says
 * why. In a transaction.
 */
static List *
find_borders(void)
{
	const TesseraRouting *routing = tessera_require_cluster();
	MemoryContext caller = CurrentMemoryContext;
	List	   *borders = NIL;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT r.group_id, v.bound FROM tessera.zone_range AS r, LATERAL (VALUES (r.min), (r.max)) AS v (bound) ORDER BY 1, 2",
						SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		const TesseraGroup *group = tessera_routing_group_by_id(routing, DatumGetUUIDP(spi_row_value(i, 1)));
		MemoryContext spi_context = MemoryContextSwitchTo(caller);

		Look		look = {routing, group, DatumGetTesseraBoundP(spi_row_value(i, 2)), &borders};
		ErrorData  *error = group != NULL ? tessera_try(look_at_border, &look) : NULL;

		if (error != NULL && ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
			ReThrowError(error);
		MemoryContextSwitchTo(spi_context);
	}
	tessera_spi_end(&spi);
	return borders;
}

/* A failure is looked at again in the next round. Told is one that neither a migration nor another split explains. */
static void
split(const Border *border)
{
	TesseraSplitAnswer answer;
	ErrorData  *error = NULL;

	if (tessera_call_split(tessera_keep_error(tessera_ask(tessera_within(tessera_to_config(), CALL_MS), TESSERA_TOLERATE_ERRORS), &error),
						   &border->group_id, &border->epoch, border->term, border->points, "tessera", border->object, &answer))
		(void) tessera_call_raise_major(tessera_ask(tessera_within(tessera_to_node(answer.node_id), CALL_MS), TESSERA_TOLERATE_ERRORS),
										&border->group_id, &border->epoch, answer.major, NULL);
	else if (error != NULL && error->sqlerrcode != ERRCODE_INVALID_PARAMETER_VALUE && error->sqlerrcode != ERRCODE_OBJECT_IN_USE)
		ereport(LOG,
				(errmsg("a chunk of %s cannot be split at the border of a zone: %s", border->object, error->message)));
}

void
tessera_split_at_zone_borders(void)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera zone borders", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	List	   *borders;
	ListCell   *cell;

	tessera_background_begin();
	MemoryContextSwitchTo(context);
	borders = find_borders();
	tessera_background_commit();
	MemoryContextSwitchTo(context);
	foreach(cell, borders)
	{
		CHECK_FOR_INTERRUPTS();
		split(lfirst(cell));
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}
