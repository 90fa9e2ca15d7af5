/*
 * keyspace.c
 *	  Key spaces of table groups, cached in each backend by group and epoch.
 *
 * A key never changes within an epoch, but a type may be dropped and made again with the tables that use it: an entry whose types differ is replaced.
 * Old key spaces are kept, as plans may point to them. Memory: one context below TopMemoryContext, until the backend exits.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "parser/parse_type.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "common/version_compat.h"
#include "routing/image.h"

typedef struct KeySpaceTag
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
} KeySpaceTag;

typedef struct KeySpaceEntry
{
	KeySpaceTag tag;			/* hash key, first */
	TesseraKeySpace *ks;
	bool		hashed;
	int			ncolumns;
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	Oid			collations[TESSERA_MAX_KEY_COLUMNS];
} KeySpaceEntry;

static HTAB *cache = NULL;
static MemoryContext cache_context = NULL;


static void
make_cache(void)
{
	HASHCTL		control;

	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext, "tessera key spaces", ALLOCSET_SMALL_SIZES);
	control.keysize = sizeof(KeySpaceTag);
	control.entrysize = sizeof(KeySpaceEntry);
	control.hcxt = cache_context;
	cache = hash_create("tessera key spaces", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

bool
tessera_group_key_exists(const TesseraGroup *group)
{
	for (int i = 0; i < group->ncolumns; i++)
		if (!get_typisdefined(group->types[i]) ||
			(OidIsValid(group->collations[i]) && !SearchSysCacheExists1(COLLOID, ObjectIdGetDatum(group->collations[i]))))
			return false;
	return true;
}

/* NULL: something of the key was dropped, by this transaction or by one that has committed, with the table. */
static TesseraKeySpace *
create_keyspace(const TesseraGroup *group)
{
	AcceptInvalidationMessages();
	if (!tessera_group_key_exists(group))
		return NULL;
	return tessera_keyspace_create(cache_context, group->hashed, group->ncolumns, group->types, group->typmods, group->collations);
}

TesseraKeySpace *
tessera_group_keyspace_if_any(const TesseraGroup *group)
{
	static KeySpaceEntry *last = NULL;	/* entries stay where they are */
	KeySpaceTag tag;
	KeySpaceEntry *entry;
	TesseraKeySpace *ks;
	bool		found;

	if (group->ncolumns == 0 && !group->of_schema)
		return NULL;
	if (cache == NULL)
		make_cache();

	tag.group_id = group->group_id;
	tag.epoch = group->epoch;
	if (last == NULL || memcmp(&last->tag, &tag, sizeof(KeySpaceTag)) != 0)
		last = hash_search(cache, &tag, HASH_FIND, NULL);
	entry = last;
	if (entry != NULL && entry->hashed == group->hashed && entry->ncolumns == group->ncolumns &&
		memcmp(entry->types, group->types, group->ncolumns * sizeof(Oid)) == 0 &&
		memcmp(entry->collations, group->collations, group->ncolumns * sizeof(Oid)) == 0)
		return entry->ks;

	/* may error: nothing is entered before */
	ks = create_keyspace(group);
	if (ks == NULL)
		return NULL;
	entry = hash_search(cache, &tag, HASH_ENTER, &found);
	entry->ks = ks;
	entry->hashed = group->hashed;
	entry->ncolumns = group->ncolumns;
	memcpy(entry->types, group->types, sizeof(entry->types));
	memcpy(entry->collations, group->collations, sizeof(entry->collations));
	return ks;
}

TesseraKeySpace *
tessera_group_keyspace(const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraKeySpace *ks = tessera_group_keyspace_if_any(group);

	if (ks == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("a type or collation of the shard key does not exist on this node"),
				 errhint("Make the schema of this node like that of the other nodes, then run tessera.reload_routing().")));
	return ks;
}

void
tessera_group_resolve_key(TesseraGroup *group, int ncolumns, char **types, char **collations)
{
	group->ncolumns = 0;
	if (ncolumns < 1 || ncolumns > TESSERA_MAX_KEY_COLUMNS)
		return;
	for (int i = 0; i < ncolumns; i++)
	{
		tessera_parse_type(types[i], &group->types[i], &group->typmods[i]);
		if (!OidIsValid(group->types[i]))
			return;
		group->collations[i] = InvalidOid;
		if (collations[i] == NULL || collations[i][0] == '\0')
			continue;
		group->collations[i] = get_collation_oid(tessera_names_of(collations[i]), true);
		if (!OidIsValid(group->collations[i]))
			return;
	}
	group->ncolumns = ncolumns;
}
