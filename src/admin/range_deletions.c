/*
 * range_deletions.c
 *	  Source of the view tessera.range_deletions: ranges this shard still has to delete, without what it owns.
 *
 * A range that came back while its deletion was pending is owned again: it is in both lists, and is not to be deleted (doc/design.md#range-deletion).
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "admin/key_visibility.h"
#include "catalog/key.h"
#include "catalog/placement.h"
#include "routing/routing.h"

PG_FUNCTION_INFO_V1(tessera_internal_range_deletions);

typedef struct Piece
{
	TesseraKeyBound min;
	TesseraKeyBound max;
} Piece;

static Piece *
make_piece(const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	Piece	   *piece = palloc(sizeof(Piece));

	piece->min = *min;
	piece->max = *max;
	return piece;
}

/* The pieces without [min, max). */
static List *
subtract(TesseraKeySpace *ks, List *pieces, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	List	   *left = NIL;
	ListCell   *cell;

	foreach(cell, pieces)
	{
		Piece	   *piece = lfirst(cell);

		if (tessera_key_compare(ks, &piece->max, min) <= 0 || tessera_key_compare(ks, max, &piece->min) <= 0)
		{
			left = lappend(left, piece);
			continue;
		}
		if (tessera_key_compare(ks, &piece->min, min) < 0)
			left = lappend(left, make_piece(&piece->min, min));
		if (tessera_key_compare(ks, max, &piece->max) < 0)
			left = lappend(left, make_piece(max, &piece->max));
	}
	return left;
}

static void
put_group(ReturnSetInfo *rsinfo, const TesseraPlacementRow *row, TesseraKeySpace *ks, bool visible)
{
	for (int i = 0; i < row->ndeletions; i++)
	{
		TesseraKeyBound min;
		TesseraKeyBound max;
		List	   *pieces;
		ListCell   *cell;

		CHECK_FOR_INTERRUPTS();
		tessera_key_from_bound(ks, row->deletions[i].min, &min);
		tessera_key_from_bound(ks, row->deletions[i].max, &max);
		pieces = list_make1(make_piece(&min, &max));
		for (int j = 0; j < row->nowned; j++)
		{
			tessera_key_from_bound(ks, row->owned[j].min, &min);
			tessera_key_from_bound(ks, row->owned[j].max, &max);
			pieces = subtract(ks, pieces, &min, &max);
		}
		foreach(cell, pieces)
		{
			Piece	   *piece = lfirst(cell);
			Datum		values[3];
			bool		nulls[3] = {false, !visible, !visible};

			values[0] = UUIDPGetDatum(&row->group_id);
			values[1] = PointerGetDatum(tessera_key_to_bound(ks, &piece->min));
			values[2] = PointerGetDatum(tessera_key_to_bound(ks, &piece->max));
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
}

/* internal_range_deletions() -- group_id, min, max; min and max are null to who may not see the group's keys */
Datum
tessera_internal_range_deletions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	const TesseraRouting *routing = tessera_routing();
	TesseraPlacementRow **rows;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	if (routing == NULL)
		return (Datum) 0;
	rows = tessera_placement_read_all(NULL, &n);
	for (int i = 0; i < n; i++)
	{
		const TesseraGroup *group = tessera_routing_group_by_id(routing, &rows[i]->group_id);

		if (rows[i]->ndeletions > 0 && group != NULL)
			put_group(rsinfo, rows[i], tessera_group_keyspace(routing, group), tessera_keys_visible(&rows[i]->group_id));
	}
	return (Datum) 0;
}
