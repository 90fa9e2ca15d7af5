/*
 * utility_hook.c
 *	  The ProcessUtility hook: decides for each utility statement whether it stays here, goes to every node, or is taken over by a handler.
 *
 * One table gives the kind of each statement; what it names (statement_objects.c) decides whether that applies: statements on temporary objects, on
 * objects of this node alone, inside CREATE EXTENSION, or with tessera.replicate_ddl off run as without the extension. Parts of a statement that runs
 * already
 * (PROCESS_UTILITY_SUBCOMMAND) went to the other nodes with it.
 *
 * Nothing is kept between statements.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/nodes.h"
#include "tcop/utility.h"
#include "utils/guc.h"

#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "ddl/sequence.h"
#include "ddl/subscription.h"
#include "load/written_rows.h"
#include "session/internal_connection.h"
#include "transaction/advisory.h"
#include "transaction/notify.h"
#include "transaction/prepared.h"

typedef enum UtilityKind
{
	UTILITY_LOCAL,				/* this node's own business */
	UTILITY_EVERYWHERE,			/* DDL: every node */
	UTILITY_ROLE,				/* roles: every server */
	UTILITY_CONSTRAINTS,		/* SET CONSTRAINTS: nodes that take part */
	UTILITY_LOCK,				/* LOCK TABLE: every node */
	UTILITY_TABLE_AS,			/* CREATE TABLE AS, SELECT INTO, CREATE MATERIALIZED VIEW */
	UTILITY_REFRESH,			/* REFRESH MATERIALIZED VIEW */
	UTILITY_TRUNCATE,
	UTILITY_COPY,
	UTILITY_ANALYZE,			/* ANALYZE: every shard of a table */
	UTILITY_MAINTENANCE,		/* VACUUM, CLUSTER, REINDEX: every shard of a table, each by itself */
	UTILITY_PUBLICATION,		/* this node only, with a WARNING that says so */
	UTILITY_SUBSCRIPTION,		/* this node only, into its own tables only */
	UTILITY_EXPLAIN
} UtilityKind;

/* What is not here is local: settings, cursors, prepared statements, databases, tablespaces... */
static const struct
{
	NodeTag		tag;
	UtilityKind kind;
}			kinds[] =
{
	{T_AlterCollationStmt, UTILITY_EVERYWHERE},
	{T_AlterDefaultPrivilegesStmt, UTILITY_EVERYWHERE},
	{T_AlterDomainStmt, UTILITY_EVERYWHERE},
	{T_AlterEnumStmt, UTILITY_EVERYWHERE},
	{T_AlterEventTrigStmt, UTILITY_EVERYWHERE},
	{T_AlterExtensionContentsStmt, UTILITY_EVERYWHERE},
	{T_AlterExtensionStmt, UTILITY_EVERYWHERE},
	{T_AlterFdwStmt, UTILITY_EVERYWHERE},
	{T_AlterForeignServerStmt, UTILITY_EVERYWHERE},
	{T_AlterFunctionStmt, UTILITY_EVERYWHERE},
	{T_AlterObjectDependsStmt, UTILITY_EVERYWHERE},
	{T_AlterObjectSchemaStmt, UTILITY_EVERYWHERE},
	{T_AlterOpFamilyStmt, UTILITY_EVERYWHERE},
	{T_AlterOperatorStmt, UTILITY_EVERYWHERE},
	{T_AlterOwnerStmt, UTILITY_EVERYWHERE},
	{T_AlterPolicyStmt, UTILITY_EVERYWHERE},
	{T_AlterRoleSetStmt, UTILITY_ROLE},
	{T_AlterRoleStmt, UTILITY_ROLE},
	{T_AlterSeqStmt, UTILITY_EVERYWHERE},
	{T_AlterStatsStmt, UTILITY_EVERYWHERE},
	{T_AlterPublicationStmt, UTILITY_PUBLICATION},
	{T_AlterSubscriptionStmt, UTILITY_SUBSCRIPTION},
	{T_AlterTSConfigurationStmt, UTILITY_EVERYWHERE},
	{T_AlterTSDictionaryStmt, UTILITY_EVERYWHERE},
	{T_AlterTableStmt, UTILITY_EVERYWHERE},
	{T_AlterTypeStmt, UTILITY_EVERYWHERE},
	{T_AlterUserMappingStmt, UTILITY_EVERYWHERE},
	{T_ClusterStmt, UTILITY_MAINTENANCE},
	{T_CommentStmt, UTILITY_EVERYWHERE},
	{T_CompositeTypeStmt, UTILITY_EVERYWHERE},
	{T_ConstraintsSetStmt, UTILITY_CONSTRAINTS},
	{T_CopyStmt, UTILITY_COPY},
	{T_CreateAmStmt, UTILITY_EVERYWHERE},
	{T_CreateCastStmt, UTILITY_EVERYWHERE},
	{T_CreateConversionStmt, UTILITY_EVERYWHERE},
	{T_CreateDomainStmt, UTILITY_EVERYWHERE},
	{T_CreateEnumStmt, UTILITY_EVERYWHERE},
	{T_CreateEventTrigStmt, UTILITY_EVERYWHERE},
	{T_CreateExtensionStmt, UTILITY_EVERYWHERE},
	{T_CreateFdwStmt, UTILITY_EVERYWHERE},
	{T_CreateForeignServerStmt, UTILITY_EVERYWHERE},
	{T_CreateForeignTableStmt, UTILITY_EVERYWHERE},
	{T_CreateFunctionStmt, UTILITY_EVERYWHERE},
	{T_CreateOpClassStmt, UTILITY_EVERYWHERE},
	{T_CreateOpFamilyStmt, UTILITY_EVERYWHERE},
	{T_CreatePLangStmt, UTILITY_EVERYWHERE},
	{T_CreatePolicyStmt, UTILITY_EVERYWHERE},
	{T_CreatePublicationStmt, UTILITY_PUBLICATION},
	{T_CreateRangeStmt, UTILITY_EVERYWHERE},
	{T_CreateRoleStmt, UTILITY_ROLE},
	{T_CreateSchemaStmt, UTILITY_EVERYWHERE},
	{T_CreateSeqStmt, UTILITY_EVERYWHERE},
	{T_CreateStatsStmt, UTILITY_EVERYWHERE},
	{T_CreateStmt, UTILITY_EVERYWHERE},
	{T_CreateSubscriptionStmt, UTILITY_SUBSCRIPTION},
	{T_CreateTableAsStmt, UTILITY_TABLE_AS},
	{T_CreateTransformStmt, UTILITY_EVERYWHERE},
	{T_CreateTrigStmt, UTILITY_EVERYWHERE},
	{T_CreateUserMappingStmt, UTILITY_EVERYWHERE},
	{T_DefineStmt, UTILITY_EVERYWHERE},
	{T_DropOwnedStmt, UTILITY_EVERYWHERE},
	{T_DropRoleStmt, UTILITY_ROLE},
	{T_DropStmt, UTILITY_EVERYWHERE},
	{T_DropUserMappingStmt, UTILITY_EVERYWHERE},
	{T_ExplainStmt, UTILITY_EXPLAIN},
	{T_GrantRoleStmt, UTILITY_ROLE},
	{T_GrantStmt, UTILITY_EVERYWHERE},
	{T_ImportForeignSchemaStmt, UTILITY_EVERYWHERE},
	{T_IndexStmt, UTILITY_EVERYWHERE},
	{T_LockStmt, UTILITY_LOCK},
	{T_ReassignOwnedStmt, UTILITY_EVERYWHERE},
	{T_RefreshMatViewStmt, UTILITY_REFRESH},
	{T_ReindexStmt, UTILITY_MAINTENANCE},
	{T_RenameStmt, UTILITY_EVERYWHERE},
	{T_RuleStmt, UTILITY_EVERYWHERE},
	{T_SecLabelStmt, UTILITY_EVERYWHERE},
	{T_TruncateStmt, UTILITY_TRUNCATE},
	{T_ViewStmt, UTILITY_EVERYWHERE},
};

static ProcessUtility_hook_type previous_utility = NULL;
static bool replicate_ddl = true;

TesseraUtilityHandler tessera_copy_handler = NULL;
void		(*tessera_copy_done) (void) = NULL;
void		(*tessera_snapshot_imported) (void) = NULL;
TesseraUtilityHandler tessera_analyze_handler = NULL;

/* Databases, tablespaces, large objects and configuration parameters are not the cluster's; roles are the servers'. */
static UtilityKind
kind_of_object(ObjectType type)
{
	switch (type)
	{
		case OBJECT_ROLE:
			return UTILITY_ROLE;
		case OBJECT_DATABASE:
		case OBJECT_TABLESPACE:
		case OBJECT_LARGEOBJECT:
		case OBJECT_PARAMETER_ACL:
		case OBJECT_PUBLICATION:
		case OBJECT_PUBLICATION_NAMESPACE:
		case OBJECT_PUBLICATION_REL:
		case OBJECT_SUBSCRIPTION:
			return UTILITY_LOCAL;
		default:
			return UTILITY_EVERYWHERE;
	}
}

/* About this database, or, from another node, about that node's. */
static UtilityKind
kind_about_database(const TesseraUtility *utility)
{
	Node	   *statement = utility->statement->utilityStmt;

	return IsTransactionState() && (tessera_received(utility->text) || tessera_names_this_database(statement)) ? UTILITY_EVERYWHERE : UTILITY_LOCAL;
}

static UtilityKind
kind_of(const TesseraUtility *utility)
{
	Node	   *statement = utility->statement->utilityStmt;

	if (tessera_about_database(statement))
		return kind_about_database(utility);
	switch (nodeTag(statement))
	{
		case T_RenameStmt:
			return kind_of_object(castNode(RenameStmt, statement)->renameType);
		case T_CommentStmt:
			return kind_of_object(castNode(CommentStmt, statement)->objtype);
		case T_SecLabelStmt:
			return kind_of_object(castNode(SecLabelStmt, statement)->objtype);
		case T_AlterOwnerStmt:
			return kind_of_object(castNode(AlterOwnerStmt, statement)->objectType);
		case T_DropStmt:
			return kind_of_object(castNode(DropStmt, statement)->removeType);
		case T_GrantStmt:
			return kind_of_object(castNode(GrantStmt, statement)->objtype);
		case T_VacuumStmt:
			return castNode(VacuumStmt, statement)->is_vacuumcmd ? UTILITY_MAINTENANCE : UTILITY_ANALYZE;
		default:
			break;
	}
	for (int i = 0; i < lengthof(kinds); i++)
		if (kinds[i].tag == nodeTag(statement))
			return kinds[i].kind;
	return UTILITY_LOCAL;
}

/* Statements that only carry another one: it counts as the outermost itself. */
static bool
is_carrier(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_ExplainStmt:
		case T_PrepareStmt:
		case T_ExecuteStmt:
		case T_DeallocateStmt:
		case T_DeclareCursorStmt:
		case T_FetchStmt:
		case T_ClosePortalStmt:
		case T_TransactionStmt:
			return true;
		default:
			return false;
	}
}

static void
run_next(TesseraUtility *u)
{
	if (previous_utility)
		previous_utility(u->statement, u->text, u->read_only, u->context, u->params, u->environment, u->receiver, u->completion);
	else
		standard_ProcessUtility(u->statement, u->text, u->read_only, u->context, u->params, u->environment, u->receiver, u->completion);
}

void
tessera_utility_run(TesseraUtility *utility)
{
	if (is_carrier(utility->statement->utilityStmt))
	{
		run_next(utility);
		return;
	}
	tessera_nesting_enter();
	PG_TRY();
	{
		tessera_refresh_or_run(utility, run_next);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
	}
	PG_END_TRY();
}

/*
 * DETACH PARTITION CONCURRENTLY is a DETACH PARTITION, which takes its locks in short attempts, as all DDL does; what it cannot do is as on one
 * server.
 */
static void
check_detach_concurrently(TesseraUtility *utility, AlterTableStmt *statement)
{
	Oid			relid = RangeVarGetRelid(statement->relation, NoLock, true);

	PreventInTransactionBlock(utility->context == PROCESS_UTILITY_TOPLEVEL, "ALTER TABLE ... DETACH CONCURRENTLY");
	if (OidIsValid(relid) && OidIsValid(get_default_partition_oid(relid)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot detach partitions concurrently when a default partition exists"),
				 errhint("Use DETACH PARTITION.")));
}

/* DROP INDEX CONCURRENTLY takes its locks in short attempts, as all DDL does; what it cannot do is as on one server. */
static void
check_drop_concurrently(TesseraUtility *utility, DropStmt *statement)
{
	PreventInTransactionBlock(utility->context == PROCESS_UTILITY_TOPLEVEL, "DROP INDEX CONCURRENTLY");
	if (list_length(statement->objects) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("DROP INDEX CONCURRENTLY does not support dropping multiple objects")));
	if (statement->behavior == DROP_CASCADE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("DROP INDEX CONCURRENTLY does not support CASCADE")));
}

/* Statements with PROCESS_UTILITY_SUBCOMMAND belong to one that goes everywhere as a whole, and so does what an extension's script does. */
static bool
belongs_to_another(TesseraUtility *utility)
{
	return utility->context == PROCESS_UTILITY_SUBCOMMAND || creating_extension;
}

static void
run_ddl(TesseraUtility *utility, const TesseraRouting *routing, UtilityKind kind)
{
	Node	   *statement = utility->statement->utilityStmt;
	TesseraStatementObjects named = {0};

	tessera_statement_objects(statement, routing, &named);
	if (named.local != NULL)
	{
		if (named.cluster != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("one statement cannot change both \"%s\", which every node has, and \"%s\", which only this node has",
							named.cluster, named.local),
					 errhint("Use a statement for each.")));
		tessera_refuse_temporary_child(statement, routing);
		if (kind == UTILITY_LOCK)
			tessera_ddl_check_lock_of_catalog((LockStmt *) statement);
		tessera_utility_run(utility);
		return;
	}
	if (tessera_rests_on_temporary(statement))
	{
		tessera_utility_run(utility);
		return;
	}
	tessera_refuse_temporary_columns(statement);
	/* ACCESS SHARE only keeps DDL away, which locks the table on this node as well: the local lock is enough (pg_dump takes it, read-only) */
	if (kind == UTILITY_LOCK && (named.relids == NIL || ((LockStmt *) statement)->mode == AccessShareLock))
	{
		tessera_utility_run(utility);
		return;
	}
	if (tessera_internal_connection())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a function or trigger that runs on a shard cannot run %s", CreateCommandName(statement)),
				 errhint("Run it in the client, or in a function called outside the statement.")));
	if (kind == UTILITY_LOCK)	/* in a subtransaction it would seem to be in a block */
		RequireTransactionBlock(utility->context == PROCESS_UTILITY_TOPLEVEL, "LOCK TABLE");
	if (!CommandIsReadOnly(utility->statement))
		PreventCommandIfReadOnly(CreateCommandName(statement));
	if (IsA(statement, DropStmt) && ((DropStmt *) statement)->concurrent)
		check_drop_concurrently(utility, (DropStmt *) statement);
	if (tessera_detaches_concurrently(statement))
		check_detach_concurrently(utility, (AlterTableStmt *) statement);
	if (IsA(statement, IndexStmt) && ((IndexStmt *) statement)->concurrent)
		tessera_create_index_concurrently(utility, routing, &named);
	else
		tessera_fan_out(utility, routing, &named);
}

/* EXPLAIN ANALYZE CREATE TABLE AS would make a table that only this node has. */
static bool
explains_table_as(Node *statement)
{
	Query	   *query = castNode(Query, ((ExplainStmt *) statement)->query);
	ListCell   *cell;

	if (query->commandType != CMD_UTILITY || !IsA(query->utilityStmt, CreateTableAsStmt) ||
		((CreateTableAsStmt *) query->utilityStmt)->into->rel->relpersistence == RELPERSISTENCE_TEMP)
		return false;
	foreach(cell, ((ExplainStmt *) statement)->options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "analyze") == 0 && defGetBoolean(option))
			return true;
	}
	return false;
}

/* COPY that another node has sent: the rows that it writes are sampled. */
static void
run_received_copy(TesseraUtility *utility)
{
	CopyStmt   *statement = castNode(CopyStmt, utility->statement->utilityStmt);
	QueryCompletion *wanted = utility->completion;
	QueryCompletion completion;
	TesseraCopyWatch watch;
	Relation	rel;

	rel = statement->is_from ? table_openrv_extended(statement->relation, RowExclusiveLock, true) : NULL;
	if (rel == NULL)
	{
		tessera_utility_run(utility);
		return;
	}
	InitializeQueryCompletion(&completion);
	utility->completion = &completion;
	tessera_copy_watch_begin(&watch, rel);
	tessera_utility_run(utility);
	utility->completion = wanted;
	tessera_copy_watch_end(&watch, completion.nprocessed);
	if (wanted)
		*wanted = completion;
	table_close(rel, NoLock);
}

/* Runs a utility statement on a node of a cluster, by its kind. */
static void
run_on_member(TesseraUtility *utility, const TesseraRouting *routing, UtilityKind kind)
{
	bool		received = tessera_received(utility->text);
	Node	   *statement = utility->statement->utilityStmt;

	tessera_ddl_check_drop_extension(statement);
	switch (kind)
	{
		case UTILITY_COPY:
			if (received)
				run_received_copy(utility);
			else if (tessera_copy_handler == NULL || !tessera_copy_handler(utility))
				tessera_utility_run(utility);
			if (tessera_copy_done != NULL)
				tessera_copy_done();
			return;
		case UTILITY_ANALYZE:
			if (tessera_analyze_handler == NULL || received || !tessera_analyze_handler(utility))
				tessera_utility_run(utility);
			return;
		case UTILITY_MAINTENANCE:
			if (received || !replicate_ddl || !tessera_maintenance(utility, routing))
				tessera_utility_run(utility);
			return;
		case UTILITY_CONSTRAINTS:
			if (received)
				tessera_utility_run(utility);
			else
				tessera_set_constraints(utility, routing);
			return;
		case UTILITY_TRUNCATE:
			tessera_truncate(utility, routing, received);
			return;
		case UTILITY_PUBLICATION:
			tessera_publication(utility);
			return;
		case UTILITY_SUBSCRIPTION:
			tessera_subscription(utility, routing);
			return;
		case UTILITY_EXPLAIN:
			if (replicate_ddl && explains_table_as(statement))
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("EXPLAIN ANALYZE of a statement that creates a table is not supported in a cluster"),
						 errhint("Explain the query alone.")));
			tessera_utility_run(utility);
			return;
		default:
			break;
	}
	if (received)
		tessera_fan_out_receive(utility, routing);
	else if (!replicate_ddl && kind != UTILITY_LOCK)
		tessera_utility_run(utility);
	else if (kind == UTILITY_ROLE)
		tessera_role_statement(utility, routing);
	else if (kind == UTILITY_REFRESH)
	{
		if (!tessera_refresh_begin(utility, routing))
			tessera_utility_run(utility);
		else
		{
			run_ddl(utility, tessera_routing(), kind);
			tessera_refresh_end(utility);
		}
	}
	else if (kind == UTILITY_TABLE_AS && ((CreateTableAsStmt *) statement)->into->skipData &&
			 tessera_creates_cluster_view((CreateTableAsStmt *) statement, routing))
		run_ddl(utility, routing, kind);
	else if (kind == UTILITY_TABLE_AS)
	{
		if (!tessera_create_table_as(utility, routing))
			tessera_utility_run(utility);
	}
	else
		run_ddl(utility, routing, kind);
}

/* COPY and TRUNCATE of a table do not go through the executor, which refuses what else is done with tables of a removed node. */
static void
refuse_on_removed_node(Node *statement)
{
	List	   *relations = IsA(statement, TruncateStmt) ? ((TruncateStmt *) statement)->relations :
		IsA(statement, CopyStmt) && ((CopyStmt *) statement)->relation ? list_make1(((CopyStmt *) statement)->relation) : NIL;
	ListCell   *cell;

	foreach(cell, relations)
	{
		Oid			relid = tessera_node_was_removed() ? RangeVarGetRelid(lfirst_node(RangeVar, cell), NoLock, true) : InvalidOid;

		if (OidIsValid(relid))
			tessera_refuse_removed_table(relid);
	}
}

static void
run_notify(TesseraUtility *utility)
{
	NotifyStmt *notify = castNode(NotifyStmt, utility->statement->utilityStmt);

	if (!tessera_notify_begins(notify->conditionname, notify->payload))
		return;
	tessera_utility_run(utility);
	tessera_notify_ran(notify->conditionname, notify->payload);
}

static bool
imports_snapshot(Node *statement)
{
	return IsA(statement, VariableSetStmt) && ((VariableSetStmt *) statement)->kind == VAR_SET_MULTI &&
		strcmp(((VariableSetStmt *) statement)->name, "TRANSACTION SNAPSHOT") == 0;
}

static void
utility_hook(PlannedStmt *statement, const char *text, bool read_only, ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	TesseraUtility utility = {statement, text, read_only, context, params, environment, receiver, completion};
	UtilityKind kind;
	const TesseraRouting *routing;

	tessera_internal_restate_start();
	if (IsA(statement->utilityStmt, TransactionStmt))
	{
		if (!tessera_prepared_statement(&utility, run_next))
			run_next(&utility);
		return;
	}
	if (IsA(statement->utilityStmt, DiscardStmt) && ((DiscardStmt *) statement->utilityStmt)->target == DISCARD_ALL)
	{
		PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "DISCARD ALL");
		tessera_advisory_discard();
	}
	if (IsA(statement->utilityStmt, DiscardStmt) && (((DiscardStmt *) statement->utilityStmt)->target == DISCARD_ALL ||
													 ((DiscardStmt *) statement->utilityStmt)->target == DISCARD_SEQUENCES))
		tessera_sequences_discard();
	if (IsA(statement->utilityStmt, NotifyStmt))
	{
		run_notify(&utility);
		return;
	}
	if (IsA(statement->utilityStmt, ListenStmt))
		tessera_listen_check(&utility);
	if (tessera_snapshot_imported != NULL && imports_snapshot(statement->utilityStmt))
		tessera_snapshot_imported();
	if (IsA(statement->utilityStmt, DropdbStmt))
		tessera_ddl_check_drop_database(&utility);
	if (IsTransactionState())
		refuse_on_removed_node(statement->utilityStmt);
	kind = kind_of(&utility);
	routing = kind != UTILITY_LOCAL && !belongs_to_another(&utility) && IsTransactionState() ? tessera_routing() : NULL;
	if (routing == NULL)
		tessera_utility_run(&utility);
	else
		run_on_member(&utility, routing, kind);
}

void
tessera_ddl_init(void)
{
	DefineCustomBoolVariable("tessera.replicate_ddl", "Run DDL on every node of the cluster.",
							 "Off: a statement changes this node only. For repairs; nodes must have the same schema.",
							 &replicate_ddl, true, PGC_SUSET, 0, NULL, NULL, NULL);
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility_hook;
}
