/*
 * portable_types.c
 *	  Types whose binary form means the same on every node; see portable_types.h.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "catalog/portable_types.h"

/* Built-in types never change: the answer of tessera_type_goes_binary for each oid that it was asked. */
typedef enum Known
{
	KNOWN_NOT = 0,
	GOES_BINARY,
	GOES_AS_TEXT
} Known;

static char known[FirstGenbkiObjectId];

bool
tessera_type_names_object(Oid type)
{
	switch (type)
	{
		case REGPROCOID:
		case REGPROCEDUREOID:
		case REGOPEROID:
		case REGOPERATOROID:
		case REGCLASSOID:
		case REGCOLLATIONOID:
		case REGTYPEOID:
		case REGROLEOID:
		case REGNAMESPACEOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
			return true;
		default:
			return false;
	}
}

bool
tessera_type_is_made_of(Oid type, bool (*is_wanted) (Oid type))
{
	TupleDesc	desc;
	bool		found = false;

	check_stack_depth();
	type = getBaseType(type);
	if (is_wanted(type))
		return true;
	if (OidIsValid(get_element_type(type)))
		return tessera_type_is_made_of(get_element_type(type), is_wanted);
	switch (get_typtype(type))
	{
		case TYPTYPE_RANGE:
			return tessera_type_is_made_of(get_range_subtype(type), is_wanted);
		case TYPTYPE_MULTIRANGE:
			return tessera_type_is_made_of(get_multirange_range(type), is_wanted);
		case TYPTYPE_COMPOSITE:
			desc = lookup_rowtype_tupdesc(type, -1);
			for (int i = 0; i < desc->natts && !found; i++)
				found = !TupleDescAttr(desc, i)->attisdropped && tessera_type_is_made_of(TupleDescAttr(desc, i)->atttypid, is_wanted);
			ReleaseTupleDesc(desc);
			return found;
		default:
			return false;
	}
}

static bool
is_portable(Oid type)
{
	Oid			element;

	if (type >= FirstNormalObjectId || tessera_type_names_object(type) || type == RECORDOID || type == RECORDARRAYOID || type == UNKNOWNOID ||
		type == CSTRINGOID || type == INT2VECTOROID || type == OIDVECTOROID ||
		type == PG_NODE_TREEOID)
		return false;			/* the receive functions of vectors refuse empty ones, that of trees everything */
	element = get_element_type(type);
	return !OidIsValid(element) || is_portable(element);
}

static bool
goes_binary(Oid type)
{
	return is_portable(type) && get_typtype(type) != TYPTYPE_PSEUDO && type != ACLITEMOID && type != ACLITEMARRAYOID;
}

bool
tessera_type_goes_binary(Oid type)
{
	if (type >= FirstGenbkiObjectId)
		return goes_binary(type);
	if (known[type] == KNOWN_NOT)
		known[type] = goes_binary(type) ? GOES_BINARY : GOES_AS_TEXT;
	return known[type] == GOES_BINARY;
}
