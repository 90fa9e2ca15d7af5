/*
 * durable.c
 *	  Commits that others rely on; see durable.h.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/guc.h"

#include "common/durable.h"

void
tessera_commit_durably(void)
{
	if (synchronous_commit < SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		(void) set_config_option("synchronous_commit", "on", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

void
tessera_commit_all_durably(void)
{
	tessera_commit_durably();
	(void) GetCurrentTransactionId();
	ForceSyncCommit();
}
