/*
 * spi.c
 *	  SPI for the extension's own SQL. Errors are cleaned up by the abort of the transaction or subtransaction.
 *
 * Memory: saved plans are kept until the session ends. All of them are made under the same search path, and each by one role:
 * the bootstrap superuser, or that of tessera_spi_begin_as. So neither depends on who runs them.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/plancache.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "common/fixed_settings.h"
#include "common/spi.h"

#define SAVED_PLAN_ARGS 12

typedef struct SavedPlan
{
	const char *sql;			/* key: the address */
	int			nargs;
	Oid			types[SAVED_PLAN_ARGS];
	SPIPlanPtr	plan;
} SavedPlan;

static HTAB *saved_plans = NULL;

/* Uses that have begun and not ended: SPI's context of each counts it, and goes with it, also by an error. */
static int	uses = 0;


bool
tessera_spi_at_work(void)
{
	return uses > 0;
}

static void
use_ends(void *arg)
{
	uses--;
}

/* Who it is to be is already. */
static void
begin(TesseraSpi *spi)
{
	MemoryContextCallback *end;

	/* texts of names, types and values that it makes or reads go to other nodes, and are compared with theirs */
	spi->guc_level = tessera_fixed_settings_push(TESSERA_FIXED_NAMES | TESSERA_FIXED_QUOTES | TESSERA_FIXED_STYLES | TESSERA_FIXED_READING);
	/* background workers have none */
	spi->snapshot = !ActiveSnapshotSet();
	if (spi->snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not connect to SPI")));
	end = palloc0(sizeof(MemoryContextCallback));
	end->func = use_ends;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, end);
	uses++;
}

void
tessera_spi_begin(TesseraSpi *spi)
{
	/* nobody's code: fixed texts on the extension's own catalog, and functions of the server's and its own (spi.h) */
	tessera_act_as_cluster(&spi->before);
	begin(spi);
}

void
tessera_spi_begin_as(TesseraSpi *spi, Oid role)
{
	/* whose code it may be is the caller's to say: fixed texts on that role's own tables */
	tessera_act_as_user(&spi->before, role);
	begin(spi);
}

void
tessera_spi_end(TesseraSpi *spi)
{
	SPI_finish();
	if (spi->snapshot)
		PopActiveSnapshot();
	AtEOXact_GUC(true, spi->guc_level);
	tessera_act_end(&spi->before);
}

static uint64
check_result(int code, int expected, const char *sql)
{
	if (code != expected)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("unexpected result of SPI: %s", SPI_result_code_string(code)),
				 errcontext("SQL statement \"%s\"", sql)));
	return SPI_processed;
}

static void
mark_nulls(char *marks, int nargs, const bool *nulls)
{
	Assert(nargs <= FUNC_MAX_ARGS);
	for (int i = 0; i < nargs; i++)
		marks[i] = nulls != NULL && nulls[i] ? 'n' : ' ';
}

uint64
tessera_spi_run(const char *sql, int expected, int nargs, const Oid *types, const Datum *values, const bool *nulls)
{
	char		marks[FUNC_MAX_ARGS];

	mark_nulls(marks, nargs, nulls);
	return check_result(SPI_execute_with_args(sql, nargs, unconstify(Oid *, types), unconstify(Datum *, values), marks, false, 0), expected, sql);
}

uint64
tessera_spi_look(const char *sql, int nargs, const Oid *types, const Datum *values)
{
	char		marks[FUNC_MAX_ARGS];
	uint64		n;

	mark_nulls(marks, nargs, NULL);
	PushActiveSnapshot(IsInParallelMode() ? GetActiveSnapshot() : GetLatestSnapshot());
	n = check_result(SPI_execute_with_args(sql, nargs, unconstify(Oid *, types), unconstify(Datum *, values), marks, true, 0), SPI_OK_SELECT, sql);
	PopActiveSnapshot();
	return n;
}


/* Saved plans */

/*
 * The plan of a statement; made if there is none yet. It is a generic one from the start: these statements find rows by their keys, whatever the
 * values. The server makes it anew when a table has changed; the types of parameters are compared here: after DROP EXTENSION and CREATE EXTENSION
 * tessera.bound is another one.
 */
static SPIPlanPtr
saved_plan(const char *sql, int nargs, const Oid *types)
{
	SavedPlan  *saved;
	SPIPlanPtr	plan;
	bool		found;

	if (saved_plans == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(const char *),.entrysize = sizeof(SavedPlan)};

		saved_plans = hash_create("tessera saved plans", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	}
	saved = hash_search(saved_plans, &sql, HASH_FIND, NULL);
	if (saved != NULL && saved->nargs == nargs && memcmp(saved->types, types, nargs * sizeof(Oid)) == 0)
		return saved->plan;

	Assert(nargs <= SAVED_PLAN_ARGS);
	plan = SPI_prepare_cursor(sql, nargs, unconstify(Oid *, types), CURSOR_OPT_GENERIC_PLAN);
	if (plan == NULL)
		(void) check_result(SPI_result, SPI_OK_SELECT, sql);
	SPI_keepplan(plan);
	saved = hash_search(saved_plans, &sql, HASH_ENTER, &found);
	if (found)
		SPI_freeplan(saved->plan);
	saved->nargs = nargs;
	memcpy(saved->types, types, nargs * sizeof(Oid));
	saved->plan = plan;
	return plan;
}

uint64
tessera_spi_run_saved(const char *sql, int expected, int nargs, const Oid *types, const Datum *values, const bool *nulls)
{
	char		marks[FUNC_MAX_ARGS];

	mark_nulls(marks, nargs, nulls);
	return check_result(SPI_execute_plan(saved_plan(sql, nargs, types), unconstify(Datum *, values), marks, false, 0), expected, sql);
}

void
tessera_spi_plan(const char *sql, int nargs, const Oid *types)
{
	CachedPlan *plan = SPI_plan_get_cached_plan(saved_plan(sql, nargs, types));

	if (plan != NULL)
		ReleaseCachedPlan(plan, CurrentResourceOwner);
}
