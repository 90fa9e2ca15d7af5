/*
 * balancer_settings.h
 *	  What the balancer goes by: settings of the config node's server, switches of the whole cluster, and which nodes it leaves alone for a while.
 */
#ifndef TESSERA_BALANCER_SETTINGS_H
#define TESSERA_BALANCER_SETTINGS_H

#include "postgres.h"
#include "datatype/timestamp.h"

#include "balance/policy.h"

extern int	tessera_balancer_interval;	/* s */

/* Chunks that have moved within so many seconds are not merged. */
extern double tessera_merge_after_s(void);

/* By the settings, the cluster's switch and the window. In a transaction on the config node. */
extern void tessera_balancer_policy_settings(TesseraPolicySettings *settings);

/*
 * Switches of the cluster, rows of tessera.setting: stopped (stop_balancer) and paused (pause_balancer; until when). reason: why nothing is balanced
 * now, or NULL; palloc'd. In a transaction.
 */
typedef struct TesseraBalancerSwitches
{
	bool		stopped;
	bool		paused;			/* nothing is begun at all */
	const char *reason;
} TesseraBalancerSwitches;

extern void tessera_balancer_switches(TesseraBalancerSwitches *switches);

/*
 * In this process: a node that could not be reached, or refused, is left alone for a time that doubles with each failure in a row, up to 5 minutes.
 */
extern bool tessera_balancer_node_usable(int32 node_id);
extern void tessera_balancer_node_failed(int32 node_id);
extern void tessera_balancer_node_answered(int32 node_id);

extern void tessera_balancer_settings_init(void);	/* from _PG_init */

#endif							/* TESSERA_BALANCER_SETTINGS_H */
