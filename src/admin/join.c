/*
 * join.c
 *	  The other side of a membership change: what the config node calls on a node that joins, leaves, or must find the config node at a new address.
 *
 * All run inside a transaction of the config node (join) or by themselves after its commit (leave, moved). They check that the caller is another
 * node.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "admin/shardable.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "control/calls.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/tcopprot.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "admin/admin.h"
#include "catalog/change.h"
#include "catalog/clock_store.h"
#include "catalog/database_setting.h"
#include "catalog/relation.h"
#include "common/privilege.h"
#include "common/text.h"
#include "common/spi_text.h"
#include "config/membership.h"


/* Catalog tables that a newcomer gets copies of. */
static const char *const copied_tables[] = {"node", "schema_placement", "table_group", "cluster_table", "setting", "chunk", "advisory_home"};

static bool in_script = false;
static object_access_hook_type previous_object_access = NULL;

/* True if the function only computes: a superuser says so, and everyone may call it. */
static bool
only_computes(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		result = false;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);

		result = proc->provolatile == PROVOLATILE_IMMUTABLE && superuser_arg(proc->proowner);
		ReleaseSysCache(tuple);
	}
	return result && pg_proc_aclcheck(function, ACL_ID_PUBLIC, ACL_EXECUTE) == ACLCHECK_OK;
}

/*
 * A schema script runs by all rights and says what others have written. Where it needs values (literals of domains inside arrays, bounds of
 * partitions) checks and casts run: none that does anything but compute, for a function that reads or does something would do it by the rights of a
 * superuser. What core does as a table's owner (building an index) is none of this, nor is an extension's script.
 */
static void
guard_script(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (in_script && access == OAT_FUNCTION_EXECUTE && !creating_extension && superuser() && !only_computes(object))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("function %s is not run by a schema script", format_procedure(object)),
				 errdetail("It would run by the rights of a superuser."),
				 errhint("Drop the domain or cast that calls it until the node has joined.")));
	if (previous_object_access)
		previous_object_access(access, class, object, sub, arg);
}

/* The blanks and lines of comment that pg_dump writes before a statement. */
static const char *
skip_comments(const char *sql)
{
	for (;;)
	{
		while (*sql == ' ' || *sql == '\n')
			sql++;
		if (strncmp(sql, "--", 2) != 0)
			return sql;
		while (*sql != '\0' && *sql != '\n')
			sql++;
	}
}

/* In whatever cluster this database was, it is about to be in one, and its tables are to be used. */
static void
forget_former(void)
{
	TesseraSpi	access;

	tessera_spi_begin(&access);
	tessera_admin_exec("DELETE FROM tessera.former_membership", 0, NULL);
	tessera_catalog_changed();
	tessera_spi_end(&access);
}

/*
 * Runs each statement of a script as the caller, who could do the same by hand. One by one, so that an error shows its
 * own statement and not the whole script.
 */
void
tessera_serve_run_script(const TesseraRunScriptArgs *args)
{
	const char *script = args->script;
	List	   *statements;
	ListCell   *cell;

	tessera_require_internal();
	forget_former();
	statements = pg_parse_query(script);
	SPI_connect();
	foreach(cell, statements)
	{
		RawStmt    *raw = lfirst_node(RawStmt, cell);
		const char *whole = script + raw->stmt_location;
		const char *begin = skip_comments(whole);
		char	   *volatile sql = raw->stmt_len == 0 ? pstrdup(begin) : pnstrdup(begin, whole + raw->stmt_len - begin);
		volatile int result;

		CHECK_FOR_INTERRUPTS();
		in_script = !IsA(raw->stmt, SelectStmt);	/* pg_dump's own: values of settings and sequences */
		PG_TRY();
		{
			result = SPI_execute(sql, false, 0);
		}
		PG_FINALLY();
		{
			in_script = false;
		}
		PG_END_TRY();
		if (result < 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a schema script cannot hold this statement: %s", SPI_result_code_string(result)),
					 errdetail("The statement is \"%s\".", sql)));
		SPI_freetuptable(SPI_tuptable);
		pfree(sql);
	}
	SPI_finish();
}

/* ERROR 55000 if this database is a node. Access must be open. */
static void
refuse_member(void)
{
	const char *node = tessera_admin_value("SELECT node FROM tessera.identity", 0, NULL);

	if (node != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is node \"%s\" already", node)));
}

/* Rows of a catalog table, as the text of an array of its row type */
int64
tessera_serve_join_rows(const TesseraJoinRowsArgs *args)
{
	const char *table = args->table_name;
	const char *values[] = {args->rows};
	TesseraSpi	access;
	bool		known = false;
	uint64		rows;

	tessera_require_internal();
	for (int i = 0; i < lengthof(copied_tables); i++)
		known = known || strcmp(copied_tables[i], table) == 0;
	if (!known)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not copied to a node that joins", table)));
	tessera_spi_begin(&access);
	refuse_member();
	rows = tessera_admin_exec(psprintf("INSERT INTO tessera.%s SELECT * FROM unnest($1::tessera.%s[])", table, table), 1, values);
	tessera_catalog_changed();
	tessera_spi_end(&access);
	return (int64) rows;
}

/* Fill in this node's OIDs. ERROR if a table is missing. */
static void
resolve_tables(void)
{
	const char *missing;

	tessera_admin_exec("UPDATE tessera.cluster_table t SET relid = (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
						 "WHERE n.nspname = t.schema_name AND c.relname = t.table_name AND c.relkind IN ('r', 'p', 'm'))", 0, NULL);
	missing = tessera_admin_value("SELECT format('%I.%I', schema_name, table_name) FROM tessera.cluster_table WHERE relid IS NULL ORDER BY 1 LIMIT 1",
								  0, NULL);
	if (missing != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table %s of the cluster is not in its schema script", missing),
				 errhint("Was it dropped with tessera.replicate_ddl off?")));
}

/*
 * ERROR 55000 unless the table is empty. It is locked to the end of the transaction. No query: to plan one would run the constant calls in its
 * indexes.
 */
static void
require_empty(Oid relid)
{
	Relation	rel = relation_open(relid, AccessExclusiveLock);

	if (RELKIND_HAS_TABLE_AM(rel->rd_rel->relkind))
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
		TupleTableSlot *slot = table_slot_create(rel, NULL);

		if (table_scan_getnextslot(scan, ForwardScanDirection, slot))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("this database cannot come back to the cluster: table %s has rows", tessera_qualified_name(relid)),
					 errdetail("A node that was removed keeps its tables without rows; these were written since, or left by a removal with force."),
					 errhint("Drop the table, or use an empty database. DROP EXTENSION tessera CASCADE there makes a plain database of it, whose "
							 "rows can be read.")));
		table_endscan(scan);
		ExecDropSingleTupleTableSlot(slot);
		UnregisterSnapshot(snapshot);
	}
	relation_close(rel, NoLock);
}

/* Names of one column of rows of a query, in the current context. Access must be open. */
static List *
names_of(const char *sql, int nparams, const char *const *values)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *names = NIL;
	uint64		n = tessera_admin_exec(sql, nparams, values);

	for (uint64 i = 0; i < n; i++)
	{
		MemoryContext spi_context = MemoryContextSwitchTo(caller);

		names = lappend(names, tessera_admin_field(i, 1));
		MemoryContextSwitchTo(spi_context);
	}
	return names;
}

/* Nothing comes into a schema any more, to the end of the transaction. Access must be open. */
static void
lock_schemas(void)
{
	uint64		n = tessera_admin_exec(psprintf("SELECT n.oid FROM (%s) AS s JOIN pg_namespace AS n USING (nspname) ORDER BY 1",
												tessera_user_schemas_sql), 0, NULL);
	Oid		   *schemas = palloc(sizeof(Oid) * Max(n, 1));

	for (uint64 i = 0; i < n; i++)
		schemas[i] = (Oid) strtoul(tessera_admin_field(i, 1), NULL, 10);
	for (uint64 i = 0; i < n; i++)
		LockDatabaseObject(NamespaceRelationId, schemas[i], 0, AccessExclusiveLock);
}

/*
 * What this database has kept of the cluster goes, so that the schema script finds nothing in its way: the cluster's schemas. It takes no row with
 * it: all tables of the database must be empty, those of other schemas and of extensions, too, as what is dropped may be a part of them (a column of
 * a dropped type, an extension). They are locked before they are looked at, by a snapshot of after the lock.
 */
void
tessera_serve_clear_former(const TesseraClearFormerArgs *args)
{
	const char *values[] = {tessera_uuid_text(args->cluster_id),
	DatumGetCString(OidFunctionCall1(F_ARRAY_OUT, PointerGetDatum(args->schemas)))};
	TesseraSpi	access;
	ListCell   *cell;

	tessera_require_internal();
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("a database cannot come back to the cluster in a transaction of isolation level REPEATABLE READ or SERIALIZABLE"),
				 errhint("Use READ COMMITTED.")));
	tessera_spi_begin(&access);
	refuse_member();
	if (tessera_admin_exec("DELETE FROM tessera.former_membership WHERE cluster_id = $1::uuid", 1, values) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database was never removed from the cluster")));
	lock_schemas();
	foreach(cell, names_of("SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
						   " WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'tessera') ORDER BY 1",
						   0, NULL))
		require_empty((Oid) strtoul(lfirst(cell), NULL, 10));
	foreach(cell, names_of("SELECT nspname FROM pg_namespace WHERE nspname = ANY ($2::name[]) AND $1 <> '' ORDER BY 1", 2, values))
		tessera_admin_exec(psprintf("DROP SCHEMA %s CASCADE", tessera_quote(lfirst(cell))), 0, NULL);
	if (tessera_admin_value("SELECT true FROM pg_namespace WHERE nspname = 'public'", 0, NULL) == NULL)
	{
		/* as initdb makes it: the script takes it for granted */
		tessera_admin_exec("CREATE SCHEMA public AUTHORIZATION pg_database_owner", 0, NULL);
		tessera_admin_exec("GRANT USAGE ON SCHEMA public TO PUBLIC", 0, NULL);
		tessera_admin_exec("COMMENT ON SCHEMA public IS 'standard public schema'", 0, NULL);
	}
	tessera_spi_end(&access);
}

/* The last step: from the commit on this database is a node */
void
tessera_serve_join(const TesseraJoinArgs *args)
{
	const char *values[] = {args->identity};
	TesseraSpi	access;

	tessera_require_internal();
	tessera_spi_begin(&access);
	refuse_member();
	tessera_node_check_here();
	resolve_tables();
	tessera_admin_exec("INSERT INTO tessera.identity (cluster_id, cluster, node_id, node, is_config, config_conninfo, term) "
					   "SELECT i.cluster_id, i.cluster, i.node_id, i.node, i.is_config, i.config_conninfo, i.term FROM "
					   "unnest(ARRAY[$1::tessera.identity]) i", 1, values);
	tessera_clock_begin();
	tessera_admin_exec(TESSERA_POPULATE_VIEWS_SQL, 0, NULL);
	tessera_require_library(true);
	tessera_catalog_changed();
	tessera_spi_end(&access);
}

/*
 * This node was removed. It forgets the cluster; tables are kept, and refused to clients (routing/removed_node.c). False if it is
 * not that node.
 */
bool
tessera_serve_leave(const TesseraLeaveArgs *args)
{
	static const char *const tables[] = {"placement", "chunk", "cluster_table", "table_group", "schema_placement", "setting", "table_statistics",
										 "node", "advisory_home", "sequence_fence", "unreadable_group"};
	const char *values[] = {args->cluster_id, NULL};
	TesseraSpi	access;
	bool		left;

	values[1] = psprintf("%d", args->node_id);
	tessera_require_internal();
	tessera_spi_begin(&access);
	tessera_admin_exec("INSERT INTO tessera.former_membership (cluster_id, node) SELECT cluster_id, node FROM tessera.identity WHERE cluster_id = "
					   "$1::uuid"
					   " AND node_id = $2::int4 AND NOT is_config ON CONFLICT (cluster_id) DO UPDATE SET node = excluded.node, ended = "
						   "excluded.ended", 2,
					   values);
	if (tessera_admin_value("SELECT 1 FROM tessera.identity WHERE cluster_id = $1::uuid AND node_id = $2::int4 AND NOT is_config", 2, values) != NULL)
		tessera_empty_copies();
	left = tessera_admin_exec("DELETE FROM tessera.identity WHERE cluster_id = $1::uuid AND node_id = $2::int4 AND NOT is_config", 2, values) > 0;
	for (int i = 0; left && i < lengthof(tables); i++)
		tessera_admin_exec(psprintf("DELETE FROM tessera.%s", tables[i]), 0, NULL);
	if (left)
		tessera_require_library(false);
	tessera_catalog_changed();
	tessera_spi_end(&access);
	return left;
}

/* The config node's new address (S33) */
void
tessera_serve_config_moved(const TesseraConfigMovedArgs *args)
{
	const char *conninfo = args->conninfo;
	TesseraSpi	access;

	tessera_require_internal();
	tessera_conninfo_check(conninfo);
	tessera_spi_begin(&access);
	tessera_set_config_conninfo(conninfo);
	tessera_spi_end(&access);
}

void
tessera_join_init(void)
{
	previous_object_access = object_access_hook;
	object_access_hook = guard_script;
}
