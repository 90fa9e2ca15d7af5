/*
 * cluster_time.h
 *	  Cluster time in transactions (doc/design.md#cluster-time): commits that write tick the clock of a shard.
 */
#ifndef TESSERA_CLUSTER_TIME_H
#define TESSERA_CLUSTER_TIME_H

#include "postgres.h"

#include "clock/time_value.h"
#include "transport/connection.h"

/*
 * In front of what writes, or commits: states this node's times if the other one may not have them, so that the commit there is later. Nothing is
 * sent if it has said as much itself. ERROR 08006 as any queueing.
 */
extern void tessera_queue_time(TesseraConnection *connection);

/* ERROR 55000 if the other node has stated a time too far ahead of the clock here. */
extern void tessera_require_clock(TesseraConnection *connection);

/* The time that this session's statements are to see at least, by tessera.after_cluster_time; 0: none. */
extern TesseraTime tessera_after_cluster_time(void);

/* The COMMIT PREPARED of a part, palloc'd; time: of the transaction, for a node of TESSERA_PREPARED_TIME_PROTOCOL or later; 0: says none. */
extern char *tessera_commit_prepared_text(const char *gid, TesseraTime time);

/*
 * Prepared transactions that the server has found at its start are known to those who look for commits under way. Once in the life of the server;
 * in a transaction.
 */
extern void tessera_clock_find_prepared(void);

/*
 * Steps: a transaction that has written takes its time before it commits or is prepared (errors as of tessera_clock_take_commit_time); afterwards the
 * time goes from its slot to where those that are over are looked for: these never raise.
 */
extern void tessera_cluster_time_before_commit(void);
extern void tessera_cluster_time_before_prepare(void);
extern void tessera_cluster_time_committed(void);
extern void tessera_cluster_time_prepared(void);
extern void tessera_cluster_time_aborted(void);

extern void tessera_cluster_time_init(void);	/* from _PG_init: settings, hooks */

#endif							/* TESSERA_CLUSTER_TIME_H */
