/*
 * key_index.c
 *	  Finds the key index of a table. See key_index.h.
 *
 * Indexes are looked at under AccessShareLock, let go at once: the table's own lock, which the caller holds, keeps them from being dropped, but for
 * DROP INDEX CONCURRENTLY, which an index_open of the result finds out.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "utils/rel.h"

#include "catalog/key_index.h"

/* True if the index's leading columns are the key columns, all in one direction. */
static bool
leads_with_key(Relation index, const TesseraKeySpace *ks, const AttrNumber *keys)
{
	Form_pg_index form = index->rd_index;

	if (index->rd_rel->relam != BTREE_AM_OID || !form->indisvalid || !form->indisready || !form->indislive)
		return false;
	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) || form->indnkeyatts < ks->ncolumns)
		return false;
	for (int i = 0; i < ks->ncolumns; i++)
	{
		const TesseraKeyColumn *column = &ks->columns[i];

		if (form->indkey.values[i] != keys[i] || index->rd_opfamily[i] != column->btree_opfamily)
			return false;
		if (OidIsValid(column->collation) && index->rd_indcollation[i] != column->collation)
			return false;
		if ((index->rd_indoption[i] & INDOPTION_DESC) != (index->rd_indoption[0] & INDOPTION_DESC))
			return false;
	}
	return true;
}

Oid
tessera_key_index(Relation rel, const TesseraKeySpace *ks, const AttrNumber *keys, ScanDirection *direction)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;
	Oid			best = InvalidOid;
	int			best_columns = 0;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (leads_with_key(index, ks, keys) && (!OidIsValid(best) || index->rd_index->indnatts < best_columns))
		{
			best = RelationGetRelid(index);
			best_columns = index->rd_index->indnatts;
			if (direction != NULL)
				*direction = (index->rd_indoption[0] & INDOPTION_DESC) ? BackwardScanDirection : ForwardScanDirection;
		}
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return best;
}
