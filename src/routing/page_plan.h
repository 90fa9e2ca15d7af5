/*
 * page_plan.h
 *	  Which pages of a chunk map stay as they are when some of its chunks are replaced, and how large the ones are that are written anew. Pure: no
 *	  server, no memory of its own, so that a unit test can try it on anything.
 */
#ifndef TESSERA_PAGE_PLAN_H
#define TESSERA_PAGE_PLAN_H

#include <stdint.h>

/* Chunks of a page. One that would have more is divided, one that would have fewer takes its neighbours in. */
#define TESSERA_PAGE_MAX 512
#define TESSERA_PAGE_MIN 128
/* of a map that is made from nothing: there is room for splits */
#define TESSERA_PAGE_FILL 384

/* Old chunks from `from` to before `to` (at least one) give way to n new ones. */
typedef struct TesseraPageEdit
{
	int32_t		from;
	int32_t		to;
	int32_t		n;
} TesseraPageEdit;

/* Old pages from `from` to before `to` give way to npages new ones, which hold nchunks chunks in all, shared out evenly. */
typedef struct TesseraPageRun
{
	int32_t		from;
	int32_t		to;
	int32_t		nchunks;
	int32_t		npages;
} TesseraPageRun;

/*
 * The runs for some edits, ascending and apart. starts[i]: chunks before old page i; starts[npages]: all. edits ascend and do not overlap. `runs` has
 * room for one per edit. Returns their number; what lies between them stays.
 */
extern int32_t tessera_page_plan(int32_t npages, const int32_t *starts, int32_t nedits, const TesseraPageEdit *edits, TesseraPageRun *runs);

/* The one run of a map made from nothing. */
extern TesseraPageRun tessera_page_plan_whole(int32_t nchunks);

/* Chunks of page i (0 .. npages - 1) of a run. */
extern int32_t tessera_page_run_size(const TesseraPageRun *run, int32_t i);

#endif							/* TESSERA_PAGE_PLAN_H */
