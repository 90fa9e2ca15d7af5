/*
 * cancel.h
 *	  Asking another server to stop what it runs, without being held up by it.
 */
#ifndef TESSERA_CANCEL_H
#define TESSERA_CANCEL_H

#include <stdbool.h>

#include "libpq-fe.h"

typedef struct TesseraCancel TesseraCancel;

/* Starts the request to cancel what runs on the connection. NULL if it cannot be started (then nothing is asked). */
extern TesseraCancel *tessera_cancel_start(PGconn *pg);

/*
 * Waits at most timeout_ms until the other end has taken the request in; true: what runs now is what it was meant for, what comes later is safe from it. The
 * request is the caller's no longer in any case.
 */
extern bool tessera_cancel_finish(TesseraCancel *cancel, long timeout_ms);

#endif							/* TESSERA_CANCEL_H */
