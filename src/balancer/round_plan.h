/*
 * round_plan.h
 *	  What a round of the balancer has decided, and why: kept for explain_balancer(). Config node.
 */
#ifndef TESSERA_ROUND_PLAN_H
#define TESSERA_ROUND_PLAN_H

#include "postgres.h"

#include "balancer/cluster_snapshot.h"

/*
 * Keeps the plan of this round in place of the last one's, in the transaction that decides it. snapshot NULL: the balancer is paused, nothing was
 * planned.
 */
extern void tessera_round_plan_keep(const TesseraClusterSnapshot *snapshot, const TesseraPolicyPlan *plan);

#endif							/* TESSERA_ROUND_PLAN_H */
