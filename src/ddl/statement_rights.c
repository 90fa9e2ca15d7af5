/*
 * statement_rights.c
 *	  Whether a user may run a DDL statement, asked before it does anything to others; see tessera_ddl_check_rights in ddl.h.
 *
 * Core asks when it has locked the table. In a cluster the statement has done a lot by then: it holds names on the config node, and the migrations of
 * its tables' groups have ended. So who may not run it is refused before. Names are looked up without locks; core asks again, of what it has locked.
 *
 * A statement that only looks at a table (CREATE VIEW, LIKE, a foreign key that refers to it) needs some right on it here; that of ALTER TABLE and of
 * most others is to own it.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "ddl/ddl.h"

/* The table that a statement changes and whose owner core wants to see; NULL: none, or other rights will do. */
static const RangeVar *
owned_target(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			return ((AlterTableStmt *) statement)->relation;
		case T_AlterObjectSchemaStmt:
			return ((AlterObjectSchemaStmt *) statement)->relation;
		case T_RenameStmt:
			return ((RenameStmt *) statement)->relation;
		case T_IndexStmt:
			return ((IndexStmt *) statement)->relation;
		case T_RuleStmt:
			return ((RuleStmt *) statement)->relation;
		case T_CreatePolicyStmt:
			return ((CreatePolicyStmt *) statement)->table;
		case T_AlterPolicyStmt:
			return ((AlterPolicyStmt *) statement)->table;
		case T_ClusterStmt:
			return ((ClusterStmt *) statement)->relation;
		default:
			return NULL;
	}
}

static void
refuse(AclResult result, Oid relid)
{
	aclcheck_error(result, get_relkind_objtype(get_rel_relkind(relid)), get_rel_name(relid));
}

/* Who owns the schema may drop what lies in it. */
static bool
may_drop(Oid relid)
{
	return pg_class_ownercheck(relid, GetUserId()) || pg_namespace_ownercheck(get_rel_namespace(relid), GetUserId());
}

static bool
has_any_right(Oid relid)
{
	AclMode		all = ACL_SELECT | ACL_INSERT | ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE | ACL_REFERENCES | ACL_TRIGGER;

	return pg_class_aclmask(relid, GetUserId(), all, ACLMASK_ANY) != 0 ||
		pg_attribute_aclcheck_all(relid, GetUserId(), ACL_SELECT | ACL_INSERT | ACL_UPDATE | ACL_REFERENCES, ACLMASK_ANY) == ACLCHECK_OK;
}

bool
tessera_ddl_grants_nothing(Node *statement, const List *relids)
{
	AclMode		all = ACL_GRANT_OPTION_FOR(ACL_ALL_RIGHTS_RELATION);
	AclMode		columns = ACL_GRANT_OPTION_FOR(ACL_ALL_RIGHTS_COLUMN);
	ListCell   *cell;

	if (!IsA(statement, GrantStmt) || relids == NIL)
		return false;
	foreach(cell, relids)
		if (pg_class_aclmask(lfirst_oid(cell), GetUserId(), all, ACLMASK_ANY) != 0 ||
			pg_attribute_aclcheck_all(lfirst_oid(cell), GetUserId(), columns, ACLMASK_ANY) == ACLCHECK_OK)
			return false;
	return true;
}

/* One of the tables that the statement names. */
static void
check_named(Node *statement, Oid relid)
{
	AclResult	result = ACLCHECK_OK;

	switch (nodeTag(statement))
	{
		case T_DropStmt:
			if (!may_drop(relid))
				result = ACLCHECK_NOT_OWNER;
			break;
		case T_TruncateStmt:
			result = pg_class_aclcheck(relid, GetUserId(), ACL_TRUNCATE);
			break;
		case T_CommentStmt:
		case T_SecLabelStmt:
		case T_AlterOwnerStmt:
		case T_CreateStatsStmt:
			if (!pg_class_ownercheck(relid, GetUserId()))
				result = ACLCHECK_NOT_OWNER;
			break;
		case T_ViewStmt:
		case T_CreateTableAsStmt:
			break;				/* whether it may be read is asked when it is */
		default:
			result = has_any_right(relid) ? ACLCHECK_OK : ACLCHECK_NO_PRIV;
			break;
	}
	if (result != ACLCHECK_OK)
		refuse(result, relid);
}

void
tessera_ddl_check_rights(Node *statement, const List *relids)
{
	const RangeVar *target = owned_target(statement);
	Oid			changed = target ? RangeVarGetRelid(target, NoLock, true) : InvalidOid;
	ListCell   *cell;

	if (OidIsValid(changed) && !pg_class_ownercheck(changed, GetUserId()))
		refuse(ACLCHECK_NOT_OWNER, changed);
	if (IsA(statement, CreateTrigStmt))
	{
		Oid			relid = RangeVarGetRelid(((CreateTrigStmt *) statement)->relation, NoLock, true);
		AclResult	result = OidIsValid(relid) ? pg_class_aclcheck(relid, GetUserId(), ACL_TRIGGER) : ACLCHECK_OK;

		if (result != ACLCHECK_OK)
			refuse(result, relid);
	}
	foreach(cell, relids)
		check_named(statement, lfirst_oid(cell));
}
