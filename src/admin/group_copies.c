/*
 * group_copies.c
 *	  A table group's rows, as the config node has answered them, into the catalogs of other nodes. Part of the distributed transaction of
 *	  tessera.shard_table.
 *
 * A group may have a million chunks: they come and go in portions, in order of their versions, each of which goes to all nodes that want it. The
 * group is locked on the config node meanwhile, so the portions fit together.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "admin/colocate.h"
#include "common/spi_row.h"
#include "control/calls.h"
#include "transaction/participant.h"

/* What an answer holds: chunks at all, and whether others are to come behind one of the given version. */
typedef struct Portion
{
	pg_uuid_t	group_id;
	bool		has_chunks;
	bool		more;
	int64		major;
	int64		minor;
} Portion;

static void
read_portion(const char *rows, Portion *portion)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	(void) tessera_spi_run("SELECT (r->'group'->>'group_id')::uuid, coalesce(jsonb_typeof(r->'chunks') = 'array', false),"
						   " coalesce(jsonb_typeof(r->'more') = 'array', false), coalesce((r->'more'->>0)::int8, 0),"
						   " coalesce((r->'more'->>1)::int8, 0) FROM (SELECT $1::jsonb AS r) AS answer", SPI_OK_SELECT, 1, (Oid[]) {TEXTOID},
						   (Datum[]) {CStringGetTextDatum(rows)}, NULL);
	portion->group_id = *DatumGetUUIDP(spi_row_value(0, 1));
	portion->has_chunks = DatumGetBool(spi_row_value(0, 2));
	portion->more = DatumGetBool(spi_row_value(0, 3));
	portion->major = DatumGetInt64(spi_row_value(0, 4));
	portion->minor = DatumGetInt64(spi_row_value(0, 5));
	tessera_spi_end(&spi);
}

/* Sends the chunks behind those in the rows to nodes that have taken these. */
static void
send_the_others(const char *rows, int n, const int32 *nodes)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext work = AllocSetContextCreate(caller, "tessera portion of chunks", ALLOCSET_DEFAULT_SIZES);
	Portion		portion;

	read_portion(rows, &portion);
	while (portion.more)
	{
		char	   *next;

		MemoryContextReset(work);
		MemoryContextSwitchTo(work);
		tessera_call_describe_chunks(tessera_to_config(), &portion.group_id, portion.major, portion.minor, &next);
		for (int i = 0; i < n; i++)
			tessera_call_apply_chunks(tessera_writing(tessera_to_node(nodes[i])), next);
		read_portion(next, &portion);
		MemoryContextSwitchTo(caller);
	}
	MemoryContextDelete(work);
}

void
tessera_group_copies(const char *rows, const pg_uuid_t *table_id, int n, const int32 *nodes)
{
	int32	   *behind = palloc(sizeof(int32) * Max(n, 1));
	int			nbehind = 0;
	Portion		portion;

	for (int i = 0; i < n; i++)
	{
		bool		complete;

		tessera_call_apply_group(tessera_writing(tessera_to_node(nodes[i])), rows, &complete);
		if (!complete)
			behind[nbehind++] = nodes[i];
	}
	if (nbehind == 0)
		return;
	read_portion(rows, &portion);
	if (portion.has_chunks)
		send_the_others(rows, nbehind, behind);
	else
	{
		char	   *whole;

		/* nodes that have never heard of the group */
		tessera_call_describe_group(tessera_to_config(), &portion.group_id, table_id, &whole);
		tessera_group_copies(whole, table_id, nbehind, behind);
	}
	pfree(behind);
}
