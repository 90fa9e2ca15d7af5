/*
 * move_schema.c
 *	  tessera.move_schema: the placed tables of a schema move to another shard, in one migration, on any node.
 *
 * As with a range (move.c): the caller's backend registers the migration on the config node, tells the donor, and waits there; nothing is undone by
 * a rollback of the caller's transaction. What the migration moves is MINKEY to MAXKEY of the schema's group, and of the groups of schemas that
 * are tied to it (config/register_schema_move.c). Its sequences follow (ddl/sequence_follow.c).
 */
#include "postgres.h"

#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "catalog/dependency.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "balance/move_reasons.h"
#include "catalog/relation.h"
#include "common/spi.h"
#include "common/text.h"
#include "control/calls.h"
#include "ddl/subscription.h"
#include "migration/migration.h"
#include "migration/move_private.h"

PG_FUNCTION_INFO_V1(tessera_move_schema);


/* An extension's schema has a shard if users have tables in it: those move. */
static bool
is_placed(const TesseraRouting *routing, const char *schema)
{
	const TesseraSchema *placed = tessera_routing_schema(routing, schema);

	return placed != NULL;
}

/* ERROR 3F000 if there is no such schema, 22023 if it is not the users'. */
static void
check_schema(const TesseraRouting *routing, const char *schema)
{
	Oid			namespace = get_namespace_oid(schema, true);

	if (!OidIsValid(namespace))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_SCHEMA),
				 errmsg("schema \"%s\" does not exist", schema),
				 errhint("tessera.schemas lists the schemas that have a shard.")));
	if (IsCatalogNamespace(namespace) || IsToastNamespace(namespace) || isAnyTempNamespace(namespace) || tessera_is_own_schema(namespace) ||
		strcmp(schema, "information_schema") == 0 ||
		(OidIsValid(getExtensionOfObject(NamespaceRelationId, namespace)) && !is_placed(routing, schema)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("schema \"%s\" cannot be moved", schema),
				 errdetail("It belongs to the system or to an extension, and each node has its own."),
				 errhint("tessera.schemas lists the schemas that have a shard.")));
}

/* The migration would wait for the caller's transaction, and that for the migration. */
static void
check_caller(const TesseraRouting *routing, const char *schema)
{
	Oid			namespace = get_namespace_oid(schema, false);

	tessera_move_require_free(InvalidOid);
	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);

		if (table->group < 0 && get_rel_namespace(table->relid) == namespace && tessera_move_holds_lock(table->relid))
			tessera_move_refuse_transaction("has used the table");
	}
}

static void
prepare(TesseraMove *move, const char *schema)
{
	move->routing = tessera_routing();
	if (move->routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster"),
				 errhint("Make a cluster of it: tessera.create_cluster.")));
	check_schema(move->routing, schema);
	check_caller(move->routing, schema);
}

static Datum
name_datum(const char *name)
{
	return DirectFunctionCall1(namein, CStringGetDatum(name));
}

/*
 * Rows that come by logical replication into its tables, or into those of schemas that move with it, are refused wherever it is; but who moves it may
 * think that they follow.
 */
static void
refuse_subscribed(const TesseraRouting *routing, const char *schema)
{
	ListCell   *cell;

	foreach(cell, tessera_subscribed_anywhere(routing))
	{
		const TesseraSubscribed *subscribed = lfirst(cell);
		const TesseraTable *table = tessera_routing_table(routing, subscribed->relid);
		char	   *own = get_namespace_name(get_rel_namespace(subscribed->relid));
		TesseraSpi	spi;
		bool		moves;

		if (table == NULL || table->group >= 0)
			continue;
		tessera_spi_begin(&spi);
		moves = tessera_spi_run("SELECT FROM tessera_internal.tied_schemas($1) AS s(name) WHERE s.name = $2", SPI_OK_SELECT, 2,
								(Oid[]) {NAMEOID, NAMEOID}, (Datum[]) {name_datum(schema), name_datum(own)}, NULL) > 0;
		tessera_spi_end(&spi);
		if (moves)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("schema \"%s\" cannot be moved: subscription \"%s\" of node \"%s\" writes into table %s", schema,
							subscribed->subscription, subscribed->node, tessera_qualified_name(subscribed->relid)),
					 errhint("Take the table out of the publication, then ALTER SUBSCRIPTION ... REFRESH PUBLICATION on that node; or drop the "
							 "subscription.")));
	}
}

/* false: the schema is there already. */
static bool
register_move(TesseraMove *move, const char *schema)
{
	TesseraRegisterSchemaMigrationAnswer registered;

	tessera_call_register_schema_migration(tessera_to_config(), schema, move->shard, move->routing->promised_term, move->verify,
											 move->yields, &registered);
	if (registered.migration_id == NULL)
		return false;
	move->migration_id = *registered.migration_id;
	move->id = tessera_uuid_text(registered.migration_id);
	move->donor = registered.donor;
	move->joined = registered.joined;
	if (!move->quiet && strcmp(registered.schemas, tessera_quote(schema)) != 0)
		ereport(NOTICE,
				(errmsg("schemas %s move together", registered.schemas),
				 errdetail("Foreign keys or inheritance tie their tables, which live on one shard.")));
	if (!move->quiet && move->joined)
		ereport(NOTICE,
				(errmsg("the same migration runs already, waiting for it"),
				 errdetail("Migration %s.", move->id)));
	tessera_move_hand_over(move, registered.request);
	return true;
}

bool
tessera_schema_move_begin(const char *schema, const char *shard, bool verify, bool yields, TesseraMoveBegun *begun)
{
	TesseraMove move = {.shard = shard,.verify = verify,.yields = yields,.quiet = true};

	prepare(&move, schema);
	if (!register_move(&move, schema))
		return false;
	begun->migration_id = move.migration_id;
	begun->donor = move.donor;
	return true;
}

/* move_schema(schema_name text, to_shard text, verify bool, wait bool) returns uuid: as move_range */
Datum
tessera_move_schema(PG_FUNCTION_ARGS)
{
	TesseraMove move = {0};
	char	   *schema = text_to_cstring(PG_GETARG_TEXT_PP(0));
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	move.shard = text_to_cstring(PG_GETARG_TEXT_PP(1));
	move.verify = PG_GETARG_BOOL(2);
	prepare(&move, schema);
	refuse_subscribed(move.routing, schema);
	if (!PG_GETARG_BOOL(3))
	{
		pg_uuid_t  *request;

		tessera_call_request_schema_move(tessera_to_config(), schema, move.shard, TESSERA_REASON_REQUESTED, GetUserNameFromId(GetUserId(), false),
										 move.verify, move.routing->promised_term, &request);
		*id = *request;
		PG_RETURN_UUID_P(id);
	}
	if (!register_move(&move, schema))
	{
		ereport(NOTICE,
				(errmsg("schema \"%s\" is on shard \"%s\" already", schema, move.shard)));
		PG_RETURN_NULL();
	}
	*id = move.migration_id;
	tessera_move_wait(&move);
	if (move.cancelled)
		QueryCancelPending = InterruptPending = true;
	(void) tessera_routing_refresh(POLL_MS);
	PG_RETURN_UUID_P(id);
}
