/*
 * connection_slots.c
 *	  The caps on connections to a node; see connection_slots.h and doc/design.md#connection-cap.
 *
 * Taking: below the cap at once. At the cap the backend enters the node's queue and asks the session whose connection has been idle for longest to
 * give it up; then it sleeps until it is granted a slot, and asks again from time to time. Who returns a slot while others wait grants it to the
 * first.
 *
 * Asking: the session is sent the server's own interrupt for catching up with invalidations. An idle backend answers that by an empty transaction,
 * at whose end it looks whether connections are asked for (tessera_connections_at_end), as it does at the end of every transaction.
 *
 * No deadlock: a transaction that has nothing others can wait for is in no cycle, so it waits until its deadline. One that has (a transaction on
 * another node, say) stands in front of those that do not. It takes a slot beyond the cap as soon as all who hold one wait for a slot themselves, and
 * after PATIENCE_MS in any case: the rest of the cycle may be locks on other nodes. So does one for whose locks on this server others wait.
 *
 * The cap of each user: counted when a slot is taken, those of all lanes, and refused at once: what is waited for would be sessions of the same role.
 * What is opened outside of a transaction, to end one elsewhere, is counted, not refused.
 *
 * State is in shared memory, all under one LWLock but for `waiting` and `idle_since`, which are read without it. A slot is its process's: it is
 * returned when the connection is closed, at the latest at the exit of the process. A process that is killed takes the whole server through a
 * restart, which begins with no slots.
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#include "common/injection.h"
#include "common/privilege.h"
#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/version_compat.h"
#include "transport/connection_private.h"
#include "transport/connection_slots.h"

PG_FUNCTION_INFO_V1(tessera_internal_node_connections);
PG_FUNCTION_INFO_V1(tessera_internal_silent_since);

#define MOST_NODES 1024			/* nodes, of all databases of the server, whose connections are counted */
#define SLOTS_A_BACKEND 16		/* with more connections than this on average, some are not found when they are idle, nor counted for users */
#define HOLD_US INT64CONST(500000)	/* a connection in use is kept so long before it is given up to others: opening one costs milliseconds */
#define IDLE_US INT64CONST(50000)	/* one that has not been used for so long is asked for */
#define ASK_AGAIN_US INT64CONST(100000) /* the session may have had something else to do */
#define FIRST_MS 5				/* the first of a queue, and those that others may wait for, look so often for a connection */
#define OTHERS_MS 50			/* the others look so often whether they are the first */
#define LEFT_US INT64CONST(30000000)	/* a node that keeps others waiting is left alone so long by those who do not need it yet */
#define PATIENCE_MS 1000		/* after which a transaction that others may wait for exceeds the cap */

/* Connections of one database's backends to one node. */
typedef struct NodeCount
{
	int			database;		/* slot of the database */
	int32		node_id;		/* 0: free */
	int			open;
	int			waiting;
	int			slots;			/* number of the first of their slots, 0: none */
	int			beside;			/* of the first slot of the other lanes, which are in no other count */
	int			first;			/* the first waiter's process number + 1, 0: none */
	uint64		opened;
	uint64		waits;
	uint64		exceeded;		/* slots taken beyond the cap */
	uint64		refused;
	TimestampTz silent_since;	/* no attempt to connect has succeeded since then; 0: the last one has, or there was none */
	TimestampTz left_until;		/* who does not need the node yet leaves it alone until then; 0: it answers */
} NodeCount;

/* One open connection. */
typedef struct Slot
{
	int			next;			/* of the same node, or free */
	int			owner;			/* process number */
	Oid			user;			/* session user; invalid: serves no client */
	TimestampTz asked;			/* when it was asked to give it up, 0: never */
	pg_atomic_uint64 idle_since;	/* 0: in use */
} Slot;

/* What a process waits for. */
typedef struct Waiter
{
	int			node;			/* number of the node's counters; 0: it waits for none */
	int			next;			/* process number + 1 */
	bool		holder;
	int			granted;		/* number of the counters of the node for which it has been granted a slot, not taken yet; 0: none */
} Waiter;

/* What a slot is asked for. */
typedef struct Claim
{
	int			node;			/* number of the node's counters */
	const char *name;			/* of the node */
	Oid			user;			/* session user; invalid: the process serves no client */
	int			user_limit;		/* 0: none */
} Claim;

typedef struct Shared
{
	pg_atomic_uint32 waiting;	/* processes in queues */
	int			free_slot;
	NodeCount	nodes[MOST_NODES];
} Shared;

bool		(*tessera_slot_holder) (void) = NULL;
bool		(*tessera_slot_blocks_others) (void) = NULL;

static int	max_connections_per_shard = 0;
static int	max_connections_per_user = 0;
static int	connection_wait_timeout = 30000;

static Shared *shared = NULL;
static Slot *slots = NULL;		/* from 1 on */
static Waiter *waiters = NULL;	/* by process number */
static LWLock *lock = NULL;

static int
count_slots(void)
{
	return MaxBackends * SLOTS_A_BACKEND;
}

/* ---- shared memory ---- */

static Size
slots_size(void)
{
	return add_size(add_size(MAXALIGN(sizeof(Shared)), mul_size(MAXALIGN(sizeof(Slot)), count_slots() + 1)),
					mul_size(MAXALIGN(sizeof(Waiter)), MaxBackends));
}

static void
slots_init_memory(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	slots = (Slot *) ((char *) memory + MAXALIGN(sizeof(Shared)));
	waiters = (Waiter *) ((char *) slots + MAXALIGN(sizeof(Slot) * (count_slots() + 1)));
	lock = &locks[0].lock;
	if (found)
		return;
	memset(memory, 0, slots_size());
	pg_atomic_init_u32(&shared->waiting, 0);
	for (int i = 1; i <= count_slots(); i++)
	{
		slots[i].next = i < count_slots() ? i + 1 : 0;
		pg_atomic_init_u64(&slots[i].idle_since, 0);
	}
	shared->free_slot = 1;
}

/* The database was dropped: no backend of it is left. */
static void
forget_database(int database)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < MOST_NODES; i++)
		if (shared->nodes[i].node_id != 0 && shared->nodes[i].database == database && shared->nodes[i].open == 0)
			memset(&shared->nodes[i], 0, sizeof(NodeCount));
	LWLockRelease(lock);
}

static const TesseraShmemModule slots_module = {"tessera_connection_slots", slots_size, 1, slots_init_memory, forget_database};

/* ---- under the lock ---- */

/* Number of the node's counters; 0: there is no room for another one. */
static pg_noinline int
find_node(int database, int32 node_id)
{
	int			unused = 0;

	for (int i = 0; i < MOST_NODES; i++)
	{
		NodeCount  *node = &shared->nodes[i];

		if (node->node_id == node_id && node->database == database)
			return i + 1;
		if (node->node_id == 0 && unused == 0)
			unused = i + 1;
	}
	if (unused != 0)
	{
		shared->nodes[unused - 1].database = database;
		shared->nodes[unused - 1].node_id = node_id;
	}
	return unused;
}

static NodeCount *
counts_of(int node)
{
	return &shared->nodes[node - 1];
}

static void
enter_queue(int node, bool holder)
{
	Waiter	   *own = &waiters[tessera_proc_number(MyProc)];
	int		   *link = &counts_of(node)->first;

	while (*link != 0 && (!holder || waiters[*link - 1].holder))
		link = &waiters[*link - 1].next;
	own->node = node;
	own->holder = holder;
	own->next = *link;
	*link = tessera_proc_number(MyProc) + 1;
	counts_of(node)->waiting++;
	counts_of(node)->waits++;
	pg_atomic_fetch_add_u32(&shared->waiting, 1);
}

static void
leave_queue(int number)
{
	int			node = waiters[number].node;
	int		   *link = &counts_of(node)->first;

	while (*link != number + 1)
		link = &waiters[*link - 1].next;
	*link = waiters[number].next;
	waiters[number].node = 0;
	counts_of(node)->waiting--;
	pg_atomic_fetch_sub_u32(&shared->waiting, 1);
}

/* A connection of the node is counted no more, or becomes that of the first in the queue. */
static void
pass_on(int node)
{
	NodeCount  *counts = counts_of(node);

	counts->open--;
	if (counts->first != 0 && (max_connections_per_shard == 0 || counts->open < max_connections_per_shard))
	{
		int			number = counts->first - 1;

		leave_queue(number);
		waiters[number].granted = node;
		counts->open++;
		SetLatch(&ProcGlobal->allProcs[number].procLatch);
	}
}

/* The list of the node's slots in which it is. */
static int *
list_of(const TesseraSlot *slot)
{
	return slot->beside ? &counts_of(slot->node)->beside : &counts_of(slot->node)->slots;
}

/* The slot of a connection that is counted already, if it is to be. */
static void
note_slot(TesseraSlot *slot, const Claim *claim, bool beside)
{
	int			number = shared->free_slot;

	slot->node = claim->node;
	slot->number = number;
	slot->beside = beside;
	slot->since = GetCurrentTimestamp();
	if (!beside)
		counts_of(claim->node)->opened++;
	if (number == 0)
		return;
	shared->free_slot = slots[number].next;
	slots[number].next = *list_of(slot);
	slots[number].owner = tessera_proc_number(MyProc);
	slots[number].user = claim->user;
	slots[number].asked = 0;
	pg_atomic_write_u64(&slots[number].idle_since, 0);
	*list_of(slot) = number;
}

static int
count_of_user(int first, Oid user)
{
	int			n = 0;

	for (int i = first; i != 0; i = slots[i].next)
		n += slots[i].user == user;
	return n;
}

/* True if the user may have no more connections to the node. */
static bool
user_is_full(const Claim *claim)
{
	const NodeCount *counts = counts_of(claim->node);

	return claim->user_limit > 0 && count_of_user(counts->slots, claim->user) + count_of_user(counts->beside, claim->user) >= claim->user_limit;
}

/* Asks the session whose connection has been idle for longest, if long enough. */
static void
ask_for_idle(int node)
{
	TimestampTz now = GetCurrentTimestamp();
	int			found = 0;
	uint64		longest = 0;

	for (int i = counts_of(node)->slots; i != 0; i = slots[i].next)
	{
		uint64		since = pg_atomic_read_u64(&slots[i].idle_since);

		if (since == 0 || now - (TimestampTz) since < IDLE_US || now - slots[i].asked < ASK_AGAIN_US || (found != 0 && since >= longest))
			continue;
		found = i;
		longest = since;
	}
	if (found != 0)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[slots[found].owner];

		slots[found].asked = now;
		(void) SendProcSignal(proc->pid, PROCSIG_CATCHUP_INTERRUPT, tessera_proc_backend(proc));
	}
}

/* True if none of those who hold a connection of the node will return it before somebody gets a slot. */
static bool
is_stuck(int node)
{
	for (int i = counts_of(node)->slots; i != 0; i = slots[i].next)
		if (pg_atomic_read_u64(&slots[i].idle_since) != 0 || waiters[slots[i].owner].node == 0)
			return false;
	return counts_of(node)->slots != 0;
}

/* ---- taking ---- */

static void
count_refusal(int node)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	counts_of(node)->refused++;
	LWLockRelease(lock);
}

_Noreturn static void
refuse_user(const Claim *claim)
{
	count_refusal(claim->node);
	ereport(ERROR,
			(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
			 errmsg("too many connections for role \"%s\" to node \"%s\"", GetUserNameFromId(claim->user, false), claim->name),
			 errdetail("Sessions of the role on this node may have %d to each other node (tessera.max_connections_per_user).", claim->user_limit),
			 errhint("End sessions of the role; those that are idle return what they do not use after tessera.idle_connection_timeout.")));
}

_Noreturn static void
refuse(const Claim *claim, long waited_ms)
{
	count_refusal(claim->node);
	ereport(ERROR,
			(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
			 errmsg("no connection to node \"%s\" became free in time", claim->name),
			 errdetail("This node has %d connections to it, all in use by other transactions; %ld ms were waited.",
					   max_connections_per_shard, waited_ms),
			 errhint("Keep transactions short, or raise tessera.max_connections_per_shard; tessera.connection_wait_timeout says how long to wait.")));
}

/* One look at the queue. True: a slot is taken. */
static bool
try_to_take(TesseraSlot *slot, const Claim *claim, bool *queued, bool holder, bool exceed)
{
	int			node = claim->node;
	Waiter	   *own = &waiters[tessera_proc_number(MyProc)];
	NodeCount  *counts = counts_of(node);
	bool		taken;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (user_is_full(claim))
	{
		LWLockRelease(lock);
		refuse_user(claim);		/* who waits leaves the queue then (give_up_waiting) */
	}
	taken = own->granted == node;
	if (!taken && (max_connections_per_shard == 0 || counts->open < max_connections_per_shard || exceed || (holder && *queued && is_stuck(node))))
	{
		counts->exceeded += max_connections_per_shard != 0 && counts->open >= max_connections_per_shard;
		counts->open++;
		if (*queued)
			leave_queue(tessera_proc_number(MyProc));
		taken = true;
	}
	if (taken)
	{
		own->granted = 0;
		note_slot(slot, claim, false);
	}
	else
	{
		if (!*queued)
			enter_queue(node, holder);
		*queued = true;
		if (counts->first == tessera_proc_number(MyProc) + 1)
			ask_for_idle(node);
	}
	LWLockRelease(lock);
	return taken;
}

/* It waits no longer: what it was granted meanwhile, and has not taken, goes to the next. */
static void
give_up_waiting(void)
{
	Waiter	   *own = &waiters[tessera_proc_number(MyProc)];

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (own->node != 0)
		leave_queue(tessera_proc_number(MyProc));
	if (own->granted != 0)
		pass_on(own->granted);
	own->granted = 0;
	LWLockRelease(lock);
}

/* FATAL runs no PG_CATCH. */
void
tessera_slots_leave(int code, Datum arg)
{
	give_up_waiting();
}

static void
wait_for_slot(TesseraSlot *slot, const Claim *claim, long timeout_ms)
{
	TimestampTz began = GetCurrentTimestamp();
	bool		holder = tessera_slot_holder != NULL && tessera_slot_holder();
	long		patience = PATIENCE_MS;
	bool		queued = false;
	bool		exceed = false;

	if (timeout_ms < 0 || timeout_ms > connection_wait_timeout)
		timeout_ms = connection_wait_timeout;
	while (!try_to_take(slot, claim, &queued, holder, exceed))
	{
		long		waited = TimestampDifferenceMilliseconds(began, GetCurrentTimestamp());
		int			pause = holder || counts_of(claim->node)->first == tessera_proc_number(MyProc) + 1 ? FIRST_MS : OTHERS_MS;

		if (waited >= patience)
		{
			exceed = holder || (tessera_slot_blocks_others != NULL && tessera_slot_blocks_others());
			patience *= 2;
			if (exceed)
				continue;
		}
		if (waited >= timeout_ms)
			refuse(claim, waited);
		tessera_connections_give_up_unused();	/* who waits for them may have what is waited for here */
		if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause, PG_WAIT_EXTENSION) & WL_LATCH_SET)
			ResetLatch(MyLatch);
		tessera_injection("slot_awaited");
		CHECK_FOR_INTERRUPTS();
	}
}

/* Connections of this process to one node that its session user may have; 0: any number. */
static int
limit_of_user(Oid user)
{
	if (max_connections_per_user == 0 || !OidIsValid(user) || !IsTransactionState() || tessera_is_internal(user))
		return 0;
	return max_connections_per_user;
}

/* Below the caps, or by who is free of them. claim->node is 0 if the node's counters have no room: nothing is counted then. */
static void
take_at_once(TesseraSlot *slot, Claim *claim, int32 node_id, bool of_transaction)
{
	int			database = tessera_database_slot();
	bool		free_of_cap = MyBackendType != B_BACKEND;
	bool		full = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	claim->node = find_node(database, node_id);
	if (claim->node != 0)
	{
		NodeCount  *counts = counts_of(claim->node);

		full = user_is_full(claim);
		if (!full && !of_transaction)
			note_slot(slot, claim, true);
		else if (!full && (free_of_cap || max_connections_per_shard == 0 || counts->open < max_connections_per_shard))
		{
			counts->open++;
			note_slot(slot, claim, false);
		}
	}
	LWLockRelease(lock);
	if (full)
		refuse_user(claim);
}

void
tessera_slot_take(TesseraSlot *slot, int32 node_id, const char *name, long timeout_ms, bool of_transaction)
{
	Claim		claim = {.name = name,.user = MyBackendType == B_BACKEND ? GetSessionUserId() : InvalidOid};

	if (!of_transaction && !OidIsValid(claim.user))
		return;
	claim.user_limit = limit_of_user(claim.user);
	take_at_once(slot, &claim, node_id, of_transaction);
	if (claim.node == 0 || slot->node != 0)
		return;
	tessera_at_exit(tessera_slots_leave);
	PG_TRY();
	{
		wait_for_slot(slot, &claim, timeout_ms);
	}
	PG_CATCH();
	{
		give_up_waiting();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

void
tessera_slot_return(TesseraSlot *slot)
{
	if (slot->node == 0)
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (slot->number != 0)
	{
		int		   *link = list_of(slot);

		while (*link != slot->number)
			link = &slots[*link].next;
		*link = slots[slot->number].next;
		slots[slot->number].next = shared->free_slot;
		shared->free_slot = slot->number;
	}
	if (!slot->beside)
		pass_on(slot->node);
	LWLockRelease(lock);
	memset(slot, 0, sizeof(TesseraSlot));
}

/* ---- using ---- */

void
tessera_slot_busy(const TesseraSlot *slot)
{
	if (slot->number != 0)
		pg_atomic_write_u64(&slots[slot->number].idle_since, 0);
}

void
tessera_slot_idle(const TesseraSlot *slot, TimestampTz since)
{
	if (slot->number != 0)
		pg_atomic_write_u64(&slots[slot->number].idle_since, (uint64) since);
}

bool
tessera_slots_awaited(void)
{
	return shared != NULL && pg_atomic_read_u32(&shared->waiting) != 0;
}

bool
tessera_slot_is_awaited(const TesseraSlot *slot)
{
	const NodeCount *counts;

	if (slot->node == 0)
		return false;
	counts = counts_of(slot->node);
	if (max_connections_per_shard != 0 && counts->open > max_connections_per_shard)
		return true;
	return counts->waiting > 0 && ((slot->number != 0 && slots[slot->number].asked != 0) || GetCurrentTimestamp() - slot->since >= HOLD_US);
}

/* ---- whether nodes answer ---- */

/* A copy of what is known of the node; of nothing, if there is none. */
static NodeCount
look_at_node(int32 node_id)
{
	NodeCount	counts = {0};
	int			database = tessera_database_slot_if_any();

	if (database < 0)
		return counts;
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < MOST_NODES; i++)
		if (shared->nodes[i].node_id == node_id && shared->nodes[i].database == database)
		{
			counts = shared->nodes[i];
			break;
		}
	LWLockRelease(lock);
	return counts;
}

/* Its counters to change, under the lock, which is to be released; NULL: there are none, and the lock is not held. */
static NodeCount *
lock_node(int32 node_id)
{
	int			database = tessera_database_slot_if_any();
	int			node;

	if (database < 0)
		return NULL;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	node = find_node(database, node_id);
	if (node != 0)
		return counts_of(node);
	LWLockRelease(lock);
	return NULL;
}

void
tessera_node_reached(int32 node_id, bool reached)
{
	NodeCount  *counts = lock_node(node_id);

	if (counts == NULL)
		return;
	if (reached)
		counts->silent_since = 0;
	else if (counts->silent_since == 0)
		counts->silent_since = GetCurrentTimestamp();
	LWLockRelease(lock);
}

bool
tessera_node_is_at_hand(int32 node_id, bool connected)
{
	NodeCount	counts = look_at_node(node_id);

	if (counts.left_until > GetCurrentTimestamp() ||
		(!connected && max_connections_per_shard != 0 && counts.open >= max_connections_per_shard))
		return false;
	/* one looks; the others hear of it */
	if (counts.left_until != 0)
		tessera_node_kept_waiting(node_id);
	return true;
}

bool
tessera_node_keeps_waiting(int32 node_id)
{
	return look_at_node(node_id).left_until > GetCurrentTimestamp();
}

static void
leave_until(int32 node_id, TimestampTz until)
{
	NodeCount  *counts = lock_node(node_id);

	if (counts == NULL)
		return;
	counts->left_until = until;
	LWLockRelease(lock);
}

void
tessera_node_kept_waiting(int32 node_id)
{
	leave_until(node_id, GetCurrentTimestamp() + LEFT_US);
}

void
tessera_node_is_back(int32 node_id)
{
	if (look_at_node(node_id).left_until != 0)
		leave_until(node_id, 0);
}

/* internal_silent_since(node_id int4) returns timestamptz */
Datum
tessera_internal_silent_since(PG_FUNCTION_ARGS)
{
	NodeCount	counts = look_at_node(PG_GETARG_INT32(0));

	if (counts.silent_since == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(counts.silent_since);
}

/* ---- what there is ---- */

/* internal_node_connections(): node_id, open, in use, waiting, and counters since the start of the server, for each node of this database */
Datum
tessera_internal_node_connections(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	int			database = tessera_database_slot_if_any();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; database >= 0 && i < MOST_NODES; i++)
	{
		NodeCount	counts;
		int			idle = 0;
		Datum		values[8];
		bool		nulls[8] = {false};

		LWLockAcquire(lock, LW_SHARED);
		counts = shared->nodes[i];
		if (counts.node_id != 0 && counts.database == database)
			for (int j = counts.slots; j != 0; j = slots[j].next)
				idle += pg_atomic_read_u64(&slots[j].idle_since) != 0;
		LWLockRelease(lock);
		/* a node that was only called beside transactions has no row */
		if (counts.node_id == 0 || counts.database != database || (counts.opened == 0 && counts.refused == 0))
			continue;
		values[0] = Int32GetDatum(counts.node_id);
		values[1] = Int32GetDatum(counts.open);
		values[2] = Int32GetDatum(counts.open - idle);
		values[3] = Int32GetDatum(counts.waiting);
		values[4] = Int64GetDatum((int64) counts.opened);
		values[5] = Int64GetDatum((int64) counts.waits);
		values[6] = Int64GetDatum((int64) counts.exceeded);
		values[7] = Int64GetDatum((int64) counts.refused);
		tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
	}
	return (Datum) 0;
}

void
tessera_slots_init(void)
{
	DefineCustomIntVariable("tessera.max_connections_per_shard",
							"Connections of clients' transactions that this node has to each other one, at most; 0: no limit.",
							"A session that needs one more waits until another one's transaction has ended.",
							&max_connections_per_shard, 0, 0, INT_MAX / 2, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.max_connections_per_user",
							"Connections that the sessions of one role on this node have to each other one, at most; 0: no limit.",
							"A statement that needs one more fails. Superusers are not limited.",
							&max_connections_per_user, 0, 0, INT_MAX / 2, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.connection_wait_timeout",
							"How long a statement waits for a connection to another node when tessera.max_connections_per_shard is reached.", NULL,
							&connection_wait_timeout, 30000, 0, INT_MAX / 1000, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	tessera_shmem_register(&slots_module);
}
