/*
 * check_as.h
 *	  Statements whose tables are read by another role's rights than the one that runs them, as below a view.
 *
 * Core keeps two users apart: code (filters, functions, casts, operators) runs as the current user, and only the checks of rights and the choice of
 * row security policies of a view's tables go by the view's owner (checkAsUser). A scan that is sent to a shard does the same: the connection's
 * effective user is who runs it, and the owner travels with the text.
 */
#ifndef TESSERA_CHECK_AS_H
#define TESSERA_CHECK_AS_H

#include "postgres.h"

/* A text that means the SELECT of `sql` with its tables read by the role's rights; palloc'd. ERROR 42704 if there is no such role. */
extern char *tessera_check_as(Oid role, const char *sql);

/*
 * Announces the text (by its address) that a local part is about to have analysed: beside texts that come straight from an internal connection only
 * this one is accepted in that form. NULL: none. Returns the one announced before; the caller puts it back, also after an error.
 */
extern const char *tessera_check_as_expect(const char *sql);

/* True for the text (by its address) of a router's statement; false for a statement that runs inside it, and for any that users have written. */
extern bool tessera_comes_from_router(const char *sql);

/* From _PG_init. */
extern void tessera_check_as_init(void);

#endif							/* TESSERA_CHECK_AS_H */
