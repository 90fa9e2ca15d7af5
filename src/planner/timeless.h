/*
 * timeless.h
 *	  What a shard can run without being told when transaction and statement began (doc/design.md#one-time).
 */
#ifndef TESSERA_TIMELESS_H
#define TESSERA_TIMELESS_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "utils/rel.h"

/*
 * True if nothing that runs where the rows are may ask for now() or statement_timestamp(): only immutable functions of the server's own, no policies,
 * no checks of domains; where it writes, no triggers but those of foreign keys, and no check constraint of another kind. query: prepared for the
 * shards (tessera_prepare_query). Its tables are locked.
 */
extern bool tessera_query_is_timeless(Query *query);

/* The same of a scan of the table with these conditions, which only reads. */
extern bool tessera_scan_is_timeless(Relation table, Node *conditions);

#endif							/* TESSERA_TIMELESS_H */
