/*
 * bound_cast.c
 *	  Values as bounds: the implicit casts, the constructor tessera.bound(...), and the element of a typed value.
 *
 * An element's text is what the type's output function writes under fixed settings, so that it reads back to the same value on every node and
 * in every session. The settings are changed in a nest level of their own, only if the type's text depends on them and they differ; an error
 * in between restores them with the transaction.
 *
 * Memory: everything is in the caller's context. No locks.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_func.h"
#include "pgtime.h"
#include "utils/builtins.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "catalog/bound.h"
#include "common/version_compat.h"

/* Elements collected for one bound. */
typedef struct ElementList
{
	int			n;
	Oid			bound_type;		/* OID of tessera.bound */
	TesseraBoundElement elements[TESSERA_MAX_BOUND_ELEMENTS];
} ElementList;

PG_FUNCTION_INFO_V1(tessera_bound_from_value);
PG_FUNCTION_INFO_V1(tessera_bound_from_record);
PG_FUNCTION_INFO_V1(tessera_bound_construct);
PG_FUNCTION_INFO_V1(tessera_bound_create_record_cast);


static bool
is_number_type(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID || type == NUMERICOID ||
		type == FLOAT4OID || type == FLOAT8OID || type == OIDOID;
}

/* Types whose text is the same under all settings; all others are written under the fixed ones. */
static bool
is_free_of_settings(Oid type)
{
	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case OIDOID:
		case BOOLOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case UUIDOID:
		case UNKNOWNOID:
			return true;
		default:
			return false;
	}
}

static void
fix_setting(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* Opens a nest level in which values are written the fixed way. */
static int
fix_settings(void)
{
	int			nestlevel = NewGUCNestLevel();

	if (DateStyle != USE_ISO_DATES)
		fix_setting("datestyle", "ISO");
	if (IntervalStyle != INTSTYLE_POSTGRES)
		fix_setting("intervalstyle", "postgres");
	if (extra_float_digits < 1)
		fix_setting("extra_float_digits", "1");
	if (bytea_output != BYTEA_OUTPUT_HEX)
		fix_setting("bytea_output", "hex");
	if (session_timezone == NULL || strcmp(pg_get_timezone_name(session_timezone), "UTC") != 0)
		fix_setting("timezone", "UTC");
	return nestlevel;
}

void
tessera_bound_element_of(Oid type, Datum value, TesseraBoundElement *element)
{
	Oid			base = getBaseType(type);
	Oid			output;
	bool		isvarlena;
	int			nestlevel = 0;
	char	   *text;

	getTypeOutputInfo(base, &output, &isvarlena);
	if (!is_free_of_settings(base))
		nestlevel = fix_settings();
	text = OidOutputFunctionCall(output, value);
	if (nestlevel > 0)
		AtEOXact_GUC(true, nestlevel);

	/* blanks at the end mean nothing in a character(n) */
	if (base == BPCHAROID)
	{
		size_t		len = strlen(text);

		while (len > 0 && text[len - 1] == ' ')
			text[--len] = '\0';
	}

	element->kind = TESSERA_VALUE;
	element->numeric = is_number_type(base);
	element->text = text;
}

static void
add_element(ElementList *list, const TesseraBoundElement *element)
{
	if (list->n == TESSERA_MAX_BOUND_ELEMENTS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a bound has at most %d elements", TESSERA_MAX_BOUND_ELEMENTS)));
	list->elements[list->n++] = *element;
}

/* Adds a value of any type as one element. MINKEY, MAXKEY and other bounds of one element may stand among the values. */
static void
add_value(ElementList *list, Oid type, Datum value, bool isnull)
{
	TesseraBoundElement element;

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("a bound cannot contain a null"),
				 errhint("Use tessera.minkey() or tessera.maxkey() for an open end.")));

	if (getBaseType(type) == list->bound_type)
	{
		TesseraBoundElement *inner;

		if (tessera_bound_elements(DatumGetTesseraBoundP(value), &inner) != 1)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("a bound of several elements cannot be an element of a bound")));
		element = inner[0];
	}
	else
		tessera_bound_element_of(type, value, &element);
	add_element(list, &element);
}

/* Adds each field of a composite value. */
static void
add_fields(ElementList *list, HeapTupleHeader record)
{
	TupleDesc	tupdesc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(record), HeapTupleHeaderGetTypMod(record));
	HeapTupleData tuple;
	Datum	   *values = palloc(tupdesc->natts * sizeof(Datum));
	bool	   *nulls = palloc(tupdesc->natts * sizeof(bool));

	tuple.t_len = HeapTupleHeaderGetDatumLength(record);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = record;
	heap_deform_tuple(&tuple, tupdesc, values, nulls);

	for (int i = 0; i < tupdesc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(tupdesc, i);

		if (!att->attisdropped)
			add_value(list, att->atttypid, values[i], nulls[i]);
	}
	ReleaseTupleDesc(tupdesc);
}

/* Cast functions are declared for each type; which one was called is told by the function's own argument type. */
Datum
tessera_bound_from_value(PG_FUNCTION_ARGS)
{
	Oid			type;
	TesseraBoundElement element;

	if (fcinfo->flinfo->fn_extra == NULL)
	{
		HeapTuple	proc = SearchSysCache1(PROCOID, ObjectIdGetDatum(fcinfo->flinfo->fn_oid));

		if (!HeapTupleIsValid(proc))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("cache lookup failed for function %u", fcinfo->flinfo->fn_oid)));
		fcinfo->flinfo->fn_extra = MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(Oid));
		*(Oid *) fcinfo->flinfo->fn_extra = ((Form_pg_proc) GETSTRUCT(proc))->proargtypes.values[0];
		ReleaseSysCache(proc);
	}
	type = *(Oid *) fcinfo->flinfo->fn_extra;

	tessera_bound_element_of(type, PG_GETARG_DATUM(0), &element);
	PG_RETURN_POINTER(tessera_bound_make(1, &element));
}

/* The cast from record: row(1, 'a'). The parser does not use it for named composite types; tessera.bound(value) takes those. */
Datum
tessera_bound_from_record(PG_FUNCTION_ARGS)
{
	ElementList list;

	list.n = 0;
	list.bound_type = get_func_rettype(fcinfo->flinfo->fn_oid);
	add_fields(&list, PG_GETARG_HEAPTUPLEHEADER(0));
	PG_RETURN_POINTER(tessera_bound_make(list.n, list.elements));
}

/* tessera.bound(VARIADIC "any"): an element for each argument; a single composite value gives its fields, a single bound itself. */
Datum
tessera_bound_construct(PG_FUNCTION_ARGS)
{
	Datum	   *values;
	Oid		   *types;
	bool	   *nulls;
	int			n = extract_variadic_args(fcinfo, 0, true, &values, &types, &nulls);
	ElementList list;

	list.n = 0;
	list.bound_type = get_func_rettype(fcinfo->flinfo->fn_oid);
	if (n == 1 && !nulls[0] && getBaseType(types[0]) == list.bound_type)
		PG_RETURN_DATUM(values[0]);

	if (n == 1 && !nulls[0] && type_is_rowtype(types[0]))
		add_fields(&list, DatumGetHeapTupleHeader(values[0]));
	else
	{
		for (int i = 0; i < n; i++)
			add_value(&list, types[i], values[i], nulls[i]);
	}
	PG_RETURN_POINTER(tessera_bound_make(list.n, list.elements));
}

/*
 * Creates the cast (record AS tessera.bound), which CREATE CAST refuses because record is a pseudo-type. Called by the install script; superusers
 * may call it again where the cast had to be dropped: pg_upgrade cannot restore it. Does nothing if the cast is there. Takes the lock that CREATE
 * CAST takes.
 */
Datum
tessera_bound_create_record_cast(PG_FUNCTION_ARGS)
{
	Oid			record = RECORDOID;
	char	   *schema = get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid));
	Oid			function;
	Oid			bound_type;
	ObjectAddress cast,
				extension;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to create the cast from record to tessera.bound")));

	function = LookupFuncName(list_make2(makeString(schema), makeString("to_bound")), 1, &record, false);
	bound_type = get_func_rettype(function);
	if (SearchSysCacheExists2(CASTSOURCETARGET, ObjectIdGetDatum(RECORDOID), ObjectIdGetDatum(bound_type)))
		PG_RETURN_VOID();

	cast = tessera_create_cast(RECORDOID, bound_type, function);
	if (!creating_extension)
	{
		ObjectAddressSet(extension, ExtensionRelationId, get_extension_oid("tessera", false));
		recordDependencyOn(&cast, &extension, DEPENDENCY_EXTENSION);
	}
	PG_RETURN_VOID();
}
