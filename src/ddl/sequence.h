/*
 * sequence.h
 *	  Sequences of the cluster (doc/design.md#sequences): each is authoritative on its home, the shard of its schema; other nodes draw blocks of
 *	  values from there.
 */
#ifndef TESSERA_SEQUENCE_H
#define TESSERA_SEQUENCE_H

#include "postgres.h"
#include "nodes/pg_list.h"

#include "routing/routing.h"

/* ---- sequence_pool.c: values of this node that are not given out yet, in shared memory ---- */

#define TESSERA_POOL_RUNS 64

/* first, first + step, ...: count values. */
typedef struct TesseraRun64
{
	int64		first;
	int64		step;
	int32		count;
} TesseraRun64;

typedef struct TesseraBlock
{
	int			nruns;
	TesseraRun64 runs[TESSERA_POOL_RUNS];
} TesseraBlock;

/* Gets n (at most) values of a sequence from its home, outside the transaction. */
typedef void (*TesseraBlockFetch) (void *arg, int n, TesseraBlock *block);

/* The next value from the pool; fetches a block if it is empty (others wait for it, bounded). Errors of the fetch go through. */
extern int64 tessera_pool_next(Oid sequence, TesseraBlockFetch fetch, void *arg);

/* Empties the pool; a block that is being fetched is not added. Never raises. */
extern void tessera_pool_forget(Oid sequence);

extern void tessera_pool_init(void);	/* from _PG_init */

/*
 * For the sequence fetcher. next_wish: the next pool of this database, from *position (0 at first) on, that needs more values; returns how many, 0:
 * there is no such pool. bring: adds what was fetched, unless the pool was emptied since (generation). block NULL: the home did not answer; an empty
 * block: the pool is not filled ahead for now.
 */
extern int	tessera_pool_next_wish(int *position, Oid *sequence, uint64 *generation);
extern void tessera_pool_bring(Oid sequence, uint64 generation, const TesseraBlock *block);

/* Takes the first value of a block; false if it is empty. */
extern bool tessera_block_take(TesseraBlock *block, int64 *value);

/* ---- sequence.c ---- */

/* True for a sequence of the cluster: permanent, of no local table and of no extension. */
extern bool tessera_is_cluster_sequence(const TesseraRouting *routing, Oid sequence);

/* Node that has the authoritative one. */
extern int32 tessera_sequence_home(const TesseraRouting *routing, Oid sequence);

/*
 * SET SCHEMA can give a sequence another home. before: the sequences that the statement names, or that belong to the table it names, with their
 * homes; NIL for other statements. after, when it has run on every node, which holds off nextval everywhere: each goes on at its new home where it
 * stood at the old one. In the statement's transaction.
 */
extern List *tessera_sequences_before(Node *statement, const TesseraRouting *routing);
extern void tessera_sequences_after(List *before);

/* After the sequence was altered, restarted or dropped here: values drawn before are not given out any more. Never raises. */
extern void tessera_sequence_changed(Oid sequence);

/* ---- sequence_fetcher.c ---- */

/*
 * The sequence fetcher's step: brings the values that pools of this database want. Runs its own transactions. Returns ms until the next step, -1: it
 * is not needed.
 */
extern long tessera_sequence_fetcher_step(void);

/* ---- sequence_functions.c ---- */

/* Steps: values that were drawn for the transaction alone are dropped at its end, and where a part of it is rolled back. Never raise. */
extern void tessera_sequences_ended(void);
extern void tessera_sequences_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

/* The session's values are forgotten: DISCARD SEQUENCES. */
extern void tessera_sequences_discard(void);

/*
 * Location of a call of tessera.sequence_row that the planner has made of a sequence in FROM: core has checked the privileges. No text has such a
 * location.
 */
#define TESSERA_SEQUENCE_CHECKED (-3)

#endif							/* TESSERA_SEQUENCE_H */
