/*
 * key_diagnostics.c
 *	  Key spaces in SQL: the hash of a key as sharding uses it, the order of two bounds, and the canonical form of one.
 *
 * For those who wonder where a row belongs, and for tests. They work without any sharded table. A key space is made for each call, in its
 * context; only tessera.key_hash keeps its own while the argument types stay the same.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "catalog/key.h"

/* What tessera.key_hash keeps for its next call. */
typedef struct KeyHashState
{
	MemoryContext mcxt;			/* of the key space */
	TesseraKeySpace *ks;
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
} KeyHashState;

PG_FUNCTION_INFO_V1(tessera_key_hash_sql);
PG_FUNCTION_INFO_V1(tessera_key_compare_sql);
PG_FUNCTION_INFO_V1(tessera_key_canonical_sql);


static TesseraKeySpace *
make_keyspace(MemoryContext mcxt, bool hashed, int n, const Oid *types, const Oid *collations)
{
	int32		typmods[TESSERA_MAX_KEY_COLUMNS];
	Oid			type_collations[TESSERA_MAX_KEY_COLUMNS];

	for (int i = 0; i < Min(n, TESSERA_MAX_KEY_COLUMNS); i++)
	{
		typmods[i] = -1;
		type_collations[i] = collations != NULL ? collations[i] : InvalidOid;
	}
	return tessera_keyspace_create(mcxt, hashed, n, types, typmods, type_collations);
}

/* OIDs of an array of a reg* type, none of them null. */
static int
read_oids(ArrayType *array, Oid element_type, Oid **oids)
{
	Datum	   *values;
	bool	   *nulls;
	int			n;

	deconstruct_array(array, element_type, sizeof(Oid), true, TYPALIGN_INT, &values, &nulls, &n);
	*oids = palloc((n + 1) * sizeof(Oid));
	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("types and collations of a key cannot be null")));
		(*oids)[i] = DatumGetObjectId(values[i]);
	}
	return n;
}

/* The key space of arguments "types", "hashed" and "collations". */
static TesseraKeySpace *
keyspace_of_arguments(FunctionCallInfo fcinfo, int types_arg, int hashed_arg, int collations_arg)
{
	Oid		   *types;
	Oid		   *collations = NULL;
	int			n = read_oids(PG_GETARG_ARRAYTYPE_P(types_arg), REGTYPEOID, &types);

	if (!PG_ARGISNULL(collations_arg) &&
		read_oids(PG_GETARG_ARRAYTYPE_P(collations_arg), REGCOLLATIONOID, &collations) != n)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there must be as many collations as types")));
	return make_keyspace(CurrentMemoryContext, PG_GETARG_BOOL(hashed_arg), n, types, collations);
}

/* tessera.key_hash(VARIADIC "any") */
Datum
tessera_key_hash_sql(PG_FUNCTION_ARGS)
{
	Datum	   *values;
	Oid		   *types;
	bool	   *nulls;
	int			n = extract_variadic_args(fcinfo, 0, true, &values, &types, &nulls);
	KeyHashState *state = fcinfo->flinfo->fn_extra;

	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("a shard key cannot contain a null")));
	}

	if (state == NULL)
	{
		state = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(KeyHashState));
		state->mcxt = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "tessera key hash", ALLOCSET_SMALL_SIZES);
		fcinfo->flinfo->fn_extra = state;
	}
	if (state->ks == NULL || state->ks->ncolumns != n || memcmp(state->types, types, n * sizeof(Oid)) != 0)
	{
		state->ks = NULL;
		MemoryContextReset(state->mcxt);
		state->ks = make_keyspace(state->mcxt, true, n, types, NULL);
		memcpy(state->types, types, n * sizeof(Oid));
	}
	PG_RETURN_INT64(tessera_key_hash(state->ks, values));
}

/* Compares once more with a in its flat form, and with that turned back. */
static void
check_flat_form(TesseraKeySpace *ks, const TesseraKeyBound *a, const TesseraKeyBound *b, int expected)
{
	Size		size = tessera_key_flat_size(ks, a);
	Size		start = MAXALIGN(1);
	char	   *base = palloc(start + size);
	TesseraKeyBound flat,
				back;

	if (tessera_key_flatten(ks, a, &flat, base, start) != start + size)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("flat form of a key has an unexpected size")));
	tessera_key_unflatten(ks, &flat, base, &back);
	if (tessera_key_compare_flat(ks, &flat, base, b) != expected || tessera_key_compare(ks, &back, b) != expected)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("flat form of a key compares otherwise")));
}

/* tessera.key_compare(types, a, b, hashed, collations) */
Datum
tessera_key_compare_sql(PG_FUNCTION_ARGS)
{
	TesseraKeySpace *ks;
	TesseraKeyBound a,
				b;
	int			result;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2) || PG_ARGISNULL(3))
		PG_RETURN_NULL();
	ks = keyspace_of_arguments(fcinfo, 0, 3, 4);
	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(1), &a);
	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(2), &b);

	result = tessera_key_compare(ks, &a, &b);
	check_flat_form(ks, &a, &b, result);
	PG_RETURN_INT32(result);
}

/* tessera.key_canonical(types, bound, hashed, collations) */
Datum
tessera_key_canonical_sql(PG_FUNCTION_ARGS)
{
	TesseraKeySpace *ks;
	TesseraKeyBound key;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2))
		PG_RETURN_NULL();
	ks = keyspace_of_arguments(fcinfo, 0, 2, 3);
	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(1), &key);
	PG_RETURN_POINTER(tessera_key_to_bound(ks, &key));
}
