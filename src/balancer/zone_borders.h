/*
 * zone_borders.h
 *	  Chunks are split where a zone's range begins or ends (S95).
 */
#ifndef TESSERA_ZONE_BORDERS_H
#define TESSERA_ZONE_BORDERS_H

#include "postgres.h"

/* Splits them; returns how many are left, as a migration is in the way. Outside of a transaction. */
extern int	tessera_split_at_zone_borders(void);

#endif							/* TESSERA_ZONE_BORDERS_H */
