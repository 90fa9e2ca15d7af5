/*
 * privilege.c
 *	  Who may change the cluster, and commands on the catalog.
 *
 * Members of tessera_admin own nothing: what they may change they change through functions, which check the membership first and then act with the
 * rights of the catalog's owner (common/spi.h).
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "admin/admin.h"

#define MAX_PARAMS 16

static bool
member_of(Oid user, const char *role)
{
	Oid			roleid = get_role_oid(role, true);

	return superuser_arg(user) || (OidIsValid(roleid) && has_privs_of_role(user, roleid));
}

void
tessera_require_admin(void)
{
	if (!member_of(GetUserId(), "tessera_admin"))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change the cluster"),
				 errhint("Only superusers and members of role tessera_admin can do this.")));
}

void
tessera_require_internal(void)
{
	if (!member_of(GetUserId(), "tessera_internal"))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for a function between nodes"),
				 errhint("Only superusers and members of role tessera_internal can open internal connections.")));
}

uint64
tessera_admin_exec(const char *sql, int nparams, const char *const *values)
{
	Oid			types[MAX_PARAMS];
	Datum		datums[MAX_PARAMS];
	char		nulls[MAX_PARAMS] = {0};
	int			result;

	Assert(nparams <= MAX_PARAMS);
	for (int i = 0; i < nparams; i++)
	{
		types[i] = TEXTOID;
		nulls[i] = values[i] == NULL ? 'n' : ' ';
		datums[i] = values[i] == NULL ? (Datum) 0 : CStringGetTextDatum(values[i]);
	}
	result = SPI_execute_with_args(sql, nparams, types, datums, nulls, false, 0);
	if (result < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("catalog command failed: %s", SPI_result_code_string(result))));
	return SPI_processed;
}

char *
tessera_admin_field(uint64 row, int column)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

void *
tessera_admin_alloc(Size size)
{
	return SPI_palloc(size);
}

char *
tessera_admin_keep(const char *value)
{
	char	   *copy;

	if (value == NULL)
		return NULL;
	copy = SPI_palloc(strlen(value) + 1);
	strcpy(copy, value);
	return copy;
}

char *
tessera_admin_value(const char *sql, int nparams, const char *const *values)
{
	if (tessera_admin_exec(sql, nparams, values) == 0 || SPI_tuptable == NULL)
		return NULL;
	return tessera_admin_keep(tessera_admin_field(0, 1));
}
