/*
 * load_tracking.h
 *	  What statements write and cost on this shard, by key: samples of it go to the splitter (load/load_sample.h).
 */
#ifndef TESSERA_LOAD_TRACKING_H
#define TESSERA_LOAD_TRACKING_H

#include "postgres.h"
#include "executor/execdesc.h"

/* For plans that are run without the executor's hooks (local parts): after standard_ExecutorStart, around what runs, before standard_ExecutorEnd. */
extern void tessera_load_start(QueryDesc *query, int eflags);
extern void tessera_load_enter(QueryDesc *query);
extern void tessera_load_leave(QueryDesc *query);
extern void tessera_load_end(QueryDesc *query);

extern void tessera_load_tracking_init(void);	/* from _PG_init: executor hooks */

#endif							/* TESSERA_LOAD_TRACKING_H */
