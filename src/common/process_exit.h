/*
 * process_exit.h
 *	  What a process of the extension does when it exits: steps in one order, whatever the process has done before.
 *
 * The server keeps exit callbacks per process and drops those that the postmaster has, so a step can only be asked for in the process itself, by the
 * module whose state is to be cleaned up. The order of the steps is that of the table in init.c.
 */
#ifndef TESSERA_PROCESS_EXIT_H
#define TESSERA_PROCESS_EXIT_H

#include "postgres.h"

#include "storage/ipc.h"

typedef struct TesseraExitStep
{
	pg_on_exit_callback step;
	bool		last;			/* when the transaction is rolled back (on_shmem_exit; LWLocks can be taken yet); else before (before_shmem_exit) */
} TesseraExitStep;

/* From _PG_init: the table (static, never freed), in the order in which its steps are to run. */
extern void tessera_exit_steps_install(const TesseraExitStep *table, int n);

/* This process runs the step when it exits, with the argument 0; asking again changes nothing. ERROR XX000 if the step is not in the table. */
extern void tessera_at_exit(pg_on_exit_callback step);

#endif							/* TESSERA_PROCESS_EXIT_H */
