/*
 * portable.h
 *	  Types whose binary form means the same on every node.
 */
#ifndef TESSERA_PORTABLE_H
#define TESSERA_PORTABLE_H

#include "postgres.h"

/* One of the server's reg types, whose values are OIDs of this node. */
extern bool tessera_type_names_object(Oid type);

/* Built-in, neither it nor its elements hold OIDs of this node, and with send and receive functions: binary on the wire. */
extern bool tessera_type_goes_binary(Oid type);

#endif							/* TESSERA_PORTABLE_H */
