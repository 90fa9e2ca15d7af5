/*
 * image_loader.c
 *	  Reads the catalog into a routing image.
 *
 * All rows are read with one snapshot that sees everything committed by now (and what this transaction has written), whatever the isolation level of
 * the transaction. Phases: identity, nodes, schema placements, groups, tables, placements, chunk maps; then everything is laid out in one block.
 *
 * Memory: working data in a context of its own, deleted at the end; the image and the maps it did not take over are palloc'd in the caller's. Locks:
 * AccessShareLock on each catalog table while it is read. Errors leave nothing but those contexts.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/identity.h"
#include "catalog/relation.h"
#include "common/injection.h"
#include "common/text.h"
#include "routing/image.h"

PG_FUNCTION_INFO_V1(tessera_internal_partition_id);

typedef struct SchemaHome
{
	TesseraSchema schema;
	bool		has_group;
	pg_uuid_t	group_id;
} SchemaHome;

typedef struct Loader
{
	const TesseraImage *previous;
	Snapshot	snapshot;
	MemoryContext result;		/* the caller's */
	TransactionId oldest;		/* no snapshot of this database is older */
	TesseraImage image;			/* header so far */
	int			nnodes;
	TesseraNode *nodes;
	char	  **conninfos;		/* of nodes, in reading order; conninfo_offset is the position here until they are laid out */
	int			nhomes;
	SchemaHome *homes;
	int			ngroups;
	TesseraGroup *groups;
	int			ntables;
	TesseraTable *tables;
	TesseraPlacement **placements;	/* of groups; NULL: none */
} Loader;

/* Makes room for one more of n things. */
#define GROW(array, n, type) \
	((n) == 0 ? ((array) = palloc(16 * sizeof(type))) : \
	 (n) >= 16 && ((n) & ((n) - 1)) == 0 ? ((array) = repalloc_huge((array), 2 * (Size) (n) * sizeof(type))) : (array))

typedef void (*RowReader) (Loader *loader, HeapTuple tuple, TupleDesc desc);


static Datum
attribute(HeapTuple tuple, int number, TupleDesc desc)
{
	bool		null;

	return heap_getattr(tuple, number, desc, &null);
}

/* Gives each row of a catalog table to the reader; false if the table is not there. */
static bool
read_table(Loader *loader, TesseraCatalogRelation which, RowReader reader)
{
	Oid			relid = tessera_catalog_relid(which);
	Relation	rel = OidIsValid(relid) ? try_table_open(relid, AccessShareLock) : NULL;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (rel == NULL)
		return false;
	scan = systable_beginscan(rel, InvalidOid, false, loader->snapshot, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		reader(loader, tuple, RelationGetDescr(rel));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return true;
}

static char **
text_array(Datum array, int *n)
{
	Datum	   *elements;
	bool	   *nulls;
	char	  **texts;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, n);
	texts = palloc(Max(*n, 1) * sizeof(char *));
	for (int i = 0; i < *n; i++)
		texts[i] = nulls[i] ? NULL : TextDatumGetCString(elements[i]);
	return texts;
}


/* Rows */

static void
read_identity(Loader *loader, HeapTuple tuple, TupleDesc desc)
{
	TesseraRouting *routing = &loader->image.routing;

	/* A copy of a node's database is no node. */
	if (DatumGetObjectId(attribute(tuple, Anum_identity_database_oid, desc)) != MyDatabaseId)
		return;
	routing->cluster_id = *DatumGetUUIDP(attribute(tuple, Anum_identity_cluster_id, desc));
	routing->self = DatumGetInt32(attribute(tuple, Anum_identity_node_id, desc));
	routing->is_config = DatumGetBool(attribute(tuple, Anum_identity_is_config, desc));
	routing->term = DatumGetInt64(attribute(tuple, Anum_identity_term, desc));
	routing->promised_term = Max(routing->term, DatumGetInt64(attribute(tuple, Anum_identity_promised_term, desc)));
	if (!loader->image.in_recovery && DatumGetInt32(attribute(tuple, Anum_identity_timeline, desc)) != (int32) GetWALInsertionTimeLine())
		routing->placements_unknown = true;
	/* perhaps the backup is older than what others know of this node, and on the same timeline; the recovery worker writes it down */
	routing->restored = !loader->image.in_recovery &&
		tessera_backup_restored(TextDatumGetCString(attribute(tuple, Anum_identity_backup_label, desc)));
	routing->placements_unknown |= routing->restored;
	routing->metadata_unknown = routing->restored && routing->is_config;
	routing->incarnation = DatumGetInt32(attribute(tuple, Anum_identity_incarnation, desc));
	routing->known_since = HeapTupleHeaderGetXmin(tuple->t_data);
	routing->size = sizeof(TesseraImage);	/* found */
}

/*
 * This node's own row: tells whether a promoted config node has yet to compare its catalog, and whether this server was replaced. The latter is not
 * concluded while it is not known what the server owns: then it is still being found out which server is the node.
 */
static void
read_own_node(Loader *loader, HeapTuple tuple, TupleDesc desc, int32 incarnation)
{
	TesseraRouting *routing = &loader->image.routing;

	if (loader->image.in_recovery)
		return;
	if (routing->is_config && DatumGetInt32(attribute(tuple, Anum_node_timeline, desc)) != (int32) GetWALInsertionTimeLine())
		routing->metadata_unknown = true;
	routing->replaced = !routing->placements_unknown && incarnation > routing->incarnation;
}

static void
read_node(Loader *loader, HeapTuple tuple, TupleDesc desc)
{
	TesseraNode *node;

	GROW(loader->conninfos, loader->nnodes, char *);
	GROW(loader->nodes, loader->nnodes, TesseraNode);
	node = &loader->nodes[loader->nnodes];
	memset(node, 0, sizeof(*node));
	node->node_id = DatumGetInt32(attribute(tuple, Anum_node_node_id, desc));
	namestrcpy(&node->name, TextDatumGetCString(attribute(tuple, Anum_node_name, desc)));
	node->is_shard = DatumGetBool(attribute(tuple, Anum_node_is_shard, desc));
	node->is_config = DatumGetBool(attribute(tuple, Anum_node_is_config, desc));
	node->draining = DatumGetBool(attribute(tuple, Anum_node_draining, desc));
	node->incarnation = DatumGetInt32(attribute(tuple, Anum_node_incarnation, desc));
	node->conninfo_offset = loader->nnodes;
	if (node->node_id == loader->image.routing.self)
		read_own_node(loader, tuple, desc, node->incarnation);
	loader->conninfos[loader->nnodes++] = TextDatumGetCString(attribute(tuple, Anum_node_conninfo, desc));
}

static void
read_home(Loader *loader, HeapTuple tuple, TupleDesc desc)
{
	SchemaHome *home;
	Datum		group_id;
	bool		no_group;

	GROW(loader->homes, loader->nhomes, SchemaHome);
	home = &loader->homes[loader->nhomes++];
	home->schema.name = *DatumGetName(attribute(tuple, Anum_schema_placement_schema_name, desc));
	home->schema.node_id = DatumGetInt32(attribute(tuple, Anum_schema_placement_node_id, desc));
	home->schema.group = -1;
	group_id = heap_getattr(tuple, Anum_schema_placement_group_id, desc, &no_group);
	home->has_group = !no_group;
	if (home->has_group)
		home->group_id = *DatumGetUUIDP(group_id);
}

static void
read_advisory_home(Loader *loader, HeapTuple tuple, TupleDesc desc)
{
	int32		slot = DatumGetInt32(attribute(tuple, Anum_advisory_home_slot, desc));

	if (slot >= 0 && slot < TESSERA_ADVISORY_SLOTS)
		loader->image.routing.advisory_homes[slot] = DatumGetInt32(attribute(tuple, Anum_advisory_home_node_id, desc));
}

/*
 * What the key is made of may have been dropped since it was looked up. Whether there is a key space is decided here, once: what follows finds it in
 * the cache, or the key as one that cannot be read. A drop that has not committed is no business of other transactions.
 */
static void
require_keyspace(Loader *loader, TesseraGroup *group, const TesseraGroup *known)
{
	bool		was_there = group->ncolumns > 0 || (known != NULL && known->ncolumns > 0);

	if (group->ncolumns > 0 && tessera_group_keyspace_if_any(group) == NULL)
		group->ncolumns = 0;
	if (group->ncolumns == 0 && was_there && TransactionIdIsValid(GetTopTransactionIdIfAny()))
		loader->image.lost_in = GetCurrentSubTransactionId();
}

static void
read_group(Loader *loader, HeapTuple tuple, TupleDesc desc)
{
	TesseraGroup *group;
	const TesseraGroup *known;
	char	  **types;
	char	  **collations;
	int			ntypes;
	int			ncollations;

	GROW(loader->groups, loader->ngroups, TesseraGroup);
	group = &loader->groups[loader->ngroups++];
	memset(group, 0, sizeof(*group));
	group->group_id = *DatumGetUUIDP(attribute(tuple, Anum_table_group_group_id, desc));
	group->epoch = *DatumGetUUIDP(attribute(tuple, Anum_table_group_epoch, desc));
	group->group_major = DatumGetInt64(attribute(tuple, Anum_table_group_group_major, desc));
	group->group_minor = DatumGetInt64(attribute(tuple, Anum_table_group_group_minor, desc));
	group->hashed = strcmp(TextDatumGetCString(attribute(tuple, Anum_table_group_strategy, desc)), "hash") == 0;

	/* the key stays the same within an epoch */
	known = loader->previous ? tessera_routing_group_by_id(&loader->previous->routing, &group->group_id) : NULL;
	if (known != NULL && known->ncolumns > 0 && memcmp(&known->epoch, &group->epoch, sizeof(pg_uuid_t)) == 0 && tessera_group_key_exists(known))
	{
		group->ncolumns = known->ncolumns;
		memcpy(group->types, known->types, sizeof(group->types));
		memcpy(group->typmods, known->typmods, sizeof(group->typmods));
		memcpy(group->collations, known->collations, sizeof(group->collations));
		tessera_injection("image_key_taken_over");
		require_keyspace(loader, group, known);
		return;
	}
	types = text_array(attribute(tuple, Anum_table_group_key_types, desc), &ntypes);
	group->of_schema = ntypes == 0;
	collations = text_array(attribute(tuple, Anum_table_group_key_collations, desc), &ncollations);
	tessera_group_resolve_key(group, ncollations == ntypes ? ntypes : 0, types, collations);
	require_keyspace(loader, group, known);
}

static int
compare_uuids(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a->data, b->data, UUID_LEN);
}

static int
compare_groups(const void *a, const void *b)
{
	return compare_uuids(&((const TesseraGroup *) a)->group_id, &((const TesseraGroup *) b)->group_id);
}

static int
compare_nodes(const void *a, const void *b)
{
	int32		x = ((const TesseraNode *) a)->node_id;
	int32		y = ((const TesseraNode *) b)->node_id;

	return (x > y) - (x < y);
}

static int
compare_tables(const void *a, const void *b)
{
	Oid			x = ((const TesseraTable *) a)->relid;
	Oid			y = ((const TesseraTable *) b)->relid;

	return (x > y) - (x < y);
}

static int
compare_homes(const void *a, const void *b)
{
	return strcmp(NameStr(((const SchemaHome *) a)->schema.name), NameStr(((const SchemaHome *) b)->schema.name));
}

static TesseraGroup *
find_group(Loader *loader, const pg_uuid_t *group_id)
{
	TesseraGroup probe;

	probe.group_id = *group_id;
	return bsearch(&probe, loader->groups, loader->ngroups, sizeof(TesseraGroup), compare_groups);
}

static const SchemaHome *
find_home(Loader *loader, const char *schema)
{
	SchemaHome	probe;

	namestrcpy(&probe.schema.name, schema);
	return bsearch(&probe, loader->homes, loader->nhomes, sizeof(SchemaHome), compare_homes);
}

/* A group that is not known here: the schema counts as placed on no shard, so this node's rows never pass for the whole tables. */
static void
find_groups_of_schemas(Loader *loader)
{
	for (int i = 0; i < loader->nhomes; i++)
	{
		SchemaHome *home = &loader->homes[i];
		TesseraGroup *group = home->has_group ? find_group(loader, &home->group_id) : NULL;

		if (group != NULL && group->of_schema)
			home->schema.group = group - loader->groups;
		else if (home->has_group)
			home->schema.node_id = -1;
	}
}

/* Attribute numbers of the key columns on this node; false if one is missing. */
static bool
read_keys(TesseraTable *table, Datum columns)
{
	Datum	   *names;
	bool	   *nulls;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(columns), NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &names, &nulls, &n);
	if (n < 1 || n > TESSERA_MAX_KEY_COLUMNS)
		return false;
	for (int i = 0; i < n; i++)
	{
		table->keys[i] = nulls[i] ? InvalidAttrNumber : get_attnum(table->relid, NameStr(*DatumGetName(names[i])));
		if (table->keys[i] <= 0)
			return false;
	}
	table->nkeys = n;
	return true;
}

/* A table that does not exist on this node is left out. */
static void
read_cluster_table(Loader *loader, HeapTuple tuple, TupleDesc desc)
{
	const char *schema = NameStr(*DatumGetName(attribute(tuple, Anum_cluster_table_schema_name, desc)));
	const char *name = NameStr(*DatumGetName(attribute(tuple, Anum_cluster_table_table_name, desc)));
	TesseraTable *table;
	Datum		value;
	bool		null;
	Oid			relid;

	value = heap_getattr(tuple, Anum_cluster_table_relid, desc, &null);
	relid = tessera_resolve_table(null ? InvalidOid : DatumGetObjectId(value), schema, name);
	/* one that was attached with replicate_ddl off still has its row: it is a part of its root all the same */
	if (!OidIsValid(relid) || get_rel_relispartition(relid))
		return;

	GROW(loader->tables, loader->ntables, TesseraTable);
	table = &loader->tables[loader->ntables];
	memset(table, 0, sizeof(*table));
	table->relid = table->root = relid;
	table->table_id = *DatumGetUUIDP(attribute(tuple, Anum_cluster_table_table_id, desc));
	table->group = -1;
	table->placement_group = -1;
	table->node_id = -1;
	table->replicated = DatumGetBool(attribute(tuple, Anum_cluster_table_replicated, desc));
	if (table->replicated && TransactionIdIsNormal(HeapTupleHeaderGetXmin(tuple->t_data)))
		table->replicated_since = HeapTupleHeaderGetXmin(tuple->t_data);
	value = heap_getattr(tuple, Anum_cluster_table_group_id, desc, &null);
	if (null)
	{
		const SchemaHome *home = find_home(loader, schema);

		if (home != NULL)
		{
			table->node_id = home->schema.node_id;
			table->placement_group = home->schema.group;
		}
	}
	else
	{
		TesseraGroup *group = find_group(loader, DatumGetUUIDP(value));
		bool		no_keys;
		Datum		keys = heap_getattr(tuple, Anum_cluster_table_key_columns, desc, &no_keys);

		/* a key that cannot be read: the table counts as one of the cluster on no shard, so this node's rows never pass for the whole table */
		if (group != NULL && !group->of_schema && !no_keys && read_keys(table, keys))
			table->group = table->placement_group = group - loader->groups;
	}
	loader->ntables++;
}

/* The same on every node: a partition has no row of the catalog. */
static pg_uuid_t
partition_id(const pg_uuid_t *root, const char *schema, const char *partition)
{
	const char *name = tessera_quote_qualified(schema, partition);
	pg_uuid_t	id;
	uint64		parts[2];

	memcpy(parts, root->data, sizeof(parts));
	for (int i = 0; i < 2; i++)
		parts[i] = pg_hton64(pg_ntoh64(parts[i]) ^ hash_bytes_extended((const unsigned char *) name, strlen(name), i));
	memcpy(id.data, parts, UUID_LEN);
	return id;
}

/* tessera_internal.partition_id(root uuid, schema_name name, name name) returns uuid */
Datum
tessera_internal_partition_id(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	*id = partition_id(PG_GETARG_UUID_P(0), NameStr(*PG_GETARG_NAME(1)), NameStr(*PG_GETARG_NAME(2)));
	PG_RETURN_UUID_P(id);
}

static void
derive_partition_id(TesseraTable *partition, const TesseraTable *root)
{
	partition->table_id = partition_id(&root->table_id, get_namespace_name(get_rel_namespace(partition->relid)), get_rel_name(partition->relid));
}

/*
 * The key columns of a partition, which has its root's by name: attribute numbers differ where columns were dropped or ordered otherwise. false: one
 * cannot be found.
 */
static bool
take_keys(TesseraTable *partition, const TesseraTable *root)
{
	for (int i = 0; i < root->nkeys; i++)
	{
		char	   *name = get_attname(root->relid, root->keys[i], true);

		partition->keys[i] = name ? get_attnum(partition->relid, name) : InvalidAttrNumber;
		if (partition->keys[i] <= 0)
			return false;
	}
	partition->nkeys = root->nkeys;
	return true;
}

/*
 * Partitions, of all levels, are not rows of the catalog, but statements name them and migrations move them: they live where their root lives, and
 * are of its group (doc/design.md#partitions).
 */
static void
add_partitions(Loader *loader)
{
	int			roots = loader->ntables;

	for (int i = 0; i < roots; i++)
	{
		Oid			root = loader->tables[i].relid;
		ListCell   *cell;

		foreach(cell, tessera_partitions(root, NoLock))
		{
			TesseraTable *partition;

			if (get_rel_name(lfirst_oid(cell)) == NULL)
				continue;
			GROW(loader->tables, loader->ntables, TesseraTable);
			partition = &loader->tables[loader->ntables++];
			memset(partition, 0, sizeof(*partition));
			partition->relid = lfirst_oid(cell);
			partition->root = root;
			partition->group = partition->placement_group = partition->node_id = -1;
			derive_partition_id(partition, &loader->tables[i]);
			/* as of a table whose key cannot be read: on no shard */
			if (loader->tables[i].group >= 0 && !take_keys(partition, &loader->tables[i]))
				continue;
			partition->group = loader->tables[i].group;
			partition->placement_group = loader->tables[i].placement_group;
			partition->node_id = loader->tables[i].node_id;
		}
	}
}

static void
read_placements(Loader *loader)
{
	int			n;
	TesseraPlacementRow **rows = tessera_placement_read_all(loader->snapshot, &n);

	loader->placements = palloc0(Max(loader->ngroups, 1) * sizeof(TesseraPlacement *));
	for (int i = 0; i < n; i++)
	{
		TesseraGroup *group = find_group(loader, &rows[i]->group_id);
		TesseraKeySpace *ks = group ? tessera_group_keyspace_if_any(group) : NULL;

		if (ks != NULL)
			loader->placements[group - loader->groups] = tessera_placement_image(rows[i], ks, loader->oldest);
	}
}

/*
 * The map of the previous image that a group's map can be made from: sound, and not of another epoch or term, in which the same version may mean
 * other chunks. NULL: none.
 */
static const TesseraChunkMap *
previous_map(Loader *loader, const TesseraGroup *group, const TesseraGroup *known)
{
	const TesseraChunkMap *old = known && DsaPointerIsValid(known->map_shared) ? tessera_group_map(known) : NULL;

	if (old == NULL || !old->sound || old->term != loader->image.routing.term || memcmp(&old->epoch, &group->epoch, sizeof(pg_uuid_t)) != 0)
		return NULL;
	return old;
}

static void
load_maps(Loader *loader)
{
	for (int i = 0; i < loader->ngroups; i++)
	{
		TesseraGroup *group = &loader->groups[i];
		TesseraKeySpace *ks = tessera_group_keyspace_if_any(group);
		const TesseraGroup *known = loader->previous ? tessera_routing_group_by_id(&loader->previous->routing, &group->group_id) : NULL;
		const TesseraChunkMap *old = previous_map(loader, group, known);
		MemoryContext work;
		MemoryContext caller;

		if (ks == NULL)
			continue;
		if (old != NULL && old->group_major == group->group_major && old->group_minor == group->group_minor)
		{
			group->map_shared = known->map_shared;
			continue;
		}
		/* never back to an older version by patching */
		if (old != NULL && (old->group_major > group->group_major ||
							(old->group_major == group->group_major && old->group_minor > group->group_minor)))
			old = NULL;

		work = AllocSetContextCreate(CurrentMemoryContext, "tessera chunk map", ALLOCSET_DEFAULT_SIZES);
		caller = MemoryContextSwitchTo(work);
		group->map_private = tessera_chunk_map_load(group, loader->image.routing.term, ks, old, loader->snapshot, loader->result);
		MemoryContextSwitchTo(caller);
		MemoryContextDelete(work);
	}
}

/*
 * The home of a schema that has a group is the owner of its chunk: where statements go and the version that is told for it come from one source,
 * whatever a refresh has brought so far.
 */
static void
place_by_chunks(Loader *loader)
{
	int32	   *owners = palloc(Max(loader->ngroups, 1) * sizeof(int32));

	for (int i = 0; i < loader->ngroups; i++)
	{
		const TesseraChunkMap *map = loader->groups[i].of_schema ? tessera_group_map(&loader->groups[i]) : NULL;

		owners[i] = map != NULL && map->sound && map->nchunks == 1 ? TESSERA_PAGE_OWNERS(tessera_map_page(map, 0))[0].node_id : -1;
	}
	for (int i = 0; i < loader->nhomes; i++)
		if (loader->homes[i].schema.group >= 0)
			loader->homes[i].schema.node_id = owners[loader->homes[i].schema.group];
	for (int i = 0; i < loader->ntables; i++)
		if (loader->tables[i].group < 0 && loader->tables[i].placement_group >= 0)
			loader->tables[i].node_id = owners[loader->tables[i].placement_group];
}


/* Laying out */

static const TesseraTable *tables_by_id;

static int
compare_positions(const void *a, const void *b)
{
	return compare_uuids(&tables_by_id[*(const int32 *) a].table_id, &tables_by_id[*(const int32 *) b].table_id);
}

/* Appends bytes at an aligned place; returns the offset. */
static Size
append(StringInfo block, const void *data, Size size)
{
	static const char zeros[MAXIMUM_ALIGNOF] = {0};
	Size		offset;

	appendBinaryStringInfo(block, zeros, MAXALIGN(block->len) - block->len);
	offset = block->len;
	if (size > 0)
		appendBinaryStringInfo(block, data, size);
	return offset;
}

static TesseraImage *
lay_out(Loader *loader)
{
	TesseraRouting *routing = &loader->image.routing;
	int32	   *by_id = palloc(Max(loader->ntables, 1) * sizeof(int32));
	StringInfoData block;
	TesseraImage *image;

	initStringInfo(&block);
	append(&block, &loader->image, sizeof(TesseraImage));
	for (int i = 0; i < loader->nnodes; i++)
	{
		const char *conninfo = loader->conninfos[loader->nodes[i].conninfo_offset];

		loader->nodes[i].conninfo_offset = append(&block, conninfo, strlen(conninfo) + 1);
	}
	for (int i = 0; i < loader->ngroups; i++)
	{
		loader->groups[i].index = i;
		if (loader->placements[i] != NULL)
			loader->groups[i].placement_offset = append(&block, loader->placements[i], loader->placements[i]->size);
	}
	for (int i = 0; i < loader->ntables; i++)
		by_id[i] = i;
	tables_by_id = loader->tables;
	qsort(by_id, loader->ntables, sizeof(int32), compare_positions);

	routing->nnodes = loader->nnodes;
	routing->ntables = loader->ntables;
	for (int i = 0; i < loader->ntables; i++)
		routing->nreplicated += loader->tables[i].replicated;
	routing->ngroups = loader->ngroups;
	routing->nodes_offset = append(&block, loader->nodes, loader->nnodes * sizeof(TesseraNode));
	routing->tables_offset = append(&block, loader->tables, loader->ntables * sizeof(TesseraTable));
	loader->image.by_id_offset = append(&block, by_id, loader->ntables * sizeof(int32));
	routing->groups_offset = append(&block, loader->groups, loader->ngroups * sizeof(TesseraGroup));
	routing->nschemas = loader->nhomes;
	routing->schemas_offset = append(&block, NULL, 0);
	for (int i = 0; i < loader->nhomes; i++)
		appendBinaryStringInfo(&block, (const char *) &loader->homes[i].schema, sizeof(TesseraSchema));
	append(&block, NULL, 0);
	routing->size = block.len;

	image = MemoryContextAlloc(loader->result, block.len);
	memcpy(image, block.data, block.len);
	*image = loader->image;
	return image;
}

/* The same table by relid and by name can only be there once; keep the first. */
static void
unique_tables(Loader *loader)
{
	int			n = 0;

	qsort(loader->tables, loader->ntables, sizeof(TesseraTable), compare_tables);
	for (int i = 0; i < loader->ntables; i++)
		if (n == 0 || loader->tables[n - 1].relid != loader->tables[i].relid)
			loader->tables[n++] = loader->tables[i];
	loader->ntables = n;
}

/* A registry that lacks this node is that of a cluster without it: the config node's own lists all, and that of a node which joins has its row. */
static bool
is_removed(const Loader *loader)
{
	for (int i = 0; i < loader->nnodes; i++)
		if (loader->nodes[i].node_id == loader->image.routing.self)
			return false;
	return loader->nnodes > 0 && !loader->image.routing.is_config;
}

static TesseraImage *
load(Loader *loader)
{
	Oid			relid = tessera_catalog_relid(TESSERA_PLACEMENT);
	Relation	rel;

	if (!read_table(loader, TESSERA_IDENTITY, read_identity) || loader->image.routing.size == 0)
		return NULL;
	/* DROP EXTENSION in this transaction: the tables go one by one */
	if (!OidIsValid(relid) || (rel = try_table_open(relid, AccessShareLock)) == NULL)
		return NULL;
	loader->oldest = GetOldestNonRemovableTransactionId(rel);
	table_close(rel, AccessShareLock);
	loader->image.routing.known_since = tessera_image_xid(loader->image.routing.known_since, loader->oldest);

	if (!read_table(loader, TESSERA_NODE, read_node) || !read_table(loader, TESSERA_SCHEMA_PLACEMENT, read_home) ||
		!read_table(loader, TESSERA_TABLE_GROUP, read_group) || !read_table(loader, TESSERA_ADVISORY_HOME, read_advisory_home))
		return NULL;
	loader->image.routing.removed = is_removed(loader);
	qsort(loader->nodes, loader->nnodes, sizeof(TesseraNode), compare_nodes);
	qsort(loader->homes, loader->nhomes, sizeof(SchemaHome), compare_homes);
	qsort(loader->groups, loader->ngroups, sizeof(TesseraGroup), compare_groups);
	find_groups_of_schemas(loader);
	if (!read_table(loader, TESSERA_CLUSTER_TABLE, read_cluster_table))
		return NULL;
	add_partitions(loader);
	unique_tables(loader);
	read_placements(loader);
	load_maps(loader);
	place_by_chunks(loader);
	return lay_out(loader);
}

TesseraImage *
tessera_image_load(const TesseraImage *previous)
{
	Loader		loader = {0};
	MemoryContext work;
	TesseraImage *image;

	if (!tessera_extension_exists())
		return NULL;

	loader.previous = previous;
	loader.result = CurrentMemoryContext;
	loader.image.in_recovery = RecoveryInProgress();
	work = AllocSetContextCreate(CurrentMemoryContext, "tessera routing loader", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(work);
	loader.snapshot = tessera_catalog_snapshot();
	image = load(&loader);
	UnregisterSnapshot(loader.snapshot);
	MemoryContextSwitchTo(loader.result);
	MemoryContextDelete(work);
	return image;
}
