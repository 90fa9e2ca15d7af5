/*
 * injection.c
 *	  Named points at which a test can have something happen; see injection.h.
 *
 * Shared: a fixed array of armed points, each for one database, under the module's one LWLock; a condition variable wakes who is paused. Nothing is
 * durable: a crash disarms everything.
 */
#include "postgres.h"

#include <signal.h>

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/injection.h"
#include "common/shmem.h"

#define POINTS 32
#define ANY_DATABASE ((Oid) 0xFFFFFFFF)	/* armed by tessera.injection_start */
#define PAUSE_LIMIT_MS (10 * 60 * 1000)

typedef enum Action
{
	ACTION_ERROR,
	ACTION_CRASH,
	ACTION_PAUSE,
	ACTION_SKIP
} Action;

static const char *const action_names[] = {
	[ACTION_ERROR] = "error",
	[ACTION_CRASH] = "crash",
	[ACTION_PAUSE] = "pause",
	[ACTION_SKIP] = "skip",
};

typedef struct Point
{
	Oid			database;		/* InvalidOid: free; ANY_DATABASE */
	char		name[NAMEDATALEN];
	Action		action;
	int32		left;			/* how often it still acts; -1: always */
	int64		hits;			/* how often it was reached since it was armed */
	int32		paused;			/* processes that wait at it */
	uint64		armed;			/* number of the arming: who waits at an older one goes on */
} Point;

typedef struct Points
{
	LWLock	   *lock;			/* of everything below */
	uint64		armings;
	ConditionVariable changed;
	Point		points[POINTS];
} Points;

PG_FUNCTION_INFO_V1(tessera_injection_set);
PG_FUNCTION_INFO_V1(tessera_injection_clear);
PG_FUNCTION_INFO_V1(tessera_injection_list);

bool		tessera_injection_points = false;

static Points *shared = NULL;
static char *start_points = NULL;	/* setting tessera.injection_start */


static Size
points_size(void)
{
	return sizeof(Points);
}

/* What the setting names is paused at from the start of the server on, in every database: for what workers do before a session could arm anything. */
static void
pause_from_start(void)
{
	char	   *names = pstrdup(start_points);
	int			n = 0;

	for (char *name = strtok(names, ", "); name != NULL && n < POINTS; name = strtok(NULL, ", "))
	{
		Point	   *point = &shared->points[n++];

		point->database = ANY_DATABASE;
		strlcpy(point->name, name, NAMEDATALEN);
		point->action = ACTION_PAUSE;
		point->left = -1;
		point->armed = ++shared->armings;
	}
	pfree(names);
}

static void
points_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	if (found)
		return;
	memset(shared, 0, sizeof(Points));
	shared->lock = &locks[0].lock;
	ConditionVariableInit(&shared->changed);
	if (tessera_injection_points)
		pause_from_start();
}

static const TesseraShmemModule injection_module = {"tessera_injection", points_size, 1, points_init};

static bool
is_here(const Point *point)
{
	return point->database == MyDatabaseId || point->database == ANY_DATABASE;
}

static Point *
find(const char *name)
{
	for (int i = 0; i < POINTS; i++)
		if (is_here(&shared->points[i]) && strcmp(shared->points[i].name, name) == 0)
			return &shared->points[i];
	return NULL;
}

/* Waits until the point is armed anew or cleared. */
static void
pause_at(const char *name, uint64 armed)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PAUSE_LIMIT_MS);

	ConditionVariablePrepareToSleep(&shared->changed);
	for (;;)
	{
		Point	   *point;
		bool		waits;

		LWLockAcquire(shared->lock, LW_SHARED);
		point = find(name);
		waits = point != NULL && point->armed == armed;
		LWLockRelease(shared->lock);
		if (!waits)
			break;
		if (GetCurrentTimestamp() >= deadline)
		{
			ereport(WARNING,
					(errmsg("injection point \"%s\" was paused too long, going on", name)));
			break;
		}
		ConditionVariableTimedSleep(&shared->changed, 1000, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

void
tessera_injection_run(const char *name)
{
	Point	   *point;
	Action		action;
	uint64		armed;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	point = find(name);
	if (point == NULL || point->left == 0)
	{
		LWLockRelease(shared->lock);
		return;
	}
	point->hits++;
	action = point->action;
	armed = point->armed;
	if (point->left > 0)
		point->left--;
	if (action == ACTION_PAUSE)
		point->paused++;
	LWLockRelease(shared->lock);

	switch (action)
	{
		case ACTION_ERROR:
			ereport(ERROR,
					(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
					 errmsg("injected error at \"%s\"", name)));
			break;
		case ACTION_CRASH:
			ereport(LOG,
					(errmsg("injected crash at \"%s\"", name)));
			kill(MyProcPid, SIGKILL);
			break;
		case ACTION_PAUSE:
			PG_TRY();
			{
				pause_at(name, armed);
			}
			PG_FINALLY();
			{
				LWLockAcquire(shared->lock, LW_EXCLUSIVE);
				point = find(name);
				if (point != NULL && point->armed == armed)
					point->paused--;
				LWLockRelease(shared->lock);
			}
			PG_END_TRY();
			break;
		case ACTION_SKIP:
			break;				/* for tessera_injection_skips alone */
	}
}

bool
tessera_injection_armed_skip(const char *name)
{
	Point	   *point;
	bool		skips;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	point = find(name);
	skips = point != NULL && point->action == ACTION_SKIP && point->left != 0;
	if (skips)
	{
		point->hits++;
		if (point->left > 0)
			point->left--;
	}
	LWLockRelease(shared->lock);
	return skips;
}


/* SQL */

static void
refuse_unless_on(void)
{
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to set injection points")));
	if (!tessera_injection_points)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("injection points are off"),
				 errhint("Start the server with tessera.injection_points = on.")));
}

static Action
action_of(const char *name)
{
	for (int i = 0; i < lengthof(action_names); i++)
		if (strcmp(name, action_names[i]) == 0)
			return (Action) i;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown action \"%s\"", name),
			 errhint("Actions are error, crash, pause and skip.")));
}

/* injection_set(name text, action text, count int4): count NULL means always. */
Datum
tessera_injection_set(PG_FUNCTION_ARGS)
{
	char	   *name;
	Action		action;
	Point	   *point;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("name and action must not be null")));
	refuse_unless_on();
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	action = action_of(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	if (strlen(name) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("name of the injection point is too long")));

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	point = find(name);
	for (int i = 0; i < POINTS && point == NULL; i++)
		if (!OidIsValid(shared->points[i].database))
			point = &shared->points[i];
	if (point != NULL)
	{
		memset(point, 0, sizeof(Point));
		point->database = MyDatabaseId;
		strlcpy(point->name, name, NAMEDATALEN);
		point->action = action;
		point->left = PG_ARGISNULL(2) ? -1 : PG_GETARG_INT32(2);
		point->armed = ++shared->armings;
	}
	LWLockRelease(shared->lock);
	if (point == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many injection points are armed"),
				 errhint("Clear some with tessera_test.injection_clear.")));
	ConditionVariableBroadcast(&shared->changed);
	PG_RETURN_VOID();
}

/* injection_clear(name text): NULL means all of this database. */
Datum
tessera_injection_clear(PG_FUNCTION_ARGS)
{
	char	   *name = PG_ARGISNULL(0) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(0));

	refuse_unless_on();
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < POINTS; i++)
		if (is_here(&shared->points[i]) && (name == NULL || strcmp(shared->points[i].name, name) == 0))
			shared->points[i].database = InvalidOid;
	LWLockRelease(shared->lock);
	ConditionVariableBroadcast(&shared->changed);
	PG_RETURN_VOID();
}

/* injection_list() returns setof (name text, action text, remaining int4, hits int8, paused int4) */
Datum
tessera_injection_list(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Point		points[POINTS];

	InitMaterializedSRF(fcinfo, 0);
	LWLockAcquire(shared->lock, LW_SHARED);
	memcpy(points, shared->points, sizeof(points));
	LWLockRelease(shared->lock);
	for (int i = 0; i < POINTS; i++)
	{
		Datum		values[5];
		bool		nulls[5] = {false};

		if (!is_here(&points[i]))
			continue;
		values[0] = CStringGetTextDatum(points[i].name);
		values[1] = CStringGetTextDatum(action_names[points[i].action]);
		values[2] = Int32GetDatum(points[i].left);
		nulls[2] = points[i].left < 0;
		values[3] = Int64GetDatum(points[i].hits);
		values[4] = Int32GetDatum(points[i].paused);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

void
tessera_injection_init(void)
{
	DefineCustomBoolVariable("tessera.injection_points",
							 "Lets superusers arm the injection points of the extension; for tests.",
							 NULL, &tessera_injection_points, false, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("tessera.injection_start",
							   "Injection points at which processes are paused from the start of the server on; for tests.",
							   "Names, separated by commas. Nothing without tessera.injection_points.", &start_points, "", PGC_POSTMASTER, 0, NULL,
							   NULL, NULL);
	tessera_shmem_register(&injection_module);
}
