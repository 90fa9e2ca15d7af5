/*
 * donor_private.h
 *	  What the files of the donor's side share: donor.c (start, and the whole), donor_serve.c (one turn of the loop), donor_gate.c (the gates and the
 *	  hand-over).
 */
#ifndef TESSERA_DONOR_PRIVATE_H
#define TESSERA_DONOR_PRIVATE_H

#include "postgres.h"
#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "utils/timestamp.h"

#include "catalog/migration_row.h"
#include "migration/burden.h"
#include "migration/donor.h"
#include "migration/migration_outcome.h"
#include "transaction/background.h"
#include "transfer/lock_holders.h"
#include "transfer/pipe.h"
#include "transfer/transfer.h"

#define MAX_REQUESTS 64			/* not answered at a time, of each kind */
#define LAG_SAMPLES 64

typedef struct TesseraRequests
{
	int			n;
	int64		sequence[MAX_REQUESTS];
} TesseraRequests;

/* How long the last few questions to one place took until their answer, in milliseconds. */
#define ROUND_TRIPS 8

typedef struct TesseraRoundTrips
{
	int			n;
	double		ms[ROUND_TRIPS];	/* the last ones, in a ring */
} TesseraRoundTrips;

/* How it makes way (donor_yield.c). */
typedef struct TesseraYield
{
	double		rate;			/* bytes a second that it may send; 0: any */
	double		debt;			/* bytes sent that are not paid off at that rate */
	TimestampTz debt_at;
	TimestampTz rate_due;		/* asks the config node then */
	TimestampTz reported;		/* has told it what was sent; 0: not yet */
	int64		reported_bytes;
	TesseraBurden burden;		/* on either side, when last looked */
	TesseraBurden recipients;	/* on the recipient, as its status said */
	char		recipients_text[TESSERA_BURDEN_TEXT];
	char		who[TESSERA_BURDEN_TEXT + 16];
	char		why[TESSERA_BURDEN_TEXT + 16];	/* of the last rest */
	TimestampTz look_due;
	int			batch;			/* kB; 0: not looked yet */
	int			rest_ms;		/* after each batch of the clone */
	TimestampTz rest_until;
	bool		rests;
	bool		late;			/* makes way no more */
} TesseraYield;

typedef struct TesseraDonor
{
	MemoryContext context;		/* of this struct: lives as long as the migration runs */
	MemoryContext scratch;		/* reset at each turn of the loop */
	TesseraMigrationRow *row;
	TesseraMovingRanges *moving;
	TesseraDonorResult *known;

	/* data */
	TesseraExchangeKeys keys;
	TesseraPipe pipe;
	TesseraCapture *capture;
	TesseraCloneReader *reader;
	StringInfoData payload;
	bool		in_snapshot;	/* the clone's transaction is open */
	TesseraVerify *verify;		/* NULL: the move is not verified */
	bool		clone_sent;
	TesseraRequests clone_requests;
	TesseraRequests mods_requests;
	XLogRecPtr	sent;			/* changes up to here are with the recipient or on their way */
	XLogRecPtr	batch_sent;		/* of the last changes sent */
	XLogRecPtr	applied;		/* the recipient has committed up to here */
	XLogRecPtr	upto;			/* hand out no later changes; invalid: all that are flushed */
	XLogRecPtr	last;			/* acknowledging this position is the recipient's confirmation */
	bool		taken_back;		/* the recipient must be told that it is not, any more */
	bool		mods_begun;		/* the recipient has committed the clone */
	TimestampTz last_empty;
	TimestampTz clone_not_before;	/* rate limit */

	TesseraYield yield;
	int64		rows_total;		/* estimate; -1: not known */

	/* lag: when which position was flushed */
	struct
	{
		TimestampTz at;
		XLogRecPtr	lsn;
	}			samples[LAG_SAMPLES];
	int			nsamples;

	/* what the network costs */
	TesseraRoundTrips config;	/* calls of the config node */
	TesseraRoundTrips recipient;	/* calls of the recipient */
	TesseraRoundTrips exchange; /* a message without rows, and the recipient's next request */
	XLogRecPtr	probe;			/* position of the one that is under way; invalid: none */
	TimestampTz probe_sent;

	/* who may be inside without the gate lock */
	TesseraLockHolders *older;

	/* times, by tessera_now */
	TimestampTz started;
	TimestampTz status_due;
	int			status_ms;
	TimestampTz status_lost;	/* since then the recipient's node has not answered; 0: it has */
	TimestampTz progress_due;
	TimestampTz give_way_due;
	TimestampTz next_attempt;
	TimestampTz held_since;		/* the config node keeps the decision, done but for its end, since then; 0: it does not */
	int			overruns;		/* attempts at the gate that the recipient was too slow for */
	int			too_far;		/* attempts that were not begun as the network alone takes too long */
	TimestampTz holders_since;	/* since then those inside are waited for */
} TesseraDonor;

/* Milliseconds that have passed since then. */
static inline long
tessera_ms_since(TimestampTz then)
{
	return (long) ((tessera_now() - then) / 1000);
}

/* round_trip.c */

/* An answer has come to what was asked then. */
extern void tessera_round_trip_note(TesseraRoundTrips *trips, TimestampTz asked);

/*
 * Milliseconds that one critical section takes by the network alone: its round trips one after the other, each as short as the shortest of the last
 * few.
 */
extern double tessera_donor_latency(const TesseraDonor *donor);

/*
 * True if the gate may be closed, by that estimate. Otherwise false, and waiting_for tells the reason; ERROR 53400 after
 * tessera.critical_section_attempts.
 */
extern bool tessera_donor_near_enough(TesseraDonor *donor);

/* donor_serve.c */

/* The migration's id as text, palloc'd. */
extern const char *tessera_donor_id(TesseraDonor *donor);

/*
 * One turn: takes in requests, interrupts, settings; answers; looks after limits and lag. Sleeps at most sleep_ms if there was nothing to do. ERROR
 * when a limit is reached, the migration is cancelled, or the recipient reports an error.
 */
extern void tessera_donor_turn(TesseraDonor *donor, long sleep_ms);

/* Asks whether the recipient's worker lives: 1 ms after the start, then at intervals that double (S50). Raises the recipient's error. */
extern void tessera_donor_poll_status(TesseraDonor *donor);

/* Best effort: what the config node shows of it. Never while a gate is closed. now: even if it was told a moment ago. false: it could not be told. */
extern bool tessera_donor_tell_progress(TesseraDonor *donor, bool now);

/* The last batch: no changes, and a position that no batch had. Its acknowledgement is the recipient's confirmation. Returns the position. */
extern XLogRecPtr tessera_donor_send_last(TesseraDonor *donor);

/* donor_yield.c: all but the first do nothing for a move that makes no way */

/* What the recipient's status has said: a TesseraBurden, and who suffers. */
extern void tessera_donor_note_recipient(TesseraDonor *donor, int32 burden, const char *text);

/* True while no batch is to be handed out; shown as what is waited for. */
extern bool tessera_donor_rests(TesseraDonor *donor);

/* Bytes of the clone's next batch; and what to do when it was handed out. */
extern Size tessera_donor_batch_size(TesseraDonor *donor);
extern void tessera_donor_has_sent(TesseraDonor *donor, Size bytes);

/* About once a second tells the config node what was sent, and takes the share of tessera.balancer_max_rate. Not while it keeps the decision. */
extern void tessera_donor_ask_rate(TesseraDonor *donor);

/* donor_gate.c */

/* Transactions that may have written without the gate lock are not over yet; shown as what is waited for. */
extern bool tessera_donor_older_writers_left(TesseraDonor *donor);

/* Those inside when we last looked (*seen, NULL: look now) have not all ended: the gate must not be closed yet. */
extern bool tessera_donor_holders_linger(TesseraDonor *donor, TesseraLockHolders **seen);

/*
 * Before an attempt: checks, plans, and the config node's decision, which it keeps, done but for its end, with the rows of the groups locked there.
 * While it does, this process must not ask it for anything that changes the migration's row. If it could not, next_attempt and waiting_for say so. It
 * may take seconds, in which the recipient is not served. ERROR if the config node refuses, or is too far for too often.
 */
extern void tessera_donor_prepare_gate(TesseraDonor *donor);

/* True if the config node keeps the decision; given up here if no attempt was made for too long. */
extern bool tessera_donor_holds_decision(TesseraDonor *donor);

/*
 * One attempt at the critical section, with the decision kept: true if the range was given up; false if it was abandoned, and gate and decision are
 * given up again.
 */
extern bool tessera_donor_attempt_gate(TesseraDonor *donor);

/* Has the config node commit the move. */
extern void tessera_donor_decide(TesseraDonor *donor);

#endif							/* TESSERA_DONOR_PRIVATE_H */
