/*
 * ask_nodes.c
 *	  One question to all other nodes at once; see ask_nodes.h.
 *
 * The connections are driven by libpq from one loop, which waits for any of them: connecting, hello, the call. They are not those of the cache
 * (transport/connection.h), which opens one after the other.
 *
 * Memory: answers in the context of the caller; connections are closed before the function ends, also by an error.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/version_compat.h"
#include "control/calls.h"
#include "transaction/ask_nodes.h"
#include "transaction/participant.h"
#include "transport/connection_slots.h"

typedef struct Asked
{
	TesseraNodeReply *reply;
	int32		expected;		/* incarnation */
	PGconn	   *pg;				/* NULL: nothing is to come from it any more */
	bool		connected;
	PostgresPollingStatusType poll; /* while it is not */
	bool		greeted;		/* hello is answered, the call is on its way */
	int			protocol;
	PGresult   *result;			/* that is being read */
} Asked;

typedef struct Question
{
	const TesseraRouting *routing;
	const TesseraCallSpec *spec;
	const char *const *values;	/* of its arguments */
	TimestampTz began;
	int			n;
	Asked	   *asked;
} Question;

static void
end(const Question *question, Asked *asked, const char *trouble)
{
	asked->reply->trouble = trouble;
	asked->reply->took_ms = (int) TimestampDifferenceMilliseconds(question->began, GetCurrentTimestamp());
	tessera_node_reached(asked->reply->node_id, asked->connected);
	if (asked->pg == NULL)
		return;
	PQfinish(asked->pg);
	ReleaseExternalFD();
	asked->pg = NULL;
}

/* What libpq says, without the addresses in front of it ("connection to server at ... failed: "), of the last host that was tried. */
static const char *
libpq_trouble(const Asked *asked)
{
	const char *message = PQerrorMessage(asked->pg);

	/* before it has connected it says the host of the conninfo */
	if (strncmp(message, "could not translate host name", strlen("could not translate host name")) == 0)
		return "its host name cannot be resolved";
	for (const char *next; (next = strstr(message, "failed: ")) != NULL;)
		message = next + strlen("failed: ");
	return *message ? pnstrdup(message, strcspn(message, "\n")) : "the connection was lost";
}

static void
send_text(const Question *question, Asked *asked, const char *sql)
{
	if (!PQsendQueryParams(asked->pg, sql, 0, NULL, NULL, NULL, NULL, 0) || PQflush(asked->pg) < 0)
		end(question, asked, libpq_trouble(asked));
}

static void
go_on_connecting(const Question *question, Asked *asked)
{
	asked->poll = PQconnectPoll(asked->pg);
	if (asked->poll == PGRES_POLLING_FAILED)
		end(question, asked, libpq_trouble(asked));
	else if (asked->poll == PGRES_POLLING_OK)
	{
		asked->connected = true;
		(void) PQsetnonblocking(asked->pg, 1);
		send_text(question, asked, tessera_hello_text(question->routing, asked->expected, 0));
	}
}

static void
take_result(const Question *question, Asked *asked)
{
	const PGresult *result = asked->result;
	int64		greeting;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

		end(question, asked, message != NULL ? pstrdup(message) : libpq_trouble(asked));
	}
	else if (asked->greeted)
		tessera_answer_of_result(result, &asked->reply->answer);
	else if (PQntuples(result) != 1 || !tessera_greeting_read(PQgetvalue(result, 0, 0), &greeting, &asked->protocol))
		end(question, asked, "it does not answer as a node");
	else if (greeting < 0)
		end(question, asked, "it says that another server was promoted in the place of this one");
	else if (greeting < asked->expected)
		end(question, asked, "its address leads to a server that was replaced");
}

/* What was asked last is answered in full. */
static void
take_end(const Question *question, Asked *asked)
{
	if (question->spec == NULL || asked->greeted)
		end(question, asked, NULL);
	else if (question->spec->since > asked->protocol)
		end(question, asked, "it has an older version of the extension, which cannot say that");
	else
	{
		asked->greeted = true;
		send_text(question, asked, tessera_call_literal_for(question->spec, asked->protocol, question->values));
	}
}

static void
serve(const Question *question, Asked *asked, uint32 events)
{
	if (!asked->connected)
	{
		go_on_connecting(question, asked);
		return;
	}
	if (((events & WL_SOCKET_WRITEABLE) && PQflush(asked->pg) < 0) || ((events & WL_SOCKET_READABLE) && !PQconsumeInput(asked->pg)))
	{
		end(question, asked, libpq_trouble(asked));
		return;
	}
	while (asked->pg != NULL && !PQisBusy(asked->pg))
	{
		asked->result = PQgetResult(asked->pg);
		if (asked->result == NULL)
		{
			take_end(question, asked);
			return;
		}
		take_result(question, asked);
		PQclear(asked->result);
		asked->result = NULL;
	}
}

static void
begin(const Question *question, Asked *asked, const TesseraNode *node)
{
	asked->reply->node_id = node->node_id;
	asked->reply->name = node->name;
	asked->expected = node->incarnation;
	asked->poll = PGRES_POLLING_WRITING;
	if (!AcquireExternalFD())
	{
		/* which says nothing of the node */
		asked->reply->trouble = "there are too many open files on this server";
		return;
	}
	asked->pg = tessera_connection_start(tessera_node_conninfo(question->routing, node));
	if (asked->pg == NULL)
	{
		ReleaseExternalFD();
		end(question, asked, "out of memory");
	}
	else if (PQstatus(asked->pg) == CONNECTION_BAD)
		end(question, asked, libpq_trouble(asked));
}

static uint32
wanted_events(const Asked *asked)
{
	if (!asked->connected)
		return asked->poll == PGRES_POLLING_READING ? WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE;
	return WL_SOCKET_READABLE | (PQflush(asked->pg) > 0 ? WL_SOCKET_WRITEABLE : 0);
}

/* False: all have answered, or were given up. */
static bool
wait_and_serve(const Question *question, TimestampTz deadline)
{
	WaitEvent  *ready = palloc(sizeof(WaitEvent) * (question->n + 2));
	long		wait = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
	WaitEventSet *set = tessera_wait_event_set(CurrentMemoryContext, question->n + 2);
	int			waiting = 0;
	int			n = 0;

	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < question->n; i++)
		if (question->asked[i].pg != NULL)
		{
			/* which may flush, and so find the connection closed */
			uint32		events = wanted_events(&question->asked[i]);

			if (PQsocket(question->asked[i].pg) == PGINVALID_SOCKET)
			{
				end(question, &question->asked[i], libpq_trouble(&question->asked[i]));
				continue;
			}
			AddWaitEventToSet(set, events, PQsocket(question->asked[i].pg), NULL, &question->asked[i]);
			waiting++;
		}
	if (waiting > 0 && wait > 0)
		n = WaitEventSetWait(set, wait, ready, question->n + 2, PG_WAIT_EXTENSION);
	FreeWaitEventSet(set);
	for (int i = 0; i < n; i++)
		if (ready[i].user_data != NULL)
			serve(question, ready[i].user_data, ready[i].events);
	pfree(ready);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return waiting > 0 && wait > 0;
}

/* Those that have not answered in time. */
static void
give_up(const Question *question, const char *trouble)
{
	for (int i = 0; i < question->n; i++)
		if (question->asked[i].pg != NULL)
		{
			question->asked[i].connected = false;
			end(question, &question->asked[i], trouble);
		}
}

TesseraNodeReply *
tessera_ask_nodes(const TesseraRouting *routing, const TesseraCallSpec *spec, const char *const *values, int timeout_ms, int *n)
{
	Question   *question = palloc0(sizeof(Question));
	TesseraNodeReply *replies = palloc0(sizeof(TesseraNodeReply) * routing->nnodes);

	question->routing = routing;
	question->spec = spec;
	question->values = values;
	question->began = GetCurrentTimestamp();
	question->asked = palloc0(sizeof(Asked) * routing->nnodes);
	PG_TRY();
	{
		for (int i = 0; i < routing->nnodes; i++)
		{
			const TesseraNode *node = tessera_routing_node_at(routing, i);

			if (node->node_id == routing->self)
				continue;
			question->asked[question->n].reply = &replies[question->n];
			begin(question, &question->asked[question->n++], node);
		}
		while (wait_and_serve(question, TimestampTzPlusMilliseconds(question->began, timeout_ms)))
			;
		give_up(question, psprintf("nothing has come from it for %d ms", timeout_ms));
	}
	PG_CATCH();
	{
		for (int i = 0; i < question->n; i++)
		{
			PQclear(question->asked[i].result);
			if (question->asked[i].pg != NULL)
			{
				PQfinish(question->asked[i].pg);
				ReleaseExternalFD();
			}
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
	*n = question->n;
	return replies;
}
