/*
 * current_of.h
 *	  The row that WHERE CURRENT OF names.
 */
#ifndef TESSERA_CURRENT_OF_H
#define TESSERA_CURRENT_OF_H

#include "postgres.h"
#include "nodes/execnodes.h"
#include "storage/itemptr.h"

#include "routing/routing.h"

typedef struct TesseraCursorRow
{
	int32		node_id;
	ItemPointerData ctid;
	const TesseraRouting *routing;	/* by which the cursor was opened, valid as long as it is */
} TesseraCursorRow;

/*
 * The current row of the cursor, which is named by the expression (its variable in PL/pgSQL is a parameter of the statement), in that table. false:
 * its row has none of the table. ERROR 34000 and 24000, as the server's own.
 */
extern bool tessera_cursor_row(const CurrentOfExpr *expr, EState *estate, Oid relid, TesseraCursorRow *row);

/* In table_scan.c: the image by which the scan of the table in an open cursor's plan is routed; NULL: there is no such scan. */
extern const TesseraRouting *tessera_scan_routing(PlanState *state, Oid relid);

#endif							/* TESSERA_CURRENT_OF_H */
