/*
 * constraint_modes.h
 *	  SET CONSTRAINTS of this transaction, for the nodes that take part and those that join later.
 */
#ifndef TESSERA_CONSTRAINT_MODES_H
#define TESSERA_CONSTRAINT_MODES_H

#include "postgres.h"

#include "routing/routing.h"

/*
 * This node has run SET CONSTRAINTS. names: the cluster's constraints concerned, qualified and quoted, as they stand in the statement, or "ALL".
 * Immediate: all participants run it now, as the current user, and their errors are raised (a pending check may fail). Deferred: they run it before
 * their next command. Nodes that join later run all of the transaction's in order, before their first command.
 */
extern void tessera_constraint_modes_set(const TesseraRouting *routing, const char *names, bool deferred);

#endif							/* TESSERA_CONSTRAINT_MODES_H */
