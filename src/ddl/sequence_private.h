/*
 * sequence_private.h
 *	  What the files about sequences share; the rest of the extension needs sequence.h only.
 */
#ifndef TESSERA_SEQUENCE_PRIVATE_H
#define TESSERA_SEQUENCE_PRIVATE_H

#include "postgres.h"
#include "storage/lockdefs.h"
#include "utils/rel.h"

#include "ddl/sequence.h"
#include "routing/routing.h"

/* ---- sequence.c ---- */

/* Opens the sequence on this node, with the lock, which the caller keeps to the end of the transaction or gives back. ERROR 42809 if it is none. */
extern Relation tessera_sequence_open(Oid sequence, LOCKMODE mode);

/* True if this transaction has created or rewritten it, so that no other sees it as it is. Then the home is asked within the transaction. */
extern bool tessera_sequence_is_own(Relation rel);

/*
 * Calls to the home, within the transaction (inside) or over the control connection, which commits at once; their errors go through.
 * draw: up to n values, none if the home has none to give; draw and set return
 * false if the node is not the home any more. draw_within: the same outside the transaction, with a deadline in ms.
 * state: last_value, log_cnt, is_called into values[3] and nulls[3]; false if the node is not the home any more, or is about to hand it over: then
 * that is where the sequence stood when it did.
 */
extern bool tessera_sequence_draw(const TesseraRouting *routing, int32 home, bool inside, Oid sequence, int n, TesseraBlock *block);
extern void tessera_sequence_draw_within(const TesseraRouting *routing, int32 home, Oid sequence, int n, int timeout, TesseraBlock *block);
extern bool tessera_sequence_set(const TesseraRouting *routing, int32 home, bool inside, Oid sequence, int64 value, bool called);
extern bool tessera_sequence_state(const TesseraRouting *routing, int32 home, bool inside, Oid sequence, Datum *values, bool *nulls);

/* Objects that no catalog has: a sequence that is drawn from, set, or handed over on its home. */
#define TESSERA_SEQUENCE_BLOCK_CLASS ((Oid) 0xFFFFFFF2)

/*
 * On the home, before values are drawn (ShareLock) or the sequence is set (ExclusiveLock), and behind nextval's lock on it: false if this node is not
 * the home any more, or is handing it over; then nothing is locked. true: it is the home until tessera_sequence_end, or the transaction's end.
 * After a promotion waits until it is known what this node has; ERROR 57P03 if that takes too long.
 */
extern bool tessera_sequence_begin(Oid sequence, LOCKMODE mode);
extern void tessera_sequence_end(Oid sequence, LOCKMODE mode);

/* True if its schema may move, or may have moved: then values are drawn between the two functions above. */
extern bool tessera_sequence_moves(const TesseraRouting *routing, Oid sequence);

/* A node was not the home: fetches what the config node says, waits a little, longer each time, and returns the home. ERROR 40001 after a while. */
extern int32 tessera_sequence_await_home(Oid sequence, TimestampTz *since, int *attempts);

/* Empties the pools of all nodes, this one included. ERROR if a node does not answer. */
extern void tessera_sequence_forget_everywhere(const TesseraRouting *routing, Oid sequence);

/* ---- sequence_functions.c ---- */

/* Values that this transaction drew ahead of the sequence are not given out any more. Never errors. */
extern void tessera_sequence_drop_own(Oid sequence);

/* ---- sequence_home.c: on the sequence's home ---- */

/* setval with core's own checks; waits for values that are being drawn for another node. false: this node is not the home any more. */
extern bool tessera_sequence_set_here(Oid sequence, int64 value, bool called);

/* The sequence's row as it stands on this node, into values[3] and nulls[3]; false: it has none. */
extern bool tessera_sequence_read_here(Oid sequence, Datum *values, bool *nulls);

/* The same; *current: this node was the home then, as far as it knows, and was not handing it over. */
extern bool tessera_sequence_read_current(Oid sequence, Datum *values, bool *nulls, bool *current);

#endif							/* TESSERA_SEQUENCE_PRIVATE_H */
