/*
 * stand_in.h
 *	  The server's functions in whose place functions of ours stand in statements: advisory locks and pg_notify. (Sequences have their own: ddl/sequence.h.)
 */
#ifndef TESSERA_STAND_IN_H
#define TESSERA_STAND_IN_H

#include "postgres.h"

/* Does the function have a stand-in? No catalog access. */
extern bool tessera_has_stand_in(Oid function);

/* Is it an advisory lock function of the server? No catalog access. */
extern bool tessera_is_advisory_function(Oid function);

/* The stand-in in schema tessera, with the same arguments; InvalidOid if the function has none, or the extension is not there. Catalog access. */
extern Oid	tessera_stand_in(Oid function);

/* The server's function in whose place this one, called with its own oid, stands. ERROR 42501 unless the effective user may execute that. */
extern void tessera_stand_in_check(Oid function);

extern void tessera_stand_in_init(void);	/* from _PG_init: what makes the oids forgotten */

#endif							/* TESSERA_STAND_IN_H */
