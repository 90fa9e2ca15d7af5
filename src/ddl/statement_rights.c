/*
 * statement_rights.c
 *	  Whether a user may run a DDL statement, asked before it does anything to others; see tessera_ddl_check_rights in ddl.h.
 *
 * Core asks when it has locked the table. In a cluster the statement has done a lot by then: it holds names on the config node, and the migrations of
 * its tables' groups have ended. So who may not run it is refused before. Names are looked up without locks; core asks again, of what it has locked.
 *
 * Asked of what is written, of any kind: the partition, not its root; the sequence or index, not its table. Nearly all want the owner.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "ddl/ddl.h"

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
tessera_ddl_may_grant(Oid relid)
{
	AclMode		all = ACL_GRANT_OPTION_FOR(ACL_ALL_RIGHTS_RELATION | ACL_ALL_RIGHTS_SEQUENCE);
	AclMode		columns = ACL_GRANT_OPTION_FOR(ACL_ALL_RIGHTS_COLUMN);

	return pg_class_aclmask(relid, GetUserId(), all, ACLMASK_ANY) != 0 ||
		pg_attribute_aclcheck_all(relid, GetUserId(), columns, ACLMASK_ANY) == ACLCHECK_OK;
}

void
tessera_ddl_check_lock_of_catalog(const LockStmt *statement)
{
	Oid			own = get_namespace_oid("tessera", true);
	ListCell   *cell;

	if (statement->mode == AccessShareLock)
		return;
	foreach(cell, statement->relations)
	{
		Oid			relid = RangeVarGetRelid(lfirst_node(RangeVar, cell), NoLock, true);

		if (OidIsValid(relid) && get_rel_namespace(relid) == own && !pg_class_ownercheck(relid, GetUserId()))
			refuse(ACLCHECK_NO_PRIV, relid);
	}
}

/* Whose the relation must be, or what else core wants, of one that the statement names. */
static void
check_named(Node *statement, Oid relid)
{
	AclResult	result = ACLCHECK_OK;

	switch (nodeTag(statement))
	{
		case T_DropStmt:
			switch (((DropStmt *) statement)->removeType)
			{
				case OBJECT_TRIGGER:
				case OBJECT_RULE:
				case OBJECT_POLICY:
					result = pg_class_ownercheck(relid, GetUserId()) ? ACLCHECK_OK : ACLCHECK_NOT_OWNER;
					break;
				default:
					result = may_drop(relid) ? ACLCHECK_OK : ACLCHECK_NOT_OWNER;
			}
			break;
		case T_TruncateStmt:
			result = pg_class_aclcheck(relid, GetUserId(), ACL_TRUNCATE);
			break;
		case T_CreateTrigStmt:
			result = pg_class_aclcheck(relid, GetUserId(), ACL_TRIGGER);
			break;
		case T_LockStmt:
			result = has_any_right(relid) ? ACLCHECK_OK : ACLCHECK_NO_PRIV;
			break;
		case T_GrantStmt:
			break;				/* only those are named that the user may grant something of */
		default:
			result = pg_class_ownercheck(relid, GetUserId()) ? ACLCHECK_OK : ACLCHECK_NOT_OWNER;
			break;
	}
	if (result != ACLCHECK_OK)
		refuse(result, relid);
}

/* True if the name will be that of the table that is made. */
static bool
is_made(const RangeVar *name, const RangeVar *made)
{
	return made != NULL && strcmp(name->relname, made->relname) == 0 &&
		(name->schemaname == NULL || (made->schemaname != NULL && strcmp(name->schemaname, made->schemaname) == 0));
}

/* What a foreign key refers to, in a constraint or in those of a column. made: the table that the statement makes; NULL: none. */
static void
check_referenced(Node *node, const RangeVar *made)
{
	ListCell   *cell;

	if (node != NULL && IsA(node, ColumnDef))
		foreach(cell, ((ColumnDef *) node)->constraints)
			check_referenced(lfirst(cell), made);
	else if (node != NULL && IsA(node, Constraint) && ((Constraint *) node)->pktable != NULL)
	{
		Oid			relid = RangeVarGetRelid(((Constraint *) node)->pktable, NoLock, true);

		if (OidIsValid(relid) && !is_made(((Constraint *) node)->pktable, made) &&
			pg_class_aclcheck(relid, GetUserId(), ACL_REFERENCES) != ACLCHECK_OK &&
			pg_attribute_aclcheck_all(relid, GetUserId(), ACL_REFERENCES, ACLMASK_ANY) != ACLCHECK_OK)
			refuse(ACLCHECK_NO_PRIV, relid);
	}
}

static void
check_attached(const AlterTableCmd *command)
{
	Oid			relid = RangeVarGetRelid(castNode(PartitionCmd, command->def)->name, NoLock, true);

	/* of an index core asks nothing */
	if (OidIsValid(relid) && get_rel_relkind(relid) != RELKIND_INDEX && get_rel_relkind(relid) != RELKIND_PARTITIONED_INDEX &&
		!pg_class_ownercheck(relid, GetUserId()))
		refuse(ACLCHECK_NOT_OWNER, relid);
}

/* IF NOT EXISTS of what exists, IF EXISTS of what does not: core only says so. */
static bool
does_nothing(Node *statement)
{
	CreateStmt *create = IsA(statement, CreateStmt) ? (CreateStmt *) statement : NULL;
	AlterTableStmt *alter = IsA(statement, AlterTableStmt) ? (AlterTableStmt *) statement : NULL;

	if (create != NULL && create->if_not_exists)
		return OidIsValid(RangeVarGetRelid(create->relation, NoLock, true));
	return alter != NULL && alter->missing_ok && !OidIsValid(RangeVarGetRelid(alter->relation, NoLock, true));
}

void
tessera_ddl_check_rights(Node *statement, const TesseraStatementObjects *named)
{
	ListCell   *cell;

	foreach(cell, named->makes_in)
	{
		AclResult	result = pg_namespace_aclcheck(lfirst_oid(cell), GetUserId(), ACL_CREATE);

		if (result != ACLCHECK_OK)
			aclcheck_error(result, OBJECT_SCHEMA, get_namespace_name(lfirst_oid(cell)));
	}
	if (does_nothing(statement))
		return;
	foreach(cell, named->written)
		check_named(statement, lfirst_oid(cell));
	if (IsA(statement, CreateStmt))
		foreach(cell, ((CreateStmt *) statement)->tableElts)
			check_referenced(lfirst(cell), ((CreateStmt *) statement)->relation);
	else if (IsA(statement, AlterTableStmt))
		foreach(cell, ((AlterTableStmt *) statement)->cmds)
		{
			check_referenced(lfirst_node(AlterTableCmd, cell)->def, NULL);
			if (lfirst_node(AlterTableCmd, cell)->subtype == AT_AttachPartition)
				check_attached(lfirst_node(AlterTableCmd, cell));
		}
}
