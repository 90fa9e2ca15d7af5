/*
 * stand_in.c
 *	  Which function of ours stands in for which of the server's; see stand_in.h.
 *
 * Memory: the oids found are kept in a static table until an invalidation of pg_proc. No locks.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "common/stand_in.h"
#include "common/version_compat.h"

typedef struct StandIn
{
	Oid			original;
	const char *name;
	int			nargs;
	Oid			args[2];
	Oid			function;		/* InvalidOid: not looked up */
} StandIn;

#define KEY_FORMS(name, of_int8, of_int4) \
	{of_int8, name, 1, {INT8OID}, InvalidOid}, \
	{of_int4, name, 2, {INT4OID, INT4OID}, InvalidOid}

static StandIn stand_ins[] = {
	KEY_FORMS("pg_advisory_lock", F_PG_ADVISORY_LOCK_INT8, F_PG_ADVISORY_LOCK_INT4_INT4),
	KEY_FORMS("pg_advisory_lock_shared", F_PG_ADVISORY_LOCK_SHARED_INT8, F_PG_ADVISORY_LOCK_SHARED_INT4_INT4),
	KEY_FORMS("pg_advisory_xact_lock", F_PG_ADVISORY_XACT_LOCK_INT8, F_PG_ADVISORY_XACT_LOCK_INT4_INT4),
	KEY_FORMS("pg_advisory_xact_lock_shared", F_PG_ADVISORY_XACT_LOCK_SHARED_INT8, F_PG_ADVISORY_XACT_LOCK_SHARED_INT4_INT4),
	KEY_FORMS("pg_try_advisory_lock", F_PG_TRY_ADVISORY_LOCK_INT8, F_PG_TRY_ADVISORY_LOCK_INT4_INT4),
	KEY_FORMS("pg_try_advisory_lock_shared", F_PG_TRY_ADVISORY_LOCK_SHARED_INT8, F_PG_TRY_ADVISORY_LOCK_SHARED_INT4_INT4),
	KEY_FORMS("pg_try_advisory_xact_lock", F_PG_TRY_ADVISORY_XACT_LOCK_INT8, F_PG_TRY_ADVISORY_XACT_LOCK_INT4_INT4),
	KEY_FORMS("pg_try_advisory_xact_lock_shared", F_PG_TRY_ADVISORY_XACT_LOCK_SHARED_INT8, F_PG_TRY_ADVISORY_XACT_LOCK_SHARED_INT4_INT4),
	KEY_FORMS("pg_advisory_unlock", F_PG_ADVISORY_UNLOCK_INT8, F_PG_ADVISORY_UNLOCK_INT4_INT4),
	KEY_FORMS("pg_advisory_unlock_shared", F_PG_ADVISORY_UNLOCK_SHARED_INT8, F_PG_ADVISORY_UNLOCK_SHARED_INT4_INT4),
	{F_PG_ADVISORY_UNLOCK_ALL, "pg_advisory_unlock_all", 0, {InvalidOid}, InvalidOid},
	{F_PG_NOTIFY, "pg_notify", 2, {TEXTOID, TEXTOID}, InvalidOid},
};

static StandIn *
find(Oid function)
{
	if (function >= FirstNormalObjectId)
		return NULL;
	for (int i = 0; i < lengthof(stand_ins); i++)
		if (stand_ins[i].original == function)
			return &stand_ins[i];
	return NULL;
}

static void
forget_functions(Datum arg, int cache, uint32 hash)
{
	for (int i = 0; i < lengthof(stand_ins); i++)
		stand_ins[i].function = InvalidOid;
}

void
tessera_stand_in_init(void)
{
	CacheRegisterSyscacheCallback(PROCOID, forget_functions, (Datum) 0);
}

static Oid
function_of(StandIn *stand_in)
{
	if (!OidIsValid(stand_in->function))
	{
		Oid			namespace = get_namespace_oid("tessera", true);

		if (OidIsValid(namespace))
			stand_in->function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(stand_in->name),
												 PointerGetDatum(buildoidvector(stand_in->args, stand_in->nargs)), ObjectIdGetDatum(namespace));
	}
	return stand_in->function;
}

bool
tessera_has_stand_in(Oid function)
{
	return find(function) != NULL;
}

bool
tessera_is_advisory_function(Oid function)
{
	return function != F_PG_NOTIFY && find(function) != NULL;
}

Oid
tessera_stand_in(Oid function)
{
	StandIn    *stand_in = find(function);

	return stand_in ? function_of(stand_in) : InvalidOid;
}

void
tessera_stand_in_check(Oid function)
{
	for (int i = 0; i < lengthof(stand_ins); i++)
		if (function_of(&stand_ins[i]) == function)
		{
			if (!tessera_may_execute(stand_ins[i].original, GetUserId()))
				aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(stand_ins[i].original));
			return;
		}
}
