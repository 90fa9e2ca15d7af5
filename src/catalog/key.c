/*
 * key.c
 *	  Key spaces: typed keys and bounds of a table group, their order, hash, and way to and from tessera.bound and shared memory.
 *
 * A key space is made once for a group (tessera_keyspace_create checks the types and looks everything up) and then only read, apart from what
 * the types' support functions cache in their FmgrInfo; so it belongs to one backend, in the memory context given at its making.
 *
 * Bounds are read and kept without the column's type modifier: a bound between two values of a numeric(10,2) is as good as any, and rounding it
 * would move keys to the other side. MINKEY and MAXKEY end a bound: what follows them is not looked at.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/lsyscache.h"
#include "utils/pg_locale.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

#include "catalog/key.h"
#include "catalog/portable_types.h"
#include "common/version_compat.h"

#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))


/* What may be a shard key */

static void
refuse_type(Oid type, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
			 errmsg("type %s cannot be part of a shard key", format_type_be(type)),
			 errdetail("%s", detail),
			 errhint("%s", hint)));
}

/* True if the collation compares alike on every node: C, POSIX, and ICU of one version. */
static bool
is_portable_collation(Oid collation)
{
	pg_locale_t locale;

	if (tessera_collation_is_c(collation))
		return true;
	locale = pg_newlocale_from_collation(collation);
	return locale != NULL && locale->provider == COLLPROVIDER_ICU;
}

static void
check_collation(Oid collation, bool hashed)
{
	if (!get_collation_isdeterministic(collation))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("nondeterministic collation \"%s\" cannot be used by a shard key", get_collation_name(collation)),
				 errdetail("Different texts that are equal could not be told apart by their place."),
				 errhint("Use a deterministic collation for the column.")));

	if (!hashed && !is_portable_collation(collation))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("collation \"%s\" cannot order a shard key", get_collation_name(collation)),
				 errdetail("The order of an operating system's locale may differ between nodes."),
				 errhint("Use COLLATE \"C\" or an ICU collation for the column, or strategy => 'hash'.")));
}

static void check_type(Oid type, Oid collation, bool hashed);

/*
 * Keys are made of the text of bounds by any session that routes a statement, and by workers, so that may not run a user's code: the input function
 * of a domain checks. (The key's own type is that below its domains.)
 */
static void
check_inner_type(Oid type, Oid collation, bool hashed)
{
	if (get_typtype(type) == TYPTYPE_DOMAIN)
		refuse_type(type, "It is a domain inside another type, whose check would run wherever a key is read.", "Choose a column of another type.");
	check_type(type, collation, hashed);
}

/* Refuses a type whose order (or hash) or text differs between nodes, here or anywhere inside it. */
static void
check_type(Oid type, Oid collation, bool hashed)
{
	Oid			inner;

	check_stack_depth();
	type = getBaseType(type);

	if (get_typtype(type) == TYPTYPE_PSEUDO)
		refuse_type(type, "It is a pseudo-type.", "Choose a column of another type.");
	if (tessera_type_names_object(type) || type == ACLITEMOID)
		refuse_type(type, "Its values are OIDs of catalog objects, which differ between nodes.", "Choose a column of another type.");
	if (type == CASHOID)
		refuse_type(type, "Its text depends on lc_monetary, which may differ between nodes.", "Use a column of type numeric.");
	if (hashed && type_is_enum(type))
		refuse_type(type, "The hash of an enum is made of OIDs, which differ between nodes.", "Use strategy => 'range', or choose another column.");

	/* strings inside jsonb are ordered by the database's collation */
	if (OidIsValid(collation) || (type == JSONBOID && !hashed))
		check_collation(OidIsValid(collation) ? collation : DEFAULT_COLLATION_OID, hashed);

	if (OidIsValid(inner = get_element_type(type)))
		check_inner_type(inner, collation, hashed);
	else if (type_is_multirange(type))
		check_inner_type(get_multirange_range(type), InvalidOid, hashed);
	else if (type_is_range(type))
		check_inner_type(get_range_subtype(type), get_range_collation(type), hashed);
	else if (type_is_rowtype(type))
	{
		TupleDesc	tupdesc = lookup_rowtype_tupdesc_copy(type, -1);

		for (int i = 0; i < tupdesc->natts; i++)
		{
			Form_pg_attribute att = TupleDescAttr(tupdesc, i);

			if (!att->attisdropped)
				check_inner_type(att->atttypid, att->attcollation, hashed);
		}
		FreeTupleDesc(tupdesc);
	}
}


/* Making a key space */

static void
fill_column(TesseraKeyColumn *column, MemoryContext mcxt, Oid type, int32 typmod, Oid collation, bool hashed)
{
	TypeCacheEntry *entry;
	Oid			input;

	memset(column, 0, sizeof(*column));
	column->typmod = typmod;
	column->type = getBaseTypeAndTypmod(type, &column->typmod);
	if (type_is_collatable(column->type))
		column->collation = OidIsValid(collation) ? collation : get_typcollation(type);
	check_type(column->type, column->collation, hashed);

	entry = lookup_type_cache(column->type, TYPECACHE_BTREE_OPFAMILY |
							  TYPECACHE_CMP_PROC | TYPECACHE_HASH_EXTENDED_PROC);
	if (!hashed && !OidIsValid(entry->cmp_proc))
		refuse_type(type, "It has no default btree operator class.", "Choose a column of another type.");
	if (hashed && !OidIsValid(entry->hash_extended_proc))
		refuse_type(type, "It has no default hash operator class with an extended hash function.",
					"Use strategy => 'range', or choose another column.");

	column->typlen = entry->typlen;
	column->typbyval = entry->typbyval;
	column->typalign = entry->typalign;
	column->btree_opfamily = entry->btree_opf;
	getTypeInputInfo(column->type, &input, &column->typioparam);
	fmgr_info_cxt(input, &column->input, mcxt);
	if (OidIsValid(entry->cmp_proc))
		fmgr_info_cxt(entry->cmp_proc, &column->compare, mcxt);
	if (hashed)
		fmgr_info_cxt(entry->hash_extended_proc, &column->hash, mcxt);
}

TesseraKeySpace *
tessera_keyspace_create(MemoryContext mcxt, bool hashed, int n, const Oid *types, const int32 *typmods, const Oid *collations)
{
	TesseraKeySpace *ks;

	if (n < 0 || n > TESSERA_MAX_KEY_COLUMNS || (n == 0 && hashed))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a shard key has 1 to %d columns, not %d", TESSERA_MAX_KEY_COLUMNS, n)));

	ks = MemoryContextAllocZero(mcxt, sizeof(TesseraKeySpace));
	ks->hashed = hashed;
	ks->ncolumns = n;
	ks->nelements = hashed || n == 0 ? 1 : n;
	if (n == 0)
		fill_column(&ks->columns[0], mcxt, INT4OID, -1, InvalidOid, false);
	for (int i = 0; i < n; i++)
		fill_column(&ks->columns[i], mcxt, types[i], typmods[i], collations[i], hashed);
	if (hashed)
		fill_column(&ks->hash_column, mcxt, INT8OID, -1, InvalidOid, false);
	return ks;
}


/* Keys */

int64
tessera_key_hash(TesseraKeySpace *ks, const Datum *values)
{
	uint64		hash = 0;

	Assert(ks->hashed);
	for (int i = 0; i < ks->ncolumns; i++)
	{
		TesseraKeyColumn *column = &ks->columns[i];
		uint64		h = DatumGetUInt64(FunctionCall2Coll(&column->hash, column->collation, values[i], UInt64GetDatum(0)));

		hash = (i == 0) ? h : hash_combine64(hash, h);
	}
	return (int64) hash;
}

void
tessera_key_position(TesseraKeySpace *ks, const Datum *values, TesseraKeyBound *out)
{
	if (ks->hashed)
	{
		out->elements[0].kind = TESSERA_VALUE;
		out->elements[0].value = Int64GetDatum(tessera_key_hash(ks, values));
		return;
	}
	if (ks->ncolumns == 0)
	{
		out->elements[0].kind = TESSERA_VALUE;
		out->elements[0].value = Int32GetDatum(0);
		return;
	}
	for (int i = 0; i < ks->ncolumns; i++)
	{
		out->elements[i].kind = TESSERA_VALUE;
		out->elements[i].value = values[i];
	}
}


/* From and to tessera.bound */

static Datum
read_value(TesseraKeyColumn *column, const char *text)
{
	return InputFunctionCall(&column->input, unconstify(char *, text), column->typioparam, -1);
}

void
tessera_key_from_bound(TesseraKeySpace *ks, const TesseraBound *bound, TesseraKeyBound *out)
{
	TesseraBoundElement *elements;
	int			n = tessera_bound_elements(bound, &elements);
	TesseraBoundKind rest = TESSERA_VALUE;	/* of what follows, once known */

	if (n > ks->nelements)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("bound %s has %d elements, but the key has %d", tessera_bound_to_cstring(bound), n, ks->nelements),
				 ks->hashed ? errhint("Bounds of a hashed key are bounds of its hash, a bigint.") : 0));

	for (int i = 0; i < ks->nelements; i++)
	{
		TesseraKeyDatum *element = &out->elements[i];

		if (rest == TESSERA_VALUE && (i >= n || elements[i].kind != TESSERA_VALUE))
			rest = (i < n) ? elements[i].kind : TESSERA_MINKEY;
		element->kind = rest;
		element->value = (rest == TESSERA_VALUE) ? read_value(TESSERA_KEY_ELEMENT_COLUMN(ks, i), elements[i].text) : (Datum) 0;
	}
}

void
tessera_key_values_from_bound(TesseraKeySpace *ks, const TesseraBound *bound, Datum *values)
{
	TesseraBoundElement *elements;
	int			n = tessera_bound_elements(bound, &elements);

	if (n != ks->ncolumns)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s has %d values, but the key has %d columns", tessera_bound_to_cstring(bound), n, ks->ncolumns)));

	for (int i = 0; i < n; i++)
	{
		if (elements[i].kind != TESSERA_VALUE)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("MINKEY and MAXKEY are no values of a key")));
		values[i] = read_value(&ks->columns[i], elements[i].text);
	}
}

TesseraBound *
tessera_key_to_bound(TesseraKeySpace *ks, const TesseraKeyBound *key)
{
	TesseraBoundElement elements[TESSERA_MAX_KEY_COLUMNS];
	int			n = 0;

	while (n < ks->nelements)
	{
		const TesseraKeyDatum *element = &key->elements[n];

		if (element->kind != TESSERA_VALUE)
		{
			elements[n].kind = element->kind;
			elements[n].numeric = false;
			elements[n++].text = NULL;
			break;
		}
		tessera_bound_element_of(TESSERA_KEY_ELEMENT_COLUMN(ks, n)->type, element->value, &elements[n]);
		n++;
	}
	return tessera_bound_make(n, elements);
}


/* Order */

/* Default operator classes of built-in types are built in themselves, so the common ones are compared here. */
static int
compare_values(TesseraKeyColumn *column, Datum a, Datum b)
{
	switch (column->type)
	{
		case INT2OID:
			return COMPARE(DatumGetInt16(a), DatumGetInt16(b));
		case INT4OID:
			return COMPARE(DatumGetInt32(a), DatumGetInt32(b));
		case INT8OID:
			return COMPARE(DatumGetInt64(a), DatumGetInt64(b));
		case DATEOID:
			return COMPARE(DatumGetDateADT(a), DatumGetDateADT(b));
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return COMPARE(DatumGetTimestamp(a), DatumGetTimestamp(b));
		case UUIDOID:
			{
				int			result = memcmp(DatumGetUUIDP(a)->data, DatumGetUUIDP(b)->data, UUID_LEN);

				return COMPARE(result, 0);
			}
		default:
			{
				int32		result = DatumGetInt32(FunctionCall2Coll(&column->compare, column->collation, a, b));

				return COMPARE(result, 0);
			}
	}
}

/* The value of a flat element, pointing into the bytes at base. */
static inline Datum
flat_value(const TesseraKeyColumn *column, const TesseraKeyDatum *element, const char *base)
{
	return column->typbyval ? element->value : PointerGetDatum(base + element->value);
}

/* Both comparisons: base is NULL if a is not flat. */
static inline int
compare_bounds(TesseraKeySpace *ks, const TesseraKeyBound *a, const char *base, const TesseraKeyBound *b)
{
	for (int i = 0; i < ks->nelements; i++)
	{
		const TesseraKeyDatum *ea = &a->elements[i];
		const TesseraKeyDatum *eb = &b->elements[i];
		TesseraKeyColumn *column = TESSERA_KEY_ELEMENT_COLUMN(ks, i);
		int			result;

		if (ea->kind != eb->kind)
			return ea->kind < eb->kind ? -1 : 1;
		if (ea->kind != TESSERA_VALUE)
			return 0;
		result = compare_values(column, base != NULL ? flat_value(column, ea, base) : ea->value, eb->value);
		if (result != 0)
			return result;
	}
	return 0;
}

int
tessera_key_compare(TesseraKeySpace *ks, const TesseraKeyBound *a, const TesseraKeyBound *b)
{
	return compare_bounds(ks, a, NULL, b);
}

int
tessera_key_compare_flat(TesseraKeySpace *ks, const TesseraKeyBound *flat, const char *base, const TesseraKeyBound *b)
{
	return compare_bounds(ks, flat, base, b);
}


/* Flat form */

static inline bool
has_flat_bytes(const TesseraKeyColumn *column, const TesseraKeyDatum *element)
{
	return element->kind == TESSERA_VALUE && !column->typbyval;
}

/* A by-reference value with its bytes in one piece: a copy of it if it was compressed or stored out of line. */
static Datum
plain_value(const TesseraKeyColumn *column, Datum value)
{
	struct varlena *pointer = (struct varlena *) DatumGetPointer(value);

	if (column->typlen == -1 && (VARATT_IS_EXTERNAL(pointer) || VARATT_IS_COMPRESSED(pointer)))
		return PointerGetDatum(detoast_attr(pointer));
	return value;
}

static Size
plain_size(const TesseraKeyColumn *column, Datum value)
{
	if (column->typlen == -1)
		return VARSIZE_ANY(DatumGetPointer(value));
	if (column->typlen == -2)
		return strlen(DatumGetCString(value)) + 1;
	return column->typlen;
}

Size
tessera_key_flat_size(TesseraKeySpace *ks, const TesseraKeyBound *key)
{
	Size		size = 0;

	for (int i = 0; i < ks->nelements; i++)
	{
		const TesseraKeyColumn *column = TESSERA_KEY_ELEMENT_COLUMN(ks, i);
		Datum		value;

		if (!has_flat_bytes(column, &key->elements[i]))
			continue;
		value = plain_value(column, key->elements[i].value);
		size += MAXALIGN(plain_size(column, value));
		if (value != key->elements[i].value)
			pfree(DatumGetPointer(value));
	}
	return size;
}

Size
tessera_key_flatten(TesseraKeySpace *ks, const TesseraKeyBound *key, TesseraKeyBound *flat, char *base, Size offset)
{
	memset(flat, 0, sizeof(*flat));
	for (int i = 0; i < ks->nelements; i++)
	{
		const TesseraKeyColumn *column = TESSERA_KEY_ELEMENT_COLUMN(ks, i);
		const TesseraKeyDatum *element = &key->elements[i];
		Datum		value;
		Size		size;

		flat->elements[i] = *element;
		if (!has_flat_bytes(column, element))
			continue;
		value = plain_value(column, element->value);
		size = plain_size(column, value);
		memcpy(base + offset, DatumGetPointer(value), size);
		memset(base + offset + size, 0, MAXALIGN(size) - size);
		flat->elements[i].value = (Datum) offset;
		offset += MAXALIGN(size);
		if (value != element->value)
			pfree(DatumGetPointer(value));
	}
	return offset;
}

void
tessera_key_unflatten(TesseraKeySpace *ks, const TesseraKeyBound *flat, const char *base, TesseraKeyBound *out)
{
	for (int i = 0; i < ks->nelements; i++)
	{
		out->elements[i].kind = flat->elements[i].kind;
		out->elements[i].value = flat->elements[i].kind == TESSERA_VALUE ?
			flat_value(TESSERA_KEY_ELEMENT_COLUMN(ks, i), &flat->elements[i], base) : (Datum) 0;
	}
}
