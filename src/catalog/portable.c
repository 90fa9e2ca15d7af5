/*
 * portable.c
 *	  Types whose binary form means the same on every node; see portable.h.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "utils/lsyscache.h"

#include "catalog/portable.h"

bool
tessera_type_is_portable(Oid type)
{
	Oid			element;

	if (type >= FirstNormalObjectId)
		return false;
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
		case RECORDOID:
		case RECORDARRAYOID:
		case UNKNOWNOID:
		case CSTRINGOID:
			return false;
		default:
			break;
	}
	element = get_element_type(type);
	return !OidIsValid(element) || tessera_type_is_portable(element);
}

bool
tessera_type_goes_binary(Oid type)
{
	return tessera_type_is_portable(type) && get_typtype(type) != TYPTYPE_PSEUDO && type != ACLITEMOID && type != ACLITEMARRAYOID;
}

