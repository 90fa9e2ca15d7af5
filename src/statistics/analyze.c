/*
 * analyze.c
 *	  ANALYZE of tables of the cluster: on every shard that has rows of them, here and there at once, as the user, with core's own checks; then the
 *	  statistics are collected.
 *
 * The shards take part in the user's transaction: a table made or filled in it can be analyzed, and the locks that the transaction holds on it block
 * no part of the call. For each table: (1) one of its shards gives the lock of its statistics, so that two such ANALYZE wait for each other there and
 * not crosswise; (2) the statement goes to the other shards, followed by a call that collects; (3) it runs here; (4) the answers are written to
 * tessera.table_statistics of this node. When the transaction commits the other nodes are told. Outside a transaction block each of several tables is
 * a transaction of its own, as on one server.
 *
 * Without a list of tables: this node's tables by core, then those of the cluster that the user may analyze.
 *
 * Memory: the list of tables and the texts live in a context below the portal's; commands in flight in TopTransactionContext.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "libpq-fe.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "session/internal_connection.h"
#include "statistics/collect.h"
#include "statistics/table_statistics.h"
#include "transaction/participant.h"

/* What is to be analyzed: one relation of the statement. */
typedef struct Target
{
	VacuumRelation *relation;	/* as written; NULL: of a statement without a list */
	Oid			relid;
	Oid			root;			/* the cluster's table that it is or belongs to; InvalidOid: not the cluster's */
} Target;

/* A shard's answer on its way. */
typedef struct Answer
{
	int32		node_id;
	TesseraConnection *connection;
	TesseraCommand analyze;
	TesseraCommand collect;
	PGresult   *row;
} Answer;

void		(*tessera_run_utility) (TesseraUtility *utility) = NULL;

static void
keep_row(TesseraCommand *command, PGresult *result)
{
	Answer	   *answer = command->arg;

	if (PQresultStatus(result) == PGRES_TUPLES_OK && answer->row == NULL)
	{
		answer->row = result;
		return;
	}
	if (PQresultStatus(result) == PGRES_FATAL_ERROR && command->error == NULL)
	{
		command->error = result;
		return;
	}
	PQclear(result);
}

/* The answers of a table, for the end of the transaction: what libpq has allocated goes, also after an error. */
typedef struct Answers
{
	MemoryContextCallback callback;
	int			n;
	Answer	   *answers;
} Answers;

static void
free_answers(void *arg)
{
	Answers    *all = arg;

	for (int i = 0; i < all->n; i++)
		if (all->answers[i].row)
			PQclear(all->answers[i].row);
}

/* ---- what is meant ---- */

static Oid
root_of(const TesseraRouting *routing, Oid relid)
{
	if (tessera_routing_table(routing, relid))
		return relid;
	if (OidIsValid(relid) && get_rel_relispartition(relid))
	{
		List	   *ancestors = get_partition_ancestors(relid);

		if (ancestors != NIL && tessera_routing_table(routing, llast_oid(ancestors)))
			return llast_oid(ancestors);
	}
	return InvalidOid;
}

static List *
add_target(List *targets, const TesseraRouting *routing, VacuumRelation *relation, Oid relid)
{
	Target	   *target = palloc(sizeof(Target));

	target->relation = relation;
	target->relid = relid;
	target->root = root_of(routing, relid);
	return lappend(targets, target);
}

/* The relations of the statement; of one without a list the cluster's tables. */
static List *
list_targets(VacuumStmt *statement, const TesseraRouting *routing)
{
	List	   *targets = NIL;
	ListCell   *cell;

	foreach(cell, statement->rels)
	{
		VacuumRelation *relation = lfirst_node(VacuumRelation, cell);
		Oid			relid = OidIsValid(relation->oid) ? relation->oid : RangeVarGetRelid(relation->relation, NoLock, true);

		targets = add_target(targets, routing, relation, relid);
	}
	if (statement->rels == NIL)
		for (int i = 0; i < routing->ntables; i++)
		{
			Oid			relid = tessera_routing_table_at(routing, i)->relid;
			char		kind = OidIsValid(relid) ? get_rel_relkind(relid) : '\0';

			if (kind == RELKIND_RELATION || kind == RELKIND_PARTITIONED_TABLE || kind == RELKIND_MATVIEW)
				targets = add_target(targets, routing, NULL, relid);
		}
	return targets;
}

static bool
names_cluster_table(List *targets)
{
	ListCell   *cell;

	foreach(cell, targets)
		if (OidIsValid(((Target *) lfirst(cell))->root))
			return true;
	return false;
}

/* The rule of core, which has given the WARNING here if not. */
static bool
may_analyze(Oid relid)
{
	return tessera_owns_relation(relid, GetUserId()) || tessera_owns_database(MyDatabaseId, GetUserId());
}

/* The statement for one relation, by its full name. */
static char *
text_for(VacuumStmt *statement, const Target *target)
{
	StringInfoData text;
	ListCell   *cell;

	initStringInfo(&text);
	appendStringInfoString(&text, "ANALYZE");
	foreach(cell, statement->options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		appendStringInfo(&text, "%s%s %s", cell == list_head(statement->options) ? " (" : ", ", tessera_quote(option->defname),
						 defGetBoolean(option) ? "true" : "false");
	}
	appendStringInfo(&text, "%s %s", statement->options ? ")" : "",
					 tessera_qualified_name(target->relid));
	foreach(cell, target->relation ? target->relation->va_cols : NIL)
		appendStringInfo(&text, "%s%s", cell == list_head(target->relation->va_cols) ? " (" : ", ", tessera_quote(strVal(lfirst(cell))));
	if (target->relation && target->relation->va_cols)
		appendStringInfoChar(&text, ')');
	return text.data;
}

/* ---- one table ---- */

/* Nodes that have rows of the table, by number. */
static List *
shards_of(const TesseraRouting *routing, const TesseraTable *table)
{
	List	   *nodes = NIL;
	TesseraTargets *owners;

	if (table->group < 0)
		return list_make1_int(table->node_id);
	owners = tessera_routing_owners(routing, tessera_routing_group(routing, table->group));
	for (int i = 0; i < owners->n; i++)
		nodes = lappend_int(nodes, owners->node_ids[i]);
	return nodes;
}

/* Two ANALYZE of one table wait for each other at its first shard; on this node the lock guards the rows as well. */
static void
lock_statistics(const TesseraRouting *routing, const TesseraTable *table, int32 first)
{
	if (first != routing->self)
		tessera_call_lock_statistics(tessera_writing(tessera_to_node(first)), &table->table_id);
	(void) tessera_statistics_lock(&table->table_id, true);
}

static void
send(const TesseraRouting *routing, const TesseraTable *table, const char *text, Answer *answer)
{
	TesseraCommandNeeds needs = {.write = true};
	const char **values = palloc(sizeof(char *));

	values[0] = tessera_uuid_text(&table->table_id);
	answer->analyze.sql = text;
	answer->collect.values = values;
	answer->collect.handler = keep_row;
	answer->collect.arg = answer;
	answer->connection = tessera_participant(routing, answer->node_id, &needs);
	answer->collect.sql = tessera_call_text(&tessera_call_specs[TESSERA_CALL_COLLECT_STATISTICS], tessera_connection_protocol(answer->connection),
											&answer->collect.nparams);
	tessera_connection_queue(answer->connection, &answer->analyze);
	tessera_connection_queue(answer->connection, &answer->collect);
	tessera_connection_sync(answer->connection);
}

static void
write_answer(const TesseraTable *table, int32 node_id, const char *fields)
{
	TesseraStatisticsRow row = {.table_id = table->table_id, .node_id = node_id};
	Datum		array = OidFunctionCall3(F_ARRAY_IN, CStringGetDatum(fields), ObjectIdGetDatum(TEXTOID), Int32GetDatum(-1));
	Datum	   *elements;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, &n);
	if (n < 6)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unexpected statistics of node %d", node_id)));
	row.stamp = TextDatumGetCString(elements[0]);
	row.pages = strtod(TextDatumGetCString(elements[1]), NULL);
	row.tuples = strtod(TextDatumGetCString(elements[2]), NULL);
	row.bytes = pg_strtoint64(TextDatumGetCString(elements[3]));
	row.columns = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(TextDatumGetCString(elements[4]))));
	row.collected = pg_strtoint64(TextDatumGetCString(elements[5]));
	tessera_statistics_write(&row, table->relid);
}

static void
receive(const TesseraTable *table, Answer *answer)
{
	PGresult   *row;

	tessera_connection_finish(answer->connection, &answer->collect);
	tessera_connection_check(answer->connection, &answer->analyze);
	tessera_connection_check(answer->connection, &answer->collect);
	row = answer->row;
	if (row == NULL)
		return;
	answer->row = NULL;
	PG_TRY();
	{
		if (PQntuples(row) == 1 && !PQgetisnull(row, 0, 0))
			write_answer(table, answer->node_id, PQgetvalue(row, 0, 0));
	}
	PG_FINALLY();
	{
		PQclear(row);
	}
	PG_END_TRY();
}

/* Core's part: this node's own heap, with all its checks and messages. */
static void
run_here(TesseraUtility *utility, VacuumRelation *relation)
{
	TesseraUtility copy = *utility;
	PlannedStmt *planned = copyObject(utility->statement);

	if (relation)
		((VacuumStmt *) planned->utilityStmt)->rels = list_make1(copyObject(relation));
	copy.statement = planned;
	copy.read_only = false;
	if (relation)
		copy.context = PROCESS_UTILITY_QUERY;	/* core must not commit in the middle, as it does between the partitions of a table */
	tessera_run_utility(&copy);
}

/* This node's own share of the table; done: core has been here already. */
static void
analyze_here(TesseraUtility *utility, const Target *target, bool done)
{
	if (!done)
		run_here(utility, target->relation);
	CommandCounterIncrement();
}

/* A table of the cluster. done: this node's own heap was analyzed before. */
static void
analyze_table(TesseraUtility *utility, const Target *target, bool done)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing ? tessera_routing_table(routing, target->root) : NULL;
	MemoryContext before;
	List	   *shards;
	Answers    *all;
	Answer	   *answers;
	char	   *text;
	int			n = 0;
	ListCell   *cell;

	if (table == NULL || !may_analyze(target->relid))
	{
		analyze_here(utility, target, done);
		return;
	}
	before = MemoryContextSwitchTo(TopTransactionContext);
	shards = shards_of(routing, table);
	answers = palloc0(sizeof(Answer) * Max(list_length(shards), 1));
	all = palloc0(sizeof(Answers));
	all->n = list_length(shards);
	all->answers = answers;
	all->callback.func = free_answers;
	all->callback.arg = all;
	MemoryContextRegisterResetCallback(TopTransactionContext, &all->callback);
	text = text_for(castNode(VacuumStmt, utility->statement->utilityStmt), target);
	lock_statistics(routing, table, linitial_int(shards));
	foreach(cell, shards)
	{
		if (lfirst_int(cell) == routing->self)
			continue;
		answers[n].node_id = lfirst_int(cell);
		send(routing, table, text, &answers[n++]);
	}
	MemoryContextSwitchTo(before);
	analyze_here(utility, target, done);
	for (int i = 0; i < n; i++)
		receive(table, &answers[i]);
	(void) tessera_statistics_collect(routing, table, true);
	tessera_statistics_tell_at_commit();
}

/* ---- the statement ---- */

static void
next_transaction(void)
{
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

/* A transaction for each table, as core's VACUUM and ANALYZE do. */
static void
analyze_each(TesseraUtility *utility, List *targets, bool done, bool own_transactions)
{
	ListCell   *cell;

	/* a name that means nothing is an error before anything is done */
	foreach(cell, targets)
		if (!OidIsValid(((Target *) lfirst(cell))->relid))
			run_here(utility, ((Target *) lfirst(cell))->relation);
	foreach(cell, targets)
	{
		Target	   *target = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		if (OidIsValid(target->root))
			analyze_table(utility, target, done);
		else if (!done && OidIsValid(target->relid))
			run_here(utility, target->relation);
		if (own_transactions && lnext(targets, cell) != NULL)
			next_transaction();
	}
}

bool
tessera_analyze(TesseraUtility *utility)
{
	VacuumStmt *statement = castNode(VacuumStmt, utility->statement->utilityStmt);
	const TesseraRouting *routing = tessera_routing();
	bool		top_level = utility->context == PROCESS_UTILITY_TOPLEVEL;
	bool		own_transactions;
	MemoryContext before;
	List	   *targets;

	if (statement->is_vacuumcmd || routing == NULL || tessera_internal_connection())
		return false;
	before = MemoryContextSwitchTo(PortalContext ? PortalContext : CurrentMemoryContext);
	targets = list_targets(statement, routing);
	if (!names_cluster_table(targets))
	{
		MemoryContextSwitchTo(before);
		return false;
	}
	own_transactions = !IsInTransactionBlock(top_level) && (list_length(targets) > 1 || statement->rels == NIL);
	if (statement->rels == NIL)
	{
		run_here(utility, NULL);
		if (!ActiveSnapshotSet())
			PushActiveSnapshot(GetTransactionSnapshot());
	}
	analyze_each(utility, targets, statement->rels == NIL, own_transactions);
	/* the portal's own went with the first transaction */
	if (own_transactions && ActiveSnapshotSet())
		PopActiveSnapshot();
	MemoryContextSwitchTo(before);
	return true;
}
