/*
 * placement_ranges.h
 *	  Lists of ranges of a placement row: what is in them, and adding and taking away a range.
 *
 * Bounds stay in their catalog form; comparisons are typed. Results are in the current memory context, bounds of the arguments are shared.
 */
#ifndef TESSERA_PLACEMENT_RANGES_H
#define TESSERA_PLACEMENT_RANGES_H

#include "catalog/key.h"
#include "catalog/placement.h"

/* cover: true if the ranges together hold all of `range`. overlap: true if they hold any part of it. */
extern bool tessera_ranges_cover(TesseraKeySpace *ks, int n, const TesseraRange *ranges, const TesseraRange *range);
extern bool tessera_ranges_overlap(TesseraKeySpace *ks, int n, const TesseraRange *ranges, const TesseraRange *range);

/* The ranges with range added (sorted; touching ones joined), or without it. */
extern void tessera_ranges_add(TesseraKeySpace *ks, int *n, TesseraRange **ranges, const TesseraRange *range);
extern void tessera_ranges_remove(TesseraKeySpace *ks, int *n, TesseraRange **ranges, const TesseraRange *range);

#endif							/* TESSERA_PLACEMENT_RANGES_H */
