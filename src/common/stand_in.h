/*
 * stand_in.h
 *	  The server's functions that are replaced by functions of the extension in statements: advisory locks and pg_notify. Sequences: ddl/sequence.h.
 */
#ifndef TESSERA_STAND_IN_H
#define TESSERA_STAND_IN_H

#include "postgres.h"

/* True if the function is replaced. No catalog access. */
extern bool tessera_has_stand_in(Oid function);

/* True for the server's advisory lock functions. No catalog access. */
extern bool tessera_is_advisory_function(Oid function);

/*
 * The function in schema tessera that replaces it, with the same arguments; InvalidOid if there is none, or the extension is not installed. Catalog
 * access.
 */
extern Oid	tessera_stand_in(Oid function);

/* Called by a replacing function with its own oid: ERROR 42501 unless the effective user may execute the server's function that it replaces. */
extern void tessera_stand_in_check(Oid function);

extern void tessera_stand_in_init(void);	/* from _PG_init: what makes the oids forgotten */

#endif							/* TESSERA_STAND_IN_H */
