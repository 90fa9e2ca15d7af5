/*
 * table_checks.c
 *	  Checks that the tables of a group are alike on donor and recipient, and can be moved. See table_checks.h.
 *
 * Columns are compared by name and type name: numbers and OIDs differ between nodes.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "catalog/key_index.h"
#include "catalog/relation.h"
#include "common/spi_row.h"
#include "migration/table_checks.h"
#include "transfer/lock_holders.h"

/* The groups of a request, $1. */
#define ITS_GROUPS "(SELECT (r->>'group_id')::uuid FROM jsonb_array_elements($1::jsonb->'ranges') AS r)"

/* Tables of the groups of a request, $1, with their columns: table_id, name, type. */
#define OUR_COLUMNS \
	"SELECT x.table_id, a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type" \
	" FROM tessera_internal.moving_table AS x" \
	" JOIN pg_attribute AS a ON a.attrelid = to_regclass(format('%I.%I', x.schema_name, x.table_name))" \
	" WHERE x.group_id IN " ITS_GROUPS " AND a.attnum > 0 AND NOT a.attisdropped"


char *
tessera_describe_tables(const char *request)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	char	   *result;

	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT ($1::jsonb || jsonb_build_object('tables', (SELECT coalesce(jsonb_agg(jsonb_build_object('table_id', t.table_id,"
					" 'columns', t.columns)), '[]') FROM (SELECT table_id, jsonb_agg(jsonb_build_object('name', name, 'type', type)) AS columns"
					"  FROM (" OUR_COLUMNS ") AS c GROUP BY table_id) AS t)))::text", SPI_OK_SELECT, 1, (Oid[]) {TEXTOID},
					(Datum[]) {CStringGetTextDatum(request)}, NULL);
	result = MemoryContextStrdup(caller, spi_row_text(0, 1));
	tessera_spi_end(&spi);
	return result;
}

bool
tessera_tables_known(const char *request)
{
	TesseraSpi	spi;
	bool		known;

	tessera_spi_begin(&spi);
	known = tessera_spi_run("SELECT 1 FROM jsonb_array_elements($1::jsonb->'tables') AS t WHERE NOT EXISTS"
							" (SELECT FROM tessera_internal.moving_table AS x"
							" WHERE x.table_id = (t->>'table_id')::uuid AND x.group_id IN " ITS_GROUPS ")", SPI_OK_SELECT, 1,
							(Oid[]) {TEXTOID}, (Datum[]) {CStringGetTextDatum(request)}, NULL) == 0;
	tessera_spi_end(&spi);
	return known;
}

bool
tessera_members_known(const char *request)
{
	TesseraSpi	spi;
	bool		known;

	tessera_spi_begin(&spi);
	known = tessera_spi_run("SELECT 1 WHERE $1::jsonb->'members' <> (SELECT jsonb_agg(x.table_id ORDER BY x.table_id)"
							" FROM tessera_internal.moving_table AS x"
							" WHERE x.group_id IN " ITS_GROUPS ")", SPI_OK_SELECT, 1, (Oid[]) {TEXTOID},
							(Datum[]) {CStringGetTextDatum(request)}, NULL) == 0;
	tessera_spi_end(&spi);
	return known;
}

void
tessera_compare_tables(const char *request)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_run("WITH theirs AS ("
						"  SELECT (t->>'table_id')::uuid AS table_id, c->>'name' AS name, c->>'type' AS type"
						"  FROM jsonb_array_elements($1::jsonb->'tables') AS t, jsonb_array_elements(t->'columns') AS c),"
						" ours AS (" OUR_COLUMNS ")"
						" SELECT format('%s.%s', x.schema_name, x.table_name), name, o.type, t.type"
						" FROM theirs AS t FULL JOIN ours AS o USING (table_id, name) LEFT JOIN tessera.cluster_table AS x USING (table_id)"
						" WHERE o.type IS DISTINCT FROM t.type LIMIT 1", SPI_OK_SELECT, 1, (Oid[]) {TEXTOID},
						(Datum[]) {CStringGetTextDatum(request)}, NULL) > 0)
	{
		char	   *ours = spi_row_text(0, 3);
		char	   *theirs = spi_row_text(0, 4);

		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of table \"%s\" differs between donor and recipient", spi_row_text(0, 2), spi_row_text(0, 1)),
				 errdetail("Donor: %s. Recipient: %s.", theirs ? theirs : "none", ours ? ours : "none")));
	}
	tessera_spi_end(&spi);
}

static bool
is_moving(const TesseraMovingRanges *moving, Oid relid)
{
	for (int i = 0; i < moving->ntables; i++)
		if (moving->tables[i].relid == relid)
			return true;
	for (int i = 0; i < moving->nroots; i++)
		if (moving->roots[i] == relid)
			return true;
	return false;
}

/* A partition that has come since the routing image was made, or on this node alone, would be left behind. */
static void
check_partitions(const TesseraMovingRanges *moving)
{
	for (int i = 0; i < moving->nroots; i++)
	{
		ListCell   *cell;

		foreach(cell, tessera_partitions(moving->roots[i], NoLock))
			if (!is_moving(moving, lfirst_oid(cell)) && get_rel_name(lfirst_oid(cell)) != NULL)
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_IN_USE),
						 errmsg("partition \"%s\" of table \"%s\" is not known to the cluster yet", get_rel_name(lfirst_oid(cell)),
								get_rel_name(moving->roots[i])),
						 errhint("Try again. A partition that was made with tessera.replicate_ddl off has to be detached.")));
	}
}

void
tessera_check_tables(const TesseraMovingRanges *moving, bool donor)
{
	check_partitions(moving);
	for (int i = 0; i < moving->ntables; i++)
	{
		Relation	rel;

		tessera_lock_table_by_retry(moving->tables[i].relid, AccessShareLock);
		rel = table_open(moving->tables[i].relid, NoLock);
		if (!RelationIsPermanent(rel))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" is unlogged%s", RelationGetRelationName(rel), donor ? "" : " on the recipient"),
					 errdetail("Its changes could not be followed, and a crash would empty it."),
					 errhint("Use ALTER TABLE ... SET LOGGED.")));
		if (rel->rd_rel->relkind == RELKIND_MATVIEW && !rel->rd_rel->relispopulated)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("materialized view \"%s\" has not been populated", RelationGetRelationName(rel)),
					 errhint("Use REFRESH MATERIALIZED VIEW, or drop it, before its schema moves.")));
		if (tessera_moving_group(moving, i)->ks->ncolumns > 0 &&
			!OidIsValid(tessera_key_index(rel, tessera_moving_group(moving, i)->ks, moving->tables[i].keys, NULL)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" has no index on its shard key%s", RelationGetRelationName(rel), donor ? "" : " on the recipient"),
					 errhint("Create a btree index whose first columns are the shard key.")));
		/* a materialized view changes by REFRESH alone, which ends the migration */
		if (donor && rel->rd_rel->relkind != RELKIND_MATVIEW &&
			(rel->rd_rel->relreplident == REPLICA_IDENTITY_NOTHING ||
					  (rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL && !OidIsValid(RelationGetReplicaIndex(rel)))))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" has no replica identity", RelationGetRelationName(rel)),
					 errhint("Give it a primary key, or use ALTER TABLE ... REPLICA IDENTITY FULL.")));
		table_close(rel, NoLock);
	}
}
