/*
 * key_index.h
 *	  The key index of a sharded table: the index by which ranges of keys are scanned, sampled, cloned and deleted.
 */
#ifndef TESSERA_KEY_INDEX_H
#define TESSERA_KEY_INDEX_H

#include "access/attnum.h"
#include "access/sdir.h"
#include "utils/relcache.h"

#include "catalog/key.h"

/*
 * An index of the table whose leading columns are the key columns in key order: a valid btree without predicate, in the key's own order (operator
 * family, collation) or exactly the reverse. Prefers the one with the fewest columns. InvalidOid if there is none. *direction (may be NULL): the one
 * in which a scan gives ascending keys. The caller has the table locked.
 */
extern Oid	tessera_key_index(Relation rel, const TesseraKeySpace *ks, const AttrNumber *keys, ScanDirection *direction);

#endif							/* TESSERA_KEY_INDEX_H */
