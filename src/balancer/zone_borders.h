/*
 * zone_borders.h
 *	  Chunks are split where a zone's range begins or ends (S95).
 */
#ifndef TESSERA_ZONE_BORDERS_H
#define TESSERA_ZONE_BORDERS_H

#include "postgres.h"

/* Splits them, but for those that a migration is in the way of: they are split in a later round. Outside of a transaction. */
extern void tessera_split_at_zone_borders(void);

#endif							/* TESSERA_ZONE_BORDERS_H */
