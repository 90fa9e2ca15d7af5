/*
 * shared_image.c
 *	  Routing images in the DSA area: copied there, and freed. routing.c says who may see them.
 *
 * Three kinds of blocks: the image, its groups' chunk maps, their pages, each page with a block for its count. An image has one reference to each of
 * its maps, a map one to each of its pages; who takes the last one away frees the block. References are only added by who has pinned an image that
 * holds one, so a block whose count has come to zero is nobody's.
 *
 * Errors: the server may refuse memory by an error, and raise it with the DSA area's own locks held. So whoever catches one here lets go of all
 * LWLocks before it goes on, else this backend would wait for itself.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "common/injection.h"
#include "common/shmem.h"
#include "routing/image.h"

#ifdef TESSERA_TESTS
#include <sys/resource.h>
#endif

/* Blocks copied so far, to be given back if the rest finds no room. */
typedef struct Sharing
{
	dsa_area   *area;
	pg_atomic_uint32 *pages;
	dsa_pointer image;			/* its groups name the maps that it holds a reference to */
	dsa_pointer map;			/* being made: its directory names the pages that it holds a reference to */
} Sharing;


/* Freeing */

/* A directory's references, each forgotten before it is given back: what an error stops does not happen twice. */
static void
drop_pages(dsa_area *area, TesseraChunkMap *map, pg_atomic_uint32 *pages)
{
	for (int32 i = 0; i < map->npages; i++)
	{
		TesseraPageRef *ref = &TESSERA_MAP_PAGES(map)[i];
		TesseraPageRef page = *ref;

		ref->shared = ref->references = InvalidDsaPointer;
		if (!DsaPointerIsValid(page.references))
			continue;
		/* without a page: there was no room for it */
		if (DsaPointerIsValid(page.shared))
		{
			if (pg_atomic_sub_fetch_u32(dsa_get_address(area, page.references), 1) > 0)
				continue;
			pg_atomic_fetch_sub_u32(pages, 1);
			dsa_free(area, page.shared);
		}
		dsa_free(area, page.references);
	}
}

static void
drop_maps(dsa_area *area, TesseraImage *image, pg_atomic_uint32 *pages)
{
	TesseraGroup *groups = TESSERA_AT(image, image->routing.groups_offset, TesseraGroup);

	for (int i = 0; i < image->routing.ngroups; i++)
	{
		dsa_pointer pointer = groups[i].map_shared;
		TesseraChunkMap *map;

		if (!DsaPointerIsValid(pointer))
			continue;
		map = dsa_get_address(area, pointer);
		/* the last one keeps its reference until the pages are gone */
		if (pg_atomic_read_u32(&map->references) > 1 && pg_atomic_fetch_sub_u32(&map->references, 1) > 1)
		{
			groups[i].map_shared = InvalidDsaPointer;
			continue;
		}
		drop_pages(area, map, pages);
		groups[i].map_shared = InvalidDsaPointer;
		dsa_free(area, pointer);
	}
}

void
tessera_image_free(dsa_pointer pointer, pg_atomic_uint32 *pages)
{
	dsa_area   *area = tessera_dsa();

	PG_TRY();
	{
		drop_maps(area, dsa_get_address(area, pointer), pages);
		dsa_free(area, pointer);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		PG_RE_THROW();
	}
	PG_END_TRY();
}


/* Sharing */

#ifdef TESSERA_TESTS
/* The server refuses memory as it does when there is none: by an error, in the middle of things. */
static void
ask_in_vain(dsa_area *area)
{
	struct rlimit before;
	struct rlimit none;

	if (getrlimit(RLIMIT_FSIZE, &before) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read a limit of the process: %m")));
	none = before;
	none.rlim_cur = 0;
	PG_TRY();
	{
		(void) setrlimit(RLIMIT_FSIZE, &none);
		(void) dsa_allocate_extended(area, (Size) 1 << 30, DSA_ALLOC_HUGE);
	}
	PG_FINALLY();
	{
		(void) setrlimit(RLIMIT_FSIZE, &before);
	}
	PG_END_TRY();
}
#endif

/* Copies a block into shared memory; InvalidDsaPointer if there is no room. */
static dsa_pointer
share(dsa_area *area, const void *block, Size size)
{
	dsa_pointer pointer = dsa_allocate_extended(area, size, DSA_ALLOC_HUGE | DSA_ALLOC_NO_OOM);

	if (DsaPointerIsValid(pointer))
		memcpy(dsa_get_address(area, pointer), block, size);
	return pointer;
}

/* A shared copy of a private page, held once; false if there is no room. */
static bool
copy_page(Sharing *sharing, TesseraPageRef *ref, const TesseraChunkPage *private)
{
	pg_atomic_uint32 once;
	dsa_pointer page;

	pg_atomic_init_u32(&once, 1);
	ref->references = share(sharing->area, &once, sizeof(once));
	if (!DsaPointerIsValid(ref->references))
		return false;
	/* if there is no room now, the directory names the count: it is given back with the rest */
	page = share(sharing->area, private, private->size);
	if (!DsaPointerIsValid(page))
		return false;
	pg_atomic_fetch_add_u32(sharing->pages, 1);
	ref->shared = page;
	return true;
}

/* One more map holds the page; a private one is copied. */
static bool
share_page(Sharing *sharing, TesseraPageRef *ref, const TesseraPageRef *from)
{
	if (!DsaPointerIsValid(from->shared))
		return copy_page(sharing, ref, from->private);
	pg_atomic_fetch_add_u32(dsa_get_address(sharing->area, from->references), 1);
	ref->references = from->references;
	ref->shared = from->shared;
	return true;
}

/* Shares a private map, with one reference. */
static bool
share_map(Sharing *sharing, const TesseraChunkMap *private)
{
	TesseraChunkMap *map;
	TesseraPageRef *refs;

	sharing->map = share(sharing->area, private, private->size);
	if (!DsaPointerIsValid(sharing->map))
		return false;
	map = dsa_get_address(sharing->area, sharing->map);
	refs = TESSERA_MAP_PAGES(map);
	memset(refs, 0, map->npages * sizeof(TesseraPageRef));
	pg_atomic_write_u32(&map->references, 1);
	for (int32 i = 0; i < private->npages; i++)
		if (!share_page(sharing, &refs[i], &TESSERA_MAP_PAGES(private)[i]))
			return false;
#ifdef TESSERA_TESTS
	if (tessera_injection_skips("shared_image_room"))
		ask_in_vain(sharing->area);
#endif
	return true;
}

static bool
share_image(Sharing *sharing, const TesseraImage *private)
{
	const TesseraGroup *from = TESSERA_AT(private, private->routing.groups_offset, const TesseraGroup);
	TesseraImage *image;
	TesseraGroup *groups;

	sharing->image = share(sharing->area, private, private->routing.size);
	if (!DsaPointerIsValid(sharing->image))
		return false;
	image = dsa_get_address(sharing->area, sharing->image);
	image->shared = true;
	groups = TESSERA_AT(image, image->routing.groups_offset, TesseraGroup);
	for (int i = 0; i < image->routing.ngroups; i++)
	{
		groups[i].map_shared = InvalidDsaPointer;
		groups[i].map_private = NULL;
	}
	for (int i = 0; i < image->routing.ngroups; i++)
	{
		if (from[i].map_private != NULL)
		{
			if (!share_map(sharing, from[i].map_private))
				return false;
			groups[i].map_shared = sharing->map;
			sharing->map = InvalidDsaPointer;
		}
		else if (DsaPointerIsValid(from[i].map_shared))
		{
			pg_atomic_fetch_add_u32(&((TesseraChunkMap *) dsa_get_address(sharing->area, from[i].map_shared))->references, 1);
			groups[i].map_shared = from[i].map_shared;
		}
	}
	return true;
}

static void
give_back(Sharing *sharing)
{
	if (DsaPointerIsValid(sharing->map))
	{
		drop_pages(sharing->area, dsa_get_address(sharing->area, sharing->map), sharing->pages);
		dsa_free(sharing->area, sharing->map);
	}
	if (DsaPointerIsValid(sharing->image))
		tessera_image_free(sharing->image, sharing->pages);
}

dsa_pointer
tessera_image_share(const TesseraImage *image, pg_atomic_uint32 *pages)
{
	MemoryContext caller = CurrentMemoryContext;
	/* read after an error: not to be kept in registers */
	Sharing	   *volatile sharing = palloc0(sizeof(Sharing));
	volatile bool done = false;

	sharing->area = tessera_dsa();
	sharing->pages = pages;
	PG_TRY();
	{
		done = share_image(sharing, image);
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		LWLockReleaseAll();
		MemoryContextSwitchTo(caller);
		give_back(sharing);
		if (ERRCODE_TO_CATEGORY(code) != ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		FlushErrorState();
		return InvalidDsaPointer;
	}
	PG_END_TRY();
	if (!done)
	{
		give_back(sharing);
		return InvalidDsaPointer;
	}
	return sharing->image;
}
