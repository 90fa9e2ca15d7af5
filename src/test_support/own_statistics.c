/*
 * own_statistics.c
 *	  Functions for a type, which a test makes (test/tap/sql/conditions_on_any_type.pl): its ANALYZE keeps statistics of a kind of its own, and its
 *	  selectivity takes it for granted that a column with any statistics has these, as PostGIS does. What is kept is the size of the sample.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_statistic.h"
#include "commands/vacuum.h"
#include "fmgr.h"
#include "utils/lsyscache.h"
#include "utils/selfuncs.h"

/* One of the kinds that pg_statistic.h leaves to private use. */
#define OWN_KIND 10000
#define LEAST_ROWS 300
#define USUAL_SELECTIVITY 0.1

PG_FUNCTION_INFO_V1(tessera_measured_analyze);
PG_FUNCTION_INFO_V1(tessera_measured_selectivity);

static void
compute(VacAttrStats *stats, AnalyzeAttrFetchFunc fetch, int rows, double total)
{
	MemoryContext before = MemoryContextSwitchTo(stats->anl_context);

	stats->stanumbers[0] = palloc(sizeof(float4));
	stats->stanumbers[0][0] = (float4) rows;
	MemoryContextSwitchTo(before);
	stats->numnumbers[0] = 1;
	stats->stakind[0] = OWN_KIND;
	stats->stawidth = 8;
	stats->stats_valid = true;
}

/* tessera_test.measured_analyze(internal) returns bool */
Datum
tessera_measured_analyze(PG_FUNCTION_ARGS)
{
	VacAttrStats *stats = (VacAttrStats *) PG_GETARG_POINTER(0);

	stats->compute_stats = compute;
	stats->minrows = LEAST_ROWS;
	PG_RETURN_BOOL(true);
}

/* tessera_test.measured_selectivity(internal, oid, internal, int4) returns float8 */
Datum
tessera_measured_selectivity(PG_FUNCTION_ARGS)
{
	VariableStatData variable;
	Node	   *other;
	bool		on_left;
	AttStatsSlot slot;

	if (!get_restriction_variable((PlannerInfo *) PG_GETARG_POINTER(0), (List *) PG_GETARG_POINTER(2), PG_GETARG_INT32(3), &variable, &other,
								  &on_left))
		PG_RETURN_FLOAT8(USUAL_SELECTIVITY);
	if (HeapTupleIsValid(variable.statsTuple))
	{
		if (!get_attstatsslot(&slot, variable.statsTuple, OWN_KIND, InvalidOid, ATTSTATSSLOT_NUMBERS))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("a column has statistics without those of its type")));
		free_attstatsslot(&slot);
	}
	ReleaseVariableStats(variable);
	PG_RETURN_FLOAT8(USUAL_SELECTIVITY);
}
