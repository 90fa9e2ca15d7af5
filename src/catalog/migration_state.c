/*
 * migration_state.c
 *	  The transitions of a migration, as one table: what code may do, what tests check, and what the documentation shows.
 *
 * Durable are: on the donor the coordinator row's phase, written together with the placement row at each transition whose `durable` names it; on the
 * recipient the recipient row's state. All other states live in the worker's slot only (migration_slot.h): after a crash the durable row alone says
 * what is to be done (migration_outcome.c). The decision itself is the config node's outcome row.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "catalog/migration_state.h"

typedef struct Transition
{
	TesseraMigrationSide side;
	TesseraMigrationState from;
	TesseraMigrationState to;
	const char *durable;		/* what is flushed before the new state holds; NULL: nothing */
	const char *comment;
} Transition;

#define D TESSERA_DONOR
#define R TESSERA_RECIPIENT

static const Transition transitions[] = {
	{D, TESSERA_REGISTERED, TESSERA_STARTING, "placement (flag, pending deletion), coordinator",
	 "the config node knows the migration, the recipient is prepared: writers of the range take the gate lock from here on"},
	{D, TESSERA_STARTING, TESSERA_CLONING, "replication slot", "the slot's snapshot is taken, the recipient is told to start"},
	{D, TESSERA_CLONING, TESSERA_CATCHING_UP, NULL, "the recipient has committed the last clone batch and asks for changes"},
	{D, TESSERA_CATCHING_UP, TESSERA_STEADY, NULL, "the recipient's lag fits the budget of the critical section"},
	{D, TESSERA_STEADY, TESSERA_CATCHING_UP, NULL, "the lag has grown again"},
	{D, TESSERA_STEADY, TESSERA_WRITE_GATE, "placement (gate write), coordinator",
	 "no older writer is left, nobody sits at the gate: close it for writers of the range"},
	{D, TESSERA_WRITE_GATE, TESSERA_STEADY, "placement (gate open), coordinator",
	 "writers inside did not end, or the recipient did not follow in time: reopen and try again later"},
	{D, TESSERA_WRITE_GATE, TESSERA_READ_GATE, "placement (gate read)",
	 "the recipient has applied everything up to the gate position: it confirms, readers wait"},
	{D, TESSERA_READ_GATE, TESSERA_STEADY, "placement (gate open), coordinator",
	 "the recipient did not confirm in time: reopen, tell it to take that back, try again later"},
	{D, TESSERA_READ_GATE, TESSERA_DECIDING, "placement (range given up), coordinator",
	 "the recipient has confirmed: from here the config node alone decides"},
	{D, TESSERA_DECIDING, TESSERA_RELEASING, "outcome row (config node)", "the config node has committed the move"},
	{D, TESSERA_RELEASING, TESSERA_CLEANING, "placement (version, gate open, deletion real), coordinator (decision)",
	 "the recipient serves the range, waiting statements are routed again"},
	{D, TESSERA_CLEANING, TESSERA_DONE, "coordinator row deleted", "slot dropped, outcome acknowledged by both sides"},

	{D, TESSERA_REGISTERED, TESSERA_ABORTING, NULL, "error, cancellation or restart: nothing was begun"},
	{D, TESSERA_STARTING, TESSERA_ABORTING, NULL, "error, cancellation or restart: nothing was sent"},
	{D, TESSERA_CLONING, TESSERA_ABORTING, NULL, "error, cancellation or restart in the clone"},
	{D, TESSERA_CATCHING_UP, TESSERA_ABORTING, NULL, "error, cancellation or restart while catching up"},
	{D, TESSERA_STEADY, TESSERA_ABORTING, NULL, "error, cancellation or restart before the gate"},
	{D, TESSERA_WRITE_GATE, TESSERA_ABORTING, NULL, "error, cancellation or restart behind the closed write gate"},
	{D, TESSERA_READ_GATE, TESSERA_ABORTING, NULL, "error or restart before the range was given up: the config node was not called"},
	{D, TESSERA_DECIDING, TESSERA_ABORTING, "outcome row (config node)",
	 "the config node has fenced the migration: it was not, and will not be, committed"},
	{D, TESSERA_RELEASING, TESSERA_ABORTING, "outcome row (config node)",
	 "the outcome was of a term that is over: the promoted config node has aborted the migration"},
	{D, TESSERA_CLEANING, TESSERA_ABORTING, "placement (range taken back)", "the recipient has lost the rows, and has returned the range"},
	{D, TESSERA_ABORTING, TESSERA_ABORTED, "placement (as before), coordinator (decision), outcome row, coordinator row deleted",
	 "the range is owned as before, the recipient's rows are left to its range deleter"},

	{R, TESSERA_PREPARED, TESSERA_RECEIVING, "placement (deletion range), recipient row",
	 "checks done, the range's leftovers are gone, older lockers were waited for"},
	{R, TESSERA_RECEIVING, TESSERA_APPLYING, "cloned rows", "the clone is committed"},
	{R, TESSERA_APPLYING, TESSERA_CONFIRMING, "placement (gate read)", "the donor has sent the last change: readers of the range wait here, too"},
	{R, TESSERA_CONFIRMING, TESSERA_CONFIRMED, "placement (range owned, confirmed), recipient row",
	 "complete: the rows are visible as soon as the config node has decided"},
	{R, TESSERA_CONFIRMING, TESSERA_APPLYING, "placement (gate open), recipient row",
	 "the donor has opened its gate again, and another process has taken the confirmation back"},
	{R, TESSERA_CONFIRMED, TESSERA_APPLYING, "placement (range given up, gate open), recipient row",
	 "the donor has opened its gate again: the confirmation is taken back"},
	{R, TESSERA_CONFIRMED, TESSERA_RELEASED, "placement (version, gate open, no deletion), recipient row deleted",
	 "the config node has committed the move"},

	{R, TESSERA_PREPARED, TESSERA_DISCARDED, NULL, "aborted before the first row"},
	{R, TESSERA_RECEIVING, TESSERA_DISCARDED, "placement (deletion stays), recipient row deleted", "aborted in the clone"},
	{R, TESSERA_APPLYING, TESSERA_DISCARDED, "placement (deletion stays), recipient row deleted", "aborted while catching up"},
	{R, TESSERA_CONFIRMING, TESSERA_DISCARDED, "placement (deletion stays, gate open), recipient row deleted", "aborted before the confirmation"},
	{R, TESSERA_CONFIRMED, TESSERA_DISCARDED, "placement (range given up, gate open), recipient row deleted",
	 "the config node has fenced the migration"},
};

static const char *const state_names[TESSERA_MIGRATION_STATES] = {
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
tessera_migration_check_transition(TesseraMigrationSide side, TesseraMigrationState from, TesseraMigrationState to)
{
	if (from == to)
		return;
	for (int i = 0; i < lengthof(transitions); i++)
		if (transitions[i].side == side && transitions[i].from == from && transitions[i].to == to)
			return;
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg_internal("migration cannot go from state %s to %s", state_names[from], state_names[to])));
}

/* migration_transitions() returns setof (side text, from_state text, to_state text, durable text, comment text) */
Datum
tessera_migration_transitions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(transitions); i++)
	{
		const Transition *row = &transitions[i];
		Datum		values[5];
		bool		nulls[5] = {false};

		values[0] = CStringGetTextDatum(row->side == D ? "donor" : "recipient");
		values[1] = CStringGetTextDatum(state_names[row->from]);
		values[2] = CStringGetTextDatum(state_names[row->to]);
		values[3] = row->durable ? CStringGetTextDatum(row->durable) : (Datum) 0;
		nulls[3] = row->durable == NULL;
		values[4] = CStringGetTextDatum(row->comment);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
