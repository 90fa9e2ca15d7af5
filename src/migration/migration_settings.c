/*
 * migration_settings.c
 *	  Settings of migrations and of range deletion. Workers take a change in at their next reload.
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "failover/standby.h"
#include "migration/migration_settings.h"
#include "transfer/exchange_address.h"
#include "transfer/lock_holders.h"
#include "transfer/transfer.h"
#include "transfer/verify.h"

int			tessera_migration_timeout;
int			tessera_migration_max_backlog;
int			tessera_migration_max_rate;
int			tessera_migration_batch_size;
int			tessera_balancer_max_lag;
int			tessera_move_progress_interval;
double		tessera_balancer_max_slowdown;
int			tessera_migration_commit_size;
bool		tessera_migration_verify;
int			tessera_critical_section_budget;
int			tessera_critical_section_lock_timeout;
int			tessera_critical_section_attempts;
int			tessera_secondary_throttle;
int			tessera_secondary_throttle_timeout;
int			tessera_orphan_cleanup_delay;
int			tessera_range_deleter_batch_size;
int			tessera_range_deleter_batch_delay;

static const struct config_enum_entry throttles[] = {
	{"off", TESSERA_THROTTLE_OFF, false},
	{"flush", TESSERA_THROTTLE_FLUSH, false},
	{"replay", TESSERA_THROTTLE_REPLAY, false},
	{NULL, 0, false}
};

typedef struct IntSetting
{
	const char *name;
	const char *description;
	int		   *variable;
	int			initial;
	int			min;
	int			max;
	int			flags;
} IntSetting;

static const IntSetting int_settings[] = {
	{"tessera.migration_timeout", "A migration that has not reached its critical section after this time is aborted; 0: no limit.",
	&tessera_migration_timeout, 6 * 3600 * 1000, 0, INT_MAX, GUC_UNIT_MS},
	{"tessera.migration_max_backlog", "A migration whose donor has more WAL than this left to decode is aborted; 0: no limit.",
	&tessera_migration_max_backlog, 500 * 1024, 0, INT_MAX, GUC_UNIT_KB},
	{"tessera.migration_max_rate", "Rows cloned by a migration, per second; 0: no limit.",
	&tessera_migration_max_rate, 0, 0, INT_MAX, GUC_UNIT_KB},
	{"tessera.balancer_max_lag", "Moves that the balancer has begun rest while an attached standby has more WAL than this to replay; 0: they do not.",
	&tessera_balancer_max_lag, 256 * 1024, 0, INT_MAX, GUC_UNIT_KB},
	{"tessera.migration_batch_size", "Size of a batch of rows or changes between donor and recipient.",
	&tessera_migration_batch_size, 1024, 8, 64 * 1024, GUC_UNIT_KB},
	{"tessera.migration_commit_size", "The recipient commits cloned rows when they are of this size.",
	&tessera_migration_commit_size, 8 * 1024, 8, 1024 * 1024, GUC_UNIT_KB},
	{"tessera.migration_lock_timeout", "How long a worker of a migration waits for a lock before the migration is aborted; 0: no limit.",
	&tessera_migration_lock_timeout, 60 * 1000, 0, INT_MAX, GUC_UNIT_MS},
	{"tessera.migration_verify_memory", "A verified migration whose changed keys take more memory than this on the donor is aborted.",
	&tessera_migration_verify_memory, 256 * 1024, 64, MAX_KILOBYTES, GUC_UNIT_KB},
	{"tessera.critical_section_budget", "A migration closes its gate only when it predicts a shorter pause than this.",
	&tessera_critical_section_budget, 50, 1, 60 * 1000, GUC_UNIT_MS},
	{"tessera.critical_section_lock_timeout", "How long a closed gate waits for writers inside before it is reopened.",
	&tessera_critical_section_lock_timeout, 50, 1, 60 * 1000, GUC_UNIT_MS},
	{"tessera.critical_section_attempts", "A migration whose recipient was too slow so many times while the gate was closed is aborted.",
	&tessera_critical_section_attempts, 50, 1, INT_MAX, 0},
	{"tessera.secondary_throttle_timeout", "How long tessera.secondary_throttle waits for a standby after each commit, at most.",
	&tessera_secondary_throttle_timeout, 10 * 1000, 1, INT_MAX, GUC_UNIT_MS},
	{"tessera.migration_memory",
	 "Memory for changes that a migration's donor has decoded and not handed out yet; what is more goes to temporary files.",
	&tessera_migration_memory, 64 * 1024, 64, MAX_KILOBYTES, GUC_UNIT_KB},
	{"tessera.standby_flush_timeout", "How long a migration waits for streaming standbys to have flushed what was received; then it is aborted.",
	&tessera_standby_flush_timeout, 3000, 1, 60 * 1000, GUC_UNIT_MS},
	{"tessera.orphan_cleanup_delay", "How long rows that a shard no longer owns are kept before the range deleter removes them.",
	&tessera_orphan_cleanup_delay, 1000, 0, INT_MAX, GUC_UNIT_MS},
	{"tessera.range_deleter_batch_size", "Rows that the range deleter removes in one transaction.",
	&tessera_range_deleter_batch_size, 5000, 1, INT_MAX, 0},
	{"tessera.range_deleter_batch_delay", "Pause of the range deleter after each transaction.",
	&tessera_range_deleter_batch_delay, 20, 0, 60 * 60 * 1000, GUC_UNIT_MS},
};

static bool
check_exchange_ports(char **value, void **extra, GucSource source)
{
	TesseraPorts ports;

	if (tessera_exchange_ports_parse(*value, &ports))
		return true;
	GUC_check_errdetail("A port, or two of them with a hyphen between: first-last.");
	return false;
}

void
tessera_migration_settings_init(void)
{
	for (int i = 0; i < lengthof(int_settings); i++)
	{
		const IntSetting *s = &int_settings[i];

		DefineCustomIntVariable(s->name, s->description, NULL, s->variable, s->initial, s->min, s->max, PGC_SIGHUP, s->flags, NULL, NULL, NULL);
	}
	DefineCustomIntVariable("tessera.move_progress_interval",
							"How often a session that waits for a move is told how far it is, by a NOTICE; 0: never.", NULL,
							&tessera_move_progress_interval, 5000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomRealVariable("tessera.balancer_max_slowdown",
							 "Moves that the balancer has begun make way while clients' transactions take more than so many times as long as before.",
							 "0: they do not.", &tessera_balancer_max_slowdown, 1.5, 0, 1000, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("tessera.migration_verify", "Compare the recipient's rows with the donor's before a range changes hands.",
							 "The default of the argument verify of tessera.move_range and tessera.move_chunk.",
							 &tessera_migration_verify, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("tessera.secondary_throttle",
							 "For what of its streaming standbys the recipient of a migration waits after each commit of the clone.", NULL,
							 &tessera_secondary_throttle, TESSERA_THROTTLE_OFF, throttles, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("tessera.exchange_address",
							   "Address to which this node binds the data exchange of migrations that it donates.",
							   "Empty: 127.0.0.1 if the other nodes reach this one by a loopback address or socket, else all addresses.",
							   &tessera_exchange_address, "", PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("tessera.exchange_advertised_address",
							   "Address or host name under which the other nodes find the data exchange of migrations that this node donates.",
							   "Empty: the host of the node's conninfo. To be set where address translation or a proxy lies between the nodes.",
							   &tessera_exchange_advertised_address, "", PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("tessera.exchange_ports",
							   "Ports for the data exchange of migrations that this node donates, as first-last.",
							   "Each migration takes one of them on its donor while it runs. Empty: any free port.",
							   &tessera_exchange_ports, "", PGC_SIGHUP, 0, check_exchange_ports, NULL, NULL);
}
