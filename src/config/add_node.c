/*
 * add_node.c
 *	  add_shard and add_router on the config node: a database joins the cluster.
 *
 * 1. Under the registry's lock, look at the newcomer through a connection of its own and refuse whatever cannot work; nothing is changed yet.
 * 2. Read this node's schema as a script.
 * 3. One distributed transaction: here the node row; there the extension, the schema, copies of the catalog, and the identity row that makes it a
 *    node.
 *
 * So it has joined or there is no trace of it. A crash between prepare and commit leaves a prepared transaction there, which the config node's
 * resolver ends; one whose decision was an abort is found by the next attempt.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

#include "catalog/change.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/spi_text.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "config/chunks.h"
#include "config/membership.h"
#include "config/round_request.h"
#include "control/calls.h"
#include "transaction/participant.h"

/* Chunks sent in one command. */
#define CHUNK_BATCH "10000"

/* What this transaction had done when the last node had joined: later joins in it need nothing else to have been done since. */
static LocalTransactionId joined_transaction = InvalidLocalTransactionId;
static CommandId joined_command = 0;

/* pg_dump reads this schema in a transaction of its own. */
static void
require_clean_transaction(void)
{
	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	if (joined_transaction == tessera_proc_lxid(MyProc) && joined_command == GetCurrentCommandId(false))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("a node cannot join in a transaction that has changed something before"),
			 errdetail("The schema it gets is read in another transaction."),
			 errhint("Commit first.")));
}

static void
remember_clean_transaction(void)
{
	CommandCounterIncrement();
	joined_transaction = tessera_proc_lxid(MyProc);
	joined_command = GetCurrentCommandId(false);
}

/* First row, first column of a query there, NULL if none; in the current memory context. */
static char *
ask(TesseraConnection *connection, const char *sql, int nparams, const char *const *values)
{
	PGresult   *result = tessera_connection_run(connection, sql, nparams, values);

	return PQntuples(result) > 0 && !PQgetisnull(result, 0, 0) ? pstrdup(PQgetvalue(result, 0, 0)) : NULL;
}

static bool
differs(const char *a, const char *b)
{
	if (a == NULL || b == NULL)
		return a != b;
	return strcmp(a, b) != 0;
}

static void
refuse_difference(const char *name, const char *what, const char *here, const char *there, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("node \"%s\" cannot join: its %s differs", name, what),
			 errdetail("Here it is \"%s\", there \"%s\".", here == NULL ? "" : here, there == NULL ? "" : there),
			 errhint("%s", hint)));
}

/* ERROR if it is the same database as a registered node, or is in a cluster already. */
static void
check_membership(const char *name, const TesseraNodeFacts *here, const TesseraNodeFacts *there)
{
	const char *values[] = {there->system_id, there->database};
	const char *same = tessera_admin_value("SELECT name FROM tessera.node WHERE system_id = $1::int8 AND database = $2", 2, values);

	if (same != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("node \"%s\" cannot join: its conninfo reaches node \"%s\"", name, same)));
	if (there->cluster_id != NULL && strcmp(there->cluster_id, here->cluster_id) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot join: by its own catalog it is node \"%s\" of this cluster", name, there->node),
				 errdetail("No node of this cluster is registered at that database: it was removed, or is a copy."),
				 errhint("Use an empty database.")));
	if (there->cluster_id != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot join: it is in cluster \"%s\" already", name, there->cluster),
				 errhint("Use an empty database.")));
}

/* Versions of software, encoding and collations: data and binary values must mean the same on every node. */
static void
check_compatible(const char *name, const TesseraNodeFacts *here, const TesseraNodeFacts *there)
{
	static const char make_alike[] = "Make that database with the same ENCODING, LC_COLLATE, LC_CTYPE, LOCALE_PROVIDER and ICU_LOCALE as this one.";
	static const char same_library[] = "Text would sort differently there: use the same version of the operating system's locale library.";

	if (here->version / 10000 != there->version / 10000)
		refuse_difference(name, "major version of PostgreSQL", psprintf("%d", here->version / 10000), psprintf("%d", there->version / 10000),
						  "Use servers of one major version.");
	if (there->extension == NULL && there->available == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot join: extension tessera is not available there", name),
				 errhint("Install tessera %s on that server.", here->extension)));
	if (there->extension != NULL && differs(here->extension, there->extension))
		refuse_difference(name, "version of extension tessera", here->extension, there->extension, "Use ALTER EXTENSION tessera UPDATE.");
	if (differs(here->encoding, there->encoding))
		refuse_difference(name, "encoding", here->encoding, there->encoding, make_alike);
	if (differs(here->provider, there->provider))
		refuse_difference(name, "locale provider", here->provider, there->provider, make_alike);
	if (differs(here->collate, there->collate))
		refuse_difference(name, "LC_COLLATE", here->collate, there->collate, make_alike);
	if (differs(here->ctype, there->ctype))
		refuse_difference(name, "LC_CTYPE", here->ctype, there->ctype, make_alike);
	if (differs(here->icu_locale, there->icu_locale))
		refuse_difference(name, "ICU locale", here->icu_locale, there->icu_locale, make_alike);
	if (differs(here->collation_version, there->collation_version))
		refuse_difference(name, "collation version", here->collation_version, there->collation_version, same_library);
	if (differs(here->icu_version, there->icu_version))
		refuse_difference(name, "ICU collation version", here->icu_version, there->icu_version, same_library);
}

/* What is in the newcomer's way: tables, prepared transactions, missing roles, other versions of extensions. */
static void
check_contents(const char *name, TesseraConnection *connection, bool former)
{
	static const char roles_sql[] =
	"SELECT array_agg(r.rolname) FROM pg_roles r WHERE r.rolname NOT IN ('tessera_admin', 'tessera_internal') AND r.oid IN ("
	"SELECT d.refobjid FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass"
	" AND d.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())"
	" UNION SELECT a.grantee FROM pg_database d, aclexplode(d.datacl) a WHERE d.datname = current_database() AND a.grantee <> 0"
	" UNION SELECT s.setrole FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE d.datname = current_database() AND "
	"s.setrole <> 0 UNION SELECT c.relowner FROM pg_class c WHERE c.oid >= 16384 UNION SELECT p.proowner FROM pg_proc p WHERE p.oid >= 16384)";
	const char *schemas = tessera_admin_value(psprintf("SELECT array_agg(s.nspname) FROM (%s) s", tessera_user_schemas_sql), 0, NULL);
	const char *roles = tessera_admin_value(roles_sql, 0, NULL);
	const char *extensions = tessera_admin_value("SELECT array_agg(extname ORDER BY extname) FROM pg_extension WHERE extname <> 'tessera'", 0, NULL);
	const char *versions = tessera_admin_value("SELECT array_agg(extversion ORDER BY extname) FROM pg_extension WHERE extname <> 'tessera'", 0, NULL);
	const char *pair[] = {extensions, versions};
	const char *found;

	found = ask(connection,
				psprintf("SELECT format('%%I.%%I', t.nspname, t.relname) FROM (%s) t WHERE t.nspname = ANY ($1::name[]) ORDER BY 1 LIMIT 1",
									 tessera_user_tables_sql), 1, &schemas);
	if (found != NULL && !former)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot join: it has tables in schemas of this cluster", name),
				 errdetail("One of them is %s.", found),
				 errhint("Use an empty database.")));
	found = ask(connection, "SELECT gid FROM pg_prepared_xact() WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER "
				"BY prepared LIMIT 1", 0, NULL);
	if (found != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("node \"%s\" cannot join: it has a prepared transaction", name),
				 errdetail("Its identifier is \"%s\".", found),
				 errhint("If an earlier attempt to join left it there, use ROLLBACK PREPARED there.")));
	found = ask(connection, "SELECT w.rolname FROM unnest($1::name[]) AS w (rolname) "
				"WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = w.rolname) ORDER BY 1 LIMIT 1", 1, &roles);
	if (found != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("node \"%s\" cannot join: role \"%s\" does not exist there", name, found),
				 errhint("Make the roles of this server there, for example with pg_dumpall --roles-only.")));
	found = ask(connection, "SELECT w.name || ' ' || w.version FROM unnest($1::text[], $2::text[]) AS w (name, version) "
				"LEFT JOIN pg_extension e ON e.extname = w.name LEFT JOIN pg_available_extensions a ON a.name = w.name "
				"WHERE coalesce(e.extversion, a.default_version) IS DISTINCT FROM w.version ORDER BY 1 LIMIT 1", 2, pair);
	if (found != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot join: extension %s is not there", name, found),
				 errhint("Install that version there, or update the extension here.")));
}

/*
 * pg_dump reads the schema here, as the role of this node's own conninfo: it locks every table, and reads the options of user mappings. What that
 * role may not read is said before pg_dump fails on it, or, with the options, leaves it out silently.
 */
static void
check_reader(const TesseraRouting *routing, const char *name)
{
	TesseraUnreadableSchemaAnswer found;

	(void) tessera_call_unreadable_schema(tessera_to_node(routing->self), &found);
	if (found.relation != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("node \"%s\" cannot join: role \"%s\" of this node's conninfo cannot read the schema of this database", name, found.role),
				 errdetail("It has no privilege to read %s.", found.relation),
				 errhint("GRANT pg_read_all_data TO %s, on the config node, until the node has joined.", tessera_quote(found.role))));
	if (found.mapping != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("node \"%s\" cannot join: role \"%s\" of this node's conninfo cannot read the schema of this database", name, found.role),
				 errdetail("Only a superuser can read the %s.", found.mapping),
				 errhint("ALTER ROLE %s SUPERUSER, until the node has joined.", tessera_quote(found.role))));
}

/* Was the database a shard or a router of this cluster, and removed? */
static bool
is_former(TesseraConnection *connection, const TesseraNodeFacts *here, const TesseraNodeFacts *there)
{
	const char *values[] = {here->cluster_id};

	return there->extension != NULL && ask(connection, "SELECT true FROM tessera.former_membership WHERE cluster_id = $1::uuid", 1, values) != NULL;
}

/* pg_dump leaves out an index that is not built, which the newcomer would never get then. What REINDEX CONCURRENTLY makes is each node's own. */
static void
check_indexes(const char *name)
{
	static const char *const sql =
		"SELECT i.indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
		"JOIN tessera.cluster_table t ON t.relid = coalesce(pg_partition_root(i.indrelid), i.indrelid) "
		"WHERE NOT i.indisvalid AND c.relkind = 'i' AND c.relname !~ '_cc(new|old)[0-9]*$' ORDER BY 1 LIMIT 1";
	const char *found = tessera_admin_value(sql, 0, NULL);

	if (found != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("node \"%s\" cannot join: index %s is not valid on the config node", name, found),
				 errhint("Let CREATE INDEX CONCURRENTLY end; if none runs: REINDEX INDEX CONCURRENTLY %s, or drop it.", found)));
}

/* Everything that can be refused. Returns the newcomer's facts (current memory context). *former: it comes back. */
static TesseraNodeFacts *
check_newcomer(const TesseraChange *change, const TesseraNodeFacts *here, bool *former)
{
	TesseraConnection *connection;
	TesseraNodeFacts *there;

	if (tessera_registered(change->name) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("node \"%s\" exists already", change->name)));
	check_indexes(change->name);
	connection = tessera_probe_open(change->name, change->conninfo);
	there = tessera_node_facts(connection);
	if (there->in_recovery)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot join: its conninfo reaches a standby", change->name),
				 errhint("Name the primary, or all hosts with target_session_attrs=read-write.")));
	check_membership(change->name, here, there);
	if (!there->superuser)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" of the conninfo is not a superuser there", there->role),
				 errdetail("A node that joins gets the schema with its owners and privileges."),
				 errhint("ALTER ROLE %s SUPERUSER on that server until the node has joined; or join with a superuser, and name a member of "
						 "tessera_internal with tessera.update_node() later.", tessera_quote(there->role))));
	check_compatible(change->name, here, there);
	tessera_node_check(connection);
	*former = is_former(connection, here, there);
	check_contents(change->name, connection, *former);
	tessera_probe_close(connection);
	return there;
}

/* The newcomer's rows here. Returns its node_id, as text too. */
static int32
register_here(const TesseraChange *change, const TesseraNodeFacts *there, bool shard, char **node_id)
{
	char		timeline[12];
	const char *row[] = {NULL, change->name, change->conninfo, shard ? "true" : "false", there->system_id, there->database, timeline};
	const char *first[1];

	snprintf(timeline, sizeof(timeline), "%d", there->timeline);
	*node_id = tessera_admin_value("SELECT nextval('tessera.node_id')", 0, NULL);
	row[0] = first[0] = *node_id;
	/* The first shard takes the schemas. */
	if (shard)
		tessera_admin_exec(psprintf("INSERT INTO tessera.schema_placement (schema_name, node_id) SELECT s.nspname, $1::int4 FROM (%s) s "
									  "WHERE NOT EXISTS (SELECT FROM tessera.node n WHERE n.is_shard) ON CONFLICT DO NOTHING",
									  tessera_user_schemas_sql),
							 1, first);
	tessera_admin_exec("INSERT INTO tessera.node (node_id, name, conninfo, is_shard, system_id, database, timeline) "
						 "VALUES ($1::int4, $2, $3, $4::bool, $5::int8, $6, $7::int4)", 7, row);
	tessera_changelog_add(change->action, change->name, NULL, change->by, NULL,
					  tessera_admin_value("SELECT jsonb_build_object('node_id', $1::int4, 'shard', $4::bool, 'database', $6)"
											" FROM (VALUES ($2, $3, $5, $7)) v", 7, row));
	tessera_catalog_changed();
	return atoi(*node_id);
}

/* Copy the whole of one catalog table. */
static void
send_table(const TesseraRouting *routing, int32 node_id, const char *table, const char *order)
{
	const char *rows = tessera_admin_value(psprintf("SELECT array_agg(t ORDER BY %s) FROM tessera.%s t", order, table), 0, NULL);

	if (rows != NULL)
		tessera_call_join_rows(tessera_writing(tessera_to_node(node_id)), table, rows, NULL);
}

/* Chunks can be a million: in batches. */
static void
send_chunks(const TesseraRouting *routing, int32 node_id)
{
	Portal		portal = SPI_cursor_open_with_args(NULL,
												   "SELECT array_agg(s.chunk) FROM (SELECT c AS chunk, row_number() OVER () AS i FROM tessera.chunk "
												   "c) s GROUP BY s.i / " CHUNK_BATCH, 0, NULL, NULL, NULL, true, 0);

	for (;;)
	{
		char	   *rows;

		SPI_cursor_fetch(portal, true, 1);
		if (SPI_processed == 0)
			break;
		rows = tessera_admin_field(0, 1);
		tessera_call_join_rows(tessera_writing(tessera_to_node(node_id)), "chunk", rows, NULL);
		pfree(rows);
		SPI_freetuptable(SPI_tuptable);
	}
	SPI_cursor_close(portal);
}

/* Rows of a replicated table, whose writers are locked out on its lead until this transaction ends. */
static void
fill_copy(const TesseraTable *table, const char *name, int32 node_id)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera rows of a table", ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	int64		block = 0;

	while (block >= 0)
	{
		TesseraReplicatedRowsAnswer answer;

		CHECK_FOR_INTERRUPTS();
		tessera_call_replicated_rows(tessera_to_node(table->node_id), name, block, &answer);
		block = answer.next;
		if (strcmp(answer.batch, "{}") != 0)
			tessera_call_apply_replicated(tessera_writing(tessera_to_node(node_id)), answer.batch, "", true);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}

/* Who writes next to a table that is filled here waits for this transaction, and then learns of the newcomer from the lead. */
static void
fill_copies(const TesseraRouting *routing, int32 node_id, const char *node_id_text)
{
	const char *values[] = {node_id_text};
	const char *row = tessera_admin_value("SELECT to_jsonb(n) FROM tessera.node AS n WHERE node_id = $1::int4", 1, values);

	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);
		bool		has_rows;
		char	   *name;

		if (!table->replicated)
			continue;
		name = tessera_quote_qualified(get_namespace_name(get_rel_namespace(table->relid)), get_rel_name(table->relid));
		tessera_call_lock_for_sharding(tessera_writing(tessera_to_node(table->node_id)), name, &has_rows);
		if (table->node_id != routing->self)
			tessera_call_learn_node(tessera_writing(tessera_to_node(table->node_id)), row);
		tessera_call_mark_replicated(tessera_writing(tessera_to_node(node_id)), &table->table_id, true, "", "");
		if (has_rows)
			fill_copy(table, name, node_id);
	}
}

/* The newcomer's side, all in this distributed transaction. */
static void
join_there(const TesseraRouting *routing, const TesseraChange *change, bool shard, int32 node_id, const char *node_id_text,
		   const TesseraNodeFacts *here, const TesseraNodeFacts *there, const char *script, bool former)
{
	const char *self[] = {node_id_text, change->name};
	const char *identity;
	TesseraConnection *connection;

	connection = tessera_participant_unlisted(node_id, change->name, change->conninfo);
	if (there->extension == NULL)
		(void) tessera_connection_run(connection, psprintf("CREATE EXTENSION tessera VERSION %s", quote_literal_cstr(here->extension)), 0, NULL);
	if (former)
	{
		pg_uuid_t  *cluster_id = DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(here->cluster_id)));

		tessera_call_clear_former(tessera_writing(tessera_to_node(node_id)), cluster_id,
								  tessera_admin_value(psprintf("SELECT coalesce(array_agg(s.nspname), '{}') FROM (%s) s",
															   tessera_user_schemas_sql), 0, NULL));
	}
	tessera_call_run_script(tessera_writing(tessera_to_node(node_id)), script);
	send_table(routing, node_id, "node", "t.node_id");
	send_table(routing, node_id, "schema_placement", "t.schema_name");
	send_table(routing, node_id, "table_group", "t.group_id");
	send_table(routing, node_id, "cluster_table", "t.table_id");
	send_table(routing, node_id, "setting", "t.name");
	send_chunks(routing, node_id);
	if (shard)
		tessera_advisory_share(node_id);
	send_table(routing, node_id, "advisory_home", "t.slot");
	identity = tessera_admin_value("SELECT ROW(true, i.cluster_id, i.cluster, $1::int4, $2::text, false, n.conninfo, i.term, 0::oid, 0, 1, '', "
								   "0)::tessera.identity"
									 " FROM tessera.identity i JOIN tessera.node n ON n.is_config", 2, self);
	tessera_call_join(tessera_writing(tessera_to_node(node_id)), identity);
	fill_copies(routing, node_id, node_id_text);
	tessera_injection("add_node_filled");
}

/* Returns the node_id as text. */
char *
tessera_add_node(TesseraChange *change, bool shard)
{
	const TesseraRouting *routing = tessera_require_cluster();
	TesseraSpi	access;
	TesseraNodeFacts *here;
	TesseraNodeFacts *there;
	char	   *script;
	char	   *node_id_text;
	int32		node_id;
	bool		former;

	require_clean_transaction();
	tessera_spi_begin(&access);
	tessera_registry_lock();
	here = tessera_node_facts_here();
	there = check_newcomer(change, here, &former);
	check_reader(routing, change->name);
	script = tessera_schema_script(tessera_admin_value("SELECT conninfo FROM tessera.node WHERE is_config", 0, NULL));
	script = psprintf("%s%s", script, tessera_database_script(there->database));
	node_id = register_here(change, there, shard, &node_id_text);
	join_there(tessera_routing(), change, shard, node_id, node_id_text, here, there, script, former);
	tessera_announce_others(node_id, tessera_reload_call());
	if (shard)
		tessera_round_after_commit();
	tessera_spi_end(&access);
	remember_clean_transaction();
	return node_id_text;
}
