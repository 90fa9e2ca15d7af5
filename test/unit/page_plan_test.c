/*
 * page_plan_test.c
 *	  Which pages of a chunk map are written anew: single cases, then random changes against an array of chunks, with the promises of page_plan.h.
 */
#include <stdlib.h>
#include <string.h>

#include "routing/page_plan.h"

#include "tap.h"

#define CHUNKS 200000
#define PAGES (CHUNKS / 16)
#define EDITS 64

/* A map: each chunk is a number that no other one has. */
typedef struct Map
{
	int32_t		npages;
	int32_t		starts[PAGES + 1];
	int32_t		chunks[CHUNKS];
} Map;

static Map map;
static Map next;
static int32_t last_chunk;
static TesseraPageEdit edits[EDITS];
static TesseraPageRun runs[EDITS];
static int32_t nruns;
static int32_t written;			/* pages that the last change wrote */

static void
add_pages(const TesseraPageRun *run)
{
	for (int32_t i = 0; i < run->npages; i++, next.npages++)
		next.starts[next.npages + 1] = next.starts[next.npages] + tessera_page_run_size(run, i);
}

static void
begin(int32_t nchunks)
{
	TesseraPageRun run = tessera_page_plan_whole(nchunks);

	next.npages = 0;
	next.starts[0] = 0;
	add_pages(&run);
	map = next;
	for (int32_t i = 0; i < nchunks; i++)
		map.chunks[i] = ++last_chunk;
}

static void
keep_pages(int32_t from, int32_t to)
{
	for (int32_t i = from; i < to; i++, next.npages++)
		next.starts[next.npages + 1] = next.starts[next.npages] + map.starts[i + 1] - map.starts[i];
}

/* The new chunks, by the edits alone. */
static int32_t
edit_chunks(int32_t nedits)
{
	int32_t		from = 0;
	int32_t		n = 0;

	for (int32_t i = 0; i < nedits; i++)
	{
		while (from < edits[i].from)
			next.chunks[n++] = map.chunks[from++];
		for (int32_t j = 0; j < edits[i].n; j++)
			next.chunks[n++] = ++last_chunk;
		from = edits[i].to;
	}
	while (from < map.starts[map.npages])
		next.chunks[n++] = map.chunks[from++];
	return n;
}

/* True if a page that is kept has the chunks that it had. */
static bool
kept_alike(int32_t old, int32_t new)
{
	int32_t		size = map.starts[old + 1] - map.starts[old];

	return next.starts[new + 1] - next.starts[new] == size &&
		memcmp(map.chunks + map.starts[old], next.chunks + next.starts[new], size * sizeof(int32_t)) == 0;
}

/* Does the edits by the plan. False if a promise is broken. */
static bool
change(int32_t nedits)
{
	int32_t		n = edit_chunks(nedits);
	int32_t		old = 0;
	bool		good = true;

	nruns = tessera_page_plan(map.npages, map.starts, nedits, edits, runs);
	next.npages = 0;
	next.starts[0] = 0;
	written = 0;
	for (int32_t i = 0; i < nruns; i++)
	{
		good = good && runs[i].from >= old && runs[i].from < runs[i].to && (i == 0 || runs[i].from > runs[i - 1].to);
		keep_pages(old, runs[i].from);
		for (int32_t j = 1; j <= runs[i].from - old; j++)
			good = good && kept_alike(runs[i].from - j, next.npages - j);
		add_pages(&runs[i]);
		written += runs[i].npages;
		old = runs[i].to;
	}
	keep_pages(old, map.npages);
	for (int32_t j = 1; j <= map.npages - old; j++)
		good = good && kept_alike(map.npages - j, next.npages - j);

	good = good && next.starts[next.npages] == n;
	for (int32_t i = 0; i < next.npages; i++)
	{
		int32_t		size = next.starts[i + 1] - next.starts[i];

		good = good && size <= TESSERA_PAGE_MAX && (size >= TESSERA_PAGE_MIN || (next.npages == 1 && size > 0));
	}
	map = next;
	return good;
}

static void
one(int32_t from, int32_t to, int32_t n)
{
	edits[0] = (TesseraPageEdit) {from, to, n};
}

static void
single_cases(void)
{
	begin(0);
	check(map.npages == 0, "no chunks, no pages");
	begin(1);
	one(0, 1, 2);
	check(map.npages == 1 && change(1) && map.npages == 1 && map.starts[1] == 2, "the only chunk is split");
	one(0, 2, 1);
	check(change(1) && map.npages == 1 && map.starts[1] == 1, "and merged again");
	one(0, 1, 5000);
	check(change(1) && map.npages == 10, "one chunk becomes many: several pages");
	begin(100000);
	check(change(0) && nruns == 0 && map.npages == 261, "no edits: all stays");
	one(50000, 50001, 2);
	check(change(1) && written == 1, "a split writes one page");
	one(0, 1, 2);
	check(change(1) && written == 1 && runs[0].from == 0, "at the beginning, too");
	one(100001, 100002, 2);
	check(change(1) && written == 1 && runs[0].to == map.npages, "and at the end");
	one(map.starts[7] - 1, map.starts[7] + 1, 1);
	check(change(1) && nruns == 1 && written == 2, "a merge across a border writes two");
	one(0, map.starts[map.npages], 1);
	check(change(1) && map.npages == 1 && map.starts[1] == 1, "all become one");

	begin(TESSERA_PAGE_FILL * 10);
	one(map.starts[4], map.starts[5], 1);
	check(change(1) && map.npages == 9 && written == 1, "a page that is nearly empty joins its neighbour");
	begin(TESSERA_PAGE_FILL * 10);
	edits[0] = (TesseraPageEdit) {map.starts[2], map.starts[3], 1};
	edits[1] = (TesseraPageEdit) {map.starts[4], map.starts[5], 1};
	check(change(2) && nruns == 1 && runs[0].from == 1 && runs[0].to == 5, "runs that meet become one");
	begin(TESSERA_PAGE_FILL * 10);
	one(0, map.starts[1], 1);
	check(change(1) && runs[0].from == 0 && runs[0].to == 2, "the first page joins the one behind it");
}

static int
below(int n)
{
	return (int) (random() % n);
}

/* Some edits, ascending. */
static int32_t
random_edits(void)
{
	int32_t		n = 0;
	int32_t		at = 0;
	int32_t		total = map.starts[map.npages];
	int			wanted = 1 + below(below(4) == 0 ? EDITS : 3);
	int			growth = total < 100 ? 3 : total > CHUNKS - 50000 ? 0 : below(3);

	while (n < wanted)
	{
		int32_t		from = at + below(below(3) == 0 ? 3 : total / wanted + 1);
		int32_t		to = from + 1 + below(growth == 0 && below(4) == 0 ? 700 : 3);

		if (to > total)
			break;
		edits[n++] = (TesseraPageEdit) {from, to, 1 + below(growth == 3 || (growth == 2 && below(6) == 0) ? 700 : growth == 0 ? 1 : 3)};
		at = to;
	}
	return n;
}

static void
random_changes(void)
{
	bool		good = true;
	bool		few = true;

	srandom(7);
	for (int round = 0; round < 8; round++)
	{
		begin(1 + below(round % 2 == 0 ? 30 : 60000));
		for (int i = 0; i < 300 && good; i++)
		{
			int32_t		n = random_edits();
			int32_t		pages = 0;

			/* what the edits touch and bring, a neighbour each, and what those are divided into */
			for (int32_t j = 0; j < n; j++)
				pages += 5 + (edits[j].to - edits[j].from) / TESSERA_PAGE_MIN + edits[j].n / TESSERA_PAGE_MIN;
			good = change(n);
			few = few && written <= pages;
		}
	}
	check(good, "random changes keep every promise");
	check(few, "and write few pages");
}

int
main(void)
{
	single_cases();
	random_changes();
	return finish();
}
