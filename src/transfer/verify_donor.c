/*
 * verify_donor.c
 *	  The donor's part in a move that is verified by content: which keys have changed since the slot's snapshot, and their comparison in rounds; see
 *	  verify.h.
 *
 * Every captured change notes its key, with the transaction that made it. A round takes keys and compares the rows that have them:
 *	  1. The donor takes a snapshot, chooses keys whose last change is visible in it (a transaction may be decoded before others see it), digests its
 *		rows, and notes a position of WAL behind everything that the snapshot sees.
 *	  2. Changes are decoded and sent as always, up to that position at least. A key that changes meanwhile leaves the round. What is left are keys
 *		whose newest change that has been sent is the newest that the snapshot saw.
 *	  3. Keys and digests follow on the same stream. The recipient, having applied all that came before, digests its own rows and compares. It goes on
 *		only if they are equal; so this is exact, not a guess that may have to be repeated.
 *	  4. On its answer the keys are forgotten, but for those that have changed since.
 * Behind the closed gate nothing of the ranges changes any more, and everything is sent: step 2 falls away.
 *
 * A row that was fetched late because WAL lacked its TOAST (capture.c, doc/design.md#unchanged-toast) may be newer than its place in the stream; its
 * key is noted again when it is fetched, so that a snapshot taken later decides.
 *
 * Memory: a context below the donor's; keys are bounded by tessera.migration_verify_memory. Locks: AccessShareLock on the tables inside a round's
 * transaction, which ends before anything is sent. A crash leaves nothing.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "lib/ilist.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/injection.h"
#include "common/version_compat.h"
#include "transaction/background.h"
#include "transfer/rows_by_key.h"
#include "transfer/verify.h"

#define ROUND_KEYS 20000		/* of a round at most */
#define ROUND_BYTES (8 * 1024 * 1024)	/* of their keys */
#define ROUND_PAUSE_MS 10		/* between rounds */
#define MEASURED_KEYS 64		/* a round of fewer says little about what a key costs */
#define KEY_US 20.0				/* assumed of a key until that is measured */

int			tessera_migration_verify_memory;

typedef enum Phase
{
	IDLE,						/* no round */
	DIGESTED,					/* the donor's rows are; the position is not reached yet */
	SENT						/* the recipient compares */
} Phase;

/* How keys of a table are written. */
typedef struct KeyWriter
{
	TesseraRowWriter *writer;
	bool	   *given;			/* by attnum - 1: columns of the key */
	int			natts;
} KeyWriter;

/* What a key is found by: two hashes, as good as those of the digest. */
typedef struct KeyTag
{
	uint64		hashes[2];
	uint64		table;
} KeyTag;

typedef struct ChangedKey
{
	KeyTag		tag;			/* must be first */
	dlist_node	node;			/* in waiting or round */
	bool		in_round;
	int			table;
	TransactionId xid;			/* of the last change */
	TesseraDigest digest;		/* in a round: of the donor's rows */
	int			size;
	char	   *bytes;			/* the key, as a row */
} ChangedKey;

struct TesseraVerify
{
	MemoryContext mcxt;
	TesseraMovingRanges *moving;
	TesseraDigest *sums;		/* of the clone, by table */
	KeyWriter  *writers;		/* by table */
	HTAB	   *keys;
	Size		memory;			/* bytes of all keys */
	StringInfoData encoded;

	dlist_head	waiting;		/* keys to be compared, the longest unchanged first */
	dlist_head	round;			/* keys of the round */
	int64		nwaiting;
	int64		nround;

	Phase		phase;
	int64		number;			/* of the round */
	bool		last;			/* it is behind the gate */
	XLogRecPtr	position;		/* to be sent before the round's keys; invalid: nothing is to be waited for */
	TimestampTz not_before;		/* no round begins earlier */
	double		key_us;			/* what a key costs on this side */
};


/* ---- the clone ---- */

static void
open_writer(TesseraVerify *verify, int table)
{
	KeyWriter  *writer = &verify->writers[table];
	Relation	relation = table_open(verify->moving->tables[table].relid, AccessShareLock);
	Bitmapset  *columns;
	int			attnum = -1;

	writer->writer = tessera_row_writer_create(verify->mcxt, RelationGetDescr(relation), table, verify->moving->tables[table].generated,
											   verify->moving->tables[table].xml_as_text);
	writer->natts = RelationGetNumberOfAttributes(relation);
	writer->given = palloc0(Max(writer->natts, 1) * sizeof(bool));
	(void) tessera_row_identity(relation, verify->moving, table, &columns);
	while ((attnum = bms_next_member(columns, attnum)) >= 0)
		writer->given[attnum - 1] = true;
	table_close(relation, NoLock);
}

TesseraVerify *
tessera_verify_begin(TesseraMovingRanges *moving)
{
	MemoryContext mcxt = AllocSetContextCreate(CurrentMemoryContext, "tessera verification", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(mcxt);
	TesseraVerify *verify = palloc0(sizeof(TesseraVerify));
	HASHCTL		control = {.keysize = sizeof(KeyTag), .entrysize = sizeof(ChangedKey), .hcxt = mcxt};

	verify->mcxt = mcxt;
	verify->moving = moving;
	verify->sums = palloc0(Max(moving->ntables, 1) * sizeof(TesseraDigest));
	verify->writers = palloc0(Max(moving->ntables, 1) * sizeof(KeyWriter));
	for (int i = 0; i < moving->ntables; i++)
		open_writer(verify, i);
	verify->keys = hash_create("tessera changed keys", 1024, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	initStringInfo(&verify->encoded);
	dlist_init(&verify->waiting);
	dlist_init(&verify->round);
	verify->key_us = KEY_US;
	MemoryContextSwitchTo(old);
	return verify;
}

TesseraDigest *
tessera_verify_sums(TesseraVerify *verify)
{
	return verify->sums;
}

void
tessera_verify_write_sums(TesseraVerify *verify, StringInfo out)
{
	for (int i = 0; i < verify->moving->ntables; i++)
	{
		pq_sendbyte(out, TESSERA_RECORD_SUM);
		pq_sendint16(out, i);
		tessera_digest_write(&verify->sums[i], out);
	}
}


/* ---- keys that have changed ---- */

static void
unlink_key(TesseraVerify *verify, ChangedKey *key)
{
	dlist_delete(&key->node);
	if (key->in_round)
		verify->nround--;
	else
		verify->nwaiting--;
}

static void
link_key(TesseraVerify *verify, ChangedKey *key, bool in_round)
{
	key->in_round = in_round;
	dlist_push_tail(in_round ? &verify->round : &verify->waiting, &key->node);
	if (in_round)
		verify->nround++;
	else
		verify->nwaiting++;
}

static Size
memory_of(const ChangedKey *key)
{
	return sizeof(ChangedKey) + 2 * sizeof(void *) + GetMemoryChunkSpace(key->bytes);
}

static void
forget_key(TesseraVerify *verify, ChangedKey *key)
{
	unlink_key(verify, key);
	verify->memory -= memory_of(key);
	pfree(key->bytes);
	(void) hash_search(verify->keys, &key->tag, HASH_REMOVE, NULL);
}

static void
new_key(TesseraVerify *verify, ChangedKey *key, int table)
{
	key->table = table;
	key->size = verify->encoded.len;
	key->bytes = MemoryContextAlloc(verify->mcxt, key->size);
	memcpy(key->bytes, verify->encoded.data, key->size);
	verify->memory += memory_of(key);
	if (verify->memory / 1024 > (Size) tessera_migration_verify_memory)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("keys changed during the migration take more than tessera.migration_verify_memory"),
				 errhint("Raise tessera.migration_verify_memory, move a smaller range or at a quieter time, or do without verification.")));
}

void
tessera_verify_note(TesseraVerify *verify, int table, TupleDesc desc, const Datum *values, const bool *nulls, const bool *known, TransactionId xid)
{
	KeyWriter  *writer = &verify->writers[table];
	KeyTag		tag = {.table = table};
	ChangedKey *key;
	bool		found;

	if (!tessera_row_writer_fits(writer->writer, desc))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a table was changed during its migration"),
				 errhint("Start the migration again.")));
	for (int i = 0; i < writer->natts; i++)
		if (writer->given[i] && (nulls[i] || !known[i]))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a change does not tell column \"%s\" of its row's identity", NameStr(TupleDescAttr(desc, i)->attname))));
	resetStringInfo(&verify->encoded);
	tessera_row_write(writer->writer, &verify->encoded, values, nulls, writer->given);
	for (int i = 0; i < lengthof(tag.hashes); i++)
		tag.hashes[i] = hash_bytes_extended((unsigned char *) verify->encoded.data, verify->encoded.len, i);

	key = hash_search(verify->keys, &tag, HASH_ENTER, &found);
	if (found)
		unlink_key(verify, key);
	else
		new_key(verify, key, table);
	link_key(verify, key, false);
	key->xid = xid;
}


/* ---- rounds ---- */

/* Moves keys whose last change the snapshot sees into the round. */
static void
choose_keys(TesseraVerify *verify, Snapshot snapshot)
{
	dlist_mutable_iter iter;
	Size		bytes = 0;

	dlist_foreach_modify(iter, &verify->waiting)
	{
		ChangedKey *key = dlist_container(ChangedKey, node, iter.cur);

		if (verify->nround >= ROUND_KEYS || bytes >= ROUND_BYTES)
			break;
		if (XidInMVCCSnapshot(key->xid, snapshot))
			continue;
		unlink_key(verify, key);
		link_key(verify, key, true);
		bytes += key->size;
	}
}

static int
compare_key_tables(const void *a, const void *b)
{
	return (*(ChangedKey *const *) a)->table - (*(ChangedKey *const *) b)->table;
}

/* The keys of the round, table by table; palloc'd. */
static ChangedKey **
round_by_table(TesseraVerify *verify)
{
	ChangedKey **keys = palloc(Max(verify->nround, 1) * sizeof(ChangedKey *));
	int			n = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &verify->round)
		keys[n++] = dlist_container(ChangedKey, node, iter.cur);
	qsort(keys, n, sizeof(ChangedKey *), compare_key_tables);
	return keys;
}

static TesseraKeyRows *
begin_key_rows(TesseraVerify *verify, int table)
{
	TesseraPayloadCursor description;
	char		type;
	int			index;

	resetStringInfo(&verify->encoded);
	tessera_row_describe(verify->writers[table].writer, &verify->encoded);
	description = (TesseraPayloadCursor) {.data = verify->encoded.data, .size = verify->encoded.len};
	(void) tessera_record_next(&description, verify->moving->ntables, &type, &index);
	return tessera_key_rows_begin(verify->moving, table, &description);
}

/* Digests of the rows that have the round's keys. */
static void
digest_round(TesseraVerify *verify)
{
	ChangedKey **keys = round_by_table(verify);
	TesseraKeyRows *rows = NULL;

	for (int64 i = 0; i < verify->nround; i++)
	{
		TesseraPayloadCursor cursor = {.data = keys[i]->bytes, .size = keys[i]->size};

		if (i == 0 || keys[i]->table != keys[i - 1]->table)
		{
			if (rows != NULL)
				tessera_key_rows_end(rows);
			rows = begin_key_rows(verify, keys[i]->table);
		}
		memset(&keys[i]->digest, 0, sizeof(keys[i]->digest));
		tessera_key_rows_digest(rows, &cursor, &keys[i]->digest);
		CHECK_FOR_INTERRUPTS();
	}
	if (rows != NULL)
		tessera_key_rows_end(rows);
	pfree(keys);
}

static void
measure(TesseraVerify *verify, TimestampTz begun)
{
	if (verify->nround >= MEASURED_KEYS)
		verify->key_us = Max((double) (GetCurrentTimestamp() - begun) / verify->nround, 1.0);
}

/* Begins a round if there is a key to be compared. last: the gate is closed, and everything has been sent. */
static bool
begin_round(TesseraVerify *verify, bool last)
{
	TimestampTz begun;
	int			nestlevel;

	tessera_injection("donor_verify_round");
	begun = GetCurrentTimestamp();
	verify->position = InvalidXLogRecPtr;
	tessera_background_begin();
	nestlevel = tessera_codec_push_settings();
	choose_keys(verify, GetActiveSnapshot());
	if (verify->nround > 0)
	{
		/* behind the commit of every transaction that the snapshot sees */
		if (!last)
			verify->position = tessera_log_message("tessera", (const char *) &verify->moving->migration_id, sizeof(pg_uuid_t));
		digest_round(verify);
	}
	tessera_codec_pop_settings(nestlevel);
	tessera_background_commit();
	measure(verify, begun);
	verify->not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ROUND_PAUSE_MS);
	if (verify->nround == 0)
		return false;
	if (!last)
		XLogFlush(verify->position);
	verify->last = last;
	verify->phase = DIGESTED;
	return true;
}

bool
tessera_verify_begin_round(TesseraVerify *verify)
{
	return verify->phase == IDLE && verify->nwaiting > 0 && GetCurrentTimestamp() >= verify->not_before && begin_round(verify, false);
}

bool
tessera_verify_round_ready(const TesseraVerify *verify, XLogRecPtr sent)
{
	return verify->phase == DIGESTED && sent >= verify->position;
}

bool
tessera_verify_write_round(TesseraVerify *verify, TesseraMessage *message, StringInfo payload)
{
	ChangedKey **keys;

	if (verify->nround == 0)
	{
		verify->phase = IDLE;
		return false;
	}
	keys = round_by_table(verify);
	for (int64 i = 0; i < verify->nround; i++)
	{
		TesseraRowWriter *writer = verify->writers[keys[i]->table].writer;

		if (i == 0 || keys[i]->table != keys[i - 1]->table)
			tessera_row_describe(writer, payload);
		tessera_record_begin(writer, payload, TESSERA_RECORD_KEY);
		appendBinaryStringInfo(payload, keys[i]->bytes, keys[i]->size);
		tessera_digest_write(&keys[i]->digest, payload);
	}
	pfree(keys);
	*message = (TesseraMessage) {.kind = TESSERA_MSG_VERIFY, .sequence = ++verify->number, .table = -1, .rows = verify->nround, .last = verify->last};
	verify->phase = SENT;
	return true;
}

void
tessera_verify_answered(TesseraVerify *verify, int64 number)
{
	dlist_mutable_iter iter;

	if (verify == NULL || verify->phase != SENT || number != verify->number)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the recipient answers a comparison that it was not asked for")));
	dlist_foreach_modify(iter, &verify->round)
		forget_key(verify, dlist_container(ChangedKey, node, iter.cur));
	verify->phase = IDLE;
}

bool
tessera_verify_fits(const TesseraVerify *verify, int budget)
{
	/* the recipient needs as long as this side */
	return (verify->nwaiting + verify->nround) * verify->key_us * 2 <= budget * 1000.0 / 2;
}

bool
tessera_verify_rest(TesseraVerify *verify)
{
	if (verify->phase != IDLE)
		return false;
	if (verify->nwaiting == 0)
		return true;
	(void) begin_round(verify, true);
	return false;
}
