/*
 * announce.c
 *	  Connections of a membership change: those that look at a node (probes), and those that tell nodes about the change once it has committed.
 *
 * Telling is best effort: who is not told learns by its own job, or when it meets the change. Connections are opened before the commit, where errors
 * are still allowed (NOTICE). In the commit callback only libpq is called, which neither throws nor uses our memory: queries go out, and answers are
 * awaited for WAIT_MS at most for all nodes together. An abort, also of a subtransaction, closes what was opened in it. The list lives in
 * TopTransactionContext. A crash after the commit: no node is told, see above.
 */
#include "postgres.h"

#include <poll.h>

#include "access/xact.h"
#include "nodes/pg_list.h"
#include "portability/instr_time.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "common/errors.h"
#include "common/protocol.h"
#include "common/spi_text.h"
#include "config/membership.h"
#include "control/calls.h"

#define WAIT_MS 2000

typedef struct Announcement
{
	TesseraConnection *connection;
	const char *call;			/* NULL: a probe */
	int			nesting;		/* transaction nest level it belongs to */
	bool		waiting;		/* sent, not answered */
} Announcement;

static List *announcements = NIL;

/* Opens a connection; NULL with a NOTICE if that fails. */
static TesseraConnection *
open_or_notice(const char *name, const char *conninfo)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	TesseraConnection *connection = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		connection = tessera_connection_open_unlisted(name, conninfo);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (!tessera_error_is_unreachable(error->sqlerrcode))
			ReThrowError(error);
		connection = NULL;
		ereport(NOTICE,
				(errmsg("node \"%s\" cannot be reached: it will learn of the change by itself", name)));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return connection;
}

/* Remember a connection until the end of the (sub)transaction. */
static Announcement *
remember(TesseraConnection *connection)
{
	MemoryContext context = MemoryContextSwitchTo(TopTransactionContext);
	Announcement *announcement = palloc0(sizeof(Announcement));

	announcement->connection = connection;
	announcement->nesting = GetCurrentTransactionNestLevel();
	announcements = lappend(announcements, announcement);
	MemoryContextSwitchTo(context);
	return announcement;
}

TesseraConnection *
tessera_probe_open(const char *name, const char *conninfo)
{
	TesseraConnection *connection = tessera_connection_open_unlisted(name, conninfo);

	(void) remember(connection);
	return connection;
}

void
tessera_probe_close(TesseraConnection *connection)
{
	ListCell   *cell;

	foreach(cell, announcements)
	{
		if (((Announcement *) lfirst(cell))->connection == connection)
			announcements = foreach_delete_current(announcements, cell);
	}
	tessera_connection_close(connection);
}

const char *
tessera_reload_call(void)
{
	return tessera_call_text(&tessera_call_specs[TESSERA_CALL_RELOAD_ROUTING], TESSERA_OLDEST_PROTOCOL, NULL);
}

void
tessera_announce(const char *name, const char *conninfo, const char *call)
{
	TesseraConnection *connection = open_or_notice(name, conninfo);
	Announcement *announcement;

	if (connection == NULL)
		return;
	announcement = remember(connection);
	announcement->call = MemoryContextStrdup(TopTransactionContext, call);
}

void
tessera_announce_others(int32 except, const char *call)
{
	char		except_text[12];
	const char *values[] = {except_text};
	uint64		rows;
	char	  **names;
	char	  **conninfos;

	snprintf(except_text, sizeof(except_text), "%d", except);
	rows = tessera_admin_exec("SELECT n.name, n.conninfo FROM tessera.node n "
								"WHERE n.node_id <> $1::int4 AND n.node_id <> (SELECT i.node_id FROM tessera.identity i) ORDER BY n.node_id", 1,
								values);
	names = palloc(sizeof(char *) * (rows + 1));
	conninfos = palloc(sizeof(char *) * (rows + 1));
	for (uint64 i = 0; i < rows; i++)
	{
		names[i] = tessera_admin_field(i, 1);
		conninfos[i] = tessera_admin_field(i, 2);
	}
	for (uint64 i = 0; i < rows; i++)
		tessera_announce(names[i], conninfos[i], call);
}

/* Queue the query and push it out. No errors: what fails is not sent. */
static void
send_announcement(Announcement *announcement)
{
	PGconn	   *pg = tessera_connection_pg(announcement->connection);

	if (announcement->call == NULL || pg == NULL || PQstatus(pg) != CONNECTION_OK)
		return;
	if (PQsendQueryParams(pg, announcement->call, 0, NULL, NULL, NULL, NULL, 0) != 1)
		return;
	if (PQpipelineStatus(pg) != PQ_PIPELINE_OFF && PQpipelineSync(pg) != 1)
		return;
	announcement->waiting = PQflush(pg) >= 0;
}

/* Read what has come; waiting ends with the answer to the query, or with the connection. */
static void
read_announcement(Announcement *announcement)
{
	PGconn	   *pg = tessera_connection_pg(announcement->connection);

	if (PQflush(pg) < 0 || PQconsumeInput(pg) != 1)
		announcement->waiting = false;
	while (announcement->waiting && !PQisBusy(pg))
	{
		PGresult   *result = PQgetResult(pg);

		announcement->waiting = false;
		PQclear(result);
	}
}

/* Wait until all have answered, or the time is over. */
static void
await_announcements(void)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	for (;;)
	{
		instr_time	now;
		int			left;
		Announcement *waiting = NULL;
		ListCell   *cell;
		struct pollfd fd;

		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		left = WAIT_MS - (int) INSTR_TIME_GET_MILLISEC(now);
		foreach(cell, announcements)
		{
			Announcement *announcement = lfirst(cell);

			if (announcement->waiting)
				read_announcement(announcement);
			if (announcement->waiting)
				waiting = announcement;
		}
		if (waiting == NULL || left <= 0)
			return;
		/* One of them at a time: all must answer anyway. */
		fd.fd = PQsocket(tessera_connection_pg(waiting->connection));
		fd.events = POLLIN;
		fd.revents = 0;
		(void) poll(&fd, 1, Min(left, 100));
	}
}

void
tessera_announcements_forget(void)
{
	ListCell   *cell;

	foreach(cell, announcements)
		tessera_connection_close(((Announcement *) lfirst(cell))->connection);
	announcements = NIL;
}

void
tessera_announcements_committed(void)
{
	ListCell   *cell;

	if (announcements == NIL)
		return;
	foreach(cell, announcements)
		send_announcement(lfirst(cell));
	await_announcements();
	tessera_announcements_forget();
}

void
tessera_announcements_subtransaction_committed(SubTransactionId mine, SubTransactionId parent)
{
	int			nesting = GetCurrentTransactionNestLevel();
	ListCell   *cell;

	foreach(cell, announcements)
	{
		Announcement *announcement = lfirst(cell);

		announcement->nesting = Min(announcement->nesting, nesting - 1);
	}
}

void
tessera_announcements_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	int			nesting = GetCurrentTransactionNestLevel();
	ListCell   *cell;

	foreach(cell, announcements)
	{
		Announcement *announcement = lfirst(cell);

		if (announcement->nesting < nesting)
			continue;
		tessera_connection_close(announcement->connection);
		announcements = foreach_delete_current(announcements, cell);
	}
}
