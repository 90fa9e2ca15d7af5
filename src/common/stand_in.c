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
	TesseraStandInKind kind;
	Oid			original;		/* InvalidOid: the planner puts it in the place of something that is no call */
	const char *name;
	int			nargs;
	Oid			args[3];
	Oid			function;		/* InvalidOid: not looked up */
} StandIn;

#define KEY_FORMS(name, of_int8, of_int4) \
	{TESSERA_ADVISORY_LOCK, of_int8, name, 1, {INT8OID}, InvalidOid}, \
	{TESSERA_ADVISORY_LOCK, of_int4, name, 2, {INT4OID, INT4OID}, InvalidOid}

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
	{TESSERA_ADVISORY_LOCK, F_PG_ADVISORY_UNLOCK_ALL, "pg_advisory_unlock_all", 0, {InvalidOid}, InvalidOid},
	{TESSERA_NOTIFICATION, F_PG_NOTIFY, "pg_notify", 2, {TEXTOID, TEXTOID}, InvalidOid},
	{TESSERA_SEQUENCE, F_NEXTVAL, "nextval", 1, {REGCLASSOID}, InvalidOid},
	{TESSERA_SEQUENCE, F_CURRVAL, "currval", 1, {REGCLASSOID}, InvalidOid},
	{TESSERA_SEQUENCE, F_LASTVAL, "lastval", 0, {InvalidOid}, InvalidOid},
	{TESSERA_SEQUENCE, F_SETVAL_REGCLASS_INT8, "setval", 2, {REGCLASSOID, INT8OID}, InvalidOid},
	{TESSERA_SEQUENCE, F_SETVAL_REGCLASS_INT8_BOOL, "setval", 3, {REGCLASSOID, INT8OID, BOOLOID}, InvalidOid},
	{TESSERA_SEQUENCE, F_PG_SEQUENCE_LAST_VALUE, "sequence_last_value", 1, {REGCLASSOID}, InvalidOid},
	{TESSERA_INDEX_MAINTENANCE, F_BRIN_SUMMARIZE_NEW_VALUES, "brin_summarize_new_values", 1, {REGCLASSOID}, InvalidOid},
	{TESSERA_INDEX_MAINTENANCE, F_BRIN_SUMMARIZE_RANGE, "brin_summarize_range", 2, {REGCLASSOID, INT8OID}, InvalidOid},
	{TESSERA_INDEX_MAINTENANCE, F_BRIN_DESUMMARIZE_RANGE, "brin_desummarize_range", 2, {REGCLASSOID, INT8OID}, InvalidOid},
	{TESSERA_INDEX_MAINTENANCE, F_GIN_CLEAN_PENDING_LIST, "gin_clean_pending_list", 1, {REGCLASSOID}, InvalidOid},
	{TESSERA_SEQUENCE, InvalidOid, "identity_nextval", 1, {REGCLASSOID}, InvalidOid},
	{TESSERA_SEQUENCE, InvalidOid, "sequence_row", 1, {REGCLASSOID}, InvalidOid},
};

#define ROW_STAND_IN (&stand_ins[lengthof(stand_ins) - 1])
#define IDENTITY_STAND_IN (&stand_ins[lengthof(stand_ins) - 2])

static StandIn *
find(Oid function)
{
	if (!OidIsValid(function) || function >= FirstNormalObjectId)
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

TesseraStandInKind
tessera_stand_in_kind(Oid function)
{
	StandIn    *stand_in = find(function);

	return stand_in ? stand_in->kind : TESSERA_NO_STAND_IN;
}

Oid
tessera_stand_in(Oid function)
{
	StandIn    *stand_in = find(function);

	return stand_in ? function_of(stand_in) : InvalidOid;
}

Oid
tessera_identity_function(void)
{
	return function_of(IDENTITY_STAND_IN);
}

Oid
tessera_sequence_row_function(void)
{
	return function_of(ROW_STAND_IN);
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
