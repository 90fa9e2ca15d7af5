/*
 * burden.c
 *	  Who suffers on this shard; see burden.h.
 */
#include "postgres.h"

#include "failover/standby.h"
#include "load/client_pace.h"
#include "migration/burden.h"
#include "migration/migration_settings.h"

bool
tessera_standbys_burdened(char *text)
{
	int			pid;
	uint64		lag;

	text[0] = '\0';
	if (tessera_balancer_max_lag == 0)
		return false;
	lag = tessera_standbys_lag(&pid);
	if (lag / 1024 <= (uint64) tessera_balancer_max_lag)
		return false;
	snprintf(text, TESSERA_BURDEN_TEXT, "replay of the standby of process %d, " UINT64_FORMAT " kB behind", pid, lag / 1024);
	return true;
}

TesseraBurden
tessera_shard_burden(char *text)
{
	double		slowdown;

	if (tessera_standbys_burdened(text))
		return TESSERA_BURDEN_STANDBY;
	slowdown = tessera_balancer_max_slowdown == 0 ? 0 : tessera_pace_slowdown();
	if (slowdown <= tessera_balancer_max_slowdown)
		return TESSERA_BURDEN_NONE;
	snprintf(text, TESSERA_BURDEN_TEXT, "clients, whose transactions take %.1f times as long as before", slowdown);
	return TESSERA_BURDEN_CLIENTS;
}
