/*
 * node_clocks.h
 *	  The clocks of the other nodes, asked one after the other.
 */
#ifndef TESSERA_NODE_CLOCKS_H
#define TESSERA_NODE_CLOCKS_H

#include "postgres.h"

#include "clock/clock.h"

typedef struct TesseraNodeClock
{
	NameData	name;
	bool		is_self;
	bool		known;			/* it has answered */
	TesseraTimes times;
	TesseraTime wall;
} TesseraNodeClock;

/* Of all nodes, this one included (palloc'd); each is waited for so many ms at most. In a transaction. ERROR 55000 if this database is no node. */
extern TesseraNodeClock *tessera_node_clocks(int timeout_ms, int *n);

/*
 * After a promotion, before anything is answered: this node's clock is raised above that of every node that can be reached, and ticks. Runs its own
 * transaction. A node whose clock is too far ahead is left out, with a word in the log.
 */
extern void tessera_clock_promoted(void);

#endif							/* TESSERA_NODE_CLOCKS_H */
