/*
 * placements.c
 *	  A promoted shard's placements become what the config node's chunks say (PROTOCOLS D3).
 *
 * Order: (1) the config node registers this server: the node's incarnation grows. From then on it commits no migration that was registered with the old one, so the chunks of this
 * shard stay as they are until new migrations begin, which this shard refuses as long as its placements are unknown. It answers with the migrations that this shard
 * donated and that have not ended: the coordinator rows that are missing here are made again, so that they are settled as after a crash. (2) The chunks are
 * fetched. (3) One local transaction: of each group this shard owns its chunks and has to delete everything else, where the range deleter finds out if there is anything;
 * recipient rows go (what they brought is owned by now, or to be deleted); identity.timeline is the server's.
 *
 * Rows that are missing: a range that was moved here, whose confirmation is lost. As long as the donor has not acknowledged the outcome it has the rows, and the config
 * node returns the range to it. Else they are lost: nothing is known here until somebody decides, see tessera.recover_node.
 *
 * Locks: the placement rows, to the end of (3). A crash leaves the timeline as it was, and everything is done again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "catalog/change.h"
#include "common/spi_row.h"
#include "migration/promotion.h"
#include "migration/ranges.h"
#include "migration/rows.h"
#include "migration/work.h"
#include "transaction/participant.h"

#define REFRESH_MS 10000
#define ANNOUNCE_MS 10000		/* the config node takes half of that at most */

static int32
own_timeline(void)
{
	return (int32) GetWALInsertionTimeLine();
}

static int32
own_node_id(void)
{
	int32		self;

	tessera_work_begin();
	self = tessera_routing()->self;
	tessera_work_commit();
	return self;
}

static char *
server_start(void)
{
	TesseraSpi	spi;
	char	   *started;
	MemoryContext caller = CurrentMemoryContext;

	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT extract(epoch FROM pg_postmaster_start_time())::text", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	started = MemoryContextStrdup(caller, spi_row_text(0, 1));
	tessera_spi_end(&spi);
	return started;
}

/* Writes this server's incarnation; makes the coordinator rows of migrations again that are donated here and have not ended. */
static void
take_registration(int32 incarnation, const char *unfinished)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.identity SET incarnation = $1 WHERE incarnation <> $1", SPI_OK_UPDATE, 1, (Oid[]) {INT4OID},
					(Datum[]) {Int32GetDatum(incarnation)}, NULL);
	tessera_spi_run("INSERT INTO tessera.migration_coordinator (migration_id, group_id, min, max, recipient, epoch, phase, request)"
					" SELECT (r->>'migration_id')::uuid, (r->>'group_id')::uuid, tessera.bound_in(textout(r->>'min')), tessera.bound_in(textout(r->>'max')),"
					"  (r->>'recipient')::int4, (r->>'epoch')::uuid, 'deciding', r FROM jsonb_array_elements($1::jsonb) AS r ON CONFLICT DO NOTHING",
					SPI_OK_INSERT, 1, (Oid[]) {TEXTOID}, (Datum[]) {CStringGetTextDatum(unfinished)}, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

/* (1). Then all are told, as far as they can be reached soon: before this server answers, its predecessor knows that it was replaced. */
static void
register_server(int32 self)
{
	const char *values[5];
	char	  **answer;
	int32		known;
	int32		incarnation;

	tessera_work_begin();
	known = tessera_routing()->incarnation;
	values[0] = psprintf("%d", self);
	values[1] = psprintf("%d", own_timeline());
	values[2] = psprintf("%d", known);
	values[3] = server_start();
	values[4] = tessera_work_term();
	answer = tessera_work_call(0, "SELECT registered, unfinished FROM tessera.internal_register_server($1::int4, $2::int4, $3::int4, $4, $5::int8)", 5, values);
	incarnation = pg_strtoint32(answer[0]);
	take_registration(incarnation, answer[1]);
	tessera_work_commit();

	values[0] = psprintf("%d", self);
	if (incarnation != known)
		(void) tessera_work_ask(0, "SELECT tessera.internal_announce_server($1::int4)", 1, values, ANNOUNCE_MS, true, NULL);
}

static void
fetch_chunks(void)
{
	bool		fetched;

	tessera_work_begin();
	fetched = tessera_routing_refresh(REFRESH_MS);
	tessera_work_commit();
	if (!fetched)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the chunks could not be fetched from the config node"),
				 errhint("tessera.refresh_status() has the reason.")));
}

/* Ranges of this shard's chunks, in key order, touching ones joined. whole: from the first chunk's min to the last one's max. */
static TesseraRange *
chunk_ranges(const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks, TesseraRange *whole, int *n)
{
	int			nchunks = tessera_routing_nchunks(routing, group);
	TesseraRange *ranges = palloc(sizeof(TesseraRange) * Max(nchunks, 1));
	bool		joins = false;

	*n = 0;
	for (int i = 0; i < nchunks; i++)
	{
		TesseraChunk chunk;
		TesseraBound *max;

		tessera_routing_chunk(routing, group, i, &chunk);
		max = tessera_key_to_bound(ks, &chunk.max);
		if (i == 0)
			whole->min = tessera_key_to_bound(ks, &chunk.min);
		whole->max = max;
		if (chunk.node_id == routing->self && joins)
			ranges[*n - 1].max = max;
		else if (chunk.node_id == routing->self)
			ranges[(*n)++] = (TesseraRange) {.min = tessera_key_to_bound(ks, &chunk.min),.max = max};
		joins = chunk.node_id == routing->self;
	}
	return ranges;
}

/* Committed moves of the group to this shard, as jsonb text. */
static char *
moves_to(int32 self, const TesseraGroup *group)
{
	const char *values[] = {tessera_work_uuid(&group->group_id), psprintf("%d", self)};

	return tessera_work_call(0, "SELECT coalesce(jsonb_agg(tessera.internal_migration_request(migration_id) ORDER BY started DESC), '[]')"
							 " FROM tessera.migration WHERE group_id = $1::uuid AND recipient = $2::int4 AND state = 'committed'", 2, values)[0];
}

/*
 * What the chunks give to this shard, but its placement did not have: it got it by a move, which is lost here with its rows. Not if it was giving it away: then
 * the coordinator row is here, and the rows are, too; and not if it never came by a move. Is the donor still there with the rows, the range is
 * returned to it, and the answer is false: chunks have to be fetched again. ERROR 55000 if not.
 */
static bool
has_all_rows(const TesseraGroup *group, TesseraKeySpace *ks, int32 self, const TesseraPlacementRow *before, int nowned, TesseraRange *owned)
{
	int			ngiven;
	TesseraRange *given = tessera_donated_ranges(&group->group_id, &ngiven);
	bool		complete = true;
	TesseraSpi	spi;
	uint64		rows;
	char	   *moves;

	for (int i = 0; i < before->nowned; i++)
		tessera_ranges_remove(ks, &nowned, &owned, &before->owned[i]);
	for (int i = 0; i < ngiven; i++)
		tessera_ranges_remove(ks, &nowned, &owned, &given[i]);
	if (nowned == 0)
		return true;
	moves = moves_to(self, group);
	tessera_spi_begin(&spi);
	rows = tessera_spi_run("SELECT tessera.bound_in(textout(r->>'min')), tessera.bound_in(textout(r->>'max')), r->>'migration_id'"
						   " FROM jsonb_array_elements($1::jsonb) AS r", SPI_OK_SELECT, 1, (Oid[]) {TEXTOID}, (Datum[]) {CStringGetTextDatum(moves)}, NULL);
	for (uint64 i = 0; i < rows && complete; i++)
	{
		TesseraRange lost = {(TesseraBound *) PG_DETOAST_DATUM(spi_row_value(i, 1)), (TesseraBound *) PG_DETOAST_DATUM(spi_row_value(i, 2))};
		const char *values[] = {spi_row_text(i, 3), tessera_work_term()};

		if (!tessera_ranges_overlap(ks, nowned, owned, &lost))
			continue;
		if (tessera_work_call(0, "SELECT tessera.internal_return_move($1::uuid, $2::int8)", 2, values)[0][0] != 't')
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("rows of the range from %s to %s were moved to this shard, and are lost with its old primary",
							tessera_bound_to_cstring(lost.min), tessera_bound_to_cstring(lost.max))));
		complete = false;
	}
	tessera_spi_end(&spi);
	return complete;
}

/* false: see has_all_rows; nothing is written. */
static bool
recover_group(const TesseraRouting *routing, const TesseraGroup *group, bool force)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraPlacementRow *row = tessera_placement_lock(&group->group_id);
	TesseraRange whole = {0};
	TesseraRange *owned;
	int			nowned;

	owned = chunk_ranges(routing, group, ks, &whole, &nowned);
	if (!force && !has_all_rows(group, ks, routing->self, row, nowned, owned))
		return false;

	row->term = routing->term;
	row->epoch = group->epoch;
	row->major = tessera_routing_shard_major(routing, group, routing->self);
	row->nowned = nowned;
	row->owned = owned;
	row->ndeletions = 1;
	row->deletions = &whole;
	for (int i = 0; i < nowned; i++)
		tessera_ranges_remove(ks, &row->ndeletions, &row->deletions, &owned[i]);
	row->gate = TESSERA_GATE_OPEN;
	row->gate_range.min = row->gate_range.max = NULL;
	row->has_migration = row->confirmed = false;
	tessera_placement_write(row);
	return true;
}

/* (3); false if chunks have to be fetched again. */
static bool
write_placements(bool force)
{
	const TesseraRouting *routing;
	const TesseraNode *self;
	TesseraSpi	spi;

	tessera_work_begin();
	routing = tessera_routing();
	self = tessera_routing_node(routing, routing->self);
	for (int i = 0; self != NULL && self->is_shard && i < routing->ngroups; i++)
		if (!recover_group(routing, tessera_routing_group(routing, i), force))
		{
			tessera_work_commit();
			return false;
		}
	tessera_spi_begin(&spi);
	tessera_spi_run("DELETE FROM tessera.migration_recipient", SPI_OK_DELETE, 0, NULL, NULL, NULL);
	tessera_spi_run("UPDATE tessera.identity SET timeline = $1", SPI_OK_UPDATE, 1, (Oid[]) {INT4OID}, (Datum[]) {Int32GetDatum(own_timeline())}, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	tessera_work_commit();
	return true;
}

void
tessera_recover_placements(bool force)
{
	register_server(own_node_id());
	do
	{
		CHECK_FOR_INTERRUPTS();
		fetch_chunks();
	} while (!write_placements(force));
}
