/*
 * round_plan.c
 *	  explain_balancer(): what the last round has decided, or what one would decide now; see round_plan.h.
 *
 * A plan becomes rows of the function's columns. The rows of the last round are in tessera.balancer_plan, its time in tessera.balancer_round: both
 * tables are in the config node's own database, so they outlive a restart, and its standby has them. They are written before anything of the plan
 * begins; a row that is as it was is not written again, so an idle cluster costs one row for each round.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "balancer/actions.h"
#include "balancer/balancer_settings.h"
#include "balancer/drain.h"
#include "balancer/round_plan.h"
#include "catalog/bound_array.h"
#include "common/privilege.h"
#include "common/spi_row.h"
#include "routing/routing.h"

PG_FUNCTION_INFO_V1(tessera_explain_balancer);

/* Columns of a row. */
enum
{
	STEP, DUE, KIND, TABLE_NAME, SCHEMA_NAME, RANGE_MIN, RANGE_MAX, RANGES, DONOR, RECIPIENT, REASON, BYTES, DETAIL, COLUMNS
};

typedef struct PlanRow
{
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];
} PlanRow;

/* Rows of a plan, in the current context; numbered from 1. */
typedef struct PlanRows
{
	int			n;
	int			max;
	PlanRow    *rows;
} PlanRows;


/* From a plan to rows */

/* A new last row, all null but its number. */
static PlanRow *
add_row(PlanRows *rows)
{
	PlanRow    *row;

	if (rows->n == rows->max)
	{
		rows->max = rows->max > 0 ? rows->max * 2 : 64;
		rows->rows = rows->rows == NULL ? palloc(rows->max * sizeof(PlanRow)) : repalloc(rows->rows, rows->max * sizeof(PlanRow));
	}
	row = &rows->rows[rows->n++];
	memset(row->values, 0, sizeof(row->values));
	memset(row->nulls, true, sizeof(row->nulls));
	row->values[STEP] = Int32GetDatum(rows->n);
	row->nulls[STEP] = false;
	return row;
}

static void
put(PlanRow *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

static void
put_text(PlanRow *row, int column, const char *text)
{
	if (text != NULL)
		put(row, column, CStringGetTextDatum(text));
}

static void
put_table(PlanRow *row, const TesseraSnapshotGroup *group)
{
	if (group->table != NULL)
		put(row, TABLE_NAME, ObjectIdGetDatum(group->table->relid));
}

static void
put_range(const TesseraClusterSnapshot *snapshot, int32 group, size_t first, size_t count, PlanRow *row)
{
	TesseraBound *min;
	TesseraBound *max;

	if (group < 0)
	{
		put_text(row, SCHEMA_NAME, snapshot->schemas[first].names);
		return;
	}
	tessera_snapshot_range(snapshot, group, first, count, &min, &max);
	put(row, RANGE_MIN, PointerGetDatum(min));
	put(row, RANGE_MAX, PointerGetDatum(max));
	put_table(row, &snapshot->groups[group]);
}

static const char *
name_of_shard(const TesseraClusterSnapshot *snapshot, int32 shard)
{
	const TesseraNode *node = shard < 0 ? NULL : tessera_routing_node(snapshot->routing, snapshot->shards[shard].node_id);

	return node != NULL ? NameStr(node->name) : NULL;
}

static void
add_action(const TesseraClusterSnapshot *snapshot, const TesseraPolicyAction *action, PlanRows *rows)
{
	static const char *const kinds[] = {[TESSERA_POLICY_MOVE] = "move",[TESSERA_POLICY_MERGE] = "merge",[TESSERA_POLICY_MOVE_SCHEMA] = "move"};
	PlanRow    *row = add_row(rows);

	put_text(row, DUE, action->now ? "now" : "later");
	put_text(row, KIND, kinds[action->kind]);
	put_range(snapshot, action->group, action->first, action->count, row);
	if (action->group >= 0)
		put(row, RANGES, Int32GetDatum((int32) action->nranges));
	put_text(row, DONOR, name_of_shard(snapshot, action->from));
	put_text(row, RECIPIENT, name_of_shard(snapshot, action->to));
	put_text(row, REASON, tessera_policy_reason_text(action->reason));
	put(row, BYTES, Int64GetDatum((int64) action->bytes));
	put_text(row, DETAIL, tessera_balancer_planned(snapshot, action)->detail);
}

static void
add_problem(const TesseraClusterSnapshot *snapshot, const TesseraPolicyProblem *problem, PlanRows *rows)
{
	static const char *const what[] = {
		[TESSERA_POLICY_NO_SHARD] = "no other shard may have it: add a shard, or change its zone",
		[TESSERA_POLICY_UNUSABLE] = "its shard, or each that may have it, cannot be reached at present",
		[TESSERA_POLICY_IMMOVABLE] = "the schema cannot be moved",
	};
	PlanRow    *row = add_row(rows);

	put_text(row, DUE, "never");
	put_text(row, KIND, "move");
	put_range(snapshot, problem->group, problem->first, problem->count, row);
	put_text(row, DONOR, name_of_shard(snapshot, problem->shard));
	put_text(row, REASON, snapshot->shards[problem->shard].draining ? "draining" : "zone");
	put_text(row, DETAIL, what[problem->obstacle]);
}

/* A group that the snapshot could not read. */
static void
add_unreadable(const TesseraSnapshotGroup *group, PlanRows *rows)
{
	PlanRow    *row = add_row(rows);

	put_text(row, DUE, "never");
	put_text(row, KIND, "read");
	put_table(row, group);
	put_text(row, DETAIL, group->unreadable);
}

/* A shard that holds nothing any more and cannot leave yet. Only the balancer's own process knows. */
static void
add_obstacle(const TesseraClusterSnapshot *snapshot, int32 shard, PlanRows *rows)
{
	const char *obstacle = tessera_drain_obstacle(snapshot->shards[shard].node_id);
	PlanRow    *row;

	if (obstacle == NULL)
		return;
	row = add_row(rows);
	put_text(row, DUE, "later");
	put_text(row, KIND, "remove");
	put_text(row, DONOR, name_of_shard(snapshot, shard));
	put_text(row, REASON, "draining");
	put_text(row, DETAIL, obstacle);
}

/* Why nothing is evened out, if so. */
static void
add_switches(PlanRows *rows)
{
	TesseraBalancerSwitches switches;
	PlanRow    *row;

	tessera_balancer_switches(&switches);
	if (switches.reason == NULL)
		return;
	row = add_row(rows);
	put_text(row, DUE, "never");
	put_text(row, KIND, "balance");
	put_text(row, DETAIL, switches.reason);
}

/* How the shards differ, before the plan and when all of it is done: by their fill, which is amount divided by weight. */
static void
add_spread(const TesseraClusterSnapshot *snapshot, const TesseraPolicyPlan *plan, PlanRows *rows)
{
	const TesseraPolicySettings *settings = &snapshot->policy.settings;
	PlanRow    *row = add_row(rows);

	put_text(row, KIND, "spread");
	put_text(row, DETAIL,
			 psprintf("%.1f %% of the average between the fullest shard and the emptiest, %.1f %% after what is listed%s; below %.1f %% nothing "
					  "moves",
					  100 * plan->spread, 100 * plan->spread_after, plan->complete ? "" : ", more would follow", 100 * settings->threshold));
	for (size_t i = 0; i < snapshot->policy.nshards; i++)
	{
		row = add_row(rows);
		put_text(row, KIND, "shard");
		put_text(row, DONOR, name_of_shard(snapshot, (int32) i));
		if (settings->measure == TESSERA_BY_BYTES)
			put(row, BYTES, Int64GetDatum((int64) plan->fill[i]));
		put_text(row, DETAIL, psprintf("%.3g, by weight; the average is %.3g%s", plan->fill[i], plan->mean_fill,
									   snapshot->shards[i].draining ? "; it is being removed" : ""));
	}
}

/* In a transaction. */
static void
add_plan(const TesseraClusterSnapshot *snapshot, const TesseraPolicyPlan *plan, PlanRows *rows)
{
	for (size_t i = 0; i < snapshot->policy.ngroups; i++)
		if (snapshot->groups[i].unreadable != NULL)
			add_unreadable(&snapshot->groups[i], rows);
	for (size_t i = 0; i < plan->nactions; i++)
		add_action(snapshot, &plan->actions[i], rows);
	for (size_t i = 0; i < plan->nproblems; i++)
		add_problem(snapshot, &plan->problems[i], rows);
	for (size_t i = 0; i < snapshot->policy.nshards; i++)
		add_obstacle(snapshot, (int32) i, rows);
	add_spread(snapshot, plan, rows);
}


/* The last round's */

/* One column of all rows, as an array. */
static Datum
column_array(const PlanRows *rows, int column, Oid type)
{
	Datum	   *values = palloc(sizeof(Datum) * rows->n);
	bool	   *nulls = palloc(sizeof(bool) * rows->n);
	int			from = 1;
	int16		length;
	bool		by_value;
	char		align;

	for (int i = 0; i < rows->n; i++)
	{
		values[i] = rows->rows[i].values[column];
		nulls[i] = rows->rows[i].nulls[column];
	}
	get_typlenbyvalalign(type, &length, &by_value, &align);
	return PointerGetDatum(construct_md_array(values, nulls, 1, (int *) &rows->n, &from, type, length, by_value, align));
}

void
tessera_round_plan_keep(const TesseraClusterSnapshot *snapshot, const TesseraPolicyPlan *plan)
{
	const Oid	types[COLUMNS] = {[STEP] = INT4OID,[DUE] = TEXTOID,[KIND] = TEXTOID,[TABLE_NAME] = REGCLASSOID,[SCHEMA_NAME] = TEXTOID,
		[RANGE_MIN] = tessera_bound_type(),[RANGE_MAX] = tessera_bound_type(),[RANGES] = INT4OID,[DONOR] = TEXTOID,[RECIPIENT] = TEXTOID,
	[REASON] = TEXTOID,[BYTES] = INT8OID,[DETAIL] = TEXTOID};
	PlanRows	rows = {0};
	Oid			arrays[COLUMNS];
	Datum		values[COLUMNS];
	TesseraSpi	spi;

	add_switches(&rows);
	if (snapshot != NULL)
		add_plan(snapshot, plan, &rows);
	for (int i = 0; i < COLUMNS; i++)
	{
		arrays[i] = get_array_type(types[i]);
		values[i] = column_array(&rows, i, types[i]);
	}
	tessera_spi_begin(&spi);
	tessera_spi_run("INSERT INTO tessera.balancer_plan SELECT n.* FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
					" AS n (step, due, kind, table_name, schema_name, min, max, ranges, donor, recipient, reason, bytes, detail)"
					" WHERE NOT EXISTS (SELECT FROM tessera.balancer_plan AS o WHERE o.step = n.step AND o *= n)"
					" ON CONFLICT (step) DO UPDATE SET"
					" (due, kind, table_name, schema_name, min, max, ranges, donor, recipient, reason, bytes, detail)"
					" = ROW(excluded.due, excluded.kind, excluded.table_name, excluded.schema_name, excluded.min, excluded.max, excluded.ranges,"
					" excluded.donor, excluded.recipient, excluded.reason, excluded.bytes, excluded.detail)", SPI_OK_INSERT, COLUMNS, arrays, values,
					NULL);
	tessera_spi_run("DELETE FROM tessera.balancer_plan WHERE step > $1", SPI_OK_DELETE, 1, (Oid[]) {INT4OID}, (Datum[]) {Int32GetDatum(rows.n)},
					NULL);
	tessera_spi_run("INSERT INTO tessera.balancer_round DEFAULT VALUES ON CONFLICT (singleton) DO UPDATE SET made = excluded.made", SPI_OK_INSERT,
					0, NULL, NULL, NULL);
	tessera_spi_end(&spi);
}

/* Puts the rows of the last round into the result; false: there was none. */
static bool
give_last_round(ReturnSetInfo *result)
{
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT p.step, p.due, p.kind, p.table_name, p.schema_name, p.min, p.max, p.ranges, p.donor, p.recipient, p.reason, p.bytes,"
						" p.detail, r.made FROM tessera.balancer_plan AS p CROSS JOIN tessera.balancer_round AS r ORDER BY p.step", SPI_OK_SELECT, 0,
						NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
		tuplestore_puttuple(result->setResult, SPI_tuptable->vals[i]);
	tessera_spi_end(&spi);
	return n > 0;
}


/* explain_balancer() */

/* made: 0: no round has been made. */
static void
give_rows(const PlanRows *rows, TimestampTz made, ReturnSetInfo *result)
{
	for (int i = 0; i < rows->n; i++)
	{
		Datum		values[COLUMNS + 1];
		bool		nulls[COLUMNS + 1];

		memcpy(values, rows->rows[i].values, sizeof(rows->rows[i].values));
		memcpy(nulls, rows->rows[i].nulls, sizeof(rows->rows[i].nulls));
		values[COLUMNS] = TimestampTzGetDatum(made);
		nulls[COLUMNS] = made == 0;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/* explain_balancer(now) returns (step, due, kind, table_name, schema_name, min, max, ranges, donor, recipient, reason, bytes, detail, made) */
Datum
tessera_explain_balancer(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	PlanRows	rows = {0};

	tessera_require_admin();
	if (!tessera_routing_or_error()->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the balancer works on the config node"),
				 errhint("Call the function there.")));
	InitMaterializedSRF(fcinfo, 0);
	if (PG_GETARG_BOOL(0))
	{
		TesseraClusterSnapshot *snapshot = tessera_cluster_snapshot();

		add_switches(&rows);
		add_plan(snapshot, tessera_policy_plan(&snapshot->policy, tessera_policy_alloc), &rows);
		give_rows(&rows, GetCurrentTimestamp(), result);
	}
	else if (!give_last_round(result))
	{
		PlanRow    *row = add_row(&rows);

		put_text(row, KIND, "round");
		put_text(row, DETAIL, "no round has been made yet: tessera.explain_balancer(now => true) shows what one would do");
		give_rows(&rows, 0, result);
	}
	return (Datum) 0;
}
