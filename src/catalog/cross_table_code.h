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

/* The same of a table and its partitions, each of which is locked (AccessShareLock) while it is looked at. */
extern List *tessera_cross_table_code_of_tree(Relation rel);

/* The descriptions as one text, separated by "; "; NULL: none. */
extern char *tessera_cross_table_code_text(List *found);

/* A word of a body, in lower case but for quoted names; called: it stands in front of "(". */
typedef bool (*TesseraWordTest) (const char *word, bool called);

/*
 * True if the function may reach a table, as far as can be seen: one of C does not. In PL/pgSQL also if a word of its body, not behind a dot, meets
 * the test (NULL: none). A body that cannot be read, and one in another language, counts.
 */
extern bool tessera_function_reaches(Oid function, TesseraWordTest test);

/* The same of a stored expression (pg_node_tree), such as a trigger's WHEN. */
extern bool tessera_condition_reaches(const char *condition);

#endif							/* TESSERA_CROSS_TABLE_CODE_H */
