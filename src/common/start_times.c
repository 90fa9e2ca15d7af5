/*
 * start_times.c
 *	  When the transaction and the statement at hand began; see start_times.h.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"

#include "common/start_times.h"

/* The last call's; they count while statement_timestamp() is what it has put there. */
typedef struct Stated
{
	TimestampTz statement;		/* 0: there was none */
	TimestampTz message;		/* what it has replaced */
} Stated;

static Stated stated;

/*
 * The server has one function that sets both times, for parallel workers, which take over their leader's; an assertion says that nobody else calls
 * it. That there is a number of a worker for these two assignments is all that it wants, and nothing looks at it meanwhile. The same from 15 to 18.
 */
void
tessera_set_start_times(TimestampTz transaction, TimestampTz statement)
{
	const int	worker = ParallelWorkerNumber;

	stated.message = tessera_message_time();
	stated.statement = statement;
	ParallelWorkerNumber = 0;
	SetParallelStartTimestamps(transaction, statement);
	ParallelWorkerNumber = worker;
}

TimestampTz
tessera_message_time(void)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();

	return stated.statement != 0 && now == stated.statement ? stated.message : now;
}
