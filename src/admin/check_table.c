/*
 * check_table.c
 *	  tessera.check_table: all that tessera.shard_table would refuse about a table, in one report, with the statements that mend it; and what will
 *	  differ.
 *
 * Errors come from the checks of shardable.c and foreign_keys.c, in an order in which their statements can be run: first those of a table to colocate
 * with that is not sharded yet, then those of the table itself. Warnings are about what belongs to the table: code that may reach other tables
 * (catalog/cross_table_code.h), triggers for each statement, sequences, publications, rules of views.
 *
 * Reads catalogs only, no rows; of other nodes, whether a subscription writes into the table. The table is held in ACCESS SHARE while it is looked
 * at; nothing is written, nothing outlives the call.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "admin/admin.h"
#include "admin/shardable.h"
#include "catalog/cross_table_code.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "ddl/subscription.h"

PG_FUNCTION_INFO_V1(tessera_check_table);


/* A table to colocate with that is not sharded yet */

static bool
is_placed(const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *table = tessera_routing_table(routing, relid);

	return table != NULL && table->group < 0;
}

void
tessera_find_differing_keys(const TesseraShardable *shardable, const TesseraShardable *other, TesseraFindings *findings)
{
	const TesseraKeySpace *ks = other->key->ks;
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	int32		typmods[TESSERA_MAX_KEY_COLUMNS];
	Oid			collations[TESSERA_MAX_KEY_COLUMNS];

	for (int i = 0; i < ks->ncolumns; i++)
	{
		types[i] = ks->columns[i].type;
		typmods[i] = ks->columns[i].typmod;
		collations[i] = ks->columns[i].collation;
	}
	(void) tessera_key_columns_alike(shardable, RelationGetRelid(other->rel), types, typmods, collations, findings);
}

/* Its findings, and the call that shards it; then, whether the key columns of both are alike. false: nothing can be said, its key is not known. */
static bool
find_unsharded(TesseraShardable *shardable, TesseraFindings *findings)
{
	TesseraFindings scratch = {0};
	TesseraShardable probe = *shardable;
	TesseraShardable other = {.routing = shardable->routing, .hashed = shardable->hashed, .create_index = true,
	.subscribed = shardable->subscribed};

	if (!OidIsValid(shardable->with) || shardable->with == RelationGetRelid(shardable->rel) || !is_placed(shardable->routing, shardable->with))
		return false;
	probe.with = InvalidOid;
	tessera_shardable(&probe, &scratch);
	other.key_text = probe.key != NULL ? tessera_foreign_key_of_other(&probe, shardable->with) : NULL;
	if (other.key_text == NULL)
		return false;

	other.rel = relation_open(shardable->with, AccessShareLock);
	tessera_shardable(&other, findings);
	tessera_finding(findings, ERRCODE_INVALID_TABLE_DEFINITION, shardable->with,
					psprintf("table \"%s\" is not sharded", RelationGetRelationName(other.rel)), NULL, "Shard it first, then colocate with it.",
					psprintf("SELECT tessera.shard_table(%s, %s, strategy => '%s', create_index => true)",
							 quote_literal_cstr(tessera_qualified_name(shardable->with)), quote_literal_cstr(other.key_text),
							 shardable->hashed ? "hash" : "range"));
	if (other.key != NULL)
		tessera_find_differing_keys(&probe, &other, findings);
	relation_close(other.rel, AccessShareLock);
	shardable->with = InvalidOid;
	return true;
}


/* Warnings */

/* What has to be moved first, so that shard_table is not done at once, nor in the caller's transaction. */
static void
find_spread_group(const TesseraShardable *shardable, TesseraFindings *findings)
{
	const char *with;
	TesseraTargets *owners;

	if (shardable->group == NULL || shardable->table == NULL)
		return;
	with = get_rel_name(shardable->with);
	if (shardable->apart)
	{
		tessera_finding(findings, 0, RelationGetRelid(shardable->rel), psprintf("table \"%s\" is sharded, but not colocated with table \"%s\"",
																			  RelationGetRelationName(shardable->rel), with),
						"shard_table moves its ranges to where those of that table are, one migration after the other, and lets it join then: in a "
						"transaction of its own.", NULL, NULL);
		return;
	}
	owners = tessera_routing_owners(shardable->routing, shardable->group);
	for (int i = 0; i < owners->n; i++)
		if (owners->node_ids[i] != shardable->table->node_id)
		{
			tessera_finding(findings, 0, shardable->with, psprintf("chunks of table \"%s\" lie on other shards than table \"%s\"", with,
																	RelationGetRelationName(shardable->rel)),
							"If that has rows, shard_table moves them to where those chunks are, one migration after the other: in a transaction of "
							"its own.", NULL, NULL);
			return;
		}
}

static void
find_cross_table_code(Relation rel, TesseraFindings *findings)
{
	ListCell   *cell;

	foreach(cell, tessera_cross_table_code_of_tree(rel))
		tessera_finding(findings, 0, RelationGetRelid(rel), psprintf("%s may reach rows of other tables", (char *) lfirst(cell)),
						"If it runs on the shard of the row, as policies and checks do, and triggers that fire there, it fails with 0A000 when it "
						"needs a row of another shard.", NULL, NULL);
}

/* What only catalogs know: rules of views, publications, triggers, sequences; each a text. $1: the table. */
static const char neighbours_sql[] =
"SELECT format('rule \"%s\" of view %s turns statements on the view into others: they must be such as a sharded table takes', r.rulename, "
"r.ev_class::regclass) FROM pg_rewrite AS r JOIN pg_class AS v ON v.oid = r.ev_class AND v.relkind = 'v'"
" WHERE r.ev_type <> '1' AND EXISTS (SELECT FROM pg_depend AS d JOIN pg_rewrite AS o ON d.classid = 'pg_rewrite'::regclass AND d.objid = o.oid"
"   WHERE o.ev_class = r.ev_class AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1)"
" UNION ALL SELECT format('publication \"%s\" publishes on each node the rows that lie there: a subscriber needs a subscription to each shard', "
"p.pubname) FROM pg_publication AS p WHERE p.puballtables OR EXISTS (SELECT FROM pg_publication_rel AS r WHERE r.prpubid = p.oid AND r.prrelid = $1)"
"   OR EXISTS (SELECT FROM pg_publication_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.pnnspid WHERE n.pnpubid = p.oid AND c.oid = $1)"
" UNION ALL SELECT format('trigger \"%s\" fires for each statement: of MERGE and the like once on each shard to which that goes', t.tgname)"
" FROM pg_trigger AS t WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgtype & 1 = 0"
" UNION ALL SELECT format('sequence %s gives blocks of values to each node: they are unique, but not in the order of time', s.oid::regclass)"
" FROM pg_class AS s WHERE s.relkind = 'S' AND (EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = s.oid"
"   AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.deptype IN ('a', 'i'))"
"   OR EXISTS (SELECT FROM pg_depend AS d JOIN pg_attrdef AS a ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid"
"   WHERE a.adrelid = $1 AND d.refclassid = 'pg_class'::regclass AND d.refobjid = s.oid))";

static void
find_neighbours(Oid relid, TesseraFindings *findings)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run(neighbours_sql, SPI_OK_SELECT, 1, (Oid[]) {OIDOID}, (Datum[]) {ObjectIdGetDatum(relid)}, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(caller);

		tessera_finding(findings, 0, relid, spi_row_text(i, 1), NULL, NULL, NULL);
		MemoryContextSwitchTo(old);
	}
	tessera_spi_end(&spi);
}

void
tessera_find_differences(const TesseraShardable *shardable, TesseraFindings *findings)
{
	if (shardable->table == NULL)
		return;
	find_spread_group(shardable, findings);
	find_cross_table_code(shardable->rel, findings);
	find_neighbours(RelationGetRelid(shardable->rel), findings);
}


/* The function */

static void
put_findings(ReturnSetInfo *result, const TesseraFindings *findings)
{
	ListCell   *cell;

	foreach(cell, findings->list)
	{
		const TesseraFinding *finding = lfirst(cell);
		Datum		values[5];
		bool		nulls[5] = {false, false, false, finding->statement == NULL, finding->restore == NULL};

		values[0] = CStringGetTextDatum(finding->sqlstate != 0 ? "error" : "warning");
		values[1] = ObjectIdGetDatum(finding->relid);
		values[2] = CStringGetTextDatum(tessera_finding_text(finding));
		values[3] = finding->statement != NULL ? CStringGetTextDatum(finding->statement) : (Datum) 0;
		values[4] = finding->restore != NULL ? CStringGetTextDatum(finding->restore) : (Datum) 0;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/*
 * check_table(table_name regclass, key text, strategy text, colocate_with regclass)
 * returns table (severity, table_name, problem, statement, restore)
 */
Datum
tessera_check_table(PG_FUNCTION_ARGS)
{
	TesseraShardable shardable = {0};
	TesseraFindings findings = {0};
	Oid			relid;

	for (int i = 0; i < 3; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("table_name, key and strategy must not be null")));
	InitMaterializedSRF(fcinfo, 0);
	relid = PG_GETARG_OID(0);
	tessera_require_table_owner(relid);
	shardable.key_text = text_to_cstring(PG_GETARG_TEXT_PP(1));
	shardable.hashed = tessera_strategy_is_hash(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	shardable.with = PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3);
	if (OidIsValid(shardable.with))
		tessera_require_table_owner(shardable.with);
	shardable.routing = tessera_sharding_routing();
	shardable.subscribed = tessera_subscribed_anywhere(shardable.routing);

	shardable.rel = relation_open(relid, AccessShareLock);
	tessera_require_table_owner(relid);
	(void) find_unsharded(&shardable, &findings);
	tessera_shardable(&shardable, &findings);
	tessera_find_differences(&shardable, &findings);
	put_findings((ReturnSetInfo *) fcinfo->resultinfo, &findings);
	relation_close(shardable.rel, AccessShareLock);
	return (Datum) 0;
}
