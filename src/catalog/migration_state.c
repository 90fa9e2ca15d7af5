/*
 * migration_state.c
 *	  The transitions of a migration, as one table: what code may do, what tests check, and what the documentation shows.
 *
 * A state is kept in two places. The process of a migration keeps its own in shared memory (migration/migration_slot.h); views show it, a crash
 * loses it. A row keeps the state that is durable: the donor's row (tessera.migration_coordinator.phase), the recipient's row
 * (tessera.migration_recipient.state), and the config node's row (tessera.migration.state). After a crash the rows alone say what is to be done
 * (migration/migration_outcome.c). A row is changed less often than the process changes its state, so each transition says where it is made:
 * in the process, in the row, or in both. Whoever changes a state, here or there, is checked against the table.
 *
 * The state "none" is the absence of a row; done, aborted, released and discarded are ends, at which the row of that side is deleted. The config
 * node's row stays.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "catalog/migration_state.h"

typedef struct Transition
{
	TesseraMigrationSide side;
	TesseraMigrationState from;
	TesseraMigrationState to;
	int			kept;			/* TESSERA_IN_PROCESS, TESSERA_IN_ROW, or both */
	const char *who;			/* makes it */
	const char *durable;		/* what is flushed before the new state holds; NULL: nothing */
	const char *comment;
} Transition;

#define D TESSERA_DONOR
#define R TESSERA_RECIPIENT
#define C TESSERA_CONFIG
#define PROCESS TESSERA_IN_PROCESS
#define ROW TESSERA_IN_ROW
#define BOTH (TESSERA_IN_PROCESS | TESSERA_IN_ROW)
#define OLDER "the config node has committed the move; this server was promoted with an older copy of the row"

static const Transition transitions[] = {
	{D, TESSERA_NONE, TESSERA_REGISTERED, ROW, "mover", "coordinator",
	 "the config node has registered the migration, and the donor is told of it"},
	{D, TESSERA_NONE, TESSERA_DECIDING, ROW, "promotion", "coordinator",
	 "the row was lost with the old primary: the config node knows the migration, and alone decides"},
	{D, TESSERA_REGISTERED, TESSERA_STARTING, BOTH, "donor", "placement (flag, pending deletion), coordinator",
	 "the config node knows the migration, the recipient is prepared: writers of the range take the gate lock from here on"},
	{D, TESSERA_STARTING, TESSERA_CLONING, PROCESS, "donor", "replication slot", "the slot's snapshot is taken, the recipient is told to start"},
	{D, TESSERA_CLONING, TESSERA_CATCHING_UP, PROCESS, "donor", NULL, "the recipient has committed the last clone batch and asks for changes"},
	{D, TESSERA_CATCHING_UP, TESSERA_STEADY, PROCESS, "donor", NULL, "the recipient's lag fits the budget of the critical section"},
	{D, TESSERA_STEADY, TESSERA_CATCHING_UP, PROCESS, "donor", NULL, "the lag has grown again"},
	{D, TESSERA_STEADY, TESSERA_WRITE_GATE, PROCESS, "donor", "placement (gate write), coordinator",
	 "no older writer is left, nobody sits at the gate: close it for writers of the range"},
	{D, TESSERA_STARTING, TESSERA_WRITE_GATE, ROW, "donor", "placement (gate write), coordinator",
	 "the same in the row, which says starting up to here"},
	{D, TESSERA_WRITE_GATE, TESSERA_STEADY, PROCESS, "donor", "placement (gate open), coordinator",
	 "writers inside did not end, or the recipient did not follow in time: reopen and try again later"},
	{D, TESSERA_WRITE_GATE, TESSERA_READ_GATE, PROCESS, "donor", "placement (gate read)",
	 "the recipient has applied everything up to the gate position: it confirms, readers wait"},
	{D, TESSERA_READ_GATE, TESSERA_STEADY, PROCESS, "donor", "placement (gate open), coordinator",
	 "the recipient did not confirm in time: reopen, tell it to take that back, try again later"},
	{D, TESSERA_WRITE_GATE, TESSERA_STARTING, ROW, "donor", "placement (gate open), coordinator",
	 "the gate is opened again: in the row, which says write_gate also while readers wait"},
	{D, TESSERA_READ_GATE, TESSERA_DECIDING, PROCESS, "donor", "placement (range given up), coordinator",
	 "the recipient has confirmed: from here the config node alone decides"},
	{D, TESSERA_WRITE_GATE, TESSERA_DECIDING, ROW, "donor", "placement (range given up), coordinator", "the same in the row"},
	{D, TESSERA_DECIDING, TESSERA_RELEASING, BOTH, "donor", "outcome row (config node)", "the config node has committed the move"},
	{D, TESSERA_REGISTERED, TESSERA_RELEASING, ROW, "recovery", "outcome row (config node)", OLDER},
	{D, TESSERA_STARTING, TESSERA_RELEASING, ROW, "recovery", "outcome row (config node)", OLDER},
	{D, TESSERA_WRITE_GATE, TESSERA_RELEASING, ROW, "recovery", "outcome row (config node)", OLDER},
	{D, TESSERA_RELEASING, TESSERA_CLEANING, PROCESS, "donor", "placement (version, gate open, deletion real), coordinator (decision)",
	 "the recipient serves the range, waiting statements are routed again"},
	{D, TESSERA_CLEANING, TESSERA_DONE, PROCESS, "donor", "coordinator row deleted", "slot dropped, outcome acknowledged by both sides"},
	{D, TESSERA_RELEASING, TESSERA_DONE, ROW, "donor", "coordinator row deleted", "the same in the row"},
	{D, TESSERA_REGISTERED, TESSERA_DONE, ROW, "donor", "coordinator row deleted",
	 "a mover that joined the migration had it noted once more after its end: nothing was begun"},

	{D, TESSERA_REGISTERED, TESSERA_ABORTING, BOTH, "donor", NULL, "error, cancellation or restart: nothing was begun"},
	{D, TESSERA_STARTING, TESSERA_ABORTING, BOTH, "donor", NULL,
	 "error, cancellation or restart: nothing was sent; in the row, which says starting up to the gate: at any time before it"},
	{D, TESSERA_CLONING, TESSERA_ABORTING, PROCESS, "donor", NULL, "error, cancellation or restart in the clone"},
	{D, TESSERA_CATCHING_UP, TESSERA_ABORTING, PROCESS, "donor", NULL, "error, cancellation or restart while catching up"},
	{D, TESSERA_STEADY, TESSERA_ABORTING, PROCESS, "donor", NULL, "error, cancellation or restart before the gate"},
	{D, TESSERA_WRITE_GATE, TESSERA_ABORTING, BOTH, "donor", NULL, "error, cancellation or restart behind the closed write gate"},
	{D, TESSERA_READ_GATE, TESSERA_ABORTING, PROCESS, "donor", NULL,
	 "error or restart before the range was given up: the config node was not called"},
	{D, TESSERA_DECIDING, TESSERA_ABORTING, BOTH, "donor", "outcome row (config node)",
	 "the config node has fenced the migration: it was not, and will not be, committed"},
	{D, TESSERA_RELEASING, TESSERA_ABORTING, BOTH, "donor", "outcome row (config node)",
	 "the outcome was of a term that is over, or the recipient has lost the rows: the config node has aborted the migration"},
	{D, TESSERA_CLEANING, TESSERA_ABORTING, PROCESS, "donor", "placement (range taken back)",
	 "the recipient has lost the rows, and has returned the range"},
	{D, TESSERA_ABORTING, TESSERA_ABORTED, BOTH, "donor", "placement (as before), coordinator (decision), outcome row, coordinator row deleted",
	 "the range is owned as before, the recipient's rows are left to its range deleter"},

	{R, TESSERA_NONE, TESSERA_PREPARED, ROW, "donor", "recipient row",
	 "the donor's first call: tables are alike, no other migration has a part of the range on the recipient"},
	{R, TESSERA_PREPARED, TESSERA_RECEIVING, BOTH, "recipient", "placement (deletion range), recipient row",
	 "checks done, the range's leftovers are gone, older holders were waited for"},
	{R, TESSERA_RECEIVING, TESSERA_APPLYING, PROCESS, "recipient", "cloned rows", "the clone is committed"},
	{R, TESSERA_APPLYING, TESSERA_CONFIRMING, PROCESS, "recipient", "placement (gate read)",
	 "the donor has sent the last change: readers of the range wait here, too"},
	{R, TESSERA_RECEIVING, TESSERA_CONFIRMING, ROW, "recipient", "placement (gate read), recipient row",
	 "the same in the row, which says receiving up to here"},
	{R, TESSERA_CONFIRMING, TESSERA_CONFIRMED, BOTH, "recipient", "placement (range owned, confirmed), recipient row",
	 "complete: the rows are visible as soon as the config node has decided"},
	{R, TESSERA_CONFIRMING, TESSERA_APPLYING, PROCESS, "recipient", "placement (gate open), recipient row",
	 "the donor has opened its gate again, and another process has taken the confirmation back"},
	{R, TESSERA_CONFIRMED, TESSERA_APPLYING, PROCESS, "recipient", "placement (range given up, gate open), recipient row",
	 "the donor has opened its gate again: the confirmation is taken back"},
	{R, TESSERA_CONFIRMING, TESSERA_RECEIVING, ROW, "recipient or donor", "placement (gate open), recipient row",
	 "the attempt is over before it was confirmed: the row is as it was before"},
	{R, TESSERA_CONFIRMED, TESSERA_RECEIVING, ROW, "recipient or donor", "placement (range given up, gate open), recipient row",
	 "the confirmation is taken back: the row is as it was before"},
	{R, TESSERA_CONFIRMED, TESSERA_RELEASED, ROW, "donor or recovery", "placement (version, gate open, no deletion), recipient row deleted",
	 "the config node has committed the move"},

	{R, TESSERA_PREPARED, TESSERA_DISCARDED, ROW, "donor or recovery", "recipient row deleted", "aborted before the first row"},
	{R, TESSERA_RECEIVING, TESSERA_DISCARDED, ROW, "donor or recovery", "placement (deletion stays), recipient row deleted",
	 "aborted in the clone or while catching up"},
	{R, TESSERA_APPLYING, TESSERA_DISCARDED, PROCESS, "recipient", NULL, "aborted while catching up: the process ends"},
	{R, TESSERA_CONFIRMING, TESSERA_DISCARDED, ROW, "donor or recovery", "placement (deletion stays, gate open), recipient row deleted",
	 "aborted before the confirmation"},
	{R, TESSERA_CONFIRMED, TESSERA_DISCARDED, ROW, "donor or recovery", "placement (range given up, gate open), recipient row deleted",
	 "the config node has fenced the migration"},

	{C, TESSERA_NONE, TESSERA_RUNNING, ROW, "mover", "migration row", "registered: no other migration has a part of the range"},
	{C, TESSERA_RUNNING, TESSERA_COMMITTED, ROW, "donor or promotion", "chunks, outcome row, migration row",
	 "the range is the recipient's; after a promotion: the recipient holds it and somebody was told so"},
	{C, TESSERA_RUNNING, TESSERA_ABORTED, ROW, "donor, mover or promotion", "outcome row, migration row", "fenced: it will not be committed"},
	{C, TESSERA_NONE, TESSERA_COMMITTED, ROW, "promotion", "outcome row, migration row",
	 "the registration was lost with the old config node; the recipient holds the range and somebody was told so"},
	{C, TESSERA_NONE, TESSERA_ABORTED, ROW, "promotion", "outcome row, migration row",
	 "the registration was lost with the old config node, and nobody has acted on a commit"},
	{C, TESSERA_COMMITTED, TESSERA_ABORTED, ROW, "promotion", "chunks, outcome row, migration row",
	 "the recipient was promoted without the rows: the range goes back to the donor, which still has them"},
};

static const char *const side_names[] = {
	[TESSERA_DONOR] = "donor",
	[TESSERA_RECIPIENT] = "recipient",
	[TESSERA_CONFIG] = "config node",
};

static const char *const state_names[TESSERA_MIGRATION_STATES] = {
	[TESSERA_NONE] = "none",
	[TESSERA_REGISTERED] = "registered",
	[TESSERA_STARTING] = "starting",
	[TESSERA_CLONING] = "cloning",
	[TESSERA_CATCHING_UP] = "catching_up",
	[TESSERA_STEADY] = "steady",
	[TESSERA_WRITE_GATE] = "write_gate",
	[TESSERA_READ_GATE] = "read_gate",
	[TESSERA_DECIDING] = "deciding",
	[TESSERA_RELEASING] = "releasing",
	[TESSERA_CLEANING] = "cleaning",
	[TESSERA_DONE] = "done",
	[TESSERA_ABORTING] = "aborting",
	[TESSERA_ABORTED] = "aborted",
	[TESSERA_PREPARED] = "prepared",
	[TESSERA_RECEIVING] = "receiving",
	[TESSERA_APPLYING] = "applying",
	[TESSERA_CONFIRMING] = "confirming",
	[TESSERA_CONFIRMED] = "confirmed",
	[TESSERA_RELEASED] = "released",
	[TESSERA_DISCARDED] = "discarded",
	[TESSERA_RUNNING] = "running",
	[TESSERA_COMMITTED] = "committed",
};

PG_FUNCTION_INFO_V1(tessera_migration_transitions);


const char *
tessera_migration_state_name(TesseraMigrationState state)
{
	Assert((int) state >= 0 && state < TESSERA_MIGRATION_STATES);
	return state_names[state];
}

TesseraMigrationState
tessera_migration_state_of(const char *name)
{
	for (int i = 0; i < TESSERA_MIGRATION_STATES; i++)
		if (strcmp(state_names[i], name) == 0)
			return (TesseraMigrationState) i;
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("unknown state \"%s\" of a migration", name)));
}

void
tessera_migration_check_transition(TesseraMigrationSide side, int kept, TesseraMigrationState from, TesseraMigrationState to)
{
	if (from == to)
		return;
	for (int i = 0; i < lengthof(transitions); i++)
		if (transitions[i].side == side && (transitions[i].kept & kept) != 0 && transitions[i].from == from && transitions[i].to == to)
			return;
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg_internal("%s of a migration cannot go from state %s to %s in its %s", side_names[side], state_names[from], state_names[to],
							 kept == TESSERA_IN_ROW ? "row" : "process")));
}

Datum
tessera_migration_states_before(TesseraMigrationSide side, TesseraMigrationState to)
{
	Datum		states[TESSERA_MIGRATION_STATES];
	int			n = 0;

	states[n++] = CStringGetTextDatum(state_names[to]);
	for (int i = 0; i < lengthof(transitions); i++)
		if (transitions[i].side == side && (transitions[i].kept & TESSERA_IN_ROW) != 0 && transitions[i].to == to)
			states[n++] = CStringGetTextDatum(state_names[transitions[i].from]);
	return PointerGetDatum(construct_array(states, n, TEXTOID, -1, false, TYPALIGN_INT));
}

TesseraMigrationState
tessera_migration_result_state(TesseraMigrationResult result)
{
	return result == TESSERA_RESULT_COMMITTED ? TESSERA_COMMITTED : result == TESSERA_RESULT_ABORTED ? TESSERA_ABORTED : TESSERA_RUNNING;
}

const char *
tessera_migration_result_text(TesseraMigrationResult result)
{
	return state_names[tessera_migration_result_state(result)];
}

TesseraMigrationResult
tessera_migration_result_of(const char *text)
{
	if (text == NULL || strcmp(text, state_names[TESSERA_RUNNING]) == 0)
		return TESSERA_RESULT_NONE;
	if (strcmp(text, state_names[TESSERA_COMMITTED]) == 0)
		return TESSERA_RESULT_COMMITTED;
	if (strcmp(text, state_names[TESSERA_ABORTED]) == 0)
		return TESSERA_RESULT_ABORTED;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown outcome \"%s\" of a migration", text)));
}

/* migration_transitions() returns setof (side text, from_state text, to_state text, kept_in text, who text, durable text, comment text) */
Datum
tessera_migration_transitions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(transitions); i++)
	{
		const Transition *row = &transitions[i];
		Datum		values[7];
		bool		nulls[7] = {false};

		values[0] = CStringGetTextDatum(side_names[row->side]);
		values[1] = CStringGetTextDatum(state_names[row->from]);
		values[2] = CStringGetTextDatum(state_names[row->to]);
		values[3] = CStringGetTextDatum(row->kept == BOTH ? "both" : row->kept == ROW ? "row" : "process");
		values[4] = CStringGetTextDatum(row->who);
		values[5] = row->durable ? CStringGetTextDatum(row->durable) : (Datum) 0;
		nulls[5] = row->durable == NULL;
		values[6] = CStringGetTextDatum(row->comment);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
