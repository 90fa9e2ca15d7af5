/*
 * prepared.h
 *	  PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED of clients, over all nodes.
 */
#ifndef TESSERA_PREPARED_H
#define TESSERA_PREPARED_H

#include "postgres.h"

#include "common/utility_statement.h"

/* The first half of the random part of a gid says that a client has prepared it; the timeline of the config node follows, eight hex digits. */
#define TESSERA_CLIENT_GID "75736572"

/*
 * Runs these three statements of a client on a member node. Returns false for any other transaction statement, for one of another node, and for one
 * about a transaction that was prepared on this server alone. run_next: how the statement runs as without the extension. Errors as core's: 42710,
 * 42704, 42501, 25001, 0A000, 55000, 22023; also 08006 if the config node cannot be reached, 08007 if it did not answer whether the transaction is
 * prepared, or how it ends. PREPARE ends the transaction in any case.
 */
extern bool tessera_prepared_statement(TesseraUtility *utility, void (*run_next) (TesseraUtility *utility));

#endif							/* TESSERA_PREPARED_H */
