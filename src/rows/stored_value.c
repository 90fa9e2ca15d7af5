/*
 * stored_value.c
 *	  Stored values, read and written as they are; see stored_value.h.
 *
 * A domain's values have the form of its base type, in memory and as text, so they are read by the base type's input function. An array of domains is
 * read as one of their base types, and then said to be of domains: only its header differs. A row is read by a description of its own in which
 * domains are replaced, as a RECORD, and formed anew by that of its type. The two nest.
 *
 * An error leaves the user that input runs as to the transaction's abort. Nothing is locked or written. The session keeps the descriptions of rows,
 * as it does those of any RECORD.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "common/wire.h"
#include "rows/stored_value.h"

struct TesseraStoredType
{
	Oid			type;
	int32		typmod;
	Oid			read_as;		/* the type whose input function reads it, which has no domain in it */
	int32		read_typmod;
	FmgrInfo	input;
	Oid			ioparam;
	Oid			domain_owner;	/* as whom input runs; InvalidOid: it runs no user's code */
	/* if values have to become what they are */
	Oid			element;		/* of an array: its elements' type; InvalidOid: it is none */
	TesseraStoredType *inner;	/* NULL: elements are as they are read */
	TupleDesc	desc;			/* of a row; NULL: it is none */
	uint64		version;		/* of the row's type, when this was made */
	TupleDesc	read_desc;
	TesseraStoredType **columns;
};

static TesseraStoredType *without_domains(Oid type, int32 typmod);


/* What is in a type */

static Oid
owner_of_type(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("type with OID %u does not exist", type)));
	owner = ((Form_pg_type) GETSTRUCT(tuple))->typowner;
	ReleaseSysCache(tuple);
	return owner;
}

static Oid	domain_in(Oid type);

static Oid
domain_in_row(Oid type)
{
	TupleDesc	desc = lookup_rowtype_tupdesc_copy(type, -1);
	Oid			found = InvalidOid;

	for (int i = 0; i < desc->natts && !OidIsValid(found); i++)
		if (!TupleDescAttr(desc, i)->attisdropped)
			found = domain_in(TupleDescAttr(desc, i)->atttypid);
	FreeTupleDesc(desc);
	return found;
}

/* The first domain that reading a value of the type comes to; InvalidOid: none. */
static Oid
domain_in(Oid type)
{
	check_stack_depth();
	if (type < FirstNormalObjectId)
		return InvalidOid;
	switch (get_typtype(type))
	{
		case TYPTYPE_DOMAIN:
			return type;
		case TYPTYPE_COMPOSITE:
			return domain_in_row(type);
		case TYPTYPE_RANGE:
			return domain_in(get_range_subtype(type));
		case TYPTYPE_MULTIRANGE:
			return domain_in(get_multirange_range(type));
		default:
			return OidIsValid(get_element_type(type)) ? domain_in(get_element_type(type)) : InvalidOid;
	}
}


/* How a type is read */

/* There is no type of arrays of arrays, by which elements could be read that are domains over arrays. */
static void
read_array(TesseraStoredType *stored, Oid element)
{
	TesseraStoredType *inner = without_domains(element, -1);
	Oid			array = get_array_type(inner->read_as);

	if (!OidIsValid(array))
	{
		stored->domain_owner = owner_of_type(domain_in(element));
		return;
	}
	stored->read_as = array;
	stored->read_typmod = inner->read_typmod;
	stored->domain_owner = inner->domain_owner;
	stored->element = element;
	if (inner->desc != NULL || OidIsValid(inner->element))
		stored->inner = inner;
}

static void
read_row(TesseraStoredType *stored, Oid type)
{
	stored->version = assign_record_type_identifier(type, -1);
	stored->desc = lookup_rowtype_tupdesc_copy(type, -1);
	stored->read_desc = CreateTupleDescCopy(stored->desc);
	stored->columns = palloc0(Max(stored->desc->natts, 1) * sizeof(TesseraStoredType *));
	for (int i = 0; i < stored->desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(stored->read_desc, i);
		TesseraStoredType *inner;

		if (column->attisdropped || !OidIsValid(domain_in(column->atttypid)))
			continue;
		inner = without_domains(column->atttypid, column->atttypmod);
		column->atttypid = inner->read_as;
		column->atttypmod = inner->read_typmod;
		stored->columns[i] = inner;
		if (OidIsValid(inner->domain_owner))
			stored->domain_owner = inner->domain_owner;
	}
	stored->read_desc->tdtypeid = RECORDOID;
	stored->read_desc->tdtypmod = -1;
	BlessTupleDesc(stored->read_desc);
	stored->read_as = RECORDOID;
	stored->read_typmod = stored->read_desc->tdtypmod;
}

/* What is read instead of a type, without its input function. */
static TesseraStoredType *
without_domains(Oid type, int32 typmod)
{
	TesseraStoredType *stored = palloc0(sizeof(TesseraStoredType));
	Oid			domain;

	check_stack_depth();
	stored->type = type;
	stored->typmod = typmod;
	type = getBaseTypeAndTypmod(type, &typmod);
	stored->read_as = type;
	stored->read_typmod = typmod;
	domain = domain_in(type);
	if (!OidIsValid(domain))
		return stored;
	if (OidIsValid(get_element_type(type)))
		read_array(stored, get_element_type(type));
	else if (get_typtype(type) == TYPTYPE_COMPOSITE)
		read_row(stored, type);
	else
		stored->domain_owner = owner_of_type(domain);
	return stored;
}

TesseraStoredType *
tessera_stored_type(Oid type, int32 typmod)
{
	TesseraStoredType *stored = without_domains(type, typmod);
	Oid			function;

	getTypeInputInfo(stored->read_as, &function, &stored->ioparam);
	fmgr_info(function, &stored->input);
	return stored;
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
	get_typlenbyvalalign(stored->element, &length, &by_value, &align);
	deconstruct_array(array, array->elemtype, length, by_value, align, &values, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			values[i] = become_stored(stored->inner, values[i]);
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
	if (OidIsValid(stored->element))
		return become_array(stored, value);
	return stored->desc != NULL ? become_row(stored, value) : value;
}

/* False: a row's type in it has been altered. */
static bool
is_current(const TesseraStoredType *stored)
{
	bool		current = stored->desc == NULL || assign_record_type_identifier(stored->desc->tdtypeid, -1) == stored->version;

	for (int i = 0; stored->desc != NULL && current && i < stored->desc->natts; i++)
		current = stored->columns[i] == NULL || is_current(stored->columns[i]);
	return current && (stored->inner == NULL || is_current(stored->inner));
}

static Datum
input_as_domain_owner(TesseraStoredType *stored, char *text)
{
	Oid			user;
	int			security;
	Datum		value;

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(stored->domain_owner, security | SECURITY_RESTRICTED_OPERATION);
	value = tessera_wire_input(&stored->input, text, stored->ioparam, stored->read_typmod);
	SetUserIdAndSecContext(user, security);
	return value;
}

Datum
tessera_stored_input(TesseraStoredType *stored, char *text)
{
	Datum		value;

	if (!is_current(stored))
	{
		MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(stored));

		*stored = *tessera_stored_type(stored->type, stored->typmod);
		MemoryContextSwitchTo(before);
	}
	value = OidIsValid(stored->domain_owner) ? input_as_domain_owner(stored, text) :
		tessera_wire_input(&stored->input, text, stored->ioparam, stored->read_typmod);
	return become_stored(stored, value);
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
