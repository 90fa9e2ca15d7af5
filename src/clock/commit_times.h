/*
 * commit_times.h
 *	  The cluster times of this server's commits: of those under way, and of recent ones, in shared memory; and snapshots as of such a time.
 *
 * A commit that writes fills its slot before it takes its time, and leaves it for the ring of recent commits when it can be seen. So whoever has
 * taken a snapshot finds each commit that it sees, and that is not older than what was visible before, in a slot or in the ring: slots first, then
 * the ring. Prepared transactions have a slot each, with the time at which they were prepared: their commit's is later.
 *
 * What is not here is a transaction's time after a restart: nothing that was committed before is hidden from anybody then.
 * doc/design.md#one-snapshot has the reasons.
 */
#ifndef TESSERA_COMMIT_TIMES_H
#define TESSERA_COMMIT_TIMES_H

#include "postgres.h"
#include "access/xact.h"
#include "nodes/pg_list.h"
#include "utils/snapshot.h"

#include "clock/time_value.h"

/* ---- a commit ---- */

/*
 * Fills the slot of this backend's transaction and takes its time from the clock; of one that has it already nothing is done. fixed: others are told
 * the time before it is committed, so no reader may make it later. false: the time is not reserved, and nothing has changed; *time says what to
 * reserve (clock.h).
 */
extern bool tessera_commit_take_time(TransactionId xid, bool metadata, bool fixed, TesseraTime *time);

/* After it can be seen: its slot is free again. The time, which may have become later; 0: it had none. Raises nothing. */
extern TesseraTime tessera_commit_seen(void);

/* It was rolled back. Raises nothing. */
extern void tessera_commit_given_up(void);

/*
 * It was prepared: the slot of its stand-in (number of its PGPROC) takes over; gid as in pg_prepared_xacts; of_client: a client decides some day, and
 * no reader waits for that. And for one that the server has found when it started, with a time that is not known: 0.
 */
extern void tessera_commit_prepared(int proc, const char *gid, bool of_client);
extern void tessera_commit_found_prepared(TransactionId xid, const char *gid, bool of_client);

/* What is prepared under the gid in this database; false: nothing that is known here. */
extern bool tessera_commit_find_prepared(const char *gid, TransactionId *xid, TesseraTime *prepared);

/* This backend commits a prepared transaction with this time: before it does; and after it has, or has failed. The latter raises nothing. */
extern void tessera_commit_begin_prepared(TransactionId xid, TesseraTime time);
extern void tessera_commit_end_prepared(TransactionId xid);

/* True if the prepared transactions that the server has found at its start have their slots. */
extern bool tessera_commit_knows_found(void);
extern void tessera_commit_all_found(void);

/* Nothing that was committed before is later than this: what a node knows when its clock starts. */
extern void tessera_commit_start(TesseraTime time);

/*
 * True if the transaction has taken the time that its commit is going to have. Once the clock was raised to a time, one that has not takes a later
 * one.
 */
extern bool tessera_commit_taken(TransactionId xid, TesseraTime *time);

/* ---- snapshots as of a time ---- */

/* What the coordinator of a prepared transaction says of its decision, as it is sent between nodes. */
typedef enum TesseraDecided
{
	TESSERA_DECIDED_UNKNOWN,	/* it was not asked, or could not be */
	TESSERA_DECIDED_LATER,		/* not at the time or before: it will be later, or is rolled back */
	TESSERA_DECIDED				/* at the time or before: it is going to be committed here */
} TesseraDecided;

/* A transaction that is prepared here, and that a snapshot does not see. */
typedef struct TesseraDoubt
{
	char		gid[GIDSIZE];	/* as in pg_prepared_xacts */
	TransactionId xid;
	bool		of_client;
	TesseraTime prepared;		/* its commit is later; 0: not known */
	TesseraDecided decided;
} TesseraDoubt;

/* True for a transaction that concerns who asks: its slot's PGPROC. */
typedef bool (*TesseraConcerns) (int proc, TransactionId xid, void *arg);

/* Those that concern who asks (NULL: all): list of palloc'd TesseraDoubt, whose coordinators were not asked. */
extern List *tessera_commit_doubts(Snapshot snapshot, TesseraConcerns concerns, void *arg);

/* Where the ring stands: commits that can be seen from now on will be found from there on. */
extern uint64 tessera_commit_position(void);

/* The newest time of a commit that the snapshot sees, taken just now. */
extern TesseraTime tessera_commit_newest(Snapshot snapshot);

/* Why a snapshot cannot be had. */
typedef enum TesseraCut
{
	TESSERA_CUT_MADE,
	TESSERA_CUT_LATE,			/* too much was committed since it was asked for, or too much of it is later: ask again */
	TESSERA_CUT_AGAIN,			/* it is being committed, or was meanwhile: take a new snapshot and try again */
	TESSERA_CUT_WAIT			/* a commit that it may have to see is under way, and cannot be made later: wait for its end first */
} TesseraCut;

/* Transactions that are under way and may be committed at the time or before. Fixed size: who waits for some looks again. */
#define TESSERA_CUT_WAITS 64

typedef struct TesseraCutRequest
{
	TesseraTime time;
	uint64		position;		/* of the ring, when it was asked for */
	TesseraConcerns concerns;	/* whose end must be waited for; NULL: all */
	void	   *arg;
	List	   *doubts;			/* of TesseraDoubt: of these it is known */
	List	   *clients;		/* of xids (integers): those of clients that were named when it was asked for; with another one it is late */
	List	   *named;			/* of xids (integers): they were named, too, and if nothing is known of them they are not waited for */
	bool		serializable;	/* of two serializable ones, what is hidden must not have been committed before what is shown: else it is late */
} TesseraCutRequest;

typedef struct TesseraCutResult
{
	TransactionId *hidden;		/* palloc'd: top-level ids of what the snapshot sees and is later than the time */
	int			nhidden;
	TransactionId waits[TESSERA_CUT_WAITS]; /* these must be waited for */
	int			nwaits;
	List	   *open;			/* of xids (integers): left open, not in the snapshot */
} TesseraCutResult;

/*
 * What must be done to a snapshot, taken after the clock was raised to the time, that it be as of this time. Makes commits that are under way later
 * than it, where that is possible.
 */
extern TesseraCut tessera_commit_cut(Snapshot snapshot, const TesseraCutRequest *request, TesseraCutResult *result);

/*
 * The time of a transaction that has committed since the ring stood at the position, and can be seen. false: it is not known any more.
 */
extern bool tessera_commit_time_of(TransactionId xid, uint64 position, TesseraTime *time);

extern void tessera_commit_times_init(void);	/* from _PG_init */

#endif							/* TESSERA_COMMIT_TIMES_H */
