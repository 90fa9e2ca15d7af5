/*
 * shmem.c
 *	  Registry of the extension's shared memory, of database slots, and the server's DSA area.
 *
 * Modules are remembered in _PG_init, asked for their size by shmem_request_hook and made by shmem_startup_hook, both in the postmaster; backends
 * inherit the pointers by fork. Slots and the DSA handle are guarded by the registry's own LWLock. The slot of a dropped database keeps what modules
 * had for it until it is given to another database; then each module's reset_slot frees that, outside of any lock but the registry's.
 * The DSA area is made by its first user, pinned, and attached once by each backend (its descriptor lives in TopMemoryContext until exit).
 * Crash: the server makes everything anew.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "common/shmem.h"

#define MAX_MODULES 32

typedef struct Registry
{
	int			dsa_tranche;
	pg_atomic_uint64 slots_generation;
	/* under the registry's lock */
	bool		has_dsa;
	dsa_handle	dsa;
	Oid			databases[TESSERA_MAX_DATABASES];
	bool		used[TESSERA_MAX_DATABASES];	/* was given once: reset before it is given again */
} Registry;

static const TesseraShmemModule *modules[MAX_MODULES];
static int	nmodules = 0;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

static Registry *registry = NULL;
static LWLock *registry_lock = NULL;

static int	my_slot = -1;
static dsa_area *area = NULL;


/* Registry's own part */

static Size
registry_size(void)
{
	return sizeof(Registry);
}

static void
registry_init(void *memory, LWLockPadded *locks, bool found)
{
	registry = memory;
	registry_lock = &locks[0].lock;
	if (!found)
	{
		memset(registry, 0, sizeof(*registry));
		pg_atomic_init_u64(&registry->slots_generation, 1);
		registry->dsa_tranche = LWLockNewTrancheId();
	}
	LWLockRegisterTranche(registry->dsa_tranche, "tessera_dsa");
}

static const TesseraShmemModule registry_module = {"tessera_registry", registry_size, 1, registry_init, NULL};


/* Modules */

void
tessera_shmem_register(const TesseraShmemModule *module)
{
	Assert(process_shared_preload_libraries_in_progress);
	if (nmodules == MAX_MODULES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many shared memory modules")));
	modules[nmodules++] = module;
}

static void
request(void)
{
	if (previous_request_hook)
		previous_request_hook();

	for (int i = 0; i < nmodules; i++)
	{
		RequestAddinShmemSpace(modules[i]->size());
		if (modules[i]->lwlocks > 0)
			RequestNamedLWLockTranche(modules[i]->name, modules[i]->lwlocks);
	}
}

static void
startup(void)
{
	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < nmodules; i++)
	{
		bool		found;
		void	   *memory = ShmemInitStruct(modules[i]->name, modules[i]->size(), &found);

		modules[i]->init(memory, modules[i]->lwlocks > 0 ? GetNamedLWLockTranche(modules[i]->name) : NULL, found);
	}
	LWLockRelease(AddinShmemInitLock);
}

void
tessera_shmem_install(void)
{
	tessera_shmem_register(&registry_module);
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}


/* Database slots */

static int
find_slot(Oid database)
{
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
		if (registry->databases[i] == database)
			return i;
	return -1;
}

/* Slot (0..TESSERA_MAX_DATABASES-1) of a database, given at first use. ERROR 53400 if all are in use. */
static int
slot_of_database(Oid database)
{
	int			slot;

	Assert(OidIsValid(database));
	LWLockAcquire(registry_lock, LW_SHARED);
	slot = find_slot(database);
	LWLockRelease(registry_lock);
	if (slot >= 0)
		return slot;

	LWLockAcquire(registry_lock, LW_EXCLUSIVE);
	slot = find_slot(database);
	if (slot < 0)
	{
		slot = find_slot(InvalidOid);
		if (slot < 0)
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("too many databases of this server are nodes"),
					 errdetail("At most %d databases of one server can be nodes of clusters.", TESSERA_MAX_DATABASES),
					 errhint("Run DROP EXTENSION tessera in databases that have left their cluster, and restart the server; or put the node in "
							 "another server.")));
		for (int i = 0; i < nmodules && registry->used[slot]; i++)
			if (modules[i]->reset_slot)
				modules[i]->reset_slot(slot);
		registry->used[slot] = true;
		registry->databases[slot] = database;
		pg_write_barrier();
		pg_atomic_fetch_add_u64(&registry->slots_generation, 1);
	}
	LWLockRelease(registry_lock);
	return slot;
}

int
tessera_database_slot(void)
{
	if (my_slot < 0)
		my_slot = slot_of_database(MyDatabaseId);
	return my_slot;
}

int
tessera_database_slot_if_any(void)
{
	static uint64 looked_at = 0;
	uint64		generation;

	if (my_slot < 0 && OidIsValid(MyDatabaseId) && looked_at != (generation = tessera_database_slots_generation()))
	{
		LWLockAcquire(registry_lock, LW_SHARED);
		my_slot = find_slot(MyDatabaseId);
		LWLockRelease(registry_lock);
		looked_at = generation;
	}
	return my_slot;
}

void
tessera_database_slot_release(Oid database)
{
	int			slot;

	LWLockAcquire(registry_lock, LW_EXCLUSIVE);
	slot = find_slot(database);
	if (slot >= 0)
		registry->databases[slot] = InvalidOid;
	LWLockRelease(registry_lock);
}

void
tessera_database_slots(Oid *databases)
{
	LWLockAcquire(registry_lock, LW_SHARED);
	memcpy(databases, registry->databases, sizeof(registry->databases));
	LWLockRelease(registry_lock);
}

uint64
tessera_database_slots_generation(void)
{
	return pg_atomic_read_u64(&registry->slots_generation);
}

void
tessera_database_slots_changed(void)
{
	pg_atomic_fetch_add_u64(&registry->slots_generation, 1);
}


/* DSA area */

dsa_area *
tessera_dsa(void)
{
	MemoryContext old;

	if (area != NULL)
		return area;

	old = MemoryContextSwitchTo(TopMemoryContext);
	LWLockAcquire(registry_lock, LW_EXCLUSIVE);
	if (registry->has_dsa)
		area = dsa_attach(registry->dsa);
	else
	{
		area = dsa_create(registry->dsa_tranche);
		dsa_pin(area);
		registry->dsa = dsa_get_handle(area);
		registry->has_dsa = true;
	}
	dsa_pin_mapping(area);
	LWLockRelease(registry_lock);
	MemoryContextSwitchTo(old);
	return area;
}
