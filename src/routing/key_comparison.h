/*
 * key_comparison.h
 *	  Conditions that compare a column of a shard key with something: the one place that says which of them do, and which values it may be compared
 *	  with to know where its rows lie.
 *
 * All of it is pure but for look-ups in the system catalogs; no locks are taken.
 */
#ifndef TESSERA_KEY_COMPARISON_H
#define TESSERA_KEY_COMPARISON_H

#include "postgres.h"
#include "access/attnum.h"
#include "nodes/primnodes.h"

#include "catalog/key.h"

/* column <operator> value */
typedef struct TesseraKeyComparison
{
	int			strategy;		/* btree's, of the column's own order, with the column on the left */
	bool		any;			/* value is an array: the column equals one of its elements */
	Node	   *value;			/* as it stands in the condition: it may need a row */
} TesseraKeyComparison;

/* The expression without the changes of a type's or collation's label around it. */
extern Node *tessera_unlabelled(Node *node);

/*
 * True if the operator, with this collation (InvalidOid: none), is the equality by which values of a type are hashed and ordered: what it finds equal
 * has one key. collation is that of the column itself.
 */
extern bool tessera_is_equality(Oid operator, Oid inputcollid, Oid type, Oid collation);

/*
 * True if the condition compares the column with a value of a type that is compatible with the key's (below). The column is an attribute of relation
 * rti; in an index-only scan it may be a column of the index, which index_columns (of TargetEntry; else NIL) translates.
 */
extern bool tessera_compares_key(Node *condition, const TesseraKeyColumn *column, Index rti, AttrNumber attribute, List *index_columns,
								 TesseraKeyComparison *comparison);

/*
 * True if a value of the one type can be taken for a key of the other (not a domain), where tessera_is_equality compares the two: same type, binary
 * coercible, or both integers.
 */
extern bool tessera_key_types_compatible(Oid value_type, Oid key_type);

/*
 * The value, of a compatible type, as one of the key's type; of variable length: in one piece, not compressed. False: the key's type has no such
 * value, so no row has this key. May return the value itself, else one in the current context.
 */
extern bool tessera_value_of_key(Datum value, Oid type, Oid key_type, Datum *result);

#endif							/* TESSERA_KEY_COMPARISON_H */
