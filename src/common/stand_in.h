/*
 * stand_in.h
 *	  The server's functions that are replaced by functions of the extension in statements: advisory locks, pg_notify, sequences,
 *	  maintenance of an index.
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
	TESSERA_INDEX_MAINTENANCE,
} TesseraStandInKind;

/* What the function of the server's is about, if it is replaced. No catalog access. */
extern TesseraStandInKind tessera_stand_in_kind(Oid function);

/*
 * The function in schema tessera that replaces it, with the same arguments; InvalidOid if there is none, or the extension is not installed. Catalog
 * access.
 */
extern Oid	tessera_stand_in(Oid function);

/* tessera.identity_nextval, for defaults of identity columns, and tessera.sequence_row, for sequences read as tables; InvalidOid as above. */
extern Oid	tessera_identity_function(void);
extern Oid	tessera_sequence_row_function(void);

/* Called by a replacing function with its own oid: ERROR 42501 unless the effective user may execute the server's function that it replaces. */
extern void tessera_stand_in_check(Oid function);

extern void tessera_stand_in_init(void);	/* from _PG_init: what makes the oids forgotten */

#endif							/* TESSERA_STAND_IN_H */
