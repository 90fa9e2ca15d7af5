/*
 * transfer.h
 *	  The data path of a migration: rows and changes of ranges, from the donor's heap and WAL to the recipient's heap.
 *
 * Donor: a clone reader scans the ranges of each table by the key index under the slot's snapshot; a capture reader decodes WAL from the slot and
 * keeps the changes of all ranges in commit order. Both fill payload buffers (row encoding below, uncompressed; codec/frame.h compresses them).
 * Recipient: an applier puts payloads into the local heaps with no trigger, rule or foreign key firing.
 *
 * Row encoding of a payload: records one after the other, each a type byte, the table's index among all that move (int16, order by table_id), then
 * columns. A table description record (names and types of the columns, by name: attnums and OIDs differ between nodes) precedes the first record of a
 * table in each payload. A value goes by its type's send function where it means the same on every node (see tessera_type_goes_binary in
 * catalog/portable_types.h), else as text of its output function under fixed settings; a mark says null, binary, text, or "unchanged TOAST".
 *
 * Nothing here holds a heavy lock across a wait for the peer except AccessShare (donor's clone) or RowExclusive (recipient's batch transaction).
 */
#ifndef TESSERA_TRANSFER_H
#define TESSERA_TRANSFER_H

#include "postgres.h"
#include "access/xlogdefs.h"
#include "lib/stringinfo.h"
#include "utils/rel.h"
#include "utils/uuid.h"

#include "routing/routing.h"
#include "transfer/digest.h"

/* Bounds are typed, their values in the context of what holds them. */
typedef struct TesseraKeyRange
{
	TesseraKeyBound min;
	TesseraKeyBound max;
} TesseraKeyRange;

typedef struct TesseraMovingGroup
{
	pg_uuid_t	group_id;
	TesseraKeySpace *ks;		/* lives as long as the backend */
	int			nranges;
	TesseraKeyRange *ranges;	/* ascending, disjoint */
} TesseraMovingGroup;

typedef struct TesseraMovingTable
{
	pg_uuid_t	table_id;
	Oid			relid;			/* local */
	int			group;			/* index of its group in groups */
	AttrNumber	keys[TESSERA_MAX_KEY_COLUMNS];	/* key columns, in key order */
	bool		generated;		/* values of generated columns go along: both nodes know how; the recipient learns it from what comes */
	bool		xml_as_text;	/* XML goes as text; likewise */
} TesseraMovingTable;

/* What an operation moves. */
typedef struct TesseraMovingRanges
{
	pg_uuid_t	migration_id;
	int			ngroups;
	TesseraMovingGroup *groups; /* by group_id, ascending */
	int			ntables;
	TesseraMovingTable *tables; /* by table_id, ascending, over all groups; index in it = table index on the wire */
	/* partitioned tables, which have no rows: their partitions are among the tables, but who writes may hold only the parent's lock so far */
	int			nroots;
	Oid		   *roots;
} TesseraMovingRanges;

/*
 * Reads key spaces and tables of the ranges' groups from the routing image, into the current context. Ranges in any order; those of a group that
 * adjoin may be joined. The epochs are not looked at. ERROR 55000 if a group is unknown here, XX000 if two ranges overlap.
 */
extern TesseraMovingRanges *tessera_moving_ranges(const pg_uuid_t *migration_id, int n, const TesseraOperationRange *ranges);

/* What users of the tables have locked: relids of the tables and of roots; palloc'd. */
extern Oid *tessera_moving_relids(const TesseraMovingRanges *moving, int *n);

/* The group of a table. */
static inline TesseraMovingGroup *
tessera_moving_group(const TesseraMovingRanges *moving, int table)
{
	return &moving->groups[moving->tables[table].group];
}

/* True if one of the ranges (ascending, disjoint) holds the position of a key. May leak into the current context as comparisons do. */
extern bool tessera_key_ranges_hold(TesseraKeySpace *ks, int n, const TesseraKeyRange *ranges, const TesseraKeyBound *position);

/* ---- donor: clone ---- */

typedef struct TesseraCloneReader TesseraCloneReader;

/*
 * Begins the clone inside the current transaction, which must be REPEATABLE READ and already use the slot's snapshot. Refuses (55000) a table whose
 * file is not the one the snapshot sees (rewritten: doc/design.md#rewritten-tables). Locks the tables AccessShare. sums (NULL: none): one for each
 * table, the rows read are added to it.
 */
extern TesseraCloneReader *tessera_clone_begin(TesseraMovingRanges *moving, TesseraDigest *sums);

/* Appends rows up to about `bytes` to payload (one table in one payload); returns rows added; 0: the clone is over. */
extern int64 tessera_clone_next(TesseraCloneReader *reader, StringInfo payload, Size bytes, int *table);
extern void tessera_clone_end(TesseraCloneReader *reader);

/* ---- donor: change capture ---- */

/* Settings; migration_settings.c defines them for the server. */
extern int	tessera_migration_memory;	/* kB */

typedef struct TesseraCapture TesseraCapture;
typedef struct TesseraVerify TesseraVerify;

/*
 * Makes the logical slot (name given, permanent: survives a restart, its row in migration_coordinator names it) and finds its start point, waiting at
 * most timeout_ms for running transactions (interruptible; *waiting_for, palloc'd text naming the oldest one, is updated while waiting through the
 * callback). Must be called outside a transaction in the donor's worker. Then begins a REPEATABLE READ transaction whose snapshot is the slot's: rows
 * as of the slot, every later change decoded. Returns with that transaction open.
 */
extern TesseraCapture *tessera_capture_create(TesseraMovingRanges *moving, const char *slot, int timeout_ms,
											  void (*waiting) (const char *what, void *arg), void *arg);

/*
 * Decodes committed changes of the ranges into payload, up to about `bytes` or until WAL position `upto` (a flushed position) is reached. Returns
 * changes added; *lsn: all changes of transactions whose commit record ends at or before it have been handed out; *caught_up: upto has been reached.
 * Own transactions inside. Returns after about half a second of decoding in any case, perhaps with nothing: then *lsn may have grown all the same.
 * Changes of transactions still open stay in the reorder buffer (spilled by core). A change of a group table that cannot be captured (TRUNCATE; no
 * replica identity) is ERROR 55000.
 */
extern int64 tessera_capture_next(TesseraCapture *capture, StringInfo payload, Size bytes, XLogRecPtr upto, XLogRecPtr *lsn, bool *caught_up);

/* Notes the key of each change from here on, for a move that is verified by content (verify.h). */
extern void tessera_capture_note_keys(TesseraCapture *capture, TesseraVerify *verify);

/* The recipient has applied up to here: WAL before it may go. */
extern void tessera_capture_confirm(TesseraCapture *capture, XLogRecPtr lsn);

/* Bytes of WAL between the last position handed out and the insert position. */
extern uint64 tessera_capture_backlog(TesseraCapture *capture);

/* Releases (drop: and drops) the slot. */
extern void tessera_capture_end(TesseraCapture *capture, bool drop);

/* Drops a slot by name if it exists and is free; for abort and recovery. */
extern void tessera_capture_drop_slot(const char *slot);

/* ---- recipient: apply ---- */

typedef struct TesseraApplier TesseraApplier;

extern TesseraApplier *tessera_applier_begin(TesseraMovingRanges *moving);

/* Inserts a clone payload (multi-insert, indexes, constraints as COPY checks them; no triggers). Inside the caller's transaction. Returns rows. */
extern int64 tessera_apply_clone(TesseraApplier *applier, const char *payload, Size size);

/*
 * Applies a changes payload by replica identity: insert; update (also of part of the columns); delete. An update or delete whose row is missing is
 * skipped (doc/design.md#unchanged-toast); an insert that finds its row replaces it (the stream overwrites what the clone brought). Inside the
 * caller's transaction. Returns changes.
 */
extern int64 tessera_apply_mods(TesseraApplier *applier, const char *payload, Size size);
extern void tessera_applier_end(TesseraApplier *applier);

/* ---- range deletion ---- */

/* Deletes at most `batch` rows of a range of one table, no trigger or foreign key firing, in the caller's transaction. Returns rows deleted. */
extern int64 tessera_delete_range_batch(const TesseraRouting *routing, const TesseraGroup *group, Oid relid, const TesseraKeyRange *range,
										int64 batch);

/* The same for a table that is open RowExclusive, with its key space and key columns. */
extern int64 tessera_delete_range_rows(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyRange *range,
									   int64 batch);

#endif							/* TESSERA_TRANSFER_H */
