/*
 * statistics_rows.h
 *	  Rows of tessera.table_statistics: what a shard knows of its part of a table, as this node last heard.
 *
 * Rows are written under a lock of their table (one of this node's, not of the cluster), which a writer holds to the end of its transaction: so two
 * writers never meet at a row, at any isolation level. A crash leaves the old row or the new one; a row that is missing or old costs nothing but
 * worse plans.
 */
#ifndef TESSERA_STATISTICS_ROWS_H
#define TESSERA_STATISTICS_ROWS_H

#include "postgres.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"

typedef struct TesseraStatisticsRow
{
	pg_uuid_t	table_id;
	int32		node_id;
	char	   *stamp;			/* changes whenever the rest does */
	double		pages;
	double		tuples;			/* -1: not known */
	int64		bytes;			/* as pg_table_size, with all partitions */
	Jsonb	   *columns;		/* see statistics_json.h */
	TimestampTz collected;		/* by the shard's clock */
} TesseraStatisticsRow;

/* Locks the rows of a table on this node to the end of the transaction. false: another has them, and wait is off. */
extern bool tessera_statistics_lock(const pg_uuid_t *table_id, bool wait);

/* What is committed now, and written by this transaction: TesseraStatisticsRow *, palloc'd. NIL also if the extension's table is not there. */
extern List *tessera_statistics_rows(const pg_uuid_t *table_id);

/*
 * Inserts or replaces a row, unless the one that is there has the same stamp; plans on the table (InvalidOid: not here) are made anew from the commit
 * on. Locked by the caller.
 */
extern void tessera_statistics_write(const TesseraStatisticsRow *row, Oid relid);

/* True if the row that is there has this stamp; NULL: if none is there. Locked by the caller, so it stays so. */
extern bool tessera_statistics_has_stamp(const pg_uuid_t *table_id, int32 node_id, const char *stamp);

/* Deletes a row if it is there. Locked by the caller. */
extern void tessera_statistics_delete(const pg_uuid_t *table_id, int32 node_id);

#endif							/* TESSERA_STATISTICS_ROWS_H */
