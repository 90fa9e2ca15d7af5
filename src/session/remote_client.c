/*
 * remote_client.c
 *	  On whose behalf the backends of this server work; see remote_client.h.
 *
 * One entry for each backend of the server in shared memory, by the number of its PGPROC. Only its own backend writes an entry: the process id last,
 * and back to 0 before it exits. Readers take no lock: an entry counts if it bears the process id asked for before and after it was read. A crash
 * starts with no entries.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/tuplestore.h"

#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/version_compat.h"
#include "session/remote_client.h"

PG_FUNCTION_INFO_V1(tessera_internal_session_origins);

typedef struct Entry
{
	pg_atomic_uint32 pid;		/* of the backend; 0: none */
	TesseraRemoteClient origin;
} Entry;

static Entry *entries = NULL;

static Size
entries_size(void)
{
	return mul_size(sizeof(Entry), MaxBackends);
}

static void
entries_init(void *memory, LWLockPadded *locks, bool found)
{
	entries = memory;
	if (!found)
		for (int i = 0; i < MaxBackends; i++)
			pg_atomic_init_u32(&entries[i].pid, 0);
}

static const TesseraShmemModule origin_module = {"tessera_origins", entries_size, 0, entries_init, NULL};

void
tessera_remote_client_clear(int code, Datum arg)
{
	pg_atomic_write_u32(&entries[tessera_proc_number(MyProc)].pid, 0);
}

void
tessera_remote_client_set(int32 node_id, int32 pid)
{
	Entry	   *entry;

	if (entries == NULL || MyProc == NULL || tessera_proc_number(MyProc) >= MaxBackends)
		return;
	entry = &entries[tessera_proc_number(MyProc)];
	tessera_at_exit(tessera_remote_client_clear);
	pg_atomic_write_u32(&entry->pid, 0);
	pg_write_barrier();
	entry->origin.node_id = node_id;
	entry->origin.pid = pid;
	pg_write_barrier();
	pg_atomic_write_u32(&entry->pid, (uint32) MyProcPid);
}

static bool
read_entry(int32 pid, TesseraRemoteClient *origin)
{
	PGPROC	   *proc = pid > 0 ? BackendPidGetProc(pid) : NULL;
	Entry	   *entry;

	if (entries == NULL || proc == NULL || tessera_proc_number(proc) >= MaxBackends)
		return false;
	entry = &entries[tessera_proc_number(proc)];
	if (pg_atomic_read_u32(&entry->pid) != (uint32) pid)
		return false;
	pg_read_barrier();
	*origin = entry->origin;
	pg_read_barrier();
	return pg_atomic_read_u32(&entry->pid) == (uint32) pid;
}

bool
tessera_remote_client_of(int32 pid, TesseraRemoteClient *origin)
{
	return read_entry(pid, origin) && origin->pid != 0;
}

/* internal_session_origins(): see remote_client.h */
Datum
tessera_internal_session_origins(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; entries != NULL && i < MaxBackends; i++)
	{
		int32		pid = (int32) pg_atomic_read_u32(&entries[i].pid);
		PGPROC	   *proc = pid > 0 ? BackendPidGetProc(pid) : NULL;
		TesseraRemoteClient origin;
		Datum		values[3];
		bool		nulls[3] = {false, false, false};

		if (proc == NULL || proc->databaseId != MyDatabaseId || !read_entry(pid, &origin))
			continue;
		values[0] = Int32GetDatum(pid);
		values[1] = Int32GetDatum(origin.node_id);
		values[2] = Int32GetDatum(origin.pid);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

void
tessera_remote_client_init(void)
{
	tessera_shmem_register(&origin_module);
}
