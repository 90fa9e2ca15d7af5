/*
 * portable_types.c
 *	  Types whose binary form means the same on every node; see portable_types.h.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "utils/lsyscache.h"

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
