/*
 * create_cluster.c
 *	  Makes this database the config node of a new cluster and, if asked, its first shard. Nothing moves: rows of the catalog only, in the caller's
 *	  transaction.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "catalog/change.h"
#include "catalog/clock_store.h"
#include "catalog/database_setting.h"
#include "catalog/signing_key.h"
#include "common/privilege.h"
#include "common/secrets.h"
#include "common/spi_text.h"
#include "common/text.h"
#include "config/chunks.h"
#include "config/membership.h"

PG_FUNCTION_INFO_V1(tessera_create_cluster);

#define CONFIG_NODE_ID "1"

/* Neither the system's, nor this extension's, nor made by an extension (unless a user has put a table there). */
const char *const tessera_user_schemas_sql =
"SELECT n.nspname FROM pg_catalog.pg_namespace n"
" WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'tessera')"
" AND (NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.objid = n.oid AND "
"d.deptype = 'e')  OR EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'"
"   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND "
"d.deptype = 'e')))";

/* Inheritance children are tables of the cluster like their parents; partitions are parts of theirs (doc/design.md#partitions). */
const char *const tessera_user_tables_sql =
"SELECT n.nspname, c.relname, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
" WHERE c.relkind IN ('r', 'p', 'm') AND c.relpersistence <> 't' AND NOT c.relispartition"
" AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'tessera')"
" AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype "
"= 'e')";

/* ERROR unless the conninfo leads to this very database, as a role that other nodes can come as. */
static void
verify_own_conninfo(const char *name, const char *conninfo, const TesseraNodeFacts *here)
{
	TesseraConnection *connection = tessera_probe_open(name, conninfo);
	TesseraNodeFacts *there = tessera_node_facts(connection);

	tessera_probe_close(connection);
	/* The start of the server tells it from a copy of it. */
	if (strcmp(here->system_id, there->system_id) != 0 || strcmp(here->database_oid, there->database_oid) != 0 ||
		strcmp(here->started, there->started) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("conninfo does not lead to this database"),
				 errdetail("It reaches database \"%s\" of %s.", there->database,
						   strcmp(here->system_id, there->system_id) != 0 ? "another server" :
						   strcmp(here->started, there->started) != 0 ? "a copy of this server" : "this server"),
				 errhint("Give the address under which the other nodes will reach this database.")));
	if (!there->superuser && !there->internal)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" of the conninfo cannot open internal connections", there->role),
				 errhint("Use a superuser, or GRANT tessera_internal TO %s.", tessera_quote(there->role))));
}

/* Everything that can be refused, before anything is written. */
static void
check_new_cluster(const char *node, bool shard, const char *conninfo, const TesseraNodeFacts *here)
{
	const char *table;
	const char *subscription;

	if (here->cluster_id != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is already node \"%s\" of cluster \"%s\"", here->node, here->cluster)));
	tessera_node_check_here();
	table = shard ? NULL : tessera_admin_value(psprintf("SELECT pg_catalog.format('%%I.%%I', t.nspname, t.relname) FROM (%s) t ORDER BY 1 LIMIT 1",
														  tessera_user_tables_sql), 0, NULL);
	if (table != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database has tables, but is not to be a shard"),
				 errdetail("One of them is %s.", table),
				 errhint("Name it as the first shard, which keeps its tables: tessera.create_cluster(..., shard => 's1').")));
	subscription = tessera_admin_value(psprintf("SELECT pg_catalog.format('subscription \"%%s\" writes into table %%I.%%I', s.subname, t.nspname,"
												" t.relname) FROM pg_catalog.pg_subscription_rel r"
												" JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid JOIN (%s) t"
												" ON t.oid = coalesce(pg_catalog.pg_partition_root(r.srrelid), r.srrelid) ORDER BY 1 LIMIT 1",
												tessera_user_tables_sql), 0, NULL);
	if (subscription != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s, which would be one of the cluster", subscription),
				 errdetail("Rows that come by logical replication land on the node of the subscription, whatever shard owns them."),
				 errhint("Wait until its rows have come, and drop the subscription first.")));
	verify_own_conninfo(node, conninfo, here);
}

static void
write_new_cluster(const char *cluster, const char *node, bool shard, const char *conninfo, const TesseraNodeFacts *here)
{
	char		timeline[12];
	const char *identity[] = {cluster, node, conninfo};
	const char *row[] = {node, conninfo, shard ? "true" : "false", here->system_id, here->database, timeline};
	const char *after[] = {cluster, node, shard ? "true" : "false"};

	snprintf(timeline, sizeof(timeline), "%d", here->timeline);
	tessera_admin_exec("INSERT INTO tessera.identity (cluster_id, cluster, node_id, node, is_config, config_conninfo, term) "
						 "VALUES (gen_random_uuid(), $1, " CONFIG_NODE_ID ", $2, true, $3, 1)", 3, identity);
	tessera_clock_begin();
	(void) tessera_signing_keys_make();
	tessera_admin_exec("INSERT INTO tessera.node (node_id, name, conninfo, is_shard, is_config, system_id, database, timeline) "
						 "VALUES (" CONFIG_NODE_ID ", $1, $2, $3::bool, true, $4::int8, $5, $6::int4)", 6, row);
	tessera_admin_exec("SELECT setval('tessera.node_id', " CONFIG_NODE_ID ")", 0, NULL);
	tessera_admin_exec("INSERT INTO tessera.advisory_home (slot, node_id) SELECT s, " CONFIG_NODE_ID " FROM generate_series(0, "
					   CppAsString2(TESSERA_ADVISORY_SLOTS) " - 1) s", 0, NULL);
	if (shard)
	{
		tessera_admin_exec(psprintf("INSERT INTO tessera.schema_placement (schema_name, node_id) SELECT s.nspname, " CONFIG_NODE_ID
									  " FROM (%s) s", tessera_user_schemas_sql), 0, NULL);
		tessera_admin_exec(psprintf("INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, relid) "
									  "SELECT gen_random_uuid(), t.nspname, t.relname, t.oid FROM (%s) t", tessera_user_tables_sql), 0, NULL);
	}
	tessera_changelog_add("create_cluster", cluster, NULL, GetUserNameFromId(GetSessionUserId(), false), NULL,
					  tessera_admin_value("SELECT jsonb_build_object('cluster', $1, 'node', $2, 'shard', $3::bool)::text", 3, after));
}

static Datum
create_cluster(PG_FUNCTION_ARGS)
{
	char	   *cluster;
	char	   *conninfo;
	const char *node;
	bool		shard = !PG_ARGISNULL(2);
	TesseraSpi	access;
	TesseraNodeFacts *here;

	tessera_require_admin();
	tessera_refuse_read_only("create_cluster");
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("a cluster needs a name and the conninfo of this node")));
	cluster = text_to_cstring(PG_GETARG_TEXT_PP(0));
	conninfo = text_to_cstring(PG_GETARG_TEXT_PP(1));
	node = shard ? text_to_cstring(PG_GETARG_TEXT_PP(2)) : "config";
	tessera_name_check("cluster", cluster);
	tessera_name_check(shard ? "shard" : "node", node);
	tessera_conninfo_check(conninfo);

	tessera_spi_begin(&access);
	tessera_registry_lock();
	here = tessera_node_facts_here();
	check_new_cluster(node, shard, conninfo, here);
	write_new_cluster(cluster, node, shard, conninfo, here);
	tessera_require_library(true);
	tessera_catalog_changed();
	tessera_spi_end(&access);
	PG_RETURN_VOID();
}

/* create_cluster(cluster, conninfo, shard) */
Datum
tessera_create_cluster(PG_FUNCTION_ARGS)
{
	return tessera_without_secrets(fcinfo, 1, create_cluster);
}
