/*
 * node_parts.c
 *	  One statement on several nodes at once, on each in transactions of its own; see node_parts.h.
 *
 * Memory: the caller's. Locks: none here. A crash of this node leaves the others to finish what they have begun.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "common/injection.h"
#include "ddl/node_parts.h"
#include "transaction/participant.h"

void
tessera_node_parts_init(TesseraNodeParts *parts, const TesseraRouting *routing)
{
	memset(parts, 0, sizeof(*parts));
	parts->parts = palloc0(sizeof(TesseraNodePart) * Max(routing->nnodes, 1));
	parts->connections = palloc0(sizeof(TesseraConnection *) * Max(routing->nnodes, 1));
}

void
tessera_node_parts_add(TesseraNodeParts *parts, int32 node_id, const char *sql)
{
	TesseraNodePart *part = &parts->parts[parts->n++];

	part->node_id = node_id;
	part->command.sql = sql;
}

void
tessera_node_parts_open(TesseraNodeParts *parts, const TesseraRouting *routing)
{
	for (int i = 0; i < parts->n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		parts->parts[i].connection = tessera_outside_block(routing, parts->parts[i].node_id);
		parts->connections[parts->nopen++] = parts->parts[i].connection;
	}
}

void
tessera_node_parts_send(TesseraNodeParts *parts)
{
	for (int i = 0; i < parts->n; i++)
	{
		tessera_connection_queue(parts->parts[i].connection, &parts->parts[i].command);
		tessera_connection_sync(parts->parts[i].connection);
	}
	tessera_injection("node_parts_sent");
}

/*
 * Waits for one answer. If the connection is lost: that error, so that the others are waited for all the same. It comes from the transport, which
 * holds nothing when it raises it, so no subtransaction is needed to go on.
 */
static ErrorData *
await_part(TesseraNodePart *part)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile lost = NULL;

	PG_TRY();
	{
		tessera_connection_finish(part->connection, &part->command);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_CONNECTION_FAILURE || tessera_connection_alive(part->connection))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		lost = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	return lost;
}

void
tessera_node_parts_await(TesseraNodeParts *parts)
{
	ErrorData  *first = NULL;

	for (int i = 0; i < parts->n; i++)
	{
		ErrorData  *lost = await_part(&parts->parts[i]);

		first = first ? first : lost;
		if (parts->answered != NULL && lost == NULL && parts->parts[i].command.error == NULL && !parts->parts[i].command.aborted)
			parts->answered(parts->parts[i].node_id, parts->arg);
	}
	for (int i = 0; i < parts->n; i++)
		if (tessera_connection_alive(parts->parts[i].connection))
			tessera_connection_check(parts->parts[i].connection, &parts->parts[i].command);
	if (first != NULL)
		ReThrowError(first);
}

void
tessera_node_parts_end(TesseraNodeParts *parts)
{
	tessera_outside_block_end(parts->connections, parts->nopen);
	parts->nopen = 0;
}
