/*
 * local_statement.h
 *	  Whole statements whose one shard is this node: the local plan of the same text runs in the place of the routed plan, not nested in it.
 *
 * What such a statement may do and sees is what a local part (local_part.h) does: planned in shard mode by core's plan cache, checked against the
 * placement under the statement's own snapshot, privileges and policies applied by core. The difference is that no second executor runs around it.
 */
#ifndef TESSERA_LOCAL_STATEMENT_H
#define TESSERA_LOCAL_STATEMENT_H

/* Executor hooks. From _PG_init. */
extern void tessera_local_statement_init(void);

#endif							/* TESSERA_LOCAL_STATEMENT_H */
