/*
 * cross_table_code.h
 *	  Code that belongs to a table and may reach rows of other tables: triggers, policies, checks. On a shard it cannot reach rows of another shard.
 */
#ifndef TESSERA_CROSS_TABLE_CODE_H
#define TESSERA_CROSS_TABLE_CODE_H

#include "nodes/pg_list.h"
#include "utils/rel.h"

/*
 * Descriptions (char *, in the current context) of the triggers, policies, checks and index expressions of a table that may reach other rows than the
 * one they are about, for a message: 'trigger "t" (function public.f)'. NIL: none. Takes no locks beyond those of the system caches; the caller has
 * the table open.
 *
 * By analysis, on the safe side: a function counts unless it is the server's, of language internal or C, or PL/pgSQL whose body has neither an SQL
 * statement nor a call of a function that counts by name. What a C function or an EXECUTE-less operator does is not looked into.
 */
extern List *tessera_cross_table_code(Relation rel);

/* The same as one text, items separated by "; "; NULL: none. */
extern char *tessera_cross_table_code_text(Relation rel);

#endif							/* TESSERA_CROSS_TABLE_CODE_H */
