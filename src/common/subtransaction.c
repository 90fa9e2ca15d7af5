/*
 * subtransaction.c
 *	  Something that may fail, in a subtransaction of its own; see subtransaction.h.
 *
 * Memory: only the error that is returned. No locks. A crash leaves nothing: the subtransaction ends with its transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "common/errors.h"
#include "common/subtransaction.h"

ErrorData *
tessera_try(void (*attempt) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		attempt(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}

char *
tessera_try_one(void (*attempt) (void *arg), void *arg)
{
	ErrorData  *error = tessera_try(attempt, arg);
	int			category = error != NULL ? ERRCODE_TO_CATEGORY(error->sqlerrcode) : 0;
	char	   *reason;

	if (error == NULL)
		return NULL;
	if (!tessera_error_is_unreachable(error->sqlerrcode) &&
		(category == ERRCODE_OPERATOR_INTERVENTION || category == ERRCODE_INSUFFICIENT_RESOURCES))
		ReThrowError(error);
	reason = psprintf("%s: %s", unpack_sql_state(error->sqlerrcode), error->message);
	FreeErrorData(error);
	return reason;
}
