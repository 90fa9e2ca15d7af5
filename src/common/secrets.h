/*
 * secrets.h
 *	  Passwords of conninfos stay out of errors and the log.
 */
#ifndef TESSERA_SECRETS_H
#define TESSERA_SECRETS_H

#include "fmgr.h"

/*
 * Calls an SQL function's body. If it fails and its argument of that number, a text, is a conninfo with a password, or no valid one, the error goes
 * on without the password, and the log does not show the statement.
 */
extern Datum tessera_without_secrets(FunctionCallInfo fcinfo, int argument, PGFunction function);

#endif							/* TESSERA_SECRETS_H */
