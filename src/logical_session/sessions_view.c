/*
 * sessions_view.c
 *	  The view tessera.sessions, and tessera.kill_session: logical sessions, and who uses them on all nodes.
 */
#include "postgres.h"

#include <signal.h>

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "common/privilege.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "logical_session/cluster_uses.h"
#include "logical_session/session_tables.h"
#include "logical_session/session_uses.h"
#include "routing/routing.h"

PG_FUNCTION_INFO_V1(tessera_internal_sessions);
PG_FUNCTION_INFO_V1(tessera_kill_session);

#define VIEW_COLUMNS 8

/* ---- the view ---- */

static const char *
state_word(TesseraSessionState state)
{
	static const char *const words[] = {
		[TESSERA_SESSION_IDLE] = "idle",
		[TESSERA_SESSION_IN_USE] = "in use",
		[TESSERA_SESSION_WAITING] = "waiting",
		[TESSERA_SESSION_TAKEN] = "taken",
	};

	return words[state];
}

/* use NULL: nobody uses it; known: that is said of all nodes. */
static void
put_session(ReturnSetInfo *result, const TesseraSessionRow *row, const TesseraClusterUse *use, TimestampTz used, bool known)
{
	const TesseraNode *node = use == NULL ? NULL : tessera_routing_node(tessera_routing_or_error(), use->node_id);
	NameData	role;
	Datum		values[VIEW_COLUMNS] = {0};
	bool		nulls[VIEW_COLUMNS] = {false};

	namestrcpy(&role, row->role);
	values[0] = UUIDPGetDatum(&row->session);
	values[1] = NameGetDatum(&role);
	values[2] = Int64GetDatum(row->number);
	values[3] = TimestampTzGetDatum(row->started);
	values[4] = TimestampTzGetDatum(used);
	nulls[5] = node == NULL;
	if (node != NULL)
		values[5] = CStringGetTextDatum(NameStr(node->name));
	nulls[6] = use == NULL;
	values[6] = Int32GetDatum(use == NULL ? 0 : use->pid);
	nulls[7] = use == NULL && !known;
	if (!nulls[7])
		values[7] = CStringGetTextDatum(state_word(use == NULL ? TESSERA_SESSION_IDLE : use->state));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static bool
is_use_of(const TesseraClusterUse *use, const TesseraSessionRow *row)
{
	return memcmp(&use->session, &row->session, sizeof(pg_uuid_t)) == 0 && strcmp(use->role, row->role) == 0;
}

/* tessera_internal.sessions(): source of the view tessera.sessions */
Datum
tessera_internal_sessions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TesseraSessionRow *rows;
	TesseraClusterUse *uses;
	int			nrows;
	int			nuses;
	int			unasked;

	InitMaterializedSRF(fcinfo, 0);
	if (!tessera_sessions_enabled())
		return (Datum) 0;
	uses = tessera_cluster_uses(&nuses, &unasked);
	rows = tessera_sessions_list(tessera_is_admin(GetUserId()), &nrows);
	for (int i = 0; i < nrows; i++)
	{
		TimestampTz used = rows[i].last_use;
		bool		shown = false;

		CHECK_FOR_INTERRUPTS();
		for (int j = 0; j < nuses; j++)
			if (is_use_of(&uses[j], &rows[i]))
				used = Max(used, uses[j].used);
		for (int j = 0; j < nuses; j++)
			if (uses[j].pid != 0 && is_use_of(&uses[j], &rows[i]))
			{
				put_session(result, &rows[i], &uses[j], used, true);
				shown = true;
			}
		if (!shown)
			put_session(result, &rows[i], NULL, used, unasked == 0);
	}
	return (Datum) 0;
}

/* ---- killing ---- */

/*
 * ERROR 42501 unless the role may end that process: as pg_terminate_backend asks, but members of tessera_admin may end all but superusers'. A
 * superuser on another node counts as one here if the connection is a superuser's, too: a lesser role between nodes cannot say so of anybody.
 */
static void
require_signal_right(Oid by, const PGPROC *proc)
{
	if (superuser_arg(proc->roleId) ? superuser_arg(by) && superuser() : tessera_is_admin(by) || has_privs_of_role(by, proc->roleId))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be a member of the role whose process uses the session"),
			 errdetail("Processes of superusers are ended by superusers alone.")));
}

/* Ends the processes here that use the session as that role, but this one. Returns how many. */
static int
kill_here(const pg_uuid_t *session, const char *role, Oid by)
{
	int			n;
	int			killed = 0;
	TesseraSessionUse *uses = tessera_session_uses(&n);
	Oid			user = get_role_oid(role, true);

	for (int i = 0; i < n; i++)
	{
		PGPROC	   *proc;

		if (uses[i].pid == 0 || uses[i].pid == MyProcPid || uses[i].role != user || memcmp(&uses[i].session, session, sizeof(pg_uuid_t)) != 0)
			continue;
		proc = BackendPidGetProc(uses[i].pid);
		if (proc == NULL)
			continue;
		require_signal_right(by, proc);
		if (tessera_session_use_kill(&uses[i]))
		{
			(void) kill(uses[i].pid, SIGTERM);
			killed++;
		}
	}
	pfree(uses);
	return killed;
}

int32
tessera_serve_session_kill(const TesseraSessionKillArgs *args)
{
	return kill_here(args->session, args->role, get_role_oid(args->by, false));
}

static void
kill_everywhere(const TesseraSessionRow *row)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	const char *by = GetUserNameFromId(GetUserId(), false);

	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		CHECK_FOR_INTERRUPTS();
		if (node->node_id == routing->self)
			(void) kill_here(&row->session, row->role, GetUserId());
		else if (!tessera_call_session_kill(tessera_ask(tessera_to_node(node->node_id), TESSERA_TOLERATE_LOSS), &row->session, row->role, by, NULL))
			ereport(WARNING,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("node \"%s\" was not reached: what uses the session there was not ended", NameStr(node->name))));
	}
}

/* tessera.kill_session(session) */
Datum
tessera_kill_session(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *session = PG_GETARG_UUID_P(0);
	bool		admin = tessera_is_admin(GetUserId());
	TesseraSessionRow row;

	if (!tessera_session_find(session, admin, &row))
		PG_RETURN_BOOL(false);
	kill_everywhere(&row);
	PG_RETURN_BOOL(tessera_session_delete(session, admin));
}
