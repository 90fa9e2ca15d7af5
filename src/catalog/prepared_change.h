/*
 * prepared_change.h
 *	  Which prepared transactions changed the catalog, so that COMMIT PREPARED of the others costs the mirror nothing.
 */
#ifndef TESSERA_PREPARED_CHANGE_H
#define TESSERA_PREPARED_CHANGE_H

#include "postgres.h"

typedef struct TesseraPreparedChange
{
	bool		catalog;		/* rows that the routing image shows */
	bool		role;			/* the row that says who this node is */
	TransactionId xid;			/* InvalidTransactionId: not known */
} TesseraPreparedChange;

/* In the callback of PREPARE: remembers what the transaction did. Never raises. */
extern void tessera_prepared_note(const char *gid, TesseraPreparedChange change);

/* What it did. One that is not known counts as having changed everything. Never raises. */
extern TesseraPreparedChange tessera_prepared_look(const char *gid);

/*
 * After COMMIT or ROLLBACK PREPARED: returns what the transaction did, and forgets it. One that is not known (prepared before the server started or
 * was promoted) counts as having changed everything. Never raises.
 */
extern TesseraPreparedChange tessera_prepared_take(const char *gid);

/* From _PG_init: shared memory. */
extern void tessera_prepared_change_init(void);

#endif							/* TESSERA_PREPARED_CHANGE_H */
