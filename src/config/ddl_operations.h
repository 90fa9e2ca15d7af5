/*
 * ddl_operations.h
 *	  Operations that run in phases (ddl/operation.h), on the config node: their rows, and the worker that carries on what nobody runs any more.
 */
#ifndef TESSERA_DDL_OPERATIONS_H
#define TESSERA_DDL_OPERATIONS_H

#include "postgres.h"

/* Step of the worker "DDL operations": milliseconds until the next; -1: this is not the config node. */
extern long tessera_ddl_operations_step(void);

#endif							/* TESSERA_DDL_OPERATIONS_H */
