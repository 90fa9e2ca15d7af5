/*
 * start_times.h
 *	  When the transaction and the statement at hand began: now() and statement_timestamp(), also as another node says (doc/design.md#one-time).
 */
#ifndef TESSERA_START_TIMES_H
#define TESSERA_START_TIMES_H

#include "postgres.h"
#include "datatype/timestamp.h"

/*
 * From here on now() is the one, to the end of the transaction, and statement_timestamp() the other, until the next message comes: the server sets
 * that one anew for each. Both must be valid timestamps. In a transaction; raises nothing.
 */
extern void tessera_set_start_times(TimestampTz transaction, TimestampTz statement);

/* When the message at hand came, by this server's clock, whatever statement_timestamp() says. */
extern TimestampTz tessera_message_time(void);

#endif							/* TESSERA_START_TIMES_H */
