/*
 * split_ahead.h
 *	  Splits off the end of the key space that ascending (or descending) keys will reach soon, and has it moved while it is empty.
 */
#ifndef TESSERA_SPLIT_AHEAD_H
#define TESSERA_SPLIT_AHEAD_H

#include "postgres.h"

#include "balance/chunk_load.h"

/*
 * Looks at both ends of the group, where enough has been written since the last look. Outside a transaction; allocates in the current context.
 * Returns whether something was changed on the config node, so that a refresh is due.
 */
extern bool tessera_split_ahead(TesseraGroupLoad *load);

#endif							/* TESSERA_SPLIT_AHEAD_H */
