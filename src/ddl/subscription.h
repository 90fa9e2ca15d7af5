/*
 * subscription.h
 *	  Logical replication into tables of the cluster, which is refused.
 */
#ifndef TESSERA_SUBSCRIPTION_H
#define TESSERA_SUBSCRIPTION_H

#include "nodes/pg_list.h"

#include "ddl/ddl.h"
#include "routing/routing.h"

/* A table of the cluster into which a subscription of a node writes, though it must not. */
typedef struct TesseraSubscribed
{
	Oid			relid;			/* partitions count by themselves */
	const char *subscription;
	const char *node;
} TesseraSubscribed;

/*
 * Those of this node, and those of all nodes: List of TesseraSubscribed, in the current context. The nodes are asked at once, for 5 s at most:
 * to be called before locks are taken. One that does not answer in time, or is of a version that cannot say, is taken to have none: rows of a
 * subscription are refused where they come, whatever is known elsewhere. Catalog access.
 */
extern List *tessera_subscribed_here(const TesseraRouting *routing);
extern List *tessera_subscribed_anywhere(const TesseraRouting *routing);

/* CREATE and ALTER SUBSCRIPTION. ERROR 0A000 if a table of the cluster would be added; WARNING if it is enabled while it has one. */
extern void tessera_subscription(TesseraUtility *utility, const TesseraRouting *routing);

/* Step before a commit or PREPARE. In a worker of logical replication: ERROR 0A000 if its subscription has a table of the cluster. */
extern void tessera_subscription_before_end(void);

extern void tessera_subscription_init(void);	/* from _PG_init: what makes the guard look again */

#endif							/* TESSERA_SUBSCRIPTION_H */
