/*
 * statement_cache.c
 *	  Named prepared statements at the other end of a connection, the least recently used dropped first.
 *
 * A statement is found by its text, its parameter types and the shape of its rows: after DDL the server refuses one whose rows have changed. It is
 * entered when its Parse is queued and leaves when that failed, when it went stale, or when the cache is full; its name is then deallocated in front
 * of a later command. Names are never used twice on one connection. Entries of the queue hold references, so that a statement dropped while in flight
 * is freed with the last of them.
 *
 * Memory: everything lives in the connection's context and is freed when the connection closes. No locks, nothing durable.
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "transport/connection_private.h"

#define INITIAL_BUCKETS 64

static uint32
hash_statement(const char *sql, int nparams, const Oid *types, uint32 shape)
{
	uint32		hash = hash_bytes((const unsigned char *) sql, strlen(sql));

	if (nparams > 0 && types)
		hash = hash_combine(hash, hash_bytes((const unsigned char *) types, nparams * sizeof(Oid)));
	return hash_combine(hash_combine(hash, (uint32) nparams), shape);
}

static bool
same_statement(const TesseraStatement *statement, uint32 hash, const char *sql, int nparams, const Oid *types, uint32 shape)
{
	if (statement->hash != hash || statement->nparams != nparams || statement->shape != shape || strcmp(statement->sql, sql) != 0)
		return false;
	for (int i = 0; i < nparams; i++)
		if (statement->types[i] != (types ? types[i] : InvalidOid))
			return false;
	return true;
}

static void
free_statement(TesseraStatement *statement)
{
	pfree(statement->sql);
	if (statement->types)
		pfree(statement->types);
	pfree(statement);
}

static void
unlink_statement(TesseraConnection *connection, TesseraStatement *statement)
{
	TesseraStatement **link = &connection->buckets[statement->hash & (connection->nbuckets - 1)];

	while (*link != statement)
		link = &(*link)->next;
	*link = statement->next;
	dlist_delete(&statement->lru);
	connection->nstatements--;
	statement->cached = false;
	if (statement->refs == 0)
		free_statement(statement);
}

static void
grow_buckets(TesseraConnection *connection)
{
	uint32		nbuckets = connection->nbuckets == 0 ? INITIAL_BUCKETS : connection->nbuckets * 2;
	TesseraStatement **buckets = MemoryContextAllocZero(connection->context, nbuckets * sizeof(TesseraStatement *));

	for (uint32 i = 0; i < connection->nbuckets; i++)
		while (connection->buckets[i])
		{
			TesseraStatement *statement = connection->buckets[i];

			connection->buckets[i] = statement->next;
			statement->next = buckets[statement->hash & (nbuckets - 1)];
			buckets[statement->hash & (nbuckets - 1)] = statement;
		}
	if (connection->buckets)
		pfree(connection->buckets);
	connection->buckets = buckets;
	connection->nbuckets = nbuckets;
}

/*
 * The statement, entered if it was not there (*found false: the caller queues its Parse). Holds a reference for the caller. Makes room by dropping
 * the least recently used. Belongs to the connection.
 */
TesseraStatement *
tessera_statement_find(TesseraConnection *connection, const char *sql, int nparams, const Oid *types, uint32 shape, bool *found)
{
	uint32		hash = hash_statement(sql, nparams, types, shape);
	TesseraStatement *statement;

	if (connection->nbuckets == 0 || connection->nstatements > connection->nbuckets)
		grow_buckets(connection);
	for (statement = connection->buckets[hash & (connection->nbuckets - 1)]; statement; statement = statement->next)
		if (same_statement(statement, hash, sql, nparams, types, shape))
		{
			dlist_move_head(&connection->lru, &statement->lru);
			statement->refs++;
			*found = true;
			return statement;
		}

	while (connection->nstatements > 0 && connection->nstatements >= tessera_statement_cache_size)
		tessera_statement_drop(connection, dlist_tail_element(TesseraStatement, lru, &connection->lru), true);

	statement = MemoryContextAllocZero(connection->context, sizeof(TesseraStatement));
	statement->hash = hash;
	statement->sql = MemoryContextStrdup(connection->context, sql);
	statement->nparams = nparams;
	statement->shape = shape;
	if (nparams > 0)
	{
		statement->types = MemoryContextAllocZero(connection->context, nparams * sizeof(Oid));
		if (types)
			memcpy(statement->types, types, nparams * sizeof(Oid));
	}
	statement->number = ++connection->last_number;
	statement->refs = 1;
	statement->cached = true;
	statement->next = connection->buckets[hash & (connection->nbuckets - 1)];
	connection->buckets[hash & (connection->nbuckets - 1)] = statement;
	dlist_push_head(&connection->lru, &statement->lru);
	connection->nstatements++;
	*found = false;
	return statement;
}

void
tessera_statement_release(TesseraConnection *connection, TesseraStatement *statement)
{
	Assert(statement->refs > 0);
	if (--statement->refs == 0 && !statement->cached)
		free_statement(statement);
}

void
tessera_statement_drop(TesseraConnection *connection, TesseraStatement *statement, bool deallocate)
{
	if (!statement->cached)
		return;
	/* Deallocating what was never prepared would be an error in the user's transaction. */
	if (deallocate && statement->prepared)
		tessera_leftover_add(connection, statement->number);
	else if (deallocate)
		statement->doomed = true;
	unlink_statement(connection, statement);
}

/* The connection closed: nothing is prepared any more. No entry may hold a reference. */
void
tessera_statements_forget(TesseraConnection *connection)
{
	while (connection->nstatements > 0)
		unlink_statement(connection, dlist_head_element(TesseraStatement, lru, &connection->lru));
	connection->nleftovers = 0;
	connection->last_number = 0;
}

void
tessera_leftover_add(TesseraConnection *connection, uint32 number)
{
	if (connection->nleftovers >= connection->leftovers_size)
	{
		int			size = Max(16, connection->leftovers_size * 2);

		if (connection->leftovers == NULL)
			connection->leftovers = MemoryContextAlloc(connection->context, size * sizeof(uint32));
		else
			connection->leftovers = repalloc(connection->leftovers, size * sizeof(uint32));
		connection->leftovers_size = size;
	}
	connection->leftovers[connection->nleftovers++] = number;
}
