/*
 * bound_array.c
 *	  Type tessera.bound and arrays of it: what has to look the type up.
 *
 * Results are palloc'd; nothing is kept.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "catalog/bound_array.h"

Oid
tessera_bound_type(void)
{
	Oid			nsp = get_namespace_oid("tessera", false);
	Oid			type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("bound"), ObjectIdGetDatum(nsp));

	if (!OidIsValid(type))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("type \"%s\" does not exist", "tessera.bound")));
	return type;
}

TesseraBound *
tessera_bound_of_text(const char *text)
{
	Oid			input,
				ioparam;

	getTypeInputInfo(tessera_bound_type(), &input, &ioparam);
	return DatumGetTesseraBoundP(OidInputFunctionCall(input, unconstify(char *, text), ioparam, -1));
}

TesseraBound **
tessera_bounds_of_array(ArrayType *array, int *n)
{
	Datum	   *elements;
	bool	   *nulls;
	TesseraBound **bounds;

	deconstruct_array(array, ARR_ELEMTYPE(array), -1, false, TYPALIGN_INT, &elements, &nulls, n);
	bounds = palloc(sizeof(TesseraBound *) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("a bound must not be null")));
		bounds[i] = DatumGetTesseraBoundP(elements[i]);
	}
	return bounds;
}

ArrayType *
tessera_array_of_bounds(int n, TesseraBound **bounds)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elements[i] = PointerGetDatum(bounds[i]);
	return construct_array(elements, n, tessera_bound_type(), -1, false, TYPALIGN_INT);
}

char *
tessera_bounds_text(int n, TesseraBound **bounds)
{
	Oid			output;
	bool		is_varlena;

	getTypeOutputInfo(get_array_type(tessera_bound_type()), &output, &is_varlena);
	return OidOutputFunctionCall(output, PointerGetDatum(tessera_array_of_bounds(n, bounds)));
}
