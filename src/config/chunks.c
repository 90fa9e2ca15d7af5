/*
 * chunks.c
 *	  Groups and chunks on the config node: split, merge, and the versions these give. Single rows are in chunk_rows.c, moves in commit_move.c.
 *
 * A group's row lock makes its changes serial; versions are allocated from the group version read under it, so that no version is seen before a lower
 * one (doc/design.md#authority) and none is given twice. Chunks are found by the min of the chunk that a routing table names, checked under the lock,
 * and then from neighbour to neighbour: the max of a chunk is the min of the next, letter for letter, because bounds are stored in canonical form.
 *
 * Each change is one transaction on the config node; a crash leaves all of it or nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"

#include "catalog/bound_array.h"
#include "catalog/change.h"
#include "common/errors.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "config/chunks_private.h"


/* Groups */

void
tessera_group_lock(const pg_uuid_t *group_id, TesseraGroupRow *group)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_run_saved("SELECT epoch, group_major, group_minor, allow_migrations FROM tessera.table_group WHERE group_id = $1 FOR UPDATE",
							  SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(group_id)}, NULL) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("table group %s does not exist", tessera_uuid_text(group_id)),
				 errhint("The table was probably dropped meanwhile.")));
	group->group_id = *group_id;
	group->epoch = *DatumGetUUIDP(spi_row_value(0, 1));
	group->major = DatumGetInt64(spi_row_value(0, 2));
	group->minor = DatumGetInt64(spi_row_value(0, 3));
	group->allow_migrations = DatumGetBool(spi_row_value(0, 4));
	tessera_spi_end(&spi);
}

void
tessera_group_write_version(TesseraGroupRow *group, int64 major, int64 minor)
{
	Assert(major > group->major || (major == group->major && minor > group->minor));
	group->major = major;
	group->minor = minor;
	tessera_spi_run_saved("UPDATE tessera.table_group SET group_major = $2, group_minor = $3 WHERE group_id = $1", SPI_OK_UPDATE, 3,
						  (Oid[]) {UUIDOID, INT8OID, INT8OID},
						  (Datum[]) {UUIDPGetDatum(&group->group_id), Int64GetDatum(major), Int64GetDatum(minor)}, NULL);
}

void
tessera_group_raise(TesseraGroupRow *group)
{
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("WITH newest AS (SELECT DISTINCT ON (node_id) node_id, min FROM tessera.chunk WHERE group_id = $1 ORDER BY node_id, major "
						"DESC, minor DESC)"
						" UPDATE tessera.chunk AS c SET major = $2, minor = n.nr FROM (SELECT min, row_number() OVER (ORDER BY node_id) - 1 AS nr "
						"FROM newest) AS n WHERE c.group_id = $1 AND c.min OPERATOR(tessera.=) n.min", SPI_OK_UPDATE, 2, (Oid[]) {UUIDOID, INT8OID},
						(Datum[]) {UUIDPGetDatum(&group->group_id), Int64GetDatum(group->major + 1)}, NULL);
	tessera_group_write_version(group, group->major + 1, (int64) n - 1);
	tessera_spi_end(&spi);
}

void
tessera_group_check_idle(const TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT r.min, r.max, m.migration_id FROM tessera.migration AS m, unnest(m.ranges) AS r"
						" WHERE r.group_id = $1 AND m.state = 'running'", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID},
						(Datum[]) {UUIDPGetDatum(&group->group_id)}, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		TesseraKeyBound migration_min,
					migration_max;

		if (min != NULL)
		{
			tessera_key_from_bound(ks, DatumGetTesseraBoundP(spi_row_value(i, 1)), &migration_min);
			tessera_key_from_bound(ks, DatumGetTesseraBoundP(spi_row_value(i, 2)), &migration_max);
			if (tessera_key_compare(ks, &migration_min, max) >= 0 || tessera_key_compare(ks, min, &migration_max) >= 0)
				continue;
		}
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migration %s is in the way", spi_row_text(i, 3)),
				 errdetail("It moves the range from %s to %s.", spi_row_text(i, 1), spi_row_text(i, 2)),
				 errhint("Wait until it has ended, or call tessera.cancel_migration.")));
	}
	tessera_spi_end(&spi);
}


/* Changing chunks */

/* before and after: jsonb, or 0 for null; group_id: NULL for null. */
static void
add_to_changelog(const char *what, const char *object, const pg_uuid_t *group_id, const char *by, Datum before, Datum after)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_run_saved("INSERT INTO tessera.changelog_entry (what, object, group_id, by, before, after) VALUES ($1, $2, $3, $4, $5, $6)",
						  SPI_OK_INSERT, 6, (Oid[]) {TEXTOID, TEXTOID, UUIDOID, NAMEOID, JSONBOID, JSONBOID},
						  (Datum[]) {CStringGetTextDatum(what), CStringGetTextDatum(object), UUIDPGetDatum(group_id),
		DirectFunctionCall1(namein, CStringGetDatum(by)), before, after}, (bool[]) {false, false, group_id == NULL, false, before == 0, after == 0});
	tessera_spi_end(&spi);
}

void
tessera_chunk_log(const char *what, const char *object, const pg_uuid_t *group_id, const char *by, int nbefore, const TesseraChunkRow *before,
				  int nafter, const TesseraChunkRow *after)
{
	add_to_changelog(what, object, group_id, by, tessera_chunks_jsonb(nbefore, before), tessera_chunks_jsonb(nafter, after));
}

void
tessera_changelog_add(const char *what, const char *object, const pg_uuid_t *group_id, const char *by, const char *before, const char *after)
{
	add_to_changelog(what, object, group_id, by, before ? DirectFunctionCall1(jsonb_in, CStringGetDatum(before)) : 0,
					 after ? DirectFunctionCall1(jsonb_in, CStringGetDatum(after)) : 0);
}

/* Points must ascend, and lie inside the chunk. */
static void
check_points(TesseraKeySpace *ks, const TesseraChunkRow *chunk, int n, const TesseraKeyBound *points)
{
	for (int i = 0; i < n; i++)
	{
		const TesseraKeyBound *below = i > 0 ? &points[i - 1] : &chunk->key_min;
		int			order = tessera_key_compare(ks, below, &points[i]);
		const char *point = tessera_bound_to_cstring(tessera_key_to_bound(ks, &points[i]));

		if (order == 0 || tessera_key_compare(ks, &points[i], &chunk->key_max) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s is already a boundary of chunks", point)));
		if (order > 0 || tessera_key_compare(ks, &points[i], &chunk->key_max) > 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("split points must ascend inside one chunk"),
					 errdetail("%s does not, in the chunk from %s to %s.", point, tessera_bound_to_cstring(chunk->min),
							   tessera_bound_to_cstring(chunk->max))));
	}
}

void
tessera_chunk_split(TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint, int n, const TesseraKeyBound *points,
					const char *by, const char *object, TesseraChunkRow *before)
{
	TesseraSpi	spi;
	TesseraChunkRow *pieces = palloc(sizeof(TesseraChunkRow) * (n + 1));

	Assert(n > 0);
	tessera_chunk_find(&group->group_id, ks, &points[0], hint, before);
	check_points(ks, before, n, points);
	tessera_group_check_idle(group, ks, &before->key_min, &before->key_max);

	for (int i = 0; i <= n; i++)
	{
		pieces[i] = *before;
		if (i > 0)
			pieces[i].min = pieces[i - 1].max;
		if (i < n)
			pieces[i].max = tessera_key_to_bound(ks, &points[i]);
		pieces[i].major = group->major;
		pieces[i].minor = group->minor + 1 + i;
		pieces[i].jumbo = false;
	}

	tessera_spi_begin(&spi);
	tessera_chunk_replace(&group->group_id, before, n + 1, pieces, NULL);
	tessera_group_write_version(group, group->major, group->minor + n + 1);
	tessera_chunk_log("split", object, &group->group_id, by, 1, before, n + 1, pieces);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

/* All chunks from the one that begins at min to the one that ends at max; palloc'd. */
static TesseraChunkRow *
chunks_between(const TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint, const TesseraKeyBound *min,
			   const TesseraKeyBound *max, int *n)
{
	TesseraChunkRow *chunks = tessera_chunks_of_range(group, ks, hint, min, max, n);

	if (tessera_key_compare(ks, &chunks[0].key_min, min) != 0 || tessera_key_compare(ks, &chunks[*n - 1].key_max, max) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no chunks begin at %s and end at %s", tessera_bound_to_cstring(tessera_key_to_bound(ks, min)),
						tessera_bound_to_cstring(tessera_key_to_bound(ks, max))),
				 errdetail("The chunks there reach from %s to %s.", tessera_bound_to_cstring(chunks[0].min),
						   tessera_bound_to_cstring(chunks[*n - 1].max))));
	if (*n < 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there is only one chunk from %s to %s", tessera_bound_to_cstring(chunks[0].min),
						tessera_bound_to_cstring(chunks[0].max))));
	for (int i = 1; i < *n; i++)
		if (chunks[i].node_id != chunks[0].node_id)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("chunks of different shards cannot be merged"),
					 errhint("Move them to one shard first: tessera.move_range.")));
	return chunks;
}

/* Writes the merged chunk over the first row and deletes the others; whose history is kept with it. */
static void
write_merged(const TesseraGroupRow *group, const TesseraChunkRow *merged, int n, const TesseraChunkRow *chunks)
{
	Oid			bound = tessera_bound_type();
	Datum	   *mins = palloc(sizeof(Datum) * n);
	ArrayType  *array;

	for (int i = 0; i < n; i++)
		mins[i] = PointerGetDatum(chunks[i].min);
	array = construct_array(mins, n, bound, -1, false, TYPALIGN_INT);

	tessera_spi_run("UPDATE tessera.chunk AS c SET max = $3, major = $4, minor = $5, jumbo = $6,"
						" moved = (SELECT max(moved) FROM tessera.chunk WHERE group_id = $1 AND min OPERATOR(tessera.=) ANY ($7)),"
						" history = coalesce((SELECT jsonb_agg(h ORDER BY (h->>'until')::timestamptz DESC)"
						"   FROM (SELECT DISTINCT h FROM tessera.chunk AS o, jsonb_array_elements(o.history) AS h"
						"         WHERE o.group_id = $1 AND o.min OPERATOR(tessera.=) ANY ($7)) AS u), '[]')"
						" WHERE group_id = $1 AND min OPERATOR(tessera.=) $2", SPI_OK_UPDATE, 7,
						(Oid[]) {UUIDOID, bound, bound, INT8OID, INT8OID, BOOLOID, get_array_type(bound)},
						(Datum[]) {
		UUIDPGetDatum(&group->group_id), PointerGetDatum(merged->min), PointerGetDatum(merged->max), Int64GetDatum(merged->major),
			Int64GetDatum(merged->minor), BoolGetDatum(merged->jumbo), PointerGetDatum(array)
	}, NULL);
	tessera_spi_run("DELETE FROM tessera.chunk WHERE group_id = $1 AND min OPERATOR(tessera.=) ANY ($2) AND min OPERATOR(tessera.<>) $3",
					SPI_OK_DELETE, 3,
						(Oid[]) {UUIDOID, get_array_type(bound), bound},
						(Datum[]) {UUIDPGetDatum(&group->group_id), PointerGetDatum(array), PointerGetDatum(merged->min)}, NULL);
}

int
tessera_chunk_merge(TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint, const TesseraKeyBound *min,
					const TesseraKeyBound *max, const char *by, const char *object, int32 *node_id)
{
	TesseraSpi	spi;
	int			n;
	TesseraChunkRow *chunks = chunks_between(group, ks, hint, min, max, &n);
	TesseraChunkRow merged = chunks[0];

	tessera_group_check_idle(group, ks, min, max);
	merged.max = chunks[n - 1].max;
	merged.major = group->major;
	merged.minor = group->minor + 1;
	for (int i = 1; i < n; i++)
		merged.jumbo |= chunks[i].jumbo;

	tessera_spi_begin(&spi);
	write_merged(group, &merged, n, chunks);
	tessera_group_write_version(group, merged.major, merged.minor);
	tessera_chunk_log("merge", object, &group->group_id, by, n, chunks, 1, &merged);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	*node_id = merged.node_id;
	return n;
}

/* A chunk that is marked gets a new version, as by a split, so that the other nodes fetch it. */
bool
tessera_chunk_set_jumbo(TesseraGroupRow *group, const TesseraChunkRow *chunk, bool jumbo, const char *by, const char *object)
{
	TesseraSpi	spi;

	if (chunk->jumbo == jumbo)
		return false;
	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.chunk SET jumbo = $3, major = $4, minor = $5 WHERE group_id = $1 AND min OPERATOR(tessera.=) $2",
						SPI_OK_UPDATE, 5, (Oid[]) {UUIDOID, tessera_bound_type(), BOOLOID, INT8OID, INT8OID},
						(Datum[]) {UUIDPGetDatum(&group->group_id), PointerGetDatum(chunk->min), BoolGetDatum(jumbo),
		Int64GetDatum(group->major), Int64GetDatum(group->minor + 1)}, NULL);
	tessera_group_write_version(group, group->major, group->minor + 1);
	tessera_chunk_log(jumbo ? "mark_jumbo" : "clear_jumbo", object, &group->group_id, by, 1, chunk, 0, NULL);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	return true;
}
