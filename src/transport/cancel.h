/*
 * cancel.h
 *	  Asks another server to cancel what it runs, without waiting for that server.
 */
#ifndef TESSERA_CANCEL_H
#define TESSERA_CANCEL_H

#include <stdbool.h>

#include "libpq-fe.h"

typedef struct TesseraCancel TesseraCancel;

/* Starts a request to cancel what runs on the connection. NULL if it cannot be started: then nothing is sent. */
extern TesseraCancel *tessera_cancel_start(PGconn *pg);

/*
 * Waits at most timeout_ms until the other server has processed the request. Returns true if it has: then no later statement can be hit by it. Frees
 * the request in any case.
 */
extern bool tessera_cancel_finish(TesseraCancel *cancel, long timeout_ms);

#endif							/* TESSERA_CANCEL_H */
