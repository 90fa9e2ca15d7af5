/*
 * stand_in.h
 *	  The server's functions in whose place functions of ours stand in statements: advisory locks, pg_notify, sequences.
 */
#ifndef TESSERA_STAND_IN_H
#define TESSERA_STAND_IN_H

#include "postgres.h"

typedef enum TesseraStandInKind
{
	TESSERA_NO_STAND_IN,
	TESSERA_ADVISORY_LOCK,
	TESSERA_NOTIFICATION,
	TESSERA_SEQUENCE,
} TesseraStandInKind;

/* What the stand-in of a function of the server's is about. No catalog access. */
extern TesseraStandInKind tessera_stand_in_kind(Oid function);

/* The stand-in in schema tessera, with the same arguments; InvalidOid if the function has none, or the extension is not there. Catalog access. */
extern Oid	tessera_stand_in(Oid function);

/* tessera.identity_nextval, for defaults of identity columns, and tessera.sequence_row, for sequences read as tables; InvalidOid as above. */
extern Oid	tessera_identity_function(void);
extern Oid	tessera_sequence_row_function(void);

/* The server's function in whose place this one, called with its own oid, stands. ERROR 42501 unless the effective user may execute that. */
extern void tessera_stand_in_check(Oid function);

extern void tessera_stand_in_init(void);	/* from _PG_init: what makes the oids forgotten */

#endif							/* TESSERA_STAND_IN_H */
