/*
 * move_rate.h
 *	  tessera.balancer_max_rate: the donors' shares of it (config node).
 */
#ifndef TESSERA_MOVE_RATE_H
#define TESSERA_MOVE_RATE_H

extern void tessera_move_rate_init(void);	/* from _PG_init */

#endif							/* TESSERA_MOVE_RATE_H */
