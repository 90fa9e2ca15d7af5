/*
 * register_schema_move.c
 *	  The registration of a schema's move on the config node (S25, S41): its placed tables move as one range, MINKEY to MAXKEY, of a table group
 *	  without key columns. Everything from there on is as in the move of a range.
 *
 * The group is made here, when the schema is to move for the first time: one chunk, of version 1|0, at the schema's shard, which writes its placement
 * record itself when it hears of it (routing/refresh_apply.c). A DDL statement that has begun before would not lock it: such are waited for by the
 * lock of the registry, which each of them holds shared (name_locks.c); later ones are refused until their node knows the group.
 *
 * Schemas whose tables are tied by foreign keys or inheritance move together: one migration of several groups.
 *
 * Locks, in this order, to the end of the transaction, each waited for some seconds at most: the registry (if a group is made), the rows of the
 * groups by group_id, the counts of the shards. A crash leaves all of it or nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "catalog/bound_array.h"
#include "catalog/change.h"
#include "catalog/migration_state.h"
#include "catalog/relation.h"
#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "config/abandoned_migrations.h"
#include "config/authority.h"
#include "config/move_requests.h"
#include "config/registration.h"
#include "control/calls.h"


/* Schemas that move together. */
typedef struct Schemas
{
	int			n;
	char	  **names;			/* in order */
	int32	   *node_ids;
	bool		complete;		/* all have a group */
	char	   *text;			/* quoted, with commas */
} Schemas;

static const char *const tied_sql =
	"SELECT s.name, p.node_id, p.group_id IS NOT NULL FROM tessera_internal.tied_schemas($1) AS s(name)"
	" JOIN tessera.schema_placement AS p ON p.schema_name = s.name ORDER BY s.name";

static Datum
name_datum(const char *name)
{
	return DirectFunctionCall1(namein, CStringGetDatum(name));
}

/* In the current context. ERROR 3F000 if the schema has no shard. */
static void
read_schemas(const char *schema, Schemas *schemas)
{
	MemoryContext caller = CurrentMemoryContext;
	StringInfoData text;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	schemas->n = (int) tessera_spi_run(tied_sql, SPI_OK_SELECT, 1, (Oid[]) {NAMEOID}, (Datum[]) {name_datum(schema)}, NULL);
	MemoryContextSwitchTo(caller);
	if (schemas->n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_SCHEMA),
				 errmsg("schema \"%s\" is not one of the cluster", schema),
				 errhint("tessera.schemas lists the schemas that have a shard.")));
	initStringInfo(&text);
	schemas->names = palloc(sizeof(char *) * schemas->n);
	schemas->node_ids = palloc(sizeof(int32) * schemas->n);
	schemas->complete = true;
	for (int i = 0; i < schemas->n; i++)
	{
		schemas->names[i] = spi_row_text(i, 1);
		schemas->node_ids[i] = DatumGetInt32(spi_row_value(i, 2));
		schemas->complete &= DatumGetBool(spi_row_value(i, 3));
		appendStringInfo(&text, "%s%s", i > 0 ? ", " : "", tessera_quote(schemas->names[i]));
	}
	schemas->text = text.data;
	tessera_spi_end(&spi);
}

/* Waits until no DDL statement is under way, in the whole cluster, and holds off new ones. */
static void
lock_registry(void)
{
	tessera_limit_lock_waits();
	PG_TRY();
	{
		LockRelationOid(tessera_catalog_relid(TESSERA_NODE), ExclusiveLock);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a DDL statement, or a change of the cluster's nodes, is under way"),
				 errdetail("The first move of a schema waits for such."),
				 errhint("Try again when its transaction has ended.")));
	}
	PG_END_TRY();
}

/* A group for each of the schemas that has none. The registry is locked. */
static void
make_groups(const TesseraRouting *routing, const Schemas *schemas)
{
	TesseraSpi	spi;

	for (int i = 0; i < schemas->n; i++)
	{
		pg_uuid_t	group_id;
		const TesseraGroup *group;

		tessera_spi_begin(&spi);
		if (tessera_spi_run("UPDATE tessera.schema_placement SET group_id = gen_random_uuid() WHERE schema_name = $1 AND group_id IS NULL"
							" RETURNING group_id", SPI_OK_UPDATE_RETURNING, 1, (Oid[]) {NAMEOID}, (Datum[]) {name_datum(schemas->names[i])},
							NULL) == 0)
		{
			tessera_spi_end(&spi);
			continue;
		}
		group_id = *DatumGetUUIDP(spi_row_value(0, 1));
		tessera_spi_run("INSERT INTO tessera.table_group (group_id, epoch, ts, group_major, group_minor, strategy, key_types, key_collations)"
						" VALUES ($1, gen_random_uuid(), now(), 1, 0, 'range', '{}', '{}')", SPI_OK_INSERT, 1, (Oid[]) {UUIDOID},
						(Datum[]) {UUIDPGetDatum(&group_id)}, NULL);
		tessera_spi_run("INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor)"
						" SELECT $1, tessera.minkey(), tessera.maxkey(), node_id, 1, 0 FROM tessera.schema_placement WHERE group_id = $1",
						SPI_OK_INSERT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(&group_id)}, NULL);
		tessera_spi_end(&spi);
		tessera_catalog_changed();
		routing = tessera_routing();
		group = tessera_config_group(routing, &group_id, NULL);
		if (schemas->node_ids[i] == routing->self)
			tessera_placement_begin_schema(routing, group);
	}
}

/* Locks the groups of the schemas. ERROR 55006 if migrations of one are not allowed, or if others are tied to them since they were read. */
static void
lock_groups(const char *schema, const Schemas *schemas)
{
	pg_uuid_t  *ids = palloc(sizeof(pg_uuid_t) * schemas->n);
	MemoryContext caller = CurrentMemoryContext;
	Schemas		now;
	TesseraSpi	spi;
	int			n;

	tessera_spi_begin(&spi);
	n = (int) tessera_spi_run("SELECT p.group_id FROM tessera_internal.tied_schemas($1) AS s(name) JOIN tessera.schema_placement AS p"
							  " ON p.schema_name = s.name ORDER BY p.group_id", SPI_OK_SELECT, 1, (Oid[]) {NAMEOID},
							  (Datum[]) {name_datum(schema)}, NULL);
	for (int i = 0; i < Min(n, schemas->n); i++)
		ids[i] = *DatumGetUUIDP(spi_row_value(i, 1));
	tessera_spi_end(&spi);
	MemoryContextSwitchTo(caller);
	for (int i = 0; i < Min(n, schemas->n); i++)
	{
		TesseraGroupRow row;

		tessera_group_lock_soon(&ids[i], &row);
		if (!row.allow_migrations)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("migrations of schema \"%s\" are not allowed at present", schema),
					 errhint("Column allow_migrations of tessera.table_group is false for its group, on the config node.")));
	}
	read_schemas(schema, &now);
	if (strcmp(now.text, schemas->text) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a DDL statement has tied schema \"%s\" to another one meanwhile", schema),
				 errhint("Try again.")));
	memcpy(schemas->node_ids, now.node_ids, sizeof(int32) * schemas->n);
}

/* The running migration of the same schemas between the same shards (S38): true, and its id. ERROR 55006 if another one moves one of them. */
static bool
find_same(const char *schema, const Schemas *schemas, int32 donor, int32 recipient, pg_uuid_t *id)
{
	uint64		n = tessera_spi_run("SELECT DISTINCT m.migration_id, m.donor, m.recipient, cardinality(m.ranges), n.name"
									" FROM tessera.migration AS m CROSS JOIN LATERAL unnest(m.ranges) AS r JOIN tessera.schema_placement AS p"
									" ON p.group_id = r.group_id JOIN tessera_internal.tied_schemas($1) AS s(name) ON s.name = p.schema_name"
									" LEFT JOIN tessera.node AS n ON n.node_id = m.recipient WHERE m.state = 'running'",
									SPI_OK_SELECT, 1, (Oid[]) {NAMEOID}, (Datum[]) {name_datum(schema)}, NULL);

	if (n == 0)
		return false;
	*id = *DatumGetUUIDP(spi_row_value(0, 1));
	if (n == 1 && DatumGetInt32(spi_row_value(0, 2)) == donor && DatumGetInt32(spi_row_value(0, 3)) == recipient &&
		DatumGetInt32(spi_row_value(0, 4)) == schemas->n)
		return true;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("schema \"%s\", or one that is tied to it, is being moved already", schema),
			 errdetail("Migration %s moves it to shard \"%s\".", tessera_uuid_text(id), spi_row_text(0, 5)),
			 errhint("Wait for it, or end it with tessera.cancel_migration.")));
}

static void
insert_migration(const char *schema, int32 donor, int32 recipient, const TesseraRegisterSchemaMigrationArgs *args, pg_uuid_t *id)
{
	Oid			types[] = {NAMEOID, INT4OID, INT4OID, BOOLOID, BOOLOID};
	Datum		values[] = {
		name_datum(schema), Int32GetDatum(donor), Int32GetDatum(recipient), BoolGetDatum(args->verify), BoolGetDatum(args->yields)
	};

	tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_NONE, TESSERA_RUNNING);
	tessera_spi_run("INSERT INTO tessera.migration (migration_id, ranges, schema_name, donor, recipient, term, donor_incarnation,"
					"  recipient_incarnation, verify, caller_pid, yields, bytes_total, share)"
					" SELECT gen_random_uuid(), (SELECT array_agg((g.group_id, g.epoch, tessera.minkey(), tessera.maxkey())::tessera.operation_range"
					"   ORDER BY g.group_id) FROM tessera_internal.tied_schemas($1) AS s(name) JOIN tessera.schema_placement AS p"
					"   ON p.schema_name = s.name JOIN tessera.table_group AS g USING (group_id)),"
					"  $1, $2, $3, i.term, d.incarnation, r.incarnation, $4, pg_backend_pid(), $5,"
					"  (SELECT sum(b.bytes)::int8 FROM tessera_internal.tied_schemas($1) AS s(name) JOIN tessera.cluster_table AS t"
					"   ON t.schema_name = s.name AND t.group_id IS NULL JOIN tessera.table_statistics AS b ON b.table_id = t.table_id"
					"   AND b.node_id = $2), 1"
					" FROM tessera.identity AS i, tessera.node AS d, tessera.node AS r WHERE d.node_id = $2 AND r.node_id = $3"
					" RETURNING migration_id", SPI_OK_INSERT_RETURNING, 5, types, values, NULL);
	*id = *DatumGetUUIDP(spi_row_value(0, 1));
}

/* The shard that has the schemas, which is one. */
static int32
shard_of(const Schemas *schemas)
{
	for (int i = 1; i < schemas->n; i++)
		if (schemas->node_ids[i] != schemas->node_ids[0])
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("schemas %s are tied by foreign keys or inheritance, but do not live on one shard", schemas->text)));
	return schemas->node_ids[0];
}

/* Their rows are at the recipient already, and would come a second time. */
static void
refuse_replicated(const char *schema)
{
	Oid			types[] = {NAMEOID};
	Datum		values[] = {name_datum(schema)};

	if (tessera_spi_run("SELECT format('%I.%I', t.schema_name, t.table_name) FROM tessera_internal.tied_schemas($1) AS s(name)"
						" JOIN tessera.cluster_table AS t ON t.schema_name = s.name WHERE t.replicated ORDER BY 1 LIMIT 1", SPI_OK_SELECT, 1, types,
						values, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a schema with a replicated table cannot be moved: %s", spi_row_text(0, 1)),
				 errhint("SELECT tessera.unreplicate_table('%s') first, and replicate it again afterwards.", spi_row_text(0, 1))));
}

void
tessera_serve_register_schema_migration(const TesseraRegisterSchemaMigrationArgs *args, TesseraRegisterSchemaMigrationResult *result)
{
	const TesseraRouting *routing = tessera_config_routing(args->term);
	MemoryContext caller = CurrentMemoryContext;
	int32		recipient = tessera_shard_to_move_to(routing, args->to_shard);
	Schemas		schemas;
	TesseraSpi	spi;

	tessera_commit_durably();
	read_schemas(args->schema_name, &schemas);
	result->donor = shard_of(&schemas);
	result->schemas = schemas.text;
	if (result->donor == recipient)
		return;
	if (!schemas.complete)
	{
		lock_registry();
		read_schemas(args->schema_name, &schemas);
		make_groups(routing, &schemas);
	}
	lock_groups(args->schema_name, &schemas);
	result->donor = shard_of(&schemas);
	result->schemas = schemas.text;
	if (result->donor == recipient)
		return;
	routing = tessera_routing();
	result->migration_id = palloc(UUID_LEN);
	tessera_spi_begin(&spi);
	refuse_replicated(args->schema_name);
	result->joined = find_same(args->schema_name, &schemas, result->donor, recipient, result->migration_id);
	if (result->joined)
		tessera_join_migration(result->migration_id);
	else
	{
		tessera_take_room(routing, result->donor, recipient);
		insert_migration(args->schema_name, result->donor, recipient, args, result->migration_id);
	}
	tessera_migration_watch_caller();
	result->request = MemoryContextStrdup(caller, tessera_registered_request(result->migration_id));
	tessera_spi_end(&spi);
	tessera_injection("config_registered");
}
