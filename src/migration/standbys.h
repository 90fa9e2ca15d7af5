/*
 * standbys.h
 *	  What is durable on this server's streaming standbys (PROTOCOLS D2).
 */
#ifndef TESSERA_MIGRATION_STANDBYS_H
#define TESSERA_MIGRATION_STANDBYS_H

#include "postgres.h"
#include "access/xlogdefs.h"

/*
 * Waits until every standby that streams from this server has flushed the position; false if one has not within timeout_ms. A standby that goes away, or
 * falls out of streaming, is no longer waited for; without any, true at once. Takes in interrupts. Outside a transaction or in one.
 */
extern bool tessera_await_standbys(XLogRecPtr lsn, long timeout_ms);

/* The same for all that is committed on this server by now; ERROR 55000 if a standby has not flushed it within tessera.standby_flush_timeout. */
extern void tessera_require_standbys(void);

#endif							/* TESSERA_MIGRATION_STANDBYS_H */
