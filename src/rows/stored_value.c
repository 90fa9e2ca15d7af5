/*
 * stored_value.c
 *	  Stored values, read and written as they are; see stored_value.h.
 *
 * A domain's values have the form of its base type, in memory and as text, so they are read by the base type's input function. An array of domains is
 * read as one of their base types, and then said to be of domains: only its header differs. A row is read by a description of its own in which
 * domains are replaced, as a RECORD, and formed anew by that of its type. The input functions of ranges over domains, and of those with a function of
 * their own for what is canonical, are not called: such ranges are taken apart here. Where one lies in an array or a row it is read as text first.
 * All of these nest.
 *
 * Nothing is locked or written. The session keeps the descriptions of rows, as it does those of any RECORD.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/multirangetypes.h"
#include "utils/rangetypes.h"
#include "utils/rel.h"
#include "utils/typcache.h"

#include "common/version_compat.h"
#include "common/wire.h"
#include "rows/exact_text.h"
#include "rows/stored_value.h"

/* What a value that was read by the input function has to become. */
typedef enum Shape
{
	AS_READ,
	ARRAY,						/* of `element` */
	ROW,						/* of `desc` */
	RANGE,						/* it was read as text, as the following */
	MULTIRANGE,
	FROM_TEXT					/* it is read by `inner` */
} Shape;

/* Of the type of a row, when this was made. */
typedef struct RowVersion
{
	Oid			type;
	uint64		version;
} RowVersion;

struct TesseraStoredType
{
	Oid			type;			/* domains taken off */
	int32		typmod;
	Shape		shape;
	Oid			read_as;		/* the type whose input function reads it: it runs no user's code */
	int32		read_typmod;
	Oid			element;
	TesseraStoredType *inner;	/* of elements; NULL: they are as they are read. Of the bounds of ranges, and FROM_TEXT: complete */
	TupleDesc	desc;
	TupleDesc	read_desc;
	TesseraStoredType **columns;	/* NULL: as they are read */
	/* of one that is complete, which tessera_stored_input takes */
	FmgrInfo	input;
	FmgrInfo	input_with_arguments;	/* of the name of a function or an operator, if the text has any */
	Oid			ioparam;
	int			settings;		/* that the text was written under */
	List	   *rows;			/* RowVersion: all types of rows in it */
};

static bool code_in(Oid type, List **rows);
static TesseraStoredType *describe(Oid type, int32 typmod);


/* What is in a type */

static bool
code_in_row(Oid type, List **rows)
{
	TupleDesc	desc = lookup_rowtype_tupdesc_copy(type, -1);
	bool		found = false;

	if (rows != NULL)
	{
		RowVersion *row = palloc(sizeof(RowVersion));

		*row = (RowVersion) {.type = type,.version = assign_record_type_identifier(type, -1)};
		*rows = lappend(*rows, row);
	}
	for (int i = 0; i < desc->natts; i++)
		if (!TupleDescAttr(desc, i)->attisdropped)
			found |= code_in(TupleDescAttr(desc, i)->atttypid, rows);
	FreeTupleDesc(desc);
	return found;
}

static bool
code_in_range(Oid type, List **rows)
{
	bool		found = code_in(get_range_subtype(type), rows);

	return found || OidIsValid(lookup_type_cache(type, TYPECACHE_RANGE_INFO)->rng_canonical_finfo.fn_oid);
}

/* True if input functions of the type run users' code. rows: all types of rows in it are put there; NULL: they are not wanted. */
static bool
code_in(Oid type, List **rows)
{
	check_stack_depth();
	if (type < FirstNormalObjectId)
		return false;
	switch (get_typtype(type))
	{
		case TYPTYPE_DOMAIN:
			(void) code_in(getBaseType(type), rows);
			return true;
		case TYPTYPE_COMPOSITE:
			return code_in_row(type, rows);
		case TYPTYPE_RANGE:
			return code_in_range(type, rows);
		case TYPTYPE_MULTIRANGE:
			return code_in_range(get_multirange_range(type), rows);
		default:
			return OidIsValid(get_element_type(type)) && code_in(get_element_type(type), rows);
	}
}


/* How a type is read */

static TesseraStoredType *
as_text(Oid type, Shape shape, Oid inner)
{
	TesseraStoredType *stored = palloc0(sizeof(TesseraStoredType));

	stored->type = type;
	stored->shape = shape;
	stored->read_as = TEXTOID;
	stored->typmod = stored->read_typmod = -1;
	stored->inner = tessera_stored_type(inner, -1);
	return stored;
}

/* An element that is itself an array is read as text: there is no type of arrays of arrays. Its type's separator must then be that of texts. */
static TesseraStoredType *
describe_element(Oid element)
{
	TesseraStoredType *inner = describe(element, -1);
	int16		length;
	bool		by_value;
	char		align;
	char		separator;
	Oid			ioparam;
	Oid			function;

	if (OidIsValid(get_array_type(inner->read_as)))
		return inner;
	get_type_io_data(element, IOFunc_input, &length, &by_value, &align, &separator, &ioparam, &function);
	if (separator != ',')
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("arrays of %s cannot be read from another node", format_type_be(element)),
				 errhint("Their elements are domains over arrays: cast to text, or use arrays of more dimensions.")));
	return as_text(element, FROM_TEXT, element);
}

static void
describe_array(TesseraStoredType *stored, Oid element)
{
	TesseraStoredType *inner = describe_element(element);

	stored->shape = ARRAY;
	stored->read_as = get_array_type(inner->read_as);
	stored->read_typmod = inner->read_typmod;
	stored->element = element;
	if (inner->shape != AS_READ)
		stored->inner = inner;
}

static void
describe_row(TesseraStoredType *stored, Oid type)
{
	stored->shape = ROW;
	stored->desc = lookup_rowtype_tupdesc_copy(type, -1);
	stored->read_desc = CreateTupleDescCopy(stored->desc);
	stored->columns = palloc0(Max(stored->desc->natts, 1) * sizeof(TesseraStoredType *));
	for (int i = 0; i < stored->desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(stored->read_desc, i);
		TesseraStoredType *inner;

		if (column->attisdropped || !code_in(column->atttypid, NULL))
			continue;
		inner = describe(column->atttypid, column->atttypmod);
		TupleDescInitEntry(stored->read_desc, i + 1, NameStr(column->attname), inner->read_as, inner->read_typmod, 0);
		if (inner->shape != AS_READ)
			stored->columns[i] = inner;
	}
	stored->read_desc->tdtypeid = RECORDOID;
	stored->read_desc->tdtypmod = -1;
	BlessTupleDesc(stored->read_desc);
	stored->read_as = RECORDOID;
	stored->read_typmod = stored->read_desc->tdtypmod;
}

/* All but what only a complete one has. */
static TesseraStoredType *
describe(Oid type, int32 typmod)
{
	TesseraStoredType *stored;
	char		kind;

	check_stack_depth();
	type = getBaseTypeAndTypmod(type, &typmod);
	kind = get_typtype(type);
	if (code_in(type, NULL) && kind == TYPTYPE_RANGE)
		return as_text(type, RANGE, get_range_subtype(type));
	if (code_in(type, NULL) && kind == TYPTYPE_MULTIRANGE)
		return as_text(type, MULTIRANGE, get_range_subtype(get_multirange_range(type)));

	stored = palloc0(sizeof(TesseraStoredType));
	stored->type = stored->read_as = type;
	stored->typmod = stored->read_typmod = typmod;
	if (type == XMLOID)
		stored->read_as = TEXTOID;	/* which it is; it was parsed before */
	if (!code_in(type, NULL))
		return stored;
	if (kind == TYPTYPE_COMPOSITE)
		describe_row(stored, type);
	else
		describe_array(stored, get_element_type(type));
	return stored;
}

TesseraStoredType *
tessera_stored_type(Oid type, int32 typmod)
{
	TesseraStoredType *stored = describe(type, typmod);
	Oid			function;

	(void) code_in(stored->type, &stored->rows);
	stored->settings = tessera_text_settings(stored->type);
	getTypeInputInfo(stored->read_as, &function, &stored->ioparam);
	fmgr_info(function, &stored->input);
	if (stored->read_as == REGPROCOID || stored->read_as == REGOPEROID)
		fmgr_info(stored->read_as == REGPROCOID ? F_REGPROCEDUREIN : F_REGOPERATORIN, &stored->input_with_arguments);
	return stored;
}


/* Ranges, from their text */

_Noreturn static void
malformed(const TesseraStoredType *stored)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("malformed value of type %s from another node", format_type_be(stored->type))));
}

static void
expect(const TesseraStoredType *stored, char **at, char wanted)
{
	if (**at != wanted)
		malformed(stored);
	(*at)++;
}

/* Up to the separator or the end of the range, which stay. A quote within quotes is doubled; what follows a backslash is meant. */
static char *
bound_text(const TesseraStoredType *stored, char **at)
{
	StringInfoData text;
	bool		quoted = false;

	initStringInfo(&text);
	for (; quoted || strchr(",)]", **at) == NULL; (*at)++)
	{
		if (**at == '"' && !(quoted && (*at)[1] == '"'))
		{
			quoted = !quoted;
			continue;
		}
		if (**at == '"' || **at == '\\')
			(*at)++;
		if (**at == '\0')
			malformed(stored);
		appendStringInfoChar(&text, **at);
	}
	if (**at == '\0')
		malformed(stored);
	return text.data;
}

static void
read_bound(const TesseraStoredType *stored, char **at, RangeBound *bound)
{
	bound->infinite = strchr(",)]", **at) != NULL;
	if (!bound->infinite)
		bound->val = tessera_stored_input(stored->inner, bound_text(stored, at));
}

static RangeType *
read_range(const TesseraStoredType *stored, TypeCacheEntry *range, char **at)
{
	RangeBound	lower = {.lower = true};
	RangeBound	upper = {0};

	if (strncmp(*at, RANGE_EMPTY_LITERAL, strlen(RANGE_EMPTY_LITERAL)) == 0)
	{
		*at += strlen(RANGE_EMPTY_LITERAL);
		return tessera_range_serialize(range, &lower, &upper, true);
	}
	lower.inclusive = **at == '[';
	expect(stored, at, lower.inclusive ? '[' : '(');
	read_bound(stored, at, &lower);
	expect(stored, at, ',');
	read_bound(stored, at, &upper);
	upper.inclusive = **at == ']';
	expect(stored, at, upper.inclusive ? ']' : ')');
	return tessera_range_serialize(range, &lower, &upper, false);
}

static Datum
become_range(const TesseraStoredType *stored, char *text)
{
	RangeType  *range = read_range(stored, lookup_type_cache(stored->type, TYPECACHE_RANGE_INFO), &text);

	expect(stored, &text, '\0');
	return RangeTypePGetDatum(range);
}

/* The ranges are canonical, and apart, as they were stored: what says so is not asked. */
static Datum
become_multirange(const TesseraStoredType *stored, char *text)
{
	TypeCacheEntry range = *lookup_type_cache(stored->type, TYPECACHE_MULTIRANGE_INFO)->rngtype;
	List	   *ranges = NIL;
	RangeType **array;

	range.rng_canonical_finfo.fn_oid = InvalidOid;
	expect(stored, &text, '{');
	while (*text != '}')
	{
		if (ranges != NIL)
			expect(stored, &text, ',');
		ranges = lappend(ranges, read_range(stored, &range, &text));
	}
	expect(stored, &text, '}');
	expect(stored, &text, '\0');
	array = palloc(Max(list_length(ranges), 1) * sizeof(RangeType *));
	for (int i = 0; i < list_length(ranges); i++)
		array[i] = list_nth(ranges, i);
	return MultirangeTypePGetDatum(make_multirange(stored->type, &range, list_length(ranges), array));
}


/* Reading */

static Datum become_stored(const TesseraStoredType *stored, Datum value);

static Datum
become_array(const TesseraStoredType *stored, Datum value)
{
	ArrayType  *array = DatumGetArrayTypeP(value);
	Datum	   *values;
	bool	   *nulls;
	int			n;
	int16		length;
	bool		by_value;
	char		align;

	if (stored->inner == NULL)
	{
		array->elemtype = stored->element;
		return PointerGetDatum(array);
	}
	get_typlenbyvalalign(array->elemtype, &length, &by_value, &align);
	deconstruct_array(array, array->elemtype, length, by_value, align, &values, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			values[i] = become_stored(stored->inner, values[i]);
	get_typlenbyvalalign(stored->element, &length, &by_value, &align);
	return PointerGetDatum(construct_md_array(values, nulls, ARR_NDIM(array), ARR_DIMS(array), ARR_LBOUND(array), stored->element, length,
											  by_value, align));
}

static Datum
become_row(const TesseraStoredType *stored, Datum value)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(value);
	HeapTupleData tuple = {.t_len = HeapTupleHeaderGetDatumLength(header),.t_data = header};
	Datum	   *values = palloc(Max(stored->desc->natts, 1) * sizeof(Datum));
	bool	   *nulls = palloc(Max(stored->desc->natts, 1) * sizeof(bool));

	ItemPointerSetInvalid(&tuple.t_self);
	heap_deform_tuple(&tuple, stored->read_desc, values, nulls);
	for (int i = 0; i < stored->desc->natts; i++)
		if (stored->columns[i] != NULL && !nulls[i])
			values[i] = become_stored(stored->columns[i], values[i]);
	return HeapTupleGetDatum(heap_form_tuple(stored->desc, values, nulls));
}

/* The value as of its own type; it was read as another, and is the caller's to change. */
static Datum
become_stored(const TesseraStoredType *stored, Datum value)
{
	check_stack_depth();
	switch (stored->shape)
	{
		case AS_READ:
			break;
		case ARRAY:
			return become_array(stored, value);
		case ROW:
			return become_row(stored, value);
		case RANGE:
			return become_range(stored, TextDatumGetCString(value));
		case MULTIRANGE:
			return become_multirange(stored, TextDatumGetCString(value));
		case FROM_TEXT:
			return tessera_stored_input(stored->inner, TextDatumGetCString(value));
	}
	return value;
}

/* False: the type of a row in it has been altered. */
static bool
is_current(const TesseraStoredType *stored)
{
	ListCell   *cell;

	foreach(cell, stored->rows)
	{
		const RowVersion *row = lfirst(cell);

		if (assign_record_type_identifier(row->type, -1) != row->version)
			return false;
	}
	return true;
}

/* What the text says decides: exact text has the arguments, the type's own output function leaves them out. */
static FmgrInfo *
input_function(TesseraStoredType *stored, const char *text)
{
	bool		has_arguments = OidIsValid(stored->input_with_arguments.fn_oid) && *text != '\0' && text[strlen(text) - 1] == ')';

	return has_arguments ? &stored->input_with_arguments : &stored->input;
}

Datum
tessera_stored_input(TesseraStoredType *stored, char *text)
{
	if (!is_current(stored))
	{
		MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(stored));

		*stored = *tessera_stored_type(stored->type, stored->typmod);
		MemoryContextSwitchTo(before);
	}
	return become_stored(stored, tessera_wire_input(input_function(stored, text), text, stored->ioparam, stored->read_typmod, stored->settings));
}


/* Writing */

/* The executor makes these expressions when it first needs them; one that is not there is none to check. */
void
tessera_stored_rows_only(ResultRelInfo *result)
{
	const TupleConstr *constraints = RelationGetDescr(result->ri_RelationDesc)->constr;

	if (constraints != NULL && constraints->num_check > 0)
		result->ri_ConstraintExprs = palloc0(constraints->num_check * sizeof(ExprState *));
}

/* Made when it is first needed, too: nothing is needed. */
void
tessera_stored_generated_given(ResultRelInfo *result)
{
	TupleDesc	desc = RelationGetDescr(result->ri_RelationDesc);

	if (desc->constr == NULL || !desc->constr->has_generated_stored)
		return;
	result->ri_GeneratedExprs = palloc0(desc->natts * sizeof(ExprState *));
	result->ri_NumGeneratedNeeded = 0;
}
