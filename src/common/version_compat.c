/*
 * version_compat.c
 *	  What differs between PostgreSQL 15, 16, 17 and 18 and is more than a name; see version_compat.h.
 */
#include "postgres.h"

#include "access/genam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "executor/nodeModifyTable.h"
#include "libpq/libpq.h"
#include "libpq/pqformat.h"
#include "optimizer/optimizer.h"
#include "optimizer/restrictinfo.h"
#include "parser/parse_relation.h"
#include "parser/parse_type.h"
#include "postmaster/postmaster.h"
#include "replication/message.h"
#include "replication/slot.h"
#include "replication/walreceiver.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/pg_locale.h"
#include "utils/regproc.h"
#if PG_VERSION_NUM >= 160000
#include "nodes/miscnodes.h"
#else
#include "parser/gramparse.h"
#endif

#include "common/version_compat.h"

#if PG_VERSION_NUM < 160000
StaticAssertDecl((int) TESSERA_TOKEN_IDENT == (int) IDENT && (int) TESSERA_TOKEN_UIDENT == (int) UIDENT &&
				 (int) TESSERA_TOKEN_ICONST == (int) ICONST && (int) TESSERA_TOKEN_PARAM == (int) PARAM &&
				 (int) TESSERA_TOKEN_NOT_EQUALS == (int) NOT_EQUALS, "the lexer's tokens are those of gram.h");
#endif

/* ---- processes and transactions ---- */

PGPROC *
tessera_vxid_proc(VirtualTransactionId id)
{
	if (tessera_vxid_is_recovered(id))
		return NULL;
#if PG_VERSION_NUM >= 170000
	return ProcNumberGetProc(id.procNumber);
#else
	return BackendIdGetProc(id.backendId);
#endif
}

bool
tessera_lock_held(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

bool
tessera_client_bytes_buffered(void)
{
#if PG_VERSION_NUM >= 170000
	return pq_buffer_remaining_data() > 0;
#else
	return pq_buffer_has_data();
#endif
}

WaitEventSet *
tessera_wait_event_set(MemoryContext mcxt, int n)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, n);
#else
	return CreateWaitEventSet(mcxt, n);
#endif
}

int
tessera_catalog_path_begin(void)
{
#if PG_VERSION_NUM >= 170000
	int			nest = NewGUCNestLevel();

	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return nest;
#else
	OverrideSearchPath path = {.schemas = list_make1_oid(PG_CATALOG_NAMESPACE)};
	Oid			temporary = LookupNamespaceNoError("pg_temp");

	if (OidIsValid(temporary))
		path.schemas = lappend_oid(path.schemas, temporary);
	PushOverrideSearchPath(&path);
	list_free(path.schemas);
	return 0;
#endif
}

void
tessera_catalog_path_end(int nest)
{
#if PG_VERSION_NUM >= 170000
	AtEOXact_GUC(true, nest);
#else
	PopOverrideSearchPath();
#endif
}

/* ---- privileges ---- */

bool
tessera_owns_relation(Oid relid, Oid user)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relid, user);
#else
	return pg_class_ownercheck(relid, user);
#endif
}

bool
tessera_owns_database(Oid database, Oid user)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, database, user);
#else
	return pg_database_ownercheck(database, user);
#endif
}

bool
tessera_may_execute(Oid function, Oid user)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(ProcedureRelationId, function, user, ACL_EXECUTE) == ACLCHECK_OK;
#else
	return pg_proc_aclcheck(function, user, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

#if PG_VERSION_NUM >= 160000

TesseraPermissions *
tessera_permissions(const Query *query, RangeTblEntry *rte)
{
	return rte->perminfoindex == 0 ? NULL : getRTEPermissionInfo(query->rteperminfos, rte);
}

TesseraPermissions *
tessera_executor_permissions(EState *estate, RangeTblEntry *rte)
{
	return rte->perminfoindex == 0 ? NULL : getRTEPermissionInfo(estate->es_rteperminfos, rte);
}

TesseraPermissions *
tessera_plan_permissions(PlannedStmt *plan, RangeTblEntry *rte)
{
	return rte->perminfoindex == 0 ? NULL : getRTEPermissionInfo(plan->permInfos, rte);
}

TesseraPermissions *
tessera_add_permissions(List **list, RangeTblEntry *rte)
{
	return addRTEPermissionInfo(list, rte);
}

void
tessera_move_permissions(const Query *query, RangeTblEntry *rte, List **list)
{
	TesseraPermissions *permissions = tessera_permissions(query, rte);

	if (permissions == NULL)
		return;
	*list = lappend(*list, copyObject(permissions));
	rte->perminfoindex = list_length(*list);
}

void
tessera_forget_permissions(RangeTblEntry *rte)
{
	rte->perminfoindex = 0;
}

void
tessera_set_query_permissions(Query *query, List *list)
{
	query->rteperminfos = list;
}

TesseraPermissions *
tessera_item_permissions(ParseNamespaceItem *item)
{
	return item->p_perminfo;
}

void
tessera_check_permissions(ParseState *pstate)
{
	(void) ExecCheckPermissions(pstate->p_rtable, pstate->p_rteperminfos, true);
}

#else

TesseraPermissions *
tessera_permissions(const Query *query, RangeTblEntry *rte)
{
	return rte;
}

TesseraPermissions *
tessera_executor_permissions(EState *estate, RangeTblEntry *rte)
{
	return rte;
}

TesseraPermissions *
tessera_plan_permissions(PlannedStmt *plan, RangeTblEntry *rte)
{
	return rte;
}

TesseraPermissions *
tessera_add_permissions(List **list, RangeTblEntry *rte)
{
	return rte;
}

void
tessera_move_permissions(const Query *query, RangeTblEntry *rte, List **list)
{
}

void
tessera_forget_permissions(RangeTblEntry *rte)
{
	rte->requiredPerms = 0;
	rte->selectedCols = NULL;
	rte->insertedCols = NULL;
	rte->updatedCols = NULL;
}

void
tessera_set_query_permissions(Query *query, List *list)
{
}

TesseraPermissions *
tessera_item_permissions(ParseNamespaceItem *item)
{
	return item->p_rte;
}

void
tessera_check_permissions(ParseState *pstate)
{
	(void) ExecCheckRTPerms(pstate->p_rtable, true);
}

#endif

void
tessera_set_plan_relations(PlannedStmt *plan, List *rtable, List *permissions)
{
	plan->rtable = rtable;
#if PG_VERSION_NUM >= 160000
	plan->permInfos = permissions;
#endif
#if PG_VERSION_NUM >= 180000
	for (int i = 0; i < list_length(rtable); i++)
		if (list_nth_node(RangeTblEntry, rtable, i)->rtekind == RTE_RELATION)
			plan->unprunableRelids = bms_add_member(plan->unprunableRelids, i + 1);
#endif
}

bool
tessera_plan_checks_as_user(const PlannedStmt *plan)
{
#if PG_VERSION_NUM >= 160000
	List	   *list = plan->permInfos;
#else
	List	   *list = plan->rtable;
#endif
	ListCell   *cell;

	foreach(cell, list)
		if (OidIsValid(((TesseraPermissions *) lfirst(cell))->checkAsUser))
			return true;
	return false;
}

Oid
tessera_check_as_user(const Query *query, RangeTblEntry *rte)
{
	const TesseraPermissions *permissions = tessera_permissions(query, rte);

	return permissions == NULL ? InvalidOid : permissions->checkAsUser;
}

/* ---- names, catalog ---- */

List *
tessera_names_of(const char *text)
{
#if PG_VERSION_NUM >= 160000
	return stringToQualifiedNameList(text, NULL);
#else
	return stringToQualifiedNameList(text);
#endif
}

void
tessera_parse_type(const char *text, Oid *type, int32 *typmod)
{
#if PG_VERSION_NUM >= 160000
	ErrorSaveContext errors = {.type = T_ErrorSaveContext};

	if (!parseTypeString(text, type, typmod, (Node *) &errors))
		*type = InvalidOid;
#else
	parseTypeString(text, type, typmod, true);
#endif
}

ObjectAddress
tessera_create_cast(Oid source, Oid target, Oid function)
{
#if PG_VERSION_NUM >= 160000
	return CastCreate(source, target, function, InvalidOid, InvalidOid, COERCION_CODE_IMPLICIT, COERCION_METHOD_FUNCTION, DEPENDENCY_NORMAL);
#else
	return CastCreate(source, target, function, COERCION_CODE_IMPLICIT, COERCION_METHOD_FUNCTION, DEPENDENCY_NORMAL);
#endif
}

bool
tessera_collation_is_c(Oid collation)
{
#if PG_VERSION_NUM >= 180000
	return pg_newlocale_from_collation(collation)->collate_is_c;
#else
	return lc_collate_is_c(collation);
#endif
}

Oid
tessera_primary_key(Relation rel)
{
#if PG_VERSION_NUM >= 180000
	return RelationGetPrimaryKeyIndex(rel, false);
#else
	return RelationGetPrimaryKeyIndex(rel);
#endif
}

bool
tessera_is_random(Oid function)
{
#if PG_VERSION_NUM >= 170000
	return function == F_RANDOM_ || function == F_RANDOM_INT4_INT4 || function == F_RANDOM_INT8_INT8 || function == F_RANDOM_NUMERIC_NUMERIC;
#else
	return function == F_RANDOM;
#endif
}

/* ---- settings ---- */

#if PG_VERSION_NUM >= 160000

struct config_generic *
tessera_find_setting(const char *name)
{
	return find_option(name, false, true, 0);
}

struct config_generic **
tessera_all_settings(int *n)
{
	return get_guc_variables(n);
}

void
tessera_settings_done(struct config_generic **settings)
{
	pfree(settings);
}

#else

/* Names of settings as core compares them: case counts for other letters than ASCII's only. */
static int
compare_names(const char *a, const char *b)
{
	for (; *a != '\0' && *b != '\0'; a++, b++)
	{
		int			difference = (int) pg_ascii_tolower((unsigned char) *a) - (int) pg_ascii_tolower((unsigned char) *b);

		if (difference != 0)
			return difference;
	}
	return (*a != '\0') - (*b != '\0');
}

struct config_generic *
tessera_find_setting(const char *name)
{
	struct config_generic **settings = get_guc_variables();
	int			low = 0;
	int			high = GetNumConfigOptions() - 1;

	while (low <= high)
	{
		int			middle = (low + high) / 2;
		int			order = compare_names(name, settings[middle]->name);

		if (order == 0)
			return settings[middle];
		if (order < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
	return NULL;
}

struct config_generic **
tessera_all_settings(int *n)
{
	*n = GetNumConfigOptions();
	return get_guc_variables();
}

void
tessera_settings_done(struct config_generic **settings)
{
}

#endif

/* ---- planner and executor ---- */

RestrictInfo *
tessera_make_restriction(PlannerInfo *root, Expr *clause, Relids relids)
{
#if PG_VERSION_NUM >= 160000
	return make_restrictinfo(root, clause, true, false, false, false, 0, relids, NULL, NULL);
#else
	return make_restrictinfo(root, clause, true, false, false, 0, relids, NULL, NULL);
#endif
}

bool
tessera_made_here(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return rel->rd_createSubid != InvalidSubTransactionId || rel->rd_newRelfilelocatorSubid != InvalidSubTransactionId ||
		rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId;
#else
	return rel->rd_createSubid != InvalidSubTransactionId || rel->rd_newRelfilenodeSubid != InvalidSubTransactionId ||
		rel->rd_firstRelfilenodeSubid != InvalidSubTransactionId;
#endif
}

void
tessera_init_range_table(EState *estate, RangeTblEntry *rte, List *permissions)
{
#if PG_VERSION_NUM >= 180000
	ExecInitRangeTable(estate, list_make1(rte), permissions, bms_make_singleton(1));
#elif PG_VERSION_NUM >= 160000
	ExecInitRangeTable(estate, list_make1(rte), permissions);
#else
	ExecInitRangeTable(estate, list_make1(rte));
#endif
}

void
tessera_init_epq(EPQState *epq, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	EvalPlanQualInit(epq, estate, NULL, NIL, -1, NIL);
#else
	EvalPlanQualInit(epq, estate, NULL, NIL, -1);
#endif
}

void
tessera_forget_indexes(Relation copy)
{
	copy->rd_indexvalid = false;
	copy->rd_indexlist = NIL;
#if PG_VERSION_NUM >= 160000
	copy->rd_attrsvalid = false;
#else
	copy->rd_indexattr = NULL;
#endif
}

bool
tessera_before_update(EState *estate, ResultRelInfo *result, HeapTuple old, TupleTableSlot *row)
{
	TM_FailureData failure;

#if PG_VERSION_NUM >= 180000
	return ExecBRUpdateTriggers(estate, NULL, result, NULL, old, row, NULL, &failure, false);
#elif PG_VERSION_NUM >= 160000
	return ExecBRUpdateTriggers(estate, NULL, result, NULL, old, row, NULL, &failure);
#else
	return ExecBRUpdateTriggers(estate, NULL, result, NULL, old, row, &failure);
#endif
}

bool
tessera_before_delete(EState *estate, ResultRelInfo *result, HeapTuple old)
{
#if PG_VERSION_NUM >= 180000
	return ExecBRDeleteTriggers(estate, NULL, result, NULL, old, NULL, NULL, NULL, false);
#elif PG_VERSION_NUM >= 160000
	return ExecBRDeleteTriggers(estate, NULL, result, NULL, old, NULL, NULL, NULL);
#else
	return ExecBRDeleteTriggers(estate, NULL, result, NULL, old, NULL);
#endif
}

void
tessera_insert_index_tuples(ResultRelInfo *result, TupleTableSlot *slot, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	(void) ExecInsertIndexTuples(result, slot, estate, false, false, NULL, NIL, false);
#else
	(void) ExecInsertIndexTuples(result, slot, estate, false, false, NULL, NIL);
#endif
}

IndexScanDesc
tessera_index_scan(Relation rel, Relation index, Snapshot snapshot, int n)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(rel, index, snapshot, NULL, n, 0);
#else
	return index_beginscan(rel, index, snapshot, n, 0);
#endif
}

void
tessera_open_relation(EState *estate, Index rti)
{
#if PG_VERSION_NUM >= 180000
	(void) ExecGetRangeTableRelation(estate, rti, false);
#else
	(void) ExecGetRangeTableRelation(estate, rti);
#endif
}

/* ---- processes ---- */

int
tessera_reserved_slots(void)
{
#if PG_VERSION_NUM >= 160000
	return SuperuserReservedConnections + ReservedConnections;
#else
	return ReservedBackends;
#endif
}

bool
tessera_slots_are_free(int n)
{
#if PG_VERSION_NUM >= 160000
	int			nfree;

	return HaveNFreeProcs(n, &nfree);
#else
	return HaveNFreeProcs(n);
#endif
}

/* ---- messages ---- */

void
tessera_send_counted_text(StringInfo buf, const char *text)
{
#if PG_VERSION_NUM >= 170000
	pq_sendcountedtext(buf, text, strlen(text));
#else
	pq_sendcountedtext(buf, text, strlen(text), false);
#endif
}

/* ---- replication ---- */

void
tessera_create_ephemeral_slot(const char *name)
{
#if PG_VERSION_NUM >= 170000
	ReplicationSlotCreate(name, true, RS_EPHEMERAL, false, false, false);
#else
	ReplicationSlotCreate(name, true, RS_EPHEMERAL, false);
#endif
}

void
tessera_acquire_slot(const char *name)
{
#if PG_VERSION_NUM >= 180000
	ReplicationSlotAcquire(name, true, true);
#else
	ReplicationSlotAcquire(name, true);
#endif
}

WalReceiverConn *
tessera_publisher_connect(const char *conninfo, const char *name, char **error)
{
#if PG_VERSION_NUM >= 170000
	return walrcv_connect(conninfo, true, true, false, name, error);
#elif PG_VERSION_NUM >= 160000
	return walrcv_connect(conninfo, true, false, name, error);
#else
	return walrcv_connect(conninfo, true, name, error);
#endif
}

XLogRecPtr
tessera_log_message(const char *prefix, const char *data, Size size)
{
#if PG_VERSION_NUM >= 170000
	return LogLogicalMessage(prefix, data, size, false, false);
#else
	return LogLogicalMessage(prefix, data, size, false);
#endif
}

RangeType *
tessera_range_serialize(TypeCacheEntry *range, RangeBound *lower, RangeBound *upper, bool empty)
{
#if PG_VERSION_NUM >= 160000
	return range_serialize(range, lower, upper, empty, NULL);
#else
	return range_serialize(range, lower, upper, empty);
#endif
}
