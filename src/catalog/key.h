/*
 * key.h
 *	  The typed key space of a table group: how keys compare, hash, and turn into bounds and back.
 *
 * All functions are pure but for catalog look-ups at tessera_keyspace_create and of output functions in tessera_key_to_bound. Nothing here takes
 * locks.
 */
#ifndef TESSERA_KEY_H
#define TESSERA_KEY_H

#include "fmgr.h"

#include "catalog/bound.h"

#define TESSERA_MAX_KEY_COLUMNS 8

typedef struct TesseraKeyColumn
{
	Oid			type;			/* base type if the column is of a domain */
	int32		typmod;			/* of the column; bounds are not cut to it (see key.c) */
	Oid			collation;		/* InvalidOid if not collatable */
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Oid			btree_opfamily; /* InvalidOid under hash if there is none */
	Oid			typioparam;
	FmgrInfo	input;			/* the type's input function */
	FmgrInfo	compare;		/* btree support 1; under hash only if there is one */
	FmgrInfo	hash;			/* hash support 2 (extended), under hash only */
} TesseraKeyColumn;

typedef struct TesseraKeySpace
{
	bool		hashed;
	int			ncolumns;		/* key columns; 0: the placed tables of a schema, whose rows are all at one position */
	int			nelements;		/* elements of a bound: ncolumns, or 1: an int8 under hash, an int4 without columns */
	TesseraKeyColumn columns[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyColumn hash_column;	/* int8: the element's column under hash */
} TesseraKeySpace;

typedef struct TesseraKeyDatum
{
	int32		kind;			/* TesseraBoundKind */
	Datum		value;			/* by-value datum, pointer, or (flat form) offset from the flat base */
} TesseraKeyDatum;

/* A typed bound or the position of a key: a key's elements are all TESSERA_VALUE. Only the first nelements count. */
typedef struct TesseraKeyBound
{
	TesseraKeyDatum elements[TESSERA_MAX_KEY_COLUMNS];
} TesseraKeyBound;

/* The column of a bound's element i: the key column, or the int8 of the hash. */
#define TESSERA_KEY_ELEMENT_COLUMN(ks, i) ((ks)->hashed ? &(ks)->hash_column : &(ks)->columns[i])

/*
 * Key space for columns of these types, in context mcxt (FmgrInfo live there too). n is up to TESSERA_MAX_KEY_COLUMNS, else ERROR 22023; 0: all
 * keys are one, between MINKEY and MAXKEY.
 * ERROR 42P16 with DETAIL/HINT: no default btree (hash: extended hash) operator class; under range, a text-like type whose collation does not compare
 * alike on every node (C, POSIX, or ICU do), also inside arrays, composites, ranges and jsonb; nondeterministic collations; under hash, a type whose
 * hash depends on node-local OIDs (enums, and arrays, composites, ranges of them); reg* types, whose values are such OIDs; money (lc_monetary);
 * pseudo-types.
 * An invalid collation means the type's own.
 */
extern TesseraKeySpace *tessera_keyspace_create(MemoryContext mcxt, bool hashed, int n, const Oid *types, const int32 *typmods,
												const Oid *collations);

/* Position of a key (ncolumns non-null datums of exactly the key columns' types). Under range values are referenced, not copied. */
extern void tessera_key_position(TesseraKeySpace *ks, const Datum *values, TesseraKeyBound *out);

/* The key's hash (hash strategy only). */
extern int64 tessera_key_hash(TesseraKeySpace *ks, const Datum *values);

/* Typed form of a bound, values in the current context. Elements that are not given repeat a MINKEY or MAXKEY before them, else they are MINKEY.
 * ERROR 22023 for too many elements; the type's own error (22P02, 22003...) for a text it does not accept. Texts are read under the session's
 * settings (a user's timestamp has the session's TimeZone); canonical texts read alike under all of them. */
extern void tessera_key_from_bound(TesseraKeySpace *ks, const TesseraBound *bound, TesseraKeyBound *out);

/* Values of the key columns that a user gave as a bound, under either strategy (ks->ncolumns of them, in the current context): the key of
 * range_owner, split_find, move_chunk. ERROR 22023 if one is missing, too many, MINKEY or MAXKEY; else as tessera_key_from_bound. */
extern void tessera_key_values_from_bound(TesseraKeySpace *ks, const TesseraBound *bound, Datum *values);

/* Canonical catalog form of a typed bound (what follows the first MINKEY or MAXKEY is dropped), current context. */
extern TesseraBound *tessera_key_to_bound(TesseraKeySpace *ks, const TesseraKeyBound *key);

/*
 * -1, 0, 1; 0 also where both have the same MINKEY or MAXKEY first, whatever follows. Fast paths for int2/int4/int8/uuid/timestamps must not go
 * through fmgr.
 */
extern int	tessera_key_compare(TesseraKeySpace *ks, const TesseraKeyBound *a, const TesseraKeyBound *b);

/* Flat form, for shared memory: a TesseraKeyBound whose by-reference values are offsets from a base, the bytes lying behind. */
extern Size tessera_key_flat_size(TesseraKeySpace *ks, const TesseraKeyBound *key);	/* bytes of by-reference data, MAXALIGNed */

/* Writes key to *flat; by-reference bytes to base + offset; returns the offset behind them (MAXALIGNed). */
extern Size tessera_key_flatten(TesseraKeySpace *ks, const TesseraKeyBound *key, TesseraKeyBound *flat, char *base, Size offset);

/* The reverse without copying: *out points into base. */
extern void tessera_key_unflatten(TesseraKeySpace *ks, const TesseraKeyBound *flat, const char *base, TesseraKeyBound *out);

/* Compare a flat bound with a typed one: the step of the routing table's binary search. */
extern int	tessera_key_compare_flat(TesseraKeySpace *ks, const TesseraKeyBound *flat, const char *base, const TesseraKeyBound *b);

#endif							/* TESSERA_KEY_H */
