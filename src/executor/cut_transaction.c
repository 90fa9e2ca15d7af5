/*
 * cut_transaction.c
 *	  One snapshot over all nodes for a transaction at REPEATABLE READ or above, the router's side; see cut.h.
 *
 * The list of the nodes that were asked belongs to the transaction whose local id it carries. A node whose remote transaction was rolled back as a
 * whole since then (tessera_participants_leave) is asked again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/injection.h"
#include "common/version_compat.h"
#include "executor/cut_doubts.h"
#include "executor/cut_private.h"
#include "transaction/participant.h"
#include "transport/connection.h"

typedef struct AskedNode
{
	int32		node_id;
	uint32		join;			/* of its transaction */
} AskedNode;

/* Of the transaction with this id. */
typedef struct TransactionCut
{
	LocalTransactionId transaction;
	TesseraTime time;			/* 0: nobody was asked */
	List	   *asked;			/* of AskedNode *, in TopTransactionContext */
	bool		beginning;		/* they are being asked */
	bool		stays;			/* its snapshot is not to be changed */
} TransactionCut;

static TransactionCut of_transaction = {InvalidLocalTransactionId};


static bool
was_asked(int32 node_id)
{
	ListCell   *cell;

	foreach(cell, of_transaction.asked)
	{
		AskedNode  *asked = lfirst(cell);

		if (asked->node_id == node_id && tessera_participant_joined_by(node_id, asked->join))
			return true;
	}
	return false;
}

static void
note_asked(int32 node_id)
{
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	AskedNode  *asked = palloc(sizeof(AskedNode));

	asked->node_id = node_id;
	asked->join = tessera_participants_joins();
	of_transaction.asked = lappend(of_transaction.asked, asked);
	MemoryContextSwitchTo(before);
}

_Noreturn static void
raise_too_late(const TesseraNode *node)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access: node \"%s\" was not asked for the transaction's snapshot, and has committed since",
					node ? NameStr(node->name) : "unknown"),
			 errhint("Retry the transaction.")));
}

/* The node makes its snapshot that of the moment, at once: what it needs for that is not kept for ever. */
static void
tell_node(const TesseraRouting *routing, int32 node_id, const TesseraCutMoment *moment)
{
	TesseraCommandNeeds needs = {.aside = true,.timeless = true};
	TesseraConnection *connection;

	if (node_id == routing->self || !tessera_participant_joined_by(node_id, tessera_participants_joins()))
		return;
	connection = tessera_participant(routing, node_id, &needs);
	tessera_cut_tell(connection, node_id, moment);
	tessera_connection_sync(connection);
	note_asked(node_id);
}

static void
tell_spare(TesseraSpare *spare)
{
	tell_node(spare->nodes->routing, spare->node_id, spare->moment);
}

static void
tell_nodes(const TesseraCutNodes *nodes, const TesseraCutMoment *moment)
{
	TimestampTz deadline = tessera_spares_deadline();

	for (int i = 0; i < nodes->n; i++)
	{
		TesseraSpare		spare = {.nodes = nodes,.node_id = nodes->node_ids[i],.moment = moment};

		if (i < nodes->n - nodes->nspare)
			tell_node(nodes->routing, nodes->node_ids[i], moment);
		else
			(void) tessera_spare_reach(&spare, tell_spare, deadline);
	}
}

static bool
is_among(int32 node_id, const int32 *node_ids, int n)
{
	for (int i = 0; i < n; i++)
		if (node_ids[i] == node_id)
			return true;
	return false;
}

/* The order in which nodes are asked; those of the first kind are needed. */
typedef enum Need
{
	NEED_HELD,					/* it is in the transaction already, or keeps locks of this session: its connection stays */
	NEED_LIKELY,				/* the statement may come to it */
	NEED_CONNECTED,
	NEED_NONE
} Need;

static Need
need_of(const TesseraCutNodes *nodes, int32 node_id)
{
	TesseraConnection *connection = tessera_connection_find(node_id, 0);

	if (tessera_participant_joined_by(node_id, tessera_participants_joins()) ||
		(connection != NULL && tessera_connection_state(connection)->session_locks > 0))
		return NEED_HELD;
	if (bms_is_member(node_id, nodes->likely))
		return NEED_LIKELY;
	return tessera_spare_is_connected(node_id) ? NEED_CONNECTED : NEED_NONE;
}

/* Behind those that are needed, which are in node_ids, all other shards; in nodes->node_ids, palloc'd. */
static void
list_nodes(TesseraCutNodes *nodes, int n, const int32 *node_ids)
{
	const TesseraRouting *routing = nodes->routing;
	int32	   *all = palloc(sizeof(int32) * (routing->nnodes + n + 1));

	memcpy(all, node_ids, sizeof(int32) * n);
	nodes->n = n;
	for (Need need = NEED_HELD; need <= NEED_NONE; need++)
		for (int i = 0; i < routing->nnodes; i++)
		{
			const TesseraNode *node = tessera_routing_node_at(routing, i);

			if (!node->is_shard || is_among(node->node_id, node_ids, n) || need_of(nodes, node->node_id) != need)
				continue;
			all[nodes->n++] = node->node_id;
			nodes->nspare += need != NEED_HELD;
		}
	nodes->node_ids = all;
}

/* How often all are asked anew, as too much has happened since the question. */
#define MOST_QUESTIONS 10

_Noreturn static void
raise_no_snapshot(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access: %s", why),
			 errhint("Retry the transaction.")));
}

/* The first: nothing was read yet. */
static void
begin_cut(const TesseraRouting *routing, int n, const int32 *node_ids, Bitmapset *likely)
{
	TesseraCutNodes nodes = {.routing = routing,.likely = likely};

	tessera_injection("cut_begins");
	list_nodes(&nodes, n, node_ids);
	for (int turn = 0; turn < MOST_QUESTIONS; turn++)
	{
		TesseraCutAsk here;
		TesseraCutMoment moment;

		/* no tables are named that could be elsewhere: it has none to give */
		if (!tessera_cut_ask_nodes(&nodes, 0, true, &here, &moment))
			raise_no_snapshot("a node has no snapshot for the transaction");
		tell_nodes(&nodes, &moment);
		if (tessera_cut_take(&here, &moment) != NULL)
		{
			of_transaction.time = moment.time;
			return;
		}
	}
	raise_no_snapshot("too much was committed while the transaction began");
}

/* One that the transaction had not come to: its snapshot is taken now. */
static void
join_cut(const TesseraRouting *routing, int32 node_id)
{
	TesseraCutNodes nodes = {.routing = routing,.node_ids = &node_id,.n = 1};
	TesseraCutAsk here;
	TesseraCutMoment moment;

	/* it may have been lost before it was needed */
	if (tessera_connection_find(node_id, 0) == NULL || tessera_connection_lost(tessera_connection_find(node_id, 0)))
		tessera_participant_let_go(node_id);
	if (!tessera_cut_ask_all(&nodes, 0, false, &here, &moment) || moment.time > of_transaction.time)
		raise_too_late(tessera_routing_node(routing, node_id));
	moment.time = of_transaction.time;
	tessera_cut_settle_doubts(&nodes, 0, &moment);
	tell_node(routing, node_id, &moment);
}

static TransactionCut *
this_transaction(void)
{
	if (of_transaction.transaction != tessera_proc_lxid(MyProc))
		of_transaction = (TransactionCut) {.transaction = tessera_proc_lxid(MyProc)};
	return &of_transaction;
}

void
tessera_cut_stays(void)
{
	this_transaction()->stays = true;
}

bool
tessera_cut_is_settled(void)
{
	return this_transaction()->time != 0 || of_transaction.stays || of_transaction.beginning || tessera_internal_connection();
}

/*
 * Not of one whose snapshot is another's, or that others have: they would not have the new one; a walsender's is that of its slot. Nor by a query of
 * our own while it begins.
 */
bool
tessera_cut_begins(void)
{
	return IsolationUsesXactSnapshot() && tessera_snapshot_reads && MyBackendType == B_BACKEND && !tessera_cut_is_settled() &&
		!XactHasExportedSnapshots() && tessera_cut_has_clock();
}

void
tessera_cut_transaction(const TesseraRouting *routing, int n, const int32 *node_ids, Bitmapset *likely, Snapshot statement)
{
	if (tessera_cut_begins())
	{
		of_transaction.beginning = true;
		PG_TRY();
		{
			begin_cut(routing, n, node_ids, likely);
		}
		PG_FINALLY();
		{
			of_transaction.beginning = false;
		}
		PG_END_TRY();
		if (statement != NULL && statement != GetTransactionSnapshot())
			tessera_cut_copy(statement, GetTransactionSnapshot());
	}
	if (!IsolationUsesXactSnapshot() || this_transaction()->time == 0)
		return;
	for (int i = 0; i < n; i++)
		if (node_ids[i] != routing->self && !was_asked(node_ids[i]))
			join_cut(routing, node_ids[i]);
}
