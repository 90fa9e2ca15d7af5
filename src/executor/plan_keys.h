/*
 * plan_keys.h
 *	  Which keys of a group a planned statement can touch: read off the finished plan, so that it holds for any plan, generic ones too.
 */
#ifndef TESSERA_PLAN_KEYS_H
#define TESSERA_PLAN_KEYS_H

#include "postgres.h"
#include "nodes/params.h"
#include "nodes/plannodes.h"

#include "routing/routing.h"

typedef struct TesseraPlanKeys
{
	bool		everything;		/* some scan is not pinned: any key */
	List	   *positions;		/* of TesseraKeyBound *: else only these */
	bool		filtered;		/* every scan of the group's tables carries the ownership filter */
} TesseraPlanKeys;

/* For all range table entries of the group's tables in the plan. Result in the current context. */
extern void tessera_plan_keys(PlannedStmt *plan, ParamListInfo params, const TesseraRouting *routing, const TesseraGroup *group,
							  TesseraPlanKeys *keys);

#endif							/* TESSERA_PLAN_KEYS_H */
