/*
 * deadlock.c
 *	  Distributed deadlocks, which go through several nodes: each node's wait graph, their union, and the end of one wait (doc/design.md#deadlocks).
 *
 * The server finds cycles among its own locks; one that goes through several nodes has no server that sees it. A node on which a lock has been waited
 * for too long, by or because of an internal connection, asks all nodes for their edges (who waits for whom, since when). A backend behind an
 * internal connection stands for the backend of the router that opened it (session/remote_client.h), so that a transaction is one vertex wherever it
 * waits. All waits of a vertex must end before it can go on, so a cycle does not go away by itself.
 *
 * What asks for locks on several nodes in short attempts (DDL, LOCK TABLE) is in no lock's queue between them. It declares whom it waits for
 * (declared_wait.h), which gives edges like any other. They tell what the last attempt saw, perhaps no longer true. So where a cycle has such a wait
 * it is the victim, and looks once more before it raises the error.
 *
 * The nodes are not asked at one instant. So they are asked twice, and only waits that both answers hold count: all of those stood at the moment
 * between. Every node that looks finds the same cycle and the same victim: of its transactions the one that began to wait last. Its wait is ended as
 * the server's own search ends one: it raises deadlock_detected there, once, however many ask.
 *
 * Memory: a context per round. Locks: all partitions of the lock table while a wait is ended. A crash leaves nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "control/calls.h"
#include "session/internal_connection.h"
#include "session/remote_client.h"
#include "transaction/deadlock.h"
#include "transaction/declared_wait.h"
#include "transaction/transaction_private.h"


#define IDLE_MS 1000L
#define CALL_MS 3000			/* a node that does not answer is left out */
#define MOST_VICTIMS 16			/* of one round */

/* One wait: of a process of a node, for another one there; and the transactions they belong to. */
typedef struct Edge
{
	int32		node_id;
	int32		waiter;
	int64		since;
	int32		blocker;
	TesseraRemoteClient waiting;
	TesseraRemoteClient holding;
	bool		declared;		/* blocker is 0 */
} Edge;

#define EDGE_VALUES 8			/* in an answer: waiter, since, blocker, the two origins (node 0: the process itself), declared */

typedef struct Edges
{
	int			n;
	int			size;
	Edge	   *edges;
} Edges;

static int	deadlock_timeout = 1000;

static void
add_edge(Edges *edges, const Edge *edge)
{
	if (edges->n == edges->size)
	{
		edges->size = Max(32, edges->size * 2);
		edges->edges = edges->edges ? repalloc(edges->edges, edges->size * sizeof(Edge)) : palloc(edges->size * sizeof(Edge));
	}
	edges->edges[edges->n++] = *edge;
}

static bool
same_origin(const TesseraRemoteClient *a, const TesseraRemoteClient *b)
{
	return a->node_id == b->node_id && a->pid == b->pid;
}

/* ---- this node's waits ---- */

/* Whose transaction the process runs; node 0: its own. */
static TesseraRemoteClient
origin_here(int32 pid)
{
	TesseraRemoteClient origin;

	if (!tessera_remote_client_of(pid, &origin))
	{
		origin.node_id = 0;
		origin.pid = pid;
	}
	return origin;
}

static void
add_blockers(Edges *edges, int32 waiter, int64 since)
{
	ArrayType  *array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(waiter)));
	int			n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	int32	   *pids = (int32 *) ARR_DATA_PTR(array);

	for (int i = 0; i < n; i++)
	{
		Edge		edge = {.waiter = waiter, .since = since, .blocker = pids[i]};

		/* A prepared transaction (0) waits for nothing. */
		if (pids[i] == 0)
			continue;
		edge.waiting = origin_here(waiter);
		edge.holding = origin_here(pids[i]);
		add_edge(edges, &edge);
	}
}

typedef struct DeclaredEdges
{
	TimestampTz before;
	Edges	   *edges;
} DeclaredEdges;

static void
add_declared(const TesseraDeclaredWait *wait, void *arg)
{
	DeclaredEdges *declared = arg;

	for (int i = 0; i < wait->n; i++)
	{
		Edge		edge = {.waiter = wait->pid, .since = wait->since, .holding = wait->awaited[i], .declared = true};

		if (wait->seen[i] > declared->before)
			continue;			/* perhaps it held the lock for an attempt of its own only */
		edge.waiting.pid = wait->pid;
		add_edge(declared->edges, &edge);
	}
}

/* Waits of this database that are older than ms. Whether one still stands is looked at again before anything is done about it. */
static void
collect_here(int ms, Edges *edges)
{
	TimestampTz now = GetCurrentTimestamp();
	DeclaredEdges declared = {now - (int64) ms * 1000, edges};

	tessera_waits_each(add_declared, &declared);
	for (int i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		int32		pid = proc->pid;
		int64		since = (int64) pg_atomic_read_u64(&proc->waitStart);

		if (pid == 0 || proc->databaseId != MyDatabaseId || proc->waitStatus != PROC_WAIT_STATUS_WAITING || since == 0 ||
			now - since < (int64) ms * 1000)
			continue;
		add_blockers(edges, pid, since);
	}
}

/* This node's waits that are older, EDGE_VALUES numbers for each */
ArrayType *
tessera_serve_lock_waits(const TesseraLockWaitsArgs *args)
{
	Edges		edges = {0};
	Datum	   *values;
	int			n = 0;

	collect_here(args->older_than_ms, &edges);
	values = palloc(sizeof(Datum) * Max(edges.n * EDGE_VALUES, 1));
	for (int i = 0; i < edges.n; i++)
	{
		Edge	   *edge = &edges.edges[i];

		values[n++] = Int64GetDatum(edge->waiter);
		values[n++] = Int64GetDatum(edge->since);
		values[n++] = Int64GetDatum(edge->blocker);
		values[n++] = Int64GetDatum(edge->waiting.node_id);
		values[n++] = Int64GetDatum(edge->waiting.pid);
		values[n++] = Int64GetDatum(edge->holding.node_id);
		values[n++] = Int64GetDatum(edge->holding.pid);
		values[n++] = Int64GetDatum(edge->declared);
	}
	return construct_array(values, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
}

/* ---- the end of a wait ---- */

/*
 * Takes the process off its lock's queue, if it still waits since then. It raises deadlock_detected as soon as it runs. A declared wait: when it has
 * looked again.
 */
static bool
end_wait(int32 pid, int64 since)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	bool		ended = false;

	if (proc == NULL || proc->databaseId != MyDatabaseId)
		return false;
	if (tessera_wait_choose_victim(pid, since))
		return true;
	/* As the server's own search: all partitions, in order. */
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
		LWLockAcquire(LockHashPartitionLockByIndex(i), LW_EXCLUSIVE);
	if (proc->pid == pid && proc->links.next != NULL && proc->waitLock != NULL && proc->waitStatus == PROC_WAIT_STATUS_WAITING &&
		(int64) pg_atomic_read_u64(&proc->waitStart) == since)
	{
		RemoveFromWaitQueue(proc, LockTagHashCode(&proc->waitLock->tag));
		SetLatch(&proc->procLatch);
		ended = true;
	}
	for (int i = NUM_LOCK_PARTITIONS; --i >= 0;)
		LWLockRelease(LockHashPartitionLockByIndex(i));
	return ended;
}

/* Is part of a deadlock over several nodes, if it still waits */
bool
tessera_serve_end_wait(const TesseraEndWaitArgs *args)
{
	return end_wait(args->pid, args->since);
}

/* ---- all nodes' waits ---- */

static void
read_answer(char *waits, int32 node_id, Edges *edges)
{
	ArrayType  *array;
	int64	   *values;
	int			n;

	if (waits == NULL)
		return;
	array = DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, waits, INT8OID, -1));
	n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	values = (int64 *) ARR_DATA_PTR(array);
	for (int i = 0; i + EDGE_VALUES <= n; i += EDGE_VALUES)
	{
		Edge		edge;

		edge.waiter = (int32) values[i];
		edge.since = values[i + 1];
		edge.blocker = (int32) values[i + 2];
		edge.waiting.node_id = (int32) values[i + 3];
		edge.waiting.pid = (int32) values[i + 4];
		edge.holding.node_id = (int32) values[i + 5];
		edge.holding.pid = (int32) values[i + 6];
		edge.declared = values[i + 7] != 0;
		edge.node_id = node_id;
		add_edge(edges, &edge);
	}
}

/* A node that may not be asked now: then its waits are not known. */
static TesseraCallTarget
if_reachable(int32 node_id)
{
	return tessera_ask(tessera_within(tessera_to_node(node_id), CALL_MS), TESSERA_TOLERATE_ALL);
}

static void
collect_everywhere(const TesseraRouting *routing, Edges *edges)
{
	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;
		char	   *waits;

		CHECK_FOR_INTERRUPTS();
		if (node_id == routing->self)
		{
			int			first = edges->n;

			collect_here(deadlock_timeout, edges);
			for (int j = first; j < edges->n; j++)
				edges->edges[j].node_id = node_id;
		}
		else if (tessera_call_lock_waits(if_reachable(node_id), deadlock_timeout, &waits))
			read_answer(waits, node_id, edges);
	}
	for (int i = 0; i < edges->n; i++)
	{
		Edge	   *edge = &edges->edges[i];

		if (edge->waiting.node_id == 0)
			edge->waiting.node_id = edge->node_id;
		if (edge->holding.node_id == 0)
			edge->holding.node_id = edge->node_id;
	}
}

static bool
same_wait(const Edge *a, const Edge *b)
{
	return a->node_id == b->node_id && a->waiter == b->waiter && a->since == b->since && a->blocker == b->blocker && a->declared == b->declared &&
		same_origin(&a->waiting, &b->waiting) && same_origin(&a->holding, &b->holding);
}

/* Those of the first that the second has, too. */
static void
keep_common(Edges *first, const Edges *second)
{
	int			n = 0;

	for (int i = 0; i < first->n; i++)
		for (int j = 0; j < second->n; j++)
			if (same_wait(&first->edges[i], &second->edges[j]))
			{
				first->edges[n++] = first->edges[i];
				break;
			}
	first->n = n;
}

/* ---- cycles ---- */

/* True if `edge` is a better victim than `other`: a declared wait before others, then the younger, then by a rule that is the same on all nodes. */
static bool
ends_before(const Edge *edge, const Edge *other)
{
	if (edge->declared != other->declared)
		return edge->declared;
	if (edge->since != other->since)
		return edge->since > other->since;
	return edge->node_id > other->node_id || (edge->node_id == other->node_id && edge->waiter > other->waiter);
}

/* The wait of the cycle through an edge that is to end, the youngest one; -1: there is no cycle. Each edge is entered once. */
static int
find_victim(const Edges *edges, int start)
{
	int		   *previous = palloc(sizeof(int) * edges->n);	/* by edge: the one we came by; -2: not entered */
	int		   *queue = palloc(sizeof(int) * edges->n);
	int			head = 0;
	int			tail = 0;
	int			victim = -1;

	for (int i = 0; i < edges->n; i++)
		previous[i] = -2;
	previous[start] = -1;
	queue[tail++] = start;
	while (head < tail && victim < 0)
	{
		int			at = queue[head++];

		if (same_origin(&edges->edges[at].holding, &edges->edges[start].waiting))
		{
			for (int i = at; i >= 0; i = previous[i])
				if (victim < 0 || ends_before(&edges->edges[i], &edges->edges[victim]))
					victim = i;
			break;
		}
		for (int i = 0; i < edges->n; i++)
			if (previous[i] == -2 && same_origin(&edges->edges[i].waiting, &edges->edges[at].holding))
			{
				previous[i] = at;
				queue[tail++] = i;
			}
	}
	pfree(previous);
	pfree(queue);
	return victim;
}

static void
end_victim(const TesseraRouting *routing, const Edge *edge)
{
	if (edge->node_id == routing->self)
		(void) end_wait(edge->waiter, edge->since);
	else
		(void) tessera_call_end_wait(if_reachable(edge->node_id), edge->waiter, edge->since, NULL);
	ereport(LOG,
			(errmsg("deadlock over several nodes: process %d on node %d, for process %d on node %d, no longer waits", edge->waiter, edge->node_id,
					edge->waiting.pid, edge->waiting.node_id)));
}

/* Without the transaction's other waits: they end with it. */
static void
remove_transaction(Edges *edges, TesseraRemoteClient gone)
{
	int			n = 0;

	for (int i = 0; i < edges->n; i++)
		if (!same_origin(&edges->edges[i].waiting, &gone) && !same_origin(&edges->edges[i].holding, &gone))
			edges->edges[n++] = edges->edges[i];
	edges->n = n;
}

/* The edge that is the victim of a cycle among the edges; -1: there is no cycle. The caller ends at most MOST_VICTIMS. */
static int
next_victim(const Edges *edges)
{
	for (int i = 0; i < edges->n; i++)
	{
		int			victim = find_victim(edges, i);

		if (victim >= 0)
			return victim;
	}
	return -1;
}

static void
search(const TesseraRouting *routing)
{
	Edges		first = {0};
	Edges		second = {0};
	int			victim;

	collect_everywhere(routing, &first);
	if (next_victim(&first) < 0)
		return;
	collect_everywhere(routing, &second);
	keep_common(&first, &second);
	for (int i = 0; i < MOST_VICTIMS && (victim = next_victim(&first)) >= 0; i++)
	{
		Edge		edge = first.edges[victim];

		end_victim(routing, &edge);
		remove_transaction(&first, edge.waiting);
	}
}

/* ---- the step ---- */

/* True if a wait here that involves another node has lasted too long. A cycle over several nodes has such a wait on at least one of them. */
static bool
is_suspicious(void)
{
	Edges		edges = {0};

	collect_here(deadlock_timeout, &edges);
	for (int i = 0; i < edges.n; i++)
		if (edges.edges[i].waiting.node_id != 0 || edges.edges[i].holding.node_id != 0 || edges.edges[i].declared)
			return true;
	return false;
}

long
tessera_deadlock_step(void)
{
	MemoryContext before = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "tessera deadlocks", ALLOCSET_DEFAULT_SIZES);

	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		if (is_suspicious())
		{
			const TesseraRouting *routing;

			StartTransactionCommand();
			PushActiveSnapshot(GetTransactionSnapshot());
			MemoryContextSwitchTo(context);
			routing = tessera_routing();
			if (routing)
				search(routing);
			PopActiveSnapshot();
			CommitTransactionCommand();
		}
	}
	PG_FINALLY();
	{
		MemoryContextSwitchTo(before);
		MemoryContextDelete(context);
	}
	PG_END_TRY();
	return Min(IDLE_MS, Max(deadlock_timeout, 10));
}

void
tessera_deadlock_init(void)
{
	DefineCustomIntVariable("tessera.deadlock_timeout", "How long a lock is waited for before a deadlock over several nodes is looked for.", NULL,
							&deadlock_timeout, 1000, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}
