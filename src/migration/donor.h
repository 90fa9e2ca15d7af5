/*
 * donor.h
 *	  The donor's side of a running migration.
 */
#ifndef TESSERA_MIGRATION_DONOR_H
#define TESSERA_MIGRATION_DONOR_H

#include "postgres.h"
#include "utils/uuid.h"

#include "migration/migration_outcome.h"

/*
 * Runs a migration from its coordinator row to the config node's answer, which is put into *known, with what was counted. Outside a transaction, in
 * the donor's worker. An ERROR leaves everything to tessera_outcome_complete_donor; so does the return. The current context must outlive the error:
 * the exchange is closed with it.
 */
extern void tessera_donor_run(const pg_uuid_t *migration_id, TesseraDonorResult *known);

/*
 * Makes this process ignore requests to end (true), or heed them again. They are ignored from the moment at which only the config node can end the
 * migration. (migration_process.c)
 */
extern void tessera_migration_ignore_cancel(bool ignore);

#endif							/* TESSERA_MIGRATION_DONOR_H */
