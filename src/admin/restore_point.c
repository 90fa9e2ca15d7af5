/*
 * restore_point.c
 *	  create_restore_point: one restore point in the WAL of every node, such that all nodes restored to it are one cluster
 *	  (doc/design.md#restore-points).
 *
 * 1. Every node is asked for its clock: one that is down ends it here. The name is noted on the config node, for good, as recovery would stop at the
 *    first point of a name.
 * 2. Commits are held on every node, the config node first, which says who the nodes are.
 * 3. Every node writes its point.
 * 4. Commits are let go everywhere. The point is good if they were held on each node until then, which a node says as it lets them go.
 * 5. Every node flushes its WAL, and begins a new file; the config node notes that the point is good.
 *
 * Whatever fails, commits are let go: by a call, by the end of this process, whose connections end with it, or else when max_pause is over. All calls
 * go over the control lane, to this node as well. Memory: the caller's context.
 */
#include "postgres.h"

#include "access/xlog_internal.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "admin/clock_functions.h"
#include "common/injection.h"
#include "common/privilege.h"
#include "common/subtransaction.h"
#include "config/membership.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/background.h"
#include "transaction/commit_hold.h"

PG_FUNCTION_INFO_V1(tessera_create_restore_point);

/* ms that a node has to say that it is there, before anything is held, and to let go and flush afterwards */
#define ANSWER_MS 10000

typedef struct PointNode
{
	int32		node_id;
	NameData	name;
	XLogRecPtr	lsn;
	bool		held;			/* to the end */
} PointNode;

typedef struct Point
{
	const char *name;
	int64		key;
	TimestampTz deadline;		/* by tessera_now */
	TesseraTime time;
	int			nnodes;
	PointNode  *nodes;			/* the config node is the first */
} Point;

static void
list_nodes(Point *point, const TesseraRouting *routing)
{
	int			n = 1;

	point->nnodes = routing->nnodes;
	point->nodes = palloc0((routing->nnodes + 1) * sizeof(PointNode));
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		PointNode  *entry = &point->nodes[node->is_config ? 0 : n++];

		entry->node_id = node->node_id;
		entry->name = node->name;
	}
}

static TesseraCallTarget
answers(const PointNode *node)
{
	return tessera_within(tessera_to_node(node->node_id), ANSWER_MS);
}

/* ms left of max_pause. ERROR 57014 if it is over. */
static int
left_ms(const Point *point)
{
	TimestampTz left = (point->deadline - tessera_now()) / 1000;

	if (left <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("not all nodes have written restore point \"%s\" in time", point->name),
				 errhint("Try again under another name, with a longer max_pause.")));
	return (int) left;
}

static char *
nodes_literal(const Point *point)
{
	StringInfoData array;

	initStringInfo(&array);
	for (int i = 0; i < point->nnodes; i++)
		appendStringInfo(&array, "%c%d", i == 0 ? '{' : ',', point->nodes[i].node_id);
	appendStringInfoChar(&array, '}');
	return array.data;
}

/* Steps 2 and 3. */
static void
write_points(void *arg)
{
	Point	   *point = arg;
	char	   *nodes = nodes_literal(point);

	for (int i = 0; i < point->nnodes; i++)
	{
		int			left = left_ms(point);
		int64		time;

		tessera_call_hold_commits(tessera_within(tessera_to_node(point->nodes[i].node_id), left), point->key, left, nodes, &time);
		point->time = Max(point->time, (TesseraTime) time);
	}
	for (int i = 0; i < point->nnodes; i++)
	{
		tessera_call_write_restore_point(tessera_within(tessera_to_node(point->nodes[i].node_id), left_ms(point)), point->key, point->name,
										 (int64) point->time, &point->nodes[i].lsn);
		tessera_injection("restore_point_written");
	}
	tessera_injection("restore_points_written");
}

/*
 * Step 4; also after an error, hence without one. The config node comes last: the next point, whose name is noted there by a commit, finds all nodes
 * free.
 */
static void
release(Point *point)
{
	for (int i = point->nnodes - 1; i >= 0; i--)
	{
		bool		held = false;

		if (tessera_call_release_commits(tessera_ask(answers(&point->nodes[i]), TESSERA_TOLERATE_ALL), point->key, &held))
			point->nodes[i].held = held;
	}
}

static void
require_held(const Point *point)
{
	for (int i = 0; i < point->nnodes; i++)
		if (!point->nodes[i].held)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("commits on node \"%s\" were not held until all nodes had written restore point \"%s\"",
							NameStr(point->nodes[i].name), point->name),
					 errdetail("The cluster cannot be restored to it."),
					 errhint("Try again under another name, with a longer max_pause.")));
}

static int
pause_ms(const Interval *interval)
{
	double		ms = interval->time / 1000.0 + (interval->day + interval->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY * 1000.0;

	if (ms < 1 || ms > TESSERA_HOLD_MOST_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_pause must be between 1 ms and %d s", TESSERA_HOLD_MOST_MS / 1000)));
	return (int) ms;
}

static void
check_name(const char *name)
{
	if (name[0] == '\0' || strlen(name) >= MAXFNAMELEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the name of a restore point has between 1 and %d bytes", MAXFNAMELEN - 1)));
}

static int64
make_key(void)
{
	int64		key;

	if (!pg_strong_random(&key, sizeof(key)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	return key == 0 ? 1 : key;
}

/* create_restore_point(name text, max_pause interval, OUT node name, OUT cluster_time numeric, OUT lsn pg_lsn, OUT wal_file text) */
Datum
tessera_create_restore_point(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	Point		point = {.name = text_to_cstring(PG_GETARG_TEXT_PP(0))};
	int			ms = pause_ms(PG_GETARG_INTERVAL_P(1));
	ErrorData  *error;

	tessera_refuse_read_only("create_restore_point");
	tessera_require_admin();
	check_name(point.name);
	list_nodes(&point, tessera_require_cluster());
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < point.nnodes; i++)
	{
		TesseraClockAnswer clock;

		tessera_call_clock(answers(&point.nodes[i]), &clock);
	}
	tessera_call_register_restore_point(tessera_to_config(), point.name, GetUserNameFromId(GetUserId(), false));

	point.key = make_key();
	point.deadline = tessera_now() + ms * INT64CONST(1000);
	error = tessera_try(write_points, &point);
	release(&point);
	if (error != NULL)
		ReThrowError(error);
	require_held(&point);

	for (int i = 0; i < point.nnodes; i++)
	{
		Datum		values[4] = {NameGetDatum(&point.nodes[i].name), tessera_numeric_of_time(point.time), LSNGetDatum(point.nodes[i].lsn)};
		bool		nulls[4] = {false, false, false, false};
		char	   *file;

		tessera_call_finish_restore_point(answers(&point.nodes[i]), point.nodes[i].lsn, &file);
		values[3] = CStringGetTextDatum(file);
		tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
	}
	tessera_call_complete_restore_point(tessera_to_config(), point.name, (int64) point.time);
	return (Datum) 0;
}
