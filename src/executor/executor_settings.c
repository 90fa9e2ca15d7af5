/*
 * executor_settings.c
 *	  Settings of the executor.
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "executor/executor_settings.h"

int			tessera_gate_timeout = 10000;
int			tessera_log_min_gate_wait = -1;
bool		tessera_stream_rows = true;
int			tessera_sent_rows_limit = 512 * 1024;

void
tessera_executor_settings_init(void)
{
	DefineCustomIntVariable("tessera.gate_timeout", "How long a statement waits for a closed gate or for stale routing to settle.", NULL,
							&tessera_gate_timeout, 10000, 1, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.log_min_gate_wait", "Log statements that have waited at the gate of a migration at least this long.",
							"-1: none.", &tessera_log_min_gate_wait, -1, -1, INT_MAX, PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("tessera.stream_rows", "Read rows of remote results one by one instead of whole results in memory.", NULL,
							 &tessera_stream_rows, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.sent_rows_limit", "How much of the rows that an UPDATE, DELETE or MERGE reads elsewhere is sent to the shards.",
							NULL, &tessera_sent_rows_limit, 512 * 1024, 64, 900 * 1024, PGC_USERSET, GUC_UNIT_KB, NULL, NULL, NULL);
}
