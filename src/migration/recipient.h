/*
 * recipient.h
 *	  The recipient's side of a running migration.
 */
#ifndef TESSERA_MIGRATION_RECIPIENT_H
#define TESSERA_MIGRATION_RECIPIENT_H

#include "postgres.h"
#include "utils/uuid.h"

/* Runs a migration from its recipient row to the outcome. Outside a transaction, in the recipient's worker. An ERROR leaves the rest to the donor. */
extern void tessera_recipient_run(const pg_uuid_t *migration_id);

#endif							/* TESSERA_MIGRATION_RECIPIENT_H */
