/*
 * process_exit.c
 *	  The steps that a process runs when it exits, in the order of one table.
 *
 * State is the process's own: which steps it has asked for. The server knows one callback of ours for all of the steps before it leaves shared
 * memory; that one registers itself again before it runs a step, so that the others run even if the step fails. No locks, no memory. A process that
 * is killed runs none of them: the server then starts anew, and so does shared memory.
 */
#include "postgres.h"

#include "common/process_exit.h"

static const TesseraExitStep *steps = NULL;
static int	nsteps = 0;

static uint32 wanted = 0;		/* steps that this process runs yet, by their place in the table; those with "last" stay set */
static uint32 last_steps = 0;	/* the same, of the table: those with "last" */

void
tessera_exit_steps_install(const TesseraExitStep *table, int n)
{
	if (n > 32)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many steps at the exit of a process")));
	steps = table;
	nsteps = n;
	for (int i = 0; i < n; i++)
		if (table[i].last)
			last_steps |= (uint32) 1 << i;
}

static void
run_next(int code, Datum arg)
{
	for (int i = 0; i < nsteps; i++)
	{
		uint32		bit = (uint32) 1 << i;

		if ((wanted & ~last_steps & bit) == 0)
			continue;
		wanted &= ~bit;
		if ((wanted & ~last_steps) != 0)
			before_shmem_exit(run_next, (Datum) 0);
		steps[i].step(code, (Datum) 0);
		return;
	}
}

void
tessera_at_exit(pg_on_exit_callback step)
{
	for (int i = 0; i < nsteps; i++)
	{
		uint32		bit = (uint32) 1 << i;

		if (steps[i].step != step)
			continue;
		if ((wanted & bit) != 0)
			return;
		if (steps[i].last)
			on_shmem_exit(step, (Datum) 0);
		else if ((wanted & ~last_steps) == 0)
			before_shmem_exit(run_next, (Datum) 0);
		wanted |= bit;
		return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("a step at the exit of the process is not in the table")));
}
