/*
 * balancer.h
 *	  The balancer: rounds on the config node that carry out what its policy chooses, and what it is asked for.
 */
#ifndef TESSERA_BALANCER_H
#define TESSERA_BALANCER_H

#include "postgres.h"

/* Step of the worker "balancer": a round if one is due; ms until the next look. Negative: this is not the config node. */
extern long tessera_balancer_step(void);

#endif							/* TESSERA_BALANCER_H */
