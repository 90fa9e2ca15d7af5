/*
 * schema_sequences.c
 *	  The sequences of a schema that has moved follow it; see schema_sequences.h.
 *
 * The steps are in ddl/sequence_follow.c. Nothing is kept here: what is to be done is in tessera.schema_placement (sequence_home is another node than
 * node_id), and each step can be repeated, so a crash anywhere, or a node that does not answer, is tried again. Locks: only those of the last step,
 * the schema's row for a moment.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "balancer/balancer_settings.h"
#include "balancer/schema_sequences.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "control/calls.h"
#include "transaction/background.h"

#define CALL_MS 10000

/* A schema whose sequences are elsewhere than its tables. */
typedef struct Straggler
{
	char	   *schema;
	int32		from;
	int32		to;
	int64		mod;
} Straggler;


/* In the current context, outside of a transaction. */
static Straggler *
find_stragglers(int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	Straggler  *result;
	TesseraSpi	spi;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run("SELECT schema_name::text, sequence_home, node_id, mod FROM tessera.schema_placement"
							   " WHERE group_id IS NOT NULL AND sequence_home <> node_id", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	MemoryContextSwitchTo(caller);
	result = palloc(sizeof(Straggler) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
		result[i] = (Straggler) {
			.schema = spi_row_text(i, 1),.from = DatumGetInt32(spi_row_value(i, 2)),.to = DatumGetInt32(spi_row_value(i, 3)),
			.mod = DatumGetInt64(spi_row_value(i, 4))
		};
	tessera_spi_end(&spi);
	tessera_background_commit();
	MemoryContextSwitchTo(caller);
	return result;
}

static TesseraCallTarget
ask_node(int32 node_id, ErrorData **error)
{
	return tessera_keep_error(tessera_ask(tessera_within(tessera_to_node(node_id), CALL_MS), TESSERA_TOLERATE_ERRORS), error);
}

/* The new home counts, if the schema is still as it was. */
static void
change_home(const Straggler *straggler)
{
	TesseraSpi	spi;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.schema_placement SET sequence_home = NULL WHERE schema_name = $1 AND sequence_home = $2 AND node_id = $3"
					" AND mod = $4", SPI_OK_UPDATE, 4, (Oid[]) {NAMEOID, INT4OID, INT4OID, INT8OID},
					(Datum[]) {DirectFunctionCall1(namein, CStringGetDatum(straggler->schema)), Int32GetDatum(straggler->from),
		Int32GetDatum(straggler->to), Int64GetDatum(straggler->mod)}, NULL);
	tessera_spi_end(&spi);
	tessera_background_commit();
}

/* After a call: a node that does not answer is left alone for a while, since each call waits for some seconds. */
static bool
note_answer(int32 node_id, bool answered, const ErrorData *error)
{
	if (answered)
		tessera_balancer_node_answered(node_id);
	else if (error != NULL && tessera_error_is_unreachable(error->sqlerrcode))
		tessera_balancer_node_failed(node_id);
	return answered;
}

/* The old home draws no more, and a promotion there does not change that. *states: where its sequences stand. */
static bool
give(const Straggler *straggler, char **states)
{
	ErrorData  *error;
	bool		done = tessera_call_sequences_give(ask_node(straggler->from, &error), straggler->schema, straggler->mod, states) &&
		tessera_call_await_standbys(ask_node(straggler->from, &error));

	return note_answer(straggler->from, done, error);
}

static bool
take(const Straggler *straggler, const char *states)
{
	ErrorData  *error;
	bool		done = tessera_call_sequences_take(ask_node(straggler->to, &error), straggler->schema, states) &&
		tessera_call_await_standbys(ask_node(straggler->to, &error));

	return note_answer(straggler->to, done, error);
}

/* In the current context. false: a node does not answer, or is not as far yet. */
static bool
hand_over(const Straggler *straggler)
{
	ErrorData  *ignored;		/* they find out by themselves */
	char	   *states;
	char	   *again;

	tessera_injection("sequences_follow");
	if (!give(straggler, &states))
		return false;
	for (;;)
	{
		if (!take(straggler, states) || !give(straggler, &again))
			return false;
		if (strcmp(states, again) == 0)
			break;
		states = again;			/* ALTER SEQUENCE, which ran on all nodes, may have come in between */
	}
	tessera_injection("sequences_change_home");
	change_home(straggler);
	(void) tessera_call_reload_routing(ask_node(straggler->to, &ignored), NULL);
	(void) tessera_call_reload_routing(ask_node(straggler->from, &ignored), NULL);
	return true;
}

bool
tessera_sequences_follow(void)
{
	int			n;
	Straggler  *stragglers = find_stragglers(&n);
	bool		all = true;

	for (int i = 0; i < n; i++)
		all &= tessera_balancer_node_usable(stragglers[i].from) && tessera_balancer_node_usable(stragglers[i].to) && hand_over(&stragglers[i]);
	return all;
}
