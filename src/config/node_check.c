/*
 * node_check.c
 *	  What a node is (facts) and whether its settings let it take part (check_node).
 *
 * Both are plain SQL that runs on a database without the extension too: here by SPI, elsewhere through a connection. So the checks before a join need
 * nothing installed there.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "common/spi_text.h"
#include "common/version_compat.h"
#include "config/membership.h"

PG_FUNCTION_INFO_V1(tessera_check_node);

/*
 * setting, current, needed, ok. max_worker_processes: the launcher, the workers of a database that is the config node and a shard, and two
 * migrations.
 */
static const char check_sql[] =
"SELECT c.setting, c.current, c.needed, c.ok FROM ("
" SELECT 1, 'shared_preload_libraries', current_setting('shared_preload_libraries'), 'tessera',"
"  current_setting('shared_preload_libraries') ~ '(^|[,/\" ])tessera($|[,\" ])'"
" UNION ALL SELECT 2, 'wal_level', current_setting('wal_level'), 'logical', current_setting('wal_level') = 'logical'"
" UNION ALL SELECT 3, n.name, current_setting(n.name), '>= ' || n.needed, current_setting(n.name)::int4 >= n.needed"
"  FROM (VALUES ('max_prepared_transactions', 1), ('max_replication_slots', 4), ('max_wal_senders', 4), ('max_worker_processes', 14)) AS n (name, "
"needed) UNION ALL SELECT 4, 'server_encoding', current_setting('server_encoding'), 'UTF8', current_setting('server_encoding') = 'UTF8'"
" UNION ALL SELECT 5, 'in_recovery', CASE WHEN pg_is_in_recovery() THEN 'on' ELSE 'off' END, 'off', NOT pg_is_in_recovery()"
") AS c (position, setting, current, needed, ok) ORDER BY c.position, c.setting";

enum
{
	FACT_SYSTEM_ID,
	FACT_DATABASE,
	FACT_DATABASE_OID,
	FACT_IN_RECOVERY,
	FACT_STARTED,
	FACT_VERSION,
	FACT_ENCODING,
	FACT_COLLATE,
	FACT_CTYPE,
	FACT_PROVIDER,
	FACT_ICU_LOCALE,
	FACT_COLLATION_VERSION,
	FACT_ICU_VERSION,
	FACT_TIMELINE,
	FACT_ROLE,
	FACT_SUPERUSER,
	FACT_INTERNAL,
	FACT_EXTENSION,
	FACT_AVAILABLE,
	FACT_COUNT
};

/* In the order of the enum. The timeline is that of the WAL being written: pg_control lags behind a promotion. */
static const char facts_sql[] =
"SELECT s.system_identifier, d.datname, d.oid, pg_is_in_recovery(), extract(epoch FROM pg_postmaster_start_time()),"
" current_setting('server_version_num'), pg_encoding_to_char(d.encoding), d.datcollate, d.datctype, d.datlocprovider,"
" " TESSERA_SQL_DATABASE_LOCALE ","
" pg_database_collation_actual_version(d.oid),"
" (SELECT pg_collation_actual_version(c.oid) FROM pg_collation c WHERE c.collname = 'und-x-icu' AND c.collnamespace = 'pg_catalog'::regnamespace),"
" CASE WHEN pg_is_in_recovery() THEN 0"
"  ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int4 END,"
" r.rolname, r.rolsuper,"
" coalesce((SELECT pg_has_role(r.oid, i.oid, 'MEMBER') FROM pg_roles i WHERE i.rolname = 'tessera_internal'), r.rolsuper),"
" (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'tessera'),"
" (SELECT a.default_version FROM pg_available_extensions a WHERE a.name = 'tessera')"
" FROM pg_control_system() s, pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = current_user";

static const char identity_sql[] = "SELECT cluster_id, cluster, node, node_id, is_config, database_oid = tessera.this_database(),"
" CASE WHEN pg_is_in_recovery() THEN false ELSE timeline = ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int4 END,"
" incarnation FROM tessera.identity";

#define IDENTITY_COUNT 8

static bool
text_true(const char *value)
{
	return value != NULL && value[0] == 't';
}

static TesseraNodeFacts *
facts_from(char **v)
{
	TesseraNodeFacts *facts = palloc0(sizeof(TesseraNodeFacts));

	facts->system_id = v[FACT_SYSTEM_ID];
	facts->database = v[FACT_DATABASE];
	facts->database_oid = v[FACT_DATABASE_OID];
	facts->in_recovery = text_true(v[FACT_IN_RECOVERY]);
	facts->started = v[FACT_STARTED];
	facts->version = atoi(v[FACT_VERSION]);
	facts->encoding = v[FACT_ENCODING];
	facts->collate = v[FACT_COLLATE];
	facts->ctype = v[FACT_CTYPE];
	facts->provider = v[FACT_PROVIDER];
	facts->icu_locale = v[FACT_ICU_LOCALE];
	facts->collation_version = v[FACT_COLLATION_VERSION];
	facts->icu_version = v[FACT_ICU_VERSION];
	facts->timeline = atoi(v[FACT_TIMELINE]);
	facts->role = v[FACT_ROLE];
	facts->superuser = text_true(v[FACT_SUPERUSER]);
	facts->internal = text_true(v[FACT_INTERNAL]);
	facts->extension = v[FACT_EXTENSION];
	facts->available = v[FACT_AVAILABLE];
	return facts;
}

static void
facts_identity(TesseraNodeFacts *facts, char **v)
{
	facts->cluster_id = v[0];
	facts->cluster = v[1];
	facts->node = v[2];
	facts->node_id = atoi(v[3]);
	facts->is_config = text_true(v[4]);
	facts->is_node = text_true(v[5]);
	facts->is_known = text_true(v[6]);
	facts->incarnation = atoi(v[7]);
}

TesseraNodeFacts *
tessera_node_facts_here(void)
{
	char	   *v[FACT_COUNT];
	TesseraNodeFacts *facts;
	TesseraNodeFacts *kept;

	if (tessera_admin_exec(facts_sql, 0, NULL) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("facts of this node not found")));
	for (int i = 0; i < FACT_COUNT; i++)
		v[i] = tessera_admin_keep(tessera_admin_field(0, i + 1));
	facts = facts_from(v);
	if (tessera_admin_exec(identity_sql, 0, NULL) == 1)
	{
		for (int i = 0; i < IDENTITY_COUNT; i++)
			v[i] = tessera_admin_keep(tessera_admin_field(0, i + 1));
		facts_identity(facts, v);
	}
	kept = tessera_admin_alloc(sizeof(TesseraNodeFacts));
	*kept = *facts;
	return kept;
}

/* Fields of the only row of a result, copied. */
static void
row_fields(PGresult *result, int n, char **v)
{
	for (int i = 0; i < n; i++)
		v[i] = PQgetisnull(result, 0, i) ? NULL : pstrdup(PQgetvalue(result, 0, i));
}

TesseraNodeFacts *
tessera_node_facts(TesseraConnection *connection)
{
	char	   *v[FACT_COUNT];
	TesseraNodeFacts *facts;
	PGresult   *result;

	(void) tessera_connection_run(connection, "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)", 0, NULL);
	result = tessera_connection_run(connection, facts_sql, 0, NULL);
	if (PQntuples(result) != 1 || PQnfields(result) != FACT_COUNT)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("node \"%s\" gave an unexpected answer", tessera_connection_name(connection))));
	row_fields(result, FACT_COUNT, v);
	facts = facts_from(v);
	if (facts->extension != NULL && facts->internal)
	{
		result = tessera_connection_run(connection, identity_sql, 0, NULL);
		if (PQntuples(result) == 1)
		{
			row_fields(result, IDENTITY_COUNT, v);
			facts_identity(facts, v);
		}
	}
	return facts;
}

static void
refuse_setting(const char *node, const char *setting, const char *current, const char *needed)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 node == NULL ? errmsg("this node cannot take part in a cluster: setting \"%s\"", setting) :
			 errmsg("node \"%s\" cannot take part in a cluster: setting \"%s\"", node, setting),
			 errdetail("Current value: \"%s\"; needed: %s.", current, needed),
			 strcmp(setting, "server_encoding") == 0 ? errhint("Make the database with ENCODING 'UTF8'.") :
			 strcmp(setting, "in_recovery") == 0 ? errhint("Use the primary, not a standby.") :
			 errhint("Change \"%s\" in postgresql.conf and restart that server; tessera.check_node() lists every setting.", setting)));
}

void
tessera_node_check_here(void)
{
	uint64		rows = tessera_admin_exec(check_sql, 0, NULL);

	for (uint64 i = 0; i < rows; i++)
	{
		if (!text_true(tessera_admin_field(i, 4)))
			refuse_setting(NULL, tessera_admin_field(i, 1), tessera_admin_field(i, 2), tessera_admin_field(i, 3));
	}
}

void
tessera_node_check(TesseraConnection *connection)
{
	PGresult   *result = tessera_connection_run(connection, check_sql, 0, NULL);

	for (int i = 0; i < PQntuples(result); i++)
	{
		if (!text_true(PQgetvalue(result, i, 3)))
			refuse_setting(tessera_connection_name(connection), PQgetvalue(result, i, 0), PQgetvalue(result, i, 1), PQgetvalue(result, i, 2));
	}
}

/* check_node() -- setting, current, needed, ok */
Datum
tessera_check_node(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TesseraSpi	access;
	uint64		rows;

	InitMaterializedSRF(fcinfo, 0);
	tessera_spi_begin(&access);
	rows = tessera_admin_exec(check_sql, 0, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		Datum		values[4];
		bool		nulls[4] = {false, false, false, false};

		for (int column = 0; column < 3; column++)
			values[column] = CStringGetTextDatum(tessera_admin_field(i, column + 1));
		values[3] = BoolGetDatum(text_true(tessera_admin_field(i, 4)));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	tessera_spi_end(&access);
	return (Datum) 0;
}

void
tessera_name_check(const char *what, const char *name)
{
	size_t		length = strlen(name);
	bool		good = length > 0 && length < NAMEDATALEN && name[0] != '-' && name[0] != '.';

	for (size_t i = 0; good && i < length; i++)
	{
		char		c = name[i];

		good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
	}
	if (!good)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%.*s\" cannot be the name of a %s", pg_mbcliplen(name, length, NAMEDATALEN), name, what),
				 errhint("Use 1 to 63 letters, digits, \"_\", \"-\" and \".\", beginning with a letter, a digit or \"_\".")));
}

void
tessera_conninfo_check(const char *conninfo)
{
	char	   *error = NULL;
	PQconninfoOption *options = PQconninfoParse(conninfo, &error);
	const char *taken = NULL;

	if (options == NULL)
	{
		char	   *detail = error == NULL ? pstrdup("out of memory") : pchomp(error);

		PQfreemem(error);
		/* libpq quotes what it does not understand: with blanks in it, half of a password */
		if (strcasestr(conninfo, "password") != NULL || strstr(conninfo, "://") != NULL)
			detail = "libpq cannot read it; its words are not shown, since it seems to hold a password.";
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid conninfo"),
				 errdetail("%s", detail),
				 errhint("Write it as libpq does, for example 'host=db2.example port=5432 dbname=app'.")));
	}
	for (PQconninfoOption *option = options; option->keyword != NULL; option++)
	{
		if (option->val != NULL && strcmp(option->keyword, "replication") == 0)
			taken = "replication";
	}
	PQconninfoFree(options);
	if (taken != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("conninfo of a node cannot set \"%s\"", taken)));
}
