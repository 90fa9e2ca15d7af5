/*
 * errors.h
 *	  The extension's own SQLSTATEs (doc/design.md#errors); core classes are used wherever they fit.
 */
#ifndef TESSERA_ERRORS_H
#define TESSERA_ERRORS_H

#include "utils/elog.h"

#define ERRCODE_TESSERA_STALE_ROUTING		MAKE_SQLSTATE('T','S','0','0','1')
#define ERRCODE_TESSERA_PLACEMENT_CHANGED	MAKE_SQLSTATE('T','S','0','0','2')
#define ERRCODE_TESSERA_FENCED				MAKE_SQLSTATE('T','S','0','0','3')
#define ERRCODE_TESSERA_CONFLICTING			MAKE_SQLSTATE('T','S','0','0','4')
/* Never an error: an INFO by which a shard tells the router that the transaction there cannot be prepared. */
#define ERRCODE_TESSERA_UNPREPARABLE		MAKE_SQLSTATE('T','S','0','0','5')
/*
 * Never an error: an INFO for a NOTIFY that ran on a shard; the router's session sends the notification. Message: the channel; detail: the payload.
 */
#define ERRCODE_TESSERA_NOTIFICATION		MAKE_SQLSTATE('T','S','0','0','6')
/* Never an error: an INFO by which a shard tells the router that rows of replicated tables were changed there, to be fetched. */
#define ERRCODE_TESSERA_CAPTURED			MAKE_SQLSTATE('T','S','0','0','7')

#endif							/* TESSERA_ERRORS_H */
