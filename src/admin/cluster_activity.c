/*
 * cluster_activity.c
 *	  What all nodes say of their processes and locks, for the views tessera.cluster_activity and tessera.lock_waits; and tessera.cancel and
 *	  tessera.terminate, which take what these show.
 *
 * Each node says what the caller may see there, as its pg_stat_activity would show it; the views put it together (extension/install/69_activity.sql).
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/acting_as.h"
#include "common/spi_text.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "session/remote_client.h"
#include "transaction/ask_nodes.h"
#include "transaction/declared_wait.h"

PG_FUNCTION_INFO_V1(tessera_internal_cluster_facts);
PG_FUNCTION_INFO_V1(tessera_internal_declared_waits);
PG_FUNCTION_INFO_V1(tessera_cancel);
PG_FUNCTION_INFO_V1(tessera_terminate);

#define ANSWER_MS 5000			/* that all nodes have together */

/* ---- what all nodes say ---- */

static void
put_facts(ReturnSetInfo *info, int32 node_id, NameData name, const char *trouble, char *facts)
{
	Datum		values[4] = {Int32GetDatum(node_id), NameGetDatum(&name)};
	bool		nulls[4] = {false, false, trouble == NULL, facts == NULL};

	if (trouble != NULL)
		values[2] = CStringGetTextDatum(trouble);
	if (facts != NULL)
		values[3] = DirectFunctionCall1(jsonb_in, CStringGetDatum(facts));
	tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
}

/* As the cluster, which sees all: what is shown to the role is chosen there (the owner of the extension may be no superuser any more). */
static char *
facts_here(const char *const *arguments)
{
	TesseraSpi	spi;
	char	   *facts;

	tessera_spi_begin(&spi);
	facts = tessera_admin_value("SELECT tessera_internal.activity_here($1::pg_catalog.name, $2::pg_catalog.bool)", 2, arguments);
	tessera_spi_end(&spi);
	return facts;
}

Jsonb *
tessera_serve_activity(const TesseraActivityArgs *args)
{
	const char *arguments[2] = {args->by, args->waits ? "true" : "false"};

	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(facts_here(arguments))));
}

/*
 * cluster_facts(waits): node_id, node, trouble (why it has not answered; null: it has), facts (what the call activity answers) of all nodes.
 * Nothing in a database that is no node; a standby, for which no node would take it, asks none.
 */
Datum
tessera_internal_cluster_facts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	const TesseraRouting *routing = tessera_routing();
	const char *arguments[2] = {GetUserNameFromId(GetUserId(), false), PG_GETARG_BOOL(0) ? "true" : "false"};
	TesseraNodeReply *replies;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	if (routing == NULL)
		return (Datum) 0;
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		if (node->node_id == routing->self)
			put_facts(info, node->node_id, node->name, NULL, facts_here(arguments));
		else if (RecoveryInProgress())
			put_facts(info, node->node_id, node->name, "a standby asks no other nodes", NULL);
	}
	if (RecoveryInProgress())
		return (Datum) 0;
	replies = tessera_ask_nodes(routing, &tessera_call_specs[TESSERA_CALL_ACTIVITY], arguments, ANSWER_MS, &n);
	for (int i = 0; i < n; i++)
	{
		char	   *facts = replies[i].answer.nrows == 1 ? tessera_answer_value(&replies[i].answer, 0, 0) : NULL;

		put_facts(info, replies[i].node_id, replies[i].name, replies[i].trouble, facts);
	}
	return (Datum) 0;
}

static void
put_declared(const TesseraDeclaredWait *wait, void *arg)
{
	ReturnSetInfo *info = arg;

	for (int i = 0; i < wait->n; i++)
	{
		Datum		values[4] = {Int32GetDatum(wait->pid), TimestampTzGetDatum(wait->since), Int32GetDatum(wait->awaited[i].node_id),
		Int32GetDatum(wait->awaited[i].pid)};
		bool		nulls[4] = {false};

		tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
	}
}

/* declared_waits(): pid, since, and whom it waits for: node_id and awaited, a process there; of this node (transaction/declared_wait.h) */
Datum
tessera_internal_declared_waits(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	tessera_waits_each(put_declared, fcinfo->resultinfo);
	return (Datum) 0;
}

/* ---- signals ---- */

/* A part of a transaction goes with its session: who ends a part alone sees an error of that session, and not which. */
static void
refuse_part(int32 pid, bool terminate)
{
	TesseraRemoteClient client;
	const TesseraNode *node;

	if (!tessera_remote_client_of(pid, &client))
		return;
	node = tessera_routing_node(tessera_routing_or_error(), client.node_id);
	if (node == NULL)
		return;					/* it was removed: there is no session any more */
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("process %d works for a session of node \"%s\"", pid, NameStr(node->name)),
			 errhint("Name that session: SELECT tessera.%s(%s, %d).", terminate ? "terminate" : "cancel",
					 quote_literal_cstr(NameStr(node->name)), client.pid)));
}

/*
 * By the rights of that role, as core asks for them: no code of a user runs meanwhile. A superuser on another node counts as one here if the
 * connection is a superuser's, too: a lesser role between nodes cannot say so of anybody.
 */
static bool
signal_here(int32 pid, bool terminate, Oid by)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	TesseraActing before;
	Datum		signalled;

	if (proc == NULL || proc->databaseId != MyDatabaseId)
		return false;
	refuse_part(pid, terminate);
	if (superuser_arg(by) && !superuser() && superuser_arg(proc->roleId))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("the role between the nodes is no superuser, and cannot signal a superuser's session"),
				 errhint("Do it on that node, with pg_cancel_backend or pg_terminate_backend.")));
	tessera_act_as_user(&before, by);
	if (terminate)
		signalled = DirectFunctionCall2(pg_terminate_backend, Int32GetDatum(pid), Int64GetDatum(0));
	else
		signalled = DirectFunctionCall1(pg_cancel_backend, Int32GetDatum(pid));
	tessera_act_end(&before);
	return DatumGetBool(signalled);
}

bool
tessera_serve_signal_session(const TesseraSignalSessionArgs *args)
{
	return signal_here(args->pid, args->terminate, get_role_oid(args->by, false));
}

static bool
signal_session(const char *name, int32 pid, bool terminate)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	const TesseraNode *node = tessera_routing_node_by_name(routing, name);
	bool		signalled;

	if (node == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("node \"%s\" does not exist", name)));
	if (node->node_id == routing->self)
		signalled = signal_here(pid, terminate, GetUserId());
	else
		tessera_call_signal_session(tessera_to_node(node->node_id), pid, terminate, GetUserNameFromId(GetUserId(), false), &signalled);
	if (!signalled)
		ereport(WARNING,
				(errmsg("PID %d is not a process of node \"%s\"", pid, name)));
	return signalled;
}

/* tessera.cancel(node, pid) */
Datum
tessera_cancel(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(signal_session(text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_INT32(1), false));
}

/* tessera.terminate(node, pid) */
Datum
tessera_terminate(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(signal_session(text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_INT32(1), true));
}
