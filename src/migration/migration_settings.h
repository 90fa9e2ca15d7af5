/*
 * migration_settings.h
 *	  Settings of migrations and of range deletion. Those that the data path or the failover reads are declared there; migration_settings.c defines
 *	  all of them for the server.
 */
#ifndef TESSERA_MIGRATION_SETTINGS_H
#define TESSERA_MIGRATION_SETTINGS_H

#include "postgres.h"

extern int	tessera_migration_timeout;	/* ms; 0: none */
extern int	tessera_migration_max_backlog;	/* kB; 0: none */
extern int	tessera_migration_max_rate; /* kB/s; 0: none */
extern int	tessera_migration_batch_size;	/* kB */
extern int	tessera_balancer_max_lag;	/* kB; 0: any */
extern double tessera_balancer_max_slowdown;	/* times; 0: any */
extern int	tessera_migration_commit_size;	/* kB */
extern bool tessera_migration_verify;	/* default of move_range's and move_chunk's verify */
extern int	tessera_critical_section_budget;	/* ms */
extern int	tessera_critical_section_lock_timeout;	/* ms */
extern int	tessera_critical_section_attempts;
extern int	tessera_secondary_throttle; /* TesseraThrottle */
extern int	tessera_secondary_throttle_timeout;
extern int	tessera_orphan_cleanup_delay;	/* ms */
extern int	tessera_move_progress_interval;	/* ms; 0: off */
extern int	tessera_range_deleter_batch_size;	/* rows */
extern int	tessera_range_deleter_batch_delay;	/* ms */

extern void tessera_migration_settings_init(void);	/* from _PG_init */

#endif							/* TESSERA_MIGRATION_SETTINGS_H */
