/*
 * database_setting.h
 *	  Settings that the extension gives to this database (as ALTER DATABASE ... SET does), in the current transaction.
 */
#ifndef TESSERA_DATABASE_SETTING_H
#define TESSERA_DATABASE_SETTING_H

#include "postgres.h"
#include "nodes/pg_list.h"

/* values: of char *, one unless the setting is a list; NIL: the database's own value goes. The effective user must be a superuser. */
extern void tessera_database_setting(const char *name, List *values);

/*
 * A node's database lets in no client while the server runs without the library, which would show and change the rows that lie there as if they were all there are:
 * sessions load it, which fails then. on: this database becomes a node; off: it no longer is one. The effective user must be a superuser.
 */
extern void tessera_require_library(bool on);

#endif							/* TESSERA_DATABASE_SETTING_H */
