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
 * Makes each session of this database load the library (session_preload_libraries), or no longer. on: this database becomes a node; off: it leaves
 * the cluster. So no client gets in while the server runs without the library: it would see and change this node's rows as if they were the whole
 * table. The effective user must be a superuser.
 */
extern void tessera_require_library(bool on);

/* True if each session of that database of the server loads the library: it is a node, was restored from one, or somebody has set it. */
extern bool tessera_database_requires_library(Oid database);

#endif							/* TESSERA_DATABASE_SETTING_H */
