/*
 * prepared_change.c
 *	  A shared list of the transactions prepared since the server started: gid and what it did to the catalog.
 *
 * The list has room for max_prepared_transactions entries and is guarded by one LWLock, taken at PREPARE, before and after COMMIT PREPARED, after
 * ROLLBACK PREPARED. A transaction without an entry counts as one that changed everything: after a crash, a restart or a promotion the list is empty,
 * and an entry may not have fitted.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "storage/lwlock.h"

#include "catalog/prepared_change.h"
#include "common/shmem.h"

typedef struct PreparedEntry
{
	uint32		hash;			/* 0: free */
	TesseraPreparedChange change;
	char		gid[GIDSIZE];
} PreparedEntry;

static PreparedEntry *entries = NULL;
static LWLock *entries_lock = NULL;


static Size
entries_size(void)
{
	return Max(max_prepared_xacts, 1) * sizeof(PreparedEntry);
}

static void
entries_init(void *memory, LWLockPadded *locks, bool found)
{
	entries = memory;
	entries_lock = &locks[0].lock;
	if (!found)
		memset(entries, 0, entries_size());
}

static const TesseraShmemModule prepared_module = {"tessera_prepared_changes", entries_size, 1, entries_init, NULL};

void
tessera_prepared_change_init(void)
{
	tessera_shmem_register(&prepared_module);
}

static uint32
gid_hash(const char *gid)
{
	return hash_bytes((const unsigned char *) gid, strlen(gid)) | 1;
}

/* The entry of a gid (NULL: a free one); NULL if there is none. */
static PreparedEntry *
find_entry(const char *gid)
{
	uint32		hash = gid ? gid_hash(gid) : 0;

	for (int i = 0; i < max_prepared_xacts; i++)
		if (entries[i].hash == hash && (gid == NULL || strcmp(entries[i].gid, gid) == 0))
			return &entries[i];
	return NULL;
}

void
tessera_prepared_note(const char *gid, TesseraPreparedChange change)
{
	PreparedEntry *entry;

	LWLockAcquire(entries_lock, LW_EXCLUSIVE);
	entry = find_entry(gid);
	if (entry == NULL)
		entry = find_entry(NULL);
	if (entry != NULL)
	{
		entry->hash = gid_hash(gid);
		entry->change = change;
		strlcpy(entry->gid, gid, GIDSIZE);
	}
	LWLockRelease(entries_lock);
}

TesseraPreparedChange
tessera_prepared_look(const char *gid)
{
	TesseraPreparedChange change = {true, true};
	PreparedEntry *entry;

	LWLockAcquire(entries_lock, LW_SHARED);
	entry = find_entry(gid);
	if (entry != NULL)
		change = entry->change;
	LWLockRelease(entries_lock);
	return change;
}

TesseraPreparedChange
tessera_prepared_take(const char *gid)
{
	TesseraPreparedChange change = {true, true};
	PreparedEntry *entry;

	LWLockAcquire(entries_lock, LW_EXCLUSIVE);
	entry = find_entry(gid);
	if (entry != NULL)
	{
		change = entry->change;
		entry->hash = 0;
	}
	LWLockRelease(entries_lock);
	return change;
}
