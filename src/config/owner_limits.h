/*
 * owner_limits.h
 *	  How many chunks and table groups the tables of one owner may have, and how small chunks may be: limits of the administrator (config node).
 */
#ifndef TESSERA_CONFIG_OWNER_LIMITS_H
#define TESSERA_CONFIG_OWNER_LIMITS_H

#include "postgres.h"

/* A table group that is to be made. */
typedef struct TesseraOwnerRequest
{
	const char *table;			/* qualified and quoted; its owner is whose tables are counted */
	const char *by;				/* the user who asks, as the asking node's own code has read it */
	int			chunks;			/* of the new group */
	bool		apart;			/* it is there until the table, which has rows to move, has joined another one */
	int64		max_chunk_size; /* bytes; 0: the usual one */
} TesseraOwnerRequest;

/*
 * ERROR 53400 if the owner of the table would have more than the limits allow, unless who asks is an administrator, or the group is apart, and the
 * owner's only one. lock: the requests of one owner are serial from here to the end of the transaction; without it the answer is only true of this
 * moment. Does nothing if there is no such table. Config node; between tessera_spi_begin and _end.
 */
extern void tessera_owner_limits_require(const TesseraOwnerRequest *request, bool lock);

extern void tessera_owner_limits_init(void);	/* from _PG_init: settings */

#endif							/* TESSERA_CONFIG_OWNER_LIMITS_H */
