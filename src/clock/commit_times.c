/*
 * commit_times.c
 *	  Cluster times of commits, in shared memory; see commit_times.h.
 *
 * Slots: one for each PGPROC, those of prepared transactions last. Who fills one writes the transaction id first, then takes the time: a reader that
 * has raised the clock and finds the slot empty knows that the time which is taken after that is later. The rest of a slot is guarded by one of
 * SLOT_LOCKS locks. Readers look at the slots in the order of the array: a transaction that is prepared moves from a backend's slot to one behind.
 *
 * The ring: a writer draws a place and writes its entry between two marks of the place's number. An entry that is not whole yet is of a commit whose
 * slot was still filled when the reader looked at the slots.
 *
 * A commit can be made later ("pushed") as long as nobody can have seen it: its new time is taken from the clock first, then it is looked whether it
 * is still in progress. Whoever sees it afterwards hears a clock that is at least as late.
 *
 * Slots and ring are of all databases of the server, as transaction ids are; each entry says whose time it has. Nothing is durable: a crash begins
 * with empty ones, and with the time of the clock's reservation as the newest (tessera_commit_start).
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "clock/clock.h"
#include "clock/commit_times.h"
#include "common/shmem.h"
#include "common/version_compat.h"

#define RING_SIZE 65536			/* commits; a power of two */
#define SLOT_LOCKS 64

typedef enum SlotState
{
	SLOT_COMMITS,				/* in one phase: its time can be made later until it can be seen */
	SLOT_FIXED,					/* the same, but others know its time; or a prepared one that is being committed */
	SLOT_PREPARED,				/* the time is that of its preparation */
	SLOT_CLIENT					/* the same, of a client who has all the time in the world to decide: nobody waits for that */
} SlotState;

typedef struct Slot
{
	SlotState	state;
	int			database;		/* slot of the database whose clock it is */
	bool		serializable;	/* or not known */
	TesseraTime time;
} Slot;

typedef struct RingEntry
{
	pg_atomic_uint64 mark;		/* its place plus one, when it is whole; 0 while it is written */
	TransactionId xid;
	int			database;
	bool		serializable;
	TesseraTime time;
} RingEntry;

typedef struct CommitTimes
{
	pg_atomic_uint64 next;		/* place in the ring */
	pg_atomic_uint64 newest[TESSERA_MAX_DATABASES];
	pg_atomic_uint32 knows_found[TESSERA_MAX_DATABASES];
	RingEntry	ring[RING_SIZE];
	Slot		slots[FLEXIBLE_ARRAY_MEMBER];
} CommitTimes;

static CommitTimes *times = NULL;
static pg_atomic_uint32 *xids = NULL;	/* of the slots: together, as every reader looks at all of them; 0: free */
static char (*gids)[GIDSIZE];	/* of prepared transactions */
static LWLockPadded *locks;


static int
first_prepared(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

static int
number_of_slots(void)
{
	return first_prepared() + max_prepared_xacts;
}

static Size
slots_size(void)
{
	return MAXALIGN(offsetof(CommitTimes, slots) + sizeof(Slot) * number_of_slots());
}

static Size
xids_size(void)
{
	return MAXALIGN(sizeof(pg_atomic_uint32) * number_of_slots());
}

static Size
times_size(void)
{
	return slots_size() + xids_size() + GIDSIZE * Max(max_prepared_xacts, 1);
}

static void
times_shmem_init(void *memory, LWLockPadded *own_locks, bool found)
{
	times = memory;
	xids = (pg_atomic_uint32 *) ((char *) memory + slots_size());
	gids = (char (*)[GIDSIZE]) ((char *) xids + xids_size());
	locks = own_locks;
	if (found)
		return;
	memset(memory, 0, times_size());
	pg_atomic_init_u64(&times->next, 0);
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		pg_atomic_init_u64(&times->newest[i], 0);
		pg_atomic_init_u32(&times->knows_found[i], 0);
	}
	for (int i = 0; i < RING_SIZE; i++)
		pg_atomic_init_u64(&times->ring[i].mark, 0);
	for (int i = 0; i < number_of_slots(); i++)
		pg_atomic_init_u32(&xids[i], InvalidTransactionId);
}

static void
forget_database(int slot)
{
	pg_atomic_write_u64(&times->newest[slot], 0);
	pg_atomic_write_u32(&times->knows_found[slot], 0);
}

static const TesseraShmemModule times_module = {"tessera_commit_times", times_size, SLOT_LOCKS, times_shmem_init, forget_database};

void
tessera_commit_times_init(void)
{
	tessera_shmem_register(&times_module);
}

static LWLock *
lock_of(int slot)
{
	return &locks[slot % SLOT_LOCKS].lock;
}

static int
own_slot(void)
{
	return tessera_proc_number(MyProc);
}

static TransactionId
xid_in(int slot)
{
	return (TransactionId) pg_atomic_read_u32(&xids[slot]);
}

/* With the slot's lock held. */
static void
fill_slot(int slot, TransactionId xid, SlotState state, bool serializable, TesseraTime time)
{
	times->slots[slot].state = state;
	times->slots[slot].database = tessera_database_slot();
	times->slots[slot].serializable = serializable;
	times->slots[slot].time = time;
	pg_write_barrier();
	pg_atomic_write_u32(&xids[slot], xid);
	pg_memory_barrier();
}

static void
empty_slot(int slot)
{
	LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
	pg_atomic_write_u32(&xids[slot], InvalidTransactionId);
	LWLockRelease(lock_of(slot));
}

static void
raise_newest(int database, TesseraTime time)
{
	uint64		newest = pg_atomic_read_u64(&times->newest[database]);

	while (newest < time && !pg_atomic_compare_exchange_u64(&times->newest[database], &newest, time))
		;
}

/* ---- a commit ---- */

static void
add_to_ring(TransactionId xid, const Slot *slot)
{
	uint64		place = pg_atomic_fetch_add_u64(&times->next, 1);
	RingEntry  *entry = &times->ring[place % RING_SIZE];

	pg_atomic_write_u64(&entry->mark, 0);
	pg_memory_barrier();
	entry->xid = xid;
	entry->database = slot->database;
	entry->serializable = slot->serializable;
	entry->time = slot->time;
	pg_memory_barrier();
	pg_atomic_write_u64(&entry->mark, place + 1);
	raise_newest(slot->database, slot->time);
}

bool
tessera_commit_take_time(TransactionId xid, bool metadata, bool fixed, TesseraTime *time)
{
	int			slot = own_slot();
	bool		taken = true;

	(void) tessera_database_slot(); /* given, if need be, before the lock */
	LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
	if (xid_in(slot) == xid)
		*time = times->slots[slot].time;
	else
	{
		fill_slot(slot, xid, fixed ? SLOT_FIXED : SLOT_COMMITS, IsolationIsSerializable(), 0);
		taken = tessera_clock_tick(metadata, time);
		if (taken)
			times->slots[slot].time = *time;
		else
			pg_atomic_write_u32(&xids[slot], InvalidTransactionId);
	}
	LWLockRelease(lock_of(slot));
	return taken;
}

TesseraTime
tessera_commit_seen(void)
{
	int			slot = own_slot();
	TesseraTime time = 0;

	if (xid_in(slot) == InvalidTransactionId)
		return 0;
	LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
	time = times->slots[slot].time;
	add_to_ring(xid_in(slot), &times->slots[slot]);
	pg_memory_barrier();
	pg_atomic_write_u32(&xids[slot], InvalidTransactionId);
	LWLockRelease(lock_of(slot));
	return time;
}

void
tessera_commit_given_up(void)
{
	if (xid_in(own_slot()) != InvalidTransactionId)
		empty_slot(own_slot());
}

/* ---- prepared transactions ---- */

void
tessera_commit_prepared(int proc, const char *gid, bool of_client)
{
	int			own = own_slot();
	TransactionId xid = xid_in(own);
	TesseraTimes now;
	TesseraTime time;
	bool		serializable;

	if (xid == InvalidTransactionId || proc < first_prepared())
		return;
	/* its commit is later than the clock that the answer tells, which is as late as this, or later if it is pushed after this */
	LWLockAcquire(lock_of(own), LW_SHARED);
	time = times->slots[own].time;
	serializable = times->slots[own].serializable;
	LWLockRelease(lock_of(own));
	if (tessera_clock_read(&now))
		time = Max(time, now.cluster);
	LWLockAcquire(lock_of(proc), LW_EXCLUSIVE);
	strlcpy(gids[proc - first_prepared()], gid, GIDSIZE);
	fill_slot(proc, xid, of_client ? SLOT_CLIENT : SLOT_PREPARED, serializable, time);
	LWLockRelease(lock_of(proc));
	empty_slot(own);
}

void
tessera_commit_found_prepared(TransactionId xid, const char *gid, bool of_client)
{
	for (int slot = first_prepared(); slot < number_of_slots(); slot++)
	{
		if (ProcGlobal->allProcs[slot].xid != xid)
			continue;
		LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
		if (xid_in(slot) != xid && TransactionIdIsInProgress(xid))
		{
			strlcpy(gids[slot - first_prepared()], gid, GIDSIZE);
			fill_slot(slot, xid, of_client ? SLOT_CLIENT : SLOT_PREPARED, true, 0);
		}
		LWLockRelease(lock_of(slot));
		return;
	}
}

bool
tessera_commit_find_prepared(const char *gid, TransactionId *xid, TesseraTime *prepared)
{
	for (int slot = first_prepared(); slot < number_of_slots(); slot++)
	{
		bool		found;

		if (xid_in(slot) == InvalidTransactionId)
			continue;
		LWLockAcquire(lock_of(slot), LW_SHARED);
		*xid = xid_in(slot);
		*prepared = times->slots[slot].time;
		found = *xid != InvalidTransactionId && times->slots[slot].database == tessera_database_slot() &&
			strcmp(gids[slot - first_prepared()], gid) == 0 && TransactionIdIsInProgress(*xid);
		LWLockRelease(lock_of(slot));
		if (found)
			return true;
	}
	return false;
}

bool
tessera_commit_taken(TransactionId xid, TesseraTime *time)
{
	pg_memory_barrier();
	for (int slot = 0; slot < first_prepared(); slot++)
	{
		bool		found;

		if (xid_in(slot) != xid)
			continue;
		/* its owner holds the lock while it takes the time */
		LWLockAcquire(lock_of(slot), LW_SHARED);
		found = xid_in(slot) == xid;
		*time = times->slots[slot].time;
		LWLockRelease(lock_of(slot));
		return found;
	}
	return false;
}

/* true, too, if it is not known. */
static bool
prepared_is_serializable(TransactionId xid)
{
	for (int slot = first_prepared(); slot < number_of_slots(); slot++)
		if (xid_in(slot) == xid)
			return times->slots[slot].serializable;
	return true;
}

void
tessera_commit_begin_prepared(TransactionId xid, TesseraTime time)
{
	int			slot = own_slot();
	bool		serializable = prepared_is_serializable(xid);

	LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
	fill_slot(slot, xid, SLOT_FIXED, serializable, time);
	LWLockRelease(lock_of(slot));
}

void
tessera_commit_end_prepared(TransactionId xid)
{
	if (TransactionIdDidCommit(xid))
		(void) tessera_commit_seen();
	else
		tessera_commit_given_up();
	if (TransactionIdIsInProgress(xid))
		return;
	for (int slot = first_prepared(); slot < number_of_slots(); slot++)
		if (xid_in(slot) == xid)
		{
			LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
			if (xid_in(slot) == xid)
				pg_atomic_write_u32(&xids[slot], InvalidTransactionId);
			LWLockRelease(lock_of(slot));
		}
}

bool
tessera_commit_knows_found(void)
{
	return pg_atomic_read_u32(&times->knows_found[tessera_database_slot()]) != 0;
}

void
tessera_commit_all_found(void)
{
	pg_atomic_write_u32(&times->knows_found[tessera_database_slot()], 1);
}

void
tessera_commit_start(TesseraTime time)
{
	raise_newest(tessera_database_slot(), time);
}

/* ---- snapshots as of a time ---- */

uint64
tessera_commit_position(void)
{
	uint64		position = pg_atomic_read_u64(&times->next);

	pg_memory_barrier();
	return position;
}

TesseraTime
tessera_commit_newest(Snapshot snapshot)
{
	int			database = tessera_database_slot();
	TesseraTime newest = 0;

	pg_memory_barrier();
	for (int slot = 0; slot < number_of_slots(); slot++)
	{
		TransactionId xid = xid_in(slot);

		if (xid == InvalidTransactionId || XidInMVCCSnapshot(xid, snapshot))
			continue;
		LWLockAcquire(lock_of(slot), LW_SHARED);
		if (xid_in(slot) == xid && times->slots[slot].database == database && times->slots[slot].state < SLOT_PREPARED)
			newest = Max(newest, times->slots[slot].time);
		LWLockRelease(lock_of(slot));
	}
	pg_read_barrier();
	return Max(newest, pg_atomic_read_u64(&times->newest[database]));
}

List *
tessera_commit_doubts(Snapshot snapshot, TesseraConcerns concerns, void *arg)
{
	List	   *doubts = NIL;

	for (int slot = first_prepared(); slot < number_of_slots(); slot++)
	{
		TransactionId xid = xid_in(slot);
		TesseraDoubt doubt = {.xid = xid,.decided = TESSERA_DECIDED_UNKNOWN};
		bool		open;

		if (xid == InvalidTransactionId || !XidInMVCCSnapshot(xid, snapshot))
			continue;
		LWLockAcquire(lock_of(slot), LW_SHARED);
		open = xid_in(slot) == xid && times->slots[slot].database == tessera_database_slot();
		strlcpy(doubt.gid, gids[slot - first_prepared()], GIDSIZE);
		doubt.prepared = times->slots[slot].time;
		doubt.of_client = times->slots[slot].state == SLOT_CLIENT;
		LWLockRelease(lock_of(slot));
		if (open && (concerns == NULL || concerns(slot, xid, arg)))
			doubts = lappend(doubts, memcpy(palloc(sizeof(TesseraDoubt)), &doubt, sizeof(TesseraDoubt)));
	}
	return doubts;
}

/* Of one snapshot that is cut. */
typedef struct Cut
{
	Snapshot	snapshot;
	const TesseraCutRequest *request;
	TesseraCutResult *result;
	int			database;
	int			room;			/* for what is hidden */
	TransactionId own[TESSERA_CUT_WAITS];	/* found in slots of backends: what stands in one of prepared transactions says less */
	int			nown;
	bool		late;			/* a client has prepared one since it was asked for */
	bool		shown;			/* a serializable one, which is on its way into the ring */
} Cut;

static void
hide(Cut *cut, TransactionId xid)
{
	TesseraCutResult *result = cut->result;

	if (result->nhidden == cut->room)
	{
		Size		size = sizeof(TransactionId) * (cut->room = Max(64, cut->room * 2));

		result->hidden = result->hidden == NULL ? palloc(size) : repalloc(result->hidden, size);
	}
	result->hidden[result->nhidden++] = xid;
}

/* With the slot's lock held exclusively. false: it has become visible meanwhile. */
static bool
push(Slot *slot, TransactionId xid)
{
	TesseraTime time;

	if (!tessera_clock_tick(false, &time))
		return false;
	pg_memory_barrier();
	if (!TransactionIdIsInProgress(xid))
		return false;
	slot->time = time;
	return true;
}

/* One of a client that nobody was asked about: it may be decided, and is not waited for. */
static bool
is_unnamed(const Cut *cut, int slot, TransactionId xid)
{
	return slot >= first_prepared() && times->slots[slot].state == SLOT_CLIENT && times->slots[slot].time != 0 &&
		!list_member_int(cut->request->clients, (int) xid);
}

/* false: it has ended meanwhile, and with it what tells whether it concerns the statement. */
static bool
wait_for(Cut *cut, int slot, TransactionId xid)
{
	if (cut->request->concerns != NULL && !cut->request->concerns(slot, xid, cut->request->arg))
		return TransactionIdIsInProgress(xid);
	if (is_unnamed(cut, slot, xid))
		cut->late = true;
	else if (cut->result->nwaits < TESSERA_CUT_WAITS)
		cut->result->waits[cut->result->nwaits++] = xid;
	return true;
}

static bool
known_from_backend(const Cut *cut, TransactionId xid)
{
	for (int i = 0; i < cut->nown; i++)
		if (cut->own[i] == xid)
			return true;
	return false;
}

/* What is to be done about a commit that may be at the time or before, and is not in the snapshot. */
typedef enum Settled
{
	SETTLED,					/* nothing: it will be later, or nobody waits for it */
	SETTLED_AT_END,				/* its end is waited for */
	SETTLED_OPEN,				/* the caller keeps an eye on it */
	UNSETTLED					/* it is going on just now: take the snapshot again */
} Settled;

/* With the slot's lock held. A client has all the time in the world: only what is decided is waited for. */
static Settled
settle_prepared(const Cut *cut, int slot, TransactionId xid)
{
	ListCell   *cell;

	foreach(cell, cut->request->doubts)
	{
		const TesseraDoubt *doubt = lfirst(cell);

		if (doubt->decided != TESSERA_DECIDED_UNKNOWN && strcmp(doubt->gid, gids[slot - first_prepared()]) == 0)
			return doubt->decided == TESSERA_DECIDED ? SETTLED_AT_END : SETTLED;
	}
	if (times->slots[slot].state == SLOT_CLIENT)
		return is_unnamed(cut, slot, xid) ? SETTLED_AT_END : SETTLED;
	return list_member_int(cut->request->named, (int) xid) ? SETTLED_OPEN : SETTLED_AT_END;
}

static Settled
settle(Cut *cut, int slot, TransactionId xid)
{
	Slot	   *entry = &times->slots[slot];
	Settled		settled = SETTLED;

	LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
	if (xid_in(slot) != xid)
		/* gone: into the ring, or rolled back; of a prepared one the backend's slot tells */
		settled = slot >= first_prepared() ? SETTLED : UNSETTLED;
	else if (entry->database != cut->database || entry->time > cut->request->time)
		;
	else if (entry->state == SLOT_COMMITS)
		settled = push(entry, xid) ? SETTLED : UNSETTLED;
	else
		settled = slot < first_prepared() ? SETTLED_AT_END : settle_prepared(cut, slot, xid);
	LWLockRelease(lock_of(slot));
	return settled;
}

/* One that the snapshot sees. The lock comes before the time is compared: it is 0 for a moment while the slot's owner, who holds it, takes it. */
static void
look_at_seen(Cut *cut, int slot, TransactionId xid)
{
	const Slot *seen = &times->slots[slot];
	bool		of_backend;
	bool		later;

	LWLockAcquire(lock_of(slot), LW_SHARED);
	of_backend = xid_in(slot) == xid && seen->database == cut->database && seen->state < SLOT_PREPARED;
	later = seen->time > cut->request->time;
	cut->shown = cut->shown || (of_backend && !later && seen->serializable);
	LWLockRelease(lock_of(slot));
	if (of_backend && later)
		hide(cut, xid);
}

/* false: take the snapshot again. */
static bool
look_at_slots(Cut *cut)
{
	for (int slot = 0; slot < number_of_slots(); slot++)
	{
		TransactionId xid = xid_in(slot);
		Settled		settled;

		if (xid == InvalidTransactionId || TransactionIdIsCurrentTransactionId(xid))
			continue;
		if (!XidInMVCCSnapshot(xid, cut->snapshot))
		{
			look_at_seen(cut, slot, xid);
			continue;
		}
		if (slot >= first_prepared() && known_from_backend(cut, xid))
			continue;
		settled = settle(cut, slot, xid);
		if (settled == UNSETTLED || (settled == SETTLED_AT_END && !wait_for(cut, slot, xid)))
			return false;
		if (settled == SETTLED_OPEN)
			cut->result->open = lappend_int(cut->result->open, (int) xid);
		if (slot < first_prepared() && cut->nown < TESSERA_CUT_WAITS)
			cut->own[cut->nown++] = xid;
	}
	return true;
}

/* The entry at a place, if it is whole. -1: it is overwritten. */
static int
read_ring(uint64 place, RingEntry *copy)
{
	RingEntry  *entry = &times->ring[place % RING_SIZE];
	uint64		mark = pg_atomic_read_u64(&entry->mark);

	if (mark > place + 1)
		return -1;
	if (mark != place + 1)
		return 0;
	pg_read_barrier();
	copy->xid = entry->xid;
	copy->database = entry->database;
	copy->serializable = entry->serializable;
	copy->time = entry->time;
	pg_read_barrier();
	return pg_atomic_read_u64(&entry->mark) == mark ? 1 : -1;
}

static TesseraCut
look_at_ring(Cut *cut)
{
	uint64		end = tessera_commit_position();
	bool		hidden = false; /* a serializable one */

	if (end - cut->request->position > RING_SIZE)
		return TESSERA_CUT_LATE;
	for (uint64 place = cut->request->position; place < end; place++)
	{
		RingEntry	entry;
		int			whole = read_ring(place, &entry);
		bool		unseen;

		if (whole < 0)
			return TESSERA_CUT_LATE;
		if (whole == 0 || entry.database != cut->database)
			continue;
		unseen = XidInMVCCSnapshot(entry.xid, cut->snapshot);
		if (unseen && entry.time <= cut->request->time)
			return TESSERA_CUT_AGAIN;
		if (!unseen && entry.time > cut->request->time)
		{
			hide(cut, entry.xid);
			hidden = hidden || entry.serializable;
		}
		else if (!unseen && entry.serializable && hidden && cut->request->serializable)
			return TESSERA_CUT_LATE;
	}
	if (cut->shown && hidden && cut->request->serializable)
		return TESSERA_CUT_LATE;
	/* one that was not whole may have been overwritten */
	return tessera_commit_position() - cut->request->position > RING_SIZE ? TESSERA_CUT_LATE : TESSERA_CUT_MADE;
}

TesseraCut
tessera_commit_cut(Snapshot snapshot, const TesseraCutRequest *request, TesseraCutResult *result)
{
	Cut			cut = {.snapshot = snapshot, .request = request, .result = result, .database = tessera_database_slot()};
	TesseraCut	made;

	memset(result, 0, sizeof(*result));
	pg_memory_barrier();
	made = look_at_slots(&cut) ? look_at_ring(&cut) : TESSERA_CUT_AGAIN;
	if (made == TESSERA_CUT_MADE && result->nwaits > 0)
		made = TESSERA_CUT_WAIT;
	if (cut.late)
		made = TESSERA_CUT_LATE;
	/* parallel workers have room for no more */
	if (made == TESSERA_CUT_MADE && (int) snapshot->xcnt + result->nhidden > GetMaxSnapshotXidCount())
		made = TESSERA_CUT_LATE;
	return made;
}

bool
tessera_commit_time_of(TransactionId xid, uint64 position, TesseraTime *time)
{
	uint64		end;

	/* from the slot of who has committed it, it goes into the ring */
	if (tessera_commit_taken(xid, time))
		return true;
	end = tessera_commit_position();
	for (uint64 place = end - position > RING_SIZE ? end - RING_SIZE : position; place < end; place++)
	{
		RingEntry	entry;

		if (read_ring(place, &entry) > 0 && entry.xid == xid && entry.database == tessera_database_slot())
		{
			*time = entry.time;
			return true;
		}
	}
	return false;
}
