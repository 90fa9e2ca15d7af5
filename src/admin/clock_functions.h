/*
 * clock_functions.h
 *	  Cluster times as users see them.
 */
#ifndef TESSERA_CLOCK_FUNCTIONS_H
#define TESSERA_CLOCK_FUNCTIONS_H

#include "postgres.h"

#include "clock/time_value.h"

/* A numeric, palloc'd. */
extern Datum tessera_numeric_of_time(TesseraTime time);

#endif							/* TESSERA_CLOCK_FUNCTIONS_H */
