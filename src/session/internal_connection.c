/*
 * internal_connection.c
 *	  The shard's side of an internal connection: hello, session (settings and effective user), told versions, statement number; see
 *	  internal_connection.h.
 *
 * Who may call: internal_hello is for sessions authenticated as a superuser or a member of tessera_internal; the others need a connection that has
 * said hello. All of them are refused unless the call is the whole of a statement that came straight from the client protocol: the unnamed portal's
 * plan is one SELECT without a relation whose only column is the call. What users write reaches a shard inside statements that name a table, or runs
 * in functions, SPI portals (named) and triggers: none of these looks so, deferred triggers and inlined functions included.
 *
 * Effective user: set with SECURITY_LOCAL_USERID_CHANGE, so that no function that runs here can get back to the connection's own role by SET ROLE,
 * RESET ROLE or SET SESSION AUTHORIZATION. It stays over transactions; a rollback brings back what it was before. (An assertion of the server wants
 * no security context between transactions: builds with assertions take the flags away at commit and set them again before anything runs.) With it
 * comes what else the router's security context says: a restricted operation (REFRESH, maintenance) is one here, too, where core refuses deferred
 * triggers in it.
 *
 * Session user: the router's own, so that session_user in policies and triggers means the client. Only a connection whose role is a superuser can
 * take it on; another keeps its own role. It is no part of the transaction: after a rollback the router states all of it again, before anything else
 * runs. Parallel workers learn it from tessera.session_user, which only carries it.
 *
 * Memory: told versions and names of mirrored settings live until the backend exits. The kept snapshot belongs to the top transaction's resource
 * owner. Nothing is durable; shared is only whose backend is at the other end (remote_client.c).
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "commands/dbcommands.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "nodes/plannodes.h"
#include "optimizer/planner.h"
#include "control/calls.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "storage/ipc.h"
#include "tcop/dest.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "catalog/clock_store.h"
#include "catalog/identity.h"
#include "catalog/incarnation.h"
#include "common/acting_as.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/start_times.h"
#include "common/transaction_steps.h"
#include "common/version_compat.h"
#include "session/internal_connection.h"
#include "session/remote_client.h"


/* The snapshot of a router's statement: of the one at hand, and of those that the router goes on with later (cursors). In TopMemoryContext. */
typedef struct StatementSnapshot
{
	dlist_node	node;
	uint64		number;
	Snapshot	snapshot;		/* registered with the top transaction's resource owner */
} StatementSnapshot;


/* The connection of a router that this backend serves; empty in any other, but for nesting. Each part is emptied where its comment says. */
typedef struct InternalConnection
{
	bool		greeted;		/* hello was answered: it is one; never emptied, like the next three */
	bool		by_worker;		/* no client is behind it */
	int			protocol;		/* that both ends speak */
	NameData	router;			/* the node at the other end */
	TesseraTimes said;			/* the newest times that were said here or there; none goes back */

	/* what the router has stated, until it states something else */
	int64		term;			/* of the last call's envelope */
	int			security;		/* flags that go with the effective user */
	uint64		session_round;	/* internal_session calls so far */
	HTAB	   *told;			/* group_id -> TesseraToldVersion */
	HTAB	   *mirrored;		/* names of settings that a router has ever set here */
	TimestampTz transaction_start;	/* when the transaction began that it spoke of last; it is the one at hand if now() says so */
	TimestampTz statement_start;	/* and the statement of it; 0: it has not said */

	/* of the transaction: the steps at its end reset it */
	uint64		statement;		/* number of the router's statement at hand; 0: none */
	dlist_head	snapshots;		/* StatementSnapshot */
	bool		told_unpreparable;	/* the router was told that the transaction cannot be prepared */

	/* of the statement at hand, in any backend: whoever enters leaves, also by an error */
	int			nesting;
} InternalConnection;

static InternalConnection connection = {.snapshots = DLIST_STATIC_INIT(connection.snapshots)};

typedef struct MirroredName
{
	const char *name;			/* key: names of settings may be longer than NAMEDATALEN */
	uint64		round;			/* last internal_session that named it */
	bool		warned;			/* that it cannot be set here */
} MirroredName;

/* ---- state for other modules ---- */

bool
tessera_internal_connection(void)
{
	return connection.greeted;
}

int
tessera_internal_protocol(void)
{
	return connection.greeted ? connection.protocol : 0;
}

bool
tessera_works_for_client(void)
{
	return connection.greeted ? !connection.by_worker : MyBackendType == B_BACKEND || IsParallelWorker();
}

const TesseraToldVersion *
tessera_internal_told(const pg_uuid_t *group_id)
{
	return connection.told ? hash_search(connection.told, group_id, HASH_FIND, NULL) : NULL;
}

/* Deferred triggers fire at the end of a transaction, outside of any statement; what they run is nested all the same. */
int
tessera_nesting(void)
{
	return connection.nesting == 0 && DatumGetInt32(pg_trigger_depth(NULL)) > 0 ? 1 : connection.nesting;
}

void
tessera_nesting_enter(void)
{
	connection.nesting++;
}

void
tessera_nesting_leave(void)
{
	if (connection.nesting > 0)
		connection.nesting--;
}

/* SPI has no other way to be asked. */
bool
tessera_outside_spi(void)
{
	return SPI_unregister_relation("") == SPI_ERROR_UNCONNECTED;
}

/*
 * The message's text is what the server names as the one at hand; while a portal is run, or started by Bind or DECLARE CURSOR, also that portal's own
 * copy of it. Whatever users' code runs has a text of its own, and what it opens as a portal it opens through SPI.
 */
bool
tessera_received(const char *text)
{
	if (!connection.greeted || text == NULL || tessera_nesting() > 0 || IsParallelWorker())
		return false;
	return text == debug_query_string || (ActivePortal != NULL && text == ActivePortal->sourceText && tessera_outside_spi());
}

uint64
tessera_internal_statement(void)
{
	return connection.statement;
}

Snapshot
tessera_internal_statement_snapshot(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &connection.snapshots)
	{
		StatementSnapshot *kept = dlist_container(StatementSnapshot, node, iter.cur);

		if (kept->number == connection.statement)
			return kept->snapshot;
	}
	return NULL;
}

void
tessera_internal_keep_snapshot(Snapshot snapshot)
{
	StatementSnapshot *kept = MemoryContextAlloc(TopMemoryContext, sizeof(StatementSnapshot));

	Assert(tessera_internal_statement_snapshot() == NULL);
	kept->number = connection.statement;
	kept->snapshot = RegisterSnapshotOnOwner(snapshot, TopTransactionResourceOwner);
	dlist_push_head(&connection.snapshots, &kept->node);
}

static bool
contains(const Datum *numbers, int n, uint64 number)
{
	for (int i = 0; i < n; i++)
		if ((uint64) DatumGetInt64(numbers[i]) == number)
			return true;
	return false;
}

/* All but those of the statement at hand and of the numbers given. */
static void
drop_kept_snapshots(const Datum *numbers, int n)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &connection.snapshots)
	{
		StatementSnapshot *kept = dlist_container(StatementSnapshot, node, iter.cur);

		if (kept->number == connection.statement || contains(numbers, n, kept->number))
			continue;
		dlist_delete(&kept->node);
		UnregisterSnapshotFromOwner(kept->snapshot, TopTransactionResourceOwner);
		pfree(kept);
	}
}

/* The transaction is aborted: its resource owner lets go of the snapshots. */
static void
forget_kept_snapshots(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &connection.snapshots)
		pfree(dlist_container(StatementSnapshot, node, iter.cur));
	dlist_init(&connection.snapshots);
}

/* ---- who may call ---- */

static bool
is_top_level_call(Oid function)
{
	PlannedStmt *statement;
	TargetEntry *entry;
	ListCell   *cell;

	if (connection.nesting > 1 || ActivePortal == NULL || ActivePortal->name[0] != '\0' || list_length(ActivePortal->stmts) != 1)
		return false;
	statement = linitial_node(PlannedStmt, ActivePortal->stmts);
	if (statement->commandType != CMD_SELECT || statement->planTree == NULL || !IsA(statement->planTree, Result) ||
		outerPlan(statement->planTree) != NULL || statement->subplans != NIL || list_length(statement->planTree->targetlist) != 1)
		return false;
	foreach(cell, statement->rtable)
		if (lfirst_node(RangeTblEntry, cell)->rtekind != RTE_RESULT)
			return false;
	entry = linitial_node(TargetEntry, statement->planTree->targetlist);
	return IsA(entry->expr, FuncExpr) && ((FuncExpr *) entry->expr)->funcid == function;
}

/*
 * For the functions made of control/calls.def that only other nodes may call: the call is the whole of a statement that came straight from the
 * connection, never from inside what users write.
 */
static void
admit(FunctionCallInfo fcinfo, bool said)
{
	if (said && !connection.greeted)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("this function is called by other nodes only"),
				 errdetail("The session has not called tessera_internal.hello().")));
	if (!is_top_level_call(fcinfo->flinfo->fn_oid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("this function is called by other nodes only, as a statement of its own")));
}

/* ---- hello ---- */

static void
require_own_role(void)
{
	Oid			user = GetAuthenticatedUserId();
	Oid			role = get_role_oid("tessera_internal", true);

	if (!superuser_arg(user) && !(OidIsValid(role) && is_member_of_role_nosuper(user, role)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not open connections between nodes", GetUserNameFromId(user, false)),
				 errhint("Use a superuser or a member of role tessera_internal in the node's conninfo.")));
}

/*
 * The connection's role is mostly a superuser, which the server lets have its last slots. But what clients of other nodes open leaves as many as
 * clients of this one must (superuser_reserved_connections), so that a superuser can still come in. Workers of the cluster may go on to half of them:
 * what is in doubt is decided even where clients have filled a node. FATAL as in the server itself: the slot is free at once.
 */
static void
require_free_slot(bool by_worker)
{
	int			reserved = tessera_reserved_slots();
	int			kept = by_worker ? Max(reserved / 2, Min(reserved, 1)) : reserved;

	if (kept > 0 && !tessera_slots_are_free(kept))
		ereport(FATAL,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("remaining connection slots are reserved for superusers of this node"),
				 errhint("Raise max_connections here, or limit what the sessions of other nodes have here: tessera.max_connections_per_shard, "
						 "tessera.max_connections_per_user.")));
}

/*
 * A router that is cut off must not leave its locks here for the two hours of the system's defaults. What the server's configuration sets stays. No
 * tcp_user_timeout: a router whose client does not fetch does not read, which looks the same.
 */
static void
set_keepalives(void)
{
	if (tcp_keepalives_idle == 0)
		(void) set_config_option("tcp_keepalives_idle", "30", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
	if (tcp_keepalives_interval == 0)
		(void) set_config_option("tcp_keepalives_interval", "10", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
	if (tcp_keepalives_count == 0)
		(void) set_config_option("tcp_keepalives_count", "3", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
}

/* Settings of this server that a remote statement must not depend on: a router states them with BEGIN. */
static void
set_session_defaults(void)
{
	static const char *const defaults[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"idle_session_timeout", "0"},
		{"quote_all_identifiers", "off"},
	};

	for (int i = 0; i < lengthof(defaults); i++)
		(void) set_config_option(defaults[i][0], defaults[i][1], PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
	set_keepalives();
}

/*
 * Router_node and router_pid name the caller's backend, claimed is its node's incarnation, expected this node's as the caller knows it. The answer is
 * that of tessera_incarnation_greet, with the protocol; only if it is at least what is expected is this an internal connection.
 */
ArrayType *
tessera_serve_hello(const TesseraHelloArgs *args)
{
	pg_uuid_t  *cluster = args->cluster;
	const char *router = args->router;
	const char *version = args->version;
	bool		by_worker = (args->protocol & TESSERA_CALLER_IS_WORKER) != 0;
	int32		protocol = args->protocol & ~TESSERA_CALLER_IS_WORKER;
	char	   *installed = tessera_extension_version();
	int32		expected = args->expected;
	TesseraIdentity identity;
	int32		answer;

	require_own_role();
	require_free_slot(by_worker);
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("this server is a standby"),
				 errhint("Name all servers of the node in its conninfo, with target_session_attrs=read-write.")));
	if (!tessera_identity_read(&identity))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("database \"%s\" is not a node of a cluster", get_database_name(MyDatabaseId))));
	if (memcmp(&identity.cluster_id, cluster, UUID_LEN) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node belongs to another cluster than node \"%s\"", router)));
	if (installed == NULL || protocol < TESSERA_OLDEST_PROTOCOL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" has another version of the extension", router),
				 errdetail("Here it is %s (protocols %d to %d), there %s (protocol %d).", installed ? installed : "none",
						   TESSERA_OLDEST_PROTOCOL, TESSERA_PROTOCOL, version, protocol),
				 errhint("Install one version everywhere and run ALTER EXTENSION tessera UPDATE on each node.")));
	answer = tessera_incarnation_greet(&identity, args->router_node, args->claimed, expected);
	if (answer > 0 && answer >= expected)
	{
		set_session_defaults();
		connection.greeted = true;
		tessera_session_involved();
		connection.by_worker = by_worker;
		connection.protocol = Min(protocol, tessera_own_protocol());
		namestrcpy(&connection.router, router);
		tessera_remote_client_set(args->router_node, args->router_pid);
	}
	{
		Datum		numbers[2] = {Int32GetDatum(answer), Int32GetDatum(Min(protocol, tessera_own_protocol()))};

		return construct_array(numbers, 2, INT4OID, sizeof(int32), true, TYPALIGN_INT);
	}
}

/* ---- cluster time (doc/design.md#cluster-time) ---- */

/* What the other node knows counts here from now on. */
static void
hear_times(int64 cluster, int64 config, int64 topology)
{
	TesseraTimes times = {(TesseraTime) cluster, (TesseraTime) config, (TesseraTime) topology};
	double		ahead;

	if (!tessera_times_ordered(&times))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("node \"%s\" states times that are not in order", NameStr(connection.router))));
	tessera_clock_load();
	if (!tessera_clock_hear(&times, true))
	{
		(void) tessera_clock_is_off(times.cluster, &ahead);
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" states a cluster time that is %.0f s ahead of this node's clock", NameStr(connection.router), ahead),
				 errdetail("The limit is tessera.max_clock_drift, %d s.", tessera_max_clock_drift),
				 errhint("Compare the clocks of both servers; tessera.clocks shows those of all nodes.")));
	}
	tessera_times_raise(&connection.said, &times);
}

void
tessera_serve_tell_time(const TesseraTellTimeArgs *args)
{
	hear_times(args->cluster_time, args->config_time, args->topology_time);
}

/* As a parameter of the connection: it costs no trip, and nothing but this library can set it. */
void
tessera_internal_tell_time(void)
{
	TesseraTimes times;
	char		message[sizeof(TESSERA_TIME_PARAMETER) + TESSERA_TIMES_SIZE] = TESSERA_TIME_PARAMETER;
	char	   *value = message + sizeof(TESSERA_TIME_PARAMETER);

	if (!connection.greeted || connection.protocol < TESSERA_TIME_PROTOCOL || whereToSendOutput != DestRemote || proc_exit_inprogress)
		return;
	if (!tessera_clock_read(&times) || !tessera_times_newer(&times, &connection.said) || tessera_injection_skips("gossip"))
		return;
	tessera_times_write(&times, value);
	/* never blocks: locks may be held */
	pq_putmessage_noblock('S', message, value + strlen(value) + 1 - message);
	connection.said = times;
}

/* Stands in front of a call of the control lane. A config node of a lower term than the caller has seen refuses the call. */
void
tessera_serve_envelope(const TesseraEnvelopeArgs *args)
{
	connection.term = args->term;
	if (!args->cluster_time_null && !args->config_time_null && !args->topology_time_null)
		hear_times(args->cluster_time, args->config_time, args->topology_time);
}

int64
tessera_internal_caller_term(void)
{
	return connection.term;
}

/* ---- session: settings and effective user ---- */

static uint32
name_hash(const void *key, Size size)
{
	const char *name = *(const char *const *) key;

	return hash_bytes((const unsigned char *) name, strlen(name));
}

static int
name_match(const void *a, const void *b, Size size)
{
	return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static MirroredName *
note_mirrored(const char *name, uint64 round)
{
	MirroredName *entry;

	if (connection.mirrored == NULL)
	{
		HASHCTL		control = {0};

		control.keysize = sizeof(char *);
		control.entrysize = sizeof(MirroredName);
		control.hcxt = TopMemoryContext;
		control.hash = name_hash;
		control.match = name_match;
		connection.mirrored = hash_create("tessera mirrored settings", 64, &control, HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
	}
	entry = hash_search(connection.mirrored, &name, HASH_FIND, NULL);
	if (entry == NULL)
	{
		const char *kept = MemoryContextStrdup(TopMemoryContext, name);

		entry = hash_search(connection.mirrored, &kept, HASH_ENTER, NULL);
		entry->warned = false;
	}
	entry->round = round;
	return entry;
}

/* Settings of an earlier round that the router does not set any more go back to this server's own value. */
static void
reset_unnamed(uint64 round)
{
	HASH_SEQ_STATUS status;
	MirroredName *entry;

	if (connection.mirrored == NULL)
		return;
	hash_seq_init(&status, connection.mirrored);
	while ((entry = hash_seq_search(&status)))
		if (entry->round != round)
			(void) set_config_option(entry->name, NULL, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
}

/* True if it is set to the value already, by the same rights. Skipping it saves the check hook and its allocations. */
static bool
is_set_so(const char *name, const char *value, GucContext context, Oid setter)
{
	struct config_generic *setting = tessera_find_setting(name);
	const char *current;

	/* an equal value that is not the session's own would go with a reset */
	if (setting == NULL || setting->source != PGC_S_SESSION || setting->scontext != context || setting->srole != setter)
		return false;
	current = GetConfigOption(name, true, false);
	return current != NULL && strcmp(current, value) == 0;
}

/*
 * setter: NULL: by all rights. Else the rights of that role decide whether it may be set here, as they do when a module finds a value for its
 * setting: what may not be set, or has no meaning here, is ignored with a warning, and the setting has this server's own value.
 */
static void
set_mirrored(MirroredName *entry, const char *value, const char *setter)
{
	const char *name = entry->name;
	GucContext	context = setter ? PGC_USERSET : PGC_SUSET;
	Oid			role = setter ? get_role_oid(setter, true) : BOOTSTRAP_SUPERUSERID;
	int			level = strchr(name, '.') == NULL ? ERROR : entry->warned ? DEBUG1 : WARNING;

	if (is_set_so(name, value, context, role))
		return;
	if (set_config_option_ext(name, value, context, PGC_S_SESSION, role, GUC_ACTION_SET, true, level, false) != 0)
		return;
	entry->warned = true;
	if (tessera_find_setting(name) != NULL)
		(void) set_config_option(name, NULL, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, WARNING, false);
}

/* The client's: user's code reads it. No rights go by it while the effective user is local (set_effective_user). */
static void
set_session_user(const char *name)
{
	Oid			connection_role = GetAuthenticatedUserId();
	Oid			user = name ? get_role_oid(name, false) : connection_role;
	char		value[16];

	if (user == GetSessionUserId() || !superuser_arg(connection_role))
		return;
	tessera_act_in_session_of(user);
	snprintf(value, sizeof(value), "%u", user);
	(void) set_config_option("tessera.session_user", value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
}

/* In a parallel worker, as it takes over the leader's settings. */
static void
take_over_session_user(const char *value, void *extra)
{
	Oid			user = value ? atooid(value) : InvalidOid;

	if (InitializingParallelWorker && OidIsValid(user))
		tessera_act_in_session_of(user);
}

/* Whose code runs in the statements that follow. security: what else holds of the security context. */
static void
set_effective_user(const char *name, int security)
{
	connection.security = name ? SECURITY_LOCAL_USERID_CHANGE | security : 0;
	tessera_act_from_now_on(name ? get_role_oid(name, false) : GetAuthenticatedUserId(), connection.security);
}

/* nulls: NULL: there must not be any. */
static void
read_text_array(ArrayType *array, Datum **values, bool **nulls, int *n)
{
	bool	   *own_nulls;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, values, nulls ? nulls : &own_nulls, n);
	for (int i = 0; i < *n && nulls == NULL; i++)
		if (own_nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("names and values of settings must not be null")));
}

/* Null users: the connection's own role; null among the setters: by all rights; security: TESSERA_MIRRORED_SECURITY. */
void
tessera_serve_session(const TesseraSessionArgs *args)
{
	Datum	   *names;
	Datum	   *values;
	Datum	   *setters;
	bool	   *by_all_rights;
	int			nnames;
	int			nvalues;
	int			nsetters;

	if (args->names == NULL || args->settings == NULL || args->setters == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("names and values of settings must not be null")));
	read_text_array(args->names, &names, NULL, &nnames);
	read_text_array(args->settings, &values, NULL, &nvalues);
	read_text_array(args->setters, &setters, &by_all_rights, &nsetters);
	if (nnames != nvalues || nnames != nsetters)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d names of settings but %d values and %d who set them", nnames, nvalues, nsetters)));

	/* Check hooks look at the current user (search_path, roles): the connection's own role sets them. */
	set_effective_user(NULL, 0);
	connection.session_round++;
	for (int i = 0; i < nnames; i++)
	{
		char	   *name = TextDatumGetCString(names[i]);

		set_mirrored(note_mirrored(name, connection.session_round), TextDatumGetCString(values[i]),
					 by_all_rights[i] ? NULL : TextDatumGetCString(setters[i]));
	}
	reset_unnamed(connection.session_round);
	set_session_user(args->client_user);
	if (args->effective_user != NULL)
		set_effective_user(args->effective_user, args->security & TESSERA_MIRRORED_SECURITY);
}

/* ---- told versions ---- */

static void
remember_told(const TesseraToldVersion *version)
{
	if (connection.told == NULL)
	{
		HASHCTL		control = {0};

		control.keysize = sizeof(pg_uuid_t);
		control.entrysize = sizeof(TesseraToldVersion);
		control.hcxt = TopMemoryContext;
		connection.told = hash_create("tessera told versions", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	*(TesseraToldVersion *) hash_search(connection.told, &version->group_id, HASH_ENTER, NULL) = *version;
}

void
tessera_serve_tell(const TesseraTellArgs *args)
{
	Datum	   *groups;
	Datum	   *epochs;
	Datum	   *terms;
	Datum	   *majors;
	int			n[4];

	if (array_contains_nulls(args->group_ids) || array_contains_nulls(args->epochs) || array_contains_nulls(args->terms) ||
		array_contains_nulls(args->majors))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("versions must not be null")));
	deconstruct_array(args->group_ids, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &groups, NULL, &n[0]);
	deconstruct_array(args->epochs, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &epochs, NULL, &n[1]);
	deconstruct_array(args->terms, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &terms, NULL, &n[2]);
	deconstruct_array(args->majors, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &majors, NULL, &n[3]);
	if (n[0] != n[1] || n[0] != n[2] || n[0] != n[3])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("arrays of versions differ in length")));
	for (int i = 0; i < n[0]; i++)
	{
		TesseraToldVersion version;

		version.group_id = *DatumGetUUIDP(groups[i]);
		version.epoch = *DatumGetUUIDP(epochs[i]);
		version.term = DatumGetInt64(terms[i]);
		version.major = DatumGetInt64(majors[i]);
		remember_told(&version);
	}
	/* A lock that is held already does not read invalidations again, so moves since then are taken in here (doc/design.md#old-plans). */
	AcceptInvalidationMessages();
}

/*
 * Fragments that follow with the same number share one snapshot; those of the statements in kept stay,
 * too
 */
void
tessera_serve_statement(const TesseraStatementArgs *args)
{
	Datum	   *numbers;
	int			n;

	deconstruct_array(args->kept, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &numbers, NULL, &n);
	connection.statement = (uint64) args->number;
	drop_kept_snapshots(numbers, n);
}

/* ---- when transaction and statement began (doc/design.md#one-time) ---- */

void
tessera_serve_began(const TesseraBeganArgs *args)
{
	if (!IS_VALID_TIMESTAMP(args->transaction_start) || !IS_VALID_TIMESTAMP(args->statement_start) || args->statement_start == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("node \"%s\" states times that are none", NameStr(connection.router))));
	connection.transaction_start = args->transaction_start;
	connection.statement_start = args->statement_start;
	tessera_set_start_times(args->transaction_start, args->statement_start);
}

/* Another transaction has another time of its own, so nothing need be reset at the end of this one. */
void
tessera_internal_restate_start(void)
{
	if (connection.statement_start != 0 && GetCurrentTransactionStartTimestamp() == connection.transaction_start)
		tessera_set_start_times(connection.transaction_start, connection.statement_start);
}

/* ---- what cannot be prepared ---- */


/*
 * What PREPARE TRANSACTION itself would say; the server has no other way to ask for pending notifications, and that function does nothing but raise.
 */
static bool
has_notifications(void)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool result = false;

	PG_TRY();
	{
		AtPrepare_Notify();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		result = true;
	}
	PG_END_TRY();
	return result;
}

void
tessera_internal_tell_unpreparable(void)
{
	if (!connection.greeted || connection.told_unpreparable || !IsTransactionBlock())
		return;
	if (!(MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) && !has_notifications())
		return;
	connection.told_unpreparable = true;
	ereport(INFO,
			(errcode(connection.protocol < TESSERA_WORDS_PROTOCOL ? ERRCODE_TESSERA_OLD_UNPREPARABLE : ERRCODE_TESSERA_UNPREPARABLE),
			 errmsg("the transaction cannot be prepared")));
}

/* ---- end of transaction ---- */

void
tessera_internal_before_end(void)
{
	connection.statement = 0;
	drop_kept_snapshots(NULL, 0);
}

void
tessera_internal_ended(void)
{
	connection.told_unpreparable = false;
	tessera_internal_tell_time();
#ifdef USE_ASSERT_CHECKING
	/* the same user; nobody's code runs until guard_effective_user has been here */
	if (connection.greeted)
		tessera_act_from_now_on(GetUserId(), 0);
#endif
}

void
tessera_internal_aborted(void)
{
	connection.told_unpreparable = false;
	tessera_internal_tell_time();
	forget_kept_snapshots();
	connection.statement = 0;
}

void
tessera_internal_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	tessera_internal_tell_time();
}

#ifdef USE_ASSERT_CHECKING
static planner_hook_type previous_planner;
static ExecutorStart_hook_type previous_executor_start;
static ProcessUtility_hook_type previous_utility;

/* Before anything of the user's runs in a transaction, who stays what he is: see the head of the file. */
static void
guard_effective_user(void)
{
	Oid			user;
	int			context;

	if (!connection.greeted)
		return;
	GetUserIdAndSecContext(&user, &context);
	if (user != GetAuthenticatedUserId() && context == 0)
		tessera_act_from_now_on(user, connection.security);
}

static PlannedStmt *
guard_planner(Query *query, const char *string, int options, ParamListInfo params)
{
	guard_effective_user();
	return previous_planner ? previous_planner(query, string, options, params) : standard_planner(query, string, options, params);
}

static void
guard_executor_start(QueryDesc *query, int eflags)
{
	guard_effective_user();
	if (previous_executor_start)
		previous_executor_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

static void
guard_utility(PlannedStmt *statement, const char *string, bool read_only, ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	guard_effective_user();
	if (previous_utility)
		previous_utility(statement, string, read_only, context, params, environment, receiver, completion);
	else
		standard_ProcessUtility(statement, string, read_only, context, params, environment, receiver, completion);
}
#endif

void
tessera_internal_init(void)
{
	static char *session_user;

	tessera_call_admit = admit;
	DefineCustomStringVariable("tessera.session_user", "Session user that a router has stated, for parallel workers.", NULL, &session_user, "",
							   PGC_SUSET, GUC_NO_SHOW_ALL | GUC_NO_RESET_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE | GUC_NOT_WHILE_SEC_REST,
							   NULL, take_over_session_user, NULL);
#ifdef USE_ASSERT_CHECKING
	previous_planner = planner_hook;
	planner_hook = guard_planner;
	previous_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = guard_executor_start;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = guard_utility;
#endif
}
