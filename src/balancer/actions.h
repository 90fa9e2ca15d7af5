/*
 * actions.h
 *	  Rows of tessera.balancer_action: what is asked for, begun, followed to its end. Config node.
 */
#ifndef TESSERA_BALANCER_ACTIONS_H
#define TESSERA_BALANCER_ACTIONS_H

#include "postgres.h"
#include "nodes/pg_list.h"
#include "utils/uuid.h"

#include "balancer/cluster_snapshot.h"
#include "catalog/bound.h"

/* Something to begin, with all that is needed for it: it outlives the transaction in which it was found. */
typedef struct TesseraBalancerAction
{
	TesseraPolicyKind kind;
	pg_uuid_t	action_id;		/* of its row, if it was asked for */
	bool		asked_for;
	char	   *schema;			/* that moves; NULL: a range of a table group, which the next fields are about */
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	pg_uuid_t	table_id;
	char	   *object;			/* the table's name */
	TesseraBound *min;			/* of its first range */
	TesseraBound *max;
	int			nranges;
	TesseraBound **mins;		/* of all ranges, if there are several */
	TesseraBound **maxs;
	int32		donor;			/* 0: whoever owns it */
	int32		recipient;
	char	   *to_shard;		/* its name */
	const char *reason;
	char	   *detail;			/* the reason in figures; NULL: none */
	double		bytes;			/* -1: not known */
	bool		verify;
} TesseraBalancerAction;

/*
 * What is asked for and may begin now, oldest first (a list of TesseraBalancerAction, in the current context); takes the room that it needs from the
 * snapshot's shards. In a transaction.
 */
extern List *tessera_balancer_requests(TesseraClusterSnapshot *snapshot);

/* An action of a plan, in the current context. */
extern TesseraBalancerAction *tessera_balancer_planned(const TesseraClusterSnapshot *snapshot, const TesseraPolicyAction *action);

/*
 * Begins it, and writes its row, in short transactions of its own, outside of any. false: it did not begin, which its row says, if it has one.
 */
extern bool tessera_balancer_begin(const TesseraBalancerAction *action);

/*
 * Rows of actions whose migrations have ended are changed accordingly. In a transaction. Returns how many run or are due; *next: when the next one is
 * due that has to wait, or the end of time.
 */
extern int64 tessera_balancer_follow(TimestampTz *next);

/*
 * Rows of the groups that the snapshot could not read: kind read, state failed, with the reason; done when they can be read again. Told in the log
 * when it begins. In a transaction.
 */
extern void tessera_balancer_note_unreadable(const TesseraClusterSnapshot *snapshot);

/* Text of a policy's reason, as in tessera.balancer_action. */
extern const char *tessera_policy_reason_text(TesseraPolicyReason reason);

#endif							/* TESSERA_BALANCER_ACTIONS_H */
