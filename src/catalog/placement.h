/*
 * placement.h
 *	  The placement record: what this shard owns of a group, what it still has to delete, which gates are closed. One local row per group.
 *
 * Changed only whole, in one local transaction (doc/design.md#placement-record). A writer locks the row first (tessera_placement_lock), so changes
 * are serial. Every write calls tessera_catalog_changed() and sends a relcache invalidation for the group's tables, so that plans are made anew with
 * or without the ownership filter.
 */
#ifndef TESSERA_PLACEMENT_H
#define TESSERA_PLACEMENT_H

#include "postgres.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

#include "catalog/bound.h"

typedef enum TesseraGate
{
	TESSERA_GATE_OPEN,
	TESSERA_GATE_WRITE,			/* writers of the gate's range wait */
	TESSERA_GATE_READ			/* readers too: the range is no longer owned here and the outcome is not known yet */
} TesseraGate;

typedef struct TesseraRange
{
	TesseraBound *min;
	TesseraBound *max;
} TesseraRange;

/* A range of a group that an operation moves. */
typedef struct TesseraOperationRange
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;			/* of the group, as registered */
	TesseraRange range;
} TesseraOperationRange;

/*
 * A range that a migration takes from this shard, or is about to have brought to it: from the flag's going up on the donor, and from the beginning of
 * the confirmation on the recipient, until the outcome is carried out. Those of one group are disjoint.
 */
typedef struct TesseraGatedRange
{
	pg_uuid_t	migration_id;
	TesseraRange range;
	TesseraGate gate;
	bool		confirmed;		/* recipient: all rows are here; the range stands in owned, but whether it is this shard's is not decided */
} TesseraGatedRange;

/* One row, palloc'd whole in the caller's context. */
typedef struct TesseraPlacementRow
{
	pg_uuid_t	group_id;
	int64		term;
	pg_uuid_t	epoch;
	int64		major;			/* shard version; 0: owns nothing */
	int			nowned;
	TesseraRange *owned;
	int			ndeletions;
	TesseraRange *deletions;
	int			ngates;
	TesseraGatedRange *gates;
	TransactionId xmin;			/* of the row version read */
} TesseraPlacementRow;

/* The row of a group as the snapshot sees it (NULL: the newest committed or own one); NULL if there is none. AccessShareLock on the catalog table. */
extern TesseraPlacementRow *tessera_placement_read(const pg_uuid_t *group_id, Snapshot snapshot);

/* All rows (palloc'd array of pointers). */
extern TesseraPlacementRow **tessera_placement_read_all(Snapshot snapshot, int *n);

/* The gate of a migration's first range here; NULL: the placement is not, or no longer, in this migration. Points into the row. */
extern TesseraGatedRange *tessera_placement_gate_of(const TesseraPlacementRow *row, const pg_uuid_t *migration_id);

/* The most closed of all gates. */
extern TesseraGate tessera_placement_closest_gate(const TesseraPlacementRow *row);

/* Locks the row FOR UPDATE to the end of the transaction and returns its newest version; makes an owner-of-nothing row if there is none. */
extern TesseraPlacementRow *tessera_placement_lock(const pg_uuid_t *group_id);

/* Makes the plan that tessera_placement_lock will need: for a session that will call it while others wait, for the first time. */
extern void tessera_placement_plan(void);

/* Writes the row back whole. The caller holds it by tessera_placement_lock. Ends with CommandCounterIncrement. */
extern void tessera_placement_write(const TesseraPlacementRow *row);

/*
 * A split or merge has given a chunk of this shard a higher major: so has its placement. What it owns is the same, and a migration of another range
 * does not mind; but one that is about to change that gives the version itself, whether it commits or not. Locks the
 * placement to the end of the transaction. false: it has the version already, or is of another epoch.
 */
extern bool tessera_placement_raise(const pg_uuid_t *group_id, const pg_uuid_t *epoch, int64 major);

#endif							/* TESSERA_PLACEMENT_H */
