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
/* A transaction under a number of a session was committed before: its repetition does nothing. */
#define ERRCODE_TESSERA_COMMITTED_BEFORE	MAKE_SQLSTATE('T','S','0','0','5')
/* What was done under a number of a session is not known any more, or its answer is not. */
#define ERRCODE_TESSERA_ANSWER_LOST			MAKE_SQLSTATE('T','S','0','0','6')
/* Never an error: an INFO by which a shard tells the router that rows of replicated tables were changed there, to be fetched. */
#define ERRCODE_TESSERA_CAPTURED			MAKE_SQLSTATE('T','S','0','0','7')
/* Never an error: an INFO by which a shard tells the router that the transaction there cannot be prepared. */
#define ERRCODE_TESSERA_UNPREPARABLE		MAKE_SQLSTATE('T','S','0','0','8')
/*
 * Never an error: an INFO for a NOTIFY that ran on a shard; the router's session sends the notification. Message: the channel; detail: the payload.
 */
#define ERRCODE_TESSERA_NOTIFICATION		MAKE_SQLSTATE('T','S','0','0','9')

/* The last two as nodes that speak a protocol below TESSERA_WORDS_PROTOCOL know them. */
#define ERRCODE_TESSERA_OLD_UNPREPARABLE	ERRCODE_TESSERA_COMMITTED_BEFORE
#define ERRCODE_TESSERA_OLD_NOTIFICATION	ERRCODE_TESSERA_ANSWER_LOST

/*
 * True for the SQLSTATE of an error that says that a node could not be reached: the connection was lost, or there was none to be had (53300: the
 * node, or what this one may have there, is full). Nothing else is wrong with it, or with what it was asked; whether that ran there is not known.
 */
static inline bool
tessera_error_is_unreachable(int sqlerrcode)
{
	return ERRCODE_TO_CATEGORY(sqlerrcode) == ERRCODE_CONNECTION_EXCEPTION || sqlerrcode == ERRCODE_TOO_MANY_CONNECTIONS;
}

#endif							/* TESSERA_ERRORS_H */
