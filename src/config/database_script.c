/*
 * database_script.c
 *	  What belongs to this database itself and not to its schema, as SQL for a node that joins: privileges, settings, comment. pg_dump writes it only
 *	  with --create.
 *
 * The owner is not part of it: the role that made the newcomer's database stays its owner. Nor is session_preload_libraries, which a node gets when
 * it joins.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "common/spi_text.h"
#include "common/text.h"
#include "config/membership.h"

static const char grants_sql[] =
"SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)::text) END, string_agg(a.privilege_type, ', ' ORDER BY "
"a.privilege_type), CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END"
" FROM pg_database d, aclexplode(d.datacl) a WHERE d.datname = current_database() GROUP BY a.grantee, a.is_grantable ORDER BY a.grantee, "
"a.is_grantable";

static const char settings_sql[] =
"SELECT r.rolname, split_part(e, '=', 1), substr(e, strpos(e, '=') + 1)"
" FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) e"
" WHERE d.datname = current_database() AND NOT (s.setrole = 0 AND e LIKE 'session\\_preload\\_libraries=%') ORDER BY 1 NULLS FIRST, 2";

/* Privileges that are no longer the default ones. */
static void
append_grants(StringInfo out, const char *database)
{
	uint64		rows;

	if (tessera_admin_value("SELECT 1 FROM pg_database WHERE datname = current_database() AND datacl IS NOT NULL", 0, NULL) == NULL)
		return;
	appendStringInfo(out, "REVOKE ALL ON DATABASE %s FROM PUBLIC;\n", database);
	rows = tessera_admin_exec(grants_sql, 0, NULL);
	for (uint64 i = 0; i < rows; i++)
		appendStringInfo(out, "GRANT %s ON DATABASE %s TO %s%s;\n", tessera_admin_field(i, 2), database, tessera_admin_field(i, 1),
						 tessera_admin_field(i, 3));
}

/* The value of a list is kept as a list of identifiers; everything else is one string. */
static void
append_value(StringInfo out, const char *name, const char *value)
{
	List	   *parts = NIL;
	ListCell   *cell;

	if ((GetConfigOptionFlags(name, true) & GUC_LIST_QUOTE) == 0 || !SplitGUCList(pstrdup(value), ',', &parts) || parts == NIL)
	{
		appendStringInfoString(out, quote_literal_cstr(value));
		return;
	}
	foreach(cell, parts)
		appendStringInfo(out, "%s%s", cell == list_head(parts) ? "" : ", ", quote_literal_cstr(lfirst(cell)));
}

static void
append_settings(StringInfo out, const char *database)
{
	uint64		rows = tessera_admin_exec(settings_sql, 0, NULL);

	for (uint64 i = 0; i < rows; i++)
	{
		char	   *role = tessera_admin_field(i, 1);
		char	   *name = tessera_admin_field(i, 2);

		if (role)
			appendStringInfo(out, "ALTER ROLE %s IN DATABASE %s SET %s TO ", tessera_quote(role), database, name);
		else
			appendStringInfo(out, "ALTER DATABASE %s SET %s TO ", database, name);
		append_value(out, name, tessera_admin_field(i, 3));
		appendStringInfoString(out, ";\n");
	}
}

char *
tessera_database_script(const char *database)
{
	const char *name = tessera_quote(database);
	char	   *comment = tessera_admin_value("SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = current_database()", 0,
											  NULL);
	StringInfoData out;

	initStringInfo(&out);
	append_grants(&out, name);
	append_settings(&out, name);
	if (comment)
		appendStringInfo(&out, "COMMENT ON DATABASE %s IS %s;\n", name, quote_literal_cstr(comment));
	return out.data;
}
