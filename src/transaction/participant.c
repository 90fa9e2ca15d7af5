/*
 * participant.c
 *	  Nodes join the transaction with their first command; see participant.h. How it ends is in two_phase.c.
 *
 * What precedes a command in its pipeline: BEGIN (if it needs a transaction block), savepoints up to this session's depth, the session's settings and
 * effective user if they changed, versions not told yet, the statement number if it changed. All of it is taken back by a rollback there, but the
 * told versions, which may never have arrived when the pipeline failed: so after any error everything is sent again (TesseraRemoteState.known).
 *
 * A command outside a transaction block goes only onto a connection with nothing unanswered: if the one before failed, its rollback would have reset
 * the effective user before the command runs.
 *
 * Memory: the array of participants and the told versions live until the backend exits.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "tcop/dest.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "catalog/change.h"
#include "catalog/identity.h"
#include "catalog/incarnation.h"
#include "common/errors.h"
#include "common/protocol.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "transaction/cluster_time.h"
#include "transaction/deadlock.h"
#include "transaction/decision_pruning.h"
#include "transaction/declared_wait.h"
#include "transaction/settings_mirror.h"
#include "transaction/transaction_private.h"
#include "transport/connection_slots.h"

/* Fingerprint of the settings of the cluster's own role: an empty set but for the search path. */
#define OWN_SETTINGS 1

/* Levels of subtransactions of which is noted whether they are read-only. */
#define NOTED_LEVELS 64


/* What hangs on TesseraRemoteState.told. */
typedef struct ToldState
{
	HTAB	   *versions;		/* group_id -> TesseraToldVersion */
	uint64		statement;		/* number it was told in this remote transaction */
	TimestampTz transaction_start;	/* and when this session's began, with the statement at hand; 0: it was not told */
	TimestampTz statement_start;
	bool		asks;			/* it was told once in this remote transaction */
} ToldState;

static TesseraTransaction at_hand = {.phase = TESSERA_COMMIT_OPEN};

/* Of this session, over its transactions: numbers given so far, and the statements whose snapshots shards are to keep. */
typedef struct Statements
{
	uint32		joins;			/* of nodes to transactions */
	uint64		last;			/* number of the last statement */
	dlist_head	kept;			/* TesseraKeptStatement, the caller's; taken out by tessera_statement_forget */
	uint64		read_only;		/* a bit for each level above the current one, as it was when the next began */
} Statements;

static Statements statements = {.kept = DLIST_STATIC_INIT(statements.kept)};

int			tessera_commit_timeout = 30000;
int			tessera_abort_timeout = 10000;

TesseraTransaction *
tessera_this_transaction(void)
{
	return &at_hand;
}

/* ---- the list ---- */

static TesseraParticipant *
find_participant(int32 node_id)
{
	for (int i = 0; i < at_hand.nparticipants; i++)
		if (at_hand.participants[i].node_id == node_id)
			return &at_hand.participants[i];
	return NULL;
}

static TesseraParticipant *
add_participant(int32 node_id, TesseraConnection *connection)
{
	TesseraParticipant *participant;

	if (at_hand.nparticipants == at_hand.size)
	{
		int			size = Max(8, at_hand.size * 2);

		if (at_hand.participants == NULL)
			at_hand.participants = MemoryContextAlloc(TopMemoryContext, size * sizeof(TesseraParticipant));
		else
			at_hand.participants = repalloc(at_hand.participants, size * sizeof(TesseraParticipant));
		at_hand.size = size;
	}
	participant = &at_hand.participants[at_hand.nparticipants++];
	memset(participant, 0, sizeof(TesseraParticipant));
	participant->node_id = node_id;
	participant->connection = connection;
	return participant;
}

/* A transaction that was open there is gone, or the server is no longer the node: what it did cannot be committed any more. */
static void
require_intact(TesseraParticipant *participant)
{
	const TesseraRouting *routing = participant->unlisted ? NULL : tessera_routing();
	const TesseraNode *node = routing ? tessera_routing_node(routing, participant->node_id) : NULL;

	if (participant->joined && (!tessera_connection_alive(participant->connection) ||
								tessera_connection_state(participant->connection)->xact_depth == 0))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the connection to node \"%s\" was lost earlier in this transaction", tessera_connection_name(participant->connection)),
				 errhint("Roll back and run the transaction again.")));
	if (participant->joined && node != NULL)
		(void) tessera_is_node_itself(participant->connection, node);
}

/*
 * What this transaction has written on a server that was replaced is not the cluster's. (What it has changed in the catalog is this server's own
 * affair.)
 */
static void
require_own_node_at_commit(void)
{
	const TesseraRouting *routing;

	if (MyBackendType != B_BACKEND || !TransactionIdIsValid(GetTopTransactionIdIfAny()) || tessera_catalog_changed_here() > 0)
		return;
	routing = tessera_routing();
	if (routing != NULL)
		tessera_require_own_node(routing);
}

/* ---- what precedes a command ---- */

/* Of this session's subtransaction of that level; 1: the transaction. */
static bool
is_read_only(int level)
{
	if (level >= GetCurrentTransactionNestLevel() || level > NOTED_LEVELS)
		return XactReadOnly;
	return (statements.read_only & (UINT64CONST(1) << (level - 1))) != 0;
}

void
tessera_participants_subtransaction_started(SubTransactionId mine, SubTransactionId parent)
{
	int			level = GetCurrentTransactionNestLevel() - 1;
	uint64		bit = level <= NOTED_LEVELS ? UINT64CONST(1) << (level - 1) : 0;

	statements.read_only = XactReadOnly ? statements.read_only | bit : statements.read_only & ~bit;
}

/* waits: not for a snapshot that nothing can conflict with, as a common one is another. */
static const char *
begin_sql(bool waits)
{
	static char sql[96];
	static const char *const levels[] = {"READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"};

	snprintf(sql, sizeof(sql), "BEGIN ISOLATION LEVEL %s READ %s%s", levels[XactIsoLevel],
			 is_read_only(1) ? "ONLY" : "WRITE", XactDeferrable && waits ? " DEFERRABLE" : "");
	return sql;
}

static ToldState *
told_state(TesseraConnection *connection)
{
	TesseraRemoteState *state = tessera_connection_state(connection);
	ToldState  *told = state->told;

	if (told == NULL)
	{
		HASHCTL		control = {0};

		told = MemoryContextAllocZero(TopMemoryContext, sizeof(ToldState));
		control.keysize = sizeof(pg_uuid_t);
		control.entrysize = sizeof(TesseraToldVersion);
		control.hcxt = TopMemoryContext;
		told->versions = hash_create("tessera versions told", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		state->told = told;
	}
	return told;
}

/* Versions and the statement number are sent again before the next statement: the other end may have lost them. */
static void
forget_told(TesseraConnection *connection)
{
	ToldState  *told = told_state(connection);
	HASH_SEQ_STATUS status;
	TesseraToldVersion *version;

	hash_seq_init(&status, told->versions);
	while ((version = hash_seq_search(&status)))
		hash_search(told->versions, &version->group_id, HASH_REMOVE, NULL);
	told->statement = PG_UINT64_MAX;
	told->transaction_start = 0;
}

/* As the current user, in its security context; own: as the cluster's own role. */
static void
queue_session(TesseraConnection *connection, bool own)
{
	TesseraRemoteState *state = tessera_connection_state(connection);
	uint64		settings = own ? OWN_SETTINGS : tessera_mirror_fingerprint();
	Oid			session_user = own ? InvalidOid : GetSessionUserId();
	Oid			user = InvalidOid;
	int			security = 0;

	if (!own)
		GetUserIdAndSecContext(&user, &security);
	security &= TESSERA_MIRRORED_SECURITY;
	if (!state->known)
		forget_told(connection);
	if (state->known && state->user == user && state->security == security && state->session_user == session_user && state->settings == settings)
		return;
	/* there are NULLs in what follows, which is read as the last session wanted it; none in this: nobody in particular sets it */
	if (state->nulls_off)
		tessera_queue_session(connection, NULL, "{array_nulls}", "{on}", NULL, "{\"\"}", 0);
	if (!own)
	{
		TesseraMirroredSettings mirrored;

		state->nulls_off |= !Array_nulls;
		tessera_mirror_collect(&mirrored);
		tessera_queue_session(connection, GetUserNameFromId(user, false), mirrored.names, mirrored.values, GetUserNameFromId(session_user, false),
							  mirrored.setters, security);
	}
	else
		tessera_queue_session(connection, NULL, "{search_path}", "{\"pg_catalog, pg_temp\"}", NULL, "{NULL}", security);
	state->known = true;
	state->user = user;
	state->security = security;
	state->session_user = session_user;
	state->settings = settings;
}

void
tessera_queue_current_session(TesseraConnection *connection)
{
	queue_session(connection, false);
}

/*
 * What runs there has the time of this transaction and statement (doc/design.md#one-time). A transaction block keeps it; outside of one it holds for
 * what follows in the same pipeline.
 */
static void
queue_start(TesseraConnection *connection)
{
	TesseraRemoteState *state = tessera_connection_state(connection);
	ToldState  *told = told_state(connection);
	TimestampTz transaction = GetCurrentTransactionStartTimestamp();
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	if (tessera_connection_protocol(connection) < TESSERA_START_PROTOCOL)
		return;
	if (state->xact_depth > 0 && told->transaction_start == transaction && told->statement_start == statement)
		return;
	tessera_queue_began(connection, transaction, statement);
	told->transaction_start = state->xact_depth > 0 ? transaction : 0;
	told->statement_start = statement;
	told->asks = state->xact_depth > 0;
}

/*
 * SET CONSTRAINTS of this transaction that the participant has not run, those of the savepoints that it has. As the cluster's own role: the user of
 * the next command need not have rights on the constraints' schemas.
 */
static void
queue_constraint_modes(TesseraParticipant *participant)
{
	TesseraRemoteState *state = tessera_connection_state(participant->connection);
	const char *sql;

	if (participant->unlisted)
		return;
	while ((sql = tessera_constraint_modes_next(&at_hand, participant, state->xact_depth)) != NULL)
	{
		queue_session(participant->connection, true);
		queue_start(participant->connection);	/* triggers may fire */
		tessera_connection_queue_control(participant->connection, sql, 0, NULL);
		participant->modes_sent++;
	}
}

static TesseraParticipant *
find_captured(void)
{
	for (int i = 0; i < at_hand.nparticipants; i++)
		if (at_hand.participants[i].joined && tessera_connection_state(at_hand.participants[i].connection)->captured)
			return &at_hand.participants[i];
	return NULL;
}

bool
tessera_participants_have_captured(void)
{
	return find_captured() != NULL;
}

int32
tessera_participants_captured(void)
{
	TesseraParticipant *participant = find_captured();

	if (participant == NULL)
		return 0;
	tessera_connection_state(participant->connection)->captured = false;
	return participant->node_id;
}

uint32
tessera_participants_joins(void)
{
	return statements.joins;
}

bool
tessera_participant_joined_by(int32 node_id, uint32 moment)
{
	TesseraParticipant *participant = find_participant(node_id);

	if (participant == NULL || !participant->joined || participant->join > moment)
		return false;
	/* what is lost and was not used can join again */
	return participant->used || !tessera_connection_lost(participant->connection);
}

void
tessera_participants_leave(uint32 moment)
{
	for (int i = 0; i < at_hand.nparticipants; i++)
	{
		TesseraParticipant *participant = &at_hand.participants[i];
		TesseraRemoteState *state = tessera_connection_state(participant->connection);

		if (!participant->joined || participant->unlisted || participant->join <= moment || !tessera_connection_alive(participant->connection))
			continue;
		if (!tessera_connection_queue_quietly(participant->connection, "ROLLBACK") || !tessera_connection_sync_quietly(participant->connection))
			continue;			/* found out when it is used again */
		state->xact_depth = 0;
		state->wrote = false;
		state->known = false;
		participant->joined = false;
		participant->wrote = false;
	}
}

static bool
has_nothing(const TesseraParticipant *participant)
{
	return !(participant->unlisted || participant->wrote || participant->locks ||
			 tessera_connection_state(participant->connection)->session_locks > 0);
}

/* A cursor, or a statement in parts, other than the one at hand: it may read on by a snapshot that is kept for it. */
static bool
another_is_kept(uint64 statement)
{
	dlist_iter	iter;

	dlist_foreach(iter, &statements.kept)
		if (dlist_container(TesseraKeptStatement, node, iter.cur)->number != statement)
			return true;
	return false;
}

bool
tessera_participant_is_unused(const TesseraParticipant *participant)
{
	return participant->joined && !participant->used && !participant->prepared && has_nothing(participant);
}

bool
tessera_participant_was_used(int32 node_id)
{
	const TesseraParticipant *participant = find_participant(node_id);

	return participant != NULL && !tessera_participant_is_unused(participant);
}

bool
tessera_participant_may_go(int32 node_id, uint64 statement)
{
	const TesseraParticipant *participant = find_participant(node_id);

	return participant == NULL || (has_nothing(participant) && !(participant->joined && participant->used && another_is_kept(statement)));
}

void
tessera_participant_let_go(int32 node_id)
{
	TesseraParticipant *participant = find_participant(node_id);

	if (participant == NULL || !has_nothing(participant))
		return;
	tessera_connection_close(participant->connection);
	participant->joined = false;
}

/*
 * BEGIN, and savepoints up to the depth of this session's subtransactions, with SET CONSTRAINTS in their places. aside: for a common snapshot.
 * Returns whether it began there.
 */
static bool
queue_transaction(TesseraParticipant *participant, bool aside)
{
	TesseraRemoteState *state = tessera_connection_state(participant->connection);
	int			level = GetCurrentTransactionNestLevel();
	bool		begins = state->xact_depth == 0;

	if (begins)
	{
		tessera_connection_queue_control(participant->connection, begin_sql(!aside), 0, NULL);
		state->xact_depth = 1;
		state->wrote = false;
		state->unpreparable = false;
		state->captured = false;
		participant->joined = true;
		participant->used = false;
		participant->join = ++statements.joins;
		participant->modes_sent = 0;
		if (!participant->unlisted)
		{
			ToldState  *told = told_state(participant->connection);

			told->transaction_start = 0;
			told->asks = false;
		}
	}
	queue_constraint_modes(participant);
	while (state->xact_depth < level)
	{
		char		savepoint[48];

		snprintf(savepoint, sizeof(savepoint), "SAVEPOINT tessera_%d", state->xact_depth + 1);
		tessera_connection_queue_control(participant->connection, savepoint, 0, NULL);
		state->xact_depth++;
		queue_constraint_modes(participant);
		if (is_read_only(state->xact_depth) && !is_read_only(state->xact_depth - 1))
			tessera_connection_queue_control(participant->connection, "SET TRANSACTION READ ONLY", 0, NULL);
	}
	return begins;
}

static bool
is_told(ToldState *told, const TesseraToldVersion *version)
{
	const TesseraToldVersion *known = hash_search(told->versions, &version->group_id, HASH_FIND, NULL);

	return known && known->term == version->term && known->major == version->major && memcmp(&known->epoch, &version->epoch, sizeof(pg_uuid_t)) == 0;
}

static void
append_uuid(StringInfo array, const pg_uuid_t *uuid)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < UUID_LEN; i++)
	{
		appendStringInfoCharMacro(array, hex[uuid->data[i] >> 4]);
		appendStringInfoCharMacro(array, hex[uuid->data[i] & 15]);
	}
}

/* Versions the other end has not been told yet. */
static void
queue_versions(TesseraConnection *connection, const TesseraToldVersion *versions, int n)
{
	ToldState  *told = told_state(connection);
	StringInfoData arrays[4];
	int			new = 0;

	for (int i = 0; i < n; i++)
	{
		if (is_told(told, &versions[i]))
			continue;
		for (int j = 0; j < 4; j++)
		{
			if (new == 0)
				initStringInfo(&arrays[j]);
			appendStringInfoChar(&arrays[j], new == 0 ? '{' : ',');
		}
		append_uuid(&arrays[0], &versions[i].group_id);
		append_uuid(&arrays[1], &versions[i].epoch);
		appendStringInfo(&arrays[2], INT64_FORMAT, versions[i].term);
		appendStringInfo(&arrays[3], INT64_FORMAT, versions[i].major);
		*(TesseraToldVersion *) hash_search(told->versions, &versions[i].group_id, HASH_ENTER, NULL) = versions[i];
		new++;
	}
	if (new == 0)
		return;
	for (int j = 0; j < 4; j++)
		appendStringInfoChar(&arrays[j], '}');
	tessera_queue_tell(connection, arrays[0].data, arrays[1].data, arrays[2].data, arrays[3].data);
}

static const char *
kept_numbers(void)
{
	StringInfoData array;
	dlist_iter	iter;

	if (dlist_is_empty(&statements.kept))
		return "{}";
	initStringInfo(&array);
	dlist_foreach(iter, &statements.kept)
		appendStringInfo(&array, "%c" UINT64_FORMAT, array.len == 0 ? '{' : ',', dlist_container(TesseraKeptStatement, node, iter.cur)->number);
	appendStringInfoChar(&array, '}');
	return array.data;
}

static void
queue_statement_number(TesseraConnection *connection, uint64 statement)
{
	ToldState  *told = told_state(connection);

	/* Outside a transaction block there is none there. */
	if (tessera_connection_state(connection)->xact_depth == 0)
	{
		told->statement = 0;
		return;
	}
	if (told->statement == statement)
		return;
	tessera_queue_statement(connection, (int64) statement, kept_numbers());
	told->statement = statement;
}

/* ---- joining ---- */

static bool
others_joined(const TesseraParticipant *participant)
{
	for (int i = 0; i < at_hand.nparticipants; i++)
		if (&at_hand.participants[i] != participant && at_hand.participants[i].joined)
			return true;
	return false;
}

static bool
needs_transaction(const TesseraParticipant *participant, const TesseraCommandNeeds *needs)
{
	if (participant->joined || !needs->autocommit || needs->statement != 0 || XactIsoLevel > XACT_READ_COMMITTED)
		return true;
	return needs->write &&
		(others_joined(participant) || tessera_constraint_modes_any(&at_hand) || TransactionIdIsValid(GetTopTransactionIdIfAny()));
}

/* The participant of a node, its connection open. */
static TesseraParticipant *
reach_node(const TesseraRouting *routing, int32 node_id)
{
	TesseraParticipant *participant = find_participant(node_id);
	TesseraConnection *connection;

	if (participant && (participant->joined || participant->unlisted))
	{
		require_intact(participant);
		return participant;
	}
	connection = tessera_open_node(routing, node_id, 0);
	tessera_require_clock(connection);
	tessera_connection_begin_use(connection);
	if (participant == NULL)
		participant = add_participant(node_id, connection);
	participant->connection = connection;
	return participant;
}

static TesseraConnection *
join(const TesseraRouting *routing, int32 node_id, const TesseraCommandNeeds *needs, bool own)
{
	TesseraParticipant *participant = reach_node(routing, node_id);
	TesseraConnection *connection = participant->connection;
	bool		begins = false;

	at_hand.self_node = routing->self;
	if (tessera_connection_state(connection)->xact_depth == 0 && tessera_connection_busy(connection))
	{
		tessera_connection_drain(connection);
		participant = reach_node(routing, node_id);
		connection = participant->connection;
	}
	participant->level = Max(participant->level, GetCurrentTransactionNestLevel());
	if (needs_transaction(participant, needs))
		begins = queue_transaction(participant, needs->aside);
	else if (needs->write)
		tessera_participants_flush(&at_hand);	/* it may commit at once */
	if (!participant->unlisted)
	{
		queue_session(connection, own);
		if (begins)
			told_state(connection)->statement = 0;	/* as at the start of every transaction there */
		queue_versions(connection, needs->versions, needs->nversions);
		if (needs->write || tessera_after_cluster_time() > tessera_connection_state(connection)->heard.cluster)
			tessera_queue_time(connection);
		if (needs->explain != 0)
		{
			tessera_queue_explain_next(connection, (int64) needs->explain, needs->instrument);
		}
		if (!needs->aside)
			queue_statement_number(connection, needs->statement);
		if (!own && !needs->timeless)
			queue_start(connection);
	}
	participant->used = participant->used || !needs->aside || !needs->timeless;
	if (needs->write && participant->joined)
	{
		participant->wrote = true;
		tessera_connection_state(connection)->wrote = true;
	}
	return connection;
}

TesseraConnection *
tessera_participant_as_cluster(const TesseraRouting *routing, int32 node_id, bool write)
{
	TesseraCommandNeeds needs = {.write = write};

	return join(routing, node_id, &needs, true);
}

TesseraConnection *
tessera_participant(const TesseraRouting *routing, int32 node_id, const TesseraCommandNeeds *needs)
{
	Assert(node_id != routing->self);
	return join(routing, node_id, needs, false);
}

TesseraConnection *
tessera_participant_unlisted(int32 node_id, const char *name, const char *conninfo)
{
	const TesseraRouting *routing = tessera_routing();
	TesseraParticipant *participant;

	if (routing)
		at_hand.self_node = routing->self;
	if (find_participant(node_id))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("node %d takes part in this transaction already", node_id)));
	participant = add_participant(node_id, tessera_connection_open_unlisted(name, conninfo));
	participant->unlisted = true;
	(void) queue_transaction(participant, false);
	participant->level = GetCurrentTransactionNestLevel();
	participant->wrote = true;
	return participant->connection;
}

void
tessera_participant_holds_locks(int32 node_id)
{
	TesseraParticipant *participant = find_participant(node_id);

	Assert(participant != NULL && participant->joined);
	participant->locks = true;
	/* where its reads can fail at the commit it is asked as a writer is; that keeps the locks as long */
	if (IsolationIsSerializable())
	{
		participant->wrote = true;
		tessera_connection_state(participant->connection)->wrote = true;
	}
}

/* ---- waiting for a slot (transport/connection_slots.h) ---- */

/* True if other transactions may wait for what this one has on another node. */
static bool
holds_elsewhere(void)
{
	TesseraConnection **connections;
	int			n = tessera_connections_open(&connections);

	for (int i = 0; i < n; i++)
		if (tessera_connection_state(connections[i])->session_locks > 0)
			return true;
	return others_joined(NULL);
}

/* True if a process of this server waits for a lock of which this one holds some mode. */
static bool
blocks_others(void)
{
	LockData   *all = GetLockStatusData();
	bool		blocks = false;

	for (int i = 0; i < all->nelements && !blocks; i++)
	{
		if (all->locks[i].pid != MyProcPid || all->locks[i].holdMask == 0)
			continue;
		for (int j = 0; j < all->nelements && !blocks; j++)
			blocks = all->locks[j].waitLockMode != NoLock && all->locks[j].pid != MyProcPid &&
				memcmp(&all->locks[j].locktag, &all->locks[i].locktag, sizeof(LOCKTAG)) == 0;
	}
	pfree(all->locks);
	pfree(all);
	return blocks;
}

uint64
tessera_next_statement(void)
{
	return ++statements.last;
}

void
tessera_statement_keep(TesseraKeptStatement *statement)
{
	dlist_push_head(&statements.kept, &statement->node);
}

void
tessera_statement_forget(TesseraKeptStatement *statement)
{
	dlist_delete(&statement->node);
}

/* ---- may a lone write commit by itself (doc/design.md#remote-autocommit) ---- */

/* Extended protocol: true if the client's next message has arrived and is a Sync. Without it more may follow in the same transaction. */
static bool
sync_follows(void)
{
	int			next;

	if (!tessera_client_bytes_buffered())
		return false;
	pq_startmsgread();
	next = pq_peekbyte();
	pq_endmsgread();
	return next == 'S';
}

bool
tessera_autocommit_write_allowed(void)
{
	if (IsTransactionBlock() || GetCurrentTransactionNestLevel() > 1 || XactIsoLevel > XACT_READ_COMMITTED || tessera_nesting() > 1 ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()) || others_joined(NULL))
		return false;
	/* The client's own portal, with a plan and not a utility command: no cursor, function, procedure or DO block above. */
	if (whereToSendOutput != DestRemote || ActivePortal == NULL || ActivePortal->name[0] != '\0' || list_length(ActivePortal->stmts) != 1 ||
		linitial_node(PlannedStmt, ActivePortal->stmts)->commandType == CMD_UTILITY)
		return false;
	if (MyXactFlags & XACT_FLAGS_PIPELINING)
		return false;
	return ActivePortal->cplan == NULL || sync_follows();
}

/*
 * Deferred triggers fire at the commit, by whom that is given: not by the owner of a function, or the cluster's own role, that was the last to have
 * something done there. And they are of the statement that commits; where nothing was done that asks for the time, there are none.
 */
void
tessera_participant_restate_session(TesseraParticipant *participant)
{
	if (participant->unlisted || !tessera_connection_alive(participant->connection))
		return;
	queue_session(participant->connection, false);
	if (told_state(participant->connection)->asks)
		queue_start(participant->connection);
}

const char *
tessera_transaction_digits(void)
{
	if (at_hand.digits[0] == '\0')
	{
		char		gid[TESSERA_GID_SIZE];

		tessera_make_gid(gid, "", 0);
		strlcpy(at_hand.digits, gid + strlen(TESSERA_GID_PREFIX), sizeof(at_hand.digits));
	}
	return at_hand.digits;
}

/* ---- callbacks ---- */

static void
end_list(void)
{
	for (int i = 0; i < at_hand.nparticipants; i++)
		if (at_hand.participants[i].unlisted)
			tessera_connection_close(at_hand.participants[i].connection);
	at_hand.nparticipants = 0;
}

/* Writers, and those that keep advisory locks: a connection that is gone has let go of these. */
static void
require_all_intact(void)
{
	for (int i = 0; i < at_hand.nparticipants; i++)
	{
		TesseraParticipant *participant = &at_hand.participants[i];

		if (participant->joined && participant->locks && tessera_connection_alive(participant->connection) &&
			tessera_connection_lost(participant->connection))
			tessera_connection_close(participant->connection);
		if (participant->wrote || participant->locks)
			require_intact(participant);
	}
}

void
tessera_participants_before_commit(void)
{
	require_own_node_at_commit();
	if (at_hand.nparticipants == 0)
		return;
	require_all_intact();
	tessera_two_phase_pre_commit(&at_hand);
}

void
tessera_participants_before_prepare(void)
{
	require_own_node_at_commit();
	if (at_hand.nparticipants == 0)
		return;
	require_all_intact();
	/* the prepared transaction keeps its advisory locks */
	for (int i = 0; i < at_hand.nparticipants; i++)
		if (at_hand.participants[i].joined && at_hand.participants[i].locks)
			at_hand.participants[i].wrote = true;
	tessera_two_phase_pre_prepare(&at_hand);
}

static void
end_transaction(void (*end) (TesseraTransaction *transaction))
{
	tessera_constraint_modes_forget(&at_hand);
	/* also of a transaction of this node alone: they are written in it, and no other's */
	at_hand.digits[0] = '\0';
	if (at_hand.nparticipants == 0)
		return;
	end(&at_hand);
	end_list();
}

void
tessera_participants_committed(void)
{
	end_transaction(tessera_two_phase_committed);
}

void
tessera_participants_prepared(void)
{
	end_transaction(tessera_two_phase_prepared);
}

void
tessera_participants_aborted(void)
{
	end_transaction(tessera_two_phase_aborted);
}

/* Roll back to where the subtransaction began. The answer is read later. */
static void
rollback_to(TesseraConnection *connection, int level)
{
	TesseraRemoteState *state = tessera_connection_state(connection);
	char		sql[64];

	if (!tessera_connection_alive(connection))
		return;
	snprintf(sql, sizeof(sql), "ROLLBACK TO SAVEPOINT tessera_%d", level);
	(void) tessera_connection_queue_quietly(connection, sql);
	snprintf(sql, sizeof(sql), "RELEASE SAVEPOINT tessera_%d", level);
	(void) tessera_connection_queue_quietly(connection, sql);
	if (!tessera_connection_sync_quietly(connection))
		return;
	state->xact_depth = level - 1;
	state->known = false;
}

static void
abort_subtransaction(int level)
{
	TesseraConnection **connections = palloc(at_hand.nparticipants * sizeof(TesseraConnection *));
	int			n = 0;

	for (int i = 0; i < at_hand.nparticipants; i++)
	{
		TesseraConnection *connection = at_hand.participants[i].connection;
		int			depth = tessera_connection_state(connection)->xact_depth;

		/* What an outer level still reads on other connections is left alone; nobody waits for what was not used. */
		if (depth >= level && tessera_participant_is_unused(&at_hand.participants[i]))
		{
			if (tessera_connection_drop_results(connection))
				rollback_to(connection, level);
		}
		else if (depth >= level || (depth == 0 && at_hand.participants[i].level >= level && tessera_connection_busy(connection)))
			connections[n++] = connection;
		at_hand.participants[i].level = Min(at_hand.participants[i].level, level - 1);
	}
	tessera_connections_reset(connections, n, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout));
	for (int i = 0; i < n; i++)
		if (tessera_connection_state(connections[i])->xact_depth >= level)
			rollback_to(connections[i], level);
	/* advisory locks that were taken in it are free when the client is answered */
	n = 0;
	for (int i = 0; i < at_hand.nparticipants; i++)
		if (at_hand.participants[i].locks && tessera_connection_alive(at_hand.participants[i].connection))
			connections[n++] = at_hand.participants[i].connection;
	if (n > 0)
		(void) tessera_connections_await_answers(connections, n, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout));
	pfree(connections);
}

static void
release_savepoints(int level)
{
	for (int i = 0; i < at_hand.nparticipants; i++)
	{
		TesseraConnection *connection = at_hand.participants[i].connection;
		TesseraRemoteState *state = tessera_connection_state(connection);
		char		sql[64];

		at_hand.participants[i].level = Min(at_hand.participants[i].level, level - 1);
		if (state->xact_depth < level || !tessera_connection_alive(connection))
			continue;
		/* It travels with whatever comes next. */
		snprintf(sql, sizeof(sql), "RELEASE SAVEPOINT tessera_%d", level);
		tessera_connection_queue_control(connection, sql, 0, NULL);
		state->xact_depth = level - 1;
	}
}

void
tessera_participants_before_subtransaction_commit(SubTransactionId mine, SubTransactionId parent)
{
	tessera_constraint_modes_released(&at_hand, GetCurrentTransactionNestLevel());
	release_savepoints(GetCurrentTransactionNestLevel());
}

void
tessera_participants_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	tessera_constraint_modes_rolled_back(&at_hand, GetCurrentTransactionNestLevel());
	if (at_hand.nparticipants > 0)
		abort_subtransaction(GetCurrentTransactionNestLevel());
}

void
tessera_participant_init(void)
{
	DefineCustomIntVariable("tessera.commit_timeout", "How long a commit waits until the other nodes have carried out a decision that is made.",
							"What did not answer in time is finished by tessera.resolve_transactions(); until then other sessions may miss its rows.",
							&tessera_commit_timeout, 30000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.abort_timeout", "How long a rollback waits for the other nodes before it closes the connections to them.", NULL,
							&tessera_abort_timeout, 10000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	tessera_slot_holder = holds_elsewhere;
	tessera_slot_blocks_others = blocks_others;
}
