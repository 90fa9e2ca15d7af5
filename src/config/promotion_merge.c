/*
 * promotion_merge.c
 *	  A promoted config node compares its catalog with the shards before it changes or gives out metadata (doc/design.md#lost-commits).
 *
 * Phases: (1) the new term: above every term that a node has seen. (2) Each shard is told the new term and says what it owns and which migrations it
 * has rows of. From then on it carries out no outcome of an older term, so what it said stays true. (3) One local transaction: registrations of
 * servers that are lost here are taken over from those who know them; migrations that have not ended, or are not known here, are decided: committed
 * if the recipient holds the whole range and it, or the donor, was told so; else aborted. Ranges that a shard owns but the chunks give to another go
 * to it. The term and the timeline of the config node are written. (4) Nodes are told to refresh.
 *
 * A shard that was itself promoted, and does not know what it owns, is no witness; nor, with force, is one that cannot be reached, or whose address
 * leads to a server that was replaced. Refused (55000): two shards own a range; nobody does; a shard owns ranges of a group that is not known here.
 *
 * Memory: the caller's context. Locks: in (3) the rows of all groups. A crash in (2) leaves shards with a promised term that no catalog has: the next
 * attempt's is higher.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catalog/change.h"
#include "catalog/migration_state.h"
#include "catalog/placement_ranges.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "config/chunks.h"
#include "config/promotion_merge.h"
#include "control/calls.h"
#include "transaction/background.h"

#define ASK_MS 5000			/* for the answer of a node that may be left out */

/* What a node has said. */
typedef struct Witness
{
	int32		node_id;
	const char *name;
	bool		is_shard;
	char	   *incarnations;	/* of all nodes, as it knows them; jsonb text; NULL: it was not asked */
	char	   *facts;			/* jsonb text; NULL: it was not asked, or does not know */
} Witness;

/* A migration that has not ended, by what some node has said. */
typedef struct Flight
{
	pg_uuid_t	migration_id;
	int			nranges;
	TesseraOperationRange *ranges;
	int32		donor;
	int32		recipient;
	char	   *request;
	bool		told;			/* the donor was told that it is committed */
	bool		received;		/* the recipient has its row */
	bool		committed;
} Flight;

typedef struct Merge
{
	bool		force;
	int32		self;
	int64		term;
	int			nwitnesses;
	Witness    *witnesses;
	int			nflights;
	Flight	   *flights;
} Merge;


/* Asking */

/* Where others look for the config node they find this server, not a primary that lives. */
static void
check_own_address(void)
{
	TesseraSpi	spi;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT tessera_internal.check_address(node_id, $1, extract(epoch FROM pg_postmaster_start_time())::text) FROM tessera.identity",
					SPI_OK_SELECT, 1, (Oid[]) {INT4OID}, (Datum[]) {Int32GetDatum((int32) GetWALInsertionTimeLine())}, NULL);
	tessera_spi_end(&spi);
	tessera_background_commit();
}

/* A node that must answer, or one that is asked and may fail to. */
static TesseraCallTarget
witness_target(int32 node_id, bool must)
{
	return must ? tessera_to_node(node_id) : tessera_ask(tessera_within(tessera_to_node(node_id), ASK_MS), TESSERA_TOLERATE_ERRORS);
}

/* Every node's term, and what it knows of the servers of all nodes; shards must answer unless forced. */
static void
ask_terms(Merge *merge)
{
	MemoryContext caller = CurrentMemoryContext;
	const TesseraRouting *routing;

	tessera_background_begin();
	routing = tessera_routing_or_error();
	MemoryContextSwitchTo(caller);
	merge->self = routing->self;
	merge->term = routing->term;
	merge->witnesses = palloc0(sizeof(Witness) * Max(routing->nnodes, 1));
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		Witness    *witness;
		TesseraKnownTermsAnswer answer;

		if (node->node_id == merge->self)
			continue;
		witness = &merge->witnesses[merge->nwitnesses++];
		witness->node_id = node->node_id;
		witness->name = pstrdup(NameStr(node->name));
		witness->is_shard = node->is_shard;
		if (!tessera_call_known_terms(witness_target(node->node_id, !merge->force && node->is_shard), &answer))
			continue;
		merge->term = Max(merge->term, answer.term);
		witness->incarnations = answer.incarnations;
	}
	merge->term++;
	tessera_background_commit();
}

static void
ask_facts(Merge *merge)
{
	for (int i = 0; i < merge->nwitnesses; i++)
	{
		Witness    *witness = &merge->witnesses[i];

		witness->facts = NULL;
		if (witness->is_shard)
			(void) tessera_call_merge_facts(witness_target(witness->node_id, !merge->force), merge->term, &witness->facts);
	}
}

static Witness *
find_witness(Merge *merge, int32 node_id)
{
	for (int i = 0; i < merge->nwitnesses; i++)
		if (merge->witnesses[i].node_id == node_id && merge->witnesses[i].facts != NULL)
			return &merge->witnesses[i];
	return NULL;
}

/* What a shard owns of a group, confirmed ranges included; *major: its shard version. Its bounds are in the current context. */
static TesseraRange *
owned_ranges(const Witness *witness, const pg_uuid_t *group_id, int *n, int64 *major)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum		values[] = {CStringGetTextDatum(witness->facts), UUIDPGetDatum(group_id)};
	TesseraRange *ranges;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run("SELECT tessera.bound_in(textout(o->>'min')), tessera.bound_in(textout(o->>'max')), (p->>'major')::int8"
							   " FROM jsonb_array_elements($1::jsonb->'placements') AS p, jsonb_array_elements(p->'owned') AS o"
							   " WHERE (p->>'group_id')::uuid = $2", SPI_OK_SELECT, 2, (Oid[]) {TEXTOID, UUIDOID}, values, NULL);
	MemoryContextSwitchTo(caller);
	ranges = palloc(sizeof(TesseraRange) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		ranges[i].min = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 1));
		ranges[i].max = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 2));
		*major = Max(*major, DatumGetInt64(spi_row_value(i, 3)));
	}
	tessera_spi_end(&spi);
	return ranges;
}


/* Servers */

static void
refuse(const char *message)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the catalog does not match what the shards own: %s", message)));
}

/*
 * Registrations of promoted servers that are lost here, but known to others or to the server itself. A shard's answer counts only if it came from the
 * server that is the node, as far as any node knows.
 */
static void
merge_servers(Merge *merge)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	for (int i = 0; i < merge->nwitnesses; i++)
		if (merge->witnesses[i].incarnations != NULL)
			tessera_spi_run("UPDATE tessera.node AS n SET incarnation = k.value::int4 FROM jsonb_each_text($1::jsonb) AS k"
							" WHERE n.node_id = k.key::int4 AND n.incarnation < k.value::int4", SPI_OK_UPDATE, 1, (Oid[]) {TEXTOID},
							(Datum[]) {CStringGetTextDatum(merge->witnesses[i].incarnations)}, NULL);
	for (int i = 0; i < merge->nwitnesses; i++)
	{
		Witness    *witness = &merge->witnesses[i];

		if (witness->facts == NULL ||
			tessera_spi_run("UPDATE tessera.node AS n SET incarnation = (s.r->>'incarnation')::int4, timeline = (s.r->>'timeline')::int4"
							" FROM (SELECT $1::jsonb->'server') AS s(r) WHERE n.node_id = $2 AND n.incarnation <= (s.r->>'incarnation')::int4",
							SPI_OK_UPDATE, 2, (Oid[]) {TEXTOID, INT4OID},
							(Datum[]) {CStringGetTextDatum(witness->facts), Int32GetDatum(witness->node_id)}, NULL) == 1)
			continue;
		if (!merge->force)
			refuse(psprintf("the address of shard \"%s\" leads to a server that was replaced", witness->name));
		witness->facts = NULL;
	}
	tessera_spi_end(&spi);
}


/* Migrations */

static Flight *
flight_of(Merge *merge, const pg_uuid_t *migration_id)
{
	for (int i = 0; i < merge->nflights; i++)
		if (memcmp(&merge->flights[i].migration_id, migration_id, sizeof(pg_uuid_t)) == 0)
			return &merge->flights[i];
	if (merge->nflights % 16 == 0)
		merge->flights = merge->nflights == 0 ? palloc(sizeof(Flight) * 16) : repalloc(merge->flights, sizeof(Flight) * (merge->nflights + 16));
	memset(&merge->flights[merge->nflights], 0, sizeof(Flight));
	merge->flights[merge->nflights].migration_id = *migration_id;
	return &merge->flights[merge->nflights++];
}

/* Rows of a query: request jsonb, told bool, received bool. Those whose end the config node knows are left out. */
static void
add_flights(Merge *merge, const char *sql, const char *facts)
{
	MemoryContext caller = CurrentMemoryContext;
	char	   *whole = psprintf("SELECT (q.r->>'migration_id')::uuid, (q.r->>'donor')::int4, (q.r->>'recipient')::int4, q.r::text, q.told,"
								 " q.received, m.group_id, m.epoch, m.min, m.max, m.n::int4, jsonb_array_length(q.r->'ranges')"
								 " FROM (%s) AS q(r, told, received),"
								 " unnest(tessera_internal.request_ranges(q.r)) WITH ORDINALITY AS m (group_id, epoch, min, max, n)"
								 " WHERE NOT EXISTS (SELECT FROM tessera.migration AS k"
								 "  WHERE k.migration_id = (q.r->>'migration_id')::uuid AND k.state <> 'running')", sql);
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run(whole, SPI_OK_SELECT, 1, (Oid[]) {TEXTOID}, (Datum[]) {CStringGetTextDatum(facts)}, NULL);
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < n; i++)
	{
		Flight	   *flight = flight_of(merge, DatumGetUUIDP(spi_row_value(i, 1)));

		flight->donor = DatumGetInt32(spi_row_value(i, 2));
		flight->recipient = DatumGetInt32(spi_row_value(i, 3));
		flight->request = spi_row_text(i, 4);
		flight->told |= DatumGetBool(spi_row_value(i, 5));
		flight->received |= DatumGetBool(spi_row_value(i, 6));
		/* whoever speaks of it, its ranges are the same ones */
		if (flight->ranges == NULL)
		{
			flight->nranges = DatumGetInt32(spi_row_value(i, 12));
			flight->ranges = palloc0(sizeof(TesseraOperationRange) * flight->nranges);
		}
		if (flight->nranges != DatumGetInt32(spi_row_value(i, 12)))
			refuse(psprintf("migration %s is not the same one everywhere", tessera_uuid_text(&flight->migration_id)));
		flight->ranges[DatumGetInt32(spi_row_value(i, 11)) - 1] = (TesseraOperationRange) {
			.group_id = *DatumGetUUIDP(spi_row_value(i, 7)), .epoch = *DatumGetUUIDP(spi_row_value(i, 8)),
			.range = {(TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 9)), (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 10))}
		};
	}
	tessera_spi_end(&spi);
}

static void
collect_flights(Merge *merge)
{
	add_flights(merge, "SELECT tessera_internal.migration_request(migration_id), false, false FROM tessera.migration WHERE state = 'running' AND $1 "
				"IS NOT NULL", "");
	for (int i = 0; i < merge->nwitnesses; i++)
	{
		const char *facts = merge->witnesses[i].facts;

		if (facts == NULL)
			continue;
		add_flights(merge, "SELECT d->'request', d->>'decision' IS NOT DISTINCT FROM 'committed', false FROM "
					"jsonb_array_elements($1::jsonb->'donated') AS d", facts);
		add_flights(merge, "SELECT r->'request', false, true FROM jsonb_array_elements($1::jsonb->'received') AS r", facts);
	}
}

/* Does it hold a range that the flight is to bring it? */
static bool
holds_range(const Witness *recipient, const TesseraOperationRange *range)
{
	const TesseraGroup *group = tessera_routing_group_by_id(tessera_routing(), &range->group_id);
	int64		major = 0;
	int			n;
	TesseraRange *owned;

	if (group == NULL)
		return false;
	owned = owned_ranges(recipient, &range->group_id, &n, &major);
	return tessera_ranges_cover(tessera_group_keyspace(tessera_routing(), group), n, owned, &range->range);
}

/*
 * Committed if the recipient holds all of its ranges, and was released (its row is gone) or the donor was told: then one of the two may have acted on
 * it. Otherwise no node has, and none will: the term of the registration is over.
 */
static void
decide_flight(Merge *merge, Flight *flight)
{
	const Witness *recipient = find_witness(merge, flight->recipient);

	flight->committed = recipient != NULL && (flight->told || !flight->received);
	for (int i = 0; flight->committed && i < flight->nranges; i++)
		flight->committed = holds_range(recipient, &flight->ranges[i]);
}

static void
write_flights(Merge *merge)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	for (int i = 0; i < merge->nflights; i++)
	{
		const Flight *flight = &merge->flights[i];
		TesseraMigrationResult outcome = flight->committed ? TESSERA_RESULT_COMMITTED : TESSERA_RESULT_ABORTED;
		Oid			types[] = {UUIDOID, TEXTOID, TEXTOID, INT4OID, INT4OID};
		Datum		values[] = {
			UUIDPGetDatum(&flight->migration_id), CStringGetTextDatum(tessera_migration_result_text(outcome)), CStringGetTextDatum(flight->request),
			Int32GetDatum(flight->donor), Int32GetDatum(flight->recipient)
		};

		/* it is not known here, or runs: collect_flights has left out what has ended */
		tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_NONE, tessera_migration_result_state(outcome));
		tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_RUNNING, tessera_migration_result_state(outcome));
		tessera_spi_run("INSERT INTO tessera.migration (migration_id, ranges, table_id, schema_name, donor, recipient, term, donor_incarnation,"
						"  recipient_incarnation, state, finished, error)"
						" SELECT $1, tessera_internal.request_ranges(r), (r->>'table_id')::uuid, (r->>'schema_name')::name, $4, $5,"
						"  (r->>'term')::int8,"
						"  (r->>'donor_incarnation')::int4, (r->>'recipient_incarnation')::int4, $2, clock_timestamp(),"
						"  'the config node was promoted' FROM (SELECT $3::jsonb AS r) AS q"
						" ON CONFLICT (migration_id) DO UPDATE SET state = excluded.state, finished = excluded.finished, error = excluded.error",
						SPI_OK_INSERT, 5, types, values, NULL);
		tessera_spi_run("INSERT INTO tessera.migration_outcome (migration_id, outcome, donor_majors, recipient_majors)"
						" SELECT $1, $2, array_agg(g.donor ORDER BY g.group_id), array_agg(g.recipient ORDER BY g.group_id) FROM"
						"  (SELECT r.group_id, coalesce(max(c.major) FILTER (WHERE c.node_id = $4), 0) AS donor,"
						"    coalesce(max(c.major) FILTER (WHERE c.node_id = $5), 0) AS recipient"
						"   FROM (SELECT DISTINCT group_id FROM unnest(tessera_internal.request_ranges($3::jsonb))) AS r"
						"   LEFT JOIN tessera.chunk AS c USING (group_id) GROUP BY r.group_id) AS g"
						" ON CONFLICT DO NOTHING", SPI_OK_INSERT, 5, types, values, NULL);
	}
	tessera_spi_end(&spi);
}

/* Outcomes of which the donor knows nothing any more: it had them acknowledged, and that is lost here; or it never was told of the migration. */
static void
forget_acknowledged(Merge *merge)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	for (int i = 0; i < merge->nwitnesses; i++)
		if (merge->witnesses[i].facts != NULL)
			tessera_spi_run("DELETE FROM tessera.migration_outcome AS o USING tessera.migration AS m"
							" WHERE m.migration_id = o.migration_id AND m.donor = $2 AND NOT EXISTS"
							" (SELECT FROM jsonb_array_elements($1::jsonb->'donated') AS d WHERE (d->'request'->>'migration_id')::uuid = "
							"o.migration_id)", SPI_OK_DELETE, 2, (Oid[]) {TEXTOID, INT4OID},
							(Datum[]) {CStringGetTextDatum(merge->witnesses[i].facts), Int32GetDatum(merge->witnesses[i].node_id)}, NULL);
	tessera_spi_end(&spi);
}


/* Ranges */

/* Takes away from a list of ranges of the group those of a flight. */
static void
remove_flight(TesseraKeySpace *ks, const pg_uuid_t *group_id, const Flight *flight, int *n, TesseraRange **ranges)
{
	for (int i = 0; i < flight->nranges; i++)
		if (memcmp(&flight->ranges[i].group_id, group_id, sizeof(pg_uuid_t)) == 0)
			tessera_ranges_remove(ks, n, ranges, &flight->ranges[i].range);
}

/* What the shard holds for good: without the ranges of migrations that it received and that are not committed. */
static TesseraRange *
settled_ranges(Merge *merge, const Witness *witness, const TesseraGroup *group, TesseraKeySpace *ks, int *n, int64 *major)
{
	TesseraRange *ranges = owned_ranges(witness, &group->group_id, n, major);

	for (int i = 0; i < merge->nflights; i++)
		if (merge->flights[i].recipient == witness->node_id && !merge->flights[i].committed)
			remove_flight(ks, &group->group_id, &merge->flights[i], n, &ranges);
	return ranges;
}

/* The chunk's range, without what shards hold and what its owner is giving away: it has no owner, if that shard could be asked. */
static void
check_owned(Merge *merge, const TesseraGroup *group, TesseraKeySpace *ks, const TesseraChunk *chunk, int nheld, const TesseraRange *held)
{
	TesseraRange *left = palloc(sizeof(TesseraRange));
	int			n = 1;

	if (find_witness(merge, chunk->node_id) == NULL)
		return;
	left[0].min = tessera_key_to_bound(ks, &chunk->min);
	left[0].max = tessera_key_to_bound(ks, &chunk->max);
	for (int i = 0; i < nheld; i++)
		tessera_ranges_remove(ks, &n, &left, &held[i]);
	for (int i = 0; i < merge->nflights; i++)
		if (merge->flights[i].donor == chunk->node_id)
			remove_flight(ks, &group->group_id, &merge->flights[i], &n, &left);
	if (n > 0 && !merge->force)
		refuse(psprintf("no shard owns the range from %s to %s", tessera_bound_to_cstring(left[0].min), tessera_bound_to_cstring(left[0].max)));
}

/* One group: ranges go to those who hold them. */
static void
merge_group(Merge *merge, const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraRange *held = palloc(sizeof(TesseraRange));
	const char *object = psprintf("group %s, after a promotion", tessera_uuid_text(&group->group_id));
	TesseraGroupRow row;
	int64		major = 0;
	int			nheld = 0;

	tessera_group_lock(&group->group_id, &row);
	for (int i = 0; i < merge->nwitnesses; i++)
	{
		const Witness *witness = &merge->witnesses[i];
		TesseraRange *ranges;
		int			n;

		if (witness->facts == NULL)
			continue;
		ranges = settled_ranges(merge, witness, group, ks, &n, &major);
		for (int j = 0; j < n; j++)
		{
			if (tessera_ranges_overlap(ks, nheld, held, &ranges[j]) && !merge->force)
				refuse(psprintf("two shards own a part of the range from %s to %s, one of them is \"%s\"",
								tessera_bound_to_cstring(ranges[j].min), tessera_bound_to_cstring(ranges[j].max), witness->name));
			tessera_ranges_add(ks, &nheld, &held, &ranges[j]);
		}
	}
	for (int i = 0; i < tessera_routing_nchunks(routing, group); i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(routing, group, i, &chunk);
		check_owned(merge, group, ks, &chunk, nheld, held);
	}
	tessera_group_outdo(&row, major);
	for (int i = 0; i < merge->nwitnesses; i++)
	{
		TesseraRange *ranges;
		int			n;

		if (merge->witnesses[i].facts == NULL)
			continue;
		ranges = settled_ranges(merge, &merge->witnesses[i], group, ks, &n, &major);
		for (int j = 0; j < n; j++)
			tessera_chunk_assign(&row, ks, ranges[j].min, ranges[j].max, merge->witnesses[i].node_id, object);
	}
}

/*
 * Schemas, as the shards know them: the groups that they got for their first move, their versions, and the homes of their sequences. Where their
 * tables are is found with the other groups (merge_group); a row that is newer than that gets right in settle_schemas.
 */
static void
take_schema_groups(Merge *merge)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	for (int i = 0; i < merge->nwitnesses; i++)
	{
		Datum		facts;

		if (merge->witnesses[i].facts == NULL)
			continue;
		facts = CStringGetTextDatum(merge->witnesses[i].facts);
		tessera_spi_run("INSERT INTO tessera.table_group SELECT (jsonb_populate_record(NULL::tessera.table_group, s->'group')).*"
						" FROM jsonb_array_elements($1::jsonb->'schemas') AS s JOIN tessera.schema_placement AS p"
						" ON p.schema_name = s->'schema'->>'schema_name' WHERE p.group_id IS NULL ON CONFLICT DO NOTHING", SPI_OK_INSERT, 1,
						(Oid[]) {TEXTOID}, &facts, NULL);
		tessera_spi_run("UPDATE tessera.schema_placement AS p SET group_id = (s->'group'->>'group_id')::uuid"
						" FROM jsonb_array_elements($1::jsonb->'schemas') AS s WHERE p.schema_name = s->'schema'->>'schema_name'"
						" AND p.group_id IS NULL", SPI_OK_UPDATE, 1, (Oid[]) {TEXTOID}, &facts, NULL);
		/* the newest row that a shard has: whoever knows that it is the home of the sequences has drawn values */
		tessera_spi_run("UPDATE tessera.schema_placement AS p SET node_id = w.node_id, sequence_home = w.sequence_home, mod = w.mod"
						" FROM jsonb_array_elements($1::jsonb->'schemas') AS s, jsonb_populate_record(NULL::tessera.schema_placement, s->'schema')"
						" AS w WHERE p.schema_name = w.schema_name AND p.group_id = w.group_id AND (w.mod > p.mod OR (w.mod = p.mod"
						" AND w.node_id = p.node_id AND p.sequence_home IS NOT NULL AND w.sequence_home IS NULL))", SPI_OK_UPDATE, 1,
						(Oid[]) {TEXTOID}, &facts, NULL);
	}
	tessera_spi_run("INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor)"
					" SELECT p.group_id, tessera.minkey(), tessera.maxkey(), p.node_id, g.group_major, g.group_minor"
					" FROM tessera.schema_placement AS p"
					" JOIN tessera.table_group AS g USING (group_id) ON CONFLICT DO NOTHING", SPI_OK_INSERT, 0, NULL, NULL, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

/* The tables of a schema are where the chunk of its group is. */
static void
settle_schemas(void)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.schema_placement AS p SET node_id = c.node_id, mod = mod + 1,"
					" sequence_home = nullif(coalesce(p.sequence_home, p.node_id), c.node_id) FROM tessera.chunk AS c"
					" WHERE c.group_id = p.group_id AND c.node_id <> p.node_id", SPI_OK_UPDATE, 0, NULL, NULL, NULL);
	tessera_spi_end(&spi);
}

/* A shard that owns something of a group that was lost here. */
static void
check_groups_known(Merge *merge)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	for (int i = 0; i < merge->nwitnesses && !merge->force; i++)
		if (merge->witnesses[i].facts != NULL &&
			tessera_spi_run("SELECT p->>'group_id' FROM jsonb_array_elements($1::jsonb->'placements') AS p WHERE jsonb_array_length(p->'owned') > 0"
							" AND NOT EXISTS (SELECT FROM tessera.table_group AS g WHERE g.group_id = (p->>'group_id')::uuid)",
							SPI_OK_SELECT, 1, (Oid[]) {TEXTOID}, (Datum[]) {CStringGetTextDatum(merge->witnesses[i].facts)}, NULL) > 0)
			refuse(psprintf("shard \"%s\" owns ranges of table group %s, which is not known here", merge->witnesses[i].name, spi_row_text(0, 1)));
	tessera_spi_end(&spi);
}

static void
write_term(Merge *merge)
{
	TesseraSpi	spi;
	Oid			types[] = {INT8OID, INT4OID};
	Datum		values[] = {Int64GetDatum(merge->term), Int32GetDatum((int32) GetWALInsertionTimeLine())};

	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.identity SET term = $1", SPI_OK_UPDATE, 1, types, values, NULL);
	tessera_spi_run("UPDATE tessera.node SET timeline = $2 WHERE node_id = (SELECT node_id FROM tessera.identity) AND $1 IS NOT NULL", SPI_OK_UPDATE,
					2, types, values, NULL);
	tessera_spi_run("INSERT INTO tessera.changelog_entry (what, object, after)"
					" SELECT 'promotion', node, jsonb_build_object('term', $1, 'timeline', $2) FROM tessera.identity", SPI_OK_INSERT, 2, types,
					values, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

void
tessera_recover_catalog(bool force)
{
	Merge		merge = {.force = force};
	const TesseraRouting *routing;

	check_own_address();
	ask_terms(&merge);
	ask_facts(&merge);

	tessera_background_begin();
	merge_servers(&merge);
	take_schema_groups(&merge);
	routing = tessera_routing_or_error();
	check_groups_known(&merge);
	collect_flights(&merge);
	for (int i = 0; i < merge.nflights; i++)
		decide_flight(&merge, &merge.flights[i]);
	for (int i = 0; i < routing->ngroups; i++)
		merge_group(&merge, routing, tessera_routing_group(routing, i));
	settle_schemas();
	write_flights(&merge);
	forget_acknowledged(&merge);
	write_term(&merge);
	tessera_background_commit();
	for (int i = 0; i < merge.nwitnesses; i++)
		(void) tessera_call_reload_routing(witness_target(merge.witnesses[i].node_id, false), NULL);
}
