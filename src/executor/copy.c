/*
 * copy.c
 *	  COPY statements of member nodes: which are ours, what the user may do, and the shard's side of the agreement on versions.
 *	  How rows of COPY FROM are routed to shards is in copy_from.c.
 *
 * Privileges are checked as the server's own COPY does it, which never runs for these. COPY TO becomes COPY of a SELECT of the same columns, which
 * the planner routes; a partitioned table stays what it is there, an error.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/copy.h"
#include "control/calls.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/prep.h"
#include "parser/parse_coerce.h"
#include "parser/parse_collate.h"
#include "parser/parse_expr.h"
#include "parser/parse_relation.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "common/version_compat.h"
#include "executor/copy.h"
#include "executor/cut.h"
#include "executor/open_doubts.h"
#include "executor/shard_check.h"
#include "session/internal_connection.h"


/* True if the table is here what the router has routed it as: placed, or a table of that group. The group's version alone does not tell that. */
static bool
same_kind(Oid relid, const pg_uuid_t *group_id)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing ? tessera_routing_table(routing, relid) : NULL;

	if (table == NULL || table->group < 0)
		return group_id == NULL;
	return group_id != NULL && memcmp(&tessera_routing_group(routing, table->group)->group_id, group_id, sizeof(pg_uuid_t)) == 0;
}

/* Takes the lock of a COPY FROM that is to come, then looks at versions and gates; false: stale */
bool
tessera_serve_copy_check(const TesseraCopyCheckArgs *args)
{
	List	   *names;
	Oid			relid;

	names = tessera_names_of(args->table_name);
	relid = RangeVarGetRelid(makeRangeVarFromNameList(names), RowExclusiveLock, false);
	return same_kind(relid, args->group_id) && tessera_shard_check_table(relid, NULL) == TESSERA_ACCEPTED;
}

/* ---- privileges ---- */

static void
check_file_privilege(const CopyStmt *statement)
{
	if (statement->filename == NULL)
		return;
	if (!has_privs_of_role(GetUserId(), statement->is_program ? ROLE_PG_EXECUTE_SERVER_PROGRAM : ROLE_PG_READ_SERVER_FILES))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to COPY from %s", statement->is_program ? "a program" : "a file of the server"),
				 errhint("This takes a superuser or a member of %s; anyone can COPY from stdin.",
						 statement->is_program ? "pg_execute_server_program" : "pg_read_server_files")));
}

static void
check_table_privilege(CopyStmt *statement, ParseState *pstate, ParseNamespaceItem *item, Relation rel)
{
	TesseraPermissions *permissions = tessera_item_permissions(item);
	ListCell   *cell;

	permissions->requiredPerms = ACL_INSERT;
	foreach(cell, CopyGetAttnums(RelationGetDescr(rel), rel, statement->attlist))
		permissions->insertedCols = bms_add_member(permissions->insertedCols, lfirst_int(cell) - FirstLowInvalidHeapAttributeNumber);
	tessera_check_permissions(pstate);
	if (check_enable_rls(RelationGetRelid(rel), InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("COPY FROM not supported with row-level security"),
				 errhint("Use INSERT statements instead.")));
}

/* ---- WHERE ---- */

static void
refuse_generated(Node *clause, Relation rel)
{
	Bitmapset  *columns = NULL;
	bool		whole;

	pull_varattnos(clause, 1, &columns);
	whole = bms_is_member(0 - FirstLowInvalidHeapAttributeNumber, columns);
	for (int i = 0; i < RelationGetDescr(rel)->natts; i++)
		if (TupleDescAttr(RelationGetDescr(rel), i)->attgenerated && (whole || bms_is_member(i + 1 - FirstLowInvalidHeapAttributeNumber, columns)))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_COLUMN_REFERENCE),
					 errmsg("generated columns are not supported in COPY FROM WHERE conditions"),
					 errdetail("Column \"%s\" is a generated column.", NameStr(TupleDescAttr(RelationGetDescr(rel), i)->attname))));
}

/* The condition as an implicit-AND list, ready to be evaluated. */
static List *
transform_where(CopyStmt *statement, ParseState *pstate, ParseNamespaceItem *item, Relation rel)
{
	Node	   *clause;

	if (statement->whereClause == NULL)
		return NIL;
	addNSItemToQuery(pstate, item, false, true, true);
	clause = transformExpr(pstate, copyObject(statement->whereClause), EXPR_KIND_COPY_WHERE);
	clause = coerce_to_boolean(pstate, clause, "WHERE");
	assign_expr_collations(pstate, clause);
	refuse_generated(clause, rel);
	clause = eval_const_expressions(NULL, clause);
	clause = (Node *) canonicalize_qual((Expr *) clause, false);
	return make_ands_implicit((Expr *) clause);
}

/* ---- COPY FROM ---- */

static void
run_copy_from(TesseraUtility *utility, CopyStmt *statement)
{
	ParseState *pstate = make_parsestate(NULL);
	Relation	rel;
	ParseNamespaceItem *item;
	List	   *where;
	uint64		processed;

	pstate->p_sourcetext = utility->text;
	PreventCommandIfReadOnly("COPY FROM");
	check_file_privilege(statement);
	rel = table_openrv(statement->relation, RowExclusiveLock);
	item = addRangeTableEntryForRelation(pstate, rel, RowExclusiveLock, NULL, false, false);
	where = transform_where(statement, pstate, item, rel);
	check_table_privilege(statement, pstate, item, rel);

	tessera_nesting_enter();
	PG_TRY();
	{
		processed = tessera_copy_from(statement, rel, where, pstate);
		if (utility->completion)
			SetQueryCompletion(utility->completion, CMDTAG_COPY, processed);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
	}
	PG_END_TRY();
	table_close(rel, NoLock);
	free_parsestate(pstate);
}

/* ---- COPY TO ---- */

static void
copy_select_instead(TesseraUtility *utility, CopyStmt *statement)
{
	Relation	rel = table_openrv(statement->relation, AccessShareLock);
	SelectStmt *select = makeNode(SelectStmt);
	RangeVar   *from = makeRangeVar(get_namespace_name(RelationGetNamespace(rel)), pstrdup(RelationGetRelationName(rel)), -1);
	ListCell   *cell;

	foreach(cell, CopyGetAttnums(RelationGetDescr(rel), rel, statement->attlist))
	{
		ColumnRef  *column = makeNode(ColumnRef);
		ResTarget  *target = makeNode(ResTarget);

		column->fields = list_make1(makeString(pstrdup(NameStr(TupleDescAttr(RelationGetDescr(rel), lfirst_int(cell) - 1)->attname))));
		column->location = -1;
		target->val = (Node *) column;
		target->location = -1;
		select->targetList = lappend(select->targetList, target);
	}
	from->inh = false;
	select->fromClause = list_make1(from);
	table_close(rel, NoLock);

	utility->statement = copyObject(utility->statement);
	statement = castNode(CopyStmt, utility->statement->utilityStmt);
	statement->relation = NULL;
	statement->attlist = NIL;
	statement->query = (Node *) select;
	utility->read_only = false;
}

/* ---- */

static void
refuse_partition(const TesseraRouting *routing, Oid relid)
{
	List	   *ancestors = tessera_routing_table(routing, relid) == NULL && get_rel_relispartition(relid) ? get_partition_ancestors(relid) : NIL;

	if (ancestors != NIL && tessera_routing_table(routing, llast_oid(ancestors)) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("COPY of a partition of a table of the cluster is not supported"),
				 errhint("Use the partitioned table \"%s\".", get_rel_name(llast_oid(ancestors)))));
}

/*
 * A placed table of this shard, whose schema may be moving: COPY FROM takes the server's own way if versions and gates allow it. The lock comes
 * first, as in every check (doc/design.md#flag-after-lock).
 */
static bool
may_copy_here(const TesseraRouting *routing, Oid relid)
{
	TesseraRoutedBy routed = {.routing = routing};

	LockRelationOid(relid, RowExclusiveLock);
	return tessera_shard_check_table(relid, &routed) == TESSERA_ACCEPTED;
}

/* The server reads the table here by itself, under the snapshot at hand, past the executor. */
static bool
leave_to_server(const CopyStmt *statement, const TesseraRouting *routing, Oid relid)
{
	Snapshot	snapshot = ActiveSnapshotSet() ? GetActiveSnapshot() : NULL;

	if (statement->is_from)
		return false;
	if (IsolationUsesXactSnapshot() && !tessera_cut_is_settled() && get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
	{
		if (tessera_cut_begins())
			tessera_cut_transaction(routing, 0, NULL, NULL, snapshot);
		else
			tessera_cut_stays();
	}
	tessera_cut_renew(snapshot);
	tessera_open_doubts_check(list_make1_oid(relid));
	return false;
}

bool
tessera_copy_statement(TesseraUtility *utility)
{
	CopyStmt   *statement = castNode(CopyStmt, utility->statement->utilityStmt);
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table;
	Oid			relid;

	if (statement->relation == NULL || routing == NULL)
		return false;
	relid = RangeVarGetRelid(statement->relation, NoLock, true);
	if (!OidIsValid(relid))
		return false;
	table = tessera_routing_table(routing, relid);
	if (table != NULL && table->replicated && !statement->is_from)
		return leave_to_server(statement, routing, relid);	/* the copy here is whole */
	if (table == NULL)
		refuse_partition(routing, relid);
	if (table == NULL || (table->group < 0 && table->node_id == routing->self &&
						  (table->placement_group < 0 || (statement->is_from && may_copy_here(routing, relid)))))
		return leave_to_server(statement, routing, relid);
	if (tessera_internal_connection() && (statement->is_from || table->group >= 0 || table->node_id != routing->self))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a function or trigger that runs on a shard cannot run COPY of a table of the cluster"),
				 errhint("Run it in the client, or in a function called outside the statement.")));
	if (!statement->is_from)
	{
		if (get_rel_relkind(relid) == RELKIND_RELATION)
			copy_select_instead(utility, statement);
		return false;
	}
	run_copy_from(utility, statement);
	return true;
}
