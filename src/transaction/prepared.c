/*
 * prepared.c
 *	  Transactions that clients prepare, over all nodes; see prepared.h.
 *
 * The config node is the home of their identifiers: its row of tessera.transaction_decision with outcome `prepared` is the transaction. Steps of
 * PREPARE TRANSACTION, on the node of the client: ask the home for its timeline, which becomes part of the internal gid; prepare under that gid on
 * all nodes that were written to, and here; have the home insert the row. The commit of that row is the moment from which the transaction is
 * prepared. Before it, a participant that asks the home for the outcome (its resolver does after 10 s) inserts `abort`, and the transaction is rolled
 * back. After it the participants are left alone for any time. COMMIT PREPARED and ROLLBACK PREPARED, on any node, turn the row into `commit` or
 * `abort`: that is the decision; then the participants are told, and those that are down ask later.
 *
 * A home that was promoted may have lost rows (asynchronous standby). So a participant writes an outcome down, durably, before it carries it out; and
 * a home on another timeline than that of the row (or, if there is none, of the gid) decides nothing before all nodes were asked for what they have
 * written down. From then on a node that was asked refuses outcomes of older timelines, so that one which was on its way does not come in late. A
 * `prepared` row that was lost is a transaction that was rolled back, everywhere.
 *
 * Crash: before the row is there, the participants are rolled back by their resolvers; after it nothing is lost; after the decision the resolvers
 * carry it out. In memory nothing is kept between statements.
 *
 * The server's PREPARE takes place at the end of the statement, when nothing may be raised any more. So the transaction is ended inside the
 * statement, as VACUUM does it, and the rest of the statement has a transaction of its own.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/acting_as.h"
#include "common/injection.h"
#include "common/spi.h"
#include "common/subtransaction.h"
#include "control/calls.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"
#include "transaction/prepared.h"
#include "transaction/transaction_private.h"

PG_FUNCTION_INFO_V1(tessera_list_prepared_transactions);

/* How long one node is waited for when it is asked what it knows, in ms. */
#define EVIDENCE_TIMEOUT 5000

/* A node (0: the config node) that need not answer: the error (palloc'd) is kept. */
static TesseraCallTarget
patiently(int32 node_id, int timeout_ms, TesseraCallTolerance tolerance, ErrorData **error)
{
	return tessera_keep_error(tessera_ask(tessera_within(tessera_to_node(node_id), timeout_ms), tolerance), error);
}

static int32
home_of(const TesseraRouting *routing)
{
	const TesseraNode *home = tessera_routing_config(routing);

	if (home == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the config node is not known here")));
	return home->node_id;
}

/* ---- how one ends on a node ---- */

void
tessera_prepared_carry_out(const TesseraRouting *routing, int32 node_id, const char *gid, bool commit, TesseraTime time, int32 timeline)
{
	int			timeout = tessera_commit_timeout;

	(void) tessera_call_note_outcome(tessera_within(tessera_to_node(node_id), timeout), gid, commit ? "commit" : "abort", timeline);
	tessera_injection("prepared_noted");
	tessera_finish_part(routing, node_id, psprintf("%s_%d", gid, node_id), commit, time, timeout);
}

typedef struct Ending
{
	const TesseraRouting *routing;
	int32		node_id;
	const char *gid;
	bool		commit;
	TesseraTime time;
	int32		timeline;
} Ending;

static void
carry_out(void *arg)
{
	Ending	   *ending = arg;

	tessera_prepared_carry_out(ending->routing, ending->node_id, ending->gid, ending->commit, ending->time, ending->timeline);
}

/* The same; an error becomes a WARNING: the node's resolver finishes it. */
static void
try_to_carry_out(const TesseraRouting *routing, int32 node_id, const char *gid, bool commit, TesseraTime time, int32 timeline)
{
	Ending		ending = {routing, node_id, gid, commit, time, timeline};
	const TesseraNode *node = tessera_routing_node(routing, node_id);
	ErrorData  *error = tessera_try(carry_out, &ending);

	if (error != NULL && error->sqlerrcode != ERRCODE_UNDEFINED_OBJECT)	/* another session has finished it */
		ereport(WARNING,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the transaction is %s, but node \"%s\" has not confirmed it yet", commit ? "committed" : "rolled back",
						node ? NameStr(node->name) : "unknown"),
				 errdetail("Prepared transaction %s_%d stays there: %s", gid, node_id, error->message),
				 errhint("It is finished by the resolver of that node, as soon as it can be; until then its rows are as before, and locked.")));
}

const char *
tessera_prepared_evidence(const TesseraRouting *routing, int32 home, const char *gid, int32 timeline)
{
	ErrorData  *failure = NULL;

	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;
		ErrorData  *error;
		char	   *noted;

		CHECK_FOR_INTERRUPTS();
		if (node_id == home)
			continue;
		if (!tessera_call_noted_outcome(patiently(node_id, EVIDENCE_TIMEOUT, TESSERA_TOLERATE_ERRORS, &error), gid, timeline, &noted))
			failure = error;
		else if (noted != NULL && strcmp(noted, "none") != 0)
			return strcmp(noted, "commit") == 0 ? "commit" : "abort";
	}
	if (failure != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the config node was promoted, and may have lost how transaction %s ended", gid),
				 errdetail("Another node that may know cannot be asked: %s", failure->message),
				 errhint("It can be decided when all nodes can be reached.")));
	return "none";
}

/* ---- PREPARE TRANSACTION ---- */

/* True if the error says that the call was not run, or had no effect. */
static bool
is_definite(const ErrorData *error)
{
	int			category = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	return category != ERRCODE_TO_CATEGORY(ERRCODE_CONNECTION_EXCEPTION) && category != ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION);
}

typedef struct Part
{
	const TesseraRouting *routing;
	const char *gid;
	int32		node_id;
} Part;

static void
roll_back_part(void *arg)
{
	Part	   *part = arg;

	tessera_finish_part(part->routing, part->node_id, psprintf("%s_%d", part->gid, part->node_id), false, 0, tessera_commit_timeout);
}

/* Rolled back where it was prepared; what cannot be reached is left to its resolver. A request to cancel does not keep the others from it. */
static void
take_back(const TesseraRouting *routing, const char *gid, const int32 *nodes, int n)
{
	for (int i = 0; i < n; i++)
	{
		Part		part = {routing, gid, nodes[i]};

		(void) tessera_try(roll_back_part, &part);
	}
}

/* The home's row. An error has taken the transaction back, or says that this is not known. */
static void
record(const TesseraRouting *routing, const char *gid, const char *user_gid, const char *owner, const int32 *nodes, int n)
{
	int32		home = home_of(routing);
	StringInfoData array;
	ErrorData  *error;
	ErrorData  *unknown;
	char	   *answer;

	initStringInfo(&array);
	for (int i = 0; i < n; i++)
		appendStringInfo(&array, "%c%d", i == 0 ? '{' : ',', nodes[i]);
	appendStringInfoChar(&array, '}');
	if (tessera_call_prepare_record(patiently(0, tessera_commit_timeout, TESSERA_TOLERATE_ALL, &error), gid, user_gid, owner, array.data))
		return;
	if (!is_definite(error))
	{
		/* asking decides: it is there, or it never will be */
		if (!tessera_call_transaction_outcome(patiently(home, tessera_commit_timeout, TESSERA_TOLERATE_ALL, &unknown), gid, &answer) ||
			answer == NULL || strncmp(answer, "check", 5) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
					 errmsg("the config node did not answer whether transaction \"%s\" is prepared", user_gid),
					 errdetail("%s", error->message),
					 errhint("Look whether it is in pg_prepared_xacts when the config node can be reached. If it is not, it is rolled back.")));
		if (strncmp(answer, "abort", 5) != 0)
			return;
	}
	take_back(routing, gid, nodes, n);
	ReThrowError(error);
}

/* The internal gid, of the home's present timeline. ERROR 42710 if the client's is in use, 08006 if the home cannot be reached. */
static void
begin_prepare(const TesseraRouting *routing, const char *user_gid, char *gid)
{
	int32		home = home_of(routing);
	int32		timeline;
	char		fixed[32];

	if (strlen(user_gid) >= GIDSIZE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("transaction identifier \"%s\" is too long", user_gid)));
	tessera_call_prepare_begin(tessera_within(tessera_to_config(), tessera_commit_timeout), user_gid, &timeline);
	snprintf(fixed, sizeof(fixed), TESSERA_CLIENT_GID "%08x", (uint32) timeline);
	tessera_make_gid(gid, fixed, home);
}

/* Prepares all parts and ends the transaction; a new one has begun then. false: there was none to prepare, and core has said so. */
static bool
prepare_parts(TesseraUtility *utility, void (*run_next) (TesseraUtility *utility), const char *gid, int32 self)
{
	TesseraUtility own = *utility;
	QueryCompletion completion;

	InitializeQueryCompletion(&completion);
	own.statement = copyObject(utility->statement);
	castNode(TransactionStmt, own.statement->utilityStmt)->gid = psprintf("%s_%d", gid, self);
	own.completion = &completion;
	tessera_two_phase_client(tessera_this_transaction(), gid);
	run_next(&own);
	if (completion.commandTag == CMDTAG_ROLLBACK)
	{
		if (utility->completion != NULL)
			CopyQueryCompletion(utility->completion, &completion);
		return false;
	}
	CommitTransactionCommand();
	tessera_injection("prepare_prepared");
	StartTransactionCommand();
	return true;
}

static void
prepare_transaction(TesseraUtility *utility, void (*run_next) (TesseraUtility *utility), const TesseraRouting *routing)
{
	MemoryContext context = CurrentMemoryContext;	/* the portal's, or of the message: it outlives the transaction */
	char	   *user_gid = castNode(TransactionStmt, utility->statement->utilityStmt)->gid;
	char	   *owner = GetUserNameFromId(GetUserId(), false);	/* SET LOCAL ROLE ends with the transaction */
	int32		self = routing->self;
	char		gid[TESSERA_GID_SIZE];
	const int32 *others;
	int32	   *nodes;
	int			n;

	PG_TRY();
	{
		begin_prepare(routing, user_gid, gid);
	}
	PG_CATCH();
	{
		/* as core: whatever happens, the transaction is over */
		(void) EndTransactionBlock(false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!prepare_parts(utility, run_next, gid, self))
		return;
	MemoryContextSwitchTo(context);
	others = tessera_two_phase_prepared_nodes(tessera_this_transaction(), &n);
	nodes = palloc((n + 1) * sizeof(int32));
	memcpy(nodes, others, n * sizeof(int32));
	nodes[n++] = self;
	PushActiveSnapshot(GetTransactionSnapshot());
	routing = tessera_routing();
	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transaction \"%s\" is rolled back: this database has left the cluster meanwhile", user_gid)));
	record(routing, gid, user_gid, owner, nodes, n);
	PopActiveSnapshot();
	tessera_injection("prepare_recorded");
}

/* ---- COMMIT PREPARED, ROLLBACK PREPARED ---- */

/* True if this database has a prepared transaction of exactly this identifier: outside of the cluster, or a part of one of its own. */
static bool
is_prepared_here(const char *gid)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1] = {CStringGetTextDatum(gid)};
	TesseraSpi	spi;
	bool		found;

	tessera_spi_begin(&spi);
	found = tessera_spi_run("SELECT FROM pg_catalog.pg_prepared_xact() p JOIN pg_catalog.pg_database d ON d.oid = p.dbid"
							" WHERE p.gid = $1 AND d.datname = pg_catalog.current_database()", SPI_OK_SELECT, 1, types, values, NULL) > 0;
	tessera_spi_end(&spi);
	return found;
}

/* A part of a transaction of the cluster: ended by itself it would break that in two. */
static bool
is_internal_gid(const char *gid)
{
	return strncmp(gid, TESSERA_GID_PREFIX, strlen(TESSERA_GID_PREFIX)) == 0 &&
		strspn(gid + strlen(TESSERA_GID_PREFIX), "0123456789abcdef") == 2 * 16 && gid[strlen(TESSERA_GID_PREFIX) + 2 * 16] == '_';
}

static TesseraFinishPreparedAnswer *
decide(const char *user_gid, const char *wanted, const char *evidence)
{
	ErrorData  *error;
	TesseraFinishPreparedAnswer *decided;
	int			n;

	if (tessera_call_finish_prepared(patiently(0, tessera_commit_timeout, TESSERA_TOLERATE_ALL, &error), user_gid, wanted,
									 GetUserNameFromId(GetUserId(), false), evidence, &decided, &n))
	{
		if (n != 1)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("the config node gave no answer about prepared transaction \"%s\"", user_gid)));
		return decided;
	}
	if (is_definite(error) || error->sqlerrcode == ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION)
		ReThrowError(error);
	ereport(ERROR,
			(errcode(error->sqlerrcode),
			 errmsg("the config node did not answer whether prepared transaction \"%s\" is to %s: %s", user_gid,
					strcmp(wanted, "commit") == 0 ? "commit" : "roll back", error->message),
			 errhint("Look at pg_prepared_xacts when it can be reached; if the transaction is there, run the statement again. If it is not, it has "
					 "ended as asked.")));
}

/* Node ids of an int4[] in text form. */
static int32 *
read_nodes(char *array, int *n)
{
	int32	   *nodes = palloc((strlen(array) + 1) * sizeof(int32));
	char	   *end = array;

	*n = 0;
	while (*end == '{' || *end == ',')
	{
		nodes[*n] = (int32) strtol(end + 1, &end, 10);
		(*n)++;
	}
	return nodes;
}

static void
finish_prepared(const TesseraRouting *routing, const char *user_gid, bool commit)
{
	const char *wanted = commit ? "commit" : "abort";
	TesseraFinishPreparedAnswer *row = decide(user_gid, wanted, NULL);
	const char *outcome;
	int32	   *nodes;
	int			n;
	int32		timeline;
	TesseraTime time;

	if (strcmp(row->outcome, "check") == 0)
		row = decide(user_gid, wanted, tessera_prepared_evidence(routing, home_of(routing), row->gid, row->timeline));
	tessera_injection("finish_decided");
	outcome = row->outcome;
	nodes = read_nodes(row->participants, &n);
	timeline = row->timeline;
	time = (TesseraTime) row->commit_time;
	for (int i = 0; i < n; i++)
		if (tessera_routing_node(routing, nodes[i]) != NULL)
			try_to_carry_out(routing, nodes[i], row->gid, strcmp(outcome, "commit") == 0, time, timeline);
	tessera_injection("finish_carried_out");
	if (strcmp(outcome, wanted) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("prepared transaction with identifier \"%s\" does not exist", user_gid),
				 errdetail("It was %s before the config node was promoted.", commit ? "rolled back" : "committed")));
}

/* Another node that prepares its part here, and has not said hello, since this node is joining the cluster in that very transaction. */
static bool
is_part_of_joining(const char *gid)
{
	Oid			role;

	if (!is_internal_gid(gid))
		return false;
	role = get_role_oid("tessera_internal", true);
	return superuser_arg(GetAuthenticatedUserId()) || (OidIsValid(role) && is_member_of_role_nosuper(GetAuthenticatedUserId(), role));
}

/*
 * Another node ends a part of a transaction here. The role of its connection need be neither a superuser nor who prepared it: as a member of
 * tessera_internal it speaks for the cluster. Nobody's code runs at the end of what is prepared.
 */
static void
finish_part(TesseraUtility *utility, void (*run_next) (TesseraUtility *utility))
{
	TesseraActing before;

	tessera_act_as_cluster(&before);
	PG_TRY();
	{
		run_next(utility);
	}
	PG_FINALLY();
	{
		tessera_act_end(&before);
	}
	PG_END_TRY();
}

bool
tessera_prepared_statement(TesseraUtility *utility, void (*run_next) (TesseraUtility *utility))
{
	TransactionStmt *statement = castNode(TransactionStmt, utility->statement->utilityStmt);
	bool		commit = statement->kind == TRANS_STMT_COMMIT_PREPARED;
	bool		finishes = commit || statement->kind == TRANS_STMT_ROLLBACK_PREPARED;
	const TesseraRouting *routing;

	if (finishes && tessera_internal_connection() && utility->context == PROCESS_UTILITY_TOPLEVEL && is_internal_gid(statement->gid))
	{
		finish_part(utility, run_next);
		return true;
	}
	if ((statement->kind != TRANS_STMT_PREPARE && !finishes) || tessera_internal_connection() ||
		(statement->kind == TRANS_STMT_PREPARE && !IsTransactionBlock()))
		return false;
	routing = tessera_routing();
	if (routing == NULL || (statement->kind == TRANS_STMT_PREPARE && is_part_of_joining(statement->gid)))
		return false;
	if (statement->kind == TRANS_STMT_PREPARE)
	{
		prepare_transaction(utility, run_next, routing);
		return true;
	}
	PreventInTransactionBlock(utility->context == PROCESS_UTILITY_TOPLEVEL, commit ? "COMMIT PREPARED" : "ROLLBACK PREPARED");
	if (is_prepared_here(statement->gid))
	{
		if (is_internal_gid(statement->gid) && !superuser())
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to finish prepared transaction \"%s\"", statement->gid),
					 errdetail("It is a part of a transaction over several nodes."),
					 errhint("Finish that by its own identifier, which is in pg_prepared_xacts.")));
		return false;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	finish_prepared(routing, statement->gid, commit);
	PopActiveSnapshot();
	return true;
}

/* ---- pg_prepared_xacts ---- */

/* list_prepared_transactions() */
Datum
tessera_list_prepared_transactions(PG_FUNCTION_ARGS)
{
	const TesseraRouting *routing = tessera_routing();
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	AttInMetadata *metadata;
	TesseraPreparedTransactionsAnswer *rows;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	if (routing == NULL)
		return (Datum) 0;
	metadata = TupleDescGetAttInMetadata(info->setDesc);
	tessera_call_prepared_transactions(tessera_to_config(), &rows, &n);
	for (int i = 0; i < n; i++)
	{
		char	   *values[3] = {rows[i].gid, rows[i].prepared, rows[i].owner};
		HeapTuple	tuple = BuildTupleFromCStrings(metadata, values);

		tuplestore_puttuple(info->setResult, tuple);
	}
	return (Datum) 0;
}
