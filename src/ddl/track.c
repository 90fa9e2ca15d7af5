/*
 * track.c
 *	  What a DDL statement does to this node's tables and schemas, and the catalog rows that follow from it.
 *
 * Phases: begin; the statement runs while the object access hook notes what is created, altered and dropped; end: the rows of tessera.cluster_table,
 * tessera.schema_placement and, for the last table of a group, the group's own rows are written. Every node does this for itself; identifiers derive
 * from the seed that came with the statement, so that they are the same everywhere.
 *
 * Memory: a context per statement under TopTransactionContext. Statements nest (event triggers); the innermost notes. An error anywhere:
 * tessera_track_abort. Locks: those of the statement; catalog rows are locked by their change. A crash leaves nothing: it is all one transaction.
 */
#include "postgres.h"

#include "access/hash.h"
#include "access/nbtree.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "catalog/change.h"
#include "catalog/relation.h"
#include "common/spi.h"
#include "common/text.h"
#include "ddl/ddl.h"
#include "ddl/sequence.h"

static object_access_hook_type previous_access = NULL;
static TesseraTrack *current = NULL;

bool
tessera_track_created(Oid relid)
{
	for (TesseraTrack *track = current; track != NULL; track = track->outer)
		if (list_member_oid(track->created, relid))
			return true;
	return false;
}

bool
tessera_ddl_plans_locally(const char *source)
{
	/* Validation of a foreign key, or that none refers to a partition that is detached: each node checks its own rows. */
	return current != NULL && source != NULL && strncmp(source, "SELECT fk.", 10) == 0 && strstr(source, " JOIN ") != NULL;
}

TesseraTrack *
tessera_track_begin(const pg_uuid_t *seed, int32 home, bool router)
{
	MemoryContext context = AllocSetContextCreate(TopTransactionContext, "tessera ddl", ALLOCSET_SMALL_SIZES);
	TesseraTrack *track = MemoryContextAllocZero(context, sizeof(TesseraTrack));

	track->context = context;
	track->seed = *seed;
	track->router = router;
	track->home = home;
	track->user = MemoryContextStrdup(context, GetUserNameFromId(GetUserId(), false));
	track->outer = current;
	current = track;
	return track;
}

void
tessera_track_abort(TesseraTrack *track)
{
	current = track->outer;
	MemoryContextDelete(track->context);
}

static void
note_group(TesseraTrack *track, const TesseraGroup *group)
{
	MemoryContext before;
	ListCell   *cell;
	pg_uuid_t  *copy;

	if (group == NULL)
		return;
	foreach(cell, track->groups)
		if (memcmp(lfirst(cell), &group->group_id, sizeof(pg_uuid_t)) == 0)
			return;
	before = MemoryContextSwitchTo(track->context);
	copy = palloc(sizeof(pg_uuid_t));
	*copy = group->group_id;
	track->groups = lappend(track->groups, copy);
	MemoryContextSwitchTo(before);
}

/* The group of a schema: a migration of it does not know of what is made there, or comes there. */
static void
note_schema_group(TesseraTrack *track, const TesseraRouting *routing, const char *name)
{
	const TesseraSchema *schema = routing && name ? tessera_routing_schema(routing, name) : NULL;

	if (schema && schema->group >= 0)
		note_group(track, tessera_routing_group(routing, schema->group));
}

/* True if the column is part of a shard key. */
static bool
is_key_column(const TesseraRouting *routing, Oid relid, int column)
{
	const TesseraTable *table = tessera_routing_table(routing, relid);

	for (int i = 0; table != NULL && i < table->nkeys; i++)
		if (table->keys[i] == column)
			return true;
	return false;
}

/* A key column goes only with its table. */
static void
check_column_drop(const TesseraRouting *routing, Oid relid, int column)
{
	if (is_key_column(routing, relid, column))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("cannot drop column \"%s\" of table \"%s\": it is part of the shard key", get_attname(relid, column, false),
						get_rel_name(relid)),
				 errhint("Make a new table with another shard key and copy the rows.")));
}

/* Columns of types that are made of type $1: of itself, of arrays, ranges and domains of it, of rows with a column of such a type. */
static const char COLUMNS_OF_TYPE_SQL[] =
"WITH RECURSIVE made_of (type) AS ("
" SELECT $1"
" UNION SELECT CASE WHEN c.oid IS NULL THEN d.objid ELSE c.reltype END FROM made_of AS m"
"  JOIN pg_catalog.pg_depend AS d ON d.refclassid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.refobjid = m.type"
"   AND d.classid IN ('pg_catalog.pg_type'::pg_catalog.regclass, 'pg_catalog.pg_class'::pg_catalog.regclass)"
"  LEFT JOIN pg_catalog.pg_class AS c ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid)"
"SELECT d.objid, d.objsubid FROM made_of AS m JOIN pg_catalog.pg_depend AS d"
" ON d.refclassid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.refobjid = m.type"
" WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objsubid > 0";

/*
 * A relation of this row type gets or loses a column. If its rows are part of a shard key, the bounds of the chunks could not be read any more; and
 * a domain that comes in so has a check, which would run wherever a key is read (catalog/key.c).
 */
static void
check_row_type(const TesseraRouting *routing, Oid type)
{
	Oid			argtype = OIDOID;
	Datum		value = ObjectIdGetDatum(type);
	TesseraSpi	access;

	if (routing == NULL || !OidIsValid(type))
		return;
	tessera_spi_begin(&access);
	(void) tessera_spi_look(COLUMNS_OF_TYPE_SQL, 1, &argtype, &value);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		Oid			user = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		int			column = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2, &isnull));

		if (is_key_column(routing, user, column))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot change the columns of type %s: column \"%s\" of table \"%s\", which is part of the shard key, is made of it",
							format_type_be(type), get_attname(user, column, false), get_rel_name(user)),
					 errhint("Make a new table with another shard key and copy the rows.")));
	}
	tessera_spi_end(&access);
}

/* True if the type has what keys of its values are compared, or hashed, by. */
static bool
has_key_operators(Oid type, bool hashed)
{
	Oid			class = GetDefaultOpClass(getBaseType(type), hashed ? HASH_AM_OID : BTREE_AM_OID);
	Oid			input = OidIsValid(class) ? get_opclass_input_type(class) : InvalidOid;

	/* (lookup_type_cache does not hear of a function that is dropped out of a class) */
	return OidIsValid(class) && OidIsValid(get_opfamily_proc(get_opclass_family(class), input, input, hashed ? HASHEXTENDED_PROC : BTORDER_PROC));
}

/*
 * An operator class was dropped, or a function of one. No table depends on the default one of its shard key's type, unless it has an index of it;
 * without it no node could read the key any more.
 */
static void
check_key_operators(const TesseraRouting *routing)
{
	for (int i = 0; routing != NULL && i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);

		if (table->group < 0 || get_rel_name(table->relid) == NULL)
			continue;			/* not sharded, or dropped, too */
		for (int j = 0; j < table->nkeys; j++)
		{
			bool		hashed = tessera_routing_group(routing, table->group)->hashed;
			Oid			type = get_atttype(table->relid, table->keys[j]);

			if (OidIsValid(type) && !has_key_operators(type, hashed))
				ereport(ERROR,
						(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
						 errmsg("cannot drop the default %s operator class of type %s: "
								"column \"%s\" of table \"%s\" is part of the shard key",
								hashed ? "hash" : "btree", format_type_be(type), get_attname(table->relid, table->keys[j], false),
								get_rel_name(table->relid)),
						 errhint("Drop the table first, or make a new one with another shard key and copy the rows.")));
		}
	}
}

static void
note_relation(TesseraTrack *track, ObjectAccessType access, Oid relid, int column)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table;

	if (column != 0 && access == OAT_POST_CREATE)
		check_row_type(routing, get_rel_type_id(relid));
	else if (column != 0 && access == OAT_DROP)
		track->losing = list_append_unique_oid(track->losing, get_rel_type_id(relid));
	if (access == OAT_POST_CREATE)
	{
		if (column == 0)
			track->created = lappend_oid(track->created, relid);
		return;
	}
	table = routing ? tessera_routing_table(routing, relid) : NULL;
	if (table == NULL)
		return;
	if (access == OAT_DROP && column != 0)
		check_column_drop(routing, relid, column);
	else if (access == OAT_DROP)
		track->dropped = list_append_unique_oid(track->dropped, relid);
	else
		track->altered = list_append_unique_oid(track->altered, relid);
	note_group(track, tessera_table_placement_group(routing, table));
}

static void
note_schema(TesseraTrack *track, ObjectAccessType access, Oid namespace)
{
	if (access == OAT_POST_CREATE)
		track->created_schemas = lappend_oid(track->created_schemas, namespace);
	else
		note_schema_group(track, tessera_routing(), get_namespace_name(namespace));
	if (access == OAT_DROP)
		track->dropped_schemas = lappend(track->dropped_schemas, get_namespace_name(namespace));
}

static void
object_access(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (previous_access)
		previous_access(access, class, object, sub, arg);
	if (class == RelationRelationId && (access == OAT_POST_ALTER || access == OAT_DROP) && sub == 0 && get_rel_relkind(object) == RELKIND_SEQUENCE)
		tessera_sequence_changed(object);
	if (current != NULL && (access == OAT_POST_CREATE || access == OAT_DROP || access == OAT_POST_ALTER))
	{
		MemoryContext before = MemoryContextSwitchTo(current->context);

		if (class == RelationRelationId)
			note_relation(current, access, object, sub);
		else if (class == NamespaceRelationId)
			note_schema(current, access, object);
		else if ((class == OperatorClassRelationId || class == AccessMethodProcedureRelationId) && access == OAT_DROP)
			current->lost_operators = true;
		MemoryContextSwitchTo(before);
	}
}

void
tessera_track_init(void)
{
	previous_access = object_access_hook;
	object_access_hook = object_access;
}

/* ---- rows ---- */

/* The same on every node. */
static pg_uuid_t *
derive_uuid(const TesseraTrack *track, const char *kind, const char *name)
{
	pg_uuid_t  *uuid = palloc(sizeof(pg_uuid_t));
	char	   *text = psprintf("%s %s", kind, name);
	uint64		parts[2];
	uint64		seeds[2];

	memcpy(seeds, track->seed.data, sizeof(seeds));
	for (int i = 0; i < 2; i++)
		parts[i] = pg_hton64(hash_bytes_extended((unsigned char *) text, strlen(text), pg_ntoh64(seeds[i]) + i));
	memcpy(uuid->data, parts, UUID_LEN);
	uuid->data[6] = (uuid->data[6] & 0x0f) | 0x80;
	uuid->data[8] = (uuid->data[8] & 0x3f) | 0x80;
	return uuid;
}

static uint64
run(const char *sql, int expected, int n, const Oid *types, const Datum *values)
{
	return tessera_spi_run(sql, expected, n, types, values, NULL);
}

static Datum
oid_array(List *oids)
{
	Datum	   *values = palloc(sizeof(Datum) * Max(list_length(oids), 1));
	ListCell   *cell;

	foreach(cell, oids)
		values[foreach_current_index(cell)] = ObjectIdGetDatum(lfirst_oid(cell));
	return PointerGetDatum(construct_array(values, list_length(oids), OIDOID, sizeof(Oid), true, TYPALIGN_INT));
}

static void
changelog(TesseraTrack *track, const TesseraRouting *routing, const char *what, const char *object)
{
	static const Oid types[] = {TEXTOID, TEXTOID, TEXTOID};
	Datum		values[3];

	if (!routing->is_config)
		return;
	values[0] = CStringGetTextDatum(what);
	values[1] = CStringGetTextDatum(object);
	values[2] = CStringGetTextDatum(track->user);
	run("INSERT INTO tessera.changelog_entry (what, object, by) VALUES ($1, $2, $3::name)", SPI_OK_INSERT, 3, types, values);
}

static void
place_schema(TesseraTrack *track, const char *schema, int32 home)
{
	static const Oid types[] = {NAMEOID, INT4OID};
	NameData	name;
	Datum		values[2];

	namestrcpy(&name, schema);
	values[0] = NameGetDatum(&name);
	values[1] = Int32GetDatum(home);
	run("INSERT INTO tessera.schema_placement (schema_name, node_id) VALUES ($1, $2) ON CONFLICT DO NOTHING", SPI_OK_INSERT, 2, types, values);
}

/* Belongs to the cluster by its nature (the same test as create_cluster's): permanent, a table of its own, of no extension. */
static bool
is_cluster_table(Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	Oid			namespace = get_rel_namespace(relid);

	return (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE || relkind == RELKIND_MATVIEW) && !get_rel_relispartition(relid) &&
		get_rel_persistence(relid) != RELPERSISTENCE_TEMP && !IsCatalogNamespace(namespace) && !isAnyTempNamespace(namespace) &&
		namespace != get_namespace_oid("tessera", true) && !OidIsValid(getExtensionOfObject(RelationRelationId, relid));
}

/* True if the tables of the schema have a shard. Places the schema if it has none yet. */
static void
ensure_placed(TesseraTrack *track, const TesseraRouting *routing, const char *schema)
{
	static const Oid types[] = {NAMEOID};
	NameData	name;
	Datum		value = NameGetDatum(&name);

	namestrcpy(&name, schema);
	if (run("SELECT 1 FROM tessera.schema_placement WHERE schema_name = $1", SPI_OK_SELECT, 1, types, &value) > 0)
		return;
	if (track->home == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("schema \"%s\" has no shard for its tables", schema),
				 errhint("Add a shard to the cluster with tessera.add_shard().")));
	place_schema(track, schema, track->home);
}

static void
insert_table(TesseraTrack *track, const TesseraRouting *routing, Oid relid)
{
	static const Oid types[] = {UUIDOID, NAMEOID, NAMEOID, OIDOID};
	char	   *schema = get_namespace_name(get_rel_namespace(relid));
	char	   *table = get_rel_name(relid);
	char	   *qualified = tessera_quote_qualified(schema, table);
	NameData	names[2];
	Datum		values[4];

	ensure_placed(track, routing, schema);
	note_schema_group(track, routing, schema);
	namestrcpy(&names[0], schema);
	namestrcpy(&names[1], table);
	values[0] = UUIDPGetDatum(derive_uuid(track, "table", qualified));
	values[1] = NameGetDatum(&names[0]);
	values[2] = NameGetDatum(&names[1]);
	values[3] = ObjectIdGetDatum(relid);
	/* A row of that name whose table is not there any more was dropped with replicate_ddl off. */
	run("DELETE FROM tessera.cluster_table t WHERE t.schema_name = $2 AND t.table_name = $3 AND $1 IS NOT NULL AND t.relid IS DISTINCT FROM $4",
		SPI_OK_DELETE, 4, types, values);
	if (run("INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, relid) "
			"SELECT $1, $2, $3, $4 WHERE NOT EXISTS (SELECT FROM tessera.cluster_table t WHERE t.relid = $4)", SPI_OK_INSERT, 4, types, values) > 0)
		changelog(track, routing, "create_table", qualified);
}

static void
write_created(TesseraTrack *track, const TesseraRouting *routing)
{
	ListCell   *cell;

	foreach(cell, track->created_schemas)
	{
		char	   *schema = get_namespace_name(lfirst_oid(cell));

		if (schema == NULL || isAnyTempNamespace(lfirst_oid(cell)) || OidIsValid(getExtensionOfObject(NamespaceRelationId, lfirst_oid(cell))))
			continue;
		if (track->home != 0)
			place_schema(track, schema, track->home);
		changelog(track, routing, "create_schema", tessera_quote(schema));
	}
	foreach(cell, track->created)
	{
		Oid			relid = lfirst_oid(cell);

		if (is_cluster_table(relid))
			insert_table(track, routing, relid);
		else if (track->home != 0 && get_rel_relkind(relid) == RELKIND_SEQUENCE && get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
			ensure_placed(track, routing, get_namespace_name(get_rel_namespace(relid)));	/* where its values come from */
		if (get_rel_relkind(relid) == RELKIND_MATVIEW)
			run(TESSERA_POPULATE_VIEWS_SQL, SPI_OK_UPDATE, 0, NULL, NULL);
	}
}

/* Placed tables lie where their schema says: another schema must mean the same shard. */
static void
check_new_schemas(TesseraTrack *track, Datum relids)
{
	static const Oid types[] = {OIDARRAYOID};
	uint64		n = run("SELECT t.table_name::text, n.nspname::text, f.node_id, o.node_id FROM tessera.cluster_table t "
						"JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace "
						"JOIN tessera.schema_placement f ON f.schema_name = t.schema_name "
						"LEFT JOIN tessera.schema_placement o ON o.schema_name = n.nspname "
						"WHERE t.relid = ANY ($1) AND t.group_id IS NULL AND o.node_id IS DISTINCT FROM f.node_id", SPI_OK_SELECT, 1, types, &relids);
	SPITupleTable *rows = SPI_tuptable;

	for (uint64 i = 0; i < n; i++)
	{
		char	   *schema = SPI_getvalue(rows->vals[i], rows->tupdesc, 2);
		char	   *from = SPI_getvalue(rows->vals[i], rows->tupdesc, 3);

		if (SPI_getvalue(rows->vals[i], rows->tupdesc, 4) != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot move table \"%s\" into schema \"%s\": the schemas' tables live on different shards",
							SPI_getvalue(rows->vals[i], rows->tupdesc, 1), schema),
					 errhint("Create the table in the other schema and copy the rows. tessera.schemas shows the shard of each schema.")));
		track->home = pg_strtoint32(from);
		place_schema(track, schema, track->home);
	}
}

/*
 * On the other nodes, whose images may lack the newest sharded tables: schemas that have no shard yet get the one that the router has found.
 */
static void
follow_new_schemas(TesseraTrack *track, Datum relids)
{
	static const Oid types[] = {OIDARRAYOID};
	uint64		n;
	SPITupleTable *rows;

	if (track->home == 0)
		return;
	n = run("SELECT DISTINCT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
			"LEFT JOIN tessera.schema_placement o ON o.schema_name = n.nspname WHERE c.oid = ANY ($1) AND o.node_id IS NULL", SPI_OK_SELECT, 1, types,
			&relids);
	rows = SPI_tuptable;
	for (uint64 i = 0; i < n; i++)
		place_schema(track, SPI_getvalue(rows->vals[i], rows->tupdesc, 1), track->home);
}

static void
write_altered(TesseraTrack *track, const TesseraRouting *routing)
{
	static const Oid types[] = {OIDARRAYOID};
	Datum		relids = oid_array(track->altered);
	ListCell   *cell;

	foreach(cell, track->altered)
		note_schema_group(track, routing, get_namespace_name(get_rel_namespace(lfirst_oid(cell))));
	if (track->router)
		check_new_schemas(track, relids);
	else
		follow_new_schemas(track, relids);
	run("UPDATE tessera.cluster_table t SET schema_name = n.nspname, table_name = c.relname "
		"FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
		"WHERE c.oid = t.relid AND t.relid = ANY ($1) AND (t.schema_name <> n.nspname OR t.table_name <> c.relname)", SPI_OK_UPDATE, 1, types,
		&relids);
}

static void
log_dropped(TesseraTrack *track, const TesseraRouting *routing, Datum relids)
{
	static const Oid types[] = {OIDARRAYOID, TEXTOID};
	Datum		values[] = {relids, CStringGetTextDatum(track->user)};

	if (routing->is_config)
		run("INSERT INTO tessera.changelog_entry (what, object, by) SELECT 'drop_table', format('%I.%I', t.schema_name, t.table_name), $2::name "
			"FROM tessera.cluster_table t WHERE t.relid = ANY ($1)", SPI_OK_INSERT, 2, types, values);
}

/* Tables, and what of their groups has no table left. */
static void
write_dropped(TesseraTrack *track, const TesseraRouting *routing)
{
	static const Oid types[] = {OIDARRAYOID};
	static const Oid uuid_types[] = {UUIDOID};
	Datum		relids = oid_array(track->dropped);
	ListCell   *cell;

	log_dropped(track, routing, relids);
	run("DELETE FROM tessera.table_statistics AS s USING tessera.cluster_table AS t WHERE t.relid = ANY ($1) AND s.table_id = t.table_id",
		SPI_OK_DELETE, 1, types, &relids);
	run("DELETE FROM tessera.cluster_table WHERE relid = ANY ($1)", SPI_OK_DELETE, 1, types, &relids);
	foreach(cell, track->groups)
	{
		Datum		group = UUIDPGetDatum((pg_uuid_t *) lfirst(cell));

		if (run("SELECT 1 FROM tessera.cluster_table WHERE group_id = $1 UNION ALL"
				" SELECT 1 FROM tessera.schema_placement WHERE group_id = $1 LIMIT 1",
				SPI_OK_SELECT, 1, uuid_types, &group) > 0)
			continue;
		run("DELETE FROM tessera.placement WHERE group_id = $1", SPI_OK_DELETE, 1, uuid_types, &group);
		run("DELETE FROM tessera.table_group WHERE group_id = $1", SPI_OK_DELETE, 1, uuid_types, &group);
	}
}

static void
write_dropped_schemas(TesseraTrack *track, const TesseraRouting *routing)
{
	static const Oid types[] = {NAMEOID};
	ListCell   *cell;

	foreach(cell, track->dropped_schemas)
	{
		NameData	name;
		Datum		value = NameGetDatum(&name);

		namestrcpy(&name, lfirst(cell));
		run("DELETE FROM tessera.placement AS p USING tessera.schema_placement AS s WHERE s.schema_name = $1 AND p.group_id = s.group_id",
			SPI_OK_DELETE, 1, types, &value);
		run("DELETE FROM tessera.table_group AS g USING tessera.schema_placement AS s WHERE s.schema_name = $1 AND g.group_id = s.group_id",
			SPI_OK_DELETE, 1, types, &value);
		run("DELETE FROM tessera.sequence_fence WHERE schema_name = $1", SPI_OK_DELETE, 1, types, &value);
		run("DELETE FROM tessera.schema_placement WHERE schema_name = $1", SPI_OK_DELETE, 1, types, &value);
		changelog(track, routing, "drop_schema", tessera_quote(lfirst(cell)));
	}
}

/* The group with which the partitions of a table move. */
static const TesseraGroup *
root_group(const TesseraRouting *routing, Oid root)
{
	const TesseraTable *table = OidIsValid(root) ? tessera_routing_table(routing, root) : NULL;

	return table ? tessera_table_placement_group(routing, table) : NULL;
}

/* It is part of its root's table now. */
static void
write_attached(const TesseraPartitionChange *change)
{
	static const Oid types[] = {OIDOID};
	Datum		relid = ObjectIdGetDatum(change->relid);

	run("DELETE FROM tessera.cluster_table WHERE relid = $1", SPI_OK_DELETE, 1, types, &relid);
}

/* It is a table of its own now, of the group of which it was a part. */
static void
write_detached(TesseraTrack *track, const TesseraRouting *routing, const TesseraPartitionChange *change)
{
	static const Oid types[] = {OIDOID, OIDOID};
	Datum		values[] = {ObjectIdGetDatum(change->relid), ObjectIdGetDatum(change->root)};

	insert_table(track, routing, change->relid);
	run("UPDATE tessera.cluster_table t SET group_id = r.group_id, key_columns = r.key_columns FROM tessera.cluster_table r "
		"WHERE t.relid = $1 AND r.relid = $2 AND r.group_id IS NOT NULL", SPI_OK_UPDATE, 2, types, values);
}

static void
write_partitions(TesseraTrack *track, const TesseraRouting *routing)
{
	ListCell   *cell;

	foreach(cell, track->partitions)
	{
		const TesseraPartitionChange *change = lfirst(cell);

		note_schema_group(track, routing, get_namespace_name(get_rel_namespace(change->relid)));
		note_group(track, root_group(routing, change->root));
	}
	foreach(cell, track->partitions)
	{
		const TesseraPartitionChange *change = lfirst(cell);

		if (get_rel_relispartition(change->relid))
			write_attached(change);
		else if (is_cluster_table(change->relid))
			write_detached(track, routing, change);
	}
}

/* Partitions that were made can be moved as their parents can. */
static void
identify_partitions(TesseraTrack *track)
{
	ListCell   *cell;

	foreach(cell, track->created)
	{
		char		relkind = get_rel_relkind(lfirst_oid(cell));

		if (get_rel_relispartition(lfirst_oid(cell)) && (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE))
			tessera_take_identity(lfirst_oid(cell));
	}
}

/*
 * Key columns of the altered tables go by the names that they have now. By number: the statement's own words mean something under the user's
 * search_path only.
 */
static void
write_key_names(TesseraTrack *track, const TesseraRouting *routing)
{
	static const Oid types[] = {OIDOID, NAMEARRAYOID};
	ListCell   *cell;

	foreach(cell, track->altered)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));
		Datum		names[TESSERA_MAX_KEY_COLUMNS];
		Datum		values[2];

		if (table == NULL || table->group < 0)
			continue;
		for (int i = 0; i < table->nkeys; i++)
		{
			Name		name = palloc0(sizeof(NameData));

			namestrcpy(name, get_attname(table->relid, table->keys[i], false));
			names[i] = NameGetDatum(name);
		}
		values[0] = ObjectIdGetDatum(table->relid);
		values[1] = PointerGetDatum(construct_array(names, table->nkeys, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR));
		run("UPDATE tessera.cluster_table SET key_columns = $2 WHERE relid = $1 AND group_id IS NOT NULL AND key_columns <> $2", SPI_OK_UPDATE, 2,
			types, values);
	}
}

/* A schema's name, which the hook does not give. */
static void
write_renamed_schema(RenameStmt *statement)
{
	static const Oid types[] = {NAMEOID, NAMEOID};
	NameData	names[2];
	Datum		values[2];

	if (statement->renameType != OBJECT_SCHEMA || statement->subname == NULL)
		return;
	namestrcpy(&names[0], statement->subname);
	namestrcpy(&names[1], statement->newname);
	values[0] = NameGetDatum(&names[0]);
	values[1] = NameGetDatum(&names[1]);
	run("UPDATE tessera.cluster_table SET schema_name = $2 WHERE schema_name = $1", SPI_OK_UPDATE, 2, types, values);
	/* a refresh, that was answered before a renaming and waited for its end, may have left a row that nothing has any more */
	run("DELETE FROM tessera.schema_placement WHERE schema_name = $2 AND EXISTS (SELECT FROM tessera.schema_placement WHERE schema_name = $1)",
		SPI_OK_DELETE, 2, types, values);
	run("UPDATE tessera.schema_placement SET schema_name = $2 WHERE schema_name = $1", SPI_OK_UPDATE, 2, types, values);
	run("UPDATE tessera.sequence_fence SET schema_name = $2 WHERE schema_name = $1", SPI_OK_UPDATE, 2, types, values);
}

/* What they have created is theirs still: who is rolled back meanwhile writes it again at its end. */
void
tessera_track_write_tables(void)
{
	TesseraTrack *innermost = current;
	TesseraSpi	access;

	if (innermost == NULL)
		return;
	current = NULL;
	PG_TRY();
	{
		CommandCounterIncrement();
		tessera_spi_begin(&access);
		for (TesseraTrack *track = innermost; track != NULL; track = track->outer)
		{
			ListCell   *cell;

			foreach(cell, track->created)
				if (is_cluster_table(lfirst_oid(cell)))
					insert_table(track, tessera_routing(), lfirst_oid(cell));
		}
		tessera_spi_end(&access);
		tessera_catalog_changed();
		CommandCounterIncrement();
	}
	PG_FINALLY();
	{
		current = innermost;
	}
	PG_END_TRY();
}

/* Tables, partitions and sequences; not indexes and views. */
static bool
created_tables(TesseraTrack *track)
{
	ListCell   *cell;

	foreach(cell, track->created)
	{
		char		relkind = get_rel_relkind(lfirst_oid(cell));

		if (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE || relkind == RELKIND_MATVIEW ||
			(relkind == RELKIND_SEQUENCE && track->home != 0))
			return true;
	}
	return false;
}

static bool
changed_rows(TesseraTrack *track, Node *statement)
{
	return created_tables(track) || track->altered || track->dropped || track->created_schemas || track->dropped_schemas || track->partitions ||
		(IsA(statement, RenameStmt) && ((RenameStmt *) statement)->renameType == OBJECT_SCHEMA);
}

void
tessera_track_end(TesseraTrack *track, Node *statement, const TesseraRouting *routing)
{
	TesseraSpi	access;
	ListCell   *cell;

	/* What follows is not the statement's doing. */
	current = track->outer;
	CommandCounterIncrement();
	foreach(cell, track->losing)
		check_row_type(routing, lfirst_oid(cell));
	if (track->lost_operators)
		check_key_operators(routing);
	if (!changed_rows(track, statement))
		return;
	identify_partitions(track);
	tessera_spi_begin(&access);
	write_created(track, routing);
	if (track->altered)
	{
		write_altered(track, routing);
		write_key_names(track, routing);
	}
	if (IsA(statement, RenameStmt))
		write_renamed_schema((RenameStmt *) statement);
	write_partitions(track, routing);
	if (track->dropped)
		write_dropped(track, routing);
	write_dropped_schemas(track, routing);
	tessera_spi_end(&access);
	tessera_catalog_changed();
	CommandCounterIncrement();
}
