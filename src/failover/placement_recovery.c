/*
 * placement_recovery.c
 *	  A promoted shard's placements become what the config node's chunks say (doc/design.md#lost-commits).
 *
 * Order: (1) the config node registers this server: the node's incarnation grows. From then on it commits no migration that was registered with the
 * old one, so the chunks of this shard stay as they are until new migrations begin, which this shard refuses as long as its placements are unknown.
 * It answers with the migrations that this shard donated and that have not ended: the coordinator rows that are missing here are made again, so that
 * they are settled as after a crash. (2) The chunks are fetched, and the config node is asked about what they give to this shard and its placements
 * do not have. (3) One local transaction: of each group this shard owns its chunks and has to delete everything else, where the range deleter finds
 * out if there is anything; recipient rows go (what they brought is owned by now, or to be deleted); identity.timeline is the server's.
 *
 * Rows that are missing: a range that was moved here, whose confirmation is lost. As long as the donor has not acknowledged the outcome it has the
 * rows, and the config node returns the range to it. Else they are lost: nothing is known here until an administrator decides, see
 * tessera.recover_node.
 *
 * Locks: the placement rows, in (3) alone: in (1) and (2), where the config node is asked, none. So (3) looks again whether the config node was asked
 * about everything that is missing. A crash leaves the timeline as it was, and everything is done again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "catalog/change.h"
#include "catalog/migration_row.h"
#include "catalog/placement_ranges.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "catalog/migration_row.h"
#include "catalog/placement_ranges.h"
#include "control/calls.h"
#include "failover/promotion.h"
#include "transaction/background.h"
#include "transaction/participant.h"

#define REFRESH_MS 10000
#define ANNOUNCE_MS 10000		/* the config node takes half of that at most */

/* What the chunks give to this shard, but its placement does not have. */
typedef struct Missing
{
	pg_uuid_t	group_id;
	TesseraKeySpace *ks;
	int			n;
	TesseraRange *ranges;
} Missing;

/* A range of a committed move to this shard. */
typedef struct Received
{
	char	   *id;
	TesseraRange range;
} Received;

static int32
own_timeline(void)
{
	return (int32) GetWALInsertionTimeLine();
}

static int32
own_node_id(void)
{
	int32		self;

	tessera_background_begin();
	self = tessera_routing_or_error()->self;
	tessera_background_commit();
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

	tessera_migration_check_transition(TESSERA_DONOR, TESSERA_IN_ROW, TESSERA_NONE, TESSERA_DECIDING);
	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.identity SET incarnation = $1 WHERE incarnation <> $1", SPI_OK_UPDATE, 1, (Oid[]) {INT4OID},
					(Datum[]) {Int32GetDatum(incarnation)}, NULL);
	tessera_spi_run("INSERT INTO tessera.migration_coordinator (migration_id, ranges, recipient, phase, request)"
					" SELECT (r->>'migration_id')::uuid, tessera_internal.request_ranges(r), (r->>'recipient')::int4, $2, r"
					" FROM jsonb_array_elements($1::jsonb) AS r ON CONFLICT DO NOTHING",
					SPI_OK_INSERT, 2, (Oid[]) {TEXTOID, TEXTOID},
					(Datum[]) {CStringGetTextDatum(unfinished), CStringGetTextDatum(tessera_migration_state_name(TESSERA_DECIDING))}, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

/* (1). Then all are told, as far as they can be reached soon: before this server answers, its predecessor knows that it was replaced. */
static void
register_server(int32 self)
{
	TesseraRegisterServerAnswer answer;
	int32		known;

	tessera_background_begin();
	known = tessera_routing_or_error()->incarnation;
	tessera_call_register_server(tessera_to_config(), self, own_timeline(), known, server_start(), tessera_background_term(), &answer);
	take_registration(answer.registered, answer.unfinished);
	tessera_background_commit();

	tessera_injection("node_registered");
	if (answer.registered != known)
		(void) tessera_call_announce_server(tessera_ask(tessera_within(tessera_to_config(), ANNOUNCE_MS), TESSERA_TOLERATE_ERRORS), self);
}

static void
fetch_chunks(void)
{
	bool		fetched;

	tessera_background_begin();
	fetched = tessera_routing_refresh(REFRESH_MS);
	tessera_background_commit();
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

bool
tessera_owns_its_chunks(const TesseraRouting *routing, const TesseraGroup *group, const TesseraPlacementRow *placement)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraRange whole;
	int			nchunks;
	int			nowned = placement->nowned;
	TesseraRange *chunks = chunk_ranges(routing, group, ks, &whole, &nchunks);
	TesseraRange *owned = placement->owned;

	for (int i = 0; i < nchunks; i++)
		tessera_ranges_remove(ks, &nowned, &owned, &chunks[i]);
	for (int i = 0; i < placement->nowned; i++)
		tessera_ranges_remove(ks, &nchunks, &chunks, &placement->owned[i]);
	return nowned == 0 && nchunks == 0;
}

/*
 * What the chunks give to this shard, but the placement does not have: it got it by a move, which is lost here with its rows. Not what it was giving
 * away: then the coordinator row is here, and the rows are, too. In a transaction.
 */
static Missing
missing_ranges(const TesseraRouting *routing, const TesseraGroup *group, const TesseraPlacementRow *before)
{
	Missing		missing = {.group_id = group->group_id};
	TesseraRange whole;
	int			ngiven;
	TesseraRange *given = tessera_donated_ranges(&group->group_id, &ngiven);

	missing.ks = tessera_group_keyspace(routing, group);
	missing.ranges = chunk_ranges(routing, group, missing.ks, &whole, &missing.n);
	for (int i = 0; before != NULL && i < before->nowned; i++)
		tessera_ranges_remove(missing.ks, &missing.n, &missing.ranges, &before->owned[i]);
	for (int i = 0; i < ngiven; i++)
		tessera_ranges_remove(missing.ks, &missing.n, &missing.ranges, &given[i]);
	return missing;
}

static bool
is_shard(const TesseraRouting *routing)
{
	const TesseraNode *self = tessera_routing_node(routing, routing->self);

	return self != NULL && self->is_shard;
}

/* One entry for each group of which something is missing; in the current context. */
static Missing *
find_missing(int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	const TesseraRouting *routing;
	Missing    *missing;

	*n = 0;
	tessera_background_begin();
	routing = tessera_routing_or_error();
	MemoryContextSwitchTo(caller);
	missing = palloc(sizeof(Missing) * Max(routing->ngroups, 1));
	for (int i = 0; is_shard(routing) && i < routing->ngroups; i++)
	{
		const TesseraGroup *group = tessera_routing_group(routing, i);

		missing[*n] = missing_ranges(routing, group, tessera_placement_read(&group->group_id, NULL));
		if (missing[*n].n > 0)
			(*n)++;
	}
	tessera_background_commit();
	return missing;
}

/* Ranges of the group that committed moves have brought to this shard, of the newest move first. Outside a transaction; in the current context. */
static Received *
moves_to(int32 self, const pg_uuid_t *group_id, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	char	   *moves;
	Received   *received;
	TesseraSpi	spi;

	tessera_call_moves_received(tessera_to_config(), group_id, self, &moves);
	tessera_background_begin();
	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run("SELECT g.min, g.max, r->>'migration_id' FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS m (r, n),"
							   " unnest(tessera_internal.request_ranges(r)) AS g WHERE g.group_id = $2 ORDER BY m.n", SPI_OK_SELECT, 2,
							   (Oid[]) {TEXTOID, UUIDOID}, (Datum[]) {CStringGetTextDatum(moves), UUIDPGetDatum(group_id)}, NULL);
	MemoryContextSwitchTo(caller);
	received = palloc(sizeof(Received) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		received[i].range.min = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 1));
		received[i].range.max = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 2));
		received[i].id = spi_row_text(i, 3);
	}
	tessera_spi_end(&spi);
	tessera_background_commit();
	return received;
}

/* Returns the range of a move, whose rows are missing here, to its donor. ERROR 55000 if the donor no longer has them. */
static void
return_move(const Received *move)
{
	bool		returned;

	tessera_call_return_move(tessera_to_config(), tessera_call_to_uuid(move->id), tessera_background_term(), &returned);
	if (!returned)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of the range from %s to %s were moved to this shard, and are lost with its old primary",
						tessera_bound_to_cstring(move->range.min), tessera_bound_to_cstring(move->range.max))));
}

/* What is missing never came by a move; or, where it did, it was returned: then the answer is false, and the chunks have to be fetched again. */
static bool
has_all_rows(int32 self, int n, const Missing *missing)
{
	for (int i = 0; i < n; i++)
	{
		int			nmoves;
		Received   *moves = moves_to(self, &missing[i].group_id, &nmoves);

		for (int j = 0; j < nmoves; j++)
		{
			if (!tessera_ranges_overlap(missing[i].ks, missing[i].n, missing[i].ranges, &moves[j].range))
				continue;
			return_move(&moves[j]);
			return false;
		}
	}
	return true;
}

/* With the row locked: nothing is missing but what was asked for. */
static bool
was_asked_for(const Missing *now, int n, const Missing *asked)
{
	for (int i = 0; i < n; i++)
	{
		bool		covered = memcmp(&asked[i].group_id, &now->group_id, sizeof(pg_uuid_t)) == 0;

		for (int j = 0; j < now->n && covered; j++)
			covered = tessera_ranges_cover(now->ks, asked[i].n, asked[i].ranges, &now->ranges[j]);
		if (covered)
			return true;
	}
	return now->n == 0;
}

static void
write_placement(const TesseraRouting *routing, const TesseraGroup *group, TesseraPlacementRow *row)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraRange whole = {0};

	row->term = routing->term;
	row->epoch = group->epoch;
	row->major = tessera_routing_shard_major(routing, group, routing->self);
	row->owned = chunk_ranges(routing, group, ks, &whole, &row->nowned);
	row->ndeletions = 1;
	row->deletions = &whole;
	for (int i = 0; i < row->nowned; i++)
		tessera_ranges_remove(ks, &row->ndeletions, &row->deletions, &row->owned[i]);
	row->ngates = 0;
	tessera_placement_write(row);
}

/* The recipient rows: what they brought is owned by now, or to be deleted. */
static void
discard_received(void)
{
	int			n;
	pg_uuid_t  *ids = tessera_migration_row_ids(TESSERA_RECIPIENT, &n);

	for (int i = 0; i < n; i++)
		tessera_migration_row_delete(TESSERA_RECIPIENT, &ids[i], TESSERA_DISCARDED);
}

/* (3); false, and nothing is written, if more is missing than was asked for. */
static bool
write_placements(bool force, int n, const Missing *asked)
{
	const TesseraRouting *routing;
	TesseraPlacementRow **rows;
	int			ngroups;
	TesseraSpi	spi;

	tessera_background_begin();
	routing = tessera_routing_or_error();
	ngroups = is_shard(routing) ? routing->ngroups : 0;
	rows = palloc(sizeof(TesseraPlacementRow *) * Max(ngroups, 1));
	for (int i = 0; i < ngroups; i++)
	{
		const TesseraGroup *group = tessera_routing_group(routing, i);
		Missing		missing;

		rows[i] = tessera_placement_lock(&group->group_id);
		missing = missing_ranges(routing, group, rows[i]);
		if (!force && !was_asked_for(&missing, n, asked))
		{
			tessera_background_commit();
			return false;
		}
	}
	for (int i = 0; i < ngroups; i++)
		write_placement(routing, tessera_routing_group(routing, i), rows[i]);
	discard_received();
	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.identity SET timeline = $1", SPI_OK_UPDATE, 1, (Oid[]) {INT4OID}, (Datum[]) {Int32GetDatum(own_timeline())},
					NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	tessera_background_commit();
	return true;
}

/* (2) and (3); false: they have to be done again. */
static bool
recover_once(int32 self, bool force)
{
	Missing    *missing = NULL;
	int			n = 0;

	fetch_chunks();
	if (!force)
		missing = find_missing(&n);
	return has_all_rows(self, n, missing) && write_placements(force, n, missing);
}

void
tessera_recover_placements(bool force)
{
	int32		self = own_node_id();

	register_server(self);
	do
	{
		CHECK_FOR_INTERRUPTS();
	} while (!recover_once(self, force));
}
