/*
 * move.c
 *	  tessera.move_range, move_chunk and cancel_migration: on any node.
 *
 * The caller's backend registers the migration on the config node, has the donor write its row and start its worker, and then waits on the donor, in
 * short polls, so that a cancellation of the statement is noticed: it cancels the migration it has begun. All of it over the control lane: the
 * migration is not undone by a rollback of the caller's transaction.
 *
 * Refused to a caller whose own transaction the migration would have to wait for (doc/design.md#caller-of-a-move): one that has a transaction id, has
 * locked a table of the group, or has a transaction open on another node.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "balance/move_reasons.h"
#include "catalog/bound_array.h"
#include "catalog/change.h"
#include "catalog/cross_table_code.h"
#include "catalog/migration_state.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "transfer/transfer.h"
#include "migration/migration.h"
#include "migration/migration_settings.h"
#include "migration/move_private.h"
#include "routing/routing.h"
#include "transaction/background.h"
#include "transaction/participant.h"
#include "transfer/transfer.h"
#include "transport/connection.h"

#define ABANDON_MS 5000			/* to tell the config node that nobody will start a migration */
#define HAND_OVER_MS 5000		/* for the donor to take a migration over, where nobody waits for it */
#define ANSWER_MS 10000			/* for an answer, where the statement cannot be cancelled meanwhile */
#define RESTART_POLL_MS 200
#define RETRY_MS 20
#define CANCEL_WAIT_MS 60000
#define LOST_MS 60000
#define NEXT_PART_MS 10000		/* shards of the next part of a range may be in other migrations so long */

PG_FUNCTION_INFO_V1(tessera_move_range);
PG_FUNCTION_INFO_V1(tessera_move_chunk);
PG_FUNCTION_INFO_V1(tessera_cancel_migration);

/* Who may not */

bool
tessera_move_holds_lock(Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	for (LOCKMODE mode = AccessShareLock; mode <= AccessExclusiveLock; mode++)
		if (tessera_lock_held(&tag, mode))
			return true;
	return false;
}

void
tessera_move_refuse_transaction(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("a range cannot be moved by a transaction that %s", why),
			 errdetail("The migration would wait for the transaction, and the transaction for the migration."),
			 errhint("Commit first; call the function in a transaction of its own.")));
}

void
tessera_move_require_free(Oid relid)
{
	TesseraConnection **connections;
	int			n = tessera_connections_open(&connections);

	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		tessera_move_refuse_transaction("has written");
	for (int i = 0; i < n; i++)
		if (tessera_connection_state(connections[i])->xact_depth > 0 && tessera_participant_was_used(tessera_connection_node(connections[i])))
			tessera_move_refuse_transaction("has used other nodes");
	if (OidIsValid(relid) && tessera_move_holds_lock(relid))
		tessera_move_refuse_transaction("has used the table");
}

static void
check_caller(const TesseraMove *move)
{
	TesseraMovingRanges *moving;
	pg_uuid_t	nobody = {{0}};
	TesseraKeyBound lowest = {{{TESSERA_MINKEY}}};
	TesseraBound *bound = tessera_key_to_bound(move->ks, &lowest);

	tessera_move_require_free(InvalidOid);
	moving = tessera_moving_ranges(&nobody, 1, &(TesseraOperationRange) {move->group->group_id, move->group->epoch, {bound, bound}});
	for (int i = 0; i < moving->ntables; i++)
		if (tessera_move_holds_lock(moving->tables[i].relid))
			tessera_move_refuse_transaction("has used the table");
}

/* Code of the tables that may reach other tables works as long as all rows lie on one shard: who moves some away is told, once. */
static char *
cross_table_code_of_group(const TesseraMove *move)
{
	const TesseraTable *tables = (const TesseraTable *) ((const char *) move->routing + move->routing->tables_offset);
	StringInfoData found;

	/* Who has the table locked may hold the migration off (DDL), which registration tells; a WARNING is not worth a wait. */
	initStringInfo(&found);
	for (int i = 0; i < move->routing->ntables; i++)
	{
		Relation	rel;
		char	   *code;

		if (tables[i].group != move->group->index || !ConditionalLockRelationOid(tables[i].relid, AccessShareLock))
			continue;
		rel = try_relation_open(tables[i].relid, NoLock);
		if (rel == NULL)
		{
			UnlockRelationOid(tables[i].relid, AccessShareLock);
			continue;
		}
		code = tessera_cross_table_code_text(tessera_cross_table_code(rel));
		if (code != NULL)
			appendStringInfo(&found, "%stable \"%s\": %s", found.len > 0 ? "; " : "", RelationGetRelationName(rel), code);
		relation_close(rel, AccessShareLock);	/* the migration would wait for the lock */
	}
	return found.len > 0 ? found.data : NULL;
}

static void
find_table(Oid relid, TesseraMove *move)
{
	move->routing = tessera_routing();
	if (move->routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster"),
				 errhint("Make a cluster of it: tessera.create_cluster.")));
	move->table = tessera_routing_table(move->routing, relid);
	if ((move->table == NULL || move->table->group < 0) && tessera_routing_refresh(REFRESH_MS))
	{
		/* sharded on another node just now */
		move->routing = tessera_routing();
		move->table = tessera_routing_table(move->routing, relid);
	}
	if (move->table == NULL || move->table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is not sharded", get_rel_name(relid) ? get_rel_name(relid) : psprintf("%u", relid)),
				 errhint("Shard it first: tessera.shard_table.")));
	move->table = tessera_routing_root(move->routing, move->table);
	move->group = tessera_routing_group(move->routing, move->table->group);
	move->ks = tessera_group_keyspace(move->routing, move->group);
	check_caller(move);
	move->cross_table_code = move->quiet ? NULL : cross_table_code_of_group(move);
}


/* Begin */

/*
 * Tells the donor. In a subtransaction: if it fails, the config node is told that the migration was abandoned, so that the shards are free for
 * another one.
 */
void
tessera_move_hand_over(const TesseraMove *move, const char *request)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	TesseraCallTarget donor = tessera_to_node(move->donor);

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		tessera_injection("caller_registered");
		tessera_call_donate(move->quiet ? tessera_within(donor, HAND_OVER_MS) : donor, &move->migration_id, request);
		tessera_injection("caller_donated");
		tessera_call_start_donor(move->quiet ? tessera_within(donor, HAND_OVER_MS) : donor, &move->migration_id);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	if (error == NULL)
		return;
	if (!move->joined)
		(void) tessera_call_abandon_migration(tessera_ask(tessera_within(tessera_to_config(), ABANDON_MS), TESSERA_TOLERATE_ERRORS),
											  &move->migration_id);
	ReThrowError(error);
}

/* The first part of the range that is not there yet; false: all of it is. */
static bool
register_move(TesseraMove *move, const char *min, const char *max, const char *position)
{
	TesseraRegisterMigrationAnswer registered;

	tessera_call_register_migration(tessera_to_config(), &move->table->table_id, min, max, position, move->shard, move->routing->promised_term,
									move->verify, move->yields, &registered);
	if (registered.migration_id == NULL)
		return false;
	move->migration_id = *registered.migration_id;
	move->id = tessera_uuid_text(registered.migration_id);
	move->donor = registered.donor;
	move->joined = registered.joined;
	move->part_min = registered.part_min;
	move->part_max = registered.part_max;
	if (move->joined && !move->quiet)
		ereport(NOTICE,
				(errmsg("the same migration runs already, waiting for it"),
				 errdetail("Migration %s.", move->id)));
	tessera_move_hand_over(move, registered.request);
	return true;
}

bool
tessera_move_begin(const TesseraRouting *routing, const TesseraTable *table, const TesseraBound *min, const TesseraBound *max, const char *shard,
				   bool verify, bool yields, TesseraMoveBegun *begun)
{
	TesseraMove move = {.routing = routing,.table = table,.verify = verify,.yields = yields,.shard = shard,.quiet = true};

	if (!register_move(&move, tessera_bound_to_cstring(min), tessera_bound_to_cstring(max), NULL))
		return false;
	begun->migration_id = move.migration_id;
	begun->donor = move.donor;
	return true;
}

bool
tessera_move_begin_ranges(const TesseraRouting *routing, const TesseraTable *table, int n, TesseraBound **mins, TesseraBound **maxs, int32 donor,
						  const char *shard, bool verify, TesseraMoveBegun *begun)
{
	TesseraMove move = {.routing = routing,.table = table,.verify = verify,.shard = shard,.donor = donor,.quiet = true};
	TesseraRegisterRangesAnswer registered;

	tessera_call_register_ranges(tessera_to_config(), &table->table_id, tessera_bounds_text(n, mins), tessera_bounds_text(n, maxs), donor, shard,
								 routing->promised_term, verify, &registered);
	if (registered.migration_id == NULL)
		return false;
	move.migration_id = *registered.migration_id;
	tessera_move_hand_over(&move, registered.request);
	begun->migration_id = move.migration_id;
	begun->donor = donor;
	return true;
}


/* Wait */

static void
raise_outcome(const char *id, const char *sqlstate, const char *message, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(sqlstate && strlen(sqlstate) == 5 ? MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2], sqlstate[3], sqlstate[4]) :
					 ERRCODE_OPERATOR_INTERVENTION),
			 errmsg("%s", message && message[0] ? message : "the migration was aborted"),
			 detail && detail[0] ? errdetail("%s", detail) : 0,
			 hint && hint[0] ? errhint("%s", hint) : 0,
			 errcontext("migration %s", id)));
}

/* By the config node's row: true if committed, ERROR if aborted, false while it is open. */
static bool
outcome_of_config(const TesseraMove *move)
{
	TesseraMigrationStateAnswer known;
	char	   *error;

	tessera_call_migration_state(tessera_within(tessera_to_config(), ANSWER_MS), &move->migration_id, &known);
	if (tessera_migration_result_of(known.state) == TESSERA_RESULT_NONE)
		return false;
	if (tessera_migration_result_of(known.state) == TESSERA_RESULT_COMMITTED)
		return true;
	error = known.error;
	if (error != NULL && strlen(error) > 7 && error[5] == ':')
		raise_outcome(move->id, pnstrdup(error, 5), error + 7, NULL, NULL);
	raise_outcome(move->id, NULL, error, NULL, NULL);
	return false;
}

/* The donor's answer, in a subtransaction: false if it cannot be reached now (it may be restarting). */
static bool
ask_donor(const TesseraMove *move, TesseraWaitMigrationAnswer *answer)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	uint32		held = QueryCancelHoldoffCount;
	volatile bool reached = true;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		tessera_call_wait_migration(tessera_within(tessera_to_node(move->donor), ANSWER_MS), &move->migration_id, POLL_MS, answer);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;
		int			code;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		code = error->sqlerrcode;
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		if (ProcDiePending || (!tessera_error_is_unreachable(code) && code != ERRCODE_CRASH_SHUTDOWN &&
							   code != ERRCODE_CANNOT_CONNECT_NOW && code != ERRCODE_ADMIN_SHUTDOWN))
			ReThrowError(error);
		FreeErrorData(error);
		QueryCancelHoldoffCount = held; /* the error has let go of it */
		reached = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	return reached;
}

/* Has the donor no process for the migration, and no outcome of it in memory? */
static bool
donor_is_unaware(const TesseraWaitMigrationAnswer *answer)
{
	return strcmp(answer->state, "unknown") == 0;
}

static TesseraMigrationResult
donor_result(const TesseraWaitMigrationAnswer *answer)
{
	return donor_is_unaware(answer) ? TESSERA_RESULT_NONE : tessera_migration_result_of(answer->state);
}

/* One poll: true if committed, ERROR if aborted. *progress: how far it is, in words, or NULL. */
static bool
poll(TesseraMove *move, const char **progress)
{
	TesseraWaitMigrationAnswer answer;

	*progress = NULL;
	if (ask_donor(move, &answer))
	{
		move->lost = 0;
		if (donor_result(&answer) == TESSERA_RESULT_COMMITTED)
			return true;
		if (donor_result(&answer) == TESSERA_RESULT_ABORTED)
			raise_outcome(move->id, answer.sqlstate, answer.message, answer.detail, answer.hint);
		if (!donor_is_unaware(&answer))
		{
			*progress = answer.detail;
			return false;
		}
	}
	else
	{
		TimestampTz now = GetCurrentTimestamp();

		if (move->lost == 0)
			move->lost = now;
		if (TimestampDifferenceExceeds(move->lost, now, LOST_MS))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("the donor of migration %s cannot be reached", move->id),
					 errdetail("It settles the migration when it is back."),
					 errhint("Look at tessera.migrations.")));
	}

	/* its process has ended without a result, or the donor was restarted: it is settled there, and decided on the config node */
	if (outcome_of_config(move))
		return true;
	tessera_background_sleep(RESTART_POLL_MS);
	return false;
}

/* by: the statement that it makes way for, or NULL. false: it has no process. */
static bool
ask_to_cancel(const pg_uuid_t *id, int32 donor, const char *by)
{
	bool		asked;

	tessera_call_cancel_migration(tessera_within(tessera_to_node(donor), ANSWER_MS), id, by, &asked);
	return asked;
}

/*
 * The statement is being cancelled: so is the migration that it has begun. Ends by an error, or returns whether the migration was committed all the
 * same.
 */
static bool
cancel_and_wait(TesseraMove *move)
{
	int			waited = 0;
	bool		committed = false;
	const char *progress;

	if (!move->joined)
		(void) ask_to_cancel(&move->migration_id, move->donor, NULL);
	while (!move->joined && waited < CANCEL_WAIT_MS && !(committed = poll(move, &progress)))
		waited += POLL_MS;
	return committed;
}

/* Now and then: a move that is soon over tells nothing. progress: NULL or empty if the donor has not answered, or is of an older release. */
static void
tell_progress(TesseraMove *move, const char *progress)
{
	TimestampTz now = GetCurrentTimestamp();

	if (tessera_move_progress_interval == 0 || progress == NULL || progress[0] == '\0' ||
		!TimestampDifferenceExceeds(move->told, now, tessera_move_progress_interval))
		return;
	move->told = now;
	ereport(NOTICE,
			(errmsg("the move to shard \"%s\" is under way: %s", move->shard, progress)));
}

void
tessera_move_wait(TesseraMove *move)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera move", ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	bool		done = false;

	move->told = GetCurrentTimestamp();
	while (!done)
	{
		const char *progress;

		MemoryContextReset(context);
		/* a control call must not be torn: cancellation is looked for between calls, termination comes through */
		HOLD_CANCEL_INTERRUPTS();
		done = poll(move, &progress);
		if (!done && QueryCancelPending)
			done = cancel_and_wait(move);
		if (done)
		{
			/* too late: the range has moved, and the caller shall know */
			move->cancelled = QueryCancelPending;
			QueryCancelPending = false;
		}
		RESUME_CANCEL_INTERRUPTS();
		CHECK_FOR_INTERRUPTS();
		if (!done && !move->quiet)
			tell_progress(move, progress);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}


/* The parts */

static void
warn_cross_table_code(const TesseraMove *move)
{
	if (move->cross_table_code != NULL && !move->joined)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("code of the tables that move may reach rows of other tables: %s", move->cross_table_code),
				 errdetail("What runs on the shard of the row (policies, checks, triggers that fire there) fails with 0A000 when it needs a row "
						   "of another shard."),
				 errhint("See \"Triggers, policies, functions\" in doc/differences.md.")));
}

/* Adds to the error what of the range has moved and what has not, and throws it on. */
_Noreturn static void
fail_part(ErrorData *error, const char *done, const char *from, const char *max, const char *shard)
{
	error->detail = psprintf("%s%sMoved to shard \"%s\": %s. Not moved: %s to %s, as far as it is not there.",
							 error->detail != NULL ? error->detail : "",
							 error->detail != NULL ? "\n" : "", shard, done[0] != '\0' ? done : "nothing", from, max);
	if (error->hint == NULL)
		error->hint = pstrdup("What has moved stays where it is. Call tessera.move_range again for the rest.");
	ReThrowError(error);
}

/*
 * The same for a part behind the first: its shards may be busy for a moment, with the end of the part before it or with another session's migration.
 */
static bool
register_next(TesseraMove *move, const char *from, const char *max)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), NEXT_PART_MS);
	volatile bool busy = true;
	volatile bool found = false;

	while (busy)
	{
		BeginInternalSubTransaction(NULL);
		MemoryContextSwitchTo(caller);
		PG_TRY();
		{
			found = register_move(move, from, max, NULL);
			ReleaseCurrentSubTransaction();
			busy = false;
		}
		PG_CATCH();
		{
			ErrorData  *error;

			MemoryContextSwitchTo(caller);
			error = CopyErrorData();
			FlushErrorState();
			RollbackAndReleaseCurrentSubTransaction();
			MemoryContextSwitchTo(caller);
			CurrentResourceOwner = owner;
			if (error->sqlerrcode != ERRCODE_OBJECT_IN_USE || GetCurrentTimestamp() >= deadline)
				ReThrowError(error);
			FreeErrorData(error);
		}
		PG_END_TRY();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		if (busy)
			tessera_background_sleep(RESTART_POLL_MS);
	}
	return found;
}

/*
 * Registers a migration of the first part that is not there, and waits for its end. false: there is none. On error what is done is told, if there is
 * more than one part.
 */
static bool
move_part(TesseraMove *move, const char *whole_min, const char *from, const char *max, const char *done)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool found = false;

	move->id = move->part_min = move->part_max = NULL;
	PG_TRY();
	{
		/* what came too late for the part before ends the statement here, if there is more to do */
		if (move->cancelled)
			QueryCancelPending = InterruptPending = true;
		move->cancelled = false;
		CHECK_FOR_INTERRUPTS();
		found = done[0] != '\0' ? register_next(move, from, max) : register_move(move, from, max, NULL);
		if (found && done[0] == '\0')
			warn_cross_table_code(move);
		if (found)
			tessera_move_wait(move);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		if (done[0] == '\0' && (move->part_min == NULL || (strcmp(move->part_min, whole_min) == 0 && strcmp(move->part_max, max) == 0)))
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		fail_part(error, done, move->part_min != NULL ? move->part_min : from, max, move->shard);
	}
	PG_END_TRY();
	return found;
}

/* Asks for it only: the balancer makes the move when its shards have room. Returns the id of the request. */
static const char *
request_move(const TesseraMove *move, const char *min, const char *max)
{
	pg_uuid_t  *id;

	tessera_call_request_move(tessera_to_config(), &move->table->table_id, min, max, move->shard, TESSERA_REASON_REQUESTED,
							  GetUserNameFromId(GetUserId(), false),
							  move->verify, move->routing->promised_term, &id);
	return tessera_uuid_text(id);
}

static Datum
uuid_datum(const char *id)
{
	return DirectFunctionCall1(uuid_in, CStringGetDatum(id));
}

/* A bound that the caller gave, in canonical form. */
static const char *
canonical(const TesseraMove *move, const TesseraBound *bound)
{
	TesseraKeyBound key;

	tessera_key_from_bound(move->ks, bound, &key);
	return tessera_bound_to_cstring(tessera_key_to_bound(move->ks, &key));
}

/*
 * One migration after the other, each of what one shard owns of the range. What other moves do meanwhile does not matter: the config node is asked
 * for each part anew. Returns the id of the last one; NULL: all of the range was there.
 */
static const char *
move_parts(TesseraMove *move, const char *min, const char *max)
{
	const char *from = min;
	const char *last = NULL;
	StringInfoData done;

	initStringInfo(&done);
	while (strcmp(from, max) != 0 || last == NULL)
	{
		const TesseraNode *donor;
		bool		whole;

		if (!move_part(move, min, from, max, done.data))
			break;
		last = move->id;
		from = move->part_max;
		(void) tessera_routing_refresh(POLL_MS);
		whole = strcmp(move->part_min, min) == 0 && strcmp(move->part_max, max) == 0;
		if (whole && !move->tell)
			break;				/* all of it was one part */
		donor = tessera_routing_node(move->routing, move->donor);
		ereport(NOTICE,
				(errmsg("moved %s to %s from shard \"%s\" to \"%s\"", move->part_min, move->part_max, donor ? NameStr(donor->name) : "?",
						move->shard),
				 errdetail("Migration %s.", move->id)));
		appendStringInfo(&done, "%s%s to %s (migration %s)", done.len > 0 ? ", " : "", move->part_min, move->part_max, move->id);
	}
	return last;
}

bool
tessera_move_to(Oid relid, const TesseraBound *min, const TesseraBound *max, const char *shard)
{
	TesseraMove		move = {.verify = true, .quiet = true, .tell = true, .shard = shard};
	const char *last;

	find_table(relid, &move);
	last = move_parts(&move, canonical(&move, min), canonical(&move, max));
	if (move.cancelled)
		QueryCancelPending = InterruptPending = true;
	return last != NULL;
}


/* The functions */

/*
 * move_range(table_name regclass, min bound, max bound, to_shard text, verify bool, wait bool) returns uuid: of the last migration, or, if it does
 * not wait, of the request; NULL: all of the range was there
 */
Datum
tessera_move_range(PG_FUNCTION_ARGS)
{
	TesseraMove		move = {0};
	const char *min;
	const char *max;
	const char *last;

	move.verify = PG_GETARG_BOOL(4);
	move.shard = text_to_cstring(PG_GETARG_TEXT_PP(3));
	find_table(PG_GETARG_OID(0), &move);
	min = canonical(&move, PG_GETARG_TESSERA_BOUND_P(1));
	max = canonical(&move, PG_GETARG_TESSERA_BOUND_P(2));
	if (!PG_GETARG_BOOL(5))
	{
		last = request_move(&move, min, max);
		warn_cross_table_code(&move);
		PG_RETURN_DATUM(uuid_datum(last));
	}
	last = move_parts(&move, min, max);
	if (last == NULL)
	{
		ereport(NOTICE,
				(errmsg("the range is on shard \"%s\" already", move.shard)));
		PG_RETURN_NULL();
	}
	PG_RETURN_DATUM(uuid_datum(last));
}

/* move_chunk(table_name regclass, key bound, to_shard text, verify bool) returns uuid */
Datum
tessera_move_chunk(PG_FUNCTION_ARGS)
{
	TesseraMove		move = {0};
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;

	move.verify = PG_GETARG_BOOL(3);
	move.shard = text_to_cstring(PG_GETARG_TEXT_PP(2));
	find_table(PG_GETARG_OID(0), &move);
	tessera_key_values_from_bound(move.ks, PG_GETARG_TESSERA_BOUND_P(1), values);
	tessera_key_position(move.ks, values, &position);
	if (!register_move(&move, NULL, NULL, tessera_bound_to_cstring(tessera_key_to_bound(move.ks, &position))))
	{
		ereport(NOTICE,
				(errmsg("the range is on shard \"%s\" already", move.shard)));
		PG_RETURN_NULL();
	}
	warn_cross_table_code(&move);
	tessera_move_wait(&move);
	(void) tessera_routing_refresh(POLL_MS);
	PG_RETURN_DATUM(uuid_datum(move.id));
}

/*
 * The id may be that of a request: if nothing runs for it, *answer says whether it is dropped, and it returns true. Else *migration_id is that of the
 * migration which runs for it, or as it was if the id is none of a request.
 */
static bool
drop_request(const pg_uuid_t **migration_id, bool *answer)
{
	TesseraDropRequestAnswer request;

	tessera_call_drop_request(tessera_to_config(), *migration_id, &request);
	if (request.migration_id != NULL)
		*migration_id = request.migration_id;
	else if (request.state != NULL && strcmp(request.state, "dropped") != 0)
		ereport(NOTICE,
				(errmsg("the move that was asked for has ended: %s", request.state)));
	*answer = request.state != NULL && strcmp(request.state, "dropped") == 0;
	return request.state != NULL && request.migration_id == NULL;
}

/* cancel_migration(id uuid) returns bool: true if it is aborted; false if it was too late, or had ended. */
Datum
tessera_cancel_migration(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *migration_id = PG_GETARG_UUID_P(0);
	const char *id = tessera_uuid_text(migration_id);
	TesseraMigrationStateAnswer known;
	int32		donor;
	bool		answer;

	if (tessera_routing() == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster")));
	if (drop_request(&migration_id, &answer))
		PG_RETURN_BOOL(answer);
	tessera_call_migration_state(tessera_to_config(), migration_id, &known);
	if (known.state == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("migration %s does not exist", id),
				 errhint("tessera.migrations and tessera.balancer_status list them, on the config node.")));
	id = tessera_uuid_text(migration_id);
	if (tessera_migration_result_of(known.state) != TESSERA_RESULT_NONE)
	{
		ereport(NOTICE,
				(errmsg("migration %s has ended: %s", id, known.state)));
		PG_RETURN_BOOL(false);
	}
	donor = known.donor;
	if (!ask_to_cancel(migration_id, donor, NULL))
		ereport(NOTICE,
				(errmsg("migration %s has no process; its donor settles it", id)));
	for (int waited = 0; waited < CANCEL_WAIT_MS; waited += POLL_MS)
	{
		TesseraWaitMigrationAnswer answer;

		CHECK_FOR_INTERRUPTS();
		tessera_call_wait_migration(tessera_within(tessera_to_node(donor), ANSWER_MS), migration_id, POLL_MS, &answer);
		if (donor_result(&answer) != TESSERA_RESULT_NONE)
			PG_RETURN_BOOL(donor_result(&answer) == TESSERA_RESULT_ABORTED);
		if (!donor_is_unaware(&answer))
			continue;
		tessera_call_migration_state(tessera_to_config(), migration_id, &known);
		if (tessera_migration_result_of(known.state) != TESSERA_RESULT_NONE)
			PG_RETURN_BOOL(tessera_migration_result_of(known.state) == TESSERA_RESULT_ABORTED);
		tessera_background_sleep(RESTART_POLL_MS);
	}
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("migration %s has not ended yet", id),
			 errhint("Look at tessera.migrations.")));
}


/* For a statement that must not meet a migration */

void
tessera_migrations_end(const char *groups, const char *by, int timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);

	for (;;)
	{
		TesseraRunningMigrationsAnswer *running;
		TesseraWaitMigrationAnswer answer;
		int			n;

		tessera_call_running_migrations(tessera_within(tessera_to_config(), ANSWER_MS), groups, &running, &n);
		if (n == 0)
			return;
		CHECK_FOR_INTERRUPTS();
		if (GetCurrentTimestamp() >= deadline)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("a migration of table %s has not ended within %d ms", running->table ? running->table : "?", timeout_ms),
					 errdetail("Migration %s was asked to end for the statement; where the config node was told to commit, only its answer ends it.",
							   tessera_uuid_text(running->migration_id)),
					 errhint("Look at tessera.migrations, and run the statement again when it has ended.")));
		/* each time: a worker that was about to start hears of it, too */
		for (int i = 0; i < n; i++)
			(void) ask_to_cancel(running[i].migration_id, running[i].donor, by);
		tessera_call_wait_migration(tessera_within(tessera_to_node(running->donor), ANSWER_MS), running->migration_id, POLL_MS, &answer);
		if (donor_is_unaware(&answer) || donor_result(&answer) != TESSERA_RESULT_NONE)
			tessera_background_sleep(RETRY_MS);
	}
}
