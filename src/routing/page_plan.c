/*
 * page_plan.c
 *	  Which pages of a chunk map are written anew; see page_plan.h.
 *
 * The pages that edits touch are written anew, neighbours among them as one run. A run with less than a page's worth takes the page before it in, or
 * the one behind it; runs that meet by that become one. So all pages but the only one of a small map have at least TESSERA_PAGE_MIN chunks, and a
 * change costs a few pages however many there are.
 */
#include "routing/page_plan.h"

static int32_t
divide(int32_t n, int32_t size)
{
	return n / size + (n % size > 0);
}

/* The page that holds an old chunk. */
static int32_t
page_of(int32_t npages, const int32_t *starts, int32_t chunk)
{
	int32_t		low = 0;
	int32_t		high = npages - 1;

	while (low < high)
	{
		int32_t		middle = low + (high - low + 1) / 2;

		if (starts[middle] <= chunk)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/* The pages that each edit touches; edits that touch the same page are one run. */
static int32_t
touched(int32_t npages, const int32_t *starts, int32_t nedits, const TesseraPageEdit *edits, TesseraPageRun *runs)
{
	int32_t		n = 0;

	for (int32_t i = 0; i < nedits; i++)
	{
		int32_t		from = page_of(npages, starts, edits[i].from);
		int32_t		to = page_of(npages, starts, edits[i].to - 1) + 1;

		if (n == 0 || from > runs[n - 1].to)
		{
			runs[n].from = from;
			runs[n].to = to;
			runs[n].nchunks = starts[to] - starts[from];
			n++;
		}
		else if (to > runs[n - 1].to)
		{
			runs[n - 1].nchunks += starts[to] - starts[runs[n - 1].to];
			runs[n - 1].to = to;
		}
		runs[n - 1].nchunks += edits[i].n - (edits[i].to - edits[i].from);
	}
	return n;
}

/* Takes run i + 1, which begins where run i ends, into run i. */
static int32_t
join(int32_t n, TesseraPageRun *runs, int32_t i)
{
	runs[i].to = runs[i + 1].to;
	runs[i].nchunks += runs[i + 1].nchunks;
	for (int32_t j = i + 1; j < n - 1; j++)
		runs[j] = runs[j + 1];
	return n - 1;
}

int32_t
tessera_page_plan(int32_t npages, const int32_t *starts, int32_t nedits, const TesseraPageEdit *edits, TesseraPageRun *runs)
{
	int32_t		n = touched(npages, starts, nedits, edits, runs);
	int32_t		i = 0;

	while (i < n)
	{
		TesseraPageRun *run = &runs[i];

		if (i + 1 < n && run->to == runs[i + 1].from)
			n = join(n, runs, i);
		else if (run->nchunks >= TESSERA_PAGE_MIN || (run->from == 0 && run->to == npages))
			i++;
		else if (run->from > 0)
		{
			run->from--;
			run->nchunks += starts[run->from + 1] - starts[run->from];
			if (i > 0 && runs[i - 1].to == run->from)
				n = join(n, runs, --i);
		}
		else
		{
			run->nchunks += starts[run->to + 1] - starts[run->to];
			run->to++;
		}
	}
	for (i = 0; i < n; i++)
		runs[i].npages = divide(runs[i].nchunks, TESSERA_PAGE_MAX);
	return n;
}

TesseraPageRun
tessera_page_plan_whole(int32_t nchunks)
{
	TesseraPageRun run = {0, 0, nchunks, divide(nchunks, TESSERA_PAGE_FILL)};

	return run;
}

int32_t
tessera_page_run_size(const TesseraPageRun *run, int32_t i)
{
	return (int32_t) ((int64_t) run->nchunks * (i + 1) / run->npages - (int64_t) run->nchunks * i / run->npages);
}
