/*
 * cut_private.h
 *	  What the files of the router's side of a common snapshot share: cut.c asks, cut_spares.c those that need not answer, cut_transaction.c begins
 *	  the snapshots of transactions.
 */
#ifndef TESSERA_CUT_PRIVATE_H
#define TESSERA_CUT_PRIVATE_H

#include "postgres.h"
#include "utils/timestamp.h"

#include "executor/cut.h"

/* Setting tessera.snapshot_timeout, in ms. */
extern int	tessera_snapshot_timeout;

/* The clock goes, or is started now: it does not on a standby. */
extern bool tessera_cut_has_clock(void);

/* As tessera_cut_ask_nodes, without settling what is in doubt; the moment's time is the newest that any of them has seen. */
extern bool tessera_cut_ask_all(TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment);

/* Sends the question; false: the node is of a version that does not know it. */
extern bool tessera_cut_send_ask(TesseraQuestion *ask, const TesseraCutNodes *nodes, int32 node_id, uint64 statement);

/* Adds the answer to the moment. false: the node routes the tables otherwise. */
extern bool tessera_cut_read_ask(const TesseraQuestion *ask, TesseraCutMoment *moment);

/* ---- cut_spares.c: shards that are only asked in case they are needed later ---- */

/* What is sent to one node, for tessera_spare_reach. */
typedef struct TesseraSpare
{
	const TesseraCutNodes *nodes;
	int32		node_id;
	uint64		statement;
	TesseraQuestion *ask;
	const TesseraCutMoment *moment;
	bool		sent;
	ErrorData  *error;			/* why it was not reached, palloc'd */
} TesseraSpare;

/* How long spares are waited for, from now on: not so long that the statement fails for it. */
extern TimestampTz tessera_spares_deadline(void);

/*
 * Sends the spare something, in time (deadline 0: the usual one). false: it cannot be reached then, or is not one that this node would work with; it
 * is in the transaction no more, and the error is in spare->error. Other errors, and those of nodes that cannot leave the transaction, are raised.
 */
extern bool tessera_spare_reach(TesseraSpare *spare, void (*send) (TesseraSpare *spare), TimestampTz deadline);

/* Asks those of the nodes that are spares; counts in *n how many were asked. */
extern void tessera_spares_ask(const TesseraCutNodes *nodes, TesseraQuestion *asks, volatile int *n, TimestampTz deadline);

/* Adds to the moment what n spares, who were asked since then, answer until the deadline; the others leave the transaction. */
extern void tessera_spares_hear(TesseraQuestion *asks, int n, TimestampTz since, TimestampTz deadline, TesseraCutMoment *moment);

/* This process has a connection to it for transactions. */
extern bool tessera_spare_is_connected(int32 node_id);

/* It leaves the transaction: it is asked when it is needed. */
extern void tessera_spare_let_go(TesseraQuestion *ask);

/* One that kept others waiting since then, for long enough, is left alone for a while. */
extern void tessera_spare_note_late(int32 node_id, TimestampTz since);

/* What may be wrong with a node that is not needed: it cannot be reached, or is not one that this node would work with. */
extern bool tessera_is_no_matter(const TesseraRouting *routing, int sqlerrcode);

#endif							/* TESSERA_CUT_PRIVATE_H */
