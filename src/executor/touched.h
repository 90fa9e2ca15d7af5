/*
 * touched.h
 *	  Which keys of a group a planned statement can touch: read off the finished plan, so that it holds for any plan, generic ones too.
 */
#ifndef TESSERA_TOUCHED_H
#define TESSERA_TOUCHED_H

#include "postgres.h"
#include "nodes/params.h"
#include "nodes/plannodes.h"

#include "routing/routing.h"

typedef struct TesseraTouched
{
	bool		everything;		/* some scan is not pinned: any key */
	List	   *positions;		/* of TesseraKeyBound *: else only these */
	bool		filtered;		/* every scan of the group's tables carries the ownership filter */
} TesseraTouched;

/* For all range table entries of the group's tables in the plan. Result in the current context. */
extern void tessera_touched(PlannedStmt *plan, ParamListInfo params, const TesseraRouting *routing, const TesseraGroup *group,
							TesseraTouched *touched);

#endif							/* TESSERA_TOUCHED_H */
