/*
 * cut_doubts.h
 *	  What a common snapshot finds prepared: its coordinators are asked whether it is decided, instead of waited for (doc/design.md#one-snapshot).
 */
#ifndef TESSERA_CUT_DOUBTS_H
#define TESSERA_CUT_DOUBTS_H

#include "postgres.h"

#include "clock/commit_times.h"
#include "executor/cut.h"

/*
 * Asks the coordinators of those doubts of the moment that may be decided by its time, all at once, and notes what they say. Of nodes that the
 * statement reads an error is the statement's; others that cannot be asked leave their transactions in doubt: who takes the snapshot waits for them.
 */
extern void tessera_cut_settle_doubts(const TesseraCutNodes *nodes, uint64 statement, TesseraCutMoment *moment);

/* For the call take: those of the node that are known, as texts of arrays, palloc'd. */
extern void tessera_cut_doubts_text(const TesseraCutMoment *moment, int32 node_id, char **gids, char **answers);

#endif							/* TESSERA_CUT_DOUBTS_H */
