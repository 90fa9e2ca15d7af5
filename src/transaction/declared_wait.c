/*
 * declared_wait.c
 *	  Waits for locks that no lock queue shows; see declared_wait.h.
 *
 * One entry for each backend of the server in shared memory, by the number of its PGPROC. Only its own backend writes an entry, but for `victim`;
 * `changes` is odd while it does, and readers, who take no lock, read an entry again if it changed meanwhile. An entry is cleared when the wait is
 * over and before the backend exits. A crash starts with no entries.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"

#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/version_compat.h"
#include "transaction/declared_wait.h"

typedef struct Entry
{
	pg_atomic_uint32 changes;
	pg_atomic_uint64 victim;	/* `since` of a wait that is to end; 0: none */
	TesseraDeclaredWait wait;	/* pid 0: none */
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
	if (found)
		return;
	memset(memory, 0, entries_size());
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&entries[i].changes, 0);
		pg_atomic_init_u64(&entries[i].victim, 0);
	}
}

static const TesseraShmemModule declared_wait_module = {"tessera_declared_waits", entries_size, 0, entries_init, NULL};

static Entry *
own_entry(void)
{
	return entries == NULL || MyProc == NULL || tessera_proc_number(MyProc) >= MaxBackends ? NULL : &entries[tessera_proc_number(MyProc)];
}

static void
write_entry(Entry *entry, const TesseraDeclaredWait *wait)
{
	pg_atomic_fetch_add_u32(&entry->changes, 1);	/* a full barrier, as the other */
	entry->wait = *wait;
	pg_atomic_fetch_add_u32(&entry->changes, 1);
}

void
tessera_wait_clear(int code, Datum arg)
{
	static const TesseraDeclaredWait none = {0};

	write_entry(&entries[tessera_proc_number(MyProc)], &none);
}

void
tessera_wait_declare(TimestampTz since, int n, const TesseraRemoteClient *awaited, const TimestampTz *seen)
{
	Entry	   *entry = own_entry();
	TesseraDeclaredWait wait = {.pid = MyProcPid, .database = MyDatabaseId, .since = since, .n = Min(n, TESSERA_MOST_AWAITED)};

	if (entry == NULL)
		return;
	tessera_at_exit(tessera_wait_clear);
	for (int i = 0; i < wait.n; i++)
	{
		wait.awaited[i] = awaited[i];
		wait.seen[i] = seen[i];
	}
	write_entry(entry, &wait);
}

void
tessera_wait_over(void)
{
	Entry	   *entry = own_entry();

	if (entry == NULL || entry->wait.pid == 0)
		return;
	tessera_wait_clear(0, (Datum) 0);
	pg_atomic_write_u64(&entry->victim, 0);
}

bool
tessera_wait_is_victim(void)
{
	Entry	   *entry = own_entry();

	return entry != NULL && entry->wait.pid != 0 && pg_atomic_read_u64(&entry->victim) == (uint64) entry->wait.since;
}

/* What it holds at one moment; false: nothing. */
static bool
read_entry(Entry *entry, TesseraDeclaredWait *wait)
{
	uint32		before;

	do
	{
		before = pg_atomic_read_u32(&entry->changes);
		pg_read_barrier();
		*wait = entry->wait;
		pg_read_barrier();
	} while ((before & 1) != 0 || pg_atomic_read_u32(&entry->changes) != before);
	return wait->pid != 0;
}

bool
tessera_wait_choose_victim(int32 pid, TimestampTz since)
{
	for (int i = 0; entries != NULL && i < MaxBackends; i++)
	{
		TesseraDeclaredWait wait;

		if (entries[i].wait.pid != pid || !read_entry(&entries[i], &wait) || wait.pid != pid || wait.database != MyDatabaseId || wait.since != since)
			continue;
		pg_atomic_write_u64(&entries[i].victim, (uint64) since);
		SetLatch(&ProcGlobal->allProcs[i].procLatch);
		return true;
	}
	return false;
}

void
tessera_waits_each(void (*see) (const TesseraDeclaredWait *wait, void *arg), void *arg)
{
	for (int i = 0; entries != NULL && i < MaxBackends; i++)
	{
		TesseraDeclaredWait wait;

		if (entries[i].wait.pid != 0 && read_entry(&entries[i], &wait) && wait.database == MyDatabaseId)
			see(&wait, arg);
	}
}

void
tessera_declared_wait_init(void)
{
	tessera_shmem_register(&declared_wait_module);
}
