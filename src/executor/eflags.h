/*
 * eflags.h
 *	  The extension's own bits in a statement's eflags (es_top_eflags of its EState): what the executor's hooks and plan nodes note about a statement
 *	  belongs to it and goes with it.
 *
 * Parallel workers start with the bits of their leader; only the leader acts on them.
 */
#ifndef TESSERA_EFLAGS_H
#define TESSERA_EFLAGS_H

/*
 * Given at the start: what its rows are read for writes or locks rows. So that two of a kind meet in the same order, rows then come shard by shard.
 */
#define TESSERA_EXEC_FOR_WRITE 0x01000000

/* Found at the start (shard_check.c): it is routed by a stale placement and must not run; it runs under a snapshot kept from an earlier fragment. */
#define TESSERA_EXEC_STALE 0x02000000
#define TESSERA_EXEC_KEPT_SNAPSHOT 0x04000000

/* Its plan is kept with what was measured, when it ends (explain_remote.c). */
#define TESSERA_EXEC_MEASURED 0x08000000

#endif							/* TESSERA_EFLAGS_H */
