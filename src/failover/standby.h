/*
 * standby.h
 *	  What the standbys that are attached to this server have of its WAL (doc/design.md#moves-and-standbys).
 */
#ifndef TESSERA_FAILOVER_STANDBY_H
#define TESSERA_FAILOVER_STANDBY_H

#include "postgres.h"
#include "access/xlogdefs.h"

/* Settings; migration_settings.c defines them for the server. */
extern int	tessera_standby_flush_timeout;	/* ms */

/* Values of tessera.secondary_throttle. */
typedef enum TesseraThrottle
{
	TESSERA_THROTTLE_OFF,
	TESSERA_THROTTLE_FLUSH,
	TESSERA_THROTTLE_REPLAY
} TesseraThrottle;

/*
 * True if every standby that streams from this server now has flushed (replayed) its WAL up to lsn, which is flushed here. Subscribers of logical
 * replication, base backups and receivers that never tell what they have flushed do not count. If false, who (of size bytes) names one that has not.
 * Locks: for moments.
 */
extern bool tessera_standbys_have(XLogRecPtr lsn, TesseraThrottle what, char *who, Size size);

/*
 * Bytes of WAL, flushed here, that the slowest of the attached standbys has not replayed yet, also of one that is still catching up; *pid: its WAL
 * sender. 0: none is attached. Locks: for moments.
 */
extern uint64 tessera_standbys_lag(int *pid);

#endif							/* TESSERA_FAILOVER_STANDBY_H */
