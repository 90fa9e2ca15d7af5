/*
 * commit_move.c
 *	  The commit of a move on the config node, the fence that decides a move as aborted, and their acknowledgement
 *	  (doc/design.md#commit-and-fence; S19, S20, S36, S63). After a promotion of its recipient a committed move can be returned. How a move begins is
 *	  in register_move.c; the way of a commit through all nodes is in doc/architecture.md, "The commit of a move".
 *
 * Commit and fence insert the same unique key, the migration's row in tessera.migration_outcome. The second one waits for the first: a commit that
 * finds 'aborted' fails (TS003), a fence that finds 'committed' says so. The outcome row is the decision; it goes when both sides have acknowledged
 * it, and what is left then is the state of the migration's row.
 *
 * The donor lets the commit wait, done but for its end, until its gates are closed (control/call.h: held): only the end falls into the pause. If that
 * fails, or the session here has ended meanwhile, nothing of it is left, and the commit is called for once more, or the fence.
 *
 * A migration moves ranges of any number of groups; all of them change in the one transaction.
 *
 * Locks, in this order, to the end of the transaction, which the donor may let wait for about a second: the rows of the groups by group_id, the
 * outcome's key, the rows of both nodes shared (against a registration of a promoted server, which writes its row; nodes that come or go wait, too,
 * as they lock tessera.node itself), rows of chunks, the migration's row. A crash leaves all of the commit or nothing of it.
 *
 * Interleavings: (commit in front) the fence's insert waits for the commit, does nothing, and its next statement reads 'committed'. (fence in front)
 * the commit's insert waits, finds the key taken, reads 'aborted' and raises TS003; nothing of the move is written.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "catalog/change.h"
#include "catalog/migration_state.h"
#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "common/worker_registry.h"
#include "config/authority.h"
#include "config/chunks_private.h"
#include "config/membership.h"
#include "control/calls.h"


/* A range that moves, its bounds typed as well. */
typedef struct MovedRange
{
	TesseraBound *min;
	TesseraBound *max;
	TesseraKeyBound key_min;
	TesseraKeyBound key_max;
	const TesseraBound *hint;	/* min of the chunk that probably holds min, or NULL */
} MovedRange;

/* What moves of one group. */
typedef struct GroupMove
{
	TesseraGroupRow group;		/* group_id, and when it is locked the rest */
	pg_uuid_t	epoch;			/* as registered */
	TesseraKeySpace *ks;
	const char *object;			/* a table of it, for the changelog */
	int			nranges;
	MovedRange *ranges;			/* in order, disjoint */
} GroupMove;

typedef struct Move
{
	const pg_uuid_t *migration_id;
	int32		donor;
	int32		recipient;
	int			ngroups;
	GroupMove  *groups;			/* by group_id: in this order they are locked */
} Move;

static void
refuse_unknown(const pg_uuid_t *migration_id)
{
	ereport(ERROR,
			(errcode(ERRCODE_TESSERA_FENCED),
			 errmsg("migration %s is not known", tessera_uuid_text(migration_id)),
			 errdetail("It was never registered on this config node, or its outcome was acknowledged and forgotten.")));
}

static const char *const read_ranges_sql =
	"SELECT r.group_id, r.epoch, r.min, r.max, coalesce((SELECT t.schema_name || '.' || t.table_name FROM tessera.cluster_table AS t"
	"   WHERE t.group_id = r.group_id ORDER BY t.table_id <> m.table_id, t.table_id LIMIT 1),"
	"  (SELECT 'schema ' || s.schema_name FROM tessera.schema_placement AS s WHERE s.group_id = r.group_id), m.table_id::text, r.group_id::text)"
	" FROM tessera.migration AS m, unnest(m.ranges) WITH ORDINALITY AS r (group_id, epoch, min, max, n) WHERE m.migration_id = $1 ORDER BY r.n";

/* Appends a range, of a row of read_ranges_sql. ERROR XX001 if it does not stand where it should. */
static void
add_range(Move *move, GroupMove *group, int row)
{
	MovedRange *range = &group->ranges[group->nranges++];

	range->min = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(row, 3));
	range->max = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(row, 4));
	tessera_key_from_bound(group->ks, range->min, &range->key_min);
	tessera_key_from_bound(group->ks, range->max, &range->key_max);
	range->min = tessera_key_to_bound(group->ks, &range->key_min);
	range->max = tessera_key_to_bound(group->ks, &range->key_max);
	if (tessera_key_compare(group->ks, &range->key_min, &range->key_max) >= 0 ||
		(group->nranges > 1 && tessera_key_compare(group->ks, &range[-1].key_max, &range->key_min) > 0))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the ranges of migration %s are not in order", tessera_uuid_text(move->migration_id))));
}

/* The next group, of a row of read_ranges_sql, with room for n ranges. */
static GroupMove *
add_group(Move *move, const TesseraRouting *routing, int row, int n)
{
	GroupMove  *group = &move->groups[move->ngroups++];
	const TesseraGroup *known;

	group->group.group_id = *DatumGetUUIDP(spi_row_value(row, 1));
	group->epoch = *DatumGetUUIDP(spi_row_value(row, 2));
	known = tessera_config_group(routing, &group->group.group_id, NULL);
	group->ks = tessera_group_keyspace(routing, known);
	group->object = spi_row_text(row, 5);
	group->ranges = palloc(sizeof(MovedRange) * n);
	if (move->ngroups > 1 && memcmp(&group[-1].group.group_id, &group->group.group_id, sizeof(pg_uuid_t)) >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the table groups of migration %s are not in order", tessera_uuid_text(move->migration_id))));
	return group;
}

static void
find_hints(GroupMove *group, const TesseraRouting *routing)
{
	const TesseraGroup *known = tessera_config_group(routing, &group->group.group_id, NULL);

	for (int i = 0; i < group->nranges; i++)
		group->ranges[i].hint = tessera_chunk_hint(routing, known, group->ks, &group->ranges[i].key_min);
}

/* The ranges of a registered migration, in the current context. ERROR TS003 if it is not known, TS002 if a group is gone. */
static void
read_ranges(Move *move, const TesseraRouting *routing)
{
	MemoryContext caller = CurrentMemoryContext;
	GroupMove  *group = NULL;
	TesseraSpi	spi;
	int			n;

	tessera_spi_begin(&spi);
	n = (int) tessera_spi_run_saved(read_ranges_sql, SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(move->migration_id)}, NULL);
	if (n == 0)
		refuse_unknown(move->migration_id);
	MemoryContextSwitchTo(caller);
	move->groups = palloc0(sizeof(GroupMove) * n);
	for (int i = 0; i < n; i++)
	{
		if (group == NULL || memcmp(&group->group.group_id, DatumGetUUIDP(spi_row_value(i, 1)), sizeof(pg_uuid_t)) != 0)
			group = add_group(move, routing, i, n);
		add_range(move, group, i);
	}
	tessera_spi_end(&spi);
	for (int i = 0; i < move->ngroups; i++)
		find_hints(&move->groups[i], routing);
}

static void
lock_groups(Move *move)
{
	for (int i = 0; i < move->ngroups; i++)
	{
		pg_uuid_t	group_id = move->groups[i].group.group_id;

		tessera_group_lock(&group_id, &move->groups[i].group);
	}
}

/* Outcome row of the migration; none: there is no row. */
static TesseraMigrationResult
read_outcome(const pg_uuid_t *migration_id)
{
	if (tessera_spi_run_saved("SELECT outcome, donor_majors, recipient_majors FROM tessera.migration_outcome WHERE migration_id = $1", SPI_OK_SELECT,
							  1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(migration_id)}, NULL) != 1)
		return TESSERA_RESULT_NONE;
	return tessera_migration_result_of(spi_row_text(0, 1));
}

/* Shard versions of a committed one that read_outcome has just found, one for each group; in the context given. */
static ArrayType *
outcome_majors(int column, MemoryContext context)
{
	MemoryContext own = MemoryContextSwitchTo(context);
	ArrayType  *majors = DatumGetArrayTypePCopy(spi_row_value(0, column));

	MemoryContextSwitchTo(own);
	return majors;
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
	"SELECT m.donor, m.recipient, m.state, m.term = (SELECT i.term FROM tessera.identity AS i),"
	" d.incarnation = m.donor_incarnation AND r.incarnation = m.recipient_incarnation"
	" FROM tessera.migration AS m LEFT JOIN tessera.node AS d ON d.node_id = m.donor"
	" LEFT JOIN tessera.node AS r ON r.node_id = m.recipient AND r.is_shard WHERE m.migration_id = $1";

/* What must still be of a locked group as it was registered. */
static void
check_group(const Move *move, const GroupMove *group)
{
	if (memcmp(&group->epoch, &group->group.epoch, sizeof(pg_uuid_t)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("migration %s is of another epoch of its table", tessera_uuid_text(move->migration_id))));
	if (!group->group.allow_migrations)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migrations of \"%s\" are not allowed at present", group->object)));
}

/* Reads the registration and checks all that must still be as it was registered. The groups are locked. */
static void
read_move(Move *move)
{
	bool		isnull;
	bool		same_term,
				same_servers;
	TesseraMigrationResult ended;

	/* a failover registers its server in the node's row: it waits for us, or we see it */
	tessera_spi_run_saved(lock_nodes_sql, SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(move->migration_id)}, NULL);
	if (tessera_spi_run_saved(read_move_sql, SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(move->migration_id)}, NULL) != 1)
		refuse_unknown(move->migration_id);
	move->donor = DatumGetInt32(spi_row_value(0, 1));
	move->recipient = DatumGetInt32(spi_row_value(0, 2));
	ended = tessera_migration_result_of(spi_row_text(0, 3));
	same_term = DatumGetBool(spi_row_datum(0, 4, &isnull)) && !isnull;
	same_servers = DatumGetBool(spi_row_datum(0, 5, &isnull)) && !isnull;

	if (ended != TESSERA_RESULT_NONE || !same_term || !same_servers)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("migration %s can no longer be committed", tessera_uuid_text(move->migration_id)),
				 ended != TESSERA_RESULT_NONE ? errdetail("It has ended: %s.", tessera_migration_result_text(ended)) :
				 !same_term ? errdetail("The config node was promoted since it was registered.") :
				 errdetail("A node left, or was promoted since it was registered.")));
	for (int i = 0; i < move->ngroups; i++)
		check_group(move, &move->groups[i]);
}

/* The pieces of the chunks that an operation touches, in order; versions are given when all are known. */
typedef struct Pieces
{
	int			n;
	TesseraChunkRow *rows;
	bool	   *moves;			/* it goes to the recipient */
} Pieces;

static void
add_piece(Pieces *pieces, const TesseraChunkRow *chunk, TesseraBound *min, TesseraBound *max, bool moves, int32 node_id)
{
	TesseraChunkRow *piece = &pieces->rows[pieces->n];

	*piece = *chunk;
	piece->min = min;
	piece->max = max;
	piece->node_id = node_id;
	pieces->moves[pieces->n++] = moves;
}

/* Cuts a chunk at the ends of the ranges that move. */
static void
cut_chunk(const GroupMove *group, const TesseraChunkRow *chunk, int32 recipient, Pieces *pieces)
{
	TesseraKeySpace *ks = group->ks;
	int			first = pieces->n;
	TesseraBound *at = chunk->min;	/* it is cut up to here */
	const TesseraKeyBound *key_at = &chunk->key_min;

	for (int i = 0; i < group->nranges; i++)
	{
		const MovedRange *range = &group->ranges[i];
		bool		ends_here = tessera_key_compare(ks, &range->key_max, &chunk->key_max) <= 0;

		if (tessera_key_compare(ks, &range->key_max, key_at) <= 0 || tessera_key_compare(ks, &chunk->key_max, &range->key_min) <= 0)
			continue;
		if (tessera_key_compare(ks, key_at, &range->key_min) < 0)
		{
			add_piece(pieces, chunk, at, range->min, false, chunk->node_id);
			at = range->min;
		}
		add_piece(pieces, chunk, at, ends_here ? range->max : chunk->max, true, recipient);
		at = ends_here ? range->max : chunk->max;
		key_at = ends_here ? &range->key_max : &chunk->key_max;
	}
	if (tessera_key_compare(ks, key_at, &chunk->key_max) < 0)
		add_piece(pieces, chunk, at, chunk->max, false, chunk->node_id);
	else
		pieces->rows[pieces->n - 1].max = chunk->max;

	/* it is not known which piece is too large */
	for (int i = first; i < pieces->n && pieces->n - first > 1; i++)
		pieces->rows[i].jumbo = false;
}

/* S19: one other chunk of the donor shows the donor's change of version, if it has one and no cut piece does. */
static bool
bump_control_chunk(const GroupMove *move, int32 donor, int64 major, int64 minor)
{
	TesseraChunkRow chunk;

	if (!tessera_chunk_of_shard(tessera_routing(), &move->group.group_id, move->ks, donor, &move->ranges[move->nranges - 1].key_max, &chunk))
		return false;
	chunk.major = major;
	chunk.minor = minor;
	tessera_chunk_replace(&move->group.group_id, &chunk, 1, &chunk, NULL);
	return true;
}

/* What the current transaction does at its end. */
typedef struct AtEnd
{
	bool		decides;		/* a migration as committed */
	bool		wakes_balancer; /* a schema has moved: its sequences follow */
} AtEnd;

static AtEnd at_end = {0};

/*
 * The placed tables of a schema live where the chunk of its group is; its sequences follow (balancer/schema_sequences.c). S25. After a promotion the
 * row may say so already (promotion_merge.c).
 */
static void
place_schema(const TesseraGroupRow *group, int32 recipient)
{
	tessera_spi_run_saved("UPDATE tessera.schema_placement SET node_id = $2, mod = mod + 1,"
						  " sequence_home = nullif(coalesce(sequence_home, node_id), $2) WHERE group_id = $1 AND node_id <> $2", SPI_OK_UPDATE, 2,
						  (Oid[]) {UUIDOID, INT4OID}, (Datum[]) {UUIDPGetDatum(&group->group_id), Int32GetDatum(recipient)}, NULL);
	at_end.wakes_balancer = true;
}

/* Gives the ranges' chunks, all of the donor, to the recipient; returns the donor's shard version. Raises the version of the group's row given. */
static int64
move_chunks(GroupMove *move, int32 donor, int32 recipient, int n, const TesseraChunkRow *chunks, const char *by)
{
	TesseraGroupRow *group = &move->group;
	int			room = n + 2 * move->nranges;	/* each end of a range makes one piece more */
	Pieces		after = {.rows = palloc(sizeof(TesseraChunkRow) * room),.moves = palloc(sizeof(bool) * room)};
	int		   *first = palloc(sizeof(int) * (n + 1));	/* pieces of chunk i are first[i] .. first[i + 1] - 1 */
	int64		major = group->major + 1;
	int64		minor = 0;
	bool		donor_left = false;

	first[0] = 0;
	for (int i = 0; i < n; i++)
	{
		cut_chunk(move, &chunks[i], recipient, &after);
		first[i + 1] = after.n;
	}

	/* what moves first, what stays behind it */
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < after.n; i++)
			if (after.moves[i] == (round == 0))
			{
				after.rows[i].major = major;
				after.rows[i].minor = minor++;
				donor_left |= !after.moves[i];
			}
	for (int i = 0; i < n; i++)
		tessera_chunk_replace(&group->group_id, &chunks[i], first[i + 1] - first[i], &after.rows[first[i]], &after.moves[first[i]]);
	if (!donor_left && (donor_left = bump_control_chunk(move, donor, major, minor)))
		minor++;

	tessera_group_write_version(group, major, minor - 1);
	if (move->ks->ncolumns == 0)
		place_schema(group, recipient);
	tessera_chunk_log("move", move->object, &group->group_id, by, n, chunks, after.n, after.rows);
	return donor_left ? major : 0;
}

/* Those of a range, added to the chunks of the ranges before it: its first one may be the last of those. ERROR TS002 if one is not the donor's. */
static TesseraChunkRow *
add_chunks(const GroupMove *group, const MovedRange *range, const Move *move, int *n, TesseraChunkRow *chunks)
{
	int			nadded;
	TesseraChunkRow *added = tessera_chunks_of_range(&group->group, group->ks, range->hint, &range->key_min, &range->key_max, &nadded);

	chunks = *n == 0 ? palloc(sizeof(TesseraChunkRow) * nadded) : repalloc(chunks, sizeof(TesseraChunkRow) * (*n + nadded));
	for (int i = 0; i < nadded; i++)
	{
		if (added[i].node_id != move->donor)
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
					 errmsg("the donor of migration %s does not own its whole range", tessera_uuid_text(move->migration_id)),
					 errdetail("The chunk from %s to %s is another shard's.", tessera_bound_to_cstring(added[i].min),
							   tessera_bound_to_cstring(added[i].max))));
		if (*n == 0 || tessera_key_compare(group->ks, &chunks[*n - 1].key_max, &added[i].key_min) <= 0)
			chunks[(*n)++] = added[i];
	}
	return chunks;
}

/* The chunks of the ranges of a group, all of which must be the donor's. */
static TesseraChunkRow *
donor_chunks(const GroupMove *group, const Move *move, int *n)
{
	TesseraChunkRow *chunks = NULL;

	*n = 0;
	for (int i = 0; i < group->nranges; i++)
		chunks = add_chunks(group, &group->ranges[i], move, n, chunks);
	return chunks;
}

/* The shard versions that a commit gives: one for each group. */
typedef struct Versions
{
	ArrayType  *donor_majors;
	ArrayType  *recipient_majors;
} Versions;

/* All groups, one after the other. In the current context: each statement leaves that of SPI as the current one. */
static Versions
move_groups(Move *move)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum	   *donor_majors = palloc(sizeof(Datum) * move->ngroups);
	Datum	   *recipient_majors = palloc(sizeof(Datum) * move->ngroups);
	const char *by = GetUserNameFromId(GetSessionUserId(), false);

	for (int i = 0; i < move->ngroups; i++)
	{
		GroupMove  *group = &move->groups[i];
		int			n;
		TesseraChunkRow *chunks = donor_chunks(group, move, &n);

		donor_majors[i] = Int64GetDatum(move_chunks(group, move->donor, move->recipient, n, chunks, by));
		recipient_majors[i] = Int64GetDatum(group->group.major);
	}
	MemoryContextSwitchTo(caller);
	return (Versions) {
		construct_array(donor_majors, move->ngroups, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE),
		construct_array(recipient_majors, move->ngroups, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)
	};
}

/*
 * Decides a migration as committed, in the caller's transaction (doc/design.md#commit-and-fence): in each group the ranges' chunks, split at their
 * ends if need be (S36), go to the recipient as <M+1,0>, <M+1,1>..., and what is left of the cut chunks, or else one other chunk of the donor, gets
 * the next ones (S19). The shard versions that result (0 for a donor left without a chunk, S20) are returned, in the current context, and kept in the
 * outcome row. Once it is committed, the same is returned again. Its groups are not locked yet.
 *
 * ERROR TS003: not known, fenced as aborted, another term, or a node's server is not the registered one. TS002: another epoch, or the donor does not
 * own a whole range. 55006: migrations of a group are not allowed. A concurrent fence is waited for: the outcome row's key is unique.
 */
static Versions
decide_committed(Move *move)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Versions	versions = {0};

	lock_groups(move);
	tessera_spi_begin(&spi);
	if (insert_outcome(move->migration_id, TESSERA_RESULT_COMMITTED))
	{
		read_move(move);
		MemoryContextSwitchTo(caller);
		versions = move_groups(move);
		tessera_spi_run_saved("UPDATE tessera.migration_outcome SET donor_majors = $2, recipient_majors = $3 WHERE migration_id = $1", SPI_OK_UPDATE,
							  3, (Oid[]) {UUIDOID, INT8ARRAYOID, INT8ARRAYOID},
							  (Datum[]) {UUIDPGetDatum(move->migration_id), PointerGetDatum(versions.donor_majors),
			PointerGetDatum(versions.recipient_majors)}, NULL);
		write_state(move->migration_id, TESSERA_RESULT_COMMITTED, NULL);
		tessera_catalog_changed();
	}
	else
	{
		if (read_outcome(move->migration_id) != TESSERA_RESULT_COMMITTED)
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_FENCED),
					 errmsg("migration %s was fenced: it is aborted", tessera_uuid_text(move->migration_id))));
		versions = (Versions) {outcome_majors(2, caller), outcome_majors(3, caller)};
	}
	tessera_spi_end(&spi);
	return versions;
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
	outcome = read_outcome(migration_id);
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
 * For a committed migration whose rows the recipient has lost: gives its ranges back to the donor, which still has the rows; the migration then
 * counts as aborted. Returns false if the donor has acknowledged the outcome, because it may have deleted the rows then. ERROR TS002 if the recipient
 * no longer owns the whole of a range.
 */
static bool
return_move(Move *move)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum		id = UUIDPGetDatum(move->migration_id);
	TesseraSpi	spi;

	lock_groups(move);
	tessera_spi_begin(&spi);
	tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_COMMITTED, TESSERA_ABORTED);
	/* an outcome that the donor has acknowledged is gone, and with it the donor's rows */
	if (tessera_spi_run("UPDATE tessera.migration_outcome SET outcome = 'aborted', donor_majors = NULL, recipient_majors = NULL"
						" WHERE migration_id = $1 AND outcome = 'committed'", SPI_OK_UPDATE, 1, (Oid[]) {UUIDOID}, &id, NULL) != 1)
	{
		tessera_spi_end(&spi);
		return false;
	}
	tessera_spi_run("UPDATE tessera.migration SET state = 'aborted', error = 'the recipient was promoted without the rows: returned to the donor'"
					" WHERE migration_id = $1 RETURNING donor, recipient", SPI_OK_UPDATE_RETURNING, 1, (Oid[]) {UUIDOID}, &id, NULL);
	move->donor = DatumGetInt32(spi_row_value(0, 2));	/* it goes the other way */
	move->recipient = DatumGetInt32(spi_row_value(0, 1));
	for (int i = 0; i < move->ngroups; i++)
		move->groups[i].object = psprintf("return of migration %s", tessera_uuid_text(move->migration_id));
	MemoryContextSwitchTo(caller);
	(void) move_groups(move);
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
	GroupMove	move = {.ks = ks,.object = object,.nranges = 1};
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
		MovedRange	range = {chunks[i].min, chunks[i].max, chunks[i].key_min, chunks[i].key_max, NULL};

		if (chunks[i].node_id == node_id)
			continue;
		if (tessera_key_compare(ks, &key_min, &range.key_min) > 0)
		{
			range.key_min = key_min;
			range.min = tessera_key_to_bound(ks, &key_min);
		}
		if (tessera_key_compare(ks, &key_max, &range.key_max) < 0)
		{
			range.key_max = key_max;
			range.max = tessera_key_to_bound(ks, &key_max);
		}
		move.group = *group;
		move.ranges = &range;
		(void) move_chunks(&move, chunks[i].node_id, node_id, 1, &chunks[i], GetUserNameFromId(GetSessionUserId(), false));
		*group = move.group;
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

/* A commit of a move may stay open for a while, with all that it does done; what counts is when it ends. */
void
tessera_commit_move_before_commit(void)
{
	if (at_end.decides)
		tessera_injection("config_deciding");
	/* before the commit, as errors are allowed: it looks more than once */
	if (at_end.wakes_balancer)
		(void) tessera_worker_wake(TESSERA_BALANCER);
}

void
tessera_commit_move_ended(void)
{
	memset(&at_end, 0, sizeof(at_end));
}

void
tessera_serve_commit_move(const TesseraCommitMoveArgs *args, TesseraCommitMoveResult *result)
{
	const TesseraRouting *routing = tessera_config_routing(args->term);
	Move		move = {.migration_id = args->migration_id};
	Versions	versions;

	tessera_commit_durably();
	result->config_term = routing->term;
	read_ranges(&move, routing);
	versions = decide_committed(&move);
	result->donor_majors = versions.donor_majors;
	result->recipient_majors = versions.recipient_majors;
	at_end.decides = true;
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
	const TesseraRouting *routing = tessera_config_routing(args->term);
	Move		move = {.migration_id = args->migration_id};
	bool		returned;

	tessera_commit_durably();
	read_ranges(&move, routing);
	returned = return_move(&move);
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
