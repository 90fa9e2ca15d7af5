/*
 * session_uses.c
 *	  Uses of logical sessions, noted in shared memory; see session_uses.h.
 *
 * A place for each backend, by the number of its PGPROC, which only that backend fills; its spinlock guards all fields but the process id. When the
 * backend goes on to another session, or ends, an unwritten use goes to a hash table that is all databases' of the server, guarded by one LWLock: it
 * is taken when a connection changes its session, not for each statement. Its size is fixed. When it is half full the session reaper is woken; when
 * it is full a use is forgotten and counted: the session counts as used when its row says so, a while before.
 *
 * A crash starts with nothing.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/spin.h"

#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/transaction_steps.h"
#include "common/version_compat.h"
#include "common/worker_registry.h"
#include "logical_session/numbering.h"
#include "logical_session/session_uses.h"
#include "session/internal_connection.h"

#define LEFT_PLACES 16384		/* of the server; 44 bytes each */

typedef struct Place
{
	slock_t		mutex;
	pg_atomic_uint32 pid;		/* of the backend; 0: free */
	int			slot;			/* its database's */
	pg_uuid_t	session;
	Oid			role;
	TesseraSessionState state;
	TimestampTz used;
	TimestampTz written;
	bool		killed;
} Place;

/* A use that its backend has left behind. */
typedef struct Left
{
	pg_uuid_t	session;
	Oid			role;
	int			slot;
	int			next;			/* in its bucket, or of the free ones; -1: none */
	TimestampTz used;
} Left;

typedef struct SessionUses
{
	pg_atomic_uint64 counts[TESSERA_MAX_DATABASES][TESSERA_REAPER_COUNTS];
	pg_atomic_uint32 hurry[TESSERA_MAX_DATABASES];
	/* the hash table */
	int			nleft;
	int			free;
	int			buckets[LEFT_PLACES];
	Left		left[LEFT_PLACES];
	Place		places[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends */
} SessionUses;

static SessionUses *shared = NULL;
static LWLock *left_lock = NULL;

/* What this backend has written to its place. */
typedef struct Mine
{
	Place	   *place;			/* NULL: it has used no session */
	bool		in_transaction; /* that has used it */
} Mine;

static Mine mine = {0};

/* ---- shared memory ---- */

static Size
uses_size(void)
{
	return add_size(offsetof(SessionUses, places), mul_size(sizeof(Place), MaxBackends));
}

static void
uses_shmem_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	left_lock = &locks[0].lock;
	if (found)
		return;
	memset(shared, 0, uses_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		pg_atomic_init_u32(&shared->hurry[i], 0);
		for (int j = 0; j < TESSERA_REAPER_COUNTS; j++)
			pg_atomic_init_u64(&shared->counts[i][j], 0);
	}
	for (int i = 0; i < LEFT_PLACES; i++)
	{
		shared->buckets[i] = -1;
		shared->left[i].next = i + 1 < LEFT_PLACES ? i + 1 : -1;
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		SpinLockInit(&shared->places[i].mutex);
		pg_atomic_init_u32(&shared->places[i].pid, 0);
	}
}

/* Takes the entry out of its bucket. The lock is held. */
static void
remove_left(int *link)
{
	int			i = *link;

	*link = shared->left[i].next;
	shared->left[i].next = shared->free;
	shared->free = i;
	shared->nleft--;
}

static void
uses_reset_slot(int slot)
{
	LWLockAcquire(left_lock, LW_EXCLUSIVE);
	for (int i = 0; i < LEFT_PLACES; i++)
		for (int *link = &shared->buckets[i]; *link >= 0;)
		{
			if (shared->left[*link].slot == slot)
				remove_left(link);
			else
				link = &shared->left[*link].next;
		}
	LWLockRelease(left_lock);
	pg_atomic_write_u32(&shared->hurry[slot], 0);
	for (int j = 0; j < TESSERA_REAPER_COUNTS; j++)
		pg_atomic_write_u64(&shared->counts[slot][j], 0);
}

static const TesseraShmemModule uses_module = {"tessera_session_uses", uses_size, 1, uses_shmem_init, uses_reset_slot};

void
tessera_session_uses_init(void)
{
	tessera_shmem_register(&uses_module);
}

/* ---- counts ---- */

int64
tessera_reaper_count(TesseraReaperCount count)
{
	int			slot = tessera_database_slot_if_any();

	return slot < 0 ? 0 : (int64) pg_atomic_read_u64(&shared->counts[slot][count]);
}

void
tessera_reaper_count_add(TesseraReaperCount count, int64 more)
{
	pg_atomic_fetch_add_u64(&shared->counts[tessera_database_slot()][count], more);
}

void
tessera_reaper_refreshed(TimestampTz at)
{
	pg_atomic_write_u64(&shared->counts[tessera_database_slot()][TESSERA_REAPER_REFRESHED], (uint64) at);
}

bool
tessera_session_uses_hurry(void)
{
	return pg_atomic_exchange_u32(&shared->hurry[tessera_database_slot()], 0) != 0;
}

/* ---- what was left ---- */

/* Where the link to the entry is, or would be. The lock is held. */
static int *
find_left(int slot, const pg_uuid_t *session, Oid role)
{
	int		   *link = &shared->buckets[hash_bytes(session->data, UUID_LEN) % LEFT_PLACES];

	while (*link >= 0)
	{
		Left	   *left = &shared->left[*link];

		if (left->slot == slot && left->role == role && memcmp(&left->session, session, sizeof(pg_uuid_t)) == 0)
			break;
		link = &left->next;
	}
	return link;
}

/* False: there is no room. */
static bool
add_left(int slot, const Place *place, bool *half)
{
	int		   *link = find_left(slot, &place->session, place->role);
	Left	   *left;

	if (*link < 0)
	{
		int			i = shared->free;

		if (i < 0)
			return false;
		left = &shared->left[i];
		shared->free = left->next;
		left->session = place->session;
		left->role = place->role;
		left->slot = slot;
		left->used = place->used;
		left->next = -1;
		*link = i;
		*half = ++shared->nleft >= LEFT_PLACES / 2;
		return true;
	}
	left = &shared->left[*link];
	left->used = Max(left->used, place->used);
	return true;
}

/* This backend has nothing more to do with its session. */
static void
leave(void)
{
	Place	   *place = mine.place;
	bool		half = false;
	bool		kept = true;

	if (place == NULL)
		return;
	mine.place = NULL;
	mine.in_transaction = false;
	/* first there: for a moment it is in both */
	if (place->used > place->written)
	{
		LWLockAcquire(left_lock, LW_EXCLUSIVE);
		kept = add_left(place->slot, place, &half);
		LWLockRelease(left_lock);
	}
	pg_atomic_write_u32(&place->pid, 0);
	if (!kept)
		pg_atomic_fetch_add_u64(&shared->counts[place->slot][TESSERA_REAPER_FORGOTTEN], 1);
	if ((half || !kept) && pg_atomic_exchange_u32(&shared->hurry[place->slot], 1) == 0)
		(void) tessera_worker_wake(TESSERA_SESSION_REAPER);
}

void
tessera_session_use_leave(int code, Datum arg)
{
	leave();
}

/* ---- this backend ---- */

static void
enter(const pg_uuid_t *session, Oid role)
{
	int			number = MyProc == NULL ? MaxBackends : tessera_proc_number(MyProc);
	int			slot = tessera_database_slot_if_any();
	Place	   *place;

	if (slot < 0 || number >= MaxBackends)
		return;
	tessera_at_exit(tessera_session_use_leave);
	place = &shared->places[number];
	SpinLockAcquire(&place->mutex);
	place->slot = slot;
	place->session = *session;
	place->role = role;
	place->state = TESSERA_SESSION_IDLE;
	place->used = place->written = 0;
	place->killed = false;
	pg_atomic_write_u32(&place->pid, (uint32) MyProcPid);
	SpinLockRelease(&place->mutex);
	mine.place = place;
}

void
tessera_session_use_note(void)
{
	const pg_uuid_t *session = tessera_numbered_session();
	Place	   *place = mine.place;

	if (session == NULL && place == NULL)
		return;
	/* ROLLBACK of a transaction that has failed is no use: nothing comes after it that would end it */
	if (IsParallelWorker() || tessera_internal_connection() || !IsTransactionState())
		return;
	if (place != NULL && (session == NULL || place->role != GetOuterUserId() || memcmp(&place->session, session, sizeof(pg_uuid_t)) != 0))
		leave();
	if (session != NULL && mine.place == NULL)
		enter(session, GetOuterUserId());
	place = mine.place;
	if (place == NULL || mine.in_transaction)
		return;
	SpinLockAcquire(&place->mutex);
	place->used = GetCurrentStatementStartTimestamp();
	place->state = TESSERA_SESSION_IN_USE;
	SpinLockRelease(&place->mutex);
	mine.in_transaction = true;
	tessera_transaction_involved();
}

bool
tessera_session_use_is_noted(void)
{
	return mine.place != NULL;
}

void
tessera_session_use_state(TesseraSessionState state)
{
	if (!mine.in_transaction)
		return;
	SpinLockAcquire(&mine.place->mutex);
	mine.place->state = state;
	SpinLockRelease(&mine.place->mutex);
}

void
tessera_session_use_end(void)
{
	TimestampTz now;

	if (!mine.in_transaction)
		return;
	now = GetCurrentTimestamp();
	SpinLockAcquire(&mine.place->mutex);
	mine.place->used = Max(mine.place->used, now);
	mine.place->state = TESSERA_SESSION_IDLE;
	SpinLockRelease(&mine.place->mutex);
	mine.in_transaction = false;
}

/* ---- for the reaper, and for views ---- */

/* False: the place is free, or another database's. */
static bool
read_place(int i, int slot, TesseraSessionUse *use)
{
	Place	   *place = &shared->places[i];
	TimestampTz now = GetCurrentTimestamp();
	bool		there;

	if (pg_atomic_read_u32(&place->pid) == 0)
		return false;
	SpinLockAcquire(&place->mutex);
	use->pid = (int) pg_atomic_read_u32(&place->pid);
	there = use->pid != 0 && place->slot == slot;
	use->session = place->session;
	use->role = place->role;
	use->state = place->state;
	use->used = place->state == TESSERA_SESSION_IDLE ? place->used : Max(now, place->used);
	use->written = use->used <= place->written;
	use->place = i;
	SpinLockRelease(&place->mutex);
	return there;
}

TesseraSessionUse *
tessera_session_uses(int *n)
{
	int			slot = tessera_database_slot_if_any();
	TesseraSessionUse *uses = palloc(sizeof(TesseraSessionUse) * (MaxBackends + LEFT_PLACES));

	*n = 0;
	if (slot < 0)
		return uses;
	for (int i = 0; i < MaxBackends; i++)
		if (read_place(i, slot, &uses[*n]))
			(*n)++;
	LWLockAcquire(left_lock, LW_SHARED);
	for (int i = 0; i < LEFT_PLACES && shared->nleft > 0; i++)
		for (int j = shared->buckets[i]; j >= 0; j = shared->left[j].next)
		{
			const Left *left = &shared->left[j];

			if (left->slot == slot)
				uses[(*n)++] = (TesseraSessionUse) {.session = left->session, .role = left->role, .used = left->used, .place = -1};
		}
	LWLockRelease(left_lock);
	return uses;
}

/* True if the place is still that of the same use. Its spinlock is held. */
static bool
is_same_use(Place *place, const TesseraSessionUse *use)
{
	return pg_atomic_read_u32(&place->pid) == (uint32) use->pid && place->role == use->role &&
		memcmp(&place->session, &use->session, sizeof(pg_uuid_t)) == 0;
}

bool
tessera_session_use_kill(const TesseraSessionUse *use)
{
	Place	   *place = &shared->places[use->place];
	bool		first;

	SpinLockAcquire(&place->mutex);
	first = is_same_use(place, use) && !place->killed;
	if (first)
		place->killed = true;
	SpinLockRelease(&place->mutex);
	return first;
}

static void
place_written(const TesseraSessionUse *use)
{
	Place	   *place = &shared->places[use->place];

	SpinLockAcquire(&place->mutex);
	if (is_same_use(place, use))
		place->written = Max(place->written, use->used);
	SpinLockRelease(&place->mutex);
}

void
tessera_session_uses_written(int n, const TesseraSessionUse *uses)
{
	int			slot = tessera_database_slot();

	LWLockAcquire(left_lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		int		   *link = find_left(slot, &uses[i].session, uses[i].role);

		if (*link >= 0 && shared->left[*link].used <= uses[i].used)
			remove_left(link);
	}
	LWLockRelease(left_lock);
	for (int i = 0; i < n; i++)
		if (uses[i].place >= 0)
			place_written(&uses[i]);
}
