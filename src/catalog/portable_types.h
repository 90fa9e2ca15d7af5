/*
 * portable_types.h
 *	  Types whose binary form means the same on every node.
 */
#ifndef TESSERA_PORTABLE_TYPES_H
#define TESSERA_PORTABLE_TYPES_H

#include "postgres.h"

/* True for the server's reg types: their values are OIDs of this node. */
extern bool tessera_type_names_object(Oid type);

/* True if the type, or one that it is made of (its base type, elements, bounds, columns), is wanted. */
extern bool tessera_type_is_made_of(Oid type, bool (*is_wanted) (Oid type));

/*
 * True if values of the type can travel in binary: it is built in, has send and receive functions, and neither it nor its elements hold OIDs of this
 * node.
 */
extern bool tessera_type_goes_binary(Oid type);

#endif							/* TESSERA_PORTABLE_TYPES_H */
