/*
 * routing.c
 *	  The current routing image: loading, publishing, pinning, and look-ups of nodes, tables and groups.
 *
 * Shared, for each database slot: a fixed array of entries, each holding one image (a block of the DSA area) and the number of its pins; and
 * `current`, which names the entry of the newest image together with a publication number. To pin, a backend raises the count of the entry that
 * `current` names and looks at `current` again: if it is the same, the image was published (which itself is one pin) when the count was raised; if
 * not, it lowers the count and starts over. The entries never move, so nothing is read that might have been freed. An image without pins is garbage;
 * it is freed by the next who publishes or pins for the first time in a transaction (never in a commit callback, where nothing may fail).
 *
 * One backend loads at a time: `loading`, guarded by the slot's spinlock, with a condition variable for the others. A backend that has waited longer
 * than LOADER_PATIENCE (the loader may be waiting for a lock that it holds) loads an image for itself alone. So does a backend whose transaction has
 * changed the catalog, or that finds no free entry or no shared memory.
 *
 * Memory: private images live in TopTransactionContext. Pins are released at the end of the transaction (or by the abort that backend exit does).
 * Crash: everything is made anew.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/spin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/change.h"
#include "catalog/relation.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/shmem.h"
#include "common/transaction_steps.h"
#include "routing/image.h"
#include "routing/refresh.h"

#define IMAGES 1024			/* images of one database that may be pinned at a time */
#define LOADER_PATIENCE 1000L	/* ms */

/* Entry's state: pins, and a mark that one backend has it for itself. */
#define PINS_MASK UINT64CONST(0xffffffff)
#define TAKEN (UINT64CONST(1) << 32)

typedef struct ImageEntry
{
	pg_atomic_uint64 state;
	dsa_pointer image;			/* changed only by the backend that has set TAKEN; InvalidDsaPointer: free */
} ImageEntry;

typedef struct RoutingSlot
{
	pg_atomic_uint64 current;	/* publication number << 16 | entry + 1; 0: none */
	pg_atomic_uint64 absent;	/* ABSENT of the catalog sequence at which the database was no node; 0: none */
	pg_atomic_uint32 garbage;	/* some entry may have an image without pins */
	pg_atomic_uint32 pages;		/* shared pages of chunk maps, for diagnostics */
	slock_t		mutex;
	bool		loading;		/* under mutex */
	ConditionVariable loaded;
	ImageEntry	entries[IMAGES];
} RoutingSlot;

/* Beside the sequence: was the database a node once, which was removed from its cluster? */
#define ABSENT(sequence, former) ((sequence) << 1 | ((former) ? 1 : 0))
#define ABSENT_SEQUENCE(absent) ((absent) >> 1)
#define ABSENT_IS_FORMER(absent) (((absent) & 1) != 0)

static RoutingSlot *slots = NULL;

/* Of the transaction at hand; emptied at its end (tessera_routing_unpin). */
typedef struct TransactionImages
{
	const TesseraImage *current;	/* pinned, or private; NULL: none was asked for, or it is to be looked at anew */
	uint64		pinned[IMAGES / 64];	/* entries, as bits */
	bool		pins_any;
	bool		loading;		/* this backend loads an image */
} TransactionImages;

static TransactionImages images = {0};

static uint64 loads = 0;		/* images that this backend loaded, for diagnostics */

static uint64 no_node_at = 0;	/* slots generation at which this database was no node and had no slot */


static Size
routing_size(void)
{
	return sizeof(RoutingSlot) * TESSERA_MAX_DATABASES;
}

static void
routing_shmem_init(void *memory, LWLockPadded *locks, bool found)
{
	slots = memory;
	if (found)
		return;
	memset(slots, 0, routing_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		RoutingSlot *slot = &slots[i];

		pg_atomic_init_u64(&slot->current, 0);
		pg_atomic_init_u64(&slot->absent, 0);
		pg_atomic_init_u32(&slot->garbage, 0);
		pg_atomic_init_u32(&slot->pages, 0);
		SpinLockInit(&slot->mutex);
		ConditionVariableInit(&slot->loaded);
		for (int j = 0; j < IMAGES; j++)
		{
			pg_atomic_init_u64(&slot->entries[j].state, 0);
			slot->entries[j].image = InvalidDsaPointer;
		}
	}
}


/* Pins and garbage */

static void
unpin(RoutingSlot *slot, int entry)
{
	if ((pg_atomic_fetch_sub_u64(&slot->entries[entry].state, 1) & PINS_MASK) == 1)
		pg_atomic_write_u32(&slot->garbage, 1);
}

/* Pins the current image; -1 if there is none. */
static int
pin_current(RoutingSlot *slot)
{
	for (;;)
	{
		uint64		now = pg_atomic_read_u64(&slot->current);
		int			entry = (int) (now & 0xffff) - 1;

		if (entry < 0)
			return -1;
		pg_atomic_fetch_add_u64(&slot->entries[entry].state, 1);
		if (pg_atomic_read_u64(&slot->current) == now)
			return entry;
		unpin(slot, entry);
	}
}

/*
 * Has the entry for this backend alone, and empty; false if it is pinned or another backend's. An error, of attaching shared memory, leaves the entry
 * as garbage, with what is left of its image.
 */
static bool
take_entry(RoutingSlot *slot, int number)
{
	ImageEntry *entry = &slot->entries[number];
	uint64		expected = 0;

	if (!pg_atomic_compare_exchange_u64(&entry->state, &expected, TAKEN))
		return false;
	if (!DsaPointerIsValid(entry->image))
		return true;
	PG_TRY();
	{
		tessera_injection("image_free");
		tessera_image_free(entry->image, &slot->pages);
		entry->image = InvalidDsaPointer;
	}
	PG_CATCH();
	{
		pg_atomic_write_u32(&slot->garbage, 1);
		pg_atomic_fetch_sub_u64(&entry->state, TAKEN);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return true;
}

static void
sweep(RoutingSlot *slot)
{
	pg_atomic_write_u32(&slot->garbage, 0);
	for (int i = 0; i < IMAGES; i++)
		if (DsaPointerIsValid(slot->entries[i].image) && take_entry(slot, i))
			pg_atomic_fetch_sub_u64(&slot->entries[i].state, TAKEN);
}

/* A dropped database's slot is given to another: no backend is left that could have pinned anything. */
static void
routing_reset_slot(int number)
{
	RoutingSlot *slot = &slots[number];
	uint64		old = pg_atomic_exchange_u64(&slot->current, 0);

	if ((old & 0xffff) != 0)
		unpin(slot, (int) (old & 0xffff) - 1);
	pg_atomic_write_u64(&slot->absent, 0);
}

static const TesseraShmemModule routing_module = {"tessera_routing", routing_size, 0, routing_shmem_init, routing_reset_slot};

/* Pins the current image to the end of the transaction; NULL if there is none. */
static const TesseraImage *
hold_current(RoutingSlot *slot)
{
	int			entry = pin_current(slot);

	if (entry < 0)
		return NULL;
	if (images.pinned[entry / 64] & (UINT64CONST(1) << (entry % 64)))
		unpin(slot, entry);
	else
		images.pinned[entry / 64] |= UINT64CONST(1) << (entry % 64);
	if (!images.pins_any)
	{
		images.pins_any = true;
		if (pg_atomic_read_u32(&slot->garbage) != 0)
			sweep(slot);
	}
	return dsa_get_address(tessera_dsa(), slot->entries[entry].image);
}

void
tessera_routing_unpin(void)
{
	images.current = NULL;
	images.loading = false;
	if (!images.pins_any)
		return;
	for (int word = 0; word < lengthof(images.pinned); word++)
		for (; images.pinned[word] != 0; images.pinned[word] &= images.pinned[word] - 1)
			unpin(&slots[tessera_database_slot_if_any()], word * 64 + pg_rightmost_one_pos64(images.pinned[word]));
	images.pins_any = false;
}


/* Publishing */

/* A shared copy of the image in an entry that this backend has taken; lets go of the entry if there is no memory. */
static bool
fill_entry(RoutingSlot *slot, ImageEntry *entry, const TesseraImage *image)
{
	volatile dsa_pointer shared = InvalidDsaPointer;

	PG_TRY();
	{
		shared = tessera_image_share(image, &slot->pages);
	}
	PG_CATCH();
	{
		pg_atomic_fetch_sub_u64(&entry->state, TAKEN);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!DsaPointerIsValid(shared))
	{
		pg_atomic_fetch_sub_u64(&entry->state, TAKEN);
		return false;
	}
	entry->image = shared;
	/* no longer taken, and pinned once by being the current one */
	pg_atomic_fetch_add_u64(&entry->state, UINT64CONST(1) - TAKEN);
	return true;
}

/* Makes the image the current one; false if there is no entry or no memory for it. Only the one loader comes here. */
static bool
publish(RoutingSlot *slot, const TesseraImage *image)
{
	uint64		old;
	int			entry = IMAGES;

	/* an entry that has to be emptied first only if there is no other: that may fail */
	for (int round = 0; round < 2 && entry == IMAGES; round++)
		for (entry = 0; entry < IMAGES; entry++)
			if ((round > 0 || !DsaPointerIsValid(slot->entries[entry].image)) && take_entry(slot, entry))
				break;
	if (entry == IMAGES || !fill_entry(slot, &slot->entries[entry], image))
		return false;

	old = pg_atomic_read_u64(&slot->current);
	pg_atomic_exchange_u64(&slot->current, ((old >> 16) + 1) << 16 | (uint64) (entry + 1));
	if ((old & 0xffff) != 0)
		unpin(slot, (int) (old & 0xffff) - 1);
	sweep(slot);
	return true;
}


/* Loading */

/* True if the catalog table exists here and has a row, in the newest catalog. */
static bool
has_row(TesseraCatalogRelation table)
{
	Oid			relid = tessera_catalog_relid(table);
	Relation	rel = OidIsValid(relid) ? try_table_open(relid, AccessShareLock) : NULL;
	Snapshot	snapshot;
	SysScanDesc scan;
	bool		found;

	if (rel == NULL)
		return false;
	snapshot = tessera_catalog_snapshot();
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

/* Of a database that is no node. */
static bool
is_former(void)
{
	return tessera_extension_exists() && has_row(TESSERA_FORMER_MEMBERSHIP);
}

static void
end_loading(int code, Datum number)
{
	RoutingSlot *slot = &slots[DatumGetInt32(number)];

	SpinLockAcquire(&slot->mutex);
	slot->loading = false;
	SpinLockRelease(&slot->mutex);
	images.loading = false;
	ConditionVariableBroadcast(&slot->loaded);
}

static bool
begin_loading(RoutingSlot *slot)
{
	bool		mine;

	SpinLockAcquire(&slot->mutex);
	mine = !slot->loading;
	slot->loading = true;
	SpinLockRelease(&slot->mutex);
	return mine;
}

/* An image for this backend alone, in TopTransactionContext; NULL if this database is no node. */
static const TesseraImage *
load_private(RoutingSlot *slot)
{
	const TesseraImage *previous = hold_current(slot);
	MemoryContext caller = MemoryContextSwitchTo(TopTransactionContext);
	uint64		sequence = tessera_catalog_sequence();
	uint64		changes = tessera_catalog_changed_here();
	TesseraImage *image;

	images.loading = true;
	PG_TRY();
	{
		image = tessera_image_load(previous);
	}
	PG_FINALLY();
	{
		images.loading = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	if (image != NULL)
	{
		image->routing.sequence = sequence;
		image->changes = changes;
	}
	loads++;
	return image;
}

/* As the one loader: loads and publishes. Returns a private image if it could not be published. */
static const TesseraImage *
load_and_publish(RoutingSlot *slot)
{
	MemoryContext work = AllocSetContextCreate(TopTransactionContext, "tessera routing image", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(work);
	uint64		sequence = tessera_catalog_sequence();
	TesseraImage *image;
	bool		published = true;

	images.loading = true;
	image = tessera_image_load(hold_current(slot));
	loads++;
	if (image == NULL)
		pg_atomic_write_u64(&slot->absent, ABSENT(sequence, is_former()));
	else
	{
		image->routing.sequence = sequence;
		published = image->lost_in == InvalidSubTransactionId && publish(slot, image);
	}
	images.loading = false;
	MemoryContextSwitchTo(caller);
	if (!published)
		return image;			/* lives until the end of the transaction */
	MemoryContextDelete(work);
	return NULL;
}

/* Brings the shared image to at least the sequence of now; NULL if this database is no node. */
static const TesseraImage *
load_shared(RoutingSlot *slot)
{
	uint64		wanted = tessera_catalog_sequence();
	const TesseraImage *image = NULL;
	TimestampTz deadline = 0;

	for (;;)
	{
		image = hold_current(slot);
		if (image != NULL && image->routing.sequence >= wanted && !(image->in_recovery && !RecoveryInProgress()))
			break;
		image = NULL;
		if (ABSENT_SEQUENCE(pg_atomic_read_u64(&slot->absent)) >= wanted)
			break;
		if (begin_loading(slot))
		{
			int			number = slot - slots;

			PG_ENSURE_ERROR_CLEANUP(end_loading, Int32GetDatum(number));
			{
				image = load_and_publish(slot);
			}
			PG_END_ENSURE_ERROR_CLEANUP(end_loading, Int32GetDatum(number));
			end_loading(0, Int32GetDatum(number));
			if (image != NULL)
				break;
			continue;
		}
		if (deadline == 0)
			deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOADER_PATIENCE);
		ConditionVariablePrepareToSleep(&slot->loaded);
		SpinLockAcquire(&slot->mutex);
		if (!slot->loading)
		{
			SpinLockRelease(&slot->mutex);
			continue;
		}
		SpinLockRelease(&slot->mutex);
		if (ConditionVariableTimedSleep(&slot->loaded, LOADER_PATIENCE / 4, PG_WAIT_EXTENSION) && GetCurrentTimestamp() >= deadline)
		{
			image = load_private(slot);
			break;
		}
	}
	ConditionVariableCancelSleep();
	return image;
}

/*
 * On a standby the sequence grows when a backend takes in what was replayed (catalog/change.c). What was replayed while there was none has told
 * nobody: so each bumps it at first; from its start on it takes in all.
 */
static void
hear_of_replay(void)
{
	static bool heard = false;

	if (heard || !RecoveryInProgress())
		return;
	tessera_catalog_bump();
	heard = true;
}

/* For a database without a slot: finds out whether it is a node, or was one, and gives it a slot then. */
static bool
look_for_identity(void)
{
	uint64		generation = tessera_database_slots_generation();
	bool		found;

	if (generation == no_node_at)
		return false;
	found = tessera_extension_exists() && (has_row(TESSERA_IDENTITY) || has_row(TESSERA_FORMER_MEMBERSHIP));
	if (found)
		(void) tessera_database_slot();
	else
		no_node_at = generation;
	return found;
}

bool
tessera_known_no_node(void)
{
	return tessera_database_slot_if_any() < 0 && tessera_database_slots_generation() == no_node_at;
}

const TesseraRouting *
tessera_routing_or_error(void)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster"),
				 errhint("Make a cluster of it: tessera.create_cluster.")));
	return routing;
}

/* An image in which a key is lost is good for the subtransaction that has lost it. */
static bool
is_of_this_subtransaction(const TesseraImage *image)
{
	return image->lost_in == InvalidSubTransactionId || image->lost_in == GetCurrentSubTransactionId();
}

const TesseraRouting *
tessera_routing(void)
{
	uint64		changes = tessera_catalog_changed_here();
	RoutingSlot *slot;
	int			number;

	if (images.current != NULL && images.current->changes == changes && images.current->routing.sequence == tessera_catalog_sequence() &&
		is_of_this_subtransaction(images.current) &&
		!(images.current->in_recovery && !RecoveryInProgress()))
		return &images.current->routing;

	number = tessera_database_slot_if_any();
	if (number < 0)
	{
		if (!OidIsValid(MyDatabaseId) || !look_for_identity())
			return NULL;
		number = tessera_database_slot();
	}
	hear_of_replay();
	slot = &slots[number];
	if (changes == 0 && ABSENT_SEQUENCE(pg_atomic_read_u64(&slot->absent)) == tessera_catalog_sequence())
		return NULL;

	Assert(IsTransactionState());
	tessera_transaction_involved();
	/* a type's function that the loader calls runs a statement: it has to do with what there was */
	if (images.loading)
	{
		const TesseraImage *before = hold_current(slot);

		return before ? &before->routing : NULL;
	}
	images.current = NULL;
	images.current = changes == 0 ? load_shared(slot) : load_private(slot);
	return images.current ? &images.current->routing : NULL;
}

void
tessera_require_own_node(const TesseraRouting *routing)
{
	if (routing->replaced)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("another server was promoted in the place of this one"),
				 errhint("Connect to that one. If this one is to be the node again: stop that one for good, and tessera.recover_node(force => true) "
						 "here.")));
	if (routing->removed)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("this node was removed from its cluster"),
				 errhint(TESSERA_REMOVED_HINT)));
}

bool
tessera_node_was_removed(void)
{
	const TesseraRouting *routing = tessera_routing();
	int			number = tessera_database_slot_if_any();
	uint64		absent;

	if (routing != NULL || number < 0)
		return routing != NULL && routing->removed;
	absent = pg_atomic_read_u64(&slots[number].absent);
	if (tessera_catalog_changed_here() == 0 && ABSENT_SEQUENCE(absent) == tessera_catalog_sequence())
		return ABSENT_IS_FORMER(absent);
	return is_former();
}

void
tessera_require_metadata(const TesseraRouting *routing)
{
	tessera_require_own_node(routing);
	if (routing->metadata_unknown)
		ereport(ERROR,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("the config node was promoted and has not compared its catalog with the shards yet"),
				 errhint("It does so by itself as soon as it reaches all shards; tessera.recover_node() says what is in the way.")));
}

bool
tessera_routing_is_current(const TesseraRouting *routing)
{
	const TesseraImage *image = (const TesseraImage *) routing;

	return image->changes == tessera_catalog_changed_here() && routing->sequence == tessera_catalog_sequence() && is_of_this_subtransaction(image);
}

uint64
tessera_routing_loads(void)
{
	return loads;
}

uint32
tessera_routing_shared_pages(void)
{
	int			number = tessera_database_slot_if_any();

	return number < 0 ? 0 : pg_atomic_read_u32(&slots[number].pages);
}

void
tessera_routing_init(void)
{
	tessera_shmem_register(&routing_module);
}


/* Look-ups */

const TesseraTable *
tessera_routing_table(const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *tables = TESSERA_AT(routing, routing->tables_offset, const TesseraTable);
	int			low = 0;
	int			high = routing->ntables - 1;

	while (low <= high)
	{
		int			middle = low + (high - low) / 2;

		if (tables[middle].relid == relid)
			return &tables[middle];
		if (tables[middle].relid < relid)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return NULL;
}

const TesseraTable *
tessera_routing_table_at(const TesseraRouting *routing, int i)
{
	Assert(i >= 0 && i < routing->ntables);
	return TESSERA_AT(routing, routing->tables_offset, const TesseraTable) + i;
}

const TesseraTable *
tessera_routing_root(const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraTable *root = table->root == table->relid ? table : tessera_routing_table(routing, table->root);

	return root != NULL ? root : table;
}

const TesseraTable *
tessera_routing_table_by_id(const TesseraRouting *routing, const pg_uuid_t *table_id)
{
	const TesseraTable *tables = TESSERA_AT(routing, routing->tables_offset, const TesseraTable);
	const int32 *by_id = TESSERA_AT(routing, ((const TesseraImage *) routing)->by_id_offset, const int32);
	int			low = 0;
	int			high = routing->ntables - 1;

	while (low <= high)
	{
		int			middle = low + (high - low) / 2;
		int			order = memcmp(tables[by_id[middle]].table_id.data, table_id->data, UUID_LEN);

		if (order == 0)
			return &tables[by_id[middle]];
		if (order < 0)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return NULL;
}

const TesseraGroup *
tessera_routing_group(const TesseraRouting *routing, int index)
{
	Assert(index >= 0 && index < routing->ngroups);
	return TESSERA_AT(routing, routing->groups_offset, const TesseraGroup) + index;
}

const TesseraGroup *
tessera_table_placement_group(const TesseraRouting *routing, const TesseraTable *table)
{
	return table->placement_group < 0 ? NULL : tessera_routing_group(routing, table->placement_group);
}

const TesseraSchema *
tessera_routing_schema(const TesseraRouting *routing, const char *name)
{
	const TesseraSchema *schemas = TESSERA_AT(routing, routing->schemas_offset, const TesseraSchema);
	int			low = 0;
	int			high = routing->nschemas - 1;

	while (low <= high)
	{
		int			middle = (low + high) / 2;
		int			order = strcmp(name, NameStr(schemas[middle].name));

		if (order == 0)
			return &schemas[middle];
		if (order < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
	return NULL;
}

const TesseraGroup *
tessera_routing_group_by_id(const TesseraRouting *routing, const pg_uuid_t *group_id)
{
	int			low = 0;
	int			high = routing->ngroups - 1;

	while (low <= high)
	{
		int			middle = low + (high - low) / 2;
		const TesseraGroup *group = tessera_routing_group(routing, middle);
		int			order = memcmp(group->group_id.data, group_id->data, UUID_LEN);

		if (order == 0)
			return group;
		if (order < 0)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return NULL;
}

const TesseraNode *
tessera_routing_node_at(const TesseraRouting *routing, int i)
{
	Assert(i >= 0 && i < routing->nnodes);
	return TESSERA_AT(routing, routing->nodes_offset, const TesseraNode) + i;
}

const TesseraNode *
tessera_routing_node(const TesseraRouting *routing, int32 node_id)
{
	int			low = 0;
	int			high = routing->nnodes - 1;

	while (low <= high)
	{
		int			middle = low + (high - low) / 2;
		const TesseraNode *node = tessera_routing_node_at(routing, middle);

		if (node->node_id == node_id)
			return node;
		if (node->node_id < node_id)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return NULL;
}

/* By name or config mark: nodes are few. */
const TesseraNode *
tessera_routing_node_by_name(const TesseraRouting *routing, const char *name)
{
	for (int i = 0; i < routing->nnodes; i++)
		if (strcmp(NameStr(tessera_routing_node_at(routing, i)->name), name) == 0)
			return tessera_routing_node_at(routing, i);
	return NULL;
}

const TesseraNode *
tessera_routing_config(const TesseraRouting *routing)
{
	for (int i = 0; i < routing->nnodes; i++)
		if (tessera_routing_node_at(routing, i)->is_config)
			return tessera_routing_node_at(routing, i);
	return NULL;
}

const char *
tessera_node_conninfo(const TesseraRouting *routing, const TesseraNode *node)
{
	return TESSERA_AT(routing, node->conninfo_offset, const char);
}
