/*
 * chunk_report.h
 *	  Tells the config node what is known of this shard's chunks (tessera.chunk_estimate).
 */
#ifndef TESSERA_CHUNK_REPORT_H
#define TESSERA_CHUNK_REPORT_H

#include "postgres.h"

#include "balance/chunk_load.h"

/*
 * Reports all chunks of the group that this shard owns, if something has changed, and interval_ms have passed since the last report; more for many
 * chunks. Outside a transaction; allocates in the current context. Does not raise what the config node answers: it is told again later. *by_load: set
 * if it answers, to whether the balancer evens out load.
 */
extern void tessera_report_chunks(TesseraGroupLoad *load, int interval_ms, bool *by_load);

#endif							/* TESSERA_CHUNK_REPORT_H */
