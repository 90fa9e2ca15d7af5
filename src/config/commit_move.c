/*
 * commit_move.c
 *	  The commit of a move on the config node, its rehearsal, the fence that decides a move as aborted, and their acknowledgement
 *	  (doc/design.md#commit-and-fence; S19, S20, S36, S63). After a promotion of its recipient a committed move can be returned. How a move begins is
 *	  in register_move.c; the way of a commit through all nodes is in doc/architecture.md, "The commit of a move".
 *
 * Commit and fence insert the same unique key, the migration's row in tessera.migration_outcome. The second one waits for the first: a commit that
 * finds 'aborted' fails (TS003), a fence that finds 'committed' says so. The outcome row is the decision; it goes when both sides have acknowledged
 * it, and what is left then is the state of the migration's row.
 *
 * Locks, in this order, to the end of the transaction: the group's row, the rows of both nodes (against a registration of a promoted server), the
 * outcome's key. A crash leaves all of the commit or nothing of it.
 *
 * Interleavings: (commit in front) the fence's insert waits for the commit, does nothing, and its next statement reads 'committed'. (fence in front)
 * the commit's insert waits, finds the key taken, reads 'aborted' and raises TS003; nothing of the move is written.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/resowner.h"

#include "catalog/change.h"
#include "catalog/migration_state.h"
#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "config/authority.h"
#include "config/chunks_private.h"
#include "control/calls.h"


typedef struct Move
{
	const pg_uuid_t *migration_id;
	char	   *object;			/* the table, for the changelog */
	TesseraBound *min;
	TesseraBound *max;
	int32		donor;
	int32		recipient;
	pg_uuid_t	epoch;
} Move;

static void
refuse_unknown(const pg_uuid_t *migration_id)
{
	ereport(ERROR,
			(errcode(ERRCODE_TESSERA_FENCED),
			 errmsg("migration %s is not known", tessera_uuid_text(migration_id)),
			 errdetail("It was never registered on this config node, or its outcome was acknowledged and forgotten.")));
}

/* Group and range of a registered migration, *min canonical. ERROR TS003 if it is not known. */
static void
migration_range(const pg_uuid_t *migration_id, pg_uuid_t *group_id, TesseraBound **min, TesseraBound **max)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_run_saved("SELECT group_id, min, max FROM tessera.migration WHERE migration_id = $1", SPI_OK_SELECT, 1,
						(Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(migration_id)}, NULL) != 1)
		refuse_unknown(migration_id);
	*group_id = *DatumGetUUIDP(spi_row_value(0, 1));
	MemoryContextSwitchTo(caller);
	*min = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(0, 2));
	*max = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(0, 3));
	tessera_spi_end(&spi);
}

/* Outcome row of the migration; none: there is no row. Shard versions if it is committed. */
static TesseraMigrationResult
read_outcome(const pg_uuid_t *migration_id, int64 *donor_major, int64 *recipient_major)
{
	if (tessera_spi_run_saved("SELECT outcome, coalesce(donor_major, 0), coalesce(recipient_major, 0) FROM tessera.migration_outcome"
						" WHERE migration_id = $1", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(migration_id)}, NULL) != 1)
		return TESSERA_RESULT_NONE;
	if (donor_major != NULL)
		*donor_major = DatumGetInt64(spi_row_value(0, 2));
	if (recipient_major != NULL)
		*recipient_major = DatumGetInt64(spi_row_value(0, 3));
	return tessera_migration_result_of(spi_row_text(0, 1));
}

/* Inserts the decision unless there is one; waits for a decision in flight. */
static bool
insert_outcome(const pg_uuid_t *migration_id, TesseraMigrationResult outcome)
{
	return tessera_spi_run_saved("INSERT INTO tessera.migration_outcome (migration_id, outcome) VALUES ($1, $2) ON CONFLICT DO NOTHING",
						   SPI_OK_INSERT, 2, (Oid[]) {UUIDOID, TEXTOID},
						   (Datum[]) {UUIDPGetDatum(migration_id), CStringGetTextDatum(tessera_migration_result_text(outcome))}, NULL) == 1;
}

/* The state of a migration's row becomes the outcome; nothing is changed if it has ended already. */
static void
write_state(const pg_uuid_t *migration_id, TesseraMigrationResult outcome, const char *error)
{
	bool		nulls[] = {false, false, error == NULL};

	tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_RUNNING, tessera_migration_result_state(outcome));
	tessera_spi_run_saved("UPDATE tessera.migration SET state = $2, finished = clock_timestamp(), error = coalesce(error, $3)"
					" WHERE migration_id = $1 AND state = 'running'", SPI_OK_UPDATE, 3, (Oid[]) {UUIDOID, TEXTOID, TEXTOID},
					(Datum[]) {UUIDPGetDatum(migration_id), CStringGetTextDatum(tessera_migration_result_text(outcome)),
		error ? CStringGetTextDatum(error) : (Datum) 0}, nulls);
}

static const char *const lock_nodes_sql =
	"SELECT n.node_id FROM tessera.node AS n JOIN tessera.migration AS m ON n.node_id IN (m.donor, m.recipient)"
	" WHERE m.migration_id = $1 ORDER BY n.node_id FOR SHARE OF n";

static const char *const read_move_sql =
	"SELECT m.min, m.max, m.donor, m.recipient, m.epoch, m.state, m.term = (SELECT i.term FROM tessera.identity AS i),"
	" d.incarnation = m.donor_incarnation AND r.incarnation = m.recipient_incarnation,"
	" coalesce(t.schema_name || '.' || t.table_name, m.table_id::text)"
	" FROM tessera.migration AS m LEFT JOIN tessera.node AS d ON d.node_id = m.donor"
	" LEFT JOIN tessera.node AS r ON r.node_id = m.recipient AND r.is_shard"
	" LEFT JOIN tessera.cluster_table AS t ON t.table_id = m.table_id WHERE m.migration_id = $1";

/* Reads the registration and checks all that must still be as it was registered. The group is locked. */
static void
read_move(const TesseraGroupRow *group, Move *move)
{
	bool		isnull;
	bool		same_term,
				same_servers;
	TesseraMigrationResult ended;

	/* a failover registers its server in the node's row: it waits for us, or we see it */
	tessera_spi_run_saved(lock_nodes_sql, SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(move->migration_id)}, NULL);
	if (tessera_spi_run_saved(read_move_sql, SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(move->migration_id)}, NULL) != 1)
		refuse_unknown(move->migration_id);
	move->min = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(0, 1));
	move->max = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(0, 2));
	move->donor = DatumGetInt32(spi_row_value(0, 3));
	move->recipient = DatumGetInt32(spi_row_value(0, 4));
	move->epoch = *DatumGetUUIDP(spi_row_value(0, 5));
	same_term = DatumGetBool(spi_row_datum(0, 7, &isnull)) && !isnull;
	same_servers = DatumGetBool(spi_row_datum(0, 8, &isnull)) && !isnull;
	move->object = spi_row_text(0, 9);

	ended = tessera_migration_result_of(spi_row_text(0, 6));
	if (ended != TESSERA_RESULT_NONE || !same_term || !same_servers)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("migration %s can no longer be committed", tessera_uuid_text(move->migration_id)),
				 ended != TESSERA_RESULT_NONE ? errdetail("It has ended: %s.", tessera_migration_result_text(ended)) :
				 !same_term ? errdetail("The config node was promoted since it was registered.") :
				 errdetail("A node left, or was promoted since it was registered.")));
	if (memcmp(&move->epoch, &group->epoch, sizeof(pg_uuid_t)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("migration %s is of another epoch of its table", tessera_uuid_text(move->migration_id))));
	if (!group->allow_migrations)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migrations of \"%s\" are not allowed at present", move->object)));
}

/* Cuts a chunk at the range's ends; fills up to three pieces in order, and which of them move. Versions are given later. */
static int
cut_chunk(TesseraKeySpace *ks, const TesseraChunkRow *chunk, const Move *move, const TesseraKeyBound *min, const TesseraKeyBound *max,
		  TesseraChunkRow *pieces, bool *moves)
{
	bool		left = tessera_key_compare(ks, &chunk->key_min, min) < 0;
	bool		right = tessera_key_compare(ks, max, &chunk->key_max) < 0;
	int			n = 0;

	if (left)
	{
		pieces[n] = *chunk;
		pieces[n].max = move->min;
		moves[n++] = false;
	}
	pieces[n] = *chunk;
	pieces[n].node_id = move->recipient;
	if (left)
		pieces[n].min = move->min;
	if (right)
		pieces[n].max = move->max;
	moves[n++] = true;
	if (right)
	{
		pieces[n] = *chunk;
		pieces[n].min = move->max;
		moves[n++] = false;
	}

	/* it is not known how the bytes spread over the pieces, nor which piece is too large */
	for (int i = 0; i < n && n > 1; i++)
	{
		pieces[i].bytes = -1;
		pieces[i].jumbo = false;
	}
	return n;
}

/* S19: one other chunk of the donor shows the donor's change of version, if it has one and no cut piece does. */
static bool
bump_control_chunk(const TesseraGroupRow *group, int32 donor, int64 major, int64 minor)
{
	return tessera_spi_run_saved("UPDATE tessera.chunk SET major = $3, minor = $4 WHERE group_id = $1 AND min OPERATOR(tessera.=)"
						   " (SELECT min FROM tessera.chunk WHERE group_id = $1 AND node_id = $2 ORDER BY min LIMIT 1)", SPI_OK_UPDATE, 4,
						   (Oid[]) {UUIDOID, INT4OID, INT8OID, INT8OID},
						   (Datum[]) {UUIDPGetDatum(&group->group_id), Int32GetDatum(donor), Int64GetDatum(major), Int64GetDatum(minor)},
						   NULL) == 1;
}

/* Gives the range's chunks to the recipient; returns the donor's shard version. */
static int64
move_chunks(TesseraGroupRow *group, TesseraKeySpace *ks, const Move *move, int n, const TesseraChunkRow *chunks,
			const TesseraKeyBound *min, const TesseraKeyBound *max, const char *by)
{
	TesseraChunkRow *after = palloc(sizeof(TesseraChunkRow) * (n + 2));
	bool	   *moves = palloc(sizeof(bool) * (n + 2));
	int		   *first = palloc(sizeof(int) * (n + 1));	/* pieces of chunk i are first[i] .. first[i + 1] - 1 */
	int64		major = group->major + 1;
	int64		minor = 0;
	bool		donor_left = false;

	first[0] = 0;
	for (int i = 0; i < n; i++)
		first[i + 1] = first[i] + cut_chunk(ks, &chunks[i], move, min, max, &after[first[i]], &moves[first[i]]);

	/* what moves first, what stays behind it */
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < first[n]; i++)
			if (moves[i] == (round == 0))
			{
				after[i].major = major;
				after[i].minor = minor++;
				donor_left |= !moves[i];
			}
	for (int i = 0; i < n; i++)
		tessera_chunk_replace(&group->group_id, &chunks[i], first[i + 1] - first[i], &after[first[i]], &moves[first[i]]);
	if (!donor_left && (donor_left = bump_control_chunk(group, move->donor, major, minor)))
		minor++;

	tessera_group_write_version(group, major, minor - 1);
	tessera_chunk_log("move", move->object, by, n, chunks, first[n], after);
	return donor_left ? major : 0;
}

/* The chunks of the range, all of which must be the donor's. */
static TesseraChunkRow *
donor_chunks(const TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint, const Move *move, const TesseraKeyBound *min,
			 const TesseraKeyBound *max, int *n)
{
	TesseraChunkRow *chunks = tessera_chunks_of_range(group, ks, hint, min, max, n);

	for (int i = 0; i < *n; i++)
		if (chunks[i].node_id != move->donor)
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
					 errmsg("the donor of migration %s does not own its whole range", tessera_uuid_text(move->migration_id)),
					 errdetail("The chunk from %s to %s is another shard's.", tessera_bound_to_cstring(chunks[i].min),
							   tessera_bound_to_cstring(chunks[i].max))));
	return chunks;
}

/*
 * Decides a migration as committed, in the caller's transaction (doc/design.md#commit-and-fence): the range's chunks, split at its ends if need be
 * (S36), go to the recipient as <M+1,0>, <M+1,1>..., and what is left of the cut chunks, or else one other chunk of the donor, gets the next ones
 * (S19). The shard versions that result (0 for a donor left without a chunk, S20) are returned and kept in the outcome row. Once it is committed, the
 * same is returned again. group_id, ks: of the migration; hint: min of the chunk that probably holds the range's min.
 *
 * ERROR TS003: not known, fenced as aborted, another term, or a node's server is not the registered one. TS002: another epoch, or the donor does not
 * own the whole range. 55006: migrations of the group are not allowed. A concurrent fence is waited for: the outcome row's key is unique.
 */
static void
decide_committed(const pg_uuid_t *migration_id, const pg_uuid_t *group_id, TesseraKeySpace *ks, const TesseraBound *hint, int64 *donor_major,
				 int64 *recipient_major)
{
	TesseraSpi	spi;
	TesseraGroupRow group;
	Move		move = {.migration_id = migration_id};
	TesseraKeyBound min,
				max;
	TesseraChunkRow *chunks;
	int			n;

	tessera_group_lock(group_id, &group);
	tessera_spi_begin(&spi);
	if (!insert_outcome(migration_id, TESSERA_RESULT_COMMITTED))
	{
		if (read_outcome(migration_id, donor_major, recipient_major) != TESSERA_RESULT_COMMITTED)
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_FENCED),
					 errmsg("migration %s was fenced: it is aborted", tessera_uuid_text(migration_id))));
		tessera_spi_end(&spi);
		return;
	}
	read_move(&group, &move);
	tessera_key_from_bound(ks, move.min, &min);
	tessera_key_from_bound(ks, move.max, &max);
	move.min = tessera_key_to_bound(ks, &min);
	move.max = tessera_key_to_bound(ks, &max);
	chunks = donor_chunks(&group, ks, hint, &move, &min, &max, &n);

	*donor_major = move_chunks(&group, ks, &move, n, chunks, &min, &max, GetUserNameFromId(GetSessionUserId(), false));
	*recipient_major = group.major;
	tessera_spi_run_saved("UPDATE tessera.migration_outcome SET donor_major = $2, recipient_major = $3 WHERE migration_id = $1", SPI_OK_UPDATE, 3,
					(Oid[]) {UUIDOID, INT8OID, INT8OID},
					(Datum[]) {UUIDPGetDatum(migration_id), Int64GetDatum(*donor_major), Int64GetDatum(*recipient_major)}, NULL);
	write_state(migration_id, TESSERA_RESULT_COMMITTED, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

/* Of the migration's row. */
static TesseraMigrationResult
read_state(const pg_uuid_t *migration_id)
{
	if (tessera_spi_run_saved("SELECT state FROM tessera.migration WHERE migration_id = $1", SPI_OK_SELECT, 1,
						(Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(migration_id)}, NULL) != 1)
		refuse_unknown(migration_id);
	return tessera_migration_result_of(spi_row_text(0, 1));
}

/*
 * Decides a migration as aborted unless it is decided already; returns the outcome, 'committed' or 'aborted'. Waits for a commit in flight.
 * error: why, for the migration's row, or NULL. ERROR TS003 if the migration is not known.
 */
static const char *
fence(const pg_uuid_t *migration_id, const char *error)
{
	TesseraSpi	spi;
	TesseraMigrationResult state;
	TesseraMigrationResult outcome;

	if (tessera_injection_skips("fence"))
		return tessera_migration_result_text(TESSERA_RESULT_ABORTED);
	tessera_spi_begin(&spi);
	state = read_state(migration_id);

	/*
	 * an ended migration whose outcome row is gone: its state is what is left of the decision, and nothing may be decided again
	 * (doc/design.md#commit-and-fence)
	 */
	if (state == TESSERA_RESULT_NONE)
		insert_outcome(migration_id, TESSERA_RESULT_ABORTED);
	outcome = read_outcome(migration_id, NULL, NULL);
	/* also if that has come, and was acknowledged, since the state was read */
	if (outcome == TESSERA_RESULT_NONE)
		outcome = read_state(migration_id);
	/* with the reason: whoever sees the outcome sees why */
	if (state == TESSERA_RESULT_NONE)
		write_state(migration_id, outcome, outcome == TESSERA_RESULT_ABORTED ? error : NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	return tessera_migration_result_text(outcome);
}

/*
 * For a committed migration whose rows the recipient has lost: gives its range back to the donor, which still has the rows; the migration then counts
 * as aborted. Returns false if the donor has acknowledged the outcome, because it may have deleted the rows then. ERROR TS002 if the recipient no
 * longer owns the whole range.
 */
static bool
return_move(const pg_uuid_t *migration_id, TesseraKeySpace *ks)
{
	Datum		id = UUIDPGetDatum(migration_id);
	TesseraGroupRow group;
	Move		move = {.migration_id = migration_id};
	TesseraKeyBound min,
				max;
	TesseraChunkRow *chunks;
	TesseraSpi	spi;
	int			n;

	migration_range(migration_id, &group.group_id, &move.min, &move.max);
	tessera_group_lock(&group.group_id, &group);
	tessera_spi_begin(&spi);
	tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_COMMITTED, TESSERA_ABORTED);
	/* an outcome that the donor has acknowledged is gone, and with it the donor's rows */
	if (tessera_spi_run("UPDATE tessera.migration_outcome SET outcome = 'aborted', donor_major = NULL, recipient_major = NULL"
						" WHERE migration_id = $1 AND outcome = 'committed'", SPI_OK_UPDATE, 1, (Oid[]) {UUIDOID}, &id, NULL) != 1)
	{
		tessera_spi_end(&spi);
		return false;
	}
	tessera_spi_run("UPDATE tessera.migration SET state = 'aborted', error = 'the recipient was promoted without the rows: returned to the donor'"
					" WHERE migration_id = $1 RETURNING donor, recipient", SPI_OK_UPDATE_RETURNING, 1, (Oid[]) {UUIDOID}, &id, NULL);
	move.donor = DatumGetInt32(spi_row_value(0, 2));	/* it goes the other way */
	move.recipient = DatumGetInt32(spi_row_value(0, 1));
	move.object = psprintf("return of migration %s", tessera_uuid_text(migration_id));
	tessera_key_from_bound(ks, move.min, &min);
	tessera_key_from_bound(ks, move.max, &max);
	move.min = tessera_key_to_bound(ks, &min);
	move.max = tessera_key_to_bound(ks, &max);
	chunks = donor_chunks(&group, ks, NULL, &move, &min, &max, &n);
	(void) move_chunks(&group, ks, &move, n, chunks, &min, &max, GetUserNameFromId(GetSessionUserId(), false));
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	return true;
}

/*
 * Both sides have carried out the outcome: its row goes, and what is left of it is the state of the migration's row. false: the outcome is another
 * one, as the move was returned meanwhile.
 */
static bool
acknowledge(const pg_uuid_t *migration_id, TesseraMigrationResult outcome)
{
	Datum		id = UUIDPGetDatum(migration_id);
	bool		accepted;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	/* who returns the move changes this row: then the state is read after it */
	tessera_spi_run("SELECT FROM tessera.migration_outcome WHERE migration_id = $1 FOR UPDATE", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, &id, NULL);
	accepted = tessera_spi_run("SELECT state FROM tessera.migration WHERE migration_id = $1", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, &id, NULL) == 0 ||
		tessera_migration_result_of(spi_row_text(0, 1)) == outcome;
	if (accepted)
		tessera_spi_run("DELETE FROM tessera.migration_outcome WHERE migration_id = $1", SPI_OK_DELETE, 1, (Oid[]) {UUIDOID}, &id, NULL);
	tessera_spi_end(&spi);
	return accepted;
}


/* Repairs after a promotion */

void
tessera_chunk_assign(TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *min, const TesseraBound *max, int32 node_id, const char *object)
{
	TesseraKeyBound key_min,
				key_max;
	TesseraChunkRow *chunks;
	TesseraSpi	spi;
	int			n;

	tessera_key_from_bound(ks, min, &key_min);
	tessera_key_from_bound(ks, max, &key_max);
	chunks = tessera_chunks_of_range(group, ks, NULL, &key_min, &key_max, &n);
	tessera_spi_begin(&spi);
	for (int i = 0; i < n; i++)
	{
		bool		begins = tessera_key_compare(ks, &key_min, &chunks[i].key_min) <= 0;
		bool		ends = tessera_key_compare(ks, &chunks[i].key_max, &key_max) <= 0;
		Move		move = {.object = unconstify(char *, object),.donor = chunks[i].node_id,.recipient = node_id};

		if (chunks[i].node_id == node_id)
			continue;
		move.min = begins ? chunks[i].min : tessera_key_to_bound(ks, &key_min);
		move.max = ends ? chunks[i].max : tessera_key_to_bound(ks, &key_max);
		(void) move_chunks(group, ks, &move, 1, &chunks[i], begins ? &chunks[i].key_min : &key_min, ends ? &chunks[i].key_max : &key_max,
						   GetUserNameFromId(GetSessionUserId(), false));
	}
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

void
tessera_group_outdo(TesseraGroupRow *group, int64 major)
{
	TesseraSpi	spi;

	if (major < group->major)
		return;
	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.chunk SET major = $2, minor = 0 WHERE group_id = $1 AND min OPERATOR(tessera.=)"
					" (SELECT min FROM tessera.chunk WHERE group_id = $1 ORDER BY major DESC, minor DESC LIMIT 1)", SPI_OK_UPDATE, 2,
					(Oid[]) {UUIDOID, INT8OID}, (Datum[]) {UUIDPGetDatum(&group->group_id), Int64GetDatum(major + 1)}, NULL);
	tessera_group_write_version(group, major + 1, 0);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}


/* The calls */

/* The version commit of a migration, in the current transaction; *term: the caller's, and then this config node's. */
static void
commit_move(const pg_uuid_t *migration_id, int64 *term, int64 *donor_major, int64 *recipient_major)
{
	const TesseraRouting *routing = tessera_config_routing(*term);
	const TesseraGroup *group;
	TesseraKeySpace *ks;
	TesseraBound *min,
			   *max;
	TesseraKeyBound position;
	pg_uuid_t	group_id;

	tessera_commit_durably();
	*term = routing->term;
	migration_range(migration_id, &group_id, &min, &max);
	group = tessera_config_group(routing, &group_id, NULL);
	ks = tessera_group_keyspace(routing, group);
	tessera_key_from_bound(ks, min, &position);
	decide_committed(migration_id, &group_id, ks, tessera_chunk_hint(routing, group, ks, &position), donor_major, recipient_major);
}

void
tessera_serve_commit_move(const TesseraCommitMoveArgs *args, TesseraCommitMoveResult *result)
{
	result->config_term = args->term;
	commit_move(args->migration_id, &result->config_term, &result->donor_major, &result->recipient_major);
	tessera_injection("config_deciding");
}

/* A change of the catalog, also one that is undone, invalidates plans on tessera.node (tessera_catalog_changed). */
static void
plan_again(void)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_plan(lock_nodes_sql, 1, (Oid[]) {UUIDOID});
	tessera_spi_plan(read_move_sql, 1, (Oid[]) {UUIDOID});
	tessera_spi_end(&spi);
}

/*
 * The same, undone again. What would be refused is refused before a gate is closed; and this
 * session, which will run the commit itself, has its plans made and its caches filled.
 */
void
tessera_serve_rehearse_move(const TesseraRehearseMoveArgs *args)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	int64		term = args->term;
	int64		donor_major,
				recipient_major;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		commit_move(args->migration_id, &term, &donor_major, &recipient_major);
	}
	PG_CATCH();
	{
		/* the subtransaction would be left open */
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	if (error != NULL)
		ReThrowError(error);
	plan_again();
}

/* The outcome: 'aborted' (for that error) if nothing was decided before. */
const char *
tessera_serve_fence_migration(const TesseraFenceMigrationArgs *args)
{
	const char *outcome;

	tessera_config_routing(args->term);
	tessera_commit_durably();
	outcome = fence(args->migration_id, args->error);
	tessera_injection("config_fencing");
	return outcome;
}

bool
tessera_serve_return_move(const TesseraReturnMoveArgs *args)
{
	const pg_uuid_t *migration_id = args->migration_id;
	const TesseraRouting *routing = tessera_config_routing(args->term);
	TesseraBound *min,
			   *max;
	pg_uuid_t	group_id;
	bool		returned;

	tessera_commit_durably();
	migration_range(migration_id, &group_id, &min, &max);
	returned = return_move(migration_id, tessera_group_keyspace(routing, tessera_config_group(routing, &group_id, NULL)));
	tessera_injection("config_returning");
	return returned;
}

bool
tessera_serve_acknowledge_migration(const TesseraAcknowledgeMigrationArgs *args)
{
	(void) tessera_config_routing(0);
	tessera_commit_durably();
	return acknowledge(args->id, tessera_migration_result_of(args->outcome));
}
